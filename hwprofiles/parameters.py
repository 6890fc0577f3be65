"""Kernel parameters: for every family a few physical numbers with bounds and units, fitted per chip and library."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from forerun.errors import with_new_names
from hwprofiles.records import Fit, Fraction, NonNegative, Positive, Record, Share, Source

PASS_TOKENS = 16
"""Keys that the threads of an unpacked work item take in one round."""


class DecodeKernel(Record):
    """What one decode attention kernel costs."""

    launch_s: NonNegative
    """Fixed time inside a captured graph, the first wave's fill included, in seconds."""
    memory_efficiency: Share
    """Share of the memory bandwidth a saturating stream of KV reaches."""
    core_bandwidth_ratio: Positive
    """Bandwidth one work item can draw, over one core's equal share of the chip's."""
    combine_s: NonNegative
    """Fixed time of combining the parts of a split KV axis, in seconds."""
    split_s: NonNegative
    """Time of combining per part, in seconds."""
    wave_s: NonNegative
    """Filling and draining per further wave of work items, in seconds."""
    sequence_s: NonNegative
    """Metadata and page-table time per sequence, in seconds."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of those overheads and the stream of KV."""
    warm_share: NonNegative = 0.7
    """Share of the on-chip store that still holds KV when the same call is repeated."""
    warm_efficiency: Share = 0.6
    """Share of the on-chip bandwidth at which such KV is read."""
    regroup_s: NonNegative = 0.0
    """Extra kernel that regroups query heads by KV head (several sequences, several KV heads), in seconds; 0 = none."""
    compute_efficiency: Share = 0.5
    """Share of the dense peak that full rows of queries reach."""
    split_tokens: Positive = 256.0
    """Fewest tokens of KV worth a split of their own."""
    max_splits: Positive = 128.0
    """Most parts a KV axis is cut into; on a Tenstorrent chip the cores that may share one KV head."""
    row_wave_s: NonNegative = 0.0
    """What a further wave takes longer per further step of rows, in seconds."""
    pass_s: NonNegative = 0.0
    """What a wave takes longer where its items have ``PASS_TOKENS`` keys, one round of the main loop, in seconds."""
    hidden_s: NonNegative = 0.0
    """Part of the further waves that the start of the kernel hides, in seconds."""
    split_fill: Positive = 1.0
    """Work items per core up to which the KV axis is split."""
    split_root: NonNegative = 0.0
    """Where it is positive, the parts number at most the root of this times the whole splits that the length gives, so
    that combining them does not dominate; 0 = as many as the length gives."""
    split_seqs: NonNegative = 0.0
    """Most sequences whose KV axis is split: vLLM fixes a number of parts for batches that it captures as a graph and
    leaves larger ones to the library, which sees work enough; 0 = however many."""
    min_group_to_split: float = 1.0
    """Fewest query heads per KV head for which the library splits the KV axis."""
    tile_rows: float = 64.0
    """Query rows (heads that share a KV head, times queries) that one work item serves."""
    row_step: float = 16.0
    """Rows are padded to a multiple of this."""
    key_step: float = 1.0
    """Keys that one work item multiplies are padded to a multiple of this."""
    native_math: bool = False
    """Multiply in the format of the KV cache instead of bf16."""
    stream_overlap: NonNegative = 0.0
    """Sharpness p >= 1 of the smooth maximum of arithmetic and the stream of KV, 1 = one after the other, as on a CPU
    core; 0 = the longer alone counts."""
    widen_s: NonNegative = 0.0
    """Fixed time of a pass that copies the cache into 16 bits before a kernel without arithmetic for its format, in
    seconds; 0 = there is none."""
    widen_byte_s: NonNegative = 0.0
    """Time of that pass per byte of cached KV, in seconds."""
    key_s: NonNegative = 0.0
    """Vector work (softmax) of one work item per key, whatever the head's width, in seconds."""
    reread_share: NonNegative = 0.0
    """Share of KV that the second of two narrow tiles reads from memory again, where a group of heads takes two."""
    pair_share: NonNegative = 0.0
    """What a work item takes longer while the other core of its pair works too, as a share of its arithmetic: cores of
    an NVIDIA chip sit in pairs (TPCs), and a grid of up to half of them leaves one of each idle; 0 = nothing."""
    further_query: NonNegative = 0.0
    """Share of the time of one query that each further query of the same sequence adds (verify steps); 0 = none beyond
    what its rows and products take."""


