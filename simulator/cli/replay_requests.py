"""``forerun replay requests`` and ``forerun replay steps``: served runs and engine steps beside simulated ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import JsonOption, checked_outputs, emit

EXIT_GATE_FAILED = 1

SplitOption = Annotated[
    str | None, typer.Option(metavar="train=SHARE,seed=N", help="Score only configurations this split holds out.")
]
OutOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Write replay.json and report.html here.")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a scenario value.")]


def register(replay: typer.Typer) -> None:
    """Add the commands to ``forerun replay``."""
    replay.command(
        "requests",
        epilog="Example: forerun replay requests silicon_sample.csv --scenario base.yaml --where chip=h100-sxm --out o",
    )(requests)


def requests(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Measured runs, or folders of them.", show_default=False)
    ],
    scenario: Annotated[
        Path,
        typer.Option(metavar="SCENARIO", help="Scenario that gives what the runs do not tell.", show_default=False),
    ],
    format: Annotated[str, typer.Option("--format", help="Format of the files; auto recognises it.")] = "auto",
    set_values: SetOption = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Only runs with FACT=VALUE, FACT~PART, FACT>=N or FACT<=N."),
    ] = None,
    split: SplitOption = None,
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
    import sys

    from simulator.cli.output import Progress
    from simulator.cli.replay_run_tables import request_tables
    from simulator.metrics.document import json_text
    from simulator.metrics.files import write_text_atomically
    from simulator.replay.gate import exceeded, parse_limit
    from simulator.replay.requests import replay_requests, requests_document
    from simulator.replay.split import parse_split
    from simulator.scenario import load_scenario
    from simulator.workers import Workers, cores
    from traces.servings import read_runs

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
        document = requests_document(report)
        if out is not None:
            from dashboards.requests_report import write_requests_report

            write_text_atomically(out / "replay.json", json_text(document))
            write_requests_report(document, out / "report.html")
        emit(document, json_file, request_tables(document))
    lines = exceeded(limits, report.gated)
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    return EXIT_GATE_FAILED if lines else 0
