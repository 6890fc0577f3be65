"""A gate that ends a draft at the first token of which the drafter is less sure (llama.cpp's ``p-min``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.config import CONCENTRATION

if TYPE_CHECKING:
    from simulator.speculation.policies import Batch, PolicyFactory

FloatArray = NDArray[np.float64]
DRAFT_GATE = "draft-gate"
"""The policy of that name."""
USUAL_P_MIN = 0.75
"""llama.cpp's default of ``--draft-p-min``."""


@dataclass(frozen=True, slots=True)
class Gated:
    """What a gate makes of a chain: for every number of draft tokens its chance, and the tokens of a verify step."""

    chances: FloatArray
    """[0..n] That so many tokens are drafted and verified."""
    length: float
    """Mean tokens of a verify step, the bonus token included."""
    kept: FloatArray
    """Chance that a token is accepted which was drafted, given that those before it were."""


def gated(rates: Sequence[float], p_min: float) -> Gated:
    """Chain of draft tokens that ends early at the first one of which the drafter is less sure than ``p_min``.

    The drafter's confidence is calibrated and beta-distributed around each position's acceptance, as in grown trees.

    Args:
        rates: conditional acceptance of each position.
        p_min: in [0, 1); 0 = the chain is never cut.
    """
    if p_min <= 0.0:
        chances = np.zeros(len(rates) + 1)
        chances[-1] = 1.0
        return Gated(chances, 1.0 + float(np.cumprod(rates).sum()), np.asarray(rates, dtype=np.float64))
    from scipy.special import betainc

    means = np.clip(np.asarray(rates, dtype=np.float64), 1e-6, 1.0 - 1e-6)
    first, second = means * CONCENTRATION, (1.0 - means) * CONCENTRATION
    passed = 1.0 - betainc(first, second, p_min)
    accepted = means * (1.0 - betainc(first + 1.0, second, p_min))
    reached = np.concatenate(([1.0], np.cumprod(passed)))
    chances = reached * np.concatenate((1.0 - passed, [1.0]))
    kept = np.divide(accepted, passed, out=means.copy(), where=passed > 0.0)
    return Gated(chances, 1.0 + float(np.cumprod(accepted).sum()), kept)


@dataclass(frozen=True, slots=True)
class DraftGate:
    """A policy that draws how many tokens pass the gate in each step; the drafts of a batch end together.

    What is accepted of them is drawn separately, with ``Gated.kept``: positions are independent, so that a token that
    passed is accepted with the same chance however long its draft became.
    """

    chances: FloatArray
    draws: np.random.Generator
    by_batch_alone: bool = field(init=False, default=False)

    def choose(self, batch: Batch) -> int:
        """Tokens that pass in the next step."""
        return int(self.draws.choice(len(self.chances), p=self.chances))

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def gate_policies(chain: Gated, seed: int) -> PolicyFactory:
    """Makes the gate of each replica, with draws of its own."""
    replicas = count()
    return lambda: DraftGate(chain.chances, np.random.default_rng((seed, next(replicas))))