class UnpackedKernel(DecodeKernel):
    """A kernel in which every query head is a work item of its own: it reads KV again for each head that shares it
    (from the on-chip store) and multiplies on the vector units, with no rows to fill.

    Which batches a library runs in it follows TensorRT-LLM's rule (masked multi-head attention instead of XQA:
    ``mayHavePerfGain`` of ``decoderXQAImplJIT.cpp``, release 1.0): groups of query heads the packed kernel has no
    tile for, and batches too small to fill a share of the cores with packed work items.
    """

    sequence_s: NonNegative = 0.0
    tile_rows: float = 1.0
    row_step: float = 1.0
    least_group: Positive = 2.0
    """Fewest query heads per KV head that the packed kernel takes."""
    most_group: Positive = 32.0
    """Most query heads per KV head that the packed kernel takes."""
    least_fill: NonNegative = 0.0
    """Packed work items per core from which the packed kernel is used; 0 = however few."""
    piece_tokens: Positive = 128.0
    """Tokens of KV that count as a packed work item of their own there."""


Bound = tuple[float, float]


class FamilyParameters(Record):
    """Base of the parameter sets: a ``source`` beside the numbers."""

    family: ClassVar[str] = ""
    free: ClassVar[Mapping[str, Bound]] = {}
    """Parameters a calibration may move, with the interval it may search."""

    source: Source
    fit: Fit | None = None
    """Ranges and intervals of a fit, where one was made."""
    reference_clock_hz: Positive | None = None
    """Core clock of the chip that times were fitted on: class defaults scale their times by it, a chip's own set has
    none."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, data: Any) -> Any:
        return with_new_names(data, {"alone_key_s": "tail_key_s"})

    def at_clock(self, clock_hz: float | None) -> "FamilyParameters":
        """Return the set with its times scaled to a chip's clock, if both clocks are known: a latency counts cycles."""
        if self.reference_clock_hz is None or clock_hz is None:
            return self
        ratio = self.reference_clock_hz / clock_hz
        times = {name: getattr(self, name) * ratio for name in type(self).model_fields if name.endswith("_s")}
        few_rows: FewRowsKernel | None = getattr(self, "few_rows", None)
        if few_rows is not None:
            times["few_rows"] = few_rows.model_copy(update={"launch_s": few_rows.launch_s * ratio})
        return self.model_copy(update={**times, "reference_clock_hz": clock_hz})

    def slowed(self, ratio: float) -> "FamilyParameters":
        """Return a chip's own set at ``ratio`` of the clock it was measured at: what was measured vouches for no other
        clock."""
        at_full = self.model_copy(update={"reference_clock_hz": 1.0, "fit": None})
        slow = at_full.at_clock(ratio)
        assumed = self.source.model_copy(update={"kind": "assumed"})
        return slow.model_copy(update={"reference_clock_hz": None, "source": assumed})

    def carried(self, had_asynchronous: bool, has_asynchronous: bool) -> "FamilyParameters":
        """Return the set as a chip of another generation would have it: with or without copies that run beside the
        arithmetic. Most families let the formula see to that; they return themselves."""
        return self

    def vector(self) -> dict[str, float]:
        """Return the free parameters by name."""
        return {name: float(getattr(self, name)) for name in self.free}


