"""The table's invariants, writing and reading back, streaming in bounded memory, and known statistics."""

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import traces.files as files
import traces.requests.rows as rows
import traces.requests.values as parsing
from traces import (
    PrefixHashes,
    RequestTable,
    TraceError,
    describe_requests,
    fit_lengths,
    iter_requests,
    read_requests,
    write_requests,
)


def table_of(n: int, seed: int = 0, **more) -> RequestTable:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(0.1, n))
    return RequestTable(
        rng.integers(1, 5000, n), rng.integers(1, 900, n), arrival_s=arrival - arrival[0] if n else arrival, **more
    )


def test_the_table_refuses_what_cannot_be_simulated():
    good = {"input_tokens": [1, 2], "output_tokens": [3, 4]}
    hashes = PrefixHashes.from_lists([[1]], 16)
    for change, message in [
        ({"output_tokens": [3]}, "1 values for 2"),
        ({"input_tokens": [0, 2]}, "at least 1 token"),
        ({"input_tokens": [1.5, 2]}, "whole numbers"),
        ({"arrival_s": [1, 0]}, "must not fall"),
        ({"arrival_s": [0, math.nan]}, "finite"),
        ({"arrival_s": [-1, 0]}, ">= 0"),
        ({"arrival_s": [[0], [1]]}, "one value per request"),
        ({"arrival_s": ["a", "b"]}, "numbers expected"),
        ({"measured_ttft_s": [-1, math.nan]}, "finite seconds >= 0"),
        ({"session_id": [0, 1], "session_names": ("a",)}, "session_names"),
        ({"prefix_hashes": hashes}, "1 rows for 2"),
    ]:
        with pytest.raises(TraceError, match=message):
            RequestTable(**{**good, **change})
    with pytest.raises(TraceError, match="block_tokens"):
        PrefixHashes.from_lists([[1]], 0)
    with pytest.raises(TraceError, match="offsets"):
        PrefixHashes(np.array([0, 3]), np.array([1]), 16)


def test_the_table_is_frozen_without_touching_the_callers_arrays():
    tokens = np.array([1, 2])
    table = RequestTable(tokens, tokens, arrival_s=np.array([0.0, 1.0]), skipped={"zero": 1})
    with pytest.raises(ValueError, match="read-only"):
        table.input_tokens[0] = 5
    with pytest.raises(AttributeError):
        table.source = "x"
    with pytest.raises(TypeError):
        table.skipped["zero"] = 2
    tokens[0] = 9  # still the caller's to write


def test_take_keeps_rows_together():
    table = table_of(6, prefix_hashes=PrefixHashes.from_lists([[i] * i for i in range(6)], 16))
    part = table.take(np.array([1, 4, 5]))
    assert_array_equal(part.input_tokens, table.input_tokens[[1, 4, 5]])
    assert [part.prefix_hashes.of(i).tolist() for i in range(3)] == [[1], [4] * 4, [5] * 5]
    assert len(table.head(2)) == 2
    assert table.duration_s == table.arrival_s[-1]


durations = st.floats(0, 1e6) | st.just(math.nan)


