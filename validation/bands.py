"""Ends of the bands around served figures: quantiles of measured over predicted by parts of a run's class.

Each measured run is simulated with the band of its kernels, host work and chance alone. What must be added to that band
on either side for the measurement to lie inside is the run's score. The end of a class is the product of one factor for
all runs and one for each part of the class: a quantile regression of the scores, every table counted alike, in which no
part narrows a band. Parts are nested: a build newer than the fits is also one that they do not know, so that it takes
the ends of those where it has no runs of its own. Throughput is scored as the latency of a closed loop, and both it and
E2E latency with what TPOT's ends imply, as runs print them. Leaving whole tables out tells how well that holds for the
next one.

Source: Koenker and Bassett, "Regression quantiles" (1978), doi:10.2307/1913643; Romano et al., "Conformalized quantile
    regression" (2019), arXiv:1905.03222; Tibshirani et al., "Conformal prediction under covariate shift" (2019),
    arXiv:1904.06019, for weights.
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
from scipy.optimize import linprog

from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.workers import Workers
from hwprofiles import ProfileError
from simulator.llm import load_architecture
from simulator.llm.load import catalogue_model
from simulator.replay.rerun import rerun
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.served import (
    ALL,
    ALSO,
    BEST_KNOWN,
    ENDS_OF,
    KINDS,
    PART_WORDS,
    Stratum,
    factors_of,
    figure_kind,
    layer_class,
    without_served,
)
from simulator.running.metrics.uncertainty import (
    as_tpot_moves,
    decoding_share,
    interval_factors,
    tpots,
    without_phase,
)
from traces import TraceError
from traces.benchmark_results import MeasuredRun, read_runs
from validation.halves import rows_by_hash
from validation.requests import SUFFIXES, base_scenario, scored_metrics

LEAST_RUNS, LEAST_TABLES = 30, 3
"""Runs and tables from which a run's sentence names a class; smaller ones name the wider class."""
WHOLE_TABLE = 10
"""Runs from which a table counts as much as any other; smaller ones count in proportion."""
END, MIDDLE = {"ttft": 0.97, "tpot": 0.98, "e2el": 0.98}, 0.75
"""Share of the runs below the upper end of a band, by kind of figure, and of their middle half. With 0.95 at either
end, nine in ten runs that were fitted lie inside, but fewer of those of a table that was not. Each further hundredth
makes the bands of TTFT half as wide again, those of other figures a tenth wider."""
PARTS = [ALL, *(part for part in PART_WORDS if part not in BEST_KNOWN and part in ALSO.get(part, (part,)))]
ENDS = {"low": 0, "middle_low": 0, "middle_high": 1, "high": 1}
"""Side of a band by name of an end."""
HEAD = """\
# How measured runs came out by class (simulator/running/metrics/served.py). `python -m validation bands --data DIR
# --write` writes this file. ends: factors on a prediction beside the band of its kernels, host work and chance, to be
# multiplied over the parts of a run's class; of nine in ten runs (low, high) and of their middle half. half: runs of a
# class, and quartiles of measured over predicted.
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
    engine: str = ""
    """Engine and release, as the table writes them."""
    card: str = ""
    """Chip, as the table writes it."""
    decoding: float = 0.0
    """Share of E2E latency after the first token, for E2E latency and throughput."""
    tpot: tuple[float, float] = (1.0, 1.0)
    """Ends of TPOT's band over the prediction, for the same figures."""

    @property
    def stratum(self) -> Stratum:
        """The class of the run."""
        return Stratum(self.layers, self.build, self.load, self.chip)

    @property
    def as_latency(self) -> ServedFigure:
        """The figure, throughput as the latency of a closed loop."""
        if self.kind not in ENDS_OF:
            return self
        return self._replace(kind=ENDS_OF[self.kind], ratio=1 / self.ratio, low=1 / self.high, high=1 / self.low)

    @property
    def scores(self) -> tuple[float, float]:
        """Logarithms of what the ends of the band lack, below and above."""
        off = log(self.ratio)
        end = log(self.low) if off < 0 else log(self.high)
        lacks = sqrt(max(0.0, off * off - end * end))
        return (lacks, 0.0) if off < 0 else (0.0, lacks)

    def band(self, known: Mapping[str, Any]) -> tuple[float, float]:
        """Ends over the prediction, as a latency, with what the factors of the run's class add (``intervals_of``)."""
        own = self.as_latency
        low, high = _widened((own.low, own.high), ends_for(self, known))
        if self.decoding:
            moved = [as_tpot_moves(self.decoding, end) for end in _widened(self.tpot, ends_for(self, known, "tpot"))]
            low, high = min(low, moved[0]), max(high, moved[1])
        return low, high

    def inside(self, known: Mapping[str, Any]) -> bool:
        """True if the measurement lies in the band that the factors of its class widen."""
        low, high = self.band(known)
        return low * (1 - 1e-12) <= self.as_latency.ratio <= high * (1 + 1e-12)


