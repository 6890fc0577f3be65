"""Products of few rows: memory-bound at one, each further row at its own price, formats with their exact bits."""

import pytest

from hwprofiles import KernelLibrary, load_chip
from hwprofiles.dtypes import GGUF_BLOCKS, dtype_bytes, format_of, mixed_dtype, shares_of
from hwprofiles.errors import ProfileError


def amortisation(chip, dtype, rows, library="llama.cpp"):
    kernels = KernelLibrary(chip, library)
    one, many = (kernels.gemm(m, 17408, 5120, dtype).seconds for m in (1, rows))
    return rows * one / many


def test_one_row_is_bound_by_memory_and_narrow_weights_gain():
    """A whole step of llama.cpp on Metal gains 2.4 to 2.9 times (``test_llama_cpp``), a product nearly its bits."""
    kernels = KernelLibrary("apple-m3-max")
    wide, narrow = (kernels.gemm(1, 11008, 4096, dtype) for dtype in ("fp16", "int4"))
    assert narrow.bound == "memory"
    assert 2.9 < wide.seconds / narrow.seconds < 16 / 4.16


@pytest.mark.parametrize(("rows", "groups", "padded"), [(1, 1, 1), (5, 1, 5), (6, 2, 6), (7, 2, 8), (8, 2, 8)])
def test_rows_beyond_a_group_unpack_and_read_the_weights_again(rows, groups, padded):
    """llama.cpp on Metal multiplies at most five rows at once: 32B in F16 on an M2 Ultra takes 110 ms with five rows,
    174 to 180 with six to eight."""
    kernels, n, k = KernelLibrary("apple-m2-ultra", "llama.cpp"), 27648, 5120
    few, light = kernels.parameters("gemm", "fp16").few_rows, load_chip("apple-m2-ultra")
    time = kernels.gemm(rows, n, k, "fp16")
    assert time.compute_s == pytest.approx(
        (few.unpack * groups + few.row * padded) * n * k / light.compute.dense_flops_per_s["fp32"]
    )
    activations = 2 * rows * (n + k)
    bandwidth = few.memory_efficiency * light.memory.bandwidth_bytes_per_s
    assert time.memory_s == pytest.approx((2 * n * k * groups + activations) / bandwidth)
    assert time.bytes == 2 * n * k + activations
    small = kernels.gemm(rows, 1024, 1024, "fp16")
    assert small.memory_s == pytest.approx(small.bytes / bandwidth)


@pytest.mark.parametrize(("dtype", "least", "most"), [("bf16", 3.0, 6.0), ("q4_0", 1.2, 2.2), ("q3_k", 1.0, 1.6)])
def test_metal_pays_for_every_row_of_narrow_weights(dtype, least, most):
    """Eight rows on an M4: 4.99 times the rate of one in BF16, 1.22 to 1.74 in 3 and 4 bits."""
    assert least < amortisation("apple-m4", dtype, 8) < most


def test_tensor_core_cards_hardly_pay_for_rows():
    assert amortisation("rtx-4090", "q4_k", 4) > 3.0 > 2.5 > amortisation("apple-m4-max", "q4_k", 4)


def test_a_card_without_8_bit_products_spells_them_out():
    """sm_60 lacks dp4a: at twice a P40's bandwidth a P100 takes longer for a product of Q4_K."""
    one, further = {}, {}
    for chip in ("p40", "p100"):
        times = [KernelLibrary(chip, "llama.cpp").gemm(rows, 17408, 5120, "q4_k") for rows in (1, 2)]
        lanes = 256 * load_chip(chip).compute.cores * load_chip(chip).compute.clock_hz
        further[chip] = (times[1].compute_s - times[0].compute_s) * lanes / (17408 * 5120)
        one[chip] = times[0]
    assert further == pytest.approx({"p40": 9.0, "p100": 17.2})
    assert (one["p40"].bound, one["p100"].bound) == ("memory", "compute")
    assert one["p100"].seconds > one["p40"].seconds
    assert KernelLibrary("v100-sxm", "llama.cpp").parameters("gemm", "q4_k").few_rows.row == 8.0


