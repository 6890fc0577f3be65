"""One source of formulas for single numbers and for arrays: the few functions in which the two differ."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Num = Any
"""A Python number or a numpy array; formulas are written once for both."""


class Functions(Protocol):
    """The functions a formula may use besides arithmetic operators."""

    maximum: Callable[[Num, Num], Num]
    minimum: Callable[[Num, Num], Num]
    ceil: Callable[[Num], Num]
    sqrt: Callable[[Num], Num]
    where: Callable[[Num, Num, Num], Num]


class _Scalar:
    """Plain floats: no numpy call, a fraction of a microsecond each."""

    maximum = staticmethod(max)
    minimum = staticmethod(min)
    ceil = staticmethod(math.ceil)
    sqrt = staticmethod(math.sqrt)

    @staticmethod
    def where(condition: Num, yes: Num, no: Num) -> Num:
        return yes if condition else no


class _Array:
    """Numpy arrays, elementwise."""

    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    ceil = staticmethod(np.ceil)
    sqrt = staticmethod(np.sqrt)
    where = staticmethod(np.where)


SCALAR: Functions = _Scalar()
ARRAY: Functions = _Array()


def functions_for(*values: Num) -> Functions:
    """Return the array functions when any value is a numpy array (or numpy scalar), else the scalar ones."""
    for value in values:
        if isinstance(value, np.ndarray | np.generic):
            return ARRAY
    return SCALAR


def smooth_maximum(xp: Functions, first: Num, second: Num, sharpness: Num) -> Num:
    """Return ``(first^p + second^p)^(1/p)``: near the larger where they differ, above it where they meet.

    Args:
        xp: scalar or array functions.
        first: a time in seconds, >= 0.
        second: another time in seconds, >= 0; not both zero.
        sharpness: p >= 1; 1 = no overlap at all (the sum), infinity = perfect overlap (the maximum).

    Returns:
        Seconds, never below the larger argument. Imperfect overlap of computation and data movement.
    """
    high = xp.maximum(first, second)
    low = xp.minimum(first, second)
    return high * (1.0 + (low / high) ** sharpness) ** (1.0 / sharpness)
