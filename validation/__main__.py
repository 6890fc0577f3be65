"""``python -m validation``: score measured tables and write the pages that say how far to trust the predictions.

python -m validation all --out docs/validation                # what ships, and the pages
python -m validation all --data DIR --out docs/validation     # and every measured table in DIR
python -m validation requests --data DIR --out docs/validation --limit 40
python -m validation bands --data DIR --write                 # simulate served figures again, fit bands and process
python -m validation bands --write                            # fit them again on the facts of the last such run
python -m validation scores --data DIR                        # errors of either half, by line of scores.yaml
python -m validation peers --out docs/validation              # other simulators beside it; --data DIR: anew
python -m validation speculation --write                      # predict published ratios and fit their error again
python -m validation refit --data DIR --write                 # fit every constant above kernel prices again
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dashboards.recorded_errors import SECTIONS, ErrorRow, error_tables, read_errors
from forerun.document import json_text
from forerun.errors import ForerunError
from forerun.version import VERSION
from forerun.workers import Workers, cores
from simulator.cli.output import Progress, console
from simulator.running.metrics.files import StagedFiles
from validation.constants import constants_table
from validation.kernels import measured_kernel_errors
from validation.page import ROWS_FILE, by_title, read_rows, rows_text, trust_page
from validation.record import errors_document, merged
from validation.refit import refit, refit_tables, refits, write_constants
from validation.requests import LIMIT, measured_request_errors
from validation.served import peers
from validation.served.bands import (
    bands_page,
    coverage_of_builds,
    coverage_of_tables,
    read_facts,
    served_figures,
    write_facts,
    write_served,
)
from validation.served.process import (
    calibrated_ends,
    fit_process,
    fold_processes,
    held_out_trials,
    outcomes,
    process_values,
    sources_table,
)
from validation.served.scores import scored_figures, scores_table
from validation.shipped import shipped_errors
from validation.speculation import compare_adaptive, compare_published, curve_scores
from validation.speculation.ratios import load_ratios, refreshed, write_ratios
from validation.speculation_page import speculation_page, speculation_rows

ERRORS_FILE, PAGE_FILE, SPECULATION_FILE = "errors.json", "index.md", "speculation.md"
BANDS_FILE = "bands.md"
PARTS = {
    "kernels": "kernels",
    "requests": "requests",
    "speculation": "speculation",
    "alspec": "attention",
    "bands": "bands",
    "refit": "refit",
    "peers": "peers",
    "scores": "scores",
    "all": "",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a part and write what came out; 0, or 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m validation", description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of measured tables, in any format")
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"update {PAGE_FILE} and {ERRORS_FILE}; the rest stays")
    parser.add_argument("--limit", type=int, default=LIMIT, help="measured runs of a table that are served again")
    parser.add_argument("--jobs", type=int, default=cores(), help="processes")
    parser.add_argument("--line", action="append", metavar="NAME", help="scores: this line alone; repeatable")
    parser.add_argument("--set", action="append", metavar="NAME", help="refit: constants of this set alone; repeatable")
    parser.add_argument("--write", action="store_true", help="put what was fitted into its YAML file")
    options = parser.parse_args(argv)
    if options.set and options.part != "refit":
        parser.error("--set applies to refit alone")
    if options.line and options.part != "scores":
        parser.error("--line applies to scores alone")
    if options.write and options.part not in ("refit", "bands", "speculation"):
        parser.error("--write applies to refit, bands and speculation alone")
    try:
        if options.part == "refit":
            return refitted(options.data, options.set, options.write, options.jobs)
        if options.part == "bands":
            return banded(options.data, options.out, options.limit, options.write, options.jobs)
        if options.part == "scores":
            return scored(options.data, options.line or (), options.out, options.limit, options.jobs)
        if options.part == "peers":
            return compared(options.data, options.out, options.jobs)
        if options.write:
            write_ratios(refreshed(load_ratios(), compare_published()[0]))
        return run_part(options.part, options.data, options.out, options.limit, options.jobs)
    except ForerunError as error:
        print(f"validation: {error}", file=sys.stderr)
        return 2


def run_part(part: str, data: Path | None, out: Path | None, limit: int, jobs: int) -> int:
    """Compute a part, put it beside what is on record in ``out``, write and print.

    Raises:
        ForerunError: no such folder, nothing measured in it, or a part that needs one.
    """
    if data is not None and not data.is_dir():
        raise ForerunError(f"--data {data}: no such folder")
    if part == "requests" and data is None:
        raise ForerunError("requests: --data names the folder of measured runs")
    whole = part == "all" and data is not None
    recorded = read_errors(out / ERRORS_FILE) if out is not None and not whole and (out / ERRORS_FILE).exists() else []
    section = PARTS[part]
    computed = shipped_errors([section] if section else SECTIONS, jobs).rows
    left: Counter[str] = Counter()
    if data is not None:
        more, left = measured_errors(section, data, limit, jobs)
        computed += more
    today = datetime.now(UTC).date().isoformat()
    rows = merged(recorded, [replace(row, date=today) for row in computed])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        tables = read_rows(out / ROWS_FILE)
        with StagedFiles(out) as staged:
            if section in ("speculation", ""):
                compared, refused = compare_published()
                page = speculation_page(compared, refused, curve_scores(), compare_adaptive(), VERSION)
                staged.add_text(SPECULATION_FILE, page)
                tables |= by_title(speculation_rows(compared))
            tables |= by_title(constants_table())
            staged.add_text(ERRORS_FILE, json_text(errors_document(rows, VERSION)))
            staged.add_text(ROWS_FILE, rows_text(tables))
            staged.add_text(PAGE_FILE, trust_page(rows, VERSION, tables))
    for table in error_tables(computed):
        console().print(table.rich())
    if left:
        print("Left out: " + "; ".join(f"{count:,} {reason}" for reason, count in left.most_common()))
    return 0


def refitted(data: Path | None, names: Sequence[str] | None, write: bool, jobs: int) -> int:
    """Fit constants again, print what moved, and write it; 1 where a held-out error grows.

    Raises:
        ForerunError: no folder, no such set, or no runs of it.
    """
    if data is None or not data.is_dir():
        raise ForerunError("refit: --data names the folder of measured runs")
    fits = [refit(name, data, jobs) for name in names or refits()]
    for table in refit_tables(fits):
        console().print(table.rich())
    if write:
        write_constants(fits)
    refused = [fit.name for fit in fits if fit.refused]
    for name in refused:
        print(f"validation: {name}: the held-out error grows; its constants stay", file=sys.stderr)
    return 1 if refused else 0


def banded(data: Path | None, out: Path | None, limit: int, write: bool, jobs: int) -> int:
    """Fit bands and process of served figures on a folder of tables, or on their facts.

    Raises:
        ForerunError: no folder, or nothing in it that can be simulated.
    """
    if data is not None and not data.is_dir():
        raise ForerunError("bands: --data names the folder of measured runs")
    if data is not None:
        with Progress(True, "runs") as bar:
            figures = served_figures(data, limit, jobs, bar.update)
        if not figures:
            raise ForerunError(f"{data}: no measured serving run in this folder can be simulated")
        if write:
            write_facts(figures)
    else:
        figures = list(read_facts())
    held_out = held_out_trials(figures, fold_processes(figures))
    after = outcomes(figures, held_out)
    for table in (coverage_of_tables(figures), after):
        console().print(table.rich())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        rows = read_errors(out / ERRORS_FILE) if (out / ERRORS_FILE).exists() else []
        tables = read_rows(out / ROWS_FILE) | by_title(coverage_of_builds(figures), sources_table(held_out))
        with StagedFiles(out) as staged:
            staged.add_text(BANDS_FILE, bands_page(figures, after, VERSION))
            staged.add_text(ROWS_FILE, rows_text(tables))
            staged.add_text(PAGE_FILE, trust_page(rows, VERSION, tables))
    if write:
        write_served(figures, process_values(fit_process(figures), calibrated_ends(held_out["one run"])))
    return 0


def scored(data: Path | None, lines: Sequence[str], out: Path | None, limit: int, jobs: int) -> int:
    """Print errors by line and half, and with ``out`` every figure as ``scores.csv``; without data, what ships.

    Raises:
        ForerunError: no such line, or a file that the folder does not hold.
    """
    with Progress(True, "runs") as bar:
        figures = scored_figures(data, lines, limit, jobs, bar.update)
    console().print(scores_table(figures).rich())
    if out is not None:
        with StagedFiles(out) as staged:
            staged.add_text("scores.csv", peers.csv_text([one._asdict() | {"error": one.error} for one in figures]))
    return 0


def compared(data: Path | None, out: Path | None, jobs: int) -> int:
    """Compare Forerun with other simulators on the rows of ``out``, or on measured runs.

    Raises:
        ForerunError: no rows, or one that AIConfigurator has not predicted where its wheel is not installed.
    """
    rows, published = peers.read_peers(out) if out is not None else ([], [])
    if out is None or not (rows or data):
        raise ForerunError(f"peers: --out names the folder of {peers.PEER_ROWS}; --data of measured runs makes it anew")
    if data is not None:
        rows, published = peers.predict_peers(data, rows, jobs)
    with StagedFiles(out) as staged:
        if data is not None:
            staged.add_text(peers.PEER_ROWS, peers.csv_text(rows))
            staged.add_text(peers.PUBLISHED, peers.csv_text([line._asdict() for line in published]))
        staged.add_text(peers.PAGE, peers.peers_page(rows, published))
    for table in (peers.scored_table(peers.peer_scores(rows)), peers.coverage(rows)):
        console().print(table.rich())
    return 0


def measured_errors(section: str, data: Path, limit: int, jobs: int) -> tuple[list[ErrorRow], Counter[str]]:
    """Errors on the measured tables of a folder, and why files and rows were left out."""
    rows: list[ErrorRow] = []
    left: Counter[str] = Counter()
    if section in ("kernels", ""):
        with Progress(True, "kernel tables") as bar:
            rows, left = measured_kernel_errors(data, bar.update)
    if section in ("requests", ""):
        with Workers(jobs if jobs > 1 else 0) as workers, Progress(True, "tables of runs") as bar:
            served, refused = measured_request_errors(data, limit, workers.start if jobs > 1 else None, bar.update)
        rows, left = rows + served, left + refused
    return rows, left


if __name__ == "__main__":
    sys.exit(main())
