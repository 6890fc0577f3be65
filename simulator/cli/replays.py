"""``forerun replay``: predictions beside measured kernels, engine steps and benchmark results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option, Typer

from simulator.cli.output import (
    FullOption,
    JobsOption,
    JsonOption,
    OutOption,
    Progress,
    ResidualOption,
    SetOption,
    checked_outputs,
    emit,
    printed,
    show,
)

EXIT_GATE_FAILED = 1
LARGE_RUN, MOST_TRIES = 1000, 64
"""Requests of a run from which its causes are tried on several processes, and about how many tries there are."""


def register(commands: Typer) -> None:
    replay = Typer(
        name="replay",
        help="Compare predictions with your measured kernels, engine steps or benchmark results.",
        no_args_is_help=True,
    )
    examples: dict[Callable[..., int], str] = {
        kernels: "gemm_perf.parquet --chip h100-sxm --library trtllm --out out/gemm",
        requests: "result.json --scenario base.yaml --out out/served",
        steps: "steps.csv --scenario base.yaml --out out/steps",
    }
    for command, example in examples.items():
        replay.command(epilog=f"Example: forerun replay {command.__name__} {example}")(command)
    commands.add_typer(replay)


FilesArgument = Annotated[
    list[str],
    Argument(metavar="FILE...", help="Kernel traces, folders of them, or silicon:FOLDER.", show_default=False),
]
FormatOption = Annotated[str, Option("--format", help="Format of the files; auto recognises it.")]
DeviceOption = Annotated[str | None, Option("--device", help="Only rows of the device with this in its name.")]
Texts = list[str] | None


def _gate_option(metavar: str, words: str) -> Any:
    return Option("--fail-above", metavar=f"{metavar}=VALUE", help=f"Exit 1 when {words}.")


def _where_option(conditions: str) -> Any:
    return Option("--where", metavar="CONDITION", help=f"Only {conditions}.")


def _split_option(what: str) -> Any:
    return Option("--split", metavar="train=SHARE,seed=N", help=f"Score only {what} this split holds out.")


def kernels(
    files: FilesArgument,
    chip: Annotated[str, Option(help="Catalogue name or profile file.", show_default=False)],
    library: Annotated[
        str, Option(help="Kernel library: generic, vllm, sglang, trtllm, portable (older than the chip) ...")
    ] = "generic",
    format: FormatOption = "auto",
    split: Annotated[str | None, _split_option("shapes")] = None,
    where: Annotated[Texts, _where_option("rows with COLUMN>=N, COLUMN<=N or COLUMN=VALUE")] = None,
    device: DeviceOption = None,
    residual: ResidualOption = None,
    fail_above: Annotated[
        Texts, _gate_option("[OP.]METRIC", "mape, median_ape, p90_ape or |bias| exceeds VALUE")
    ] = None,
    json_file: JsonOption = None,
    full: FullOption = False,
    out: Annotated[
        Path | None, Option("--out", "--output", metavar="DIR", help="Write replay.json and report.html here.")
    ] = None,
) -> int:
    """Predict every measured kernel of a trace and show how far off the predictions are."""
    from forerun.errors import ForerunError
    from hwprofiles import KernelLibrary, load_chip
    from hwprofiles.library import CORRECTED
    from simulator.replay import exceeded, parse_limit, parse_split, replay_kernels
    from simulator.replay.kernels import kernels_by_time, kernels_by_time_table, trace_library
    from traces.kernels import concatenate, read_kernels

    limits = [parse_limit(text) for text in fail_above or []]
    held_out = parse_split(split) if split is not None else None
    with checked_outputs(out, json_file):
        on = CORRECTED if residual is None else residual
        chosen = KernelLibrary(load_chip(chip), library)
        if residual and not chosen.reading(True).corrections:
            raise ForerunError(f"--residual: {chip} has no learned correction (forerun calibrate writes one)")
        table = concatenate([read_kernels(file, format, device=device) for file in files])
        if table.ops == ("other",):
            for option, value in {"fail-above": fail_above, "split": split, "where": where, "out": out}.items():
                if value:
                    raise ForerunError(f"--{option}: no kernel of {table.source} has a shape: nothing is scored")
            document = kernels_by_time(table)
            unscored = "note: names and times alone, no shapes: nothing to predict, and nothing is scored"
            if table.format == "vllm-layerwise" and files[0].endswith(".csv"):
                unscored += "; rows of layers contain those of their kernels (the profiler's JSON has both separately)"
            emit(document, json_file, [kernels_by_time_table(document), unscored])
            return 0
        chosen = KernelLibrary(chosen.chip, trace_library(table, library), corrected=on)
        report = replay_kernels(table, chosen, held_out, where or [])
        show(report, json_file, out, full=full)
    return _gate(exceeded(limits, report.gated))


def requests(
    files: Annotated[
        list[str], Argument(metavar="FILE...", help="Measured runs, or folders of them.", show_default=False)
    ],
    scenario: Annotated[
        str | None,
        Option(metavar="SCENARIO", help="Scenario that gives what the runs do not state.", show_default=False),
    ] = None,
    chip: Annotated[str | None, Option(help="Chip, where neither the runs nor a scenario name it.")] = None,
    format: FormatOption = "auto",
    set_values: SetOption = None,
    where: Annotated[Texts, _where_option("runs with FACT=VALUE, FACT~PART, FACT>=N or FACT<=N")] = None,
    split: Annotated[str | None, _split_option("configurations")] = None,
    limit: Annotated[int | None, Option(min=1, help="At most so many runs, evenly chosen.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the simulations.")] = 0,
    explain: Annotated[
        bool, Option("--explain", help="Rank causes of the gap of the run furthest off, and what would help it.")
    ] = False,
    jobs: JobsOption = None,
    fail_above: Annotated[
        Texts,
        _gate_option("[METRIC.]FIGURE", "a figure (mape, median_ape, p90_ape, |bias|) exceeds VALUE, e.g. tpot.mape=7"),
    ] = None,
    json_file: JsonOption = None,
    full: FullOption = False,
    out: OutOption = None,
) -> int:
    """Serve every measured run again in the simulator and show how far off it is."""
    from forerun.workers import Workers, cores
    from simulator.replay.requests import replay_requests
    from simulator.replay.scores import exceeded, parse_limit
    from simulator.replay.split import parse_split
    from simulator.running.scenario import load_scenario
    from traces.benchmark_results import read_runs

    limits = [parse_limit(text) for text in fail_above or []]
    held_out = parse_split(split) if split is not None else None
    with checked_outputs(out, json_file):
        overrides = [*(set_values or []), *([] if chip is None else [f"hardware.chip={chip}"])]
        base = None if scenario is None else load_scenario(scenario, overrides)
        runs = [run for file in files for run in read_runs(file, format)]
        large = explain and any((run.num_requests or 0) > LARGE_RUN for run in runs)
        processes = min(jobs or cores(), len(runs) if not large else MOST_TRIES)
        with Workers(processes if processes > 1 else 0) as workers, Progress(True, "runs") as bar:
            start = workers.start if processes > 1 else None
            report = replay_requests(
                runs, base, files, held_out, where or [], limit, seed, explain, start, bar.update, overrides
            )
        show(report, json_file, out, full=full)
    return _gate(exceeded(limits, report.gated))


def steps(
    files: Annotated[list[str], Argument(metavar="FILE...", help="Measured engine steps.", show_default=False)],
    scenario: Annotated[
        str, Option(metavar="SCENARIO", help="Model, chips and engine of the steps.", show_default=False)
    ],
    format: FormatOption = "auto",
    set_values: SetOption = None,
    fail_above: Annotated[
        Texts,
        _gate_option("[KIND.]FIGURE", "mape, median_ape, p90_ape or |bias|, of all or of one kind, exceeds VALUE"),
    ] = None,
    json_file: JsonOption = None,
    full: FullOption = False,
    out: OutOption = None,
) -> int:
    """Predict measured engine steps from their batch composition and show how far off the predictions are."""
    from types import SimpleNamespace

    from simulator.replay.replay_tables import replay_conclusion, replay_heading, step_replay_tables
    from simulator.replay.scores import exceeded, parse_limit
    from simulator.replay.steps import steps_document
    from simulator.running.scenario import load_scenario
    from traces.steps import read_steps

    limits = [parse_limit(text) for text in fail_above or []]
    with checked_outputs(out, json_file):
        base = load_scenario(scenario, set_values or [])
        document = steps_document([read_steps(file, format) for file in files], base)
        groups = (*document["groups"], document["overall"])
        lines = exceeded(limits, [(group["kind"], group["kind"], SimpleNamespace(**group)) for group in groups])
        if out is not None:
            from dashboards.replay_report import write_replay

            write_replay(out, document)
        conclusion = replay_conclusion(document)
        emit(
            document, json_file, printed(*replay_heading(document), step_replay_tables(document), conclusion, full=full)
        )
    return _gate(lines)


def _gate(lines: list[str]) -> int:
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    return EXIT_GATE_FAILED if lines else 0
