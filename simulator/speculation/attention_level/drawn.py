"""Hits that are drawn layer by layer and step by step, so that a step has no mean time but one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.attention_level.config import AttentionSpeculationConfig
from simulator.speculation.attention_level.overlap import SpeculativeAttention
from simulator.timing import DraftStep, ModelTimer, StepWork

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
STREAM = 0xA77E


class OutcomeDraws:
    """Whether each layer of each step passes verification: equal marginal chances, correlated between neighbours.

    A layer passes where a standard normal number falls below the quantile of its hit rate; those numbers follow a
    first-order autoregression over layers and another over steps (a Gaussian copula), so every layer keeps its rate.

    Args:
        layers: those that speculate.
        layer_correlation: between neighbouring layers of a step.
        token_correlation: between a layer in one step and in the next.
        seed: of the stream; a replica draws from its own.
        replica: its number.
    """

    def __init__(
        self, layers: int, layer_correlation: float, token_correlation: float, seed: int, replica: int
    ) -> None:
        self._generator = np.random.default_rng([seed, STREAM, replica])
        apart = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers)))
        self._mixing = np.linalg.cholesky(layer_correlation**apart)
        self._kept, self._new = token_correlation, np.sqrt(1.0 - token_correlation**2)
        self._state = self._mixing @ self._generator.standard_normal(layers)

    def next(self, rates: Sequence[float]) -> BoolArray:
        """The outcomes of the next step, layer i with chance ``rates[i]``."""
        from scipy.special import ndtri  # slow to import, and most runs do without

        passed: BoolArray = self._state < ndtri(rates)
        fresh = self._mixing @ self._generator.standard_normal(len(rates))
        self._state = self._kept * self._state + self._new * fresh
        return passed


class DrawnTimer:
    """The timing model of one replica, each step that only decodes with outcomes of its own.

    Its mean over steps is what ``timer`` says, in readings whose pass is linear in the hits (all but ``pipelined``,
    where correlated outcomes also change how often a group waits).
    """

    def __init__(self, timer: ModelTimer, attention: SpeculativeAttention, draws: OutcomeDraws) -> None:
        self.windows = timer.windows
        self._timer, self._attention, self._draws = timer, attention, draws

    def seconds(self, work: StepWork[Any], draft: DraftStep[int] | None = None) -> float:
        """Seconds of one step, host included."""
        total = float(self._timer.seconds(work) if draft is None else self._timer.seconds(work, draft))
        if not work.decode_seqs or work.prefill_seqs:
            return total
        full = self.windows.index(None)
        step = (work.decode_seqs, work.query_len, work.decode_kv_tokens[full])
        return total + self._attention.outcome_change(*step, self._draws.next(self._attention.rates(*step)))


@dataclass(frozen=True, slots=True)
class DrawnHits:
    """How the replicas of a pool draw."""

    config: AttentionSpeculationConfig
    seed: int

    def timer(self, timer: ModelTimer, replica: int) -> DrawnTimer:
        """The timing model of one replica."""
        attention = timer.target.overlap
        assert isinstance(attention, SpeculativeAttention)
        correlations = (self.config.layer_correlation, self.config.token_correlation)
        return DrawnTimer(timer, attention, OutcomeDraws(attention.layers, *correlations, self.seed, replica))
