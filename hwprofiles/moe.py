"""Routed experts: two grouped matrix products over the experts that the tokens of this step touch."""

from hwprofiles.numeric import Functions, Num, smooth_maximum
from hwprofiles.parameters import MoeParameters
from hwprofiles.results import KernelTime, Limits
from hwprofiles.routing import ExpertLoads, Routing, expert_loads

EVEN = Routing("uniform")


def distinct_experts(xp: Functions, tokens: Num, num_experts: Num, experts_per_token: Num) -> Num:
    """Expected number of different experts that ``tokens`` independent, evenly routed tokens touch.

    Returns:
        ``E (1 - (1 - k/E)^n)``; ``k`` for one token, towards ``E`` for many.
    """
    return num_experts * (1.0 - (1.0 - experts_per_token / num_experts) ** tokens)


def moe_time(
    xp: Functions,
    limits: Limits,
    parameters: MoeParameters,
    tokens: Num,
    num_experts: Num,
    experts_per_token: Num,
    hidden: Num,
    intermediate: Num,
    weight_bytes: float,
    activation_bytes: float,
    expert_parallel: Num = 1,
    tensor_parallel: Num = 1,
    gated: bool = True,
    active_experts: Num | None = None,
    routing: Routing = EVEN,
    alike: Num = 1.0,
) -> KernelTime:
    """Time of one layer's routed feed-forward on the fullest chip, both projections.

    ``tokens`` are those of the whole expert-parallel group; a chip holds ``num_experts / expert_parallel`` experts,
    and the one that the routing loads most is priced. Weights of every touched expert are read once; the tokens of
    each expert fill whole tiles of their own (the library picks the tiles that are fastest), and few tiles draw less
    than the memory's bandwidth; activations are gathered and scattered around the products.

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's kernels.
        tokens: routed over all experts, > 0.
        num_experts: in the layer, over all chips.
        experts_per_token: chosen per token.
        hidden: model width.
        intermediate: width of one expert before tensor parallelism.
        weight_bytes: bytes per weight.
        activation_bytes: bytes per activation.
        expert_parallel: chips that share the experts.
        tensor_parallel: chips that share each expert.
        gated: gate and up projections (SwiGLU) instead of up alone.
        active_experts: experts of the layer the tokens touch, where known, all equally; None = as the routing does.
        routing: how tokens spread over the experts.
        alike: tokens that share their picks, >= 1: n of them touch as many experts as n / alike independent ones.
    """
    width = intermediate / tensor_parallel
    first = 2.0 * width if gated else width
    if active_experts is None:
        picks = xp.maximum(1.0, tokens / alike)
        reached = expert_loads(xp, routing, picks, num_experts, experts_per_token, expert_parallel)
        loads = tuple(load * alike for load in reached.loads)
        reached = ExpertLoads(reached.active, reached.assignments * alike, loads)
    else:
        even = tokens * experts_per_token / expert_parallel
        reached = ExpertLoads(active_experts / expert_parallel, even, (tokens * experts_per_token / active_experts,))
    active, assignments = reached.active, reached.assignments
    matrix = hidden * (first + width)
    flops = 2.0 * assignments * matrix
    moved = weight_bytes * active * matrix + 2.0 * activation_bytes * xp.minimum(tokens, assignments) * hidden
    core_flops = limits.peak_flops * parameters.compute_efficiency / limits.cores
    core_on_chip = limits.on_chip_bandwidth * limits.multicast * parameters.on_chip_efficiency / limits.cores
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    drawn = bandwidth * parameters.core_bandwidth_ratio / limits.cores
    edge = activation_bytes * xp.minimum(tokens, assignments) * hidden
    phases = ((first, hidden), (hidden, width))
    best: Num = None
    for rows, columns in parameters.tiles:
        arithmetic = 2.0 * rows * columns / core_flops
        operands = (activation_bytes * rows + weight_bytes * columns) / core_on_chip
        blocks = active * sum(xp.ceil(load / rows) for load in reached.loads) / len(reached.loads)
        steps: Num = 0.0
        fills: Num = 0.0
        read: Num = 0.0
        for outputs, depth in phases:
            items = blocks * xp.ceil(outputs / columns)
            waves = xp.maximum(1.0, items / limits.cores)
            steps = steps + waves * depth
            fills = fills + waves
            reach = xp.minimum(bandwidth, items * drawn) if drawn else bandwidth
            read = read + (weight_bytes * active * outputs * depth + edge) / reach
        choice = steps * xp.maximum(arithmetic, operands) + fills * parameters.wave_s
        total = smooth_maximum(xp, choice, read, parameters.overlap)
        if best is None:
            best, busy, stream = total, choice, read
        else:
            better = total < best
            best, busy = xp.where(better, total, best), xp.where(better, choice, busy)
            stream = xp.where(better, read, stream)
    handled = assignments if parameters.local_only else tokens * experts_per_token
    scattered = activation_bytes * handled * (2.0 * hidden + first + 2.0 * width)
    scatter = scattered / (limits.bandwidth * parameters.scatter_efficiency)
    launch = parameters.launch_s
    return KernelTime(launch + scatter + best, launch, busy, stream + scatter, flops, moved)
