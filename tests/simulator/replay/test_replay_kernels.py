"""Replay: every row is predicted, scored or accounted for, and what cannot have been measured is refused."""

import json
import re
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from made_kernels import attention_rows, gemm_rows, measured, rows_of
from refused import refused

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from simulator.replay import Split, exceeded, parse_limit, parse_split, predict_table, replay_kernels, training_rows
from simulator.replay.replay_tables import cold_words
from traces.kernels import concatenate, make_table, words

LIBRARY = KernelLibrary("h100-sxm", "sglang")
PHYSICS = KernelLibrary("h100-sxm", "sglang", corrected=False)
"""What made kernels were measured by (``made_kernels.measured``)."""


def scaled(table, factor):
    return replace(table, measured_s=table.measured_s * factor)


def test_scores_of_known_errors(kernels):
    exact = measured(kernels, "h100-sxm", "sglang")
    report = replay_kernels(scaled(exact, 1.25), PHYSICS)
    assert report.overall.n == 700
    assert report.overall.mape == pytest.approx(20.0)
    assert report.overall.bias == pytest.approx(-20.0)
    assert report.overall.median_ape == pytest.approx(20.0)
    assert replay_kernels(exact, PHYSICS).overall.mape == pytest.approx(0.0, abs=1e-9)


def test_groups_partition_the_rows(kernels):
    report = replay_kernels(kernels, LIBRARY)
    whole = [group for group in report.groups if group.regime == "all"]
    parts = [group for group in report.groups if group.regime != "all"]
    assert sum(group.n for group in whole) == sum(group.n for group in parts) == report.overall.n == len(kernels)
    assert {group.op for group in whole} == {"gemm", "attention_decode"}
    assert {group.regime for group in parts} <= {"latency", "memory", "compute"}


def test_a_row_is_predicted_as_forerun_predict_does(forerun):
    shape = {"batch": 8, "q_len": 4, "kv_len": 3000, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "window": 500}
    texts = [f"{name}={value}" for name, value in shape.items()]
    command = ["predict", "--chip", "h100-sxm", "--library", "sglang", "attention_decode", *texts, "--json", "-"]
    seconds = forerun(*command).document["seconds"]
    table = rows_of("attention_decode", shape, dtype="bf16", kv_dtype="bf16")
    assert predict_table(table, LIBRARY).seconds[0] == pytest.approx(seconds, rel=1e-9)


def test_a_mixed_batch_costs_less_than_its_two_kernels_and_more_than_each():
    prompt = {"batch": 1, "q_len": 512, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    decode = prompt | {"batch": 32, "q_len": 1, "kv_len": 2048}
    mixed = prompt | {"decode_batch": 32, "decode_kv_len": 2048}
    ops = {"attention_mixed": mixed, "attention_prefill": prompt, "attention_decode": decode}
    both, first, second = (
        predict_table(rows_of(op, sizes, dtype="bf16", kv_dtype="bf16"), LIBRARY).seconds[0]
        for op, sizes in ops.items()
    )
    assert max(first, second) < both < first + second


MOE = {"num_experts": 8, "experts_per_token": 2, "hidden": 4096, "intermediate": 14336}


@pytest.mark.parametrize(
    ("op", "sizes", "requested"),
    [
        ("moe", MOE | {"tokens": 64}, LIBRARY.moe(**MOE, tokens=64)),
        (
            "all_reduce",
            {"message_bytes": 1 << 24, "world_size": 8},
            LIBRARY.collective("all_reduce", 1 << 24, 8, LIBRARY.chip.links.scale_up),
        ),
        ("elementwise", {"bytes_moved": 1 << 24}, LIBRARY.elementwise(1 << 24)),
    ],
)
def test_every_operation_is_predicted_as_the_library_does(op, sizes, requested):
    prediction = predict_table(rows_of(op, sizes, dtype="bf16" if op == "moe" else ""), LIBRARY)
    assert prediction.seconds[0] == pytest.approx(requested.seconds, rel=1e-9)


def test_experts_that_were_really_touched_cost_more_when_they_are_more():
    sizes = {"tokens": 8, "num_experts": 128, "experts_per_token": 8, "hidden": 2048, "intermediate": 768}
    few, many = predict_table(rows_of("moe", sizes | {"active_experts": [8, 64]}, dtype="bf16"), LIBRARY).seconds
    assert many > 1.5 * few


def test_kernels_known_by_name_only_are_counted_by_kind():
    names = make_table(np.ones(2), "other", {}, {"name": "ncclAllReduce"}, "made", "forerun")
    gemms = measured(gemm_rows(5, np.random.default_rng(0)), "h100-sxm", "sglang")
    report = replay_kernels(concatenate([names, gemms]), LIBRARY)
    assert report.overall.n == 5
    assert report.skipped == {"collective kernel without a shape": 2}


SQUARE = {"m": 4096, "n": 4096, "k": 4096}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (rows_of("gemm", SQUARE, dtype="bfp8"), r"no row left to score \(1 h100-sxm cannot compute in bfp8\)"),
        (
            concatenate([rows_of("gemm", SQUARE, dtype="bf16", device=device) for device in ("a100", "h100")]),
            r"a100, h100.*--device",
        ),
    ],
)
def test_what_the_chip_cannot_have_measured_is_refused(table, message):
    with pytest.raises(ForerunError, match=message):
        replay_kernels(table, LIBRARY)


