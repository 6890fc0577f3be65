"""Acceptance that falls with the context: the factor requested, drawn the same however a request is cut up."""

import csv

import numpy as np
import pytest
from acceptance_draws import draws
from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation import (
    AcceptanceConfig,
    AcceptanceSampler,
    ContextDrift,
    DraftConfig,
    LevelDecay,
    SpeculationConfig,
    WindowFall,
    context_drift,
    window_note,
)


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


@given(st.integers(1, 5000), st.floats(0.1, 100.0), st.integers(1, 200_000))
def test_rates_never_rise_beyond_the_window(window, half, context):
    fall = WindowFall(window, half)
    assert (fall.cell(context) < 0) == (context <= window)
    assert fall.cell(context) <= fall.cell(context + 1)
    assert 0.0 <= fall.factor(fall.cell(context)) <= fall.factor(fall.cell(context) - 1) <= 1.0


def test_half_of_the_rate_is_left_after_the_windows_given():
    fall = WindowFall(1000, 3.0)
    cell = fall.cell(4000)
    assert fall.factor(cell - 1) > 0.5 > fall.factor(cell)


def test_lengths_of_eagle3_beyond_its_window(shared_data):
    """EAGLE-3 on Qwen3-8B at 2k to 20k tokens, level from the first row: within 5 %, where lengths fall to half."""
    with (shared_data / "measured_2026/github_threads_tables.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "vllm-project/speculators#684"]
    lengths = {
        int(row["input_len"]): float(row["accept_length"]) for row in rows if row["mode"] == "full-attention drafter"
    }
    assert len(lengths) >= 6
    rates, fall = LevelDecay(1.0).with_length(lengths[2048], 3).conditional(3), WindowFall(2048)
    for context, measured in lengths.items():
        predicted = 1.0 + np.cumprod(rates * fall.factor(fall.cell(context))).sum()
        assert predicted == pytest.approx(measured, rel=0.05), context


def test_acceptance_falls_only_where_attention_leaves_the_window():
    acceptance = AcceptanceConfig(alpha=0.7)
    assert context_drift(acceptance, None) is None
    assert context_drift(acceptance, DraftConfig(num_layers=1)) is None
    assert context_drift(acceptance, DraftConfig(trained_window=2048)) == WindowFall(2048)
    assert context_drift(acceptance, DraftConfig(trained_window=2048, windowed=True)) is None


@pytest.mark.parametrize(
    ("draft", "longest", "words"),
    [
        (None, 2048, None),
        (None, 2049, "taken to hold as given"),
        ({"trained_window": 8192}, 2049, None),
        ({"trained_window": 1024}, 5120, "fall from 2.19 to 1.45"),
        ({"trained_window": 1024, "windowed": True}, 5120, None),
    ],
)
def test_prompts_beyond_the_window_are_reported(draft, longest, words):
    config = SpeculationConfig(method="eagle3", num_speculative_tokens=2, draft=draft, acceptance={"alpha": 0.7})
    note = window_note(config, np.array([100, longest]))
    assert (note is None) if words is None else (words in note and "50 %" in note)
