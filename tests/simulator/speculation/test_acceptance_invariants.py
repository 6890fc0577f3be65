"""Acceptance invariants: beta spread, grown trees, extended curves, bounds and limits of every formula."""

from itertools import product

import numpy as np
import pytest
from acceptance_draws import draws, path
from numpy.testing import assert_allclose
from scipy.optimize import brentq
from trees import drawn_confidences, full_tree, grow_tree, nodes_by_depth, steady

from forerun.errors import ForerunError
from simulator.speculation import (
    AcceptanceSampler,
    ContextDrift,
    LevelDecay,
    SpeculationConfig,
    fit_acceptance_lengths,
    fit_survival,
)
from simulator.speculation.acceptance import CLASSES, request_classes, sampler_of, widest_spread
from simulator.speculation.closed_form import iid_alpha
from simulator.speculation.curves import Curve
from simulator.speculation.level_decay import AcceptanceFit, extended
from simulator.speculation.proposal import OTHER_RANKS, draft_survival, expanded_nodes, proposal, tree_survival
from simulator.speculation.speculation_config import AcceptanceConfig, TreeConfig
from simulator.speculation.tree import (
    GrowthPlan,
    chain,
    checked_rates,
    grown_survival,
    load_tree,
    rates_by_rank,
)


def speculation(method, acceptance, **fields):
    return SpeculationConfig.model_validate({"method": method, "acceptance": acceptance, **fields})


class TestSpread:
    @pytest.mark.parametrize(("rate", "spread"), [(0.7, 0.1), (0.7, 0.25), (0.5, 0.35), (0.9, 0.15)])
    def test_rates_of_requests_are_beta_distributed(self, rate, spread):
        """Concentration s (1 - s) / spread^2 - 1, and a beta of mean m has variance m (1 - m) / (1 + concentration)."""
        first = request_classes(np.array([rate]), spread)[:, 0]
        mean = first.mean()
        variance = mean * (1 - mean) * spread**2 / (rate * (1 - rate))
        assert first.std() == pytest.approx(variance**0.5, rel=0.02)
        assert (np.diff(first) > 0).all()

    @pytest.mark.parametrize(
        "survival",
        [
            *([0.7], [0.8, 0.5, 0.2], [0.9, 0.9, 0.1, 0.0], [0.9, 0.9, 0.0], [0.5, 0.0], [0.99, 0.98, 0.97]),
            *([1.0, 0.5], [1 - 1e-9], [0.7, 0.7 - 1e-10], [0.7, 1e-12], [0.7, 0.7]),  # certain, or nearly
        ],
    )
    @pytest.mark.parametrize("share", [0.3, 0.9])
    def test_counters_pool_to_what_was_requested(self, survival, share):
        """A request of class c needs 1 / length drafts for each token, and so many of them show in the counters."""
        survival = np.array(survival)
        classes = request_classes(survival, share * widest_spread(float(survival[0])))
        drafts = 1 / (1 + classes.sum(axis=1))
        assert_allclose((classes * drafts[:, None]).sum(axis=0) / drafts.sum(), survival, atol=1e-8)
        assert classes.shape == (CLASSES, len(survival))
        assert (np.diff(classes, axis=1) <= 1e-15).all()

    def test_the_widest_is_nearly_always_or_never(self):
        """Concentration 0.1: sqrt(m (1 - m) / 1.1)."""
        assert widest_spread(0.7) == pytest.approx((0.21 / 1.1) ** 0.5)
        request_classes(np.array([0.7]), widest_spread(0.7))
        with pytest.raises(
            ForerunError, match=r"too wide for a first position accepted in 70\.0 % of drafts: at most 0\.437"
        ):
            request_classes(np.array([0.7]), widest_spread(0.7) + 1e-6)


class TestDrift:
    def test_cells_by_hand(self):
        """Quarters of a doubling beyond 1,000: 1,001 to 1,189, then 1,190 to 1,414, ...; the middle's factor."""
        drift = ContextDrift(0.5, 1000)
        assert [drift.cell(c) for c in (1, 1000, 1001, 1189, 1190, 1414, 1415, 2000, 2001, 3999, 4000)] == [
            *(-1, -1, 0, 0, 1, 1, 2, 4, 4, 7, 8),
        ]
        assert drift.factor(-1) == 1.0
        assert [drift.factor(cell) for cell in (0, 4)] == pytest.approx([0.5**0.125, 0.5**1.125])

    def test_sections_without_a_fall_have_no_drift(self):
        survival = np.array([0.7])
        for fields, result in (
            ({}, None),
            ({"context_decay": 1.0}, None),
            ({"context_decay": 0.9}, ContextDrift(0.9, 2048)),
            ({"context_decay": 0.9, "context_from": 512}, ContextDrift(0.9, 512)),
        ):
            assert sampler_of(AcceptanceConfig(alpha=0.7, **fields), survival, 1).drift == result


