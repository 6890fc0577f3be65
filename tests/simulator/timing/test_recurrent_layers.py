"""Layers that keep a state instead of keys: their kernels, what they take by hand, and who is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from plain_scenario import plain_scenario
from test_step_kernels import batches, one_price
from timing_steps import arrays, decode, deployment, memory_plan

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip
from hwprofiles.kernels.recurrent import RecurrentShape, convolution
from simulator.replay import Split, replay_kernels
from simulator.running.run import simulate
from simulator.serving.engine import PrefixCache
from simulator.serving.limits import EngineLimits
from simulator.studies.plan.command import plan as plan_capacity
from simulator.studies.tune.command import tune
from simulator.timing import StepTimer, running
from simulator.timing.kernels import MixingKind, decode_calls, price
from simulator.timing.memory import hybrid_pages
from traces import PrefixHashes
from traces.kernels import read_kernels

FAMILIES = yaml.safe_load(
    (Path(__file__).parents[1] / "llm" / "current_models.yaml").read_text(encoding="utf-8"),
)


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Writes the config of a family and gives its path."""

    def write(name, **changes):
        path = tmp_path_factory.mktemp(name) / "config.json"
        path.write_text(json.dumps(FAMILIES[name] | {"torch_dtype": "bfloat16"} | changes))
        return str(path)

    return write


LAYOUTS = [
    ("qwen3-next-80b-a3b", {"tensor_parallel": 2}),
    ("qwen3-next-80b-a3b", {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 4}),
    ("kimi-linear-48b-a3b", {"tensor_parallel": 4}),
    ("nemotron-h", {}),
    ("nemotron-h", {"chip": "rtx-4090", "cuda_graphs": False}),
    ("deepseek-v3.2", {"tensor_parallel": 8}),
    ("deepseek-v4", {"tensor_parallel": 4}),
    ("minimax-m3", {"tensor_parallel": 4}),
    ("minimax-text-01", {"tensor_parallel": 8}),
    ("gemma-3n-e4b", {}),
    ("lfm2-1.2b", {}),
]


@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_list_costs_and_seconds_of_hybrids_are_one_price(config, name, layout):
    timer = StepTimer(deployment(config(name), **layout), 2048)

    @settings(max_examples=30, deadline=None)
    @given(batches(4, timer.windows, 2048))
    def check(work):
        if work.prefill_tokens + work.decode_seqs:
            one_price(timer, work)

    check()


def test_a_decoded_token_reads_and_writes_every_state_once(config):
    """Qwen3-Next, 36 of 48 layers: 32 heads of 128 x 128 in fp32, in and out, and the vectors of the token."""
    timer = StepTimer(deployment(config("qwen3-next-80b-a3b")), 2048)
    work = decode(8, 1000, windows=timer.windows)
    updates = [k for k in running(timer.kernels(arrays(work))) if k.name == "recurrent update"]
    vectors = 2 * (2 * 16 * 128 + 2 * 32 * 128)
    assert sum(kernel.times for kernel in updates) == 36
    assert {kernel.bytes for kernel in updates} == {8 * (2 * 32 * 128 * 128 * 4 + vectors)}
    later = running(timer.kernels(arrays(decode(8, 100_000, windows=timer.windows))))
    assert [k.seconds for k in later if k.name == "recurrent update"] == [k.seconds for k in updates]


def test_states_are_set_aside_for_every_sequence_that_may_run(config):
    """36 x (32 x 128 x 128 x 4 B + 3 x 8192 x 2 B) = 77.3 MB a sequence; a chip of two holds half."""
    one = 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)
    hybrid = deployment(config("qwen3-next-80b-a3b"), "h200-sxm", tensor_parallel=2, framework="sglang")
    plans = [memory_plan(hybrid, max_num_seqs=seqs) for seqs in (64, 128)]
    assert [plan.state_bytes for plan in plans] == [64 * one / 2, 128 * one / 2]
    blocks = plans[0].num_blocks - plans[1].num_blocks
    assert blocks * 16 * hybrid.kv_bytes_per_token == pytest.approx(64 * one / 2, rel=0.02)
    with pytest.raises(ForerunError, match=r"GB state of 4096 sequences \(engine.max_num_seqs\)"):
        memory_plan(hybrid, max_num_seqs=4096)


