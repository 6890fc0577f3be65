"""Step times of a replica by batch size, from the step timer: decode steps, and prompts that join decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from simulator.running.metrics.usage import BOUNDS
from simulator.serving import EngineLimits
from simulator.studies.steady_state.traffic import Traffic
from simulator.timing import Costs, EngineTimer, StepWork, causal_pairs, decode_work, keys_read

Windows = Sequence[int | None]


def decode_steps(windows: Windows, seqs: IntArray, query_len: int, context_tokens: IntArray) -> StepWork[IntArray]:
    """Work of steps in which ``seqs[i]`` sequences of ``context_tokens[i]`` keys each compute ``query_len`` tokens.

    Args:
        windows: attention windows, as in ``EngineTimer.windows``.
        seqs: sequences per step, >= 1.
        query_len: 1 to decode, K+1 to verify K draft tokens.
        context_tokens: keys per sequence, the new tokens included, >= ``query_len``.
    """
    seqs, context_tokens = np.broadcast_arrays(np.asarray(seqs, np.int64), np.asarray(context_tokens, np.int64))
    keys = tuple(
        seqs * np.array([keys_read(int(context), query_len, window) for context in context_tokens])
        for window in windows
    )
    return decode_work(seqs, query_len, keys)


def prompt_chunks(windows: Windows, prompt_tokens: int, max_tokens: int) -> StepWork[IntArray]:
    """Work of the steps that prefill a single prompt in chunks of at most ``max_tokens``."""
    starts = np.arange(0, prompt_tokens, max_tokens, dtype=np.int64)
    sizes = np.minimum(max_tokens, prompt_tokens - starts)
    chunks = list(zip(sizes.tolist(), starts.tolist(), strict=True))
    none = np.zeros_like(starts)
    last = (starts + sizes == prompt_tokens).astype(np.int64)
    return decode_work(none, 1, (none,) * len(windows))._replace(
        prefill_seqs=np.ones_like(starts),
        prefill_tokens=sizes,
        prefill_pairs=tuple(np.array([causal_pairs(*chunk, window) for chunk in chunks]) for window in windows),
        prefill_kv_tokens=tuple(
            np.array([keys_read(start + size, size, window) for size, start in chunks]) for window in windows
        ),
        sampled_prefills=last,
        sampled_kv_tokens=tuple(last * keys_read(prompt_tokens + 1, 1, window) for window in windows),
    )


STRATA = 16
"""Number of prompts that represent the distribution of prompt lengths."""
GROUPS = (1, 2, 3, 4, 6, 8, 12)
"""Numbers of prompts that join a step together, for which steps are priced."""
OTHER_STRATUM = 5
"""Distance between the strata of prompts in one group; coprime to ``STRATA``."""
BATCHES_TO = 8
BATCH_RATIO = 1.25
"""Ratio of consecutive batch sizes at which steps are priced, above 8; up to 8, every size is priced."""
CONTEXT_POINTS = (1 / 6, 1 / 2, 5 / 6)
"""Points of a request's decoding, as shares of it, at which its context is sampled."""


@dataclass(frozen=True, slots=True)
class RequestWork:
    """Work of an average request on a replica."""

    decode_steps: float
    steps_of: FloatArray
    """Verify (or decode) steps of each request of the population."""
    kv_tokens: float
    """Mean KV slots of a decoding request, over the steps of all requests."""
    keys: tuple[float, ...]
    """Mean keys that a decoding request reads in a step, per attention window."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """Seconds by batch size; every array has one entry (or row) per batch in ``batches``."""

    batches: FloatArray
    decode_s: FloatArray
    chunk_s: FloatArray
    """Seconds of decoding within a step with prompts; 0 if prompts have separate steps."""
    joined_s: FloatArray
    """[batch, group]: mean seconds that a group of prompts adds to the steps it joins, per group of ``GROUPS``."""
    joined_square_s2: FloatArray
    """[batch]: mean square of the seconds that one prompt adds."""
    chunks: FloatArray
    """[batch]: mean number of steps over which one prompt is spread."""
    exclusive_s: FloatArray
    """[batch]: mean seconds during which one prompt fills the token budget, so that no other prompt can join."""
    exclusive_square_s2: FloatArray
    budget_share: FloatArray
    """[batch]: mean share of a step's token budget that one prompt uses."""
    decode_bounds: FloatArray
    """[batch, bound]: seconds of the decode step by limiting resource, in the order of ``BOUNDS``."""
    joined_bounds: FloatArray
    """[batch, bound]: seconds that one prompt adds, by limiting resource."""


