"""Attention kernels: prefill (many queries per sequence), decode (one, or a few when verifying), both in one batch."""

from typing import NamedTuple

from hwprofiles.formulas import AttentionShape, Functions, KernelTime, Limits, Num, smooth_maximum, warm_reads
from hwprofiles.parameters import PASS_TOKENS, DecodeKernel, DecodeParameters, PrefillParameters, UnpackedKernel

ACTIVATION_BYTES = 2.0
"""Bytes per element of queries and of the output."""
WARM_FADE = 1.25
"""Size of repeatedly read KV, as a multiple of the retained bytes, at which the cache hit rate reaches 0."""


UNSPLIT_LOAD = 1.6
"""Minimum work items per core at which the KV axis is not split: 0.8 of two items per core.

Source: ``num_splits_heuristic`` of FlashAttention-2 (csrc/flash_attn/flash_api.cpp, v2.7)."""


def tail_sequences(limits: Limits, parameters: DecodeParameters, shape: AttentionShape) -> float:
    """Number of sequences that saturate the memory bandwidth if each runs at its latency-bound rate.

    More sequences saturate the memory; fewer run at their own rates, so that with lengths ``L1 >= L2 ..``
    a batch takes ``tail_key_s`` times ``L1 - mean(L1 .. Ln)`` longer than moving its bytes.
    """
    drawn = limits.bandwidth * parameters.memory_efficiency * parameters.tail_key_s
    return drawn / shape.kv_bytes_per_token


def tail_time_per_key(
    xp: Functions, parameters: DecodeParameters, cores: float, shape: AttentionShape, seqs: Num, q_len: Num
) -> Num:
    """Seconds per key by which the longest sequence exceeds the mean of the tail. 0 if the batch is so small that its
    KV axis is split."""
    items = seqs * shape.num_kv_heads * xp.ceil(q_len * (shape.num_heads / shape.num_kv_heads) / parameters.tile_rows)
    return xp.where(items >= UNSPLIT_LOAD * cores, parameters.tail_key_s, 0.0)


def attention_pairs(xp: Functions, q_len: Num, kv_len: Num, window: Num = 0) -> Num:
    """(query, key) pairs of one sequence: ``q_len`` new tokens at the end of ``kv_len``, each attends to itself and all
    previous tokens.

    ``window`` is the maximum number of keys per query, its own key included; 0 = no limit.

    >>> from hwprofiles.formulas import SCALAR
    >>> attention_pairs(SCALAR, 4, 10), attention_pairs(SCALAR, 4, 10, window=3)
    (34.0, 12.0)
    """
    limit = xp.where(window > 0, window, kv_len)

    def below(length: Num) -> Num:
        short = xp.minimum(length, limit)
        return short * (short + 1.0) / 2.0 + limit * xp.maximum(0.0, length - limit)

    return below(kv_len) - below(kv_len - q_len)


def windowed_length(xp: Functions, q_len: Num, kv_len: Num, window: Num = 0) -> Num:
    """Keys of one sequence that a kernel reads: all, or those from the start of the first new query's window.

    >>> from hwprofiles.formulas import SCALAR
    >>> windowed_length(SCALAR, 4, 10_000, window=1024)
    1027.0
    """
    return xp.where(window > 0, xp.minimum(kv_len, window + q_len - 1.0), kv_len)


def widened(
    xp: Functions, parameters: DecodeKernel | PrefillParameters, shape: AttentionShape, kv_tokens: Num
) -> tuple[AttentionShape, Num]:
    """Shape of a layer whose kernel cannot compute in the format of the KV cache, and seconds of the conversion. A
    separate pass first converts the cache to 16 bits (``kv_tokens`` in total; in a server, the whole KV pool).

    Source: SGLang's ``FlashAttentionBackend`` under MLA (``get_key_buffer(..).to(q.dtype)``); of one layer over 131,072
        tokens NVIDIA's aiconfigurator tables give 227 us, a server on 8 H200 226 (sgl-project/sglang#35291).
    """
    copied = parameters.widen_byte_s * shape.kv_bytes_per_token * kv_tokens
    seconds = smooth_maximum(xp, parameters.widen_s, copied, WIDEN_OVERLAP)
    return shape._replace(kv_bytes_per_token=2.0 * shape.kv_bytes_per_token), seconds


