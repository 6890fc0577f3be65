"""Step times: hand-checked bounds, one price for one step by every route, shares that add up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from plain_scenario import plain_scenario
from timing_steps import arrays, decode, deployment, memory_plan

from forerun.errors import ForerunError
from simulator.llm import load_architecture
from simulator.running.build import build_run
from simulator.timing import (
    ModelTimer,
    SequentialDrafter,
    StepTimer,
    causal_pairs,
    keys_read,
    resolve_weight_dtypes,
)
from simulator.timing.kernels import decode_calls, mixing_kinds, seconds_of
from simulator.timing.step import DecodeTable, step_timer


def chain_drafter(step, tokens):
    memory = step.deployment
    return SequentialDrafter(step, tokens, (1,) * (tokens - 1), memory.weight_bytes, memory.kv_bytes_per_token)


TIMERS = {
    "dense": lambda: ModelTimer(StepTimer(deployment(), 4096)),
    "sharded": lambda: ModelTimer(StepTimer(deployment("llama-3.1-70b", tensor_parallel=4), 4096)),
    "windowed": lambda: ModelTimer(StepTimer(deployment("gpt-oss-20b"), 4096)),
    "latent": lambda: ModelTimer(StepTimer(deployment("deepseek-v2-lite"), 4096)),
    "drafted": lambda: ModelTimer(
        StepTimer(deployment(), 4096), chain_drafter(StepTimer(deployment("llama-3.2-1b"), 4096), 4)
    ),
    "eager": lambda: ModelTimer(StepTimer(deployment(cuda_graphs=False), 4096)),
    "groups": lambda: ModelTimer(
        StepTimer(deployment("qwen3-30b-a3b", attention_data_parallel=4, expert_parallel=4), 512)
    ),
}


@pytest.mark.parametrize("kind", TIMERS)
def test_a_run_of_decode_steps_equals_its_steps(kind):
    timer = TIMERS[kind]()
    contexts = np.arange(100, 400)
    works = [decode(7, int(c), windows=timer.windows) for c in contexts]
    together = decode(7, 0, windows=timer.windows)._replace(
        decode_kv_tokens=tuple(np.array([w.decode_kv_tokens[i] for w in works]) for i in range(len(timer.windows)))
    )
    assert_allclose(timer.seconds(together), [timer.seconds(w) for w in works], rtol=1e-12)


@pytest.mark.parametrize("seqs", [1, 4, 32, 200])
@pytest.mark.parametrize("query_len", [1, 5])
def test_decode_table_follows_the_formula(seqs, query_len):
    target = deployment()
    (kind,) = mixing_kinds(target, (None,))
    formula = seconds_of(decode_calls, kind)
    table = DecodeTable(formula)
    keys = np.random.default_rng(0).integers(seqs * query_len, seqs * 9000, 3000)
    errors = np.abs(table(seqs, query_len, keys) / formula(seqs, query_len, keys.astype(float)) - 1)
    assert errors.mean() < 5e-4
    assert errors.max() < 0.1, "only where the kernel gains a split within the cell"
    assert_array_equal(table(seqs, query_len, keys), [table(seqs, query_len, int(k)) for k in keys])


@given(st.integers(1, 40), st.integers(0, 60), st.one_of(st.none(), st.integers(1, 50)))
def test_causal_pairs_by_counting(new, cached, window):
    counted = sum(min(cached + i + 1, window or 10**9) for i in range(new))
    assert causal_pairs(new, cached, window) == counted


@given(st.integers(1, 8), st.integers(0, 60), st.one_of(st.none(), st.integers(1, 50)))
def test_keys_read_by_counting(query_len, before, window):
    context = before + query_len
    seen = {k for q in range(before, context) for k in range(max(0, q + 1 - (window or 10**9)), q + 1)}
    assert keys_read(context, query_len, window) == len(seen)


@pytest.mark.parametrize(
    ("model", "tensor_parallel", "weights_gb", "most"),
    [("llama-3.1-8b", 1, 16.06 - 1.05, 1.6), ("llama-3.1-70b", 4, (141.1 - 2.1) / 4, 1.6)],
)
def test_single_stream_decode_lies_just_above_the_bandwidth_bound(model, tensor_parallel, weights_gb, most):
    """One sequence reads all weights but the embedding table each step: little more than bytes over 3.35 TB/s."""
    timer = ModelTimer(StepTimer(deployment(model, tensor_parallel=tensor_parallel), 512))
    bound = weights_gb * 1e9 / 3.35e12
    seconds = timer.seconds(decode(1, 384))
    assert bound < seconds < most * bound


def test_weights_are_read_once_however_many_sequences_decode():
    timer = StepTimer(deployment(), 512)
    one, many = (timer.costs(arrays(decode(n, 500))) for n in (1, 32))
    assert_allclose(many.bytes - one.bytes, 31 * (500 * 131072 + 0), rtol=0.35)
    assert many.device_s < 1.5 * one.device_s


def test_longer_contexts_bigger_batches_and_verify_steps_cost_more():
    timer = ModelTimer(StepTimer(deployment(), 4096))
    base = timer.seconds(decode(16, 1000))
    assert timer.seconds(decode(16, 8000)) > 1.2 * base
    assert timer.seconds(decode(256, 1000)) > 1.2 * base
    verify = timer.seconds(decode(16, 1005, query_len=5))
    assert base < verify < 1.6 * base, "a verify step reads the weights once: dearer than one token, far from five"


def test_communication_appears_with_tensor_parallel_only():
    single = StepTimer(deployment(), 512).costs(arrays(decode(1, 500)))
    shared = StepTimer(deployment(tensor_parallel=4), 512).costs(arrays(decode(1, 500)))
    assert single.interconnect_s == 0
    assert 0.02 < (shared.interconnect_s / shared.device_s).item() < 0.5


class TestMemory:
    def test_llama_8b_on_h100_has_the_blocks_that_vllm_reports(self):
        """vLLM 0.11.0 reported 29,205 blocks for Llama-3.1-8B on one H100 (BLIS's table of measured block counts)."""
        assert abs(memory_plan(deployment()).num_blocks / 29_205 - 1) < 0.05

    def test_kv_bytes_by_hand(self):
        assert deployment().kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
        assert deployment("deepseek-v3", "h200-sxm", 8, "fp8").kv_bytes_per_token == 61 * (512 + 64) * 2
        assert deployment("llama-3.1-70b", tensor_parallel=8).kv_bytes_per_token == 80 * 2 * 1 * 128 * 2

    def test_kv_heads_are_replicated_when_there_are_fewer_than_chips(self):
        twice = deployment("qwen2.5-7b", tensor_parallel=4).kv_bytes_per_token
        assert twice == deployment("qwen2.5-7b", tensor_parallel=28).kv_bytes_per_token == 28 * 2 * 128 * 2

    def test_windows_keep_their_tokens_only(self):
        """gpt-oss alternates full attention and windows of 128: every further token takes half of the layers' KV."""
        target = deployment("gpt-oss-120b", "h200-sxm")
        assert target.cached_kv_bytes_per_token == target.kv_bytes_per_token / 2
        assert target.windowed_kv_bytes == ((128, target.kv_bytes_per_token / 2),)
        few, many = (memory_plan(target, max_num_seqs=seqs) for seqs in (1, 1024))
        assert few.num_blocks > many.num_blocks
        per_sequence = (128 + 16) * target.kv_bytes_per_token / 2
        assert few.num_blocks - many.num_blocks == pytest.approx(
            1023 * per_sequence / (16 * target.cached_kv_bytes_per_token), abs=1
        )


class TestDtypes:
    def test_one_name_sets_the_layers_and_leaves_the_head_wide(self):
        dtypes = resolve_weight_dtypes(load_architecture("llama-3.1-8b"), "int4")
        assert (dtypes["attention"], dtypes["mlp"], dtypes["lm_head"], dtypes["norm"]) == (
            "int4",
            "int4",
            "bf16",
            "bf16",
        )

    def test_parts_can_differ(self):
        arguments = {"default": "bfp8", "mlp": "bfp4"}
        dtypes = resolve_weight_dtypes(load_architecture("llama-3.1-8b"), arguments)
        assert (dtypes["attention"], dtypes["mlp"]) == ("bfp8", "bfp4")

    def test_default_is_the_checkpoint(self):
        dtypes = resolve_weight_dtypes(load_architecture("gpt-oss-20b"), None)
        assert (dtypes["expert"], dtypes["attention"]) == ("mxfp4", "bf16")

    @pytest.mark.parametrize("requested", ["fp7", {"mlps": "fp8"}, {"mlp": "fp7"}])
    def test_unknown_names_are_refused(self, requested):
        with pytest.raises(ForerunError, match="weights_dtype"):
            resolve_weight_dtypes(load_architecture("llama-3.1-8b"), requested)


def test_a_chip_without_a_link_cannot_be_sharded():
    with pytest.raises(ForerunError, match=r"hardware\.link"):
        replace(deployment(), link=None, tensor_parallel=2)


def test_equal_deployments_have_one_timer():
    """Replications and points of a study price their steps in the same tables."""
    scenario = plain_scenario("llama-3.2-1b")
    timers = [build_run(scenario.with_values(changed)).main.timer.target for changed in ({}, {"slo.p99_ttft_ms": 1.0})]
    assert timers[0] is timers[1]
    assert build_run(scenario.with_values({"weights_dtype": "fp8"})).main.timer.target is not timers[0]
    assert build_run(scenario, factors={"h100-sxm.kernels.launch_s": 2.0}).main.timer.target is not timers[0]


def test_timers_of_the_same_kernels_share_their_tables_to_the_bit():
    short = deployment()
    long = replace(short, framework=short.framework.model_copy(update={"eager_launch_s": 1e-3, "step_s": 1e-3}))
    first = step_timer(short, 700)
    works = [decode(seqs, 900) for seqs in (1, 300, 513, 690)]
    assert all(first.seconds(work) for work in works)
    second, single = step_timer(long, 2000), StepTimer(long, 2000)
    assert second.like is first
    for work in works:
        assert second.seconds(work) == single.seconds(work)


def test_timers_of_other_kernels_share_nothing():
    first = step_timer(deployment(), 700)
    other = deployment()
    other = replace(other, framework=other.framework.model_copy(update={"rank_skew_s": 1e-5}))
    assert first.like is None
    assert step_timer(other, 700).like is None


def test_switching_graphs_off_makes_small_decode_steps_wait_for_launches():
    """Llama-3.1-8B on an H100 with plain PyTorch: 8.4 ms a step reported, 5.1 in a graph; vLLM's take longer."""
    captured, eager = (ModelTimer(StepTimer(deployment(cuda_graphs=on), 4096)) for on in (True, False))
    one = decode(1, 500, windows=captured.windows)
    assert 0.0084 < eager.seconds(one) < 0.014
    assert eager.seconds(one) > 1.2 * captured.seconds(one)
