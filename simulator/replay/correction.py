"""Learning corrections of kernel times: gradient boosting of symmetric trees on what physics leaves over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwprofiles import KernelLibrary, KernelTime
from hwprofiles.correction import LARGEST, SIZES, Correction, Trees, feature_matrix
from hwprofiles.formulas import Num
from hwprofiles.parameters import FamilyParameters
from simulator.replay.fit import FitProblem, chip_with

FloatArray = NDArray[np.float64]

MIN_ROWS = 300
MAX_ROWS = 20_000
CHECK_SHARE = 0.15
TREES = 200
"""Most trees, for families of few rows; ``MORE_TREES`` where there are ``MANY_ROWS`` or more."""
MORE_TREES = 400
DEPTH = 6
"""Questions per tree; one more where there are many rows."""
MANY_ROWS = 8_000
RATE = 0.15
BINS = 48
SMOOTHING = 8.0
"""Rows of zero error that every leaf is averaged with."""
ROBUST = 0.15
"""Errors beyond this are pulled with constant strength (pseudo-Huber loss)."""


NOTHING = Correction(Trees(np.zeros(0, np.int16), np.zeros(0, np.float32), np.zeros(0, np.float32)), {}, {})


class _Probe(KernelLibrary):
    """Kernels of physics that keep what a correction would be asked with."""

    asked: tuple[KernelTime, dict[str, Num]]

    def _corrected(self, family: str, dtype: str, time: KernelTime, held: bool = False, **sizes: Num) -> KernelTime:
        self.asked = time, sizes
        return time


def correction_inputs(problem: FitProblem, parameters: FamilyParameters) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Features of every row of a fit, and the sizes that corrections know them by, as prices will be asked with."""
    chip = chip_with(problem.chip, problem.family, problem.dtype, parameters)
    probe = _Probe(chip, "fit")
    probe.corrections = {("fit", problem.family, problem.dtype): NOTHING}
    sizes = {name: np.empty(len(problem)) for name in SIZES[problem.family]}
    matrix: FloatArray = np.empty(0)
    for rows, call in problem.parts:
        call(probe)
        time, asked = probe.asked
        found = feature_matrix(problem.family, asked, time, float(chip.compute.usable_cores))
        matrix = np.empty((len(problem), found.shape[1])) if not matrix.size else matrix
        matrix[rows] = found
        for name, values in sizes.items():
            values[rows] = asked[name]
    return matrix, sizes


def learn(
    matrix: FloatArray, sizes: dict[str, FloatArray], target: FloatArray, training: NDArray[np.bool_], seed: int = 0
) -> Correction | None:
    """Learn the correction of one parameter set; None when there are too few rows or it does not help.

    Args:
        matrix: features of every row.
        sizes: of every row, by the names of ``SIZES``.
        target: logarithm of measured over predicted seconds.
        training: rows it may see.
        seed: of the sub-sampling and of the rows that decide how many trees are kept.
    """
    chosen = np.flatnonzero(training)
    if len(chosen) < MIN_ROWS:
        return None
    generator = np.random.default_rng(seed)
    if len(chosen) > MAX_ROWS:
        chosen = np.sort(generator.choice(chosen, MAX_ROWS, replace=False))
    target = np.clip(target[chosen], -LARGEST, LARGEST)
    check = generator.random(len(chosen)) < CHECK_SHARE
    trees = fit_trees(matrix[chosen], target, check)
    if np.abs(target - trees(matrix[chosen]))[check].mean() >= np.abs(target)[check].mean():
        return None
    ranges = {name: (float(values[chosen].min()), float(values[chosen].max())) for name, values in sizes.items()}
    return Correction(trees, {name: pair for name, pair in ranges.items() if name not in ("kept", "seen")}, {})


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
