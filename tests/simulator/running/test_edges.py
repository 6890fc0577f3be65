"""Where runs once went wrong: far out in time, at the end of an answer, at the edge of memory, between unlike pools."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from both_engines import both_engines
from hypothesis import given
from hypothesis import strategies as st
from scenario_parts import burst, closed_loop, drafts, on_h100, uniform
from tiny_scenario import tiny_data

from forerun.errors import ForerunError, InvariantError, StalledError
from simulator.running.metrics import combine_replications, run_document
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving.clock import TICKS_PER_S, on_grid
from simulator.serving.engine.common import EXACT_S, _by_clock
from simulator.workload import generate_requests

NGRAM = drafts("ngram", 10, 0.5)


def tiny(workload=None, **changes):
    return scenario_from(tiny_data(**workload or {}) | changes, "tiny")


@pytest.mark.parametrize("roles", [("prefill", "decode", "decode"), ("decode", "prefill", "prefill")])
def test_a_request_goes_where_it_can_be_held(roles):
    """Of two pools of one role the smaller cannot hold it: the router and the transfers know."""
    pools = {name: {"role": role} for name, role in zip("abc", roles, strict=True)}
    pools["b"]["engine"] = {"num_kv_blocks": 20}
    result = simulate(tiny(burst(4, 500, 50), pools=pools))
    assert set(result.requests.replica.tolist()) == {roles.index("decode") if roles[0] == "decode" else 2}


def test_a_run_that_stands_still_is_a_fault_and_says_so(monkeypatch):
    monkeypatch.setattr("simulator.serving.request_source.ReplicaEndpoint.put", lambda endpoint, request: None)
    with pytest.raises(InvariantError, match="stands still at 0 s with 4 requests unfinished"):
        simulate(tiny(burst(4, 100, 20), router={"max_outstanding": 3}))
    assert not issubclass(StalledError, ForerunError)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("speculation", [None, NGRAM])
@pytest.mark.parametrize("seed", range(3))
def test_a_static_batch_with_speculation_stays_in_its_blocks(block_size, speculation, seed):
    """Padding repeats the step of its last token, whatever the drafts went past."""
    engine = {"scheduler": "static", "block_size": block_size, "max_num_seqs": 3}
    result = simulate(tiny(burst(9, 2, uniform(1, 30)), engine=engine, speculation=speculation), seed)
    assert not result.requests.failed.any()


@given(st.floats(0.0, 1e9), st.integers(1, 2**52))
def test_a_step_ends_where_the_clock_can_say_to_the_last_bit(now, ticks):
    """One step anywhere in thirty years: beginning, length and end are exact, and the end is a moment that the next
    can begin at; so they are after any number of steps, 1e9 or more."""
    now = on_grid(now) if now <= EXACT_S else now
    seconds = min(ticks / TICKS_PER_S, 1e4)
    counted = _by_clock(now, seconds)
    assert Fraction(now) + Fraction(counted) == Fraction(now + counted)
    assert abs(counted - seconds) <= np.spacing(now + seconds)
    assert now + counted > EXACT_S or on_grid(now + counted) == now + counted


def test_ten_days_at_full_load_keep_the_grid():
    """An engine that never rests: the seconds of its 18,000 steps, of 0.6 s to 580 s, are the time they took, to the
    last bit where doubles hold the sum; compiled and interpreted, in single rows and in condensed ones."""
    workload = burst(32, 40_000, 3000)
    engine = {"max_num_seqs": 4, "num_kv_blocks": 12_000, "max_num_batched_tokens": 2048, "entry_point": "offline"}
    slow = {"model": "llama-3.1-70b", "weights_dtype": "int4", "hardware": {"chip": "cpu-ddr4-2ch"}}
    ends = {}
    for stepping, rows in (("fast", None), ("fast", 1), ("exact-steps", 1)):
        result = simulate(on_h100(workload, **slow, engine=engine | {"stepping": stepping}), full_step_rows=rows)
        steps, ends[stepping, rows] = result.steps, result.requests.finished_s
        assert ends[stepping, rows].max() > 10 * 86_400
        assert ends[stepping, rows].max() == math.fsum([steps.start_s[0], *steps.seconds])
        assert np.all(steps.start_s[1:] >= steps.start_s[:-1] + steps.seconds[:-1] * (1 - 1e-12))
    assert all(np.array_equal(ends["fast", None], other) for other in ends.values())


@pytest.mark.parametrize("start_s", [1e6, 9.5e8])
def test_many_short_steps_far_out_keep_the_clock(tmp_path, start_s):
    """260,000 steps of 2 ms that begin far out: their seconds are the time that they took, to the last bit."""
    rows = "0,5,1\n" + f"{start_s!r},5,130000\n" * 2
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    data = tiny_data() | {"workload": {"trace": str(tmp_path / "trace.csv")}}
    data |= {"engine": {"max_num_seqs": 1, "entry_point": "offline"}}
    result = simulate(scenario_from(data, "far"))
    far = result.steps.start_s >= start_s
    assert result.steps.steps[far].sum() > 250_000
    end_s = math.fsum([result.steps.start_s[far][0], *result.steps.seconds[far]])
    assert end_s == result.requests.finished_s.max()


def test_a_run_that_outlasts_the_clock_is_refused():
    """Pauses that are each within it may add up to more."""
    sessions = {"turns": 12, "think_time_s": 1e9, "block_tokens": 16}
    with pytest.raises(ForerunError, match="simulated time, of which 1e\\+09 s can be resolved"):
        simulate(tiny({"sessions": sessions}))


def test_a_trace_with_fewer_rows_than_requested_says_so(tmp_path):
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n1,6,6\n")
    workload = {"trace": str(tmp_path / "trace.csv"), "num_requests": 5000}
    result = simulate(scenario_from(tiny_data() | {"workload": workload}, "trace"))
    assert sum("5000 requested" in note and "has 2" in note for note in result.notes) == 1
    short = scenario_from(tiny_data() | {"workload": workload | {"num_requests": 2}}, "trace")
    assert not any("requested" in note for note in generate_requests(short.workload, 0).notes)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"sessions": {"turns": 2, "think_time_s": 1.0, "system_prompt_tokens": 10**9}}, "workload.sessions"),
        ({"num_requests": 10**11}, "workload.num_requests: 100000000000 requests"),
    ],
)
def test_what_does_not_fit_in_memory_is_refused_before_it_is_made(monkeypatch, workload, message):
    monkeypatch.setattr("simulator.workload.memory.free_bytes", lambda: 8 << 30)
    with pytest.raises(ForerunError, match=f"{message}.* need about .* GiB of memory, 8 GiB are free"):
        generate_requests(tiny(workload).workload, 0)


def test_a_trace_that_does_not_fit_in_memory_is_refused_before_it_is_read_whole(tmp_path, monkeypatch):
    """Its first thousand requests tell how many there are; a bounded part of it is read."""
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},500,20\n" for n in range(5000)))
    monkeypatch.setattr("simulator.workload.generate.LARGE_FILE", 1000)
    monkeypatch.setattr("simulator.workload.memory.free_bytes", lambda: 2_000_000)
    message = r"workload.num_requests: all of .*trace.csv, about (4|5),\d\d\d requests, need about"
    whole, part = (tiny_data() | {"workload": {"trace": str(trace)} | count} for count in ({}, {"num_requests": 50}))
    with pytest.raises(ForerunError, match=message):
        generate_requests(scenario_from(whole, "whole").workload, 0)
    assert len(generate_requests(scenario_from(part, "part").workload, 0)) == 50


def test_replications_that_chance_has_no_part_in_have_no_spread():
    workload = {"arrivals": {"process": "constant", "request_rate": 7.0}, "input_tokens": 100, "output_tokens": 33}
    runs = [run_document(simulate(tiny(workload), seed)) for seed in range(5)]
    combined = combine_replications(runs)
    for key, (low, high) in combined["intervals"].items():
        assert low == high == combined["summary"][key], key


def test_an_alarm_keeps_the_result(tmp_path, monkeypatch, forerun):
    """It ends with exit 3, but what was computed is written, with a word of what is wrong, and is found again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    with monkeypatch.context() as patched:
        patched.setattr("simulator.running.invariants.SOL_TOLERANCE", -0.9999)
        arguments = ["--no-steps", "--out", "out", "--json", "run.json", "--replications", "2", "--jobs", "1"]
        outcome = forerun("run", "tiny.json", *arguments)
    assert outcome.code == 3
    assert outcome.err.strip().endswith("--seed 0 --no-steps")
    for file in (tmp_path / "out" / "summary.json", tmp_path / "run.json"):
        document = json.loads(file.read_text())
        assert document["summary"]["completed"] == 12
        assert "at the peak" in document["broken_invariant"]
        assert any("fault of Forerun" in note for note in document["notes"])


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-4-scout"])
def test_a_million_tokens_of_context(model):
    """Of full attention and of attention in chunks: each token is computed, and the fast way is the exact one."""
    hardware = {"chip": "b200-sxm", "tensor_parallel": 8}
    long = on_h100(burst(2, 1_000_000, 20), model=model, hardware=hardware, engine={"max_model_len": 2**20})
    for result in both_engines(long, full_step_rows=None):
        assert result.steps.prefill_tokens.sum() == 2_000_000
        assert result.kv.peak_blocks * result.kv.block_size >= 1_000_019


