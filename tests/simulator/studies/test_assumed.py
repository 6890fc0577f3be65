"""Assumed parameters: all that are in play, none that was measured; factors move what they name and nothing else."""

import pytest
from scenario_parts import drafts
from tiny_scenario import tiny_data

from simulator.running.assumptions import Assumptions
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.speculation import draft_survival, scaled_survival
from simulator.studies.assumed import assumed_parameters, with_acceptance_scaled


def scenario(**changes):
    return scenario_from(tiny_data() | changes, "s")


def duration(scenario, **factors):
    return float(simulate(scenario, 0, factors=factors).requests.finished_s.max())


EAGLE3 = {"speculation": drafts("eagle3", 3, acceptance={"per_position": [0.7, 0.5, 0.3]})}
GROUPS = {"hardware": {"chip": "h100-sxm", "speculative_parallel": 2}}
HITS = GROUPS | {"attention_speculation": {"task": "gsm8k", "lambda": 0.1, "sync_s": 1e-5}}
MI300X = "mi300x.kernels.launch_s mi300x.kernels.compute_efficiency mi300x.kernels.memory_efficiency"


@pytest.mark.parametrize(
    ("sections", "assumed", "measured"),
    [
        (
            {"engine": {"framework": "generic"}},
            "generic.step_s generic.per_sequence_s generic.reserved_bytes",
            "h100-sxm.kernels",
        ),
        ({"engine": {"framework": "vllm"}}, "vllm.eager_launch_s vllm.reserved_bytes", "vllm.per_sequence_s"),
        ({"engine": {"framework": "sglang"}}, "sglang.eager_launch_s sglang.reserved_bytes", "sglang.per_sequence_s"),
        ({"hardware": {"chip": "mi300x"}}, MI300X, "latency"),
        (
            {"hardware": {"chip": "h100-sxm", "tensor_parallel": 2, "link": "ethernet-100g"}},
            "ethernet-100g.latency_s",
            "h100-sxm.kernels",
        ),
        (EAGLE3, "acceptance", "eagle3.step_s"),  # fitted under vLLM
        (EAGLE3 | {"engine": {"framework": "trtllm"}}, "acceptance eagle3.step_s eagle3.pass_s", "vllm"),
        (
            {"speculation": drafts("ngram", 3, 0.4)},
            "ngram.step_s ngram.per_sequence_s ngram.per_context_token_s",
            "ngram.pass_s",
        ),
        (HITS, "attention.hit_rate attention.verify_s attention.skip_launch_s", "attention.sync_s"),
    ],
)
def test_what_was_not_measured_is_assumed(sections, assumed, measured):
    names = set(assumed_parameters(scenario(**sections)))
    assert set(assumed.split()) <= names
    assert not any(measured in name for name in names)


@pytest.mark.parametrize(
    ("chip", "name"),
    [("h100-sxm", "vllm.step_s"), ("mi300x", "mi300x.kernels.launch_s"), ("h100-sxm", "vllm.per_sequence_s")],
)
def test_a_longer_time_makes_the_run_longer(chip, name):
    chosen = scenario(hardware={"chip": chip})
    assert duration(chosen, **{name: 0.5}) < duration(chosen) < duration(chosen, **{name: 2.0})


def test_factors_on_other_names_change_nothing():
    chosen = scenario()
    assert duration(chosen, **{"sglang.step_s": 9.0, "mi300x.kernels.launch_s": 9.0}) == duration(chosen)
    assert duration(chosen, **{"h100-sxm.kernels.memory_efficiency": 0.5}) < 1.2 * duration(chosen)


def test_efficiencies_stay_below_one():
    from hwprofiles import load_chip

    kernels = Assumptions({"mi300x.kernels.memory_efficiency": 100.0}).kernels(load_chip("mi300x"), "generic")
    assert kernels.parameters("gemm", "bf16").memory_efficiency == 1.0


@pytest.mark.parametrize(
    "acceptance",
    [
        {"alpha": 0.7},
        {"per_position": [0.7, 0.5, 0.3]},
        {"conditional": [0.7, 0.6, 0.5]},
        {"acceptance_length": 2.4},
        {"alpha": 0.97, "spread": 0.1},
    ],
)
def test_scaled_acceptance_scales_every_conditional_rate(acceptance):
    speculation = drafts("eagle3", 3, acceptance=acceptance)
    chosen = scenario(speculation=speculation)
    for factor in (0.9, 1.1):
        before, after = (draft_survival(s.speculation) for s in (chosen, with_acceptance_scaled(chosen, factor)))
        assert list(after) == pytest.approx(scaled_survival(list(before), factor))
        simulate(with_acceptance_scaled(chosen, factor))


def test_an_extrapolated_curve_scales_at_one_draft_token_too():
    curve = {"curve": "eagle3-llama-3.1-8b-mt-bench", "extrapolate": True}
    chosen = scenario(speculation=drafts("eagle3", 1, acceptance=curve))
    before, after = (draft_survival(s.speculation) for s in (chosen, with_acceptance_scaled(chosen, 0.9)))
    assert list(after) == pytest.approx([0.9 * before[0]])


def test_scaled_survival_by_hand():
    assert scaled_survival([0.8, 0.4], 0.5) == pytest.approx([0.4, 0.1])
    assert scaled_survival([0.8, 0.4], 2.0) == pytest.approx([1.0, 1.0])
    assert scaled_survival([0.0, 0.0], 1.1) == [0.0, 0.0]


def test_an_end_at_which_the_model_no_longer_fits_has_no_ratio():
    from simulator.studies.compare.command import compare
    from simulator.studies.study_file import Variant

    engine = {"gpu_memory_utilization": 0.71, "max_num_batched_tokens": 8192}
    tight = scenario(model="llama-3.1-8b", hardware={"chip": "rtx-4090"}, engine=engine)
    variants = [Variant(str(n), {}, tight.with_values({"engine.max_num_seqs": n})) for n in (1, 8)]
    document = compare(variants, replications=2, crossover="none", jobs=1).document
    reserved = next(row for row in document["sensitivity"] if row["parameter"] == "vllm.reserved_bytes")
    assert reserved["ratios"]["8"]["at_high"] is None
    assert reserved["ratios"]["8"]["at_low"] > 0


def test_attention_level_speculation_rests_on_its_hit_rate_and_the_costs_of_its_mechanism():
    chosen = scenario(**HITS)
    parameters = assumed_parameters(chosen)
    before = chosen.attention_speculation.layer_hit_rates(1, 1)[0]
    moved, factors = parameters["attention.hit_rate"].applied(chosen, 0.9)
    assert moved.attention_speculation.layer_hit_rates(1, 1)[0] == pytest.approx(0.9 * before)
    assert factors == {}
    slower, _ = parameters["attention.verify_s"].applied(chosen, 1e-3)
    assert duration(slower) > duration(chosen)
