"""The command line: its commands, the modules that declare them, and the panels of its help."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Context, Option, Typer
from typer.core import TyperCommand, TyperGroup

from forerun.errors import ForerunError, UsageError, did_you_mean, without_unit

if TYPE_CHECKING:
    from simulator.studies.frame import StudyCommand

COMMANDS = {
    "Start here": {
        "run": "runs",
        "compare": "studies",
        "tune": "studies",
        "plan": "studies",
        "import": "imports",
        "dash": "dashboard",
    },
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
}
"""Panels of the help, their commands in order, and the module that registers each. A module with a dot is of the
checkout, which a wheel does not contain. Studies of installed distributions are under "Research"."""
CHECKOUT = Path(__file__).resolve().parents[2]
READ_TABLES = ("replay", "calibrate", "dash")
"""Commands that, in a checkout, also read the published tables of ``validation.tables``."""
MODULES = {name: module for panel in COMMANDS.values() for name, module in panel.items()}
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]
"""click's ClickException, from wherever the installed typer keeps its click."""


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
            limits = (getattr(param, "min", None), getattr(param, "max", None), param.default)
            param.metavar = "N" if any(isinstance(limit, int | float) for limit in limits) else param.name.upper()
        param.min = param.max = None


def application(command: str | None = None) -> Typer:
    """The command line with the commands of ``command``'s module; with all commands for help, completion or a typing
    error."""
    app = Typer(
        name="forerun",
        cls=_PanelHelp,
        help="Predict how an LLM service will run before renting the hardware.",
        epilog="Example: forerun run examples/chat-h100.yaml --out out/chat",
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(frame)
    added = [] if command in MODULES else _installed_studies(command)
    alone = any(study.name == command for study in added)
    for module in [MODULES[command]] if command in MODULES else () if alone else dict.fromkeys(MODULES.values()):
        if "." not in module:
            import_module(f"simulator.cli.{module}").register(app)
        elif _in_checkout():
            import_module(module).register(app)
        elif command in MODULES:
            raise ForerunError(f"{command}: this command needs Forerun's checkout (pip install -e CHECKOUT)")
    if added:
        import_module("simulator.cli.studies").add_studies(app, added)
    if command in READ_TABLES and _in_checkout():
        import_module("validation.tables")
    _with_plain_help(app)
    return app


def _installed_studies(command: str | None) -> list[StudyCommand]:
    """Studies of installed distributions; one that cannot be used is named on stderr and left out."""
    from simulator.studies.installed import SEPARATE, installed_studies

    studies: list[StudyCommand] = []
    for study in installed_studies(MODULES):
        if isinstance(study, ForerunError):
            print(f"forerun: {study}", file=sys.stderr)
        else:
            studies.append(study)
    needed = SEPARATE.get(str(command).replace("-", "_"))
    if needed is not None and command not in [study.name for study in studies]:
        raise ForerunError(f"{command}: this command needs {needed} (pip install {needed}; in a checkout: research/)")
    return studies


def _with_plain_help(app: Typer) -> None:
    for command in app.registered_commands:
        command.cls = _PlainHelp
    for group in app.registered_groups:
        group.cls = _PlainGroupHelp
        if group.typer_instance is not None:
            _with_plain_help(group.typer_instance)


def _in_checkout() -> bool:
    """True if this is a checkout; its ``validation`` can be imported from then on."""
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
    context: Context,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Predict how an LLM service will run before renting the hardware."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def call(words: Sequence[str]) -> int:
    """Parse a command line, call its command, and return its exit code."""
    try:
        code = application(words[0] if words else None)(args=list(words), prog_name="forerun", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except _USAGE_ERROR as error:
        raise UsageError(usage_line(error)) from None
    return code if isinstance(code, int) else 0


KINDS = {"number": "number", "integer": "whole number"}


def _typed(error: Exception) -> str:
    """The text that could not be read as a number."""
    problems: list[Any] = getattr(error.__cause__, "errors", list)()
    return str(problems[0]["input"]) if problems else ""


def usage_line(error: Exception) -> str:
    """A command-line error in one line that starts with the command and ends with where its help is."""
    message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else str(error)
    message = re.sub(
        r"Invalid value for '(.+)': Input should be a valid (number|integer), unable.*",
        lambda match: f"{match[1]}: {without_unit(_typed(error), match[1].replace('-', '_'), KINDS[match[2]])}",
        message,
    )
    message = re.sub(r"Invalid value for '(--[^']+)': Input should be ", r"\1: must be ", message)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "forerun"
    if context is not None and type(error).__name__ == "NoSuchOption":
        message = f"no option {error.option_name}{_meant(error.option_name, context.command.params)}"  # type: ignore[attr-defined]
    within = getattr(getattr(context, "command", None), "commands", {})
    if re.match("No such command [^?]*$", message) and context is not None and context.parent is not None:
        message = f"{message.rstrip('.')}; write {command} {' or '.join(within)}"
    return f"{command}: {message} ({command} --help)"


def _meant(option: str, params: Sequence[Any]) -> str:
    """A hint at the option, or at the field of the scenario, that an unknown option may mean."""
    from simulator.running.scenario import field_paths

    known = [name for param in params for name in param.opts]
    name = option.lstrip("-").replace("-", "_")
    bare = [one.removeprefix("--") for one in known if one.startswith("--")]
    by_field = {path: path.rsplit(".", 1)[-1] for path in field_paths()} if "--set" in known else {}
    paths = [path for path, field in by_field.items() if name in (path, field)]
    paths += [path for path, field in by_field.items() if "_" in field and name == re.sub(r"_?(.)[^_]*", r"\1", field)]
    return f"; write --set {paths[0]}=VALUE" if paths else did_you_mean(name, bare).replace("'", "'--", 1)
