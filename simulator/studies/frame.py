"""Declaration of a study: one Python function whose signature gives the options and the repeat command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, signature, unwrap
from math import inf
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar, get_args, get_origin

from forerun.errors import ArgumentError, call_refusal, check_number
from forerun.version import VERSION

if TYPE_CHECKING:
    from forerun.document import Json
    from forerun.result import StudyResult
    from simulator.running.scenario import Scenario

Arguments = ParamSpec("Arguments")
Options = TypeVar("Options")
Source = TypeVar("Source")
Result = TypeVar("Result", bound="StudyResult")
ProgressCall = Callable[[int, int], None]
ALWAYS_REPEATED = ("seed", "replications")
"""Options that the repeat command of a study includes even at their defaults."""


@dataclass(frozen=True, slots=True)
class Option:
    """Command-line form of a study's parameter."""

    help: str
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    flag: str = ""
    """Flag name; default: the parameter's name, with ``--no-`` for a switch that is on by default."""
    text: Any = None
    """Type of the option's value on the command line; default: the parameter's own type."""
    unset: Callable[[Any], Any] | None = None
    """Function from the scenario's path to the value if the option is absent; default: the parameter's default."""
    repeated: bool = True
    """True if the repeat command includes the option; False for options that the study file contains."""
    resolved: bool = False
    """True if the repeat command takes the value from the result's document, under the parameter's name."""

    def flag_of(self, name: str, default: object) -> str:
        """The command-line option of the parameter ``name``."""
        return self.flag or ("--no-" if default is True else "--") + name.replace("_", "-")


Jobs = Annotated[int | None, Option("Processes; default: one per core.", min=1, repeated=False)]
Interval = Annotated[bool, Option("Ignore the prediction error of the model.")]
Values = Annotated[
    Mapping[str, Sequence[object]] | None,
    Option(
        "Values of a scenario field, as YAML; the first is the baseline. Repeat for combinations.",
        "PATH=V1,V2,...",
        text=list[str],
        repeated=False,
    ),
]


class Mode(NamedTuple):
    """Arguments under which other options have no effect and are refused."""

    words: str
    """Text that names the option which selects the mode, such as ``with --replay``."""
    applies: Callable[[Mapping[str, Any]], bool]
    """Predicate over the arguments of the call; true if the mode applies."""
    unused: tuple[str, ...]


@dataclass(frozen=True)
class StudyCommand:
    """Facts about a study that its command needs in addition to the signature."""

    name: str
    function: Callable[..., Any]
    source: str
    """Help text of the study's first argument, the scenario."""
    progress: str = ""
    examples: str = ""
    files: str = ""
    """Files that ``--out`` writes beside the report."""
    modes: tuple[Mode, ...] = ()
    switch: str = ""
    """Option that selects this study if its command has several; it is not a parameter of the study."""
    switch_help: str = ""
    """Help text of ``switch`` if it is not a parameter of any study."""
    chosen: Callable[[Mapping[str, object], Any], bool] | None = None
    """Predicate over options and study file that selects this study among several studies of a command."""
    words: str = ""
    """Text that names the option which selects this study, for messages about options that the study lacks."""
    help: str = ""
    """Purpose of the command; default: the first line of the function's description."""
    finish: Callable[[Any], int] = lambda _: 0
    """Function from a result to the exit code, called after printing."""
    call: Callable[..., Any] = lambda: None
    """The study's function, wrapped in argument checks."""

    @property
    def options(self) -> dict[str, Parameter]:
        """Parameters that are options of the command, with annotations evaluated if they are text."""
        shape = {name: _evaluated(one, self.function) for name, one in signature(self.function).parameters.items()}
        return {name: one for name, one in shape.items() if hasattr(one.annotation, "__metadata__")}

    def unused(self, arguments: Mapping[str, object]) -> dict[str, str]:
        """Parameters without effect under ``arguments``, each with the text of the mode that disables it."""
        return {name: mode.words for mode in self.modes if mode.applies(arguments) for name in mode.unused}

    def check_bounds(self, arguments: Mapping[str, object]) -> None:
        """Refuse values whose type does not match their option, and numbers outside its bounds."""
        for name, parameter in self.options.items():
            option, kind = parameter.annotation.__metadata__[0], parameter.annotation.__origin__
            low, high = (-inf if option.min is None else option.min), (inf if option.max is None else option.max)
            if kind in (int, float) or (kind in (int | None, float | None) and arguments[name] is not None):
                check_number(name, arguments[name], low, high, whole=kind in (int, int | None))
            _check_kind(name, arguments[name], kind)

    def again(self, arguments: Mapping[str, object], result: StudyResult) -> str:
        """Command that repeats the study with the files that its result saves."""
        words = ["forerun", self.name, next(iter(result.files), "study.yaml")]
        words += (
            [f"--{self.switch}", *(() if self.switch_help else (result.document["engine"],))] if self.switch else []
        )
        unused = self.unused(arguments)
        for name, parameter in self.options.items():
            option = parameter.annotation.__metadata__[0]
            value = result.document[name] if option.resolved else arguments[name]
            kept = option.resolved or name in ALWAYS_REPEATED or value != parameter.default
            if option.repeated and kept and name not in unused and value not in (None, ()):
                if option.text is str and isinstance(value, list | tuple):
                    value = ",".join(map(_exact, value))
                words += _repeated(option.flag_of(name, parameter.default), value)
        return shlex.join(words)


