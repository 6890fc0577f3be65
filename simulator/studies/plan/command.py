"""``forerun plan``, ``fr.plan`` and ``fr.thresholds``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from forerun.errors import ArgumentError, ForerunError, did_you_mean
from simulator.studies.frame import Jobs, Mode, Option, ProgressCall, by_keyword, study
from simulator.studies.plan.options import Emit, PlanOptions

if TYPE_CHECKING:
    from simulator.studies.plan.document import PlanResult
    from simulator.studies.plan.thresholds import ThresholdsResult
    from simulator.studies.study_file import Source

REPLICAS = "hardware.replicas"
SOURCE = "Scenario or study file, YAML or JSON; or a log of requests."


def _varied(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields that a plan varies, from the call and from the study (or its file)."""
    from simulator.running.scenario import is_log
    from simulator.studies.study_file import load_study

    source = arguments["scenario"]
    if isinstance(source, str | Path) and not is_log(source):
        source = load_study(source)
    return {**(arguments["vary"] or {}), **getattr(source, "vary", {})}


MODES = (
    Mode("with --max-rate", lambda arguments: arguments["max_rate"], ("growth", "finalists", "max_replicas")),
    Mode(f"where {REPLICAS} is varied", lambda arguments: REPLICAS in _varied(arguments), ("max_replicas",)),
)


def _no_winner(result: "PlanResult | ThresholdsResult") -> int:
    return int(result.best is None)


@study(
    "plan",
    help="Find the cheapest deployment that meets an SLO at a load. Exit code 1 if none does.",
    source=SOURCE,
    progress="planning",
    files="plan.json, study.yaml",
    examples="Examples: forerun plan chat.yaml --rate 20 --slo p99_ttft_ms=1000 --slo p99_tpot_ms=60  |  "
    "forerun plan my-log.csv --slo p99_ttft_ms=1000 --set model=qwen3-8b --vary hardware.chip=h100-sxm,l40s  |  "
    "forerun plan chat.yaml --max-rate --slo goodput=0.95 --slo ttft_ms=1000 --slo tpot_ms=60  |  "
    "forerun plan scaled.yaml --thresholds --emit keda",
    modes=MODES,
    words="without --thresholds",
    finish=_no_winner,
)
@by_keyword(PlanOptions)
def plan(scenario: "Source", options: PlanOptions) -> "PlanResult":
    """Find the fewest chips or the cheapest layout for an SLO at a load, or each layout's highest load.

    Args:
        scenario: a scenario or study, the file of either, or a request log (see ``study_of_log``).
        rate: request rate to serve, per second; default: the scenario's own arrivals.
        max_rate: find the highest rate of every layout instead.
        trace: a name or file: its lengths in place of the scenario's workload and, without ``rate``, its arrivals.
        columns: column names of the trace or log by meaning (see ``traces.read_requests``).
        growth: factor on the rate, or on the speed of the trace.
        slo: limits in addition to the scenario's, such as ``{"p99_ttft_ms": 500}``, or as ``KEY=VALUE`` texts.
        vary: values to search by dotted path. Searched by default: tensor parallelism 1, 2, 4, 8, token budgets of
            2,048 and 8,192, and speculation on and off.
        seed: the first seed; every layout gets the same seeds.
        replications: number of runs of every layout near a limit.
        requests: number of requests per run; default: the scenario's number, and at least a minute of arrivals.
        finalists: number of layouts that meet the SLO to find.
        max_replicas: maximum number of replicas of a layout to try.
        spare: number of redundant replicas beyond those that meet the SLO, for failures (N+1: 1).
        headroom: find the highest rate of every finalist, and test the best layout with one replica less and at twice
            the load.
        interval: include the model error.
        confidence: minimum share of runs that meet the SLO, and minimum probability with the model error.
        power_budget_w: total watts for the boards of a rack or site: with ``max_rate``, every layout gets as many
            replicas as this power supplies; its rate is one replica's rate times their number.
        carbon: grams of CO2 per kWh, or a CSV file of values over the day (columns ``hour``, ``g_per_kwh``).
        emit: artefact of the best layout to add to the document as ``artefact``; names as in ``forerun plan --emit``.
        jobs: processes; default: one per core. Results do not depend on it.
        progress: called with (candidates done, candidates known so far).

    Raises:
        ForerunError: arguments contradict each other, or the scenario itself is invalid. Layouts that cannot be run are
        not an error: they are listed with the reason.
    """
    from simulator.running.scenario import is_log
    from simulator.studies.plan import document as documents
    from simulator.studies.plan.objectives import objective_of
    from simulator.studies.plan.search import make_plan
    from simulator.studies.study_file import study_of, study_of_log

    rate, budget, confidence = options.rate, options.power_budget_w, options.confidence
    if rate is not None and options.max_rate:
        raise ForerunError(
            "plan: rate finds layouts for a rate, max_rate the highest rate of each layout; give one of the two"
        )
    for name, value in (("rate", rate), ("growth", options.growth)):
        if value is not None and not 0 < value <= 1e9:
            raise ArgumentError(name, f"must be a positive number, at most 1e9 (got {value:g})")
    if budget is not None and not (options.max_rate and 0 < budget <= 1e12):
        raise ArgumentError("power_budget", "a positive number of watts, with max_rate: the layouts then fill it")
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", f"must lie between 0 and 1 (got {confidence:g})")
    _check_artefact(options.emit)
    columns = options.columns
    if isinstance(scenario, str | Path) and is_log(scenario):
        scenario, columns = study_of_log(scenario, columns=columns), None
    intensity = None if options.carbon is None else documents.carbon_of(options.carbon)
    base = study_of(scenario, options.vary)
    if options.trace is not None:
        base = documents.with_trace(base, options.trace, columns)
    elif columns:
        raise ArgumentError("map", "names columns of a trace and there is none; give trace, or set workload.columns")
    limits, texts = (options.slo, ()) if isinstance(options.slo, Mapping) else ({}, tuple(options.slo or ()))
    planned = make_plan(base, objective_of({**base.scenario.slo, **limits}, texts), options)
    return documents.plan_result(planned, intensity)


