"""Commands that answer the same question agree, and so do a chip and a copy of it."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_parts import closed_loop, drafts, lognormal, on_h100, poisson, uniform

import simulator
from hwprofiles.catalogue import load_chip
from simulator.running.metrics.conclusion import chance_words
from simulator.running.scenario import Scenario
from simulator.studies.compare.command import compare
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
        output_tokens=uniform(150, 400),  # answers of one length stay in step
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


@pytest.mark.parametrize(("chip", "scheduled"), [("h100-sxm", False), ("a100-sxm-80gb", True)])
@pytest.mark.parametrize("batch", [8, 64])
def test_the_flags_that_tune_prints_gain_what_it_says(chip, scheduled, batch):
    scenario = on_h100(
        closed_loop(batch, 1, 512, uniform(150, 250)),
        model="llama-3.3-70b",
        hardware={"chip": chip, "tensor_parallel": 4},
        speculation=drafts("eagle3", 3),
    )
    document = simulator.tune(scenario, batch=[1, 8, 64, 256], context=[512], tokens=[1, 3, 6]).document
    config = document["speculative_config"]
    table = config.get("num_speculative_tokens_per_batch_size")
    assert (table is not None) == scheduled
    policy = {"name": "batch-table", "table": table} if scheduled else "fixed"
    launched = scenario.with_values(
        {"speculation.num_speculative_tokens": config["num_speculative_tokens"], "speculation.policy": policy}
    )
    (promised,) = (
        one["with_flags"]["speedup"] for one in document["at_mean_context"] if one["judged_at"]["batch"] == batch
    )
    assert promised == pytest.approx(tpot_ms(without_drafting(scenario), batch) / tpot_ms(launched, batch), rel=0.05)


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


ANSWERS = uniform(50, 150)
RUN = Scenario(model="llama-3.1-8b", chip="h100-sxm", request_rate=8.0, input_tokens=500, output_tokens=ANSWERS,
               num_requests=120)  # fmt: skip
SLOWER_MEMORY = """
memory: {bandwidth_bytes_per_s: 3.0e12, capacity_bytes: 8.494e10,
         source: {kind: assumed, reference: a slower part, date: 2026-11}}
"""


def compared(*chips):
    few = {"replications": 2, "crossover": "none", "sensitivity": False, "jobs": 1}
    result = compare(RUN, vary={"hardware.chip": [str(chip) for chip in chips]}, **few)
    return [variant["speedup"]["mean_tpot_ms"] for variant in result.document["variants"][1:]]


@pytest.mark.parametrize("how", ["extends", "file"])
def test_an_identical_copy_is_exactly_as_fast(how, tmp_path):
    copy = tmp_path / "copy.yaml"
    if how == "extends":
        copy.write_text("extends: h100-sxm\nname: copy\ndescription: an identical copy\n")
    else:
        data = load_chip("h100-sxm").model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        copy.write_text(yaml.safe_dump(data | {"name": "copy"}), encoding="utf-8")
    assert load_chip(copy).kernels == load_chip("h100-sxm").kernels
    (speedup,) = compared("h100-sxm", copy)
    assert speedup["ratio"] == 1.0
    assert speedup["low"] is None or 0.999 < speedup["low"] <= speedup["high"] < 1.001


def test_a_chip_that_extends_another_shares_its_errors(tmp_path):
    """The ratio is surer than that to another chip: the child runs its parent's software with other limits."""
    child = tmp_path / "child.yaml"
    child.write_text("extends: h100-sxm\nname: child\ndescription: with slower memory\n" + SLOWER_MEMORY)
    shared, other = compared("h100-sxm", child, "a100-sxm-80gb")
    assert shared["ratio"] < 1.0
    assert shared["ratio"] / shared["low"] < min(1.15, other["ratio"] / other["low"])
    assert shared["high"] / shared["ratio"] < min(1.15, other["high"] / other["ratio"])


ONE_LAYOUT = {"vary": {"hardware.tensor_parallel": [1], "engine.max_num_batched_tokens": [8192]}, "headroom": False}


@pytest.mark.parametrize("limit_ms", [7.8, 9.0, 30.0])
def test_run_and_plan_give_one_probability_of_meeting_an_slo(limit_ms):
    scenario = on_h100(poisson(8.0, 400, 500, 200), slo={"p99_ttft_ms": 2000, "p99_tpot_ms": limit_ms})
    run = simulator.simulate(scenario, intervals=True)
    plan = simulator.plan(scenario, requests=400, replications=1, confidence=0.01, **ONE_LAYOUT)
    chance = run.document["slo"]["probability"]
    assert [row["probability"] for row in plan.document["candidates"]] == [chance]
    assert f"SLO met with {chance_words(chance)} probability" in run.conclusion
    own = {key: run.document["intervals"][key] for key in scenario.slo}
    assert plan.document["candidates"][0]["intervals"] == own, "one interval for one figure"
    assert "the model's error not counted" in simulator.simulate(scenario).conclusion


def test_one_request_beyond_the_context_does_not_decide_an_slo():
    load = poisson(8.0, 600, lognormal(300, 0.5, 4000), 100)
    scenario = on_h100(load, slo={"p99_ttft_ms": 2000}, engine={"max_model_len": 1100})
    run = simulator.simulate(scenario, intervals=True)
    assert 0 < run.failed <= 6
    assert run.meets_slo
    assert "raise engine.max_model_len" in run.document["notes"][0]
    plan = simulator.plan(scenario, requests=600, replications=1, **ONE_LAYOUT)
    assert plan.best is not None
    assert any("raise engine.max_model_len" in note for note in plan.document["notes"])
    short = scenario.with_values({"engine.max_model_len": 700})
    assert "too many requests are refused" in simulator.simulate(short, intervals=True).conclusion
    refused = simulator.plan(short, requests=600, replications=1, **ONE_LAYOUT)
    assert "raise engine.max_model_len" in refused.conclusion


def test_no_confidence_above_90_percent_without_calibrated_evidence():
    load = poisson(0.5, 60, 500, 100)
    scenario = on_h100(load, slo={"p99_ttft_ms": 60_000}, hardware={"chip": "r9700"}, weights_dtype="int4")
    sure, surer = (
        simulator.plan(scenario, requests=60, replications=1, confidence=share, **ONE_LAYOUT) for share in (0.9, 0.95)
    )
    assert sure.best.probability == 0.9
    assert surer.best is None
    assert "--confidence 0.9 accepts a layout: only calibrated evidence carries more" in surer.conclusion


def test_a_comparison_and_a_tuning_name_the_host_where_it_is_much_of_a_step_that_drafts():
    small, large = (
        on_h100(closed_loop(1, 4, 200, 100), model=model, speculation=drafts("eagle3", 3, 0.7))
        for model in ("llama-3.2-1b", "llama-3.1-8b")
    )
    for scenario, named in ((small, True), (large, False)):
        with_none = {"vary": {"speculation.method": ["none", "eagle3"]}, "crossover": "none", "sensitivity": False}
        compared = compare(scenario, replications=1, jobs=1, **with_none)
        tuned = simulator.tune(scenario, batch=[1])
        assert ["Host work is" in one.conclusion for one in (compared, tuned)] == [True, named]
