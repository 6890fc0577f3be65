"""Draft trees: topology, chances, growth; the chain is the tree of width one."""

import csv
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from trees import full_tree, grow_tree, grown_one_by_one, length, nodes_by_depth, steady

from forerun.errors import ForerunError
from simulator.speculation import expected_length, load_curve
from simulator.speculation.tree import (
    ROOT,
    DraftTree,
    GrowthPlan,
    chain,
    grown_survival,
    load_tree,
    node_chances,
    rates_by_rank,
    survival_by_depth,
    tree_from_choices,
)

conditionals = st.lists(st.floats(0.05, 0.95), min_size=1, max_size=6)
catches = st.lists(st.floats(0.0, 0.6), min_size=0, max_size=4)


@st.composite
def rank_rates(draw):
    return rates_by_rank(draw(conditionals), draw(catches))


@st.composite
def trees(draw):
    """Any tree of up to 20 nodes: each new one below a random earlier one, as its next candidate."""
    parents, ranks, below = [], [], {}
    for node in range(draw(st.integers(1, 20))):
        parent = draw(st.integers(ROOT, node - 1))
        parents.append(parent)
        ranks.append(below.get(parent, 0))
        below[parent] = ranks[-1] + 1
    return DraftTree(tuple(parents), tuple(ranks))


@given(conditionals)
def test_a_chain_is_the_sequence(conditional):
    tree = chain(len(conditional))
    chances = node_chances(tree, [[rate] for rate in conditional])
    assert length(chances) == pytest.approx(expected_length(conditional), rel=1e-12)
    assert_allclose(survival_by_depth(tree, chances), np.cumprod(conditional))
    assert nodes_by_depth(tree) == [1] * len(conditional)


@given(trees(), rank_rates())
def test_every_step_ends_somewhere(tree, rates):
    chances = node_chances(tree, rates)
    below = np.bincount(np.array(tree.parents) + 1, weights=chances, minlength=tree.num_nodes + 1)
    assert (below <= np.concatenate(([1.0], chances)) + 1e-12).all(), "children never more often than parents"
    survival = survival_by_depth(tree, chances)
    assert (np.diff(np.concatenate(([1.0], survival))) <= 1e-12).all()
    assert survival.sum() == pytest.approx(chances.sum(), rel=1e-12)


@given(rank_rates())
def test_siblings_never_hurt(rates):
    widths = [len(row) for row in rates[:3]]
    wide = length(node_chances(full_tree(widths), rates))
    narrow = length(node_chances(chain(len(widths)), rates))
    assert wide >= narrow - 1e-12


def test_choices_are_read_in_any_order_and_checked():
    tree = tree_from_choices([[0, 0], [1], [0]])
    assert tree == tree_from_choices([[0], [0, 0], [1]])
    assert (tree.parents, tree.ranks) == ((ROOT, ROOT, 0), (0, 1, 0))
    with pytest.raises(ForerunError, match="not in the tree"):
        tree_from_choices([[0, 0]])
    with pytest.raises(ForerunError, match="did you mean 'medusa-63'"):
        load_tree("meduza-63")


def test_published_trees():
    medusa = load_tree("medusa-63")
    assert (medusa.num_nodes, medusa.depth, nodes_by_depth(medusa)) == (63, 4, [10, 28, 23, 2])
    assert nodes_by_depth(load_tree("eagle-25")) == [4, 8, 8, 3, 2]


@pytest.mark.parametrize(
    ("size", "measured", "tolerance"), [("7b", 2.31, 0.02), ("13b", 2.39, 0.03), ("33b", 2.33, 0.07)]
)
def test_medusa_on_vicuna_follows_from_its_heads(size, measured, tolerance):
    """Nothing fitted: head accuracies and Medusa's own tree against Spec-Bench's tokens per step (A100, overall).

    The 33B heads are from a training run that its authors mark as failed.
    """
    rates = load_curve(f"medusa-vicuna-{size}").rank_rates()
    assert length(node_chances(load_tree("medusa-63"), rates)) == pytest.approx(measured, rel=tolerance)


