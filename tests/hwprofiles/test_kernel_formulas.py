"""Kernel formulas against closed forms and hand-calculated cases."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hwprofiles import AttentionShape, KernelLibrary, KernelTime, ProfileError, load_chip
from hwprofiles.formulas import ARRAY, SCALAR, Limits, smooth_maximum
from hwprofiles.kernels.attention import attention_pairs, decode_time, prefill_time, windowed_length
from hwprofiles.kernels.gemm import gemm_time, tile_waves, useful_tiles
from hwprofiles.kernels.moe import EVEN, expert_loads
from hwprofiles.kernels.recurrent import RecurrentShape
from hwprofiles.parameters import DecodeParameters, GemmParameters, PrefillParameters
from hwprofiles.records import Source

SOURCE = Source(kind="assumed", reference="test", date="2026")
LIMITS = Limits(1e15, 100.0, 1e12, 1e7, 1e30)
NO_MEMORY_LIMIT = LIMITS._replace(bandwidth=1e30)
IDEAL_GEMM = GemmParameters(
    launch_s=0.0, compute_efficiency=1.0, memory_efficiency=1.0, on_chip_efficiency=1.0, wave_s=0.0,
    wave_share=1.0, overlap=200.0, core_bandwidth_ratio=1e9, tiles=((128, 128),), max_split_k=1.0, source=SOURCE,
)  # fmt: skip
IDEAL_DECODE = DecodeParameters(
    launch_s=0.0, memory_efficiency=1.0, core_bandwidth_ratio=1.0, combine_s=0.0, split_s=0.0, wave_s=0.0,
    sequence_s=0.0, overlap=10.0, compute_efficiency=1.0, source=SOURCE,
)  # fmt: skip
IDEAL_PREFILL = PrefillParameters(
    launch_s=0.0, compute_efficiency=1.0, memory_efficiency=1.0, tile_s=0.0, tail_share=0.0, sequence_s=0.0,
    overlap=200.0, source=SOURCE,
)  # fmt: skip
GQA = AttentionShape(32, 8, 128, 128, 2 * 8 * 128 * 2.0, "bf16")


def ideal_gemm(m, n, k, limits=LIMITS, **over):
    parameters = IDEAL_GEMM.model_copy(update=over)
    return gemm_time(SCALAR, limits, parameters, m, n, k, 2.0, 2.0, 2.0)


def test_compute_bound_limit():
    # 1000 full tiles on 100 cores: ten whole waves, exactly flops / peak
    time = ideal_gemm(1280, 12800, 1 << 16)
    assert time.flops == 2.0 * 1280 * 12800 * (1 << 16)
    assert time.seconds == pytest.approx(time.flops / 1e15, rel=1e-9)
    assert time.bound == "compute"


def test_memory_bound_limit():
    time = ideal_gemm(1, 12800, 8192)
    assert time.bytes == 2.0 * (12800 * 8192 + 8192 + 12800)
    assert time.seconds == pytest.approx(time.bytes / 1e12, rel=1e-6)
    assert time.bound == "memory"


def test_latency_bound():
    time = ideal_gemm(1, 128, 128, launch_s=1e-3)
    assert time.bound == "latency"
    assert time.seconds == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("tiles", "share", "waves"),
    [(100, 1.0, 1.0), (101, 1.0, 2.0), (250, 1.0, 3.0), (250, 0.0, 2.5), (250, 0.5, 2.75), (1, 1.0, 1.0)],
)
def test_wave_quantisation(tiles, share, waves):
    assert tile_waves(SCALAR, tiles, 100.0, share) == pytest.approx(waves)


def test_one_tile_more_than_a_wave_costs_a_wave():
    full = ideal_gemm(128, 12800, 1 << 16, NO_MEMORY_LIMIT)  # 100 tiles
    over = ideal_gemm(128, 12801, 1 << 16, NO_MEMORY_LIMIT)  # 101 tiles
    assert over.seconds == pytest.approx(2 * full.seconds, rel=1e-6)


def test_tile_quantisation():
    # 129 rows need two rows of tiles; arithmetic is that of 256
    assert ideal_gemm(129, 12800, 1 << 16).compute_s == ideal_gemm(256, 12800, 1 << 16).compute_s


def test_split_k_fills_idle_cores():
    single = ideal_gemm(128, 1280, 1 << 16)  # 10 tiles on 100 cores
    split = ideal_gemm(128, 1280, 1 << 16, max_split_k=16.0)
    assert split.compute_s == pytest.approx(single.compute_s / 10)


def test_tiles_that_cannot_win_are_skipped_without_changing_the_result():
    tiles = ((256, 128), (128, 128), (64, 128), (64, 64), (256, 64))
    assert useful_tiles(tiles, 30) == ((64, 128), (64, 64))
    assert useful_tiles(tiles, 200) == tiles
    for m in (1, 63, 64, 65, 128, 129, 300):
        scalar = ideal_gemm(m, 5000, 4096, tiles=tiles).seconds
        array = gemm_time(
            ARRAY, LIMITS, IDEAL_GEMM.model_copy(update={"tiles": tiles}), np.array([m]), 5000.0, 4096.0, 2.0, 2.0, 2.0
        ).seconds
        assert_allclose(array, scalar, rtol=1e-12)


def test_asynchronous_chips_pay_the_fill_at_most_twice():
    slow = ideal_gemm(128, 128000, 4096, wave_s=1e-5)  # ten waves
    parameters = IDEAL_GEMM.model_copy(update={"wave_s": 1e-5})
    fast = gemm_time(SCALAR, LIMITS._replace(asynchronous=True), parameters, 128, 128000, 4096, 2.0, 2.0, 2.0)
    assert slow.seconds - fast.seconds == pytest.approx(8e-5, rel=1e-6)


def test_smooth_maximum():
    assert smooth_maximum(SCALAR, 3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert smooth_maximum(SCALAR, 3.0, 4.0, 1.0) == pytest.approx(7.0)
    assert smooth_maximum(SCALAR, 3.0, 4.0, 500.0) == pytest.approx(4.0)
    assert smooth_maximum(SCALAR, 3.0, 0.0, 2.0) == 3.0


def test_decode_reads_kv_once_however_many_tokens_are_verified():
    one = decode_time(SCALAR, LIMITS, IDEAL_DECODE, GQA, 100, 1, 100 * 8192)
    five = decode_time(SCALAR, LIMITS, IDEAL_DECODE, GQA, 100, 5, 100 * 8192)
    assert five.flops == pytest.approx(5 * one.flops)
    assert five.memory_s == pytest.approx(one.memory_s, rel=0.01)  # only Q and the output grow
    assert one.memory_s == pytest.approx(one.bytes / 1e12)


def test_decode_is_limited_by_independent_work_items():
    # 8 KV heads of one short sequence: 8 items of 100 cores draw 8 % of the bandwidth
    time = decode_time(SCALAR, LIMITS, IDEAL_DECODE, GQA, 1, 1, 200)
    assert time.memory_s == pytest.approx(time.bytes / (0.08 * 1e12))
    # a long sequence is split into up to 12 parts each, 96 items
    long = decode_time(SCALAR, LIMITS, IDEAL_DECODE, GQA, 1, 1, 100_000)
    assert long.memory_s == pytest.approx(long.bytes / (0.96 * 1e12))


def test_batches_above_the_captured_ones_are_not_split():
    """A fixed number of parts for every sequence, up to so many: one sequence more needs no kernel that combines."""
    fixed = IDEAL_DECODE.model_copy(update={"split_tokens": 0.01, "max_splits": 32.0, "split_fill": 1024.0})
    until = fixed.model_copy(update={"split_seqs": 512.0, "combine_s": 1e-3})
    shape = AttentionShape(8, 1, 512, 512, 2048.0, "bf16")
    launches = [decode_time(SCALAR, LIMITS, until, shape, seqs, 1, 16 * seqs).launch_s for seqs in (1, 512, 513)]
    assert launches == [1e-3, 1e-3, 0.0]


LATENT = AttentionShape(16, 1, 576, 512, 576.0, "fp8")
"""MLA's latent in 8 bits, as a decode step sees it."""