def verify_steps(tokens: FloatArray, survival: FloatArray | None) -> FloatArray:
    """Mean number of verify steps that deliver ``tokens`` tokens.

    With X tokens per step (accepted tokens and one more), ``T / E[X] + (E[X^2] - E[X]) / (2 E[X]^2)``: the renewal
    function of an integer step, W. Feller, "An Introduction to Probability Theory and Its Applications" vol. 1 (1968),
    XIII.12, problem 19. Without speculation, T itself.

    Args:
        tokens: tokens after the first, >= 0.
        survival: probability that at least i draft tokens are accepted, or None without speculation.
    """
    if survival is None:
        return tokens
    at_least = np.concatenate(([1.0], survival))
    mean = float(at_least.sum())
    square = float(((2 * np.arange(len(at_least)) + 1) * at_least).sum())
    return np.where(tokens > 0, np.maximum(tokens / mean + (square - mean) / (2 * mean**2), 1.0), 0.0)


def request_work(
    traffic: Traffic, limits: EngineLimits, windows: tuple[int | None, ...], survival: FloatArray | None
) -> RequestWork:
    """Decode steps of the population's requests, and step-weighted means of their contexts."""
    steps = verify_steps(traffic.output_tokens - 1, survival)
    total = float(steps.sum())
    weights = steps / total if total else np.full(len(steps), 1 / len(steps))
    keys = np.zeros(len(windows))
    kv_tokens = 0.0
    ahead = limits.query_len + limits.lookahead_tokens
    for share in CONTEXT_POINTS:
        context = traffic.input_tokens + share * (traffic.output_tokens - 1)
        kv_tokens += float(weights @ (context + ahead + limits.block_size / 2)) / len(CONTEXT_POINTS)
        for index, window in enumerate(windows):
            seen = context + limits.query_len
            if window is not None:
                seen = np.minimum(seen, window + limits.query_len - 1)
            keys[index] += float(weights @ seen) / len(CONTEXT_POINTS)
    return RequestWork(total / len(steps), steps, kv_tokens, tuple(keys.tolist()))


def batch_grid(most: int) -> IntArray:
    """Batch sizes from 0 to ``most`` at which steps are priced."""
    grid = list(range(min(BATCHES_TO, most) + 1))
    while grid[-1] < most:
        grid.append(min(most, int(grid[-1] * BATCH_RATIO) + 1))
    return np.asarray(grid, dtype=np.int64)


