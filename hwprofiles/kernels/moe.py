"""Routed experts: token distribution over the experts, and the two grouped matrix products of the active experts."""

from typing import NamedTuple

from hwprofiles.errors import ProfileError
from hwprofiles.formulas import Functions, KernelTime, Limits, Num, smooth_maximum
from hwprofiles.kernels.gemm import few_rows_time
from hwprofiles.parameters import MoeParameters

POWER_LAW_POINTS = 16
"""Quantiles at which a power law is evaluated."""
ZIPF_POINTS = 32
"""Quantiles of the experts' popularity at which Zipf's law is evaluated."""
ZIPF_ROUNDS = 40
"""Fixed-point iterations that scale the expected experts per token to k; 20 reach 1e-6."""
NORMAL_POINTS = (-1.534, -0.887, -0.489, -0.157, 0.157, 0.489, 0.887, 1.534)
"""Midpoints of eight equally likely parts of a standard normal distribution."""
LARGEST_SHARE = 0.8
"""Largest share of the tokens that one expert receives under a power law (aiconfigurator's ``power_law_logits_v3``)."""

DISPATCHED = ("deepepmoe", "wideep")
"""Beginnings of the names of kernels that receive only the tokens of their own experts."""


class Routing(NamedTuple):
    """Distribution of tokens over experts."""

    kind: str
    """``balanced``: every expert the same number of tokens. ``uniform``: every token picks at random, all experts
    alike. ``power-law``: expert loads drawn from a truncated power law, as NVIDIA's aiconfigurator draws them.
    ``zipf``: every token picks at random, and the odds of the r-th most popular expert are ``r ** -alpha``.
    ``identical``: all tokens are equal, like an engine's dummy tokens, and pick the same experts."""
    alpha: float = 0.0
    """Exponent of the power law or of Zipf's law."""


def read_routing(name: str) -> Routing:
    """Parse the name of a routing: ``balanced``, ``uniform``, ``identical``, ``power-law-ALPHA`` (also
    ``power_law_ALPHA``) or ``zipf-ALPHA``.

    Raises:
        ProfileError: no such routing, or an exponent outside (0, 3).

    >>> read_routing("power-law-1.2")
    Routing(kind='power-law', alpha=1.2)
    """
    text = name.replace("_", "-")
    if text in ("balanced", "uniform", "identical"):
        return Routing(text)
    for kind in ("power-law", "zipf"):
        if text.startswith(f"{kind}-"):
            try:
                alpha = float(text.removeprefix(f"{kind}-"))
            except ValueError:
                alpha = -1.0
            if 0.0 < alpha < 3.0:
                return Routing(kind, alpha + 1e-4 if kind == "power-law" and alpha in (1.0, 2.0) else alpha)
    raise ProfileError(
        f"no routing '{name}' (balanced, uniform, identical, or power-law-ALPHA or zipf-ALPHA with 0 < ALPHA < 3, "
        f"such as power-law-1.2)"
    )


class ExpertLoads(NamedTuple):
    """Load of the slowest rank in an expert-parallel group, for one layer."""

    active: Num
    """Number of experts on the rank that receive at least one token."""
    assignments: Num
    """Number of (token, expert) assignments on the rank."""
    loads: tuple[Num, ...]
    """Tokens of an active expert, at equally likely quantiles."""


