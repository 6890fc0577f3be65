"""The JSON document of one simulated run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forerun.document import Json, plain_json
from forerun.version import VERSION
from simulator.running.engine_defaults import replaced_scheduler
from simulator.running.metrics.conclusion import load_section, run_conclusion, steady_output_throughput
from simulator.running.metrics.summary import run_window_s, slo_report, summarise
from simulator.running.metrics.uncertainty import interval_section, slo_probability
from simulator.running.metrics.usage import (
    bottleneck_shares,
    fleet_cost_usd,
    fleet_section,
    kv_cache_section,
    pool_sections,
    price_notes,
    replica_section,
    scaling_section,
    usd_per_million_tokens,
)

if TYPE_CHECKING:
    from simulator.running.records import RunRecords


def run_document(result: RunRecords) -> Json:
    """The document of a run as plain JSON values: the contract's ``run`` JSON for one seed.

    ``intervals`` is empty unless the run computed them (``simulate(..., intervals=True)``). Utilisation, energy and
    cost cover the time from the first arrival to the last finish and are None when nothing finished or the chip or
    scenario lacks the figure they need.
    """
    scenario = result.scenario
    summary = summarise(result)
    window = run_window_s(result.requests)
    duration_s = 0.0 if window is None else window[1] - window[0]
    usd = fleet_cost_usd(result, duration_s)
    load = load_section(result.requests, scenario.workload)
    error, slo = result.model_error, slo_report(result, summary)
    if slo is not None:
        slo["probability"] = None if error is None else slo_probability(slo, error, result.basis)
    document = {
        "load": load,
        "summary": summary,
        **interval_section(summary, error, None if error is None else error["sampling"]),
        "slo": slo,
        "basis": result.basis,
        "evidence": result.evidence._asdict(),
        "bottleneck": bottleneck_shares(result.totals, len(result.replicas), duration_s),
        "kv_cache": kv_cache_section(result.kv, result.requests),
        "replicas": [replica_section(use, duration_s) for use in result.replicas],
        **fleet_section(result, pool_sections(result, duration_s), duration_s),
        **scaling_section(result),
        **({} if result.tasks is None else {"tasks": result.tasks}),
        "chips": result.chips,
        "cost_usd": usd,
        "usd_per_million_output_tokens": usd_per_million_tokens(
            usd, (steady_output_throughput(load, summary, scenario.workload) or 0.0) * duration_s
        ),
        "engine": asdict(result.engine),
        "scenario": scenario_document(scenario),
        "seed": result.seed,
        "replications": 1,
        "version": VERSION,
        "notes": [*result.notes, *price_notes(result)],
    }
    document = {"conclusion": run_conclusion(document), **document}
    return plain_json(document)  # type: ignore[no-any-return]


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