def test_beyond_its_rows_a_library_multiplies_in_tiles():
    kernels = KernelLibrary("rtx-4090", "llama.cpp")
    few = kernels.parameters("gemm", "q4_k").few_rows
    assert kernels.gemm(64, 4096, 4096, "q4_k") != kernels.gemm(few.most_rows, 4096, 4096, "q4_k")
    without = kernels.parameters("gemm", "q4_k").model_copy(update={"few_rows": None})
    tiled = KernelLibrary("rtx-4090", "llama.cpp")
    tiled._chosen["gemm", "q4_k"] = (without, "datasheet")
    assert kernels.gemm(64, 4096, 4096, "q4_k") == tiled.gemm(64, 4096, 4096, "q4_k")


def test_other_libraries_stay_as_they_were():
    assert KernelLibrary("rtx-4090", "vllm").parameters("gemm", "bf16").few_rows is None
    assert KernelLibrary("h100-sxm", "vllm").parameters("moe", "bf16").few_rows is None
    assert KernelLibrary("h100-sxm", "llama.cpp").parameters("gemm", "q4_k").few_rows is not None


@pytest.mark.parametrize("chip", ["rtx-4090", "p40", "a100-sxm-80gb", "strix-halo", "apple-m1", "cpu"])
@pytest.mark.parametrize("dtype", [*GGUF_BLOCKS, "bf16", "mxfp4", "int3", "int2", "bitnet"])
def test_every_format_runs_no_faster_than_light(chip, dtype):
    kernels = KernelLibrary(chip, "llama.cpp")
    for rows in (1, 2, 8, 9):
        time = kernels.gemm(rows, 4096, 4096, dtype)
        assert time.seconds >= kernels.sol_seconds(time, dtype)


def test_cards_without_groups_read_the_weights_once():
    kernels = KernelLibrary("rtx-4090", "llama.cpp")
    one, eight = (kernels.gemm(rows, 17408, 5120, "fp16") for rows in (1, 8))
    assert eight.memory_s < 1.01 * one.memory_s


def test_few_tokens_of_experts_are_not_charged_whole_tiles():
    kernels = KernelLibrary("apple-m4-max")
    sizes = {"num_experts": 128, "experts_per_token": 8, "hidden": 2048, "intermediate": 768, "dtype": "q4_0"}
    one = kernels.moe(tokens=1, **sizes)
    assert one.seconds < 3 * (one.bytes / load_chip("apple-m4-max").memory.bandwidth_bytes_per_s) + 5e-5


def test_mixed_formats_keep_their_exact_bits():
    dtype = mixed_dtype({"q4_k": 3, "q6_k": 1})
    assert dtype == "q4_k:0.75+q6_k:0.25"
    assert format_of(dtype) == "q4_k"
    assert shares_of(dtype) == {"q4_k": 0.75, "q6_k": 0.25}
    assert dtype_bytes(dtype) == pytest.approx(0.75 * 144 / 256 + 0.25 * 210 / 256)
    with pytest.raises(ProfileError, match=r"'q6_k:x' is no format with its share"):
        dtype_bytes("q4_k:0.5+q6_k:x")


@pytest.mark.parametrize("rows", [1, 4, 64])
def test_each_matrix_of_a_mixed_file_runs_in_the_kernels_of_its_own_format(rows):
    kernels = KernelLibrary("strix-halo", "llama.cpp")
    four, six = (kernels.gemm(rows, 17408, 5120, dtype).seconds for dtype in ("q4_k", "q6_k"))
    mixed = kernels.gemm(rows, 17408, 5120, "q4_k:0.75+q6_k:0.25")
    assert mixed.seconds == pytest.approx(0.75 * four + 0.25 * six)
    assert kernels.parameters("gemm", "q4_k:0.75+q6_k:0.25") == kernels.parameters("gemm", "q4_k")


def test_prompts_of_quantised_weights_follow_the_int8_rate():
    """llama.cpp's mmq multiplies activations in 8 bits: cards with equal int8 rates read prompts alike, whatever their
    rates in 16 bits (llama-bench: RTX 6000 Ada with 2.2 times the RTX 4090's 16-bit rate is no faster)."""
    wide, narrow = (KernelLibrary(chip, "llama.cpp") for chip in ("rtx-6000-ada", "rtx-4090"))
    ratio = [one.gemm(512, 14336, 4096, "q4_k").seconds for one in (narrow, wide)]
    assert 0.9 < ratio[0] / ratio[1] < 1.25
