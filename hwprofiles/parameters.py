"""Kernel parameters: for every family a few physical numbers with bounds and units, fitted per chip and library.

Fields that families share, without a description of their own below: ``launch_s``, fixed time inside a captured graph;
``compute_efficiency``, share of the dense peak that full tiles reach; ``memory_efficiency``, share of the memory
bandwidth that a saturating stream reaches; ``on_chip_efficiency``, share of the on-chip bandwidth (times multicast) at
which tiles re-read operands; ``core_bandwidth_ratio``, bandwidth of one core (or work item), over one core's equal
share of the chip's bandwidth; ``overlap``, sharpness p >= 1 of the smooth maximum of compute and memory time;
``warm_share``, share of the on-chip store that still holds operands when the same call is repeated;
``warm_efficiency``, share of the on-chip bandwidth at which retained operands are read and written; ``wave_s``, filling
and draining the pipeline once per wave; ``sequence_s``, metadata and page-table time per sequence. Fields in ``_s`` are
seconds.
"""

from typing import ClassVar, Literal, TypeVar

from pydantic import model_validator

from forerun.errors import with_new_names
from hwprofiles.records import Fit, Fraction, NonNegative, Positive, Record, Share, Source

PASS_TOKENS = 16
"""Keys that the threads of an unpacked work item process per main-loop iteration."""


