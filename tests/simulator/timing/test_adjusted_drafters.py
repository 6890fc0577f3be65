"""Drafters under a policy: fewer tokens in some steps, none in others, catching up after a rest, on the same and on
another device."""

from dataclasses import replace

import numpy as np
import pytest
from drafter_prices import caught_up
from drafter_prices import seconds as seconds_of
from numpy.testing import assert_allclose
from test_drafters import made
from timing_steps import arrays, decode, stacked

from forerun.errors import ForerunError
from hwprofiles import load_link
from simulator.timing import (
    AdjustedDrafter,
    Costs,
    DraftStep,
    RemoteDrafter,
    drafting_seconds,
    host_part,
    load_draft_overhead,
)

LINK = load_link("pcie5-x16")
STATE_BYTES = 8192.0
CHAINS = {
    "draft-model": 4,
    "eagle3": 3,
    "mtp": 3,
    "mtp separate": 3,
    "parallel-draft": 7,
    "parallel-draft sequential": 7,
    "medusa chain": 3,
    "ngram": 5,
}
KEEPS_A_CACHE = set(CHAINS) - {"medusa chain", "ngram"}


def chain(name):
    if name.startswith("remote "):
        return RemoteDrafter(made(name.removeprefix("remote ")), LINK, STATE_BYTES)
    return made(name)


def most(name):
    return CHAINS[name.removeprefix("remote ")]


def drafted(tokens, switched=0, skipped=0, windows=1, seqs=2):
    """A step that proposes so many tokens, after ``skipped`` fresh ones in all that the drafter has not seen."""
    each = skipped // seqs
    pairs, keys = seqs * each * (each + 1) // 2, skipped
    return DraftStep(tokens, switched, seqs if skipped else 0, skipped, (pairs,) * windows, (keys,) * windows)


ALL = [*CHAINS, "remote draft-model", "remote eagle3", "remote parallel-draft"]


@pytest.mark.parametrize("name", ALL)
def test_fewer_tokens_never_take_longer_and_all_of_them_are_the_drafter_itself(name):
    drafter, work = chain(name), decode(8, 500, most(name) + 1)
    seconds = [seconds_of(drafter.with_tokens(count), work) for count in range(1, most(name) + 1)]
    assert seconds == sorted(seconds)
    assert seconds[-1] == pytest.approx(seconds_of(drafter, work), rel=1e-12)
    assert seconds[0] > 0
    if name not in ("ngram", "parallel-draft", "remote parallel-draft"):
        assert seconds[0] < seconds[-1]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("follows", [False, True])
def test_one_step_costs_what_it_costs_among_many(name, follows):
    """Steps of every number of tokens, with and without a change and with and without a debt."""
    adjusted = AdjustedDrafter(chain(name), most(name), follows, switch_s=1e-4)
    works = [decode(2, 400 + 10 * row, most(name) + 1) for row in range(most(name) + 3)]
    drafts = [drafted(min(row, most(name)), row % 2, 0 if row < most(name) else 20 * row) for row in range(len(works))]
    costs = adjusted.costs(stacked(works), stacked(drafts))
    singly = [adjusted.seconds(work, draft) for work, draft in zip(works, drafts, strict=True)]
    assert_allclose(singly, costs.device_s + costs.host_s, rtol=1e-9)
    assert singly[1] - AdjustedDrafter(chain(name), most(name)).seconds(works[1], drafts[1]) == pytest.approx(1e-4)


def test_a_policy_costs_each_step_that_it_governs():
    """vLLM's schedule that never drafts: 0.943 ms at 2 streams and 16.66 ms at 189 (vllm-project/vllm#49548)."""
    known = load_draft_overhead("vllm", "eagle3")
    free = AdjustedDrafter(chain("eagle3"), most("eagle3"))
    costs = AdjustedDrafter(
        chain("eagle3"), most("eagle3"), step_s=known.policy_step_s, per_sequence_s=known.policy_sequence_s
    )
    for seqs, measured in ((2, 0.943e-3), (189, 16.656e-3)):
        for tokens in (0, 2):
            work = decode(seqs, 400, tokens + 1)
            added = costs.seconds(work, drafted(tokens)) - free.seconds(work, drafted(tokens))
            assert added == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize("name", ALL)
