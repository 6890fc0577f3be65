"""The command's frame: its subcommands, exit codes, and errors as one line."""

from __future__ import annotations

import errno
import gc
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from forerun.errors import ArgumentError, ForerunError, InvariantError
from simulator.cli.output import ready_streams, silence_stdout

COLLECT_AFTER = 50_000
"""Objects after which cycles are looked for: looking for them while modules load takes a tenth of a short run."""
EXIT_BAD_INPUT = 2
EXIT_FAULT = 3
EXIT_INTERRUPTED = 130

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""click's ClickException, from wherever the installed typer keeps its click."""

COMMANDS = {
    "Start here": {"run": "runs", "compare": "studies", "tune": "studies", "plan": "studies", "dash": "dashboard"},
    "Predict and sweep": {"predict": "kernels", "sweep": "studies"},
    "Report and serve": {"report": "runs", "serve": "serving"},
    "Check against measurements": {
        "validate": "validation.command",
        "replay": "replays",
        "measure": "kernels",
        "calibrate": "kernels",
        "selfcheck": "validation.selfcheck.command",
        "twin": "serving",
    },
    "Catalogue": {"chips": "catalogues", "models": "catalogues", "workloads": "catalogues"},
    "Research": {"race": "studies", "draft-pool": "studies", "rollouts": "studies"},
}
"""Panels of the help, their commands in order, and the module that registers each: of this package or, with a dot,
of the checkout, which a wheel does not contain. A study that is not listed is under "Research", and imported last."""
CHECKOUT = Path(__file__).resolve().parents[2]
READ_TABLES = ("replay", "calibrate", "dash")
"""Commands that, in a checkout, also read the published tables of ``validation.tables``."""


class _PlainHelp(TyperCommand):
    """A command whose help shows N for a number and nothing for a flag, instead of Python's type and range."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _hide_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


class _PlainGroupHelp(TyperGroup):
    """A group whose help does the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _hide_types(self.get_params(ctx))
        super().format_help(ctx, formatter)


class _PanelHelp(_PlainGroupHelp):
    """The whole command line: its help lists the commands in the panels and in the order of :data:`COMMANDS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        listed = [name for panel in COMMANDS.values() for name in panel if name in self.commands]
        return [*listed, *sorted(set(self.commands) - set(listed))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            panels = (panel for panel, names in COMMANDS.items() if cmd_name in names)
            command.rich_help_panel = next(panels, "Research")
        return command


def _hide_types(params: Iterable[Any]) -> None:
    for param in params:
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: ""
            continue
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None:
            limits = (param.min, param.max, param.default)
            param.metavar = "N" if any(isinstance(limit, int | float) for limit in limits) else param.name.upper()
        param.min = param.max = None


def _use_plain_help(app: typer.Typer) -> None:
    for command in app.registered_commands:
        command.cls = _PlainHelp
    for group in app.registered_groups:
        assert group.typer_instance is not None
        group.cls = _PlainGroupHelp
        _use_plain_help(group.typer_instance)


def application(command: str | None = None) -> typer.Typer:
    """The command line. Only the module of ``command`` is imported if it is known, all of them otherwise (help,
    completion, a typing error)."""
    app = typer.Typer(
        name="forerun",
        cls=_PanelHelp,
        help="Predict how an LLM service will run before renting the hardware.",
        epilog="Example: forerun run examples/chat-h100.yaml --out out/chat",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(frame)
    modules = {name: module for panel in COMMANDS.values() for name, module in panel.items()}
    for module in [modules[command]] if command in modules else dict.fromkeys(modules.values()):
        if "." not in module:
            import_module(f"simulator.cli.{module}").register(app)
        elif _in_checkout():
            import_module(module).register(app)
        elif command in modules:
            raise ForerunError(f"{command}: this command needs Forerun's checkout (pip install -e CHECKOUT)")
    if command in READ_TABLES and _in_checkout():
        import_module("validation.tables")
    _use_plain_help(app)
    return app


def _in_checkout() -> bool:
    """Whether this is a checkout; its ``validation`` can be imported from then on."""
    checkout = CHECKOUT.joinpath("validation").is_dir()
    if checkout and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return checkout


def _print_version(version: bool) -> None:
    if version:
        from forerun.version import VERSION

        print(f"forerun {VERSION}")
        raise typer.Exit


def frame(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Predict how an LLM service will run before renting the hardware."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def run_command(words: Sequence[str]) -> int:
    """Run the command and return its exit code.

    Returns:
        0 on success, 1 when a gate fails, 2 on bad input (one line on stderr), 3 on a fault of Forerun: a crash, or a
        result that breaks physics or conservation (its scenario is kept); 130 on Ctrl-C.
    """
    ready_streams()
    gc.set_threshold(COLLECT_AFTER)
    warnings.filterwarnings("ignore", "the engine runs interpreted")  # run and serve have a note of their own
    try:
        refuse_empty(words)
        with unwound_by_sigterm():
            app = application(words[0] if words else None)
            code = app(args=list(words), prog_name="forerun", standalone_mode=False)
        sys.stdout.flush()
    except (typer.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except _USAGE_ERROR as error:
        print(usage_line(error), file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        silence_stdout()
        return 0
    except InvariantError as error:
        print(f"forerun: {broken_invariant_line(error)}", file=sys.stderr)
        return EXIT_FAULT
    except MemoryError:
        print("forerun: this run needs more memory than there is; fewer requests, or --no-steps", file=sys.stderr)
        return EXIT_BAD_INPUT
    except (ForerunError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            silence_stdout()
        print(f"forerun: {error_line(error)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except Exception:  # exit code 1 is a verdict, a crash is none
        traceback.print_exc()
        print("forerun: this is a fault of Forerun, not of its input; please report it", file=sys.stderr)
        return EXIT_FAULT
    if code == EXIT_INTERRUPTED:
        print("forerun: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


@contextmanager
def unwound_by_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the main thread, so that what is half done is cleaned up; the exit code is 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, unwind)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def refuse_empty(words: Sequence[str]) -> None:
    """Refuse an argument without text: as a folder it would be the one that the command happens to run in."""
    for before, word in pairwise(["forerun", *words]):
        if not word.strip():
            raise ForerunError(f"{before}: an empty argument follows; give a value, or leave it out")
        if word.startswith("--") and word.endswith("=") and word.count("=") == 1:
            raise ForerunError(f"{word.removesuffix('=')}: no value follows the =; give one, or leave it out")


def broken_invariant_line(error: InvariantError) -> str:
    """What is broken and how to see it again: with the scenario in a file of its own, else within the line."""
    from simulator.running.metrics.files import write_text_atomically

    file = Path(f"forerun-broken-invariant-{error.mark}.json")
    try:
        write_text_atomically(file, error.scenario)
    except OSError:
        return f"this result cannot be, which is a fault of Forerun: {error}"
    return (
        f"this result cannot be, which is a fault of Forerun: {error.invariant}; please report {file}; to reproduce: "
        f"forerun run {file} --seed {error.seed}{error.options}"
    )


def error_line(error: Exception) -> str:
    """``error`` in one line; for files the name first and then what the system says."""
    if isinstance(error, ArgumentError):
        return error.as_option
    if isinstance(error, OSError) and error.strerror:
        place = "standard output" if error.filename is None and error.errno == errno.ENOSPC else error.filename
        return error.strerror if place is None else f"{place}: {error.strerror}"
    return " ".join(str(error).split())


def usage_line(error: Exception) -> str:
    """A command-line error in one line that starts with the command and ends with where its help is."""
    message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "forerun"
    return f"{command}: {message} ({command} --help)"