class FewRowsKernel(Record):
    """Matrix-vector kernels: what products with a few rows run in instead of tiles.

    The weights stream past once; vector units (packed 8-bit products included) unpack them and multiply every row.
    """

    launch_s: NonNegative
    """Fixed time of one product, its quantisation of the activations included, in seconds."""
    memory_efficiency: Share
    """Share of the memory bandwidth a saturating stream of weights reaches."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic and the stream."""
    unpack: NonNegative
    """Vector operations (two for each lane and cycle) per weight, once."""
    row: NonNegative
    """The same per weight and row: what a further row costs where it is no longer hidden behind the stream."""
    core_bytes: NonNegative = 0.0
    """Bytes per clock cycle that one core draws at most: few fast cores cannot saturate a wide memory; 0 = they can."""
    most_rows: Positive = 8.0
    """Rows up to which the library stays with these kernels."""
    group_rows: Positive = 8.0
    """Rows that share one read of the weights: more are multiplied in equal groups, each of which reads and unpacks."""


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
        "write_share": (0.0, 1.0),
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
    quantise_bytes: Positive = 3.0
    """Bytes that kernel moves per activation, at the pace of the product: 3 where it reads 16 bits and writes 8 once,
    more where it looks for the largest first or runs below the memory's pace."""
    write_share: Fraction = 0.0
    """Share of the output's way to memory that no arithmetic hides."""
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
        (16, 128),
        (16, 64),
    )
    """Output tiles (rows, columns) the library chooses from."""
    max_split_k: float = 16.0
    """Largest number of parts the k axis is cut into."""
    few_rows: FewRowsKernel | None = None
    """The kernels of products with few rows; None = they run in tiles like all others."""

    def dequantising(self) -> "GemmParameters":
        """Return the set of a weight-only kernel, which widens the weights of a tile before it multiplies them, from
        the set of the same library's plain 16-bit kernel.

        The two shares are those between TensorRT-LLM's int4 and bf16 kernels on the A100 (aiconfigurator 0.12.0 rows
        of trtllm 1.0.0, each fitted separately: 0.784 / 0.872 of the peak, 0.519 / 0.857 of the on-chip bandwidth).
        """
        return self.model_copy(
            update={
                "compute_efficiency": self.compute_efficiency * DEQUANTISED_COMPUTE,
                "on_chip_efficiency": self.on_chip_efficiency * DEQUANTISED_ON_CHIP,
            }
        )


DEQUANTISED_COMPUTE, DEQUANTISED_ON_CHIP = 0.9, 0.61
"""What a weight-only product keeps of a 16-bit kernel's share of the peak and of the on-chip bandwidth."""


class PrefillParameters(FamilyParameters):
    """Prefill attention (many queries per sequence), the write of the new K and V included."""

    family: ClassVar[str] = "attention_prefill"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 6e-5),
        "compute_efficiency": (0.02, 1.0),
        "memory_efficiency": (0.05, 1.0),
        "tile_s": (0.0, 1e-5),
        "tail_share": (0.0, 1.5),
        "sequence_s": (0.0, 1.5e-7),
        "overlap": (1.0, 10.0),
    }

    launch_s: NonNegative
    """Fixed time inside a captured graph: attention and the KV write, in seconds."""
    compute_efficiency: Share
    """Share of the dense peak that full tiles reach, softmax included."""
    memory_efficiency: Share
    """Share of the memory bandwidth a saturating stream reaches."""
    tile_s: NonNegative
    """Filling and draining the pipeline per tile of queries, in seconds."""
    tail_share: NonNegative
    """Share of the longest tile's time that ends alone, without the other cores."""
    sequence_s: NonNegative
    """Metadata and page-table time per sequence, in seconds."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of compute and memory time."""
    tile_rows: float = 128.0
    """Query rows per tile."""
    tile_columns: float = 64.0
    """Keys per step of a tile."""
    packing: Literal["always", "single", "never"] = "always"
    """Whether query heads that share a KV head fill one tile: always, only for single queries, never."""
    native_math: bool = False
    """Multiply in the format of the KV cache instead of bf16."""
    masked_share: Fraction = 0.0
    """What a key costs that lies before the window of a tile's queries, over one that they see: 0 = its step is
    skipped, 1 = computed and masked."""
    regroup_s: NonNegative = 0.0
    """Extra kernel that regroups query heads by KV head where single queries are packed (several sequences, several KV
    heads), in seconds; 0 = none."""
    widen_s: NonNegative = 0.0
    """Fixed time of a pass that copies the cache into 16 bits before a kernel without arithmetic for its format, in
    seconds; 0 = there is none."""
    widen_byte_s: NonNegative = 0.0
    """Time of that pass per byte of cached KV, in seconds."""
    mixed: Literal["separate", "one-pass"] = "separate"
    """How prompt chunks and single queries of one batch run: in a kernel each, or all in the prefill kernel, where a
    single query leaves its tile almost empty."""
    kept_share: Positive = 1.0
    """Share of the on-chip store that keeps KV from one query head to the next that reads it too (one-pass)."""
    mixed_efficiency: Share | None = None
    """Share of the memory bandwidth that a mixed batch reaches (one-pass); None = that of prompts alone."""
    mixed_overlap: Positive | None = None
    """Sharpness of the smooth maximum in a mixed batch (one-pass); None = that of prompts alone."""
    idle_tile_s: NonNegative = 0.0
    """Time the chip takes to start and drop one tile past the end of a short sequence (one-pass), in seconds: the grid
    has as many tiles for every sequence as the longest chunk needs."""


