"""Every request format on tiny inline files: what is read, in which unit, and which notes there are."""

import copy
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.traces.written_file import written
from traces import TraceError, iter_requests, read_requests, sample_names

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n"
    "2023-11-16 18:17:04.0781490,110,27"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:01+00:00,2399,6\n"
    "2024-05-10 00:00:02.5+00:00,76,15\n"
)
AZURE_LMM = (
    "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    "2024-10-15T12:00:00.269Z,0,770,491\n"
    "2024-10-15T12:00:05.819Z,1,949,126\n"
)
BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,0,0,0,Conversation log\n"
    "118,GPT-4,417,276,693,Conversation log\n"
)
BURST_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.0,,,ChatGPT,36,29,65,API log\n"
    "19440192.5,1722ac82,8,GPT-4,1779,123,1902,Conversation log\n"
)
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1, 2]}\n'
    '{"timestamp": 3001, "input_length": 512, "output_length": 7, "hash_ids": [0]}\n'
)
BAILIAN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 10.5, "input_length": 33, "output_length": 5, "type": "text",'
    ' "turn": 1, "hash_ids": [1, 2, 3]}\n'
    '{"chat_id": 8, "parent_chat_id": -1, "timestamp": 11.0, "input_length": 16, "output_length": 5, "type": "text",'
    ' "turn": 1, "hash_ids": [9]}\n'
    '{"chat_id": 9, "parent_chat_id": 7, "timestamp": 12.5, "input_length": 48, "output_length": 5, "type": "text",'
    ' "turn": 2, "hash_ids": [1, 2, 4]}\n'
)
SESSION = {
    "id": "one",
    "block_size": 64,
    "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "s", "in": 130, "out": 9, "hash_ids": [1, 2], "think_time": 0.0, "api_time": 2.5, "ttft": 1},
        {
            "t": 100.0,
            "type": "subagent",
            "agent_id": "a1",
            "requests": [{"t": 2.0, "type": "n", "in": 64, "out": 3, "hash_ids": [3], "think_time": None}],
        },
        {"t": 50.0, "type": "n", "in": 200, "out": 4, "hash_ids": [1, 2, 4], "think_time": 40.0, "api_time": 3.0},
    ],
}
AIPERF = {
    "metadata": {
        "conversation_id": "c1",
        "turn_index": 0,
        "request_start_ns": 1_700_000_000_123_456_789,
        "benchmark_phase": "profiling",
    },
    "metrics": {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "output_sequence_length": {"value": 40, "unit": "tokens"},
        "time_to_first_token": {"value": 250.0, "unit": "ms"},
        "request_latency": {"value": 2.0, "unit": "sec"},
    },
    "error": None,
}
VLLM = {
    "backend": "vllm",
    "total_input_tokens": 30,
    "request_throughput": 1.0,
    "input_lens": [10, 12, 8],
    "output_lens": [3, 0, 2],
    "start_times": [1000.5, 1001.0, 1002.5],
    "ttfts": [0.5, 0.0, 0.25],
    "itls": [[0.125, 0.125], [], [0.5]],
    "errors": ["", "refused", ""],
}


@pytest.mark.parametrize(
    ("text", "format", "arrival", "tokens_in", "tokens_out"),
    [
        (AZURE, "azure-llm", [0, 0.052, 0.098189], [4808, 3180, 110], [10, 8, 27]),
        (AZURE_2024, "azure-llm", [0, 0.99007, 2.49007], [2162, 2399, 76], [5, 6, 15]),
        (AZURE_LMM, "azure-lmm", [0, 5.55], [770, 949], [491, 126]),
        (BURST_1, "burstgpt", [0, 113], [472, 417], [18, 276]),
        (BURST_3, "burstgpt", [0, 51, 82.5], [906, 36, 1779], [446, 29, 123]),
        (MOONCAKE, "mooncake", [0, 3.001], [1025, 512], [5, 7]),
        (BAILIAN, "bailian", [0, 0.5, 2], [33, 16, 48], [5, 5, 5]),
        (
            "arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,3\n2.5,11,4\n",
            "vidur",
            [0, 2],
            [10, 11],
            [3, 4],
        ),
        (
            "arrival_time_ns,input_toks,output_toks\n46926808,2358,531\n1046926809,1034,769\n",
            "llmservingsim",
            [0, 1.000000001],
            [2358, 1034],
            [531, 769],
        ),
        (
            "StartTimeOffset,ContextTokens,GeneratedTokens,SynthesizedBody\n0,5,6,x\n2000000000,7,8,y\n",
            "apex",
            [0, 2],
            [5, 7],
            [6, 8],
        ),
        ("arrival_s,input_tokens,output_tokens\n3,10,2\n4.5,20,3\n", "forerun", [0, 1.5], [10, 20], [2, 3]),
        ("timestamp;prompt_tokens;completion_tokens\n1;10;2\n2;20;3\n", "plain", [0, 1], [10, 20], [2, 3]),
        ("arrival_ms\tPrompt Tokens\toutput_len\n10\t10\t2\n30\t20\t3\n", "plain", [0, 0.02], [10, 20], [2, 3]),
        (
            '[{"timestamp": "2024-01-01T00:00:00+02:00", "isl": 3, "osl": 4}, '
            '{"timestamp": "2023-12-31 22:00:01Z", "isl": 5, "osl": 6}]',
            "plain",
            [0, 1],
            [3, 5],
            [4, 6],
        ),
        (json.dumps(AIPERF) + "\n", "aiperf", [0], [550], [40]),
        (
            '{"object": "chat.completion", "created": 90, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n'
            '{"object": "chat.completion", "created": 92, "usage": {"prompt_tokens": 5, "completion_tokens": 6}}\n',
            "openai",
            [0, 2],
            [3, 5],
            [4, 6],
        ),
        (json.dumps(VLLM), "vllm-bench", [0, 2], [10, 8], [3, 2]),
        (json.dumps(VLLM, indent=1), "vllm-bench", [0, 2], [10, 8], [3, 2]),
        (json.dumps(SESSION), "agentic", [0, 50, 102], [130, 200, 64], [9, 4, 3]),
        (json.dumps(SESSION, indent=2), "agentic", [0, 50, 102], [130, 200, 64], [9, 4, 3]),
    ],
)
def test_content_is_recognised_and_read(tmp_path, text, format, arrival, tokens_in, tokens_out):
    path = written(tmp_path, text, "no-telling-name.txt")
    for table in (read_requests(path), read_requests(path, format)):
        assert table.format == format
        assert_allclose(table.arrival_s, arrival, rtol=0, atol=1e-12)
        assert_array_equal(table.input_tokens, tokens_in)
        assert_array_equal(table.output_tokens, tokens_out)
        assert table.source == str(path)


