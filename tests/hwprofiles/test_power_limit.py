"""A board power limit slows what counts cycles and leaves the memory alone."""

import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from hwprofiles.errors import ProfileError
from hwprofiles.schema import CLOCK_POWER
from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from


def test_compute_pays_for_a_limit_and_memory_does_not():
    whole = load_chip("rtx-5090")
    capped = whole.at_power_limit(400.0)
    ratio = capped.compute.clock_hz / whole.compute.clock_hz
    kept = 0.25 * whole.power.tdp_w
    assert ratio**CLOCK_POWER == pytest.approx((400.0 - kept) / (whole.power.tdp_w - kept))
    assert capped.memory == whole.memory
    assert capped.peak_flops("bf16") == pytest.approx(whole.peak_flops("bf16") * ratio)
    slow, fast = KernelLibrary(capped), KernelLibrary(whole)
    big = slow.gemm(8192, 8192, 8192).seconds / fast.gemm(8192, 8192, 8192).seconds
    one = slow.gemm(1, 28672, 8192).seconds / fast.gemm(1, 28672, 8192).seconds
    assert big == pytest.approx(1 / ratio, rel=0.01)
    assert one < 1.05


@pytest.mark.parametrize(
    ("draws", "clocks", "error"),
    [((290, 388), (1380, 1680), 0.01), ((210, 354), (1290, 1905), 0.01), ((250, 381), (1350, 1710), 0.06)],
)
def test_clocks_fall_as_they_were_read_under_three_workloads(draws, clocks, error):
    """RTX 3090 under llama.cpp: a dense model and a mixture that decode, prompts (club-3090, docs/HARDWARE.md)."""
    whole = load_chip("rtx-3090")
    whole = whole.model_copy(update={"power": whole.power.model_copy(update={"tdp_w": float(max(draws))})})
    ratio = whole.at_power_limit(float(min(draws))).compute.clock_hz / whole.compute.clock_hz
    assert ratio == pytest.approx(clocks[0] / clocks[1], abs=error)


def test_a_fit_vouches_for_no_other_clock():
    capped = load_chip("h100-sxm").at_power_limit(500.0)
    whole = KernelLibrary("h100-sxm", "vllm").parameters("attention_decode")
    assert load_chip("h100-sxm").corrections_file is not None
    assert capped.corrections_file is None
    slow = KernelLibrary(capped, "vllm")
    assert slow.basis("attention_decode") == "datasheet"
    assert slow.parameters("attention_decode").launch_s > whole.launch_s


def test_a_limit_above_the_tdp_speeds_nothing_up():
    whole = load_chip("rtx-4090")
    raised = whole.at_power_limit(500.0)
    assert (raised.compute, raised.kernels) == (whole.compute, whole.kernels)
    assert raised.power.tdp_w == 500.0


def test_a_limit_that_nothing_runs_at_is_refused():
    with pytest.raises(ProfileError, match=r"100 W is too little for rtx-5090: .* about 144 W of its 575 W"):
        load_chip("rtx-5090").at_power_limit(100.0)
    with pytest.raises(ProfileError, match=r"2000 W is more than h100-sxm can be set to: its TDP is 700 W"):
        load_chip("h100-sxm").at_power_limit(2000.0)
    with pytest.raises(ForerunError, match=r"hardware\.power_limit_w: 30 W is too little"):
        run({"power_limit_w": 30})


def run(hardware):
    base = tiny_data()
    data = base | {"hardware": base["hardware"] | hardware}
    return run_document(simulate(scenario_from(data, "capped")))


def test_a_capped_run_takes_longer_and_less_energy():
    whole, capped = run({}), run({"power_limit_w": 0.6 * load_chip(tiny_data()["hardware"]["chip"]).power.tdp_w})
    assert capped["summary"]["mean_e2el_ms"] > whole["summary"]["mean_e2el_ms"]
    assert capped["energy_joules"] < whole["energy_joules"]
