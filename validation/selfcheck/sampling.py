"""Sampling and lossless verification of drafts, for a whole batch at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class Verified(NamedTuple):
    """Outcome of a verify step, one entry per sequence.

    Attributes:
        accepted: draft tokens kept, 0..K.
        token: the one after them, never a draft's.
        survival: chance over the drawing of the last of them that drafts 1..i are all accepted, ``[sequences, K]``: its
            mean over steps estimates the rate at which position i is accepted with less noise than counting.
    """

    accepted: Any
    token: Any
    survival: Any


def sample_tokens(weights: Any, generator: Any) -> Any:
    """One token per row of ``weights`` (``[rows, vocabulary]``, >= 0, not necessarily summing to 1)."""
    bounds = weights.cumsum(-1)
    draws = torch.rand(len(weights), 1, generator=generator) * bounds[:, -1:]
    last = weights.shape[-1] - 1
    return torch.searchsorted(bounds, draws, right=True).squeeze(-1).clamp_(max=last)


def verify(target: Any, draft: Any, drafted: Any, generator: Any) -> Verified:
    """Accept each draft x in turn with chance ``min(1, p(x) / q(x))``. On a rejection draw from ``max(0, p - q)``.

    The tokens that come out are distributed as the target's own.

    Args:
        target: p, ``[sequences, K + 1, vocabulary]``.
        draft: q, ``[sequences, K, vocabulary]``, from which ``drafted`` was drawn.
        drafted: tokens, ``[sequences, K]``.
        generator: of the draws.

    Source: Leviathan, Kalman, Matias, "Fast inference from transformers via speculative decoding", 2023,
        arXiv:2211.17192, algorithm 1.
    """
    sequences, positions = drafted.shape
    of_target = target[:, :positions].gather(-1, drafted[..., None]).squeeze(-1)
    of_draft = draft.gather(-1, drafted[..., None]).squeeze(-1)
    accept = torch.rand(sequences, positions, generator=generator) * of_draft < of_target
    accepted = accept.long().cumprod(-1).sum(-1)
    every = torch.arange(sequences)
    padded = torch.cat((draft, torch.zeros_like(draft[:, :1])), 1)
    token = sample_tokens((target[every, accepted] - padded[every, accepted]).clamp_(min=0.0), generator)
    reached = torch.cat((torch.ones(sequences, 1), (of_target / of_draft).clamp_(max=1.0).cumprod(-1)[:, :-1]), -1)
    overlap = torch.minimum(target[:, :positions], draft).sum(-1)
    return Verified(accepted, token, reached * overlap)
