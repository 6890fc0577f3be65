"""A policy that changes K from step to step: both engine paths agree, and every count says what was drafted."""

import dataclasses

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from stub_timers import LinearTimer
from test_fast_equals_exact import assert_same, conversations, gaps, limits, run_both, streams

from simulator.serving import Cluster, DraftingRule
from simulator.speculation import AcceptanceSampler
from simulator.speculation.policies import BatchTable

TIMER = LinearTimer(step_s=2e-3, token_s=3e-6, pair_s=1e-9, key_s=2e-8, draft_s=1e-4, drafted_s=3e-4, skipped_s=7e-7)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def rules(draw, most, tree=False):
    """Tables that change at nearly every batch size, so that futures are derived anew all the time."""
    choices = st.sampled_from([0, most]) if tree else st.integers(0, most)
    tokens = tuple(draw(st.lists(choices, min_size=1, max_size=26)))
    return DraftingRule(lambda: BatchTable(tokens), most, draw(st.booleans()))


def assert_same_drafts(fast, exact):
    assert_array_equal(fast.draft_tokens, exact.draft_tokens)
    order = [np.lexsort((log.steps.column("start_s"), log.steps.column("replica"))) for log in (fast, exact)]
    mine, theirs = (log.steps.draft(0, len(log.steps)) for log in (fast, exact))
    for a, b in zip(mine[:4] + mine[4] + mine[5], theirs[:4] + theirs[4] + theirs[5], strict=True):
        assert_array_equal(a[order[0]], b[order[1]])


@SETTINGS
@given(st.data(), streams(), st.integers(1, 5), st.floats(0, 1), st.sampled_from([(None,), (None, 32)]))
def test_chains(data, stream, drafted, alpha, windows):
    sampler = AcceptanceSampler(np.cumprod(np.full(drafted, alpha)), seed=3)
    timer = dataclasses.replace(TIMER, windows=windows)
    limit = data.draw(limits(stream, drafted + 1))
    cluster = Cluster(1, "round-robin", "vllm-v1", "fast", limit, timer, sampler, rule=data.draw(rules(drafted)))
    fast, exact = run_both(cluster, stream)
    draft = exact.steps.draft(0, len(exact.steps))
    event("preempted" if sum(fast.preemptions) else "not preempted")
    event("switched" if draft.switched.any() else "not switched")
    event("caught up" if draft.skipped_tokens.any() else "nothing skipped")
    assert_same(fast, exact)
    assert_same_drafts(fast, exact)
    assert_allclose(gaps(fast, True), gaps(exact, False), rtol=1e-9, atol=1e-12)


@SETTINGS
@given(st.data(), conversations(), st.integers(1, 3), st.integers(1, 3))
def test_trees_replicas_and_shared_prompts(data, stream, depth, replicas):
    sampler = AcceptanceSampler(np.cumprod(np.full(depth, 0.6)), seed=3)
    limit = data.draw(limits(stream, depth + 4))
    cluster = Cluster(
        replicas,
        "least-outstanding",
        "vllm-v1",
        "fast",
        limit,
        TIMER,
        sampler,
        prefix_caching=replicas == 1,
        rule=data.draw(rules(depth, tree=True)),
    )
    fast, exact = run_both(cluster, stream)
    event("hits" if sum(fast.cached_tokens) else "no hits")
    assert_same(fast, exact)
    assert_same_drafts(fast, exact)
