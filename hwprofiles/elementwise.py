"""Memory-bound passes: norms, activations, residuals, RoPE, gathers, sampling."""

from hwprofiles.numeric import Functions, Num
from hwprofiles.parameters import ElementwiseParameters
from hwprofiles.results import KernelTime, Limits

WARM_FADE = 3.0
"""A repeated pass over this many times the retained bytes no longer finds any of them: operands that are written push
out what is read next, so the fall is long."""


def elementwise_time(
    xp: Functions,
    limits: Limits,
    parameters: ElementwiseParameters,
    bytes_moved: Num,
    launches: Num,
    warm: bool = False,
    element_bytes: float = 2.0,
) -> KernelTime:
    """Time of ``launches`` kernels that together move ``bytes_moved``: launches, bytes over the reachable bandwidth,
    and arithmetic where a chip does not hide it.

    Args:
        xp: scalar or array functions.
        limits: of the chip.
        parameters: of its passes.
        bytes_moved: read and written, over all launches.
        launches: kernels it takes.
        warm: the same operands were just moved and may still be on the chip, as benchmarks that repeat a call find.
        element_bytes: bytes per element.
    """
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    if warm:
        kept = parameters.warm_share * limits.on_chip_bytes
        hit = xp.minimum(1.0, xp.maximum(0.0, (WARM_FADE * kept - bytes_moved) / ((WARM_FADE - 1.0) * kept + 1e-9)))
        fast = max(limits.on_chip_bandwidth * parameters.warm_efficiency, bandwidth)
        memory = bytes_moved * (hit / fast + (1.0 - hit) / bandwidth)
    else:
        memory = bytes_moved / bandwidth
    launch = (parameters.launch_s + (0.0 if warm else parameters.cold_s)) * launches
    arithmetic = parameters.element_s / element_bytes * bytes_moved
    return KernelTime(launch + memory + arithmetic, launch, arithmetic, memory, 0.0 * memory, bytes_moved * 1.0)
