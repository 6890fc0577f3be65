"""Rows with equal values in some columns, found without sorting objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.intp]


def equal_rows(columns: Sequence[NDArray[np.integer | np.bool_]]) -> Iterator[IndexArray]:
    """Indices of the rows of each combination of values that occurs; nothing for empty columns."""
    rows = len(columns[0])
    if not rows:
        return
    key: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        _, key = np.unique(key * len(values) + inverse, return_inverse=True)
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    yield from np.split(order, bounds)
