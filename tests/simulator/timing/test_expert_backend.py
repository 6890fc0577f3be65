"""Which kernels experts stored in 4 bits run on."""

import numpy as np
import pytest
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from simulator.running.build import build_replica
from simulator.running.run import simulate


def scenario(**engine):
    inputs, outputs = (
        {"distribution": "uniform", "min": low, "max": high} for low, high in ((6554, 8192), (820, 1024))
    )
    workload = {"arrivals": {"process": "closed-loop", "max_concurrency": 64}}
    hardware = {"expert_routing": "zipf-1.0"}
    return plain_scenario(
        "gpt-oss-120b", "h200-sxm", inputs, outputs, 64, hardware=hardware, engine=engine, workload=workload
    )


@pytest.mark.parametrize(
    ("chip", "framework", "backend", "like"),
    [
        ("h200-sxm", "vllm", "auto", "mxfp4"),
        ("h200-sxm", "vllm", "marlin", "int4"),
        ("h200-sxm", "vllm-0.11", "auto", "int4"),
        ("a100-sxm-80gb", "vllm", "auto", "int4"),
        ("h200-sxm", "vllm", "triton", "mxfp4"),
        ("h200-sxm", "trtllm", "auto", "mxfp4"),
        ("h200-sxm", "trtllm", "marlin", "int4"),
        ("b200-sxm", "vllm", "auto", "mxfp4"),
    ],
)
def test_kernels_by_engine_and_chip(chip, framework, backend, like):
    """The weights stay those of the format; only the kernel's parameters and what it multiplies in change."""
    made = build_replica(
        scenario(framework=framework, moe_backend=backend).with_values({"hardware.chip": chip}), 0
    ).main.timer.target.deployment.kernels
    plain = KernelLibrary(chip, framework.partition("-")[0])
    assert made.parameters("moe", "mxfp4") == plain.parameters("moe", like)
    shape = {"tokens": np.array([1, 64, 8192]), "num_experts": 128, "experts_per_token": 4, "hidden": 2880}
    shape |= {"intermediate": 2880, "dtype": "mxfp4"}
    assert np.array_equal(made.moe(**shape).bytes, plain.moe(**shape).bytes)


@pytest.mark.parametrize(
    ("framework", "release", "like"),
    [("vllm", "0.11.1", "int4"), ("vllm-0.11", "0.11.1", "int4"), ("vllm-0.11", "0.12.0", "mxfp4"),
     ("vllm", "0.19.0", "mxfp4")],
)  # fmt: skip
def test_vllm_has_tritons_kernels_on_hopper_since_it_brings_them_along(framework, release, like):
    made = build_replica(scenario(framework=framework, release=release), 0).main.timer.target.deployment.kernels
    assert made.parameters("moe", "mxfp4") == KernelLibrary("h200-sxm", "vllm").parameters("moe", like)


@pytest.mark.parametrize(
    ("chip", "framework", "backend", "kernels"),
    [
        ("b200-sxm", "vllm", "auto", "mxfp4"),
        ("b200-sxm", "vllm", "mxfp8", "mxfp4_mxfp8"),
        ("b200-sxm", "trtllm", "auto", "mxfp4_mxfp8"),
        ("b200-sxm", "sglang", "triton", "mxfp4"),
        ("h200-sxm", "trtllm", "auto", "mxfp4"),
    ],
)
def test_activations_in_mxfp8_by_engine_and_chip(chip, framework, backend, kernels):
    made = scenario(framework=framework, moe_backend=backend).with_values({"hardware.chip": chip})
    assert build_replica(made, 0).main.timer.target.deployment.expert_kernels == kernels


@pytest.mark.parametrize(("requested", "stored"), [(None, "fp8_block"), ("fp8", "fp8")])
def test_experts_published_in_blocks_take_the_kernels_of_blocks(requested, stored):
    """DeepSeek-R1 as published; who requests one scale per tensor gets the kernels of that."""
    data = {
        "model": "deepseek-r1",
        "hardware.chip": "b200-sxm",
        "hardware.tensor_parallel": 8,
        "weights_dtype": requested,
    }
    target = build_replica(scenario(framework="sglang").with_values(data), 0).main.timer.target.deployment
    assert {target.weight_dtypes[part] for part in ("expert", "shared_expert", "attention", "mlp")} == {stored}
    blocks = load_chip("b200-sxm").kernels["sglang"]["moe"]["fp8_block"]
    assert (target.kernels.parameters("moe", target.weight_dtypes["expert"]) == blocks) == (stored == "fp8_block")
    assert target.kernels.basis("moe", "fp8_block") == "calibrated"


