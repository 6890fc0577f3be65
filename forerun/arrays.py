"""Types of numpy arrays by element type."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Array: TypeAlias = NDArray[Any]
"""An array of any type of numbers or texts."""
