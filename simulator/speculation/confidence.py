"""Drafts that end at the first token below a confidence threshold (llama.cpp's ``p-min``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from forerun.arrays import FloatArray
from simulator.speculation.speculation_config import CONCENTRATION

if TYPE_CHECKING:
    from simulator.speculation.policies import Batch, PolicyFactory

CONFIDENCE_THRESHOLD = "confidence-threshold"
DEFAULT_THRESHOLD = 0.75
"""llama.cpp's default of ``--draft-p-min``."""


@dataclass(frozen=True, slots=True)
class ThresholdChain:
    """A chain under a confidence threshold: distribution of its draft tokens, and mean tokens of a verify step."""

    chances: FloatArray
    """Chance that exactly i tokens are drafted and verified, i = 0..n."""
    length: float
    """Mean tokens of a verify step, the bonus token included."""
    kept: FloatArray
    """Chance that a drafted token is accepted, given that those before it were."""


def threshold_chain(rates: Sequence[float], threshold: float) -> ThresholdChain:
    """Chain of draft tokens that ends at the first one whose confidence is below ``threshold``.

    The drafter's confidence is calibrated and beta-distributed around each position's acceptance, as in grown trees.
    """
    if threshold <= 0.0:
        chances = np.zeros(len(rates) + 1)
        chances[-1] = 1.0
        return ThresholdChain(chances, 1.0 + float(np.cumprod(rates).sum()), np.asarray(rates, dtype=np.float64))
    from scipy.special import betainc

    means = np.clip(np.asarray(rates, dtype=np.float64), 1e-6, 1.0 - 1e-6)
    first, second = means * CONCENTRATION, (1.0 - means) * CONCENTRATION
    passed = 1.0 - betainc(first, second, threshold)
    accepted = means * (1.0 - betainc(first + 1.0, second, threshold))
    reached = np.concatenate(([1.0], np.cumprod(passed)))
    chances = reached * np.concatenate((1.0 - passed, [1.0]))
    kept = np.divide(accepted, passed, out=means.copy(), where=passed > 0.0)
    return ThresholdChain(chances, 1.0 + float(np.cumprod(accepted).sum()), kept)


@dataclass(frozen=True, slots=True)
class ConfidenceThreshold:
    """A policy that draws how many tokens pass the threshold in each step; the drafts of a batch end together.

    What is accepted of them is drawn separately, with ``ThresholdChain.kept``: positions are independent, so that a
    token that passed is accepted with the same chance however long its draft became.
    """

    chances: FloatArray
    draws: np.random.Generator
    by_batch_alone: bool = field(init=False, default=False)

    def choose(self, batch: Batch) -> int:
        return int(self.draws.choice(len(self.chances), p=self.chances))

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def threshold_policies(chain: ThresholdChain, seed: int) -> PolicyFactory:
    replicas = count()
    return lambda: ConfidenceThreshold(chain.chances, np.random.default_rng((seed, next(replicas))))
