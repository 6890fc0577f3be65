"""Interval of a speed-up, from kernel residuals, assumed parameters and acceptance.

Each source changes the logarithm of the speed-up separately; changes up and down are added in squares, as for
independent errors. The result is a 90 % interval for measured kernels, and the outcome of the stated ranges for assumed
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from hwprofiles import KernelLibrary
from simulator.running.scenario import Scenario
from simulator.studies.assumed import ACCEPTANCE, AssumedParameter
from simulator.timing import Kernel

Factors = Mapping[str, float]
TokenSeconds = Callable[[Scenario, Factors], FloatArray]
"""Seconds of an output token in every cell under a scenario and factors on assumed parameters."""


class Spread(NamedTuple):
    """Logarithms by which a ratio may be lower or higher, both >= 0, one per cell."""

    down: FloatArray
    up: FloatArray

    def ends(self, ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
        return ratio * np.exp(-self.down), ratio * np.exp(self.up)


def no_spread(cells: int) -> Spread:
    return Spread(np.zeros(cells), np.zeros(cells))


def added(spreads: Sequence[Spread]) -> Spread:
    """Combine independent sources: root of the sum of squares in each direction."""
    down = np.sqrt(np.sum([spread.down**2 for spread in spreads], axis=0))
    up = np.sqrt(np.sum([spread.up**2 for spread in spreads], axis=0))
    return Spread(down, up)


def moved(base: FloatArray, *ends: FloatArray) -> Spread:
    """Spread of a ratio from its values at the two ends of one parameter's range."""
    logs = np.log(np.array(ends) / base)
    return Spread(np.maximum(0.0, -logs.min(axis=0)), np.maximum(0.0, logs.max(axis=0)))


def assumed_spread(
    plain: tuple[Scenario, TokenSeconds], drafted: tuple[Scenario, TokenSeconds], parameters: Sequence[AssumedParameter]
) -> Spread:
    """Spread of the speed-up due to assumed parameters, each varied over its range separately."""
    sides = (plain, drafted)
    before, after = (seconds(scenario, {}) for scenario, seconds in sides)
    spreads = [no_spread(len(before))]
    for parameter in parameters:
        if parameter.name == ACCEPTANCE:
            continue
        ends = []
        for value in (parameter.low, parameter.high):
            try:
                moved_plain, moved_drafted = (
                    seconds(*parameter.applied(scenario, value)) for scenario, seconds in sides
                )
            except ForerunError:  # memory set aside that leaves no room: the end of the range cannot be run at all
                continue
            ends.append(moved_plain / moved_drafted)
        if ends:
            spreads.append(moved(before / after, *ends))
    return added(spreads)


class PricedKernels(NamedTuple):
    """The kernels of one kind of step, as arrays over the cells."""

    library: KernelLibrary
    kernels: Sequence[Kernel]
    steps: FloatArray
    """Number of steps of this kind per output token."""


def kernel_spread(*sides: Sequence[PricedKernels]) -> Spread:
    """Spread of the ratio of two times due to the residuals of fitted kernels, in logarithms (90 %).

    Every kernel has the interval of its own shape and bound. Errors of all kernels of one family within a time are
    equal; errors of families are independent, and so are errors of the two times, whose kernels have different shapes.
    A kernel that was not fitted on this chip adds nothing here, because its parameters are assumed.
    """
    squares = [0.0, 0.0]
    for side in sides:
        seconds = [[part.steps * np.asarray(kernel.step_s) for kernel in part.kernels] for part in side]
        total = np.sum([one for part in seconds for one in part], axis=0)
        by_family: dict[str, list[Any]] = {}
        for part, times in zip(side, seconds, strict=True):
            for kernel, one in zip(part.kernels, times, strict=True):
                if kernel.fitted[0]:
                    ends = by_family.setdefault(kernel.fitted[0], [0.0, 0.0])
                    interval = part.library.interval(*kernel.fitted, kernel.sizes, kernel.bound)
                    for end, factor in enumerate(interval):
                        ends[end] = ends[end] + one / total * np.log(np.maximum(0.1, factor))
        for ends in by_family.values():
            squares = [square + end**2 for square, end in zip(squares, ends, strict=True)]
    return Spread(np.sqrt(squares[0]), np.sqrt(squares[1]))
