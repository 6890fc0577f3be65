"""Single-stream speed of drafters as published, predicted from their sizes and the published acceptance lengths."""

import csv

import numpy as np
import pytest
from scenario_parts import closed_loop, constant, drafts, on_h100

from simulator.running.run import simulate
from simulator.speculation import curve_names, load_curve
from simulator.timing import VLLM_2025, load_draft_overhead


def vllm_2025(method):
    """The ``draft`` block of vLLM's drafters in 2025: two constants each, fitted at K = 2 and 6 of ``vllm20780``."""
    known = load_draft_overhead(VLLM_2025, method)
    return {"step_s": known.step_s, "pass_s": known.pass_s}


def rows(shared_data, group):
    with (shared_data / "published/speedup_measured.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["group"] == group]


def step_s(model, chip, speculation, prompt, output, engine=None, hardware=None):
    """Mean seconds of a decode or verify step of one stream."""
    sections = {"hardware": {"chip": chip} | (hardware or {}), "engine": engine or {}, "speculation": speculation}
    steps = simulate(on_h100(closed_loop(1, 2, prompt, output), model=model, **sections)).steps
    decoding = steps.decode_seqs > 0
    return float(steps.seconds[decoding].sum() / steps.steps[decoding].sum())


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_vllm_k_sweep_on_one_h100(shared_data, method):
    """vLLM #20780, Llama-3.1-8B on MT-bench: milliseconds per token at every K within 2 %, the best K right, and beside
    the plain run of the same table within 1 % at K = 2 and 6, where the two constants were solved."""
    measured, predicted, other = {}, {}, {}
    engine = {"framework": "vllm-0.11"}
    plain_s = step_s("llama-3.1-8b", "h100-sxm", None, 128, 256, engine=engine)
    for row in rows(shared_data, "vllm20780"):
        if row["method"] != method:
            continue
        k, length = int(row["k"]), float(row["accept_len"])
        speculation = drafts(method, k, acceptance={"acceptance_length": length}, draft=vllm_2025(method))
        measured[k] = float(row["spec"]) / 1e3
        predicted[k] = step_s("llama-3.1-8b", "h100-sxm", speculation, 128, 256, engine=engine) / length
        other[k] = plain_s / predicted[k] / float(row["speedup"]) - 1
    assert len(measured) >= 4
    errors = {k: predicted[k] / measured[k] - 1 for k in measured}
    assert max(map(abs, errors.values())) < 0.02, errors
    assert max(abs(other[k]) for k in (2, 6)) < 0.01, other
    assert min(predicted, key=predicted.get) == min(measured, key=measured.get)


@pytest.mark.parametrize(
    ("method", "tree", "model", "chips", "length", "speedup"),
    [
        ("medusa", "medusa-63", "vicuna-7b", 1, 3.47, 2.83),
        ("medusa", "medusa-63", "vicuna-13b", 1, 3.51, 2.83),
        ("medusa", "medusa-63", "vicuna-33b", 1, 3.01, 2.35),
        ("eagle", "eagle-25", "llama-2-70b", 4, 3.81, 3.01),
    ],
)
def test_trees_on_a100s(method, tree, model, chips, length, speedup):
    """MT-bench. Medusa 2 (arXiv:2401.10774): within 20 %, always on the high side, because its PyTorch loop spends host
    time between the kernels that is not modelled. EAGLE (arXiv:2401.15077), LLaMA2-Chat-70B: within 12 %."""
    speculation = {"method": method, "tree": tree, "acceptance": {"acceptance_length": length}}
    chip = "a100-sxm-80gb" if method == "medusa" else "a100-sxm-40gb"
    layout = {
        "engine": {"framework": "generic", "max_num_batched_tokens": 1024},
        "hardware": {"tensor_parallel": chips},
    }
    plain_s, spec_s = (step_s(model, chip, block, 128, 256, **layout) for block in (None, speculation))
    low, high = (1.0, 1.2) if method == "medusa" else (0.88, 1.12)
    assert low < length * plain_s / spec_s / speedup < high


def test_public_drafters_of_the_catalogued_curves_are_known():
    from simulator.llm import published_head_names

    named = {load_curve(name).drafter for name in curve_names() if load_curve(name).method == "eagle3"} - {None}
    assert named <= set(published_head_names())
    assert np.all([name.count("/") == 1 for name in published_head_names()])


CHAIN_OF_3 = {"eagle": 2.29, "eagle3": 2.79}
"""Tokens per step of a chain of three on MT-bench (vllm20780); the SGLang table gives none."""


def test_gains_under_sglang_fall_with_the_batch(shared_data):
    """EAGLE-3's table 3 (SGLang v0.4.4, one H100): EAGLE-3 within 20 % up to batch 32, EAGLE within 30 %, and EAGLE
    loses at 64 as measured; gains fall, EAGLE-3's above EAGLE's. Nothing is fitted to these rows.

    EAGLE-3 at 48 and 64 is under-predicted by up to 25 %: its 80 questions do not keep so many streams busy to the end.
    Prompts, which lower every gain a little, are left out here.
    """

    def seconds(speculation, batch):
        sections = {"engine": {"framework": "sglang"}, "speculation": speculation}
        steps = simulate(on_h100(closed_loop(batch, batch, 128, 128), **sections)).steps
        full = (steps.decode_seqs == batch) & (steps.prefill_seqs == 0)
        return float(steps.seconds[full].sum() / steps.steps[full].sum())

    gains, errors = {}, {}
    for row in rows(shared_data, "eagle3_t3"):
        method, batch = row["method"], int(row["load"])
        length = CHAIN_OF_3[method]
        speculation = drafts(method, 3, acceptance={"acceptance_length": length})
        gains[method, batch] = length * seconds(None, batch) / seconds(speculation, batch)
        errors[method, batch] = gains[method, batch] / float(row["speedup"]) - 1
    for method in CHAIN_OF_3:
        of_method = [gain for (name, _), gain in sorted(gains.items()) if name == method]
        assert len(of_method) >= 5
        assert of_method == sorted(of_method, reverse=True)
        assert abs(errors[method, 2]) < 0.10, errors
        assert all(abs(error) < 0.20 for (name, batch), error in errors.items() if name == "eagle3" and batch <= 32)
    assert all(gains["eagle3", batch] > gains["eagle", batch] for method, batch in gains if method == "eagle")
    assert gains["eagle", 64] < 1.0
    assert max(map(abs, errors.values())) < 0.30, errors


def test_vllm_v0_under_open_loop(shared_data):
    """vLLM 0.9's V0 engine, Llama-3.1-8B on one H100, constant rates: mean TPOT within 6 % alone and 10 % at 39.8
    requests/s, where each prompt interrupts decoding. The cost of a launch was fitted at the latter, by physics: with
    the learned correction of products the former is 5.6 % too fast (2.5 %), the latter 2.1 % too slow (2.6 %)."""
    with (shared_data / "serving/inference-perf-kubecon-h100.csv").open() as file:
        result = [row for row in csv.DictReader(file) if row["config"] == "vllm+v0_engine"][:2]
    for row, bound in zip(result, (0.06, 0.10), strict=True):
        rate = float(row["achieved_send_rate_rps"])
        engine = {"framework": "vllm-2024", "scheduler": "prefill-first", "enable_prefix_caching": False}
        served = on_h100(constant(rate, max(40, round(30 * rate)), 201, 62), engine=engine)
        seconds = simulate(served).summary["mean_tpot_ms"]
        assert seconds == pytest.approx(float(row["mean_tpot_derived_ms"]), rel=bound)
