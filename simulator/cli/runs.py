"""``forerun run`` and ``forerun report``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

from forerun.workers import Workers, cores
from simulator.cli.output import (
    STDOUT,
    FullOption,
    JsonOption,
    NoIntervalOption,
    NoProgressOption,
    Progress,
    ScenarioArgument,
    SetOption,
    ShortcutOptions,
    checked_outputs,
    chosen,
    emit,
    note_slow_engine,
    printed,
)

if TYPE_CHECKING:
    from forerun.errors import InvariantError
    from simulator.running.run import RunResult
    from simulator.running.scenario import Scenario


def register(commands: Typer) -> None:
    commands.command("run", epilog="Example: forerun run chat.yaml --set engine.max_num_seqs=128 --out out/chat")(run)
    commands.command("report", epilog="Example: forerun report out/chat")(report)


def run(
    scenario: ScenarioArgument,
    set_values: SetOption = None,
    chip: ShortcutOptions.chip = None,
    trace: ShortcutOptions.trace = None,
    rate: ShortcutOptions.rate = None,
    router: ShortcutOptions.router = None,
    measured: ShortcutOptions.measured = None,
    seed: Annotated[int, Option(min=0, help="Seed of arrivals, lengths and acceptance.")] = 0,
    replications: Annotated[
        int, Option(min=1, max=10_000, help="Runs with seeds SEED, SEED+1, ...; figures are their means.")
    ] = 1,
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "--output",
            metavar="DIR",
            help="Write summary.json, Parquet tables, report.html and trace.json (Perfetto).",
        ),
    ] = None,
    json_file: JsonOption = None,
    full: FullOption = False,
    jobs: Annotated[
        int | None, Option(min=1, help="Processes that share the replications; default: one per core.")
    ] = None,
    no_steps: Annotated[
        bool,
        Option("--no-steps", help="Write no step records with --out: less memory and no timeline of a long run."),
    ] = False,
    no_interval: NoIntervalOption = False,
    emit_command: Annotated[
        str | None,
        Option(
            "--emit",
            metavar="NAME",
            help="Print the command of guidellm, aiperf or vllm-bench for this load; or the router: endpoint-picker.",
        ),
    ] = None,
    no_progress: NoProgressOption = False,
) -> int:
    """Simulate one scenario and print its latency, throughput and bottleneck."""
    from forerun.errors import ForerunError
    from simulator.running.metrics.tables import run_facts, run_legend, run_tables, run_title
    from simulator.running.scenario import load_scenario, place_of

    loaded = load_scenario(scenario, chosen(set_values, chip, trace, rate, measured, router))
    command = None if emit_command is None else _client_command(emit_command, loaded)
    with checked_outputs(out, json_file):
        try:
            first, document, ended = replicate(
                loaded,
                seed,
                replications,
                jobs,
                keep_steps=out is not None and not no_steps,
                show_progress=not no_progress,
                intervals=not no_interval,
            )
        except ForerunError as error:
            raise ForerunError(f"{place_of(scenario)}: {error}") from None
        if out is not None:
            from dashboards.report import REPORT_FILE, write_report
            from simulator.running.metrics.run_folder import write_run

            document = write_run(out, first, document, {REPORT_FILE: write_report})
    emit(
        document,
        json_file,
        lambda: printed(
            run_title(document),
            run_facts(document),
            run_tables(document),
            document["conclusion"],
            run_legend(document),
            document["notes"],
            full,
        ),
    )
    note_slow_engine()
    if command is not None:
        print(f"\n{command}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if out is not None:
        print(f"Wrote {out}: open {out / 'report.html'}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if ended is not None:
        raise ended
    return 0


def _client_command(name: str, scenario: Scenario) -> str:
    """Command of a benchmark client for the scenario's load, or its router as a file."""
    from forerun.errors import ArgumentError
    from simulator.studies.artefacts import ARTEFACTS, CLIENTS

    if name not in (*CLIENTS, "endpoint-picker"):
        raise ArgumentError("emit", f"{name} is no benchmark client: one of {', '.join(CLIENTS)}, or endpoint-picker")
    return ARTEFACTS[name](scenario)


def replicate(
    scenario: Scenario,
    seed: int,
    replications: int,
    jobs: int | None = 1,
    keep_steps: bool = True,
    show_progress: bool = False,
    intervals: bool = False,
) -> tuple[RunResult, dict[str, Any], BaseException | None]:
    """Run ``scenario`` with seeds ``seed``, ``seed + 1``, ... and combine the results.

    The first run is made in this process, with the model error if ``intervals``; the other runs are made by ``jobs``
    processes (None: one per core). Results do not depend on ``jobs``.

    Returns:
        The first result, the combined document of the finished runs, and the exception to raise once these are written:
        Ctrl-C, a dead worker, or a broken invariant.
    """
    from forerun.errors import InvariantError, WorkerDiedError
    from simulator.running.metrics import combine_replications, run_document
    from simulator.running.run import simulate

    full_rows = None if keep_steps else 0
    documents: list[dict[str, Any]] = []
    alarms: list[InvariantError] = []
    ended: list[BaseException] = []
    processes = min(replications - 1, jobs or cores()) if jobs != 1 else 0
    with Progress(show_progress, "simulating") as progress, Workers(processes) as workers:
        others = [workers.start(run_and_document, scenario, seed + n) for n in range(1, replications)]
        if replications > 1:
            progress.label = f"{replications} runs"
        try:
            first = simulate(scenario, seed, progress.update, full_rows, intervals=intervals)
        except InvariantError as error:
            if error.result is None:
                raise
            first = error.result
            alarms.append(error)
        documents.append(run_document(first))
        for other in others:
            try:
                other_document, alarm = other()
            except KeyboardInterrupt as error:
                ended.append(error)
                break
            except WorkerDiedError as error:
                ended.append(error)
                continue
            documents.append(other_document)
            alarms += [alarm] if alarm is not None else []
    document = combine_replications(documents)
    if alarms:
        document["broken_invariant"] = alarms[0].invariant
        document["notes"].append(f"this result cannot be, which is a fault of Forerun: {alarms[0].invariant}")
    if ended:
        reason = "interrupted" if isinstance(ended[-1], KeyboardInterrupt) else str(ended[-1])
        document["notes"].append(f"{len(documents)} of {replications} runs finished: {reason}")
    return first, document, next(iter([*alarms, *ended]), None)


def run_and_document(scenario: Scenario, seed: int) -> tuple[dict[str, Any], InvariantError | None]:
    """The document of one run, and its broken invariant if any, as a worker process returns them."""
    from forerun.errors import InvariantError
    from simulator.running.metrics import run_document
    from simulator.running.run import simulate

    try:
        return run_document(simulate(scenario, seed, full_step_rows=0)), None
    except InvariantError as error:
        if error.result is None:
            raise
        return run_document(error.result), error


def report(
    folder: Annotated[Path, Argument(metavar="DIR", help="A folder that forerun run --out wrote.", show_default=False)],
    output: Annotated[
        Path | None,
        Option("--output", "--out", metavar="FILE", help="Where the page goes; default: report.html in DIR."),
    ] = None,
) -> int:
    """Write a run as one self-contained HTML report."""
    from dashboards.report import write_report

    print(write_report(folder, output))
    return 0
