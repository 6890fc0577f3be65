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


NCU = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
BY_NAME = {
    "ncu": f"""==PROF== Connected to process 7
the program's own words, and more
{NCU}
"0","gemm<1, 2>","gpu__time_duration.sum","usecond","1,171.20"
"0","gemm<1, 2>","dram__bytes.sum","Mbyte","92.10"
==PROF== Disconnected from process 7
"1","flash","gpu__time_duration.sum","nsecond","63"
""",
    "ncu, as printed in Europe": f"""{NCU}
"0","gemm<1, 2>","gpu__time_duration.sum","ns","1.171.200"
"1","flash","gpu__time_duration.sum","ns","63,0"
""",
    "ncu, a column a metric": """"ID","Kernel Name","gpu__time_duration.sum"
"","","usecond"
"0","gemm<1, 2>","1,171.20"
"1","flash","0.063"
""",
    "nsys sums": """Generating SQLite file report.sqlite from report.nsys-rep
Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Name
50.0,2342400,2,1171200,"gemm<1, 2>"
20.0,63,1,63,flash
""",
    "nsys sums of older releases": """Time(%),Total Time (us),Calls,Average,Name
50.0,2342.4,2,1171200,"gemm<1, 2>"
20.0,0.063,1,63,flash
""",
    "rocprof sums": """"Name","Calls","TotalDurationNs","AverageNs"
"gemm<1, 2>",2,2342400,1171200
"flash",1,63,63
""",
    "rocprof": """"Kernel_Name","Start_Timestamp","End_Timestamp"
"gemm<1, 2>",1000,1172200
"flash",2000000,2000063
""",
    "vllm-layerwise": """name,cuda_time_us,pct_cuda_time,invocations
"gemm<1, 2>",2342.4,99,2
flash,0.063,1,1
""",
}


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_tables_of_kernels_by_name(tmp_path, name, ends):
    path = tmp_path / "kernels.csv"
    path.write_bytes(b"\xef\xbb\xbf" + BY_NAME[name].replace("\n", ends).encode())
    table = read_kernels(path)
    assert table.format == name.split(",")[0].split(" ")[0]
    assert table.word("name").texts().tolist() == ["gemm<1, 2>", "flash"]
    assert table.measured_s.tolist() == pytest.approx([1.1712e-3, 6.3e-8])
    assert table.count.tolist() == ([2, 1] if "sums" in name or "layerwise" in name else [0, 0])


def test_leaves_of_a_layerwise_profile_are_its_kernels(tmp_path):
    leaves = [
        {"entry": {"name": name, "cuda_time_us": total, "invocations": calls}, "children": []}
        for name, total, calls in (("gemm", 60, 3), ("flash", 40.0, 1))
    ]
    tree = {"entry": {"name": "Model", "cuda_time_us": 100, "invocations": 1}, "children": leaves}
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"context": {}, "prefill": {"metadata": {}, "summary_stats": [tree]}}))
    table = read_kernels(path)
    assert table.format == "vllm-layerwise"
    by_name = dict(zip(table.word("name").texts(), zip(table.measured_s, table.count, strict=True), strict=True))
    assert by_name == {"gemm": (pytest.approx(2e-5), 3), "flash": (pytest.approx(4e-5), 1)}


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


def tt_tensors(tmp_path, rows):
    """An ops_perf file with rows of (code, attributes, tensors), a tensor being (axes, format, memory)."""
    tensors = ("INPUT_0", "INPUT_1", "OUTPUT_0")
    columns = ["OP CODE", "OP TYPE", "ATTRIBUTES", "DEVICE FW DURATION [ns]"]
    columns += [f"{one}_{axis}_PAD[LOGICAL]" for one in tensors for axis in "WZYX"]
    columns += [f"{one}_{field}" for one in tensors for field in ("DATATYPE", "MEMORY")]
    lines = [",".join(columns)]
    for code, attributes, given in rows:
        axes = [f"{size}[{size}]" for one in given for size in one[0]]
        lines.append(
            ",".join([code, "tt_dnn_device", attributes, "5000", *axes, *(text for one in given for text in one[1:])])
        )
    path = tmp_path / "ops_perf_results.csv"
    path.write_text("\n".join(lines) + "\n")
    return read_kernels(path)


def test_tt_metal_rows_have_the_shapes_of_their_tensors(tmp_path):
    """Norms by the bytes in DRAM, collectives by their tensors, causal attention; the rest has none."""
    dram, on_chip, none = ("BFLOAT16", "DEV_0_DRAM_INTERLEAVED"), ("BFLOAT16", "DEV_0_L1_INTERLEAVED"), ("", "")
    hidden, absent = (1, 1, 32, 1024), ((0, 0, 0, 0), *none)
    query, keys = (2, 8, 128, 64), (2, 2, 128, 64)
    table = tt_tensors(tmp_path, [
        ("LayerNormDeviceOperation", "", [(hidden, *dram), ((1, 1, 1, 1024), *dram), (hidden, *on_chip)]),
        ("RMSNorm", "", [(hidden, *on_chip), absent, (hidden, *on_chip)]),
        ("AllGatherAsync", "", [(hidden, *dram), absent, ((1, 1, 32, 8192), *dram)]),
        ("ReduceScatterAsync", "", [((1, 1, 32, 4096), *dram), absent, (hidden, *dram)]),
        ("ScaledDotProductAttention", "is_causal=true", [(query, *dram), (keys, *dram), (query, *dram)]),
        ("ScaledDotProductAttention", "is_causal=false", [(query, *dram), (keys, *dram), (query, *dram)]),
        ("ScaledDotProductAttentionDecode", "is_causal=true", [(query, *dram), (keys, *dram), (query, *dram)]),
        ("Matmul", "", [(hidden, *dram), ((1, 32, 1024, 64), "BFLOAT8_B", dram[1]), (hidden, *dram)]),
    ])  # fmt: skip
    ops = table.word("op").texts().tolist()
    assert ops == [
        "elementwise", "other", "all_gather", "reduce_scatter", "attention_prefill", "other", "other",
    ]  # fmt: skip
    assert table.row(0)["bytes_moved"] == 2 * (32 * 1024 + 1024)
    assert [table.row(row)["message_bytes"] for row in (2, 3)] == [2 * 32 * 8192, 2 * 32 * 4096]
    assert [table.row(row)["world_size"] for row in (2, 3)] == [8, 4]
    sizes = [table.row(4)[name] for name in ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim")]
    assert sizes == [2, 128, 128, 8, 2, 64]
    assert table.skipped == {"batched matrix product, which no prediction covers": 1}
