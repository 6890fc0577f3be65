"""Learning corrections of kernel times: random hinge functions, with gains fitted to the measured times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from forerun.arrays import BoolArray, FloatArray
from hwprofiles import KernelLibrary, KernelTime
from hwprofiles.correction import (
    LARGEST,
    PARTS,
    SIZES,
    Correction,
    HingeBasis,
    feature_matrix,
    feature_names,
    hinge_values,
)
from hwprofiles.formulas import Num
from hwprofiles.parameters import FamilyParameters
from simulator.replay.fit import FitProblem, chip_with

MIN_ROWS = 600
"""Minimum rows to learn from; 380 and 400 rows predicted held-out shapes worse than physics. Measured on the delta
rule's scans under TensorRT-LLM."""
MAX_ROWS = 8_000
CHECK_SHARE = 0.15
ROUNDS = 14
"""Number of rounds; each draws new hinge functions and keeps the useful ones."""
DRAWN = 400
KEPT = 200
KEPT_OF_ATTENTION = 100
"""Rows kept of attention, the most requested family in tables and steps. Decoding: 200 take its mean error from 3.2 to
3.0 % only."""
ROWS_PER_HINGE = 16
"""Minimum number of rows per hinge function drawn or kept."""
QUANTILES = 64
"""Number of quantiles of a feature at which hinge functions start and end; one of ``WIDTHS`` is a function's width."""
WIDTHS = (1, 4, 8, 16, 32)
LEAST_WIDTH = 0.35
"""Width of a hinge function at a value that many rows share: half an octave."""
RIDGE = 1.0
"""Ridge penalty on every gain, as an equivalent number of rows."""
ROBUST = 0.05
"""Errors beyond this are pulled with constant strength (pseudo-Huber loss)."""

NO_HINGES = HingeBasis(
    np.zeros((0, PARTS), np.int16), np.zeros((0, PARTS)), np.zeros((0, PARTS)), np.zeros(0, np.bool_), np.zeros(0), 0.0,
    (0.0, 0.0),
)  # fmt: skip
NOTHING = Correction(NO_HINGES, {}, {})


class _Probe(KernelLibrary):
    """Physics-only kernel library that records the inputs of a correction."""

    inputs: tuple[KernelTime, dict[str, Num]]

    def _corrected(
        self, family: str, dtype: str, time: KernelTime, held: bool = False, moving: Any = None, **sizes: Num
    ) -> KernelTime:
        self.inputs = time, {**sizes, **(moving or {})}
        return time


