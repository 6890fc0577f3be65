"""Acceptance: closed forms, configuration, and draws that do not depend on who asks first."""

import math

import numpy as np
import pytest
from acceptance_draws import draws, path
from numpy.testing import assert_allclose

from simulator.speculation import (
    AcceptanceConfig,
    AcceptanceSampler,
    expected_tokens,
    survival_rates,
)


def test_marginal_and_conditional_rates_describe_the_same_drafter():
    marginal = survival_rates(AcceptanceConfig(per_position=[0.73, 0.52, 0.35]), 3)
    conditional = survival_rates(AcceptanceConfig(conditional=[0.73, 0.52 / 0.73, 0.35 / 0.52]), 3)
    assert_allclose(marginal, conditional)


def test_draws_are_uniform_within_and_across_requests():
    """With twenty equally likely outcomes a verify step, each is as frequent as the others."""
    sampler = AcceptanceSampler(np.linspace(0.95, 0.05, 19), 99)
    rows = np.array([draws(sampler, request, 0, 400) for request in range(400)])
    for flat in (rows.ravel(), rows[:, 0], rows[0]):
        expected = len(flat) / 20
        assert ((np.bincount(flat, minlength=20) - expected) ** 2 / expected).sum() < 50, "chi-square beyond 0.9999"
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.2
    assert abs(np.corrcoef(rows[0], rows[1])[0, 1]) < 0.2


@pytest.mark.parametrize(("alpha", "drafted"), [(0.7, 4), (0.9, 2), (0.3, 7)])
def test_simulated_acceptance_within_three_standard_errors(alpha, drafted):
    sampler = AcceptanceSampler(np.cumprod(np.full(drafted, alpha)), 11)
    accepted = np.concatenate([path(sampler, r, 2000) for r in range(200)])
    error = accepted.std() / math.sqrt(len(accepted))
    assert abs(accepted.mean() + 1 - expected_tokens(alpha, drafted)) < 3 * error