class DecodeKernel(Record):
    """Fitted parameters of one decode attention kernel."""

    launch_s: NonNegative
    """Fixed time inside a captured graph, including the pipeline fill of the first wave, in seconds."""
    memory_efficiency: Share
    core_bandwidth_ratio: Positive
    combine_s: NonNegative
    """Fixed time of combining the parts of a split KV axis, in seconds."""
    split_s: NonNegative
    """Time of combining per part, in seconds."""
    wave_s: NonNegative
    """Filling and draining per further wave of work items, in seconds."""
    sequence_s: NonNegative
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of the overheads above and the KV read."""
    warm_share: NonNegative = 0.7
    warm_efficiency: Share = 0.6
    regroup_s: NonNegative = 0.0
    """Extra kernel that regroups query heads by KV head (several sequences, several KV heads), in seconds; 0 = none."""
    compute_efficiency: Share = 0.5
    """Share of the dense peak that full rows of queries reach."""
    split_tokens: Positive = 256.0
    """Minimum KV tokens per split."""
    max_splits: Positive = 128.0
    """Maximum number of KV splits; on a Tenstorrent chip, of cores that share one KV head."""
    row_wave_s: NonNegative = 0.0
    """Additional time of each further wave per additional row step, in seconds."""
    pass_s: NonNegative = 0.0
    """Additional time of a wave whose items have ``PASS_TOKENS`` keys, one main-loop iteration, in seconds."""
    hidden_s: NonNegative = 0.0
    """Time of the further waves that overlaps with the kernel start, in seconds."""
    split_fill: Positive = 1.0
    """Work items per core up to which the KV axis is split."""
    split_root: NonNegative = 0.0
    """Factor that limits the time of combining: splits <= sqrt(factor * whole splits of the KV length).

    0 = no such limit."""
    split_seqs: NonNegative = 0.0
    """Maximum batch size with KV splits; 0 = no limit. vLLM fixes the splits of batches that it captures as a graph;
    for larger batches the library decides and does not split."""
    min_group_to_split: float = 1.0
    """Minimum query heads per KV head at which the library splits the KV axis."""
    tile_rows: float = 64.0
    """Query rows (heads that share a KV head, times queries) that one work item serves."""
    row_step: float = 16.0
    """Padding step of query rows: their number is rounded up to a multiple of it."""
    key_step: float = 1.0
    """Padding step of the keys that one work item multiplies: their number is rounded up to a multiple of it."""
    native_math: bool = False
    """True if products are computed in the format of the KV cache instead of bf16."""
    stream_overlap: NonNegative = 0.0
    """Sharpness p >= 1 of the smooth maximum of arithmetic and the KV read.

    1 = no overlap, as on a CPU core; 0 = full overlap."""
    widen_s: NonNegative = 0.0
    """Fixed time in seconds of a pass that copies the cache into 16 bits, for kernels without its arithmetic.

    0 = there is none."""
    widen_byte_s: NonNegative = 0.0
    """Time of the same pass per byte of cached KV, in seconds."""
    whole_head_speed: Positive = 1.0
    """Speed of a core with whole KV heads of a slot (``AttentionShape.slots``) over cores that share one head."""
    key_s: NonNegative = 0.0
    """Time of vector work (softmax) per work item and key, independent of the head width, in seconds."""
    reread_share: NonNegative = 0.0
    """Share of KV that the second of two narrow tiles rereads from memory, if a head group needs two."""
    pair_share: NonNegative = 0.0
    """Slowdown of a work item while the other core of its pair is busy, relative to its arithmetic time; 0 = none.

    Cores of an NVIDIA chip form pairs (TPCs), and a grid of up to half the cores leaves one of each pair idle."""
    further_query: NonNegative = 0.0
    """Time that each further query of a sequence adds (verify steps), relative to the time of one query.

    0 = none beyond the effect on rows and products."""


class UnpackedKernel(DecodeKernel):
    """A kernel in which every query head is a separate work item.

    It reads KV again for each head that shares it (from the on-chip store) and multiplies on the vector units, without
    row padding.

    The batches that a library runs in this kernel follow TensorRT-LLM's rule (masked multi-head attention instead of
    XQA: ``mayHavePerfGain`` of ``decoderXQAImplJIT.cpp``, release 1.0): groups of query heads the packed kernel has no
    tile for, and batches too small to fill a share of the cores with packed work items.
    """

    sequence_s: NonNegative = 0.0
    tile_rows: float = 1.0
    row_step: float = 1.0
    least_group: Positive = 2.0
    """Minimum query heads per KV head that the packed kernel supports."""
    most_group: Positive = 32.0
    """Maximum query heads per KV head that the packed kernel supports."""
    least_fill: NonNegative = 0.0
    """Minimum packed work items per core at which the packed kernel is used; 0 = no minimum."""
    piece_tokens: Positive = 128.0
    """KV tokens per packed work item, for counting the work items of the rule above."""


_R = TypeVar("_R", bound=Record)


def _with_times(record: _R, ratio: float) -> _R:
    """Copy of a record with all its times, including nested kernels', multiplied by ``ratio``."""
    values = {name: getattr(record, name) for name in type(record).model_fields}
    scaled = {name: value * ratio for name, value in values.items() if name.endswith("_s")}
    kernels = {
        name: _with_times(kernel, ratio)
        for name, kernel in values.items()
        if isinstance(kernel, FewRowsKernel | UnpackedKernel)
    }
    return record.model_copy(update=scaled | kernels)


class FamilyParameters(Record):
    """Base class of the parameter sets of kernel families, with the ``source`` of the numbers."""

    family: ClassVar[str] = ""

    source: Source
    fit: Fit | None = None
    """Ranges and intervals of the fit; None if the set was not fitted."""
    reference_clock_hz: Positive | None = None
    """Core clock in Hz of the fitted chip, for scaling class defaults; None in a chip's own set."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_names(cls, data: object) -> object:
        return with_new_names(data, {"alone_key_s": "tail_key_s"})

    def at_clock(self, clock_hz: float | None) -> "FamilyParameters":
        """Return the set with its times scaled to a chip's clock, if both clocks are known."""
        if self.reference_clock_hz is None or clock_hz is None:
            return self
        scaled = _with_times(self, self.reference_clock_hz / clock_hz)
        return scaled.model_copy(update={"reference_clock_hz": clock_hz})

    def slowed(self, ratio: float) -> "FamilyParameters":
        """Return a chip's own set at ``ratio`` of its measured clock, without its fit, which does not cover another
        clock."""
        at_full = self.model_copy(update={"reference_clock_hz": 1.0, "fit": None})
        slow = at_full.at_clock(ratio)
        assumed = self.source.model_copy(update={"kind": "assumed"})
        return slow.model_copy(update={"reference_clock_hz": None, "source": assumed})

    def carried(self, had_asynchronous: bool, has_asynchronous: bool) -> "FamilyParameters":
        """Return the set adapted to a chip of another generation, with or without copies that overlap with
        arithmetic. Most families are unchanged, because their formulas model the difference."""
        return self


