"""All commands, the modules that declare them, and the declarations of options and arguments, which need no library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from forerun.errors import ForerunError

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
MODULES = {name: module for panel in COMMANDS.values() for name, module in panel.items()}


class Declared(NamedTuple):
    """What an annotation says of a parameter: an option with its flags, or an argument."""

    flags: tuple[str, ...] | None
    """As they are typed; empty: the parameter's name; None: an argument, without flags."""
    settings: dict[str, Any]
    """Keywords of ``typer.Option`` or ``typer.Argument``."""


def option(*flags: str, **settings: Any) -> Declared:
    """An option of a command: ``Annotated[int, option("--seed", min=0, help="...")]``."""
    return Declared(flags, settings)


def argument(**settings: Any) -> Declared:
    """An argument of a command, in the order of the parameters."""
    return Declared(None, settings)


class CommandLine(NamedTuple):
    """How a command was called; its function gets it by a parameter of this type."""

    written: dict[str, str]
    """Options and arguments that stand on the command line: parameter -> how it is written."""
    subcommand: str | None = None
    """What follows the options of a group."""
    help: Callable[[], str] = str


class Command(NamedTuple):
    """A function and what its help says beside its description."""

    function: Callable[..., Any]
    settings: dict[str, Any]


class CommandGroup:
    """Commands by name, and groups of them."""

    def __init__(self, callback: Command | None = None, **settings: Any) -> None:
        self.callback, self.settings = callback, settings
        self.members: dict[str, Command | CommandGroup] = {}

    def command(self, name: str, function: Callable[..., Any], **settings: Any) -> None:
        """Add a command."""
        self.members[name] = Command(function, settings)

    def group(self, name: str, callback: Command | None = None, **settings: Any) -> CommandGroup:
        """Add a group, which is returned."""
        group = self.members[name] = CommandGroup(callback, **settings)
        return group


def declared_commands(command: str | None = None) -> CommandGroup:
    """The commands of the module of ``command`` if it is known, all of them otherwise (help, completion, a typing
    error)."""
    commands = CommandGroup()
    for module in [MODULES[command]] if command in MODULES else dict.fromkeys(MODULES.values()):
        if "." not in module:
            import_module(f"simulator.cli.{module}").register(commands)
        elif _in_checkout():
            import_module(module).register(commands)
        elif command in MODULES:
            raise ForerunError(f"{command}: this command needs Forerun's checkout (pip install -e CHECKOUT)")
    if command in READ_TABLES and _in_checkout():
        import_module("validation.tables")
    return commands


def _in_checkout() -> bool:
    """Whether this is a checkout; its ``validation`` can be imported from then on."""
    checkout = CHECKOUT.joinpath("validation").is_dir()
    if checkout and str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
    return checkout
