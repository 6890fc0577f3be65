"""Every invariant is broken on purpose, one at a time, in records of runs that keep them all."""

import json
import pickle
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from scenario_parts import drafts
from tiny_scenario import tiny_data

from forerun.errors import InvariantError
from hwprofiles import load_chip
from simulator.running.invariants import FinishedRun, StepAudit, broken
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from

SPECULATION = drafts("ngram", 3, 0.6)
CLOSED = {"process": "closed-loop", "max_concurrency": 3}
DISAGGREGATED = {
    "prompts": {"role": "prefill", "hardware": {"replicas": 2}},
    "answers": {"role": "decode", "hardware": {"chip": "a100-sxm-80gb"}},
}


def scenario(**changes):
    return scenario_from(tiny_data() | changes, "tiny")


def outcome_of(run, seed=1):
    """What is looked at of a run, its steps as records."""
    seen = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("simulator.running.run.broken", seen.append)
        result = simulate(run, seed)
    return SimpleNamespace(
        **{field.name: getattr(seen[0], field.name) for field in fields(FinishedRun) if field.init}
        | {"steps": result.steps}
    )


@pytest.fixture(scope="module")
def closed():
    return outcome_of(scenario(workload=tiny_data(arrivals=CLOSED)["workload"], speculation=SPECULATION))


@pytest.fixture(scope="module")
def disaggregated():
    return outcome_of(scenario(pools=DISAGGREGATED, kv_transfer={"link": "pcie5-x16"}))


@pytest.fixture(scope="module")
def staged():
    return outcome_of(scenario(hardware={"chip": "h100-sxm", "pipeline_parallel": 2}))


def judged(outcome, **changes):
    """The invariant that an outcome breaks with some of it changed, None if it keeps all."""
    return broken(looked_at(outcome, **changes))


def looked_at(outcome, **changes):
    """An outcome with some of it changed."""
    values = vars(outcome) | changes
    audit = StepAudit(values["pools"])
    half = len(values["steps"]) // 2  # seen in two parts, as where rows are handed over on the way
    for rows in (np.arange(half), np.arange(half, len(values["steps"]))):
        audit.take(values["steps"].take(rows))
    return FinishedRun(**values | {"steps": audit})


def changed(records, column, row, value):
    """Records with one value changed; ``value`` is called with the old one."""
    values = getattr(records, column).copy()
    values[row] = value(values[row])
    return replace(records, **{column: values})


def moved(records, column, amount):
    """Records with an amount moved from one row to another: sums that still add up do not hide it."""
    return changed(changed(records, column, 3, lambda n: n + amount), column, 4, lambda n: n - amount)


def test_a_good_run_keeps_every_invariant(closed, disaggregated, staged):
    for outcome in (closed, disaggregated, staged):
        assert judged(outcome) is None


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("finished_s", lambda t: np.nan, "neither finished nor refused"),
        ("failed", lambda f: True, "neither finished nor refused"),
        ("replica", lambda r: 7, "ended at replica 7, there are 1"),
        ("scheduled_s", lambda t: t - 1e6, "scheduled_s"),
        ("first_token_s", lambda t: t - 1e6, "first_token_s"),
        ("finished_s", lambda t: 0.0, "finished_s 0 is before first_token_s"),
        ("arrival_s", lambda t: t + 1e6, "scheduled_s"),
        ("output_tokens", lambda n: n + 1, "requests received"),
        ("input_tokens", lambda n: n + 1, "prompt tokens"),
        ("input_tokens", lambda n: n - 1, "prompt tokens"),
        ("cached_tokens", lambda n: n - 1, "prompt tokens"),
        ("drafts", lambda n: n + 1, "drafts, their tokens and the accepted ones"),
        ("draft_tokens", lambda n: n - 1, "drafts, their tokens and the accepted ones"),
        ("accepted_tokens", lambda n: n + 1, "drafts, their tokens and the accepted ones"),
    ],
)
def test_a_broken_request_is_reported(closed, column, value, message):
    row = len(closed.requests) // 2
    assert message in judged(closed, requests=changed(closed.requests, column, row, value))


