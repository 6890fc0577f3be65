"""``forerun replay steps``: measured engine steps beside predicted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.output import JsonOption, checked_outputs, emit

EXIT_GATE_FAILED = 1


def register(replay: typer.Typer) -> None:
    """Add the command to ``forerun replay``."""
    replay.command("steps", epilog="Example: forerun replay steps steps.csv --scenario base.yaml --out out/steps")(
        steps
    )


def steps(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Measured engine steps.", show_default=False)],
    scenario: Annotated[
        Path, typer.Option(metavar="SCENARIO", help="Model, chips and engine of the steps.", show_default=False)
    ],
    format: Annotated[str, typer.Option("--format", help="Format of the files; auto recognises it.")] = "auto",
    set_values: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Override a scenario value.")
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[KIND.]FIGURE=VALUE",
            help="Exit 1 when mape, median_ape, p90_ape or |bias|, of all or of one kind, exceeds VALUE.",
        ),
    ] = None,
    json_file: JsonOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write replay.json and report.html here.")] = None,
) -> int:
    """Predict measured engine steps from their batch composition and show how far off the predictions are."""
    import sys
    from types import SimpleNamespace

    from simulator.cli.replay_run_tables import step_tables
    from simulator.metrics.document import json_text
    from simulator.metrics.files import write_text_atomically
    from simulator.replay.gate import exceeded, parse_limit
    from simulator.replay.steps import replay_steps, steps_document
    from simulator.scenario import load_scenario
    from traces.steps import read_steps

    limits = [parse_limit(text) for text in fail_above or []]
    with checked_outputs(out, json_file):
        base = load_scenario(scenario, set_values or [])
        document = steps_document(replay_steps([read_steps(file, format) for file in files], base))
        groups = (*document["groups"], document["overall"])
        lines = exceeded(limits, [(group["kind"], group["kind"], SimpleNamespace(**group)) for group in groups])
        if out is not None:
            from dashboards.steps_report import write_steps_report

            write_text_atomically(out / "replay.json", json_text(document))
            write_steps_report(document, out / "report.html")
        emit(document, json_file, step_tables(document))
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    return EXIT_GATE_FAILED if lines else 0
