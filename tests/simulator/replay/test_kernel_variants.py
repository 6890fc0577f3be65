"""Several kernels of a library for one format: fitted separately, looked up by name, and one of them stands for the
format."""

import numpy as np
import pytest
from made_kernels import rows_of

from hwprofiles import KernelLibrary, load_chip
from hwprofiles.choice import find_parameters
from hwprofiles.dtypes import DTYPES, dtype_bytes, format_of
from simulator.replay import replay_kernels
from simulator.replay.calibrate import calibrate
from simulator.replay.fit import family_rows
from traces.kernels.table import concatenate

FAST, SLOW = "fast_experts", "slow_experts"


def rows(kernel, factor, dtype="fp8", count=90):
    """Times of one kernel, ``factor`` times those the H100's own set for the format gives."""
    generator = np.random.default_rng(3)
    sizes = {"tokens": generator.integers(1, 4096, count), "num_experts": 64, "experts_per_token": 8, "hidden": 2048,
             "intermediate": 1024, "tensor_parallel": 1, "expert_parallel": 1}  # fmt: skip
    seconds = factor * KernelLibrary("h100-sxm").moe(**sizes, dtype=dtype).seconds
    return rows_of("moe", sizes, seconds, dtype=dtype, source=kernel)


@pytest.fixture(scope="module")
def both():
    return concatenate([rows(FAST, 1.0), rows(SLOW, 4.0, count=60)])


def test_kernels_are_distinguished_by_the_name_a_trace_gives(both):
    assert set(family_rows(both)) == {("moe", f"fp8@{FAST}"), ("moe", f"fp8@{SLOW}")}


def test_each_is_predicted_by_its_own_fit_and_the_larger_stands_for_the_format(both):
    calibration = calibrate(both, load_chip("h100-sxm"), residual=False)
    assert {one.dtype for one in calibration.fits} == {f"fp8@{FAST}", f"fp8@{SLOW}"}
    assert replay_kernels(both, KernelLibrary(calibration.chip)).overall.mape < 6
    sets = calibration.chip.kernels["generic"]["moe"]
    assert sets["fp8"] == sets[f"fp8@{FAST}"]


def test_a_kernel_alone_is_its_format_and_comes_before_an_earlier_fit_of_it(both):
    first = calibrate(both, load_chip("h100-sxm"), residual=False)
    again = calibrate(rows(SLOW, 2.0), first.chip, residual=False)
    assert f"fp8@{SLOW}" not in again.chip.kernels["generic"]["moe"]
    assert replay_kernels(rows(SLOW, 2.0), KernelLibrary(again.chip)).overall.mape < 6


def test_an_unknown_kernel_has_the_set_of_its_format():
    chip = load_chip("h100-sxm")
    assert find_parameters(chip, "vllm", "moe", "fp8@never_heard_of") == find_parameters(chip, "vllm", "moe", "fp8")


def test_block_scaled_fp8_multiplies_in_fp8_and_reads_its_scales():
    assert format_of("fp8_block@name") == "fp8_block"
    assert DTYPES["fp8"] < dtype_bytes("fp8_block") < 1.001
    chip = load_chip("h100-sxm")
    assert chip.peak_flops("fp8_block") == chip.peak_flops("fp8")
    wide = KernelLibrary("a100-sxm-80gb").gemm(4096, 8192, 8192, "fp8_block").seconds
    assert wide > KernelLibrary(chip).gemm(4096, 8192, 8192, "fp8_block").seconds