@pytest.mark.parametrize("text", [AZURE, BURST_3, MOONCAKE, BAILIAN], ids=["azure", "burstgpt", "mooncake", "bailian"])
@pytest.mark.parametrize("quirk", ["bom", "gzip", "crlf", "cr", "no final newline", "blank lines", "utf-16"])
def test_quirks_of_files_change_nothing(tmp_path, text, quirk):
    plain = text.replace("\r\n", "\n")
    changed: bytes = {
        "bom": b"\xef\xbb\xbf" + plain.encode(),
        "gzip": gzip.compress(plain.encode()),
        "crlf": plain.replace("\n", "\r\n").encode(),
        "cr": plain.replace("\n", "\r").encode(),
        "no final newline": plain.rstrip().encode(),
        "blank lines": plain.replace("\n", "\n\n").encode(),
        "utf-16": plain.encode("utf-16"),
    }[quirk]
    expected, result = read_requests(written(tmp_path, plain, "a")), read_requests(written(tmp_path, changed, "b"))
    assert result.format == expected.format
    for name, values in expected.columns().items():
        assert_array_equal(getattr(result, name), values)
    if expected.prefix_hashes is not None:
        assert_array_equal(result.prefix_hashes.ids, expected.prefix_hashes.ids)


def test_quoted_fields_and_columns_in_any_order(tmp_path):
    text = 'note,output_tokens,"arrival_s",input_tokens\n"two\nlines, ""quoted""",2,0,"10"\nplain,3,1.5,20\n'
    table = read_requests(written(tmp_path, text))
    assert_array_equal(table.input_tokens, [10, 20])
    assert any("note" in note for note in table.notes)


def test_burstgpt_failures_models_and_sessions(tmp_path):
    path = written(tmp_path, BURST_1)
    assert dict(read_requests(path).skipped) == {"failed request (0 response tokens)": 1}
    with pytest.raises(TraceError, match=r":3: .*0 tokens"):
        read_requests(path, drop_failures=False)
    assert len(read_requests(path, model="GPT-4")) == 1
    table = read_requests(written(tmp_path, BURST_3, "v3"))
    assert_array_equal(table.session_id, [0, -1, 0])
    assert table.session_names == ("1722ac82",)
    assert_array_equal(table.measured_e2e_s, [43, np.nan, 8])
    assert [(name, rows.tolist()) for name, rows in table.sessions()] == [("1722ac82", [0, 2])]


def test_mooncake_blocks_and_units(tmp_path):
    path = written(tmp_path, MOONCAKE)
    table = read_requests(path)
    assert table.prefix_hashes.block_tokens == 512
    assert_array_equal(table.prefix_hashes.of(0), [0, 1, 2])
    assert_array_equal(table.prefix_hashes.of(1), [0])
    assert read_requests(path, "timed-trace", block_tokens=512, time_unit="s").arrival_s[1] == 3001
    with pytest.raises(TraceError, match=r":1: hash_ids: 3 block ids for 1025 .* block_tokens=512 would fit"):
        read_requests(path, block_tokens=16)


