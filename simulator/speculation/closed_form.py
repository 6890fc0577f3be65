"""Closed forms of speculative decoding with independent, equally likely acceptance of every draft token."""

from __future__ import annotations

from simulator.errors import ForerunError


def expected_tokens(alpha: float, num_speculative_tokens: int) -> float:
    """Mean tokens of one verify step, the bonus token included: ``(1 - a^(g+1)) / (1 - a)``.

    Args:
        alpha: chance that a draft token is accepted, in [0, 1].
        num_speculative_tokens: draft tokens g per step, >= 0.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1.
    """
    if alpha == 1.0:
        return num_speculative_tokens + 1.0
    return float((1.0 - alpha ** (num_speculative_tokens + 1)) / (1.0 - alpha))


def speedup(alpha: float, num_speculative_tokens: int, cost_ratio: float) -> float:
    """Wall-time gain of speculation: ``E / (g c + 1)``.

    Args:
        alpha: chance that a draft token is accepted.
        num_speculative_tokens: draft tokens g per step.
        cost_ratio: time of one draft pass over time of one target step, c.

    Source: Leviathan et al. 2023, theorem 3.8.
    """
    return expected_tokens(alpha, num_speculative_tokens) / (num_speculative_tokens * cost_ratio + 1.0)


def iid_alpha(acceptance_length: float, num_speculative_tokens: int) -> float:
    """The alpha at which ``expected_tokens`` equals a measured acceptance length (bonus token included).

    Raises:
        ForerunError: the length is outside [1, g + 1], which no verify step can yield.
    """
    longest = num_speculative_tokens + 1
    if not 1.0 <= acceptance_length <= longest:
        raise ForerunError(
            f"acceptance_length {acceptance_length:g} is impossible with {num_speculative_tokens} draft tokens: "
            f"it counts the bonus token and lies between 1 and {longest}"
        )
    if acceptance_length == longest:
        return 1.0
    from scipy.optimize import brentq  # a slow import that most runs do without

    return float(brentq(lambda a: expected_tokens(a, num_speculative_tokens) - acceptance_length, 0.0, 1.0 - 1e-12))
