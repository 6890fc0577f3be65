"""Bands of served figures by class of evidence, fitted on measured runs of other deployments.

Each measured run is simulated once with the band of its kernels, host work and chance alone; what the fits need of it
stands in ``facts.parquet``, from which a test fits and scores again in seconds. A run's score on either side is
what must be added to the band for the measurement to lie inside. The end of a class is the product of one factor for
all runs and one for each part of the class: a quantile regression of the scores, deployments weighed, in which no part
narrows a band. It minimises the interval score. Parts are nested: a build newer than the fits is also one that they do
not know. Throughput counts as the latency of a closed loop. Leaving whole tables out tells how well that holds for the
next one.

Source: Koenker and Bassett, "Regression quantiles" (1978), doi:10.2307/1913643; T. Gneiting and A. Raftery, "Strictly
    Proper Scoring Rules, Prediction, and Estimation" (2007), doi:10.1198/016214506000001437, section 6.2; Dunn et al.,
    "Distribution-free prediction sets for two-layer hierarchical models" (2022), arXiv:1809.07441.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, identity

from forerun.arrays import FloatArray
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.workers import Workers
from hwprofiles import ProfileError
from simulator.llm import load_architecture
from simulator.llm.load import catalogue_model
from simulator.running.measured import FIGURES, deployment_of
from simulator.running.measured_runs import simulate_measured
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.measured_error import run_figures
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
from simulator.running.metrics.uncertainty import LEVEL, LIKELY, OWN_SHARE, interval_factors
from simulator.running.run import simulate
from traces import TraceError
from traces.benchmark_results import MeasuredRun, read_runs
from validation.halves import rows_by_hash
from validation.requests import SUFFIXES, base_scenario
from validation.tables.contradictions import without_contradictions

PROMISED = {"ttft": {LEVEL: 0.95, LIKELY: 0.69}, "tpot": {LEVEL: 0.955, LIKELY: 0.70}}
"""Share of the runs below either end of a band, by kind of figure and level. That is what is promised of 90 and 50 %,
and a little more, because the tables of the next user are others."""
PENALTY = {"ttft": 6e-3, "tpot": 1e-3}
"""Cost of one logarithm of a part's factor. Parts that a few runs ask for do not widen the bands of others."""
LEAST_ROWS = 5
"""Figures from which a deployment counts as much as any other."""
PARTS = [ALL, *(part for part in PART_WORDS if part not in BEST_KNOWN and part in ALSO.get(part, (part,)))]
ENDS = {"low": (0, LEVEL), "middle_low": (0, LIKELY), "middle_high": (1, LIKELY), "high": (1, LEVEL)}
"""Side and level of a band by name of an end."""
FACTS = "facts.parquet"
HEAD = """\
# How measured runs came out (simulator/running/metrics/served.py and posterior.py). `python -m validation bands --data
# DIR --write` writes this file. ends: factors on a prediction beside the band of its kernels, host work and chance, to
# be multiplied over the parts of a run's class; nine in ten (low, high) and likely (middle). runs: what they rest on.
# process: what the figures of one deployment have in common, for predictions with a measured run.
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
    weights: str = "not fp4"
    answers: str = "not short"
    engine: str = ""
    """Engine and release, as the table writes them."""
    card: str = ""
    """Chip, as the table writes it."""
    deployment: str = ""
    run: int = 0
    decoding: float = 0.8
    moves: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    conditions: tuple[float, ...] = (0.0, 0.0, 0.0)
    layout: str = ""

    @property
    def stratum(self) -> Stratum:
        """The class of the run."""
        return Stratum(self.layers, self.build, self.load, self.chip, self.weights, self.answers)

    @property
    def error(self) -> float:
        """Logarithm of measured over predicted, throughput as a latency."""
        return -log(self.ratio) if self.kind == "throughput" else log(self.ratio)

    @property
    def own(self) -> tuple[float, float]:
        """Logarithms of the ends of the band, throughput as a latency."""
        low, high = log(self.low), log(self.high)
        return (-high, -low) if self.kind == "throughput" else (low, high)

    def lacks(self, level: float) -> tuple[float, float]:
        """Logarithms of what the ends of the band lack, below and above."""
        off, share = self.error, OWN_SHARE[level]
        end = share * self.own[0 if off < 0 else 1]
        lacks = sqrt(max(0.0, off * off - end * end))
        return (lacks, 0.0) if off < 0 else (0.0, lacks)

    def band(self, known: Mapping[str, Any], level: float = LEVEL) -> tuple[float, float]:
        """Logarithms of the ends, as a latency, with what the factors of the run's class add."""
        ends = factors_of(self.stratum, known[ENDS_OF.get(self.kind, self.kind)])
        outer = (ends[0], ends[3]) if level == LEVEL else (ends[1], ends[2])
        low, high = (hypot(OWN_SHARE[level] * own, log(end)) for own, end in zip(self.own, outer, strict=True))
        return -low, high