def test_bailian_follows_parents_into_sessions(tmp_path):
    table = read_requests(written(tmp_path, BAILIAN))
    assert_array_equal(table.session_id, [0, 1, 0])
    assert_array_equal(table.turn, [0, 0, 1])
    assert table.prefix_hashes.block_tokens == 16


def test_agent_sessions_keep_separate_blocks(tmp_path):
    folder = tmp_path / "sessions"
    folder.mkdir()
    for name in ("one", "two"):
        written(folder, {**SESSION, "id": name}, f"{name}.json")
    table = read_requests(folder, session_interval_s=10)
    assert table.format == "agentic"
    assert_array_equal(np.sort(table.arrival_s), [0, 10, 50, 60, 102, 112])
    assert set(table.session_names) == {"one", "one/a1", "two", "two/a1"}
    rows = dict(table.sessions())
    assert_array_equal(table.turn[rows["two"]], [0, 1])
    assert_array_equal(table.think_time_s[rows["two"]], [0, 40])
    assert np.isnan(table.think_time_s[rows["two/a1"]]).all()
    assert_array_equal(table.measured_ttft_s[rows["one"]], [1, np.nan])
    assert_array_equal(table.measured_e2e_s[rows["one"]], [2.5, 3])
    hashes = table.prefix_hashes
    first, second = (
        {block for row in range(len(table)) if table.session_names[table.session_id[row]].startswith(name)
         for block in hashes.of(row).tolist()}
        for name in ("one", "two")
    )  # fmt: skip
    assert len(first) == len(second) == 4
    assert not first & second
    shared = np.intersect1d(hashes.of(int(rows["one"][0])), hashes.of(int(rows["one"][1])))
    assert len(shared) == 2


def test_vllm_details_become_measurements_and_totals_alone_are_refused(tmp_path):
    table = read_requests(written(tmp_path, VLLM))
    assert_allclose(table.measured_ttft_s, [0.5, 0.25])
    assert_allclose(table.measured_e2e_s, [0.75, 0.75])
    assert dict(table.skipped) == {"failed request": 1}
    totals = {key: value for key, value in VLLM.items() if not isinstance(value, list)}
    with pytest.raises(TraceError, match="--save-detailed"):
        read_requests(written(tmp_path, totals, "totals"))
    with pytest.raises(TraceError, match=r"ttfts: a list of 3 values"):
        read_requests(written(tmp_path, {**VLLM, "ttfts": [1]}, "short"))


def test_aiperf_measurements_warm_up_and_failures(tmp_path):
    other = copy.deepcopy(AIPERF)
    other["metadata"] |= {"request_start_ns": 1_700_000_000_123_456_790, "turn_index": 1}
    warm = copy.deepcopy(AIPERF)
    warm["metadata"]["benchmark_phase"] = "warmup"
    failed = {**AIPERF, "metrics": {}, "error": {"code": 500}}
    text = "\n".join(map(json.dumps, (AIPERF, warm, failed, other)))
    table = read_requests(written(tmp_path, text))
    assert_array_equal(table.arrival_s, [0, 1e-9])  # nanoseconds of a Unix time are not lost
    assert_allclose(table.measured_ttft_s, 0.25)
    assert_allclose(table.measured_e2e_s, 2.0)
    assert dict(table.skipped) == {"warm-up request": 1, "failed request": 1}
    assert_array_equal(table.turn, [0, 1])


def test_sharegpt_needs_token_counts_or_an_explicit_estimate(tmp_path):
    talk = [("human", "a" * 40), ("gpt", "b" * 8), ("human", "c" * 20), ("gpt", "d" * 12)]
    document = [
        {"id": "x", "conversations": [{"from": who, "value": text} for who, text in talk]},
        {"id": "y", "conversations": [{"from": "gpt", "value": "no question"}]},
    ]
    path = written(tmp_path, document)
    with pytest.raises(TraceError, match=r"conversation 1: text without token counts.*characters_per_token"):
        read_requests(path)
    table = read_requests(path, characters_per_token=4)
    assert table.arrival_s is None
    assert (table.input_tokens.tolist(), table.output_tokens.tolist()) == ([10], [2])
    table = read_requests(path, characters_per_token=4, turns="all")
    assert (table.input_tokens.tolist(), table.output_tokens.tolist()) == ([10, 17], [2, 3])
    assert_array_equal(table.turn, [0, 1])
    counted = [{"conversations": [{"from": "human", "value": "?", "tokens": 9}, {"from": "gpt", "tokens": 4}]}]
    table = read_requests(written(tmp_path, counted, "counted"))
    assert (table.input_tokens.tolist(), table.output_tokens.tolist()) == ([9], [4])


def pool(tmp_path: Path) -> Path:
    folder = tmp_path / "pool"
    folder.mkdir()
    dataset = {"0": {"input_tokens": "{}", "output_tokens": "{5: 1.0}"},
               "21600": {"input_tokens": "{10: 0.25, 30: 0.75}", "output_tokens": "{0: 0.5, 7: 0.5}"}}  # fmt: skip
    for client, shape in ((1, 0.5), (2, 4.0)):
        rows = [f"{600 * i},{2.0 if i != 1 else 0},1.4,{'Gamma' if i != 1 else ''},{shape},1" for i in range(40)]
        written(folder, "\n".join(rows), f"chunk-{client}-trace.csv")
        written(folder, dataset, f"chunk-{client}-dataset.json")
    return folder


