"""Responses of a training step: closed forms of a burst, its tail, partial rollouts and an ageing drafter."""

import numpy as np
import pytest
from refused import refused
from results import checked_result
from scenario_parts import drafts, on_h100

from forerun.parts import build_replica
from forerun_research.commands import rollouts
from forerun_research.rollouts import NO_DRAFTS, Responses, generate_step, new_responses, tail_batch

LENGTHS = {"distribution": "lognormal", "mean": 120, "cv": 1.0, "max": 900}


def scenario(count=32, output=None, **sections):
    workload = {"arrivals": {"process": "burst"}, "input_tokens": 100, "num_requests": count}
    return on_h100(workload | {"output_tokens": output or LENGTHS}, **sections)


def drafting(**more):
    policy = {"acceptance": {"alpha": 0.6}}
    return {"speculation": drafts("eagle3", 3) | policy | more}


def responses(scenario, count, group=8):
    return new_responses(scenario, count, group, np.random.default_rng(0), 0)


def test_groups_share_the_whole_blocks_of_their_prompt_and_nothing_else():
    made = responses(scenario(), 16, 8)
    stream = made.stream(16)
    hashes = np.split(stream.prefix_hashes.ids, stream.prefix_hashes.offsets[1:-1])
    assert all(np.array_equal(hashes[0][:6], one[:6]) for one in hashes[:8]), "100 tokens: six whole blocks"
    assert len(np.unique(np.concatenate([one[6:] for one in hashes]))) == 16
    assert not np.isin(hashes[0], hashes[8]).any()


def test_responses_of_a_group_compute_their_prompt_once():
    one = scenario(output=40)
    shared, alone = (responses(one, 32, group) for group in (32, 1))
    times = [generate_step(one, each, 32, 0, 16).seconds for each in (shared, alone)]
    assert times[0] < times[1]


def test_a_step_ends_with_the_responses_it_needs_and_keeps_the_tokens_of_the_others():
    one = scenario()
    made = responses(one, 48)
    step = generate_step(one, made, 32, 0, 16)
    assert len(step.ends_s) == 32
    assert step.ends_s[-1] == step.seconds
    assert len(step.left.remaining) == 16
    assert (step.left.remaining >= 1).all()
    assert int(step.left.remaining.sum()) + step.tokens == int(made.remaining.sum()), "no token is lost or made twice"
    whole = generate_step(one, made, 48, 0, 16)
    assert whole.tokens == int(made.remaining.sum())
    assert len(whole.left.remaining) == 0
    assert whole.seconds > step.seconds


def test_responses_that_continue_have_their_tokens_in_the_prompt():
    left = Responses(*(np.array(column) for column in ([100], [3], [20], [30])))
    stream = left.after(np.array([5])).stream(16)
    assert stream.input_tokens.tolist() == [125]
    assert stream.output_tokens.tolist() == [25]


@pytest.mark.parametrize(("alpha", "least", "most"), [(0.0, 0, 0), (0.99, 8, 8)])
def test_the_tail_begins_where_drafts_pay(alpha, least, most):
    one = scenario(8, 50, **drafting(acceptance={"alpha": alpha}))
    assert least <= tail_batch(one, build_replica(one), responses(one, 8)) <= most


def test_the_study_compares_ways_on_equal_lengths(tmp_path):
    result = rollouts(scenario(**drafting()), group=8, train_s=10.0, acceptance_loss=0.1, drafter_every=3)
    ways = {row["drafting"]: row for row in result.document["ways"]}
    plain, always = ways[NO_DRAFTS], ways["always"]
    assert plain["speedup"] == 1.0
    assert always["step_s"] == pytest.approx(always["generation_s"] + 10.0 + result.document["sync_s"])
    ages = [one["generation_s"] for one in always["by_age"]]
    assert ages == sorted(ages), "a drafter only becomes worse"
    assert len(ages) == 3
    assert always["generation_s"] == pytest.approx(np.mean(ages))
    assert plain["curve"][0][1] == 32
    assert plain["curve"][-1] == [plain["generation_s"], 0]
    for row in ways.values():
        assert row["generation_interval_s"][0] < row["generation_s"] < row["generation_interval_s"][1]
    checked_result(result, tmp_path, "rollouts.json", "report.html", "study.yaml")
    assert {line.name for line in result.figure().data} >= set(ways)


def test_weights_are_sent_at_the_given_rate():
    document = rollouts(scenario(8, 20), sync_gb_s=2.0).document
    assert document["sync_s"] == pytest.approx(build_replica(scenario(8, 20)).main.memory.weight_bytes / 2e9)
    assert [row["drafting"] for row in document["ways"]] == [NO_DRAFTS]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rollouts(scenario(30)), "workload.num_requests: 30 responses do not make whole groups of 8"),
        (lambda: rollouts(scenario(), oversample=1.1), "oversample: 36 responses do not make whole groups"),
        (lambda: rollouts(scenario(), oversample=0.5), "oversample: must be a number from 1"),
        (lambda: rollouts(scenario(), sync_gb_s=0.0), "sync_gb_s: must be a number from 0.001"),
        (lambda: rollouts(scenario(), acceptance_loss=1.0), "acceptance_loss: must be a number from 0 up to 0.99"),
        (lambda: rollouts(scenario(), acceptance_loss=0.1, drafter_every=2), "acceptance_loss: has no effect"),
        (lambda: rollouts(scenario(**drafting()), acceptance_loss=0.1), "acceptance_loss: has no effect"),
        (lambda: rollouts(scenario(**drafting()), drafter_every=2), "drafter_every: has no effect"),
        (
            lambda: rollouts(scenario().with_values({"workload.arrivals": {"request_rate": 1.0}})),
            "workload.arrivals: a training step sends its prompts at once",
        ),
        (lambda: rollouts(scenario(**drafting(policy="goodput"))), "speculation.policy: rollouts compares"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(call, message):
    with refused(message):
        call()


def test_a_step_costs_the_rent_of_its_chips():
    priced = scenario(hardware={"chip": "h100-sxm", "replicas": 2}, prices={"usd_per_chip_hour": 3.6})
    result = rollouts(priced)
    row = result.document["ways"][0]
    assert row["usd_per_step"] == pytest.approx(2 * 3.6 * row["step_s"] / 3600)
    assert f" and costs ${row['usd_per_step']:.3g}," in result.conclusion
    assert result.tables()[0].columns[-1] == "$/step"
    assert rollouts(scenario()).tables()[0].columns[-1] == "steps/day"
