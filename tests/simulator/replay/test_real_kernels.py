"""The shipped profiles and the calibration against real measurements, on shapes that no fit has seen.

The bounds are those the project promises where it keeps them, and what it reaches (with a margin) where it does not.
"""

import numpy as np
import pytest

from hwprofiles import KernelLibrary, load_chip
from hwprofiles.dtypes import VARIANT
from simulator.replay import Split, replay_kernels
from simulator.replay.calibrate import calibrate
from simulator.replay.fit import core_rows, family_rows
from simulator.replay.kernels import trace_library
from traces.kernels import concatenate, read_kernels
from validation import tables as tables  # lets read_kernels read them

SPLIT = Split(0.7, 1)
CHIPS = {"h100-sxm": "h100_sxm", "a100-sxm-80gb": "a100_sxm"}
GEMM = ("n>=1024", "k>=1024")
ATTENTION = ("head_dim=128", "window=0")


def rows(shared_data, chip, family, library):
    folder = shared_data / "kernels" / "aiconfigurator" / CHIPS[chip]
    name = {"gemm": "gemm", "attention_prefill": "context_attention", "attention_decode": "generation_attention"}.get(
        family
    )
    if name is None:
        return concatenate([read_kernels(path) for path in sorted((folder / "comm" / "nccl").rglob("*.parquet"))])
    place = folder / ("gemm" if family == "gemm" else "attention") / library
    return concatenate([read_kernels(path) for path in sorted(place.rglob(f"{name}_perf.parquet"))])


@pytest.mark.parametrize(
    ("chip", "family", "library", "dtype", "physics", "corrected"),
    [
        ("h100-sxm", "gemm", "trtllm", "bf16", 7, 4.5),
        ("h100-sxm", "gemm", "vllm", "bf16", 7, 5.5),
        ("h100-sxm", "gemm", "sglang", "bf16", 7, 5),
        ("h100-sxm", "gemm", "trtllm", "fp8", 8, 3),
        ("a100-sxm-80gb", "gemm", "sglang", "bf16", 8, None),
        ("a100-sxm-80gb", "gemm", "vllm", "bf16", 8, None),
        ("a100-sxm-80gb", "gemm", "trtllm", "bf16", 8, None),
        ("h100-sxm", "attention_prefill", "vllm", "bf16", 8, None),
        ("h100-sxm", "attention_prefill", "sglang", "bf16", 8, None),
        ("h100-sxm", "attention_prefill", "trtllm", "bf16", 8, None),
        ("a100-sxm-80gb", "attention_prefill", "sglang", "bf16", 8, None),
        ("a100-sxm-80gb", "attention_prefill", "vllm", "bf16", 8, None),
        ("h100-sxm", "attention_decode", "vllm", "bf16", 6, None),
        ("h100-sxm", "attention_decode", "sglang", "bf16", 6, None),
        ("h100-sxm", "attention_decode", "trtllm", "bf16", 6, None),
        ("a100-sxm-80gb", "attention_decode", "vllm", "bf16", 10, None),
        ("a100-sxm-80gb", "attention_decode", "sglang", "bf16", 10, None),
    ],
)
def test_held_out_shapes(shared_data, chip, family, library, dtype, physics, corrected):
    table = rows(shared_data, chip, family, library)
    where = [f"dtype={dtype}", *(GEMM if family == "gemm" else (*ATTENTION, f"kv_dtype={dtype}"))]
    kernels = KernelLibrary(chip, library, corrected=False)
    plain = replay_kernels(table, kernels, SPLIT, where)
    assert plain.overall.mape <= physics
    assert 85 <= plain.overall.coverage90 <= 95
    assert plain.basis == "calibrated"
    if corrected is None:
        return  # the profile has no correction of these
    better = replay_kernels(table, KernelLibrary(chip, library, corrected=True), SPLIT, where)
    assert better.overall.mape <= corrected
    # Its interval is of all shapes it corrects, the narrow ones among them, so that it is wide for those scored here.
    assert 85 <= better.overall.coverage90 <= 97


