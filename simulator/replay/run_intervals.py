"""How wide a prediction of a served run must be: 90 % intervals from the errors on other configurations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from traces.servings import METRICS, MeasuredRun

FloatArray = NDArray[np.float64]
Interval = tuple[float, float]

COVERAGE = 0.90
LEAST_CONFIGURATIONS = 9
"""Fewest other configurations that say how far off a prediction may be."""


def run_intervals(runs: Sequence[MeasuredRun], predicted: Sequence[dict[str, float]]) -> list[dict[str, Interval]]:
    """90 % intervals of every run and metric, in the metric's unit; absent where too few configurations tell.

    What a simulation gets wrong about a configuration (model, chip, engine, lengths) it gets wrong at every load of it:
    such errors are shared, and the runs of one configuration are no independent evidence about each other. So a run's
    interval comes from the ratios of measured to predicted of all other configurations, each of which counts once.

    Args:
        runs: measured.
        predicted: what was predicted for each of them.

    Source: split conformal prediction (Papadopoulos et al. 2002, doi:10.1007/3-540-36755-1_29) with groups held out
        whole (Dunn, Wasserman, Ramdas, "Distribution-free prediction sets for two-layer hierarchical models", 2022,
        doi:10.1080/01621459.2022.2060112).
    """
    known = {configuration: place for place, configuration in enumerate(dict.fromkeys(r.configuration for r in runs))}
    groups = np.array([known[run.configuration] for run in runs], dtype=np.int64)
    found: list[dict[str, Interval]] = [{} for _ in runs]
    for metric in METRICS:
        rows = [i for i, run in enumerate(runs) if run.measured.get(metric, 0) > 0 and predicted[i].get(metric, 0) > 0]
        ratios = np.array([runs[i].measured[metric] / predicted[i][metric] for i in rows])
        own: NDArray[np.int64] = groups[np.array(rows, dtype=np.int64)]
        for group in np.unique(own):
            others = own != group
            count = len(np.unique(own[others]))
            if count < LEAST_CONFIGURATIONS:
                continue
            low, high = _ends(ratios[others], own[others], count)
            for row in np.array(rows)[~others].tolist():
                value = predicted[int(row)][metric]
                found[row][metric] = (float(low * value), float(high * value))
    return found


def _ends(ratios: FloatArray, groups: NDArray[np.int64], count: int) -> Interval:
    """Ends of the interval of a ratio in a new group, where every group weighs the same."""
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(ratios, kind="stable")
    share = np.cumsum((1.0 / (sizes[place] * count))[order])
    tail = (1.0 - COVERAGE) / 2.0 * (count + 1) / count - 1.0 / count
    low = np.searchsorted(share, max(0.0, tail), side="left")
    high = np.searchsorted(share, min(1.0, 1.0 - tail) - 1e-12, side="left")
    values = ratios[order]
    return float(values[min(int(low), len(values) - 1)]), float(values[min(int(high), len(values) - 1)])


def coverage90(metric: str, runs: Sequence[MeasuredRun], intervals: Sequence[dict[str, Interval]]) -> float | None:
    """Share of the runs whose measurement lies in its interval, percent; None where no run has one."""
    inside = [
        interval[metric][0] <= run.measured[metric] <= interval[metric][1]
        for run, interval in zip(runs, intervals, strict=True)
        if metric in interval
    ]
    return 100.0 * sum(inside) / len(inside) if inside else None
