"""Studies and results that other installed distributions add to ``forerun`` (entry points ``forerun.studies``)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from forerun.errors import ForerunError, did_you_mean
from simulator.studies import public
from simulator.studies.frame import StudyCommand

GROUP = "forerun.studies"
COMMANDS = {"run": "simulate", "replay": "replay_requests", "step": "StepTime"}
"""Names of commands, with the name that Python has for what they do."""
SEPARATE = dict.fromkeys(("race", "draft_pool", "rollouts"), "forerun-research")
"""Studies that Forerun contained earlier, with the distribution that contains them now."""


@cache
def installed_names() -> Mapping[str, EntryPoint]:
    """Entry points by the name that each one adds.

    Raises:
        ForerunError: two distributions add the same name.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if find_spec(point.module.partition(".")[0]) is None:  # an editable install whose folder is gone
            continue
        other = points.setdefault(point.name, point)
        if other.value != point.value:
            raise ForerunError(f"{_place(point)}: {_place(other)} has this name too; uninstall one of the two")
    return points


def load_name(name: str, package: str = "forerun") -> object:
    """Load the study or result class that an entry point adds to ``package``.

    Raises:
        AttributeError: no installed distribution adds this name.
        ForerunError: it cannot be imported, or a study has no ``@study`` decorator.
    """
    if name not in installed_names():
        near = did_you_mean(COMMANDS.get(name, name), import_module(package).__all__)
        hint = f"; pip install {SEPARATE[name]}" if name in SEPARATE else near
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
    point = installed_names()[name]
    try:
        value: object = point.load()
    except Exception as error:
        raise ForerunError(f"{_place(point)} cannot be imported: {type(error).__name__}: {error}") from error
    if name.islower() and not isinstance(getattr(value, "declared", None), StudyCommand):
        raise ForerunError(f"{_place(point)}: {point.value} is no study; declare it with @forerun.studies.study(NAME)")
    return value


def installed_studies(taken: Collection[str]) -> Iterator[StudyCommand | ForerunError]:
    """Studies of installed distributions, and an error for each that cannot be used or whose name is ``taken``."""
    try:
        for name, point in installed_names().items():
            if name.islower():
                try:
                    study: StudyCommand = load_name(name).declared  # type: ignore[attr-defined]
                    clash = [one for one in (study.name, name) if one in taken or one in dir(public)]
                    problem = f"{_place(point)}: {', '.join(clash)} is a name of Forerun; choose another"
                    yield ForerunError(problem) if clash else study
                except ForerunError as error:
                    yield error
    except ForerunError as error:
        yield error


def _place(point: EntryPoint) -> str:
    return f"study {point.name!r} of {point.dist.name if point.dist else 'an unknown distribution'}"
