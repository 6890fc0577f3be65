"""Invariants that hold for every chip, library and shape: never faster than light, never faster for more work."""

from hypothesis import given, settings
from hypothesis import strategies as st

from hwprofiles import AttentionShape, KernelLibrary, chip_names, dtype_bytes, link_names, load_chip, load_link
from hwprofiles.dtypes import DTYPES
from hwprofiles.errors import ProfileError

LIBRARIES = ("generic", "vllm", "sglang", "trtllm", "portable")
LIBRARY_CACHE = {(chip, name): KernelLibrary(chip, name) for chip in chip_names() for name in LIBRARIES}

kernels_of = st.tuples(st.sampled_from(chip_names()), st.sampled_from(LIBRARIES)).map(LIBRARY_CACHE.__getitem__)
sizes = st.integers(1, 1 << 17)
tokens = st.integers(1, 1 << 15)


def supported(chip, dtype):
    try:
        chip.math_dtype(dtype)
    except ProfileError:
        return False
    return True


@st.composite
def chip_and_dtype(draw):
    kernels = draw(kernels_of)
    return kernels, draw(st.sampled_from([dtype for dtype in DTYPES if supported(kernels.chip, dtype)]))


def within_speed_of_light(time, chip, dtype, bandwidth=None):
    slack = 1 + 1e-9
    assert time.seconds * slack >= time.flops / chip.peak_flops(dtype)
    assert time.seconds * slack >= time.bytes / (bandwidth or chip.memory.bandwidth_bytes_per_s)
    assert time.seconds * slack >= max(time.launch_s, 0.0)


@given(chip_and_dtype(), sizes, sizes, sizes)
@settings(deadline=None)
def test_gemm_never_faster_than_light(chosen, m, n, k):
    kernels, dtype = chosen
    within_speed_of_light(kernels.gemm(m, n, k, dtype), kernels.chip, dtype)


@st.composite
def attention_shapes(draw, dtypes=("bf16", "fp8", "bfp8")):
    kv_heads = draw(st.sampled_from([1, 2, 4, 8, 16, 32]))
    dim = draw(st.sampled_from([64, 128, 256, 576]))
    dtype = draw(st.sampled_from(dtypes))
    return AttentionShape(
        kv_heads * draw(st.sampled_from([1, 2, 4, 8, 16])),
        kv_heads,
        dim,
        dim,
        2 * kv_heads * dim * dtype_bytes(dtype),
        dtype,
    )


def fitting(kernels, shape):
    """The shape with a KV format the chip has."""
    return shape if supported(kernels.chip, shape.dtype) else shape._replace(dtype="bf16")


@given(kernels_of, attention_shapes(), st.integers(1, 512), st.integers(1, 64), st.integers(1, 1 << 17))
@settings(deadline=None)
def test_decode_never_faster_than_light(kernels, shape, seqs, q_len, length):
    shape = fitting(kernels, shape)
    arguments = {"seqs": seqs, "q_len": q_len, "kv_tokens": seqs * (length + q_len)}
    within_speed_of_light(kernels.attention_decode(shape, **arguments), kernels.chip, shape.dtype)
    warm = kernels.attention_decode(shape, **arguments, warm=True)
    within_speed_of_light(warm, kernels.chip, shape.dtype, kernels.chip.on_chip.bandwidth_bytes_per_s)


@given(kernels_of, attention_shapes(), st.integers(1, 64), st.integers(1, 1 << 14), st.integers(0, 1 << 15))
@settings(deadline=None)
def test_prefill_never_faster_than_light(kernels, shape, seqs, q_len, cached):
    shape = fitting(kernels, shape)
    pairs = seqs * (q_len * cached + q_len * (q_len + 1) / 2)
    time = kernels.attention_prefill(
        shape, seqs=seqs, q_tokens=seqs * q_len, pairs=pairs, kv_tokens=seqs * (cached + q_len)
    )
    within_speed_of_light(time, kernels.chip, shape.dtype)


