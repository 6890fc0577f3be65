"""Sparse attention kernels: an index scores and selects KV entries, then attention reads the selected entries."""

import math
from typing import NamedTuple

from hwprofiles.formulas import Functions, KernelTime, Limits, Num, smooth_maximum
from hwprofiles.parameters import FEW_HEADS, SparseParameters

LOGIT_BYTES = 4.0
"""Bytes per score: the index writes fp32 scores, and the selection reads them."""
WIDENING_ROWS = 64.0
"""``row_tile`` of kernels that convert 8-bit entries to 16 bits."""
DENSE_TOKENS = 131072.0
"""Maximum keys of a batch for dense instead of sparse attention (SGLang's chunk capacity for prefixes)."""
SPLIT_ENTRIES = 64.0
"""Minimum entries per split."""


class IndexShape(NamedTuple):
    """Index of one layer on one chip; all index heads share one key per entry."""

    heads: Num
    head_dim: Num
    key_bytes: Num
    """Bytes of one stored index key."""
    dtype: str
    """Parameter set: KV cache format and rule, ``fp8@dsa``."""
    ratio: Num = 1.0
    """Tokens per index key."""
    top_k: Num = 0.0
    """Number of selected entries; a context with at most this many entries needs no scores."""
    math: str = "fp8"


class SparseShape(NamedTuple):
    """Sizes of attention over selected or compressed entries, one layer on one chip."""

    num_heads: Num
    num_kv_heads: Num
    qk_dim: Num
    v_dim: Num
    entry_bytes: Num
    """Bytes of one stored entry, all KV heads of the chip."""
    dtype: str
    """Parameter set: KV cache format and rule, ``fp8@dsa``."""
    ratio: Num = 1.0
    """Tokens per entry."""
    local: Num = 0.0
    """Most recent tokens, read in addition to the entries."""
    most: Num = 0.0
    """Maximum entries that a query reads; 0 = all entries."""
    dense_width: Num = 0.0
    """Key width plus value width in dense attention over prompts; 0 = no dense path."""


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
    """Time to score all index keys and select the best ones.

    One small product per (query, key) pair. Few sequences cannot saturate the memory bandwidth: each sequence streams
    its keys through few cores. Scores go through memory to the selection, one query per core at a time.

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025, arXiv:2512.02556, equation 1; ``fp8_paged_mqa_logits`` of DeepGEMM.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=1e5, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(index_efficiency=1.0, index_memory_efficiency=1.0, index_core_ratio=1.0, select_efficiency=1.0)
    >>> rule = SparseParameters.model_construct(index_launch_s=1.0, select_s=0.0, overlap=float("inf"), **ideal)
    >>> shape = IndexShape(heads=1, head_dim=50, key_bytes=64, dtype="fp8@dsa", top_k=2000)
    >>> index_time(SCALAR, chip, rule, shape, 1, 1, 1000, 1000).seconds  # 1 + 2 * 1000 * 1 * 50 / 1e5, no selection
    2.0
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
    core_bound = stored / seqs * shape.key_bytes * limits.cores / (limits.bandwidth * parameters.index_core_ratio)
    needed = xp.minimum(1.0, xp.maximum(0.0, 2.0 * scores / (q_tokens * xp.maximum(1.0, shape.top_k)) - 1.0))
    if parameters.dense_efficiency:  # dense attention reads all entries: no scores needed
        few = xp.where((stored <= seqs * shape.top_k) & (kv_tokens <= DENSE_TOKENS), 0.0, 1.0)
        computing, reading, core_bound, needed = few * computing, few * reading, few * core_bound + 1e-12, few * needed
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
    busy = smooth_maximum(
        xp, computing, smooth_maximum(xp, reading, core_bound, parameters.overlap), parameters.overlap
    )
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

    Each query gathers its entries separately, so queries share only entries in the on-chip cache. Rows (heads that
    share an entry) are padded to ``row_tile``; work items run in whole waves. If a library uses dense attention for
    prompts whose entries would all be selected, it recomputes the keys and values of cached tokens.

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025, arXiv:2512.02556, section 2.1; FlashMLA's sparse kernels.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=256000.0, cores=1, bandwidth=256256.0, on_chip_bytes=0, on_chip_bandwidth=1e30)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, gather_efficiency=1.0, core_bandwidth_ratio=1.0)
    >>> rule = dict(launch_s=1.0, max_splits=1.0, row_tile=1.0, overlap=float("inf"))
    >>> rule = SparseParameters.model_construct(**rule, **ideal)
    >>> time = sparse_time(SCALAR, chip, rule, SparseShape(1, 1, 64, 64, 256.0, "bf16@dsa"), 1, 1, 1000, 1000)
    >>> time.compute_s, time.memory_s  # 2 * 1000 * (64 + 64) / 256000; (256 * 1000 + 2 * (64 + 64)) / 256256
    (1.0, 1.0)
    """
    selected = pairs / shape.ratio
    read = selected + xp.minimum(pairs, q_tokens * shape.local)
    computed = read + parameters.padded_share * xp.maximum(0.0, q_tokens * shape.most - selected)
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
    work_items = items * splits
    waves = xp.ceil(work_items / limits.cores)
    full = waves * limits.cores / work_items
    efficiency = xp.where(few_heads, parameters.few_heads_efficiency, parameters.compute_efficiency)
    computing = full * padded / (limits.peak_flops * efficiency) + waves * parameters.item_s
    per_entry = shape.entry_bytes
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    gathering = read * per_entry / xp.maximum(1.0, limits.on_chip_bandwidth * parameters.gather_efficiency)
    drawn = read * per_entry * limits.cores / (bandwidth * parameters.core_bandwidth_ratio * work_items)
    reading = smooth_maximum(xp, stored * per_entry / bandwidth + gathering, drawn, parameters.overlap)
    vectors = 2.0 * q_tokens * shape.num_heads * width
    if parameters.dense_efficiency:
        rebuilt = (kv_tokens - q_tokens) * shape.v_dim * (shape.dense_width - shape.qk_dim + shape.v_dim)
        dense = 2.0 * shape.num_heads * (pairs * shape.dense_width + xp.maximum(0.0, rebuilt))
        dense = dense / (limits.peak_flops * parameters.dense_efficiency)
        short = (kv_tokens <= seqs * shape.most * shape.ratio) & (kv_tokens <= DENSE_TOKENS)
        use_dense = xp.where((shape.dense_width > 0) & short, 1.0, 0.0)
        computing = use_dense * dense + (1.0 - use_dense) * computing
        reading = use_dense * stored * per_entry / bandwidth + (1.0 - use_dense) * reading
        vectors = vectors * (use_dense * shape.dense_width / width + 1.0 - use_dense)
    reading = reading + vectors / limits.bandwidth
    prompts = xp.where(q_tokens > seqs, seqs, 0.0)  # one-token prompts run with the decode tokens
    launch = parameters.launch_s + parameters.sequence_s * prompts + 0.0 * reading
    busy = smooth_maximum(xp, computing, reading, parameters.overlap)
    return KernelTime(launch + busy, launch, computing, reading, flops, stored * per_entry + vectors)
