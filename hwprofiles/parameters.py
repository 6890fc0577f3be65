"""Kernel parameters: for every family a few physical numbers with bounds and units, fitted per chip and library."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hwprofiles.records import Fraction, NonNegative, Positive, Record, Share, Source

Bound = tuple[float, float]


class FamilyParameters(Record):
    """Base of the parameter sets: a ``source`` beside the numbers."""

    family: ClassVar[str] = ""
    free: ClassVar[Mapping[str, Bound]] = {}
    """Parameters a calibration may move, with the interval it may search."""

    source: Source
    reference_clock_hz: Positive | None = None
    """Core clock of the chip that times were fitted on: class defaults scale their times by it, a chip's own set has none."""

    def at_clock(self, clock_hz: float | None) -> "FamilyParameters":
        """Return the set with its times scaled to a chip's clock, if both clocks are known: a latency counts cycles."""
        if self.reference_clock_hz is None or clock_hz is None:
            return self
        ratio = self.reference_clock_hz / clock_hz
        times = {name: getattr(self, name) * ratio for name in type(self).model_fields if name.endswith("_s")}
        return self.model_copy(update={**times, "reference_clock_hz": clock_hz})

    def vector(self) -> dict[str, float]:
        """Return the free parameters by name."""
        return {name: float(getattr(self, name)) for name in self.free}

    def with_vector(self, values: Mapping[str, float], source: Source | None = None) -> "FamilyParameters":
        """Return a checked copy with other values for some parameters (and another source, if given)."""
        data: dict[str, Any] = {**self.model_dump(), **values}
        if source is not None:
            data["source"] = source.model_dump()
        return type(self).model_validate(data)


class GemmParameters(FamilyParameters):
    """Dense matrix product."""

    family: ClassVar[str] = "gemm"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (3e-7, 2e-5),
        "compute_efficiency": (0.2, 1.0),
        "memory_efficiency": (0.3, 1.0),
        "on_chip_efficiency": (0.1, 1.0),
        "wave_s": (0.0, 2e-5),
        "wave_share": (0.0, 1.0),
        "overlap": (1.0, 8.0),
    }

    launch_s: NonNegative
    """Fixed time of one kernel inside a captured graph, in seconds."""
    compute_efficiency: Share
    """Share of the dense peak that full tiles reach."""
    memory_efficiency: Share
    """Share of the memory bandwidth a saturating stream reaches."""
    on_chip_efficiency: Share
    """Share of the on-chip bandwidth (times multicast) at which tiles re-read operands."""
    wave_s: NonNegative
    """Filling and draining the pipeline once per wave of tiles, in seconds."""
    wave_share: Fraction
    """Share of the idle cores in the last wave that is lost: 1 = whole waves, 0 = stream-K."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of compute and memory time."""
    core_bandwidth_ratio: Positive = 2.0
    """Bandwidth one core can draw, over its equal share of the chip's: few busy cores cannot saturate the memory."""
    quantise_s: NonNegative = 0.0
    """Fixed time of the kernel that quantises activations first (fp8, int8), in seconds; 0 = there is none."""
    tiles: tuple[tuple[int, int], ...] = (
        (256, 128),
        (128, 256),
        (128, 192),
        (192, 128),
        (128, 128),
        (64, 256),
        (256, 64),
        (128, 64),
        (64, 128),
        (64, 64),
    )
    """Output tiles (rows, columns) the library chooses from."""
    max_split_k: float = 16.0
    """Largest number of parts the k axis is cut into."""


class PrefillParameters(FamilyParameters):
    """Prefill attention (many queries per sequence)."""

    family: ClassVar[str] = "attention_prefill"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 1e-4),
        "compute_efficiency": (0.1, 1.0),
        "memory_efficiency": (0.3, 1.0),
        "pair_efficiency": (0.05, 1.0),
        "tail_share": (0.0, 1.0),
        "overlap": (1.0, 8.0),
    }

    launch_s: NonNegative
    compute_efficiency: Share
    memory_efficiency: Share
    pair_efficiency: Share = 0.5
    tail_share: NonNegative = 0.5
    overlap: Positive = 3.0
    tile_rows: int = 128
    tile_columns: int = 128
    native_math: bool = False
    """Multiply in the format of the KV cache instead of bf16."""


class DecodeParameters(FamilyParameters):
    """Decode attention (1 or a few queries per sequence)."""

    family: ClassVar[str] = "attention_decode"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 1e-4),
        "memory_efficiency": (0.3, 1.0),
        "core_bandwidth_ratio": (1.0, 8.0),
        "compute_efficiency": (0.05, 1.0),
        "split_tokens": (16.0, 4096.0),
        "combine_s": (0.0, 2e-5),
        "overlap": (1.0, 8.0),
        "warm_share": (0.0, 1.0),
        "warm_efficiency": (0.05, 1.0),
    }

    launch_s: NonNegative
    memory_efficiency: Share
    core_bandwidth_ratio: Positive = 1.5
    compute_efficiency: Share = 0.5
    split_tokens: Positive = 256.0
    combine_s: NonNegative = 2e-6
    overlap: Positive = 3.0
    warm_share: NonNegative = 0.7
    warm_efficiency: Share = 0.5
    tile_rows: int = 64
    max_splits: int = 128
    native_math: bool = False
    """Multiply in the format of the KV cache instead of bf16."""


class MoeParameters(FamilyParameters):
    """Routed expert feed-forward: two grouped GEMMs and the kernels around them."""

    family: ClassVar[str] = "moe"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 2e-4),
        "compute_efficiency": (0.1, 1.0),
        "memory_efficiency": (0.2, 1.0),
        "overlap": (1.0, 8.0),
    }

    launch_s: NonNegative
    compute_efficiency: Share
    memory_efficiency: Share
    overlap: Positive = 3.0
    tile_rows: int = 64


class ElementwiseParameters(FamilyParameters):
    """Norms, activations, residuals, RoPE, gathers, sampling: memory-bound passes."""

    family: ClassVar[str] = "elementwise"
    free: ClassVar[Mapping[str, Bound]] = {"launch_s": (5e-7, 1e-4), "memory_efficiency": (0.1, 1.0)}

    launch_s: NonNegative
    memory_efficiency: Share


class CollectiveParameters(FamilyParameters):
    """Collectives over the scale-up link."""

    family: ClassVar[str] = "collective"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 1e-4),
        "bandwidth_efficiency": (0.1, 1.0),
        "fill_s": (0.0, 1e-3),
        "fill_bytes": (1e5, 1e9),
        "one_shot_launch_s": (1e-6, 1e-4),
        "one_shot_efficiency": (0.05, 1.0),
    }

    launch_s: NonNegative
    bandwidth_efficiency: Share
    fill_s: NonNegative = 0.0
    fill_bytes: Positive = 1e7
    one_shot_launch_s: NonNegative = 3e-6
    one_shot_efficiency: Share = 0.5
    one_shot_max_bytes: NonNegative = 0.0
    """Largest message for which the direct (custom) all-reduce is used; 0 = never."""


FAMILIES: dict[str, type[FamilyParameters]] = {
    cls.family: cls
    for cls in (
        GemmParameters,
        PrefillParameters,
        DecodeParameters,
        MoeParameters,
        ElementwiseParameters,
        CollectiveParameters,
    )
}
"""Parameter class by kernel family."""
