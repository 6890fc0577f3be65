"""The command line as typer reads it: its commands, and the panels of its help."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from forerun.errors import ForerunError, UsageError

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
    "Research": {"race": "studies", "draft-pool": "studies"},
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


def call_with_typer(words: Sequence[str]) -> int:
    """Parse a command line, call its command, and return its exit code."""
    try:
        code = application(words[0] if words else None)(args=list(words), prog_name="forerun", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _USAGE_ERROR as error:
        raise UsageError(usage_line(error)) from None
    return code if isinstance(code, int) else 0


def usage_line(error: Exception) -> str:
    """A command-line error in one line that starts with the command and ends with where its help is."""
    message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "forerun"
    return f"{command}: {message} ({command} --help)"
