"""``forerun plan``: the cheapest layout for a load and an SLO, or the highest load of each layout."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.compares import SetOption
from simulator.cli.output import STDOUT, JsonOption, Progress, checked_outputs, emit

if TYPE_CHECKING:
    from simulator.studies.plan.search import PlanOptions
    from simulator.studies.study_file import StudyFile

EXIT_NOTHING_HOLDS = 1


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "plan",
        epilog="Examples: forerun plan chat.yaml --rate 20 --slo p99_ttft_ms=1000 --slo p99_tpot_ms=60  |  "
        "forerun plan chat.yaml --trace azure-conv-2023 --growth 4 --vary hardware.chip=h100-sxm,a100-sxm-80gb  |  "
        "forerun plan chat.yaml --max-rate --slo goodput=0.95 --slo ttft_ms=1000 --slo tpot_ms=60",
    )(plan)


def plan(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="Scenario or study file, YAML or JSON.", show_default=False)
    ],
    rate: Annotated[
        float | None, typer.Option(metavar="R", help="Requests per second to hold; arrivals are drawn anew.")
    ] = None,
    max_rate: Annotated[
        bool, typer.Option("--max-rate", help="Find the highest rate of every layout, at the scenario's replicas.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Plan for this trace: its lengths and, without --rate, its own arrivals."),
    ] = None,
    growth: Annotated[
        float, typer.Option(metavar="G", help="Plan for G times the rate, or the trace played G times faster.")
    ] = 1.0,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A limit, over the scenario's own: p99_ttft_ms=1000; or goodput=0.95 with ttft_ms=1000 tpot_ms=60.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V1,V2,...",
            help="Values to search of a field: hardware.chip, weights_dtype, speculation.method, hardware.replicas... "
            "Unless varied: tensor_parallel 1,2,4,8, max_num_batched_tokens 2048,8192, speculation on and off.",
        ),
    ] = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; every layout gets the same ones.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs of every layout that is near the limit.")
    ] = 5,
    requests: Annotated[
        int | None,
        typer.Option(min=1, help="Requests of a run; default: the scenario's, and a minute of arrivals at least."),
    ] = None,
    finalists: Annotated[int, typer.Option(min=1, help="Layouts that hold the SLO to show.")] = 5,
    max_replicas: Annotated[int, typer.Option(min=1, max=10_000, help="Most replicas of a layout to try.")] = 64,
    no_headroom: Annotated[
        bool, typer.Option("--no-headroom", help="Do not search the highest rate of the finalists.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plan.json, study.yaml, report.html and report.md.")
    ] = None,
    json_file: JsonOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Never show a progress bar.")] = False,
) -> int:
    """Find the cheapest layout that holds an SLO at a load; exit code 1 when none does."""
    from simulator.cli.plan_tables import plan_tables
    from simulator.errors import ForerunError
    from simulator.studies.plan.document import plan_document
    from simulator.studies.plan.objectives import objective_of
    from simulator.studies.plan.search import PlanOptions, make_plan
    from simulator.studies.study_file import load_study

    if rate is not None and max_rate:
        raise ForerunError("plan: --rate asks for a layout, --max-rate for a rate; give one of the two")
    for name, value in (("--rate", rate), ("--growth", growth)):
        if value is not None and not 0 < value <= 1e9:
            raise ForerunError(f"plan: {name}: must be a positive number, at most 1e9 (got {value:g})")
    if max_rate and growth != 1.0:
        raise ForerunError("plan: --growth has nothing to act on with --max-rate; remove it")
    study = load_study(scenario, tuple(set_values or ()), tuple(vary or ()))
    if trace is not None:
        study = with_trace(study, trace)
    objective = objective_of(study.scenario.slo, tuple(slo or ()))
    mode = "max-rate" if max_rate else "rate" if rate is not None else "own"
    options = PlanOptions(
        mode, rate, growth, seed, replications, requests, finalists, max_replicas, jobs, not no_headroom
    )
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "planning") as progress:
            found = make_plan(study, objective, options, progress.update)
        document = plan_document(found)
        if out is not None:
            write_outputs(out, document, study, command_text(document, options))
    emit(document, json_file, plan_tables(document))
    if out is not None:
        print(f"Wrote {out}: open {out / 'report.html'}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    return 0 if found.best is not None else EXIT_NOTHING_HOLDS


def with_trace(study: StudyFile, trace: str) -> StudyFile:
    """The study with a trace as its workload.

    Raises:
        ForerunError: a trace that the scenario cannot take.
    """
    from simulator.scenario import scenario_from

    data = study.scenario.model_dump(exclude_unset=True)
    data["workload"] = {"trace": trace}
    return replace(study, scenario=scenario_from(data, f"{study.place}: --trace {trace}"))


def command_text(document: dict[str, Any], options: PlanOptions) -> str:
    """The command that makes the plan again from its ``study.yaml``."""
    words = ["forerun", "plan", "study.yaml"]
    if options.mode == "rate":
        words += ["--rate", f"{options.rate:g}"]
    elif options.mode == "max-rate":
        words.append("--max-rate")
    if options.growth != 1.0:
        words += ["--growth", f"{options.growth:g}"]
    for key, value in document["slo"].items():
        words += ["--slo", f"{key}={value:g}"]
    words += ["--seed", str(options.seed), "--replications", str(options.replications)]
    words += ["--finalists", str(options.finalists), "--max-replicas", str(options.max_replicas)]
    if options.requests is not None:
        words += ["--requests", str(options.requests)]
    if not options.headroom:
        words.append("--no-headroom")
    return shlex.join(words)


def write_outputs(folder: Path, document: dict[str, Any], study: StudyFile, command: str) -> None:
    """Write the JSON, the study file that reruns it, and the report as HTML and Markdown; all or none."""
    import yaml

    from dashboards.plan_report import plan_report
    from dashboards.study_report import study_html, study_markdown
    from simulator.metrics.document import json_text, jsonable
    from simulator.metrics.files import StagedFiles

    report = plan_report(document, command)
    again: dict[str, Any] = {"scenario": document["scenario"]}
    if study.vary:
        again["vary"] = jsonable({path: list(values) for path, values in study.vary.items()})  # type: ignore[arg-type]
    if study.variants:
        again["variants"] = [{"name": v.name, "set": jsonable(dict(v.set))} for v in study.variants]
    text = yaml.safe_dump(again, sort_keys=False, default_flow_style=None, width=100)
    with StagedFiles(folder) as staged:
        staged.add_text("plan.json", json_text(document))
        staged.add_text("study.yaml", text)
        staged.add_text("report.html", study_html(report))
        staged.add_text("report.md", study_markdown(report))
