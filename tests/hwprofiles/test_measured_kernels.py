"""The shipped fits against measured kernels they have not seen (a hash of the shape decides, 20 % were fitted on)."""

import numpy as np
import pyarrow.parquet as parquet
import pytest

from hwprofiles import AttentionShape, KernelLibrary, load_chip
from hwprofiles.formulas import ARRAY
from hwprofiles.kernels.attention import attention_pairs
from hwprofiles.kernels.gemm import gemm_time

CHIPS = {"h100": "h100-sxm", "a100": "a100-sxm-80gb", "h200": "h200-sxm"}
VERSIONS = {
    ("h100", "vllm"): "vllm/0.24.0",
    ("h100", "sglang"): "sglang/0.5.14",
    ("h100", "trtllm"): "trtllm/1.3.0rc20",
    ("a100", "vllm"): "vllm/0.14.0",
    ("a100", "sglang"): "sglang/0.5.10",
    ("a100", "trtllm"): "trtllm/1.0.0",
    ("h200", "vllm"): "vllm/0.24.0",
}
SAMPLE = 20_000


def read(shared_data, gpu, path, columns, **equal):
    """Columns of one table as float arrays (times in seconds), of the rows that equal the given values."""
    table = parquet.read_table(shared_data / "kernels" / "aiconfigurator" / f"{gpu}_sxm" / path).to_pydict()
    keep = np.ones(len(table["latency"]), dtype=bool)
    for name, value in equal.items():
        if name in table:
            keep &= np.array([item == value for item in table[name]])
    rows = {name: np.array(table[name], dtype=float)[keep] for name in columns}
    return {**rows, "measured_s": np.array(table["latency"])[keep] * 1e-3}


