"""Thresholds of an autoscaler: which of them hold the SLO at least rent, beside the fixed fleet that does."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from forerun.errors import ForerunError
from forerun.result import StudyResult, Summary
from forerun.tables import Cell, Table, Value
from forerun.workers import study_workers
from simulator.running.scenario import Scenario
from simulator.studies.artefacts import artefact
from simulator.studies.frame import ProgressCall, study_document
from simulator.studies.runs import Document, RunPool, SeededRun
from simulator.studies.study_file import yaml_text

KV_TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
QUEUE_TARGETS = (1.0, 2.0, 4.0, 8.0, 16.0)
LEAST_SPARE = 0.15
"""Least threshold of llm-d's rule that leaves room for its ``kv_spare`` of 0.1."""


def best_thresholds(
    base: Scenario,
    targets: Sequence[float] | None,
    seeds: Sequence[int],
    emit: str | None,
    jobs: int | None,
    progress: ProgressCall | None,
) -> ThresholdsResult:
    """The study of ``thresholds``."""
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
    names: list[Document] = [{"threshold": value, "replicas": None} for value in tried]
    names += [{"threshold": None, "replicas": count} for count in fixed]
    rows = [name | _row(documents) for name, documents in zip(names, by_one, strict=True) if all(documents)]
    holding = sorted((row for row in rows if row["holds"]), key=itemgetter("mean_replicas"))
    scaled = next((row for row in holding if row["threshold"] is not None), None)
    fixed_row = next((row for row in holding if row["threshold"] is None), None)
    body = {
        "field": path,
        "slo": base.slo,
        "candidates": rows,
        "best": scaled,
        "fixed": fixed_row,
        "conclusion": _conclusion(path, scaled, fixed_row),
    }
    document = study_document(body, base, seeds[0], rows[0]["basis"] if rows else None)
    result = ThresholdsResult(document, files={"scenario.yaml": yaml_text(document["scenario"])})
    if emit is not None and result.best is not None:
        document["artefact"] = artefact(emit, result.scenario)
    return result


class ThresholdsResult(StudyResult):
    """Cost and SLO verdict of each threshold and each fixed fleet."""

    kind = "thresholds"

    @property
    def best(self) -> Document | None:
        """The cheapest threshold that holds; None where none does."""
        best: Document | None = self.document["best"]
        return best

    @property
    def scenario(self) -> Scenario:
        """The scenario with the best threshold in it, or as it was where none holds."""
        changes = {} if self.best is None else {self.document["field"]: self.best["threshold"]}
        return Scenario.model_validate(self.document["scenario"]).with_values(changes)

    @property
    def title(self) -> str:
        return f"Autoscaling {self.model} by {self.document['field']}"

    @property
    def summary(self) -> Summary:
        return Summary(self.best or {})

    def records(self) -> list[dict[str, Any]]:
        return [{**row, "limits": None} for row in self.document["candidates"]]

    def tables(self) -> list[Table]:
        limits = list(self.document["slo"])
        columns = (self.document["field"].partition(".")[2], "replicas", "rented", "cost ($)", *limits, "SLO")
        rows = []
        for row in sorted(self.document["candidates"], key=itemgetter("mean_replicas")):
            name: Value = "fixed" if row["threshold"] is None else f"{row['threshold']:g}"
            mean, peak = row["mean_replicas"], row["peak_replicas"]
            values: list[Value] = [name, peak, f"{mean:.2f}", row["cost_usd"], *(row["values"][key] for key in limits)]
            rows.append((*values, Cell("held", tone="good") if row["holds"] else Cell("missed", tone="bad")))
        return [Table("Thresholds and fixed fleets", columns, tuple(rows))]


def _ladder(scenario: Scenario) -> tuple[float, ...]:
    """Thresholds worth trying."""
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


def _row(documents: Sequence[Document | None]) -> Document:
    """Means over the runs of one candidate."""
    known = [document for document in documents if document is not None]
    scaling = [
        document.get("scaling") or dict.fromkeys(("mean_replicas", "peak_replicas"), len(document["replicas"]))
        for document in known
    ]
    costs = [document["cost_usd"] for document in known]
    return {
        "holds": all(document["slo"]["met"] for document in known),
        "mean_replicas": sum(one["mean_replicas"] for one in scaling) / len(known),
        "peak_replicas": max(one["peak_replicas"] for one in scaling),
        "cost_usd": None if None in costs else sum(costs) / len(known),
        "values": {
            key: max((d["slo"]["limits"][key]["value"] or 0.0) for d in known) for key in known[0]["slo"]["limits"]
        },
        "basis": known[0]["basis"],
    }


def _conclusion(path: str, scaled: Document | None, fixed: Document | None) -> str:
    """Sentence with the best threshold and its savings over the fixed fleet."""
    if scaled is None:
        held = "" if fixed is None else f"; {fixed['replicas']} fixed replicas do"
        return f"No threshold of {path} holds the SLO{held}."
    text = (
        f"Autoscaling with {path} {scaled['threshold']:g} holds the SLO with {scaled['mean_replicas']:.2f} replicas on "
        f"average"
    )
    if fixed is None:
        return f"{text}; no fixed fleet of as many does."
    saved = round(100 * (1.0 - scaled["mean_replicas"] / fixed["mean_replicas"]))
    words = f"{abs(saved)} % {'fewer' if saved > 0 else 'more'}" if saved else "no saving"
    return f"{text}; the fixed fleet needs {fixed['replicas']} ({words})."
