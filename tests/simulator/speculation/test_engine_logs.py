"""Acceptance from the files that engines write, each in its own format."""

import csv
import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import ForerunError
from simulator.speculation import LevelDecay, fit_survival, read_acceptance
from simulator.speculation.engine_logs import fit_acceptance, lengths_by_tokens

VLLM_LINE = (
    "(APIServer pid=1) INFO 05-30 07:21:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.89, "
    "Accepted throughput: 0.36 tokens/s, Drafted throughput: 1.15 tokens/s, Accepted: 104 tokens, Drafted: 330 tokens, "
    "Per-position acceptance rate: 0.691, 0.491, 0.291, 0.182, 0.164, 0.073, Avg Draft acceptance rate: 31.5%"
)
OTHER_LINE = "INFO 05-30 07:21:10 [loggers.py:271] Engine 000: Avg prompt throughput: 453.7 tokens/s, Running: 0 reqs"
SGLANG_ARGUMENTS = (
    "[2026-01-27 11:01:00] server_args=ServerArgs(model_path='m', speculative_algorithm='EAGLE', "
    "speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4, max_running_requests=64)"
)
SGLANG_LINES = [
    "[2026-01-27 11:02:00 TP0] Decode batch, #running-req: 8, #token: 900, token usage: 0.01, accept len: 2.00, "
    "accept rate: 0.33, cuda graph: True, gen throughput (token/s): 900.11, #queue-req: 0",
    "[2026-01-27 11:02:02 TP0] Decode batch. #running-req: 24, #token: 900, token usage: 0.01, accept len: 3.00, "
    "gen throughput (token/s): 900.11, #queue-req: 0",
]
SCRAPE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} %d
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} %d
vllm:num_requests_running{engine="0",model_name="m"} 3.0
"""


@pytest.fixture
def written(tmp_path):
    def write(text, name="engine.log"):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else "\n".join(text) + "\n")
        return path

    return write


def test_vllm_lines_give_the_counts_behind_them(written):
    """330 drafted tokens at six per draft are 55 drafts; 104 accepted."""
    log = read_acceptance(written([OTHER_LINE, VLLM_LINE, "noise", VLLM_LINE]))
    assert (log.format, log.records, log.num_speculative_tokens) == ("vllm-log", 2, 6)
    assert (log.num_drafts, log.draft_tokens, log.accepted_tokens) == (110, 660, 208)
    assert log.per_position == pytest.approx((0.691, 0.491, 0.291, 0.182, 0.164, 0.073))
    assert log.acceptance_length == pytest.approx(1 + 104 / 55, abs=2e-3)


def test_two_scrapes_leave_what_happened_between(written):
    text = SCRAPE % (1000, 2000, 1100, 700, 400) + SCRAPE % (3000, 6000, 3300, 2300, 1000)
    log = read_acceptance(written(text))
    assert (log.num_drafts, log.accepted_tokens, log.records) == (2000, 2200, 2)
    assert log.per_position == (0.8, 0.3)


def test_engines_are_summed_and_models_kept_separate(written):
    one = SCRAPE % (100, 200, 110, 70, 40)
    log = read_acceptance(written(one + one.replace('engine="0"', 'engine="1"')))
    assert log.num_drafts == 200
    with pytest.raises(ForerunError, match="counters of 2 models"):
        read_acceptance(written(one + one.replace('model_name="m"', 'model_name="other"')))
    with pytest.raises(ForerunError, match="restart"):
        read_acceptance(written(SCRAPE % (1000, 2000, 1100, 700, 400) + SCRAPE % (10, 20, 11, 7, 4)))


def test_benchmark_json_of_vllm_and_our_own_summary(written):
    keys = {
        "spec_decode_acceptance_rate": 50.0,
        "spec_decode_acceptance_length": 2.8,
        "spec_decode_num_drafts": 5,
        "spec_decode_draft_tokens": 15,
        "spec_decode_accepted_tokens": 9,
        "spec_decode_per_position_acceptance_rates": [1.0, 0.6, 0.2],
    }
    plain = read_acceptance(written(json.dumps(keys), "bench.json"))
    nested = read_acceptance(written(json.dumps({"summary": keys}), "summary.json"))
    assert plain.per_position == nested.per_position == (1.0, 0.6, 0.2)
    assert (plain.format, plain.num_speculative_tokens, plain.num_drafts) == ("vllm-bench", 3, 5)
    del keys["spec_decode_per_position_acceptance_rates"]
    assert read_acceptance(written(json.dumps(keys), "bench.json")).num_speculative_tokens == 3
    with pytest.raises(ForerunError, match="was speculation on"):
        read_acceptance(written('{"completed": 3}', "bench.json"))
    with pytest.raises(ForerunError, match="must be a number"):
        read_acceptance(written('{"spec_decode_acceptance_length": "2.8"}', "bench.json"))


def test_sglang_lines_weigh_by_their_running_requests(written):
    log = read_acceptance(written([SGLANG_ARGUMENTS, *SGLANG_LINES]))
    assert (log.format, log.records, log.num_speculative_tokens) == ("sglang-log", 2, 3)
    assert log.acceptance_length == pytest.approx((8 * 2.0 + 24 * 3.0) / 32)
    assert log.per_position is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no counts of accepted draft tokens"),
        ("SpecDecoding metrics: Mean acceptance length: 2.10\n", ":1: its SpecDecoding line lacks"),
        (OTHER_LINE, "SpecDecoding metrics:"),
        ("{", "has no counts"),
        ("vllm:spec_decode_num_drafts_total 0\n", "missing or 0"),
        (SCRAPE % (1000, 2000, 1100, 400, 700), "rises at position 2"),
        (SCRAPE % (1000, 2000, 2100, 1400, 700), "outside 0 to 1"),
        ('{"spec_decode_acceptance_length": 0.5}', "impossible"),
    ],
)
def test_other_files_are_refused_in_one_line(written, text, words):
    with pytest.raises(ForerunError, match=words) as error:
        read_acceptance(written(text))
    assert "\n" not in str(error.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(ForerunError, match="no such file"):
        read_acceptance(tmp_path / "absent.log")
    with pytest.raises(ForerunError, match="is a folder"):
        read_acceptance(tmp_path)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.sampled_from([None, 1.0, 50.0, 1e6]))
def test_any_shares_are_fitted(rates, drafts):
    survival = np.cumprod(rates).tolist()
    fit = fit_survival(survival, drafts)
    assert 0 <= fit.model.level <= 1
    assert fit.model.acceptance_length(len(rates)) <= len(rates) + 1
    numbers = (fit.level_error, fit.decay_error, fit.deviance, fit.length_error, fit.rate_error)
    assert all(np.isfinite(number) for number in numbers if number is not None)


def test_a_fit_reports_level_decay_and_the_block_to_paste(written):
    counts = (0.8 * np.cumprod([1.0, 0.72]) * 1000).round().astype(int)
    document = fit_acceptance([written(SCRAPE % (1000, 2000, counts.sum(), *counts))])
    fit = document["fit"]
    assert fit["level"] == pytest.approx(0.8, abs=1e-3)
    assert fit["decay"] == pytest.approx(0.9, abs=1e-3)
    assert fit["level_error"] == pytest.approx((0.8 * 0.2 / 1000) ** 0.5, rel=0.05)
    assert fit["length_error_percent"] < 0.05
    assert fit["rate_error"] < 1e-3
    assert document["acceptance"] == {"per_position": [0.8, 0.576]}
    assert document["acceptance_by_decay"] == pytest.approx({"alpha": 0.8, "decay": 0.9}, abs=1e-3)
    assert document["logs"][0]["conditional"] == pytest.approx([0.8, 0.72])
    lengths = {row["num_speculative_tokens"]: row["acceptance_length"] for row in document["predicted_lengths"]}
    assert lengths == {k: pytest.approx(LevelDecay(0.8, 0.9).acceptance_length(k), abs=4e-3) for k in range(1, 9)}
    json.dumps(document, allow_nan=False)
    with pytest.raises(ForerunError, match="give the file of an engine"):
        fit_acceptance([])


def test_one_length_is_no_decay(written):
    document = fit_acceptance([written([SGLANG_ARGUMENTS, *SGLANG_LINES])])
    assert document["fit"]["decay"] is None
    assert document["acceptance"] == {"acceptance_length": 2.75}
    assert document["acceptance_by_decay"] is None
    assert document["predicted_lengths"] is None
    assert fit_acceptance([written(SGLANG_LINES)])["fit"] is None


def test_runs_of_different_depths_are_fitted_together(written):
    deeper = [line.replace("2.00", "2.40").replace("3.00", "3.60") for line in SGLANG_LINES]
    files = [
        written([SGLANG_ARGUMENTS, *SGLANG_LINES], "k3.log"),
        written([SGLANG_ARGUMENTS.replace("num_steps=3", "num_steps=6"), *deeper], "k6.log"),
    ]
    document = fit_acceptance(files)
    assert document["fit"]["at"] == [3, 6]
    assert document["fit"]["length_error_percent"] < 1e-4
    assert document["acceptance"] is None
    logs = read_acceptance(files[0]), read_acceptance(written(SGLANG_LINES))
    for others, message in ((logs[:1], "a second file with 3"), (logs[1:], "states no draft tokens per step")):
        with pytest.raises(ForerunError, match=message):
            lengths_by_tokens([logs[0], *others])


def test_measured_counters_are_fitted(shared_data):
    """gpt-oss-120b EAGLE-3: the level is the first position's rate, the length meets the measured one within 2 %."""
    with (shared_data / "serving" / "gptoss_eagle3_per_position_acceptance.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if int(row["num_spec_tokens"]) > 1]
    assert rows
    for row in rows:
        positions = int(row["num_spec_tokens"])
        survival = [float(row[f"pos{i}_accept_rate"]) for i in range(positions)]
        fit = fit_survival(survival, float(row["drafts"]))
        assert fit.model.level == pytest.approx(survival[0], abs=0.03)
        assert fit.model.acceptance_length(positions) == pytest.approx(float(row["accept_length"]), rel=0.02)


LLAMA_LINE = (
    "0.09.401.679 I slot print_timing: id  1 | task 90 | draft acceptance = 0.54671 (  158 accepted /   289 generated)"
    ", mean acceptance length =  2.63, acceptance rate per position = (0.742, 0.536, 0.361)"
)
V0_LINE = (
    "INFO 03-01 10:00:0{0} [metrics.py:477] Speculative metrics: Draft acceptance rate: 0.600, System efficiency: "
    "0.500, Number of speculative tokens: 3, Number of accepted tokens: {0}6, Number of draft tokens: {0}00, Number of "
    "emitted tokens: 999."
)
ITERATION = {"numDraftTokens": 30, "numAcceptedTokens": 15, "numRequestsWithDraftTokens": 10, "acceptanceLength": 2.5}
ANSWER = {"meta_info": {"spec_accept_histogram": [2, 3, 5], "spec_correct_drafts_histogram": [2, 3, 5]}}


@pytest.mark.parametrize(
    ("text", "format", "length", "rates"),
    [
        (LLAMA_LINE, "llama-server", 2.639, (0.742, 0.536, 0.361)),
        (LLAMA_LINE + "\n" + LLAMA_LINE, "llama-server", 2.639, (0.742, 0.536, 0.361)),
        (V0_LINE.format(5) + "\n" + V0_LINE.format(6), "vllm-log", 1 + 3 * 66 / 600, None),
        (json.dumps([{"specDecodingStats": ITERATION}] * 2, indent=1), "trtllm-stats", 2.5, None),
        (json.dumps({"specDecodingStats": ITERATION}), "trtllm-stats", 2.5, None),
        ("\n".join([json.dumps(ANSWER)] * 2), "sglang-histogram", 2.3, (0.8, 0.5)),
        ("\n".join(f"Finish: obj=X(), out={{'meta_info': {{'completion_tokens': {tokens}, 'cached_tokens': 1, "
                   f"'spec_accept_length': {length}}}}}" for tokens, length in ((90, 3.0), (10, 1.0))),
         "sglang-log", 2.5, None),
        ("2026-05-17 11:04:29.854 | 1.12.9 I statistics draft-mtp: #calls(b,g,a) = 1 4 4, #gen drafts = 4, #acc drafts "
         "= 2, #gen tokens = 8, #acc tokens = 3, dur(b,g,a) = 0.006, 21.272, 0.010 ms", "llama-server", 1.75, None),
        ("INFO SpecDecoding metrics: Mean acceptance length: 2.2,\nPer-position acceptance rate: 0.8, 0.4,\nAvg Draft "
         "acceptance rate: 60%\n\nINFO SpecDecoding metrics: Mean acceptance length: 1.8,\nPer-position acceptance "
         "rate: 0.6, 0.2,\nAvg Draft acceptance rate: 40%", "vllm-log", 2.0, (0.7, 0.3)),
        (f"[2026-08-02 23:42:16] Finish: obj=X(rid='r'), out={ANSWER}", "sglang-histogram", 2.3, (0.8, 0.5)),
    ],
)  # fmt: skip
def test_counts_of_every_engine(written, text, format, length, rates):
    log = read_acceptance(written(text))
    assert (log.format, log.acceptance_length) == (format, pytest.approx(length, abs=1e-3))
    assert log.per_position == (None if rates is None else pytest.approx(rates))


@pytest.mark.parametrize("width", [40, 80, 133])
@pytest.mark.parametrize("indent", ["", "  "])
@pytest.mark.parametrize("line", [VLLM_LINE, LLAMA_LINE])
def test_wrapped_lines_are_read_whole(written, width, indent, line):
    pieces = [line[at : at + width] for at in range(0, len(line), width)]
    wrapped = ("\r\n" + indent).join(pieces)
    log, plain = read_acceptance(written([OTHER_LINE, wrapped, OTHER_LINE])), read_acceptance(written(line))
    assert (log.per_position, log.num_drafts) == (plain.per_position, plain.num_drafts)


def test_compressed_logs_are_read(tmp_path):
    path = tmp_path / "engine.log.gz"
    path.write_bytes(gzip.compress(VLLM_LINE.encode()))
    assert read_acceptance(path).num_drafts == 55
    path.write_bytes(gzip.compress(VLLM_LINE.encode())[:40])
    with pytest.raises(ForerunError, match="gzip data is damaged"):
        read_acceptance(path)


def test_a_few_drafts_that_were_all_accepted_are_no_certainty(written):
    """61 drafts: the rate is Jeffreys' posterior mean, and its interval counts ten tokens of an answer as one."""
    line = "SpecDecoding metrics: Accepted: {0} tokens, Drafted: {0} tokens, Per-position acceptance rate: 1.000, 1.000"
    document = fit_acceptance([written(line.format(122))])
    assert document["fit"]["level"] == pytest.approx(61.5 / 62, abs=1e-3)
    assert document["rate_factors"] == [pytest.approx(0.857, abs=0.01), 1.0]
    last = document["predicted_lengths"][-1]
    assert last["low"] < 6 < 8 < last["acceptance_length"] < 9
    many = fit_acceptance([written(line.format(200_000))])
    assert many["rate_factors"][0] > 0.999
    assert many["predicted_lengths"][-1]["acceptance_length"] > 8.99
