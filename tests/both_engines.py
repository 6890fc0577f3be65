"""The compiled loop against exact steps: what two runs of one scenario have to agree in."""

import pytest
from numpy.testing import assert_allclose

from simulator.running.run import simulate

BOUNDS = ("compute_s", "memory_s", "interconnect_s", "latency_s", "host_s")


def both_engines(scenario, seed=0, **arguments):
    """Runs by the compiled loop and by exact steps, which agree in requests, counters, blocks and work."""
    fast, exact = (
        simulate(scenario.with_values({"engine.stepping": stepping}), seed, **arguments)
        for stepping in ("fast", "exact-steps")
    )
    staged = scenario.hardware.pipeline_parallel > 1  # stages have a loop of their own, which counts none as exact
    assert fast.engine.steps == exact.engine.steps
    assert (fast.engine.exact_steps, exact.engine.exact_steps) == (0, 0 if staged else exact.engine.steps)
    for column, values in fast.requests.columns().items():
        assert_allclose(values, exact.requests.columns()[column], rtol=1e-9, err_msg=column)
    assert fast.speculation == exact.speculation
    assert (fast.kv.preemptions, fast.kv.peak_blocks) == (exact.kv.preemptions, exact.kv.peak_blocks)
    assert fast.steps.flops.sum() == pytest.approx(exact.steps.flops.sum())
    for run in (fast, exact):
        assert run.steps.output_tokens.sum() == run.requests.output_tokens[~run.requests.failed].sum()
        assert_allclose(sum(getattr(run.steps, bound) for bound in BOUNDS), run.steps.seconds, rtol=1e-9, atol=1e-12)
    return fast, exact


def assert_same_bytes(one, other):
    """Two runs agree in every column of their requests and steps, to the last bit."""
    for part in ("requests", "steps"):
        for column, values in getattr(one, part).columns().items():
            assert values.tobytes() == getattr(other, part).columns()[column].tobytes(), column
    assert one.speculation == other.speculation
    assert one.kv == other.kv
