"""Level x decay against published acceptance: fitted on shallow drafts, predicting deep ones."""

import csv
from collections import defaultdict

import numpy as np
import pytest

from forerun.errors import ForerunError
from simulator.speculation import curve_names, fit_acceptance_lengths, load_curve
from simulator.speculation.level_decay import conditional_rates, extended

QWEN = {1: 1.93, 2: 2.73, 3: 3.39, 4: 3.97, 5: 4.41, 6: 4.8, 7: 5.04, 8: 5.21}
"""Qwen3.5-397B MTP, thinking on (InferenceX golden_al_distribution @843c625)."""
EAGLE3 = {2: 2.36, 3: 2.79, 4: 3.08, 5: 3.32, 6: 3.46, 7: 3.54}
"""Llama-3.1-8B-Instruct, MT-bench (vLLM issue 20780)."""


def golden(shared_data):
    curves = defaultdict(dict)
    with (shared_data / "serving" / "spec_acceptance_golden_al.csv").open() as file:
        for row in csv.DictReader(file):
            name = f"{row['source'].rpartition('/')[2]}, {row['thinking_mode']}"
            curves[name][int(row["num_speculative_tokens"])] = float(row["accept_length"])
    return curves


def errors(curve, fitted_up_to):
    """Percentage error of the acceptance length at K = 5..8 when fitted on K = 1..fitted_up_to.

    Lengths below that of a shorter draft are left out: no drafts of one stream are accepted less for being longer.
    """
    points = {k: length for k, length in curve.items() if k <= fitted_up_to}
    result = 1 + np.cumsum(fit_acceptance_lengths(points).model.survival(max(curve)))
    deep = [k for k in curve if k > 4 and curve[k] >= max(curve[j] for j in curve if j < k)]
    return {k: 100 * (result[k - 1] / curve[k] - 1) for k in deep}


@pytest.mark.parametrize(("fitted_up_to", "median", "bias", "worst"), [(3, 4.0, 2.0, 13.0), (4, 1.5, 2.0, 8.0)])
def test_golden_curves_at_five_to_eight(shared_data, fitted_up_to, median, bias, worst):
    """What is left is the sample's: marginal rates that rise from 0.6 to 1.3 and fall to 0.1 from one K to the next."""
    result = {name: errors(curve, fitted_up_to) for name, curve in golden(shared_data).items()}
    pooled = np.array([error for by_k in result.values() for error in by_k.values()])
    table = "\n".join(f"{name}: " + " ".join(f"{e:+.1f}" for e in by_k.values()) for name, by_k in result.items())
    print(f"K = 1..{fitted_up_to}: median {np.median(abs(pooled)):.2f} %, bias {pooled.mean():+.2f} %\n{table}")
    assert np.median(abs(pooled)) < median
    assert abs(pooled.mean()) < bias
    assert abs(pooled).max() < worst


def test_deep_drafts_of_specforge_follow_from_shallower_ones(shared_data):
    """EAGLE-3 heads on SGLang, fitted at 3 and 5 draft tokens, predicted at 7: 60 curves nobody tuned on."""
    curves = defaultdict(dict)
    with (shared_data / "serving" / "specforge_specbundle.csv").open() as file:
        for row in csv.DictReader(file):
            if row["is_baseline"] == "0" and row["topk"] == "1":
                name = (row["model"], row["draft_model"], row["benchmark"], row["batch_size"])
                curves[name][int(row["num_steps"])] = float(row["accept_length"])
    result = [
        100 * (fit_acceptance_lengths({3: curve[3], 5: curve[5]}).model.acceptance_length(7) / curve[7] - 1)
        for curve in curves.values()
        if {3, 5, 7} <= set(curve)
    ]
    print(f"{len(result)} curves: median {np.median(np.abs(result)):.2f} %, worst {max(map(abs, result)):.2f} %")
    assert len(result) > 50
    assert np.median(np.abs(result)) < 0.8
    assert abs(np.mean(result)) < 0.3
    assert max(map(abs, result)) < 5.0


