"""``forerun validate``: predictions beside what ships of measurements, and a check that no error has grown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Option, Typer

from forerun.tables import Table
from simulator.cli.output import JobsOption, JsonOption, OutOption, Progress, checked_outputs, emit, refuse_unused

if TYPE_CHECKING:
    from validation.shipped import ShippedErrors

EXIT_GATE_FAILED = 1
MARGIN = 1.0
GATES = ("mape", "bias", "wrong_sign")

QuickOption = Annotated[bool, Option("--quick", help="Leave out fits and grown trees; says what it left out.")]
FreshOption = Annotated[bool, Option("--fresh", help="Compute everything anew, whatever earlier runs kept.")]


def register(commands: Typer) -> None:
    """Add the commands."""
    validations = Typer(
        name="validate",
        help="Score predictions against published and shipped measurements; check that no error has grown.",
    )
    example = "Example: forerun validate --check docs/validation/errors.json --margin 1.0"
    validations.callback(invoke_without_command=True, epilog=example)(check_errors)
    for name, command, example in (
        ("kernels", kernels, "kernels --json -"),
        ("alspec", alspec, "alspec"),
        ("all", everything, "all --json errors.json"),
        ("speculation", speculation, "speculation --fail-above all.mape=25"),
        ("adaptive", adaptive_verification, "adaptive --json -"),
    ):
        validations.command(name, epilog=f"Example: forerun validate {example}")(command)
    commands.add_typer(validations)


def check_errors(
    called: Context,
    check: Annotated[
        Path | None,
        Option(metavar="FILE", help="Check what ships against the errors on record; 1 if one grew."),
    ] = None,
    margin: Annotated[
        float, Option(min=0.0, help="Growth of a mean absolute error that is allowed, in percentage points.")
    ] = MARGIN,
    quick: QuickOption = False,
    fresh: FreshOption = False,
    jobs: JobsOption = None,
) -> int:
    """Check predictions against the errors on record, or show how far off they are on what ships.

    Rows of the record that need measured tables which do not ship are counted and left; parts whose code, data and
    libraries have not changed since they were computed last are taken from the cache.
    """
    from dashboards.recorded_errors import read_errors
    from forerun.errors import ForerunError
    from validation.record import grown_errors

    if check is None:
        mode = "without --check" if called.invoked_subcommand is None else f"before '{called.invoked_subcommand}'"
        refuse_unused(called, mode, "margin", "quick", "fresh", "jobs")
        if called.invoked_subcommand is None:
            print(called.get_help())
        return 0
    if called.invoked_subcommand is not None:
        raise ForerunError(f"--check: checks everything that ships by itself; leave out '{called.invoked_subcommand}'")
    record = read_errors(check)
    recorded = [row for row in record if row.ships]
    if not recorded:
        raise ForerunError(f"{check}: no error of what ships is on record (python -m validation all --out DIR)")
    outcome = _shipped(sorted({row.section for row in recorded}), True, quick, fresh, jobs)
    skipped = {(part.section, part.name) for part in outcome.left_out}
    checked = [row for row in recorded if not any(row.of_part(*part) for part in skipped)]
    lines = grown_errors(outcome.rows, checked, margin)
    for line in lines:
        print(f"forerun: {line}", file=sys.stderr)
    print(f"{len(checked) - len(lines)} of {len(checked)} errors on record hold within {margin:g} percentage points")
    if outcome.left_out:
        names = ", ".join(part.name for part in outcome.left_out)
        print(f"Left out by --quick: {len(recorded) - len(checked)} rows of {names}")
    if len(record) > len(recorded):
        print(f"Not checked: {len(record) - len(recorded)} rows on measured tables that do not ship")
    return EXIT_GATE_FAILED if lines else 0


def kernels(fresh: FreshOption = False, out: OutOption = None, json_file: JsonOption = None) -> int:
    """Score kernels of the shipped sample: one CPU core, with its limits alone and fitted."""
    return _show(["kernels"], fresh, None, out, json_file)


def alspec(out: OutOption = None, json_file: JsonOption = None) -> int:
    """Compare published results of attention-level speculation with one parameter set."""
    return _show(["attention"], True, 1, out, json_file)


def everything(
    fresh: FreshOption = False, jobs: JobsOption = None, out: OutOption = None, json_file: JsonOption = None
) -> int:
    """Score all that ships: kernels of a CPU core, published speed-ups, attention-level speculation."""
    from dashboards.recorded_errors import SECTIONS

    return _show(SECTIONS, fresh, jobs, out, json_file)


def speculation(
    group: Annotated[list[str] | None, Option(metavar="NAME", help="Only rows of this published table.")] = None,
    fail_above: Annotated[
        list[str] | None,
        Option(
            metavar="GROUP.METRIC=VALUE",
            help="Exit 1 if a table's mape, bias or wrong_sign (percent) exceeds the limit; GROUP all is every row.",
        ),
    ] = None,
    json_file: JsonOption = None,
) -> int:
    """Predict every published speculation speedup and show how far off the predictions are."""
    from forerun.errors import ForerunError, did_you_mean
    from forerun.version import VERSION
    from simulator.replay.scores import exceeded, parse_limit
    from validation import speculation as published

    rows = published.load_published()
    known = sorted({row.group for row in rows})
    for name in group or ():
        if name not in known:
            raise ForerunError(f"--group {name}: no such table{did_you_mean(name, known)} (one of {', '.join(known)})")
    limits = [parse_limit(text, GATES, known) for text in fail_above or ()]
    chosen = [row for row in rows if not group or row.group in group]
    with checked_outputs(None, json_file):
        with Progress(json_file != "-", "published rows") as bar:
            compared, left = published.compare_published(chosen, bar.update)
        scores = published.group_scores(compared)
        scores += [published.group_score(published.ALL, compared)] if compared else []
        broken = exceeded(limits, [(score.group, score.group, score) for score in scores])
        document = published.speculation_document(compared, left, [] if group else published.curve_scores())
        emit(document | {"version": VERSION, "broken": broken}, json_file, [_groups(document)])
    for words in broken:
        print(f"forerun: {words}", file=sys.stderr)
    return EXIT_GATE_FAILED if broken else 0


def adaptive_verification(json_file: JsonOption = None) -> int:
    """Score confidence-scheduled verification on published tables: every cell, its sign, where it overtakes fixed K."""
    from forerun.version import VERSION
    from validation import speculation as published

    with checked_outputs(None, json_file):
        with Progress(json_file != "-", "published tables") as bar:
            document = published.compare_adaptive(bar.update)
        emit(document | {"version": VERSION}, json_file, list(published.adaptive_tables_of(document)))
    return 0


def _shipped(sections: Sequence[str], bar: bool, quick: bool, fresh: bool, jobs: int | None) -> ShippedErrors:
    from forerun.workers import cores
    from validation.inputs import Cache, cache_folder, digest_of
    from validation.shipped import shipped_errors

    folder = cache_folder()
    cache = None if fresh or folder is None else Cache(folder, digest_of("validation.shipped"))
    with Progress(bar, "comparisons") as progress:
        return shipped_errors(sections, jobs or cores(), quick, cache, progress.update)


def _show(sections: Sequence[str], fresh: bool, jobs: int | None, out: Path | None, json_file: str | None) -> int:
    from dashboards.recorded_errors import error_tables
    from forerun.version import VERSION
    from validation.record import errors_document

    with checked_outputs(out, json_file):
        rows = _shipped(sections, json_file != "-", False, fresh, jobs).rows
        if out is not None:
            from validation.checks import write_errors

            write_errors(out, rows)
        emit(errors_document(rows, VERSION), json_file, error_tables(rows))
    return 0


def _groups(document: dict[str, Any]) -> Table:
    rows = []
    for group in document["groups"]:
        figures = (f"{group['mape']:.1f} %", f"{group['bias']:+.1f} %", f"{group['right_sign']:.0f} %")
        rows.append([group["group"], group["rows"], *figures])
    title = f"{len(document['rows'])} published rows predicted, {len(document['not_predicted'])} not"
    return Table(title, ("table", "rows", "MAPE", "bias", "side of 1 right"), rows)
