"""The analytic model against closed forms and against the event simulation."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario_parts import drafts, lognormal, on_h100, poisson

from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario
from simulator.serving import Fleet
from simulator.studies.steady_state.estimate import estimate, max_request_rate
from simulator.studies.steady_state.prices import verify_steps

PROMPTS = lognormal(700, 0.8, 4096)
EAGLE = drafts("eagle3", 3, acceptance={"per_position": [0.73, 0.52, 0.35]})
GRID = {
    "chat": {},
    "speculation": {"speculation": EAGLE},
    "four chips": {"model": "llama-3.1-70b", "hardware": {"chip": "h100-sxm", "tensor_parallel": 4}},
    "experts": {"model": "qwen3-30b-a3b", "engine": {"max_num_seqs": 128}},
    "narrow budget": {"engine": {"max_num_batched_tokens": 512}},
    "prefill first": {"engine": {"scheduler": "prefill-first"}},
    "short outputs": {"input_tokens": 2000, "output_tokens": 16},
    "two replicas": {"hardware": {"chip": "a100-sxm-80gb", "replicas": 2}},
}
"""Parts of a scenario by name."""


def scenario(arrivals=None, requests=100, input_tokens=PROMPTS, output_tokens=150, **parts):
    workload = poisson(1.0, requests, input_tokens, output_tokens)
    return on_h100(workload | ({"arrivals": arrivals} if arrivals else {}), **parts)


@pytest.mark.parametrize("name", GRID)
def test_averages_are_those_of_the_simulation_away_from_saturation(name):
    top = max_request_rate(scenario(**GRID[name]))
    for load in (0.2, 0.6):
        requested = scenario({"process": "poisson", "request_rate": load * top}, 1500, **GRID[name])
        model, run = estimate(requested), simulate(requested, 1).summary
        assert model.mean_tpot_s * 1e3 == pytest.approx(run["mean_tpot_ms"], rel=0.15)
        assert model.mean_ttft_s * 1e3 == pytest.approx(run["mean_ttft_ms"], rel=0.25)
        assert model.output_throughput == pytest.approx(load * top * GRID[name].get("output_tokens", 150))


@pytest.mark.parametrize("name", ["chat", "speculation", "narrow budget", "short outputs"])
def test_highest_rate_is_what_an_overloaded_engine_completes(name):
    top = max_request_rate(scenario(**GRID[name]))
    run = simulate(scenario({"process": "poisson", "request_rate": 1.5 * top}, 3000, **GRID[name]), 1)
    ends = np.sort(run.requests.finished_s)
    low, high = int(0.35 * len(ends)), int(0.75 * len(ends))
    assert top == pytest.approx((high - low) / (ends[high] - ends[low]), rel=0.1)


@pytest.mark.parametrize(("framework", "prompt"), [("sglang", 1500), ("vllm", 20_000)])
def test_highest_rate_of_attention_groups_whose_prompts_exceed_one_groups_budget(framework, prompt):
    """Eight groups share a step; a prompt is computed by one of them, within that group's token budget."""
    hardware = {"chip": "b200-sxm", "attention_data_parallel": 8}
    engine = {"framework": framework, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
    parts = {"model": "deepseek-v3", "hardware": hardware, "engine": engine}
    parts["input_tokens"] = lognormal(prompt, 0.5, 4 * prompt)
    top = max_request_rate(scenario(**parts))
    run = simulate(scenario({"process": "poisson", "request_rate": 1.5 * top}, 1000, **parts), 1)
    ends = np.sort(run.requests.finished_s)
    assert top == pytest.approx(400 / (ends[750] - ends[350]), rel=0.2)


@pytest.mark.parametrize("parts", [{}, {"speculation": EAGLE}, {"input_tokens": 12_000, "output_tokens": 40}])
def test_one_user_waits_for_nobody(parts):
    single = scenario({"process": "closed-loop", "max_concurrency": 1}, 40, **{"input_tokens": 512} | parts)
    model, run = estimate(single), simulate(single, 3).summary
    assert model.mean_e2e_s * 1e3 == pytest.approx(run["mean_e2el_ms"], rel=0.03)
    assert model.mean_tpot_s * 1e3 == pytest.approx(run["mean_tpot_ms"], rel=0.05)


def test_closed_loop_keeps_its_concurrency_and_never_beats_the_highest_rate():
    plain = scenario(input_tokens=512)
    top, before = max_request_rate(plain), 0.0
    for users in (1, 3, 20, 150, 1000):
        model = estimate(plain, concurrency=users)
        assert model.request_rate * model.mean_e2e_s == pytest.approx(users)
        assert before < model.request_rate <= top * 1.0001
        before = model.request_rate
    assert before == pytest.approx(top, rel=0.01)


@settings(max_examples=15, deadline=None)
@given(
    load=st.floats(0.02, 0.95),
    cv=st.floats(0.1, 2.0),
    output=st.integers(1, 400),
    seqs=st.sampled_from([1, 4, 256]),
    budget=st.sampled_from([64, 256, 2048]),
)
def test_invariants_that_hold_for_any_load(load, cv, output, seqs, budget):
    prompts = lognormal(300, cv, 4000)
    engine = {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
    requested = scenario(input_tokens=prompts, output_tokens=output, engine=engine)
    top = max_request_rate(requested)
    model = estimate(requested, request_rate=load * top)
    assert model.concurrency == pytest.approx(model.request_rate * model.mean_e2e_s)
    assert sum(model.bottleneck.values()) == pytest.approx(1.0)
    assert model.batch <= model.max_batch
    more = estimate(requested, request_rate=min(0.99, 1.02 * load) * top)
    assert more.mean_e2e_s >= model.mean_e2e_s
    assert (model.mean_tpot_s is None) == (output == 1)


@pytest.mark.parametrize("budget", [128, 256, 512, 2048])
def test_prompts_of_several_steps_set_the_highest_rate(budget):
    """Each step is full: B of the budget's tokens decode, the rest are of prompts, and B / n requests end in it."""
    arguments = {"input_tokens": 4000, "output_tokens": 20, "engine": {"max_num_batched_tokens": budget}}
    model = estimate(scenario(**arguments), request_rate=1.0)
    assert model.limited_by == "tokens"
    run = simulate(scenario({"process": "burst"}, 250, **arguments), 0)
    ends = np.sort(run.requests.finished_s)
    assert model.max_request_rate == pytest.approx(150 / (ends[225] - ends[75]), rel=0.06)


def test_more_than_can_be_served_has_no_latency():
    model = estimate(scenario(), request_rate=1e5)
    assert model.saturated
    assert (model.mean_ttft_s, model.mean_e2e_s, model.concurrency) == (None, None, None)
    assert model.output_throughput == pytest.approx(model.max_request_rate * 150)


def test_verify_steps_are_the_renewal_function():
    survival = np.array([0.7, 0.4, 0.1])
    chances = -np.diff(np.concatenate(([1.0], survival, [0.0])))
    wanted = [0.0]
    for tokens in range(1, 60):
        wanted.append(1.0 + sum(p * wanted[max(0, tokens - 1 - i)] for i, p in enumerate(chances)))
    result = verify_steps(np.arange(60, dtype=float), survival)
    assert result[20:] == pytest.approx(wanted[20:], rel=1e-6)
    assert result == pytest.approx(wanted, rel=0.2)
    assert verify_steps(np.array([0.0, 7.0]), None).tolist() == [0.0, 7.0]
    assert estimate(scenario(speculation=EAGLE)).acceptance_length == pytest.approx(2.6)


def test_answers_without_simulating(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("an event simulation was started")

    monkeypatch.setattr(Fleet, "run", refuse)
    plain = scenario()
    first = estimate(plain, request_rate=4.0)
    assert estimate(plain, request_rate=4.0) == first


def test_scenario_says_its_own_load(project_root):
    chat = load_scenario(project_root / "examples" / "chat-h100.yaml")
    assert estimate(chat).request_rate == pytest.approx(4.62, rel=0.01)
    faster = chat.with_values({"workload.arrivals": {"process": "trace", "rate_scale": 3.0}})
    assert estimate(faster).request_rate == pytest.approx(3 * estimate(chat).request_rate)
    assert estimate(scenario({"process": "closed-loop", "max_concurrency": 7})).concurrency == 7


def test_shared_prefixes_are_detected_as_the_engine_finds_them(tmp_path):
    times_ms = np.random.default_rng(4).exponential(400, 600).cumsum().astype(int).tolist()
    trace = tmp_path / "shared.jsonl"
    with trace.open("w") as file:
        for i, time_ms in enumerate(times_ms):
            hashes = [*range(i % 3 * 4, i % 3 * 4 + 4), 99 + i]
            row = {"timestamp": time_ms, "input_length": 2560, "output_length": 60, "hash_ids": hashes}
            file.write(json.dumps(row) + "\n")
    shared = on_h100({"trace": str(trace)})
    assert simulate(shared, 0).kv.prefix_hit_tokens == 597 * 2048
    disaggregated = shared.with_values({"engine.enable_prefix_caching": False})
    for requested in (shared, disaggregated):
        mean_ttft_ms = simulate(requested).summary["mean_ttft_ms"]
        assert estimate(requested).mean_ttft_s * 1e3 == pytest.approx(mean_ttft_ms, rel=0.1)
    assert estimate(shared).mean_ttft_s < 0.6 * estimate(disaggregated).mean_ttft_s


def test_a_changed_file_is_read_anew(tmp_path):
    trace = tmp_path / "trace.csv"
    for times, rate in (((0, 1, 2), 1.0), ((0, 0.5), 2.0)):
        trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{at},10,5\n" for at in times))
        assert estimate(on_h100({"trace": str(trace)})).request_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("parts", "load", "words"),
    [
        ({"engine": {"scheduler": "static"}}, {}, "static batching"),
        ({}, {"request_rate": 1.0, "concurrency": 1.0}, "not both"),
        ({}, {"request_rate": -1.0}, "positive"),
        ({"input_tokens": 200_000}, {}, "no request can be served"),
        ({"model": "llama-3.1-405b"}, {}, "does not fit"),
    ],
)
def test_what_it_refuses(parts, load, words):
    with pytest.raises(ForerunError, match=words):
        estimate(scenario(**parts), **load)