def test_servegen_draws_what_the_pool_describes(tmp_path):
    folder = pool(tmp_path)
    table = read_requests(folder, seed=3, duration_s=24000.0)
    assert table.format == "servegen"
    assert table.session_names == ("chunk-1", "chunk-2")
    assert len(table) == pytest.approx(2 * 2.0 * (24000 - 600), rel=0.03)
    assert not np.any((table.arrival_s > 601) & (table.arrival_s < 1199))  # the second window is silent
    late = table.arrival_s > 21700
    assert set(table.output_tokens[~late & (table.arrival_s < 21500)]) == {5}
    assert set(table.output_tokens[late]) == {7}  # zeros cannot be served
    assert np.mean(table.input_tokens == 30) == pytest.approx(0.75, abs=0.02)
    for code, shape in ((0, 0.5), (1, 4.0)):
        gaps = np.diff(table.arrival_s[(table.session_id == code) & (table.arrival_s > 1300)])
        assert gaps.std() / gaps.mean() == pytest.approx(shape**-0.5, rel=0.1)


def test_servegen_is_reproducible_and_clients_do_not_disturb_each_other(tmp_path):
    folder = pool(tmp_path)
    both, again = read_requests(folder, seed=5), read_requests(folder, seed=5)
    assert_array_equal(both.arrival_s, again.arrival_s)
    assert not np.array_equal(both.arrival_s[:9], read_requests(folder, seed=6).arrival_s[:9])
    single = read_requests(folder / "chunk-2-trace.csv", seed=5)
    mine = both.take(np.flatnonzero(both.session_id == 1))
    assert_array_equal(single.input_tokens, mine.input_tokens)
    assert_allclose(np.diff(single.arrival_s), np.diff(mine.arrival_s), atol=1e-9)
    assert len(read_requests(folder, seed=5, rate_scale=0.1)) < 0.2 * len(both)
    with pytest.raises(TraceError, match=r"no request between 600 s and 1200 s; .*start_s=1200"):
        read_requests(folder, start_s=600.0, duration_s=600.0)
    with pytest.raises(TraceError, match=r"choose a shorter duration_s"):
        read_requests(folder, rate_scale=1e5)