@given(chip_and_dtype(), tokens, st.sampled_from([8, 64, 256]), st.sampled_from([1, 2, 8]), st.sampled_from([1, 4, 8]))
@settings(deadline=None)
def test_moe_never_faster_than_light(chosen, count, experts, chosen_experts, parallel):
    kernels, dtype = chosen
    time = kernels.moe(
        tokens=count, num_experts=experts, experts_per_token=chosen_experts, hidden=4096, intermediate=1536,
        dtype=dtype, expert_parallel=parallel,
    )  # fmt: skip
    within_speed_of_light(time, kernels.chip, dtype)


@given(kernels_of, st.floats(1, 1e11), st.integers(1, 10))
@settings(deadline=None)
def test_elementwise_never_faster_than_light(kernels, moved, launches):
    within_speed_of_light(kernels.elementwise(moved, launches), kernels.chip, "bf16")


@given(
    kernels_of,
    st.sampled_from(link_names()),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]),
    st.floats(1, 1e10),
    st.integers(2, 64),
)
@settings(deadline=None)
def test_collectives_never_beat_the_link(kernels, name, op, size, chips):
    link = load_link(name)
    time = kernels.collective(op, size, chips, link)
    share = (chips - 1) / chips
    least = {"all_reduce": (1.0 if link.in_network_reduction else 2 * share), "send_recv": 1.0}.get(op, share)
    assert time.seconds >= least * size / link.bandwidth_bytes_per_s * (1 - 1e-9)
    assert time.seconds == time.latency_s + time.transfer_s


@given(
    kernels_of,
    attention_shapes(("bf16",)),
    st.integers(1, 256),
    st.integers(1, 9),
    st.integers(1, 1 << 16),
    st.integers(1, 1 << 16),
)
@settings(deadline=None)
def test_longer_contexts_never_decode_much_faster(kernels, shape, seqs, q_len, length, more):
    """Only the choice of splits may make a longer context cheaper, and by no more than one wave of pieces."""
    short = kernels.attention_decode(shape, seqs=seqs, q_len=q_len, kv_tokens=seqs * length)
    long = kernels.attention_decode(shape, seqs=seqs, q_len=q_len, kv_tokens=seqs * 2 * (length + more))
    assert long.seconds >= short.seconds * (1 - 1e-12) or long.bytes / long.seconds > short.bytes / short.seconds
    assert long.seconds >= 0.5 * short.seconds


@given(
    kernels_of,
    attention_shapes(("bf16",)),
    st.integers(1, 8),
    st.integers(1, 4096),
    st.integers(0, 8192),
    st.integers(1, 8192),
)
@settings(deadline=None)
def test_more_pairs_never_prefill_faster(kernels, shape, seqs, q_len, cached, more):
    def seconds(before):
        pairs = seqs * (q_len * before + q_len * (q_len + 1) / 2)
        return kernels.attention_prefill(
            shape, seqs=seqs, q_tokens=seqs * q_len, pairs=pairs, kv_tokens=seqs * (before + q_len)
        ).seconds

    assert seconds(cached + more) >= seconds(cached) * (1 - 1e-12)


@given(kernels_of, st.integers(1, 4096), st.integers(0, 4096), st.sampled_from([1024, 4096, 6144, 28672]))
@settings(deadline=None)
def test_more_rows_never_multiply_faster(kernels, m, more, n):
    # one row of the largest tile is the quantisation: beyond it, more rows cost more. Where the fits of a sibling chip
    # stand in, its splits of the inner dimension can cost the smaller shape up to 6 % (b300-sxm at 15 rows).
    slack = 1e-9 if kernels.chip.like is None else 0.1
    assert kernels.gemm(m + more + 256, n, 4096).seconds >= kernels.gemm(m, n, 4096).seconds * (1 - slack)


def test_peak_of_all_dtypes_is_positive():
    for name in chip_names():
        chip = load_chip(name)
        for dtype in DTYPES:
            if supported(chip, dtype):
                assert chip.peak_flops(dtype) > 1e11
