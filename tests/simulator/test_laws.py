"""Every law of ``simulator.laws`` is broken on purpose, one at a time, in records of runs that keep them all."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_scenario import tiny_data

from hwprofiles import load_chip
from simulator.cli import main
from simulator.errors import LawBrokenError
from simulator.laws import check_laws
from simulator.run import simulate
from simulator.scenario import scenario_from

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": {"alpha": 0.6}}


def scenario(**changes):
    return scenario_from(tiny_data() | changes, "tiny")


@pytest.fixture(scope="module")
def closed():
    workload = tiny_data()["workload"] | {"arrivals": {"process": "closed-loop", "max_concurrency": 3}}
    return simulate(scenario(workload=workload, speculation=SPECULATION), seed=1)


def judged(result, chips=None, max_concurrency=3, **changes):
    """The law that records break, None if they keep all."""
    chip = load_chip(result.scenario.hardware.chip)
    parts = {"requests": result.requests, "steps": result.steps, "kv": result.kv, "speculation": result.speculation}
    parts |= changes
    try:
        check_laws(result.scenario, result.seed, chip, chips or result.chips, **parts, max_concurrency=max_concurrency)
    except LawBrokenError as error:
        return error.law
    return None


def changed(records, column, row, value):
    """Records with one value changed; ``value`` is told the old one."""
    values = getattr(records, column).copy()
    values[row] = value(values[row])
    return replace(records, **{column: values})


def test_a_good_run_keeps_every_law(closed):
    assert judged(closed) is None


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("finished_s", lambda t: np.nan, "neither finished nor refused"),
        ("failed", lambda f: True, "neither finished nor refused"),
        ("scheduled_s", lambda t: t - 1e6, "scheduled_s"),
        ("first_token_s", lambda t: t - 1e6, "first_token_s"),
        ("finished_s", lambda t: 0.0, "finished_s 0 is before first_token_s"),
        ("arrival_s", lambda t: t + 1e6, "scheduled_s"),
        ("output_tokens", lambda n: n + 1, "requests received"),
        ("input_tokens", lambda n: n + 1, "prompt tokens"),
        ("input_tokens", lambda n: n - 1, "prompt tokens"),
        ("cached_tokens", lambda n: n - 1, "prompt tokens"),
    ],
)
def test_a_broken_request_is_told(closed, column, value, told):
    row = len(closed.requests) // 2
    assert told in judged(closed, requests=changed(closed.requests, column, row, value))


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("seconds", lambda t: t / 1e4, "at the peak of 1 x h100-sxm"),
        ("seconds", lambda t: 0.0, "its FLOPs need"),
        ("seconds", lambda t: np.nan, "need"),
        ("flops", lambda n: n * 1e4, "its FLOPs need"),
        ("bytes", lambda n: n * 1e3, "its bytes need"),
        ("kv_blocks", lambda n: 10**9, "KV blocks"),
        ("kv_blocks", lambda n: -1, "KV blocks"),
        ("running", lambda n: 17, "17 sequences, there are 16"),
        ("output_tokens", lambda n: n + 1, "handed out"),
        ("prefill_tokens", lambda n: n + 1, "prompt tokens"),
        ("start_s", lambda t: t - 1.0, "a step starts"),
        ("start_s", lambda t: t + 1.0, "a step starts"),
    ],
)
def test_a_broken_step_is_told(closed, column, value, told):
    row = len(closed.steps) // 2
    assert told in judged(closed, steps=changed(closed.steps, column, row, value))


def test_no_step_may_pass_a_whole_machine(closed):
    """As many FLOPs as the peak allows in each step, but more steps side by side than there are chips."""
    steps, chip = closed.steps, load_chip("h100-sxm")
    full = steps.seconds * max(chip.compute.dense_flops_per_s.values())
    two, handed = np.concatenate, ("output_tokens", "prefill_tokens")
    doubled = replace(
        steps,
        **{name: two((column, column)) for name, column in steps.columns().items()}
        | {"replica": two((steps.replica, steps.replica + 1)), "flops": two((full, full))}
        | {name: two((column, 0 * column)) for name, column in steps.columns().items() if name in handed},
    )
    assert "of the FLOP/s of 1 x h100-sxm" in judged(closed, steps=doubled, chips=1)
    assert judged(closed, steps=doubled, chips=2) is None


def test_more_requests_at_once_than_the_loop_holds(closed):
    """Little's law: the same latencies within a loop of one client cannot be."""
    assert "in a closed loop of 1" in judged(closed, max_concurrency=1)


def test_draft_tokens_accepted_beyond_those_drafted(closed):
    counters = closed.speculation
    assert "draft tokens were accepted" in judged(closed, speculation=replace(counters, accepted_tokens=10**9))
    rising = (counters.num_drafts + 1, *counters.accepted_per_position[1:])
    assert "by position" in judged(closed, speculation=replace(counters, accepted_per_position=rising))


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["h100-sxm", "rtx-4090", "n150", "mi300x"]),
    st.sampled_from([None, SPECULATION]),
    st.sampled_from(["vllm-v1", "prefill-first", "sglang", "static"]),
    st.sampled_from([{}, {"tensor_parallel": 2}, {"replicas": 3}]),
    st.sampled_from([None, 40]),
    st.integers(0, 99),
)
def test_no_sound_run_is_accused(chip, speculation, scheduler, layout, blocks, seed):
    """``simulate`` raises by itself where a law is broken."""
    engine = {"max_num_seqs": 4, "scheduler": scheduler, "num_kv_blocks": blocks and 10 * blocks}
    result = simulate(
        scenario(hardware={"chip": chip, **layout}, speculation=speculation, engine=engine, weights_dtype="bf16"), seed
    )
    assert result.engine.steps > 0


def test_the_command_keeps_the_scenario_of_a_broken_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    data = tiny_data()
    (tmp_path / "tiny.json").write_text(json.dumps(data))
    with monkeypatch.context() as patched:
        patched.setattr("simulator.laws.LIGHT_TOLERANCE", -0.9999)
        assert main(["run", "tiny.json", "--seed", "5"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "fault of Forerun: step 0 takes" in lines[0]
    kept = next(tmp_path.glob("forerun-broken-law-*.json"))
    assert lines[0].endswith(f"forerun run {kept.name} --seed 5")
    assert json.loads(kept.read_text()) == data
    assert main(["run", kept.name, "--seed", "5"]) == 0


def test_where_nothing_can_be_written_the_scenario_stands_in_the_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    monkeypatch.setattr("simulator.laws.LIGHT_TOLERANCE", -0.9999)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simulator.metrics.files.write_text_atomically", full)
    assert main(["run", str(tmp_path / "tiny.json")]) == 3
    assert '"model":"llama-3.2-1b"' in capsys.readouterr().err


def test_the_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(LawBrokenError("a law", "{}", 7)))
    assert (error.law, error.scenario, error.seed) == ("a law", "{}", 7)
    assert "seed 7" in str(error)
