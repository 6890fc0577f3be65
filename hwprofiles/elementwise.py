"""Memory-bound passes: norms, activations, residuals, RoPE, gathers, sampling."""

from hwprofiles.numeric import Functions, Num
from hwprofiles.parameters import ElementwiseParameters
from hwprofiles.results import KernelTime, Limits


def elementwise_time(
    xp: Functions, limits: Limits, parameters: ElementwiseParameters, bytes_moved: Num, launches: Num
) -> KernelTime:
    """Time of ``launches`` kernels that together move ``bytes_moved``: launches plus bytes over the reachable
    bandwidth."""
    memory = bytes_moved / (limits.bandwidth * parameters.memory_efficiency)
    launch = parameters.launch_s * launches
    return KernelTime(launch + memory, launch, 0.0 * memory, memory, 0.0 * memory, bytes_moved * 1.0)
