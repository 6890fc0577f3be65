"""How many draft tokens are accepted in each verify step, drawn per request and reproducible from the seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.speculation.closed_form import iid_alpha
from simulator.speculation.config import AcceptanceConfig

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def survival_rates(acceptance: AcceptanceConfig, num_speculative_tokens: int) -> FloatArray:
    """Chance that at least i draft tokens are accepted, for i = 1..K; never rises.

    Raises:
        ForerunError: an acceptance length that K tokens cannot give.
    """
    if acceptance.per_position is not None:
        return np.asarray(acceptance.per_position[:num_speculative_tokens], dtype=np.float64)
    if acceptance.conditional is not None:
        conditional = acceptance.conditional[:num_speculative_tokens]
    elif acceptance.alpha is not None:
        conditional = [acceptance.alpha] * num_speculative_tokens
    else:
        assert acceptance.acceptance_length is not None
        conditional = [iid_alpha(acceptance.acceptance_length, num_speculative_tokens)] * num_speculative_tokens
    return np.asarray(np.cumprod(conditional), dtype=np.float64)


class AcceptanceSampler:
    """Accepted draft tokens of every verify step of every request.

    The draw of step j of request i depends on the seed, i and j alone: it does not matter when, in which order or on
    which replica it is asked for.

    Args:
        survival: chance that at least i tokens are accepted, i = 1..K.
        seed: the run's seed.
    """

    def __init__(self, survival: FloatArray, seed: int) -> None:
        self.num_speculative_tokens = len(survival)
        self._thresholds = np.sort(survival)
        self._key = int(np.random.SeedSequence([seed, 0x5EC]).generate_state(1, np.uint64)[0])

    def path(self, request: int, tokens: int, first_step: int = 0) -> IntArray:
        """Accepted tokens of each verify step that request ``request`` needs to generate ``tokens`` more tokens.

        Each step yields its accepted tokens and one more, so the path ends at the first step whose running total of
        ``accepted + 1`` reaches ``tokens`` (the last step may overshoot).

        Args:
            request: index of the request, >= 0.
            tokens: tokens to generate by decoding, >= 0.
            first_step: verify steps that the request has already had.
        """
        uniforms = counter_uniforms(self._key, request, first_step, tokens)
        rejected = np.searchsorted(self._thresholds, uniforms, side="right")
        accepted = self.num_speculative_tokens - rejected
        steps = int(np.searchsorted(np.cumsum(accepted + 1), tokens)) + 1 if tokens else 0
        return accepted[:steps]


def counter_uniforms(key: int, stream: int, first: int, count: int) -> FloatArray:
    """``count`` uniform draws in [0, 1) from position ``first`` of a stream: a hash, so any part can be drawn alone.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014,
    with Stafford's mix 13), applied to a Weyl sequence started at a mixed (key, stream).
    """
    golden = 0x9E3779B97F4A7C15
    start = _mix_scalar((key + (stream + 1) * golden) & 0xFFFFFFFFFFFFFFFF)
    state = np.arange(first + 1, first + count + 1, dtype=np.uint64)
    state *= np.uint64(golden)
    state += np.uint64(start)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix_scalar(value: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