def test_impossible_rows_are_left_out_with_their_whole_slice(kernels):
    gemms = kernels.where(kernels.word("op").equals("gemm"))
    fast = gemms.measured_s.copy()
    compute = np.flatnonzero(gemms.size("m") >= 4096)
    fast[compute[:3]] /= 4
    report = replay_kernels(replace(gemms, measured_s=fast), LIBRARY)
    assert report.skipped == {"faster than the chip's datasheet by more than 10 %": 3}
    fast[compute[:40]] /= 4
    with pytest.raises(ForerunError, match="no row left"):
        replay_kernels(replace(gemms, measured_s=fast), LIBRARY)


@pytest.mark.parametrize(
    ("factor", "message"),
    [(1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")]
    + [(1 / factor, "faster than the chip's datasheet") for factor in (1e3, 1e6, 1e9)],
)
def test_a_time_in_another_unit_is_refused_in_one_line(kernels, factor, message):
    with refused(message):
        replay_kernels(scaled(kernels, factor), LIBRARY)


def test_another_device_than_the_chip_is_named_in_the_first_line():
    sizes = {"m": [512, 1024], "n": [4096, 4096], "k": [4096, 4096]}
    for device, named in (("NVIDIA L40S", True), ("wormhole_b0", True), ("NVIDIA H100 80GB HBM3", False), ("", False)):
        rows = measured(rows_of("gemm", sizes, dtype="bf16", device=device), "h100-sxm", "sglang")
        title = replay_kernels(rows, PHYSICS).title
        assert title.endswith(f": measured on {device}, another device") == named, device


def test_the_split_is_by_shape_and_the_same_for_every_file_and_library(kernels):
    chosen = training_rows(kernels, Split(0.7, 1))
    assert 0.6 < chosen.mean() < 0.8
    order = np.random.default_rng(0).permutation(len(kernels))
    assert (training_rows(kernels.where(order), Split(0.7, 1)) == chosen[order]).all()
    assert (training_rows(kernels, Split(0.7, 2)) != chosen).any()
    shapes = {}
    for row, seen in zip(map(kernels.row, range(len(kernels))), chosen, strict=True):
        assert shapes.setdefault(str(row), seen) == seen


def test_only_held_out_rows_are_scored(kernels):
    report = replay_kernels(kernels, LIBRARY, Split(0.7, 1))
    seen = int(training_rows(kernels, Split(0.7, 1)).sum())
    assert report.overall.n == len(kernels) - seen
    assert report.skipped["part of the training split"] == seen


@pytest.mark.parametrize("text", ["train=2", "train=x", "rain=0.5", "train=0.5,train=0.6", "0.7", "train=0.7,seed=-1"])
def test_a_bad_split_is_refused(text):
    with pytest.raises(ForerunError, match="--split"):
        parse_split(text)
    assert parse_split("seed=3") == Split(0.7, 3)


def test_conditions_choose_rows(kernels):
    report = replay_kernels(kernels, LIBRARY, where=["n>=4096", "batch<=8", "op=gemm"])
    assert (report.rows.size("n") >= 4096).all()
    assert sum(report.skipped.values()) + report.overall.n == len(kernels)
    for bad in ("n>4", "colour=red", "n=red", "op>=3"):
        with pytest.raises(ForerunError, match="--where"):
            replay_kernels(kernels, LIBRARY, where=[bad])


def test_limits_are_broken_by_name(kernels):
    report = replay_kernels(scaled(kernels, 1.25), LIBRARY)
    assert exceeded([parse_limit("mape=5"), parse_limit("bias=50")], report.gated)[0].startswith("overall: mape")
    assert len(exceeded([parse_limit("gemm.mape=5")], report.gated)) == 1
    with pytest.raises(ForerunError, match="did you mean 'mape'"):
        parse_limit("map=3")
    with pytest.raises(ForerunError, match="no 'moe' rows"):
        exceeded([parse_limit("moe.mape=5")], report.gated)


def test_what_a_trace_does_not_say_of_its_cache_is_stated(kernels):
    decodes = int(kernels.word("op").equals("attention_decode").sum())
    silent = {name: column for name, column in kernels.words.items() if name != "cache"}
    unknown, warm = (
        replay_kernels(replace(kernels, words=texts), LIBRARY).document
        for texts in (silent, silent | {"cache": words(["warm"] * len(kernels))})
    )
    assert unknown["cache"] == {"attention_decode": {"unknown": decodes}}
    assert warm["cache"] == {"attention_decode": {"warm": decodes}}
    assert cold_words(unknown).startswith("Priced cold: ")
    assert not cold_words(warm)


def test_the_document_is_what_the_contract_says(kernels):
    document = json.loads(json.dumps(replay_kernels(kernels, LIBRARY).document, allow_nan=False))
    keys = {"op", "regime", "dtype", "n", "mape", "median_ape", "p90_ape", "bias", "coverage90"}
    assert all(set(group) == keys for group in [*document["groups"], document["overall"]])
    assert {"measured_s", "predicted_s", "ape", "basis"} <= set(document["worst"][0])
    errors = [row["ape"] for row in document["worst"]]
    assert errors == sorted(errors, reverse=True)
    assert document["basis"] in ("datasheet", "calibrated", "extrapolated")


def rows_and_peak_kb():
    generator = np.random.default_rng(0)
    table = concatenate([gemm_rows(200_000, generator), attention_rows(100_000, generator)])
    report = replay_kernels(measured(table, "h100-sxm", "sglang"), KernelLibrary("h100-sxm", "sglang"))
    status = Path("/proc/self/status").read_text()  # getrusage counts what its parent had when it started this process
    return report.overall.n, int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])


