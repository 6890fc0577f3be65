"""HingeBasis of learned corrections: what is computed of them is their definition, however few of them rise."""

import numpy as np
import pytest

from hwprofiles import KernelLibrary, KernelTime
from hwprofiles.correction import LARGEST, PARTS, SIZES, Correction, HingeBasis, feature_names, hinge_values
from hwprofiles.dtypes import dtype_bytes
from hwprofiles.formulas import AttentionShape
from hwprofiles.kernels.recurrent import RecurrentShape


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 10.0])
def test_hinge_functions_are_the_greatest_or_the_least_of_their_parts(spread: float) -> None:
    draw = np.random.default_rng(3)
    features = 5.0 + spread * draw.standard_normal((7, 40))
    feature = draw.integers(0, 7, (60, PARTS)).astype(np.int16)
    low = draw.uniform(0.0, 10.0, (60, PARTS))
    high = low + draw.uniform(0.1, 3.0, (60, PARTS))
    greatest = draw.random(60) < 0.5
    rows = hinge_values(features, feature, low, high, greatest)
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
    hinges = HingeBasis(feature, low, high, draw.random(60) < 0.5, gain, -10.0 - 0.3 * gain.sum(), (-12.0, -8.0))
    correction = Correction(hinges, {}, {})
    fixed = {name: float(draw.integers(1, 100)) for name in SIZES[family] if name not in moving}
    sizes = {name: draw.integers(1, 5000, 300).astype(float) for name in moving}
    seconds = np.exp(draw.uniform(-14.0, -6.0, 300))
    together = correction.seconds(family, fixed | sizes, KernelTime(seconds, *[0.0 * seconds] * 5), 148.0)
    one = correction.along(family, fixed, moving)
    result = [
        one(*requested) for requested in zip(seconds.tolist(), *(sizes[name].tolist() for name in moving), strict=True)
    ]
    assert result == pytest.approx(together.tolist(), rel=1e-12)
    for some in (np.isclose(abs(np.log(together / seconds)), LARGEST), seconds < np.exp(-12), seconds > np.exp(-8)):
        assert 0 < some.sum() < 300


@pytest.mark.parametrize("library", ["vllm", "sglang"])
@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm", "gb300"])
def test_scans_of_more_tokens_or_sequences_never_take_less(chip: str, library: str) -> None:
    """As steps ask for them, one after the other, and at no more than the light's pace."""
    kernels, shape = KernelLibrary(chip, library), RecurrentShape(2, 8, 128, 128)
    assert kernels.correction("recurrent_prefill", "bf16") is not None
    assert kernels.reading(False).correction("recurrent_prefill", "bf16") is None
    tokens = np.unique(np.geomspace(1, 65536, 150).round())
    result = np.array(
        [
            [kernels.recurrent_prefill(shape, seqs=n, q_tokens=n * each).seconds for each in tokens.tolist()]
            for n in (1, 2, 3, 9, 40)
        ]
    )
    assert (np.diff(result, axis=1) >= -1e-12 * result[:, 1:]).all()
    assert (np.diff(result, axis=0) >= -1e-12 * result[1:]).all()
    for n, row in zip((1, 2, 3, 9, 40), result, strict=True):
        together = kernels.recurrent_prefill(shape, seqs=n, q_tokens=n * tokens)
        assert row == pytest.approx(together.seconds, rel=1e-12)
        assert (together.seconds >= kernels.sol_seconds(together, "bf16")).all()


def _decoding(heads: tuple[int, int, int], dtype: str) -> AttentionShape:
    query, kv, dim = heads
    return AttentionShape(query, kv, dim, dim, 2.0 * kv * dim * dtype_bytes(dtype), dtype)


@pytest.mark.parametrize("heads", [(32, 8, 128), (8, 1, 128), (64, 64, 128), (128, 8, 128), (64, 8, 64), (16, 8, 256)])
@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_decoding_of_twice_the_keys_or_sequences_takes_no_less(
    chip: str, library: str, heads: tuple[int, int, int]
) -> None:
    """Where physics takes no less; what memory adds may shrink by a little faster than what was learned rises."""
    kernels = KernelLibrary(chip, library)
    for dtype in ("bf16", "fp8"):
        shape, batches, lengths = _decoding(heads, dtype), 2.0 ** np.arange(10)[:, None], 2.0 ** np.arange(18)
        for warm in (False, True):
            arguments = {"seqs": batches, "q_len": 1, "kv_tokens": batches * lengths, "warm": warm}
            result = kernels.attention_decode(shape, **arguments).seconds
            physics = kernels.reading(False).attention_decode(shape, **arguments).seconds
            for axis in (0, 1):
                grown, by_physics = (np.diff(np.log(values), axis=axis) for values in (result, physics))
                assert (grown[by_physics >= 0.0] >= (-1e-9 if warm else -0.02)).all()