def served_figures(
    data: Path, limit: int, jobs: int, progress: Callable[[int, int], None] | None = None
) -> list[ServedFigure]:
    """Figures of the measured runs below a folder (:func:`chosen_runs`)."""
    figures: list[ServedFigure] = []
    paths = measured_tables(data)
    with Workers(jobs if jobs > 1 else 0) as workers:
        pending = [workers.start(figures_of, run, path.name.split(".")[0])
                   for path in paths for run in chosen_runs(path, limit)]  # fmt: skip
        for done, result in enumerate(pending, 1):
            figures += [figure._replace(run=done) for figure in result()]
            if progress is not None:
                progress(done, len(pending))
    return figures


def measured_tables(folder: Path) -> list[Path]:
    """Files below a folder that may hold measured runs."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))


def chosen_runs(path: Path, limit: int) -> list[MeasuredRun]:
    """Runs of a table that can be compared: at most ``limit`` of a release and kind of layers, by hash."""
    try:
        runs = without_contradictions(list(read_runs(str(path))))
        runs = [run for run in runs if run.model and run.chip and run.framework]
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
        result, predicted, _ = simulate_measured(simulate, run, base_scenario(), intervals=True)
    except (ForerunError, ProfileError, TraceError):
        return []
    error = result.model_error
    assert error is not None
    ends = interval_factors(predicted, without_served(error), error["sampling"])
    rows = run_figures(result.scenario, predicted, error)
    build = f"{run.framework} {(run.framework_version or '').partition(' (')[0]}".strip()
    deployment = f"{table} {json.dumps(deployment_of(result.scenario), sort_keys=True)}"
    figures = []
    for names in FIGURES:
        metric = next((one for one in names if run.measured.get(one)), None)
        if metric is None or metric not in ends or metric not in rows:
            continue
        kind, row = figure_kind(metric), rows[metric]
        if kind == "throughput" and run.process != "closed-loop" and error["stratum"]["load"] != "near":
            continue
        values: Json = error["stratum"] | {"deployment": deployment, "engine": build, "card": run.chip or ""}
        values |= {name: getattr(row, name) for name in ("decoding", "moves", "conditions", "layout")}
        ratio, (low, high) = run.measured[metric] / predicted[metric], ends[metric]
        figures.append(ServedFigure(table, str(kind), ratio=ratio, low=low, high=high, **values))
    return figures


def write_facts(figures: Sequence[ServedFigure]) -> None:
    """Put the facts of all figures beside this module."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {}
    for name in ServedFigure._fields:
        values = [getattr(figure, name) for figure in figures]
        if isinstance(values[0], tuple):
            columns |= {f"{name}.{i}": [value[i] for value in values] for i in range(len(values[0]))}
        else:
            columns[name] = values
    deployments = {name: str(place) for place, name in enumerate(dict.fromkeys(columns["deployment"]))}
    columns["deployment"] = [deployments[name] for name in columns["deployment"]]
    table = pa.table(columns)
    narrow = [field.with_type(pa.float32()) if field.type == pa.float64() else field for field in table.schema]
    with as_file(files("validation.served").joinpath(FACTS)) as path:
        pq.write_table(table.cast(pa.schema(narrow)), path, compression="zstd", compression_level=19)


