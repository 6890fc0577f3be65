"""Attention over prompt chunks and single queries in one batch."""

import numpy as np
import pytest

from hwprofiles import AttentionShape, KernelLibrary, ProfileError, load_chip

SHAPE = AttentionShape(32, 8, 128, 128, 4096.0, "bf16")
SIZES = {
    "seqs": 1,
    "q_tokens": 512,
    "pairs": 512 * 256,
    "kv_tokens": 512,
    "decode_seqs": 64,
    "decode_kv_tokens": 64 * 2048,
}


def library(mixed):
    chip = load_chip("rtx-4090")
    prefill = KernelLibrary(chip, "vllm").parameters("attention_prefill").model_copy(update={"mixed": mixed})
    decode = KernelLibrary(chip, "vllm").parameters("attention_decode")
    sets = {"attention_prefill": {"bf16": prefill}, "attention_decode": {"bf16": decode}}
    return KernelLibrary(chip.model_copy(update={"kernels": {"generic": sets}}))


@pytest.mark.parametrize("mixed", ["separate", "one-pass"])
def test_numbers_and_arrays_agree(mixed):
    one = library(mixed).attention_mixed(SHAPE, **SIZES)
    many = library(mixed).attention_mixed(SHAPE, **{name: np.array([value] * 3) for name, value in SIZES.items()})
    assert all(isinstance(part, float) for part in one)
    for single, column in zip(one, many, strict=True):
        assert column == pytest.approx([single] * 3, rel=1e-12)


def test_separate_kernels_share_one_launch():
    kernels = library("separate")
    chunks = {name: SIZES[name] for name in ("seqs", "q_tokens", "pairs", "kv_tokens")}
    first = kernels.attention_prefill(SHAPE, **chunks)
    second = kernels.attention_decode(SHAPE, seqs=64, q_len=1, kv_tokens=64 * 2048)
    both = kernels.attention_mixed(SHAPE, **SIZES)
    assert both.seconds == pytest.approx(first.seconds + second.seconds - min(first.launch_s, second.launch_s))


def test_single_queries_waste_the_tiles_of_a_prefill_kernel():
    assert (
        library("one-pass").attention_mixed(SHAPE, **SIZES).seconds
        > 1.5 * library("separate").attention_mixed(SHAPE, **SIZES).seconds
    )


def test_time_grows_with_every_size_and_refuses_negative_ones():
    kernels = library("one-pass")
    before = kernels.attention_mixed(SHAPE, **SIZES).seconds
    for name in ("decode_kv_tokens", "q_tokens", "pairs"):
        assert kernels.attention_mixed(SHAPE, **SIZES | {name: SIZES[name] * 4}).seconds > before
    with pytest.raises(ProfileError, match=r"kernel sizes must be numbers >= 0, got \(-1"):
        kernels.attention_mixed(SHAPE, **SIZES | {"seqs": -1})
