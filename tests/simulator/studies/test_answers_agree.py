"""Commands that answer the same question agree: what tune and compare say of a scenario is what run gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_parts import closed_loop, drafts, on_h100, uniform

import simulator
from simulator.running.scenario import Scenario
from simulator.studies.tune.tuning import find_drafts

MODELS = {"llama-3.1-8b": 1, "qwen3-14b": 1, "qwen3-32b": 2, "llama-3.3-70b": 4}
"""Models, and the tensor parallelism at which they leave room for a batch."""


@st.composite
def drafting(draw):
    """A scenario that drafts, with prompts and outputs of the size of chat and RAG."""
    model = draw(st.sampled_from(sorted(MODELS)))
    chips = ["h100-sxm", "a100-sxm-80gb", "h200-sxm", "b200-sxm"]
    return Scenario(
        model=model,
        hardware={"chip": draw(st.sampled_from(chips)), "tensor_parallel": MODELS[model]},
        engine={"framework": draw(st.sampled_from(["vllm", "sglang"]))},
        speculation=drafts(
            draw(st.sampled_from(["eagle3", "ngram", "medusa"])),
            draw(st.integers(2, 4)),
            draw(st.sampled_from([0.5, 0.7, 0.85])),
        ),
        max_concurrency=1,
        input_tokens=draw(st.sampled_from([128, 1000, 3000])),
        output_tokens=uniform(150, draw(st.sampled_from([160, 400]))),
        num_requests=1,
    )


def tpot_ms(scenario, batch, seed=0):
    loop = {"workload.arrivals.max_concurrency": batch, "workload.num_requests": max(40, 8 * batch)}
    return simulator.simulate(scenario.with_values(loop), seed=seed).document["summary"]["mean_tpot_ms"]


def without_drafting(scenario):
    return scenario.with_values({"speculation": None})


@settings(max_examples=8, deadline=None)
@given(drafting(), st.sampled_from([1, 8, 32, 96]))
def test_tune_promises_what_a_closed_loop_of_that_batch_gives(scenario, batch):
    (cell,) = find_drafts(scenario, (batch,), (1024,), (scenario.speculation.num_speculative_tokens,)).mean
    gained = tpot_ms(without_drafting(scenario), batch) / tpot_ms(scenario, batch)
    assert cell.best_low <= gained <= cell.best_high


@pytest.mark.parametrize(("batch", "before"), [(8, 2.14), (32, 1.83), (128, 1.12)])
def test_tune_counts_the_prompts_of_the_other_requests(batch, before):
    """70B on 4 H100 with prompts of 1,000 tokens; ``before`` is the speed-up of steps that only decode."""
    four = {"chip": "h100-sxm", "tensor_parallel": 4}
    workload = closed_loop(batch, 1, 1000, uniform(150, 250))
    scenario = on_h100(workload, model="llama-3.3-70b", hardware=four, speculation=drafts("eagle3", 3))
    (cell,) = find_drafts(scenario, (batch,), (1024,), (3,)).mean
    gained = tpot_ms(without_drafting(scenario), batch) / tpot_ms(scenario, batch)
    assert cell.best_speedup == pytest.approx(gained, rel=0.05)
    assert cell.best_speedup < 0.95 * before


@settings(max_examples=4, deadline=None)
@given(drafting(), st.integers(1, 16))
def test_compare_shows_the_figures_of_run(scenario, batch):
    loop = {"workload.arrivals.max_concurrency": batch, "workload.num_requests": 30}
    scenario = scenario.with_values(loop)
    compared = simulator.compare(
        scenario, vary={"engine.max_num_seqs": [4, 64]}, seed=3, replications=1, crossover="none", sensitivity=False
    )
    for variant in compared.document["variants"]:
        alone = scenario.with_values(variant["set"])
        assert variant["summary"] == simulator.simulate(alone, seed=3).document["summary"]
