"""Command lines without anything to explain, parsed without typer: help, completion and errors are typer's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from simulator.cli.commands import CommandGroup, CommandLine, Declared

NUMBERS = {int: re.compile("-?[0-9]+"), float: re.compile("-?[0-9]+([.][0-9]+)?(e-?[0-9]{1,2})?")}
"""Numbers as they are usually typed."""
SETTINGS = {"help", "metavar", "show_default", "hidden", "min", "max"}


class _Typed(NamedTuple):
    """A parameter of a command as it is typed."""

    kind: Any
    """Type of a value."""
    repeated: bool
    flags: tuple[str, ...] | None
    """None: an argument, without flags."""
    settings: dict[str, Any]


def parsed(commands: CommandGroup, words: Sequence[str]) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """The function of a command line and its arguments; None where typer has to parse it."""
    member: Any = commands
    for place, word in enumerate(words, start=1):
        if member.callback is not None or word not in member.members:
            return None
        member = member.members[word]
        if not isinstance(member, CommandGroup):
            try:
                return member.function, _arguments(member.function, words[place:])
            except (LookupError, ValueError, StopIteration):
                return None
    return None


def _arguments(function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    hints, parameters = get_type_hints(function, include_extras=True), signature(function).parameters
    typed = {name: _typed(name, hints[name]) for name in parameters if hints[name] is not CommandLine}
    switches: dict[str, tuple[str, bool]] = {}
    options: dict[str, str] = {}
    for name, one in typed.items():
        for flag in one.flags or ():
            on, _, off = flag.partition("/")
            switches |= {on: (name, True), off: (name, False)} if one.kind is bool else {}
            options |= {on: name} if one.kind is not bool else {}
    texts: dict[str, list[Any]] = {}
    places: list[str] = []
    following = iter(words)
    for word in following:
        flag, equals, text = word.partition("=")
        if word == "-" or not word.startswith("-"):
            places.append(word)
        elif flag in switches and not equals:
            name, on_or_off = switches[flag]
            texts.setdefault(name, []).append(on_or_off)
        else:
            texts.setdefault(options[flag], []).append(text if equals else next(following))
    for name, one in typed.items():
        if one.flags is None and places:
            texts[name], places = (places, []) if one.repeated else (places[:1], places[1:])
    values = {name: parameter.default for name, parameter in parameters.items()}
    values |= {name: _value(typed[name], given) for name, given in texts.items()}
    for name in parameters.keys() - typed.keys():
        values[name] = CommandLine({name: (typed[name].flags or (name,))[-1].partition("/")[0] for name in texts})
    if places or Parameter.empty in values.values():
        raise ValueError("not the arguments of this command")
    return values


def _typed(name: str, hint: Any) -> _Typed:
    declared: Declared = hint.__metadata__[0]
    kind = hint.__origin__
    if isinstance(kind, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    repeated = get_origin(kind) is list
    flag = name.replace("_", "-")
    usual = (f"--{flag}/--no-{flag}",) if kind is bool else (f"--{flag}",)
    flags = None if declared.flags is None else declared.flags or usual
    if not declared.settings.keys() <= SETTINGS:
        raise ValueError("a setting that only typer knows")
    return _Typed(get_args(kind)[0] if repeated else kind, repeated, flags, declared.settings)


def _value(typed: _Typed, texts: list[Any]) -> Any:
    values = [_one_value(typed, text) for text in texts]
    if typed.repeated:
        return values
    (value,) = values
    return value


def _one_value(typed: _Typed, text: Any) -> Any:
    kind = typed.kind
    if kind is bool or kind is str:
        usual = kind is bool or text == "-" or not text.startswith("-")
        value = text
    elif kind is Path:
        usual, value = not text.startswith("-") and (os.access(text, os.R_OK) or not os.path.lexists(text)), Path(text)
    elif kind in NUMBERS:
        usual, value = NUMBERS[kind].fullmatch(text) is not None, kind(text)
        low, high = typed.settings.get("min"), typed.settings.get("max")
        usual = usual and (low is None or value >= low) and (high is None or value <= high)
    else:
        usual, value = get_origin(kind) is Literal and text in get_args(kind), text
    if not usual:
        raise ValueError(f"typer has to read '{text}'")
    return value
