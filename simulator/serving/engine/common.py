"""Base of all parts of the engine: Cython's types, ends of ranges, and simulated time."""

from __future__ import annotations

try:
    import cython
except ImportError:  # nothing is compiled here; the names only say types
    from simulator.serving import plain as cython
if cython.compiled:
    from cython.cimports.libc.math import ceil, exp, floor, isnan, log, log2, pow, sqrt
else:
    from math import ceil, exp, floor, isnan, log, log2, pow, sqrt  # noqa: F401

SOURCE = "interpreted"
"""The compiled module holds the checksum of this file in its place."""
MANY = cython.declare(cython.longlong, 1 << 62)
GOLDEN = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: products with it spread over all bits."""
ALL_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)

TICKS_PER_S = cython.declare(cython.double, 2.0**40)
EXACT_S = cython.declare(cython.double, 2.0**13)
TO_WHOLE = cython.declare(cython.double, 1.5 * 2.0**52)
"""Constant whose addition and subtraction rounds a double below 2^51, half to even, as ``round`` does."""
NAN = cython.declare(cython.double, float("nan"))
INFINITE = cython.declare(cython.double, float("inf"))


@cython.exceptval(-1, check=True)
@cython.cfunc
def _on_grid(seconds: cython.double) -> cython.double:
    """A step's seconds in whole ticks of simulated time; see ``simulator.serving.clock``."""
    ticks: cython.double = seconds * TICKS_PER_S
    if ticks < 2.0**51:
        return (ticks + TO_WHOLE - TO_WHOLE) / TICKS_PER_S
    return round(ticks) / TICKS_PER_S


@cython.exceptval(-1, check=True)
@cython.cfunc
def _by_clock(now: cython.double, seconds: cython.double) -> cython.double:
    """A step's seconds as simulated time counts them; see ``simulator.serving.clock``."""
    end: cython.double = now + seconds
    return seconds if end <= EXACT_S else end - now
