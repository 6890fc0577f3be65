"""Acceptance in two numbers: the level of the first position and its decay for every doubling of the position.

A drafter gets worse as it drafts on its own output: EAGLE heads see features that they predicted themselves, MTP
modules are reused deeper than they were trained. The loss is largest at the first steps and levels out, as the drafter
settles on its own features and drafts that got far are the easy ones. Position i (from 1), once all before it were
accepted, is accepted with ``min(1, level * decay**log2(i))``, a power law of the position.

Fitted on the acceptance lengths of K = 1..3 of 16 published curves and extrapolated to K = 5..8, it is right on average
(+0.2 % over curves, median error 2.0 %, where lengths do not fall with K); one factor from each position
to the next is 1.6 % low on average, and 3.7 % on curves whose first position is accepted in over 90 %. Of the family
``level * decay**((i**s - 1) / (2**s - 1))``, from that (s = 1) to this (s = 0) and to s = -0.5, the error is
least at s = 0 (tests/simulator/speculation/test_published_curves.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError
from simulator.speculation.closed_form import check_length, expected_length, rising_root

MOST_DECAY = 1.25
"""Largest factor per doubling of the position that a fit returns; above 1 rates rise with depth (n-gram drafters)."""
LEAST_DECAY = 1e-3
FIRST_DIFFERS = 3.84
"""Gain in deviance at which the first position is off the others' law: a likelihood ratio at 95 %."""
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class LevelDecay:
    """Conditional acceptance of position i: ``min(1, level * decay**log2(i))``."""

    level: float
    """Chance that the first draft token is accepted, in [0, 1]."""
    decay: float = 1.0
    """Factor from the first position to the second, the second to the fourth, and so on, > 0; 1 is the i.i.d. model."""

    def conditional(self, positions: int) -> FloatArray:
        """Chance that position i is accepted when all before it were, i = 1..positions."""
        doublings = np.log2(np.arange(1, positions + 1))
        return np.asarray(np.minimum(self.level * self.decay**doublings, 1.0), dtype=np.float64)

    def survival(self, positions: int) -> FloatArray:
        """Chance that at least i draft tokens are accepted, i = 1..positions."""
        return np.asarray(np.cumprod(self.conditional(positions)), dtype=np.float64)

    def acceptance_length(self, num_speculative_tokens: int) -> float:
        """Mean tokens of a verify step with ``drafted`` draft tokens, the bonus token included."""
        return expected_length(self.conditional(num_speculative_tokens))

    def with_length(self, acceptance_length: float, num_speculative_tokens: int) -> LevelDecay:
        """This decay with the level that yields a measured acceptance length (bonus token included).

        Raises:
            ForerunError: the length lies outside [1, K + 1], or no level up to 1 reaches it with this decay.
        """
        check_length(acceptance_length, num_speculative_tokens)
        most = LevelDecay(1.0, self.decay).acceptance_length(num_speculative_tokens)
        if acceptance_length > most:
            raise ForerunError(
                f"acceptance_length {acceptance_length:g} needs a first position accepted more often than always with "
                f"decay {self.decay:g}: {num_speculative_tokens} draft tokens then yield at most {most:.3f}; "
                f"give a decay nearer 1"
            )

        def excess(level: float) -> float:
            return LevelDecay(level, self.decay).acceptance_length(num_speculative_tokens) - acceptance_length

        return LevelDecay(rising_root(excess, 0.0, 1.0), self.decay)


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """Level and decay fitted to measurements, with goodness of fit."""

    model: LevelDecay
    decay_identified: bool
    """False if the data hold one number only: the decay is then 1 by assumption."""
    quantity: str
    """Fitted quantity: ``acceptance_length`` by K, or ``conditional`` rate by position."""
    at: tuple[int, ...]
    """Numbers of draft tokens K, or positions, of the measurements."""
    observed: tuple[float, ...]
    predicted: tuple[float, ...]
    level_error: float | None = None
    """Standard error of the level; None without counts."""
    decay_error: float | None = None
    deviance: float | None = None
    """Twice the log-likelihood lost against the rates themselves; about ``degrees`` where the model holds."""
    degrees: int | None = None
    """Degrees of freedom: measured positions less fitted parameters."""

    @property
    def length_error(self) -> float:
        """Largest ``|predicted / measured - 1|`` of the acceptance length, at the K that were measured."""
        if self.quantity == "acceptance_length":
            return max(abs(p / o - 1.0) for p, o in zip(self.predicted, self.observed, strict=True))
        return abs(expected_length(self.predicted) / expected_length(self.observed) - 1.0)

    @property
    def rate_error(self) -> float | None:
        """Largest ``|predicted - measured|`` of a conditional rate; None where lengths were fitted."""
        if self.quantity == "acceptance_length":
            return None
        return max(abs(p - o) for p, o in zip(self.predicted, self.observed, strict=True))


