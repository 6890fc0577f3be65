"""Work of one engine step, in the aggregates that its time depends on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import floor
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from forerun.arrays import IntArray
from hwprofiles.formulas import Num

Number = TypeVar("Number")

Step = TypeVar("Step", "StepWork[Num]", "DraftStep[Num]")
WORK_SCALARS = (
    *("prefill_seqs", "prefill_tokens", "sampled_prefills", "decode_seqs", "query_len"),
    *("longest_kv", "tail_kv", "dp_imbalance", "trimmed"),
)
"""Scalar fields of ``StepWork``, in the order of ``StepWork.numbers``."""
WORK_BY_WINDOW = ("prefill_pairs", "prefill_kv_tokens", "sampled_kv_tokens", "decode_kv_tokens")
"""Fields with one number per attention window; in ``StepWork.numbers`` they follow the scalar fields."""


def work_numbers(windows: int) -> int:
    """Length of ``StepWork.numbers`` with ``windows`` attention windows.

    >>> work_numbers(2)
    17
    """
    return len(WORK_SCALARS) + windows * len(WORK_BY_WINDOW)


class StepWork(NamedTuple, Generic[Number]):
    """Work of one engine step (integers), or of many (arrays of equal length).

    A per-window tuple has one entry per distinct attention window of the model, in the order of ``StepTimer.windows``;
    an entry counts only the keys inside the window.
    """

    prefill_seqs: Number
    """Number of sequences with a prompt chunk in this step."""
    prefill_tokens: Number
    prefill_pairs: tuple[Number, ...]
    """(query, key) pairs that the causal mask admits, per window."""
    prefill_kv_tokens: tuple[Number, ...]
    """Number of keys that the prompt chunks read, cached and new, per window."""
    sampled_prefills: Number
    """Number of chunks that complete their prompt and so yield a token."""
    sampled_kv_tokens: tuple[Number, ...]
    """Number of keys that the first decoding query of each completed prompt will read, per window."""
    decode_seqs: Number
    query_len: Number
    """Tokens per decoding sequence: 1, or K+1 in a verify step."""
    decode_kv_tokens: tuple[Number, ...]
    """Number of keys that the decoding sequences read, per window."""
    longest_kv: Number | int = 0
    """Context of the longest decoding sequence, if the timer uses it (``tracked_longest``); 0 = all contexts equal."""
    tail_kv: Num = 0
    """``longest_kv`` less the mean context of the ``tracked_longest`` longest sequences."""
    dp_imbalance: Num = 0.0
    """Ratio of all attention groups' tokens to the slowest group's, if the work is the slowest group's; 0 = the work is
    that of all groups together."""
    trimmed: Num = 0
    """``decode_seqs * query_len`` less the number of verified tokens; less than ``decode_seqs``. Not 0 if sequences
    verify unequal numbers of draft tokens."""

    @property
    def numbers(self) -> list[Num]:
        """All numbers of the step as a flat list."""
        by_window = chain.from_iterable(getattr(self, name) for name in WORK_BY_WINDOW)
        return [*(getattr(self, name) for name in WORK_SCALARS), *by_window]

    @classmethod
    def of_numbers(cls, numbers: Sequence[Num]) -> StepWork[Num]:
        """Build a step from the list ``numbers``."""
        scalars, rest = numbers[: len(WORK_SCALARS)], numbers[len(WORK_SCALARS) :]
        kinds = len(WORK_BY_WINDOW)
        windows = len(rest) // kinds
        columns = [tuple(rest[place * windows : (place + 1) * windows]) for place in range(kinds)]
        fields = dict(zip((*WORK_SCALARS, *WORK_BY_WINDOW), (*scalars, *columns), strict=True))
        return cls(**fields)

    @property
    def decode_tokens(self) -> Num:
        """Number of tokens that the decoding sequences compute in total."""
        decoding: Num = self.decode_seqs
        return decoding * self.query_len - self.trimmed

    @property
    def tokens(self) -> Num:
        """Number of tokens that the step computes."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def all_group_tokens(self) -> Num:
        """Tokens of all attention groups together."""
        tokens = self.tokens
        if isinstance(tokens, np.ndarray):
            return np.where(self.dp_imbalance == 0, tokens, np.floor(tokens * self.dp_imbalance + 0.5)).astype(np.int64)
        return floor(tokens * self.dp_imbalance + 0.5) if self.dp_imbalance else tokens


