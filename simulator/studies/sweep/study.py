"""A study: a scenario, what varies, and running all of it on processes or a cluster, resumable from a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import ForerunError, did_you_mean
from simulator.metrics import forerun_version, jsonable, scenario_document
from simulator.metrics.replications import BASIS_ORDER
from simulator.scenario import Scenario
from simulator.studies.paired import COSTS, HIGHER_IS_BETTER, metric_words
from simulator.studies.study_file import (
    Design,
    Range,
    Settings,
    StudyFile,
    Values,
    checked_values,
    design_points,
    load_study,
    settings_name,
    unique_points,
)
from simulator.studies.sweep.execute import ProgressCall, check_cluster, execute, open_pool
from simulator.studies.sweep.points import Point, make_point, refused_point
from simulator.studies.sweep.store import SweepStore

KEPT = (
    "summary",
    "intervals",
    "slo",
    "basis",
    "bottleneck",
    "chips",
    "energy_joules",
    "cost_usd",
    "usd_per_million_output_tokens",
)
"""Parts of a point's document that the study's document shows."""


@dataclass(frozen=True, slots=True)
class PointResult:
    """What came of one point."""

    name: str
    set: Settings
    status: str
    """``done`` or ``failed``."""
    document: Mapping[str, Any] | None
    """The run document without its scenario; None where the point failed."""
    error: str | None
    runs: int
    """How often a result was recorded: 1, or 0 for a point that was refused unrun."""

    @property
    def summary(self) -> Mapping[str, Any] | None:
        """The summary of the run, keyed as vLLM's benchmark."""
        return None if self.document is None else self.document["summary"]


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All points of a finished study, in the order of its design."""

    study: Study
    points: tuple[PointResult, ...]
    store: str | None
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[PointResult, ...]:
        """Points without a result."""
        return tuple(point for point in self.points if point.status == "failed")

    def document(self) -> dict[str, Any]:
        """The contract's ``sweep`` JSON: ``store``, ``points``, ``scenario``, ``seed``, ``version``, ``basis``."""
        bases = [point.document["basis"] for point in self.points if point.document is not None]
        plain = jsonable(
            {
                "store": self.store,
                "points": [_point_document(point) for point in self.points],
                "counts": {"done": len(self.points) - len(self.failed), "failed": len(self.failed)},
                "design": self.study.design,
                "scenario": scenario_document(self.study.scenario),
                "seed": self.study.seed,
                "replications": self.study.replications,
                "version": forerun_version(),
                "basis": max(bases, key=BASIS_ORDER.index) if bases else None,
                "notes": list(self.notes),
            }
        )
        assert isinstance(plain, dict)
        return plain


class Study:
    """Points around a scenario.

    Args:
        scenario: a scenario, a study read from a file, or the path of either's file.
        vary: lists of values, or ``Range``, by dotted path; joins what a study file varies.
        variants: settings by name; every variant meets every combination of ``vary``.
        design: ``grid``, ``random`` or ``latin-hypercube``; the latter two draw ``samples`` points.
        samples: points to draw.
        seed: first seed of every point, and seed of the draws.
        replications: runs of every point, with seeds ``seed``, ``seed + 1``, ...

    Raises:
        ForerunError: a path that scenarios do not have, a value that fits in no combination, an empty design.
    """

    def __init__(
        self,
        scenario: Scenario | StudyFile | str | Path,
        vary: Mapping[str, Sequence[Any] | Range] | None = None,
        variants: Mapping[str, Settings] | None = None,
        design: Design = "grid",
        samples: int | None = None,
        seed: int = 0,
        replications: int = 1,
    ) -> None:
        source = _source(scenario)
        self.scenario = source.scenario
        self.design = design
        self.seed = seed
        self.replications = replications
        self.vary: dict[str, Values] = dict(source.vary) | _checked_vary(vary or {})
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
    ) -> StudyResult:
        """Run every point that the store does not hold yet.

        Args:
            store: file that keeps results from run to run and between processes; None keeps them in memory.
            jobs: processes; default: one per core. Results do not depend on it.
            cluster: ``local`` or the address of a Dask scheduler, in place of processes of this machine.
            progress: called with (points finished, points in all).
            retry_failed: run points again that failed before.

        Raises:
            ForerunError: the store or the cluster cannot be used; what has finished is kept.
        """
        keys = {point.key: point for point in self.points}
        check_cluster(cluster)
        with SweepStore(None if store is None else Path(store), list(keys.values())) as kept:
            if retry_failed:
                kept.retry_failed()
            kept.free_dead()
            counts = kept.counts()
            if counts["pending"] or counts["running"]:
                pool = open_pool(cluster, min(jobs, len(keys)) if jobs else None)
                finished = False
                try:
                    execute(keys, kept, pool, progress)
                    finished = True
                finally:
                    pool.close(wait=finished)
            rows = {row.key: row for row in kept.rows()}
            others = kept.others()
        found = [(point, rows[point.key]) for point in self.points]
        results = tuple(PointResult(p.name, p.set, r.status, r.document, r.error, r.runs) for p, r in found)
        notes = (
            [f"{others:,} points of other scenarios, seeds or versions in the store were left alone"] if others else []
        )
        return StudyResult(self, results, None if store is None else str(store), tuple(notes))