class TestPaths:
    def test_certain_rates_are_certain(self):
        """Accepted always or never, to the last of 2^64 draws that a test can make."""
        always, never = AcceptanceSampler(np.ones(3), 1), AcceptanceSampler(np.zeros(3), 1)
        assert set(draws(always, 0, 0, 5000).tolist()) == {3}
        assert set(draws(never, 0, 0, 5000).tolist()) == {0}
        assert path(always, 0, 9).tolist() == [3, 3, 3]
        assert path(never, 0, 2).tolist() == [0, 0]


class TestGrowth:
    @pytest.mark.parametrize(("depth", "top_k"), [(1, 3), (2, 2), (3, 2), (4, 3)])
    def test_every_expanded_node_gets_its_candidates(self, depth, top_k):
        """top_k below the root, then top_k below each of the top_k likeliest of a layer."""
        plan = GrowthPlan(depth, top_k, 10**6)
        row = [0.3, 0.25, 0.2][:top_k]
        grown = grow_tree(plan, steady([row] * depth))
        assert grown.tree.num_nodes == plan.drafted_nodes == top_k + (depth - 1) * top_k * top_k
        assert nodes_by_depth(grown.tree) == [top_k, *[top_k * top_k] * (depth - 1)]
        for nodes, due in ((4000, (plan.drafted_nodes, depth)), (1, (1, 1))):
            tree = {"depth": depth, "top_k": top_k, "nodes": nodes}
            result = proposal(speculation("eagle2", {"alpha": 0.5}, tree=tree))
            assert (result.nodes, result.depth, result.pass_widths) == (*due, (top_k,) * (depth - 1))

    def test_first_candidates_are_beta_distributed(self):
        """Mean m, variance m (1 - m) / (1 + concentration)."""
        for mean, concentration in ((0.7, 3.0), (0.4, 0.5)):
            drawn = drawn_confidences([[mean, 0.1]], concentration, np.random.default_rng(2))(0, 50_000)[:, 0]
            variance = mean * (1 - mean) / (1 + concentration)
            assert drawn.mean() == pytest.approx(mean, abs=4 * (variance / 50_000) ** 0.5)
            assert drawn.var() == pytest.approx(variance, rel=0.03)

    def test_sure_trees_are_chains_accepted_in_full(self):
        assert grown_survival(GrowthPlan(3, 2, 9), [[1.0]] * 3, 3.0, steps=5).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("row", "fine"),
    [([0.0, 1.0], True), ([0.5, 0.5], True), ([], True), ([-1e-9], False), ([1.0 + 1e-6], False), ([0.6, 0.41], False)],
)
def test_candidates_of_one_parent_exclude_each_other(row, fine):
    if fine:
        assert checked_rates([[0.5], row]) == [[0.5], row]
    else:
        with pytest.raises(ForerunError, match="acceptance by rank at depth 2"):
            checked_rates([[0.5], row])


