"""TensorRT-LLM's GUARANTEED_NO_EVICT: what joins the batch stays in it."""

from hypothesis import given
from hypothesis import strategies as st
from planned_steps import add, scheduler_of, step

from simulator.serving.engine import NoEvictScheduler, UnifiedScheduler

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=12)


def served(kind, lengths, **limits):
    """How many requests decode at once in each step, and how many were preempted."""
    engine = scheduler_of(kind, **limits)
    add(engine, *lengths)
    together, preempted = [], 0
    while engine.has_work:
        together.append(len(step(engine)[1]))
        preempted += len(engine.preempted)
    assert engine.used_blocks == 0
    return together, preempted


@given(LENGTHS, st.integers(20, 60))
def test_nothing_is_evicted_and_everything_ends(lengths, blocks):
    assert not served(NoEvictScheduler, lengths, num_blocks=blocks)[1]


def test_a_request_waits_for_room_to_its_last_token():
    """Two of 12 + 12 tokens take 6 blocks each: in 13 both run at once, one block kept for a part; in 12 one by one."""
    pair = [(12, 12)] * 2
    assert max(served(NoEvictScheduler, pair, num_blocks=13)[0]) == 2
    assert max(served(NoEvictScheduler, pair, num_blocks=12)[0]) == 1
    assert max(served(UnifiedScheduler, pair, num_blocks=12)[0]) == 2
