"""Attention over prompt chunks and single queries in one batch."""

from hwprofiles.numeric import Functions, Num, smooth_maximum
from hwprofiles.parameters import PrefillParameters
from hwprofiles.results import AttentionShape, KernelTime, Limits

KEPT_FADE = 1.25
"""A pass over this many times the kept bytes finds none of them again."""


def one_pass_time(
    xp: Functions,
    limits: Limits,
    parameters: PrefillParameters,
    shape: AttentionShape,
    seqs: Num,
    q_tokens: Num,
    pairs: Num,
    kv_tokens: Num,
    decode_seqs: Num,
    decode_kv_tokens: Num,
    longest_kv: Num = 0.0,
    activation_bytes: float = 2.0,
) -> KernelTime:
    """Time of one prefill kernel that serves prompt chunks and single queries alike (FlashAttention-2, ragged batch).

    Every query head of every single query takes a tile of ``tile_rows`` and multiplies all of it, with no split of the
    KV axis. Heads are the slowest axis of the grid: those that share a KV head find it on the chip only if one pass
    over all sequences fits there, else each reads it from memory again. The grid is as wide as the longest chunk for
    every sequence, and the chip starts and drops the tiles past a sequence's end one after another.

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's prefill kernels.
        shape: heads, dimensions and KV format of one layer on this chip.
        seqs: prompt chunks, > 0.
        q_tokens: their new tokens, total, > 0.
        pairs: (query, key) pairs of the chunks, total.
        kv_tokens: KV lengths of the chunks (cached and new), total.
        decode_seqs: sequences with a single query, > 0.
        decode_kv_tokens: their KV lengths, total.
        longest_kv: KV length of the longest of these; 0 = all alike. Its last tile ends alone.
        activation_bytes: bytes per element of Q and of the output.

    Source: the launch grid of FlashAttention-2 (Dao 2023, doi:10.48550/arXiv.2307.08691); checked on LLMServingSim's
        mixed batches (vLLM 0.19 on RTX 4090 and RTX PRO 6000).
    """
    width = shape.qk_dim + shape.v_dim
    heads, cores = shape.num_heads, limits.cores
    rows, columns = parameters.tile_rows, parameters.tile_columns
    flops = 2.0 * heads * width * (pairs + decode_kv_tokens)
    per_key = 2.0 * width * rows * cores / (limits.peak_flops * parameters.compute_efficiency)
    length, context = q_tokens / seqs, decode_kv_tokens / decode_seqs
    longest = xp.ceil(xp.maximum(kv_tokens / seqs, context) / columns) * columns
    mean_keys = pairs / q_tokens
    keys = xp.maximum(mean_keys, xp.minimum(mean_keys + 0.5 * (rows + columns), longest))
    chunk_tiles = seqs * heads * xp.ceil(length / rows)
    single_tiles = decode_seqs * heads
    load = (chunk_tiles + single_tiles) / cores
    work = chunk_tiles * (keys * per_key + parameters.tile_s)
    work = work + single_tiles * (xp.ceil(context / columns) * columns * per_key + parameters.tile_s)
    busy = xp.maximum(work / cores, longest * per_key + parameters.tile_s)
    busy = busy + parameters.tail_share * longest * per_key * xp.minimum(1.0, load)
    one_pass = shape.kv_bytes_per_token * (kv_tokens + decode_kv_tokens) / shape.num_kv_heads
    kept = parameters.kept_share * limits.on_chip_bytes
    missed = xp.minimum(1.0, xp.maximum(0.0, (one_pass - kept) / ((KEPT_FADE - 1.0) * kept + 1e-9)))
    again = 1.0 + (heads / shape.num_kv_heads - 1.0) * missed
    queries = activation_bytes * heads * width * (q_tokens + decode_seqs)
    moved = queries + shape.kv_bytes_per_token * (kv_tokens + decode_kv_tokens)
    bandwidth = limits.bandwidth * (parameters.mixed_efficiency or parameters.memory_efficiency)
    stream = (queries + shape.kv_bytes_per_token * (kv_tokens + again * decode_kv_tokens)) / bandwidth
    write = 2.0 * shape.kv_bytes_per_token * (q_tokens + decode_seqs) / bandwidth
    launch = parameters.launch_s + parameters.sequence_s * (seqs + decode_seqs)
    launch = launch + parameters.idle_tile_s * single_tiles * (xp.ceil(length / rows) - 1.0)
    alone = per_key * xp.maximum(0.0, longest_kv - context)
    sharpness = parameters.mixed_overlap or parameters.overlap
    seconds = launch + write + smooth_maximum(xp, busy, stream, sharpness) + alone
    return KernelTime(seconds, launch, busy + alone, stream + write, flops, moved)
