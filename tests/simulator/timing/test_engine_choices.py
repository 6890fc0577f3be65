"""Choices of an engine that change its step times: captured graphs, scheduling, FlashDecoding, quantised weights."""

from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import yaml
from timing_steps import arrays, decode, deployment, mixed

from hwprofiles import AttentionShape, KernelLibrary, load_chip
from simulator.llm import PARTS
from simulator.timing import ModelTimer, StepTimer, load_framework

NAMES = list(yaml.safe_load(resources.files("simulator.timing").joinpath("frameworks.yaml").read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_every_framework_pads_to_its_next_graph(name):
    framework = load_framework(name).for_engine(256)
    sizes = np.array(framework.captured)
    tokens = np.arange(1, 700)
    padded = framework.padded_tokens(tokens, True)
    inside = tokens <= framework.max_captured_tokens
    assert np.all(padded >= tokens)
    assert np.array_equal(padded[~inside], tokens[~inside])
    assert set(padded[inside]) <= set(sizes)
    assert np.array_equal(padded[inside], [min(s for s in sizes if s >= n) for n in tokens[inside]])


@pytest.mark.parametrize(
    ("name", "seqs", "query_len", "sizes", "result"),
    [
        ("vllm", 8, 1, None, (1, 2, 4, 8, 16)),
        ("vllm", 1000, 1, None, (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))),
        ("vllm", 4, 6, None, (6, 12, 18, 24, 36, 42, 48)),
        ("sglang", 24, 1, None, (1, 2, 4, 8, 12, 16, 24)),
        ("trtllm", 10, 4, None, (4, 8, 16, 32, 40)),
        ("trtllm", 256, 1, (1, 64), (1, 64)),
        ("vllm", 256, 1, (64, 1, 64), (1, 64)),
        ("vllm", 256, 1, (), (0,)),
        ("trtllm", 5, 2, (9,), (0,)),
        ("transformers", 256, 1, None, (0,)),
    ],
)
def test_graphs_are_those_each_engine_captures(name, seqs, query_len, sizes, result):
    """vLLM: at most 2 x max_num_seqs tokens, whole verify steps; the others: sequences, the largest batch included."""
    assert load_framework(name).for_engine(seqs, query_len, sizes).captured == result


@pytest.mark.parametrize(("name", "dense", "routed"), [("llama-3.2-1b", 16, 0), ("qwen3-30b-a3b", 0, 48)])
def test_a_step_outside_graphs_waits_for_its_launches(name, dense, routed):
    """SGLang captures decoding alone: one prompt of few tokens beside it makes a small model launch-bound, and a
    mixture of experts, whose layers launch more kernels, the more so."""
    timer = StepTimer(deployment(name, framework="sglang"), 512)
    framework = timer.deployment.framework
    assert framework.eager_experts_s > 1e-4
    launches = framework.eager_launch_s * framework.kernels_per_layer
    floor = launches * (dense + routed) + framework.eager_experts_s * routed
    single, other = decode(4, 100), mixed(4, 100, 1, 8)
    assert timer.seconds(single) < floor + 1e-3
    assert timer.seconds(other) >= floor
    for work in (single, other):
        costs = timer.costs(arrays(work))
        assert timer.seconds(work) == pytest.approx(float((costs.device_s + costs.host_s)[0]), rel=0.02)
    assert float(timer.costs(arrays(single)).host_s[0]) == 0.0


def test_experts_of_one_call_are_launched_in_less():
    """Experts of gpt-oss in MXFP4 are one call of SGLang's, in bf16 as many as those of other mixtures."""
    called, disaggregated = (
        StepTimer(replace(deployment("gpt-oss-20b", framework="sglang"), weight_dtypes=dict.fromkeys(PARTS, dtype)), 64)
        for dtype in ("mxfp4", "bf16")
    )
    framework = called.deployment.framework
    lost = 24 * (framework.eager_experts_s - framework.eager_mxfp4_experts_s)
    assert lost > 0.01
    assert disaggregated._floor_s - called._floor_s == pytest.approx(lost)


@pytest.mark.parametrize("name", [n for n in NAMES if load_framework(n).scheduling_s])
def test_scheduling_beside_the_device_or_after_it(name):
    """What a busy device hides is what an idle one waits for; twice the same choice changes nothing."""
    framework = load_framework(name)
    ahead, after = framework.scheduled(True), framework.scheduled(False)
    assert (ahead.schedules_ahead, after.schedules_ahead) == (True, False)
    assert framework.scheduled(None) == framework
    assert ahead.scheduled(True) == ahead
    assert after.step_s - ahead.step_s == pytest.approx(framework.scheduling_s)
    works = [decode(64, 2000), decode(1, 10)]
    for work in works:
        times = [ModelTimer(StepTimer(deployment_of(f), 512)).seconds(work) for f in (ahead, after)]
        assert times[0] <= times[1]


def deployment_of(framework):
    return replace(deployment("llama-3.1-8b"), framework=framework)


SHAPE = AttentionShape(32, 8, 128, 128, 2.0 * 8 * 128 * 2, "bf16")


@pytest.mark.parametrize("chip", ["h100-sxm", "a100-sxm-80gb", "rtx-4090", "b200-sxm", "n150"])
def test_without_flash_decoding_few_sequences_draw_little_bandwidth(chip):
    """Work items are then sequences times KV heads: eight of a hundred cores cannot read the KV cache at full speed."""
    split, whole = KernelLibrary(chip), KernelLibrary(chip, split_kv=False)
    for seqs in (1, 4, 64):
        times = [k.attention_decode(SHAPE, seqs=seqs, q_len=1, kv_tokens=seqs * 32768).seconds for k in (split, whole)]
        assert times[1] >= times[0] * 0.99
    one = [k.attention_decode(SHAPE, seqs=1, q_len=1, kv_tokens=32768).seconds for k in (split, whole)]
    assert one[1] > 1.5 * one[0]


@pytest.mark.parametrize("chip", ["h100-sxm", "a100-sxm-80gb", "b200-sxm", "l40s"])
def test_weight_only_int4_saves_bytes_and_pays_for_widening(chip):
    """Faster than bf16 where weights are streamed, slower where arithmetic counts: its math is bf16 all the same."""
    kernels = KernelLibrary(chip)
    thin = [kernels.gemm(1, 8192, 8192, dtype).seconds for dtype in ("bf16", "int4")]
    thick = [kernels.gemm(8192, 8192, 8192, dtype).seconds for dtype in ("bf16", "int4")]
    assert thin[1] < 0.7 * thin[0]
    assert thick[1] > thick[0]
    assert thick[1] >= 2.0 * 8192**3 / load_chip(chip).peak_flops("bf16")


def test_quantisation_by_part_and_of_the_cache():
    """int4 experts and an fp8 cache: a quarter of the experts' bytes, half of the cache's, and a faster step."""
    wide = deployment("qwen3-30b-a3b", weights="bf16")
    narrow = deployment("qwen3-30b-a3b", weights={"default": "bf16", "expert": "int4"})
    experts = wide.architecture.parameters_by_part()["expert"]
    saved = wide.weight_bytes - narrow.weight_bytes
    assert saved == pytest.approx(experts * (2 - 0.5 - 2.5 / 128), rel=1e-3)
    cached = replace(narrow, kv_dtype="fp8")
    assert cached.kv_bytes_per_token * 2 == narrow.kv_bytes_per_token
    work = decode(64, 8000)
    times = [StepTimer(one, 256).seconds(work) for one in (wide, narrow, cached)]
    assert times[0] > times[1] > times[2]


@pytest.mark.parametrize("chip", ["rtx-4090", "rtx-pro-6000"])
def test_mixed_batches_run_as_the_chip_was_measured(chip):
    """Profiles with one-pass kernels price chunks and single queries together, alone and among many."""
    one = deployment(chip=chip)
    timer = StepTimer(one, 1024)
    work = mixed(16, 2000, 1, 512)
    kernels, shape = one.kernels, one.attention_shape(one.architecture.layer_groups[0].layer.attention)
    chunk = {"seqs": 1, "q_tokens": 512, "pairs": 512 * 513 // 2, "kv_tokens": 512}
    together = kernels.attention_mixed(shape, **chunk, decode_seqs=16, decode_kv_tokens=16 * 2000).seconds
    disaggregated = kernels.attention_prefill(shape, **chunk).seconds
    disaggregated += kernels.attention_decode(shape, seqs=16, q_len=1, kv_tokens=16 * 2000).seconds
    assert together > disaggregated
    assert timer.seconds(work) > 32 * together
    costs = timer.costs(arrays(work))
    assert timer.seconds(work) == pytest.approx(float((costs.device_s + costs.host_s)[0]), rel=1e-9)
    verify = work._replace(query_len=4)
    checked = timer.costs(arrays(verify))
    assert timer.seconds(verify) == pytest.approx(float((checked.device_s + checked.host_s)[0]), rel=0.02)


@pytest.mark.parametrize(
    ("chip", "few", "four"),
    [("h100-sxm", 256, 512), ("h200-sxm", 256, 512), ("b200-sxm", 512, 512), ("a40", 32, 160), ("rtx-4090", 24, 80)],
)
def test_sglang_captures_as_many_sequences_as_memory_allows(chip, few, four):
    """``cuda_graph_max_bs`` by GPU memory and tensor parallelism (SGLang 0.5); vLLM's are the same everywhere."""
    result = [load_framework("sglang").on(load_chip(chip), chips).max_captured_tokens for chips in (1, 4)]
    assert result == [few, four]
    assert load_framework("vllm").on(load_chip(chip)).max_captured_tokens == 512


@pytest.mark.parametrize(
    ("chip", "framework", "model", "joined"),
    [
        ("h100-sxm", "vllm", "llama-3.1-8b", True),
        ("h100-sxm", "vllm-0.11", "llama-3.1-8b", True),
        ("h100-sxm", "vllm-2024", "llama-3.1-8b", False),
        ("h100-sxm", "sglang", "llama-3.1-8b", False),
        ("b200-sxm", "vllm", "llama-3.1-8b", False),
        ("h100-sxm", "vllm", "deepseek-r1", False),
    ],
)
@pytest.mark.parametrize("prompts", [1, 3])
def test_flash_attention_3_launches_once_for_a_mixed_batch(chip, framework, model, joined, prompts):
    timer = StepTimer(deployment(model, chip, framework=framework), 2048)
    both = mixed(16, 500, prompts, 100)
    alone = both._replace(decode_seqs=0, decode_kv_tokens=(0,))
    first, beside = (
        next(one for one in timer.kernels(arrays(work)) if one.name == "prefill attention") for work in (alone, both)
    )
    saved_s = float((first.time.seconds - beside.time.seconds)[0])
    assert saved_s == pytest.approx(float(first.time.launch_s[0]) if joined else 0.0, abs=1e-12)
    costs = timer.costs(arrays(both))
    assert timer.seconds(both) == pytest.approx(float((costs.device_s + costs.host_s)[0]), rel=0.02)
