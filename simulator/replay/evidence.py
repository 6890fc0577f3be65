"""Evidence behind a fit: the range of shapes it has seen and the spread of its errors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from hwprofiles import KernelLibrary
from hwprofiles.choice import CALIBRATED, EXTRAPOLATED, UNKNOWN_INTERVAL, inside_ranges, unfitted_interval
from simulator.replay.predict import REGIMES, Prediction
from traces.kernels import OPS, KernelTable

Ranges = dict[str, tuple[float, float]]
Intervals = dict[str, tuple[float, float]]

COVERAGE = 0.90
MIN_REGIME_ROWS = 30
OUTSIDE = "outside"
"""Key of the interval of shapes outside the fitted range; ``all`` is that of every regime together."""


def seen_ranges(table: KernelTable) -> Ranges:
    """Smallest and largest value of every size of the operation of the rows: all of one family."""
    op = table.word("op").names[table.word("op").codes[0]]
    return {
        name: (float(table.size(name).min()), float(table.size(name).max()))
        for name in (*OPS[op].needed, *OPS[op].optional)
    }


def rows_inside(ranges: Mapping[str, tuple[float, float]], table: KernelTable) -> BoolArray:
    """Rows with every size inside its fitted range."""
    inside = inside_ranges(ranges, {name: table.size(name) for name in ranges})
    return np.broadcast_to(np.asarray(inside), len(table))


def conformal_intervals(ratio: FloatArray, regime: NDArray[np.int8], inside: BoolArray) -> Intervals:
    """Ends of the 90 % interval by regime, as factors on a prediction, from unseen rows. Rows that are not ``inside``
    the fitted range get an interval of their own.

    Source: Papadopoulos et al., "Inductive confidence machines for regression" (2002), doi:10.1007/3-540-36755-1_29
        (split conformal prediction), with two-sided quantiles of the ratio.
    """
    if not len(ratio):
        return {}
    core = ratio[inside] if inside.sum() >= MIN_REGIME_ROWS else ratio
    intervals = {"all": _interval(core)}
    for code, name in enumerate(REGIMES):
        part = ratio[inside & (regime == code)]
        if len(part) >= MIN_REGIME_ROWS:
            intervals[name] = _interval(part)
    outside = ratio[~inside]
    if len(outside) >= MIN_REGIME_ROWS:
        intervals[OUTSIDE] = _interval(outside)
    return intervals


def _interval(ratio: FloatArray) -> tuple[float, float]:
    tail = (1.0 - COVERAGE) / 2.0
    reach = min(1.0, (1.0 - tail) * (1.0 + 1.0 / len(ratio)))
    low, high = np.quantile(ratio, [1.0 - reach, reach])
    return float(f"{low:.4g}"), float(f"{high:.4g}")


def apply_evidence(table: KernelTable, prediction: Prediction, kernels: KernelLibrary, corrected: BoolArray) -> None:
    """Mark rows outside the fitted shapes as extrapolated, and give rows their 90 % interval. The correction's interval
    if it changed a row inside the fitted shapes, else the analytical model's."""
    from simulator.replay.fit import family_rows

    def put(rows: NDArray[np.intp], intervals: Mapping[str, tuple[float, float]], inside: BoolArray) -> None:
        if "all" in intervals:
            ends = interval_ends(intervals, prediction.regime[rows], inside)
            prediction.low[rows], prediction.high[rows] = ends

    known = np.isfinite(prediction.seconds)
    for (family, dtype), every_row in family_rows(table).items():
        rows = every_row[known[every_row]]
        if not len(rows):
            continue
        fit = kernels.parameters(family, dtype).fit
        if fit is None:
            put(rows, {"all": unfitted_interval(family)}, np.ones(len(rows), dtype=bool))
            continue
        inside = rows_inside(fit.ranges, table.where(rows))
        weaker = ~inside & (prediction.basis[rows] == CALIBRATED)
        prediction.basis[rows[weaker]] = EXTRAPOLATED
        put(rows, fit.intervals or {"all": unfitted_interval(family)}, inside)
        correction, moved = kernels.correction(family, dtype), corrected[rows] & inside
        if correction is not None:
            put(rows[moved], correction.intervals, inside[moved])
    others = np.flatnonzero(known & np.isnan(prediction.low))
    put(others, {"all": UNKNOWN_INTERVAL}, np.ones(len(others), dtype=bool))


def interval_ends(
    intervals: Mapping[str, tuple[float, float]], regime: NDArray[np.int8], inside: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Lower and upper factor of every row; a regime without its own interval uses that of ``all``."""
    by_regime = np.array([intervals.get(name, intervals["all"]) for name in REGIMES])
    outside = np.array(intervals.get(OUTSIDE, intervals["all"]))
    ends = np.where(inside[:, None], by_regime[regime], outside)
    return ends[:, 0], ends[:, 1]
