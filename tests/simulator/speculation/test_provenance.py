"""Acceptance goes with its method and its target model; borrowed rates have a note."""

import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator.running.build import build_replica
from simulator.speculation import borrowed_acceptance, curve_names, load_curve
from simulator.speculation.provenance import same_model
from simulator.studies.compare.command import compare
from simulator.studies.study_file import Variant
from simulator.studies.tune.choices import draft_choices

EAGLE3 = "eagle3-llama-3.1-8b-mt-bench"
QWEN_235B = "eagle3-qwen3-235b-a22b-specforge-mt-bench"


def chat(acceptance=None, method="eagle3", model="llama-3.1-8b", tokens=3, **sections):
    acceptance = {"curve": EAGLE3} if acceptance is None else acceptance
    sections |= {"workload": {"arrivals": {"process": "closed-loop", "max_concurrency": 1}}}
    sections |= {"speculation": {"method": method, "num_speculative_tokens": tokens, "acceptance": acceptance}}
    return plain_scenario(model, "h100-sxm", 256, 64, 2, **sections)


def note_of(scenario):
    return borrowed_acceptance(scenario.speculation, scenario.model)


@pytest.mark.parametrize("inputs", [{"curve": EAGLE3}, {"per_position": [0.73, 0.52, 0.35]}, {"alpha": 0.7}])
def test_another_method_takes_a_curve_of_its_own(inputs):
    scenario = chat(inputs)
    assert note_of(scenario) is None
    changed = scenario.with_values({"speculation.method": "ngram"})
    curve = load_curve(changed.speculation.acceptance.curve)
    assert curve.method == "ngram"
    assert "the acceptance of eagle3 does not hold for ngram" in note_of(changed)
    assert "measured on Llama-4-Scout, not on llama-3.1-8b" in note_of(changed)
    off = changed.with_values({"speculation.method": "none"})
    assert note_of(off) is None
    back = off.with_values({"speculation.method": "eagle3"})
    assert note_of(back) is None
    for name, value in inputs.items():
        assert getattr(back.speculation.acceptance, name) == value


def test_the_curve_that_stands_in_is_of_the_same_target_where_there_is_one_and_the_middle_one():
    scenario = chat({"per_position": [0.3, 0.1, 0.05]}, method="ngram")
    custom = [c for c in map(load_curve, curve_names()) if c.method == "eagle3" and c.target == "Llama-3.1-8B-Instruct"]
    ranked = sorted(custom, key=lambda curve: curve.survival(3).sum())
    changed = scenario.with_values({"speculation.method": "eagle3"})
    assert changed.speculation.acceptance.curve == ranked[(len(ranked) - 1) // 2].name
    assert "borrowed" not in note_of(changed)
    assert f"{len(custom)} curves of it" in note_of(changed)


def test_acceptance_set_with_the_method_is_the_reader_s_own():
    changed = chat().with_values({"speculation.method": "ngram", "speculation.acceptance": {"alpha": 0.2}})
    assert changed.speculation.acceptance.alpha == 0.2
    assert note_of(changed) is None


def test_other_settings_leave_a_borrowed_curve_standing_and_say_so():
    scenario = chat({"curve": EAGLE3}, method="eagle").with_values({"engine.max_num_seqs": 8})
    assert scenario.speculation.acceptance.curve == EAGLE3
    assert note_of(scenario) == f"acceptance is borrowed: curve {EAGLE3} was measured with eagle3, not with eagle"


def test_a_method_without_a_curve_is_refused_in_one_line():
    with pytest.raises(ForerunError, match=r"speculation\.acceptance: .*no curve of suffix; set") as refused:
        chat().with_values({"speculation.method": "suffix"})
    assert "\n" not in str(refused.value)


def test_eagle_2_grows_trees_from_the_heads_of_eagle():
    scenario = chat({"curve": "eagle-llama-3.1-8b-mt-bench"}, method="eagle")
    assert note_of(scenario.with_values({"speculation.method": "eagle2"})) is None


@pytest.mark.parametrize(
    ("model", "target", "same"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B-Instruct", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct", True),
        ("/models/Llama-3.1-8B-Instruct/config.json", "Llama-3.1-8B-Instruct", True),
        ("qwen3-32b", "Qwen3-235B-A22B-Instruct-2507", False),
        ("deepseek-v3", "DeepSeek-R1", False),
        ({"name": "vicuna-7b"}, "Vicuna-7B", True),
    ],
)
def test_models_by_all_their_names(model, target, same):
    assert same_model(model, target) == same


@pytest.mark.parametrize("curve", curve_names())
def test_every_curve_s_target_that_the_catalogue_has_is_detected(curve):
    name = load_curve(curve).target.lower()
    family = {"llama2-chat-70b": "llama-2-70b", "llama-4-scout": "llama-4-scout"}.get(name, name)
    catalogue = ("llama-2-70b", "vicuna-7b", "vicuna-13b", "vicuna-33b", "deepseek-r1", "gpt-oss-20b", "gpt-oss-120b")
    if family in catalogue:
        assert same_model(family, load_curve(curve).target)


def test_a_235b_model_s_curve_on_a_32b_is_no_calibrated_result():
    custom = build_replica(chat({"curve": EAGLE3}), 0)
    borrowed = build_replica(chat({"curve": QWEN_235B}, model="qwen3-8b"), 0)
    assert not custom.main.assumed
    assert borrowed.main.assumed, "whatever its kernels rest on"
    assert borrowed.basis == "extrapolated"
    (note,) = [note for note in borrowed.notes if "borrowed" in note]
    assert "measured on Qwen3-235B-A22B-Instruct-2507, not on qwen3-8b" in note
    assert not any("borrowed" in note for note in custom.notes)


def test_rates_carried_to_another_model_say_whose_they_are():
    changed = chat({"per_position": [0.73, 0.52, 0.35]}).with_values({"model": "qwen3-8b"})
    assert note_of(changed) == "acceptance is borrowed: its rates were measured on llama-3.1-8b, not on qwen3-8b"
    assert note_of(changed.with_values({"model": "llama-3.1-8b"})) is None


def test_tuned_chains_remember_whose_rates_they_cut():
    for choice in draft_choices(chat({"curve": QWEN_235B}, model="qwen3-8b")):
        assert "Qwen3-235B" in note_of(choice.scenario)


def test_a_comparison_of_methods_crowns_the_right_one_and_says_what_is_borrowed():
    base = chat()
    variants = [
        Variant(method, {}, base.with_values({"speculation.method": method})) for method in ("none", "eagle3", "ngram")
    ]
    options = {"replications": 2, "crossover": "none", "sensitivity": False, "jobs": 1, "metric": "mean_tpot_ms"}
    document = compare(variants, **options).document
    ratios = {variant["name"]: variant["speedup"]["mean_tpot_ms"]["ratio"] for variant in document["variants"]}
    assert 1.0 < ratios["ngram"] < ratios["eagle3"]
    assert document["conclusion"].startswith(("eagle3 probably improves mean TPOT", "eagle3 may improve mean TPOT"))
    assert "ngram: the acceptance of eagle3 does not hold for ngram" in document["conclusion"]
    assert any("does not hold for ngram" in note for note in document["notes"])
    assert document["basis"] == "extrapolated"
