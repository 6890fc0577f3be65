"""Whole runs under policies: paths agree, resting drafters cost nothing, bad policies are named."""

import dataclasses
import re

import numpy as np
import pytest
from both_engines import assert_same_bytes, both_engines
from numpy.testing import assert_allclose
from scenario_parts import burst, closed_loop, drafts, on_h100
from test_drafting import METHODS, scenario

from forerun.errors import ForerunError
from simulator.running.drafting import build_drafter
from simulator.running.metrics.document import run_document
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving.compiled import engine_module
from simulator.speculation.acceptance import AcceptanceSampler
from simulator.speculation.policies import BatchTable

OFTEN = {"name": "disable-above-batch", "batch": 8}
"""Switches all the time in the runs below."""

FREE = {"step_s": 0.0, "per_sequence_s": 0.0}
"""A policy that costs nothing by itself."""


def table(most):
    return {"name": "batch-table", "table": [[1, 4, most], [5, 7, 1], [8, 8, 0], [9, 99, 2]], "switch_s": 1e-4}


@pytest.mark.parametrize("name", METHODS)
def test_fast_and_exact_stepping_agree_under_a_policy(name):
    policy = OFTEN if "tree" in METHODS[name] else table(METHODS[name]["num_speculative_tokens"])
    fast, _ = both_engines(scenario(name, engine={"num_kv_blocks": 1200, "max_num_seqs": 24}, policy=policy))
    assert fast.speculation.draft_tokens == fast.requests.draft_tokens.sum()
    verified = fast.steps.decode_seqs * (fast.steps.query_len - 1) * fast.steps.steps
    assert verified.sum() == fast.speculation.draft_tokens
    assert len(set(fast.steps.query_len)) > 1


LEARNING = ["goodput", "ema", "p-min", "entropy", "forerun"]


@pytest.mark.parametrize("most", [50, 51, 1024])
@pytest.mark.parametrize("policy", [*LEARNING, "disable-above-batch", "batch-table", "confidence-budget"])
def test_every_policy_takes_as_many_draft_tokens_as_the_schema_allows(policy, most):
    """From 50 on ``forerun`` divided by the share of the expected tokens that was left of them: none."""
    work = burst(3, 30, 20)
    run = simulate(scenario("parallel-draft", num_speculative_tokens=most, policy=policy, workload=work))
    assert run.summary["completed"] == 3


@pytest.mark.parametrize("policy", LEARNING)
@pytest.mark.parametrize("budget", [64, 128, 256])
def test_policies_choose_where_a_step_does_not_hold_the_drafts_of_the_whole_batch(policy, budget):
    """Prices of steps beyond the budget were an IndexError on chips that pad prompts."""
    engine, drafted = {"max_num_batched_tokens": budget}, drafts("eagle", 4) | {"policy": policy}
    work = burst(80, 30, 20)
    for chip in ("p150", "h100-sxm"):
        run = simulate(on_h100(work, hardware={"chip": chip}, engine=engine, speculation=drafted))
        assert run.summary["completed"] == 80


@pytest.mark.parametrize("policy", ["goodput", "ema"])
def test_policies_that_learn_are_reproducible(policy):
    first, again = (simulate(scenario("eagle3", policy=policy)) for _ in range(2))
    assert first.speculation == again.speculation


class Recorder:
    """Drafts two tokens while nobody waits, and records the state that it got."""

    by_batch_alone = False

    def __init__(self):
        self.waiting = []

    def choose(self, batch):
        self.waiting.append(batch.waiting)
        return 0 if batch.waiting else 2

    def observe(self, drafted, accepted):
        pass


@pytest.mark.parametrize("stepping", ["fast", "exact-steps"])
def test_a_policy_is_reported_how_many_requests_wait(stepping):
    """12 requests from the start, 4 places: 8 wait, then fewer, then none."""
    message = Recorder()
    engine = {"max_num_seqs": 4, "stepping": stepping}
    requested = scenario("eagle3", engine=engine, workload=closed_loop(12, 12, 64, 40))
    result = simulate(requested, make_policy=lambda: message)
    assert message.waiting[0] == 0, "called before any request came"
    assert max(message.waiting) == 8
    assert message.waiting[-1] == 0
    assert (result.steps.waiting > 0).any()
    assert len(set(result.steps.query_len)) > 1, "the state decided"


def test_a_policy_that_never_switches_is_the_fixed_run():
    fixed = simulate(scenario("eagle3"))
    same = simulate(scenario("eagle3", policy={"name": "disable-above-batch", "batch": 1000, **FREE}))
    assert_same_bytes(fixed, same)
    assert run_document(same)["summary"] == run_document(fixed)["summary"]


def test_never_drafting_costs_what_no_speculation_costs():
    """Except for the blocks that the drafter holds, K = 0 throughout is the engine without a drafter."""
    engine = {"num_kv_blocks": 100_000, "cuda_graphs": False}  # captured sizes are whole verify steps
    without = simulate(scenario(None, engine=engine))
    never = simulate(scenario("eagle3", engine=engine), make_policy=lambda: BatchTable((0,)))
    assert_allclose(never.requests.finished_s, without.requests.finished_s, rtol=1e-12)
    assert never.speculation.num_drafts == 0
    assert run_document(never)["summary"]["spec_decode_acceptance_length"] is None
    follow = {"name": "batch-table", "table": [[1, 999, 0]], "while_off": "follow"}
    following = simulate(scenario("eagle3", engine=engine, policy=follow))
    assert following.engine.simulated_s > never.engine.simulated_s


