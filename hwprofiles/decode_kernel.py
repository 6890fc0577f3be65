"""The numbers of one decode attention kernel, and of the plainer one a library falls back to."""

from hwprofiles.records import NonNegative, Positive, Record, Share

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
    min_group_to_split: float = 1.0
    """Fewest query heads per KV head for which the library splits the KV axis."""
    tile_rows: float = 64.0
    """Query rows (heads that share a KV head, times queries) that one work item serves."""
    row_step: float = 16.0
    """Rows are padded to a multiple of this."""
    native_math: bool = False
    """Multiply in the format of the KV cache instead of bf16."""
    stream_overlap: NonNegative = 0.0
    """Sharpness p >= 1 of the smooth maximum of arithmetic and the stream of KV, 1 = one after the other, as on a CPU
    core; 0 = the longer alone counts."""
    key_s: NonNegative = 0.0
    """Vector work (softmax) of one work item per key, whatever the head's width, in seconds."""
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
