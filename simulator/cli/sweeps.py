"""``forerun sweep``: every combination, resumable, on all cores or a cluster."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.compares import SetOption
from simulator.cli.output import STDOUT, JsonOption, Progress, checked_outputs, emit

if TYPE_CHECKING:
    from simulator.studies.sweep.study import Study


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "sweep",
        epilog="Examples: forerun sweep chat.yaml --vary hardware.tensor_parallel=1,2,4 --vary "
        "engine.max_num_seqs=64,256 --store chat.sweep  |  forerun sweep chat.yaml --vary "
        "workload.arrivals.request_rate=1..50:log --design latin-hypercube --samples 100 --store chat.sweep",
    )(sweep)


def sweep(
    scenario: Annotated[
        Path, typer.Argument(metavar="SCENARIO", help="A scenario or study file, YAML or JSON.", show_default=False)
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary", metavar="PATH=V1,V2,...", help="Values of a field, as YAML, or LOW..HIGH[:log]; repeatable."
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where results are kept and resumed from; default: SCENARIO's name + .sweep."
        ),
    ] = None,
    set_values: SetOption = None,
    design: Annotated[
        str, typer.Option(metavar="NAME", help="grid, random or latin-hypercube; the latter two need --samples.")
    ] = "grid",
    samples: Annotated[int | None, typer.Option(metavar="N", help="Points that a random design draws.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed of every point, and of the draws.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=10_000, help="Runs of every point, with seeds SEED, SEED+1, ...")
    ] = 1,
    metric: Annotated[
        str, typer.Option(metavar="KEY", help="Metric that the best point is named by.")
    ] = "mean_e2el_ms",
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Dask scheduler such as tcp://host:8786, or local for one started here."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run points again that failed before.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write sweep.json, study.yaml, report.html and report.md.")
    ] = None,
    json_file: JsonOption = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Never show a progress bar.")] = False,
) -> int:
    """Run every combination of values; killed at any moment, the same command goes on where it stopped."""
    from simulator.cli.study_tables import sweep_tables
    from simulator.errors import ForerunError
    from simulator.studies.study_file import DESIGNS, load_study
    from simulator.studies.sweep.study import Study, checked_metric, sweep_sentence

    chosen = next((known for known in DESIGNS if known == design), None)
    if chosen is None:
        raise ForerunError(f"--design {design}: one of {', '.join(DESIGNS)}")
    checked_metric(metric)
    source = load_study(scenario, tuple(set_values or ()), tuple(vary or ()))
    study = Study(source, design=chosen, samples=samples, seed=seed, replications=replications)
    kept = store if store is not None else Path(f"{scenario.stem}.sweep")
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "sweeping") as progress:
            result = study.run(kept, jobs, cluster, progress.update, retry_failed)
        document = result.document()
        document["metric"] = metric
        document["conclusion"] = sweep_sentence(document, metric)
        if out is not None:
            write_outputs(out, document, study, metric)
    emit(document, json_file, sweep_tables(document))
    print(f"Results are kept in {kept}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if out is not None:
        print(f"Wrote {out}: open {out / 'report.html'}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if not document["counts"]["done"]:
        first = result.failed[0]
        raise ForerunError(f"every point failed; the first, {first.name}: {first.error}")
    return 0


def write_outputs(folder: Path, document: dict[str, Any], study: Study, metric: str) -> None:
    """Write the JSON, the study file that reruns it, and the report as HTML and Markdown; all or none."""
    from dashboards.study_report import study_html, study_markdown
    from dashboards.sweep_report import sweep_report
    from simulator.metrics.document import json_text
    from simulator.metrics.files import StagedFiles
    from simulator.studies.study_file import sweep_text

    words = ["forerun", "sweep", "study.yaml", "--store", "again.sweep", "--seed", str(study.seed)]
    words += ["--replications", str(study.replications), "--metric", metric]
    report = sweep_report(document, shlex.join(words))
    with StagedFiles(folder) as staged:
        staged.add_text("sweep.json", json_text(document))
        staged.add_text("study.yaml", sweep_text(document["scenario"], [point["set"] for point in document["points"]]))
        staged.add_text("report.html", study_html(report))
        staged.add_text("report.md", study_markdown(report))
