"""A policy that changes K from step to step: every count says what was drafted."""

import dataclasses

import numpy as np
from one_pool import changed, one_pool
from stub_timers import LinearTimer

from simulator.serving import DraftingRule, EngineLimits
from simulator.speculation import AcceptanceSampler
from simulator.speculation.policies import BatchTable
from simulator.workload import RequestStream

TIMER = LinearTimer(step_s=2e-3, token_s=3e-6, pair_s=1e-9, key_s=2e-8, draft_s=1e-4, drafted_s=3e-4, skipped_s=7e-7)


def chat(count=40, rate=60.0):
    rng = np.random.default_rng(5)
    return RequestStream(
        arrival_s=np.cumsum(rng.exponential(1 / rate, count)),
        input_tokens=rng.integers(20, 400, count),
        output_tokens=rng.integers(1, 120, count),
        max_concurrency=None,
    )


LIMITS = EngineLimits(16, 512, 16, 4000, 0, 10_000, True, query_len=4, lookahead_tokens=3)
SAMPLER = AcceptanceSampler(np.cumprod(np.full(3, 0.7)), seed=1)


def with_table(tokens, follows=False, stepping="fast"):
    rule = None if tokens is None else DraftingRule(lambda: BatchTable(tuple(tokens)), 3, follows)
    return one_pool(1, "round-robin", "vllm-v1", stepping, LIMITS, TIMER, SAMPLER, rule=rule)


def test_a_policy_that_never_changes_k_is_the_plain_run():
    plain, policy = (with_table(tokens).run(chat()) for tokens in (None, [3]))
    # The stub charges a policy's draft tokens separately; without that, times are equal too.
    same = changed(with_table([3]), timer=dataclasses.replace(TIMER, drafted_s=0.0)).run(chat())
    assert same.finished_s == plain.finished_s
    assert same.accepted_counts.tolist() == plain.accepted_counts.tolist() == policy.accepted_counts.tolist()
    assert np.array_equal(np.asarray(same.draft_tokens), 3 * np.asarray(plain.drafts))


def test_steps_without_drafts_are_plain_decode_steps():
    never = with_table([0]).run(chat())
    assert not np.asarray(never.drafts).any()
    assert never.accepted_counts.sum() == 0
    assert set(never.steps.integers("query_len")) == {1}
    decoding = never.steps.integers("decode_seqs")
    assert never.steps.integers("output_tokens").sum() == sum(never.output_tokens)
    assert decoding.sum() == sum(never.output_tokens) - len(never.output_tokens)


def test_what_a_resting_drafter_skips_is_made_up_for_once():
    """All tokens computed while it rests are owed by the step that resumes, those of requests gone by then are not."""
    stream = RequestStream(np.zeros(2), np.array([100, 50]), np.array([2, 41]), None)
    # Two requests: no drafts. One: drafts. The first request ends after the second step.
    log = with_table([3, 3, 0]).run(stream)
    draft, queries = log.steps.draft(slice(None)), log.steps.integers("query_len")
    assert draft.tokens[:3].tolist() == [0, 0, 3]
    # Step 0 prefills both, step 1 decodes both, step 2 decodes the second: its prompt and one token are owed.
    assert draft.skipped_tokens.tolist() == [0, 0, 51] + [0] * (len(queries) - 3)
    assert draft.skipped_pairs[0][2] == 51 * 52 // 2
    assert queries[:4].tolist() == [4, 1, 1, 4]
    follower = with_table([3, 3, 0], follows=True).run(stream)
    assert not follower.steps.draft(slice(None)).skipped_tokens.any()


def test_tokens_beyond_the_end_are_never_delivered():
    """Stop-token overshoot: the last verify step accepts past the end, and hands out what was requested alone."""
    sure = changed(with_table([3]), sampler=AcceptanceSampler(np.ones(3), seed=0))
    stream = RequestStream(np.zeros(1), np.array([10]), np.array([7]), None)
    for cluster in (sure, changed(sure, stepping="exact-steps"), changed(sure, rule=None)):
        log = cluster.run(stream)
        assert log.steps.integers("output_tokens").tolist() == [1, 4, 2]
        assert log.accepted_counts.tolist() == [0, 0, 0, 2]
