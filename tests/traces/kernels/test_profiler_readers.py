"""Profiler traces: kernels by name with their durations, and shapes where the trace tells them."""

import gzip
import json
import sqlite3

import pytest

from traces import TraceError
from traces.kernels import kernel_class, read_kernels


def event(category, name, **fields):
    arguments = fields.pop("args", {})
    return {"ph": "X", "cat": category, "name": name, "ts": 1.0, "dur": fields.pop("dur", 1.0), "args": arguments}


def chrome(path, events):
    data = {"traceEvents": events, "deviceProperties": [{"name": "Some GPU"}], "metadata": {"env": "secret"}}
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as stream:
        json.dump(data, stream)
    return path


MM = {"External id": 5, "Input Dims": [[888, 2880], [2880, 640]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_matrix_product_is_one_row_with_its_reduction(tmp_path, name):
    events = [
        event("cpu_op", "aten::mm", args=MM),
        event("cuda_runtime", "cudaLaunchKernel", args={"correlation": 9, "External id": 5}),
        event("kernel", "gemm_kernel", dur=7.5, args={"correlation": 9}),
        event("kernel", "splitKreduce_kernel", dur=2.5, args={"External id": 5}),
        event("kernel", "fused_add_rms_norm", dur=3.0, args={"External id": 77}),
    ]
    table = read_kernels(chrome(tmp_path / name, events))
    assert table.format == "torch-profiler"
    assert sorted(table.word("op").texts()) == ["gemm", "other"]
    gemm = table.where(table.word("op").equals("gemm"))
    assert gemm.row(0) | {"m": 888, "n": 640, "k": 2880, "dtype": "bf16", "device": "Some GPU"} == gemm.row(0)
    assert gemm.measured_s[0] == pytest.approx(1e-5)
    assert table.measured_s.sum() == pytest.approx(1.3e-5)


@pytest.mark.parametrize("size", [2**64, 10**16, -(2**70)])
def test_a_size_that_no_kernel_has_leaves_its_row_out(tmp_path, size):
    wild = MM | {"External id": 6, "Input Dims": [[size, 2880], [2880, 640]]}
    events = [
        event("cpu_op", "aten::mm", args=MM),
        event("cpu_op", "aten::mm", args=wild),
        event("kernel", "gemm_kernel", args={"External id": 5}),
        event("kernel", "gemm_kernel", args={"External id": 6}),
    ]
    table = read_kernels(chrome(tmp_path / "trace.json", events))
    assert table.size("m").tolist() == [888]
    assert sum(table.skipped.values()) == 1


def test_flash_attention_is_read_when_its_mask_is_causal(tmp_path):
    dims = [[16, 559, 16, 64], [16, 559, 4, 64], [16, 559, 4, 64]]

    def call(identity, causal):
        concrete = ["", "", "", "", "", "559", "559", "0.", causal, "False"]
        inputs = {"Input Dims": dims, "Input type": ["c10::Half"] * 3, "Concrete Inputs": concrete}
        return [
            event(
                "cpu_op",
                "aten::_flash_attention_forward",
                args={"External id": identity, **inputs},
            ),
            event("kernel", "flash_fwd_kernel", dur=100.0, args={"External id": identity}),
        ]  # fmt: skip

    table = read_kernels(chrome(tmp_path / "t.json", call(1, "True") + call(2, "False")))
    assert table.word("op").texts().tolist().count("other") == 1
    row = table.where(table.word("op").equals("attention_prefill")).row(0)
    assert [row[name] for name in ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "dtype")] == [
        16, 559, 559, 16, 4, 64, "fp16",
    ]  # fmt: skip


NSYS_HEAD = "Start (ns),Duration (ns),CorrId,GrdX,Device,Strm,Name"


def test_nsys_csv_is_detected_behind_its_preamble(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(
        f"NOTICE: existing export\nProcessing [x]\n{NSYS_HEAD}\n"
        '1,2500,3,4,GPU,7,"gemm<1, 2>"\n9,500,3,,GPU,7,[CUDA memcpy]\n'
    )
    table = read_kernels(path)
    assert table.format == "nsys"
    assert table.measured_s.tolist() == pytest.approx([2.5e-6, 5e-7])
    assert table.row(0) == {"op": "other", "name": "gemm<1, 2>"}


def test_nsys_sqlite_joins_names(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE StringIds(id INTEGER, value TEXT)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, demangledName INTEGER)")
        database.execute("INSERT INTO StringIds VALUES (1, 'flash_fwd')")
        database.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?)", [(10, 4010, 1), (0, 1000, 2)])
    database.close()
    table = read_kernels(path)
    assert table.word("name").texts().tolist() == ["flash_fwd", "kernel without a name"]
    assert table.measured_s.tolist() == pytest.approx([4e-6, 1e-6])


def test_a_damaged_sqlite_export_gives_one_clear_line(tmp_path):
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 100)
    with pytest.raises(TraceError, match="not a readable SQLite export"):
        read_kernels(path)


TT_COLUMNS = [
    "OP CODE", "OP TYPE", "GLOBAL CALL COUNT", "DEVICE ID", "MATH FIDELITY", "DEVICE FW DURATION [ns]",
    *(f"INPUT_0_{axis}_PAD[LOGICAL]" for axis in "WZYX"), *(f"INPUT_1_{axis}_PAD[LOGICAL]" for axis in "WZYX"),
    "INPUT_1_DATATYPE",
]  # fmt: skip


def tt_row(code="Matmul", kind="tt_dnn_device", call=1, device=0, time="63093", first="1[1],1[1],32[19],1280[1280]"):
    return f"{code},{kind},{call},{device},HiFi2,{time},{first},1[1],1[1],1280[1280],640[640],BFLOAT8_B"


def test_tt_metal_takes_logical_shapes_and_the_slowest_chip(tmp_path):
    lines = [
        tt_row(time="60000"),
        tt_row(device=1, time="63093"),
        tt_row("Softmax", call=2),
        tt_row("mark", "signpost", 3, time=""),
    ]
    path = tmp_path / "ops_perf_results.csv"
    path.write_text("\n".join([",".join(TT_COLUMNS), *lines]) + "\n")
    table = read_kernels(path)
    assert table.format == "tt-metal"
    gemm = table.where(table.word("op").equals("gemm"))
    assert gemm.row(0) | {"m": 19, "n": 640, "k": 1280, "dtype": "bfp8", "source": "HiFi2"} == gemm.row(0)
    assert gemm.measured_s.tolist() == pytest.approx([63093e-9])
    assert len(table) == 2
    assert sorted(table.skipped.values()) == [1, 1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_RING", "collective"),
        ("sm90_xmma_gemm_bf16bf16", "GEMM"),
        ("fmhaSm100aKernel_QkvE4m3", "attention"),
        ("vllm::fused_add_rms_norm_kernel", "norm"),
        ("zzz", "unknown"),
    ],
)
def test_kernels_are_reported_by_name(name, kind):
    assert kernel_class(name) == kind
