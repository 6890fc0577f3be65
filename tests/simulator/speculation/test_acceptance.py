"""Acceptance: closed forms, configuration, and draws that do not depend on who asks first."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from one_pool import one_pool
from stub_timers import LinearTimer

from forerun.errors import ForerunError
from simulator.serving import EngineLimits
from simulator.speculation import (
    AcceptanceConfig,
    AcceptanceSampler,
    chain_speedup,
    expected_tokens,
    iid_alpha,
    survival_rates,
)
from simulator.speculation.acceptance import counter_uniforms
from simulator.workload import RequestStream


@given(st.floats(0, 1), st.integers(1, 12))
def test_expected_tokens_is_one_plus_the_survival_rates(alpha, drafted):
    survival = survival_rates(AcceptanceConfig(alpha=alpha), drafted)
    assert math.isclose(expected_tokens(alpha, drafted), 1 + survival.sum(), rel_tol=1e-9)


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_acceptance_length_inverts_to_its_alpha(alpha, drafted):
    assert math.isclose(iid_alpha(expected_tokens(alpha, drafted), drafted), alpha, rel_tol=1e-6)


@pytest.mark.parametrize(("alpha", "drafted", "ratio", "published"), [(0.75, 7, 0.02, 3.16), (0.8, 5, 0.02, 3.35)])
def test_leviathan_speedup_by_hand(alpha, drafted, ratio, published):
    """Equation 1 and theorem 3.8, worked by hand: E = (1 - a^(g+1)) / (1 - a), over 1 + g c."""
    by_hand = sum(alpha**i for i in range(drafted + 1)) / (1 + drafted * ratio)
    assert math.isclose(chain_speedup(alpha, drafted, ratio), by_hand, rel_tol=1e-12)
    assert abs(by_hand - published) < 0.02


def test_marginal_and_conditional_rates_describe_the_same_drafter():
    marginal = survival_rates(AcceptanceConfig(per_position=[0.73, 0.52, 0.35]), 3)
    conditional = survival_rates(AcceptanceConfig(conditional=[0.73, 0.52 / 0.73, 0.35 / 0.52]), 3)
    assert_allclose(marginal, conditional)


def test_fewer_tokens_use_the_leading_positions():
    assert_allclose(survival_rates(AcceptanceConfig(per_position=[0.7, 0.5, 0.3]), 2), [0.7, 0.5])


@pytest.mark.parametrize("length", [0.9, 4.5])
def test_impossible_acceptance_length_is_refused(length):
    with pytest.raises(ForerunError, match="between 1 and 4"):
        iid_alpha(length, 3)


@given(st.integers(0, 10_000), st.integers(0, 200), st.integers(0, 50))
def test_draws_do_not_depend_on_where_they_start(request_index, tokens, first):
    whole = counter_uniforms(7, request_index, 0, first + tokens)
    assert_array_equal(whole[first:], counter_uniforms(7, request_index, first, tokens))


def test_uniforms_are_uniform_within_and_across_requests():
    rows = np.array([counter_uniforms(99, r, 0, 400) for r in range(400)])
    for flat in (rows.ravel(), rows[:, 0], rows[0]):
        counts, _ = np.histogram(flat, bins=20, range=(0, 1))
        expected = len(flat) / 20
        assert ((counts - expected) ** 2 / expected).sum() < 50, "chi-square far beyond its 0.9999 quantile"
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.2
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.2


@given(st.floats(0, 1), st.integers(1, 6), st.integers(0, 300), st.integers(0, 50))
def test_path_is_just_long_enough(alpha, drafted, tokens, request_index):
    path = AcceptanceSampler(np.cumprod(np.full(drafted, alpha)), 1).path(request_index, tokens)
    assert (path + 1).sum() >= tokens
    assert (path[:-1] + 1).sum() < max(tokens, 1)
    assert ((path >= 0) & (path <= drafted)).all()


@pytest.mark.parametrize(("alpha", "drafted"), [(0.7, 4), (0.9, 2), (0.3, 7)])
def test_simulated_acceptance_within_three_standard_errors(alpha, drafted):
    sampler = AcceptanceSampler(np.cumprod(np.full(drafted, alpha)), 11)
    accepted = np.concatenate([sampler.path(r, 2000) for r in range(200)])
    error = accepted.std() / math.sqrt(len(accepted))
    assert abs(accepted.mean() + 1 - expected_tokens(alpha, drafted)) < 3 * error


@pytest.mark.parametrize(("alpha", "drafted", "ratio"), [(0.7, 4, 0.1), (0.9, 2, 0.05)])
def test_simulator_reproduces_the_closed_form_speedup(alpha, drafted, ratio):
    """Constant step times and i.i.d. acceptance: gain = E / (g c + 1), Leviathan's theorem 3.8."""
    target_s, output = 0.01, 4000
    stream = RequestStream(np.zeros(20), np.full(20, 10), np.full(20, output), 1)

    def seconds(query_len, sampler):
        limits = EngineLimits(1, 4096, 16, 10_000, 0, 100_000, True, query_len, query_len - 1)
        timer = LinearTimer(step_s=target_s, draft_s=ratio * target_s * (query_len - 1))
        log = one_pool(1, "round-robin", "vllm-v1", "fast", limits, timer, sampler).run(stream)
        return np.asarray(log.finished_s)[-1], log

    plain, _ = seconds(1, None)
    drafted_s, log = seconds(drafted + 1, AcceptanceSampler(np.cumprod(np.full(drafted, alpha)), 2))
    verify_steps = log.accepted_counts.sum()
    accepted = np.repeat(np.arange(drafted + 1), log.accepted_counts)
    relative_error = 3 * accepted.std() / math.sqrt(verify_steps) / expected_tokens(alpha, drafted)
    assert abs(plain / drafted_s / chain_speedup(alpha, drafted, ratio) - 1) < relative_error + 2e-3