def expert_loads(
    xp: Functions, routing: Routing, tokens: Num, num_experts: Num, experts_per_token: Num, ranks: Num
) -> ExpertLoads:
    """Expected loads of the experts on the slowest of ``ranks`` ranks, each with ``num_experts / ranks`` experts.

    Source: power law as NVIDIA's aiconfigurator draws it for its measurements (``power_law_logits_v3``: loads on
        [1, 0.8 n] scaled to n k and rounded, the slowest rank measured; on [0.01, 2] where n k <= E); random routing is
        the binomial distribution, distinct experts ``E (1 - (1 - k/E)^n)``.

    >>> from hwprofiles.formulas import SCALAR
    >>> expert_loads(SCALAR, Routing("balanced"), 64, 8, 2, 4)
    ExpertLoads(active=2.0, assignments=32.0, loads=(16.0,))
    """
    held = num_experts / ranks
    total = tokens * experts_per_token
    mean = total / num_experts
    if routing.kind == "balanced":
        load = xp.maximum(1.0, total / ranks)
        active = xp.minimum(held, load)
        return ExpertLoads(active, load, (xp.maximum(1.0, load / active),))
    if routing.kind == "identical":
        share = experts_per_token / ranks
        active = share + expected_maximum(xp, ranks) * (share * (1.0 - 1.0 / ranks)) ** 0.5
        active = xp.minimum(held, xp.minimum(1.0 * experts_per_token, active))
        return ExpertLoads(active, active * tokens, (xp.maximum(1.0, tokens),))
    if routing.kind == "uniform":
        share = 1.0 - (1.0 - experts_per_token / num_experts) ** tokens
        spread = mean * (1.0 - experts_per_token / num_experts)
        factor = 1.0 + expected_maximum(xp, ranks) * (spread / held) ** 0.5 / mean
        factor = xp.minimum(factor, xp.minimum(1.0 * ranks, held * tokens / (mean * held)))
        factor = xp.maximum(1.0, factor)
        typical = mean / share
        deviation = xp.maximum(0.0, (spread + mean * mean) / share - typical * typical) ** 0.5
        loads = [xp.maximum(1.0, typical + z * deviation) for z in NORMAL_POINTS]
        return _slowest_rank(xp, held, mean, held * share, factor, loads)
    if routing.kind == "zipf":
        return _zipf(xp, routing.alpha, tokens, num_experts, experts_per_token, ranks)
    return _power_law(xp, routing.alpha, tokens, num_experts, total, ranks)


def expected_maximum(xp: Functions, count: Num) -> Num:
    """Expected largest of ``count`` independent standard normal numbers, to 5 % up to 256 (0 for one).

    >>> from hwprofiles.formulas import SCALAR
    >>> round(expected_maximum(SCALAR, 8), 2)
    1.34
    """
    return 0.58 * xp.log2(xp.maximum(1.0, count)) ** 0.765


def _zipf(
    xp: Functions, alpha: float, tokens: Num, num_experts: Num, experts_per_token: Num, ranks: Num
) -> ExpertLoads:
    """Loads if tokens pick experts independently with odds ``c r ** -alpha`` for rank r. The constant c yields k picks
    per token."""
    weights = [(num_experts * (i + 0.5) / ZIPF_POINTS + 0.5) ** -alpha for i in range(ZIPF_POINTS)]
    wanted = ZIPF_POINTS * experts_per_token / num_experts
    scale = wanted / sum(weights)
    for _ in range(ZIPF_ROUNDS):
        scale = scale * wanted / sum(scale * w / (1.0 + scale * w) for w in weights)
    chances = [scale * w / (1.0 + scale * w) for w in weights]
    mean = tokens * experts_per_token / num_experts
    held = num_experts / ranks
    touched = [1.0 - (1.0 - chance) ** tokens for chance in chances]
    active = num_experts / ZIPF_POINTS * sum(touched)
    loads = [tokens * c / xp.maximum(1e-12, t) for c, t in zip(chances, touched, strict=True)]
    average = experts_per_token / num_experts
    variation = (sum(c * c for c in chances) / ZIPF_POINTS / (average * average) - 1.0 + 1.0 / mean) ** 0.5
    factor = 1.0 + expected_maximum(xp, ranks) * variation / held**0.5
    factor = xp.maximum(1.0, xp.minimum(factor, xp.minimum(1.0 * ranks, tokens / mean)))
    return _slowest_rank(xp, held, mean, active / ranks, xp.where(ranks > 1, factor, 1.0), loads)