def test_an_answer_of_no_token_is_no_request_and_of_one_ends_with_its_first(tmp_path):
    with pytest.raises(ForerunError, match="output_tokens: must be greater than 0"):
        tiny({"output_tokens": 0})
    (tmp_path / "trace.csv").write_text("arrival_s,input_tokens,output_tokens\n0,5,0\n1,6,6\n")
    workload = {"trace": str(tmp_path / "trace.csv")}
    with pytest.raises(ForerunError, match=r"trace.csv:2: output_tokens: 0 tokens: at least 1 expected"):
        simulate(scenario_from(tiny_data() | {"workload": workload}, "trace"))
    skipped = simulate(scenario_from(tiny_data() | {"workload": workload | {"on_error": "skip"}}, "trace"))
    assert skipped.requests.output_tokens.tolist() == [6]
    one = simulate(tiny({"output_tokens": 1})).requests
    assert np.array_equal(one.finished_s, one.first_token_s)


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
def test_a_cache_smaller_than_a_request_refuses_that_one(stepping):
    """A request of at most 20 blocks of 16 tokens is served, any other is not; where none can be, nothing runs."""
    engine = {"num_kv_blocks": 20, "stepping": stepping}
    requests = simulate(tiny(burst(12, uniform(1, 600), 50), engine=engine)).requests
    fits = requests.input_tokens + requests.output_tokens <= 20 * 16
    assert 0 < fits.sum() < len(fits)
    assert np.array_equal(requests.failed, ~fits)
    assert np.array_equal(np.isfinite(requests.finished_s), fits)
    with pytest.raises(ForerunError, match=r"no request can be served here .* needs 35 KV blocks, the replica has 20"):
        simulate(tiny(burst(12, 500, 50), engine=engine))