WIDEN_OVERLAP = 1.3
"""Sharpness of the smooth maximum of a conversion's fixed time and copy time, from 512 to 16,384 tokens."""


PRODUCT_EFFICIENCY, SOFTMAX_CLOCKS, SOFTMAX_OVERLAP = 0.825, 0.0148, 2.5
"""Parameters of prefill attention: peak share of products, softmax clock cycles, sharpness of their smooth maximum. The
clock cycles are a core's softmax work per (query, key) pair without the exponential. With 16 exponentials a cycle a
B200 then takes 0.083 and 0.104 cycles a pair with heads of 64 and 128, as its fits do (0.0331 and 0.0662 at the peak
alone); 0.18 and 0.24 with MLA's prompts and heads of 256 (0.12 to 0.14 and 0.20 fitted)."""


def softmax_factor(limits: Limits, width: Num) -> Num:
    """Time of a tile over its time on the fitted chip, if the two chips differ in exponentials per cycle.

    A pair of heads ``width`` wide (keys and values together) takes ``2 width`` FLOP and one exponential.

    Source: NVIDIA, "Making Softmax More Efficient with NVIDIA Blackwell Ultra" (2026): twice the exponentials.
    """
    own, fitted = limits.exponentials
    if own == fitted or not limits.clock_hz:
        return 1.0
    product = 2.0 * width * limits.cores * limits.clock_hz / (limits.peak_flops * PRODUCT_EFFICIENCY)
    times = [
        (product**SOFTMAX_OVERLAP + (1.0 / rate + SOFTMAX_CLOCKS) ** SOFTMAX_OVERLAP) ** (1.0 / SOFTMAX_OVERLAP)
        for rate in (own, fitted)
    ]
    return times[0] / times[1]


def prefill_time(
    xp: Functions,
    limits: Limits,
    parameters: PrefillParameters,
    shape: AttentionShape,
    seqs: Num,
    q_tokens: Num,
    pairs: Num,
    kv_tokens: Num,
) -> KernelTime:
    """Time of one prefill attention launch over a ragged batch, including the write of new K and V.

    Queries (with packing: all that share a KV head) are cut into tiles of ``tile_rows``. A tile multiplies whole
    steps of keys, so on the causal diagonal it computes half a tile and half a step more than the mask admits. Tiles
    spread over the cores; the longest may end alone. K and V are read once from memory; re-reads come from the
    on-chip store.

    Source: Dao, "FlashAttention-2" (2023), doi:10.48550/arXiv.2307.08691, work partitioning; the terms were chosen on
        NVIDIA's aiconfigurator measurements.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=4194304.0, cores=1, bandwidth=65536.0, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, tile_s=0.0, tail_share=0.0, sequence_s=0.0)
    >>> kernel = PrefillParameters.model_construct(launch_s=1.0, overlap=float("inf"), **ideal)
    >>> layer = AttentionShape(1, 1, 64, 64, 256.0, "bf16")
    >>> time = prefill_time(SCALAR, chip, kernel, layer, 1, 128, 128 * 129 / 2, 128)  # one tile of 128 rows and keys
    >>> time.compute_s, time.seconds  # 2 * (64 + 64) * 128 * 128 / 4194304; 1 + that + write of 2 * 256 * 128 / 65536
    (1.0, 3.0)
    """
    widening: Num = 0.0
    if parameters.widen_s:
        shape, widening = widened(xp, parameters, shape, kv_tokens)
    width = shape.qk_dim + shape.v_dim
    flops = 2.0 * shape.num_heads * width * pairs
    kv_bytes = shape.kv_bytes_per_token * kv_tokens
    new_bytes = shape.kv_bytes_per_token * q_tokens
    query_bytes = ACTIVATION_BYTES * shape.num_heads * width * q_tokens
    moved = query_bytes + kv_bytes
    rows, columns = parameters.tile_rows, parameters.tile_columns
    length = q_tokens / seqs
    group = shape.num_heads / shape.num_kv_heads
    if parameters.packing == "never":
        group = 1.0
    elif parameters.packing == "single":
        group = xp.where(length > 1.0, 1.0, group)
    tiles = seqs * (shape.num_heads / group) * xp.ceil(length * group / rows)
    mean_keys = pairs / q_tokens
    if shape.windowed and parameters.masked_share:
        unseen = xp.maximum(0.0, kv_tokens / seqs - 0.5 * (length - 1.0) - mean_keys)
        mean_keys = mean_keys + parameters.masked_share * unseen
    longest_keys = xp.ceil(xp.minimum(kv_tokens / seqs, 2.0 * mean_keys) / columns) * columns
    keys = xp.maximum(mean_keys, xp.minimum(mean_keys + 0.5 * (rows / group + columns), longest_keys))
    per_key = 2.0 * width * rows * limits.cores / (limits.peak_flops * parameters.compute_efficiency)
    per_key = per_key * softmax_factor(limits, width)
    load = tiles / limits.cores
    tail = parameters.tail_share * longest_keys * per_key * xp.minimum(1.0, load)
    busy = xp.maximum(1.0, load) * (keys * per_key + parameters.tile_s) + tail
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    stream = moved / bandwidth
    write = 2.0 * new_bytes / bandwidth
    launch = parameters.launch_s + parameters.sequence_s * seqs + widening
    if parameters.regroup_s:
        packed = (length <= 1.0) & (shape.num_heads > shape.num_kv_heads) & (shape.num_kv_heads > 1) & (seqs > 1)
        launch = launch + xp.where(packed, parameters.regroup_s, 0.0)
    seconds = launch + write + smooth_maximum(xp, busy, stream, parameters.overlap)
    return KernelTime(seconds, launch, busy, stream + write, flops, moved)


