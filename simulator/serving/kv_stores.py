"""Sizes, paths and rules of the stores for KV outside the chips, and what their eviction policies know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isinf
from typing import TYPE_CHECKING, Any

from simulator.serving.rules import EVICTION, EVICTION_METHODS, EvictionRule

if TYPE_CHECKING:
    from types import ModuleType

    from simulator.workload import RequestStream
    from traces import PrefixHashes


@dataclass(frozen=True, slots=True)
class EvictionFacts:
    """Facts about a run that an eviction policy knows."""

    hashes: PrefixHashes
    before: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Requests whose end a request waits for (the turn before it), by request."""
    waiting: Mapping[int, int] = field(default_factory=dict)
    """Number of requests that wait for the end of a request, by request."""
    retention_s: float = 0.0
    """Seconds for which blocks are kept."""
    order: Sequence[int] = ()
    """Requests of the cache in the order of a reference run under LRU; only for a clairvoyant policy."""

    def prompt(self, request: int) -> list[int]:
        """Hash blocks of a request, the first one first; equal ones stand for equal prefixes."""
        return self.hashes.of(request).tolist()  # type: ignore[no-any-return]

    @classmethod
    def of(cls, stream: RequestStream) -> EvictionFacts:
        """Facts about the requests of a run, whose prompts have hashes."""
        hashes, waiting = stream.prefix_hashes, Counter[int]()
        before: dict[int, list[int]] = {}
        assert hashes is not None
        for earlier, later in () if stream.follows is None else stream.follows.tolist():
            before.setdefault(later, []).append(earlier)
            waiting[earlier] += 1
        return cls(hashes, before, waiting)


@dataclass(frozen=True, slots=True)
class EvictionSetting:
    """Eviction policy of the prefix cache or a store: its name, and the seconds for which it keeps blocks."""

    name: str = "lru"
    retention_s: float = 0.0

    @property
    def rule(self) -> EvictionRule:
        """Properties of the policy."""
        return EVICTION[self.name]

    def policy(self, engine: ModuleType, facts: EvictionFacts) -> tuple[Any, PrefixHashes]:
        """The policy, and the hash blocks of all requests. One in Python is called by the engine's base."""
        make = self.rule.make
        policy = (getattr(engine, make) if isinstance(make, str) else make)(facts)
        if not isinstance(policy, engine.Eviction):
            methods = {name: staticmethod(getattr(policy, name)) for name in EVICTION_METHODS}
            policy = type(self.name, (engine.Eviction,), methods)(facts)
        return policy, facts.hashes


LRU = EvictionSetting()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpace:
    """Space for KV blocks outside the chips of one server. It holds preempted sequences, or prefix-cache blocks."""

    num_blocks: int
    """KV blocks of the server that fit in it; of a shared store, of the whole fleet."""
    block_bytes: float
    """Bytes of one KV block on all chips that hold a part of it."""
    read_bytes_per_s: float
    """Bandwidth towards the chips, of all lanes together."""
    write_bytes_per_s: float = inf
    """Bandwidth of the other direction; infinite: a block is there as soon as it is written."""
    latency_s: float = 0.0
    """Seconds before the first byte of a copy."""
    lanes: int = 1
    """Copies that proceed at the same time, each at its share of the bandwidth."""
    name: str = "host"
    medium: str = "host"
    saves: str = "evicted"
    """``evicted``: what the tier above evicts; ``computed``: every block, once it has been computed."""
    first_share: float = 0.0
    """Share of a copy to the chips that no computation can hide: that of the first layer."""
    background: bool = False
    """True if requests wait for their copies outside the batch, rather than in a step that overlaps the copy."""
    picky: bool = False
    """True if a prefix is copied only where that takes less time than to compute it again."""
    eviction: EvictionSetting = LRU
    link: tuple[float, float] = (0.0, inf)
    """Latency and bytes per second of each server's own lane to a shared store."""

    @property
    def shared(self) -> bool:
        """True if all servers of the fleet use the one store."""
        return self.medium == "shared"

    @property
    def write_latency_s(self) -> float:
        """Seconds before the first byte of a copy to the store."""
        return 0.0 if isinf(self.write_bytes_per_s) else self.latency_s