def test_a_cache_that_a_kernel_cannot_multiply_is_copied_into_16_bits_first():
    """The pass reads and writes all that is cached; the kernel behind it reads what the pass wrote."""
    wide = LATENT._replace(kv_bytes_per_token=1152.0)
    for formula, ideal, sizes in (
        (decode_time, IDEAL_DECODE, (100, 1, 100 * 4096)),
        (prefill_time, IDEAL_PREFILL, (4, 4096, 4096 * 1024.5 / 2, 4096)),
    ):
        copying = ideal.model_copy(update={"widen_s": 1e-9, "widen_byte_s": 3e-12})
        plain, copied = formula(SCALAR, LIMITS, ideal, wide, *sizes), formula(SCALAR, LIMITS, copying, LATENT, *sizes)
        assert copied.seconds - plain.seconds == pytest.approx(3e-12 * 576.0 * sizes[-1], rel=1e-3)
        assert copied.bytes == plain.bytes


@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm"])
def test_prompts_of_mla_multiplied_out_cost_alike_under_every_library(chip):
    """No table times them under SGLang, which serves them by the kernels of plain heads; what it times is three times
    as long: prompts against the latent."""
    shape, tokens = AttentionShape(16, 16, 192, 128, 16 * 320 * 2.0, "bf16"), 8192
    sizes = {"seqs": 1, "q_tokens": tokens, "pairs": tokens * (tokens + 1) / 2, "kv_tokens": tokens}
    libraries = ("sglang", "vllm", "trtllm")
    times = [KernelLibrary(chip, library).attention_prefill(shape, **sizes).seconds for library in libraries]
    assert max(times) <= 1.25 * min(times)
    latent = AttentionShape(16, 1, 576, 512, 576 * 2.0, "bf16", source="flash_attention")
    assert KernelLibrary(chip, "sglang").attention_prefill(latent, **sizes).seconds >= 2.5 * times[0]


