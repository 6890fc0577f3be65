"""Ramps of learned corrections: what is computed of them is their definition, however few of them rise."""

import numpy as np
import pytest

from hwprofiles.correction import PARTS, ramps_of


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 10.0])
def test_ramps_are_the_greatest_or_the_least_of_their_parts(spread: float) -> None:
    draw = np.random.default_rng(3)
    features = 5.0 + spread * draw.standard_normal((7, 40))
    feature = draw.integers(0, 7, (60, PARTS)).astype(np.int16)
    low = draw.uniform(0.0, 10.0, (60, PARTS))
    high = low + draw.uniform(0.1, 3.0, (60, PARTS))
    greatest = draw.random(60) < 0.5
    rows = ramps_of(features, feature, low, high, greatest)
    for row, values in enumerate(rows):
        parts = (features[feature[row]] - low[row, :, None]) / (high - low)[row, :, None]
        one = parts.max(axis=0) if greatest[row] else parts.min(axis=0)
        assert np.array_equal(values, np.clip(one, 0.0, 1.0))
