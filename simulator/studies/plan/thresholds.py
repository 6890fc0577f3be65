"""Search for the autoscaler threshold that meets the SLO at the lowest cost, compared with a fixed fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from forerun.document import LEFT_OUT, DocumentPart, StudyDocument
from forerun.errors import ForerunError
from forerun.result import StudyResult, Summary
from forerun.tables import Cell, Table, Value
from forerun.workers import study_workers
from simulator.running.scenario import Scenario
from simulator.studies.artefacts import artefact
from simulator.studies.frame import ProgressCall, study_header
from simulator.studies.runs import Document, RunPool, SeededRun
from simulator.studies.study_file import yaml_text

KV_TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
QUEUE_TARGETS = (1.0, 2.0, 4.0, 8.0, 16.0)
LEAST_SPARE = 0.15
"""Minimum threshold of llm-d's rule; it must exceed the rule's ``kv_spare`` of 0.1."""


def best_thresholds(
    base: Scenario,
    targets: Sequence[float] | None,
    seeds: Sequence[int],
    emit: str | None,
    jobs: int | None,
    progress: ProgressCall | None,
) -> ThresholdsResult:
    """Implementation of ``thresholds``."""
    if base.autoscaler is None:
        raise ForerunError("autoscaler: a scenario with this section is needed to look for its thresholds")
    if not base.slo:
        raise ForerunError("slo: at least one limit is needed, such as p99_ttft_ms: 500")
    path = "autoscaler.target" if base.autoscaler.rule == "hpa" else "autoscaler.kv_threshold"
    tried = {value: base.with_values({path: value}) for value in targets or _ladder(base)}
    bare = base.model_copy(update={"autoscaler": None})
    fixed = {n: bare.with_values({"hardware.replicas": n}) for n in range(1, base.autoscaler.max_replicas + 1)}
    everything = [*tried.values(), *fixed.values()]
    with study_workers(jobs) as workers:
        pool = RunPool(workers, progress)
        run_documents = pool.documents_if_any([SeededRun(one, number) for one in everything for number in seeds])
        if not any(run_documents):
            pool.document(SeededRun(everything[0], seeds[0]), "thresholds")
    by_one = [run_documents[at : at + len(seeds)] for at in range(0, len(run_documents), len(seeds))]
    names: list[tuple[float | None, int | None]] = [*((value, None) for value in tried), *((None, n) for n in fixed)]
    rows = [_fleet(*name, documents) for name, documents in zip(names, by_one, strict=True) if all(documents)]
    holding = sorted((row for row in rows if row.holds), key=attrgetter("mean_replicas"))
    scaled = next((row for row in holding if row.threshold is not None), None)
    fixed_row = next((row for row in holding if row.threshold is None), None)
    data = ThresholdsDocument(
        field=path,
        slo=base.slo,
        candidates=rows,
        best=scaled,
        fixed=fixed_row,
        conclusion=_conclusion(path, scaled, fixed_row),
        **study_header(base, seeds[0], rows[0].basis if rows else None),
    )
    if emit is not None and data.best is not None:
        data = replace(data, artefact=artefact(emit, data.deployment))
    return ThresholdsResult(data, files={"scenario.yaml": yaml_text(data.scenario)})


@dataclass(frozen=True, kw_only=True)
class FleetByThreshold(DocumentPart):
    """Cost and SLO verdict of a threshold, or of a fixed number of replicas."""

    threshold: float | None
    replicas: int | None
    holds: bool
    mean_replicas: float
    peak_replicas: int
    cost_usd: float | None
    values: dict[str, float]
    """Worst value over the runs of every limited metric."""
    basis: str


@dataclass(frozen=True, kw_only=True)
class ThresholdsDocument(StudyDocument):
    """The JSON of ``plan --thresholds``."""

    artefact: str | None = field(default=None, metadata=LEFT_OUT)
    field: str
    slo: dict[str, float]
    candidates: list[FleetByThreshold]
    best: FleetByThreshold | None
    fixed: FleetByThreshold | None

    @property
    def deployment(self) -> Scenario:
        """Scenario with the best threshold; the original scenario if no threshold meets the SLO."""
        changes = {} if self.best is None else {self.field: self.best.threshold}
        return Scenario.model_validate(self.scenario).with_values(changes)


class ThresholdsResult(StudyResult[ThresholdsDocument]):
    """Cost and SLO verdict of each threshold and each fixed fleet."""

    kind = "thresholds"
    document_type = ThresholdsDocument

    @property
    def best(self) -> FleetByThreshold | None:
        """The cheapest threshold that meets the SLO; None if no threshold does."""
        return self.data.best

    @property
    def scenario(self) -> Scenario:
        """Scenario with the best threshold; the original scenario if no threshold meets the SLO."""
        return self.data.deployment

    @property
    def title(self) -> str:
        return f"Autoscaling {self.model} by {self.data.field}"

    @property
    def summary(self) -> Summary:
        return Summary({} if self.best is None else vars(self.best))

    def records(self) -> list[dict[str, Any]]:
        return [{**vars(row), "limits": None} for row in self.data.candidates]

    def tables(self) -> list[Table]:
        columns = (self.data.field.partition(".")[2], "replicas", "rented", "cost ($)", *self.data.slo, "SLO")
        rows: list[tuple[Value, ...]] = []
        for row in sorted(self.data.candidates, key=attrgetter("mean_replicas")):
            name = "fixed" if row.threshold is None else f"{row.threshold:g}"
            verdict = Cell("held", tone="good") if row.holds else Cell("missed", tone="bad")
            limited = (row.values[key] for key in self.data.slo)
            rows.append((name, row.peak_replicas, f"{row.mean_replicas:.2f}", row.cost_usd, *limited, verdict))
        return [Table("Thresholds and fixed fleets", columns, tuple(rows))]


def _ladder(scenario: Scenario) -> tuple[float, ...]:
    """Default thresholds to try for the scenario's metric."""
    scaler = scenario.autoscaler
    assert scaler is not None
    if scaler.rule == "llm-d":
        return tuple(value for value in KV_TARGETS if value > max(LEAST_SPARE, scaler.kv_spare))
    if scaler.metric == "kv_cache":
        return KV_TARGETS
    if scaler.metric == "waiting":
        return QUEUE_TARGETS
    most = scenario.engine.max_num_seqs
    return tuple(float(max(1, most >> shift)) for shift in range(6, -1, -1))


