"""Attention that reads chosen or compressed entries: an index scores and selects, then attention reads its choice."""

import math
from typing import NamedTuple

from hwprofiles.formulas import Functions, KernelTime, Limits, Num, smooth_maximum
from hwprofiles.parameters import FEW_HEADS, SparseParameters

LOGIT_BYTES = 4.0
"""Scores leave the index in fp32 and are read again to select."""
WIDENING_ROWS = 64.0
"""``row_tile`` of kernels that widen 8-bit entries themselves."""
DENSE_TOKENS = 131072.0
"""Most keys of a batch that dense attention takes in place of sparse (SGLang's chunk capacity for prefixes)."""
SPLIT_ENTRIES = 64.0
"""Fewest entries worth a split of their own."""


class IndexShape(NamedTuple):
    """The index of one layer on one chip: heads that score one key for all of them."""

    heads: Num
    head_dim: Num
    key_bytes: Num
    """Bytes of one stored index key."""
    dtype: str
    """Parameter set: format of the KV cache and rule, ``fp8@dsa``."""
    ratio: Num = 1.0
    """Tokens that one key stands for."""
    top_k: Num = 0.0
    """Entries that it selects; a context with no more of them needs no scores."""
    math: str = "fp8"


class SparseShape(NamedTuple):
    """Attention over chosen or compressed entries, one layer on one chip."""

    num_heads: Num
    num_kv_heads: Num
    qk_dim: Num
    v_dim: Num
    entry_bytes: Num
    """Bytes of one stored entry, all KV heads of the chip."""
    dtype: str
    """Parameter set: format of the KV cache and rule, ``fp8@dsa``."""
    ratio: Num = 1.0
    """Tokens that one entry stands for."""
    local: Num = 0.0
    """Newest tokens that are read beside the entries."""
    most: Num = 0.0
    """Most entries that a query reads; 0 = all there are."""
    dense_width: Num = 0.0
    """Widths of key and value together in dense attention over prompts; 0 = there is no such path."""


def index_time(
    xp: Functions,
    limits: Limits,
    parameters: SparseParameters,
    shape: IndexShape,
    seqs: Num,
    q_tokens: Num,
    pairs: Num,
    kv_tokens: Num,
) -> KernelTime:
    """Time of scoring every key of the index and selecting the best ones.

    Scores are one small product per (query, key) pair; few sequences draw less than the memory's bandwidth, as each
    streams its keys through few cores. They are written, and read again by the selection, one query per core at a time.

    Args:
        xp: scalar or array functions.
        limits: of the chip, in the format of the index.
        parameters: of the library's kernels.
        shape: of the index.
        seqs: sequences.
        q_tokens: queries, total.
        pairs: (query, key) pairs that the mask admits, in tokens, total.
        kv_tokens: context lengths, total.

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025, arXiv:2512.02556, equation 1; ``fp8_paged_mqa_logits`` of DeepGEMM.
    """
    scores, stored = pairs / shape.ratio, kv_tokens / shape.ratio
    flops = 2.0 * scores * shape.heads * shape.head_dim
    moved = stored * shape.key_bytes + 2.0 * scores * LOGIT_BYTES
    bandwidth = limits.bandwidth * parameters.index_memory_efficiency
    computing = flops / (limits.peak_flops * parameters.index_efficiency)
    reading = (stored * shape.key_bytes + scores * LOGIT_BYTES) / bandwidth
    if parameters.pair_s:
        each = parameters.pair_s + xp.where(shape.heads > 1, parameters.group_pair_s, 0.0)
        computing = computing + q_tokens * kv_tokens / seqs * shape.heads * each / limits.cores
    alone = stored / seqs * shape.key_bytes * limits.cores / (limits.bandwidth * parameters.index_core_ratio)
    needed = xp.minimum(1.0, xp.maximum(0.0, 2.0 * scores / (q_tokens * xp.maximum(1.0, shape.top_k)) - 1.0))
    if parameters.dense_efficiency:  # no scores where dense attention reads everything
        few = xp.where((stored <= seqs * shape.top_k) & (kv_tokens <= DENSE_TOKENS), 0.0, 1.0)
        computing, reading, alone, needed = few * computing, few * reading, few * alone + 1e-12, few * needed
    rounds = xp.ceil(q_tokens / limits.cores)
    selecting = needed * (scores * LOGIT_BYTES / (limits.bandwidth * parameters.select_efficiency))
    selecting = selecting + needed * rounds * parameters.select_s
    if parameters.near_s:
        most = xp.maximum(1.0, shape.top_k)
        last, first = stored / seqs, (kv_tokens - q_tokens) / seqs / shape.ratio
        first, last = xp.maximum(most, first), xp.maximum(most, last)
        near = math.log(2.0) * xp.log2(last / first) + most / last - most / first  # of p(1 - p), p = most / entries
        near = 4.0 * most * near * seqs * shape.ratio / q_tokens
        selecting = selecting + near * rounds * parameters.near_s
    busy = smooth_maximum(xp, computing, smooth_maximum(xp, reading, alone, parameters.overlap), parameters.overlap)
    launch = parameters.index_launch_s + 0.0 * busy
    return KernelTime(launch + busy + selecting, launch, computing, reading + selecting, flops, moved)


