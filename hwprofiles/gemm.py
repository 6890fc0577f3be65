"""Dense matrix product: tiles in waves over the cores, operands from memory and from the on-chip store, split-K."""

from hwprofiles.numeric import Functions, Num, smooth_maximum
from hwprofiles.parameters import GemmParameters
from hwprofiles.results import KernelTime, Limits


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
    warm: bool = False,
) -> KernelTime:
    """Time of ``y[m,n] = x[m,k] w[k,n]``.

    Every tile shape of the library is tried, with split-K where the tiles do not fill the cores; the fastest counts.
    For one shape: ``waves = ceil(tiles * splits / cores)``, a wave costs its arithmetic at the core's share of the peak
    or its operand reads at the core's share of the on-chip bandwidth, whichever is longer, plus filling and draining the
    pipeline. Memory time is every operand once (and partial sums of split-K), at no more than the busy cores can draw.

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's kernels.
        m: rows (tokens), > 0.
        n: output features, > 0.
        k: input features, > 0.
        weight_bytes: bytes per weight.
        activation_bytes: bytes per input activation as the kernel reads it.
        output_bytes: bytes per output element.
        warm: the same weights were used just before, so part of them is still on the chip.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide" (2023), tile and wave quantisation, split-K.
    """
    flops = 2.0 * m * n * k
    weights = weight_bytes * n * k
    moved = weights + activation_bytes * m * k + output_bytes * m * n
    core_flops = limits.peak_flops * parameters.compute_efficiency / limits.cores
    core_on_chip = limits.on_chip_bandwidth * limits.multicast * parameters.on_chip_efficiency / limits.cores
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    core_bandwidth = bandwidth * parameters.core_bandwidth_ratio / limits.cores
    hit = 0.0
    if warm:
        hit = parameters.warm_share * xp.minimum(1.0, limits.on_chip_bytes / (6.0 * weights))
    cold = moved - hit * weights
    best = compute = memory = None
    for rows, columns in parameters.tiles:
        tiles = xp.ceil(m / rows) * xp.ceil(n / columns)
        splits = xp.maximum(1.0, xp.minimum(xp.minimum(limits.cores // tiles, k // 256), parameters.max_split_k))
        items = tiles * splits
        waves = xp.ceil(items / limits.cores)
        depth = k / splits
        arithmetic = 2.0 * rows * columns * depth / core_flops
        operands = (activation_bytes * rows + weight_bytes * columns) * depth / core_on_chip
        busy = waves * (xp.maximum(arithmetic, operands) + parameters.wave_s)
        partial = xp.where(splits > 1.0, 8.0 * m * n * splits, 0.0) / core_on_chip / limits.cores
        stream = cold / xp.minimum(bandwidth, items * core_bandwidth) + partial
        total = smooth_maximum(xp, busy, stream, parameters.overlap)
        if best is None:
            best, compute, memory = total, busy, stream
        else:
            better = total < best
            best = xp.where(better, total, best)
            compute = xp.where(better, busy, compute)
            memory = xp.where(better, stream, memory)
    launch = parameters.launch_s
    if parameters.quantise_launch_s:
        launch = launch + parameters.quantise_launch_s
        memory_extra = 3.0 * m * k / bandwidth
        best = best + memory_extra
        memory = memory + memory_extra
    return KernelTime(launch + best, launch, compute, memory, flops, moved)