def _evaluated(parameter: Parameter, function: Callable[..., Any]) -> Parameter:
    """Parameter with its annotation evaluated to a type, unless it has names for type checkers only."""
    if isinstance(parameter.annotation, str):
        with suppress(NameError):
            return parameter.replace(annotation=eval(parameter.annotation, unwrap(function).__globals__))
    return parameter


KINDS: Mapping[object, tuple[type | tuple[type, ...], str]] = {
    bool: (bool, "True or False"),
    float: (Real, "a number"),
    int: (Integral, "a whole number"),
    str: (str, "a text"),
    Path: (Path, "a path"),
    Mapping: (Mapping, "a mapping"),
    Sequence: (Iterable, "a list"),
}
"""Types of options, with the accepted classes of values and the name for messages."""


def _check_kind(name: str, value: object, kind: object) -> None:
    """Refuse a value that matches none of an option's types."""
    kinds = [get_origin(one) or one for one in (get_args(kind) if isinstance(kind, UnionType) else (kind,))]
    if (value is None and NoneType in kinds) or not all(one in KINDS or one is NoneType for one in kinds):
        return
    for one in kinds:
        of_numpy = one is bool and type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_")
        fits = one is not NoneType and (of_numpy or isinstance(value, KINDS[one][0]))
        number = isinstance(value, bool) and one in (int, float)
        if fits and not number and not (one is Sequence and isinstance(value, str | bytes | Mapping)):
            return
    words = " or ".join(KINDS[one][1] for one in kinds if one is not NoneType)
    raise ArgumentError(name, f"must be {words} (got {value!r})")


def _repeated(flag: str, value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield flag
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from (flag, f"{key}={_exact(one)}")
    elif isinstance(value, list | tuple) and not all(isinstance(one, int) for one in value):
        for one in value:
            yield from (flag, _exact(one))
    elif isinstance(value, list | tuple):
        yield from (flag, ",".join(map(str, value)))
    else:
        yield from (flag, _exact(value))


def _exact(value: object) -> str:
    """Shortest text of a value that parses to the same value; integral floats have no decimal point."""
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def study(name: str, **declared: Any) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Declare a study: ``@study("compare", source=..., files=...)`` above its function.

    The function's first parameter is the scenario; a parameter annotated with an :class:`Option` is an option of the
    command. The result gets the command that repeats it. A call with an option that has no effect is refused.
    """

    def declare(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        command = StudyCommand(name, function, **declared)
        shape = signature(function)

        @wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                bound = shape.bind(*args, **kwargs)
            except TypeError as error:
                first, *named = shape.parameters
                hint = f"by position goes '{first}' alone{', by name ' if named else ''}{', '.join(named)}"
                if first == "scenarios" and len(args) > 1:
                    hint = "several scenarios go in a list: fr.compare([first, second])"
                raise call_refusal(function.__name__, error, hint) from None
            given = tuple(bound.arguments)
            bound.apply_defaults()
            command.check_bounds(bound.arguments)
            for unused, words in command.unused(bound.arguments).items():
                if unused in given:
                    raise ArgumentError(unused, f"has no effect {words}; remove it")
            result = function(*bound.args, **bound.kwargs)
            result.command = result.command or command.again(bound.arguments, result)
            return result

        call.declared = replace(command, call=call)  # type: ignore[attr-defined]
        return call

    return declare


def by_keyword(
    options: Callable[Arguments, Options],
) -> Callable[[Callable[[Source, Options], Result]], Callable[Concatenate[Source, Arguments], Result]]:
    """Convert a function of a source and an options object to one with the object's fields as keyword arguments."""

    def declare(function: Callable[[Source, Options], Result]) -> Callable[Concatenate[Source, Arguments], Result]:
        @wraps(function)
        def call(source: Source, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            return function(source, options(*args, **kwargs))

        shape, fields = signature(function), signature(options).parameters.values()
        call.__signature__ = shape.replace(parameters=[next(iter(shape.parameters.values())), *fields])  # type: ignore[attr-defined]
        return call

    return declare


def study_header(scenario: Scenario, seed: int, basis: str | None, notes: Sequence[str] = ()) -> Json:
    """Fields common to the documents of all studies, except the conclusion."""
    from simulator.running.metrics import scenario_document

    header = {"scenario": scenario_document(scenario), "seed": seed, "version": VERSION}
    return {**header, "basis": basis, "notes": list(dict.fromkeys((*(scenario.notes or ()), *notes)))}


def study_document(
    body: Mapping[str, object], scenario: Scenario, seed: int, basis: str | None, notes: Sequence[str] = ()
) -> Json:
    """Document of a study: ``body`` as plain JSON values, with the fields common to all studies."""
    from forerun.document import plain_json

    document: Json = plain_json({**body, **study_header(scenario, seed, basis, notes)})
    return document