def test_parquet_of_another_tool(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    stamps = pa.array([1_700_000_000_000_000_000, 1_700_000_001_500_000_000], pa.timestamp("ns", tz="UTC"))
    columns = {"timestamp": stamps, "prompt_tokens": pa.array([4.0, 5.0]), "completion_tokens": pa.array([2, 3], "i4")}
    path = tmp_path / "p"
    pq.write_table(pa.table(columns), path)
    table = read_requests(path)
    assert_array_equal(table.arrival_s, [0, 1.5])
    assert_array_equal(table.input_tokens, [4, 5])
    columns["completion_tokens"] = pa.array([2, None])
    pq.write_table(pa.table(columns), path)
    with pytest.raises(TraceError, match=r"row 2: completion_tokens: no value"):
        read_requests(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match="Parquet"):
        read_requests(path)


def test_samples_are_read_by_name():
    assert sample_names() == ["azure-conv-2023", "mooncake-conversation", "agents"]
    azure, mooncake, agents = (read_requests(name) for name in sample_names())
    assert (len(agents), agents.format) == (92, "aiperf-dag")
    assert (len(azure), azure.format) == (1000, "azure-llm")
    assert (len(mooncake), mooncake.format, mooncake.prefix_hashes.block_tokens) == (300, "mooncake", 512)
    assert sum(map(len, iter_requests("azure-conv-2023", chunk_rows=300))) == 1000
    assert len(read_requests(Path("azure-conv-2023"))) == 1000
    with pytest.raises(TraceError, match=r"did you mean 'azure-conv-2023'"):
        read_requests("azure-conv-2032")


REAL = {
    "workloads/azure_llm_2023/AzureLLMInferenceTrace_code.head5291.csv": ("azure-llm", 5291),
    "workloads/azure_llm_2023/AzureLLMInferenceTrace_conv.head11619.csv": ("azure-llm", 11619),
    "workloads/azure_llm_2024/AzureLLMInferenceTrace_code_1week.first5_last5.csv": ("azure-llm", 10),
    "workloads/azure_llm_2024/AzureLLMInferenceTrace_conv_1week.first5_last5.csv": ("azure-llm", 10),
    "workloads/azure_lmm_2025/AzureLMMInferenceTrace_multimodal.first5_last5.csv": ("azure-lmm", 10),
    "workloads/burstgpt/BurstGPT_1.head30.csv": ("burstgpt", 29),
    "workloads/burstgpt/BurstGPT_3.head4.csv": ("burstgpt", 4),
    "workloads/mooncake_fast25/conversation_trace.head7000.jsonl": ("mooncake", 7000),
    "workloads/mooncake_fast25/synthetic_trace.head2600.jsonl": ("mooncake", 2600),
    "workloads/sharegpt_lengths/sharegpt-llama-3.1-8b-300-sps10.csv": ("llmservingsim", 300),
    "workloads/vidur/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv": ("vidur", 28257),
    "workloads/kv_cache_tester_agentic/trace_0291.json": ("agentic", 32),
    "serving/per_request/nebius_h200_gpt-oss-120b/gt_c4.json": ("vllm-bench", 400),
    "serving/per_request/llmservingsim/RTX4090_Llama-3.1-8B/requests.jsonl": ("llmservingsim-measured", 300),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces(shared_data, name):
    format, rows = REAL[name]
    table = read_requests(shared_data / name)
    assert (table.format, len(table)) == (format, rows)
    assert table.arrival_s is None or table.arrival_s[0] == 0


def test_real_measured_latencies(shared_data):
    """Medians of the file agree with the means its own summary prints."""
    bench = shared_data / "serving/per_request/nebius_h200_gpt-oss-120b/gt_c4.json"
    table = read_requests(bench)
    assert table.measured_ttft_s.mean() * 1e3 == pytest.approx(json.loads(bench.read_text())["mean_ttft_ms"])
    table = read_requests(shared_data / "serving/per_request/llmservingsim/RTX4090_Llama-3.1-8B/requests.jsonl")
    assert table.measured_ttft_s[0] == pytest.approx(27537.350135653 - 27536.660701067)
    assert np.all(table.measured_e2e_s > table.measured_ttft_s)


def test_real_agent_sessions(shared_data):
    folder = shared_data / "workloads/kv_cache_tester_agentic"
    with pytest.raises(TraceError, match=r"trace_0217.json: request 11: out: 0 tokens"):
        read_requests(folder)
    table = read_requests(folder, on_error="skip")
    assert len(table) + sum(table.skipped.values()) == 796
    assert len(table.session_names) == 28 + 2


@pytest.mark.parametrize(
    ("name", "start"),
    [("language/m-large", 475200.0), ("language/m-small", 43200.0), ("multimodal/mm-image", 43200.0),
     ("reason/deepseek-r1", 43200.0)],
)  # fmt: skip
def test_real_servegen_pools(shared_data, name, start):
    """The number of requests drawn over six hours is that of the rates in the files."""
    folder = shared_data / "workloads/servegen" / name
    length, scale = 21600.0, 0.25
    expected = 0.0
    for file in folder.glob("*-trace.csv"):
        rows = [line.split(",") for line in file.read_text().splitlines()]
        expected += sum(600 * float(row[1]) * scale for row in rows if start <= float(row[0]) < start + length)
    table = read_requests(folder, start_s=start, duration_s=length, rate_scale=scale)
    assert len(table) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2023-11-16 18:17:04", 1.0),
        ("2023-11-16T18:17:04Z", 1.0),
        ("2023-11-16 18:17:03.5", 0.5),
        ("2023-11-16 18:17:03.000000001", 1e-9),
        (f"2023-11-16 18:17:03.25{'0' * 40}", 0.25),
        ("2023-11-16 20:17:04.5+02:00", 1.5),
        ("2023-11-16 12:47:04-0530", 1.0),
        ("2023-11-17 00:00:00", 20577.0),
    ],
)
@pytest.mark.parametrize("company", [False, True], ids=["alone", "beside another style"])
def test_dates_of_every_style(tmp_path, stamp, seconds, company):
    other = "2023-11-16 18:17:03.75 UTC,1,1\n" if company else ""
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n{other}{stamp},2,1\n"
    table = read_requests(written(tmp_path, text))
    assert table.arrival_s[table.input_tokens == 2] == [seconds]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("when,prompt_toks,gen_toks", "arrival = 'when', input = 'prompt_toks', output = 'gen_toks'"),
        ("createdAt,doneAt,promptToks,cachedTokens,answerLen", "input = 'promptToks', output = 'answerLen'"),
        ("req_ts_ms,ctx,total_tokens,query_len,reply_len", "'req_ts_ms', input = 'query_len', output = 'reply_len'"),
    ],
)  # fmt: skip
def test_columns_of_one_s_own_are_guessed_and_reported(tmp_path, header, message):
    names = header.split(",")
    rows = [",".join(str(1000 * row + place) for place in range(len(names))) for row in (1, 2, 3)]
    table = read_requests(written(tmp_path, "\n".join([header, *rows, ""])))
    assert any(message in note for note in table.notes), table.notes
    scale = 1e3 if "ms" in header else 1.0
    assert table.arrival_s.tolist() == [0.0, 1000.0 / scale, 2000.0 / scale]


