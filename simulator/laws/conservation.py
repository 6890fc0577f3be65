"""Laws of conservation: requests, tokens, draft tokens and KV blocks neither vanish nor come from nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.laws.outcome import Outcome, PoolSteps, first_of


def requests(outcome: Outcome) -> Iterator[str]:
    """Every request ends once, finished or refused, at a replica that can end it (what starts again after a failure may
    have its last token from its second prompt)."""
    records, done = outcome.requests, np.isfinite(outcome.requests.finished_s)
    if np.any(done == records.failed):
        yield f"request {first_of(done == records.failed)} was neither finished nor refused, or both"
    count = sum(pool.replicas for pool in outcome.pools)
    lost = done & ((records.replica < 0) | (records.replica >= count))
    if lost.any():
        row = first_of(lost)
        yield f"request {row} ended at replica {records.replica[row]}, there are {count}"
    for part in outcome.by_pool():
        if part.pool.role != "prefill":
            continue
        here = (records.replica >= part.first) & (records.replica < part.first + part.pool.replicas)
        wrong = done & here & (records.output_tokens > 1) & (outcome.restarts == 0)
        if wrong.any():
            yield f"request {first_of(wrong)} ended in pool {part.pool.name}, which only computes prompts"


def tokens(outcome: Outcome) -> Iterator[str]:
    """Steps hand out exactly the tokens that requests receive, none more than it computed, and each prompt token that
    was not cached is computed: once, and once more at the end of each prompt that was handed over."""
    records, steps, done = outcome.requests, outcome.steps, outcome.done
    handed, received = int(steps.output_tokens.sum()), int(records.output_tokens[done].sum())
    if handed != received:
        yield f"steps handed out {handed} tokens, requests received {received}"
    most = steps.prefill_seqs + steps.decode_seqs * steps.query_len * steps.steps
    wrong = (steps.output_tokens > most) | (steps.output_tokens < 0)
    if wrong.any():
        row = first_of(wrong)
        yield f"step {row} handed out {steps.output_tokens[row]} tokens, it computed {most[row]}"
    computed, steady = int(steps.prefill_tokens.sum()), outcome.undisturbed
    needed = int((records.input_tokens - records.cached_tokens)[steady].sum())
    if computed < needed:
        yield f"steps computed {computed} prompt tokens, requests without preemption need {needed}"
    if np.array_equal(steady, done) and computed > needed + outcome.transfers:
        yield (
            f"steps computed {computed} prompt tokens, requests without preemption need {needed}, and "
            f"{outcome.transfers} that were handed over one more each"
        )
    wrong = (records.cached_tokens < 0) | (records.cached_tokens > records.input_tokens)
    if wrong.any():
        row = first_of(wrong)
        yield (
            f"request {row} found {records.cached_tokens[row]} of its {records.input_tokens[row]} prompt tokens cached"
        )


def handover(outcome: Outcome) -> Iterator[str]:
    """Each prompt that is answered elsewhere was sent there, once unless something failed."""
    if not outcome.handed_over:
        return
    elsewhere = outcome.prompt_replica != outcome.requests.replica
    moved = int((outcome.done & elsewhere & (outcome.restarts == 0)).sum())
    if outcome.transfers < moved or (outcome.transfers > moved and not outcome.restarts.any()):
        yield f"{outcome.transfers} prompts were sent between replicas, {moved} requests ended at another one"


def drafts(outcome: Outcome) -> Iterator[str]:
    """No more draft tokens are accepted than drafted, at a position no more than before it, and each verify step hands
    out at least one token."""
    counters, records = outcome.speculation, outcome.requests
    if counters is None:
        return
    counts = (counters.num_drafts, *counters.accepted_per_position)
    if counters.accepted_tokens > counters.draft_tokens or any(np.diff(counts) > 0):
        yield (
            f"{counters.accepted_tokens} of {counters.draft_tokens} draft tokens were accepted, by position "
            f"{counts[1:]} of {counts[0]} drafts"
        )
    sums = (int(records.drafts.sum()), int(records.draft_tokens.sum()), int(records.accepted_tokens.sum()))
    total = (counters.num_drafts, counters.draft_tokens, counters.accepted_tokens)
    if sums != total:
        yield f"drafts, their tokens and the accepted ones: {sums} over the requests, {total} counted"
    most = np.where(outcome.done, np.maximum(records.output_tokens - 1, 0), 0)
    for what, found, limit in (
        ("draft tokens accepted", records.accepted_tokens, records.draft_tokens),
        ("verify steps", records.drafts, most),
    ):
        wrong = found > limit
        if wrong.any():
            row = first_of(wrong)
            yield f"request {row} has {found[row]} {what}, there can be {limit[row]}"


def blocks(outcome: Outcome) -> Iterator[str]:
    """KV blocks in use and running sequences stay within their limits, hold all keys that are read, and are given back
    at the end."""
    for part in outcome.by_pool():
        yield from _capacity(part)
        yield from _keys_in_blocks(part, shared=bool(outcome.requests.cached_tokens.any()))
    if outcome.blocks_left:
        yield f"requests still held {outcome.blocks_left} KV blocks after the last of them had ended"


def _capacity(part: PoolSteps) -> Iterator[str]:
    limits, steps = part.pool.cluster.limits, part.steps
    for what, used, limit in (
        ("KV blocks", steps.kv_blocks, limits.num_blocks),
        ("sequences", steps.running, limits.max_num_seqs),
    ):
        wrong = (used > limit) | (used < 0)
        if wrong.any():
            row = first_of(wrong)
            yield f"{part.name(row)} holds {used[row]} {what}, there are {limit}"


def _keys_in_blocks(part: PoolSteps, shared: bool) -> Iterator[str]:
    """Every key that a decoding sequence reads lies in a block, where no two sequences share any."""
    if shared:
        return
    steps, size = part.steps, part.pool.cluster.limits.block_size
    wrong = steps.decode_kv_tokens > steps.kv_blocks * size
    if wrong.any():
        row = first_of(wrong)
        yield f"{part.name(row)} reads {steps.decode_kv_tokens[row]} keys from {steps.kv_blocks[row]} blocks of {size}"
