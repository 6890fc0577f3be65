"""Prompts that TensorRT-LLM lets wait for more of them (batch_wait_timeout_iters)."""

import numpy as np
import pytest
from both_engines import both_engines
from plain_scenario import plain_scenario
from planned_steps import add, scheduler_of, step

from simulator.running.run import simulate
from simulator.serving.engine import NoEvictScheduler


def scenario(steps, share, gap_s=0.5, requests=2, **workload):
    """Prompts of 600 tokens, a budget of 2,000 a step."""
    engine = {"framework": "trtllm", "max_num_batched_tokens": 2000, "max_num_seqs": 8}
    engine |= {"batch_wait_timeout_iters": steps, "batch_wait_max_tokens_ratio": share}
    arrivals = {"process": "constant", "request_rate": 1 / gap_s}
    return plain_scenario(
        inputs=600, outputs=400, requests=requests, engine=engine, workload={"arrivals": arrivals} | workload
    )


def first_tokens_s(*arguments):
    run = simulate(scenario(*arguments), 0)
    return run.requests.first_token_s - run.requests.arrival_s, run.steps


def test_a_prompt_waits_so_many_steps_beside_others_that_decode():
    (first, plain), steps = first_tokens_s(0, 0.0)
    step_s = steps.seconds[steps.prefill_seqs == 0] / steps.steps[steps.prefill_seqs == 0]
    (alone, late), _ = first_tokens_s(30, 0.9)
    assert alone == first, "nothing decodes beside it"
    assert late - plain == pytest.approx(30 * float(np.median(step_s)), rel=0.05)


@pytest.mark.parametrize(("share", "waits"), [(0.3, False), (0.31, True)])
def test_prompts_that_fill_the_share_of_a_step_do_not_wait(share, waits):
    """600 tokens and one that decodes are 0.3005 of the budget."""
    (_, plain), _ = first_tokens_s(0, 0.0)
    (_, late), _ = first_tokens_s(30, share)
    assert (late > plain) == waits


def test_every_prompt_waits_exactly_as_many_steps():
    """Two prompts, one after the other, beside one that decodes: the count begins anew after the first of them."""
    engine = scheduler_of(NoEvictScheduler, batch_wait_steps=3, batch_wait_tokens=1000)
    add(engine, (4, 50))
    assert step(engine) == ({0: 4}, [])
    for index in (1, 2):
        add(engine, (4, 50), first=index)
        waited = [step(engine)[0] for _ in range(4)]
        assert waited == [{}, {}, {}, {index: 4}]


def test_two_prompts_are_computed_together():
    """The second comes while the first waits; together they fill the share."""
    run = simulate(scenario(10**6, 0.6, gap_s=0.2, requests=3), 0)
    assert run.steps.prefill_seqs.max() == 2
    assert len(np.unique(run.requests.first_token_s[1:])) == 1


def test_both_engines_wait_alike():
    loop = {"arrivals": {"process": "closed-loop", "max_concurrency": 6}}
    lengths = {"output_tokens": {"distribution": "uniform", "min": 20, "max": 90}}
    both_engines(scenario(12, 0.9, requests=40, **loop, **lengths))