def test_vllm_has_one_page_size_for_keys_and_states_by_hand(config):
    """Qwen3-Next on two chips: a layer's state takes (32 x 128 x 128 x 4 + 3 x 8192 x 2) / 2 = 1,073,152 B, its keys
    2 x 256 x 2 = 1,024 B a token, so a page has 66 blocks of 16 tokens. 36 recurrent layers are three groups of as many
    as there are attention layers, 12: a sequence of 1,057 tokens takes two pages of keys and three of states.
    With states in bf16 on one chip a page has 544 tokens, as vLLM prints."""
    model = deployment(config("qwen3-next-80b-a3b"), "h200-sxm", tensor_parallel=2)
    result = memory_plan(model, max_num_seqs=64)
    group = 12 * 1056 * 1024
    assert result.page_tokens == 1056
    assert result.state_bytes == 64 * 3 * group
    pages = result.num_blocks * 16 // 1056
    assert result.split["kv"] == pytest.approx(pages * group)
    used = result.weight_bytes + result.activation_bytes + result.state_bytes + pages * group
    assert used <= 0.9 * result.capacity_bytes < used + group
    limits = EngineLimits(64, 2048, 16, result.num_blocks, 0, None, True, page_tokens=1056)
    assert [limits.blocks(tokens) for tokens in (1, 1056, 1057)] == [66, 66, 132]
    short = deployment(config("qwen3-next-80b-a3b", mamba_ssm_dtype="bfloat16"), "h200-sxm")
    assert hybrid_pages(short, 16).tokens == 544
    assert memory_plan(deployment(), max_num_seqs=64).page_tokens == 16


def test_short_requests_of_a_hybrid_take_whole_pages(config):
    """40 requests of 100 + 8 tokens against 3 pages of 66 blocks: three at a time, where 28 would fit in blocks; a
    common start of 1,024 tokens is no hit, as no state is kept there, one of 2,048 spares 1,056."""
    engine = {"num_kv_blocks": 198, "enable_prefix_caching": False, "kv_watermark": 0.0}
    model = config("qwen3-next-80b-a3b")
    result = simulate(plain_scenario(model, "h200-sxm", 100, 8, 40, hardware={"tensor_parallel": 2}, engine=engine))
    assert result.steps.decode_seqs.max() == 3
    hashes = PrefixHashes.from_lists([[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 7]], 512)
    cache = PrefixCache(hashes, 16, np.full(3, 2048), page_tokens=1056)
    cache.add(0, 0, 2048)
    assert [cache.match(request, 2048)[1] for request in (1, 2)] == [0, 1056]


def test_plan_and_tune_say_what_holds_the_memory_of_a_chip():
    """Of a model that keeps states, in numbers and in words; weights, keys and states fill what an engine may use."""
    sections = {
        "hardware": {"tensor_parallel": 2},
        "speculation": {"method": "mtp", "num_speculative_tokens": 1, "acceptance": {"alpha": 0.8}},
        "workload": {"arrivals": {"process": "poisson", "request_rate": 1.0}},
    }
    scenario = plain_scenario("qwen3.5-27b", "h200-sxm", 512, 32, 20, **sections)
    options = {"slo": {"p99_ttft_ms": 5000.0}, "vary": {"hardware.tensor_parallel": [2]}, "replications": 1, "jobs": 1}
    assert "state" in plan_capacity(scenario, **options).document["plan_summary"]["memory per chip"]
    tuned = tune(scenario, batch=[1, 16], context=[512], tokens=[1])
    held = tuned.document["per_chip_bytes"]
    assert min(held["weights"], held["kv"], held["state"]) > 1e9
    assert sum(held.values()) < load_chip("h200-sxm").memory.capacity_bytes
    assert any(table.name == "memory" for table in tuned.tables())


def test_another_rule_is_not_calibrated_by_the_plain_one():
    kernels = KernelLibrary("h100-sxm", "vllm")
    shape = RecurrentShape(8, 8, 128, 128)
    for phase in ("prefill", "decode"):
        result = [kernels.basis(f"recurrent_{phase}", f"bf16{rule}") for rule in ("", "@kda", "@mamba2")]
        assert result == ["calibrated", "calibrated", "extrapolated"]
    times = [kernels.recurrent_decode(shape, seqs=64, q_len=tokens) for tokens in (1, 4)]
    assert times[1].bytes > times[0].bytes