def test_a_later_request_is_not_scheduled_first(disaggregated):
    """Two requests of one prefill replica change places, each between its arrival and its first token."""
    times = disaggregated.requests.arrival_s.copy()
    same = np.flatnonzero(disaggregated.prompt_replica == disaggregated.prompt_replica[0])[:2]
    times[same] = times[same[::-1]] - 1e3
    message = judged(disaggregated, requests=replace(disaggregated.requests, arrival_s=times))
    assert f"request {same[0]} was scheduled before request {same[1]}" in message


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("seconds", lambda t: t / 1e4, "at the peak"),
        ("seconds", lambda t: 0.0, "takes no time"),
        ("seconds", lambda t: np.nan, "takes no time"),
        ("flops", lambda n: n * 1e4, "its FLOPs of 1 x h100-sxm need"),
        ("bytes", lambda n: n * 1e3, "its bytes of 1 x h100-sxm need"),
        ("kv_blocks", lambda n: 10**9, "KV blocks"),
        ("kv_blocks", lambda n: -1, "KV blocks"),
        ("kv_blocks", lambda n: 1, "from 1 blocks"),
        ("running", lambda n: 17, "17 sequences, there are 16"),
        ("output_tokens", lambda n: n + 1, "handed out"),
        ("prefill_tokens", lambda n: n + 1, "prompt tokens"),
        ("start_s", lambda t: t - 1.0, "a step starts"),
        ("start_s", lambda t: t + 1.0, "a step starts"),
    ],
)
def test_a_broken_step_is_reported(closed, column, value, message):
    row = len(closed.steps) // 2
    assert message in judged(closed, steps=changed(closed.steps, column, row, value))


def rising(counters):
    return (counters.num_drafts + 1, *counters.accepted_per_position[1:])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("closed", lambda run: {"requests": moved(run.requests, "cached_tokens", 10_000)}, "prompt tokens cached"),
        ("closed", lambda run: {"requests": moved(run.requests, "drafts", 1000)}, "verify steps, there can be"),
        ("closed", lambda run: {"requests": moved(run.requests, "accepted_tokens", 1000)}, "accepted, there can be"),
        ("closed", lambda run: {"steps": moved(run.steps, "output_tokens", 50)}, "handed out"),
        ("closed", lambda run: {"steps": replace(run.steps, sol_s=100 * run.steps.sol_s)}, "kernels one by one need"),
        ("closed", lambda run: {"steps": changed(run.steps, "waiting", 5, lambda n: n + 100_000)}, "held requests for"),
        ("closed", lambda run: {"max_concurrency": 1}, "in a closed loop of 1"),
        ("closed", lambda run: {"speculation": replace(run.speculation, accepted_tokens=10**9)}, "were accepted"),
        (
            "closed",
            lambda run: {"speculation": replace(run.speculation, accepted_per_position=rising(run.speculation))},
            "by position",
        ),
        ("disaggregated", lambda run: {"blocks_left": 3}, "still held 3 KV blocks"),
        ("disaggregated", lambda run: {"transfers": run.transfers - 1}, "were sent between replicas"),
        ("disaggregated", lambda run: {"transfers": run.transfers + 1}, "were sent between replicas"),
        (
            "disaggregated",
            lambda run: {"requests": changed(run.requests, "replica", 3, lambda r: 0)},
            "ended in pool prompts, which only computes prompts",
        ),
        (
            "disaggregated",
            lambda run: {"steps": changed(run.steps, "prefill_tokens", 0, lambda n: n + 10**6)},
            "that were handed over one more each",
        ),
        ("staged", lambda run: {"stage_busy_s": 2.0 * run.stage_open_s}, "pipeline stages worked"),
        (
            "staged",
            lambda run: {"steps": replace(run.steps, start_s=run.steps.start_s / 1e3, seconds=run.steps.seconds / 1e3)},
            "the steps of replica 0 take",
        ),
    ],
)
def test_a_broken_run_is_reported(request, kind, changes, message):
    run = request.getfixturevalue(kind)
    assert message in judged(run, **changes(run))