class FewRowsKernel(Record):
    """Matrix-vector kernels, used instead of tiles for products with a few rows.

    Weights are read once; vector units (including packed 8-bit products) unpack them and multiply every row.
    """

    launch_s: NonNegative
    """Fixed time of one product, including the quantisation of its activations, in seconds."""
    memory_efficiency: Share
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic and the stream."""
    unpack: NonNegative
    """Vector operations (two per lane and cycle) to unpack one weight."""
    row: NonNegative
    """Vector operations per weight and row: cost of a further row once the weight read no longer hides it."""
    core_bytes: NonNegative = 0.0
    """Maximum bytes per clock cycle of one core: few fast cores cannot saturate a wide memory; 0 = no limit."""
    most_rows: Positive = 8.0
    """Maximum rows for which the library uses these kernels."""
    group_rows: Positive = 8.0
    """Maximum rows per read of the weights. More rows run in equal groups, each of which reads and unpacks again."""


class GemmParameters(FamilyParameters):
    """Dense matrix product."""

    family: ClassVar[str] = "gemm"

    launch_s: NonNegative
    compute_efficiency: Share
    memory_efficiency: Share
    on_chip_efficiency: Share
    wave_s: NonNegative
    wave_share: Fraction
    """Share of the idle cores in the last wave that is lost: 1 = whole waves, 0 = stream-K."""
    overlap: Positive
    core_bandwidth_ratio: Positive = 2.0
    """Achievable bandwidth of one core, relative to an equal share: few busy cores cannot saturate the memory."""
    quantise_s: NonNegative = 0.0
    """Fixed time of the activation quantisation kernel (fp8, int8), in seconds; 0 = no such kernel."""
    quantise_bytes: Positive = 3.0
    """Bytes moved per activation by the quantisation kernel, at the product's bandwidth.

    3 if it reads 16 bits and writes 8 once, more if it first searches the maximum or is slower."""
    write_share: Fraction = 0.0
    """Share of the output write that does not overlap with arithmetic."""
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
    """Kernels for products with few rows; None = these products use tiles too."""

    def dequantising(self, share: float = 1.0) -> "GemmParameters":
        """Derive the set of a weight-only kernel from the same library's plain 16-bit kernel. A weight-only kernel
        widens the weights of a tile before multiplying, at ``share`` of the peak.

        The two ratios compare TensorRT-LLM's int4 and bf16 kernels on the A100 (aiconfigurator 0.12.0 rows
        of trtllm 1.0.0, each fitted separately: 0.784 / 0.872 of the peak, 0.519 / 0.857 of the on-chip bandwidth).
        """
        return self.model_copy(
            update={
                "compute_efficiency": self.compute_efficiency * DEQUANTISED_COMPUTE * share,
                "on_chip_efficiency": self.on_chip_efficiency * DEQUANTISED_ON_CHIP,
            }
        )


DEQUANTISED_COMPUTE, DEQUANTISED_ON_CHIP = 0.9, 0.61
"""Efficiency of a weight-only product relative to a 16-bit kernel, for compute and on-chip bandwidth."""


class PrefillParameters(FamilyParameters):
    """Prefill attention (many queries per sequence), the write of the new K and V included."""

    family: ClassVar[str] = "attention_prefill"

    launch_s: NonNegative
    """Fixed time inside a captured graph: attention and the KV write, in seconds."""
    compute_efficiency: Share
    """Share of the dense peak that full tiles reach, softmax included."""
    memory_efficiency: Share
    tile_s: NonNegative
    """Filling and draining the pipeline per tile of queries, in seconds."""
    tail_share: NonNegative
    """Share of the longest tile's time during which all other cores are idle."""
    sequence_s: NonNegative
    overlap: Positive
    tile_rows: float = 128.0
    """Query rows per tile."""
    tile_columns: float = 64.0
    """Keys per step of a tile."""
    packing: Literal["always", "single", "never"] = "always"
    """Packing of query heads that share a KV head into one tile: always, only for single queries, never."""
    native_math: bool = False
    """True if products are computed in the format of the KV cache instead of bf16."""
    masked_share: Fraction = 0.0
    """Cost of a key outside the window of a tile's queries, relative to a key inside it.

    0 = its step is skipped, 1 = computed and masked."""
    regroup_s: NonNegative = 0.0
    """Seconds of an extra kernel that regroups query heads by KV head; 0 = none. It runs if single queries are packed
    (several sequences, several KV heads)."""
    widen_s: NonNegative = 0.0
    """Fixed time in seconds of a pass that copies the cache into 16 bits, for kernels without its arithmetic.

    0 = there is none."""
    widen_byte_s: NonNegative = 0.0
    """Time of the same pass per byte of cached KV, in seconds."""
    mixed: Literal["separate", "one-pass"] = "separate"
    """Kernels of prompt chunks and single queries of one batch: separate ones, or the prefill kernel for all.

    A single query leaves a tile of the prefill kernel almost empty."""
    kept_share: Positive = 1.0
    """Share of the on-chip store that retains KV between query heads that share a KV head (one-pass)."""
    mixed_efficiency: Share | None = None
    """Share of the memory bandwidth that a mixed batch reaches (one-pass); None = as in a batch of prompts."""
    mixed_overlap: Positive | None = None
    """Sharpness of the smooth maximum in a mixed batch (one-pass); None = as in a batch of prompts."""
    idle_tile_s: NonNegative = 0.0
    """Time in seconds to start and drop one tile past the end of a short sequence (one-pass).

    The grid has as many tiles for every sequence as the longest chunk needs."""