@cache
def read_facts() -> tuple[ServedFigure, ...]:
    """Figures of ``facts.parquet``."""
    import pyarrow.parquet as pq

    with as_file(files("validation.served").joinpath(FACTS)) as path:
        rows = pq.read_table(path).to_pylist()
    several, figures = {"moves": 4, "conditions": 3}, list[ServedFigure]()
    for row in rows:
        values: Json = {name: tuple(row[f"{name}.{i}"] for i in range(n)) for name, n in several.items()}
        figures.append(ServedFigure(**values, **{name: row[name] for name in ServedFigure._fields if name in row}))
    return tuple(figures)


def deployment_weights(figures: Sequence[ServedFigure]) -> FloatArray:
    """Weights that sum to 1: deployments alike from ``LEAST_ROWS`` figures on, a table as the root of its number."""
    rows = Counter((figure.table, figure.deployment) for figure in figures)
    tables = Counter(table for table, _ in rows)
    weights = [1.0 / max(LEAST_ROWS, rows[one.table, one.deployment]) / sqrt(tables[one.table]) for one in figures]
    return np.array(weights) / sum(weights)


def quantile_factors(figures: Sequence[ServedFigure], side: int, level: float) -> dict[str, float]:
    """Factors of :data:`PARTS` on the lower (0) or upper (1) end, at least 1 outward, within which a share lies."""
    kind = ENDS_OF.get(figures[0].kind, figures[0].kind)
    share, count = PROMISED[kind][level], len(figures)
    lacks = np.array([figure.lacks(level)[side] for figure in figures])
    parts = csr_matrix([[float(part in figure.stratum.parts) for part in PARTS] for figure in figures])
    weights, ones = deployment_weights(figures), identity(count)
    costs = np.concatenate((np.full(len(PARTS), PENALTY[kind]), share * weights, (1 - share) * weights))
    solution = linprog(costs, A_eq=hstack((parts, ones, -ones), format="csr"), b_eq=lacks, method="highs")
    outward = np.exp(np.asarray(solution.x)[: len(PARTS)] * (1 if side else -1))
    return {part: _rounded(float(factor)) for part, factor in zip(PARTS, outward, strict=True) if factor != 1.0}


def ends_by_part(figures: Sequence[ServedFigure]) -> dict[str, Any]:
    """Factors on the named ends, by kind of figure, end and part of a class."""
    fitted = {}
    for kind in PROMISED:
        own = [figure for figure in figures if ENDS_OF.get(figure.kind, figure.kind) == kind]
        if own:
            fitted[kind] = {name: quantile_factors(own, *end) for name, end in ENDS.items()}
    return fitted


@cache
def without_table(figures: tuple[ServedFigure, ...], table: str | None) -> dict[str, Any]:
    """Ends of the figures of all tables but one; of all of them where it is None."""
    return ends_by_part([figure for figure in figures if figure.table != table])


def interval_score(error: FloatArray, low: FloatArray, high: FloatArray, level: float) -> FloatArray:
    """Width of intervals, and what misses cost; smaller is better, and honest ends are the best."""
    beyond = np.maximum(low - error, 0.0) + np.maximum(error - high, 0.0)
    return np.asarray(high - low + 2.0 / (1.0 - level) * beyond)


class BandScore(NamedTuple):
    """Intervals of some figures against their measurements."""

    n: int
    inside: float
    width: float
    """Median of the upper end over the lower."""
    score: float

    @classmethod
    def of(cls, error: FloatArray, low: FloatArray, high: FloatArray, level: float) -> BandScore:
        """The score of ends in logarithms."""
        inside = (low <= error) & (error <= high)
        mean = float(interval_score(error, low, high, level).mean())
        return cls(len(error), float(inside.mean()), exp(float(np.median(high - low))), mean)


def band_score(figures: Sequence[ServedFigure], ends: Callable[[str], Mapping[str, Any]], level: float) -> BandScore:
    """BandScore of the bands of some figures, each with the ends for its table."""
    bands = np.array([figure.band(ends(figure.table), level) for figure in figures])
    return BandScore.of(np.array([figure.error for figure in figures]), bands[:, 0], bands[:, 1], level)