@st.composite
def tables(draw):
    n = draw(st.integers(1, 12))

    def column(values):
        return draw(st.none() | st.lists(values, min_size=n, max_size=n))

    gaps = column(st.floats(0, 1e5))
    sessions = column(st.integers(-1, 2))
    blocks = draw(st.none() | st.integers(1, 600))
    tokens = draw(st.lists(st.integers(1, 3000), min_size=n, max_size=n))
    ids = st.integers(-(2**63), 2**63 - 1)
    hashes = None
    if blocks is not None:
        lists = [draw(st.lists(ids, min_size=-(-t // blocks), max_size=-(-t // blocks))) if t < 20 * blocks else []
                 for t in tokens]  # fmt: skip
        hashes = PrefixHashes.from_lists(lists, blocks)
    return RequestTable(
        tokens,
        draw(st.lists(st.integers(1, 10**6), min_size=n, max_size=n)),
        arrival_s=None if gaps is None else np.cumsum([0.0, *gaps[1:]]),
        session_id=sessions,
        session_names=("a", 'b,"c"', "d e\u00e9") if sessions is not None else (),
        turn=column(st.integers(-1, 9)),
        think_time_s=column(durations),
        prefix_hashes=hashes,
        measured_ttft_s=column(durations),
        measured_e2e_s=column(durations),
    )


@given(tables(), st.sampled_from([".csv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz"]))
@settings(max_examples=120, deadline=None)
def test_written_tables_read_back_bit_by_bit(tmp_path_factory, table, ending):
    path = tmp_path_factory.mktemp("w") / f"t{ending}"
    result = read_requests(write_requests(table, path))
    assert result.format == ("plain" if table.arrival_s is None else "forerun")
    for name, values in table.columns().items():
        if name == "session_id":
            names = [[t.session_names[c] if c >= 0 else None for c in t.session_id] for t in (table, result)]
            assert names[0] == names[1]
        else:
            assert_array_equal(getattr(result, name), values)
    if table.prefix_hashes is None:
        assert result.prefix_hashes is None
    else:
        assert result.prefix_hashes.block_tokens == table.prefix_hashes.block_tokens
        assert_array_equal(result.prefix_hashes.ids, table.prefix_hashes.ids)
        assert_array_equal(result.prefix_hashes.offsets, table.prefix_hashes.offsets)


def test_writing_refuses_unknown_endings_and_places(tmp_path):
    with pytest.raises(TraceError, match=r"\.csv, \.jsonl"):
        write_requests(table_of(2), tmp_path / "t.xlsx")
    with pytest.raises(TraceError, match="cannot be written"):
        write_requests(table_of(2), tmp_path / "absent" / "t.csv")


CSV_CASES = {
    "canonical": "arrival_s,input_tokens,output_tokens,session_id,turn,measured_ttft_s\n"
    + "".join(f"{i / 8},{i + 1},9,00{i % 3},{i % 5},{i}\n" for i in range(300)),
    "dates": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2024-05-10 00:{i // 60:02}:{i % 60:02}{'.25' * (i % 2)}+00:00,{i + 1},5\r\n" for i in range(300)),
    "seven digits": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02}.9799601,{i + 1},5\n" for i in range(300)),
    "burstgpt": "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens\n"
    + "".join(f"{i}.0,{'0x' * (i % 2)},{'4' * (i % 3)},GPT-4,{i + 1},{i % 4}\n" for i in range(300)),
    "epoch": "timestamp;prompt_tokens;completion_tokens\n"
    + "".join(f"{1_700_000_000_000_000_000 + 7 * i};{i + 1}.0;2\n" for i in range(300)),
    "damage": "arrival_s,input_tokens,output_tokens\n"
    + "".join(
        {7: f"{i},0,1\n", 11: "\n", 13: f'{i},"5",1\n', 17: f"{i},,1\n", 19: f"{i},5\n", 23: "nan,true,1\n"}.get(
            i % 29, f"{i},{i + 1},{i + 2}\n"
        )
        for i in range(300)
    ),
}


@pytest.mark.parametrize("case", CSV_CASES)
def test_both_csv_parsers_agree(tmp_path, monkeypatch, case):
    """The accelerated parser of large files gives the same rows, skips and error lines as the exact one."""
    monkeypatch.setattr(files, "BLOCK_BYTES", 150)
    path = tmp_path / "t.csv"
    path.write_bytes(CSV_CASES[case].encode())
    result, errors, accelerated = [], [], []
    arrow_block = rows._arrow_block

    def counting(*arguments):
        chunk = arrow_block(*arguments)
        accelerated.append(chunk is not None)
        return chunk

    monkeypatch.setattr(rows, "_arrow_block", counting)
    for first in (10**9, 1):
        monkeypatch.setattr(rows, "ARROW_FROM_BLOCK", first)
        result.append(read_requests(path, on_error="skip"))
        errors.append("")
        try:
            read_requests(path)
        except TraceError as error:
            errors[-1] = str(error)
    assert any(accelerated)
    assert all(accelerated) == (case != "damage")
    exact, fast = result
    assert errors[0] == errors[1]
    assert (errors[0] != "") == (case == "damage")
    assert (dict(exact.skipped), exact.notes, exact.session_names) == (
        dict(fast.skipped),
        fast.notes,
        fast.session_names,
    )
    assert exact.columns().keys() == fast.columns().keys()
    for name, values in exact.columns().items():
        assert_array_equal(fast.columns()[name], values)


TIMES = ["2023-11-16 18:17:03.9799600", "2024-05-10T00:00:01", "2024-05-10 00:00:02.5", "1970-01-02 00:00:00.123456789"]


@pytest.mark.parametrize("zone", ["", "Z", " UTC", "+00:00", "+05:30", "-0800"])
@pytest.mark.parametrize(
    "odd",
    [None, "2023-11-16", "2023-11-16 18:17", "1969-12-31 23:59:59", "2300-01-01 00:00:00", "2023-02-30 00:00:00",
     " 2023-11-16 18:17:03", "2023-11-16 18:17:03,25", "2024-05-10 00:00:01 UTC", "x" * 19, ""],
)  # fmt: skip
def test_many_dates_are_read_as_each_by_itself(zone, odd):
    """Whatever NumPy reads of a chunk is what the exact reader says, and what that one refuses NumPy does not read."""
    texts = [text + zone for text in TIMES] + ([] if odd is None else [odd])
    result, exact = parsing._fast_datetimes(texts), parsing._each(texts, parsing.nanoseconds_of)
    if result is not None:
        assert not exact.problems
        assert_array_equal(result, exact.values)
    else:
        assert odd is not None


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("chunk_rows", [1, 7, 250, 10_000])
def test_streams_equal_whole_reads(tmp_path, monkeypatch, ending, chunk_rows):
    monkeypatch.setattr(files, "BLOCK_BYTES", 2000)
    path = write_requests(table_of(400), tmp_path / f"t.{ending}")
    whole, chunks = read_requests(path), list(iter_requests(path, chunk_rows=chunk_rows))
    assert max(map(len, chunks)) <= chunk_rows
    assert_array_equal(np.concatenate([chunk.arrival_s for chunk in chunks]), whole.arrival_s)
    assert_array_equal(np.concatenate([chunk.input_tokens for chunk in chunks]), whole.input_tokens)
    assert sum(map(len, iter_requests(path, chunk_rows=chunk_rows, limit=33))) == 33


def test_streams_mend_small_disorder_and_refuse_large(tmp_path):
    text = "arrival_s,input_tokens,output_tokens\n"
    late = [i - 5 if i % 10 == 5 else i for i in range(100)]
    path = tmp_path / "late.csv"
    path.write_text(text + "".join(f"{t + 3},{i + 1},1\n" for i, t in enumerate(late)))
    chunks = list(iter_requests(path, chunk_rows=10))
    assert_array_equal(np.concatenate([c.arrival_s for c in chunks]), read_requests(path).arrival_s)
    assert_array_equal(np.concatenate([c.input_tokens for c in chunks]), read_requests(path).input_tokens)
    path.write_text(text + "".join(f"{t},1,1\n" for t in [*range(1, 100), 0]))
    with pytest.raises(TraceError, match="read_requests sorts the whole file"):
        list(iter_requests(path, chunk_rows=10))


def test_streams_count_each_skipped_row_once(tmp_path):
    path = tmp_path / "t.csv"
    lines = "".join(f"{i},{0 if i % 9 == 0 else 5},1\n" for i in range(1, 200))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + lines)
    chunks = list(iter_requests(path, chunk_rows=20, on_error="skip"))
    assert sum(sum(chunk.skipped.values()) for chunk in chunks) == 22
    assert dict(describe_requests(chunks).skipped) == {"input_tokens: zero": 22}


def test_memory_of_a_stream_is_that_of_its_chunks(tmp_path, monkeypatch):
    """Twenty times the rows need no more memory."""
    monkeypatch.setattr(files, "BLOCK_BYTES", 16_000)
    peaks = []
    for count in (5_000, 100_000):
        path = tmp_path / f"{count}.csv"
        path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i / 8},9,9\n" for i in range(count)))
        tracemalloc.start()
        assert sum(map(len, iter_requests(path, chunk_rows=1000))) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_token_statistics_are_those_of_numpy(values):
    stats = describe_requests(RequestTable(values, values)).input_tokens
    assert (stats.n, stats.total, stats.min, stats.max) == (len(values), sum(values), min(values), max(values))
    assert_allclose([stats.mean, stats.std], [np.mean(values), np.std(values)], atol=1e-12)
    assert stats.cv == stats.std / stats.mean
    for name, result in stats.percentiles.items():
        share = 99.9 if name == "p999" else float(name[1:])
        assert_allclose(result, np.percentile(values, share), atol=1e-9)


def test_statistics_of_a_table_by_hand():
    table = RequestTable([10, 20, 30], [3, 2, 1], arrival_s=[0, 0, 3], session_id=[0, -1, 0], session_names=("a",))
    stats = describe_requests(table)
    assert stats.length_correlation == pytest.approx(-1)
    assert (stats.sessions, stats.requests_per_session) == (1, 2)
    arrivals = stats.arrivals
    assert (arrivals.span_s, arrivals.mean_rps, arrivals.identical_times) == (3, pytest.approx(2 / 3), 1)
    assert arrivals.iat_cv == pytest.approx(1.0)
    assert arrivals.dispersion[1] == pytest.approx(np.var([2, 0, 0, 1]) / 0.75)
    json.dumps(stats.as_dict(), allow_nan=False)
    together = describe_requests(RequestTable([1, 1], [1, 1], arrival_s=[0, 0]))
    assert together.arrivals.mean_rps is None
    assert together.length_correlation is None
    assert describe_requests(RequestTable([1], [1])).arrivals is None
    with pytest.raises(TraceError, match="no requests"):
        describe_requests([])


def test_statistics_do_not_depend_on_chunks():
    table = read_requests("mooncake-conversation")
    whole = describe_requests(table)
    parts = describe_requests(table.take(slice(start, start + 37)) for start in range(0, len(table), 37))
    assert parts.input_tokens == whole.input_tokens
    assert parts.prefix == whole.prefix
    assert parts.arrivals.dispersion == whole.arrivals.dispersion
    assert parts.arrivals.iat_cv == pytest.approx(whole.arrivals.iat_cv)
    with pytest.raises(TraceError, match="order of arrival"):
        describe_requests([table.take(slice(200, 300)), table.take(slice(0, 200))])


def test_prefix_hits_by_hand():
    lists = [[1, 2, 3], [1, 2, 4], [5, 2], [1, 2, 3]]
    table = RequestTable([30, 25, 20, 30], [1] * 4, prefix_hashes=PrefixHashes.from_lists(lists, 10))
    prefix = describe_requests(table).prefix
    assert prefix.token_hit == pytest.approx(50 / 105)
    assert prefix.mean_request_hit == pytest.approx((0 + 20 / 25 + 0 + 1) / 4)
    assert prefix.requests_with_hit == 0.5


def test_fits_recover_what_was_drawn():
    rng = np.random.default_rng(1)
    sigma = math.sqrt(math.log(1 + 0.8**2))
    lengths = np.maximum(1, rng.lognormal(math.log(512) - sigma**2 / 2, sigma, 40_000)).astype(np.int64)
    gaps = rng.gamma(0.25, 1 / (0.25 * 8), len(lengths))
    fit = fit_lengths(RequestTable(lengths, np.full(len(lengths), 64), arrival_s=np.cumsum(gaps)))
    assert fit.burstiness == pytest.approx(0.25, rel=0.05)
    assert fit.request_rate == pytest.approx(8, rel=0.05)
    workload = fit.as_scenario()
    assert workload["input_tokens"]["distribution"] == "lognormal"
    assert workload["input_tokens"]["mean"] == pytest.approx(512, rel=0.02)
    assert workload["input_tokens"]["cv"] == pytest.approx(0.8, rel=0.03)
    assert workload["output_tokens"] == 64
    assert workload["arrivals"]["process"] == "gamma"
    two_peaks = RequestTable([10] * 50 + [4000] * 50, [5] * 100)
    workload = fit_lengths(two_peaks).as_scenario()
    assert workload["input_tokens"]["distribution"] == "empirical"
    assert np.mean(workload["input_tokens"]["values"]) == pytest.approx(2005)
    assert "arrivals" not in workload
    assert fit_lengths(two_peaks).as_scenario("lognormal")["input_tokens"]["distribution"] == "lognormal"
    with pytest.raises(TraceError, match="lognormal or empirical"):
        fit_lengths(two_peaks).as_scenario("weibull")


REAL = {
    "azure_llm_2023/code/visible": "azure_llm_2023/AzureLLMInferenceTrace_code.head5291.csv",
    "azure_llm_2023/conv/visible": "azure_llm_2023/AzureLLMInferenceTrace_conv.head11619.csv",
    "mooncake_fast25/conversation/visible": "mooncake_fast25/conversation_trace.head7000.jsonl",
    "mooncake_fast25/synthetic/visible": "mooncake_fast25/synthetic_trace.head2600.jsonl",
    "sharegpt_lengths/llama-3.1-8b": "sharegpt_lengths/sharegpt-llama-3.1-8b-300-sps10.csv",
}
PREFIX = {
    "ideal_infinite_cache_token_hit": "token_hit",
    "block_hit": "block_hit",
    "req_with_any_hit": "requests_with_hit",
    "mean_per_req_hit": "mean_request_hit",
    "unique_blocks": "unique_blocks",
    "total_blocks": "total_blocks",
    "blocks_used_once": "blocks_used_once",
}
ARRIVALS = {
    "span_s": "span_s",
    "mean_rps": "mean_rps",
    "iat_mean_s": "iat_mean_s",
    "iat_cv": "iat_cv",
    "iat_p50": "iat_p50_s",
    "iat_p99": "iat_p99_s",
    "iat_max": "iat_max_s",
    "identical_consecutive_ts": "identical_times",
}


def agrees(result: float, printed: float) -> bool:
    """Equal to the digits printed."""
    digits = len(str(printed).partition(".")[2])
    return abs(result - printed) <= 0.5001 * 10.0**-digits


@pytest.mark.parametrize("key", REAL)
def test_statistics_of_real_traces(shared_data, key):
    """All figures equal the independently computed ones to the last digit printed there."""
    workloads = Path(shared_data) / "workloads"
    known = json.loads((workloads / "STATS.json").read_text())[key]
    table = read_requests(workloads / REAL[key])
    stats = describe_requests(table)
    for name in ("input_tokens", "output_tokens"):
        result = getattr(stats, name)
        for figure, printed in known[name].items():
            value = result.percentiles[figure] if figure in result.percentiles else getattr(result, figure)
            assert agrees(value, printed), (name, figure, value, printed)
    for figure, ours in ARRIVALS.items():
        assert agrees(getattr(stats.arrivals, ours), known["arrivals"][figure]), figure
    for width in (1, 10, 60):
        assert agrees(stats.arrivals.dispersion[width], known["arrivals"][f"idx_dispersion_{width}s"])
        assert agrees(stats.arrivals.peak_over_mean[width], known["arrivals"][f"peak_over_mean_{width}s"])
    if "prefix" in known:
        for figure, ours in PREFIX.items():
            assert agrees(getattr(stats.prefix, ours), known["prefix"][figure]), figure


def test_prefix_sharing_inside_real_agent_sessions(shared_data):
    workloads = Path(shared_data) / "workloads"
    known = json.loads((workloads / "STATS.json").read_text())["kv_cache_tester_agentic/visible"]
    table = read_requests(workloads / "kv_cache_tester_agentic", on_error="skip")  # one request of 796 has no answer
    assert describe_requests(table).prefix.token_hit == pytest.approx(known["within_trace_ideal_token_hit"], abs=5e-4)