def fit_acceptance_lengths(lengths: Mapping[int, float]) -> AcceptanceFit:
    """Level and decay from acceptance lengths (bonus token included) measured with different numbers of draft tokens.

    Relative errors count alike at every K. One length leaves the decay at 1.

    Raises:
        ForerunError: no length, or one that its K cannot give.
    """
    if not lengths:
        raise ForerunError("no acceptance length to fit")
    depths = sorted(lengths)
    for depth in depths:
        check_length(lengths[depth], depth)
    measured = np.array([lengths[depth] for depth in depths])
    columns = np.array(depths) - 1

    def predict(model: LevelDecay) -> FloatArray:
        return np.asarray(1.0 + np.cumsum(model.survival(depths[-1]))[columns], dtype=np.float64)

    if len(depths) == 1:
        model = LevelDecay(1.0).with_length(float(measured[0]), depths[0])
    else:
        start = LevelDecay(1.0).with_length(float(measured[0]), depths[0]).level
        model = _solve(lambda m: predict(m) / measured - 1.0, start, 0.9)
    return AcceptanceFit(
        model=model,
        decay_identified=len(depths) > 1,
        quantity="acceptance_length",
        at=tuple(depths),
        observed=tuple(measured.tolist()),
        predicted=tuple(predict(model).tolist()),
    )


def fit_survival(survival: Sequence[float], drafts: float | None = None, start: int = 0) -> AcceptanceFit:
    """Level and decay from the share of drafts in which position i is accepted: the most likely ones given counts.

    Position i is a binomial trial of the drafts accepted up to position i - 1, so deep positions that few drafts
    reached weigh little. Positions that no draft reached are left out. With counts, half an acceptance and half a
    rejection are added to each position (Jeffreys' prior), so that few drafts are no certainty.

    Args:
        survival: never rises; vLLM's per-position acceptance rates.
        drafts: number of verify steps; if None (unknown), the fit has no errors and no deviance.
        start: positions to leave out at the start.

    Raises:
        ForerunError: nothing to fit.
    """
    reached = [1.0, *survival[:-1]]
    positions = [i for i, before in enumerate(reached) if before > 0][start:]
    if not survival or not positions:
        raise ForerunError("no per-position acceptance rate to fit")
    before = np.array([reached[i] for i in positions])
    rates = np.array([survival[i] for i in positions]) / before
    trials = before * (1.0 if drafts is None else drafts)
    observed = rates
    if drafts is not None:
        rates, trials = (rates * trials + 0.5) / (trials + 1.0), trials + 1.0

    def residuals(model: LevelDecay) -> FloatArray:
        return _deviance_residuals(rates, model.conditional(len(survival))[positions], trials)

    errors: FloatArray | None = None
    if len(positions) == 1:
        model = LevelDecay(float(rates[0]))
        if drafts is not None:
            errors = np.array([np.sqrt(rates[0] * (1.0 - rates[0]) / trials[0]), np.nan])
    else:
        model = _solve(residuals, float(np.clip(rates[0], 0.01, 0.99)), 0.95)
        information = _information(model, positions, trials)
        if drafts is not None and np.linalg.cond(information) < 1e12:
            errors = np.sqrt(np.diag(np.linalg.inv(information)))
    return AcceptanceFit(
        model=model,
        decay_identified=len(positions) > 1,
        quantity="conditional",
        at=tuple(i + 1 for i in positions),
        observed=tuple(observed.tolist()),
        predicted=tuple(model.conditional(len(survival))[positions].tolist()),
        level_error=None if errors is None else float(errors[0]),
        decay_error=None if errors is None or np.isnan(errors[1]) else float(errors[1]),
        deviance=None if drafts is None else float((residuals(model) ** 2).sum()),
        degrees=None if drafts is None else max(0, len(positions) - 2),
    )


