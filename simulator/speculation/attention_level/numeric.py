"""Hit rates computed: exact against first-and-last-chunk attention in numpy, on a model's own tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.errors import ForerunError

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