def test_medusa_figures_are_those_collected(shared_data):
    with (shared_data / "published" / "specbench_leaderboard.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "Medusa" and row["hardware"].startswith("A100")]
    result = {row["model"]: float(row["mean_accepted_tokens"]) for row in rows}
    assert result["Vicuna-7B-v1.3"] == 2.31
    assert result["Vicuna-13B-v1.3"] == 2.39
    assert result["Vicuna-33B-v1.3"] == 2.33


@given(rank_rates(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 30))
def test_growth_with_fixed_confidence_is_the_best_tree_within_its_limits(rates, depth, top_k, nodes):
    plan = GrowthPlan(depth, top_k, nodes)
    tree, chances = grow_tree(plan, steady(rates))
    assert_allclose(chances, node_chances(tree, rates), rtol=1e-12)
    assert tree.num_nodes <= min(nodes, plan.drafted_nodes)
    assert tree.depth <= depth
    short = rates[:3]
    every = np.sort(node_chances(full_tree([len(row) for row in short]), short))[::-1]
    grown = grow_tree(GrowthPlan(len(short), 200, nodes), steady(short))
    assert length(grown.chances) == pytest.approx(1 + every[:nodes].sum(), rel=1e-12)


def test_a_tree_that_follows_confidence_beats_the_best_static_one():
    """EAGLE-2's point: with the same nodes, spend them where the drafter is sure."""
    rates = rates_by_rank([0.79, 0.74, 0.72, 0.73, 0.72, 0.72], [0.25, 0.17, 0.12, 0.08])
    plan = GrowthPlan(6, 10, 26)
    static = length(grow_tree(plan, steady(rates)).chances)
    sure = grown_survival(plan, rates, concentration=2.0, steps=300, seed=3)
    certain = grown_survival(plan, rates, concentration=1e7, steps=5, seed=3)
    assert 1 + sure.sum() > static + 0.15
    assert 1 + certain.sum() == pytest.approx(static, rel=1e-3)
    again = grown_survival(plan, rates, concentration=2.0, steps=300, seed=3)
    assert_array_equal(again, sure)


@given(rank_rates(), st.integers(1, 6), st.integers(1, 6), st.integers(1, 70), st.floats(0.2, 30.0))
def test_trees_grown_together_are_those_grown_one_by_one(rates, depth, top_k, nodes, concentration):
    plan = GrowthPlan(depth, top_k, nodes)
    result = grown_survival(plan, rates, concentration, steps=7, seed=5)
    assert_array_equal(result, grown_one_by_one(plan, rates, concentration, 7, seed=5))


def test_candidates_are_held_in_parts(monkeypatch):
    plan, rates = GrowthPlan(4, 5, 30), rates_by_rank([0.8, 0.7, 0.6, 0.5], [0.4, 0.3, 0.2])
    together = grown_survival(plan, rates, 3.0, steps=50)
    monkeypatch.setattr("simulator.speculation.tree.CANDIDATES_AT_ONCE", 500)
    assert_array_equal(grown_survival(plan, rates, 3.0, steps=50), together)


def test_eagle_trees_on_vicuna_follow_from_its_chain_and_medusas_ranks():
    """EAGLE's own rates of first candidates; how later ranks catch the rest is borrowed from Medusa's first head.

    Measured tokens per step on Vicuna-7B: EAGLE 3.58 (Spec-Bench, A100); EAGLE-2 4.34 (Spec-Bench) and 4.98 (its paper,
    MT-bench).
    """
    first = load_curve("medusa-vicuna-7b").heads[0]
    catch = [(here - before) / (1 - before) for before, here in pairwise(first)]
    first_candidates = load_curve("eagle-vicuna-7b-mt-bench").conditional
    rates = rates_by_rank([*first_candidates, 0.72, 0.72], [*catch, *[0.05] * 5])
    static = length(node_chances(load_tree("eagle-25"), rates))
    assert static == pytest.approx(3.58, rel=0.08)
    for concentration in (1.0, 3.0, 100.0):
        grown = grown_survival(GrowthPlan(6, 10, 60), rates, concentration, steps=100)
        assert 4.2 < 1 + grown.sum() < 5.0
