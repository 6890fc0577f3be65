"""Replay: every row is predicted, scored or accounted for, and what cannot have been measured is refused."""

import json

import numpy as np
import pytest
from made_kernels import attention_rows, gemm_rows, measured

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from simulator.cli import main
from simulator.replay import (
    Split,
    exceeded,
    parse_limit,
    parse_split,
    predict_table,
    replay_kernels,
    training_rows,
)
from simulator.replay.replay_tables import cold_words
from traces.kernels import KernelTable, concatenate, make_table, words

LIBRARY = KernelLibrary("h100-sxm", "sglang")
PHYSICS = KernelLibrary("h100-sxm", "sglang", corrected=False)
"""What made kernels were measured by (``made_kernels.measured``)."""


def scaled(table, factor):
    return KernelTable(
        table.sizes, table.words, table.measured_s * factor, table.std_s, table.count, table.source, table.format
    )


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


def test_a_row_is_predicted_as_forerun_predict_does(capsys):
    shape = {"batch": 8, "q_len": 4, "kv_len": 3000, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "window": 500}
    texts = [f"{name}={value}" for name, value in shape.items()]
    command = ["predict", "--chip", "h100-sxm", "--library", "sglang", "attention_decode", *texts, "--json", "-"]
    assert main(command) == 0
    one = json.loads(capsys.readouterr().out)
    columns = {name: np.array([value]) for name, value in shape.items()}
    table = make_table(
        np.array([1e-4]), "attention_decode", columns, {"dtype": "bf16", "kv_dtype": "bf16"}, "made", "forerun"
    )
    assert predict_table(table, LIBRARY).seconds[0] == pytest.approx(one["seconds"], rel=1e-9)


def test_a_mixed_batch_costs_less_than_its_two_kernels_and_more_than_each():
    sizes = {
        "batch": [1], "q_len": [512], "kv_len": [1024], "num_heads": [32], "num_kv_heads": [8], "head_dim": [128],
        "decode_batch": [32], "decode_kv_len": [2048],
    }  # fmt: skip
    columns = {name: np.array(values) for name, values in sizes.items()}
    texts = {"dtype": "bf16", "kv_dtype": "bf16"}
    mixed = make_table(np.ones(1), "attention_mixed", columns, texts, "made", "forerun")
    prefill = make_table(np.ones(1), "attention_prefill", columns, texts, "made", "forerun")
    decode_columns = columns | {"batch": np.array([32]), "q_len": np.array([1]), "kv_len": np.array([2048])}
    decode = make_table(np.ones(1), "attention_decode", decode_columns, texts, "made", "forerun")
    both, first, second = (predict_table(table, LIBRARY).seconds[0] for table in (mixed, prefill, decode))
    assert max(first, second) < both < first + second


@pytest.mark.parametrize(
    ("op", "sizes", "dtype", "requested"),
    [
        (
            "moe",
            {"tokens": 64, "num_experts": 8, "experts_per_token": 2, "hidden": 4096, "intermediate": 14336},
            "bf16",
            lambda sizes: LIBRARY.moe(**sizes),
        ),
        (
            "all_reduce",
            {"message_bytes": 1 << 24, "world_size": 8},
            "",
            lambda sizes: LIBRARY.collective("all_reduce", sizes["message_bytes"], 8, LIBRARY.chip.links.scale_up),
        ),
        ("elementwise", {"bytes_moved": 1 << 24}, "", lambda sizes: LIBRARY.elementwise(sizes["bytes_moved"])),
    ],
)
def test_every_operation_is_predicted_as_the_library_does(op, sizes, dtype, requested):
    columns = {name: np.array([value]) for name, value in sizes.items()}
    prediction = predict_table(make_table(np.ones(1), op, columns, {"dtype": dtype}, "made", "forerun"), LIBRARY)
    assert prediction.seconds[0] == pytest.approx(requested(sizes).seconds, rel=1e-9)


def test_experts_that_were_really_touched_cost_more_when_they_are_more():
    sizes = {"tokens": 8, "num_experts": 128, "experts_per_token": 8, "hidden": 2048, "intermediate": 768}
    columns = {name: np.array([value] * 2) for name, value in sizes.items()} | {"active_experts": np.array([8, 64])}
    few, many = predict_table(
        make_table(np.ones(2), "moe", columns, {"dtype": "bf16"}, "made", "forerun"), LIBRARY
    ).seconds
    assert many > 1.5 * few


def test_kernels_known_by_name_only_are_counted_by_kind():
    names = make_table(np.ones(2), "other", {}, {"name": "ncclAllReduce"}, "made", "forerun")
    report = replay_kernels(
        concatenate([names, measured(gemm_rows(5, np.random.default_rng(0)), "h100-sxm", "sglang")]), LIBRARY
    )
    assert report.overall.n == 5
    assert report.skipped == {"collective kernel without a shape": 2}


def test_formats_the_chip_cannot_compute_in_are_counted():
    table = make_table(
        np.ones(1), "gemm", {name: np.array([4096]) for name in "mnk"}, {"dtype": "bfp8"}, "made", "forerun"
    )
    with pytest.raises(ForerunError, match=r"no row left to score \(1 h100-sxm cannot compute in bfp8\)"):
        replay_kernels(table, LIBRARY)


