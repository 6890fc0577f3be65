"""``confidence-budget``: each step verifies the draft tokens worth most, as far as they pay."""

import numpy as np
import pytest
from both_engines import both_engines
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_scenario import plain_scenario

from forerun.errors import ForerunError
from simulator import simulate
from simulator.serving.compiled import engine_module
from simulator.speculation.acceptance import AcceptanceSampler, request_classes
from simulator.speculation.confidence import VerifyBudget, seen_worth

RATES = [0.75, 0.7, 0.7, 0.65, 0.6]
SURVIVAL = np.cumprod(RATES)


def scenario(policy=None, batch=24, acceptance=None, **changes):
    policy = "fixed" if policy == "fixed" else {"name": "confidence-budget"} | (policy or {})
    acceptance = {"conditional": RATES} | (acceptance or {})
    return plain_scenario(
        inputs=200,
        outputs=40,
        requests=3 * batch,
        speculation={"method": "eagle3", "num_speculative_tokens": 5, "acceptance": acceptance, "policy": policy},
        workload={"arrivals": {"process": "closed-loop", "max_concurrency": batch}},
    ).with_values(changes)


class Row:
    """Stands in for ``Draws``: the class of every request is its number."""

    def row(self, request, step):
        return request


def chosen(worth, classes, seconds, sizes=(), prompt_tokens=0, with_prompts=False):
    """Draft tokens that the rule verifies of each of some sequences, and of all."""
    engine = engine_module(interpreted=True)
    curve, graphs = np.asarray(seconds, dtype=np.float64), np.array(sizes, dtype=np.int64)
    around_s = np.zeros(len(classes) + 1)
    rule = VerifyBudget(np.asarray(worth), "calibrated", lambda seqs: curve, graphs, 1e-6, around_s, with_prompts)
    batch = [engine.Sequence(one, 10, 10) for one in classes]
    tokens = engine.Budget(rule, Row(), len(curve)).choose(batch, prompt_tokens)
    return [sequence.verified for sequence in batch], tokens - len(batch)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_the_budget_is_the_best_of_all_budgets_and_holds_the_tokens_worth_most(data):
    positions, kinds = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    rates = data.draw(st.lists(st.lists(st.floats(0, 1), min_size=positions, max_size=positions), min_size=kinds,
                               max_size=kinds))  # fmt: skip
    worth = np.cumprod(rates, axis=1)
    classes = data.draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=9))
    rises = data.draw(st.lists(st.floats(0, 2), min_size=len(classes) * (positions + 1) + 1,
                               max_size=len(classes) * (positions + 1) + 1))  # fmt: skip
    seconds = 1.0 + np.cumsum(rises)
    sizes = range(len(seconds))
    verified, budget = chosen(worth, classes, seconds, sizes)
    values = np.sort(worth[classes].ravel())[::-1]
    rates = (len(classes) + np.concatenate(([0.0], np.cumsum(values)))) / seconds[len(classes) :]
    assert sum(verified) == budget
    taken = sum(worth[kind, :count].sum() for kind, count in zip(classes, verified, strict=True))
    assert taken == pytest.approx(values[:budget].sum())
    assert rates[budget] == pytest.approx(rates.max())


def test_perfect_confidence_verifies_what_is_accepted_and_nothing_else():
    run = simulate(scenario({"confidence": "perfect"}), seed=1)
    assert run.speculation.draft_tokens == run.speculation.accepted_tokens > 0


def test_perfect_confidence_is_the_oracle_budget():
    """Of what will be accepted, as many tokens as pay; of two equal drafts the first is verified further."""
    worth = seen_worth(SURVIVAL, "perfect")
    assert chosen(worth, [5, 2, 0], np.ones(19)) == ([5, 2, 0], 7)
    free_to_five = np.where(np.arange(19) <= 5, 1.0, 100.0)
    assert chosen(worth, [5, 5, 0], free_to_five) == ([1, 1, 0], 2)


def test_constant_confidence_without_a_cost_of_rows_is_fixed_k_to_the_bit():
    free = {"speculation.acceptance": {"conditional": [1.0] * 5, "spread": 0.0}, "engine.cuda_graphs": False}
    one, other = (simulate(scenario(policy, 1, **free), seed=2) for policy in ({"confidence": "constant"}, "fixed"))
    assert one.speculation == other.speculation
    assert np.array_equal(one.requests.finished_s, other.requests.finished_s)


def test_constant_confidence_is_the_fixed_k_with_most_tokens_per_second():
    batch = 32
    seconds = 1.0 + np.arange(batch * 6 + 1) / 60.0
    verified, _ = chosen(seen_worth(SURVIVAL, "constant"), [0] * batch, seconds)
    rates = [batch * (1.0 + SURVIVAL[:k].sum()) / seconds[batch * (k + 1)] for k in range(6)]
    assert set(verified) == {int(np.argmax(rates))}
    assert 0 < verified[0] < 5