def _power_law(xp: Functions, alpha: float, tokens: Num, num_experts: Num, total: Num, ranks: Num) -> ExpertLoads:
    """Loads drawn from ``x ** -alpha`` between two bounds, scaled to ``total`` and rounded."""
    many = total > num_experts
    low = xp.where(many, 1.0, 0.01)
    high = xp.where(many, xp.maximum(1.05, LARGEST_SHARE * tokens), 2.0)
    rest = 1.0 - alpha
    bottom, top = low**rest, high**rest

    def moment(power: float) -> Num:
        return rest / (rest + power) * (high ** (rest + power) - low ** (rest + power)) / (top - bottom)

    first = moment(1.0)
    variation = xp.maximum(0.0, moment(2.0) / (first * first) - 1.0) ** 0.5
    mean = total / num_experts
    held = num_experts / ranks

    def quantile(u: Num) -> Num:
        value = ((top - bottom) * u + bottom) ** (1.0 / rest)
        return xp.minimum(1.0 * tokens, value * mean / first)

    points = [quantile((i + 0.5) / POWER_LAW_POINTS) for i in range(POWER_LAW_POINTS)]
    # A load below one half rounds to zero; the lost tokens go to the most popular experts, one each.
    present = [xp.minimum(1.0, xp.maximum(0.0, 2.0 * load - 0.5)) for load in points]
    counted = num_experts / POWER_LAW_POINTS * sum(present)
    rounded = num_experts / POWER_LAW_POINTS * sum(p * xp.maximum(1.0, x) for p, x in zip(present, points, strict=True))
    active = xp.minimum(xp.minimum(total, num_experts), xp.maximum(counted, total - rounded))
    # The loads are scaled by their sum; with few experts, the largest load dominates it.
    variation = variation / (1.0 + variation * variation / num_experts) ** 0.5
    by_spread = 1.0 + expected_maximum(xp, ranks) * variation / held**0.5
    by_one = (quantile(1.0 - 0.5 / num_experts) / mean + held - 1.0) / held
    factor = xp.where(ranks > 1, xp.maximum(by_spread, by_one), 1.0)
    factor = xp.maximum(1.0, xp.minimum(factor, xp.minimum(1.0 * ranks, tokens / mean)))
    share = active / num_experts
    loads = [
        xp.maximum(1.0, quantile(1.0 - share + share * (i + 0.5) / POWER_LAW_POINTS)) for i in range(POWER_LAW_POINTS)
    ]
    return _slowest_rank(xp, held, mean, active / ranks, factor, loads)


def _slowest_rank(xp: Functions, held: Num, mean: Num, active: Num, factor: Num, loads: list[Num]) -> ExpertLoads:
    """Loads of a rank with ``factor`` times the mean load: first more active experts, then more tokens per expert."""
    assignments = xp.maximum(1.0, mean * held * factor)
    present = xp.maximum(xp.minimum(1.0, held), xp.minimum(held, active * factor))
    present = xp.minimum(present, xp.maximum(1.0, assignments))
    scale = xp.maximum(1.0, assignments / present) * len(loads) / sum(loads)
    return ExpertLoads(present, assignments, tuple(xp.maximum(1.0, load * scale) for load in loads))


def slowest_rank_factor(
    xp: Functions, routing: Routing, tokens: Num, num_experts: Num, experts_per_token: Num, ranks: Num
) -> Num:
    """Load of the slowest rank relative to the mean, >= 1; collectives between the ranks wait for it.

    >>> from hwprofiles.formulas import SCALAR
    >>> [round(slowest_rank_factor(SCALAR, Routing("uniform"), n, 64, 8, 8), 2) for n in (16, 4096)]
    [1.31, 1.02]
    """
    loads = expert_loads(xp, routing, tokens, num_experts, experts_per_token, ranks)
    return xp.maximum(1.0, loads.assignments * ranks / (tokens * experts_per_token))


