"""The shipped CPU measurement: within its machine's limits, and explained by physics fitted on 70 % of its shapes."""

import pytest

from hwprofiles import KernelLibrary, load_chip
from simulator.replay import parse_split
from simulator.replay.calibrate import calibrate
from simulator.replay.light_speed import impossible_rows
from simulator.replay.predict import predict_table
from traces.kernels import read_kernels

HELD_OUT_MAPE = {
    ("gemm", "bf16"): 25.0,
    ("gemm", "fp32"): 30.0,
    ("attention_prefill", "bf16"): 15.0,
    ("attention_prefill", "fp32"): 15.0,
    ("attention_decode", "bf16"): 15.0,
    ("attention_decode", "fp32"): 10.0,
    ("elementwise", "any"): 50.0,
    ("elementwise", "any@copy"): 15.0,
}
"""Percent: about twice what was seen. A layer norm of 16 MB and more waits for fresh pages of its result."""


@pytest.fixture(scope="module")
def trace(project_root):
    return read_kernels(project_root / "traces" / "samples" / "kernels-cpu.csv")


@pytest.fixture(scope="module")
def machine(project_root):
    return load_chip(str(project_root / "traces" / "samples" / "kernels-cpu.machine.yaml"))


def test_the_trace_says_where_it_comes_from(trace):
    assert len(trace) > 250
    assert all("torch 2.13.0" in name and "1 thread" in name for name in trace.word("source").names)
    assert set(trace.word("cache").names) == {"cold", "warm"}
    assert (trace.count >= 5).all()


def test_no_row_beats_the_limits_of_its_machine(trace, machine):
    _, reasons = impossible_rows(trace, predict_table(trace, KernelLibrary(machine)), machine)
    assert reasons == {}


def test_cold_decode_is_slower_than_warm(trace):
    """The same shapes with K and V in the cache take no longer, on the whole."""
    decode = trace.where(trace.word("op").equals("attention_decode") & (trace.size("q_len") == 1))
    times = {}
    for index in range(len(decode)):
        row = decode.row(index)
        cache = row.pop("cache")
        times.setdefault(tuple(sorted(row.items())), {})[cache] = decode.measured_s[index]
    pairs = [pair["cold"] / pair["warm"] for pair in times.values() if len(pair) == 2]
    assert len(pairs) > 40
    assert sum(ratio > 1.0 for ratio in pairs) > 0.7 * len(pairs)


def test_physics_fitted_on_some_shapes_explains_the_others(trace, machine):
    found = calibrate(trace, machine, split=parse_split("train=0.7,seed=1"), residual=False)
    errors = {(one.family, one.dtype): one.held_out_mape for one in found.fits}
    assert set(errors) == set(HELD_OUT_MAPE)
    for family, limit in HELD_OUT_MAPE.items():
        assert errors[family] < limit, family
    decode = [one.coverage90 for one in found.fits if one.family == "attention_decode"]
    assert all(80 <= share <= 100 for share in decode)
