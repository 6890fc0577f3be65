"""Rates in what llama.cpp prints."""

import pytest

from traces import TraceError
from traces.llama_cpp import read_llama_cpp

SERVER = """\
slot launch_slot_: id  0 | task 689 | processing task
slot print_timing: id  0 | task 689 |
prompt eval time =     900.22 ms /    30 tokens (   30.01 ms per token,    33.33 tokens per second)
       eval time =   14323.78 ms /   192 tokens (   74.60 ms per token,    13.40 tokens per second)
      total time =   15224.00 ms /   222 tokens
draft acceptance rate = 0.81944 (  118 accepted /   144 generated)
prompt eval time =     100.00 ms /    20 tokens (    5.00 ms per token,   200.00 tokens per second)
       eval time =    1000.00 ms /    50 tokens (   20.00 ms per token,    50.00 tokens per second)
draft acceptance = 0.50000 (   20 accepted /    40 generated), mean len =  2.00
       eval time =    2000.00 ms /   100 tokens (   20.00 ms per token,    50.00 tokens per second)
"""
BENCH = """\
| model         |     size |  params | backend | ngl |          test |             t/s |
| ------------- | -------: | ------: | ------- | --: | ------------: | --------------: |
| llama 7B Q4_0 | 3.56 GiB |  6.74 B | CUDA    |  99 |         pp512 | 14771.0 ± 30.1  |
| llama 7B Q4_0 | 3.56 GiB |  6.74 B | CUDA    |  99 | tg128 @ d4096 |    189.0 ± 0.3  |
| llama 7B Q4_0 | 3.56 GiB |  6.74 B | CUDA    |  99 |   pp512+tg128 |    550.0 ± 0.3  |
"""
BATCHED = """\
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |     32 |    8 |   4352 |    1.200 |  3413.33 |    1.310 |   195.40 |    2.510 |  1733.00 |
"""
METRICS = """\
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:prompt_tokens_total 1234
llamacpp:prompt_seconds_total 2.5
llamacpp:tokens_predicted_total 1000
llamacpp:tokens_predicted_seconds_total 20.5
"""
JSON = '[{"n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ts": 43.5}]'
TIMINGS = (
    '{"timings": {"prompt_n": 10, "predicted_n": 100, "predicted_ms": 2000.0, "draft_n": 90, "draft_n_accepted": 60}}'
)


def read(tmp_path, text):
    path = tmp_path / "file.log"
    path.write_text(text)
    return read_llama_cpp(path)


def test_a_server_log_says_each_request_and_what_its_drafts_came_to(tmp_path):
    prompt, first, _, second, third = read(tmp_path, SERVER)
    assert (prompt.kind, prompt.tokens) == ("prompt", 30)
    assert (first.tokens_per_s, first.context) == (pytest.approx(13.404, abs=1e-3), 30 + 96)
    assert (first.cycles, first.draft_tokens) == (74, pytest.approx(144 / 74))
    assert (second.accepted, second.drafted, second.cycles) == (20, 40, 30)
    assert (third.drafted, third.draft_tokens) == (0, 0.0)
    assert first.place.endswith("file.log:4")


@pytest.mark.parametrize(
    ("text", "kind", "rate", "streams", "context"),
    [
        (BENCH.replace("pp512 |", "pp0 |"), "decode", 189.0, 1, 4096 + 64),
        (BATCHED, "decode", 195.4, 8, 512 + 16),
        (METRICS.replace("prompt", "other"), "decode", 1000 / 20.5, 1, None),
        (JSON, "decode", 43.5, 1, 512 + 64),
        (TIMINGS, "decode", 50.0, 1, 60),
    ],
)
def test_tables_counters_and_json(tmp_path, text, kind, rate, streams, context):
    (result,) = read(tmp_path, text)
    assert (result.kind, result.streams, result.context) == (kind, streams, context)
    assert result.tokens_per_s == pytest.approx(rate)


def test_a_timing_says_its_drafts(tmp_path):
    (result,) = read(tmp_path, TIMINGS)
    assert (result.cycles, result.draft_tokens) == (40, 2.25)


@pytest.mark.parametrize(
    "text", ["", "nothing here\n", "{", "[1, 2]", '{"timings": 3}', "eval time = 0.00 ms / 5 tokens"]
)
def test_a_file_without_rates_is_refused(tmp_path, text):
    with pytest.raises(TraceError, match=r"file\.log: no rates of llama\.cpp found; give a llama-server log"):
        read(tmp_path, text)
