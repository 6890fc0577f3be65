"""The ``engine.kv_stores`` and ``kv_store`` sections of a scenario."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from forerun.types import PositiveBytes, PositiveSeconds, Section
from simulator.serving.kv_stores import EvictionSetting
from simulator.serving.rules import EVICTION, EvictionName

DEVICE = "device"
"""Name of the chips' memory beside those of stores."""


def _is_store(name: str) -> str:
    if name == DEVICE:
        raise ValueError(f"{DEVICE} is the chips' memory in results; choose another name")
    return name


StoreName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$"), AfterValidator(_is_store)]
LatencySeconds = Annotated[float, Field(ge=0, le=1e3)]
Bandwidth = Annotated[float, Field(ge=1.0, le=1e18)]


class EvictionConfig(Section):
    """An eviction policy with its seconds."""

    name: EvictionName
    """Name of the policy."""
    seconds: PositiveSeconds | None = None
    """ttl, pin: seconds for which blocks are kept."""

    @model_validator(mode="after")
    def _seconds_where_they_apply(self) -> EvictionConfig:
        if self.seconds is None:
            _needs_no_seconds(self.name)
        elif not EVICTION[self.name].retains:
            keeping = " or ".join(known for known, rule in EVICTION.items() if rule.retains)
            raise ValueError(f"seconds: {self.name} keeps nothing for seconds; remove them, or choose {keeping}")
        return self


def _needs_no_seconds(name: str) -> str:
    if EVICTION[name].retains:
        raise ValueError(f"{name} needs the seconds for which blocks are kept, as {{name: {name}, seconds: 10}}")
    return name


Eviction = Annotated[EvictionName, AfterValidator(_needs_no_seconds)] | EvictionConfig
"""An eviction policy: a name, or a mapping with its seconds."""


def eviction_setting(policy: str | EvictionConfig) -> EvictionSetting:
    """The eviction policy of a field."""
    return EvictionSetting(policy) if isinstance(policy, str) else EvictionSetting(policy.name, policy.seconds or 0.0)


class StoreConfig(Section):
    """A store for prefix-cache blocks behind the chips' memory."""

    bytes: PositiveBytes
    """Size: of each server, or of the fleet for a store that servers share."""
    lanes: Annotated[int, Field(gt=0, le=64)] = 1
    """Copies that proceed at the same time in one direction, each at its share of the bandwidth."""
    eviction: Eviction = "lru"
    """Eviction policy, as ``engine.prefix_cache_eviction``. If all blocks are kept, nothing new is saved."""
    usd_per_gb_month: Annotated[float, Field(ge=0, le=1e6)] | None = None
    """Rent in US dollars for 10^9 bytes a month; None: it is in the chips' price, and nothing is added."""
    fetch: Literal["always", "faster"] = "always"
    """``always``: a prefix found here is copied (vLLM, SGLang). ``faster``: it is computed again where the copy would
    take longer, waits included."""

    @property
    def eviction_setting(self) -> EvictionSetting:
        """Its eviction policy."""
        return eviction_setting(self.eviction)


class KvStoreConfig(StoreConfig):
    """Memory of each server for prefix-cache blocks, behind the chips' memory and the stores before it in the list."""

    medium: Literal["host", "disk"] = "host"
    """``host``: host memory, lost if the server fails. ``disk``: a local disk, which is still there after a failure."""
    name: StoreName | None = None
    """Name in results; default: the medium."""
    read_bytes_per_s: Bandwidth | None = None
    """Bandwidth towards the chips; default for host memory: that of all chips' ``host_link``."""
    write_bytes_per_s: Bandwidth | None = None
    """Bandwidth from the chips; default for host memory: as ``read_bytes_per_s``."""
    latency_s: LatencySeconds | None = None
    """Seconds before the first byte of a copy; default: that of ``host_link`` for host memory, 0.0001 for a disk."""
    saves: Literal["evicted", "computed"] = "evicted"
    """``evicted``: blocks that the chips, or the store before this one, evict. ``computed``: every block, as soon as it
    has been computed (vLLM's OffloadingConnector, LMCache, ``hicache_write_policy: write_through``)."""
    loads: Literal["in-step", "background"] | None = None
    """``in-step``: copied layer by layer beside the step that uses it (SGLang HiCache). ``background``: the request
    waits outside the batch until its prefix is there (vLLM's ``WAITING_FOR_REMOTE_KVS``). Default: ``in-step`` for
    host memory, ``background`` for a disk."""

    @model_validator(mode="after")
    def _disk_has_bandwidth(self) -> KvStoreConfig:
        if self.medium == "disk":
            for name in ("read_bytes_per_s", "write_bytes_per_s"):
                if getattr(self, name) is None:
                    raise ValueError(f"{name}: a disk needs it, such as 6.0e9 for an NVMe drive")
        if self.loads == "in-step" and self.medium == "disk":
            raise ValueError("loads: only host memory is copied beside a step; remove it, or set background")
        return self

    @property
    def label(self) -> str:
        """Name in results."""
        return self.name or self.medium


class SharedStoreConfig(StoreConfig):
    """One store for prefix-cache blocks that all servers share, such as a file system; the last store of each server.

    Requests wait outside the batch until their prefix is there, and a block can be read by others once its write has
    landed.
    """

    name: StoreName = "shared"
    """Name in results."""
    read_bytes_per_s: Bandwidth
    """Bandwidth of the store towards all servers together."""
    write_bytes_per_s: Bandwidth
    """Bandwidth of the store from all servers together."""
    latency_s: LatencySeconds = 1e-3
    """Seconds before the first byte of a copy."""
    saves: Literal["evicted", "computed"] = "computed"
    """``computed``: every block, as soon as it has been computed. ``evicted``: what the tier before it evicts."""
    link: str | None = None
    """Link between each server and the store: catalogue name or path; default: the chip's scale-out link."""
    links: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Links of each server that carry one copy together; default: one per chip."""
