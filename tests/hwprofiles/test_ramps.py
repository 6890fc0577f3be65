"""Ramps of learned corrections: what is computed of them is their definition, however few of them rise."""

import numpy as np
import pytest

from hwprofiles import KernelLibrary, KernelTime
from hwprofiles.correction import LARGEST, PARTS, SIZES, Correction, Ramps, feature_names, ramps_of
from hwprofiles.kernels.recurrent import RecurrentShape


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


@pytest.mark.parametrize(("family", "moving"), [("recurrent_prefill", ("batch", "q_len")), ("moe", ("tokens",))])
def test_kernels_corrected_one_by_one_are_as_many_are(family: str, moving: tuple[str, ...]) -> None:
    draw, names = np.random.default_rng(5), feature_names(family)
    low = draw.uniform(-2.0, 12.0, (60, PARTS))
    high = low + draw.uniform(0.1, 3.0, (60, PARTS))
    feature = draw.integers(0, len(names), (60, PARTS)).astype(np.int16)
    gain = draw.uniform(0.0, 0.1, 60)
    ramps = Ramps(feature, low, high, draw.random(60) < 0.5, gain, -10.0 - 0.3 * gain.sum(), (-12.0, -8.0))
    correction = Correction(ramps, {}, {})
    fixed = {name: float(draw.integers(1, 100)) for name in SIZES[family] if name not in moving}
    sizes = {name: draw.integers(1, 5000, 300).astype(float) for name in moving}
    seconds = np.exp(draw.uniform(-14.0, -6.0, 300))
    together = correction.seconds(family, fixed | sizes, KernelTime(seconds, *[0.0 * seconds] * 5), 148.0)
    one = correction.along(family, fixed, moving)
    found = [one(*asked) for asked in zip(seconds.tolist(), *(sizes[name].tolist() for name in moving), strict=True)]
    assert found == pytest.approx(together.tolist(), rel=1e-12)
    for some in (np.isclose(abs(np.log(together / seconds)), LARGEST), seconds < np.exp(-12), seconds > np.exp(-8)):
        assert 0 < some.sum() < 300


@pytest.mark.parametrize("library", ["vllm", "sglang"])
@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm", "gb300"])
def test_scans_of_more_tokens_or_sequences_never_take_less(chip: str, library: str) -> None:
    """As steps ask for them, one after the other, and at no more than the light's pace."""
    kernels, shape = KernelLibrary(chip, library), RecurrentShape(2, 8, 128, 128)
    assert kernels.correction("recurrent_prefill", "bf16") is not None
    assert kernels.reading(False).correction("recurrent_prefill", "bf16") is None
    seconds, tokens = kernels.prefill_seconds(shape), np.unique(np.geomspace(1, 65536, 150).round())
    found = np.array([[seconds(n, n * each, 0, 0) for each in tokens.tolist()] for n in (1, 2, 3, 9, 40)])
    assert (np.diff(found, axis=1) >= -1e-12 * found[:, 1:]).all()
    assert (np.diff(found, axis=0) >= -1e-12 * found[1:]).all()
    for n, row in zip((1, 2, 3, 9, 40), found, strict=True):
        together = kernels.recurrent_prefill(shape, seqs=n, q_tokens=n * tokens)
        assert row == pytest.approx(together.seconds, rel=1e-12)
        assert (together.seconds >= kernels.light_seconds(together, "bf16")).all()
