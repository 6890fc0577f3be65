"""Attention kernels: prefill (many queries per sequence) and decode (one, or a few when verifying)."""

from hwprofiles.numeric import Functions, Num, smooth_maximum
from hwprofiles.parameters import DecodeParameters, PrefillParameters
from hwprofiles.results import AttentionShape, KernelTime, Limits


def prefill_time(
    xp: Functions,
    limits: Limits,
    parameters: PrefillParameters,
    shape: AttentionShape,
    seqs: Num,
    q_tokens: Num,
    pairs: Num,
    kv_tokens: Num,
    activation_bytes: float = 2.0,
) -> KernelTime:
    """Time of one prefill attention launch over a ragged batch, given by its totals.

    Queries are cut into tiles of ``tile_rows``; a tile multiplies whole tiles of keys, so a causal batch computes about half
    a tile more than the mask admits. Tiles are spread over the cores; the longest one may end alone (``tail_share``).

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's kernels.
        shape: heads, dimensions and KV format of one layer on this chip.
        seqs: sequences in the launch, > 0.
        q_tokens: new tokens, total, > 0.
        pairs: (query, key) pairs the mask admits, total.
        kv_tokens: KV lengths (cached and new), total.
        activation_bytes: bytes per element of Q and of the output.

    Source: Dao, "FlashAttention-2" (2023), doi:10.48550/arXiv.2307.08691, work partitioning.
    """
    width = shape.qk_dim + shape.v_dim
    flops = 2.0 * shape.num_heads * width * pairs
    moved = (
        activation_bytes * shape.num_heads * width * q_tokens + shape.kv_bytes_per_token * (kv_tokens + q_tokens)
    )
    rows, columns = parameters.tile_rows, parameters.tile_columns
    length = q_tokens / seqs
    padded = xp.ceil(length / rows) * rows
    computed = pairs * (padded / length) + 0.5 * columns * padded * seqs
    core_rate = limits.peak_flops * parameters.compute_efficiency / limits.cores
    per_pair = 2.0 * width / core_rate
    items = xp.ceil(length / rows) * seqs * shape.num_heads
    total = computed * shape.num_heads * per_pair
    longest = rows * (kv_tokens / seqs + columns) * per_pair
    busy = xp.maximum(total / limits.cores + parameters.tail_share * longest, longest)
    busy = xp.where(items <= limits.cores, longest, busy)
    stream = moved / (limits.bandwidth * parameters.memory_efficiency)
    seconds = parameters.launch_s + smooth_maximum(xp, busy, stream, parameters.overlap)
    return KernelTime(seconds, parameters.launch_s + 0.0 * seconds, busy, stream, flops, moved + 0.0 * seconds)


def decode_time(
    xp: Functions,
    limits: Limits,
    parameters: DecodeParameters,
    shape: AttentionShape,
    seqs: Num,
    q_len: Num,
    kv_tokens: Num,
    warm: bool = False,
    activation_bytes: float = 2.0,
) -> KernelTime:
    """Time of one decode attention launch: ``q_len`` queries per sequence against its whole KV.

    The query heads that share a KV head, times ``q_len``, are packed into the rows of one tile, so KV is read once per
    sequence however many tokens are verified (until the rows overflow a tile). Independent work items are sequences times
    KV heads times splits of the KV axis; few items cannot draw the chip's bandwidth. Splitting costs a combining pass.

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's kernels.
        shape: heads, dimensions and KV format of one layer on this chip.
        seqs: sequences, > 0.
        q_len: queries per sequence, >= 1.
        kv_tokens: KV lengths, total over the sequences, > 0.
        warm: the same KV was read just before and may still be in the on-chip store.
        activation_bytes: bytes per element of Q and of the output.

    Source: Dao et al., "Flash-Decoding for long-context inference" (2023), https://pytorch.org/blog/flash-decoding/.
    """
    width = shape.qk_dim + shape.v_dim
    queries = seqs * q_len
    flops = 2.0 * shape.num_heads * width * q_len * kv_tokens
    kv_bytes = shape.kv_bytes_per_token * kv_tokens
    moved = kv_bytes + activation_bytes * shape.num_heads * width * queries
    row_tiles = xp.ceil(q_len * (shape.num_heads / shape.num_kv_heads) / parameters.tile_rows)
    items = seqs * shape.num_kv_heads * row_tiles
    length = kv_tokens / seqs
    most = xp.minimum(xp.ceil(length / parameters.split_tokens), float(parameters.max_splits))
    splits = xp.maximum(1.0, xp.minimum(limits.cores // items, most))
    pieces = items * splits
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    if warm:
        hit = xp.minimum(1.0, parameters.warm_share * limits.on_chip_bytes / kv_bytes)
        fast = limits.on_chip_bandwidth * parameters.warm_efficiency
        bandwidth = 1.0 / (hit / fast + (1.0 - hit) / bandwidth)
    waves = xp.ceil(pieces / limits.cores)
    core_bandwidth = bandwidth * parameters.core_bandwidth_ratio / limits.cores
    piece = moved * row_tiles / pieces
    stream = xp.maximum(moved / bandwidth, waves * piece / core_bandwidth)
    rows = row_tiles * parameters.tile_rows
    core_rate = limits.peak_flops * parameters.compute_efficiency / limits.cores
    busy = waves * 2.0 * parameters.tile_rows * width * (length / splits) / core_rate + 0.0 * rows
    combine = xp.where(splits > 1.0, parameters.combine_s, 0.0)
    launch = parameters.launch_s + combine
    seconds = launch + smooth_maximum(xp, busy, stream, parameters.overlap)
    return KernelTime(seconds, launch, busy, stream, flops, moved)