class DraftStep(NamedTuple, Generic[Number]):
    """Work of the drafter at the end of one engine step, or of many, as chosen by a policy.

    Per-window tuples are ordered as in ``StepWork``.
    """

    tokens: Number
    """Number of draft tokens proposed per sequence; 0 = none."""
    switched: Number
    """1 if ``tokens`` differs from the number of draft tokens that the step verifies, else 0."""
    skipped_seqs: Number
    """Number of sequences whose latest tokens the drafter has skipped because it was idle."""
    skipped_tokens: Number
    skipped_pairs: tuple[Number, ...]
    """(query, key) pairs of the skipped tokens, per window."""
    skipped_kv_tokens: tuple[Number, ...]
    """Keys that the skipped tokens read, per window."""

    @property
    def numbers(self) -> list[Num]:
        """All numbers of the drafter's step as a flat list."""
        return [*self[:DRAFT_SCALARS], *self.skipped_pairs, *self.skipped_kv_tokens]

    @classmethod
    def of_numbers(cls, numbers: Sequence[Num]) -> DraftStep[Num]:
        """Build a drafter's step from the list ``numbers``."""
        rest = numbers[DRAFT_SCALARS:]
        windows = len(rest) // 2
        return cls._make((*numbers[:DRAFT_SCALARS], tuple(rest[:windows]), tuple(rest[windows:])))


DRAFT_SCALARS = 4
"""Number of scalar fields of ``DraftStep``."""


def decode_work(seqs: Num, query_len: Num, keys: tuple[Num, ...]) -> StepWork[Num]:
    """Work of steps without prompts: ``seqs`` sequences verify ``query_len`` tokens each and read ``keys`` in total.

    Integers for one step, or arrays for many.
    """
    zero = 0 * seqs
    none = (zero,) * len(keys)
    return StepWork(
        prefill_seqs=zero,
        prefill_tokens=zero,
        prefill_pairs=none,
        prefill_kv_tokens=none,
        sampled_prefills=zero,
        sampled_kv_tokens=none,
        decode_seqs=seqs,
        query_len=zero + query_len,
        decode_kv_tokens=keys,
    )


def mean_sequence(work: StepWork[Num], present: Num) -> StepWork[Num]:
    """Work for a single decoding sequence with the mean context of the batch; no sequence if ``present`` is 0.

    >>> mean_sequence(decode_work(4, 1, (8000,)), 1).decode_kv_tokens
    (2000,)
    """
    several = work.decode_seqs + (work.decode_seqs == 0)
    keys = tuple(keys // several for keys in work.decode_kv_tokens)
    return work._replace(decode_seqs=present * 1, decode_kv_tokens=keys)


def some_steps(steps: Step, rows: Num) -> Step:
    """Select ``rows`` of the work of many steps, or of the drafter's work."""

    def taken(part: Num) -> Num:
        return part[rows] if isinstance(part, np.ndarray) else part

    return type(steps)._make(tuple(map(taken, part)) if isinstance(part, tuple) else taken(part) for part in steps)


def causal_pairs(new_tokens: int, cached_tokens: int, window: int | None) -> int:
    """Number of (query, key) pairs of a causal chunk: query i (0-based) sees ``min(cached + i + 1, window)`` keys.

    Args:
        new_tokens: queries in the chunk.
        cached_tokens: keys before the chunk.
        window: sliding window in tokens, or None for full attention.

    >>> causal_pairs(4, 6, None), causal_pairs(4, 6, 3)
    (34, 12)
    """
    if window is None:
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) // 2
    growing = min(new_tokens, max(0, window - cached_tokens))
    return growing * cached_tokens + growing * (growing + 1) // 2 + (new_tokens - growing) * window


