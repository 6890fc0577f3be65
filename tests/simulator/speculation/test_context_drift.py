"""Acceptance that falls with the context: the factor requested, drawn the same however a request is cut up."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from simulator.speculation import AcceptanceSampler, ContextDrift


@given(st.integers(1, 5000), st.floats(0.1, 1.0), st.integers(1, 200_000))
def test_a_cell_ends_where_the_next_begins(start, decay, context):
    drift = ContextDrift(decay, start)
    cell = drift.cell(context)
    end = drift.end(cell)
    assert context < end
    assert drift.cell(end) > cell
    assert drift.cell(end - 1) <= cell
    assert drift.factor(cell) <= drift.factor(cell - 1) <= 1.0


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
        np.concatenate([sampler.draws(request, 0, 40, context) for request in range(1500)]) for context in (900, 3000)
    )
    for i in range(1, 4):
        requested = (near >= i).mean() * factor**i
        assert (far >= i).mean() == pytest.approx(requested, abs=5 * np.sqrt(requested * (1 - requested) / len(far)))
    if not spread:
        assert (near >= 1).mean() == pytest.approx(0.8, abs=5 * np.sqrt(0.16 / len(near)))


@given(st.integers(0, 50), st.integers(1, 400), st.integers(0, 3000), st.integers(0, 399))
def test_a_path_can_be_cut_anywhere(request, tokens, context, cut):
    sampler = AcceptanceSampler(np.cumprod([0.8, 0.7]), 1, 0.0, ContextDrift(0.6, 100))
    whole = sampler.path(request, tokens, context=context)
    delivered = np.cumsum(whole + 1)
    assert delivered[-1] >= tokens > (delivered[-2] if len(delivered) > 1 else 0)
    done = min(cut, len(whole) - 1)
    before = int(delivered[done - 1]) if done else 0
    rest = sampler.path(request, tokens - before, done, context=context + before)
    assert_array_equal(rest, whole[done:])
    one_by_one = [
        int(sampler.draws(request, i, 1, context + int(delivered[i] - whole[i] - 1))[0]) for i in range(len(whole))
    ]
    assert one_by_one == whole.tolist()