def test_the_only_column_with_dates_is_the_arrival_whatever_its_name(tmp_path):
    text = "Zeitpunkt,prompt_toks,gen_toks\n2026-03-01T08:00:00Z,5,6\n2026-03-01T08:00:02Z,7,8\n"
    assert read_requests(written(tmp_path, text)).arrival_s.tolist() == [0.0, 2.0]
    two = text.replace("Zeitpunkt", "Zeitpunkt,Ende").replace("Z,", "Z,2026-03-01T09:00:00Z,")
    assert "no arrival times in the file" in read_requests(written(tmp_path, two)).notes


def test_a_text_is_no_count_and_two_equals_are_requested_about(tmp_path):
    with pytest.raises(TraceError, match=r"--map arrival=COLUMN,input=COLUMN,output=COLUMN"):
        read_requests(written(tmp_path, "ts,prompt,reply\n1,hello there,fine\n2,a,b\n"))
    with pytest.raises(TraceError, match="no trace format fits"):
        read_requests(written(tmp_path, "ts,prompt_a,prompt_b,reply_len\n1,2,3,4\n"))


def test_a_mapping_says_which_column_is_which(tmp_path):
    path = written(tmp_path, "a,b,c,gen\n5000,10,3,7\n6000,20,4,8\n")
    table = read_requests(path, columns={"arrival": "a:ms", "input": "c", "output": "b"})
    assert table.arrival_s.tolist() == [0.0, 1.0]
    assert (table.input_tokens.tolist(), table.output_tokens.tolist()) == ([3, 4], [10, 20])
    assert not any("guessed" in note for note in table.notes)
    with pytest.raises(TraceError, match="input: no column 'd'"):
        read_requests(path, columns={"input": "d"})
    with pytest.raises(TraceError, match="no 'inputs'; did you mean 'input'"):
        read_requests(path, columns={"inputs": "c"})


def test_dates_stand_under_any_name_of_the_arrival(tmp_path):
    text = "arrival_s,input_tokens,output_tokens\n2024-05-01 10:00:00.5,1,2\n2024-05-01T10:00:02Z,1,2\n"
    assert read_requests(written(tmp_path, text)).arrival_s.tolist() == [0.0, 1.5]


@pytest.mark.parametrize(("zone", "named"), [("+02:00", False), ("Z", True)])
def test_several_time_zones_are_noted(tmp_path, zone, named):
    log = tmp_path / "log.csv"
    log.write_text(
        f"timestamp,input_tokens,output_tokens\n2026-05-04T10:00:00+02:00,100,20\n2026-05-04T10:00:05{zone},9,9\n"
    )
    assert any("several time zones (+02:00, Z)" in note for note in read_requests(log).notes) == named


USAGE = "start_time,end_time,model,num_model_requests,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "what", "way"),
    [
        (USAGE + "1784000000,1784003600,m,120,98000,21000\n1784000000,1784003600,n,80,2000,1000\n",
         "'num_model_requests' counts '120' requests",
         "arrivals: {request_rate: 0.0556}, input_tokens: 500, output_tokens: 110"),
        ("day,prompt_tokens,completion_tokens,api_requests\n2026-07-01,1000,200,1\n2026-07-02,1000,200,9\n",
         "'api_requests' counts '1' requests", "input_tokens: 200, output_tokens: 40"),
        ("month,input_tokens,output_tokens\n2026-07,1000,200\n", "'month' has dates without a time", "arrivals"),
        ("timestamp,input_tokens,output_tokens\n2026-07-01T00:00:00Z,9000,20\n2026-07-01T05:00:00Z,9,2\n",
         "all times in 'timestamp' are whole hours", "arrivals"),
        ("start_time,end_time,input_tokens,output_tokens\n1784000000,1784086400,1000,20\n", "86400 s", "arrivals"),
        ('{"requestCount": 3, "prompt_tokens": 30, "completion_tokens": 6}\n', "counts 3 requests", "input_tokens: 10"),
    ],
)  # fmt: skip
def test_sums_over_requests_are_no_requests(tmp_path, text, what, way):
    file = tmp_path / ("usage.jsonl" if text[0] == "{" else "usage.csv")
    file.write_text(text)
    for columns in (None, {"input": text and ("prompt_tokens" if "prompt_tokens" in text else "input_tokens")}):
        with pytest.raises(TraceError, match="sums over many requests") as refused:
            read_requests(file, columns=columns)
        assert what in str(refused.value)
        assert way in str(refused.value)


def test_counts_by_the_hour_are_refused_with_their_rate_over_time(tmp_path):
    """Buckets of OpenAI's usage API hold their results one level deeper; the profile is ``arrivals.profile``."""
    buckets = [
        {"start_time": 1784000000 + 3600 * hour, "end_time": 1784003600 + 3600 * hour,
         "results": [{"input_tokens": 1000, "output_tokens": 50, "num_model_requests": requests}]}
        for hour, requests in enumerate((10, 20, 30))
    ]  # fmt: skip
    with pytest.raises(TraceError, match="sums over many requests") as refused:
        read_requests(written(tmp_path, json.dumps({"object": "page", "data": buckets}, indent=1)))
    profile = "profile: [[0, 0.5], [1800, 0.5], [5400, 1], [9000, 1.5], [10800, 1.5]]"
    assert f"arrivals: {{request_rate: 0.00556, {profile}}}, input_tokens: 50" in str(refused.value)


