"""Hits drawn for each layer and step, so that each step has an individual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from hwprofiles.formulas import Num
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig
from simulator.speculation.attention_level.hit_rates import rate_at_factor
from simulator.speculation.attention_level.overlap import DeviceGroups, SpeculativeAttention
from simulator.timing import DraftStep, ModelTimer, StepWork

STREAM = 0xA77E


class OutcomeDraws:
    """Verification outcomes in each layer of each step: equal marginal chances, correlated between neighbours.

    A layer passes if a standard normal number is below the quantile of its hit rate; the numbers follow a first-order
    autoregression over layers and another over steps (a Gaussian copula), so every layer keeps its rate. Requests that
    pass or fail individually add an individual number to the shared one.
    """

    def __init__(
        self,
        layers: int,
        layer_correlation: float,
        token_correlation: float,
        seed: int,
        replica: int,
        requests: int = 0,
    ) -> None:
        self._generator = np.random.default_rng([seed, STREAM, replica])
        distance = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers)))
        self._mixing = np.linalg.cholesky(layer_correlation**distance)
        self._kept, self._new = token_correlation, np.sqrt(1.0 - token_correlation**2)
        self._shape = (layers, 1 + requests)
        self._state = self._mixing @ self._generator.standard_normal(self._shape)

    def next(self, rates: Sequence[float]) -> BoolArray:
        """True if each layer of the next step passes as a whole, layer i with chance ``rates[i]``."""
        from scipy.special import ndtri  # slow to import, and most runs do without

        return self._step()[:, 0] < ndtri(rates)

    def failing(self, rates: Sequence[float], requests: int, queries: int, correlation: float) -> IntArray:
        """Requests that fail in each layer of the next step. Each of ``queries`` queries passes with chance
        ``rates[i]``, their errors correlated as ``batch_hit_rate`` says."""
        from scipy.special import ndtr

        state = self._step()
        passing = rate_at_factor(rates, correlation, state[:, :1]) ** queries
        failures: IntArray = np.sum(ndtr(state[:, 1 : 1 + requests]) >= passing, axis=1)
        return failures

    def _step(self) -> FloatArray:
        state = self._state
        fresh = self._mixing @ self._generator.standard_normal(self._shape)
        self._state = self._kept * state + self._new * fresh
        return state


class DrawnTimer:
    """Timing model of one replica in which each decode-only step has individually drawn outcomes.

    Its mean equals that of ``timer``, except for ``pipelined``: correlated outcomes change how often a group waits.
    """

    def __init__(
        self,
        timer: ModelTimer,
        attention: SpeculativeAttention,
        config: AttentionSpeculationConfig,
        draws: OutcomeDraws,
    ) -> None:
        self.windows = timer.windows
        self._timer, self._attention, self._config, self._draws = timer, attention, config, draws

    def seconds(self, work: StepWork[Num], draft: DraftStep[int] | None = None) -> float:
        """Seconds of one step, host included."""
        total = float(self._timer.seconds(work) if draft is None else self._timer.seconds(work, draft))
        if not work.decode_seqs or work.prefill_seqs:
            return total
        full = self.windows.index(None)
        step = (work.decode_seqs, work.query_len, work.decode_kv_tokens[full])
        return total + self._attention.outcome_change(*step, self._failing(*step))

    def _failing(self, seqs: int, query_len: int, keys: int) -> IntArray:
        if self._config.verification != "per-request":
            return np.where(self._draws.next(self._attention.rates(seqs, query_len, keys)), 0, seqs)
        rates = self._config.layer_hit_rates(self._attention.layers, keys / seqs)
        return self._draws.failing(rates, seqs, query_len, self._config.batch_correlation)


@dataclass(frozen=True, slots=True)
class DrawnHits:
    """Makes the timing models of a pool's replicas, with random hits and misses."""

    config: AttentionSpeculationConfig
    seed: int
    most_seqs: int

    def timer(self, timer: ModelTimer, replica: int) -> DrawnTimer:
        """The timing model of one replica."""
        attention = timer.target.overlap
        assert isinstance(attention, SpeculativeAttention)
        correlations = (self.config.layer_correlation, self.config.token_correlation)
        requests = self.most_seqs if self.config.verification == "per-request" else 0
        draws = OutcomeDraws(attention.layers, *correlations, self.seed, replica, requests)
        return DrawnTimer(timer, attention, self.config, draws)


def drawn_hits(groups: DeviceGroups, seed: int, most_seqs: int) -> DrawnHits | None:
    """Draws of hits and misses for replicas of up to ``most_seqs`` sequences; None if a step takes their mean."""
    return DrawnHits(groups.config, seed, most_seqs) if groups.config.hits == "drawn" else None
