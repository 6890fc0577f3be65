"""``forerun tune``: the best speculation per batch size and context, as a table and as an engine's flags."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.compares import SetOption
from simulator.cli.output import STDOUT, JsonOption, Progress, checked_outputs, emit

if TYPE_CHECKING:
    from simulator.scenario import Scenario

AXIS = "1,8,64 or doubling 1..256"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "tune",
        epilog="Examples: forerun tune chat.yaml --emit vllm  |  "
        "forerun tune chat.yaml --batch 1..256 --context 1024,8192 --tokens 1,3,5 --out out/tune",
    )(tune)


def tune(
    scenario: Annotated[
        Path,
        typer.Argument(
            metavar="SCENARIO", help="Scenario file with a speculation section, YAML or JSON.", show_default=False
        ),
    ],
    batch: Annotated[
        list[str] | None,
        typer.Option(metavar="B1,B2,...", help=f"Batch sizes: {AXIS}; default: doubling to max_num_seqs."),
    ] = None,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="C1,C2,...", help="Context lengths in tokens; default: 512,2048,8192,32768."),
    ] = None,
    tokens: Annotated[
        list[str] | None,
        typer.Option(metavar="K1,K2,...", help="Draft tokens to try; default: 1..8 as far as acceptance is known."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--emit", metavar="ENGINE", help="Whose flags to print: vllm or sglang; default: the scenario's."),
    ] = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Noted in the result, which has nothing random.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write tune.json, scenario.yaml, report.html and report.md.")
    ] = None,
    json_file: JsonOption = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Never show a progress bar.")] = False,
) -> int:
    """Find the best number of draft tokens (or the best tree) per batch and context, with intervals."""
    from simulator.cli.tune_tables import tune_tables
    from simulator.errors import ForerunError
    from simulator.studies.study_file import load_study
    from simulator.studies.tune.document import checked_engine, default_engine, tune_document
    from simulator.studies.tune.tuning import axis_values
    from simulator.studies.tune.tuning import tune as run_tuning

    study = load_study(scenario, tuple(set_values or ()))
    if study.vary or study.variants:
        raise ForerunError(f"{scenario}: vary, variants: tune takes one scenario; use forerun compare for several")
    axes = [
        axis_values(texts, option) if texts else None
        for texts, option in ((batch, "--batch"), (context, "--context"), (tokens, "--tokens"))
    ]
    wanted = default_engine(study.scenario) if engine is None else checked_engine(engine)
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "tuning") as progress:
            found = run_tuning(study.scenario, axes[0], axes[1], axes[2], progress.update)
        document = tune_document(found, wanted, strict=engine is not None) | {"seed": seed}
        if out is not None:
            write_outputs(out, document, study.scenario, command_text(axes, wanted))
    emit(document, json_file, tune_tables(document))
    if json_file != STDOUT and document["emit"]:
        print(document["emit"])
    if out is not None:
        print(f"Wrote {out}: open {out / 'report.html'}", file=sys.stderr)
    return 0


def command_text(axes: list[tuple[int, ...] | None], engine: str) -> str:
    """The command that makes the tuning again from its ``scenario.yaml``."""
    words = ["forerun", "tune", "scenario.yaml", "--emit", engine]
    for option, values in zip(("--batch", "--context", "--tokens"), axes, strict=True):
        if values is not None:
            words += [option, ",".join(map(str, values))]
    return shlex.join(words)


def write_outputs(folder: Path, document: dict[str, Any], scenario: Scenario, command: str) -> None:
    """Write the JSON, the scenario that reruns it, and the report as HTML and Markdown; all or none."""
    from dashboards.study_report import scenario_yaml, study_html, study_markdown
    from dashboards.tune_report import tune_report
    from simulator.metrics.document import json_text, scenario_document
    from simulator.metrics.files import StagedFiles

    report = tune_report(document, command)
    with StagedFiles(folder) as staged:
        staged.add_text("tune.json", json_text(document))
        staged.add_text("scenario.yaml", scenario_yaml(scenario_document(scenario)))
        staged.add_text("report.html", study_html(report))
        staged.add_text("report.md", study_markdown(report))