class TestProposals:
    def test_inner_nodes_are_expanded(self):
        assert expanded_nodes(full_tree([3, 2, 2])) == (3, 6)
        assert expanded_nodes(chain(4)) == (1, 1, 1)
        assert expanded_nodes(full_tree([5])) == ()

    def test_siblings_add_what_the_first_candidate_missed(self):
        """Depth 1 of two candidates: first + (1 - first) x catch, as Medusa's own heads."""
        for ranks, due in (({"other_ranks": [0.5]}, 0.8), ({}, 0.6 + 0.4 * OTHER_RANKS[0])):
            config = speculation("medusa", {"alpha": 0.6, **ranks}, tree={"choices": [[0], [1]]})
            assert draft_survival(config).tolist() == pytest.approx([due])
        assert tree_survival(TreeConfig(choices=[[0], [1]]), [[0.6, 0.3]]).tolist() == pytest.approx([0.9])

    def test_the_catches_are_medusas(self):
        """0.5604, 0.6717, 0.7271, 0.7599 and 0.7799 of tokens are among one to five candidates."""
        reached = 0.5604
        for among, catch in zip((0.6717, 0.7271, 0.7599, 0.7799), OTHER_RANKS, strict=False):
            reached += (1 - reached) * catch
            assert reached == pytest.approx(among, abs=2e-4)

    @pytest.mark.parametrize(("requested", "decay"), [(2.9, 1.0), (2.1, 0.9), (2.6, 0.8)])
    def test_it_is_met_by_the_level_of_the_first_candidates(self, requested, decay):
        """Not by any other shape: the siblings' share of what is missed depends on the level."""
        tree = TreeConfig(name="medusa-63")

        def survival(level):
            return tree_survival(tree, rates_by_rank(LevelDecay(level, decay).conditional(4).tolist(), OTHER_RANKS))

        level = brentq(lambda level: 1 + survival(level).sum() - requested, 0.0, 1.0, xtol=1e-12)
        config = speculation("medusa", {"acceptance_length": requested, "decay": decay}, tree="medusa-63")
        assert_allclose(draft_survival(config), survival(level), rtol=1e-6)

    @pytest.mark.parametrize("rest", [{"tree": "medusa-63"}, {"num_speculative_tokens": 4}])
    @pytest.mark.parametrize("level", [{"alpha": 0.6}, {"acceptance_length": 2.4}])
    def test_rates_do_not_decay_unless_requested(self, rest, level):
        def survival(**decay):
            return draft_survival(speculation("medusa", level | decay, **rest)).tolist()

        assert survival() == survival(decay=1.0)
        assert survival() != survival(decay=0.8)

    def test_names_of_trees_are_cut(self):
        with pytest.raises(ForerunError, match=f"no tree '{'x' * 80}'"):
            load_tree("x" * 500)

    def test_lengths_no_tree_of_this_depth_can_give(self):
        less, most = (
            speculation("medusa", {"acceptance_length": length}, tree={"choices": [[0], [1]]}) for length in (2.1, 2.0)
        )
        with pytest.raises(ForerunError, match=r"lies between 1 and 2\.00; change decay or the tree"):
            draft_survival(less)
        assert draft_survival(most).tolist() == [1.0]


CURVE = {"name": "made", "method": "eagle", "target": "t", "task": "made", "source": "made"}


class TestCurves:
    def test_lengths_are_met_where_they_were_measured(self):
        lengths = {1: 1.7, 2: 2.15, 4: 2.6}
        curve = Curve(**CURVE, lengths=lengths)
        assert curve.positions == 4
        for tokens, length in lengths.items():
            assert 1 + curve.survival(tokens).sum() == pytest.approx(length, abs=1e-9)
        between = 1 + curve.survival(3).sum()
        assert 2.15 < between < 2.6
        assert between == pytest.approx(curve.fit.model.acceptance_length(3))

    def test_rates_are_used_as_published_and_continued(self):
        falling = 0.8 * 0.9 ** np.log2(np.arange(1, 6))
        for measure, rates in (
            ("per_position", np.cumprod(falling)[:3].tolist()),
            ("conditional", falling[:3].tolist()),
        ):
            curve = Curve(**CURVE, **{measure: rates})
            assert curve.positions == 3
            assert_allclose(curve.survival(2), [0.8, 0.576])
            assert_allclose(curve.survival(5), np.cumprod(falling), rtol=1e-4)

    def test_one_rate_for_all(self):
        curve = Curve(**CURVE, alpha=0.8)
        assert curve.positions == 1024
        assert_allclose(curve.survival(4), 0.8 ** np.arange(1, 5))
        assert curve.fit.model.level == pytest.approx(0.8)
        assert curve.fit.model.decay == pytest.approx(1.0, abs=1e-6)

    def test_heads_by_rank(self):
        curve = Curve(**CURVE, heads=[[0.5, 0.7, 0.75], [0.4, 0.5]])
        assert [list(row) for row in curve.rank_rates()] == [pytest.approx([0.5, 0.2, 0.05]), pytest.approx([0.4, 0.1])]
        assert_allclose(curve.survival(2), [0.5, 0.2])
        with pytest.raises(ForerunError, match="knows the first candidate of each position only"):
            Curve(**CURVE, alpha=0.8).rank_rates()
        with pytest.raises(ValueError, match="exactly one of"):
            Curve(**CURVE, alpha=0.8, heads=[[0.5]])


