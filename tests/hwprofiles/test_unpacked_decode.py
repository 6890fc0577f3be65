"""Decode attention of a library with two kernels: which batches run head by head, and what that costs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from hwprofiles import AttentionShape, KernelLibrary, load_chip
from hwprofiles.choice import PORTABLE
from hwprofiles.formulas import ARRAY, SCALAR, Limits
from hwprofiles.kernels.attention import decode_time, packs
from hwprofiles.parameters import DecodeParameters, UnpackedKernel
from hwprofiles.records import Source

LIMITS = Limits(1e15, 100.0, 1e12, 5e7, 1e13)
IDEAL = {
    "launch_s": 0.0, "memory_efficiency": 1.0, "core_bandwidth_ratio": 1.0, "combine_s": 0.0, "split_s": 0.0,
    "wave_s": 0.0, "sequence_s": 0.0, "overlap": 10.0,
}  # fmt: skip
VECTOR = UnpackedKernel(**IDEAL, compute_efficiency=0.01, least_fill=0.25)
BOTH = DecodeParameters(
    **IDEAL, compute_efficiency=1.0, unpacked=VECTOR, source=Source(kind="assumed", reference="none", date="2026")
)


def shape(heads, kv_heads, value=128):
    return AttentionShape(heads, kv_heads, 128, value, 512.0 * kv_heads, "bf16")


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seqs", "length", "q_len", "packed"),
    [
        (32, 8, 64, 1024, 1, True),
        (32, 1, 1, 25 * 128, 1, True),  # 25 pieces fill a quarter of 100 cores
        (32, 1, 1, 25 * 128 - 1, 1, False),
        (32, 8, 3, 64, 1, False),  # 24 items
        (32, 8, 4, 64, 1, True),
        (64, 1, 64, 1024, 1, False),  # no tile of 64 heads
        (8, 8, 64, 1024, 1, False),  # nothing to pack
        (64, 1, 1, 64, 2, True),  # several queries
    ],
)
def test_which_batches_are_packed(heads, kv_heads, seqs, length, q_len, packed):
    assert packs(SCALAR, VECTOR, 100.0, shape(heads, kv_heads), seqs, q_len, seqs * length) is packed


def test_absorbed_latents_are_always_packed():
    assert packs(SCALAR, VECTOR, 100.0, AttentionShape(128, 1, 576, 512, 1152.0, "bf16"), 1, 1, 64) is True


def test_head_by_head_multiplies_every_head_on_the_vector_units():
    """50 sequences of 64 heads on one KV head: 3,200 items on 100 cores, arithmetic at a hundredth of the peak."""
    time = decode_time(SCALAR, LIMITS, BOTH, shape(64, 1), 50, 1, 50 * 4096)
    assert time.compute_s == pytest.approx(time.flops / (0.01 * 1e15))
    single = BOTH.model_copy(update={"unpacked": None})
    assert time.seconds > 10 * decode_time(SCALAR, LIMITS, single, shape(64, 1), 50, 1, 50 * 4096).seconds


def test_one_head_per_kv_head_still_reads_its_memory():
    time = decode_time(SCALAR, LIMITS._replace(peak_flops=1e18), BOTH, shape(8, 8), 100, 1, 100 * 4096)
    assert time.memory_s == pytest.approx(time.bytes / 1e12)


@given(
    group=st.sampled_from((1, 4, 32, 64)), kv_heads=st.sampled_from((1, 8)), seqs=st.integers(1, 300),
    length=st.integers(1, 20_000), q_len=st.integers(1, 4),
)  # fmt: skip
def test_numbers_and_arrays_agree(group, kv_heads, seqs, length, q_len):
    one = decode_time(SCALAR, LIMITS, BOTH, shape(group * kv_heads, kv_heads), seqs, q_len, seqs * length)
    many = decode_time(
        ARRAY, LIMITS, BOTH, shape(group * kv_heads, kv_heads), np.array([float(seqs)]), np.array([float(q_len)]),
        np.array([float(seqs * length)]),
    )  # fmt: skip
    for scalar, array in zip(one, many, strict=True):
        assert_allclose(array, scalar, rtol=1e-12)


def test_parts_of_a_split_axis_grow_with_the_root_of_its_length():
    rooted = BOTH.model_copy(
        update={"split_tokens": 128.0, "split_root": 8.0, "split_fill": 8.0, "unpacked": None, "combine_s": 1.0}
    )
    counted = rooted.model_copy(update={"combine_s": 0.0, "split_s": 1.0})
    for pieces, parts in ((1, 1), (4, 4), (8, 8), (32, 16), (128, 32)):
        time = decode_time(SCALAR, LIMITS, counted, shape(32, 8), 1, 1, 128 * pieces)
        assert round(time.launch_s) == (parts if parts > 1 else 0)


def test_no_split_reaches_the_second_kernel_too():
    whole = BOTH.without_splits()
    assert whole.max_splits == whole.unpacked.max_splits == 1.0


def test_times_of_both_kernels_count_cycles():
    set_at = BOTH.model_copy(update={"reference_clock_hz": 1e9, "unpacked": VECTOR.model_copy(update={"wave_s": 2e-6})})
    assert set_at.at_clock(2e9).unpacked.wave_s == pytest.approx(1e-6)


def test_portable_kernels_differ_only_on_chips_that_have_something_new():
    for name, older in (("h100-sxm", True), ("a100-sxm-80gb", False)):
        plain, portable = KernelLibrary(load_chip(name)), KernelLibrary(load_chip(name), PORTABLE)
        slower = portable.gemm(512, 8192, 8192).seconds / plain.gemm(512, 8192, 8192).seconds
        assert (slower > 1.1) is older
        assert (portable.basis("gemm") == "extrapolated") is older
        assert older or slower == 1.0
