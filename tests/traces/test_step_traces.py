"""Step traces: what a row leaves out, annotations of profilers, a run's own steps, and refusals that name the place."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import TraceError
from traces.steps import COLUMNS, read_steps
from traces.steps.table import step_table


def csv(tmp_path, text):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    return path


def trace(tmp_path, *events, name="trace.json"):
    path = tmp_path / name
    data = json.dumps({"traceEvents": list(events)}).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def on_device(name, us=1500.0):
    return {"ph": "X", "cat": "gpu_user_annotation", "name": name, "ts": 0, "dur": us}


def on_host(name, us=99.0):
    return {"ph": "X", "cat": "user_annotation", "name": name, "ts": 0, "dur": us}


def kernel(start, us):
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": start, "dur": us}


@given(st.integers(1, 8), st.integers(1, 200), st.integers(0, 300))
def test_pairs_that_are_not_reported_are_those_of_equal_causal_chunks(seqs, new, cached):
    """Query i of a chunk sees what is cached and i + 1 new keys: summed by hand."""
    row = {"place": "row", "prefill_seqs": seqs, "prefill_tokens": seqs * new, "measured_s": 1e-3}
    table = step_table([{**row, "prefill_kv_tokens": seqs * (cached + new)}], "made")
    assert table.prefill_pairs.tolist() == [seqs * sum(cached + i + 1 for i in range(new))]
    assert table.sampled_prefills.tolist() == [seqs]
    fresh = step_table([row], "made")
    assert fresh.prefill_kv_tokens.tolist() == [seqs * new]
    assert fresh.prefill_pairs.tolist() == [seqs * new * (new + 1) // 2]


def test_what_a_row_leaves_out_follows_from_the_rest(tmp_path):
    table = read_steps(csv(tmp_path, "prefill_tokens,decode_seqs,decode_kv_tokens,measured_s,scope\n"
                                     "512,,,0.02,device\n,4,800,0.004,\n512,4,800,0.03,step\n"))  # fmt: skip
    assert table.prefill_seqs.tolist() == [1, 0, 1]
    assert table.query_len.tolist() == [1, 1, 1]
    assert table.tokens.tolist() == [512, 4, 516]
    assert table.device.tolist() == [True, False, False]
    assert [place.rsplit(":", 1)[1] for place in table.place] == ["2", "3", "4"]


HEAD = "prefill_tokens,prefill_kv_tokens,decode_seqs,query_len,decode_kv_tokens,measured_s,scope\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("-1,,,,,0.1,", "steps.csv:2: prefill_tokens: '-1' is no count"),
        ("1.5,,,,,0.1,", "prefill_tokens: '1.5' is no count"),
        ("many,,,,,0.1,", "prefill_tokens: 'many' is no number"),
        ("8,4,,,,0.1,", "prefill_kv_tokens: 4 is less than the 8 new tokens"),
        (",,,,,0.1,", "a step without prefill_tokens and without decode_seqs"),
        (",,4,,,0.1,", "decode_kv_tokens is missing"),
        (",,4,3,11,0.1,", "decode_kv_tokens: 11 is less than the 12 new tokens"),
        ("8,,,,,0,", "measured_s: '0' is no positive number of seconds"),
        ("8,,,,,,", "measured_s: .* is no positive number of seconds"),
        ("8,,,,,inf,", "measured_s: 'inf' is not finite"),
        ("8,,,,,0.1,gpu", "scope: 'gpu' is not one of step, device"),
        ("2000000000,,,,,0.1,", "prefill_tokens: 2000000000 is more than any step computes"),
        ("8,,,,0.1,", "6 cells where the header names 7 columns"),
        ("prefill_seqs,prefill_tokens,measured_s\n3,2,0.1", "prefill_tokens: 2 for 3 prompt chunks"),
        ("prefill_token,measured_s\n", "unknown column 'prefill_token'; did you mean 'prefill_tokens'"),
        ("prefill_tokens\n", "column measured_s is missing"),
    ],
)
def test_bad_tables_name_line_column_and_value(tmp_path, row, message):
    with pytest.raises(TraceError, match=message) as error:
        read_steps(csv(tmp_path, row + "\n" if row.startswith("prefill") else HEAD + row + "\n"))
    assert "steps.csv" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path):
    for path, message in ((tmp_path / "none.csv", "no such file"), (tmp_path, "is a folder")):
        with pytest.raises(TraceError, match=message):
            read_steps(path)
    with pytest.raises(TraceError, match="no format 'torch-profile'; did you mean 'torch-profiler'"):
        read_steps(tmp_path, "torch-profile")


def test_a_runs_own_steps_are_read_one_by_one(tmp_path):
    """Rows that stand for several steps have no single duration and are counted."""
    rows = {name: [1, 1, 1] for name in COLUMNS[:-2]} | {"seconds": [0.1, 0.2, 0.3], "replica": [0, 0, 1],
                                                         "steps": [1, 5, 1]}  # fmt: skip
    path = tmp_path / "steps.parquet"
    pq.write_table(pa.table(rows), path)
    table = read_steps(path)
    assert table.measured_s.tolist() == [0.1, 0.3]
    assert table.skipped == {"several steps in one row": 1}


def test_a_parquet_table_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "steps.parquet"
    pq.write_table(pa.table({"prefill_tokens": [1], "seconds": [0.1]}), path)
    with pytest.raises(TraceError, match="unknown column 'seconds'"):
        read_steps(path)
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(TraceError, match=r"steps\.parquet: not a readable Parquet"):
        read_steps(path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_annotations_on_the_device_are_steps(tmp_path, name):
    """vLLM's sums: 2 chunks of 3 new tokens on 4 and 0 cached ones, beside 2 sequences that verify 4 tokens each."""
    squares, products = 2 * 9, 3 * 7 + 3 * 3
    mixed = f"execute_14_context_2(sq6sk10sqsq{squares}sqsk{products})_generation_2(sq8sk300sqsq32sqsk1200)"
    table = read_steps(trace(tmp_path, on_device(mixed), on_device("execute_context_2(12_80)_generation_0(0)", 500.0),
                             on_device("step[EXTEND bs=3 toks=48]", 700.0), on_device("step[DECODE bs=3]"),
                             on_host(mixed), kernel(0, 1), name=name))  # fmt: skip
    assert table.measured_s.tolist() == [1.5e-3, 5e-4, 7e-4]
    assert table.prefill_tokens.tolist() == [6, 12, 48]
    by_hand = sum(4 + i + 1 for i in range(3)) + sum(i + 1 for i in range(3))
    assert table.prefill_pairs[0] == by_hand
    assert table.prefill_pairs[1] == (80 + 12) // 2, "sum of n (n + 1) / 2 over two prompts"
    assert table.prefill_seqs.tolist() == [2, 2, 3]
    assert (table.decode_seqs[0], table.query_len[0], table.decode_kv_tokens[0]) == (2, 4, 300)
    assert table.device.all()
    assert table.skipped == {"annotation without the context lengths": 1}


