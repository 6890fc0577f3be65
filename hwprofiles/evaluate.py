"""Calls of one formula on numbers or on arrays: sizes are checked, and work of size zero takes no time."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hwprofiles.errors import ProfileError
from hwprofiles.numeric import ARRAY, SCALAR, Num
from hwprofiles.results import CollectiveTime, KernelTime

T = TypeVar("T", KernelTime, CollectiveTime)
PLAIN = (int, float)
"""Classes of a single size; all others are arrays, or numbers of numpy."""


def all_plain(first: Num, second: Num, third: Num) -> bool:
    """Whether three sizes are plain numbers."""
    return first.__class__ in PLAIN and second.__class__ in PLAIN and third.__class__ in PLAIN


def evaluate(values: tuple[Num, ...], formula: Callable[..., T]) -> T:
    """Call a formula on numbers or on arrays broadcast together; where the product of all sizes is zero, so is the
    time."""
    if not any(isinstance(value, np.ndarray) for value in values):
        numbers = tuple(value.item() if isinstance(value, np.generic) else value for value in values)
        if not all(number >= 0 for number in numbers):
            raise ProfileError(f"kernel sizes must be numbers >= 0, got {numbers}")
        if not all(numbers):
            result = formula(SCALAR, *(number or 1 for number in numbers))
            return type(result)(*(0.0 for _ in result))
        return formula(SCALAR, *numbers)
    arrays = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))
    work = np.ones(arrays[0].shape, dtype=bool)
    for array in arrays:
        if not np.all(array >= 0):
            raise ProfileError(f"kernel sizes must be numbers >= 0, got {array[~(array >= 0)].flat[0]}")
        work &= array > 0
    result = formula(ARRAY, *(np.where(array > 0, array, 1.0) for array in arrays))
    return type(result)(*(np.where(work, part, 0.0) for part in result))