def test_three_hundred_thousand_rows_are_priced_in_no_more_than_two_gigabytes():
    with ProcessPoolExecutor(1, get_context("spawn")) as process:  # the peak of this process is that of all its tests
        rows, peak_kb = process.submit(rows_and_peak_kb).result()
    assert rows == 300_000
    assert peak_kb < 2e6


def test_a_chip_without_a_link_cannot_reduce():
    chip = load_chip("h100-sxm")
    single = chip.model_copy(update={"links": chip.links.model_copy(update={"scale_up": None})})
    with pytest.raises(ForerunError, match="chip 'h100-sxm' has no scale-up link"):
        predict_table(rows_of("all_reduce", {"message_bytes": 1 << 24, "world_size": 8}), KernelLibrary(single))


@pytest.mark.parametrize(
    ("op", "sizes", "reason"),
    [
        (
            "attention_decode",
            {"batch": 4, "q_len": 1, "kv_len": 512, "num_heads": 32, "num_kv_heads": [8, 7], "head_dim": 128},
            "query heads are no multiple of the KV heads",
        ),
        (
            "moe",
            MOE | {"tokens": 64, "num_experts": [8, 2], "experts_per_token": [2, 8]},
            "more experts per token than experts",
        ),
        ("all_reduce", {"message_bytes": 1 << 24, "world_size": [8, 1]}, "collective of one chip"),
    ],
)
def test_rows_that_no_kernel_can_have_run_are_counted_and_left(op, sizes, reason):
    table = rows_of(op, sizes, 1e-2, dtype="" if op == "all_reduce" else "bf16")
    prediction = predict_table(table, LIBRARY)
    assert prediction.refused == {reason: 1}
    assert np.isfinite(prediction.seconds).tolist() == [True, False]
    single = predict_table(table.where(np.array([True, False])), LIBRARY)
    assert prediction.seconds[0] == pytest.approx(single.seconds[0])


def test_uneven_routing_has_no_lower_bound_of_bytes():
    rows = rows_of("moe", MOE | {"tokens": [64, 64]}, dtype="bf16", routing=words(["balanced", "power_law_1.2"]))
    balanced, uneven = predict_table(rows, LIBRARY).bytes
    assert balanced > 0
    assert uneven == 0


def test_kernels_without_shapes_are_listed_by_time(tmp_path, forerun):
    """Sums of Nsight Systems behind its preamble: nothing is scored, and no option that scores is taken."""
    path = tmp_path / "sums.csv"
    path.write_text(
        "Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...\nTotal Time (ns),Instances,Name\n"
        "1000000,4,ncclDevKernel_AllReduce\n3000000,2,nvjet_gemm\n"
    )
    command = ("replay kernels", path, "--chip", "h100-sxm")
    rows = forerun(*command, "--json", "-").document["kernels"]
    assert [(row["name"], row["kind"], row["calls"]) for row in rows] == [
        ("nvjet_gemm", "GEMM", 2), ("ncclDevKernel_AllReduce", "collective", 4),
    ]  # fmt: skip
    assert [row["share"] for row in rows] == [0.75, 0.25]
    assert [row["total_ms"] for row in rows] == [3.0, 1.0]
    assert "nothing is scored" in forerun(*command).out
    refused = forerun(*command, "--fail-above", "mape=5")
    assert refused.code == 2
    assert "no kernel of" in refused.err
