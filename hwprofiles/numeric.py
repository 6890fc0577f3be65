"""One source of formulas for single numbers and for arrays: the few functions in which the two differ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Num = Any
"""A Python number or a numpy array; formulas are written once for both."""


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions a formula may use besides arithmetic operators."""

    maximum: Callable[[Num, Num], Num]
    minimum: Callable[[Num, Num], Num]
    ceil: Callable[[Num], Num]
    where: Callable[[Num, Num, Num], Num]
    log2: Callable[[Num], Num]


def _choose(condition: Num, yes: Num, no: Num) -> Num:
    return yes if condition else no


SCALAR = Functions(maximum=max, minimum=min, ceil=math.ceil, where=_choose, log2=math.log2)
"""Plain numbers: no numpy call, a fraction of a microsecond each."""

ARRAY = Functions(maximum=np.maximum, minimum=np.minimum, ceil=np.ceil, where=np.where, log2=np.log2)
"""Numpy arrays, elementwise."""


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