def conditional_rates(marginal: Sequence[float]) -> list[float]:
    """Chance that position i is accepted when all before it were, up to the last position that was ever reached."""
    reached = [1.0, *marginal[:-1]]
    return [here / before for before, here in zip(reached, marginal, strict=True) if before > 0]


def extended(conditional: Sequence[float], positions: int, drafts: float | None = None) -> FloatArray:
    """Measured conditional rates, extended to ``positions`` by a fitted level and decay.

    The first token is drafted from the target's own states, so the loss after it does not go on where a draft head
    proposes all tokens in one pass (DFlash: 0.90, 0.86, 0.85, 0.85). The first position takes no part in the fit
    unless counts are too few to tell it from the others.
    """
    if len(conditional) >= positions:
        return np.asarray(conditional[:positions], dtype=np.float64)
    if conditional and conditional[-1] == 0.0:
        return np.concatenate((np.asarray(conditional), np.zeros(positions - len(conditional))))
    if len(conditional) < 2:
        raise ForerunError("one position shows no decay to extrapolate; give the rates of two positions or more")
    survival = np.cumprod(conditional).tolist()
    fit = fit_survival(survival, drafts)
    if len(conditional) > 2:
        later = fit_survival(survival, drafts, start=1)
        if fit.deviance is None or later.deviance is None or fit.deviance - later.deviance > FIRST_DIFFERS:
            fit = later
    return np.concatenate((np.asarray(conditional), fit.model.conditional(positions)[len(conditional) :]))


def _solve(residuals: Callable[[LevelDecay], FloatArray], level: float, decay: float) -> LevelDecay:
    from scipy.optimize import least_squares  # slow to import, and most runs do without

    def of(point: FloatArray) -> FloatArray:
        return residuals(LevelDecay(float(point[0]), float(point[1])))

    bounds = ((0.0, LEAST_DECAY), (1.0, MOST_DECAY))
    solution: Any = least_squares(of, (level, decay), bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    return LevelDecay(float(solution.x[0]), float(solution.x[1]))


def _information(model: LevelDecay, positions: Sequence[int], trials: FloatArray) -> FloatArray:
    """Fisher information of level and decay, [2, 2]: ``sum_i trials_i / (p_i (1 - p_i)) grad p_i grad p_i^T``."""

    def rates(level: float, decay: float) -> FloatArray:
        return LevelDecay(level, decay).conditional(positions[-1] + 1)[positions]

    level, decay, step = model.level, model.decay, 1e-6
    low, high = max(0.0, level - step), min(1.0, level + step)
    slower, faster = max(LEAST_DECAY, decay - step), min(MOST_DECAY, decay + step)
    by_level = (rates(high, decay) - rates(low, decay)) / (high - low)
    by_decay = (rates(level, faster) - rates(level, slower)) / (faster - slower)
    chance = np.clip(rates(level, decay), TINY, 1.0 - TINY)
    gradients = np.column_stack((by_level, by_decay)) * np.sqrt(trials / (chance * (1.0 - chance)))[:, None]
    return np.asarray(gradients.T @ gradients, dtype=np.float64)


def _deviance_residuals(rates: FloatArray, model: FloatArray, trials: FloatArray) -> FloatArray:
    """Signed roots of the binomial deviance; their squares sum to twice the log-likelihood ratio."""
    expected = np.clip(model, TINY, 1.0 - TINY)
    seen = np.clip(rates, TINY, 1.0 - TINY)
    loss = rates * np.log(seen / expected) + (1.0 - rates) * np.log((1.0 - seen) / (1.0 - expected))
    return np.asarray(np.sign(expected - rates) * np.sqrt(2.0 * trials * np.maximum(loss, 0.0)), dtype=np.float64)
