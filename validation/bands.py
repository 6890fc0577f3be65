"""Ends of the bands around served figures: conformal quantiles of measured over predicted, by stratum.

Each measured run is simulated with the band of its kernels, host work and chance alone. What must be added to that band
on either side for the measurement to lie inside is the run's score; the 95 % quantile of the scores of a stratum, every
table counted alike, is the end that ships. Leaving whole tables out tells how well that holds for the next one.

Source: Papadopoulos et al., "Inductive confidence machines for regression" (2002), doi:10.1007/3-540-36755-1_29;
    Tibshirani et al., "Conformal prediction under covariate shift" (2019), arXiv:1904.06019, for weights.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.workers import Workers
from hwprofiles import ProfileError
from simulator.replay.rerun import rerun
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.served import ALL, KINDS, Stratum, figure_kind, without_served
from simulator.running.metrics.uncertainty import LEVEL, intervals_of
from traces import TraceError
from traces.benchmark_results import MeasuredRun
from validation.coverage import chosen_runs, measured_tables
from validation.requests import base_scenario, scored_metrics

LEAST_RUNS, LEAST_TABLES = 30, 3
"""Runs and tables that a stratum needs to have ends of its own; smaller ones take those of the stratum above them."""
WHOLE_TABLE = 10
"""Runs from which a table counts as much as any other; smaller ones count in proportion."""
END, MIDDLE = (1 + LEVEL) / 2, 0.75
"""Share of the runs below the upper end of a band, and of their middle half."""
STRATA_HEAD = """\
# How measured runs came out, by stratum (simulator/running/metrics/served.py). `python -m validation bands --data DIR
# --write` writes this file anew; docs/validation/notes.md has how its ends came about. Ends: factors on a prediction
# beside the band of its kernels, host work and chance: of nine in ten runs, and of the middle half; half: quartiles of
# measured over predicted.
strata:
"""


class ServedFigure(NamedTuple):
    """One figure of a measured run against the band of kernels, host work and chance."""

    table: str
    kind: str
    layers: str
    build: str
    load: str
    chip: str
    ratio: float
    """Measured over predicted."""
    low: float
    high: float
    """Ends of the band over the prediction."""

    @property
    def names(self) -> list[str]:
        """Strata that the run is part of."""
        return Stratum(self.layers, self.build, self.load, self.chip).wider

    @property
    def scores(self) -> tuple[float, float]:
        """Logarithms of what the ends of the band lack, below and above."""
        off = log(self.ratio)
        end = log(self.low) if off < 0 else log(self.high)
        lacks = sqrt(max(0.0, off * off - end * end))
        return (lacks, 0.0) if off < 0 else (0.0, lacks)

    def inside(self, ends: tuple[float, float]) -> bool:
        """Whether the measurement lies in the band that the ends of its stratum widen."""
        below, above = self.scores
        return below <= -log(ends[0]) + 1e-12 and above <= log(ends[1]) + 1e-12


def served_figures(
    data: Path, limit: int, jobs: int, progress: Callable[[int, int], None] | None = None
) -> list[ServedFigure]:
    """Figures of at most ``limit`` measured runs of each table below a folder."""
    figures: list[ServedFigure] = []
    paths = measured_tables(data)
    with Workers(jobs if jobs > 1 else 0) as workers:
        pending = [(path, workers.start(figures_of, run, path.name.split(".")[0]))
                   for path in paths for run in chosen_runs(path, limit)]  # fmt: skip
        for done, (_, result) in enumerate(pending, 1):
            figures += result()
            if progress is not None:
                progress(done, len(pending))
    return figures


def figures_of(run: MeasuredRun, table: str) -> list[ServedFigure]:
    """Figures of one run; none where it cannot be simulated."""
    try:
        again = rerun(run, base_scenario(), intervals=True)
    except (ForerunError, ProfileError, TraceError):
        return []
    error, predicted = again["model_error"], again["predicted"]
    ends = intervals_of(predicted, without_served(error), error["sampling"])
    return [
        ServedFigure(
            table, kind, **error["stratum"], ratio=run.measured[metric] / value, low=low / value, high=high / value
        )
        for metric in scored_metrics([run])
        if (kind := figure_kind(metric)) is not None
        and (kind != "throughput" or run.process == "closed-loop" or error["stratum"]["load"] == "near")
        and (value := predicted.get(metric, 0.0)) > 0
        and metric in ends
        for low, high in [ends[metric]]
    ]


def strata(figures: Sequence[ServedFigure]) -> dict[str, dict[str, dict[str, Any]]]:
    """What ``strata.yaml`` holds of every stratum, by kind of figure with enough runs: runs, tables, ends of factors,
    and quartiles of measured over predicted."""
    rows: dict[tuple[str, str], list[ServedFigure]] = defaultdict(list)
    for figure in figures:
        for name in figure.names:
            rows[name, figure.kind].append(figure)
    known: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for name, kind in sorted(rows):
        own = rows[name, kind]
        tables = len({figure.table for figure in own})
        if name == ALL or (len(own) >= LEAST_RUNS and tables >= LEAST_TABLES):
            known[name][kind] = {
                "runs": len(own),
                "tables": tables,
                "ends": [_outward(end) for end in conformal_ends(own, END)],
                "middle": [_rounded(end) for end in conformal_ends(own, MIDDLE)],
                "half": [_rounded(value) for value in np.quantile([figure.ratio for figure in own], [0.25, 0.75])],
            }
    return dict(known)


def conformal_ends(figures: Sequence[ServedFigure], share: float = END) -> tuple[float, float]:
    """Factors at both ends: quantiles of the scores, tables counted alike, and one run more that lies outside."""
    runs = Counter(figure.table for figure in figures)
    weights = np.array([1 / max(WHOLE_TABLE, runs[figure.table]) for figure in figures])
    weights /= weights.sum() * (1 + 1 / len(figures))
    below, above = np.array([figure.scores for figure in figures]).T
    return exp(-_quantile(below, weights, share)), exp(_quantile(above, weights, share))


def _quantile(scores: FloatArray, weights: FloatArray, share: float) -> float:
    order = np.argsort(scores)
    place = int(np.searchsorted(np.cumsum(weights[order]), share))
    return float(scores[order[min(place, len(order) - 1)]])


def _outward(end: float) -> float:
    return _rounded(end * (1.005 if end > 1 else 0.995 if end < 1 else 1.0))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def ends_for(figure: ServedFigure, known: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """Ends of the narrowest stratum of a figure that has some."""
    kind = figure.kind
    low, high = next(known[name][kind]["ends"] for name in figure.names if kind in known.get(name, {}))
    return low, high


def coverage_of_tables(figures: Sequence[ServedFigure]) -> Table:
    """By table and kind of figure: share inside with the ends of all tables and with those of the other tables alone,
    and the median width of the latter, its upper end over its lower."""
    shipped, lines = strata(figures), list[list[Value]]()
    for table in [*sorted({figure.table for figure in figures}), ALL]:
        for kind in KINDS:
            own = [figure for figure in figures if figure.kind == kind and table in (figure.table, ALL)]
            if own:
                others = {t: without_table(tuple(figures), t) for t in {figure.table for figure in own}}
                ends = [ends_for(figure, others[figure.table]) for figure in own]
                inside = float(np.mean([figure.inside(ends_for(figure, shipped)) for figure in own]))
                held = float(np.mean([figure.inside(end) for figure, end in zip(own, ends, strict=True)]))
                widths = [
                    exp(hypot(log(figure.high), log(high)) + hypot(log(figure.low), log(low)))
                    for figure, (low, high) in zip(own, ends, strict=True)
                ]
                lines.append([table, kind, len(own), f"{inside:.0%}", f"{held:.0%}", f"{np.median(widths):.2f}x"])
    columns = ("table", "figure", "n", "inside", "inside, table left out", "width (median)")
    return Table("Measured runs inside their 90 % bands", columns, lines, name="coverage")


def bands_page(figures: Sequence[ServedFigure], version: str) -> str:
    """``docs/validation/bands.md``."""
    return (
        "# Which measurements lie inside the intervals?\n\n"
        f"Written by `python -m validation bands` of Forerun {version}; how the ends that ship came about is in the "
        "[notes](notes.md). Runs of both sides of every split. *Inside*: with the ends that ship, for which all tables "
        "were used; *table left out*: with ends that have not seen the row's table. The width is the upper end over "
        "the lower.\n\n"
        f"{coverage_of_tables(figures).markdown()}\n"
    )


@cache
def without_table(figures: tuple[ServedFigure, ...], table: str) -> dict[str, dict[str, Any]]:
    """Strata of the figures of all tables but one."""
    return strata([figure for figure in figures if figure.table != table])


def strata_text(figures: Sequence[ServedFigure]) -> str:
    """Content of ``strata.yaml``."""
    lines = []
    for name, kinds in strata(figures).items():
        lines.append(f"  {name}:")
        lines += [f"    {kind}: {json.dumps(entry)}".replace('"', "") for kind, entry in kinds.items()]
    return STRATA_HEAD + "\n".join(lines) + "\n"


def write_strata(figures: Sequence[ServedFigure]) -> None:
    """Put the ends of every stratum into the file that ships."""
    with as_file(files("simulator.running.metrics").joinpath("strata.yaml")) as path:
        write_text_atomically(path, strata_text(figures))