def keys_read(context_tokens: int, query_len: int, window: int | None) -> int:
    """Number of keys that ``query_len`` queries ending at ``context_tokens`` read from one sequence's cache.

    >>> keys_read(1000, 4, None), keys_read(1000, 4, 128)
    (1000, 131)
    """
    return context_tokens if window is None else min(context_tokens, window + query_len - 1)


def slowest_group(work: StepWork[Num], groups: int) -> StepWork[Num]:
    """Work of the slowest of ``groups`` attention groups in a step.

    By default, whole sequences are evenly distributed: a single prompt occupies one group while all other groups wait.

    >>> slowest_group(decode_work(5, 1, (5000,)), 2).decode_kv_tokens
    (3000,)
    """
    if groups == 1 or np.all(work.dp_imbalance):
        return work
    decoding, prefilling = _share(work.decode_seqs, groups), _share(work.prefill_seqs, groups)

    def decodes(total: Num) -> Num:
        return _part(total, decoding, work.decode_seqs)

    def prompts(total: Num) -> Num:
        return _part(total, prefilling, work.prefill_seqs)

    slowest = StepWork(
        prefill_seqs=prefilling,
        prefill_tokens=prompts(work.prefill_tokens),
        prefill_pairs=tuple(prompts(total) for total in work.prefill_pairs),
        prefill_kv_tokens=tuple(prompts(total) for total in work.prefill_kv_tokens),
        sampled_prefills=prompts(work.sampled_prefills),
        sampled_kv_tokens=tuple(prompts(total) for total in work.sampled_kv_tokens),
        decode_seqs=decoding,
        query_len=work.query_len,
        decode_kv_tokens=tuple(decodes(total) for total in work.decode_kv_tokens),
    )
    return slowest._replace(dp_imbalance=_ratio(work.tokens, slowest.tokens))


def context_parallel_part(work: StepWork[Num], groups: int) -> StepWork[Num]:
    """Work of one of ``groups`` groups that compute prompts together: equal shares of tokens and pairs, but all keys.

    Decode work is not divided.

    Source: Liu et al., "Ring Attention with Blockwise Transformers", 2023, arXiv:2310.01889; even distribution of early
    and late tokens of the causal mask: Brandon et al., "Striped Attention", 2023, arXiv:2311.09431.
    """
    return work._replace(
        prefill_tokens=_share(work.prefill_tokens, groups),
        prefill_pairs=tuple(_share(pairs, groups) for pairs in work.prefill_pairs),
    )


def _ratio(total: Num, part: Num) -> Num:
    if isinstance(part, np.ndarray):
        return np.divide(total, part, out=np.ones(part.shape), where=part > 0)
    return total / part if part else 1.0