SPEND = {"startTime": "2026-08-01T12:00:0{}.000Z", "endTime": "2026-08-01T12:00:0{}.500Z", "spend": 0.1,
         "completionStartTime": "2026-08-01T12:00:0{}.250Z"}  # fmt: skip


def test_spend_logs_of_a_proxy_have_both_latencies_and_no_other_calls(tmp_path):
    rows = [
        {name: value.format(second) if isinstance(value, str) else value for name, value in SPEND.items()}
        | {"prompt_tokens": 800, "completion_tokens": tokens, "call_type": kind, "status": status, "session_id": "s"}
        for second, (tokens, kind, status) in enumerate(
            [(9, "acompletion", "success"), (0, "aembedding", "success"), (0, "acompletion", "failure"), (7, "", None)]
        )
    ]
    for text in (json.dumps({"data": rows}, indent=1), json.dumps({"data": rows}), "\n".join(map(json.dumps, rows))):
        table = read_requests(written(tmp_path, text))
        assert (table.format, table.output_tokens.tolist()) == ("litellm", [9, 7])
        assert dict(table.skipped) == {"failed request": 1, "call of another kind": 1}
        assert (table.measured_ttft_s.tolist(), table.measured_e2e_s.tolist()) == ([0.25, 0.25], [0.5, 0.5])
    hourly = [row | {"api_requests": 40, "completion_tokens": 9} for row in rows]
    with pytest.raises(TraceError, match="'api_requests' counts 40 requests"):
        read_requests(written(tmp_path, json.dumps({"data": hourly})))


def batch_line(number: int, tokens: int | None) -> dict:
    usage = {"prompt_tokens": 10 + number, "completion_tokens": tokens}
    body = {"created": 1784000000 + number, "usage": usage} if tokens else {}
    response = {"status_code": 200 if tokens else 400, "body": body}
    return {"custom_id": f"c{number}", "response": response, "error": None if tokens else {"message": "no"}}


def test_output_of_a_batch_without_its_failures(tmp_path):
    lines = "\n".join(json.dumps(batch_line(number, tokens)) for number, tokens in enumerate((3, None, 5)))
    table = read_requests(written(tmp_path, "\ufeff" + lines))
    assert (table.format, table.input_tokens.tolist(), table.output_tokens.tolist()) == (
        "openai-batch",
        [10, 12],
        [3, 5],
    )
    assert dict(table.skipped) == {"failed request": 1}


def test_usage_inside_objects_counts_cached_tokens_that_stand_beside(tmp_path):
    usage = {"input_tokens": 4, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 200, "output_tokens": 3}
    rows = [{"ts": 1784000000 + second, "answer": {"usage": usage}} for second in (0, 2)]
    table = read_requests(written(tmp_path, "\n".join(map(json.dumps, rows))))
    assert (table.input_tokens.tolist(), table.arrival_s.tolist()) == ([1204, 1204], [0.0, 2.0])
    assert any("read inside: ts, answer.usage.input_tokens" in note for note in table.notes)


def test_turns_with_a_delay_wait_for_the_turn_before(tmp_path):
    """Mooncake's sessions: milliseconds after the end of the last turn instead of a time."""
    rows = [
        ("a", 500, 0, None),
        ("a", 200, None, 5000),
        ("b", 900, 700, None),
        ("b", 300, None, 2000),
        ("a", 9, None, 1),
    ]
    keys = ("session_id", "input_length", "timestamp", "delay")
    lines = [{k: v for k, v in zip(keys, row, strict=True) if v is not None} | {"output_length": 5} for row in rows]
    table = read_requests(written(tmp_path, "\n".join(map(json.dumps, lines))))
    assert table.input_tokens.tolist() == [500, 900, 300, 200, 9]
    assert table.follows.tolist() == [[1, 2], [0, 3], [3, 4]]
    assert table.think_time_s[[3, 2, 4]].tolist() == [5.0, 2.0, 0.001]