def test_cores_of_a_pair_slow_each_other_down():
    """Up to half of the cores (100 here) each item has a pair of cores for itself, in the last wave of several too."""
    paired = IDEAL_DECODE.model_copy(update={"pair_share": 0.5, "max_splits": 1.0, "row_step": 64.0})
    times = [
        decode_time(SCALAR, NO_MEMORY_LIMIT, paired, LATENT, n, 1, n * 640).compute_s for n in (1, 50, 51, 150, 151)
    ]
    assert_allclose(np.array(times) / times[0], [1.0, 1.0, 1.5, 2.5, 3.0])


def test_a_second_narrow_tile_reads_the_cache_again():
    """17 to 32 heads a KV head run as two tiles of 16, fewer and more as one."""
    again = IDEAL_DECODE.model_copy(update={"reread_share": 0.5})
    moved = {}
    for heads in (16, 32, 64):
        shape = LATENT._replace(num_heads=heads)
        plain = decode_time(SCALAR, LIMITS, IDEAL_DECODE, shape, 100, 1, 409_600).bytes
        moved[heads] = decode_time(SCALAR, LIMITS, again, shape, 100, 1, 409_600).bytes - plain
    assert moved == {16: 0.0, 32: 0.5 * 576.0 * 409_600, 64: 0.0}
    verified = [decode_time(SCALAR, LIMITS, one, LATENT._replace(num_heads=16), 100, 2, 409_600).bytes
                for one in (IDEAL_DECODE, again)]  # fmt: skip
    assert verified[0] == verified[1], "not measured with several queries"


