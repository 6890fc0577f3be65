"""Acceptance that falls with the context: the factor requested, drawn the same however a request is cut up."""

import csv

import numpy as np
import pytest
from acceptance_draws import draws
from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation import AcceptanceSampler, ContextDrift


@given(st.integers(1, 5000), st.floats(0.1, 1.0), st.integers(1, 200_000))
def test_rates_never_rise_with_the_context(start, decay, context):
    drift = ContextDrift(decay, start)
    assert drift.cell(context) <= drift.cell(context + 1)
    assert drift.factor(drift.cell(context)) <= drift.factor(drift.cell(context) - 1) <= 1.0


def test_the_public_figures_along_the_context(shared_data):
    """MagicDec's draft with 512 tokens of KV, 4k to 100k tokens: one factor per doubling, within 0.01."""
    with (shared_data / "published/acceptance.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if "alpha_at_context" in row.values()]
    values = [list(row.values()) for row in rows]
    at = {int(v[v.index("alpha_at_context") + 1]): float(v[v.index("alpha_at_context") + 2]) for v in values}
    assert len(at) == 6
    drift = ContextDrift(0.987, 4096)
    for context, alpha in at.items():
        assert 0.84 * drift.factor(drift.cell(context)) == pytest.approx(alpha, abs=0.01)


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_rates_at_each_context_are_those_requested(spread):
    """Each position's share falls by the factor to the power of its depth, within five standard errors."""
    survival = np.cumprod([0.8, 0.7, 0.6])
    sampler = AcceptanceSampler(survival, 5, spread, ContextDrift(0.8, 1000))
    factor = sampler.drift.factor(sampler.drift.cell(3000))
    near, far = (
        np.concatenate([draws(sampler, request, 0, 40, context) for request in range(1500)]) for context in (900, 3000)
    )
    for i in range(1, 4):
        requested = (near >= i).mean() * factor**i
        assert (far >= i).mean() == pytest.approx(requested, abs=5 * np.sqrt(requested * (1 - requested) / len(far)))
    if not spread:
        assert (near >= 1).mean() == pytest.approx(0.8, abs=5 * np.sqrt(0.16 / len(near)))
