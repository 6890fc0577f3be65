"""The canonical kernel table: what is kept, what is skipped and why, and the file it is written to."""

import numpy as np
import pytest

from traces import TraceError
from traces.kernels import SIZES, concatenate, make_table, read_kernels, write_kernels

GEMM = {"m": np.array([1, 64]), "n": np.array([4096, 4096]), "k": np.array([4096, 8192])}


def gemms(seconds=(1e-5, 2e-5), **texts):
    return make_table(np.array(seconds), "gemm", GEMM, {"dtype": "bf16", **texts}, "a.csv", "forerun")


def test_rows_without_a_positive_time_or_size_are_counted_not_lost():
    sizes = {**GEMM, "m": np.array([0, 64, 8]), "n": np.array([8, 8, 8]), "k": np.array([8, 8, 8])}
    table = make_table(np.array([1e-5, -1.0, 1e-5]), "gemm", sizes, {"dtype": "bf16"}, "a.csv", "forerun")
    assert len(table) == 1
    assert table.skipped == {
        "measured time is not a positive number": 1,
        "gemm: m is not a whole number >= 1": 1,
    }


def test_a_fraction_is_no_size():
    sizes = {name: column.astype(float) for name, column in GEMM.items()} | {"m": np.array([1.5, 64.0])}
    assert len(make_table(np.array([1e-5, 1e-5]), "gemm", sizes, {}, "a.csv", "forerun")) == 1


def test_columns_that_a_table_lacks_count_as_zero_and_empty():
    table = gemms()
    assert table.size("window").tolist() == [0, 0]
    assert table.word("library").texts().tolist() == ["", ""]
    with pytest.raises(KeyError):
        table.size("length")


def test_concatenation_keeps_rows_texts_and_reasons():
    first, second = gemms(library="vllm"), gemms((-1.0, 3e-5), library="sglang")
    both = concatenate([first, second])
    assert both.measured_s.tolist() == [1e-5, 2e-5, 3e-5]
    assert both.word("library").texts().tolist() == ["vllm", "vllm", "sglang"]
    assert both.skipped == second.skipped


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_what_is_written_is_read_back(tmp_path, name):
    attention = make_table(
        np.array([2e-5]),
        "attention_decode",
        {"batch": np.array([4]), "q_len": np.array([3]), "kv_len": np.array([900]), "num_heads": np.array([32]),
         "num_kv_heads": np.array([8]), "head_dim": np.array([128]), "window": np.array([0])},
        {"dtype": "bf16", "kv_dtype": "fp8", "cache": "cold"},
        "b.csv",
        "forerun",
        std_s=np.array([1e-7]),
        count=np.array([20]),
    )  # fmt: skip
    table = concatenate([gemms(), attention])
    back = read_kernels(write_kernels(table, tmp_path / name))
    assert back.measured_s.tolist() == table.measured_s.tolist()
    for column in SIZES:
        assert back.size(column).tolist() == table.size(column).tolist(), column
    assert [back.row(i) for i in range(3)] == [table.row(i) for i in range(3)]
    assert back.count.tolist() == [0, 0, 20]
    assert back.std_s[2] == 1e-7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("op,m,n,k,measured_s\n", "no rows"),
        ("op,m,n,measured_s\ngemm,1,2,0.1\n", "needs the column k"),
        ("op,m,n,k\ngemm,1,2,3\n", "no column of times with its unit"),
        ("op,m,n,k,measured_s\ngem,1,2,3,0.1\n", "did you mean 'gemm'"),
        ("op,m,n,k,measured_days\ngemm,1,2,3,0.1\n", "measured_s"),
        ("op,m,n,k,time_us,time_ms\ngemm,1,2,3,1,1\n", "2 columns of times (time_us, time_ms); keep one"),
        ("op,m,n,k,measured_s,colour\ngemm,1,2,3,0.1,red\n", "unknown column 'colour'"),
        ("op,m,m,n,k,measured_s\ngemm,1,1,1,1,1\n", "column 'm' appears 2 times; keep one"),
        ("op,m,n,k,measured_s\ngemm,1,2,3,fast\n", "column 'measured_s': 'fast' is not a number"),
        ("a,b\n1,2\n", "no kernel trace that is known here"),
        ("op,m,n,k,measured_s\ngemm,1,2\n", "not a readable CSV"),
        ('{"traceEvents": []}', "no GPU kernels"),
        ('{"traceEvents": [', "not valid JSON"),
        ('{"events": []}', "no 'traceEvents'"),
        ('{"traceEvents": [{"cat": "kernel", "name": "k", "dur": "x", "args": {}}]}', "dur 'x'"),
        ('{"traceEvents": [3]}', "is not an event"),
    ],
)
def test_a_bad_file_gives_one_clear_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError) as error:
        read_kernels(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("column", "factor"), [("measured_s", 1.0), ("latency_ms", 1e-3), ("time_us", 1e-6), ("duration_ns", 1e-9)]
)
def test_the_column_of_times_ends_in_its_unit(tmp_path, column, factor):
    path = tmp_path / "trace.csv"
    path.write_text(f"op,m,n,k,{column}\ngemm,1,2,3,25\n")
    assert read_kernels(path).measured_s.tolist() == [25 * factor]


def test_a_truncated_parquet_file_gives_one_clear_line(tmp_path):
    whole = write_kernels(gemms(), tmp_path / "whole.parquet").read_bytes()
    for size in (0, 3, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"cut{size}.parquet"
        path.write_bytes(whole[:size])
        with pytest.raises(TraceError, match=r"empty|not a readable Parquet") as error:
            read_kernels(path)
        assert "\n" not in str(error.value)


def test_missing_file_folder_and_format(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_kernels(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="no kernel trace in this folder"):
        read_kernels(tmp_path)
    with pytest.raises(TraceError, match="did you mean 'vidur'"):
        read_kernels(tmp_path / "none.csv", format="vidura")
