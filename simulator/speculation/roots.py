"""The root of a function, without ``scipy.optimize``, whose import takes longer than most runs."""

from __future__ import annotations

from collections.abc import Callable

RTOL = 4 * 2.0**-52


def root(function: Callable[[float], float], low: float, high: float, xtol: float = 2e-12) -> float:
    """A root between ``low`` and ``high``, at which the function has different signs.

    The same steps as ``scipy.optimize.brentq``, and so the same digits.

    Args:
        function: continuous.
        low, high: ends of the bracket.
        xtol: largest error, beside ``RTOL`` of the root.

    Source: R. P. Brent, "Algorithms for Minimization without Derivatives" (1973), chapter 4.

    >>> round(root(lambda x: x * x - 2.0, 0.0, 2.0), 10)
    1.4142135624
    """
    before, here, other = low, high, low
    f_before, f_here = function(before), function(here)
    f_other, last_step, step = f_before, here - before, here - before
    if f_before == 0.0:
        return before
    if f_here != 0.0 and (f_before > 0.0) == (f_here > 0.0):
        raise ValueError(f"the function has one sign at {low:g} and {high:g}")
    while True:
        if f_before != 0.0 and f_here != 0.0 and (f_before > 0.0) != (f_here > 0.0):
            other, f_other, last_step = before, f_before, here - before
            step = last_step
        if abs(f_other) < abs(f_here):
            before, here, other = here, other, here
            f_before, f_here, f_other = f_here, f_other, f_here
        close, half = (xtol + RTOL * abs(here)) / 2, (other - here) / 2
        if f_here == 0.0 or abs(half) < close:
            return here
        tried = 2 * abs(half) + 1.0  # bisect
        if abs(last_step) > close and abs(f_here) < abs(f_before):
            if before == other:
                tried = -f_here * (here - before) / (f_here - f_before)
            else:
                slope, slope_other = (f_before - f_here) / (before - here), (f_other - f_here) / (other - here)
                divisor = slope_other * slope * (f_other - f_before)
                tried = -f_here * (f_other * slope_other - f_before * slope) / divisor if divisor else tried
        good = 2 * abs(tried) < min(abs(last_step), 3 * abs(half) - close)
        last_step, step = (step, tried) if good else (half, half)
        before, f_before = here, f_here
        here += step if abs(step) > close else close if half > 0 else -close
        f_here = function(here)