def test_keys_are_multiplied_in_whole_steps():
    stepped = IDEAL_DECODE.model_copy(update={"key_step": 64.0, "max_splits": 1.0})
    times = [
        decode_time(SCALAR, NO_MEMORY_LIMIT, stepped, LATENT, 8, 1, 8 * keys).compute_s for keys in (1, 64, 65, 129)
    ]
    assert_allclose(np.array(times) / times[0], [1.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_keys_before_a_window_cost_their_share(share):
    """A kernel that masks all of them takes as long as without a window, one that skips them as the window alone."""
    shape = AttentionShape(8, 1, 192, 192, 768.0, "bf16", windowed=True)
    tokens, ideal = 16384, IDEAL_PREFILL.model_copy(update={"tile_columns": 1.0, "tile_rows": 1.0, "packing": "never"})
    times = {}
    for masked, window in ((share, 128), (0.0, 128), (0.0, 0)):
        set_ = ideal.model_copy(update={"masked_share": masked})
        pairs = attention_pairs(SCALAR, tokens, tokens, window)
        times[masked, window] = prefill_time(SCALAR, LIMITS, set_, shape, 1, tokens, pairs, tokens).compute_s
    inside, whole = times[0.0, 128], times[0.0, 0]
    assert_allclose(times[share, 128], inside + share * (whole - inside), rtol=0.02)


def test_few_cores_per_kv_head_limit_a_tenstorrent_flash_decode():
    one_head = AttentionShape(4, 1, 128, 128, 2 * 128 * 1.0625, "bfp8")
    kernels = KernelLibrary("n150")
    time = kernels.attention_decode(one_head, seqs=1, q_len=1, kv_tokens=65536)
    # published: 53 GB/s over the 16 cores of one KV head (T3000), 191 GB/s over 64 cores (n150)
    assert time.bytes / time.memory_s == pytest.approx(53.4e9, rel=0.1)
    eight = AttentionShape(32, 8, 128, 128, 8 * 2 * 128 * 1.0625, "bfp8")
    all_cores = kernels.attention_decode(eight, seqs=1, q_len=1, kv_tokens=65536)
    assert all_cores.bytes / all_cores.memory_s == pytest.approx(191e9, rel=0.1)


def test_warm_cache_is_faster_until_it_overflows():
    kernels = KernelLibrary("h100-sxm", "sglang")
    small = {"seqs": 16, "q_len": 1, "kv_tokens": 16 * 128}
    large = {"seqs": 64, "q_len": 1, "kv_tokens": 64 * 8192}
    assert kernels.attention_decode(GQA, **small, warm=True).memory_s < kernels.attention_decode(GQA, **small).memory_s
    assert kernels.attention_decode(GQA, **large, warm=True) == kernels.attention_decode(GQA, **large)


def test_prefill_compute_bound_limit():
    length = 1 << 17
    pairs = attention_pairs(SCALAR, length, length)
    time = prefill_time(SCALAR, LIMITS, IDEAL_PREFILL, GQA, 1, length, pairs, length)
    assert time.flops == 4.0 * 32 * 128 * pairs
    assert time.seconds == pytest.approx(time.flops / 1e15, rel=0.01)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "window"), [(1, 1, 0), (7, 7, 0), (3, 10, 0), (7, 7, 3), (4, 20, 6), (5, 5, 9), (1, 30, 8)]
)
def test_causal_pairs_and_window_by_counting(q_len, kv_len, window):
    seen = [[j for j in range(i + 1) if not window or j > i - window] for i in range(kv_len - q_len, kv_len)]
    assert attention_pairs(SCALAR, q_len, kv_len, window) == sum(map(len, seen))
    assert windowed_length(SCALAR, q_len, kv_len, window) == kv_len - min(map(min, seen))
    assert attention_pairs(ARRAY, np.array([q_len]), np.array([kv_len]), np.array([window]))[0] == sum(map(len, seen))


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 8), (2, 128 * (1 - (1 - 8 / 128) ** 2)), (100_000, 128)])
def test_distinct_experts(tokens, distinct):
    assert expert_loads(SCALAR, EVEN, tokens, 128, 8, 1).active == pytest.approx(distinct)


def test_verification_is_not_free_on_moe():
    kernels = KernelLibrary("h100-sxm")
    shape = {"num_experts": 128, "experts_per_token": 8, "hidden": 2048, "intermediate": 768}
    one, four = kernels.moe(tokens=1, **shape), kernels.moe(tokens=4, **shape)
    dense = kernels.gemm(4, 12288, 4096).seconds / kernels.gemm(1, 12288, 4096).seconds
    assert four.bytes / one.bytes > 3.5
    assert four.seconds / one.seconds > 1.5 > 1.05 > dense


def test_moe_parallelism_and_projections():
    kernels = KernelLibrary("h100-sxm")
    shape = {"tokens": 8192, "num_experts": 64, "experts_per_token": 4, "hidden": 4096, "intermediate": 2048}
    whole = kernels.moe(**shape)
    assert whole.flops == 2.0 * 8192 * 4 * 3 * 4096 * 2048
    assert kernels.moe(**shape, gated=False).flops == pytest.approx(whole.flops * 2 / 3)
    assert kernels.moe(**shape, expert_parallel=8, routing="balanced").flops == pytest.approx(whole.flops / 8)
    assert kernels.moe(**shape, tensor_parallel=2).flops == pytest.approx(whole.flops / 2)