@pytest.mark.parametrize(
    ("chip", "table", "library", "prefill", "decode"),
    [
        ("h100-sxm", "linear_attention/vllm/*/gdn", "vllm", 3.5, 2),
        ("h100-sxm", "linear_attention/sglang/*/gdn", "sglang", 6.6, 2),
        ("b200-sxm", "linear_attention/vllm/*/gdn", "vllm", 5.8, 4),
        ("b200-sxm", "linear_attention/sglang/*/gdn", "sglang", 3.6, 4),
        ("h100-sxm", "kda/sglang/*/kda", "sglang", 5, 8),
        ("h200-sxm", "kda/vllm/*/kda", "vllm", 8, 7),
        ("b200-sxm", "kda/vllm/*/kda", "vllm", 8, 7),
        ("b200-sxm", "kda/sglang/*/kda", "sglang", 5, 10),
    ],
)
def test_held_out_shapes_of_measured_recurrent_kernels(shared_data, chip, table, library, prefill, decode):
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    (path,) = folder.glob(f"{table}_perf.parquet")
    result = replay_kernels(read_kernels(path), KernelLibrary(chip, library), Split(0.7, 1))
    errors = {group.op: group.mape for group in result.groups if group.regime == "all"}
    assert errors["recurrent_prefill"] <= prefill
    assert errors["recurrent_decode"] <= decode
    assert errors["elementwise"] <= 11  # the convolution before it


@pytest.mark.parametrize(("chip", "most"), [("h100-sxm", 9), ("b200-sxm", 9)])
def test_held_out_shapes_of_mamba2s_convolution(shared_data, chip, most):
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    (path,) = folder.glob("linear_attention/trtllm/*/mamba2_perf.parquet")
    result = replay_kernels(read_kernels(path), KernelLibrary(chip, "trtllm"), Split(0.7, 1))
    assert result.overall.mape <= most


@pytest.mark.parametrize("chip", ["h100-sxm", "b200-sxm"])
def test_updates_of_few_sizes_are_fitted_with_those_of_the_same_kernel(shared_data, chip):
    """The eleven batch sizes of TensorRT-LLM's table do not tell what more than 128 sequences take; Mamba-2's do."""
    folder = shared_data / "kernels" / "aiconfigurator" / chip.replace("-", "_")
    (path,) = folder.glob("linear_attention/trtllm/*/gdn_perf.parquet")
    rows = read_kernels(path)
    rows = rows.where(rows.word("name").equals("convolution gdn-update"))
    assert replay_kernels(rows, KernelLibrary(chip, "trtllm"), Split(0.7, 1)).overall.mape <= 9


def test_heads_that_are_verified_one_by_one_wait_for_one_another():
    """SGLang's kernel for drafts on a B200: two tokens of 12,288 heads take nearly as long as four, where the memory
    would serve them in three fifths of the time."""
    kernels = KernelLibrary("b200-sxm", "sglang")
    shape = RecurrentShape(96, 96, 128, 128, "bf16@kda")
    one, two, four = (kernels.recurrent_decode(shape, seqs=128, q_len=tokens).seconds for tokens in (1, 2, 4))
    assert two > 0.7 * four
    assert two > 1.9 * one


def test_a_convolution_serves_every_channel_of_a_sequence_by_itself():
    """One 64-head Mamba-2 layer: 512 prompts of 2 tokens take longer than one prompt of 1,024, the same bytes but for
    the tails; its step names the kernel that was fitted."""
    kernels = KernelLibrary("h100-sxm", "trtllm")
    shape = RecurrentShape(8, 64, 128, 64, "bf16@mamba2", 6144.0, 4.0)
    many, one = (kernels.elementwise(**convolution(shape, seqs, 1024, "scan")) for seqs in (512, 1))
    assert many.seconds - many.launch_s > 10 * (one.seconds - one.launch_s)
    assert kernels.basis("elementwise", "any@mamba2-scan") == "calibrated"
    step = next(decode_calls(MixingKind(shape, None, 0, 1, kernels), np.array([4]), np.array([1]), np.array([400])))
    assert price(step, kernels).fitted == ("elementwise", "any@mamba2-update")


@pytest.mark.parametrize(("engine", "elements"), [("vllm", 29), ("sglang", 43)])
def test_a_verifying_convolution_keeps_tails_to_roll_back(config, engine, elements):
    """Of a channel's elements for 8 tokens and a kernel of 4: 16 go in and out, the tail of 3 is read, and written as
    one of 10 or as 8 of 3. Of one token, 8 in either."""
    layers = deployment(config("qwen3-next-80b-a3b"), tensor_parallel=2, framework=engine).mixing_layers
    shape = next(shape for shape, _ in layers if isinstance(shape, RecurrentShape))
    for q_len, most in ((8, elements), (1, 8)):
        moved = convolution(shape, 5, 5 * q_len, "update")["bytes_moved"]
        assert moved == 5 * most * shape.conv_channels * shape.vector_bytes
