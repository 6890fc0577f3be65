"""A study: a scenario, its varied fields, and their runs on processes or a cluster, resumable from a store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from forerun.document import LEFT_OUT, DocumentPart, Json, StudyDocument
from forerun.errors import ForerunError, UnknownFieldError
from forerun.result import StudyResult, Summary
from forerun.tables import ABSENT, Cell, Table, Value, number, percent
from hwprofiles import weakest
from simulator.running.metrics.tables import with_interval
from simulator.studies.frame import ProgressCall, study_header
from simulator.studies.paired import COSTS, HIGHER_IS_BETTER, LOAD_WORDS, load_of, metric_with_unit, metric_words
from simulator.studies.study_file import (
    Design,
    Range,
    Settings,
    Source,
    StudyFile,
    design_points,
    settings_name,
    short_names,
    study_of,
    sweep_file_text,
    unique_points,
)
from simulator.studies.sweep.execute import DaskWorkers, SweepWorkers, execute
from simulator.studies.sweep.points import Point, make_point, refused_point
from simulator.studies.sweep.store import SweepStore
from simulator.studies.sweep.tiers import SIZE, TierCurve, tier_curve, tier_sentence, tier_table


@dataclass(frozen=True, kw_only=True)
class SweptPoint(DocumentPart):
    """A point of a sweep."""

    name: str
    set: Json
    """Scenario values that the point sets, by dotted path."""
    status: str
    """``done`` or ``failed``."""

    def value(self, metric: str) -> float | None:
        """A metric of the point's runs; None if the point failed or did not measure it."""
        return None

    def words(self, path: str) -> str:
        """Short text of one field's value; ``-`` if the point does not set the field."""
        return settings_name({path: self.set[path]}).partition("=")[2] if path in self.set else ABSENT


@dataclass(frozen=True, kw_only=True)
class FailedPoint(SweptPoint):
    """A point without a result."""

    error: str | None


@dataclass(frozen=True, kw_only=True)
class DonePoint(SweptPoint):
    """A point with its result, which is part of its run's document."""

    summary: Json
    intervals: Json | None
    likely: Json | None = None
    slo: Json | None
    basis: str
    bottleneck: dict[str, float]
    chips: int
    energy_joules: float | None
    cost_usd: float | None
    usd_per_million_output_tokens: float | None

    def value(self, metric: str) -> float | None:
        value: float | None = getattr(self, metric) if metric in COSTS else self.summary.get(metric)
        return None if value is None else float(value)


KEPT = tuple(one.name for one in fields(DonePoint) if one.name not in {one.name for one in fields(SweptPoint)})


@dataclass(frozen=True, kw_only=True)
class SweepDocument(StudyDocument):
    """The ``sweep`` JSON."""

    store: str | None = None
    points: list[DonePoint | FailedPoint]
    counts: dict[str, int]
    design: str
    replications: int
    metric: str
    kv_tier: TierCurve | None = field(default=None, metadata=LEFT_OUT)
    """Curve over the size of a KV store, where it is all that varies."""

    @property
    def done(self) -> list[DonePoint]:
        """Points with a result."""
        return [point for point in self.points if isinstance(point, DonePoint)]


@dataclass(frozen=True, slots=True)
class PointResult:
    """Outcome of one point."""

    name: str
    set: Settings
    status: str
    """``done`` or ``failed``."""
    document: Mapping[str, Any] | None
    """Document of the run without its scenario; None if the point failed."""
    error: str | None
    runs: int
    """Number of recorded results: 1, or 0 for a point that was refused unrun."""

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """Summary of the run, keyed as in vLLM's benchmark; None if the point failed."""
        return None if self.document is None else self.document["summary"]