class DecodeParameters(DecodeKernel, FamilyParameters):
    """Decode attention (1 or a few queries per sequence), the write of the new K and V included."""

    family: ClassVar[str] = "attention_decode"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 6e-5),
        "memory_efficiency": (0.05, 1.0),
        "core_bandwidth_ratio": (0.7, 6.0),
        "combine_s": (0.0, 1e-5),
        "split_s": (0.0, 2e-7),
        "wave_s": (0.0, 1e-5),
        "sequence_s": (0.0, 1e-7),
        "overlap": (1.0, 10.0),
        "warm_share": (0.1, 1.5),
        "warm_efficiency": (0.1, 1.0),
    }

    tail_key_s: NonNegative = 0.0
    """Time per key of a work item that runs alone, where nothing splits the KV axis and the longest sequences end after
    the others, in seconds; 0 = batches of unequal lengths take what they take at their mean."""
    writes_cache: bool = False
    """Whether what was measured also launches the write of new keys and values into the paged cache."""
    unpacked: UnpackedKernel | None = None
    """The kernel that serves query heads one by one where the packed kernel is not used; None = there is none."""

    def vector(self) -> dict[str, float]:
        """Return the free parameters by name, those of the unpacked kernel with its name before them."""
        own = super().vector()
        if self.unpacked is None:
            return own
        return own | {f"unpacked.{name}": float(getattr(self.unpacked, name)) for name in UNPACKED}

    def without_splits(self) -> "DecodeParameters":
        """Return the set of kernels that never split the KV axis."""
        whole = {"max_splits": 1.0}
        other = None if self.unpacked is None else self.unpacked.model_copy(update=whole)
        return self.model_copy(update={**whole, "unpacked": other})

    def at_clock(self, clock_hz: float | None) -> "FamilyParameters":
        """Return the set with its times, those of the unpacked kernel too, scaled to a chip's clock."""
        scaled = super().at_clock(clock_hz)
        if self.unpacked is None or self.reference_clock_hz is None or clock_hz is None:
            return scaled
        ratio = self.reference_clock_hz / clock_hz
        times = {name: getattr(self.unpacked, name) * ratio for name in UNPACKED if name.endswith("_s")}
        return scaled.model_copy(update={"unpacked": self.unpacked.model_copy(update=times)})

    def carried(self, had_asynchronous: bool, has_asynchronous: bool) -> "FamilyParameters":
        """Return the set for a chip of another generation.

        Asynchronous copies keep more bytes in flight (a smaller share of the bandwidth is lost, one core draws more).
        The kernels written for them start before their predecessor has ended, pack query heads without a pass of
        their own and combine splits faster. The factors were chosen on A100 (FlashAttention-2) and H100
        (FlashAttention-3), sglang rows of NVIDIA's aiconfigurator.
        """
        if had_asynchronous == has_asynchronous:
            return self
        gain = 1.0 if has_asynchronous else -1.0
        lost = (1.0 - self.memory_efficiency) * ASYNCHRONOUS_LOSS**-gain
        changes: dict[str, float] = {
            "memory_efficiency": max(0.3, 1.0 - lost),
            "core_bandwidth_ratio": self.core_bandwidth_ratio * ASYNCHRONOUS_DRAW**gain,
            "combine_s": self.combine_s * ASYNCHRONOUS_COMBINE**-gain,
            "split_s": self.split_s * ASYNCHRONOUS_COMBINE**-gain,
            "launch_s": self.launch_s * ASYNCHRONOUS_LAUNCH**-gain,
        }
        if has_asynchronous:
            changes |= {"regroup_s": 0.0, "min_group_to_split": 1.0}
        return self.model_copy(update=changes)


