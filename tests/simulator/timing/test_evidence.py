"""What a prediction rests on: decided per kernel from the ranges of its fit, the same in every module."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_scenario import plain_scenario
from timing_steps import arrays, decode, deployment

from hwprofiles import BASES, KernelLibrary, chip_names, load_chip, predict_kernel, weakest
from simulator.replay import replay_kernels
from simulator.running.metrics import run_document
from simulator.running.run import simulate
from simulator.timing import Costs, Evidence, StepTimer, StepWork, causal_pairs, running
from traces.kernels import read_kernels

CALIBRATED, EXTRAPOLATED, DATASHEET = range(3)


def kernels(timer, work):
    return {kernel.name: kernel for kernel in running(timer.kernels(arrays(work)))}


def prompt(tokens, cached=0):
    pairs, keys = causal_pairs(tokens, cached, None), tokens + cached
    return StepWork(1, tokens, (pairs,), (keys,), 1, (keys + 1,), 0, 1, (0,))


def test_one_order_of_the_labels():
    assert BASES == ("calibrated", "extrapolated", "datasheet")
    assert weakest(["calibrated"]) == "calibrated"
    assert weakest(["extrapolated", "calibrated"]) == "extrapolated"
    assert weakest(["datasheet", "extrapolated", "calibrated"]) == "datasheet"


@pytest.mark.parametrize("chip", chip_names())
def test_no_fit_vouches_for_verify_steps(chip):
    """All decode kernels were measured with one query per sequence."""
    profile = load_chip(chip)
    for library, families in profile.kernels.items():
        for dtype in families.get("attention_decode", {}):
            result = KernelLibrary(profile, library)
            assert result.basis_code("attention_decode", dtype, {"q_len": 4}) != CALIBRATED
            assert result.basis_code("attention_decode", dtype, {"q_len": 1}) == BASES.index(
                result.basis("attention_decode", dtype)
            )


def test_each_kernel_has_its_own_ground():
    timer = StepTimer(deployment("llama-3.1-8b"), 8192)
    plain = kernels(timer, decode(32, 2000))
    assert plain["decode attention"].basis == plain["qkv_proj"].basis == CALIBRATED
    assert plain["LM head"].basis == EXTRAPOLATED, "its vocabulary is beyond the 65,536 columns of the fit"
    assert kernels(timer, decode(32, 2000, query_len=4))["decode attention"].basis == EXTRAPOLATED
    assert kernels(timer, prompt(4096))["prefill attention"].basis == CALIBRATED
    assert kernels(timer, prompt(4096, 896_000))["prefill attention"].basis == EXTRAPOLATED
    narrow = StepTimer(deployment("gpt-oss-20b"), 512)
    assert kernels(narrow, decode(8, 900, windows=narrow.windows))["decode attention"].basis == CALIBRATED, (
        "heads of 64"
    )
    assert kernels(StepTimer(deployment("llama-3.1-8b", "l4"), 512), decode(8, 900))["qkv_proj"].basis == DATASHEET


@pytest.mark.parametrize(("chips", "basis"), [(8, CALIBRATED), (16, EXTRAPOLATED)])
def test_collectives_were_measured_among_eight_chips_at_most(chips, basis):
    timer = StepTimer(deployment("llama-3.1-70b", tensor_parallel=chips), 512)
    assert kernels(timer, decode(8, 900))["layer all-reduce"].basis == basis


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(1, 6), st.integers(10, 200_000))
def test_shares_are_those_of_the_kernels_and_add_up(seqs, query_len, context):
    timer = StepTimer(deployment("llama-3.1-8b"), 2048)
    work = decode(seqs, context, query_len=query_len)
    shares = timer.costs(arrays(work)).evidence
    assert sum(shares) == pytest.approx(1.0)
    total = dict.fromkeys(BASES, 0.0)
    for kernel in running(timer.kernels(arrays(work))):
        total[BASES[kernel.basis]] += kernel.step_s
    whole = sum(total.values())
    for name, seconds in total.items():
        assert getattr(shares, name) == pytest.approx(seconds / whole, abs=1e-9)


def test_a_twentieth_decides():
    firm = Evidence(0.951, 0.049, 0.0)
    assert firm.basis == "calibrated"
    assert Evidence(0.94, 0.06, 0.0).basis == "extrapolated"
    assert Evidence(0.9, 0.04, 0.06).basis == "datasheet"
    assert Evidence.of(Costs.zeros(3)).basis == "calibrated"


VERIFYING = {"speculation": {"method": "ngram", "num_speculative_tokens": 7, "acceptance": {"alpha": 0.6}}}


@pytest.mark.parametrize(
    ("chip", "load", "sections", "basis"),
    [
        ("h100-sxm", (1000, 30, 4), {}, None),
        ("l4", (1000, 30, 4), {}, "datasheet"),
        ("h100-sxm", (120_000, 2, 2), {}, "extrapolated"),
        ("h100-sxm", (20_000, 64, 4), VERIFYING, "extrapolated"),
    ],
)
def test_a_run_says_what_it_rests_on(chip, load, sections, basis):
    document = run_document(simulate(plain_scenario("llama-3.1-8b", chip, *load, **sections)))
    shares = document["evidence"]
    assert set(shares) == set(BASES)
    assert sum(shares.values()) == pytest.approx(1.0)
    weak = max(share for name, share in shares.items() if name != "calibrated")
    assert (document["basis"] == "calibrated") == (weak <= 0.05)
    assert basis in (None, document["basis"])


def test_run_replay_and_predict_agree_on_a_kernel(tmp_path):
    """The same decode kernels, once in a step, once in a trace, once by name."""
    timer = StepTimer(deployment("llama-3.1-8b"), 2048)
    library = timer.deployment.kernels
    rows, expected = ["op,batch,q_len,kv_len,num_heads,num_kv_heads,head_dim,dtype,measured_s"], []
    for seqs, query_len, context in ((8, 1, 1024), (8, 4, 1024), (1, 1, 900_000), (16, 1, 131_072)):
        in_step = kernels(timer, decode(seqs, context, query_len=query_len))["decode attention"]
        values = {"batch": seqs, "q_len": query_len, "kv_len": context, "num_heads": 32, "num_kv_heads": 8}
        named = predict_kernel(library.chip, "attention_decode", values | {"head_dim": 128}, "vllm")
        assert named["basis"] == BASES[in_step.basis]
        expected.append(in_step.basis)
        rows.append(f"attention_decode,{seqs},{query_len},{context},32,8,128,bf16,{named['seconds']}")
    assert expected == [CALIBRATED, EXTRAPOLATED, EXTRAPOLATED, CALIBRATED]
    path = tmp_path / "decode.csv"
    path.write_text("\n".join(rows) + "\n")
    report = replay_kernels(read_kernels(path), library)
    assert report.prediction.basis.tolist() == expected
    assert report.basis == "extrapolated"
    assert np.isfinite(report.prediction.seconds).all()


def test_every_kernel_has_the_interval_of_its_own_shape():
    """A verify step lies outside what decode kernels and their correction were fitted on: its interval is the wider one
    of such rows, and a plain step's that of corrected ones."""
    timer = StepTimer(deployment("llama-3.1-8b"), 2048)
    library = timer.deployment.kernels
    physics, correction = (
        library.parameters("attention_decode", "bf16").fit,
        library.correction("attention_decode", "bf16"),
    )
    cases = (1, correction.intervals, ("latency", "memory", "compute", "all")), (4, physics.intervals, ("outside",))
    for query_len, known, names in cases:
        kernel = kernels(timer, decode(64, 4000, query_len=query_len))["decode attention"]
        low, high = library.interval(*kernel.fitted, kernel.sizes, np.array([kernel.bound]))
        result = (float(low[0]), float(high[0]))
        assert result in [(min(1.0, known[name][0]), max(1.0, known[name][1])) for name in names if name in known]
    assert library.interval("moe", "int8", {}, "memory") == (1.0, 1.0), "no fit for int8 on this chip"
    assert KernelLibrary("l4").interval("gemm", "bf16", {"m": 8}, "memory") == (1.0, 1.0)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 200), st.integers(1, 6), st.integers(100, 20_000))
def test_intervals_hold_one(seqs, query_len, context):
    timer = StepTimer(deployment("llama-3.1-8b"), 2048)
    for kernel in running(timer.kernels(arrays(decode(seqs, context, query_len=query_len)))):
        low, high = timer.deployment.kernels.interval(*kernel.fitted, kernel.sizes, kernel.bound)
        assert 0.0 < np.min(low) <= 1.0 <= np.max(high)
