"""A small ensemble of symmetric regression trees: fitted and evaluated with numpy alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

TREES = 200
"""Most trees, for families of few rows; ``MORE_TREES`` where there are ``MANY_ROWS`` or more."""
MORE_TREES = 400
DEPTH = 6
"""Questions per tree; one more where there are many rows."""
MANY_ROWS = 15_000
RATE = 0.15
BINS = 48
SMOOTHING = 8.0
"""Rows of zero error that every leaf is averaged with."""
ROBUST = 0.15
"""Errors beyond this are pulled with constant strength (pseudo-Huber loss)."""


class Trees(NamedTuple):
    """An ensemble: every tree asks the same question of all its nodes on one level.

    ``feature[t, l]`` and ``threshold[t, l]`` are the question of level l of tree t (value > threshold adds bit l to the
    leaf's number), ``leaf[t, i]`` is what leaf i adds.
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def __call__(self, features: FloatArray) -> FloatArray:
        """Sum over the trees for each row of ``features`` (rows x features)."""
        total = np.zeros(len(features))
        values = features.astype(np.float32)
        for feature, threshold, leaf in zip(self.feature, self.threshold, self.leaf, strict=True):
            number = np.zeros(len(features), dtype=np.int16)
            for level, (column, limit) in enumerate(zip(feature, threshold, strict=True)):
                number |= (values[:, column] > limit).astype(np.int16) << level
            total += leaf[number]
        return total


def fit_trees(features: FloatArray, target: FloatArray, check: NDArray[np.bool_]) -> Trees:
    """Fit an ensemble by gradient boosting and keep as many trees as serve rows it was not fitted on.

    Args:
        features: rows x features.
        target: what the sum of the trees should be.
        check: rows left out of the fit that decide how many trees are kept.

    Source: Friedman, "Greedy function approximation: a gradient boosting machine" (2001), doi:10.1214/aos/1013203451;
        symmetric trees as in Prokhorenkova et al., "CatBoost" (2018), doi:10.48550/arXiv.1706.09516.
    """
    values = features.astype(np.float32)
    edges = [_edges(values[~check, column]) for column in range(values.shape[1])]
    binned = np.stack([np.searchsorted(edge, values[:, i], side="left") for i, edge in enumerate(edges)])
    fitted = ~check
    many = len(target) >= MANY_ROWS
    trees, depth = (MORE_TREES, DEPTH + 1) if many else (TREES, DEPTH)
    estimate = np.zeros(len(target))
    found: list[tuple[list[int], list[float], NDArray[np.float32]]] = []
    errors = []
    for _ in range(trees):
        gap = target - estimate
        gradient = gap / np.sqrt(1.0 + (gap / ROBUST) ** 2)
        columns, cuts, number = _grow(binned[:, fitted], gradient[fitted], [len(edge) for edge in edges], depth)
        sums = np.bincount(number, gradient[fitted], 1 << depth)
        counts = np.bincount(number, minlength=1 << depth)
        leaf = (RATE * sums / (counts + SMOOTHING)).astype(np.float32)
        everywhere = np.zeros(len(target), dtype=np.int64)
        for level, (column, cut) in enumerate(zip(columns, cuts, strict=True)):
            everywhere |= (binned[column] > cut).astype(np.int64) << level
        estimate += leaf[everywhere]
        found.append((columns, [_limit(edges[column], cut) for column, cut in zip(columns, cuts, strict=True)], leaf))
        errors.append(float(np.abs(target - estimate)[check].mean()) if check.any() else 0.0)
    kept = found[: int(np.argmin(errors)) + 1] if check.any() else found
    return Trees(
        np.array([tree[0] for tree in kept], dtype=np.int16),
        np.array([tree[1] for tree in kept], dtype=np.float32),
        np.stack([tree[2] for tree in kept]),
    )


def _limit(edges: NDArray[np.float32], cut: int) -> float:
    return float(edges[cut]) if len(edges) else float("inf")


def _edges(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cuts between the values that occur, at most ``BINS`` of them, evenly by rank."""
    distinct = np.unique(values)
    if len(distinct) > BINS:
        distinct = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)).astype(np.float32))
    return np.asarray((distinct[1:] + distinct[:-1]) / 2, dtype=np.float32)


def _grow(
    binned: NDArray[np.int64], gradient: FloatArray, cuts: list[int], depth: int
) -> tuple[list[int], list[int], NDArray[np.int64]]:
    """One symmetric tree: per level the question that lowers the squared error most, over all its nodes together."""
    number = np.zeros(len(gradient), dtype=np.int64)
    columns, chosen = [], []
    for level in range(depth):
        nodes = 1 << level
        best, question = -1.0, (0, 0)
        for column, count in enumerate(cuts):
            if not count:
                continue
            place = number * (count + 1) + binned[column]
            size = nodes * (count + 1)
            sums = np.bincount(place, gradient, size).reshape(nodes, count + 1).cumsum(axis=1)
            rows = np.bincount(place, minlength=size).reshape(nodes, count + 1).cumsum(axis=1)
            left, left_rows = sums[:, :-1], rows[:, :-1]
            right, right_rows = sums[:, -1:] - left, rows[:, -1:] - left_rows
            gain = (left**2 / (left_rows + SMOOTHING) + right**2 / (right_rows + SMOOTHING)).sum(axis=0)
            cut = int(np.argmax(gain))
            if gain[cut] > best:
                best, question = float(gain[cut]), (column, cut)
        columns.append(question[0])
        chosen.append(question[1])
        number |= (binned[question[0]] > question[1]).astype(np.int64) << level
    return columns, chosen, number
