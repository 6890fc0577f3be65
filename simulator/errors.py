"""What the simulator raises: for input it cannot honour, and for results that cannot be."""

from __future__ import annotations

import zlib
from typing import Any

from forerun.errors import ForerunError as ForerunError
from forerun.errors import did_you_mean as did_you_mean
from forerun.errors import install_hint as install_hint


class StalledError(RuntimeError):
    """A simulation has nothing left to do and requests that have not ended: a fault of the simulator."""


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
    """Not one request of a workload fits the engine.

    Args:
        reasons: why, with what would be right.
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
        invariant: what is broken, with the numbers.
        scenario: what was run, as JSON that ``forerun run`` takes.
        seed: with which it was run.
        options: further words of the command that runs it again.
        result: the run's result, where there is one; it does not travel between processes.
    """

    def __init__(self, invariant: str, scenario: str, seed: int, options: str = "", result: Any = None) -> None:
        super().__init__(invariant, scenario, seed, options)
        self.invariant, self.scenario, self.seed, self.options, self.result = invariant, scenario, seed, options, result

    def __reduce__(self) -> tuple[type[InvariantError], tuple[str, str, int, str]]:
        """For another process: all but the result."""
        return type(self), (self.invariant, self.scenario, self.seed, self.options)

    @property
    def mark(self) -> str:
        """A short name of scenario and seed, the same each time."""
        return f"{zlib.crc32(f'{self.seed} {self.scenario}'.encode()):08x}"

    def __str__(self) -> str:
        """The invariant and how to see it broken again."""
        return f"{self.invariant}; reproduce it with seed {self.seed} and the scenario {self.scenario}"
