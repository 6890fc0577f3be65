"""The JSON document of one simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from forerun.document import LEFT_OUT, DocumentPart, Json, plain_json
from forerun.version import VERSION
from simulator.running.engine_defaults import replaced_scheduler
from simulator.running.metrics import usage
from simulator.running.metrics.conclusion import (
    Load,
    load_section,
    measuring_notes,
    run_conclusion,
    steady_output_throughput,
)
from simulator.running.metrics.summary import run_duration_s, slo_report, summarise
from simulator.running.metrics.uncertainty import Rerun, interval_section, slo_probability, worth_measuring
from simulator.running.records import ModelError, RunRecords
from simulator.serving.records import Count, EngineCounters, KvCacheReport, ReplicaUse, TransferReport


@dataclass(frozen=True, kw_only=True)
class RunDocument(DocumentPart):
    """Document of a run. Utilisation, energy and cost cover the time from the first arrival to the last finish; None
    where nothing finished or the chip or scenario lacks the figure that they need."""

    conclusion: str
    load: Load
    summary: Json
    """Figures of vLLM's serving benchmark, by its names."""
    intervals: dict[str, list[float]]
    """Ends of the interval of figures of the summary; empty where the run did not look for them."""
    likely: dict[str, list[float]]
    """Ends of their likely (50 %) range."""
    interval_level: float | None
    intervals_of: str | None
    model_error: ModelError | None
    next_measurement: Json | None
    """Figure that one measured run of this load would narrow most. With the width of its 90 % interval (upper end over
    lower) and the width after it; None where a run would not help, or widths are not known."""
    slo: Json | None
    basis: str
    evidence: dict[str, float]
    bottleneck: dict[str, float] | None
    kv_cache: KvCacheReport
    replicas: tuple[ReplicaUse, ...]
    utilisation: dict[str, float | None]
    energy_joules: float | None
    power: Json | None
    kv_transfer: TransferReport | None = field(default=None, metadata=LEFT_OUT)
    restarts: Count | None = field(default=None, metadata=LEFT_OUT)
    pools: list[Json] | None = field(default=None, metadata=LEFT_OUT)
    scaling: Json | None = field(default=None, metadata=LEFT_OUT)
    stages: list[Json] | None = field(default=None, metadata=LEFT_OUT)
    """Figures of the requests of each stage of a load test."""
    tasks: Json | None = field(default=None, metadata=LEFT_OUT)
    chips: int
    cost_usd: float | None
    usd_per_million_output_tokens: float | None
    engine: EngineCounters
    scenario: Json
    seed: int
    replications: int = 1
    version: str = VERSION
    notes: list[str]
    per_replication: list[Json] | None = field(default=None, metadata=LEFT_OUT)


def run_data(result: RunRecords) -> RunDocument:
    """The document of a run."""
    scenario, requests, error = result.scenario, result.requests, result.model_error
    summary, duration_s = summarise(result), run_duration_s(requests) or 0.0
    api_server_busy = max((use.api_server_busy or 0.0 for use in result.replicas), default=None)
    load = load_section(requests.measured, scenario.workload, api_server_busy)
    rented_s = duration_s * result.shifts.get("throughput", 1.0)
    usd = usage.fleet_cost_usd(result, rented_s)
    if (slo := slo_report(result, summary)) is not None:
        slo["probability"] = slo_probability(slo, error, result.evidence._asdict())
    pools, steady = usage.pool_sections(result, duration_s), steady_output_throughput(load, summary, scenario.workload)
    data = RunDocument(
        conclusion="",
        load=load,
        summary=summary,
        **interval_section(summary, error, None if error is None else error["sampling"]),
        next_measurement=worth_measuring(summary, error),
        slo=slo,
        basis=result.basis,
        evidence=result.evidence._asdict(),
        bottleneck=usage.bottleneck_shares(result.totals, len(result.replicas), duration_s),
        kv_cache=result.kv,
        replicas=result.replicas,
        utilisation=usage.fleet_utilisation(pools),
        energy_joules=(joules := usage.fleet_energy(pools)),
        power=usage.power_section(result, joules, duration_s),
        kv_transfer=result.transfers,
        restarts=None if scenario.faults is None else result.restarts,
        pools=None if scenario.pools is None else pools,
        scaling=usage.scaling_section(result),
        stages=_stages(result),
        tasks=result.tasks,
        chips=result.chips,
        cost_usd=usd,
        usd_per_million_output_tokens=usage.usd_per_million_tokens(usd, (steady or 0.0) * rented_s),
        engine=result.engine,
        scenario=scenario_document(scenario),
        seed=result.seed,
        notes=[*result.notes, *usage.price_notes(result)],
    )
    data.notes.extend(measuring_notes(data.next_measurement, error, result.shifts))
    return replace(data, conclusion=run_conclusion(vars(data)))


def _stages(result: RunRecords) -> list[Json] | None:
    """Figures of each stage of a load test: its rate and seconds, and a summary of its requests without ITL."""
    arrivals, requests = result.scenario.workload.arrivals, replace(result.requests, warm_up=None)
    if arrivals is None or arrivals.stages is None or requests.stage is None:
        return None
    sections = []
    for number, stage in enumerate(arrivals.stages):
        rows = requests.stage == number
        if rows.any():
            served = Rerun(result.scenario, requests.take(rows), result.gaps, None, result.shifts)
            figures = {key: value for key, value in summarise(served).items() if "_itl_" not in key}
            left_out = result.requests.warm_up is not None and bool(result.requests.warm_up[rows].all())
            sections.append({"rate": stage.rate, "seconds": stage.seconds, "warm_up": left_out, **figures})
    return sections


def run_document(result: RunRecords) -> Json:
    """The JSON of a run's document, for one seed."""
    return plain_json(run_data(result))  # type: ignore[no-any-return]


def scenario_document(scenario: Any) -> Json:
    """The scenario as it can be read back: JSON values under the names of the scenario file.

    A scheduler that stands in for the engine's own is left out: read back, it would count as chosen.
    """
    data: Json = plain_json(scenario.model_dump(mode="python", by_alias=True, exclude_none=True))
    sections = [(data, scenario.engine)]
    for name in scenario.pools or ():
        for section in ("hardware", "engine"):  # a pool's framework or chip has defaults of its own
            base, own = getattr(scenario, section).model_dump(), scenario.pool_section(name, section).model_dump()
            changed = {field: own[field] for field in own if own[field] != base[field]}
            data["pools"][name][section] |= plain_json(changed)
        sections.append((data["pools"][name], scenario.pool_section(name, "engine")))
    for written, engine in sections:
        if replaced_scheduler(engine) is not None:
            written["engine"].pop("scheduler", None)
    return data