@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm"])
@pytest.mark.parametrize(
    ("chips", "kernel"),
    [(1, "vllm_fp8moe_triton_tritonexperts"), (8, "vllm_fp8moe_flashinfer_cutlass_flashinferexperts")],
)
def test_experts_in_blocks_run_the_kernel_of_their_spread(chip, chips, kernel):
    """vLLM keeps one kernel for experts that every chip holds and one for those that are spread; each has its fit."""
    kernels = KernelLibrary(chip, "vllm")
    shape = {"tokens": np.array([8, 512, 8192]), "num_experts": 256, "experts_per_token": 8, "hidden": 7168}
    shape |= {"intermediate": 2048, "dtype": "fp8_block", "expert_parallel": chips, "tensor_parallel": 8 // chips}
    assert np.array_equal(kernels.moe(**shape).seconds, kernels.moe(**shape, kernel=kernel).seconds)


def test_an_h200_runs_the_experts_of_the_same_engine_on_an_h100():
    """Of no table of its own: the same cores under the same engine come nearer than another engine's kernels."""
    for library in ("sglang", "trtllm"):
        custom, sister = (KernelLibrary(chip, library) for chip in ("h200-sxm", "h100-sxm"))
        sets = [one.parameters("moe", "fp8_block").model_dump(exclude={"source", "fit"}) for one in (custom, sister)]
        assert sets[0] == sets[1]
        assert custom.basis("moe", "fp8_block") == "datasheet"


def test_corrections_go_with_the_fits_to_a_chip_without_any():
    """Between H100 and H200 they halve the error of experts and products carried either way."""
    custom, sister = (KernelLibrary(chip, "sglang") for chip in ("b300-sxm", "b200-sxm"))
    for family, dtype in (("moe", "fp8_block"), ("gemm", "bf16")):
        assert custom.correction(family, dtype) is sister.correction(family, dtype) is not None


def test_the_run_length_moves_tpot_where_prompts_hold_up_decoding():
    """gpt-oss-120b on an H200, 64 at once: 32 ms with 64 requests, 43 ms with 2,560 (Nebius, vLLM 0.22, Marlin;
    GloriaXimingLu/inferencex-profiling @237385b). Nothing is fitted on that table but the law of expert popularity."""
    measured = {64: 32.0, 2560: 43.0}
    for requests, tpot_ms in measured.items():
        run = simulate(
            scenario(enable_prefix_caching=False, moe_backend="marlin").with_values({"workload.num_requests": requests})
        )
        records = run.requests
        tpot = (records.finished_s - records.first_token_s) / (records.output_tokens - 1)
        assert tpot.mean() * 1e3 == pytest.approx(tpot_ms, rel=0.06)


@pytest.mark.parametrize(("model", "message"), [("llama-3.1-8b", "no experts"), ("mixtral-8x7b", "experts in bf16")])
def test_marlin_needs_experts_in_four_bits(model, message):
    with pytest.raises(ForerunError, match=f"engine.moe_backend: marlin .* {message}"):
        build_replica(scenario(moe_backend="marlin").with_values({"model": model}), 0)


@pytest.mark.parametrize(
    ("release", "chip", "measured"),
    [
        ("0.10.1", "a100-sxm-80gb", (90.0, 77.5, 77.5)),
        ("0.19.0", "a100-sxm-80gb", None),
        ("0.10.1", "h100-sxm", None),
    ],
)
def test_attention_with_sinks_outside_graphs_leaves_nothing_to_more_chips(release, chip, measured):
    """Tokens/s of gpt-oss-120b for one stream on 1, 2 and 4 A100 (vLLM 0.10.1, vllm#22331): no gain, but later."""
    rates = []
    for chips in (1, 2, 4):
        one = plain_scenario(
            "gpt-oss-120b",
            chip,
            256,
            64,
            2,
            hardware={"chip": chip, "tensor_parallel": chips},
            engine={"framework": "vllm", "release": release, "max_num_seqs": 16, "max_model_len": 8192},
            workload={"arrivals": {"process": "closed-loop", "max_concurrency": 1}},
        )
        rates.append(1e3 / simulate(one).summary["mean_tpot_ms"])
    if measured is None:
        assert rates[2] > 1.1 * rates[0]
    else:
        assert rates == pytest.approx(measured, rel=0.16)


BEFORE_TUNING_US = {1: 31.70, 2: 36.56, 4: 49.67, 8: 66.87, 16: 92.36, 24: 117.38, 32: 124.99}
"""Routed experts of Qwen3-235B-A22B in block FP8 on one of eight H200, tiles of 64 x 128 (sgl-project/sglang#11730)."""
ONE_OF_EIGHT = {"num_experts": 128.0, "experts_per_token": 8.0, "hidden": 4096.0, "intermediate": 1536.0,
                "tensor_parallel": 8.0, "dtype": "fp8_block"}  # fmt: skip


def test_wide_tiles_cost_what_was_measured():
    wide = KernelLibrary("h200-sxm", "vllm", wide_tiles=True)
    errors = [
        wide.moe(tokens=float(tokens), **ONE_OF_EIGHT).seconds * 1e6 / measured - 1
        for tokens, measured in BEFORE_TUNING_US.items()
    ]
    assert np.mean(np.abs(errors)) < 0.12


def test_wide_tiles_are_no_faster_and_end_where_prompts_begin():
    tokens = np.array([1.0, 16.0, 127.0, 128.0, 4096.0])
    plain, wide = (KernelLibrary("h200-sxm", "vllm", wide_tiles=one).moe(tokens=tokens, **ONE_OF_EIGHT).seconds
                   for one in (False, True))  # fmt: skip
    assert np.all(wide >= plain)
    assert wide[1] > 1.05 * plain[1]
    assert np.array_equal(wide[3:], plain[3:])


@pytest.mark.parametrize(
    ("chip", "release", "wide"),
    [("h200-sxm", "0.16.0", True), ("h200-sxm", "0.17.0", False), ("h200-sxm", None, False),
     ("b200-sxm", "0.16.0", False), ("a100-sxm-80gb", "0.16.0", False)],
)  # fmt: skip
def test_vllm_has_wide_tiles_on_hopper_before_its_defaults_changed(chip, release, wide):
    made = scenario(framework="vllm", release=release).with_values({"model": "qwen3-30b-a3b", "hardware.chip": chip})
    kernels = build_replica(made, 0).main.timer.target.deployment.kernels
    shape = ONE_OF_EIGHT | {"tokens": 16.0, "dtype": "fp8_block" if chip != "a100-sxm-80gb" else "bf16"}
    assert (kernels.moe(**shape).seconds > KernelLibrary(chip, "vllm").moe(**shape).seconds) is wide


@pytest.mark.parametrize(
    ("model", "framework", "own"),
    [("gpt-oss-120b", "vllm", True), ("gpt-oss-120b", "sglang", True), ("gpt-oss-120b", "trtllm", False),
     ("deepseek-v4-flash", "vllm", False)],
)  # fmt: skip
def test_gpt_oss_has_a_kernel_of_its_own_with_activations_in_mxfp8(model, framework, own):
    engine = {"framework": framework} | ({"moe_backend": "mxfp8"} if framework == "vllm" else {})
    change = {"model": model, "hardware.chip": "b200-sxm", "hardware.tensor_parallel": 8}
    deployment = build_replica(scenario(**engine).with_values(change), 0).main.timer.target.deployment
    plain = KernelLibrary("b200-sxm", framework)
    shape = {"tokens": 32.0, "num_experts": 128.0, "experts_per_token": 4.0, "hidden": 2880.0, "intermediate": 2880.0}
    taken = plain.moe(**shape, dtype=deployment.expert_kernels, kernel=deployment.expert_kernel).seconds
    assert (taken < 0.98 * plain.moe(**shape, dtype="mxfp4_mxfp8").seconds) is own