def _widened(band: tuple[float, float], ends: tuple[float, float]) -> tuple[float, float]:
    """A band around 1 with independent factors on its ends."""
    low, high = (hypot(log(end), log(factor)) for end, factor in zip(band, ends, strict=True))
    return exp(-low), exp(high)


def served_figures(
    data: Path, limit: int, jobs: int, progress: Callable[[int, int], None] | None = None
) -> list[ServedFigure]:
    """Figures of the measured runs below a folder (:func:`chosen_runs`)."""
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


def measured_tables(folder: Path) -> list[Path]:
    """Files below a folder that may hold measured runs."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))


def chosen_runs(path: Path, limit: int) -> list[MeasuredRun]:
    """Runs of a table that can be compared: at most ``limit`` of a release and kind of layers, by hash."""
    try:
        runs = [run for run in read_runs(str(path)) if run.model and run.chip and run.framework]
    except TraceError:
        return []
    groups: dict[tuple[str, str], list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.unusable is None and run.measured and (name := catalogue_model(run.model or "")):
            groups[run.framework_version or "", layer_class(load_architecture(name))].append(run)
    return [run for own in groups.values() for run in rows_by_hash(own, lambda run: f"{path.name} {run.place}", limit)]


def figures_of(run: MeasuredRun, table: str) -> list[ServedFigure]:
    """Figures of one run; none where it cannot be simulated."""
    try:
        again = rerun(run, base_scenario(), intervals=True)
    except (ForerunError, ProfileError, TraceError):
        return []
    error, predicted = again["model_error"], again["predicted"]
    kernels, figures = without_served(error), list[ServedFigure]()
    ends = interval_factors(predicted, kernels, error["sampling"])
    of_tpot = interval_factors(tpots(predicted), without_phase(kernels), error["sampling"])
    build = f"{run.framework} {(run.framework_version or '').partition(' (')[0]}".strip()
    for metric in scored_metrics([run]):
        kind, value = figure_kind(metric), predicted.get(metric, 0.0)
        if kind is None or value <= 0 or metric not in ends:
            continue
        if kind == "throughput" and run.process != "closed-loop" and error["stratum"]["load"] != "near":
            continue
        figure = ServedFigure(
            table, kind, **error["stratum"], ratio=run.measured[metric] / value, low=ends[metric][0],
            high=ends[metric][1], engine=build, card=run.chip or "",
        )  # fmt: skip
        statistic = "mean" if kind == "throughput" else metric.partition("_")[0]
        if kind in ("e2el", "throughput") and (tpot := of_tpot.get(f"{statistic}_tpot_ms")):
            figure = figure._replace(decoding=decoding_share(predicted, statistic), tpot=tpot)
        figures.append(figure)
    return figures


def quantile_factors(figures: Sequence[ServedFigure], side: int, share: float) -> dict[str, float]:
    """Factors of :data:`PARTS` on the lower (0) or upper (1) end, at least 1 outward, within which a share lies."""
    scores = np.array([figure.scores[side] for figure in figures])
    parts = np.array([[part in figure.stratum.parts for part in PARTS] for figure in figures], dtype=np.float64)
    rows = Counter(figure.table for figure in figures)
    weights = np.array([1 / max(WHOLE_TABLE, rows[figure.table]) for figure in figures])
    weights /= weights.sum()
    ones = np.eye(len(figures))
    costs = np.concatenate((np.zeros(len(PARTS)), share * weights, (1 - share) * weights))
    solution = linprog(costs, A_eq=np.hstack((parts, ones, -ones)), b_eq=scores)
    outward = np.exp(np.asarray(solution.x)[: len(PARTS)] * (1 if side else -1))
    return {part: _outward(float(factor)) for part, factor in zip(PARTS, outward, strict=True) if factor != 1.0}


def ends_by_part(figures: Sequence[ServedFigure], names: Sequence[str] = tuple(ENDS)) -> dict[str, Any]:
    """Factors on the named ends, by kind of figure, end and part of a class."""
    latencies = [figure.as_latency for figure in figures]
    return {
        kind: {
            name: quantile_factors(own, ENDS[name], MIDDLE if name.startswith("middle") else END[kind])
            for name in names
        }
        for kind in KINDS
        if (own := [figure for figure in latencies if figure.kind == kind])
    }


def halves(figures: Sequence[ServedFigure]) -> dict[str, dict[str, list[float]]]:
    """Runs of every class and kind of figure with enough of them, and quartiles of measured over predicted."""
    rows: dict[tuple[str, str], list[ServedFigure]] = defaultdict(list)
    for figure in figures:
        for name in figure.stratum.wider:
            rows[name, figure.kind].append(figure)
    known: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for name, kind in sorted(rows):
        own = rows[name, kind]
        if name == ALL or (len(own) >= LEAST_RUNS and len({figure.table for figure in own}) >= LEAST_TABLES):
            quartiles = np.quantile([figure.ratio for figure in own], [0.25, 0.75])
            known[name][kind] = [len(own), *(_rounded(value) for value in quartiles)]
    return dict(known)


def _outward(end: float) -> float:
    return _rounded(end * (1.002 if end > 1 else 0.998))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def ends_for(figure: ServedFigure, known: Mapping[str, Any], kind: str | None = None) -> tuple[float, float]:
    """Ends of a figure's class, for its own kind or another."""
    ends = known[kind or figure.as_latency.kind]
    low, _, _, high = factors_of(figure.stratum, {"middle_low": {}, "middle_high": {}, **ends})
    return low, high


