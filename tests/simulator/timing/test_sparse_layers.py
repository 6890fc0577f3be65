"""Layers that read chosen or compressed keys: their kernels and memory by hand, drafts beside them, who is refused."""

from dataclasses import replace

import pytest
from plain_scenario import plain_scenario
from test_recurrent_layers import config as config  # a fixture
from timing_steps import arrays, decode, deployment

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary
from hwprofiles.kernels.sparse import IndexShape, SparseShape
from simulator.running.run import simulate
from simulator.timing import StepTimer, running


def listed(timer, work):
    kernels = running(timer.kernels(arrays(work)))
    times = {kernel.name: sum(one.times for one in kernels if one.name == kernel.name) for kernel in kernels}
    return {kernel.name: kernel._replace(times=times[kernel.name]) for kernel in kernels}


def test_deepseek_v3_2_scores_every_key_and_reads_2048(config):
    """64 index heads of 128 on one key of 128 bytes and a scale; 16 of 128 heads over 2,048 latents of 512 + 64."""
    timer = StepTimer(deployment(config("deepseek-v3.2"), tensor_parallel=8), 2048)
    near, far = (listed(timer, decode(8, tokens, windows=timer.windows)) for tokens in (50_000, 100_000))
    scores = 8 * 100_000
    index = far["decode sparse index"]
    assert index.flops == 2 * scores * 64 * 128
    assert index.bytes == scores * (128 + 4) + 2 * 4 * scores
    assert index.times == 61
    attention = far["decode sparse attention"]
    assert attention.flops == 2 * 8 * 2048 * 16 * (576 + 512)
    assert attention.seconds == near["decode sparse attention"].seconds
    assert index.seconds > near["decode sparse index"].seconds