UNPACKED: Mapping[str, Bound] = {
    "launch_s": (1e-6, 6e-5),
    "memory_efficiency": (0.3, 1.0),
    "core_bandwidth_ratio": (0.7, 6.0),
    "combine_s": (0.0, 1e-5),
    "split_s": (0.0, 2e-7),
    "wave_s": (0.0, 1e-5),
    "pass_s": (0.0, 1e-5),
    "hidden_s": (0.0, 1e-5),
    "overlap": (1.0, 10.0),
    "warm_share": (0.1, 1.5),
    "warm_efficiency": (0.1, 1.0),
    "compute_efficiency": (0.001, 0.2),
}
"""Parameters of an unpacked kernel that a calibration may move, with the interval it may search."""

ASYNCHRONOUS_LOSS, ASYNCHRONOUS_DRAW, ASYNCHRONOUS_COMBINE, ASYNCHRONOUS_LAUNCH = 2.3, 2.7, 3.3, 1.12
"""What asynchronous copies change in decode attention: bandwidth lost (divided by), bandwidth one core draws (times),
the time of combining splits and the launch (divided by)."""


class MoeParameters(FamilyParameters):
    """Routed expert feed-forward: two grouped products and the kernels around them (align, activation, combine)."""

    family: ClassVar[str] = "moe"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 2e-4),
        "compute_efficiency": (0.1, 1.0),
        "memory_efficiency": (0.05, 1.0),
        "on_chip_efficiency": (0.05, 1.0),
        "scatter_efficiency": (0.05, 1.0),
        "overlap": (1.0, 10.0),
        "wave_s": (0.0, 2e-5),
    }

    launch_s: NonNegative
    """Fixed time of all kernels of the layer inside a captured graph, in seconds."""
    compute_efficiency: Share
    """Share of the dense peak that full tiles reach."""
    memory_efficiency: Share
    """Share of the memory bandwidth at which expert weights stream."""
    on_chip_efficiency: Share
    """Share of the on-chip bandwidth (times multicast) at which tiles re-read operands."""
    scatter_efficiency: Share
    """Share of the memory bandwidth at which activations are gathered and scattered."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of compute and memory time."""
    local_only: bool = False
    """Whether only assignments to this chip's experts are gathered and combined, not all tokens' (expert
    parallelism)."""
    wave_s: NonNegative = 0.0
    """Filling and draining the pipeline once per wave of tiles, in seconds."""
    core_bandwidth_ratio: NonNegative = 0.0
    """Bandwidth one core can draw, over its equal share of the chip's: the tiles of few experts cannot saturate the
    memory; 0 = they can."""
    tiles: tuple[tuple[int, int], ...] = ((16, 128), (32, 128), (64, 128), (128, 128))
    """Tiles (rows of one expert's tokens, columns) the library chooses from."""
    few_rows: FewRowsKernel | None = None
    """The kernels of few tokens; None = they run in tiles like all others."""


class ElementwiseParameters(FamilyParameters):
    """Norms, activations, residuals, RoPE, gathers, sampling: memory-bound passes."""

    family: ClassVar[str] = "elementwise"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (5e-7, 1e-4),
        "memory_efficiency": (0.1, 1.0),
        "warm_share": (0.1, 1.5),
        "warm_efficiency": (0.05, 1.0),
    }

    launch_s: NonNegative
    """Fixed time of one pass, in seconds."""
    memory_efficiency: Share
    """Share of the memory bandwidth a long pass reaches."""
    warm_share: NonNegative = 0.6
    """Share of the on-chip store that still holds operands when the same pass is repeated."""
    warm_efficiency: Share = 0.45
    """Share of the on-chip bandwidth at which such operands are read and written."""
    element_s: NonNegative = 0.0
    """Arithmetic per element, in seconds, not hidden behind the memory: what bounds a norm on a CPU core."""
    piece_s: NonNegative = 0.0
    """Core time of each piece that is served by itself, a channel of one sequence in a convolution, in seconds."""
    cold_s: NonNegative = 0.0
    """What a pass over operands (and code) that no cache holds takes longer, however small, in seconds."""
    chained: bool = False
    """Whether a pass of an engine step finds on the chip what the kernel before it wrote, as a repeated pass does."""