@pytest.mark.parametrize(
    ("chip", "version", "phase", "dtype", "physics"),
    [
        ("a100-sxm-80gb", "trtllm/1.0.0", "generation", "bf16", 4),
        ("a100-sxm-80gb", "trtllm/1.0.0", "generation", "fp8", 4),
        ("h100-sxm", "sglang/0.5.14", "generation", "fp8", 4),
        ("h100-sxm", "sglang/0.5.14", "context", "bf16", 8),
        ("h100-sxm", "sglang/0.5.14", "context", "fp8", 8),
    ],
)
def test_mla_of_shapes_held_out(shared_data, chip, version, phase, dtype, physics):
    """Full tiles of 64 rows and keys on an A100; under SGLang on Hopper prompts against the latent, and a cache in 8
    bits that is copied into 16 first."""
    folder = shared_data / "kernels" / "aiconfigurator" / CHIPS[chip]
    table = read_kernels(folder / "mla" / version / f"{phase}_mla_perf.parquet")
    kernels = KernelLibrary(chip, version.partition("/")[0], corrected=False)
    assert replay_kernels(table, kernels, SPLIT, [f"kv_dtype={dtype}"]).overall.mape <= physics


@pytest.mark.parametrize(
    ("family", "dtype"), [(f"attention_{p}", "bf16") for p in ("prefill", "decode")] + [("attention_decode", "fp8")]
)
def test_triton_kernels_of_heads_of_512(shared_data, family, dtype):
    """SGLang serves Gemma's wide heads on Hopper by Triton: 32 queries a tile, and one head as several."""
    table = rows(shared_data, "h100-sxm", family, "sglang")
    kernels = KernelLibrary("h100-sxm", "sglang", corrected=False)
    assert replay_kernels(table, kernels, SPLIT, ["head_dim=512", f"kv_dtype={dtype}"]).overall.mape <= 8


@pytest.mark.parametrize("chip", CHIPS)
def test_large_all_reduces(shared_data, chip):
    report = replay_kernels(
        rows(shared_data, chip, "all_reduce", ""),
        KernelLibrary(chip, "nccl"),
        where=["message_bytes>=1048576", "op=all_reduce"],
    )
    assert report.overall.mape <= 10


@pytest.mark.parametrize(
    ("known", "unseen", "decode"), [("a100-sxm-80gb", "h100-sxm", 9), ("h100-sxm", "a100-sxm-80gb", 15)]
)
def test_a_chip_nobody_measured(shared_data, known, unseen, decode):
    """A core is taken to draw no less than one of the chip it is like (``hwprofiles.choice.core_shares``), lest a chip
    of more cores be slower: an A100's draws less than an H100's, so its decode attention is 14.2 % off (12.7 % with
    equal shares), an H100's 7.7 % (7.9 %)."""
    chip = load_chip(unseen).model_copy(update={"kernels": {}, "like": known})
    for family, bound in (("gemm", 12), ("attention_decode", decode)):
        table = rows(shared_data, unseen, family, "sglang")
        where = [*(GEMM if family == "gemm" else (*ATTENTION, "kv_dtype=bf16")), "dtype=bf16"]
        report = replay_kernels(table, KernelLibrary(chip), where=where)
        assert report.overall.mape <= bound, family
        assert report.basis == "datasheet"


@pytest.mark.parametrize("chip", CHIPS)
def test_twenty_rows_per_family(shared_data, chip):
    errors: dict[str, list[float]] = {"gemm": [], "attention_decode": []}
    plain = (["bf16"], ["bf16", "128"])  # products; attention has a set per head size
    bare = load_chip(chip).model_copy(update={"kernels": {}})
    for family, result in errors.items():
        table = rows(shared_data, chip, family, "sglang")
        (index,) = (result for (_, name), result in family_rows(table).items() if name.split(VARIANT)[:2] in plain)
        table = table.where(index)
        table = table.where(core_rows(family, table))
        for seed in range(2):
            order = np.random.default_rng(seed).permutation(len(table))
            fitted = calibrate(table.where(order[:20]), bare, residual=False).chip
            result.append(replay_kernels(table.where(order[20:2020]), KernelLibrary(fitted)).overall.mape)
    assert np.mean(errors["gemm"]) < 10
    assert np.mean(errors["attention_decode"]) < 14


def test_another_measurers_rows_of_the_a100(shared_data):
    table = read_kernels(shared_data / "kernels" / "vidur" / "gemm_flat.csv.gz", device="a100")
    assert replay_kernels(table, KernelLibrary("a100-sxm-80gb")).overall.mape <= 12


def test_another_measurers_rows_of_the_h100_are_slower_below_a_thousand_tokens(shared_data):
    """Vidur's cuBLAS is of 2023: NVIDIA's own times of the same shapes are off by 11-15 % as a prediction of its."""
    table = read_kernels(shared_data / "kernels" / "vidur" / "gemm_flat.csv.gz", device="h100")
    report = replay_kernels(table, KernelLibrary("h100-sxm", "sglang"))
    assert report.overall.mape <= 16
    assert report.overall.bias < -8
    assert replay_kernels(table, KernelLibrary("h100-sxm", "sglang"), where=["m<=63"]).overall.mape <= 8


