"""How engines and their versions differ: share of free memory, skew of ranks, scales of activations."""

from dataclasses import replace

import pytest
from numpy.testing import assert_allclose
from plain_scenario import plain_scenario
from timing_steps import arrays, decode, deployment, memory_plan

from hwprofiles import dtype_bytes
from hwprofiles.dtypes import dtype_name
from simulator.llm import load_architecture
from simulator.llm.load import catalogue_model
from simulator.running.build import build_replica
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.timing import StepTimer, load_framework
from simulator.timing.releases import framework_of_version


def llama_70b(framework, tensor_parallel=4, **changes):
    layout = {"tensor_parallel": tensor_parallel, "weights": "fp8", "framework": framework, "kv_dtype": "fp8"}
    one = deployment("llama-3.1-70b", **layout)
    return replace(one, framework=one.framework.model_copy(update=changes))


def test_kv_takes_its_share_of_what_is_free():
    model = llama_70b("trtllm")
    plan = memory_plan(model)
    free = plan.capacity_bytes - plan.weight_bytes - plan.activation_bytes
    assert plan.num_blocks == int(0.9 * free // (plan.kv_bytes_per_token * 16))
    whole = memory_plan(replace(model, framework=model.framework.model_copy(update={"kv_share_of": "all"})))
    assert_allclose(
        plan.num_blocks - whole.num_blocks,
        0.1 * (plan.weight_bytes + plan.activation_bytes) / (plan.kv_bytes_per_token * 16),
        atol=1.0,
    )


def test_activations_lie_outside_of_a_static_share():
    model = llama_70b("sglang")
    plan = memory_plan(model)
    left = 0.9 * plan.capacity_bytes - plan.weight_bytes
    assert plan.num_blocks == int(left // (plan.kv_bytes_per_token * 16))
    whole = memory_plan(replace(model, framework=model.framework.model_copy(update={"kv_share_of": "all"})))
    assert_allclose(
        plan.num_blocks - whole.num_blocks, plan.activation_bytes / (plan.kv_bytes_per_token * 16), atol=1.0
    )


@pytest.mark.parametrize("tensor_parallel", [1, 2, 8])
def test_every_collective_waits_for_the_last_rank(tensor_parallel):
    work = decode(32, 1000)
    even = StepTimer(llama_70b("trtllm-0.14", tensor_parallel, rank_skew_s=0.0), 256)
    late = StepTimer(llama_70b("trtllm-0.14", tensor_parallel, rank_skew_s=1e-5), 256)
    collectives = 2 * 80 + 2 if tensor_parallel > 1 else 0  # two per layer, embedding and logits
    expected = collectives * (tensor_parallel - 1) * 1e-5
    assert_allclose(late.seconds(work) - even.seconds(work), expected, rtol=1e-6, atol=1e-12)
    steps = arrays(work)
    assert_allclose(late.costs(steps).device_s - even.costs(steps).device_s, expected, rtol=1e-6, atol=1e-12)
    total = sum(kernel.step_s for kernel in late.kernels(steps))
    assert_allclose(total[0], late.costs(steps).device_s[0], rtol=1e-9)


@pytest.mark.parametrize(("framework", "version", "expected"), [
    ("trtllm", "0.14.0", "trtllm-0.14"), ("trtllm", "1.0 (PyTorch backend)", "trtllm"), ("trtllm", "0.21.0", "trtllm"),
    ("vllm", "0.11.0", "vllm-0.11"), ("vllm", "v0.8.4", "vllm-0.11"), ("vllm", "0.14.1", "vllm"),
    ("vllm", None, "vllm"), ("sglang", "0.4.4", "sglang-0.5.10"), ("sglang", "0.5.14", "sglang"),
    ("sglang", "0.5.10.post1", "sglang-0.5.10"), ("sglang", "0.6", "sglang"),
    ("vllm", "0.9.0 (V0 engine)", "vllm-2024"),
    ("vllm", "v0.9.0", "vllm-0.11"), ("sglang", "lmsysorg/sglang:v0.5.9-rocm700-mi30x", "sglang-0.5.10"),
    ("sglang", "of 2026-02", "sglang-0.5.10"), ("sglang", "nightly of 2026-05", "sglang"), ("sglang", "main", "sglang"),
    ("trtllm", "main 2025-04", "trtllm"), ("sglang", "0.0.0.dev1+g273d978be", "sglang"),
])  # fmt: skip
def test_versions_name_their_parameter_set(framework, version, expected):
    assert framework_of_version(framework, version) == expected
    assert load_framework(expected).kernel_library == framework


@pytest.mark.parametrize("name", ["BF16", "fp8", "NVFP4", "fp4", "mxfp4", "w4a16", "int8", "fp8_block"])
def test_every_format_that_is_known_has_a_size(name):
    known = dtype_name(name)
    assert known is not None
    assert 0 < dtype_bytes(known) <= 2


def test_llama_without_a_number_is_the_second():
    assert catalogue_model("LLaMA 70B") == "llama-2-70b"
    assert catalogue_model("LLaMA v3.1 70B") == "llama-3.1-70b"


def test_older_sglang_reduces_by_vllms_kernels():
    """In NVIDIA's table of SGLang 0.5.9, 128 KB between eight H100 take 8 us; in that of 0.5.14, 6.4."""
    seconds, products = [], []
    for name in ("sglang", "sglang-0.5.10", "vllm"):
        scenario = plain_scenario("qwen3-32b", hardware={"tensor_parallel": 8}, engine={"framework": name})
        kernels = build_replica(scenario).main.timer.target.deployment.kernels
        seconds.append(kernels.collective("all_reduce", 131072, 8, "nvlink4").seconds)
        products.append(kernels.gemm(64, 5120, 5120).seconds)
    assert seconds[0] < 0.85 * seconds[1]
    assert seconds[1] == seconds[2]
    assert products[0] == products[1] != products[2]


@pytest.mark.parametrize(("framework", "chip", "weights", "layers"), [
    ("sglang-0.5.10", "mi300x", "fp8_block", 58), ("sglang-0.5.10", "mi300x", "bf16", 0),
    ("sglang", "mi300x", "fp8_block", 0), ("sglang-0.5.10", "mi355x", "fp8_block", 0),
])  # fmt: skip
def test_early_sglang_is_slow_with_fp8_experts_on_cdna_3(framework, chip, weights, layers):
    build = load_framework(framework)
    slowed = build.with_experts(chip, load_architecture("deepseek-r1"), weights)
    assert slowed.step_s - build.step_s == pytest.approx(layers * 2.6e-4)


@pytest.mark.parametrize(
    ("release", "exposed_s"), [("1.0.0rc3", 3.0e-4), ("1.1.0", 0.0), ("unknown", 0.0), (None, 0.0)]
)
def test_later_releases_broadcast_beside_the_device(release, exposed_s):
    scenario = plain_scenario(engine={"framework": "trtllm", "release": release}, hardware={"tensor_parallel": 2})
    assert build_replica(scenario, seed=0).main.timer.target.deployment.framework.rank_s == exposed_s


@pytest.mark.parametrize(("model", "engine", "blocks"), [
    ("gpt-oss-20b", {"framework": "vllm"}, 1.0), ("gpt-oss-20b", {"framework": "vllm", "release": "0.28.1"}, 1.0),
    ("gpt-oss-20b", {"framework": "vllm", "release": "0.29.0"}, 0.0), ("gpt-oss-20b", {"framework": "sglang"}, 0.0),
    ("gpt-oss-20b", {"framework": "vllm-0.11"}, 1.0), ("qwen3-8b", {"framework": "vllm"}, 0.0),
])  # fmt: skip
def test_blocks_that_windows_passed_stay_in_the_cache_of_earlier_vllm(model, engine, blocks):
    assert build_replica(plain_scenario(model, engine=engine)).main.limits.window_blocks == blocks


def test_windows_leave_half_of_the_cache_to_prompts_of_gpt_oss():
    """All of 24 prefixes of 256 blocks fit, but not with the blocks of their windows; in a larger cache they do."""
    shared = {"groups": 24, "prompts": 6, "system_tokens": 4096, "question_tokens": 16}
    workload = {"shared_prefixes": shared, "output_tokens": 1, "arrivals": {"stages": [{"rate": 4, "seconds": 36}]}}
    hits = {}
    for release in ("0.28", "0.29"):
        for blocks in (6600, 18_000):
            engine = {"framework": "vllm", "release": release, "num_kv_blocks": blocks}
            data = {"model": "gpt-oss-20b", "hardware": {"chip": "h100-sxm"}, "engine": engine, "workload": workload}
            scenario = scenario_from(data, "test")
            compiled, interpreted = (
                simulate(scenario.with_values({"engine.stepping": stepping}), 1).requests.columns()
                for stepping in ("fast", "exact-steps")
            )
            assert all(column.tobytes() == interpreted[name].tobytes() for name, column in compiled.items())
            hits[release, blocks] = int(compiled["cached_tokens"].sum())
    assert hits["0.28", 6600] < 0.7 * hits["0.29", 6600]
    assert hits["0.28", 18_000] == hits["0.29", 18_000] == hits["0.29", 6600]
