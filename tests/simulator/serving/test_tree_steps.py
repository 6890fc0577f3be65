"""A verify step of a tree carries more tokens than it can accept: both engine paths must still agree."""

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from one_pool import one_pool
from test_fast_equals_exact import TIMER, assert_same, limits, run_both, streams

from simulator.speculation import AcceptanceSampler


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), streams(), st.integers(1, 5), st.integers(0, 40), st.floats(0, 1))
def test_trees(data, stream, depth, siblings, alpha):
    sampler = AcceptanceSampler(np.cumprod(np.full(depth, alpha)), seed=3)
    cluster = one_pool(
        1, "round-robin", "vllm-v1", "fast", data.draw(limits(stream, depth + siblings + 1)), TIMER, sampler
    )
    fast, exact = run_both(cluster, stream)
    event("preempted" if sum(fast.preemptions) else "not preempted")
    assert_same(fast, exact)
    assert len(fast.accepted_counts) == depth + 1