class SweepResult(StudyResult[SweepDocument]):
    """All points of a finished sweep, in the order of its design; its data frame has one row per point.

    Args:
        document: the ``sweep`` JSON.
        points: outcomes of the points.
        command: shell command that runs the points again.
    """

    kind = "sweep"
    document_type = SweepDocument

    def __init__(
        self, document: SweepDocument | Mapping[str, Any], points: tuple[PointResult, ...] = (), command: str = ""
    ) -> None:
        super().__init__(document, command)
        self.points = points

    @property
    def failed(self) -> tuple[PointResult, ...]:
        """Points without a result."""
        return tuple(point for point in self.points if point.status == "failed")

    @property
    def title(self) -> str:
        return f"{self.model} on {self.data.scenario['hardware']['chip']}: sweep of {len(self.data.points)} points"

    @property
    def facts(self) -> str:
        counts = self.data.counts
        return f"{counts['done']} points done, {counts['failed']} failed · {super().facts}"

    @property
    def marks(self) -> Sequence[str]:
        runs = self.data.replications
        return f"{self.data.design} design", f"{runs} run{'s' * (runs != 1)} per point"

    @property
    def files(self) -> dict[str, str]:
        return {"study.yaml": sweep_file_text(self.data.scenario, [point.set for point in self.data.points])}

    @property
    def summary(self) -> Summary:
        metric = self.data.metric
        known = [(value, point.name) for point in self.data.points if (value := point.value(metric)) is not None]
        best, name = (max if HIGHER_IS_BETTER[metric] else min)(known, default=(None, None))
        return Summary({**self.data.counts, "best": name, metric: best, "answer": self.conclusion})

    def records(self) -> list[Json]:
        """One row per point: its settings and its summary."""
        rows = []
        for point in self.data.points:
            done = isinstance(point, DonePoint)
            summary = point.summary if isinstance(point, DonePoint) else {}
            rows.append(
                {"name": point.name, **{path: _plain(value) for path, value in point.set.items()}}
                | {"status": point.status, "error": point.error if isinstance(point, FailedPoint) else None}
                | {key: value for key, value in summary.items() if not isinstance(value, list)}
                | ({key: point.value(key) for key in COSTS} if done else {})
            )
        return rows

    def tables(self) -> list[Table]:
        """Tables of points, best by the metric first, and of the reasons of failed points."""
        points, metric = self.data.points, self.data.metric
        paths = list(dict.fromkeys(path for point in points for path in point.set))
        named = any(point.name != settings_name(point.set) for point in points) or not paths
        groups = by_load(self.data.done)
        ranked = [point for group in groups for point in sorted(group, key=lambda point: _rank(point, metric))]
        figures: dict[str, list[Value]] = {metric_with_unit(metric): [_cell(point, metric) for point in ranked]}
        if any(point.slo for point in ranked):
            figures["good requests"] = [_good_cell(point.slo) for point in ranked]
        shown = (*((COSTS[0],) if "prices" in self.data.scenario else ()), *SHOWN)
        for key in shown:
            figures.setdefault(metric_with_unit(key), [_cell(point, key) for point in ranked])
        rows: list[list[Value]] = [
            [
                *([point.name] if named else ()),
                *(point.words(path) for path in paths),
                *(column[index] for column in figures.values()),
            ]
            for index, point in enumerate(ranked)
        ]
        columns = [*(["point"] if named else ()), *(name.replace("_", " ") for name in short_names(paths)), *figures]
        details = {metric_with_unit(key) for key in SHOWN if key != metric and key not in BRIEF}
        reasons = Counter(point.error or "" for point in points if isinstance(point, FailedPoint))
        failed: list[list[Value]] = [[reason, count] for reason, count in reasons.most_common()]
        title = f"Points{' by load' if len(groups) > 1 else ''}, best first"
        tables = [] if self.data.kv_tier is None else [tier_table(self.data.kv_tier)]
        tables += [Table(title, columns, rows, shown=SWEEP_ROWS, name="points", details=details)]
        return tables + [Table("Failed", ("reason", "points"), failed, shown=5, name="failed")] * bool(failed)


SHOWN = ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "mean_e2el_ms")
BRIEF = ("output_throughput", "p99_ttft_ms", "p99_tpot_ms")
"""Columns that a terminal shows without ``--full``, after metric, good requests and cost."""
MOST_LOADS = 6
"""Maximum number of loads whose best point the conclusion lists."""
SWEEP_ROWS = 40
SAME = 0.01
"""Relative difference between best and worst point below which all points count as equal."""


def by_load(points: Sequence[DonePoint]) -> list[list[DonePoint]]:
    """Points grouped by load, ascending, if loads and other fields vary together; else one group of all points."""
    groups: dict[tuple[float, ...], list[DonePoint]] = {}
    for point in points:
        groups.setdefault(load_of(point.set), []).append(point)
    if min(map(len, groups.values()), default=0) < 2:
        return [list(points)]
    return [groups[load] for load in sorted(groups)]


def _cell(point: DonePoint, metric: str) -> Value:
    """Cell with a metric of a point, and its likely range where the point has one."""
    return with_interval(metric, vars(point)) if metric in (point.likely or {}) else point.value(metric)


def _good_cell(slo: Mapping[str, Any] | None) -> Value:
    """Cell with the share of good requests, coloured by whether the SLO is met."""
    if slo is None or slo["good_share"] is None:
        return None
    return Cell(percent(slo["good_share"]), tone="good" if slo["met"] else "bad", value=slo["good_share"])