EVEN = Routing("uniform")


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
    dispatched: bool = False,
) -> KernelTime:
    """Time of one layer's routed feed-forward on the slowest chip, both projections.

    ``tokens`` is the token count of the whole expert-parallel group; a chip holds ``num_experts / expert_parallel``
    experts, and the result is the time of the most loaded chip. Weights of each active expert are read once; the tokens
    of each expert are padded to whole tiles (of the fastest shape), and few tiles reach less than the memory's
    bandwidth; activations are gathered and scattered around the products.

    >>> from hwprofiles.formulas import SCALAR
    >>> chip = Limits(peak_flops=480000.0, cores=1, bandwidth=1e6, on_chip_bytes=0, on_chip_bandwidth=1e12)
    >>> ideal = dict(compute_efficiency=1.0, memory_efficiency=1.0, on_chip_efficiency=1.0, scatter_efficiency=1.0)
    >>> kernel = MoeParameters.model_construct(launch_s=1.0, overlap=float("inf"), tiles=((1, 100),), **ideal)
    >>> time = moe_time(SCALAR, chip, kernel, 8, 4, 1, 100, 100, 1.0, 1.0, active_experts=4)
    >>> time.compute_s, time.bytes  # 2 * 8 * 100 * (2 * 100 + 100) / 480000; 4 * 100 * (2 * 100 + 100) + 2 * 8 * 100
    (1.0, 121600.0)
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
    edge = activation_bytes * xp.minimum(tokens, assignments) * hidden
    phases = ((first, hidden), (hidden, width))
    best, busy, stream = _fastest_tiles(xp, limits, parameters, reached, phases, weight_bytes, activation_bytes, edge)
    handled = assignments if parameters.local_only or dispatched else tokens * experts_per_token
    scattered = activation_bytes * handled * (2.0 * hidden + first + 2.0 * width)
    scatter = scattered / (limits.bandwidth * parameters.scatter_efficiency)
    launch = parameters.launch_s
    tiled = KernelTime(launch + scatter + best, launch, busy, stream + scatter, flops, moved)
    few = parameters.few_rows
    if few is None:
        return tiled
    vector = few_rows_time(xp, limits, few, active * matrix, assignments * matrix, moved, flops)
    return KernelTime(*(xp.where(tokens <= few.most_rows, a, b) for a, b in zip(vector, tiled, strict=True)))


def _fastest_tiles(
    xp: Functions,
    limits: Limits,
    parameters: MoeParameters,
    reached: ExpertLoads,
    phases: tuple[tuple[Num, Num], ...],
    weight_bytes: float,
    activation_bytes: float,
    edge: Num,
) -> tuple[Num, Num, Num]:
    """Seconds of the fastest tile shape, compute time without memory accesses, and memory time without arithmetic.

    ``phases`` are output and input features of each product; ``edge`` is the bytes of the activations that the first
    product reads and the second writes.
    """
    core_flops = limits.peak_flops * parameters.compute_efficiency / limits.cores
    core_on_chip = limits.on_chip_bandwidth * limits.multicast * parameters.on_chip_efficiency / limits.cores
    bandwidth = limits.bandwidth * parameters.memory_efficiency
    core_on_chip = core_on_chip * limits.on_chip_share
    drawn = bandwidth * parameters.core_bandwidth_ratio * limits.memory_share / limits.cores
    active = reached.active
    best: Num = None
    for rows, columns in parameters.tiles:
        arithmetic = 2.0 * rows * columns / core_flops
        operands = (activation_bytes * rows + weight_bytes * columns) / core_on_chip
        blocks = active * sum(xp.ceil(load / rows) for load in reached.loads) / len(reached.loads)
        steps: Num = 0.0
        reads: Num = 0.0
        fills: Num = 0.0
        read: Num = 0.0
        for outputs, depth in phases:
            items = blocks * xp.ceil(outputs / columns)
            waves = xp.maximum(1.0, items / limits.cores)
            steps = steps + waves * depth
            reads = reads + xp.maximum(1.0, items * limits.on_chip_share / limits.cores) * depth
            fills = fills + waves
            reach = xp.minimum(bandwidth, items * drawn) if drawn else bandwidth
            read = read + (weight_bytes * active * outputs * depth + edge) / reach
        choice = xp.maximum(steps * arithmetic, reads * operands) + fills * parameters.wave_s
        total = smooth_maximum(xp, choice, read, parameters.overlap)
        if best is None:
            best, busy, stream = total, choice, read
        else:
            better = total < best
            best, busy = xp.where(better, total, best), xp.where(better, choice, busy)
            stream = xp.where(better, read, stream)
    return best, busy, stream