@pytest.mark.parametrize("heads", [(32, 8, 128), (8, 1, 128), (64, 64, 128), (64, 8, 64), (16, 8, 256)])
@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_prompts_of_twice_the_tokens_or_sequences_take_no_less(
    chip: str, library: str, heads: tuple[int, int, int]
) -> None:
    """Where physics takes no less."""
    kernels = KernelLibrary(chip, library)
    for dtype in ("bf16", "fp8"):
        shape, seqs, tokens = _decoding(heads, dtype), 2.0 ** np.arange(7)[:, None], 2.0 ** np.arange(16)
        arguments = {"seqs": seqs, "q_tokens": seqs * tokens, "kv_tokens": seqs * tokens}
        arguments["pairs"] = seqs * tokens * (tokens + 1) / 2
        result, physics = (
            one.attention_prefill(shape, **arguments).seconds for one in (kernels, kernels.reading(False))
        )
        for axis in (0, 1):
            grown, by_physics = (np.diff(np.log(values), axis=axis) for values in (result, physics))
            assert (grown[by_physics >= 0.0] >= -1e-9).all()


def test_what_cached_keys_add_to_a_prompt_is_as_physics_has_it() -> None:
    """Prompts behind cached keys and of unequal lengths were not measured."""
    kernels, shape = KernelLibrary("h100-sxm", "vllm"), _decoding((32, 8, 128), "bf16")
    cached, ask = 2.0 ** np.arange(17), {"seqs": 2.0, "q_tokens": 1024.0}
    gained = []
    for one in (kernels, kernels.reading(False)):
        fresh = one.attention_prefill(shape, **ask, pairs=512.0 * 513.0, kv_tokens=1024.0).seconds
        whole = one.attention_prefill(
            shape, **ask, pairs=512.0 * 513.0 + 1024.0 * cached, kv_tokens=1024.0 + 2.0 * cached
        )
        gained.append(whole.seconds - fresh)
    assert gained[0] == pytest.approx(gained[1], rel=1e-9, abs=1e-15)


def test_decode_tables_are_what_their_kernels_take() -> None:
    """All batches and contexts at once, as the tables of an engine ask for them."""
    kernels, shape = KernelLibrary("h100-sxm", "vllm"), _decoding((32, 8, 128), "bf16")
    batches, lengths = np.arange(1.0, 18.0)[:, None], np.array([1.0, 100.0, 5000.0])
    table = kernels.attention_decode(shape, seqs=batches, q_len=1, kv_tokens=batches * lengths).seconds
    one = [kernels.attention_decode(shape, seqs=b, q_len=1, kv_tokens=b * n).seconds
           for b in batches[:, 0].tolist() for n in lengths.tolist()]  # fmt: skip
    assert table.ravel() == pytest.approx(np.array(one), rel=1e-9)


def test_what_memory_adds_to_repeated_decoding_is_as_physics_has_it() -> None:
    """Corrections were learned where KV may lie on the chip; a cold call adds to theirs what physics adds."""
    shape, tokens = _decoding((32, 8, 128), "bf16"), np.geomspace(1000.0, 100_000.0, 40)

    def both(kernels: KernelLibrary) -> list[np.ndarray]:
        arguments = {"seqs": 16.0, "q_len": 1, "kv_tokens": tokens}
        return [np.asarray(kernels.attention_decode(shape, **arguments, warm=warm).seconds) for warm in (False, True)]

    kernels = KernelLibrary("h100-sxm", "vllm")
    (cold, warm), (cold_physics, warm_physics) = both(kernels), both(kernels.reading(False))
    assert kernels.correction("attention_decode", "bf16") is not None
    assert (cold_physics > warm_physics).any()
    assert (warm != warm_physics).all()
    assert cold - warm == pytest.approx(cold_physics - warm_physics, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_latent_and_other_heads_are_not_corrected_as_heads_of_128(chip: str) -> None:
    kernels = KernelLibrary(chip, "vllm")
    assert kernels.correction("attention_decode", "fp8@128w") is not None
    assert kernels.correction("attention_decode", "fp8") is kernels.correction("attention_decode", "fp8@128")
    assert kernels.correction("attention_decode", "fp8@mla") is None
    assert kernels.correction("attention_decode", "fp8@512") is None


def test_a_size_that_never_varied_says_nothing() -> None:
    """Kernels that verify drafts are corrected as those of one token, which alone were measured."""
    correction = KernelLibrary("b200-sxm", "trtllm").correction("attention_decode", "bf16")
    assert correction is not None
    sizes = {"batch": 4.0, "q_len": 1.0, "kv_len": 900.0, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    time, moving = KernelTime(8e-6, *[0.0] * 5), ("batch", "q_len")
    for kept in (0.01, 1.0):
        one, five = (correction.seconds("attention_decode", sizes | {"q_len": q, "kept": kept}, time, 148.0)
                     for q in (1.0, 5.0))  # fmt: skip
        line = correction.along("attention_decode", sizes | {"kept": kept}, moving)
        assert one == five == pytest.approx(line(8e-6, 4.0, 5.0), rel=1e-12)
