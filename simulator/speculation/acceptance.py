"""How many draft tokens are accepted in each verify step, drawn per request and reproducible from the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.speculation.config import AcceptanceConfig
from simulator.speculation.curves import load_curve
from simulator.speculation.draws import counter_bits, counter_uniforms
from simulator.speculation.engine_logs import read_acceptance
from simulator.speculation.level_decay import LevelDecay, conditional_rates, extended
from simulator.speculation.spread import CLASSES, request_classes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def survival_rates(acceptance: AcceptanceConfig, num_speculative_tokens: int) -> FloatArray:
    """Chance that at least i draft tokens are accepted, pooled over requests, for i = 1..K; never rises.

    Raises:
        ForerunError: an acceptance length that K tokens cannot give, or data that end before K.
    """
    if acceptance.per_position is not None:
        marginal = acceptance.per_position
        if len(marginal) >= num_speculative_tokens:
            return np.asarray(marginal[:num_speculative_tokens], dtype=np.float64)
        return _continued(marginal, num_speculative_tokens, acceptance.extrapolate, "per_position")
    if acceptance.conditional is not None:
        if len(acceptance.conditional) >= num_speculative_tokens:
            return np.asarray(np.cumprod(acceptance.conditional[:num_speculative_tokens]), dtype=np.float64)
        marginal = np.cumprod(acceptance.conditional).tolist()
        return _continued(marginal, num_speculative_tokens, acceptance.extrapolate, "conditional")
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
    assert acceptance.log is not None
    return _from_log(acceptance.log, num_speculative_tokens, acceptance.extrapolate)


def acceptance_sampler(acceptance: AcceptanceConfig, num_speculative_tokens: int, seed: int) -> AcceptanceSampler:
    """The sampler that a scenario's acceptance section describes."""
    return AcceptanceSampler(survival_rates(acceptance, num_speculative_tokens), seed, acceptance.spread or 0.0)


def _continued(marginal: list[float], positions: int, extrapolate: bool, field: str) -> FloatArray:
    if not extrapolate:
        raise ForerunError(
            f"speculation.acceptance.{field} has {len(marginal)} positions, num_speculative_tokens is {positions}; "
            f"give a rate for every position, or set extrapolate: true"
        )
    return np.asarray(np.cumprod(extended(conditional_rates(marginal), positions)), dtype=np.float64)


def _from_log(path: str, positions: int, extrapolate: bool) -> FloatArray:
    log = read_acceptance(path)
    if log.per_position is not None:
        marginal = list(log.per_position)
        if len(marginal) >= positions:
            return np.asarray(marginal[:positions], dtype=np.float64)
        if not extrapolate:
            raise ForerunError(
                f"speculation.acceptance.log: {path} has {len(marginal)} positions, num_speculative_tokens is "
                f"{positions}; set extrapolate: true to continue their decay"
            )
        return np.asarray(np.cumprod(extended(conditional_rates(marginal), positions)), dtype=np.float64)
    if log.num_speculative_tokens != positions:
        drafted = "an unknown number of" if log.num_speculative_tokens is None else log.num_speculative_tokens
        raise ForerunError(
            f"speculation.acceptance.log: {path} prints no rates per position, only the acceptance length "
            f"{log.acceptance_length:.2f} at {drafted} draft tokens, not {positions}; "
            f"give acceptance_length and decay instead"
        )
    return LevelDecay(1.0).with_length(log.acceptance_length, positions).survival(positions)


class AcceptanceSampler:
    """Accepted draft tokens of every verify step of every request.

    The draw of step j of request i depends on the seed, i and j alone: it does not matter when, in which order or on
    which replica it is asked for.

    Args:
        survival: chance that at least i tokens are accepted, i = 1..K, pooled over all drafts.
        seed: the run's seed.
        spread: standard deviation of the first position's rate across requests; see ``request_classes``.
    """

    def __init__(self, survival: FloatArray, seed: int, spread: float = 0.0) -> None:
        self.num_speculative_tokens = len(survival)
        self._key = int(np.random.SeedSequence([seed, 0x5EC]).generate_state(1, np.uint64)[0])
        self._thresholds = _shares_of_range(survival)
        self._by_class = _shares_of_range(request_classes(survival, spread)) if spread else None
        self._steps_per_token = 1.15 / (1.0 + float(np.sum(survival)))
        """Verify steps drawn at first per token needed: somewhat more than the mean."""
        self._class_key = int(np.random.SeedSequence([seed, 0xC1A55]).generate_state(1, np.uint64)[0])

    def path(self, request: int, tokens: int, first_step: int = 0, most: int | None = None) -> IntArray:
        """Accepted tokens of each verify step that request ``request`` needs to generate ``tokens`` more tokens.

        Each step yields its accepted tokens and one more, so the path ends at the first step whose running total of
        ``accepted + 1`` reaches ``tokens`` (the last step may overshoot).

        Args:
            request: index of the request, >= 0.
            tokens: tokens to generate by decoding, >= 0.
            first_step: verify steps that the request has already had.
            most: draft tokens of each step; fewer than usual cut the draws off.
        """
        if not tokens:
            return np.empty(0, dtype=np.int64)
        if most == 0:
            return np.zeros(tokens, dtype=np.int64)
        steps = min(tokens, int(tokens * self._steps_per_token) + 8)
        while True:
            bits = counter_bits(self._key, request, first_step, steps)
            accepted = self.num_speculative_tokens - np.searchsorted(self._of(request), bits, side="right")
            if most is not None:
                accepted = np.minimum(accepted, most)
            delivered = np.cumsum(accepted + 1)
            if delivered[-1] >= tokens:
                return accepted[: int(np.searchsorted(delivered, tokens)) + 1]
            steps = min(tokens, 2 * steps)

    def draws(self, request: int, first_step: int, steps: int) -> IntArray:
        """Tokens accepted in ``steps`` verify steps of a request if all that can be drafted is."""
        bits = counter_bits(self._key, request, first_step, steps)
        return self.num_speculative_tokens - np.searchsorted(self._of(request), bits, side="right")

    def _of(self, request: int) -> NDArray[np.uint64]:
        """Ascending acceptance thresholds of a request, as shares of 2^64."""
        if self._by_class is None:
            return self._thresholds
        row = int(counter_uniforms(self._class_key, request, 0, 1)[0] * CLASSES)
        thresholds: NDArray[np.uint64] = self._by_class[row]
        return thresholds


def _shares_of_range(rates: FloatArray) -> NDArray[np.uint64]:
    """Rates as the 64-bit numbers below which a draw falls with that chance; ascending along the last axis."""
    return np.sort(np.minimum(rates * 2.0**64, 2.0**64 - 2048.0).astype(np.uint64), axis=-1)
