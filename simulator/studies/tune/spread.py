"""How far a speed-up may lie from its prediction: kernels' residuals, assumed parameters, acceptance.

Each source moves the logarithm of the speed-up by itself; what they move it up and down is added in squares, as for
independent errors. The result is a 90 % interval where kernels were measured, and the outcome of the stated ranges
where parameters were assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.build import Build
from simulator.errors import ForerunError
from simulator.llm import MoeMlp
from simulator.scenario import Scenario
from simulator.studies.assumed import ACCEPTANCE, AssumedParameter
from simulator.timing import Deployment, StepTimer

FloatArray = NDArray[np.float64]
Factors = Mapping[str, float]
StepSeconds = Callable[[Scenario, Factors], FloatArray]
"""Seconds of every cell's step under a scenario and factors on assumed parameters."""


class Spread(NamedTuple):
    """Logarithms by which a ratio may be lower or higher, both >= 0, one per cell."""

    down: FloatArray
    up: FloatArray

    def ends(self, ratio: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lower and upper end of the interval around ``ratio``."""
        return ratio * np.exp(-self.down), ratio * np.exp(self.up)


def no_spread(cells: int) -> Spread:
    """Nothing is uncertain."""
    return Spread(np.zeros(cells), np.zeros(cells))


def added(spreads: Sequence[Spread]) -> Spread:
    """Independent sources together: each direction by the root of the sum of squares."""
    down = np.sqrt(np.sum([spread.down**2 for spread in spreads], axis=0))
    up = np.sqrt(np.sum([spread.up**2 for spread in spreads], axis=0))
    return Spread(down, up)


def moved(base: FloatArray, *ends: FloatArray) -> Spread:
    """What the ends of one parameter's range do to a ratio."""
    logs = np.log(np.array(ends) / base)
    return Spread(np.maximum(0.0, -logs.min(axis=0)), np.maximum(0.0, logs.max(axis=0)))


def assumed_spread(
    plain: Scenario,
    drafted: Scenario,
    parameters: Sequence[AssumedParameter],
    step_seconds: StepSeconds,
) -> Spread:
    """What assumed parameters, moved one at a time over their ranges, do to (plain step) / (verify step).

    Args:
        plain, drafted: the scenarios that are compared; a parameter moves in both at once.
        parameters: acceptance is left out: it moves no step time.
        step_seconds: prices all cells.
    """
    base = step_seconds(plain, {}) / step_seconds(drafted, {})
    found = [no_spread(len(base))]
    for parameter in parameters:
        if parameter.name == ACCEPTANCE:
            continue
        ends = []
        for value in (parameter.low, parameter.high):
            try:
                before, factors = parameter.applied(plain, value)
                after, _ = parameter.applied(drafted, value)
                ends.append(step_seconds(before, factors) / step_seconds(after, factors))
            except ForerunError:  # memory set aside that leaves no room: the end of the range cannot be run at all
                continue
        if ends:
            found.append(moved(base, *ends))
    return added(found)


def kernel_spread(target: Deployment, attention_shares: Sequence[FloatArray]) -> Spread:
    """What the residuals of fitted kernels do to the ratio of two steps, in logarithms (90 %).

    All kernels of one family in a step err alike; families err independently, and so do the two steps, whose kernels
    have different shapes. A family that was not fitted on this chip adds nothing here: its parameters are assumed.

    Args:
        target: the target model, for the fitted intervals of its kernels.
        attention_shares: share of attention in the time of either step, per cell; the rest counts as matrix products.
    """
    mlps = [group.layer.mlp for group in target.architecture.layer_groups]
    products = "moe" if any(isinstance(mlp, MoeMlp) for mlp in mlps) else "gemm"
    down, up = np.zeros(len(attention_shares[0])), np.zeros(len(attention_shares[0]))
    for share in attention_shares:
        for family, part in ((products, 1.0 - share), ("attention_decode", share)):
            low, high = residual(target, family)
            down += (part * np.log(low)) ** 2
            up += (part * np.log(high)) ** 2
    return Spread(np.sqrt(down), np.sqrt(up))


def target_of(build: Build) -> Deployment:
    """The target model of a run on its chips."""
    timer = build.main.timer
    target = getattr(timer, "target", None)
    assert isinstance(target, StepTimer)
    return target.deployment


def residual(target: Deployment, family: str) -> tuple[float, float]:
    """The 90 % interval of a fitted family as factors on a prediction; (1, 1) where it was not fitted."""
    dtypes = {"gemm": target.weight_dtypes["attention"], "moe": target.weight_dtypes["expert"]}
    dtype = dtypes.get(family, target.kv_dtype)
    if target.kernels.basis(family, dtype) != "calibrated":
        return 1.0, 1.0
    parameters = target.kernels.parameters(family, dtype)
    fit = getattr(parameters, "fit", None)
    low, high = fit.intervals.get("memory", fit.intervals.get("all", (1.0, 1.0))) if fit is not None else (1.0, 1.0)
    return min(1.0, max(low, 0.1)), max(1.0, high)
