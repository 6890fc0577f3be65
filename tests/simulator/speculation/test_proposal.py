"""What is proposed and accepted in a step: chains, static trees, grown trees, and the sources that describe them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from simulator.speculation import SpeculationConfig, draft_survival, survival_rates
from simulator.speculation.proposal import OTHER_RANKS, proposal
from simulator.speculation.tree import (
    GrowthPlan,
    grown_survival,
    load_tree,
    node_chances,
    rates_by_rank,
)

SOURCES = [
    {"alpha": 0.7},
    {"alpha": 0.8, "decay": 0.9},
    {"per_position": [0.7, 0.5, 0.3, 0.2]},
    {"conditional": [0.7, 0.6, 0.6, 0.5]},
    {"acceptance_length": 1.8},
    {"curve": "mtp-deepseek-r1-1k-2k"},
]


def config(method="eagle", **fields):
    return SpeculationConfig.model_validate({"method": method, "acceptance": {"alpha": 0.7}} | fields)


@pytest.mark.parametrize("acceptance", SOURCES)
@pytest.mark.parametrize("depth", [1, 3, 4])
def test_a_chain_is_the_tree_of_width_one(acceptance, depth):
    chained = config(num_speculative_tokens=depth, acceptance=acceptance)
    tree = config(tree={"choices": [[0] * n for n in range(1, depth + 1)]}, acceptance=acceptance)
    assert proposal(chained) == proposal(tree)
    assert proposal(chained).pass_widths == (1,) * (depth - 1)
    assert_array_equal(draft_survival(chained), draft_survival(tree))
    assert_array_equal(draft_survival(chained), survival_rates(chained.acceptance, depth))


def test_published_trees_by_hand():
    medusa = proposal(config("medusa", tree="medusa-63"))
    assert (medusa.nodes, medusa.depth) == (63, 4)
    eagle = proposal(config(tree={"name": "eagle-25"}))
    assert (eagle.nodes, eagle.depth, eagle.pass_widths) == (25, 5, (4, 4, 1, 1))
    grown = proposal(config("eagle2", tree={"depth": 6, "top_k": 10, "nodes": 60}))
    assert (grown.nodes, grown.depth, grown.pass_widths) == (60, 6, (10,) * 5)
    assert proposal(config("eagle2", tree={"depth": 1, "top_k": 4, "nodes": 60})).nodes == 4


def test_a_wide_tree_is_accepted_deeper_than_its_chain():
    survival = draft_survival(config(tree="eagle-25"))
    chained = draft_survival(config(num_speculative_tokens=5))
    assert (survival >= chained - 1e-12).all()
    assert survival.sum() > chained.sum() + 0.5
    rates = rates_by_rank([0.7] * 5, OTHER_RANKS)
    assert 1 + survival.sum() == pytest.approx(1 + node_chances(load_tree("eagle-25"), rates).sum())


def test_medusas_heads_are_used_rank_by_rank():
    """Medusa-2 accepts 3.47 tokens per step of its 7B tree (arXiv:2401.10774); heads trained alone (Medusa-1), whose
    accuracies the curve states, accept fewer."""
    length = 1 + draft_survival(config("medusa", tree="medusa-63", acceptance={"curve": "medusa-vicuna-7b"})).sum()
    assert 2.2 < length < 3.47


def test_sibling_ranks_matter_and_can_be_given():
    lonely = draft_survival(config(tree="eagle-25", acceptance={"alpha": 0.7, "other_ranks": [0.0]}))
    assert_allclose(lonely, 0.7 ** np.arange(1, 6))
    helped = draft_survival(config(tree="eagle-25", acceptance={"alpha": 0.7, "other_ranks": [1.0]}))
    assert helped[0] == pytest.approx(1.0)


@pytest.mark.parametrize("tree", ["eagle-25", {"depth": 6, "top_k": 10, "nodes": 60}])
@pytest.mark.parametrize("length", [1.0, 2.2, 3.9])
def test_a_measured_acceptance_length_is_met_by_the_tree(tree, length):
    survival = draft_survival(config(tree=tree, acceptance={"acceptance_length": length}))
    assert 1 + survival.sum() == pytest.approx(length, abs=1e-6)
    assert (np.diff(survival) <= 1e-12).all()


def test_what_the_engine_printed_of_a_tree_is_not_improved_by_siblings():
    printed = [0.9, 0.7, 0.5, 0.3, 0.1]
    assert_array_equal(draft_survival(config(tree="eagle-25", acceptance={"per_position": printed})), printed)


def test_a_grown_tree_averages_over_steps():
    tree = {"depth": 5, "top_k": 4, "nodes": 20, "concentration": 2.0}
    rates = rates_by_rank([0.7] * 5, OTHER_RANKS)
    expected = grown_survival(GrowthPlan(5, 4, 20), rates, 2.0)
    assert_allclose(draft_survival(config("eagle2", tree=tree)), expected)