NARROW_ROWS = 16.0
"""Rows of the narrow tile of TensorRT-LLM's decode kernels for Blackwell (heads and keys swapped in the product).
Groups of up to twice as many heads run as two such tiles, larger groups in one tile of 64 or 128 rows: 32 heads of MLA
take 1.4 to 1.6 times as long as 16 and as 64 (NVIDIA's aiconfigurator tables, B200)."""


def decode_time(
    xp: Functions,
    limits: Limits,
    parameters: DecodeParameters,
    shape: AttentionShape,
    seqs: Num,
    q_len: Num,
    kv_tokens: Num,
    warm: bool = False,
    tail_kv: Num = 0.0,
) -> KernelTime:
    """Time of one decode attention launch: ``q_len`` queries per sequence against its whole KV.

    The query heads that share a KV head, times ``q_len``, are packed into the rows of one work item, so KV is read
    once per sequence however many tokens are verified (more items re-read it from the on-chip store once the rows
    overflow a tile). The number of items is sequences times KV heads times splits of the KV axis; few items cannot
    saturate the chip's bandwidth, and splitting the axis adds a combining pass. Further waves of items add
    their pipeline fill, partly hidden. A library with an ``unpacked`` kernel uses it for some batches (``packs``).

    Source: Dao et al., "Flash-Decoding for long-context inference" (2023), https://pytorch.org/blog/flash-decoding/;
        the terms were chosen on NVIDIA's aiconfigurator measurements.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=4096000.0, cores=1, bandwidth=256256.0, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, core_bandwidth_ratio=1.0, wave_s=0.0, hidden_s=0.0)
    >>> none = dict(sequence_s=0.0, combine_s=0.0, split_s=0.0, tail_key_s=0.0)
    >>> kernel = DecodeParameters.model_construct(launch_s=1.0, overlap=float("inf"), **ideal, **none)
    >>> time = decode_time(SCALAR, chip, kernel, AttentionShape(1, 1, 64, 64, 256.0, "bf16"), 1, 1, 1000)
    >>> time.compute_s, time.memory_s  # 2 * (64 + 64) * 16 rows * 1000 / 4096000; (256 * 1000 + 2 * (64 + 64)) / 256256
    (1.0, 1.0)
    """
    packed = _split_time(xp, limits, parameters, shape, seqs, q_len, kv_tokens, warm)
    if parameters.tail_key_s:
        alone = tail_time_per_key(xp, parameters, limits.cores, shape, seqs, q_len) * tail_kv
        packed = packed._replace(seconds=packed.seconds + alone, launch_s=packed.launch_s + alone)
    other = parameters.unpacked
    if other is None:
        return packed
    use = packs(xp, other, limits.cores, shape, seqs, q_len, kv_tokens)
    if use is True:
        return packed
    single = _split_time(xp, limits, other, shape, seqs, q_len, kv_tokens, warm)
    return single if use is False else KernelTime(*(xp.where(use, a, b) for a, b in zip(packed, single, strict=True)))


