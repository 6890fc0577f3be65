"""The policy ``forerun``: changes of K that earn their cost, prompts, waiting requests, rates that follow."""

import numpy as np
import pytest

from simulator.serving.engine import Forerun, PositionRates
from simulator.speculation import Batch


def test_changes_never_cost_more_than_staying_has():
    """Load that swings about a threshold: the work function changes K as often as its cost is earned, no more."""
    cost, gain = 1.0, 0.1

    def seconds(seqs, tokens, context):  # K = 0 is best above 4 sequences, K = 1 below, by 10 % of a step of 0.1 s
        best = 0 if seqs > 4 else 1
        return 0.1 * (1.0 + tokens * 0.5) * (1.0 if tokens == best else 1.0 + gain)

    policy = Forerun(PositionRates(1, prior=0.5), seconds, lambda seqs, skipped: cost)
    choices = [policy.choose(Batch(3 + 3 * (step // 5 % 2), 1000)) for step in range(400)]
    changes = int(np.sum(np.diff(choices) != 0))
    assert changes * cost <= 400 * 0.15 * 0.3
    cheap = Forerun(PositionRates(1, prior=0.5), seconds, lambda seqs, skipped: 0.0)
    assert len({cheap.choose(Batch(3 + 3 * (step // 5 % 2), 1000)) for step in range(40)}) == 2


def drafted(policy, steps, *batch):
    """Draft tokens of each step of a policy, of which every second sequence accepts all."""
    choices = []
    for _ in range(steps):
        choices.append(policy.choose(Batch(32, 8000, *batch)))
        policy.observe(choices[-1], [choices[-1], 0] * 16)
    return choices


def own_policy(**rates):
    """A draft token gains half a token for a fifth of a step; in a step of prompts the drafter reads those too."""

    def seconds(seqs, tokens, context, prompt=0):
        return 1.0 + 0.2 * tokens + prompt * (1.1e-3 if tokens else 1e-3)

    return Forerun(PositionRates(1, prior=0.5, **rates), seconds, lambda seqs, skipped: 1.0)


def test_drafts_must_be_worth_their_drafter_s_pass_over_prompts():
    policy = own_policy()
    assert [drafted(policy, steps, prompt)[-1] for prompt, steps in ((0, 20), (8192, 30), (0, 150))] == [1, 0, 1]


@pytest.mark.parametrize(("batch", "expected"), [((40,), {1}), ((8192,), {0}), ((8192, 9), {0, 1})])
def test_a_controller_counts_the_prompts_of_requests_to_come(batch, expected):
    """Drafts end requests sooner: where a token of an answer comes with 250 of prompts, the prompts of those that take
    their place cost more than was saved; with one, they do not, nor while requests wait and steps are full anyway."""
    last = set(drafted(own_policy(carried=True), 200, *batch)[-20:])
    assert last == expected or (len(batch) == 2 and 1 in last)


def observed(rates, *rounds):
    """Rates after rounds of: how often, draft tokens, accepted ones of each sequence."""
    for times, tokens, accepted in rounds:
        for _ in range(times):
            rates.learn(tokens, np.bincount(accepted, minlength=tokens + 1))
    return list(rates.conditional())


def test_an_untried_position_is_taken_to_be_as_the_one_before():
    rounds = (100, 1, [1, 1, 1, 1, 0])
    assert observed(PositionRates(3, carried=True), rounds) == pytest.approx([0.8] * 3, abs=0.02)
    assert observed(PositionRates(3), rounds)[2] < 0.7


def test_a_controller_at_rest_looks_again():
    """Acceptance that was nil, and of which nothing is seen any more, is no reason to rest for good."""
    rates = PositionRates(2, prior=0.5)
    assert observed(rates, (300, 1, [0] * 8))[0] < 0.05
    assert observed(rates, (150, 0, [0] * 8))[0] > 0.4


def test_rates_follow_a_change_of_acceptance_at_every_position():
    rates = PositionRates(3)
    before = observed(rates, (200, 3, [3, 3, 2, 3]))
    after = observed(rates, (60, 1, [0, 1, 0, 0]))
    assert after[0] == pytest.approx(0.25, abs=0.12)
    assert after[2] < 0.5 * before[2], "positions that are not drafted now fall with the level"
    assert rates.tokens() == pytest.approx(1 + np.concatenate(([0], np.cumsum(np.cumprod(after)))))