def _rank(point: SweptPoint, metric: str) -> tuple[bool, float]:
    value = point.value(metric)
    return value is None, 0.0 if value is None else -value if HIGHER_IS_BETTER[metric] else value


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


class Study:
    """Points around a scenario.

    Args:
        scenario: a scenario, a study read from a file, or the path of a scenario or study file.
        vary: lists of values, or ``Range``, by dotted path; added to the fields that a study file varies.
        variants: settings by name; every variant is combined with every point of ``vary``.
        design: ``grid``, ``random`` or ``latin-hypercube``; the latter two draw ``samples`` points.
        samples: number of points to draw.
        seed: first seed of every point, and seed of the draws.
        replications: runs of every point, with seeds ``seed``, ``seed + 1``, ...

    Raises:
        ForerunError: a path that does not exist, a value that is invalid in every combination, or an empty design.
    """

    def __init__(
        self,
        scenario: Source,
        vary: Mapping[str, Sequence[Any] | Range] | None = None,
        variants: Mapping[str, Settings] | None = None,
        design: Design = "grid",
        samples: int | None = None,
        seed: int = 0,
        replications: int = 1,
    ) -> None:
        source = study_of(scenario, vary)
        self.scenario = source.scenario
        self.design = design
        self.seed = seed
        self.replications = replications
        self.vary = source.vary
        named = [(variant.name, variant.set) for variant in source.variants] + list((variants or {}).items())
        settings = _combined(named, design_points(self.vary, design, samples, seed) if self.vary else None)
        if not settings:
            raise ForerunError(f"{source.place}: there is nothing to sweep; add --vary PATH=V1,V2,...")
        self.points = _points(settings, source, seed, replications)

    def run(
        self,
        store: str | Path | None = None,
        jobs: int | None = None,
        cluster: str | None = None,
        progress: ProgressCall | None = None,
        retry_failed: bool = False,
        metric: str = "mean_e2el_ms",
    ) -> SweepResult:
        """Run every point without a result in the store.

        Args:
            store: file with results that runs and processes share; None = results stay in memory.
            jobs: processes; default: one per core. Results do not depend on it.
            cluster: ``local`` or the address of a Dask scheduler, in place of processes of this machine.
            progress: called with (points finished, points in all).
            retry_failed: run points again that failed before.
            metric: metric that selects the best point.

        Raises:
            ForerunError: the store or the cluster cannot be used; finished results are retained.
        """
        keys = {point.key: point for point in self.points}
        most = min(jobs, len(keys)) if jobs else None
        with (
            SweepWorkers(most) if cluster is None else DaskWorkers(cluster, most) as workers,
            SweepStore(None if store is None else Path(store), list(keys.values())) as kept,
        ):
            if retry_failed:
                kept.retry_failed()
            execute(keys, kept, workers, progress)
        results = tuple(
            PointResult(
                point.name,
                point.set,
                "failed" if "error" in (outcome := kept.outcomes[point.key]) else "done",
                outcome.get("document"),
                outcome.get("error"),
                kept.runs[point.key],
            )
            for point in self.points
        )
        others, damaged = kept.others, kept.damaged
        counted = {
            f"{others:,} points of other scenarios, seeds or versions in the store were left alone": others,
            f"{damaged:,} results in the store were not as they had been recorded, and were run again": damaged,
        }
        notes = [note for note, count in counted.items() if count]
        bases = [point.document["basis"] for point in results if point.document is not None]
        data = SweepDocument(
            store=None if store is None else str(store),
            points=[_swept(point) for point in results],
            counts={status: sum(point.status == status for point in results) for status in ("done", "failed")},
            design=self.design,
            replications=self.replications,
            metric=metric,
            kv_tier=self._tiers(results),
            **study_header(self.scenario, self.seed, weakest(bases) if bases else None, notes),
        )
        tiers = [] if data.kv_tier is None else [tier_sentence(data.kv_tier)]
        data = replace(data, conclusion=" ".join([*tiers, sweep_sentence(data)]))
        words = ["forerun", "sweep", "study.yaml", "--store", "again.sweep", "--seed", str(self.seed)]
        words += ["--replications", str(self.replications), "--metric", metric]
        return SweepResult(data, results, shlex.join(words))

    def _tiers(self, results: Sequence[PointResult]) -> TierCurve | None:
        """Curve over the size of a KV store, where it is all that varies."""
        paths = {path for point in self.points for path in point.set}
        if len(paths) != 1 or not SIZE.fullmatch(path := paths.pop()):
            return None
        done = [(float(point.set[path]), dict(point.document)) for point in results if point.document is not None]
        return tier_curve(path, done, self.scenario, self.seed)