def test_deepseek_v4_reads_its_window_and_compressed_entries(config):
    """At 100,000 tokens: 128 of the window and 1,024 chosen entries of four tokens, or all 781 of 128 tokens."""
    timer = StepTimer(deployment(config("deepseek-v4"), tensor_parallel=4), 2048)
    kernels = [
        k for k in running(timer.kernels(arrays(decode(8, 100_000, windows=timer.windows)))) if "attention" in k.name
    ]
    per_entry = 2 * 8 * (128 / 4) * 2 * 512
    assert sorted({round(kernel.flops / per_entry, 2) for kernel in kernels}) == [781.25 + 128, 1024 + 128]
    grouped = [gemm for gemm in timer.deployment.gemms(timer.deployment.architecture.layer_groups[0].layer)
               if gemm.name == "o_a_proj"]  # fmt: skip
    assert [gemm.n * gemm.k for gemm in grouped] == [16 * 1024 * (128 * 512 // 16) // 4]


def test_what_weighs_index_heads_stays_in_16_bits_and_some_engines_join_the_keys_to_it(config):
    """64 weights and a key of 128 from a hidden state of 7,168; the queries of the index are narrow everywhere."""
    values = {}
    for engine in ("vllm", "trtllm", "sglang"):
        made = deployment(config("deepseek-v3.2"), weights="fp8_block", framework=engine, tensor_parallel=8)
        (mixer,) = {group.layer.mixer for group in made.architecture.layer_groups}
        gemms = [gemm for gemm in made.mixer_gemms(mixer) if gemm.name.startswith("indexer")]
        values[engine] = [(gemm.n, gemm.k, gemm.dtype) for gemm in gemms]
    joined = [(64 * 128, 1536, "fp8_block"), (64 + 128, 7168, "bf16")]
    assert values["vllm"] == values["trtllm"] == joined
    assert values["sglang"] == [joined[0], (128, 7168, "fp8_block"), (64, 7168, "bf16")]


def test_few_rows_are_padded_and_work_goes_in_waves():
    kernels = KernelLibrary("h100-sxm")
    shape = SparseShape(16, 1, 576, 512, 1152.0, "bf16@dsa", most=2048)
    one, four = (
        kernels.sparse_prefill(
            shape._replace(num_heads=heads), seqs=1, q_tokens=4096, pairs=4096 * 2048, kv_tokens=8192
        )
        for heads in (16, 64)
    )
    assert one.compute_s == four.compute_s
    assert one.flops * 4 == four.flops


def test_vllm_pads_prompts_on_a_b200_to_128_heads():
    """Its kernel takes blocks of 128 heads there and of 64 on Hopper."""
    computing = {}
    for chip, cache, heads in (
        (chip, cache, heads) for chip in ("b200-sxm", "h100-sxm") for cache in ("bf16", "fp8") for heads in (64, 128)
    ):
        shape = SparseShape(heads, 1, 576, 512, 1152.0, f"{cache}@dsa", most=2048)
        sizes = {"seqs": 1, "q_tokens": 148 * 132, "pairs": 148 * 132 * 2048, "kv_tokens": 148 * 132}
        computing[chip, cache, heads] = KernelLibrary(chip, "vllm").sparse_prefill(shape, **sizes).compute_s
    for cache in ("bf16", "fp8"):
        assert computing["b200-sxm", cache, 64] == computing["b200-sxm", cache, 128]
        assert 1.9 * computing["h100-sxm", cache, 64] < computing["h100-sxm", cache, 128]


def test_nothing_is_selected_where_a_context_has_no_more_keys():
    kernels = KernelLibrary("h100-sxm")
    shape = IndexShape(64, 128, 132.0, "fp8@dsa", top_k=2048)
    none = kernels.index_decode(shape._replace(top_k=10**9), seqs=32, q_len=1, kv_tokens=32 * 1024)
    few = kernels.index_decode(shape, seqs=32, q_len=1, kv_tokens=32 * 1024)
    many = kernels.index_decode(shape._replace(top_k=512), seqs=32, q_len=1, kv_tokens=32 * 1024)
    assert few.seconds == none.seconds < many.seconds


def test_index_keys_and_scales_count_with_the_cache(config):
    """61 layers x (512 + 16 bytes of scales + 64 x 2 + 128 + 4) bytes a token in fp8, on every chip alike."""
    model = replace(deployment(config("deepseek-v3.2"), "h200-sxm", tensor_parallel=8), kv_dtype="fp8")
    assert model.cached_kv_bytes_per_token == 61 * (656 + 132)
    assert model.index_bytes_per_token == 61 * 132


def test_a_recurrent_state_is_kept_after_every_draft_token(config):
    """Qwen3-Next: three drafts need four copies of its states; DeepSeek-V4's unfinished entries need one."""
    hybrid = deployment(config("qwen3-next-80b-a3b"), tensor_parallel=2)
    assert hybrid.state_bytes_per_sequence(3) == 4 * hybrid.state_bytes_per_sequence()
    compressed = deployment(config("deepseek-v4"), tensor_parallel=4)
    assert compressed.state_bytes_per_sequence(3) == compressed.state_bytes_per_sequence() > 0


RUNS = [("deepseek-v3.2", 16), ("deepseek-v4", 32), ("minimax-m3", 8), ("minimax-text-01", 16), ("gemma-3n-e4b", 1),
        ("lfm2-1.2b", 1), ("nemotron-h", 2), ("kimi-linear-48b-a3b", 4)]  # fmt: skip


def scenario(model, chips, **more):
    sections = {"hardware": {"tensor_parallel": chips}, "engine": {"max_num_seqs": 32}} | more
    return plain_scenario(model, "b200-sxm", 3000, 16, 12, **sections)


@pytest.mark.parametrize(("name", "chips"), RUNS)
def test_every_kind_of_layer_runs(config, name, chips):
    result = simulate(scenario(config(name), chips))
    assert not result.requests.failed.any()
    assert result.steps.output_tokens.sum() == 12 * 16


DRAFTING = {"method": "mtp", "num_speculative_tokens": 2, "acceptance": {"alpha": 0.7}}


@pytest.mark.parametrize("model", ["qwen3.5-27b", "mimo-v2-flash", "glm-5", "deepseek-v4-pro"])
def test_mtp_heads_draft_for_hybrid_and_sparse_models(model):
    chips = 2 if model == "qwen3.5-27b" else 16
    plain, drafted = (simulate(scenario(model, chips, **more)) for more in ({}, {"speculation": DRAFTING}))
    assert drafted.summary["spec_decode_acceptance_length"] > 1.5
    assert drafted.summary["mean_tpot_ms"] < plain.summary["mean_tpot_ms"]


def test_the_memory_of_a_run_is_split_by_what_holds_it():
    document = simulate(scenario("deepseek-v4-pro", 16, speculation=DRAFTING)).document
    split = document["kv_cache"]["per_chip_bytes"]
    assert all(split[name] > 0 for name in ("weights", "draft_weights", "kv", "index", "state", "activations"))
    assert sum(split.values()) <= 0.9 * document["kv_cache"]["capacity_bytes"]


def test_attention_speculation_says_why_it_refuses_other_layers():
    config = {"hit_rate": 0.9}
    hardware = {"chip": "h100-sxm", "tensor_parallel": 2, "speculative_parallel": 2}
    with pytest.raises(ForerunError, match="layers that are no softmax attention over cached keys"):
        simulate(scenario("qwen3.5-27b", 2, hardware=hardware, attention_speculation=config))