def test_a_repeated_pass_finds_its_operands_on_the_chip_until_they_outgrow_it():
    chip = load_chip("rtx-pro-6000")
    forwards = KernelLibrary(chip).parameters("elementwise", "any").model_copy(update={"chained": False})
    kernels = KernelLibrary(chip.model_copy(update={"kernels": {"generic": {"elementwise": {"any": forwards}}}}))
    store = kernels.chip.on_chip.capacity_bytes
    cold, warm = (lambda size, w=w: kernels.elementwise(size, warm=w).seconds for w in (False, True))
    assert warm(store / 4) < 0.5 * cold(store / 4)
    assert warm(2 * store) == cold(2 * store)
    sizes = np.geomspace(1e4, 3 * store, 200)
    assert np.all(np.diff(kernels.elementwise(sizes, warm=True).seconds) >= 0)


def test_elementwise():
    kernels = KernelLibrary("h100-sxm")
    parameters = kernels.parameters("elementwise")
    time = kernels.elementwise(1e9, launches=3)
    assert time.seconds == pytest.approx(3 * parameters.launch_s + 1e9 / (3.35e12 * parameters.memory_efficiency))


def test_weight_only_and_quantised_gemm():
    kernels = KernelLibrary("a100-sxm-80gb")
    bf16, int4 = kernels.gemm(1, 16384, 16384, "bf16"), kernels.gemm(1, 16384, 16384, "int4")
    assert 0.25 < int4.seconds / bf16.seconds < 0.4
    assert int4.bytes < 0.27 * bf16.bytes
    large = kernels.gemm(8192, 8192, 8192, "int4")
    assert large.flops / large.seconds <= 312e12


@pytest.mark.parametrize(("chip", "most"), [("b200-sxm", 0.3), ("b300-sxm", 0.3), ("h100-sxm", 0.8)])
def test_weight_only_kernels_are_synchronous_on_chips_newer_than_hopper(chip, most):
    """Prompts of Qwen3.5-27B in NVFP4 run at a fifth of a B300's 16-bit peak (SGLang's cookbook, 0.5.16)."""
    time = KernelLibrary(chip, "sglang").gemm(8192, 34816, 5120, "nvfp4a16")
    assert 0.15 < time.flops / time.seconds / KernelLibrary(chip).chip.peak_flops("bf16") < most


