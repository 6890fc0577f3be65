"""``forerun replay kernels``: predictions beside measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli import replay_requests, replay_steps
from simulator.cli.output import JsonOption, checked_outputs, emit

EXIT_GATE_FAILED = 1

replay = typer.Typer(help="Predictions beside measurements.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(replay, name="replay")
    replay.command(
        "kernels",
        epilog="Example: forerun replay kernels gemm_perf.parquet --chip h100-sxm --library trtllm --out out/gemm",
    )(kernels)
    replay_requests.register(replay)
    replay_steps.register(replay)


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
    residual: Annotated[bool, typer.Option(help="Add the profile's learned correction to the physics.")] = False,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OP.]METRIC=VALUE", help="Exit 1 when mape, median_ape, p90_ape or |bias| exceeds VALUE."
        ),
    ] = None,
    json_file: JsonOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write replay.json and report.html here.")] = None,
) -> int:
    """Predict every measured kernel of a trace and show how far off the predictions are."""
    import sys

    from hwprofiles import KernelLibrary, load_chip
    from simulator.cli.replay_tables import replay_tables
    from simulator.metrics.document import json_text
    from simulator.metrics.files import write_text_atomically
    from simulator.replay import exceeded, load_residuals, parse_limit, parse_split, replay_kernels, report_document
    from simulator.replay.kernels import trace_library
    from traces.kernels import concatenate, read_kernels

    limits = [parse_limit(text) for text in fail_above or []]
    held_out = parse_split(split) if split is not None else None
    with checked_outputs(out, json_file):
        chosen = KernelLibrary(load_chip(chip), library)
        table = concatenate([read_kernels(file, format, device=device) for file in files])
        chosen = KernelLibrary(chosen.chip, trace_library(table, library))
        corrections = load_residuals(chip) if residual else None
        report = replay_kernels(table, chosen, held_out, where or [], corrections)
        document = report_document(report)
        if out is not None:
            from dashboards.replay_report import write_replay_report

            write_text_atomically(out / "replay.json", json_text(document))
            write_replay_report(report, out / "report.html")
        emit(document, json_file, replay_tables(document))
    lines = exceeded(limits, report.gated)
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    return EXIT_GATE_FAILED if lines else 0