def test_goodput_is_no_worse_than_the_best_constant():
    """In a closed loop of one batch size, the choice by tokens per second finds the K with the most of them."""
    work = closed_loop(64, 192, 200, 200)

    def seconds(**fields):
        return simulate(scenario("eagle3", workload=work, acceptance={"alpha": 0.6}, **fields)).engine.simulated_s

    constants = {k: seconds(num_speculative_tokens=k) for k in (1, 3, 7)}
    chosen = seconds(num_speculative_tokens=7, policy={"name": "goodput", **FREE})
    assert chosen < min(constants.values()) * 1.03
    assert max(constants.values()) > min(constants.values()) * 1.1, "the constants differ, so there was a choice"


def test_a_policy_is_read_back_as_it_was_given():
    for policy in ("ema", {"name": "ema", "candidates": {1: [1, 3], 8: [0, 1]}}):
        requested = scenario("eagle3", policy=policy)
        document = run_document(dataclasses.replace(simulate(scenario("eagle3")), scenario=requested))["scenario"]
        assert scenario_from(document, "again").speculation.policy == requested.speculation.policy


def test_a_drafter_that_cannot_be_shortened_is_refused():
    class Whole:
        """What a drafter was requested before there were policies."""

        def __init__(self, request):
            self._inner = build_drafter(request)

        def __getattr__(self, name):
            if name in ("with_tokens", "catch_up"):
                raise AttributeError(name)
            return getattr(self._inner, name)

    policy = {"name": "batch-table", "table": [[1, 3, 2], [4, 99, 1]]}
    with pytest.raises(ForerunError, match="Whole drafts all its tokens or none"):
        simulate(scenario("ngram", policy=policy), make_drafter=Whole)


@pytest.mark.parametrize(("model", "noted"), [("qwen3-30b-a3b", True), ("llama-3.1-8b", False)])
def test_padding_of_steps_without_draft_tokens_is_noted(model, noted):
    """Experts are routed for padded tokens too: the note's factor is that of a run which never drafts."""
    policy = {"name": "batch-table", "table": [[1, 512, 0]]}
    never, plain = (
        simulate(on_h100(closed_loop(1, 2, 300, 60), model=model, speculation=block))
        for block in (drafts("ngram", 4, 0.5, policy=policy), None)
    )
    slower = never.summary["mean_tpot_ms"] / plain.summary["mean_tpot_ms"]
    (note,) = [note for note in never.notes if "padded" in note] or [""]
    assert bool(note) == noted == (slower > 1.05)
    if noted:
        assert float(re.search(r"([\d.]+)x as long", note)[1]) == pytest.approx(slower, rel=0.15)


def starving(while_off, outputs=200, batch=8, **policy):
    """12 requests of unequal length at once: nothing is drafted until all but ``batch`` of them have ended."""
    table = {"name": "disable-above-batch", "batch": batch, "while_off": while_off, **FREE, **policy}
    lengths = {"distribution": "empirical", "values": [20, 20, outputs]}
    speculation = drafts("eagle3", 3, 0.9, policy=table)
    return on_h100(burst(12, 64, lengths), engine={"max_num_seqs": 16}, speculation=speculation)


def accepted_share(scenario):
    counters = simulate(scenario, seed=1).speculation
    return counters.accepted_tokens / counters.num_drafts


def test_a_starved_drafter_loses_acceptance_and_recovers():
    whole, short, long = (accepted_share(starving(*one)) for one in (("idle", 200), ("starve", 40), ("starve", 2000)))
    assert short < 0.75 * whole, "most of what it never saw lies near"
    assert 0.9 * whole < long < whole, "and far back in the end"
    assert accepted_share(starving("starve", recovery_tokens=4)) > accepted_share(
        starving("starve", recovery_tokens=400)
    )


def test_a_drafter_that_never_rests_never_starves():
    first, second = (simulate(starving(one, batch=99), seed=1) for one in ("idle", "starve"))
    assert_same_bytes(first, second)


def test_a_starved_drafter_computes_nothing_anew():
    idle, starve = (simulate(starving(one, 60), seed=1) for one in ("idle", "starve"))
    resumed = [int(np.flatnonzero(np.diff(run.steps.query_len) > 0)[-1]) for run in (idle, starve)]
    assert idle.steps.seconds[resumed[0]] > starve.steps.seconds[resumed[1]]


@pytest.mark.parametrize("blocks", [None, 40])
def test_both_engines_starve_alike(blocks):
    fast, _ = both_engines(starving("starve", 300).with_values({"engine.num_kv_blocks": blocks}), seed=2)
    assert fast.speculation.num_drafts > 0


def test_the_tokens_of_a_sustained_chance_are_geometric():
    draws = engine_module().Draws(AcceptanceSampler(np.full(4, 0.9), 3))
    drawn = np.array([draws.sustained(1, step, 0.6) for step in range(20_000)])
    assert [np.mean(drawn >= place) for place in (1, 2, 3, 4)] == pytest.approx([0.6, 0.36, 0.216, 0.13], abs=0.012)
    assert (draws.sustained(1, 5, 0.0), draws.sustained(1, 5, 1.0)) == (0, 4)