def test_a_resting_drafter_costs_nothing_and_one_that_follows_keeps_its_cache(name):
    work = decode(8, 500, 1)
    rests, follows = (AdjustedDrafter(chain(name), most(name), follows) for follows in (False, True))
    assert rests.seconds(work, drafted(0)) == 0.0
    costs = rests.costs(arrays(work), stacked([drafted(0)]))
    assert all((getattr(costs, part) == 0).all() for part in Costs.__slots__)
    kept = follows.seconds(work, drafted(0))
    assert (kept > 0) == (name.removeprefix("remote ") in KEEPS_A_CACHE)
    assert kept < rests.seconds(work, drafted(most(name)))


@pytest.mark.parametrize("name", list(CHAINS))
def test_what_was_skipped_is_computed_once_by_drafters_with_a_cache(name):
    drafter = chain(name)
    costs = [caught_up(drafter, stacked([drafted(2, skipped=skipped)])) for skipped in (64, 4096)]
    if name not in KEEPS_A_CACHE:
        assert all((cost.device_s + cost.host_s == 0).all() for cost in costs)
        return
    assert costs[1].flops[0] > 60 * costs[0].flops[0], "64 times the tokens, and attention among them"
    assert costs[0].device_s[0] < costs[1].device_s[0] < 64 * costs[0].device_s[0]


def test_attention_groups_catch_up_on_their_own_sequences():
    """More tokens than one pass takes: eight sequences of four groups take as long as two of one, also among many."""
    alone = made("eagle3")
    deployment = replace(alone.step.deployment, attention_data_parallel=4)
    groups = replace(alone, step=replace(alone.step, deployment=deployment))
    each = 2 * alone.step.max_tokens
    few, many = (drafted(2, skipped=seqs * each, seqs=seqs) for seqs in (2, 8))
    costs = caught_up(groups, stacked([many, drafted(2)]))
    assert (costs.device_s + costs.host_s)[0] == pytest.approx(drafting_seconds(groups.catch_up(many)), rel=1e-9)
    assert costs.device_s[0] == pytest.approx(caught_up(alone, stacked([few])).device_s[0], rel=0.02)


def test_separate_modules_each_catch_up():
    shared, separate = (caught_up(made(name), stacked([drafted(2, skipped=64)])) for name in ("mtp", "mtp separate"))
    assert separate.flops[0] == pytest.approx(3 * shared.flops[0])


@pytest.mark.parametrize("name", ["draft-model", "eagle3", "parallel-draft"])
def test_on_another_device_the_skipped_tokens_are_sent_in_one_message_and_no_work_is_the_targets(name):
    near, remote = made(name), chain(f"remote {name}")
    drafts = stacked([drafted(2, skipped=skipped) for skipped in (0, 64, 4096)])
    here, there = caught_up(near, drafts), caught_up(remote, drafts)
    message = LINK.latency_s + drafts.skipped_tokens * (4 + STATE_BYTES) / LINK.bandwidth_bytes_per_s
    assert_allclose(there.interconnect_s - here.interconnect_s, np.where(drafts.skipped_tokens > 0, message, 0.0))
    assert_allclose(there.device_s - here.device_s, there.interconnect_s - here.interconnect_s)
    assert there.flops.tolist() == there.bytes.tolist() == [0.0, 0.0, 0.0]
    assert remote.pass_tokens == near.pass_tokens
    assert seconds_of(remote, decode(0, 0, 4)) == 0.0


@pytest.mark.parametrize(
    ("name", "proposed"),
    [("draft-model", 4), ("draft-model", 1), ("eagle3", 2), ("parallel-draft", 7), ("parallel-draft", 3)],
)
def test_the_answer_holds_as_many_tokens_as_are_proposed(name, proposed):
    remote = chain(f"remote {name}").with_tokens(proposed)
    assert remote.proposed == proposed
    work = decode(8, 500, 4)
    messages = 2 * LINK.latency_s + (32 * (4 + STATE_BYTES) + 8 * proposed * 4) / LINK.bandwidth_bytes_per_s
    assert seconds_of(remote, work) - seconds_of(made(name).with_tokens(proposed), work) == pytest.approx(
        messages, rel=1e-9
    )


def test_a_tree_is_refused_fewer_tokens():
    class Whole:
        """Drafts as before there were policies."""

        windows = (None,)

        def parts(self, work):
            return [host_part(1e-3)]

    adjusted = AdjustedDrafter(Whole(), 5)
    assert adjusted.seconds(decode(2, 100, 6), drafted(5)) == 1e-3
    with pytest.raises(ForerunError, match="Whole drafts all its tokens or none"):
        adjusted.seconds(decode(2, 100, 6), drafted(3))