def test_impossible_rows_are_left_out_with_their_whole_slice(kernels):
    gemms = kernels.where(kernels.word("op").equals("gemm"))
    fast = gemms.measured_s.copy()
    compute = gemms.size("m") >= 4096
    fast[np.flatnonzero(compute)[:3]] /= 4
    table = KernelTable(gemms.sizes, gemms.words, fast, gemms.std_s, gemms.count, "made", "forerun")
    report = replay_kernels(table, LIBRARY)
    assert report.skipped == {"faster than the chip's datasheet by more than 10 %": 3}
    fast[np.flatnonzero(compute)[:40]] /= 4
    with pytest.raises(ForerunError, match="no row left"):
        replay_kernels(
            KernelTable(gemms.sizes, gemms.words, fast, gemms.std_s, gemms.count, "made", "forerun"), LIBRARY
        )


@pytest.mark.parametrize(("factor", "message"), [(1e3, "milliseconds"), (1e6, "microseconds"), (1e9, "nanoseconds")])
def test_a_time_in_another_unit_is_refused_in_one_line(kernels, factor, message):
    with pytest.raises(ForerunError, match=message) as error:
        replay_kernels(scaled(kernels, factor), LIBRARY)
    assert "\n" not in str(error.value)
    with pytest.raises(ForerunError, match="faster than the chip's datasheet"):
        replay_kernels(scaled(kernels, 1 / factor), LIBRARY)


def test_rows_of_several_devices_must_be_distinguished(kernels):
    texts = {"dtype": "bf16"}
    tables = [
        make_table(
            np.ones(1), "gemm", {name: np.array([64]) for name in "mnk"}, texts | {"device": device}, "made", "forerun"
        )
        for device in ("a100", "h100")
    ]
    with pytest.raises(ForerunError, match=r"a100, h100.*--device"):
        replay_kernels(concatenate(tables), LIBRARY)


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
    def document(texts):
        table = KernelTable(
            kernels.sizes, texts, kernels.measured_s, kernels.std_s, kernels.count, kernels.source, kernels.format
        )
        return replay_kernels(table, LIBRARY).document

    decodes = int(kernels.word("op").equals("attention_decode").sum())
    unknown = document({name: column for name, column in kernels.words.items() if name != "cache"})
    warm = document({**kernels.words, "cache": words(["warm"] * len(kernels))})
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


def test_three_hundred_thousand_rows_are_priced_by_groups_in_no_more_than_two_gigabytes(monkeypatch):
    """A row must not cost a call: rows that differ in sizes only are one."""
    import resource

    generator = np.random.default_rng(0)
    table = concatenate([gemm_rows(200_000, generator), attention_rows(100_000, generator)])
    calls = []
    for name in ("gemm", "attention_prefill", "attention_decode"):
        method = getattr(KernelLibrary, name)
        monkeypatch.setattr(KernelLibrary, name, lambda *a, m=method, **k: calls.append(1) or m(*a, **k))
    report = replay_kernels(measured(table, "h100-sxm", "sglang"), LIBRARY)
    assert report.overall.n == 300_000
    assert len(calls) < 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2e6


def test_a_chip_without_a_link_cannot_reduce():
    table = make_table(
        np.ones(1),
        "all_reduce",
        {"message_bytes": np.array([1 << 24]), "world_size": np.array([8])},
        {},
        "made",
        "forerun",
    )
    chip = load_chip("h100-sxm")
    single = chip.model_copy(update={"links": chip.links.model_copy(update={"scale_up": None})})
    with pytest.raises(ForerunError, match="no scale-up link"):
        predict_table(table, KernelLibrary(single))


@pytest.mark.parametrize(
    ("op", "sizes", "reason"),
    [
        (
            "attention_decode",
            {"batch": [4, 4], "q_len": [1, 1], "kv_len": [512, 512], "num_heads": [32, 32], "num_kv_heads": [8, 7],
             "head_dim": [128, 128]},
            "query heads are no multiple of the KV heads",
        ),
        (
            "moe",
            {"tokens": [64, 64], "num_experts": [8, 2], "experts_per_token": [2, 8], "hidden": [4096, 4096],
             "intermediate": [1024, 1024]},
            "more experts per token than experts",
        ),
        ("all_reduce", {"message_bytes": [1 << 24, 1 << 24], "world_size": [8, 1]}, "collective of one chip"),
    ],
)  # fmt: skip
def test_rows_that_no_kernel_can_have_run_are_counted_and_left(op, sizes, reason):
    columns = {name: np.array(values) for name, values in sizes.items()}
    dtype = "" if op == "all_reduce" else "bf16"
    table = make_table(np.full(2, 1e-2), op, columns, {"dtype": dtype}, "made", "forerun")
    prediction = predict_table(table, LIBRARY)
    assert prediction.refused == {reason: 1}
    assert np.isfinite(prediction.seconds).tolist() == [True, False]
    single = predict_table(table.where(np.array([True, False])), LIBRARY)
    assert prediction.seconds[0] == pytest.approx(single.seconds[0])


def test_uneven_routing_has_no_lower_bound_of_bytes():
    sizes = {"tokens": [64] * 2, "num_experts": [8] * 2, "experts_per_token": [2] * 2, "hidden": [4096] * 2,
             "intermediate": [1024] * 2}  # fmt: skip
    columns = {name: np.array(values) for name, values in sizes.items()}
    texts = {"dtype": "bf16", "routing": words(["balanced", "power_law_1.2"])}
    prediction = predict_table(make_table(np.ones(2), "moe", columns, texts, "made", "forerun"), LIBRARY)
    assert prediction.bytes[0] > 0
    assert prediction.bytes[1] == 0