def steady_step_costs(
    timer: EngineTimer,
    limits: EngineLimits,
    traffic: Traffic,
    work: RequestWork,
    most: int,
    *,
    groups: int,
    prefill_first: bool,
) -> StepPrices:
    """Price decode steps and joining prompts for batches up to ``most``.

    A prompt that does not fit into the token budget left by decoding in its attention group is spread over several
    steps, each priced as the average chunk. Under ``prefill_first``, prompts run in separate steps.
    """
    batches = batch_grid(most)
    decode_bounds = _decode_bounds(timer, limits, work, batches)
    most_decoding = 0 if prefill_first else (limits.max_num_batched_tokens - 1) // limits.decode_tokens
    decoding = np.minimum(batches, most_decoding)
    without = _decode_bounds(timer, limits, work, decoding)
    prefill_budget = np.maximum(1, limits.max_num_batched_tokens - decoding * limits.decode_tokens)
    new, cached = _strata(traffic)
    joined = [_joining(new, cached, size, prefill_budget, timer.windows, groups) for size in GROUPS]
    joining = _Joining(*(np.concatenate(parts, axis=-2) for parts in zip(*joined, strict=True)))
    shape = joining.steps.shape
    rows = _step_work(limits, work, np.broadcast_to(decoding[:, None, None], shape).ravel(), joining)
    bounds = _bounds(timer.costs(rows)).reshape(*shape, len(BOUNDS))
    added = joining.steps[..., None] * (bounds - without[:, None, None, :])
    added_s = np.maximum(added.sum(axis=-1), 0.0)
    single_prompt = joining.steps[:, 0]
    exclusive = np.where(single_prompt > 1, new[None] / prefill_budget[:, None], 0.0) * bounds[:, 0].sum(axis=-1)
    return StepPrices(
        batches=batches.astype(np.float64),
        decode_s=decode_bounds.sum(axis=1),
        chunk_s=without.sum(axis=1),
        joined_s=added_s.mean(axis=2),
        joined_square_s2=(added_s[:, 0] ** 2).mean(axis=1),
        chunks=single_prompt.mean(axis=1),
        exclusive_s=exclusive.mean(axis=1),
        exclusive_square_s2=(exclusive**2).mean(axis=1),
        budget_share=float(new.mean()) / prefill_budget,
        decode_bounds=decode_bounds,
        joined_bounds=added[:, 0].mean(axis=1),
    )


def _decode_bounds(timer: EngineTimer, limits: EngineLimits, work: RequestWork, batches: IntArray) -> FloatArray:
    """Seconds of decode-only steps by batch and limiting resource: [batch, bound]."""
    bounds = _bounds(timer.costs(_step_work(limits, work, batches, None)))
    bounds[batches == 0] = 0.0
    return bounds


class _Joining(NamedTuple):
    """Groups of prompts that join a batch: arrays [batch, group, stratum]; per-window arrays have a first axis more."""

    steps: FloatArray
    """Number of steps over which the group is spread; the other fields describe the average step."""
    prompts: FloatArray
    tokens: FloatArray
    pairs: FloatArray
    keys: FloatArray
    completed_keys: FloatArray


