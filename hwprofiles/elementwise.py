"""Memory-bound passes: norms, activations, residuals, RoPE, gathers, sampling."""

from hwprofiles.numeric import Functions, Num
from hwprofiles.parameters import ElementwiseParameters
from hwprofiles.results import KernelTime, Limits


def elementwise_time(
    xp: Functions, limits: Limits, parameters: ElementwiseParameters, bytes_moved: Num, launches: Num
) -> KernelTime:
    """Time of ``launches`` equal kernels that together move ``bytes_moved``.

    Launches, plus bytes over the bandwidth they move at: of each kernel, as much as ``warm_share`` of the on-chip store
    is still there from the kernel before and never reaches memory.
    """
    launch = parameters.launch_s * launches
    if not parameters.warm_share:
        memory = bytes_moved / (limits.bandwidth * parameters.memory_efficiency)
        return KernelTime(launch + memory, launch, 0.0 * memory, memory, 0.0 * memory, bytes_moved * 1.0)
    kept = parameters.warm_share * limits.on_chip_bytes * launches
    cold = xp.maximum(0.0, bytes_moved - kept)
    slow = limits.bandwidth * parameters.memory_efficiency
    fast = max(slow, limits.on_chip_bandwidth * parameters.warm_efficiency)
    memory = cold / slow + (bytes_moved - cold) / fast
    return KernelTime(launch + memory, launch, 0.0 * memory, memory, 0.0 * memory, cold)
