"""The load up to which drafting pays: compare, tune, plan and runs agree on it, whatever the scenario's run is long."""

import os
from random import Random

import pytest
from scenario_parts import drafts, lognormal, on_h100, poisson, uniform

from simulator.running.metrics import summarise
from simulator.running.run import serve
from simulator.studies.compare.command import compare
from simulator.studies.plan.command import plan
from simulator.studies.tune.command import tune

CASES = int(os.environ.get("FORERUN_CROSSOVERS", "3"))
"""Scenarios drawn; more for a wider round."""
AGREE = 0.05
MODELS = {"llama-3.1-8b": 1, "qwen3-14b": 1, "qwen3-32b": 2, "llama-3.3-70b": 4}
"""Models, and the tensor parallelism at which they leave room for a batch."""
CHIPS = ("h100-sxm", "a100-sxm-80gb", "h200-sxm", "b200-sxm")


def drawn(seed):
    """A chat or RAG service with a drafter whose acceptance lets it pay at low loads."""
    pick = Random(seed)
    model = pick.choice(sorted(MODELS))
    method = pick.choice(["eagle3", "ngram", "medusa", "draft-model"])
    sections = {"draft": {"model": "llama-3.2-1b" if "llama" in model else "qwen3-0.6b"}} if "model" in method else {}
    prompt = pick.choice([128, 512, 1500, 3000])
    inputs = pick.choice([prompt, lognormal(prompt, 0.7, 8 * prompt), uniform(prompt // 2, prompt * 3 // 2)])
    answers = pick.choice([uniform(50, 150), uniform(150, 400), lognormal(250, 0.6, 1000)])
    return on_h100(
        poisson(0.5, pick.choice([40, 300, 2500]), inputs, answers),
        model=model,
        hardware={"chip": pick.choice(CHIPS), "tensor_parallel": MODELS[model]},
        engine={"framework": pick.choice(["vllm", "sglang"])},
        speculation=drafts(method, pick.randint(1, 5), pick.choice([0.5, 0.65, 0.8]), **sections),
    )


def crossover(scenario):
    """The crossover of the scenario's drafter as compare has it; None without one."""
    methods = ["none", scenario.speculation.method]
    few = {"replications": 3, "sensitivity": False, "interval": False, "jobs": 1, "metric": "mean_e2el_ms"}
    nearest = compare(scenario, vary={"speculation.method": methods}, **few).document["crossover"]
    return None if nearest is None or nearest["better"] != "below" else nearest["value"]


def latencies_ms(scenario, rate):
    """Mean latency with and without drafting in a long run at a rate."""
    long = {"workload.arrivals.request_rate": rate, "workload.num_requests": 6000}
    at = scenario.with_values(long)
    return [summarise(serve(one, 7))["mean_e2el_ms"] for one in (at, at.with_values({"speculation": None}))]


@pytest.mark.parametrize("seed", range(CASES))
def test_compare_tune_plan_and_runs_agree_on_a_crossover(seed):
    scenario = drawn(seed)
    load = crossover(scenario)
    other = scenario.with_values({"workload.num_requests": 900})
    assert crossover(other) == (load if load is None else pytest.approx(load, rel=AGREE))
    tuned = tune(other, batch=[32], context=[1024], tokens=[scenario.speculation.num_speculative_tokens])
    if load is None:
        assert tuned.document["crossover"]["pays"] != "below"
        return
    if tuned.flags:  # none where no batch judged surely pays
        assert tuned.document["crossover"]["request_rate"] == pytest.approx(load, rel=AGREE)
    below, above = (latencies_ms(scenario, share * load) for share in (0.9, 1.1))
    assert below[0] < below[1]
    assert above[0] > above[1]
    if above[0] < 1.3 * below[0]:
        return  # latencies that hardly rise with the load name no load: a few percent of them move it by more than that
    limit = latencies_ms(scenario, load)[0]  # of the mean run, as the crossover: plan needs half of the runs to hold it
    hardware, engine = scenario.hardware, scenario.engine
    one_layout = {
        "hardware.tensor_parallel": [hardware.tensor_parallel],
        "engine.max_num_batched_tokens": [engine.max_num_batched_tokens],
    }
    few = {"interval": False, "headroom": False, "replications": 3, "jobs": 1, "confidence": 0.5}
    planned = plan(other, max_rate=True, slo={"mean_e2el_ms": limit}, vary=one_layout, **few)
    assert planned.best["max_rate"] == pytest.approx(load, rel=AGREE)
