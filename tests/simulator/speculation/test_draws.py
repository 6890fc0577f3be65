"""Random draws: the published generator, bit for bit, wherever one begins to read it."""

import numpy as np
import pytest
from acceptance_draws import draws
from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation import AcceptanceSampler
from simulator.speculation.acceptance import CLASSES

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(seed, count):
    """``count`` outputs of SplitMix64 in whole numbers (S. Vigna's ``splitmix64.c``)."""
    rows = []
    for _ in range(count):
        seed = (seed + GOLDEN) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        rows.append(z ^ (z >> 31))
    return rows


def stream_bits(key, stream, first, count):
    """Outputs of SplitMix64 seeded with output ``stream`` of SplitMix64 seeded with the key."""
    start = splitmix(key, stream + 1)[stream]
    return splitmix((start + first * GOLDEN) & MASK, count)


def test_the_reference_is_the_published_one():
    """First outputs of splitmix64.c for the seeds 0 and 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64")."""
    assert splitmix(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert splitmix(1234567, 2) == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize("spread", [0.0, 0.1])
@given(st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 6000), st.integers(0, 30))
def test_draws_are_those_of_the_published_generator(spread, seed, request, first, count):
    sampler = AcceptanceSampler(np.cumprod([0.9, 0.7, 0.5]), seed, spread)
    thresholds = np.atleast_2d(sampler.thresholds(-1))
    row = int((stream_bits(sampler.class_key, request, 0, 1)[0] >> 11) / 2**53 * CLASSES) if spread else 0
    bits = np.array(stream_bits(sampler.key, request, first, count), dtype=np.uint64)
    expected = 3 - np.searchsorted(thresholds[row], bits, side="right")
    assert draws(sampler, request, first, count).tolist() == expected.tolist()