def test_one_step_without_device_annotation_takes_as_long_as_its_kernels_are_busy(tmp_path):
    """Two kernels that overlap by 2 us, a pause, and one inside another: 10 + 8 + 20 us."""
    kernels = [kernel(0, 10), kernel(8, 10), kernel(100, 20), kernel(105, 3)]
    table = read_steps(trace(tmp_path, on_host("step[EXTEND bs=1 toks=16]"), *kernels))
    assert table.measured_s.tolist() == pytest.approx([38e-6])
    assert table.prefill_tokens.tolist() == [16]
    assert table.device.tolist() == [True]


def test_host_annotations_of_several_steps_say_nothing_of_the_device(tmp_path):
    events = [on_host("step[EXTEND bs=1 toks=16]"), on_host("step[EXTEND bs=1 toks=32]"), kernel(0, 5)]
    with pytest.raises(TraceError, match=r"no measured step in it \(2 x annotation on the host only\)"):
        read_steps(trace(tmp_path, *events))


def test_a_count_of_thousands_of_digits_is_no_annotation(tmp_path):
    name = f"execute_context_2(12_{'9' * 5000})_generation_0(0)"
    with pytest.raises(TraceError, match="no measured step in it") as caught:
        read_steps(trace(tmp_path, on_device(name)))
    assert len(str(caught.value)) < 500
    with pytest.raises(TraceError, match="is more than any step computes"):
        read_steps(trace(tmp_path, on_device(f"step[EXTEND bs=1 toks={10**17}]")))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[]", "no traceEvents"),
        (b'{"traceEvents": 3}', "no traceEvents"),
        (b"{", "trace.json"),
        (gzip.compress(b"\xff\xfe\x00", mtime=0), r"trace\.json\.gz: starts like UTF-16 but is not"),
    ],
)
def test_other_json_is_no_trace(tmp_path, data, message):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message):
        read_steps(path)