def sparse_time(
    xp: Functions,
    limits: Limits,
    parameters: SparseParameters,
    shape: SparseShape,
    seqs: Num,
    q_tokens: Num,
    pairs: Num,
    kv_tokens: Num,
) -> KernelTime:
    """Time of attention over the entries that each query reads.

    Queries gather entries of their own, so nothing is shared between them but what the on-chip store still holds. Rows
    (heads that share an entry) are padded to ``row_tile``; work items run in whole waves. Where a library has dense
    attention for prompts that the index would choose all of, keys and values of cached tokens are rebuilt for it.

    Args:
        xp: scalar or array functions.
        limits: of the chip, in 16 bits.
        parameters: of the library's kernels.
        shape: of one layer on this chip.
        seqs: sequences.
        q_tokens: queries, total.
        pairs: (query, key) pairs among the tokens that entries can stand for, total.
        kv_tokens: keys among them, total.

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025, arXiv:2512.02556, section 2.1; FlashMLA's sparse kernels.
    """
    chosen = pairs / shape.ratio
    read = chosen + xp.minimum(pairs, q_tokens * shape.local)
    computed = read + parameters.padded_share * xp.maximum(0.0, q_tokens * shape.most - chosen)
    stored = xp.minimum(read, kv_tokens / shape.ratio + xp.minimum(kv_tokens, seqs * shape.local + q_tokens))
    width = shape.qk_dim + shape.v_dim
    group = shape.num_heads / shape.num_kv_heads
    few_heads = (shape.num_heads < FEW_HEADS) & (parameters.few_heads_efficiency > 0)
    rows = xp.where(few_heads, WIDENING_ROWS, parameters.row_tile)
    tiles = xp.ceil(group / rows)
    flops = 2.0 * read * shape.num_heads * width
    padded = 2.0 * computed * shape.num_kv_heads * tiles * rows * width
    items = q_tokens * shape.num_kv_heads * tiles
    splits = xp.maximum(1.0, xp.minimum(parameters.max_splits, computed / q_tokens / SPLIT_ENTRIES))
    units = items * splits
    waves = xp.ceil(units / limits.cores)
    full = waves * limits.cores / units
    efficiency = xp.where(few_heads, parameters.few_heads_efficiency, parameters.compute_efficiency)
    computing = full * padded / (limits.peak_flops * efficiency) + waves * parameters.item_s
    per_entry = shape.entry_bytes
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    gathering = read * per_entry / xp.maximum(1.0, limits.on_chip_bandwidth * parameters.gather_efficiency)
    drawn = read * per_entry * limits.cores / (bandwidth * parameters.core_bandwidth_ratio * units)
    reading = smooth_maximum(xp, stored * per_entry / bandwidth + gathering, drawn, parameters.overlap)
    vectors = 2.0 * q_tokens * shape.num_heads * width
    if parameters.dense_efficiency:
        rebuilt = (kv_tokens - q_tokens) * shape.v_dim * (shape.dense_width - shape.qk_dim + shape.v_dim)
        dense = 2.0 * shape.num_heads * (pairs * shape.dense_width + xp.maximum(0.0, rebuilt))
        dense = dense / (limits.peak_flops * parameters.dense_efficiency)
        short = (kv_tokens <= seqs * shape.most * shape.ratio) & (kv_tokens <= DENSE_TOKENS)
        alone = xp.where((shape.dense_width > 0) & short, 1.0, 0.0)
        computing = alone * dense + (1.0 - alone) * computing
        reading = alone * stored * per_entry / bandwidth + (1.0 - alone) * reading
        vectors = vectors * (alone * shape.dense_width / width + 1.0 - alone)
    reading = reading + vectors / limits.bandwidth
    prompts = xp.where(q_tokens > seqs, seqs, 0.0)  # single tokens go with those that are decoded
    launch = parameters.launch_s + parameters.sequence_s * prompts + 0.0 * reading
    busy = smooth_maximum(xp, computing, reading, parameters.overlap)
    return KernelTime(launch + busy, launch, computing, reading, flops, stored * per_entry + vectors)
