"""``forerun compare``: a paired what-if."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.output import STDOUT, JsonOption, Progress, checked_outputs, emit

VaryOption = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="PATH=V1,V2,...",
        help="Values of a scenario field, as YAML; the first is the baseline. Repeat for combinations.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override a field everywhere, e.g. engine.max_num_seqs=128."),
]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(
        "compare",
        epilog="Examples: forerun compare chat.yaml --vary speculation.method=none,eagle3  |  "
        "forerun compare a.yaml b.yaml --out out/a-b",
    )(compare)


def compare(
    scenarios: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENARIO...", help="A scenario or study file; or several files to compare.", show_default=False
        ),
    ],
    vary: VaryOption = None,
    set_values: SetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="First seed; every variant gets the same ones.")] = 0,
    replications: Annotated[
        int, typer.Option(min=1, max=10_000, help="Pairs of runs, with seeds SEED, SEED+1, ...")
    ] = 5,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Metric to judge by; default: the study file's, else mean_e2el_ms, or output_throughput offline.",
        ),
    ] = None,
    crossover: Annotated[
        str,
        typer.Option(
            metavar="PATH[=VALUES]",
            help="Where the verdict turns: auto (the load), none, a field, or PATH=LOW..HIGH or PATH=V1,V2,...",
        ),
    ] = "auto",
    no_sensitivity: Annotated[
        bool, typer.Option("--no-sensitivity", help="Do not try the assumed parameters over their ranges.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write compare.json, study.yaml, report.html and report.md."),
    ] = None,
    json_file: JsonOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per core.")] = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Never show a progress bar.")] = False,
) -> int:
    """Compare variants on common random numbers: speedups with 95 % intervals, sensitivity, crossover."""
    from simulator.cli.study_tables import compare_tables
    from simulator.studies.compare.comparison import CompareOptions, metric_of_files, variants_from_files
    from simulator.studies.compare.comparison import compare as run_comparison

    variants = variants_from_files(scenarios, tuple(set_values or ()), tuple(vary or ()))
    metric = metric or metric_of_files(scenarios)
    options = CompareOptions(seed, replications, metric, crossover, not no_sensitivity, jobs)
    with checked_outputs(out, json_file):
        with Progress(not no_progress, "comparing") as progress:
            document = run_comparison(variants, options, progress.update)
        if out is not None:
            write_outputs(out, document, options_text(options))
    emit(document, json_file, compare_tables(document))
    if out is not None:
        print(f"Wrote {out}: open {out / 'report.html'}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    return 0


def options_text(options: Any) -> str:
    """The options of a comparison that shape its result, as command-line text."""
    words = ["--seed", str(options.seed), "--replications", str(options.replications)]
    if options.metric is not None:
        words += ["--metric", options.metric]
    if options.crossover != "auto":
        words += ["--crossover", options.crossover]
    if not options.sensitivity:
        words.append("--no-sensitivity")
    return shlex.join(words)


def write_outputs(folder: Path, document: dict[str, Any], options: str) -> None:
    """Write the JSON, the study file that reruns it, and the report as HTML and Markdown; all or none."""
    from dashboards.compare_report import compare_report
    from dashboards.study_report import study_html, study_markdown
    from simulator.metrics.document import json_text
    from simulator.metrics.files import StagedFiles
    from simulator.studies.study_file import study_text

    report = compare_report(document, f"forerun compare study.yaml {options}")
    with StagedFiles(folder) as staged:
        staged.add_text("compare.json", json_text(document))
        staged.add_text("study.yaml", study_text(document["variants"]))
        staged.add_text("report.html", study_html(report))
        staged.add_text("report.md", study_markdown(report))
