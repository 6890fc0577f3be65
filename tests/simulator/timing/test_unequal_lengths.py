"""Steps whose sequences differ in length, on cards whose kernels wait for the longest."""

import numpy as np
import pytest
from plain_scenario import plain_scenario
from timing_steps import arrays, decode, deployment

from simulator.running.run import simulate
from simulator.timing import ModelTimer, StepTimer, some_steps, tracked_longest
from simulator.workload import RequestStream


def timer(chip):
    return StepTimer(deployment("llama-3.1-8b", chip), 2048)


def test_only_cards_with_such_kernels_ask():
    assert timer("h100-sxm").tracked_longest == tracked_longest(ModelTimer(timer("h100-sxm"))) == 0
    requested = timer("rtx-4090").tracked_longest
    assert 4 <= requested <= 12
    assert tracked_longest(object()) == 0


@pytest.mark.parametrize("seqs", [8, 64])
def test_table_and_formula_agree(seqs):
    result = timer("rtx-4090")
    plain = decode(seqs, 1000)
    work = plain._replace(longest_kv=6000, tail_kv=3500.0)
    extra = result.seconds(work) - result.seconds(plain)
    (shape,) = result.shapes
    key_s = result.deployment.kernels.tail_seconds(shape, seqs)
    assert (key_s > 0) == (seqs == 64)
    assert extra == pytest.approx(32 * key_s * 3500)
    costs = result.costs(arrays(work)).device_s - result.costs(arrays(plain)).device_s
    assert float(costs[0]) == pytest.approx(extra, abs=1e-12)


def test_some_steps_take_what_is_there():
    steps = arrays(decode(3, 100))._replace(longest_kv=np.array([200]), tail_kv=np.array([50.5]))
    taken = some_steps(steps, np.array([0]))
    assert (taken.longest_kv, taken.tail_kv, taken.decode_seqs) == (200, 50.5, 3)
    bare = steps._replace(longest_kv=0)
    assert some_steps(bare, np.array([0])).longest_kv == 0


def test_a_mixture_of_lengths_takes_longer_than_its_mean():
    """The same tokens in all, once in equal lengths and once with a few long sequences among short ones."""
    base = plain_scenario("llama-3.1-8b", "rtx-pro-6000", 1000, 400, 64)
    even = simulate(base)
    stream_inputs = np.where(np.arange(64) % 16 == 0, 8500, 500)
    stream = RequestStream(np.zeros(64), stream_inputs, np.full(64, 400), None)
    uneven = simulate(base, stream=stream)
    assert stream_inputs.sum() == 64 * 1000
    mean = [(r.requests.finished_s - r.requests.first_token_s).min() for r in (even, uneven)]
    assert mean[1] > 1.05 * mean[0]
    stepped = simulate(base.with_values({"engine.stepping": "exact-steps"}), stream=stream)
    assert np.allclose(stepped.requests.finished_s, uneven.requests.finished_s, rtol=1e-9)