def _combined(
    named: Sequence[tuple[str, Settings]], points: Sequence[Settings] | None
) -> list[tuple[str | None, Json]]:
    """Combine every variant with every point of the design."""
    if points is None:
        return [(name, dict(settings)) for name, settings in named]
    bases: list[tuple[str | None, Settings]] = [*named] or [(None, {})]
    return [
        (None if name is None else f"{name} {settings_name(point)}", {**settings, **point})
        for name, settings in bases
        for point in unique_points(points)
    ]


def _points(
    settings: Sequence[tuple[str | None, Json]], source: StudyFile, seed: int, replications: int
) -> tuple[Point, ...]:
    """Build the points; invalid combinations become points with an error."""
    points: list[Point] = []
    valid: set[tuple[str, str]] = set()
    refused: dict[tuple[str, str], str] = {}
    for variant, setting in settings:
        name = settings_name(setting) if variant is None else variant
        marks = [(path, repr(value)) for path, value in setting.items()]
        try:
            scenario = source.with_settings(setting)
        except UnknownFieldError:
            raise
        except ForerunError as error:
            text = str(error).removeprefix(f"{source.place}: ")
            refused |= {mark: text for mark in marks if mark not in refused}
            points.append(refused_point(name, setting, source.scenario, seed, replications, text))
            continue
        valid |= set(marks)
        points.append(make_point(name, setting, scenario, seed, replications))
    for (path, value), text in refused.items():
        if (path, value) not in valid:
            raise ForerunError(f"{source.place}: {path}={value.strip(chr(39))} fits in no combination: {text}")
    return tuple(points)


def _swept(point: PointResult) -> DonePoint | FailedPoint:
    settings = dict(point.set)
    if point.document is None:
        return FailedPoint(name=point.name, set=settings, status=point.status, error=point.error)
    kept = {key: point.document[key] for key in KEPT}
    return DonePoint(name=point.name, set=settings, status=point.status, **kept)


def sweep_sentence(data: SweepDocument) -> str:
    """Conclusion: best point by the metric (per load if loads vary), worst point, and number of failed points."""
    metric, failed = data.metric, data.counts["failed"]
    lost = f"; {failed} of {len(data.points)} points failed" if failed else ""
    unit = " ms" if metric.endswith("_ms") else ""
    groups = by_load([point for point in data.done if point.value(metric) is not None])
    if len(groups) > 1:
        firsts = [min(group, key=lambda point: _rank(point, metric)) for group in groups]
        parts = [f"{one.name} with {number(one.value(metric))}{unit}" for one in firsts[:MOST_LOADS]]
        more = f"; {len(firsts) - MOST_LOADS} more loads" if len(firsts) > MOST_LOADS else ""
        return f"Best {metric_words(metric)} at each load: {'; '.join(parts)}{more}{lost}."
    known = [(point.name, point.value(metric) or 0.0) for point in groups[0]]
    if not known:
        return f"No point measures {metric_words(metric)}{lost}."
    best, worst = max(known, key=itemgetter(1)), min(known, key=itemgetter(1))
    if not HIGHER_IS_BETTER[metric]:
        best, worst = worst, best
    if len(known) > 1 and abs(worst[1] - best[1]) < SAME * abs(best[1]):
        return (
            f"All {len(known)} points have the same {metric_words(metric)} within 1 %: {number(best[1])}{unit}{lost}."
        )
    if len(known) > 1 and all(point.set and point.set.keys() <= LOAD_WORDS.keys() for point in groups[0]):
        served = max(point.value("request_throughput") or 0.0 for point in groups[0])
        ends = sorted((best, worst), key=itemgetter(1))
        spread = " to ".join(f"{number(value)}{unit} at {name}" for name, value in ends)
        most = f"the most served is {number(served, 3)} requests/s"
        return f"{metric_words(metric).capitalize()} from {spread}; {most}{lost}."
    equal = sum(value == best[1] for _, value in known) - 1
    also = f" and {equal} equal point{'s' * (equal > 1)}" if equal else ""
    text = f"Best {metric_words(metric)}: {best[0]}{also} with {number(best[1])}{unit}"
    if worst[1] != best[1] and min(abs(worst[1]), abs(best[1])) > 0:
        ratio = max(worst[1], best[1]) / min(worst[1], best[1])
        text += f", {ratio:.2f}x better than the worst of {len(known)} points ({worst[0]}, {number(worst[1])}{unit})"
    return f"{text}{lost}."