@pytest.mark.parametrize(
    ("curve", "fitted", "requested", "tolerance"),
    [
        (QWEN, (1, 2, 3, 4), (5, 6, 7, 8), 3.5),
        (QWEN, (1, 2, 3), (5, 6, 7, 8), 4.0),
        (EAGLE3, (2, 3, 4), (5, 6, 7), 2.0),
    ],
)
def test_published_values_always(curve, fitted, requested, tolerance):
    model = fit_acceptance_lengths({k: curve[k] for k in fitted}).model
    for k in requested:
        assert abs(100 * (model.acceptance_length(k) / curve[k] - 1)) < tolerance, k


def test_every_curve_of_the_catalogue_is_sound():
    assert len(curve_names()) > 40
    for name in curve_names():
        curve = load_curve(name)
        assert curve.source
        assert len(curve.source) > 20, "a curve without a source does not enter the catalogue"
        for tokens in range(1, min(curve.positions, 12) + 1):
            survival = curve.survival(tokens)
            assert len(survival) == tokens
            assert (np.diff(np.concatenate(([1.0], survival, [0.0]))) <= 1e-12).all(), name
            if tokens in (curve.lengths or {}):
                assert 1 + survival.sum() == pytest.approx(curve.lengths[tokens], abs=1e-9), (name, tokens)


def test_catalogue_equals_what_was_collected(shared_data):
    with (shared_data / "published" / "acceptance.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name, method in (("eagle3-llama-3.1-8b-mt-bench", "eagle3"), ("eagle-llama-3.1-8b-mt-bench", "eagle")):
        collected = {
            int(row["index"]): float(row["value"])
            for row in rows
            if (row["method"], row["model"], row["quantity"]) == (method, "LLaMA-3.1-8B-Instruct", "accept_len_at_k")
            and "20780" in row["source"]
        }
        assert load_curve(name).lengths == collected
    for depth, head in enumerate(load_curve("medusa-vicuna-7b").heads):
        for rank, share in enumerate(head, start=1):
            quantity = f"head{depth}_top{rank}_accuracy"
            values = [float(r["value"]) for r in rows if r["model"] == "Vicuna-7B" and r["quantity"] == quantity]
            assert values == [share]


def test_rates_beyond_the_last_position_continue_their_decay():
    curve = load_curve("eagle3-minimax-m3-mixed")
    deep = curve.survival(6)
    assert deep[:3].tolist() == [0.76, 0.56, 0.43]
    conditional = deep[3:] / deep[2:-1]
    assert ((conditional > 0.5) & (conditional < 0.9)).all()


def test_a_wrong_name_is_one_line_with_the_nearest():
    with pytest.raises(ForerunError, match=r"did you mean 'eagle3-llama-3\.1-8b-mt-bench'") as error:
        load_curve("eagle3-llama-3.1-8b-mtbench")
    assert "\n" not in str(error.value)


def test_rates_of_three_positions_continue_without_bias(shared_data):
    """Rates per position of AMD's blog: known for three positions, continued to K = 5..8. Block drafters level out."""
    longest = defaultdict(list)
    with (shared_data / "measured_2026" / "spec_amd_blog_per_position.csv").open() as file:
        for row in csv.DictReader(file):
            rates = [float(row[f"pos{i}_accept_rate"]) for i in range(15) if row[f"pos{i}_accept_rate"]]
            name = (row["model"], row["method"], row["draft_model"], row["benchmark"])
            longest[name] = max(longest[name], rates, key=len)
    bias = defaultdict(list)
    for (_, method, *_), measured in longest.items():
        if len(measured) >= 5:
            deepest = min(8, len(measured))
            survival = np.cumprod(extended(conditional_rates(measured[:3]), deepest))
            lengths = (1 + np.cumsum(survival)) / (1 + np.cumsum(measured[:deepest]))
            bias[method].append(100 * (lengths[4:] - 1).mean())
    pooled = np.concatenate(list(bias.values()))
    assert len(pooled) > 50
    assert abs(pooled.mean()) < 0.5
    assert abs(np.mean(bias["DFlash"])) < 1.0
    assert np.abs(pooled).mean() < 0.8
