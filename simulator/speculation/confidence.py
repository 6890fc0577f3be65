"""Confidence of draft tokens: drafts that end below a threshold, and tokens verified by their worth in a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from forerun.arrays import FloatArray, IntArray
from simulator.speculation.speculation_config import (
    CONCENTRATION,
    CONFIDENCE_BUDGET,
    AcceptanceConfig,
    SpeculationConfig,
    named,
)

if TYPE_CHECKING:
    from simulator.speculation.policies import Batch, PolicyFactory

CONFIDENCE_THRESHOLD = "confidence-threshold"
DEFAULT_THRESHOLD = 0.75
"""llama.cpp's default of ``--draft-p-min``."""
DRAWN_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class ThresholdChain:
    """A chain under a confidence threshold: distribution of its draft tokens, and mean tokens of a verify step."""

    chances: FloatArray
    """Chance that exactly i tokens are drafted and verified, i = 0..n."""
    length: float
    """Mean tokens of a verify step, the bonus token included."""
    kept: FloatArray
    """Probability that a drafted token is accepted, given that all earlier tokens were."""


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

    Acceptance is drawn separately, with ``ThresholdChain.kept``: positions are independent, so a token that passed the
    threshold is accepted with the same probability at any draft length.
    """

    chances: FloatArray
    draws: np.random.Generator
    by_batch_alone: bool = field(init=False, default=False)
    _passed: Iterator[int] = field(init=False)
    """Number of tokens that pass in the next steps."""

    def choose(self, batch: Batch) -> int:
        return next(self._passed)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_passed", self._drawn())

    def _drawn(self) -> Iterator[int]:
        ends = np.cumsum(self.chances)
        while True:
            yield from np.searchsorted(ends / ends[-1], self.draws.random(DRAWN_AT_ONCE), side="right").tolist()

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def threshold_policies(chain: ThresholdChain, seed: int) -> PolicyFactory:
    replicas = count()
    return lambda: ConfidenceThreshold(chain.chances, np.random.default_rng((seed, next(replicas))))


AUTOCORRELATION = 0.8
"""Default of ``acceptance.autocorrelation`` under ``confidence-budget``. Chosen looking at the measurements of vLLM's
adaptive verification that ``forerun validate adaptive`` scores, so their scores are no test of it."""
PROFILED_CONTEXT = 8192
"""Context at which step times are profiled; vLLM's default of ``VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN``."""
SEEN_CLASSES: Mapping[str, int] = {"calibrated": 0, "constant": 1, "perfect": 2}


def drafts_that_vary(config: SpeculationConfig, first_rate: float) -> AcceptanceConfig:
    """The scenario's acceptance, with the variation that ``confidence-budget`` assumes if none is given."""
    acceptance = config.acceptance
    assert acceptance is not None
    if named(config.policy).name != CONFIDENCE_BUDGET:
        return acceptance
    spread = sqrt(first_rate * (1.0 - first_rate) / (1.0 + CONCENTRATION))
    given = {"spread": acceptance.spread, "autocorrelation": acceptance.autocorrelation}
    default = {"spread": min(spread, 0.4999), "autocorrelation": AUTOCORRELATION}
    return acceptance.model_copy(update={k: default[k] if v is None else v for k, v in given.items()})


@dataclass(frozen=True, slots=True)
class VerifyBudget:
    """Rule of ``confidence-budget``: how many draft tokens of each sequence a step verifies.

    Every draft token is worth its survival, the product of the confidences up to it. A step of B sequences verifies the
    n tokens with the highest worth over all sequences; n maximises (B + their worth) / seconds. The drafter always
    makes its full proposal. Ties go to fewer tokens, and to the sequence that joined the batch first.

    Source: vllm-project/vllm#47808 and docs/features/speculative_decoding/adaptive_verification.md (vLLM 0.28), which
    sizes the budget from the previous step and smooths confidences; sgl-project/sglang#36136 and #30261, which use the
    cost at the present batch size. Both always verify the one token per sequence that is no draft.
    """

    worth: FloatArray
    """Worth of each position as the drafter sees it, by class of draft: shape (classes, K)."""
    confidence: str
    """Knowledge of a draft: a key of ``SEEN_CLASSES``."""
    seconds: Callable[[int], FloatArray]
    """Seconds of the target by tokens, for a number of sequences. From 0 to all drafts, or to the largest step."""
    sizes: IntArray
    """Captured numbers of tokens, to which smaller steps are padded."""
    prompt_token_s: float
    """Seconds that a prompt token adds to a step; unused if ``with_prompts``."""
    around_s: FloatArray
    """Seconds of the drafter and the host by number of sequences."""
    with_prompts: bool = False
    """True if ``seconds`` also counts the prompt tokens of a step, as in vLLM (``get_num_tokens``)."""


def seen_worth(rates: FloatArray, confidence: str, calibration_error: float = 0.0) -> FloatArray:
    """Survival of draft tokens as a drafter sees it, by class: shape (classes, K).

    Args:
        rates: chance that at least i tokens are accepted, by class; or of all alike.
        confidence: ``calibrated``: a class for each of ``rates``; ``constant``: one, the mean; ``perfect``: one for
            each number of accepted tokens.
        calibration_error: error added to each token's confidence.
    """
    rates = np.atleast_2d(rates)
    if confidence == "perfect":
        return np.tri(rates.shape[1] + 1, rates.shape[1], -1)
    if confidence == "constant":
        rates = rates.mean(axis=0, keepdims=True)
    before = np.concatenate((np.ones((len(rates), 1)), rates[:, :-1]), axis=1)
    tokens = np.divide(rates, before, out=np.zeros_like(rates), where=before > 0.0)
    return np.asarray(np.cumprod(np.clip(tokens + calibration_error, 0.0, 1.0), axis=1), dtype=np.float64)