class DecodeParameters(DecodeKernel, FamilyParameters):
    """Decode attention (1 or a few queries per sequence), the write of the new K and V included."""

    family: ClassVar[str] = "attention_decode"

    tail_key_s: NonNegative = 0.0
    """Seconds per key of a work item that runs alone, when the longest sequences finish last, unsplit.

    0 = a batch of unequal lengths takes the same time as at its mean length."""
    writes_cache: bool = False
    """True if the measured time includes the write of new keys and values into the paged cache."""
    unpacked: UnpackedKernel | None = None
    """Kernel that processes query heads one by one when the packed kernel is not used; None = no such kernel."""

    def without_splits(self) -> "DecodeParameters":
        """Return a copy of the set whose kernels never split the KV axis."""
        whole = {"max_splits": 1.0}
        other = None if self.unpacked is None else self.unpacked.model_copy(update=whole)
        return self.model_copy(update={**whole, "unpacked": other})

    def carried(self, had_asynchronous: bool, has_asynchronous: bool) -> "FamilyParameters":
        """Return the set for a chip of another generation.

        Asynchronous copies keep more bytes in flight (less bandwidth is lost, one core reaches more).
        Kernels written for such copies start before their predecessor has ended, pack query heads without a separate
        pass and combine splits faster. The factors were chosen on A100 (FlashAttention-2) and H100 (FlashAttention-3),
        sglang rows of NVIDIA's aiconfigurator.
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


ASYNCHRONOUS_LOSS, ASYNCHRONOUS_DRAW, ASYNCHRONOUS_COMBINE, ASYNCHRONOUS_LAUNCH = 2.3, 2.7, 3.3, 1.12
"""Factors of asynchronous copies in decode attention. Bandwidth lost (divided), bandwidth per core (multiplied), the
time of combining splits and the launch (divided by)."""


class MoeParameters(FamilyParameters):
    """Routed expert feed-forward: two grouped products and the kernels around them (align, activation, combine)."""

    family: ClassVar[str] = "moe"

    launch_s: NonNegative
    """Fixed time of all kernels of the layer inside a captured graph, in seconds."""
    compute_efficiency: Share
    memory_efficiency: Share
    on_chip_efficiency: Share
    scatter_efficiency: Share
    """Share of the memory bandwidth at which activations are gathered and scattered."""
    overlap: Positive
    local_only: bool = False
    """True if only assignments to this chip's experts are gathered and combined, not those of all tokens (expert
    parallelism)."""
    wave_s: NonNegative = 0.0
    core_bandwidth_ratio: NonNegative = 0.0
    """Achievable bandwidth of one core, relative to an equal share: the tiles of few experts cannot saturate the
    memory. 0 = no such limit."""
    tiles: tuple[tuple[int, int], ...] = ((16, 128), (32, 128), (64, 128), (128, 128))
    """Tiles (rows of one expert's tokens, columns) the library chooses from."""
    few_rows: FewRowsKernel | None = None
    """Kernels for few tokens; None = few tokens use tiles too."""


class ElementwiseParameters(FamilyParameters):
    """Norms, activations, residuals, RoPE, gathers, sampling: memory-bound passes."""

    family: ClassVar[str] = "elementwise"

    launch_s: NonNegative
    memory_efficiency: Share
    warm_share: NonNegative = 0.6
    warm_efficiency: Share = 0.45
    element_s: NonNegative = 0.0
    """Time of arithmetic per element that does not overlap with memory accesses (norms on a CPU core), in seconds."""
    piece_s: NonNegative = 0.0
    """Core time of each piece that is processed separately (a channel of one sequence in a convolution), in seconds."""
    cold_s: NonNegative = 0.0
    """Additional time of a pass whose operands and code are in no cache, independent of size, in seconds."""
    chained: bool = False
    """True if a pass in an engine step reads the output of the previous kernel from the on-chip store."""


class RecurrentPrefillParameters(FamilyParameters):
    """The scan of a recurrent layer over prompts: gated delta net, Kimi delta attention, Mamba-2."""

    family: ClassVar[str] = "recurrent_prefill"

    launch_s: NonNegative
    """Fixed time of all launches of the scan, in seconds."""
    compute_efficiency: Share
    """Share of the 16-bit peak that the small products of the scan reach."""
    memory_efficiency: Share
    chunk_s: NonNegative
    """Time by which a chunk waits for the previous chunk, in seconds."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic, waiting and memory."""


class RecurrentDecodeParameters(FamilyParameters):
    """The update of recurrent states by one token of each sequence, or by a few that are verified."""

    family: ClassVar[str] = "recurrent_decode"

    launch_s: NonNegative
    memory_efficiency: Share
    core_bandwidth_ratio: Positive
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of memory time at the chip's and at the cores' bandwidth."""
    warm_share: NonNegative = 0.6
    warm_efficiency: Share = 0.5
    verify_s: NonNegative = 0.0
    """Core time in seconds of one head's update by several tokens, if each head's state is held by one core.

    0 = verification waits for the memory alone."""


class SparseParameters(FamilyParameters):
    """Index that scores and selects entries, and attention over the selected (or compressed) entries."""

    launch_s: NonNegative
    """Fixed time of attention and of the small kernels around it, in seconds."""
    compute_efficiency: Share
    """Share of the 16-bit peak that full tiles of rows reach."""
    memory_efficiency: Share
    gather_efficiency: Share
    """Share of the on-chip bandwidth at which queries gather their separate entries."""
    core_bandwidth_ratio: Positive
    max_splits: Positive
    """Maximum number of splits of one query's entries."""
    overlap: Positive
    """Sharpness p >= 1 of the smooth maximum of arithmetic and memory."""
    index_launch_s: NonNegative
    """Fixed time of the index and of the small kernels around it, in seconds."""
    index_efficiency: Share
    """Share of the peak at which keys are scored."""
    index_memory_efficiency: Share
    """Share of the memory bandwidth at which index keys are read and scores written."""
    index_core_ratio: Positive
    """Achievable bandwidth of the scores of one sequence, relative to an equal share per core."""
    select_s: NonNegative
    """Fixed time of selecting for as many queries as there are cores, in seconds."""
    select_efficiency: Share
    """Share of the memory bandwidth at which scores are read to select the best."""
    padded_share: Fraction = 0.0
    """Share of the entries that a query lacks to its maximum and that are still computed (masked)."""
    item_s: NonNegative = 0.0
    """Start and end time of a work item, once per wave, in seconds."""
    sequence_s: NonNegative = 0.0
    """Fixed time per prompt of any length, in seconds: separate kernels that compress and store the prompt."""
    dense_efficiency: Fraction = 0.0
    """Share of the 16-bit peak of dense attention, for prompts whose keys the index would all select.

    0 = the sparse kernels process these prompts too."""
    host_s: NonNegative = 0.0
    """Minimum time of an attention module outside captured graphs, in seconds: the host's launch time."""
    index_host_s: NonNegative = 0.0
    """Host launch time of an index, in seconds, outside captured graphs."""
    narrow_host_s: NonNegative = 0.0
    """Host launch time of the activation quantisation kernel per product of 8-bit weights, in seconds."""
    dense_host_s: NonNegative = 0.0
    """Host launch time of dense attention instead of an index, in seconds."""
    row_tile: Positive = 64.0
    """Query rows (heads that share an entry) per work item; fewer rows are padded to this number."""
    few_heads_efficiency: Fraction = 0.0
    """``compute_efficiency``, in tiles of 64 rows, of fewer than ``FEW_HEADS`` heads; 0 = the same. Used if few heads
    run in kernels that widen 8-bit entries themselves (vLLM's ``MIN_HEADS_FOR_BF16_PREFILL``)."""
    pair_s: NonNegative = 0.0
    """Core time in seconds of each pair of query and key, masked or not, per index head.

    For a library that scores all pairs in separate passes (TensorRT-LLM 1.3 on MiniMax-M3); 0 = kernels score only
    pairs that the mask admits."""
    group_pair_s: NonNegative = 0.0
    """Additional time of a pair if there are several index heads, because the keys are then copied, in seconds."""
    near_s: NonNegative = 0.0
    """Extra core seconds of selecting from only twice as many entries as are selected, compared with very many entries.
    With fewer candidates, more candidates are close to the selection threshold and are sorted one by one."""


FEW_HEADS = 32


class SparsePrefillParameters(SparseParameters):
    """Index and sparse attention over prompts."""

    family: ClassVar[str] = "sparse_prefill"


class SparseDecodeParameters(SparseParameters):
    """Index and sparse attention of decoding sequences."""

    family: ClassVar[str] = "sparse_decode"


class CollectiveParameters(FamilyParameters):
    """Collectives between chips: ring or in-network for large messages, direct all-reduce for small ones."""

    family: ClassVar[str] = "collective"

    launch_s: NonNegative
    """Fixed time of a collective of the ring kind, in seconds."""
    bandwidth_efficiency: Share
    """Share of the link's bandwidth a long message reaches."""
    copy_share: Fraction
    """Time to copy a chip's own part, relative to sending a part of the same size."""
    fill_s: NonNegative
    """Time lost to filling the pipeline of chunks of a long message, in seconds."""
    fill_bytes: Positive
    """Message volume in bytes at which half of ``fill_s`` is lost."""
    in_network_efficiency: Share = 0.6
    """Share of the link's bandwidth that an in-network all-reduce (the switch adds) reaches."""
    in_network_min_chips: int = 8
    """Minimum chips for which the library uses in-network reduction."""
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
