"""One kernel by name: what it returns and how bad requests are refused."""

import json

import pytest

from hwprofiles import AttentionShape, KernelLibrary, ProfileError, operation_columns, operation_names, predict_kernel

ATTENTION = {"batch": 4, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
KEYS = {"op", "chip", "library", "seconds", "bound", "flops", "bytes", "basis", "launch_s", "compute_s", "memory_s"}


def test_gemm_from_command_line_text():
    result = predict_kernel("h100-sxm", "gemm", {"m": "16", "n": "4096", "k": "4096", "dtype": "bf16"})
    assert set(result) >= KEYS
    assert result["flops"] == 2 * 16 * 4096 * 4096
    assert result["seconds"] == KernelLibrary("h100-sxm").gemm(16, 4096, 4096).seconds
    assert result["basis"] == "calibrated"
    assert 12e-6 < result["seconds"] < 20e-6
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("op", operation_names())
def test_every_operation_predicts_valid_json(op):
    values = {
        "m": 8, "n": 1024, "k": 1024, **ATTENTION, "tokens": 64, "num_experts": 8, "experts_per_token": 2,
        "hidden": 1024, "intermediate": 512, "bytes_moved": 1e6, "message_bytes": 1e6, "world_size": 4,
    }  # fmt: skip
    required, _ = operation_columns(op)
    result = predict_kernel("a100-sxm-80gb", op, {key: values[key] for key in required})
    assert set(result) >= KEYS
    assert result["seconds"] > 0
    json.dumps(result, allow_nan=False)


def test_attention_equals_the_library():
    shape = AttentionShape(32, 8, 128, 128, 4096.0, "bf16")
    kernels = KernelLibrary("h100-sxm", "vllm")
    expected = kernels.attention_prefill(shape, seqs=4, q_tokens=4096, pairs=4 * 1024 * 1025 / 2, kv_tokens=4096)
    assert predict_kernel("h100-sxm", "attention_prefill", ATTENTION, "vllm")["seconds"] == expected.seconds
    decode = predict_kernel("h100-sxm", "attention_decode", {**ATTENTION, "q_len": 5, "kv_len": 2000}, "vllm")
    assert decode["seconds"] == kernels.attention_decode(shape, seqs=4, q_len=5, kv_tokens=8000).seconds


def test_window_and_kv_dtype():
    long = {**ATTENTION, "q_len": 1, "kv_len": 100_000}
    full = predict_kernel("h100-sxm", "attention_decode", long)
    window = predict_kernel("h100-sxm", "attention_decode", {**long, "window": 1024})
    assert window["bytes"] < full["bytes"] / 50
    fp8 = predict_kernel("h100-sxm", "attention_decode", {**long, "kv_dtype": "fp8"})
    assert fp8["bytes"] < 0.51 * full["bytes"]


def test_collective_uses_the_chips_link():
    result = predict_kernel("h100-sxm", "all_reduce", {"message_bytes": 1 << 26, "world_size": 8})
    assert result["link"] == "nvlink4"
    assert result["bound"] == "interconnect"
    slow = predict_kernel("h100-sxm", "all_reduce", {"message_bytes": 1 << 26, "world_size": 8, "link": "pcie5-x16"})
    assert slow["seconds"] > 4 * result["seconds"]


@pytest.mark.parametrize(
    ("op", "values", "message"),
    [
        ("gemmm", {}, "no operation 'gemmm'; did you mean 'gemm'"),
        ("gemm", {"m": 1, "n": 2}, "gemm: k missing"),
        ("gemm", {"m": 1, "n": 2, "k": 3, "kk": 4}, "gemm: no key 'kk'"),
        ("gemm", {"m": "many", "n": 2, "k": 3}, "m=many: a number is needed"),
        ("gemm", {"m": 0, "n": 2, "k": 3}, "m=0: must be a number >= 1"),
        ("gemm", {"m": -4, "n": 2, "k": 3}, "m=-4: must be a number >= 1"),
        ("gemm", {"m": "nan", "n": 2, "k": 3}, "m=nan: must be a number >= 1"),
        ("gemm", {"m": "inf", "n": 2, "k": 3}, "m=inf: must be a number >= 1"),
        ("gemm", {"m": 1.5, "n": 2, "k": 3}, "m=1.5: a whole number is needed"),
        ("gemm", {"m": None, "n": 2, "k": 3}, "m=None: a number is needed"),
        ("gemm", {"m": 1, "n": 2, "k": 3, "dtype": "bf61"}, "no dtype 'bf61'; did you mean"),
        ("gemm", {"m": 1, "n": 2, "k": 3, "dtype": "bfp8"}, "h100-sxm: dtype 'bfp8' cannot be computed here"),
        ("attention_decode", {**ATTENTION, "num_kv_heads": 7}, "num_heads=32 is not a multiple of num_kv_heads=7"),
        ("attention_prefill", {**ATTENTION, "kv_len": 10}, "kv_len=10 is below q_len=1024"),
        ("attention_prefill", {**ATTENTION, "window": -1}, "window=-1: must be a number >= 0"),
        ("attention_decode", {**ATTENTION, "warm": "perhaps"}, "warm=perhaps: true or false"),
        ("attention_decode", {**ATTENTION, "cache": "hot"}, "cache: no cache state 'hot'"),
        ("attention_decode", {**ATTENTION, "kv_dtype": "bfp8"}, "dtype 'bfp8' cannot be computed here"),
        (
            "moe",
            {"tokens": 1, "num_experts": 4, "experts_per_token": 8, "hidden": 8, "intermediate": 8},
            "exceeds num_experts",
        ),
        (
            "moe",
            {
                "tokens": 1,
                "num_experts": 8,
                "experts_per_token": 2,
                "hidden": 8,
                "intermediate": 8,
                "expert_parallel": 3,
            },
            "not a multiple of expert_parallel=3",
        ),
        ("all_reduce", {"message_bytes": 1e6, "world_size": 8, "link": "nvlnk4"}, "no link 'nvlnk4'; did you mean"),
        ("all_reduce", {"message_bytes": 1e6, "world_size": 0}, "world_size=0"),
    ],
)
def test_bad_requests_give_one_clear_line(op, values, message):
    with pytest.raises(ProfileError) as caught:
        predict_kernel("h100-sxm", op, values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


MOE = {"tokens": 64, "num_experts": 8, "experts_per_token": 2, "hidden": 1024, "intermediate": 512}


@pytest.mark.parametrize(
    ("op", "values", "old", "new"),
    [
        ("attention_decode", ATTENTION, {"warm": "true"}, {"cache": "warm"}),
        ("moe", MOE, {"gated": False}, {"projections": 2}),
        ("moe", MOE, {"gated": "yes"}, {}),
        ("moe", MOE, {"activated_experts": 3}, {"active_experts": 3}),
        ("moe", MOE, {"distribution": "balanced"}, {"routing": "balanced"}),
    ],
)
def test_earlier_names_of_arguments_are_those_of_the_trace(op, values, old, new):
    with pytest.warns(DeprecationWarning, match=f"{next(iter(old))} is now"):
        before = predict_kernel("h100-sxm", op, values | old)
    assert before == predict_kernel("h100-sxm", op, values | new)


def test_unknown_chip():
    with pytest.raises(ProfileError, match="no chip 'h100'"):
        predict_kernel("h100", "gemm", {"m": 1, "n": 1, "k": 1})
