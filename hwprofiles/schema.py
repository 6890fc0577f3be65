"""Schema of chip and link profiles: validated groups of numbers, each with its source."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, PrivateAttr, SerializeAsAny, ValidationError, field_validator, model_validator

from hwprofiles.dtypes import DTYPES, format_of, math_dtype
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.parameters import FAMILIES, FamilyParameters
from hwprofiles.records import (
    Bytes,
    Count,
    Flops,
    Hertz,
    LaunchTime,
    NonNegative,
    Positive,
    Rate,
    Record,
    Source,
    first_problem,
)

CLOCK_POWER = 2.0
"""Exponent of the clock in a core's power, near the top of its voltage curve.

With the share below, it matches clocks of a GeForce RTX 3090 under llama.cpp: 1,380 of 1,680 MHz at 290 of 388 W,
1,290 of 1,905 at 210 of 354 W, and 1,350 of 1,710 at 250 of 381 W (prompts) (club-3090, docs/HARDWARE.md, 2026)."""
UNCORE_SHARE = 0.25
"""Share of the TDP that does not depend on the core clock: memory, links, leakage (assumed)."""
MOST_OF_TDP = 1.5
"""Highest power limit of boards over their TDP (GeForce RTX 4090: 600 W at a TDP of 450 W)."""

FLOATS = ("bf16", "fp8", "fp4")
"""Formats of matrix units, each half as wide as the previous format: products in a narrower format take no longer."""

CORRECTIONS = ".residual.npz"
"""Suffix of a profile's file of learned corrections, in place of .yaml."""

ChipKind = Literal["gpu-datacenter", "gpu-consumer", "tensix", "apple-gpu", "cpu"]
KINDS: tuple[ChipKind, ...] = get_args(ChipKind)
"""Classes of chips; each has a file of default kernel parameters."""
Topology = Literal["switch", "ring", "mesh", "line"]


class Group(Record):
    """Numbers that share a source; ``field_sources`` names the few with another source."""

    source: Source
    field_sources: Mapping[str, Source] = Field(default_factory=dict)

    @field_validator("field_sources")
    @classmethod
    def _known_fields(cls, value: Mapping[str, Source]) -> Mapping[str, Source]:
        for name in value:
            if name not in cls.model_fields:
                raise ValueError(f"'{name}' is no field of this group{did_you_mean(name, cls.model_fields)}")
        return value


