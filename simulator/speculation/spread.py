"""Requests differ: a beta-distributed level of acceptance across requests that leaves the pooled counters alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError

FloatArray = NDArray[np.float64]

CLASSES = 128
"""Equally likely classes of requests that stand for the beta distribution."""
LEAST_CONCENTRATION = 0.1
"""Below it nearly every request is accepted always or never."""


def widest_spread(first_rate: float) -> float:
    """Largest standard deviation that a beta distribution with this mean is given here."""
    return float(np.sqrt(first_rate * (1.0 - first_rate) / (1.0 + LEAST_CONCENTRATION)))


def request_classes(survival: FloatArray, spread: float) -> FloatArray:
    """Chance that at least i draft tokens are accepted, by class of request: shape (CLASSES, K).

    The conditional rate of every position is beta-distributed across requests, with one concentration and with the same
    requests good at every position. The means are set so that the *counters of the engine*, pooled over the drafts of
    requests of equal output length, show ``survival`` again: a request accepted less often needs more drafts, so it
    weighs more in the counters. Spread moves tails and burstiness, never the acceptance length.

    Args:
        survival: chance that at least i tokens are accepted, i = 1..K, pooled over drafts.
        spread: standard deviation of the first position's rate across requests, >= 0.

    Raises:
        ForerunError: wider than a beta distribution with this mean can be.
    """
    if spread == 0.0:
        return np.tile(survival, (CLASSES, 1))
    widest = widest_spread(float(survival[0]))
    if spread > widest:
        raise ForerunError(
            f"speculation.acceptance.spread {spread:g} is too wide for a first position accepted in "
            f"{100 * survival[0]:.1f} % of drafts: at most {widest:.3f}"
        )
    return _classes(tuple(float(s) for s in survival), spread).copy()


@lru_cache(maxsize=64)
def _classes(survival: tuple[float, ...], spread: float) -> FloatArray:
    concentration = survival[0] * (1.0 - survival[0]) / spread**2 - 1.0
    ranks = (np.arange(CLASSES) + 0.5) / CLASSES
    weights = np.full(CLASSES, 1.0 / CLASSES)
    classes = np.empty((CLASSES, len(survival)))
    for _ in range(200):
        reached = np.ones(CLASSES)
        for i, pooled in enumerate(survival):
            reached = reached * _rates(reached * weights, pooled, concentration, ranks)
            classes[:, i] = reached
        drafts = 1.0 / (1.0 + classes.sum(axis=1))
        updated = drafts / drafts.sum()
        if np.abs(updated - weights).max() < 1e-13:
            break
        weights = updated
    return classes


def _rates(weights: FloatArray, pooled: float, concentration: float, ranks: FloatArray) -> FloatArray:
    """Rates of one position by class; weighted by the drafts that get there, they sum to ``pooled``."""
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
