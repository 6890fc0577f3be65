"""Served requests: every table of measured serving runs in a folder, served again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dashboards.recorded_errors import ErrorRow
from forerun.errors import ForerunError
from hwprofiles import weakest
from simulator.llm.load import catalogue_model
from simulator.replay.explain import Start
from simulator.replay.requests import RequestReplay, replay_requests
from simulator.replay.split import Split
from simulator.running import measured
from simulator.running.measured_runs import framework_name
from simulator.running.scenario import Scenario, scenario_from
from simulator.timing.releases import framework_of_version
from traces import TraceError
from traces.benchmark_results import POWER, MeasuredRun, read_runs
from validation import tables as tables  # lets read_runs read them
from validation.facts import fitted_words
from validation.steps import step_errors
from validation.tables.contradictions import without_contradictions

FIGURES = (*measured.FIGURES, (POWER,))
"""Figures that are scored, each under the first of its metrics that was measured."""
SUFFIXES = (".csv", ".json", ".jsonl")
SPLIT = Split(0.5, 1)
"""The split under which host costs were fitted: configurations on its training side are left out."""
LIMIT = 40
"""Runs of a table that are simulated, evenly chosen."""

Progress = Callable[[int, int], None]


def base_scenario() -> Scenario:
    """Facts that a run leaves open: one H100 under vLLM, eight requests at a time."""
    return scenario_from(
        {
            "model": "llama-3.1-8b",
            "hardware": {"chip": "h100-sxm"},
            "workload": {
                "arrivals": {"process": "closed-loop", "max_concurrency": 8},
                "input_tokens": 512,
                "output_tokens": 128,
                "num_requests": 64,
            },
        },
        "base scenario",
    )


def measured_request_errors(
    folder: Path, limit: int = LIMIT, start: Start | None = None, progress: Progress | None = None
) -> tuple[list[ErrorRow], Counter[str]]:
    """Errors of simulated against measured runs, by table.

    Only runs that name their model, chip, engine and load themselves are served again.

    Args:
        folder: of measured runs; what is none is counted and left.
        limit: runs of a table that are simulated.
        start: runs work on other processes; None = here.
        progress: called with (tables done, tables).

    Returns:
        The rows, and why files or runs were left out, with how many of them.

    Raises:
        ForerunError: no run in the folder can be simulated.
    """
    left: Counter[str] = Counter()
    tables: list[tuple[str, list[MeasuredRun]]] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES)):
        try:
            runs = without_contradictions(list(read_runs(str(path))))
        except TraceError:
            left["files that hold no measured runs"] += 1
            continue
        described = [run for run in runs if run.model and run.chip and run.framework]
        left["runs that do not name model, chip and engine"] += len(runs) - len(described)
        if described:
            tables.append((str(path.relative_to(folder)), described))
    rows: list[ErrorRow] = []
    for done, (name, runs) in enumerate(tables, 1):
        try:
            replay = replay_requests(runs, base_scenario(), (name,), SPLIT, limit=limit, start=start)
        except ForerunError:
            left["tables of which no run can be simulated"] += 1
        else:
            left.update(_reasons(replay))
            rows += _rows(name, replay)
        if progress is not None:
            progress(done, len(tables))
    rows += step_errors(folder, base_scenario(), limit)
    if not rows:
        raise ForerunError(f"{folder}: no measured serving run in this folder can be simulated")
    return rows, left


def _reasons(replay: RequestReplay) -> Counter[str]:
    """Why runs were left out, without the values that make each reason its own."""
    counts: Counter[str] = Counter()
    for reason, count in replay.skipped.items():
        counts[reason.split(":")[0] if " fit " in reason else reason] += count
    return counts


def engine_constants(runs: Sequence[MeasuredRun]) -> set[str]:
    """Host costs and routers that simulations of some runs take, as facts name them."""
    named = [(framework_name(run.framework or ""), run.framework_version) for run in runs]
    engines = {f"frameworks.yaml: {framework_of_version(name, version)}" for name, version in named if name is not None}
    return engines | {f"{catalogue_model(run.model or '')}.yaml: expert_routing" for run in runs}


def scored_metrics(runs: Sequence[MeasuredRun]) -> list[str]:
    """The metric of each of ``FIGURES`` that some of the runs measured: means, where there is none medians."""
    measured = {metric for run in runs for metric in run.measured}
    return [next(metric for metric in names if metric in measured) for names in FIGURES if measured & set(names)]


def _rows(name: str, replay: RequestReplay) -> Sequence[ErrorRow]:
    stem = Path(name).name.split(".")[0]
    metrics = scored_metrics([outcome.run for outcome in replay.outcomes if outcome.skipped is None])
    engines = engine_constants([outcome.run for outcome in replay.outcomes if outcome.skipped is None])
    bases = [outcome.basis for outcome in replay.outcomes if outcome.basis is not None]
    basis = weakest(bases) if bases else None
    return [
        ErrorRow(
            "requests",
            name,
            score.metric,
            score.n,
            score.mape,
            score.median_ape,
            score.bias,
            basis,
            fitted_words(stem, engines),
            False,
        )
        for score in replay.scores
        if score.group == "all" and score.metric in metrics
    ]