def _strata(traffic: Traffic) -> tuple[FloatArray, FloatArray]:
    """New and cached tokens of ``STRATA`` prompts that keep the population's means."""
    order = np.argsort(traffic.new_tokens, kind="stable")
    if len(order) < STRATA:
        order = order[(np.arange(STRATA) * len(order)) // STRATA]
    parts = np.array_split(order, STRATA)
    new, cached = traffic.new_tokens, traffic.cached_tokens
    return np.array([new[part].mean() for part in parts]), np.array([cached[part].mean() for part in parts])


def _joining(
    new: FloatArray,
    cached: FloatArray,
    size: int,
    prefill_budget: IntArray,
    windows: tuple[int | None, ...],
    groups: int,
) -> _Joining:
    """Groups of ``size`` prompts that join together, one per stratum: the stratum's own prompt and prompts spread over
    all strata. Each of ``groups`` attention groups has an equal part of the budget."""
    members = (np.arange(STRATA)[:, None] + np.arange(size)[None] * OTHER_STRATUM) % STRATA
    fresh, before = new[members], cached[members]
    total = fresh.sum(axis=1)
    own_budget = np.maximum(1.0, prefill_budget / groups)[:, None]
    pieces = np.maximum(1.0, np.ceil(fresh[None] / own_budget[..., None]))
    steps = np.maximum(1.0, np.ceil(total[None] / prefill_budget[:, None]))
    count = pieces.sum(axis=2)
    if groups > 1:  # An attention group takes whole pieces, here of the mean size.
        most = np.maximum(1.0, np.floor(own_budget * count / total))
        steps = np.maximum(steps, np.ceil(count / (groups * most)))
    pairs, keys, completed = [], [], []
    for window in windows:
        own_pairs, own_keys = _reads(fresh, before, pieces, window)
        pairs.append(own_pairs.sum(axis=2) / steps)
        keys.append(own_keys.sum(axis=2) / steps)
        limit = np.inf if window is None else float(window)
        completed.append(np.broadcast_to(np.minimum(before + fresh + 1, limit).sum(axis=1), steps.shape) / steps)
    parts = (
        steps,
        np.maximum(1.0, count / steps if groups == 1 else np.ceil(count / steps)),
        total[None] / steps,
        np.stack(pairs),
        np.stack(keys),
        np.stack(completed),
    )
    return _Joining(*(np.expand_dims(part, -2) for part in parts))


def _reads(
    new: FloatArray, cached: FloatArray, pieces: FloatArray, window: int | None
) -> tuple[FloatArray, FloatArray]:
    """(query, key) pairs and keys read by prompts with ``new`` tokens after ``cached`` tokens, in equal pieces."""
    limit = np.inf if window is None else float(window)
    size = np.broadcast_to(new / pieces, pieces.shape)
    reached = cached + new * (pieces + 1) / (2 * pieces)
    return pieces * size * np.minimum(reached - size / 2 + 0.5, limit), pieces * np.minimum(reached, limit + size - 1)


def prompt_steps(
    windows: Windows,
    prompts: FloatArray,
    prompt_tokens: IntArray,
    prompt_budget: IntArray,
    decoding: StepWork[IntArray] | None,
) -> tuple[FloatArray, StepWork[IntArray]]:
    """Work of steps in which equal prompts join; a group that exceeds the token budget is spread over several steps.

    Args:
        windows: attention windows, as in ``EngineTimer.windows``.
        prompts: number of prompts that join together, >= 1.
        prompt_tokens: tokens of each prompt, >= 1.
        prompt_budget: maximum prompt tokens of a step, >= 1.
        decoding: decode work in the same steps; None = none.

    Returns:
        Number of steps over which each group is spread, and the work of the average step.
    """
    pieces = np.maximum(1.0, np.ceil(prompt_tokens / prompt_budget))
    steps = np.maximum(1.0, np.ceil(prompts * prompt_tokens / prompt_budget))
    reads = [_reads(prompt_tokens.astype(np.float64), np.zeros(1), pieces, window) for window in windows]
    first = [prompt_tokens + 1 if window is None else np.minimum(prompt_tokens + 1, window) for window in windows]

    def whole(values: FloatArray) -> IntArray:
        return np.rint(prompts * values / steps).astype(np.int64)

    none = np.zeros_like(prompt_tokens)
    work = (decode_work(none, 1, (none,) * len(windows)) if decoding is None else decoding)._replace(
        prefill_seqs=np.maximum(1, whole(pieces)),
        prefill_tokens=np.maximum(1, whole(prompt_tokens.astype(np.float64))),
        prefill_pairs=tuple(whole(pairs) for pairs, _ in reads),
        prefill_kv_tokens=tuple(whole(keys) for _, keys in reads),
        sampled_prefills=whole(np.ones(len(prompts))),
        sampled_kv_tokens=tuple(whole(keys.astype(np.float64)) for keys in first),
    )
    return steps, work


def _step_work(
    limits: EngineLimits, work: RequestWork, batch: IntArray, joining: _Joining | None
) -> StepWork[IntArray]:
    """Work of the steps as a flat ``StepWork`` for the timer."""

    def whole(values: FloatArray) -> IntArray:
        return np.rint(values).astype(np.int64).ravel()

    decoding = decode_work(batch, limits.query_len, tuple(whole(batch.astype(np.float64) * keys) for keys in work.keys))
    if joining is None:
        return decoding
    return decoding._replace(
        prefill_seqs=whole(joining.prompts),
        prefill_tokens=np.maximum(1, whole(joining.tokens)),
        prefill_pairs=tuple(map(whole, joining.pairs)),
        prefill_kv_tokens=tuple(map(whole, joining.keys)),
        sampled_prefills=whole(np.minimum(1.0, 1 / joining.steps) * joining.prompts),
        sampled_kv_tokens=tuple(map(whole, joining.completed_keys)),
    )


def _bounds(costs: Costs) -> FloatArray:
    """Seconds by step and bound: [step, bound]."""
    return np.stack([getattr(costs, f"{bound}_s") for bound in BOUNDS], axis=-1)
