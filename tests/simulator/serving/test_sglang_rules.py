"""SGLang's batching rules as its scheduler has them (python/sglang/srt/managers/scheduler.py, v0.5), one test each."""

from functools import partial

import pytest
from plain_scenario import plain_scenario
from planned_steps import add, scheduler_of, step

from simulator import simulate
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


@pytest.mark.parametrize(("steps", "share"), [(1, 0.7), (301, 0.399), (601, 0.098), (900, 0.098)])
def test_less_and_less_is_kept_free_for_outputs_while_none_is_retracted(steps, share):
    """0.7 at first, 0.14 of that after 600 decode steps (``new_token_ratio`` of v0.5.9).

    Of one request 10,000 - ``steps`` tokens are to come when the second one, of 4 + 4 tokens, asks for a place.
    """
    coming = 10_000 - steps
    needed = round(share * coming) + (4 + steps) + 8
    for spare, admitted in ((-40, False), (40, True)):
        engine = scheduler(max_num_batched_tokens=16, block_size=1, num_blocks=needed + spare)
        add(engine, (4, 10_000))
        for _ in range(steps):
            step(engine)
        add(engine, (4, 4), first=1)
        assert (step(engine)[0] == {1: 4}) == admitted


def test_a_retraction_raises_what_is_kept_free():
    """To the share of the outputs that is generated, with 20 tokens for each request (``retract_decode`` of v0.5.9)."""
    engine = scheduler(max_num_batched_tokens=64, block_size=1, num_blocks=640)
    (first,) = add(engine, (10, 600))
    for _ in range(200):
        step(engine)
    (second,) = add(engine, (10, 220), first=1)
    for _ in range(220):
        if step(engine) and engine.preempted == [second]:
            break
    assert engine.preempted == [second]
    assert engine._ratio == pytest.approx((first.generated_tokens - 1 + 20) / 601)


def test_a_busy_server_does_not_hold_requests_back_for_memory_that_it_has():
    """A full batch needs 70 % of the memory, and 70 % of all outputs to come would not fit beside it."""
    engine = {"framework": "sglang", "scheduler": "sglang", "num_kv_blocks": 3000}
    workload = {"arrivals": {"process": "poisson", "request_rate": 30.0}}
    run = simulate(plain_scenario(inputs=20, outputs=400, requests=1500, engine=engine, workload=workload), 0)
    assert run.data["summary"]["p90_ttft_ms"] < 200


def test_requests_are_looked_for_every_so_many_decode_steps():
    """A request that comes while others decode waits for the rest of the interval; beside nobody it does not."""

    def first_tokens_s(interval, rate):
        engine = {"framework": "sglang", "scheduler": "sglang", "scheduler_recv_interval": interval}
        arrivals = {"arrivals": {"process": "constant", "request_rate": rate}}
        run = simulate(plain_scenario(inputs=64, outputs=400, requests=2, engine=engine, workload=arrivals), 0)
        return run.steps.seconds[run.steps.prefill_seqs == 0].min(), run.requests.first_token_s - run.requests.arrival_s

    step_s, plain = first_tokens_s(1, 2.0)
    _, late = first_tokens_s(200, 2.0)
    assert late[0] == plain[0]
    assert 5 * step_s < late[1] - plain[1] <= 200 * step_s
    assert first_tokens_s(200, 0.1)[1].tolist() == first_tokens_s(1, 0.1)[1].tolist()


@pytest.mark.parametrize("interval", [2, 7, 40])
def test_between_two_looks_lie_exactly_so_many_decode_steps(interval):
    """The second request comes in the first of them; a step with a prompt is followed by a look."""
    engine = {"framework": "sglang", "scheduler": "sglang", "scheduler_recv_interval": interval}
    arrivals = {"arrivals": {"process": "constant", "request_rate": 70.0}}
    steps = simulate(plain_scenario(inputs=64, outputs=90, requests=2, engine=engine, workload=arrivals), 0).steps
    first, second = (steps.prefill_seqs > 0).nonzero()[0]
    assert steps.steps[first + 1 : second].sum() == interval
