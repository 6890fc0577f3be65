"""``forerun replay``: predictions beside measured kernels, engine steps and benchmark results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import (
    JsonOption,
    OutOption,
    Progress,
    ResidualOption,
    SetOption,
    checked_outputs,
    emit,
    printed,
)

EXIT_GATE_FAILED = 1

replay = typer.Typer(
    help="Compare predictions with your measured kernels, engine steps or benchmark results.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(replay, name="replay")
    replay.command(
        "kernels",
        epilog="Example: forerun replay kernels gemm_perf.parquet --chip h100-sxm --library trtllm --out out/gemm",
    )(kernels)
    replay.command(
        "requests",
        epilog="Example: forerun replay requests result.json --scenario base.yaml --out out/served",
    )(requests)
    replay.command("steps", epilog="Example: forerun replay steps steps.csv --scenario base.yaml --out out/steps")(
        steps
    )


FilesArgument = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Kernel traces, folders of them, or silicon:FOLDER.", show_default=False),
]
FormatOption = Annotated[str, typer.Option("--format", help="Format of the files; auto recognises it.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="Only rows of the device with this in its name.")]
WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", metavar="CONDITION", help="Only rows with COLUMN>=N, COLUMN<=N or COLUMN=VALUE."),
]


def kernels(
    files: FilesArgument,
    chip: Annotated[str, typer.Option(help="Catalogue name or profile file.", show_default=False)],
    library: Annotated[
        str, typer.Option(help="Kernel library: generic, vllm, sglang, trtllm, portable (older than the chip) ...")
    ] = "generic",
    format: FormatOption = "auto",
    split: Annotated[
        str | None, typer.Option(metavar="train=SHARE,seed=N", help="Score only shapes this split holds out.")
    ] = None,
    where: WhereOption = None,
    device: DeviceOption = None,
    residual: ResidualOption = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OP.]METRIC=VALUE", help="Exit 1 when mape, median_ape, p90_ape or |bias| exceeds VALUE."
        ),
    ] = None,
    json_file: JsonOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "--output", metavar="DIR", help="Write replay.json and report.html here.")
    ] = None,
) -> int:
    """Predict every measured kernel of a trace and show how far off the predictions are."""
    from forerun.errors import ForerunError
    from hwprofiles import KernelLibrary, load_chip
    from hwprofiles.library import CORRECTED
    from simulator.replay import exceeded, parse_limit, parse_split, replay_kernels
    from simulator.replay.kernels import trace_library
    from simulator.replay.replay_tables import cold_words
    from traces.kernels import concatenate, read_kernels

    limits = [parse_limit(text) for text in fail_above or []]
    held_out = parse_split(split) if split is not None else None
    with checked_outputs(out, json_file):
        on = CORRECTED if residual is None else residual
        chosen = KernelLibrary(load_chip(chip), library)
        if residual and not chosen.reading(True).corrections:
            raise ForerunError(f"--residual: {chip} has no learned correction (forerun calibrate writes one)")
        table = concatenate([read_kernels(file, format, device=device) for file in files])
        chosen = KernelLibrary(chosen.chip, trace_library(table, library), corrected=on)
        report = replay_kernels(table, chosen, held_out, where or [])
        if out is not None:
            report.save(out)
        notes = {"notes": [words] if (words := cold_words(report.document)) else []}
        emit(report.document, json_file, printed(report.title, report.facts, report.tables(), notes))
    return _gate(exceeded(limits, report.gated))


def requests(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Measured runs, or folders of them.", show_default=False)
    ],
    scenario: Annotated[
        Path,
        typer.Option(metavar="SCENARIO", help="Scenario that gives what the runs do not tell.", show_default=False),
    ],
    format: FormatOption = "auto",
    set_values: SetOption = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Only runs with FACT=VALUE, FACT~PART, FACT>=N or FACT<=N."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="train=SHARE,seed=N", help="Score only configurations this split holds out.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many runs, evenly chosen.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulations.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: every core.")] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METRIC.]FIGURE=VALUE",
            help="Exit 1 when a figure (mape, median_ape, p90_ape, |bias|) exceeds VALUE, e.g. tpot.mape=7.",
        ),
    ] = None,
    json_file: JsonOption = None,
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
        base = load_scenario(scenario, set_values or [])
        runs = [run for file in files for run in read_runs(file, format)]
        processes = min(jobs or cores(), len(runs))
        with Workers(processes if processes > 1 else 0) as workers, Progress(True, "runs") as bar:
            start = workers.start if processes > 1 else None
            report = replay_requests(
                runs, base, files, held_out, where or [], limit, seed, start=start, progress=bar.update
            )
        if out is not None:
            report.save(out)
        emit(report.document, json_file, printed(report.title, report.facts, report.tables(), report.document))
    return _gate(exceeded(limits, report.gated))


def steps(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Measured engine steps.", show_default=False)],
    scenario: Annotated[
        Path, typer.Option(metavar="SCENARIO", help="Model, chips and engine of the steps.", show_default=False)
    ],
    format: FormatOption = "auto",
    set_values: SetOption = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND.]FIGURE=VALUE",
            help="Exit 1 when mape, median_ape, p90_ape or |bias|, of all or of one kind, exceeds VALUE.",
        ),
    ] = None,
    json_file: JsonOption = None,
    out: OutOption = None,
) -> int:
    """Predict measured engine steps from their batch composition and show how far off the predictions are."""
    from types import SimpleNamespace

    from simulator.replay.replay_tables import replay_heading, step_replay_tables
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
        emit(document, json_file, printed(*replay_heading(document), step_replay_tables(document), document))
    return _gate(lines)


def _gate(lines: list[str]) -> int:
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    return EXIT_GATE_FAILED if lines else 0
