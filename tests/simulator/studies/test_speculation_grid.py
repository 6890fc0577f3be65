"""What K draft tokens are worth: bounds, the crossover, and the same figures as a simulated run."""

import numpy as np
import pytest
from refused import refused
from scenario_parts import burst, drafts, on_h100

from simulator.running.run import simulate
from simulator.studies.tune.grid import busy_rate, crossover, speculation_grid

BATCHES = (1, 8, 64, 512)


def scenario(**speculation):
    return on_h100(burst(1, 1, 1), speculation=drafts("eagle3", 3) | speculation)


def grid(chosen, ks=(1, 3, 6)):
    return speculation_grid(chosen, ks, BATCHES, (512, 8192), 8, 512, 256)


def test_speedup_is_below_the_acceptance_length_and_acceptance_is_the_closed_form():
    result = grid(scenario())
    expected = [(1 - 0.7 ** (k + 1)) / (1 - 0.7) for k in (1, 3, 6)]
    np.testing.assert_allclose(result.acceptance_length, expected, rtol=1e-12)
    assert (result.by_batch < result.acceptance_length[:, None]).all()
    assert (result.by_context < result.acceptance_length[:, None]).all()
    assert result.by_batch.shape == (3, 4)
    assert result.by_context.shape == (3, 2)


def test_grid_agrees_with_a_simulated_batch():
    """64 equal requests at once, long outputs: decoding dominates, and the batch stays full until near the end."""
    run = scenario().with_values({"workload": burst(64, 16, 1000)})
    drafted, plain = (
        simulate(run.with_values({"speculation.method": method})).summary["mean_tpot_ms"]
        for method in ("eagle3", "none")
    )
    result = speculation_grid(run, (3,), (64,), (516,), 64, 16, 1000)
    assert plain / drafted == pytest.approx(result.by_batch[0, 0], rel=0.04)


def test_crossover_is_where_the_line_passes_one():
    batches = np.array([1, 4, 16, 64])
    assert crossover(batches, np.array([1.5, 1.25, 0.75, 0.5])) == pytest.approx(8.0)
    assert crossover(batches, np.array([1.5, 1.4, 1.3, 1.0])) is None
    assert crossover(batches, np.array([0.9, 0.8, 0.7, 0.6])) == 0.0


def test_busy_rate_without_prompts_is_the_batch_over_its_time():
    assert busy_rate(32, 0.01, 0.0, 100) == pytest.approx(32 / (100 * 0.01))
    assert busy_rate(1e9, 0.01, 0.02, 100) == pytest.approx(1 / 0.02, rel=1e-6)


def test_grid_needs_a_chain():
    with refused("speculation.tree"):
        grid(scenario(num_speculative_tokens=None, tree="eagle-25"))
    with refused("speculation: the scenario has none"):
        grid(scenario(method="none"))
