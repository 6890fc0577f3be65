"""Closed forms of speculative decoding: tokens per verify step, gain in time, break-even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import expm1, log

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError


def expected_tokens(alpha: float, num_speculative_tokens: int) -> float:
    """Mean tokens of one verify step, the bonus token included: ``(1 - a^(g+1)) / (1 - a)``.

    Args:
        alpha: probability that a draft token is accepted, in [0, 1].
        num_speculative_tokens: draft tokens g per step, >= 0.

    Source: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1.
    """
    if alpha == 1.0:
        return num_speculative_tokens + 1.0
    if alpha == 0.0:
        return 1.0
    # 1 - a^(g+1) without the cancellation near a = 1.
    return -expm1((num_speculative_tokens + 1) * log(alpha)) / (1.0 - alpha)


def expected_length(conditional: Sequence[float] | FloatArray) -> float:
    """Mean tokens of one verify step, bonus token included, for any conditional rates: ``1 + sum_i prod_(j<=i) c_j``.

    Args:
        conditional: probability that position i is accepted if all earlier positions were, in [0, 1].

    With equal rates this is ``expected_tokens``.
    """
    return float(1.0 + np.cumprod(np.asarray(conditional, dtype=np.float64)).sum())


def chain_speedup(alpha: float, num_speculative_tokens: int, cost_ratio: float) -> float:
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
    check_length(acceptance_length, num_speculative_tokens)
    return rising_root(lambda alpha: expected_tokens(alpha, num_speculative_tokens) - acceptance_length, 0.0, 1.0)


def rising_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Zero of a rising function, by bisection to 1e-15 of the range. The nearer end if there is no zero in between.

    SciPy's solvers need fewer steps, but their import takes longer than a run.
    """
    if function(low) >= 0.0:
        return low
    if function(high) <= 0.0:
        return high
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) < 0.0 else (low, middle)
    return 0.5 * (low + high)


def check_length(acceptance_length: float, num_speculative_tokens: int) -> None:
    """Refuse an acceptance length (bonus token included) that no verify step of this chain yields."""
    longest = num_speculative_tokens + 1
    if num_speculative_tokens < 1 or not 1.0 <= acceptance_length <= longest:
        raise ForerunError(
            f"acceptance_length {acceptance_length:g} is impossible with {num_speculative_tokens} draft tokens: "
            f"it counts the bonus token and lies between 1 and {longest}"
        )


def time_ratio(
    acceptance_length: float, num_speculative_tokens: int, draft_s: float, verify_s: float, target_s: float
) -> float:
    """Time per token with speculation over that without: ``(g T_D + T_V) / (E T_T)``; below 1 is a gain.

    Args:
        acceptance_length: tokens per verify step, E (Omega in the paper), bonus token included.
        num_speculative_tokens: sequential draft passes g per step.
        draft_s: seconds of one draft pass, T_D.
        verify_s: seconds of one verify step over g + 1 tokens, T_V(g).
        target_s: seconds of one plain decode step, T_T.

    With T_V = T_T and equal acceptance it is the inverse of Leviathan's ``speedup`` with c = T_D / T_T.

    Source: MagicDec (Chen et al. 2024, arXiv:2408.11049), section 3: ``T_SD / T_T``.
    """
    return (num_speculative_tokens * draft_s + verify_s) / (acceptance_length * target_s)


def break_even_length(num_speculative_tokens: int, draft_s: float, verify_s: float, target_s: float) -> float:
    """Acceptance length (bonus token included) at which speculation neither gains nor loses time.

    Above ``num_speculative_tokens + 1`` no drafter can make it pay. Arguments as ``time_ratio``.
    """
    return (num_speculative_tokens * draft_s + verify_s) / target_s
