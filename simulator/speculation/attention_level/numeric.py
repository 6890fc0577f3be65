"""Hit rates computed: exact against first-and-last-chunk attention in numpy, on synthetic or own tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError

FloatArray = NDArray[np.float64]


def window_mask(context_tokens: int, window_tokens: int) -> NDArray[np.bool_]:
    """Which of ``context_tokens`` keys lie in the first or the last chunk of ``window_tokens``."""
    position = np.arange(context_tokens)
    return (position < window_tokens) | (position >= context_tokens - window_tokens)


def attention_outputs(
    query: FloatArray,
    keys: FloatArray,
    values: FloatArray,
    window_tokens: Sequence[int],
    bias: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Attention output of one decoded token over all keys, and over the first and last chunk alone.

    Args:
        query: [heads, head_dim].
        keys: [context, kv_heads, head_dim]; heads must be a multiple of kv_heads.
        values: [context, kv_heads, value_dim].
        window_tokens: chunk lengths S to try.
        bias: added to the scaled logits, [heads, context].

    Returns:
        Exact output [heads, value_dim] and speculative outputs [len(window_tokens), heads, value_dim]. Once both chunks
        cover the context the two are equal to the last bit.

    Raises:
        ForerunError: shapes that do not fit each other.
    """
    heads, head_dim = query.shape
    context, kv_heads = keys.shape[:2]
    if heads % kv_heads or keys.shape[2] != head_dim or values.shape[:2] != (context, kv_heads):
        raise ForerunError(
            f"attention: query {query.shape}, keys {keys.shape} and values {values.shape} do not fit; they are [heads, "
            f"head_dim], [context, kv_heads, head_dim] and [context, kv_heads, value_dim]"
        )
    group = heads // kv_heads
    logits = np.einsum("kgd,ckd->kgc", query.reshape(kv_heads, group, head_dim), keys).reshape(heads, context)
    logits = logits / np.sqrt(head_dim) + (0.0 if bias is None else bias)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True)).reshape(kv_heads, group, context)

    def output(kept: NDArray[np.bool_]) -> FloatArray:
        share = weights * kept
        share = share / share.sum(axis=2, keepdims=True)
        result: FloatArray = np.einsum("kgc,ckd->kgd", share, values).reshape(heads, -1)
        return result

    exact = output(np.ones(context, dtype=bool))
    return exact, np.stack([output(window_mask(context, window)) for window in window_tokens])


def relative_errors(exact: FloatArray, speculative: FloatArray) -> FloatArray:
    """``||A_spec - A|| / ||A||`` over the last two axes: a layer passes at every lambda above it.

    Source: verification rule of Cai et al., "Attention-Level Speculation" (ICML 2025); 2-norms over all heads.
    """
    errors: FloatArray = np.linalg.norm(speculative - exact, axis=(-2, -1)) / np.linalg.norm(exact, axis=(-2, -1))
    return errors


def joint_error(exact: FloatArray, speculative: FloatArray) -> float:
    """The relative error of a whole batch under one norm: ``sqrt(sum((A_spec - A)^2) / sum(A^2))``."""
    return float(np.linalg.norm(speculative - exact) / np.linalg.norm(exact))


@dataclass(frozen=True, slots=True)
class SyntheticAttention:
    """A made-up attention layer: random queries, keys and values, attention sinks, and heads of different reach.

    A head's weights fall with the distance to the new token as a power law whose exponent is drawn per layer and head:
    steep heads look near by, flat ones everywhere. Real layers differ; measure them and use ``relative_errors``.
    """

    context_tokens: int = 4096
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    sink_tokens: int = 4
    """Tokens at the start that draw weight whatever they say (Xiao et al., StreamingLLM, arXiv:2309.17453)."""
    sink_logit: float = 0.0
    """Added to their logits; the newest token's is 0."""
    reach: tuple[float, float] = (1.0, 2.4)
    """Range of a layer's mean exponent; its heads spread by a fifth around it."""

    def draw(self, generator: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Query, keys, values and bias of one layer and one token, as ``attention_outputs`` takes them."""
        keys = generator.standard_normal((self.context_tokens, self.kv_heads, self.head_dim))
        values = generator.standard_normal((self.context_tokens, self.kv_heads, self.head_dim)) + 0.5
        query = generator.standard_normal((self.heads, self.head_dim))
        exponent = generator.uniform(*self.reach) * generator.uniform(0.8, 1.2, (self.heads, 1))
        distance = np.arange(self.context_tokens, 0, -1, dtype=np.float64)
        bias = -exponent * np.log(distance)
        bias[:, : self.sink_tokens] = self.sink_logit
        return query, keys, values, bias


class HitRateStudy(NamedTuple):
    """Relative errors of many layers and tokens by chunk length."""

    window_tokens: tuple[int, ...]
    errors: FloatArray
    """[chunk lengths, trials], in an order shared by all chunk lengths."""

    def hit_rates(self, tolerances: Sequence[float]) -> FloatArray:
        """Share of trials that pass at each lambda, [chunk lengths, lambdas]."""
        passes = self.errors[:, :, None] < np.asarray(tolerances)
        rates: FloatArray = passes.mean(axis=1)
        return rates


def hit_rate_study(
    attention: SyntheticAttention, window_tokens: Sequence[int], trials: int, seed: int = 0
) -> HitRateStudy:
    """Relative errors of ``trials`` drawn layers, every chunk length on the same draws."""
    generator = np.random.default_rng(seed)
    columns = []
    for _ in range(trials):
        query, keys, values, bias = attention.draw(generator)
        exact, speculative = attention_outputs(query, keys, values, window_tokens, bias)
        columns.append(relative_errors(exact, speculative))
    return HitRateStudy(tuple(window_tokens), np.stack(columns, axis=1))
