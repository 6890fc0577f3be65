"""The shipped CPU measurement lies within its machine's limits; ``tests/docs/test_docs_code.py`` fits physics to it."""

import pytest

from hwprofiles import KernelLibrary, load_chip
from simulator.replay.predict import predict_table
from simulator.replay.speed_of_light import impossible_rows
from traces.kernels import read_kernels


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
