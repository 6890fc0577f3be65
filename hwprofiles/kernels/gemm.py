"""Dense matrix product: tiles in waves over the cores, operands from memory and from the on-chip store, split-K."""

from functools import lru_cache

from hwprofiles.formulas import SCALAR, Functions, KernelTime, Limits, Num, smooth_maximum
from hwprofiles.parameters import FewRowsKernel, GemmParameters

Tiles = tuple[tuple[int, int], ...]

LARGEST_TILE = 512
"""Maximum rows of a tile; for larger ``m``, every tile shape is evaluated."""
MIN_SPLIT_DEPTH = 256.0
"""Minimum k elements per split."""


def tile_waves(xp: Functions, items: Num, cores: Num, wave_share: Num) -> Num:
    """Waves that ``items`` equal tiles take on ``cores`` cores.

    Args:
        items: tiles, >= 1.
        cores: number of cores; each processes one tile at a time.
        wave_share: share of the last wave's idle core time that is lost; 1 = whole waves, 0 = none lost
            (stream-K, or a power-limited chip whose busy cores clock higher).

    Returns:
        Waves, >= 1: between ``items / cores`` and ``ceil(items / cores)``.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide" (2023), section on wave quantization.

    >>> from hwprofiles.formulas import SCALAR
    >>> [tile_waves(SCALAR, 198, 132, wave_share) for wave_share in (0.0, 1.0)]
    [1.5, 2.0]
    """
    exact = items / cores
    return xp.maximum(1.0, exact + (xp.ceil(exact) - exact) * wave_share)


@lru_cache(maxsize=4096)
def useful_tiles(tiles: Tiles, m: float) -> Tiles:
    """Drop tiles that cannot be fastest: a tile with the same columns and fewer rows already covers all of ``m``.

    >>> useful_tiles(((64, 128), (128, 128), (128, 256)), 32)
    ((64, 128), (128, 256))
    """
    return tuple((r, c) for r, c in tiles if not any(c2 == c and m <= r2 < r for r2, c2 in tiles))


def gemm_time(
    xp: Functions,
    limits: Limits,
    parameters: GemmParameters,
    m: Num,
    n: Num,
    k: Num,
    weight_bytes: float,
    activation_bytes: float,
    output_bytes: float,
) -> KernelTime:
    """Time of ``y[m,n] = x[m,k] w[k,n]``; never shorter for a larger ``m``, ``n`` or ``k`` twice as large.

    The fastest tile shape of the library is used, with split-K if the tiles do not fill the cores. A wave costs its
    arithmetic at the core's share of the peak, or its operand reads at the core's share of the on-chip bandwidth,
    whichever is longer. Memory time covers every operand once, but at least the time of a core to read the operands of
    the smallest work item. Wave time and memory time overlap (better with asynchronous copies). Time that no arithmetic
    hides is added: the write of the last outputs, and the pipeline fill at the start of each wave, but only of the
    first and last wave on chips with asynchronous copies, which prefetch the next tile.

    Source: tiles and waves as in NVIDIA, "Matrix Multiplication Background User's Guide" (2023); the terms were chosen
        on NVIDIA's aiconfigurator measurements.

    >>> chip = Limits(peak_flops=1e6, cores=1, bandwidth=1e4, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, on_chip_efficiency=1.0, wave_s=0.0, wave_share=1.0)
    >>> kernel = GemmParameters.model_construct(launch_s=1.0, overlap=float("inf"), tiles=((100, 100),), **ideal)
    >>> time = gemm_time(SCALAR, chip, kernel, 100, 100, 1000, 2.0, 2.0, 2.0)  # one tile
    >>> time.compute_s, time.memory_s, time.seconds  # 2 m n k / 1e6; 2 (n k + m k + m n) / 1e4; 1 + the longer
    (20.0, 42.0, 43.0)
    """
    flops = 2.0 * m * n * k
    moved = weight_bytes * n * k + activation_bytes * m * k + output_bytes * m * n
    few = parameters.few_rows
    vector = None if few is None else grouped_rows_time(xp, limits, few, m, n * k, weight_bytes, moved, flops)
    if few is not None and vector is not None and xp is SCALAR and m <= few.most_rows:
        return vector
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    best, compute, memory = _fastest_tiles(
        xp, limits, parameters, (m, n, k), weight_bytes, activation_bytes, moved, bandwidth
    )
    launch = parameters.launch_s
    alone = parameters.write_share * output_bytes * m * n
    if parameters.quantise_s:
        alone = alone + parameters.quantise_bytes * m * k
        launch = launch + parameters.quantise_s
    alone = alone / bandwidth
    tiled = KernelTime(launch + best + alone, launch, compute, memory + alone, flops, moved)
    if few is None or vector is None:
        return tiled
    return KernelTime(*(xp.where(m <= few.most_rows, a, b) for a, b in zip(vector, tiled, strict=True)))