class Compute(Group):
    """Arithmetic limits. ``dense_flops_per_s`` is per math format and never counts sparsity."""

    cores: Count
    """Streaming multiprocessors, compute units, Tensix or CPU cores."""
    worker_cores: Count | None = None
    """Cores available to kernels if the software reserves some (Tenstorrent dispatch); None = all."""
    clock_hz: Hertz | None = None
    dense_flops_per_s: dict[str, Flops]
    asynchronous: bool = False
    """True if copies into a core overlap with its arithmetic (Hopper and later: TMA, persistent warp-specialised
    kernels)."""
    exponentials_per_clock: float = Field(default=16.0, gt=0)
    """Exponentials of a core per clock cycle (special function units), for the softmax of attention."""
    fidelity: dict[str, Literal["LoFi", "HiFi2", "HiFi3", "HiFi4"]] = Field(default_factory=dict)
    """Tenstorrent math fidelity at which the peak of a format is stated."""

    @property
    def multiplies_fp4(self) -> bool:
        """True if the chip computes in 4-bit floats."""
        return "fp4" in self.dense_flops_per_s

    @property
    def is_hopper(self) -> bool:
        """True for chips of Hopper's kind: copies are asynchronous, and there are no 4-bit floats."""
        return self.asynchronous and not self.multiplies_fp4

    @field_validator("dense_flops_per_s", "fidelity")
    @classmethod
    def _known_dtypes(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            if name not in DTYPES:
                raise ValueError(f"no dtype '{name}'{did_you_mean(name, DTYPES)}")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "Compute":
        if not self.dense_flops_per_s:
            raise ValueError("dense_flops_per_s needs at least one dtype")
        if self.worker_cores is not None and self.worker_cores > self.cores:
            raise ValueError(f"worker_cores {self.worker_cores} exceeds cores {self.cores}")
        floats = [name for name in FLOATS if name in self.dense_flops_per_s]
        for wide, narrow in pairwise(floats):
            rates = self.dense_flops_per_s[wide], self.dense_flops_per_s[narrow]
            if rates[1] < rates[0]:
                raise ValueError(
                    f"dense_flops_per_s.{narrow} {rates[1]:g} is below {wide}'s {rates[0]:g}; leave out a format that "
                    "the chip has no arithmetic for"
                )
        return self

    @property
    def usable_cores(self) -> int:
        """Number of cores that a kernel can use."""
        return self.worker_cores or self.cores


class Memory(Group):
    """Device memory (HBM, GDDR, unified or host DRAM)."""

    bandwidth_bytes_per_s: Rate
    capacity_bytes: Bytes


class OnChip(Group):
    """The largest on-chip store that all cores share (L2, Infinity Cache, the sum of SRAM) and its read bandwidth."""

    capacity_bytes: Bytes
    bandwidth_bytes_per_s: Rate
    multicast: Positive = 1.0
    """Number of reads that one operand read can serve, on average (thread block clusters of Hopper and later)."""


class Links(Group):
    """Names of the chip's external links."""

    scale_up: str | None = None
    """Link between chips of one host or rack (NVLink, Infinity Fabric, PCIe, Ethernet)."""
    scale_out: str | None = None
    host: str | None = None


class Power(Group):
    """Board power."""

    tdp_w: Positive
    idle_w: NonNegative

    @model_validator(mode="after")
    def _idle_is_least(self) -> "Power":
        if self.idle_w >= self.tdp_w:
            raise ValueError(f"idle_w {self.idle_w:g} is not below tdp_w {self.tdp_w:g}")
        return self


class Price(Group):
    """Purchase and rental price of the chip; either may be missing."""

    usd_per_hour: Positive | None = None
    usd_list: Positive | None = None


class Host(Group):
    """Host costs of a chip's own software; other engines have their costs in ``frameworks.yaml``.

    Only chips of kind ``tensix``, and a machine on which an engine was measured, have such costs.
    """

    launch_s: LaunchTime = 0.0
    """Time in which Tenstorrent's software launches one kernel without a captured trace."""
    step_s: NonNegative = 0.0
    """Seconds between engine steps that this chip's software needs beyond any engine's own. They are spent on reading
    logits back, sampling on the host, and sending the next tokens."""
    sequence_s: NonNegative = 0.0
    """Additional time between engine steps per sequence of the batch, in seconds."""


NO_HOST_COSTS = Host.model_construct(
    source=Source.model_construct(kind="assumed", reference="the engine's own", date="2026-11")
)


class Chip(Record):
    """One accelerator as software sees it: limits, links, power, price and fitted kernel parameters."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    description: str = Field(min_length=3)
    vendor: str = Field(min_length=2)
    kind: ChipKind
    like: str | None = None
    """Catalogue chip of the same architecture whose fitted kernels are used if this chip has none."""
    compute: Compute
    memory: Memory
    on_chip: OnChip
    links: Links
    power: Power
    price: Price | None = None
    host: Host = NO_HOST_COSTS
    kernels: dict[str, dict[str, dict[str, SerializeAsAny[FamilyParameters]]]] = Field(default_factory=dict)
    """library -> family -> dtype of the stored operand (or ``any``) -> parameters."""
    _corrections: Path | None = PrivateAttr(default=None)

    def __eq__(self, other: object) -> bool:
        """True if two profiles have equal fields; the file they were read from does not matter."""
        return isinstance(other, Chip) and self.__dict__ == other.__dict__

    @property
    def corrections_file(self) -> Path | None:
        """Path of the learned corrections, in the profile's folder; None if the profile has no file or was changed."""
        return self._corrections

    def read_from(self, profile: Path) -> "Chip":
        """Return a copy whose corrections file is in the folder of the given profile."""
        chip = self.model_copy()
        chip._corrections = profile.with_suffix(CORRECTIONS)
        return chip

    @property
    def fitted_libraries(self) -> list[str]:
        """Libraries with parameter sets from measurements: all sets of a chip may be assumed."""
        sets = {
            library: [one.source for by_dtype in families.values() for one in by_dtype.values()]
            for library, families in self.kernels.items()
        }
        return sorted(name for name, of in sets.items() if any(one and one.kind != "assumed" for one in of))

    def with_kernels(self, kernels: Mapping[str, object]) -> "Chip":
        """Return a copy with other parameter sets and without the corrections of the old ones."""
        chip = self.model_copy(update={"kernels": kernels})
        chip._corrections = None
        return chip

    @field_validator("kernels", mode="before")
    @classmethod
    def _read_kernels(cls, value: object) -> object:
        return read_kernel_sets(value)

    @model_validator(mode="before")
    @classmethod
    def _host_costs_are_read(cls, data: object) -> object:
        given = data.get("host") if isinstance(data, Mapping) else None
        tensix = isinstance(data, Mapping) and data.get("kind") == "tensix"
        for name in ("graph_launch_s",) if tensix else ("graph_launch_s", "launch_s"):
            if isinstance(given, Mapping) and given.get(name):
                raise ValueError(f"host.{name}: engines bring launch times of their own; remove it")
        return data

    @model_validator(mode="after")
    def _cache_is_faster_and_smaller(self) -> "Chip":
        if self.on_chip.bandwidth_bytes_per_s < self.memory.bandwidth_bytes_per_s:
            raise ValueError("on_chip.bandwidth_bytes_per_s is below memory.bandwidth_bytes_per_s; wrong unit?")
        if self.on_chip.capacity_bytes > self.memory.capacity_bytes:
            raise ValueError("on_chip.capacity_bytes is above memory.capacity_bytes; wrong unit?")
        return self

    def at_power_limit(self, limit_w: float) -> "Chip":
        """Return the chip under a board power limit: cores, on-chip store and latencies slow down, memory does not.

        Dynamic power scales as the clock to the power of ``CLOCK_POWER`` (``C V^2 f``: 3 while the voltage falls in
        step with the clock, 1 if it has reached its floor); ``UNCORE_SHARE`` of the TDP is constant. A limit above the
        TDP changes only the maximum power, up to ``MOST_OF_TDP`` times the TDP.

        Args:
            limit_w: power limit of the whole board, in watts.

        Raises:
            ProfileError: a limit that memory, links and leakage alone consume, or above ``MOST_OF_TDP`` times the TDP.

        Source: T. Mudge, "Power: A First-Class Architectural Design Constraint" (IEEE Computer, 2001); P. Patel et al.,
        "POLCA" (arXiv:2308.12908): 20 % less peak power costs LLM inference, mostly decoding, up to 7 % (as
        remembered of its abstract; not fitted).
        """
        tdp, kept = self.power.tdp_w, max(self.power.idle_w, UNCORE_SHARE * self.power.tdp_w)
        if limit_w <= kept:
            raise ProfileError(
                f"{limit_w:g} W is too little for {self.name}: memory, links and leakage alone draw about {kept:.0f} W "
                f"of its {tdp:g} W"
            )
        if limit_w > MOST_OF_TDP * tdp:
            raise ProfileError(f"{limit_w:g} W is more than {self.name} can be set to: its TDP is {tdp:g} W")
        ratio = min(1.0, ((limit_w - kept) / (tdp - kept)) ** (1 / CLOCK_POWER))
        power = self.power.model_copy(update={"tdp_w": limit_w})
        if ratio == 1.0:
            return self.model_copy(update={"power": power})
        clock = None if self.compute.clock_hz is None else self.compute.clock_hz * ratio
        rates = {dtype: rate * ratio for dtype, rate in self.compute.dense_flops_per_s.items()}
        store = max(self.on_chip.bandwidth_bytes_per_s * ratio, self.memory.bandwidth_bytes_per_s)
        slowed = {
            library: {
                family: {dtype: one.slowed(ratio) for dtype, one in sets.items()} for family, sets in families.items()
            }
            for library, families in self.kernels.items()
        }
        limits = {
            "power": power,
            "compute": self.compute.model_copy(update={"clock_hz": clock, "dense_flops_per_s": rates}),
            "on_chip": self.on_chip.model_copy(update={"bandwidth_bytes_per_s": store}),
        }
        return self.model_copy(update=limits).with_kernels(slowed)

    @property
    def sources(self) -> dict[str, Source]:
        """Source of each group of numbers, by dotted name."""
        by_field: dict[str, Source] = {}
        for name in ("compute", "memory", "on_chip", "links", "power", "price", "host"):
            group: Group | None = getattr(self, name)
            if group is not None and group != NO_HOST_COSTS:
                by_field[name] = group.source
                by_field.update({f"{name}.{field}": source for field, source in group.field_sources.items()})
        for library, families in self.kernels.items():
            for family, sets in families.items():
                by_field.update({f"kernels.{library}.{family}.{dtype}": item.source for dtype, item in sets.items()})
        return by_field

    def math_dtype(self, dtype: str) -> str:
        """Return the format this chip multiplies weights of ``dtype`` in.

        Raises:
            ProfileError: unknown dtype, or one this chip cannot compute with.
        """
        try:
            return math_dtype(dtype, self.compute.dense_flops_per_s)
        except ProfileError as error:
            raise ProfileError(f"{self.name}: {error}") from None

    def peak_flops(self, dtype: str) -> float:
        """Return the dense peak in FLOP/s for weights stored as ``dtype`` (datasheet, never sparse).

        Raises:
            ProfileError: unknown dtype, or one this chip cannot compute with.
        """
        return self.compute.dense_flops_per_s[self.math_dtype(dtype)]


class Link(Group):
    """A connection between chips, seen from one chip and one direction."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    description: str = Field(min_length=3)
    bandwidth_bytes_per_s: Rate
    """Bandwidth per chip and direction, bytes/s."""
    latency_s: Positive
    """Software-visible time until the first byte of a message is in the peer's memory."""
    topology: Topology
    in_network_reduction: bool = False
    """True if the switch can add (NVLink SHARP)."""
    network: bool = False
    """True if messages leave the server, so that no chip reads another's memory (no direct all-reduce)."""
    server: "Link | None" = None
    """Link between the chips of one server, if a network joins servers of several chips."""
    server_chips: Count = 1
    """Number of chips of one server."""

    def between_groups(self, chips: int) -> "Link":
        """Link between chips of equal rank in groups of ``chips`` neighbours."""
        return self.model_copy(update={"server_chips": max(1, self.server_chips // chips)}) if self.server else self


def read_kernel_sets(value: object) -> dict[str, dict[str, dict[str, FamilyParameters]]]:
    """Turn the ``kernels`` mapping of a profile into parameter objects of each family's class. The mapping is library
    -> family -> dtype -> numbers and ``source``.

    Raises:
        ValueError: unknown family or dtype, or (from pydantic) a bad number; the message starts with the dotted place.
    """
    if not isinstance(value, Mapping):
        raise ValueError("a mapping library -> family -> dtype is needed")
    result: dict[str, dict[str, dict[str, FamilyParameters]]] = {}
    for library, families in value.items():
        if not isinstance(families, Mapping):
            raise ValueError(f"{library}: a mapping family -> dtype is needed")
        result[str(library)] = {}
        for family, sets in families.items():
            place = f"{library}.{family}"
            if family not in FAMILIES:
                raise ValueError(f"{place}: no such kernel family{did_you_mean(str(family), FAMILIES)}")
            if not isinstance(sets, Mapping):
                raise ValueError(f"{place}: a mapping dtype -> parameters is needed")
            result[str(library)][family] = {}
            for dtype, parameters in sets.items():
                if format_of(str(dtype)) not in ("any", *DTYPES):
                    raise ValueError(f"{place}: no dtype '{dtype}'{did_you_mean(str(dtype), DTYPES)}")
                try:
                    result[str(library)][family][str(dtype)] = FAMILIES[family].model_validate(parameters)
                except ValidationError as error:
                    raise ValueError(f"{place}.{dtype}.{first_problem(error, FAMILIES[family])}") from None
    return result