def _fleet(threshold: float | None, replicas: int | None, documents: Sequence[Document | None]) -> FleetByThreshold:
    """Means over the runs of one candidate."""
    known = [document for document in documents if document is not None]
    scaling = [
        document.get("scaling") or dict.fromkeys(("mean_replicas", "peak_replicas"), len(document["replicas"]))
        for document in known
    ]
    costs = [document["cost_usd"] for document in known]
    limits = [document["slo"]["limits"] for document in known]
    return FleetByThreshold(
        threshold=threshold,
        replicas=replicas,
        holds=all(document["slo"]["met"] for document in known),
        mean_replicas=sum(one["mean_replicas"] for one in scaling) / len(known),
        peak_replicas=max(one["peak_replicas"] for one in scaling),
        cost_usd=None if None in costs else sum(costs) / len(known),
        values={key: max(one[key]["value"] or 0.0 for one in limits) for key in limits[0]},
        basis=known[0]["basis"],
    )


def _conclusion(path: str, scaled: FleetByThreshold | None, fixed: FleetByThreshold | None) -> str:
    """Sentence with the best threshold and its savings over the fixed fleet."""
    if scaled is None:
        held = "" if fixed is None else f"; {fixed.replicas} fixed replicas do"
        return f"No threshold of {path} holds the SLO{held}."
    mean = f"{scaled.mean_replicas:.2f} replicas on average"
    text = f"Autoscaling with {path} {scaled.threshold:g} holds the SLO with {mean}"
    if fixed is None:
        return f"{text}; no fixed fleet of as many does."
    saved = round(100 * (1.0 - scaled.mean_replicas / fixed.mean_replicas))
    words = f"{abs(saved)} % {'fewer' if saved > 0 else 'more'}" if saved else "no saving"
    return f"{text}; the fixed fleet needs {fixed.replicas} ({words})."