def coverage_by(
    figures: Sequence[ServedFigure], columns: Sequence[str], by: Callable[[ServedFigure], list[str]]
) -> Table:
    """Coverage by a property of the figures and their kind. Share inside with ends fitted on all tables and with those
    of the other tables alone, the median width of the latter, upper end over lower, and the errors."""
    shipped, lines = without_table(tuple(figures), None), list[list[Value]]()
    for name in sorted({tuple(by(figure)) for figure in figures}):
        for kind in KINDS:
            own = [figure for figure in figures if figure.kind == kind and tuple(by(figure)) == name]
            if own:
                unseen = [(figure, without_table(tuple(figures), figure.table)) for figure in own]
                inside = float(np.mean([figure.inside(shipped) for figure in own]))
                held = float(np.mean([figure.inside(known) for figure, known in unseen]))
                widths = [high / low for figure, known in unseen for low, high in [figure.band(known)]]
                errors = [100 * abs(1 / figure.ratio - 1) for figure in own]
                ratio = float(np.median([figure.ratio for figure in own]))
                lines.append([*name, kind, len(own), f"{inside:.0%}", f"{held:.0%}", f"{np.median(widths):.2f}x",
                              f"{ratio:.2f}", f"{np.mean(errors):.1f} %", f"{np.median(errors):.1f} %"])  # fmt: skip
    columns = (*columns, "figure", "n", "inside", "inside, table left out", "width (median)",
               "measured over predicted (median)", "error: mean", "error: median")  # fmt: skip
    return Table("Measured runs inside their 90 % bands", columns, lines, name="coverage")


def coverage_of_tables(figures: Sequence[ServedFigure]) -> Table:
    """:func:`coverage_by` of all figures and of each table."""
    everything = coverage_by(figures, ["table"], lambda _: [ALL])
    tables = coverage_by(figures, ["table"], lambda figure: [figure.table])
    return Table(tables.title, tables.columns, [*tables.rows, *everything.rows], name=tables.name)


def bands_page(figures: Sequence[ServedFigure], version: str) -> str:
    """``docs/validation/bands.md``."""
    builds = coverage_by(figures, ["table", "engine", "chip"], lambda one: [one.table, one.engine, one.card])
    return (
        "# Which measurements lie inside the intervals?\n\n"
        f"Written by `python -m validation bands` of Forerun {version}. Of every table, runs of each release and kind "
        "of layers are chosen by hash, whichever side of a split they are on. *Inside*: with the ends that ship, for "
        "which all tables were used; *table left out*: with ends that have not seen the row's table. The width is the "
        "upper end over the lower, with the table left out.\n\n"
        f"{coverage_of_tables(figures).markdown()}\n\n## By engine build and chip\n\n{builds.markdown()}\n"
    )


@cache
def without_table(figures: tuple[ServedFigure, ...], table: str | None) -> dict[str, Any]:
    """Ends of the figures of all tables but one; of all of them where it is None."""
    return ends_by_part([figure for figure in figures if figure.table != table], ("low", "high"))


def served_text(figures: Sequence[ServedFigure]) -> str:
    """Content of ``served.yaml``."""
    lines = ["ends:"]
    for kind, ends in ends_by_part(figures).items():
        lines += [f"  {kind}:", *(f"    {end}: {_flow(factors)}" for end, factors in ends.items())]
    lines += ["half:", *(f"  {name}: {_flow(kinds)}" for name, kinds in halves(figures).items())]
    return HEAD + "\n".join(lines) + "\n"


def _flow(values: Mapping[str, Any]) -> str:
    return json.dumps(values).replace('"', "")


def write_served(figures: Sequence[ServedFigure]) -> None:
    """Put the ends of every class into the file that ships."""
    with as_file(files("simulator.running.metrics").joinpath("served.yaml")) as path:
        write_text_atomically(path, served_text(figures))