def coverage_by(
    figures: Sequence[ServedFigure], columns: Sequence[str], by: Callable[[ServedFigure], list[str]]
) -> Table:
    """Coverage by a property of the figures and their kind, each with the ends fitted on the other tables. Share
    inside, median width (upper end over lower) and interval score of nine in ten, share inside and width of the likely
    range, and the errors."""
    everything, lines = tuple(figures), list[list[Value]]()
    for name in sorted({tuple(by(figure)) for figure in figures}):
        for kind in KINDS:
            own = [figure for figure in figures if figure.kind == kind and tuple(by(figure)) == name]
            if own:
                wide, likely = (band_score(own, lambda t: without_table(everything, t), one) for one in (LEVEL, LIKELY))
                errors = [100 * abs(1 / figure.ratio - 1) for figure in own]
                ratio = float(np.median([figure.ratio for figure in own]))
                lines.append([*name, kind, len(own), f"{wide.inside:.0%}", f"{wide.width:.2f}x", f"{wide.score:.2f}",
                              f"{likely.inside:.0%}", f"{likely.width:.2f}x", f"{ratio:.2f}",
                              f"{np.median(errors):.1f} %"])  # fmt: skip
    columns = (*columns, "figure", "n", "nine in ten: inside", "width", "score", "likely: inside", "width",
               "measured over predicted (median)", "error (median)")  # fmt: skip
    return Table("Measured runs inside their bands, their table left out", columns, lines, name="coverage")


def coverage_of_tables(figures: Sequence[ServedFigure]) -> Table:
    """:func:`coverage_by` of all figures, of those on known releases, and of each table."""
    everything = coverage_by(figures, ["table"], lambda _: [ALL])
    known = coverage_by([one for one in figures if one.stratum.known], ["table"], lambda _: ["known releases"])
    tables = coverage_by(figures, ["table"], lambda figure: [figure.table])
    return Table(tables.title, tables.columns, [*everything.rows, *known.rows, *tables.rows], name=tables.name)


def bands_page(figures: Sequence[ServedFigure], after: Table, version: str) -> str:
    """``docs/validation/bands.md``."""
    return (
        "# Which measurements lie inside the intervals?\n\n"
        f"Written by `python -m validation bands` of Forerun {version}. Of every table, runs of each release and kind "
        "of layers are chosen by hash, whichever side of a split they are on. Every row is judged with ends fitted on "
        "the other tables alone. The width is the upper end over the lower, in the median; the score is that of "
        "Gneiting and Raftery (in logarithms; smaller is better): width, and twenty times what misses lie outside.\n\n"
        "## After measuring\n\nFrom one run in the middle of a deployment's loads, and from its lowest, middle and "
        "highest load; scored on the deployment's other runs, at other loads, lengths or layouts. Parameters and ends "
        f"come from other tables.\n\n{after.markdown()}\n\n## Before measuring\n\n"
        f"{coverage_of_tables(figures).markdown()}\n\nBy engine build and chip: [every row](rows.md).\n"
    )


def coverage_of_builds(figures: Sequence[ServedFigure]) -> Table:
    """:func:`coverage_by` of engine builds and chips."""
    table = coverage_by(figures, ["table", "engine", "chip"], lambda one: [one.table, one.engine, one.card])
    return replace(table, title="Measured runs inside their intervals, by build and chip")


def served_text(figures: Sequence[ServedFigure], process: Mapping[str, Any]) -> str:
    """Content of ``served.yaml``."""
    lines = ["ends:"]
    for kind, ends in ends_by_part(figures).items():
        lines += [f"  {kind}:", *(f"    {end}: {_flow(factors)}" for end, factors in ends.items())]
    runs = {"runs": len({figure.run for figure in figures}), "deployments": len({f.deployment for f in figures})}
    lines += [f"runs: {_flow(runs)}", "process:", *(f"  {name}: {_flow(value)}" for name, value in process.items())]
    return HEAD + "\n".join(lines) + "\n"


def _flow(value: Any) -> str:
    return json.dumps(value).replace('"', "")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def write_served(figures: Sequence[ServedFigure], process: Mapping[str, Any]) -> None:
    """Put ends and process into the file that ships."""
    with as_file(files("simulator.running.metrics").joinpath("served.yaml")) as path:
        write_text_atomically(path, served_text(figures, process))