def test_no_work_takes_no_time():
    kernels = KernelLibrary("h100-sxm")
    assert kernels.gemm(0, 4096, 4096) == KernelTime(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert kernels.attention_decode(GQA, seqs=0, q_len=1, kv_tokens=0).seconds == 0.0
    assert kernels.attention_prefill(GQA, seqs=0, q_tokens=0, pairs=0, kv_tokens=0).seconds == 0.0
    assert kernels.moe(tokens=0, num_experts=8, experts_per_token=2, hidden=64, intermediate=64).seconds == 0.0
    assert kernels.elementwise(0.0).seconds == 0.0
    assert kernels.collective("all_reduce", 0, 8, "nvlink4").seconds == 0.0
    assert_allclose(kernels.gemm(np.array([0, 1]), 4096, 4096).seconds, [0.0, kernels.gemm(1, 4096, 4096).seconds])


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_negative_and_nan_sizes_are_refused(bad):
    kernels = KernelLibrary("h100-sxm")
    with pytest.raises(ProfileError, match=">= 0"):
        kernels.gemm(bad, 4096, 4096)
    with pytest.raises(ProfileError, match=">= 0"):
        kernels.attention_decode(GQA, seqs=bad, q_len=1, kv_tokens=10)
    with pytest.raises(ProfileError, match=">= 0"):
        kernels.gemm(np.array([1.0, bad]), 4096, 4096)


def test_bound_of_arrays():
    time = KernelLibrary("h100-sxm").gemm(
        np.array([1, 16, 8192]), np.array([64, 16384, 8192]), np.array([64, 8192, 8192])
    )
    assert time.bound.tolist() == ["latency", "memory", "compute"]


GPUS = [
    *(("h100-sxm", library, dtype) for library in ("generic", "vllm", "sglang", "trtllm") for dtype in ("bf16", "fp8")),
    *(("b200-sxm", library, dtype) for library in ("vllm", "sglang", "trtllm") for dtype in ("bf16", "fp8", "fp4")),
    *(("h200-sxm", library, dtype) for library in ("vllm", "sglang") for dtype in ("bf16", "fp8_block")),
    *((chip, "vllm", dtype) for chip in ("a100-sxm-80gb", "l40s", "rtx-4090", "mi300x") for dtype in ("bf16", "int4")),
]


@pytest.mark.parametrize("corrected", [False, True], ids=["physics", "corrected"])
@pytest.mark.parametrize("scales", [False, True], ids=["searched", "stated"])
@pytest.mark.parametrize(("chip", "library", "dtype"), GPUS)
def test_a_larger_product_never_takes_less(chip, library, dtype, scales, corrected):
    """Of 31,944 doublings 6,411 were faster, the worst by 1.83 times, while splits and rows of tiles let more cores
    read the same bytes; 32 rows of 448 x 18816 on a B200 took two thirds of what 16 rows did."""
    kernels = KernelLibrary(chip, library, static_scales=scales, corrected=corrected)
    generator = np.random.default_rng(1)
    rows = np.floor(2 ** generator.uniform(0, 14, (3, 2500)))
    rows[:, 0] = 16, 448, 18816
    before = kernels.gemm(*rows, dtype).seconds
    for size in range(3):
        for factor in (2.0, 1.25):
            larger = rows.copy()
            larger[size] = np.ceil(larger[size] * factor)
            assert np.all(kernels.gemm(*larger, dtype).seconds >= before * (1 - 1e-9))


def wider(name, factor):
    """A chip like the one of that name with ``factor`` times its cores, each as it was."""
    chip = load_chip(name)
    cores = round(chip.compute.cores * factor)
    rates = {dtype: rate * cores / chip.compute.cores for dtype, rate in chip.compute.dense_flops_per_s.items()}
    compute = chip.compute.model_copy(update={"cores": cores, "dense_flops_per_s": rates, "worker_cores": None})
    if chip.compute.worker_cores is not None:
        compute = compute.model_copy(update={"worker_cores": round(chip.compute.worker_cores * factor)})
    return chip.model_copy(update={"compute": compute, "like": name, "kernels": {}})


@pytest.mark.parametrize("factor", [1.1, 2.0, 4.0])
@pytest.mark.parametrize("chip", ["h100-sxm", "a100-sxm-80gb", "b200-sxm", "n150", "mi300x", "l40s", "rtx-4090"])
def test_no_kernel_is_slower_on_more_cores(chip, factor):
    """Of products up to 85 % were (by up to 3.6 times), of decode attention up to 65 %, while a core of the wider chip
    drew but its share of the bandwidth and the KV axis was split for all cores whatever combining the parts took. By
    physics: what was learned on a chip's own measurements is of that chip alone."""
    few, many = (KernelLibrary(each, "vllm", corrected=False) for each in (chip, wider(chip, factor)))
    generator = np.random.default_rng(3)
    rows = np.floor(2 ** generator.uniform(0, 14, (3, 1000)))
    seqs, length = np.floor(2 ** generator.uniform(0, 9, 1000)), np.floor(2 ** generator.uniform(0, 16, 1000))
    tokens = np.floor(2 ** generator.uniform(0, 12, 1000))
    experts = {"num_experts": 128, "experts_per_token": 8, "hidden": 2048, "intermediate": 768}
    state = RecurrentShape(16, 32, 128, 128)

    def times(kernels):
        yield kernels.gemm(*rows)
        for heads, kv_heads in ((32, 8), (8, 1), (4, 4)):
            shape = AttentionShape(heads, kv_heads, 128, 128, 2 * kv_heads * 128 * 2.0, "bf16")
            for q_len in (1, 4):
                yield kernels.attention_decode(shape, seqs=seqs, q_len=q_len, kv_tokens=seqs * (length + q_len))
            each = {"q_tokens": seqs * length, "pairs": seqs * length * (length + 1) / 2, "kv_tokens": seqs * length}
            yield kernels.attention_prefill(shape, seqs=seqs, **each)
        yield kernels.moe(tokens=tokens, **experts)
        yield kernels.recurrent_decode(state, seqs=seqs, q_len=1)
        yield kernels.recurrent_prefill(state, seqs=seqs, q_tokens=seqs * length)

    for before, after in zip(times(few), times(many), strict=True):
        assert np.all(after.seconds <= before.seconds * (1 + 1e-9))


def test_the_same_work_as_numbers_and_as_arrays():
    """Tiles that cannot win are left out for single products alone."""
    kernels = KernelLibrary("h100-sxm", "vllm")
    sizes = np.floor(2 ** np.random.default_rng(2).uniform(0, 13, (3, 300)))
    one_by_one = [kernels.gemm(*size, "fp8").seconds for size in sizes.T.tolist()]
    assert_allclose(kernels.gemm(*sizes, "fp8").seconds, one_by_one, rtol=1e-12)