def _share(sequences: Num, groups: int) -> Num:
    return -(-sequences // groups)


def _part(total: Num, share: Num, sequences: Num) -> Num:
    """``share`` of ``sequences`` equal parts of ``total``, rounded up."""
    if isinstance(sequences, np.ndarray):
        return -(-total * share // np.maximum(sequences, 1))
    return -(-total * share // sequences) if sequences else total


def expanded(work: StepWork[Num], windows: tuple[int | None, ...]) -> StepWork[Num]:
    """Work of a verify step in which every token is a separate sequence (batch expansion).

    Of ``q`` verified tokens of a sequence, the last reads ``k`` keys and each earlier token one key less: ``q k - q (q
    - 1) / 2`` in total instead of ``k``. Within a window, each token reads at most the window's width.

    Args:
        work: one step or many.
        windows: attention window of each per-window entry.

    Source: ``vllm/spec_decode/batch_expansion.py``, v0.6.

    >>> verified = expanded(decode_work(2, 3, (2000,)), (None,))
    >>> verified.decode_seqs, verified.query_len, verified.decode_kv_tokens
    (6, 1, (5994,))
    """
    rows = work.decode_tokens
    earlier = rows * (work.query_len - 1) // 2
    keys = []
    for total, window in zip(work.decode_kv_tokens, windows, strict=True):
        read = work.query_len * total - earlier
        keys.append(read if window is None else np.minimum(read, rows * window))
    return work._replace(decode_seqs=rows, query_len=0 * work.query_len + 1, decode_kv_tokens=tuple(keys), trimmed=0)


def sequence_work(
    windows: tuple[int | None, ...],
    prefill: Sequence[tuple[int, int]],
    decode: Sequence[int],
    query_len: int = 1,
    sampled: int | None = None,
    longest: int = 0,
) -> StepWork[int]:
    """Work of one step, from its prompt chunks and its decoding sequences.

    Args:
        windows: attention windows of the model; None is full attention.
        prefill: tokens to compute and tokens in the KV cache of each chunk.
        decode: tokens in the KV cache of each decoding sequence, before the step.
        query_len: tokens that each decoding sequence computes.
        sampled: number of chunks, the first ones, that complete their prompt; default: all.
        longest: number of longest sequences that the step's time depends on (``tracked_longest``).

    >>> work = sequence_work((None, 128), [(4, 6)], [1000, 10], 2)
    >>> work.prefill_pairs, work.decode_kv_tokens
    ((34, 34), (1014, 141))
    """
    done = len(prefill) if sampled is None else sampled
    decoded, seqs = sum(decode) + len(decode) * query_len, len(decode)
    work = decode_work(
        seqs,
        query_len,
        tuple(
            decoded if w is None else sum(keys_read(one + query_len, query_len, w) for one in decode) for w in windows
        ),
    )
    if longest and seqs:
        contexts = sorted(decode, reverse=True)[:longest]
        tail = (len(contexts) * contexts[0] - sum(contexts)) / len(contexts)
        work = work._replace(longest_kv=contexts[0] + query_len, tail_kv=tail)
    if not prefill:
        return work
    return work._replace(
        prefill_seqs=len(prefill),
        prefill_tokens=sum(new for new, _ in prefill),
        prefill_pairs=tuple(sum(causal_pairs(new, cached, w) for new, cached in prefill) for w in windows),
        prefill_kv_tokens=tuple(sum(keys_read(new + cached, new, w) for new, cached in prefill) for w in windows),
        sampled_prefills=done,
        sampled_kv_tokens=tuple(
            sum(keys_read(new + cached + 1, 1, w) for new, cached in prefill[:done]) for w in windows
        ),
    )


USUAL_BATCH, USUAL_TOKENS = 32, 1024
"""Number of sequences in a typical step, and context tokens of each sequence."""


def decode_step(windows: tuple[int | None, ...], seqs: int, query_len: int, context: int) -> StepWork[int]:
    """Work of a step in which ``seqs`` sequences with ``context`` tokens in the cache verify ``query_len`` tokens each.

    >>> decode_step((None, 128), 8, 4, 1000).decode_kv_tokens
    (8032, 1048)
    """
    keys = tuple(
        seqs * (context + query_len if w is None else min(context + query_len, w + query_len - 1)) for w in windows
    )
    return decode_work(seqs, query_len, keys)


def usual_steps(
    windows: tuple[int | None, ...], query_len: int, most_seqs: int, most_tokens: int
) -> StepWork[IntArray]:
    """Two typical steps of a deployment, for estimates before a run: an uncached prompt, and a decoding batch.

    Args:
        windows: attention windows of the model.
        query_len: tokens that each sequence of the batch verifies.
        most_seqs, most_tokens: largest number of sequences and of tokens in a step.
    """
    prompt = min(USUAL_TOKENS, most_tokens)
    seqs = max(1, min(USUAL_BATCH, most_seqs, most_tokens // query_len))

    def each(first: Num, second: Num) -> IntArray:
        return np.array([first, second], dtype=np.int64)

    return StepWork(
        prefill_seqs=each(1, 0),
        prefill_tokens=each(prompt, 0),
        prefill_pairs=tuple(each(causal_pairs(prompt, 0, window), 0) for window in windows),
        prefill_kv_tokens=tuple(each(keys_read(prompt, prompt, window), 0) for window in windows),
        sampled_prefills=each(1, 0),
        sampled_kv_tokens=tuple(each(keys_read(prompt + 1, 1, window), 0) for window in windows),
        decode_seqs=each(0, seqs),
        query_len=each(query_len, query_len),
        decode_kv_tokens=tuple(
            each(0, seqs * keys_read(USUAL_TOKENS + query_len, query_len, window)) for window in windows
        ),
    )
