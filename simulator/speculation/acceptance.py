"""Acceptance of draft tokens in each verify step: chances by position, class of request and context."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError
from simulator.speculation.context import ContextFall, context_drift
from simulator.speculation.curves import load_curve
from simulator.speculation.level_decay import LevelDecay, conditional_rates, extended
from simulator.speculation.speculation_config import AcceptanceConfig, DraftConfig

CLASSES = 128
"""Number of equally likely request classes that approximate the beta distribution."""
DRAFT_CLASSES = 32
"""Number of classes if each draft has its own class; fewer, as a step under a budget visits every class."""
LEAST_CONCENTRATION = 0.1
"""Minimum concentration of the beta distribution; below it nearly every request accepts all drafts or none."""


def widest_spread(first_rate: float) -> float:
    """Largest standard deviation that a beta distribution with this mean is given here."""
    return float(np.sqrt(first_rate * (1.0 - first_rate) / (1.0 + LEAST_CONCENTRATION)))


def request_classes(survival: FloatArray, spread: float, autocorrelation: float = 1.0) -> FloatArray:
    """Chance that at least i draft tokens are accepted, by class of request or of draft: shape (classes, K).

    The conditional rate of every position is beta-distributed, with one concentration. With ``autocorrelation`` 1 a
    class is one of requests, and the same requests are good at every position; below 1 it is one of drafts, whose rates
    follow one another as an autoregressive process (normal scores x' = rho x + sqrt(1 - rho^2) e), and each draft has a
    class of its own. The means are set so that the *counters of the engine*, pooled over the drafts of requests of
    equal output length, show ``survival`` again: a request accepted less often needs more drafts, so it weighs more in
    the counters. Spread moves tails and burstiness, never the acceptance length.

    Args:
        survival: chance that at least i tokens are accepted, i = 1..K, pooled over drafts.
        spread: standard deviation of the first position's rate, >= 0.
        autocorrelation: correlation of the rates of two neighbouring draft tokens, 0 to 1.
    """
    if spread == 0.0:
        return np.tile(survival, (CLASSES, 1))
    widest = widest_spread(float(survival[0]))
    if spread > widest:
        raise ForerunError(
            f"speculation.acceptance.spread {spread:g} is too wide for a first position accepted in "
            f"{100 * survival[0]:.1f} % of drafts: at most {widest:.3f}"
        )
    return _classes(tuple(float(s) for s in survival), spread, autocorrelation).copy()


@lru_cache(maxsize=64)
def _classes(survival: tuple[float, ...], spread: float, autocorrelation: float) -> FloatArray:
    concentration = survival[0] * (1.0 - survival[0]) / spread**2 - 1.0
    ranks = _ranks(len(survival), autocorrelation)
    count = ranks.shape[1]
    weights = np.full(count, 1.0 / count)
    classes = np.empty((count, len(survival)))
    for _ in range(200):
        reached = np.ones(count)
        for i, pooled in enumerate(survival):
            reached = reached * _rates(reached * weights, pooled, concentration, ranks[i])
            classes[:, i] = reached
        if autocorrelation < 1.0:
            break  # every draft has a class of its own: all weigh the same
        drafts = 1.0 / (1.0 + classes.sum(axis=1))
        updated = drafts / drafts.sum()
        if np.abs(updated - weights).max() < 1e-13:
            break
        weights = updated
    return classes


def _ranks(positions: int, autocorrelation: float) -> FloatArray:
    """Rank of every class at every position, equally spaced in (0, 1)."""
    if autocorrelation == 1.0:
        places = np.tile(np.arange(CLASSES), (positions, 1))
    else:
        noise = np.random.default_rng(0).standard_normal((positions, DRAFT_CLASSES))
        scores = [noise[0]]
        for fresh in noise[1:]:
            scores.append(autocorrelation * scores[-1] + np.sqrt(1.0 - autocorrelation**2) * fresh)
        places = np.argsort(np.argsort(scores, axis=1), axis=1)
    ranks: FloatArray = (places + 0.5) / places.shape[1]
    return ranks


def _rates(weights: FloatArray, pooled: float, concentration: float, ranks: FloatArray) -> FloatArray:
    """Rates of one position by class; their mean, weighted by drafts that reach the position, is ``pooled``."""
    if pooled <= 0.0:
        return np.zeros(len(ranks))
    if pooled >= weights.sum() * (1.0 - 1e-12):
        return np.ones(len(ranks))
    from scipy.optimize import brentq  # slow to import, and most runs do without
    from scipy.special import betaincinv

    def rates(mean: float) -> FloatArray:
        drawn = betaincinv(mean * concentration, (1.0 - mean) * concentration, ranks)
        return np.asarray(drawn, dtype=np.float64)

    def excess(mean: float) -> float:
        return float((weights * rates(mean)).sum()) - pooled

    low, high = 1e-7, 1.0 - 1e-7
    if excess(low) >= 0.0 or excess(high) <= 0.0:
        return np.full(len(ranks), pooled / weights.sum())
    return rates(float(brentq(excess, low, high, xtol=1e-13)))


def survival_rates(acceptance: AcceptanceConfig, num_speculative_tokens: int) -> FloatArray:
    """Chance that at least i draft tokens are accepted, pooled over requests, for i = 1..K; never rises.

    Raises:
        ForerunError: an acceptance length that K tokens cannot give, or data that end before K.
    """
    decay = 1.0 if acceptance.decay is None else acceptance.decay
    if acceptance.alpha is not None:
        return LevelDecay(acceptance.alpha, decay).survival(num_speculative_tokens)
    if acceptance.acceptance_length is not None:
        model = LevelDecay(1.0, decay).with_length(acceptance.acceptance_length, num_speculative_tokens)
        return model.survival(num_speculative_tokens)
    if acceptance.curve is not None:
        curve = load_curve(acceptance.curve)
        if num_speculative_tokens > curve.positions and not acceptance.extrapolate:
            raise ForerunError(
                f"speculation.acceptance.curve: {acceptance.curve} was measured up to K = {curve.positions}; "
                f"set extrapolate: true to continue its decay to {num_speculative_tokens}"
            )
        return curve.survival(num_speculative_tokens)
    field, marginal, drafts = _measured(acceptance, num_speculative_tokens)
    if len(marginal) >= num_speculative_tokens:
        return np.asarray(marginal[:num_speculative_tokens], dtype=np.float64)
    if not acceptance.extrapolate:
        raise ForerunError(
            f"speculation.acceptance.{field} has {len(marginal)} positions, num_speculative_tokens is "
            f"{num_speculative_tokens}; give a rate for every position, or set extrapolate: true"
        )
    return np.asarray(
        np.cumprod(extended(conditional_rates(marginal), num_speculative_tokens, drafts)), dtype=np.float64
    )


def sampler_of(
    acceptance: AcceptanceConfig, survival: FloatArray, seed: int, draft: DraftConfig | None = None
) -> AcceptanceSampler:
    """Sampler of survival rates, with the spread and the drop over context of an acceptance section."""
    correlation = 1.0 if acceptance.autocorrelation is None else acceptance.autocorrelation
    return AcceptanceSampler(
        survival, seed, acceptance.spread or 0.0, context_drift(acceptance, draft), autocorrelation=correlation
    )


def _measured(acceptance: AcceptanceConfig, positions: int) -> tuple[str, list[float], float | None]:
    """Name of the acceptance field, its share of drafts in which each measured position is accepted, and its drafts."""
    if acceptance.per_position is not None:
        return "per_position", acceptance.per_position, None
    if acceptance.conditional is not None:
        return "conditional", np.cumprod(acceptance.conditional).tolist(), None
    assert acceptance.log is not None
    from simulator.speculation.engine_logs import read_acceptance

    log = read_acceptance(acceptance.log)
    if log.per_position is not None:
        return f"log: {acceptance.log}", list(log.per_position), log.num_drafts
    if log.num_speculative_tokens != positions:
        drafted = "an unknown number of" if log.num_speculative_tokens is None else log.num_speculative_tokens
        raise ForerunError(
            f"speculation.acceptance.log: {acceptance.log} prints no rates per position, only the acceptance length "
            f"{log.acceptance_length:.2f} at {drafted} draft tokens, not {positions}; "
            f"give acceptance_length and decay instead"
        )
    return "log", LevelDecay(1.0).with_length(log.acceptance_length, positions).survival(positions).tolist(), None


class AcceptanceSampler:
    """Chances of the accepted draft tokens of every verify step of every request, from which engines draw.

    The draw of step j of request i depends on the seed, i and j alone: it does not matter when, in which order or on
    which replica it is requested. It is output j of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom
    number generators", 2014), seeded with output i of SplitMix64 seeded with ``key``; ``class_key`` draws the class.

    Args:
        survival: chance that at least i tokens are accepted, i = 1..K, pooled over all drafts.
        seed: the run's seed.
        spread: standard deviation of the first position's rate across requests; see ``request_classes``.
        drift: decrease of rates with the context of a verify step, or None.
        class_of: class of each request by its number, if ``survival`` has a row per class; None = one class.
        autocorrelation: correlation of neighbouring draft tokens' rates; below 1 classes are of drafts, not requests.
    """

    def __init__(
        self,
        survival: FloatArray,
        seed: int,
        spread: float = 0.0,
        drift: ContextFall | None = None,
        class_of: IntArray | None = None,
        autocorrelation: float = 1.0,
    ) -> None:
        self.num_speculative_tokens = int(np.shape(survival)[-1])
        self.class_of = class_of
        self.key = int(np.random.SeedSequence([seed, 0x5EC]).generate_state(1, np.uint64)[0])
        self.drift = drift
        self.class_per_draft = bool(spread) and autocorrelation < 1.0
        self.rates = request_classes(survival, spread, autocorrelation) if spread else survival
        """Chance that at least i draft tokens are accepted; one row per class if classes differ."""
        self._cells = {-1: _shares_of_range(self.rates)}
        """Acceptance thresholds by cell of the drift; one row per class of requests if classes differ."""
        self.class_key = int(np.random.SeedSequence([seed, 0xC1A55]).generate_state(1, np.uint64)[0])

    def thresholds(self, cell: int) -> NDArray[np.uint64]:
        """Ascending acceptance thresholds as shares of 2^64, in a cell of the drift (-1: without drift). One row per
        class of requests if classes differ."""
        thresholds = self._cells.get(cell)
        if thresholds is None:
            assert self.drift is not None
            falls = self.drift.factor(cell) ** np.arange(1, self.num_speculative_tokens + 1)
            thresholds = self._cells[cell] = _shares_of_range(self.rates * falls)
        return thresholds


def _shares_of_range(rates: FloatArray) -> NDArray[np.uint64]:
    """Rates as the 64-bit numbers below which a draw falls with that chance; ascending along the last axis."""
    return np.sort(np.minimum(rates * 2.0**64, 2.0**64 - 2048.0).astype(np.uint64), axis=-1)
