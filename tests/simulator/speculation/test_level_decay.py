"""Level x decay: its formulas, its fits, its extrapolation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from forerun.errors import ForerunError
from simulator.speculation import LevelDecay, expected_tokens, fit_acceptance_lengths, fit_survival, iid_alpha
from simulator.speculation.level_decay import conditional_rates, extended

levels, decays = st.floats(0.05, 0.99), st.floats(0.5, 1.0)


@given(levels, st.integers(1, 12))
def test_decay_one_is_the_iid_model(level, tokens):
    assert LevelDecay(level).acceptance_length(tokens) == pytest.approx(expected_tokens(level, tokens), rel=1e-12)
    length = expected_tokens(level, tokens)
    assert LevelDecay(0.5).with_length(length, tokens).level == pytest.approx(iid_alpha(length, tokens), abs=1e-9)


@given(levels, decays, st.integers(1, 12))
def test_survival_is_the_product_of_decaying_rates(level, decay, tokens):
    model = LevelDecay(level, decay)
    by_hand, alive = [], 1.0
    for i in range(1, tokens + 1):
        alive *= min(1.0, level * decay ** np.log2(i))
        by_hand.append(alive)
    assert_allclose(model.survival(tokens), by_hand, rtol=1e-12)
    assert model.acceptance_length(tokens) == pytest.approx(1 + sum(by_hand), rel=1e-12)


@given(levels, decays, st.integers(1, 10))
def test_with_length_finds_the_level_again(level, decay, tokens):
    length = LevelDecay(level, decay).acceptance_length(tokens)
    assert LevelDecay(1.0, decay).with_length(length, tokens).level == pytest.approx(level, abs=1e-9)


def test_with_length_refuses_what_no_level_gives():
    with pytest.raises(ForerunError, match="between 1 and 4"):
        LevelDecay(1.0).with_length(4.2, 3)
    with pytest.raises(ForerunError, match="give a decay nearer 1"):
        LevelDecay(1.0, 0.5).with_length(3.5, 3)
    assert LevelDecay(1.0, 1.0).with_length(4.0, 3).level == 1.0


@given(levels, decays, st.integers(3, 8))
def test_exact_lengths_give_exact_parameters(level, decay, deepest):
    model = LevelDecay(level, decay)
    fit = fit_acceptance_lengths({k: model.acceptance_length(k) for k in range(1, deepest + 1)})
    assert fit.model.level == pytest.approx(level, abs=1e-5)
    assert fit.model.decay == pytest.approx(decay, abs=1e-3)
    assert fit.length_error < 1e-6


@given(st.floats(0.2, 0.99), decays)
def test_lengths_of_some_depths_are_enough(level, decay):
    model = LevelDecay(level, decay)
    fit = fit_acceptance_lengths({k: model.acceptance_length(k) for k in (3, 5, 7)})
    assert fit.model.acceptance_length(4) == pytest.approx(model.acceptance_length(4), rel=1e-4)


def test_one_length_shows_no_decay():
    fit = fit_acceptance_lengths({4: 2.5})
    assert not fit.decay_identified
    assert fit.model == LevelDecay(pytest.approx(iid_alpha(2.5, 4), abs=1e-9))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ({}, "no acceptance length"),
        ({3: 4.1}, "4.1 is impossible with 3 draft tokens: .* between 1 and 4"),
        ({3: 4.0 + 1e-9}, "is impossible with 3 draft tokens"),
        ({3: 1.0 - 1e-9}, "is impossible with 3 draft tokens"),
        ({0: 1.0}, "1 is impossible with 0 draft tokens"),
    ],
)
def test_impossible_lengths_are_refused(lengths, message):
    with pytest.raises(ForerunError, match=message):
        fit_acceptance_lengths(lengths)


def test_a_fit_of_counts_recovers_the_truth_within_its_errors():
    """Binomial counts of a known model: the estimate lies within 4 standard errors, the deviance near its degrees."""
    truth, drafts, generator = LevelDecay(0.82, 0.93), 4000, np.random.default_rng(5)
    scaled, deviances = [], []
    for _ in range(60):
        alive, survival = drafts, []
        for rate in truth.conditional(5):
            alive = generator.binomial(alive, rate)
            survival.append(alive / drafts)
        fit = fit_survival(survival, drafts)
        scaled.append([(fit.model.level - 0.82) / fit.level_error, (fit.model.decay - 0.93) / fit.decay_error])
        deviances.append(fit.deviance)
        assert fit.degrees == 3
    scaled = np.array(scaled)
    assert np.abs(scaled).max() < 4
    assert ((scaled.std(axis=0) > 0.7) & (scaled.std(axis=0) < 1.35)).all(), "the standard errors are honest"
    assert np.mean(deviances) == pytest.approx(3, abs=4 * np.sqrt(2 * 3 / 60))


def test_positions_that_no_draft_reached_say_nothing():
    fit = fit_survival([0.6, 0.0, 0.0], 100)
    assert fit.at == (1, 2)
    assert conditional_rates([0.6, 0.0, 0.0]) == [0.6, 0.0]
    with pytest.raises(ForerunError):
        fit_survival([])


@given(st.floats(0.3, 0.95), st.floats(0.7, 1.0), st.integers(2, 5))
def test_extension_keeps_what_was_measured_and_continues_its_decay(level, decay, known):
    model = LevelDecay(level, decay)
    rates = extended(model.conditional(known).tolist(), 8)
    assert_allclose(rates[:known], model.conditional(known))
    assert_allclose(rates, model.conditional(8), rtol=2e-3)


@pytest.mark.parametrize(("drafts", "levels"), [(None, True), (1e5, True), (100, False)])
def test_the_loss_after_the_first_position_does_not_go_on(drafts, levels):
    """A block drafter's rates level out after the first position; few drafts do not tell that from one law."""
    rates = extended([0.90, 0.86, 0.86], 8, drafts)
    assert (rates[-1] > 0.855) == levels
    assert rates[-1] > 0.8


def test_one_position_cannot_be_extended():
    with pytest.raises(ForerunError, match="two positions"):
        extended([0.7], 3)
    assert extended([0.7], 1) == [0.7]