def test_a_captured_graph_is_filled():
    """A step padded to 16 tokens verifies 16, whatever lies in between."""
    padded = np.where(np.arange(31) <= 16, 1.0, 1.6)
    verified, budget = chosen(seen_worth(SURVIVAL, "constant"), [0] * 4, padded, [4, 8, 16])
    assert (verified, budget) == ([3] * 4, 12)
    assert chosen(seen_worth(SURVIVAL, "constant"), [0] * 5, padded, [4, 8, 16])[0] == [3, 2, 2, 2, 2]


def test_prompts_in_the_step_make_more_drafts_pay():
    seconds = 1e-4 + 2e-5 * np.arange(49)
    alone, beside = (chosen(seen_worth(SURVIVAL, "constant"), [0] * 8, seconds, (), p)[1] for p in (0, 4000))
    assert alone < beside


def test_prompts_and_drafts_share_a_graph():
    """vLLM looks the cost up by all tokens of the step: 12 of prompts leave 16 - 12 - 2 drafts in a graph of 16."""
    seconds = np.where(np.arange(61) <= 16, 1.0, 5.0)
    assert chosen(seen_worth(SURVIVAL, "constant"), [0] * 2, seconds, [16], 12, with_prompts=True) == ([1, 1], 2)
    assert chosen(seen_worth(SURVIVAL, "constant"), [0] * 2, seconds, [16], 0, with_prompts=True) == ([5, 5], 10)


def test_moved_acceptance_moves_what_the_rule_knows():
    """Certain drafts have one class, drafts of 0.9 have many: the intervals of a run draw of both ends."""
    certain = {"speculation.acceptance": {"alpha": 1.0}}
    assert simulate(scenario({}, 4, **certain), seed=1, intervals=True).model_error is not None


def test_an_overconfident_drafter_verifies_more_for_less():
    exact, over = (simulate(scenario({"calibration_error": error}, 128), seed=3) for error in (0.0, 0.25))
    assert over.speculation.draft_tokens > 1.1 * exact.speculation.draft_tokens
    assert over.requests.finished_s.max() > exact.requests.finished_s.max()


def test_better_confidence_is_faster_and_more_load_verifies_less():
    ends, drafted = {}, {}
    for batch in (8, 192):
        for confidence in ("constant", "calibrated", "perfect"):
            run = simulate(scenario({"confidence": confidence}, batch), seed=4)
            ends[batch, confidence] = run.requests.finished_s.max()
            drafted[batch, confidence] = run.speculation.draft_tokens / run.speculation.num_drafts
    assert ends[192, "perfect"] < ends[192, "calibrated"] < ends[192, "constant"]
    assert drafted[192, "calibrated"] < drafted[8, "calibrated"]


@pytest.mark.parametrize("autocorrelation", [0.0, 0.6, 1.0])
def test_pooled_acceptance_is_that_of_the_counters_whatever_varies(autocorrelation):
    rates = request_classes(SURVIVAL, 0.2, autocorrelation)
    weights = 1.0 / (1.0 + rates.sum(axis=1)) if autocorrelation == 1.0 else np.ones(len(rates))
    assert np.average(rates, axis=0, weights=weights) == pytest.approx(SURVIVAL, abs=2e-3)


def test_neighbouring_tokens_are_as_alike_as_the_autocorrelation_says():
    def likeness(autocorrelation):
        rates = request_classes(SURVIVAL, 0.2, autocorrelation)
        return float(np.corrcoef(rates[:, 0], rates[:, 1] / rates[:, 0])[0, 1])

    assert abs(likeness(0.0)) < 0.3 < likeness(0.6) < likeness(0.9) < likeness(1.0)


def test_below_one_every_draft_has_a_class_of_its_own():
    draws = engine_module(interpreted=True).Draws
    varied, constant = (draws(AcceptanceSampler(SURVIVAL, 1, 0.2, autocorrelation=one)) for one in (0.5, 1.0))
    assert len({varied.row(7, step) for step in range(50)}) > 20
    assert len({constant.row(7, step) for step in range(50)}) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculation.policy.rule": "sglang", "engine.framework": "sglang"},
        {"speculation.policy.confidence": "perfect", "engine.cuda_graphs": False},
        {"engine.max_num_batched_tokens": 256, "engine.num_kv_blocks": 500},
        {"model": "gpt-oss-20b", "speculation.acceptance.autocorrelation": 0.0},
        {"model": "gemma-3-4b", "speculation.method": "parallel-draft", "speculation.policy.confidence": "constant"},
    ],
)
def test_compiled_and_interpreted_runs_agree(changes):
    both_engines(scenario(**changes), seed=5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"speculation.method": "ngram"}, "needs a drafter with confidences; ngram has none"),
        ({"hardware.pipeline_parallel": 2}, "not modelled with pipeline stages"),
        ({"engine.scheduler": "static"}, "not modelled with engine.scheduler: static"),
        ({"speculation.policy.while_off": "idle"}, "has no use for while_off"),
        ({"speculation.policy": "fixed", "speculation.acceptance.autocorrelation": 0.5}, "goes with acceptance.spread"),
    ],
)
def test_what_it_cannot_be_combined_with_is_refused(changes, says):
    with pytest.raises(ForerunError, match=says):
        simulate(scenario(**changes))