class TestFits:
    def test_rates_may_rise_up_to_a_quarter_and_fall_to_a_thousandth(self):
        rising = fit_survival(np.cumprod(0.3 * 1.2 ** np.log2([1, 2, 3])).tolist())
        assert rising.model.decay == pytest.approx(1.2, rel=1e-3)
        assert fit_survival(np.cumprod([0.1, 0.9]).tolist()).model.decay == pytest.approx(1.25, rel=1e-3)
        falling = fit_survival([0.9, 0.0, 0.0], 1000)
        assert falling.model.decay == pytest.approx(1e-3, abs=1e-3)

    def test_what_is_always_accepted_later_is_fitted_too(self):
        """Rates of 0.8, 1 and 1: the model saturates at 1, and its likelihood stays finite."""
        fit = fit_survival([0.8, 0.8, 0.8], 1000)
        assert fit.model.decay > 1
        assert np.isfinite(fit.deviance)
        assert max(fit.predicted) <= 1.0

    def test_the_first_position_alone_has_a_binomial_error(self):
        """240 of 400 are accepted, and half a draft either way is the prior's."""
        fit, level = fit_survival([0.6], 400), 240.5 / 401
        assert (fit.model, fit.decay_identified) == (LevelDecay(level), False)
        assert fit.level_error == pytest.approx((level * (1 - level) / 401) ** 0.5)
        assert (fit.decay_error, fit.degrees) == (None, 0)
        assert fit.deviance == pytest.approx(0.0, abs=1e-9)
        assert fit_survival([0.6]).level_error is None

    def test_the_deviance_is_twice_the_loss_of_likelihood(self):
        survival, drafts = [0.6, 0.5, 0.1], 1000
        fit = fit_survival(survival, drafts)
        due = _loss(survival, drafts, fit.model.level, fit.model.decay)
        assert fit.deviance == pytest.approx(due, rel=1e-6)
        assert (fit.degrees, fit.at) == (1, (1, 2, 3))
        for a, b in product((-0.01, 0.01), repeat=2):
            assert due < _loss(survival, drafts, fit.model.level + a, fit.model.decay + b)

    def test_errors_are_relative_to_what_was_measured(self):
        usual = {"model": LevelDecay(0.5), "decay_identified": True, "at": (1, 2)}
        lengths = AcceptanceFit(**usual, quantity="acceptance_length", observed=(1.5, 2.0), predicted=(1.6, 1.9))
        assert lengths.length_error == pytest.approx(0.1 / 1.5)
        assert lengths.rate_error is None
        rates = AcceptanceFit(**usual, quantity="conditional", observed=(0.5, 0.5), predicted=(0.5, 0.6))
        assert rates.length_error == pytest.approx(1.8 / 1.75 - 1)
        assert rates.rate_error == pytest.approx(0.1)

    def test_the_bounds_of_a_length(self):
        assert fit_acceptance_lengths({2: 1.0}).model.level == pytest.approx(0.0, abs=1e-9)
        assert fit_acceptance_lengths({2: 3.0}).model.level == pytest.approx(1.0, abs=1e-9)
        assert fit_acceptance_lengths({1: 1.5}).at == (1,)
        assert fit_acceptance_lengths({1: 1.5, 3: 2.0}).decay_identified

    def test_what_ends_in_never_goes_on_as_never(self):
        assert extended([0.5, 0.0], 4).tolist() == [0.5, 0.0, 0.0, 0.0]
        assert extended([0.0], 3).tolist() == [0.0, 0.0, 0.0]
        assert extended([0.5, 0.4, 0.3], 2).tolist() == [0.5, 0.4]


def _loss(survival, drafts, level, decay):
    """Twice the loss of likelihood of a model, with half a draft of the prior accepted and half a one not."""
    reached = [1.0, *survival]
    rates = LevelDecay(level, decay).conditional(len(survival))
    total = 0.0
    for i, rate in enumerate(rates):
        trials = drafts * reached[i] + 1.0
        seen = (drafts * survival[i] + 0.5) / trials
        total += 2 * trials * (seen * np.log(seen / rate) + (1 - seen) * np.log((1 - seen) / (1 - rate)))
    return total


class TestClosedForms:
    def test_limits_of_the_inverse(self):
        for tokens in (1, 5):
            assert iid_alpha(1.0, tokens) == pytest.approx(0.0, abs=1e-12)
            assert iid_alpha(tokens + 1.0, tokens) == 1.0
            assert iid_alpha(tokens + 0.99, tokens) < 1.0
            for length in (1.0 - 1e-9, tokens + 1 + 1e-9):
                with pytest.raises(ForerunError, match="between 1 and"):
                    iid_alpha(length, tokens)
