"""``forerun validate``: the pages that say how far to trust the predictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.cli.output import JsonOption, Progress, checked_outputs, emit

validations = typer.Typer(help="Published measurements beside predictions, as pages.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(validations, name="validate")
    validations.command(
        "speculation",
        epilog="Example: forerun validate speculation --out docs/validation --fail-above all.mape=25",
    )(speculation)


def speculation(
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write speculation.md here.")] = None,
    group: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only rows of this published table.")] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP.METRIC=VALUE",
            help="Exit 1 if a table's mape, bias or wrong_sign (percent) exceeds the limit; GROUP all is every row.",
        ),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Predict every published speculation speedup and show how far off the predictions are."""
    from simulator.errors import ForerunError, did_you_mean
    from simulator.metrics.document import forerun_version
    from simulator.metrics.files import write_text_atomically
    from simulator.replay.speculation import (
        broken_gates,
        compare_published,
        curve_scores,
        load_published,
        parse_gates,
        validation_document,
        validation_page,
    )

    rows = load_published()
    known = sorted({row.group for row in rows})
    for name in group or ():
        if name not in known:
            raise ForerunError(f"--group {name}: no such table{did_you_mean(name, known)} (one of {', '.join(known)})")
    gates = parse_gates(fail_above or (), known)
    asked = [row for row in rows if not group or row.group in group]
    with checked_outputs(out, json_file):
        with Progress(json_file != "-", "published rows") as bar:
            compared, left = compare_published(asked, bar.update)
        curves = [] if group else curve_scores()
        document = validation_document(compared, left, curves) | {"version": forerun_version()}
        printed: list[Any] = [_table(document)]
        if out is not None:
            page = out / "speculation.md"
            write_text_atomically(page, validation_page(compared, left, curves, forerun_version()))
            printed.append(f"page: {page}")
        broken = broken_gates(gates, [*document["groups"], *document["overall"]])
        emit(document | {"broken": broken}, json_file, printed)
    for words in broken:
        print(f"forerun: {words}", file=sys.stderr)
    return 1 if broken else 0


def _table(document: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{len(document['rows'])} published rows predicted, {len(document['not_predicted'])} not")
    for name in ("table", "rows", "MAPE", "bias", "side of 1 right"):
        table.add_column(name, justify="left" if name == "table" else "right")
    for group in document["groups"]:
        table.add_row(
            group["group"],
            str(group["rows"]),
            f"{group['mape']:.1f} %",
            f"{group['bias']:+.1f} %",
            f"{group['right_sign']:.0f} %",
        )
    return table
