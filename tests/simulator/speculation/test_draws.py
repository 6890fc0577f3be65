"""Random draws: the published generator, bit for bit, wherever one begins to read it."""

from hypothesis import given
from hypothesis import strategies as st

from simulator.speculation.acceptance import counter_bits, counter_uniforms

MASK = 2**64 - 1


def splitmix(seed, count):
    """``count`` outputs of SplitMix64 in whole numbers (S. Vigna's ``splitmix64.c``)."""
    rows = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        rows.append(z ^ (z >> 31))
    return rows


def test_the_reference_is_the_published_one():
    """First outputs of splitmix64.c for the seeds 0 and 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64")."""
    assert splitmix(0, 2) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert splitmix(1234567, 2) == [6457827717110365317, 3203168211198807973]


@given(st.integers(0, MASK), st.integers(0, 40), st.integers(0, 6000), st.integers(0, 30))
def test_a_stream_is_seeded_by_an_output_of_its_key(key, stream, first, count):
    """Stream n of a key is SplitMix64 seeded with output n of SplitMix64 seeded with the key."""
    start = splitmix(key, stream + 1)[stream]
    expected = splitmix((start + first * 0x9E3779B97F4A7C15) & MASK, count)
    assert counter_bits(key, stream, first, count).tolist() == expected


@given(st.integers(0, MASK), st.integers(0, 40), st.integers(0, 90))
def test_uniforms_are_the_upper_53_bits(key, stream, first):
    bits = counter_bits(key, stream, first, 8).tolist()
    assert counter_uniforms(key, stream, first, 8).tolist() == [(b >> 11) / 2**53 for b in bits]