def held_out(rows, key):
    """Rows whose shape the fits have not seen, at most ``SAMPLE`` of them."""
    value = np.zeros(len(rows["measured_s"]), dtype=np.uint64)
    for name in key:
        value = value * np.uint64(1000003) + rows[name].astype(np.uint64)
    value = (value * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    chosen = np.flatnonzero(value % np.uint64(100) >= 20)
    if len(chosen) > SAMPLE:
        chosen = np.random.default_rng(0).choice(chosen, SAMPLE, replace=False)
    return {name: column[chosen] for name, column in rows.items()}


def mape(predicted, measured):
    return 100 * float(np.mean(np.abs(predicted / measured - 1)))


def gemm_rows(shared_data, gpu, library, dtype):
    path = f"gemm/{VERSIONS[gpu, library]}/gemm_perf.parquet"
    rows = read(shared_data, gpu, path, ("m", "n", "k"), gemm_dtype=dtype)
    large = (rows["n"] >= 1024) & (rows["k"] >= 1024)
    return held_out({name: column[large] for name, column in rows.items()}, ("m", "n", "k"))


@pytest.mark.parametrize(
    ("gpu", "rows_of", "library", "limit"),
    [
        ("h100", "vllm", "vllm", 7.0),
        ("h100", "sglang", "sglang", 7.0),
        ("h100", "trtllm", "trtllm", 7.0),
        ("h100", "vllm", "generic", 7.5),
        ("a100", "vllm", "vllm", 8.0),
        ("a100", "sglang", "sglang", 8.0),
        ("a100", "trtllm", "trtllm", 8.0),
        ("a100", "sglang", "generic", 8.0),
        ("h200", "vllm", "vllm", 7.5),
    ],
)
def test_gemm_bf16(shared_data, gpu, rows_of, library, limit):
    rows = gemm_rows(shared_data, gpu, rows_of, "bfloat16")
    time = KernelLibrary(CHIPS[gpu], library).gemm(rows["m"], rows["n"], rows["k"])
    assert mape(time.seconds, rows["measured_s"]) <= limit


def test_gemm_fp8(shared_data):
    rows = gemm_rows(shared_data, "h100", "trtllm", "fp8")
    time = KernelLibrary("h100-sxm", "trtllm").gemm(rows["m"], rows["n"], rows["k"], "fp8")
    assert mape(time.seconds, rows["measured_s"]) <= 7.0


def test_gemm_fitted_on_the_a100_carries_over_to_the_h100(shared_data):
    """Efficiencies are dimensionless and times count cycles, so another chip's limits are all that changes."""
    fitted = KernelLibrary("a100-sxm-80gb").parameters("gemm").model_copy(update={"reference_clock_hz": 1.41e9})
    h100 = load_chip("h100-sxm")
    parameters = fitted.at_clock(h100.compute.clock_hz)
    limits = KernelLibrary(h100).limits("bf16")
    for library in ("vllm", "sglang", "trtllm"):
        rows = gemm_rows(shared_data, "h100", library, "bfloat16")
        time = gemm_time(ARRAY, limits, parameters, rows["m"], rows["n"], rows["k"], 2.0, 2.0, 2.0)
        assert mape(time.seconds, rows["measured_s"]) <= 12.0


def by_heads(rows):
    """Split rows into groups of equal head counts."""
    heads = rows["num_heads"] * 1000 + rows["num_key_value_heads"]
    for value in np.unique(heads):
        yield int(value // 1000), int(value % 1000), {name: column[heads == value] for name, column in rows.items()}


def attention_rows(shared_data, gpu, library, table, length):
    rows = read(
        shared_data,
        gpu,
        f"attention/{VERSIONS[gpu, library]}/{table}_attention_perf.parquet",
        ("batch_size", "num_heads", "num_key_value_heads", "head_dim", length),
        kv_cache_dtype="bfloat16",
        attn_dtype="bfloat16",
        window_size=0,
        head_dim=128,
    )
    rows["length"] = rows[length] + (1 if length == "step" else 0)
    return held_out(rows, ("batch_size", "num_heads", "num_key_value_heads", "length"))


@pytest.mark.parametrize(
    ("gpu", "library", "limit"),
    [
        ("h100", "vllm", 6.0),
        ("h100", "sglang", 4.0),
        ("a100", "vllm", 10.0),
        ("a100", "sglang", 10.0),
        ("h200", "vllm", 6.0),
    ],
)
def test_decode_attention(shared_data, gpu, library, limit):
    rows = attention_rows(shared_data, gpu, library, "generation", "step")
    kernels = KernelLibrary(CHIPS[gpu], library)
    errors = []
    for heads, kv_heads, some in by_heads(rows):
        if heads > 32 * kv_heads:
            continue
        shape = AttentionShape(heads, kv_heads, 128, 128, 512.0 * kv_heads, "bf16")
        seqs = some["batch_size"]
        time = kernels.attention_decode(shape, seqs=seqs, q_len=1, kv_tokens=seqs * some["length"], warm=True)
        errors.append(np.abs(time.seconds / some["measured_s"] - 1))
    assert 100 * np.concatenate(errors).mean() <= limit


@pytest.mark.parametrize(
    ("gpu", "library", "limit"),
    [
        ("h100", "vllm", 8.0),
        ("h100", "sglang", 8.0),
        ("h100", "trtllm", 8.0),
        ("a100", "vllm", 8.5),
        ("a100", "sglang", 8.0),
        ("a100", "trtllm", 8.0),
        ("h200", "vllm", 8.0),
    ],
)
def test_prefill_attention(shared_data, gpu, library, limit):
    rows = attention_rows(shared_data, gpu, library, "context", "isl")
    kernels = KernelLibrary(CHIPS[gpu], library)
    errors = []
    for heads, kv_heads, some in by_heads(rows):
        shape = AttentionShape(heads, kv_heads, 128, 128, 512.0 * kv_heads, "bf16")
        seqs, length = some["batch_size"], some["length"]
        time = kernels.attention_prefill(
            shape,
            seqs=seqs,
            q_tokens=seqs * length,
            pairs=seqs * attention_pairs(ARRAY, length, length),
            kv_tokens=seqs * length,
        )
        errors.append(np.abs(time.seconds / some["measured_s"] - 1))
    assert 100 * np.concatenate(errors).mean() <= limit


@pytest.mark.parametrize(("library", "limit"), [("vllm", 15.0), ("sglang", 21.0), ("trtllm", 17.0)])
def test_moe(shared_data, library, limit):
    table = f"moe/{VERSIONS['h100', library]}/moe_perf.parquet"
    source = {"vllm": "vllm_unquantizedfusedmoe_triton_tritonexperts", "sglang": "sglang_fused_moe_triton"}
    columns = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    rows = held_out(
        read(
            shared_data, "h100", table, columns, moe_dtype="bfloat16", distribution="balanced",
            kernel_source=source.get(library, "moe_torch_flow_cutlass"),
        ),
        columns,
    )  # fmt: skip
    touched = np.minimum(rows["num_experts"], rows["num_tokens"] * rows["topk"])
    time = KernelLibrary("h100-sxm", library).moe(
        tokens=rows["num_tokens"],
        num_experts=rows["num_experts"],
        experts_per_token=rows["topk"],
        hidden=rows["hidden_size"],
        intermediate=rows["inter_size"],
        expert_parallel=rows["moe_ep_size"],
        tensor_parallel=rows["moe_tp_size"],
        active_experts=np.maximum(touched, rows["moe_ep_size"]),
    )
    assert mape(time.seconds, rows["measured_s"]) <= limit


@pytest.mark.parametrize(
    ("gpu", "version", "link"),
    [("h100", "2.29.2", "nvlink4"), ("a100", "2.27.3", "nvlink3"), ("h200", "2.29.2", "nvlink4")],
)
def test_nccl_collectives_of_a_megabyte_and_more(shared_data, gpu, version, link):
    kernels = KernelLibrary(CHIPS[gpu], "nccl")
    errors = []
    for op, name in (
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("all_to_all", "alltoall"),
    ):
        for chips in (2, 4, 8):
            rows = read(
                shared_data, gpu, f"comm/nccl/{version}/nccl_perf.parquet", ("message_size",), nccl_dtype="half",
                op_name=name, num_gpus=chips,
            )  # fmt: skip
            size = 2 * rows["message_size"]
            large = size >= 1 << 20
            time = kernels.collective(op, size[large], chips, link)
            error = np.abs(time.seconds / rows["measured_s"][large] - 1)
            assert error.mean() < 0.11, (op, chips)
            errors.append(error)
    assert np.concatenate(errors).mean() < 0.08


def test_small_all_reduces_of_vllm(shared_data):
    for chips in (2, 4, 8):
        rows = read(
            shared_data, "h100", "comm/vllm/0.24.0/custom_allreduce_perf.parquet", ("message_size",), num_gpus=chips,
            kernel_source="vLLM_custom_graph",
        )  # fmt: skip
        size = 2 * rows["message_size"]
        small = size <= 1 << 23
        time = KernelLibrary("h100-sxm", "vllm").collective("all_reduce", size[small], chips, "nvlink4")
        assert mape(time.seconds, rows["measured_s"][small]) < 10


def test_tenstorrent_collectives(shared_data):
    import csv

    text = (shared_data / "published" / "tenstorrent_ccl.csv").read_text(encoding="utf-8")
    errors = []
    for row in csv.DictReader(text.splitlines()):
        if row["op"] != "all_reduce":
            continue
        link = "tenstorrent-ethernet" if row["topology"] == "ring" else "tenstorrent-warp100"
        time = KernelLibrary("n150").collective("all_reduce", float(row["bytes"]), int(row["n_dev"]), link)
        errors.append(abs(time.seconds / (float(row["time_us"]) * 1e-6) - 1))
    assert len(errors) > 10
    assert np.mean(errors) < 0.25


def test_blis_decode_reaches_the_bandwidth(shared_data):
    """Another benchmark of the same chip: long decodes reach 2.8-3.2 TB/s; neither faster nor much slower is right."""
    import csv

    text = (shared_data / "kernels" / "blis" / "h100_attention_decode.csv").read_text(encoding="utf-8")
    ratios = []
    for row in csv.DictReader(text.splitlines()):
        heads, kv_heads = (int(row[key]) // int(row["tp"]) for key in ("model_heads", "model_kv_heads"))
        batch, length = int(row["batch_size"]), int(row["kv_len"])
        if batch * length < 1 << 20 or not kv_heads:
            continue
        shape = AttentionShape(heads, kv_heads, 128, 128, 512.0 * kv_heads, "bf16")
        time = KernelLibrary("h100-sxm", "vllm").attention_decode(shape, seqs=batch, q_len=1, kv_tokens=batch * length)
        ratios.append(time.seconds / (float(row["latency_us"]) * 1e-6))
    assert len(ratios) > 20
    assert 0.95 < np.median(ratios) < 1.12