class RecurrentPrefillParameters(FamilyParameters):
    """The scan of a recurrent layer over prompts: gated delta net, Kimi delta attention, Mamba-2."""

    family: ClassVar[str] = "recurrent_prefill"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 1e-4),
        "compute_efficiency": (0.01, 1.0),
        "memory_efficiency": (0.05, 1.0),
        "chunk_s": (0.0, 2e-5),
        "overlap": (1.0, 10.0),
    }

    launch_s: NonNegative
    """Fixed time of the scan, all of its launches, in seconds."""
    compute_efficiency: Share
    """Share of the 16-bit peak that its small products reach."""
    memory_efficiency: Share
    """Share of the memory bandwidth."""
    chunk_s: NonNegative
    """Time by which a chunk waits for the one before it, in seconds."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic, waiting and memory."""


class RecurrentDecodeParameters(FamilyParameters):
    """The update of recurrent states by one token of each sequence, or by a few that are verified."""

    family: ClassVar[str] = "recurrent_decode"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (5e-7, 6e-5),
        "memory_efficiency": (0.2, 1.0),
        "core_bandwidth_ratio": (0.2, 6.0),
        "overlap": (1.0, 10.0),
        "warm_share": (0.1, 1.5),
        "warm_efficiency": (0.05, 1.0),
    }

    launch_s: NonNegative
    """Fixed time of one update, in seconds."""
    memory_efficiency: Share
    """Share of the memory bandwidth at which states are read and written."""
    core_bandwidth_ratio: Positive
    """Bandwidth one core can draw, over its equal share of the chip's."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of the chip's bandwidth and the cores'."""
    warm_share: NonNegative = 0.6
    """Share of the on-chip store that still holds states when the same update is repeated."""
    warm_efficiency: Share = 0.5
    """Share of the on-chip bandwidth at which such states are read and written."""
    verify_s: NonNegative = 0.0
    """Core time of one head's update by several tokens, in seconds: of a kernel that verifies head by head, the state
    of each held by one core; 0 = verification waits for the memory alone."""


class SparseParameters(FamilyParameters):
    """An index that scores and selects entries, and attention over what it chose (or over compressed entries)."""

    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 2e-4),
        "compute_efficiency": (0.02, 1.0),
        "memory_efficiency": (0.05, 1.0),
        "gather_efficiency": (0.02, 1.0),
        "core_bandwidth_ratio": (0.1, 6.0),
        "max_splits": (1.0, 64.0),
        "overlap": (1.0, 10.0),
        "index_launch_s": (1e-6, 2e-4),
        "index_efficiency": (0.02, 1.0),
        "index_memory_efficiency": (0.05, 1.0),
        "index_core_ratio": (0.1, 64.0),
        "select_s": (0.0, 4e-5),
        "select_efficiency": (0.02, 1.0),
        "padded_share": (0.0, 1.0),
        "item_s": (0.0, 1e-4),
        "host_s": (0.0, 3e-3),
        "index_host_s": (0.0, 3e-3),
        "narrow_host_s": (0.0, 3e-4),
    }

    launch_s: NonNegative
    """Fixed time of attention and of the small kernels around it, in seconds."""
    compute_efficiency: Share
    """Share of the 16-bit peak that full tiles of rows reach."""
    memory_efficiency: Share
    """Share of the memory bandwidth at which entries are read."""
    gather_efficiency: Share
    """Share of the on-chip bandwidth at which every query gathers entries of its own."""
    core_bandwidth_ratio: Positive
    """Bandwidth one work item can draw, over one core's equal share of the chip's."""
    max_splits: Positive
    """Most parts that the entries of one query are cut into."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic and memory."""
    index_launch_s: NonNegative
    """Fixed time of the index and of the small kernels around it, in seconds."""
    index_efficiency: Share
    """Share of the peak at which keys are scored."""
    index_memory_efficiency: Share
    """Share of the memory bandwidth at which index keys are read and scores written."""
    index_core_ratio: Positive
    """Bandwidth that the scores of one sequence can draw, over one core's equal share of the chip's."""
    select_s: NonNegative
    """Fixed time of selecting for as many queries as there are cores, in seconds."""
    select_efficiency: Share
    """Share of the memory bandwidth at which scores are read to select the best."""
    padded_share: Fraction = 0.0
    """Share of the entries that a query lacks up to its most which are computed all the same, masked."""
    item_s: NonNegative = 0.0
    """Start and end of a work item per wave of them, in seconds."""
    sequence_s: NonNegative = 0.0
    """What every prompt adds, however short, in seconds: kernels that compress and store it by itself."""
    dense_efficiency: Fraction = 0.0
    """Share of the 16-bit peak of dense attention, which serves prompts that the index would choose all of; 0 = the
    sparse kernels serve them too."""
    host_s: NonNegative = 0.0
    """Least time of a whole attention module whose kernels no captured graph holds, in seconds: the host's launches."""
    index_host_s: NonNegative = 0.0
    """What an index adds to that."""
    narrow_host_s: NonNegative = 0.0
    """What every product of 8-bit weights adds to that, whose activations are quantised by a kernel of their own."""
    dense_host_s: NonNegative = 0.0
    """What dense attention adds to that in place of the index."""
    row_tile: Positive = 64.0
    """Rows of queries (heads that share an entry) that one work item holds; fewer are padded."""
    few_heads_efficiency: Fraction = 0.0
    """``compute_efficiency``, in tiles of 64 rows, of fewer than ``FEW_HEADS`` heads, where kernels that widen 8-bit
    entries themselves serve those (vLLM's ``MIN_HEADS_FOR_BF16_PREFILL``); 0 = the same."""
    pair_s: NonNegative = 0.0
    """Core time of each pair of query and key, masked or not, per index head, in seconds: of a library that scores all
    of them in passes of their own (TensorRT-LLM 1.3 on MiniMax-M3); 0 = a kernel scores what the mask admits."""
    group_pair_s: NonNegative = 0.0
    """What a pair takes more where there are several index heads, for which the keys are copied."""
    near_s: NonNegative = 0.0
    """Core time that selecting the best of twice as many entries takes more than of very many, in seconds: the fewer
    there are to choose from, the more of them lie near the last one chosen and are sorted one by one."""