FINISH = (
    "[2026-08-02 23:42:1{0}] Finish: obj=GenerateReqInput(rid='r{0}'), out={{'text': \"'prompt_tokens': 7\", "
    "'meta_info': {{'id': 'r{0}', 'prompt_tokens': 20{0}, 'completion_tokens': 9, 'cached_tokens': 12, "
    "'e2e_latency': 1.5}}}}"
)
RECEIVED = (
    "(APIServer pid=1) INFO 11-07 04:35:2{} [logger.py:39] Received request chatcmpl-{}: prompt: 'a, b', params: "
)
GENERATED = "(APIServer pid=1) INFO 11-07 04:35:2{} [logger.py:71] Generated response chatcmpl-{}{}: output: 'x', "


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_request_lines_of_servers(tmp_path, ends):
    noise = ["INFO 11-07 04:35:20 [api_server.py:1] starting, with input and output", "[2026-08-02 23:42:10] ready"]
    health = FINISH.format(9).replace("'r9'", "'HEALTH_CHECK_1'")
    table = read_requests(written(tmp_path, ends.join([*noise[1:], *map(FINISH.format, (1, 3)), health])))
    assert (table.format, table.input_tokens.tolist(), table.output_tokens.tolist()) == (
        "server-log",
        [201, 203],
        [9, 9],
    )
    assert (table.arrival_s.tolist(), table.measured_e2e_s.tolist()) == ([0.0, 2.0], [1.5, 1.5])
    assert any("6% of prompt tokens were cached" in note for note in table.notes)
    vllm = [
        *noise[:1] * 3,
        RECEIVED.format(1, "a1") + "SamplingParams(n=1), prompt_token_ids: [1, 2, 3], lora_request: None.",
        RECEIVED.format(2, "b2") + "SamplingParams(n=1), prompt_token_ids: [1, 2], lora_request: None.",
        RECEIVED.format(2, "c3") + "SamplingParams(n=1), prompt_token_ids: None", "INFO Added request chatcmpl-a1.",
        GENERATED.format(3, "b2", "") + "output_token_ids: [1, 2, 3, 4], finish_reason: stop",
        GENERATED.format(2, "a1", " (streaming delta)") + "output_token_ids: [1], finish_reason: None",
        GENERATED.format(4, "a1", " (streaming delta)") + "output_token_ids: [2], finish_reason: stop",
    ]  # fmt: skip
    table = read_requests(written(tmp_path, ends.join(vllm)))
    assert (table.input_tokens.tolist(), table.output_tokens.tolist()) == ([3, 2], [2, 4])
    assert table.measured_e2e_s.tolist() == [3.0, 1.0]
    assert any("1 requests without token counts left out" in note for note in table.notes)


@pytest.mark.parametrize(
    "line",
    ['INFO: 10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK', RECEIVED.format(1, "a1") + "max_tokens=9)"],
)
def test_request_lines_without_counts_say_how_to_log_them(tmp_path, line):
    with pytest.raises(TraceError, match=r"2 lines of requests tell no token counts.*--enable-log-outputs.*SGLang"):
        read_requests(written(tmp_path, f"starting\n{line}\n{line}\n"))


def test_the_nearest_format_is_named_with_what_it_lacks(tmp_path):
    with pytest.raises(TraceError, match="nearest is burstgpt, which lacks Response tokens"):
        read_requests(written(tmp_path, "Timestamp,Request tokens,Model\n1,2,a\n"))


@pytest.mark.parametrize(
    "text",
    [
        "date,timestamp,input_tokens,output_tokens\n2026-07-01,1784000003.5,10,2\n2026-07-01,1784000004,9,2\n",
        "arrival_s,requests,input_tokens,output_tokens\n0.5,1,10,2\n0.9,1,9,2\n",
        "start_time,end_time,input_tokens,output_tokens\n1784000000,1784000007,10,2\n1784000001,1784000003,9,2\n",
    ],
)
def test_requests_beside_dates_and_counts_of_one_are_requests(tmp_path, text):
    file = tmp_path / "log.csv"
    file.write_text(text)
    assert len(read_requests(file)) == 2


@pytest.mark.parametrize("name", ["prompt_chars", "inputBytes", "prompt_words", "input_characters"])
def test_characters_bytes_and_words_are_never_tokens(tmp_path, name):
    file = tmp_path / "log.csv"
    file.write_text(f"arrival_s,{name},output_tokens\n0.5,400,20\n")
    for columns in (None, {"input": name}):
        with pytest.raises(TraceError, match=f"'{name}' counts no tokens"):
            read_requests(file, columns=columns)


@pytest.mark.parametrize("name", ["input_ktokens", "promptTokensK", "Input (thousands)", "prompt_x1000", "input_M"])
def test_columns_of_thousands_are_never_tokens(tmp_path, name):
    file = tmp_path / "log.csv"
    file.write_text(f"arrival_s,{name},output_tokens\n0.5,4,20\n")
    for columns in (None, {"input": name}):
        with pytest.raises(TraceError, match=r"counts thousands or millions of tokens: add a column of single tokens"):
            read_requests(file, columns=columns)


def test_dates_in_two_columns_and_decimal_commas_get_their_way_out(tmp_path):
    file = tmp_path / "log.csv"
    file.write_text("date,time,prompt_tokens,completion_tokens\n2026-07-01,09:30:00,10,20\n")
    with pytest.raises(TraceError, match="two columns, 'date' and 'time'; join them in one, such as '2026-07-01 09:30"):
        read_requests(file)
    file.write_text("ts;prompt_tokens;completion_tokens\n0,5;10;20\n")
    with pytest.raises(TraceError, match=r"ts: '0,5' is not a time .*; write 0\.5, numbers have a decimal point"):
        read_requests(file)