def test_no_step_may_pass_a_whole_machine(closed):
    """As many FLOPs as the peak allows in each step, but more steps side by side than there are chips."""
    steps, chip = closed.steps, load_chip("h100-sxm")
    full = steps.seconds * max(chip.compute.dense_flops_per_s.values())
    two, handed = np.concatenate, ("output_tokens", "prefill_tokens", "running", "waiting")
    doubled = replace(
        steps,
        **{name: two((column, column)) for name, column in steps.columns().items()}
        | {"replica": two((steps.replica, steps.replica + 1)), "flops": two((full, full))}
        | {name: two((column, 0 * column)) for name, column in steps.columns().items() if name in handed},
    )
    assert judged(closed, steps=doubled) == "a step ran at replica 1, there are 1"
    assert judged(closed, steps=doubled, pools=(replace(closed.pools[0], replicas=2),)) is None
    outcome = looked_at(closed)
    outcome.steps.totals.flops[:] = 2.0 * outcome.elapsed_s * max(chip.compute.dense_flops_per_s.values())
    assert "used 200.0% of the FLOP/s of 1 x h100-sxm" in broken(outcome)


def test_a_request_sent_while_the_loop_was_full(closed):
    """On average there is room for it, at that moment there was none."""
    requests = closed.requests
    last = int(np.argmax(requests.arrival_s))
    earlier = changed(requests, "arrival_s", last, lambda t: np.partition(requests.finished_s, -4)[-4] - 1e-4)
    assert "sent while a closed loop of 3 was full" in judged(closed, requests=earlier)


def test_a_replica_is_not_busy_longer_than_the_run_lasts(staged):
    outcome = looked_at(staged)
    outcome.steps.totals.seconds[:] += 1e3
    assert "was busy for" in broken(outcome)


def test_each_pool_is_held_against_its_own_limits(disaggregated):
    """What the H100s may do in a step, the A100 may not; steps are named by pool."""
    steps, first = disaggregated.steps, int(np.argmax(disaggregated.steps.replica == 2))
    full = load_chip("h100-sxm").peak_flops("fp8") * 0.9
    message = judged(disaggregated, steps=changed(steps, "flops", first, lambda n: full * steps.seconds[first]))
    assert message.startswith(f"step {first} of pool answers takes")
    prompt = int(np.argmax(steps.replica == 0))
    assert judged(disaggregated, steps=changed(steps, "flops", prompt, lambda n: full * steps.seconds[prompt])) is None
    most = disaggregated.pools[1].limits.num_blocks + 1
    assert "of pool answers holds" in judged(disaggregated, steps=changed(steps, "kv_blocks", first, lambda n: most))


def test_the_command_keeps_the_scenario_of_a_broken_run(tmp_path, monkeypatch, forerun):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    with monkeypatch.context() as patched:
        patched.setattr("simulator.running.invariants.SOL_TOLERANCE", -0.9999)
        outcome = forerun("run", "tiny.json", "--seed", 5)
    (line,) = outcome.err.splitlines()
    assert (outcome.code, "fault of Forerun: step 0 takes" in line) == (3, True)
    kept = next(tmp_path.glob("forerun-broken-invariant-*.json"))
    assert line.endswith(f"forerun run {kept.name} --seed 5 --no-steps"), "as it ran: nothing was to be kept"
    assert json.loads(kept.read_text()) == tiny_data()
    assert forerun("run", kept.name, "--seed", 5, "--no-steps").code == 0


def test_where_nothing_can_be_written_the_scenario_stands_in_the_line(tmp_path, monkeypatch, forerun):
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    monkeypatch.setattr("simulator.running.invariants.SOL_TOLERANCE", -0.9999)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simulator.running.metrics.files.write_text_atomically", full)
    outcome = forerun("run", tmp_path / "tiny.json")
    assert (outcome.code, '"model":"llama-3.2-1b"' in outcome.err) == (3, True)


def test_the_error_survives_the_way_from_a_worker():
    error = pickle.loads(pickle.dumps(InvariantError("an invariant", "{}", 7)))
    assert (error.invariant, error.scenario, error.seed) == ("an invariant", "{}", 7)
    assert "seed 7" in str(error)


def test_parts_that_do_not_sum_to_their_step_are_reported(closed):
    steps = changed(closed.steps, "memory_s", len(closed.steps) // 2, lambda t: t + 1e-5)
    assert "its parts" in judged(closed, steps=steps)
