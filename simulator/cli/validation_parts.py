"""``forerun validate kernels | requests | alspec | all``: errors on what ships and on measured tables of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.output import JsonOption, Progress, checked_outputs, emit

if TYPE_CHECKING:
    from collections import Counter

    from simulator.replay.validation import ErrorRow

ERRORS_FILE, PAGE_FILE = "errors.json", "index.md"
Rows = list["ErrorRow"]

OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help=f"Update {PAGE_FILE} and {ERRORS_FILE} here; the rest of them stays.")
]
DataOption = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of measured tables, in any format.")]
LimitOption = Annotated[int, typer.Option(min=1, help="Measured runs of a table that are served again.")]
JobsOption = Annotated[int | None, typer.Option(min=1, help="Processes; default: every core.")]


def register(validations: typer.Typer) -> None:
    """Add the commands to ``forerun validate``."""
    for name, command, example in (
        ("kernels", kernels, "kernels --data measured --json -"),
        ("requests", requests, "requests --data measured --limit 40"),
        ("alspec", alspec, "alspec"),
        ("all", everything, "all --out docs/validation"),
    ):
        validations.command(name, epilog=f"Example: forerun validate {example}")(command)


def kernels(data: DataOption = None, out: OutOption = None, json_file: JsonOption = None) -> int:
    """Score kernels of the shipped sample, and of every kernel table in a folder."""
    return _validate(lambda: _kernels(data, json_file), out, json_file)


def requests(
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of measured serving runs.", show_default=False)],
    limit: LimitOption = 40,
    jobs: JobsOption = None,
    out: OutOption = None,
    json_file: JsonOption = None,
) -> int:
    """Serve every table of measured runs in a folder again, and score it."""
    return _validate(lambda: _requests(data, limit, jobs, json_file), out, json_file)


def alspec(out: OutOption = None, json_file: JsonOption = None) -> int:
    """Put the published results of attention-level speculation beside what one parameter set gives."""
    return _validate(lambda: (shipped_errors(["attention"]), {}), out, json_file)


def everything(
    data: DataOption = None,
    limit: LimitOption = 40,
    jobs: JobsOption = None,
    out: OutOption = None,
    json_file: JsonOption = None,
) -> int:
    """Score all that ships, and every measured table in a folder: the page that says how far to trust predictions."""

    def parts() -> tuple[Rows, dict[str, int]]:
        rows, left = _kernels(data, json_file)
        rows += shipped_errors(["speculation", "attention"])
        if data is not None:
            more, refused = _requests(data, limit, jobs, json_file)
            rows, left = rows + more, left | refused
        return rows, left

    return _validate(parts, out, json_file)


def shipped_errors(sections: Sequence[str]) -> Rows:
    """Errors that the package alone can compute, of the named sections."""
    from simulator.replay.speculation import compare_published, curve_scores, load_published
    from simulator.replay.validation import attention_errors, shipped_kernel_errors, speculation_errors

    rows: Rows = []
    if "kernels" in sections:
        rows += shipped_kernel_errors()
    if "speculation" in sections:
        compared, _ = compare_published(load_published())
        rows += speculation_errors(compared, curve_scores())
    if "attention" in sections:
        rows += attention_errors()
    return rows


def _kernels(data: Path | None, json_file: str | None) -> tuple[Rows, dict[str, int]]:
    from simulator.replay.validation import measured_kernel_errors

    rows = shipped_errors(["kernels"])
    if data is None:
        return rows, {}
    with Progress(json_file != "-", "kernel tables") as bar:
        measured, left = measured_kernel_errors(_folder(data), bar.update)
    return rows + measured, dict(left.most_common())


def _requests(data: Path, limit: int, jobs: int | None, json_file: str | None) -> tuple[Rows, dict[str, int]]:
    from simulator.replay.validation import measured_request_errors
    from simulator.workers import Workers, cores

    processes = jobs or cores()
    with Workers(processes if processes > 1 else 0) as workers, Progress(json_file != "-", "tables of runs") as bar:
        start = workers.start if processes > 1 else None
        rows, left = measured_request_errors(_folder(data), limit, start, bar.update)
    return rows, dict(left.most_common())


def _folder(data: Path) -> Path:
    from simulator.errors import ForerunError

    if not data.is_dir():
        raise ForerunError(f"--data {data}: no such folder")
    return data


def _validate(compute: Callable[[], tuple[Rows, dict[str, int]]], out: Path | None, json_file: str | None) -> int:
    """Compute, put beside what is on record in ``out``, write and print."""
    from dataclasses import replace
    from datetime import UTC, datetime

    from simulator.metrics.document import forerun_version, json_text
    from simulator.metrics.files import StagedFiles
    from simulator.replay.validation import errors_document, merged, read_errors, trust_page

    recorded = read_errors(out / ERRORS_FILE) if out is not None and (out / ERRORS_FILE).exists() else []
    with checked_outputs(out, json_file):
        computed, left = compute()
        today = datetime.now(UTC).date().isoformat()
        rows = merged(recorded, [replace(row, date=today) for row in computed])
        document: dict[str, Any] = errors_document(rows, forerun_version())
        if out is not None:
            with StagedFiles(out) as staged:
                staged.add_text(ERRORS_FILE, json_text(document))
                staged.add_text(PAGE_FILE, trust_page(rows, forerun_version()))
        emit(document | {"left_out": left}, json_file, _tables(computed, left))
    return 0


def _tables(rows: Rows, left: Counter[str] | dict[str, int]) -> list[Any]:
    from rich.table import Table

    from simulator.replay.validation.errors import SECTIONS

    parts: list[Any] = []
    for section in SECTIONS:
        found = [row for row in rows if row.section == section]
        if found:
            table = Table(title=f"{section}: errors in percent of the measurement")
            for name in ("comparison", "predicted", "n", "MAPE", "median", "bias", "basis"):
                table.add_column(name, justify="right" if name in ("n", "MAPE", "median", "bias") else "left")
            for row in found:
                figures = (f"{row.mape:.1f}", _number(row.median_ape, ".1f"), _number(row.bias, "+.1f"))
                table.add_row(row.name, row.metric, f"{row.n:,}", *figures, row.basis or "")
            parts.append(table)
    if left:
        parts.append("Left out: " + "; ".join(f"{count:,} {reason}" for reason, count in list(left.items())[:12]))
    return parts


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
