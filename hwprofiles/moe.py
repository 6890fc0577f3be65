"""Routed experts: two grouped matrix products over the experts that the tokens of this step touch."""

from hwprofiles.numeric import Functions, Num, smooth_maximum
from hwprofiles.parameters import MoeParameters
from hwprofiles.results import KernelTime, Limits


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
    expert_parallel: int = 1,
    tensor_parallel: int = 1,
    gated: bool = True,
) -> KernelTime:
    """Time of one layer's routed feed-forward on one chip, both projections.

    ``tokens`` are those of the whole expert-parallel group; this chip holds ``num_experts / expert_parallel`` experts and gets
    its even share of the assignments. Weights of every touched expert are read once; its tokens fill whole tiles.

    Args:
        xp: scalar or array functions.
        limits: of the chip, for the math format used.
        parameters: of the library's kernels.
        tokens: routed over all experts, > 0.
        num_experts: in the layer.
        experts_per_token: chosen per token.
        hidden: model width.
        intermediate: width of one expert before tensor parallelism.
        weight_bytes: bytes per weight.
        activation_bytes: bytes per activation.
        expert_parallel: chips that share the experts.
        tensor_parallel: chips that share each expert.
        gated: gate and up projections (SwiGLU) instead of up alone.
    """
    width = intermediate / tensor_parallel
    projections = 3.0 if gated else 2.0
    active = distinct_experts(xp, tokens, num_experts, experts_per_token) / expert_parallel
    assignments = tokens * experts_per_token / expert_parallel
    weights_per_expert = projections * hidden * width
    flops = 2.0 * assignments * weights_per_expert
    moved = weight_bytes * active * weights_per_expert + activation_bytes * 2.0 * tokens * hidden
    padded = active * xp.ceil(assignments / active / parameters.tile_rows) * parameters.tile_rows
    busy = 2.0 * padded * weights_per_expert / (limits.peak_flops * parameters.compute_efficiency)
    scattered = activation_bytes * assignments * (2.0 * hidden + projections * width)
    stream = (moved + scattered) / (limits.bandwidth * parameters.memory_efficiency)
    launch = parameters.launch_s
    return KernelTime(
        launch + smooth_maximum(xp, busy, stream, parameters.overlap), launch, busy, stream, flops, moved
    )