def _fastest_tiles(
    xp: Functions,
    limits: Limits,
    parameters: GemmParameters,
    sizes: tuple[Num, Num, Num],
    weight_bytes: float,
    activation_bytes: float,
    moved: Num,
    bandwidth: float,
) -> tuple[Num, Num, Num]:
    """Seconds of the fastest tile shape, compute time without memory accesses, and memory time without arithmetic."""
    m, n, k = sizes
    core_flops = limits.peak_flops * parameters.compute_efficiency / limits.cores
    on_chip = limits.on_chip_bandwidth * limits.multicast * parameters.on_chip_efficiency
    core_bandwidth = bandwidth * parameters.core_bandwidth_ratio * limits.memory_share / limits.cores
    sharpness = parameters.overlap * (2.0 if limits.asynchronous else 1.0)
    most_waves = 2.0 if limits.asynchronous else float("inf")
    cores, wave_s, wave_share = limits.cores, parameters.wave_s, parameters.wave_share
    core_on_chip = on_chip * limits.on_chip_share
    maximum, minimum, ceil = xp.maximum, xp.minimum, xp.ceil
    # Split depths are not rounded: with whole splits, a larger k would be faster at each step of the split count.
    deepest = minimum(k / MIN_SPLIT_DEPTH, parameters.max_split_k)
    least_depth = minimum(k, maximum(MIN_SPLIT_DEPTH, k / parameters.max_split_k))
    streamed = moved / bandwidth
    best: Num = None
    compute: Num = 0.0
    memory: Num = 0.0
    for rows, columns in useful_tiles(parameters.tiles, min(m, LARGEST_TILE)) if xp is SCALAR else parameters.tiles:
        tiles = ceil(m / rows) * ceil(n / columns)
        splits = maximum(1.0, minimum(cores // tiles, deepest))
        arithmetic = 2.0 * rows * columns / core_flops
        drawn = activation_bytes * minimum(rows, m) + weight_bytes * minimum(columns, n)
        busy = tile_waves(xp, tiles * splits, cores, wave_share) * maximum(arithmetic, drawn * cores / core_on_chip)
        if limits.on_chip_share > 1.0:
            busy = maximum(busy, tiles * splits * drawn / on_chip)
        busy = busy * (k / splits)
        fill = wave_s * minimum(most_waves, ceil(tiles / cores))
        if xp is SCALAR and best is not None and busy + fill >= best:
            continue  # cannot be fastest; skip the evaluation
        stream = maximum(streamed, drawn * least_depth / core_bandwidth)
        total = smooth_maximum(xp, busy, stream, sharpness) + fill
        if best is None:
            best, compute, memory = total, busy, stream
        else:
            better = total < best
            best = xp.where(better, total, best)
            compute = xp.where(better, busy, compute)
            memory = xp.where(better, stream, memory)
    return best, compute, memory


def grouped_rows_time(
    xp: Functions,
    limits: Limits,
    kernel: FewRowsKernel,
    m: Num,
    weights: Num,
    weight_bytes: float,
    moved: Num,
    flops: Num,
) -> KernelTime:
    """Time of a dense product with few rows, processed in equal groups of at most ``kernel.group_rows`` rows.

    Kernels have a fixed number of rows: seven rows run as two groups of four. Each group unpacks the weights
    again, and rereads them from memory if the matrix is larger than the on-chip store.

    Source: ``mul_mv_ext`` of llama.cpp's Metal back end (ggml-metal-ops.cpp, ``r1ptg`` by ``ne11``).

    >>> chip = Limits(peak_flops=1e12, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12,
    ...               vector_flops=1e9)
    >>> kernel = FewRowsKernel.model_construct(launch_s=0.0, memory_efficiency=1.0, overlap=1.0, unpack=3.0, row=1.0,
    ...                                        group_rows=4.0)
    >>> time = grouped_rows_time(SCALAR, chip, kernel, 7, 1e9, 1.0, 1e9, 1.4e10)  # seven rows: two groups of four
    >>> time.compute_s, time.memory_s  # (3 * 2 groups + 1 * 8 rows) * 1e9 / 1e9; 1e9 bytes, twice
    (14.0, 2.0)
    """
    if kernel.group_rows >= kernel.most_rows:
        return few_rows_time(xp, limits, kernel, weights, m * weights, moved, flops)
    groups = xp.ceil(m / kernel.group_rows)
    rows = groups * xp.ceil(m / groups)
    again = xp.where(weights * weight_bytes > limits.on_chip_bytes, groups - 1.0, 0.0)
    read = moved + again * weights * weight_bytes
    time = few_rows_time(xp, limits, kernel, groups * weights, rows * weights, read, flops)
    return time._replace(bytes=moved)


def few_rows_time(
    xp: Functions, limits: Limits, kernel: FewRowsKernel, weights: Num, products: Num, moved: Num, flops: Num
) -> KernelTime:
    """Time of a product of few rows in matrix-vector kernels.

    Weights are read once; the vector units unpack each once and multiply it by every row. If memory time dominates,
    further rows are almost free; if unpacking dominates (narrow formats on slow units), each row adds time.

    ``weights`` is the number of weights, each read once; ``products`` the number of multiply-adds (weights times rows).

    >>> chip = Limits(peak_flops=1e12, cores=1, bandwidth=1e9, on_chip_bytes=0, on_chip_bandwidth=1e12,
    ...               vector_flops=1e9)
    >>> kernel = FewRowsKernel.model_construct(launch_s=0.5, memory_efficiency=1.0, overlap=1.0, unpack=3.0, row=1.0)
    >>> few_rows_time(SCALAR, chip, kernel, 1e9, 2e9, 2e9, 4e9).seconds  # 0.5 + (3 * 1e9 + 1 * 2e9) / 1e9 + 2e9 / 1e9
    7.5
    """
    busy = (kernel.unpack * weights + kernel.row * products) / limits.vector_flops
    drawn = kernel.core_bytes * limits.cores * limits.clock_hz
    bandwidth = limits.bandwidth * kernel.memory_efficiency
    stream = moved / (min(bandwidth, drawn) if drawn else bandwidth)
    light = xp.maximum(flops / limits.peak_flops, moved / limits.bandwidth)
    seconds = xp.maximum(smooth_maximum(xp, busy, stream, kernel.overlap), light)
    return KernelTime(kernel.launch_s + seconds, kernel.launch_s + 0.0 * seconds, busy, stream, flops, moved)


AMAX_S = 7.2e-6
"""Minimum seconds of the kernel that finds the largest activation of a matrix before quantisation.

Source: tables ``computescale`` of NVIDIA aiconfigurator-core 0.12.0 (trtllm 1.3.0rc20, H100 and H200; up to 256 rows).
"""
ONE_PASS_BYTES = 3.0
"""Bytes moved per activation by quantisation with a known scale: 2 read, 1 written."""


def with_static_scales(
    xp: Functions, limits: Limits, parameters: GemmParameters, time: KernelTime, m: Num, k: Num
) -> KernelTime:
    """Product time without the amax search over activations, never below the speed-of-light time.

    TensorRT-LLM's FP8 products were measured with this search; a server whose checkpoint contains the scale of every
    layer's activations (NVIDIA ModelOpt's FP8) skips the search: one launch less, and ``ONE_PASS_BYTES`` per activation
    instead of ``quantise_bytes``.

    No change if the fit included no quantisation kernel.
    """
    if not parameters.quantise_s:
        return time
    fixed = min(parameters.quantise_s, AMAX_S)
    spared = max(0.0, parameters.quantise_bytes - ONE_PASS_BYTES) * m * k
    stream = spared / (limits.bandwidth * parameters.memory_efficiency)
    light = xp.maximum(time.flops / limits.peak_flops, time.bytes / limits.bandwidth)
    seconds = xp.maximum(time.seconds - fixed - stream, light)
    return time._replace(seconds=seconds, launch_s=time.launch_s - fixed, memory_s=time.memory_s - stream)