def correction_inputs(problem: FitProblem, parameters: FamilyParameters) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Features of every row of a fit, and the size columns of corrections, as in pricing."""
    chip = chip_with(problem.chip, problem.family, problem.dtype, parameters)
    probe = _Probe(chip, "fit")
    probe.corrections = {("fit", problem.family, problem.dtype): NOTHING}
    sizes = {name: np.empty(len(problem)) for name in SIZES[problem.family]}
    matrix = np.empty((len(feature_names(problem.family)), len(problem)))
    for rows, call in problem.parts:
        call(probe)
        time, by_name = probe.inputs
        features = feature_matrix(problem.family, by_name, time, float(chip.compute.usable_cores))
        matrix[:, rows] = features
        for name, values in sizes.items():
            values[rows] = by_name[name]
    return matrix, sizes


def learn(
    matrix: FloatArray,
    sizes: dict[str, FloatArray],
    target: FloatArray,
    training: BoolArray,
    seed: int = 0,
    kept: int = KEPT,
) -> Correction | None:
    """Learn the correction of one parameter set; None when there are too few rows or it does not help.

    ``matrix`` and ``sizes`` come from ``correction_inputs``, ``target`` is log(measured / predicted seconds), and at
    most ``kept`` hinge functions are kept.
    """
    chosen = np.flatnonzero(training)
    if len(chosen) < MIN_ROWS:
        return None
    generator = np.random.default_rng(seed)
    if len(chosen) > MAX_ROWS:
        chosen = np.sort(generator.choice(chosen, MAX_ROWS, replace=False))
    physics = matrix[0, chosen]
    target = np.clip(target[chosen], -LARGEST, LARGEST)
    check = generator.random(len(chosen)) < CHECK_SHARE
    own = matrix[:, chosen]
    hinges = fit_hinges(own[:, ~check], (target + physics)[~check], generator, kept)
    if np.abs(target + physics - hinges(own))[check].mean() >= np.abs(target)[check].mean():
        return None
    ranges = {name: (float(values[chosen].min()), float(values[chosen].max())) for name, values in sizes.items()}
    return Correction(hinges, {name: pair for name, pair in ranges.items() if name not in ("kept", "seen")}, {})


def fit_hinges(
    features: FloatArray, target: FloatArray, generator: np.random.Generator, most: int = KEPT
) -> HingeBasis:
    """Draw hinge functions in rounds, solve for their gains, and keep at most ``most`` useful ones.

    ``features`` are features x rows, the log of analytical seconds first; ``target`` is the log of measured seconds.
    """
    places = np.quantile(features, np.linspace(0.0, 1.0, QUANTILES + 1), axis=1).T
    hinges = HingeBasis(*_physics(places[0]), np.zeros(0), 0.0, (float(places[0, 0]), float(places[0, -1])))
    weights = np.ones(len(target))
    for _ in range(ROUNDS):
        drawn = _draw(places, generator, min(DRAWN, len(target) // ROWS_PER_HINGE))
        pairs: Any = zip(hinges[:4], drawn, strict=True)
        parts = [np.concatenate(pair) for pair in pairs]
        values = hinge_values(features, *parts)
        gain, _ = _gains(values, target, weights)
        worth = gain * values.std(axis=1)
        kept = np.sort(np.argsort(-worth)[: min(most, len(target) // ROWS_PER_HINGE, int((worth > 0).sum()))])
        gain, base = _gains(values[kept], target, weights)
        weights = 1.0 / np.sqrt(1.0 + ((target - base - gain @ values[kept]) / ROBUST) ** 2)
        feature, low, high, greatest = (part[kept] for part in parts)
        hinges = HingeBasis(feature, low, high, greatest, gain, base, hinges.ends)
    return hinges


def _physics(places: FloatArray) -> tuple[NDArray[np.int16], FloatArray, FloatArray, BoolArray]:
    """HingeBasis that follow physics: one after the other over its log seconds."""
    ends = np.unique(places[::2])
    count = len(ends) - 1
    low, high = (np.repeat(part[:, None], PARTS, axis=1) for part in (ends[:-1], ends[1:]))
    return np.zeros((count, PARTS), np.int16), low, high, np.zeros(count, np.bool_)


def _draw(
    places: FloatArray, generator: np.random.Generator, count: int
) -> tuple[NDArray[np.int16], FloatArray, FloatArray, BoolArray]:
    """``count`` random hinge functions of one to ``PARTS`` features; a third of them include the analytical time."""
    feature = generator.integers(0, len(places), (count, PARTS))
    feature[: count // 3, 0] = 0
    width = generator.choice(WIDTHS, (count, PARTS))
    start = generator.integers(0, QUANTILES + 1 - width)
    low, high = places[feature, start], places[feature, start + width]
    high = np.where(high <= low, low + LEAST_WIDTH, high)
    for part in range(1, PARTS):  # fewer different features: the first again
        same = generator.random(count) < 1.0 / PARTS
        for values in (feature, low, high):
            values[same, part] = values[same, 0]
    return feature.astype(np.int16), low, high, generator.random(count) < 0.5


def _gains(values: FloatArray, target: FloatArray, weights: FloatArray) -> tuple[FloatArray, float]:
    """Gains of zero or more and the base that meet ``target`` best, every row squared by its weight."""
    total = weights.sum()
    mean, middle = values @ weights / total, float(target @ weights / total)
    centred = (values - mean[:, None]) * np.sqrt(weights)
    gram = centred @ centred.T
    gram[np.diag_indices_from(gram)] += RIDGE
    upper = np.linalg.cholesky(gram).T
    gain, _ = nnls(upper, np.linalg.solve(upper.T, centred @ ((target - middle) * np.sqrt(weights))))
    return gain, middle - float(mean @ gain)