def test_a_trace_of_nccl_alone_is_predicted_as_nccl(shared_data):
    """Small all-reduces of eight B200 take 25 us under NCCL, and 7 with an engine's own kernel."""
    table = read_kernels(shared_data / "kernels/aiconfigurator/b200_sxm/comm/nccl/2.29.2/nccl_perf.parquet")
    assert trace_library(table, "generic") == "nccl"
    assert trace_library(table, "vllm") == "vllm"
    report = replay_kernels(table, "b200-sxm")
    assert report.library == "nccl"
    assert report.overall.mape <= 10


def test_kernels_older_than_the_h100_explain_them(shared_data):
    """Without asynchronous copies and clusters, every fitted number as it is, Vidur's rows are within 12 %.

    Since products were fitted anew they are 7.4 % too fast (4.9 % before): today's kernels would be 15 %.
    """
    table = read_kernels(shared_data / "kernels" / "vidur" / "gemm_flat.csv.gz", device="h100")
    assert trace_library(table, "generic") == "portable"
    assert trace_library(table, "vllm") == "vllm"
    report = replay_kernels(table, KernelLibrary("h100-sxm", "portable"))
    assert report.overall.mape <= 12
    assert abs(report.overall.bias) < 8
    assert report.basis == "extrapolated"
    modern = replay_kernels(table, KernelLibrary("h100-sxm"))
    assert abs(report.overall.bias) < 0.55 * abs(modern.overall.bias)
    assert report.overall.mape < 0.75 * modern.overall.mape


def test_tensorrt_llm_serves_wide_groups_and_small_batches_head_by_head(shared_data):
    """Groups of 48 and more, and batches that would not fill the cores, once the rule is known."""
    table = rows(shared_data, "h100-sxm", "attention_decode", "trtllm")
    where = ["dtype=bf16", "kv_dtype=bf16", *ATTENTION]
    report = replay_kernels(table, KernelLibrary("h100-sxm", "trtllm"), SPLIT, where)
    group = report.rows.size("num_heads") // report.rows.size("num_kv_heads")
    error = np.abs(report.prediction.seconds / report.rows.measured_s - 1)
    assert error[group >= 48].mean() < 0.12
    assert error[(group > 1) & (group <= 16)].mean() < 0.06


def test_aliased_key_value_pages_are_detected_by_rule(shared_data):
    path = next(
        (shared_data / "kernels/aiconfigurator/a100_sxm/attention/trtllm").rglob("generation_attention_perf.parquet")
    )
    report = replay_kernels(read_kernels(path), KernelLibrary("a100-sxm-80gb"))
    kept = report.rows.size("num_heads") == report.rows.size("num_kv_heads")
    assert kept.all()
    assert sum(report.skipped.values()) > 2000


@pytest.mark.parametrize(
    ("folder", "chip"), [("RTX4090_Llama-3.1-8B_tp1", "rtx-4090"), ("RTXPRO6000_Llama-3.1-8B_tp1", "rtx-pro-6000")]
)
def test_mixed_batches_and_skewed_lengths(shared_data, folder, chip):
    place = shared_data / "kernels" / "llmservingsim" / folder
    table = concatenate([read_kernels(place / name) for name in ("attention.csv.gz", "skew.csv.gz")])
    bare = load_chip(chip).model_copy(update={"kernels": {}})
    fitted = calibrate(table, bare, residual=False).chip
    report = replay_kernels(table, KernelLibrary(fitted), SPLIT)
    errors = {group.op: group for group in report.groups if group.regime == "all"}
    assert errors["attention_decode"].mape < 8  # a third of the rows has unequal lengths
    assert errors["attention_mixed"].median_ape < 14
    assert errors["attention_prefill"].mape < 8


def test_experts_by_how_many_are_touched(shared_data):
    path = shared_data / "kernels/llmservingsim/RTXPRO6000_Qwen3-30B-A3B-Instruct-2507_tp1/moe.csv.gz"
    table = read_kernels(path)
    bare = load_chip("rtx-pro-6000").model_copy(update={"kernels": {}})
    calibration = calibrate(table, bare, residual=False)
    assert calibration.fits[0].held_out_mape < 10
