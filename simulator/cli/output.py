"""Destinations of results: JSON to a file or stdout, tables to stdout, progress to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from forerun.tables import Table
from simulator.cli.command import silence_stdout

if TYPE_CHECKING:
    from rich.console import Console

    from forerun.result import Result

STDOUT = "-"
PIPE_WIDTH = 120
LONG_RUN_S = 1.0
"""A progress bar appears once a run takes longer than this."""

ResidualOption = Annotated[
    bool | None,
    Option(
        "--residual/--no-residual",
        help="The profile's learned correction on top of the physics; default: as engine.kernel_correction.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    str | None,
    Option(
        "--json",
        metavar="FILE",
        help="Write JSON to FILE, in folders made if need be; - writes it to stdout and nothing else.",
    ),
]
SCENARIO_HELP = "Scenario file, YAML or JSON; or a launch line in quotes, or a file or manifest with one."
ScenarioArgument = Annotated[str, Argument(metavar="SCENARIO", help=SCENARIO_HELP, show_default=False)]
SetOption = Annotated[
    list[str] | None,
    Option("--set", metavar="PATH=VALUE", help="Override a field, e.g. engine.max_num_seqs=128; repeatable."),
]


class ShortcutOptions:
    """Options that stand for fields of the scenario, for what a launch line does not name."""

    chip = Annotated[str | None, Option("--chip", metavar="CHIP", help="hardware.chip, for a launch line.")]
    trace = Annotated[str | None, Option("--trace", metavar="FILE", help="workload.trace in place of another load.")]
    rate = Annotated[float | None, Option("--rate", metavar="R", help="Poisson arrivals, requests per second.")]
    router = Annotated[
        str | None, Option("--router", metavar="FILE", help="EndpointPickerConfig of llm-d, as router.endpoint_picker.")
    ]
    measured = Annotated[
        list[str] | None,
        Option(metavar="RESULT", help="Benchmark result of this deployment, which narrows every answer; repeatable."),
    ]


def chosen(
    settings: Sequence[str] | None,
    chip: str | None = None,
    trace: str | None = None,
    rate: float | None = None,
    measured: Sequence[str] | None = None,
    router: str | None = None,
) -> tuple[str, ...]:
    """``--set`` texts with those that the shortcuts stand for in front."""
    shortcuts = [f"hardware.chip={json.dumps(chip)}"] if chip is not None else []
    if trace is not None:
        shortcuts.append(f"workload={json.dumps({'trace': trace})}")
    if rate is not None:
        shortcuts.append(f"workload.arrivals={json.dumps({'request_rate': rate})}")
    if router is not None:
        shortcuts += [f"router.endpoint_picker={json.dumps(router)}", "engine.routing=scored"]
    if measured:
        shortcuts.append(f"measured={json.dumps(list(measured))}")
    return (*shortcuts, *(settings or ()))


MapOption = Annotated[
    str | None,
    Option(
        "--map",
        metavar="WORD=COLUMN,...",
        help="Which column means what: arrival=ts,input=prompt_toks,output=gen_toks (also session, ttft, e2e; a time "
        "unit may follow, ts:ms). What is not named is recognised or guessed, with a note.",
    ),
]
OutOption = Annotated[
    Path | None, Option("--out", "--output", metavar="DIR", help="Write the JSON and the report here.")
]
JobsOption = Annotated[int | None, Option(min=1, help="Processes; default: one per core.")]
NoIntervalOption = Annotated[bool, Option("--no-interval", help="Ignore the prediction error of the model.")]
FullOption = Annotated[
    bool, Option("--full", help="Show every row, column, interval and table that the short view leaves out.")
]
NoProgressOption = Annotated[bool, Option("--no-progress", help="Never show a progress bar.")]


def written(line: Context) -> dict[str, str]:
    """Options and arguments given on the command line: parameter -> its spelling there."""
    return {
        str(param.name): param.opts[-1]
        for param in line.command.params
        if (source := line.get_parameter_source(str(param.name))) is not None and source.name == "COMMANDLINE"
    }


def refuse_unused(line: Context, mode: str, *unused: str) -> None:
    """Refuse options that have no effect in a mode of a command."""
    from forerun.errors import ArgumentError

    for name, flag in written(line).items():
        if name in unused:
            raise ArgumentError(flag.lstrip("-").replace("-", "_"), f"has no effect {mode}; remove it")


def out_to(files: str) -> Any:
    """``--out`` of a command that writes ``files`` and a report."""
    return Option("--out", "--output", metavar="DIR", help=f"Write {files}, report.html and report.md.")


def mapping_of(text: str | None) -> dict[str, str] | None:
    """``--map WORD=COLUMN,...`` as a mapping."""
    from simulator.studies.study_file import parse_pairs

    return None if text is None else parse_pairs(text, "--map", "arrival=ts,input=prompt_toks,output=out", "COLUMN")


def console() -> Console:
    """The table printer for stdout; away from a terminal it is wide enough that tables keep their lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH

    class PipedConsole(Console):
        """A console whose reader may leave early (``| head``). Output after that is dropped; the exit code stays."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            silence_stdout()

    return PipedConsole(highlight=False, width=width)


def emit(document: Any, json_file: str | None, human: Any) -> None:
    """Write ``document`` to ``--json``; print ``human``, or its result, unless stdout has the JSON."""
    from forerun.document import json_text
    from simulator.running.metrics.files import write_text_atomically

    if json_file == STDOUT:
        text = json_text(document)
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:  # as escapes: what a terminal that knows no more would make of it is no JSON
            text = json.dumps(json.loads(text), indent=2) + "\n"
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    if json_file is not None:
        write_text_atomically(Path(json_file), json_text(document))
    human, printer = human() if callable(human) else human, console()
    for index, part in enumerate(human if isinstance(human, list | tuple) else (human,)):
        if index:
            printer.print()
        printer.print(part.rich(printer.width) if isinstance(part, Table) else part)


def show(result: Result, json_file: str | None, out: Path | None, last: str | None = None, full: bool = True) -> None:
    """Save a result to ``--out``, write its document to ``--json``, and print it."""
    if out is not None:
        result.save(out)
    emit(
        result.document,
        json_file,
        lambda: printed(
            result.title, result.facts, result.tables(), result.conclusion, result.legend, result.remarks, full
        ),
    )
    if out is not None:
        page = f"; a one-page summary: {out / 'summary.html'}" if result.document.get("plan_summary") else ""
        print(f"Wrote {out}: open {out / 'report.html'}{page}", file=sys.stderr if json_file == STDOUT else sys.stdout)
    if last and json_file != STDOUT:
        print(last)
    note_slow_engine()


def note_slow_engine() -> None:
    """Print a note where the engine runs interpreted, with the remedy."""
    from simulator.serving.compiled import why_interpreted

    slow = why_interpreted()
    if slow is not None:
        print(f"note: {slow}", file=sys.stderr)


def printed(
    title: str,
    facts: str,
    tables: Sequence[Table],
    conclusion: str = "",
    legend: str = "",
    notes: Sequence[str] = (),
    full: bool = True,
) -> list[Any]:
    """A result for the terminal: conclusion, title, tables, definitions of terms, notes."""
    from rich.text import Text

    parts: list[Any] = [Text(conclusion, style="bold")] if conclusion else []
    parts.append(Text(title, style="" if conclusion else "bold").append(f"  {facts}", style="dim not bold"))
    views = [replace(table, shown=None) if full else table.brief() for table in tables]
    parts += [view for view in views if view.rows]
    if left := [words for table, view in zip(tables, views, strict=True) for words in left_out(table, view)]:
        parts.append(Text(f"--full also shows: {'; '.join(left)}.", style="dim"))
    if legend:
        parts.append(Text(legend, style="dim"))
    if notes:
        parts.append(Text("\n".join(f"note: {note}" for note in notes), style="dim"))
    return parts


def left_out(table: Table, view: Table) -> list[str]:
    """Text that lists the columns and rows omitted from a table."""
    title = table.title.partition(" (")[0]
    if table.rows and not view.rows:
        return [title]
    parts = [column for column in table.columns if column not in view.columns]
    rows = len(table.rows) - len(view.rows) + view.hidden
    parts += [f"{rows:,} row{'s' if rows > 1 else ''}"] if rows else []
    return [f"{title}: {', '.join(parts)}"] if parts else []


@contextmanager
def checked_outputs(folder: Path | None, json_file: str | None) -> Iterator[None]:
    """Refuse outputs that cannot be written before long work starts."""
    from simulator.running.metrics.files import writable_file, writable_folder

    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(writable_folder(folder))
        if json_file is not None and json_file != STDOUT:
            stack.enter_context(writable_file(Path(json_file)))
        yield


class Progress:
    """A bar on stderr that appears only on a terminal and only when the work takes long."""

    def __init__(self, shown: bool, label: str) -> None:
        self.label = label
        self._shown = shown and sys.stderr.isatty()
        self._since = time.monotonic()
        self._stack = ExitStack()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def update(self, done: int, total: int) -> None:
        """Move the bar to ``done`` of ``total``."""
        if not self._shown:
            return
        if self._bar is None:
            if time.monotonic() - self._since < LONG_RUN_S:
                return
            self._open(total)
        self._bar.update(self._task, completed=done, total=total, description=self.label)

    def _open(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = self._stack.enter_context(Bar(*columns, console=Console(stderr=True), transient=True))
        self._task = self._bar.add_task(self.label, total=total)