def _source(scenario: Scenario | StudyFile | str | Path) -> StudyFile:
    if isinstance(scenario, StudyFile):
        return scenario
    if isinstance(scenario, Scenario):
        return StudyFile("scenario", scenario, {}, ())
    return load_study(scenario)


def _checked_vary(vary: Mapping[str, Sequence[Any] | Range]) -> dict[str, Values]:
    return {
        path: values if isinstance(values, Range) else checked_values(list(values), f"vary {path}")
        for path, values in vary.items()
    }


def _combined(
    named: Sequence[tuple[str, Settings]], points: Sequence[Settings] | None
) -> list[tuple[str | None, dict[str, Any]]]:
    """Every variant with every point of the design."""
    if points is None:
        return [(name, dict(settings)) for name, settings in named]
    bases: list[tuple[str | None, Settings]] = [*named] or [(None, {})]
    return [
        (None if name is None else f"{name} {settings_name(point)}", {**settings, **point})
        for name, settings in bases
        for point in unique_points(points)
    ]


def _points(
    settings: Sequence[tuple[str | None, dict[str, Any]]], source: StudyFile, seed: int, replications: int
) -> tuple[Point, ...]:
    """The points; combinations that are no valid scenario are kept with their error.

    Raises:
        ForerunError: a value that is valid in no combination, or an unknown field.
    """
    found: list[Point] = []
    valid: set[tuple[str, str]] = set()
    refused: dict[tuple[str, str], str] = {}
    for variant, setting in settings:
        name = settings_name(setting) if variant is None else variant
        marks = [(path, repr(value)) for path, value in setting.items()]
        try:
            scenario = source.with_settings(setting)
        except ForerunError as error:
            if "unknown field" in str(error):
                raise
            text = str(error).removeprefix(f"{source.place}: ")
            refused |= {mark: text for mark in marks if mark not in refused}
            found.append(refused_point(name, setting, source.scenario, seed, replications, text))
            continue
        valid |= set(marks)
        found.append(make_point(name, setting, scenario, seed, replications))
    for (path, value), text in refused.items():
        if (path, value) not in valid:
            raise ForerunError(f"{source.place}: {path}={value.strip(chr(39))} fits in no combination: {text}")
    return tuple(found)


def _point_document(point: PointResult) -> dict[str, Any]:
    row: dict[str, Any] = {"name": point.name, "set": dict(point.set), "status": point.status}
    if point.document is None:
        return row | {"error": point.error}
    return row | {key: point.document[key] for key in KEPT}


def checked_metric(metric: str) -> str:
    """``metric`` if it is one that points can be ranked by.

    Raises:
        ForerunError: it is none.
    """
    if metric not in HIGHER_IS_BETTER:
        raise ForerunError(
            f"--metric: no metric '{metric}'{did_you_mean(metric, HIGHER_IS_BETTER)} (a key of the summary, "
            f"usd_per_million_output_tokens or energy_joules)"
        )
    return metric


def point_value(point: dict[str, Any], metric: str) -> float | None:
    """The metric of a point of a ``sweep`` document; None where it failed or did not measure it."""
    if point["status"] != "done":
        return None
    value = point.get(metric) if metric in COSTS else point["summary"].get(metric)
    return None if value is None else float(value)


def sweep_sentence(document: dict[str, Any], metric: str) -> str:
    """The best point by ``metric``, the worst, and how many failed."""
    known = [(p["name"], v) for p in document["points"] if (v := point_value(p, metric)) is not None]
    failed = document["counts"]["failed"]
    lost = f"; {failed} of {len(document['points'])} points failed" if failed else ""
    if not known:
        return f"No point measures {metric_words(metric)}{lost}."
    better = max if HIGHER_IS_BETTER[metric] else min
    worse = min if HIGHER_IS_BETTER[metric] else max
    best, worst = better(known, key=lambda item: item[1]), worse(known, key=lambda item: item[1])
    unit = " ms" if metric.endswith("_ms") else ""
    text = f"Best {metric_words(metric)}: {best[0]} with {best[1]:.4g}{unit}"
    if worst[1] != best[1] and min(abs(worst[1]), abs(best[1])) > 0:
        ratio = max(worst[1], best[1]) / min(worst[1], best[1])
        text += f", {ratio:.2f}x better than the worst of {len(known)} points ({worst[0]}, {worst[1]:.4g}{unit})"
    return f"{text}{lost}."
