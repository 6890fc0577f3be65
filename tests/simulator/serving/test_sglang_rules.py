"""SGLang's batching rules as its scheduler has them (python/sglang/srt/managers/scheduler.py, v0.5), one test each."""

from functools import partial

import pytest
from planned_steps import add, scheduler_of, step

from simulator.serving.engine import SglangScheduler

scheduler = partial(scheduler_of, SglangScheduler)


def test_prompts_go_first_and_alone():
    engine = scheduler()
    add(engine, (8, 4))
    assert step(engine) == ({0: 8}, [])
    add(engine, (8, 4), first=1)
    assert step(engine) == ({1: 8}, []), "no decoding beside a prompt"
    assert step(engine) == ({}, [0, 1])


def test_the_last_prompt_is_cut_where_the_budget_ends_and_goes_on_first():
    engine = scheduler()
    add(engine, (20, 4), (20, 4), (20, 4))
    assert step(engine) == ({0: 20, 1: 12}, [])
    assert step(engine) == ({1: 8, 2: 20}, [])
    assert step(engine) == ({}, [0, 1, 2])


def test_no_more_prompts_than_places():
    engine = scheduler(max_num_seqs=2)
    add(engine, (4, 1), (4, 2), (4, 2))
    assert step(engine) == ({0: 4, 1: 4}, [])
    assert step(engine) == ({2: 4}, []), "the place that the finished request left"


@pytest.mark.parametrize("blocks", [6, 7])
def test_a_prompt_that_would_not_end_beside_the_batch_waits(blocks):
    """12 + 12 tokens fill 6 blocks, of which the running request holds 3 and keeps 70 % of the rest free."""
    engine = scheduler(max_num_batched_tokens=16, num_blocks=blocks)
    add(engine, (12, 12), (12, 4))
    assert step(engine) == ({0: 12}, [])
    assert step(engine) == ({}, [0])
    served = [step(engine) for _ in range(30)]
    assert sum(chunks.get(1, 0) for chunks, _ in served) == 12, "computed once"
    assert not engine.preempted
    assert not engine.has_work, "everything ends"
    assert engine.used_blocks == 0