FEW_HEADS = 32


class SparsePrefillParameters(SparseParameters):
    """Index and sparse attention over prompts."""

    family: ClassVar[str] = "sparse_prefill"
    free: ClassVar[Mapping[str, Bound]] = {**SparseParameters.free, "sequence_s": (0.0, 1e-5)}


class SparseDecodeParameters(SparseParameters):
    """Index and sparse attention of decoding sequences."""

    family: ClassVar[str] = "sparse_decode"


class CollectiveParameters(FamilyParameters):
    """Collectives between chips: ring or in-network for large messages, direct all-reduce for small ones."""

    family: ClassVar[str] = "collective"
    free: ClassVar[Mapping[str, Bound]] = {
        "launch_s": (1e-6, 5e-5),
        "bandwidth_efficiency": (0.1, 1.0),
        "copy_share": (0.0, 1.0),
        "fill_s": (0.0, 5e-4),
        "fill_bytes": (1e5, 2e8),
        "in_network_efficiency": (0.1, 1.0),
    }

    launch_s: NonNegative
    """Fixed time of a collective of the ring kind, in seconds."""
    bandwidth_efficiency: Share
    """Share of the link's bandwidth a long message reaches."""
    copy_share: Fraction
    """Time a chip spends copying its own part, over sending a part of that size."""
    fill_s: NonNegative
    """Time lost to filling the pipeline of chunks of a long message, in seconds."""
    fill_bytes: Positive
    """Volume at which half of that is lost."""
    in_network_efficiency: Share = 0.6
    """Share of the link's bandwidth an all-reduce reaches when the switch adds."""
    in_network_min_chips: int = 8
    """Fewest chips for which the library lets the switch add."""
    direct_launch_s: NonNegative = 4.5e-6
    """Fixed time of the direct all-reduce (every chip reads its peers' memory), in seconds."""
    direct_efficiency: Share = 0.6
    """Share of the link's bandwidth the direct all-reduce reaches."""
    direct_max_bytes: NonNegative = 0.0
    """Largest message for which the library uses the direct all-reduce; 0 = never."""


FAMILIES: dict[str, type[FamilyParameters]] = {
    cls.family: cls
    for cls in (
        GemmParameters,
        PrefillParameters,
        DecodeParameters,
        MoeParameters,
        ElementwiseParameters,
        RecurrentPrefillParameters,
        RecurrentDecodeParameters,
        SparsePrefillParameters,
        SparseDecodeParameters,
        CollectiveParameters,
    )
}
"""Parameter class by kernel family."""
