"""llama.cpp's back ends on Radeons: kernels of their own for few rows, and no option that does nothing."""

import pytest
from plain_scenario import plain_scenario

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
