"""llama.cpp's back ends on Radeons: kernels of their own for few rows, and no option that does nothing."""

import pytest
from plain_scenario import plain_scenario
from timing_steps import decode

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from hwprofiles.catalogue import local_backends
from simulator.running.build import build_replica
from simulator.running.run import simulate


def scenario(chip="strix-halo", framework="llama.cpp", backend=None):
    engine = {"framework": framework, "max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 2048}
    engine |= {"backend": backend}
    return plain_scenario("llama-2-7b", chip, 128, 16, 8, weights_dtype="q4_0", engine=engine)


def tpot(backend):
    run = simulate(scenario(backend=backend))
    return float((run.requests.finished_s - run.requests.first_token_s).mean())


def test_rows_of_rocm_cost_less_than_those_of_vulkan():
    rocm, between, vulkan = (tpot(backend) for backend in ("rocm", None, "vulkan"))
    assert rocm < 0.9 * vulkan, "measured: 26 and 33 to 44 ms for eight rows"
    assert rocm < between < 1.05 * vulkan


def test_a_family_without_a_back_end_is_that_of_the_card():
    plain, vulkan = (KernelLibrary("strix-halo", name) for name in ("llama.cpp", "llama.cpp-vulkan"))
    assert vulkan.parameters("moe", "q4_0") == plain.parameters("moe", "q4_0")
    assert vulkan.parameters("gemm", "q8_0").few_rows.row == plain.parameters("gemm", "q8_0").few_rows.row


@pytest.mark.parametrize(
    ("chip", "framework"), [("rtx-4090", "llama.cpp"), ("rx-9070", "llama.cpp"), ("mi300x", "vllm")]
)
def test_a_back_end_that_changes_nothing_is_refused(chip, framework):
    assert framework == "vllm" or not local_backends(load_chip(chip))
    with pytest.raises(ForerunError, match=r"engine\.backend: only llama\.cpp on Radeons"):
        build_replica(scenario(chip, framework, "vulkan").with_values({"weights_dtype": "bf16"}))


@pytest.mark.parametrize(("model", "measured_ms"), [("qwen3.6-35b-a3b", 40.7), ("qwen3.6-27b", 91.7)])
def test_four_bit_experts_are_slow_under_vllm_on_strix_halo(model, measured_ms):
    """vLLM 0.26 with AWQ checkpoints: experts of 3 B active weights take half as long as a dense 27 B."""
    engine = {"framework": "vllm", "release": "0.26.0", "max_num_seqs": 16, "gpu_memory_utilization": 0.6}
    timer = build_replica(plain_scenario(model, "strix-halo", weights_dtype="int4", engine=engine), seed=0).main.timer
    step = decode(1, 400, windows=timer.windows)
    assert 1e3 * timer.seconds(step) == pytest.approx(measured_ms, rel=0.15)
