"""Random draws addressed by (seed, stream, position): any part can be drawn alone, in any order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: the step of the Weyl sequence."""


def counter_uniforms(key: int, stream: int, first: int, count: int) -> FloatArray:
    """``count`` uniform draws in [0, 1) from position ``first`` of a stream, 53 bits each."""
    return (counter_bits(key, stream, first, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def counter_bits(key: int, stream: int, first: int, count: int) -> NDArray[np.uint64]:
    """64 random bits for each of ``count`` positions of a stream: a hash, so any part can be drawn alone.

    Source: the finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014,
    with Stafford's mix 13), applied to a Weyl sequence started at a mixed (key, stream).
    """
    start = _mix_scalar((key + (stream + 1) * GOLDEN) & 0xFFFFFFFFFFFFFFFF)
    state = _weyl(first + count)[first:] + np.uint64(start)
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


_weyl_steps = np.empty(0, dtype=np.uint64)


def _weyl(count: int) -> NDArray[np.uint64]:
    """The first ``count`` multiples of the golden ratio; kept, as every stream uses them."""
    global _weyl_steps
    if len(_weyl_steps) < count:
        _weyl_steps = np.arange(1, max(count, 2 * len(_weyl_steps), 4096) + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return _weyl_steps[:count]


def _mix_scalar(value: int) -> int:
    mask = 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)