LITTLE = closed_loop(4, 8, 60, 10)


@pytest.mark.parametrize("cached", [("prefill",), ("decode",), ()])
def test_pools_may_differ_in_prefix_caching(cached):
    """What a decode pool shares is in no request's record; without caching every key lies in a block of its own."""
    pools = {
        name: {"role": name, "engine": {"enable_prefix_caching": name in cached}} for name in ("prefill", "decode")
    }
    workload = {"trace": "mooncake-conversation", "num_requests": 60}
    result = simulate(on_h100(workload, pools=pools, kv_transfer={"link": "infiniband-ndr"}), intervals=True)
    assert bool(result.requests.cached_tokens.any()) == ("prefill" in cached)


@pytest.mark.parametrize("layers", [1, 8, 15])
def test_layers_on_a_faster_chip_are_held_against_its_limits(layers):
    hardware = {"chip": "cpu-ddr5-2ch", "layers_on": [{"chip": "rtx-4090", "layers": layers}]}
    run = on_h100(LITTLE, model="llama-3.2-1b", hardware=hardware, engine={"framework": "llama.cpp"})
    assert simulate(run, intervals=True).summary["completed"] == 8


@pytest.mark.parametrize("max_num_seqs", [1, 2, 4])
@pytest.mark.parametrize("framework", ["vllm", "sglang"])
def test_heads_of_attention_groups_draft_for_one_groups_batch_and_anothers_prompts(framework, max_num_seqs):
    groups = {"chip": "h100-sxm", "tensor_parallel": 2, "expert_parallel": 2, "attention_data_parallel": 2}
    engine = {"framework": framework, "max_num_seqs": max_num_seqs}
    run = on_h100(LITTLE, model="qwen3-30b-a3b", hardware=groups, engine=engine, speculation=drafts("medusa", 3))
    assert simulate(run, intervals=True).summary["completed"] == 8


def test_acceptance_without_a_method_has_no_part_in_the_intervals():
    run = on_h100(LITTLE, speculation={"method": "none", "acceptance": {"alpha": 0.7, "spread": 0.2}})
    error = simulate(run, intervals=True).model_error
    assert "acceptance" not in {axis["name"] for axis in error["axes"]}


def test_rows_that_decode_pools_share_hold_the_tokens_of_their_steps():
    """A prompt that arrives joins the batch without a chunk: a row of several steps ends before it."""
    pools = {"prompts": {"role": "prefill"}, "answers": {"role": "decode", "hardware": {"replicas": 2}}}
    loop = {"arrivals": {"max_concurrency": 12}, "input_tokens": 300, "output_tokens": 40, "num_requests": 48}
    scenario = scenario_from(
        {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "pools": pools, "workload": loop}, "pools"
    )
    whole, shared = (simulate(scenario, full_step_rows=rows) for rows in (None, 1))
    assert len(shared.steps) < len(whole.steps)
    assert shared.steps.output_tokens.sum() == whole.steps.output_tokens.sum()
    assert np.array_equal(shared.requests.finished_s, whole.requests.finished_s)


@pytest.mark.parametrize("policy", ["goodput", {"name": "confidence-budget"}])
def test_rows_that_policies_share_hold_the_draft_tokens_of_their_steps(policy):
    loop = {"arrivals": {"max_concurrency": 12}, "input_tokens": 300, "output_tokens": 400, "num_requests": 48}
    scenario = on_h100(loop, speculation=drafts("eagle3", 3, 0.6) | {"policy": policy})
    whole, shared = (simulate(scenario, full_step_rows=rows) for rows in (None, 1))
    assert len(shared.steps) < 0.8 * len(whole.steps)
    assert shared.steps.flops.sum() == pytest.approx(whole.steps.flops.sum(), rel=0.005)
    assert shared.steps.seconds.sum() == pytest.approx(whole.steps.seconds.sum())
    assert np.array_equal(shared.requests.finished_s, whole.requests.finished_s)