def packs(
    xp: Functions, unpacked: UnpackedKernel, cores: float, shape: AttentionShape, seqs: Num, q_len: Num, kv_tokens: Num
) -> Num:
    """Choice of the packed kernel, which serves a KV head's query heads together: a boolean for each batch.

    Absorbed MLA and multiple queries per sequence always use it. Otherwise the kernel must support the head group, and
    its work items (sequences times KV heads times KV pieces) must fill ``least_fill`` of the cores.

    Source: NVIDIA TensorRT-LLM, ``DecoderXQAImplJIT::mayHavePerfGain`` (release 1.0, Apache-2.0).
    """
    group = shape.num_heads / shape.num_kv_heads
    pieces = xp.maximum(1.0, (kv_tokens / seqs) // unpacked.piece_tokens)
    fits = (group >= unpacked.least_group) & (group <= unpacked.most_group)
    filled = seqs * shape.num_kv_heads * pieces >= unpacked.least_fill * cores
    return (shape.qk_dim != shape.v_dim) | (q_len > 1) | (filled & fits)


def _most_splits(xp: Functions, parameters: DecodeKernel, length: Num) -> Num:
    """Maximum useful number of splits of a KV axis of ``length`` tokens, independent of the number of cores.

    Source of the square root: TensorRT-LLM, ``computeMultiBlockCount`` of its XQA kernels (release 1.0, Apache-2.0).
    """
    if not parameters.split_root:
        return xp.ceil(length / parameters.split_tokens)
    whole = length // parameters.split_tokens
    return xp.minimum(whole, xp.ceil((parameters.split_root * whole) ** 0.5 - 0.5))


def slot_cores(xp: Functions, cores: float, slots: Num, heads: Num, most: Num) -> tuple[Num, Num]:
    """Cores that share one KV head, and KV heads that one core computes in turn, per slot.

    A core takes a power of two of the heads of one slot. With 64 cores, 32 slots and 8 heads that is four heads on each
    of two cores, even if a single sequence runs.

    Source: tt-metal, ``sdpa_decode_program_factory.cpp`` (pull request 42591): ``num_cores_per_head`` and
        ``num_heads_per_core``.

    >>> from hwprofiles.formulas import SCALAR
    >>> slot_cores(SCALAR, 64, 32, 8, 16)
    (1.0, 4.0)
    """
    each = xp.maximum(1.0, cores // slots)
    return xp.maximum(1.0, xp.minimum(each // heads, most)), 2.0 ** xp.ceil(xp.log2(xp.maximum(1.0, heads / each)))


def _split_time(xp: Functions, limits: Limits, parameters: DecodeKernel, *sizes: Num) -> KernelTime:
    """Time of one decode attention kernel with its KV axis split for all cores. If faster, the axis is split for the
    core count of the chip that the fits come from."""
    wide = _kernel_time(xp, limits, parameters, limits.cores, *sizes)
    if limits.fitted_cores >= limits.cores:
        return wide
    narrow = _kernel_time(xp, limits, parameters, limits.fitted_cores, *sizes)
    better = narrow.seconds < wide.seconds
    return KernelTime(*(xp.where(better, a, b) for a, b in zip(narrow, wide, strict=True)))


class KvSplit(NamedTuple):
    """Work items of a decode kernel, and their distribution over the cores."""

    items: Num
    """Work items before the KV axis is split: sequences x KV heads x row tiles."""
    row_tiles: Num
    """Items that read the same keys, each for other query rows."""
    rows: Num
    """Query rows that an item multiplies, padding included."""
    splits: Num
    """Parts of the KV axis."""
    waves: Num
    """Items that the busiest core computes one after the other."""
    speed: Num = 1.0
    """Speed of a core relative to cores that share a KV head."""


def stream_time(xp: Functions, split: KvSplit, moved: Num, bandwidth: Num, core_bandwidth: Num) -> Num:
    """Seconds to move the bytes of a decode kernel: limited by the memory, or by the busiest core.

    seconds = max(moved / bandwidth, waves * row_tiles * moved / (items * splits) / core_bandwidth)

    Args:
        xp: functions for the type of the sizes.
        split: work items.
        moved: bytes.
        bandwidth, core_bandwidth: bandwidth of the memory, and of one core, bytes/s.

    >>> from hwprofiles.formulas import SCALAR
    >>> full = KvSplit(items=132, row_tiles=1, rows=16, splits=1, waves=1)
    >>> stream_time(SCALAR, full, 3e6, 3e12, 6e10)
    1e-06
    >>> stream_time(SCALAR, full._replace(items=8), 3e6, 3e12, 6e10)  # eight cores cannot draw the whole bandwidth
    6.25e-06
    """
    return xp.maximum(
        moved / bandwidth, split.waves * moved / split.items * split.row_tiles / split.splits / core_bandwidth
    )


def computing_time(xp: Functions, split: KvSplit, cores: float, keys: Num, key_s: Num, pair_share: float = 0.0) -> Num:
    """Seconds that the busiest core computes.

    seconds = waves * keys * key_s * (1 + pair_share * paired / waves)

    Args:
        xp: functions for the type of the sizes.
        split: work items.
        cores: number of cores of the chip.
        keys: keys per work item, padding included.
        key_s: seconds of an item for one key.
        pair_share: slowdown of an item while the other core of its pair is busy: in all waves except a last one with at
            most half the cores.

    >>> from hwprofiles.formulas import SCALAR
    >>> split = KvSplit(items=8, row_tiles=1, rows=16, splits=8, waves=1)
    >>> computing_time(SCALAR, split, 132, 512, 1e-9, 0.25) / computing_time(SCALAR, split, 132, 512, 1e-9)
    1.0
    >>> computing_time(SCALAR, split, 100, 512, 1e-9, 0.25) / computing_time(SCALAR, split, 100, 512, 1e-9)
    1.25
    """
    busy = split.waves * keys * key_s
    if not pair_share:
        return busy
    last = split.items * split.splits - cores * (split.waves - 1.0)
    paired = split.waves - xp.where(last > 0.5 * cores, 0.0, 1.0)
    return busy * (1.0 + pair_share * paired / split.waves)


def overhead_time(xp: Functions, parameters: DecodeKernel, split: KvSplit, seqs: Num, keys: Num) -> Num:
    """Overhead in seconds that adds to the KV read: pipeline fill and drain of further waves, and work per sequence.

    seconds = max(0, (waves - 1) * wave_s - hidden_s) + seqs * sequence_s

    ``wave_s`` grows with the query rows of an item, and by one main-loop iteration if it has ``PASS_TOKENS`` keys.

    Args:
        xp: functions for the type of the sizes.
        parameters: fitted parameters of the kernel.
        split: work items.
        seqs: number of sequences.
        keys: keys per work item.

    >>> from hwprofiles.formulas import SCALAR
    >>> kernel = DecodeKernel.model_construct(wave_s=2e-6, hidden_s=1e-6, sequence_s=0.0)
    >>> overhead_time(SCALAR, kernel, KvSplit(items=300, row_tiles=1, rows=16, splits=1, waves=3), 300, 64)
    3e-06
    """
    wave_s = parameters.wave_s + parameters.row_wave_s * (split.rows / parameters.row_step - 1.0)
    if parameters.pass_s:
        wave_s = wave_s + xp.where(keys >= PASS_TOKENS, parameters.pass_s, 0.0)
    return xp.maximum(0.0, (split.waves - 1.0) * wave_s - parameters.hidden_s) + seqs * parameters.sequence_s


def launch_time(
    xp: Functions, parameters: DecodeKernel, shape: AttentionShape, splits: Num, seqs: Num, widening: Num = 0.0
) -> Num:
    """Fixed seconds of a decode kernel, of combining its KV parts, and of preparatory kernels.

    seconds = launch_s + [splits > 1] (combine_s + splits * split_s) + widening + [queries are regrouped] regroup_s

    Args:
        xp: functions for the type of the sizes.
        parameters: fitted parameters of the kernel.
        shape: layer on one chip.
        splits: parts of the KV axis.
        seqs: number of sequences.
        widening: seconds of converting the cache (``widened``).

    >>> from hwprofiles.formulas import SCALAR
    >>> kernel = DecodeKernel.model_construct(launch_s=2e-6, combine_s=1e-6, split_s=1e-7)
    >>> layer = AttentionShape(32, 8, 128, 128, 4096.0, "bf16")
    >>> [launch_time(SCALAR, kernel, layer, splits, seqs=4) for splits in (1, 10)]
    [2e-06, 4e-06]
    """
    launch = parameters.launch_s + xp.where(splits > 1.0, parameters.combine_s + splits * parameters.split_s, 0.0)
    launch = launch + widening
    if not parameters.regroup_s:
        return launch
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    return launch + xp.where((heads > kv_heads) & (kv_heads > 1) & (seqs > 1), parameters.regroup_s, 0.0)


def decode_split(
    xp: Functions, parameters: DecodeKernel, cores: float, split_cores: float, shape: AttentionShape, *sizes: Num
) -> KvSplit:
    """Work items of a decode kernel whose KV axis is split until they fill ``split_cores`` of the ``cores``.

    items = seqs * KV heads * ceil(q_len * heads / KV heads / tile_rows)
    splits = max(1, min(split_fill * split_cores // items, useful splits))
    waves = ceil(items * splits / cores)

    Args:
        xp: functions for the type of the sizes.
        parameters: fitted parameters of the kernel.
        cores, split_cores: cores of the chip, and the number of cores for which the library splits.
        shape: layer on one chip.
        sizes: number of sequences, queries per sequence, keys per sequence.

    >>> from hwprofiles.formulas import SCALAR
    >>> layer, kernel = AttentionShape(32, 8, 128, 128, 4096.0, "bf16"), DecodeKernel.model_construct()
    >>> decode_split(SCALAR, kernel, 132, 132, layer, 4, 1, 8192)._asdict()
    {'items': 32, 'row_tiles': 1, 'rows': 16.0, 'splits': 4.0, 'waves': 1, 'speed': 1.0}
    """
    seqs, q_len, length = sizes
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    packed = q_len * (heads / kv_heads)
    row_tiles = xp.ceil(packed / parameters.tile_rows)
    rows = xp.minimum(parameters.tile_rows, xp.ceil(packed / parameters.row_step) * parameters.row_step)
    items = seqs * kv_heads * row_tiles
    most = xp.minimum(_most_splits(xp, parameters, length), parameters.max_splits)
    most = xp.where(heads >= parameters.min_group_to_split * kv_heads, most, 1.0)
    if parameters.split_seqs:
        most = xp.where(seqs <= parameters.split_seqs, most, 1.0)
    if shape.slots:
        splits, waves = slot_cores(xp, cores, xp.maximum(seqs, shape.slots), kv_heads * row_tiles, most)
        return KvSplit(items, row_tiles, rows, splits, waves, xp.where(splits > 1.0, 1.0, parameters.whole_head_speed))
    splits = xp.maximum(1.0, xp.minimum(parameters.split_fill * split_cores // items, most))
    return KvSplit(items, row_tiles, rows, splits, xp.ceil(items * splits / cores))


def _kernel_time(
    xp: Functions,
    limits: Limits,
    parameters: DecodeKernel,
    split_cores: float,
    shape: AttentionShape,
    seqs: Num,
    q_len: Num,
    kv_tokens: Num,
    warm: bool,
) -> KernelTime:
    """Time of one decode attention kernel that splits the KV axis for ``split_cores`` cores; see ``decode_time``."""
    widening: Num = 0.0
    if parameters.widen_s:
        shape, widening = widened(xp, parameters, shape, kv_tokens)
    width, cores = shape.qk_dim + shape.v_dim, limits.cores
    flops = 2.0 * shape.num_heads * width * q_len * kv_tokens
    kv_bytes = shape.kv_bytes_per_token * kv_tokens
    moved = kv_bytes + ACTIVATION_BYTES * shape.num_heads * width * seqs * q_len
    if parameters.reread_share:
        # Observed with one query per sequence; the tiling of verified draft rows is not measured.
        packed = q_len * (shape.num_heads / shape.num_kv_heads)
        twice = (packed > NARROW_ROWS) & (packed <= 2.0 * NARROW_ROWS) & (q_len <= 1)
        moved = moved + xp.where(twice, parameters.reread_share * kv_bytes, 0.0)
    split = decode_split(xp, parameters, cores, split_cores, shape, seqs, q_len, kv_tokens / seqs)
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    core_bandwidth = bandwidth * parameters.core_bandwidth_ratio * limits.memory_share / cores * split.speed
    if warm:
        _, seconds_per_byte = warm_reads(xp, limits, parameters, kv_bytes, WARM_FADE, bandwidth)
        ratio = 1.0 / seconds_per_byte / bandwidth
        bandwidth, core_bandwidth = bandwidth * ratio, core_bandwidth * ratio
    stream = stream_time(xp, split, moved, bandwidth, core_bandwidth)
    keys = padded_keys = kv_tokens / seqs / split.splits
    if parameters.key_step > 1.0:
        padded_keys = xp.ceil(keys / parameters.key_step) * parameters.key_step
    core_flops = limits.peak_flops * parameters.compute_efficiency / cores
    key_s = 2.0 * split.rows * width / core_flops + parameters.key_s / split.speed
    busy = computing_time(xp, split, cores, padded_keys, key_s, parameters.pair_share)
    if parameters.further_query:
        longer = 1.0 + parameters.further_query * (q_len - 1.0)
        busy, stream = busy * longer, stream * longer
    overhead = overhead_time(xp, parameters, split, seqs, keys)
    launch = launch_time(xp, parameters, shape, split.splits, seqs, widening)
    if parameters.stream_overlap:
        work = smooth_maximum(xp, busy, stream, parameters.stream_overlap)
    else:
        work = xp.maximum(busy, stream)
    seconds = launch + smooth_maximum(xp, work, overhead, parameters.overlap)
    return KernelTime(seconds, launch, busy, stream, flops, moved)


KEPT_FADE = 1.25
"""KV bytes per pass at which the cache hit rate is 0, as a multiple of the retained bytes."""


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
) -> KernelTime:
    """Time of one prefill kernel that serves prompt chunks and single queries alike (FlashAttention-2, ragged batch).

    Every query head of every single query takes a tile of ``tile_rows`` and multiplies all of it, with no split of the
    KV axis. Heads are the slowest grid axis: heads that share a KV head reuse its KV from the on-chip store only if the
    KV of all sequences fits there, else each head reads it from memory. The grid is as wide as the longest chunk for
    every sequence, and tiles past the end of a sequence are started and dropped one by one. The last tile of the
    longest single-query sequence runs alone.

    Source: the launch grid of FlashAttention-2 (Dao 2023, doi:10.48550/arXiv.2307.08691); checked on LLMServingSim's
        mixed batches (vLLM 0.19 on RTX 4090 and RTX PRO 6000).

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=8388608.0, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, tile_s=0.0, tail_share=0.0, sequence_s=0.0)
    >>> kernel = PrefillParameters.model_construct(launch_s=1.0, overlap=float("inf"), **ideal)
    >>> layer = AttentionShape(1, 1, 64, 64, 256.0, "bf16")
    >>> time = one_pass_time(SCALAR, chip, kernel, layer, 1, 128, 128 * 129 / 2, 128, 1, 128)
    >>> time.compute_s  # two tiles, of the prompt and of the single query: 2 * 2 * (64 + 64) * 128 * 128 / 8388608
    1.0
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
    queries = ACTIVATION_BYTES * heads * width * (q_tokens + decode_seqs)
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
