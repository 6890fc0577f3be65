"""Exceptions of the simulator, for unusable input and for results that break an invariant."""

from __future__ import annotations

import zlib
from typing import Any

from forerun.errors import ForerunError as ForerunError
from forerun.errors import did_you_mean as did_you_mean
from forerun.errors import install_hint as install_hint


class StalledError(RuntimeError):
    """A simulation ran out of events before all requests had ended: a fault of the simulator."""


class ArgumentError(ForerunError):
    """A value that an argument of a function cannot have; the command line names its option in place of it.

    Args:
        argument: as the function spells it, e.g. ``max_replicas``.
        message: what is wrong with its value, and what would be right.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument, self.message = argument, message

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[str, str]]:
        return type(self), (self.argument, self.message)

    @property
    def as_option(self) -> str:
        """The message, prefixed with the command-line option of the argument."""
        return f"--{self.argument.replace('_', '-')}: {self.message}"


class UnknownFieldError(ForerunError):
    """A scenario field that does not exist."""


class NothingServedError(ForerunError):
    """The engine cannot serve any request of the workload.

    Args:
        reasons: why requests were refused, and how to fix it.
    """

    def __init__(self, reasons: str) -> None:
        super().__init__(f"workload: no request can be served here ({reasons})")
        self.reasons = reasons

    def __reduce__(self) -> tuple[type[NothingServedError], tuple[str]]:
        return type(self), (self.reasons,)


class WorkerDiedError(ForerunError):
    """A worker process crashed twice on the same run, probably because memory ran out."""


class InvariantError(RuntimeError):
    """A simulated result that breaks physics or conservation: a fault of the simulator, not of its input.

    Args:
        invariant: description of the broken invariant, with the numbers.
        scenario: the scenario of the run, as JSON that ``forerun run`` takes.
        seed: seed of the run.
        options: further arguments of the command that repeats the run.
        result: the run's result, where there is one; it does not travel between processes.
    """

    def __init__(self, invariant: str, scenario: str, seed: int, options: str = "", result: Any = None) -> None:
        super().__init__(invariant, scenario, seed, options)
        self.invariant, self.scenario, self.seed, self.options, self.result = invariant, scenario, seed, options, result

    def __reduce__(self) -> tuple[type[InvariantError], tuple[str, str, int, str]]:
        """Pickle everything except the result."""
        return type(self), (self.invariant, self.scenario, self.seed, self.options)

    @property
    def mark(self) -> str:
        """A short identifier of scenario and seed, stable from run to run."""
        return f"{zlib.crc32(f'{self.seed} {self.scenario}'.encode()):08x}"

    def __str__(self) -> str:
        """The broken invariant and the command that reproduces it."""
        return f"{self.invariant}; reproduce it with seed {self.seed} and the scenario {self.scenario}"