@study(
    "plan",
    source=SOURCE,
    progress="planning",
    switch="thresholds",
    switch_help="Find the autoscaler threshold that meets the SLO at least cost; compare fixed fleets.",
    chosen=lambda options, _: "thresholds" in options,
    words="with --thresholds",
    finish=_no_winner,
)
def thresholds(
    scenario: "Source",
    *,
    targets: Annotated[
        Sequence[float | str] | None,
        Option("With --thresholds: values to try; default by metric.", "T1,T2,...", flag="--target", text=list[str]),
    ] = None,
    seed: Annotated[int, Option("First seed; every layout gets the same ones.", min=0)] = 0,
    replications: Annotated[int, Option("Runs of every layout that is near the limit.", min=1)] = 1,
    emit: Emit = None,
    jobs: Jobs = None,
    progress: ProgressCall | None = None,
) -> "ThresholdsResult":
    """Find the autoscaler threshold that meets the scenario's SLO with the fewest chip-hours, including start-up times.

    Args:
        scenario: with ``autoscaler`` and ``slo`` sections, over traffic that changes; or its file.
        targets: thresholds to try: ``autoscaler.target`` of rule hpa, ``autoscaler.kv_threshold`` of rule llm-d.
            Default: a range of values that suits the metric.
        seed: the first seed; every threshold gets the same ones.
        replications: runs of each threshold; all of them must meet the SLO.
        emit: an artefact of the best to put into the document as ``artefact``; names as of ``forerun plan --emit``.
        jobs: processes; default: one per core.
        progress: called with (runs done, runs in sight).

    Raises:
        ForerunError: no autoscaler, no SLO, or a scenario that cannot run.
    """
    from simulator.studies.plan.objectives import positive_number
    from simulator.studies.plan.thresholds import best_thresholds
    from simulator.studies.study_file import study_of

    _check_artefact(emit)
    words = [word for one in targets or () for word in str(one).split(",")]
    values = [positive_number("target", word, word) for word in words] or None
    seeds = range(seed, seed + replications)
    return best_thresholds(study_of(scenario).scenario, values, seeds, emit, jobs, progress)


def _check_artefact(name: str | None) -> None:
    """Refuse the name of an unknown artefact before a long computation starts."""
    from simulator.studies.artefacts import ARTEFACTS

    if name is not None and name not in ARTEFACTS:
        known = ", ".join(ARTEFACTS)
        raise ArgumentError("emit", f"{name}: no such artefact{did_you_mean(name, ARTEFACTS)} ({known})")
