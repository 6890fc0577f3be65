"""Acceptance: closed forms, configuration, and draws that do not depend on who asks first."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from simulator.speculation import (
    AcceptanceConfig,
    AcceptanceSampler,
    expected_tokens,
    survival_rates,
)
from simulator.speculation.acceptance import counter_uniforms


def test_marginal_and_conditional_rates_describe_the_same_drafter():
    marginal = survival_rates(AcceptanceConfig(per_position=[0.73, 0.52, 0.35]), 3)
    conditional = survival_rates(AcceptanceConfig(conditional=[0.73, 0.52 / 0.73, 0.35 / 0.52]), 3)
    assert_allclose(marginal, conditional)


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
