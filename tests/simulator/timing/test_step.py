"""Step times: hand-checked bounds, one price for one step by every route, shares that add up."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, load_chip, load_link
from simulator.llm import load_architecture
from simulator.running.build import build_run
from simulator.running.scenario import Scenario
from simulator.timing import (
    Deployment,
    ModelTimer,
    SequentialDrafter,
    StepTimer,
    StepWork,
    causal_pairs,
    keys_read,
    load_framework,
    plan_memory,
    resolve_weight_dtypes,
)
from simulator.timing.kernels import Costs, CostTable, decode_calls, mixing_kinds, seconds_of
from simulator.timing.step import DecodeTable, step_timer


def deployment(model="llama-3.1-8b", chip="h100-sxm", tensor_parallel=1, weights=None, framework="vllm", **changes):
    profile = load_chip(chip)
    architecture = load_architecture(model)
    return Deployment(
        architecture=architecture,
        chip=profile,
        kernels=KernelLibrary(profile, framework),
        link=load_link(profile.links.scale_up) if profile.links.scale_up else None,
        framework=load_framework(framework),
        tensor_parallel=tensor_parallel,
        weight_dtypes=resolve_weight_dtypes(architecture, weights),
        kv_dtype="bf16",
        **changes,
    )


def decode(seqs, context, windows=(None,), query_len=1):
    keys = tuple(seqs * keys_read(context, query_len, window) for window in windows)
    empty = tuple(0 for _ in windows)
    return StepWork(0, 0, empty, empty, 0, empty, seqs, query_len, keys)


def arrays(work):
    """One step as arrays of length one."""
    return StepWork(*(tuple(np.array([e]) for e in f) if isinstance(f, tuple) else np.array([f]) for f in work))


def chain_drafter(step, tokens):
    memory = step.deployment
    return SequentialDrafter(step, tokens, (1,) * (tokens - 1), memory.weight_bytes, memory.kv_bytes_per_token)


@st.composite
def steps(draw, windows):
    chunks = draw(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 3000)), max_size=3))
    seqs = draw(st.integers(0, 64))
    query_len = draw(st.integers(1, 6))
    contexts = [draw(st.integers(query_len, 5000))] * seqs
    return StepWork(
        len(chunks),
        sum(n for n, _ in chunks),
        tuple(sum(causal_pairs(n, c, w) for n, c in chunks) for w in windows),
        tuple(sum(keys_read(n + c, n, w) for n, c in chunks) for w in windows),
        len(chunks),
        tuple(sum(keys_read(n + c + 1, 1, w) for n, c in chunks) for w in windows),
        seqs,
        query_len,
        tuple(sum(keys_read(c, query_len, w) for c in contexts) for w in windows),
    )


TIMERS = {
    "dense": lambda: ModelTimer(StepTimer(deployment(), 4096)),
    "sharded": lambda: ModelTimer(StepTimer(deployment("llama-3.1-70b", tensor_parallel=4), 4096)),
    "windowed": lambda: ModelTimer(StepTimer(deployment("gpt-oss-20b"), 4096)),
    "latent": lambda: ModelTimer(StepTimer(deployment("deepseek-v2-lite"), 4096)),
    "drafted": lambda: ModelTimer(
        StepTimer(deployment(), 4096), chain_drafter(StepTimer(deployment("llama-3.2-1b"), 4096), 4)
    ),
    "eager": lambda: ModelTimer(StepTimer(deployment(cuda_graphs=False), 4096)),
}


@pytest.mark.parametrize("kind", TIMERS)
def test_one_step_costs_the_same_alone_and_among_many(kind):
    timer = TIMERS[kind]()

    @settings(max_examples=60, deadline=None)
    @given(steps(timer.windows))
    def check(work):
        costs = timer.costs(arrays(work))
        total = costs.device_s + costs.host_s
        assert_allclose(timer.seconds(work), total, rtol=1e-9)
        if not work.decode_seqs and timer.drafter is None:
            assert_allclose(timer.seconds(work), total, rtol=1e-9)
        assert all((getattr(costs, name) >= 0).all() for name in costs.__slots__)

    check()


@pytest.mark.parametrize("kind", TIMERS)
def test_a_run_of_decode_steps_equals_its_steps(kind):
    timer = TIMERS[kind]()
    contexts = np.arange(100, 400)
    works = [decode(7, int(c), timer.windows) for c in contexts]
    together = decode(7, 0, timer.windows)._replace(
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


def test_drafting_costs_k_passes_of_the_draft_model():
    draft = StepTimer(deployment("llama-3.2-1b"), 4096)
    target = StepTimer(deployment(), 4096)
    work = decode(1, 505, query_len=5)
    with_draft = ModelTimer(target, chain_drafter(draft, 4)).seconds(work)
    without = ModelTimer(target).seconds(work)
    one_pass = draft.seconds(decode(1, 505))
    assert_allclose(with_draft - without, 4 * one_pass, rtol=0.01)


def test_communication_appears_with_tensor_parallel_only():
    single = StepTimer(deployment(), 512).costs(arrays(decode(1, 500)))
    shared = StepTimer(deployment(tensor_parallel=4), 512).costs(arrays(decode(1, 500)))
    assert single.interconnect_s == 0
    assert 0.02 < (shared.interconnect_s / shared.device_s).item() < 0.5


def test_leaving_captured_graphs_costs_launches():
    captured = ModelTimer(StepTimer(deployment(), 512)).seconds(decode(1, 500))
    eager = ModelTimer(StepTimer(deployment(cuda_graphs=False), 512)).seconds(decode(1, 500))
    framework = load_framework("vllm")
    assert eager >= framework.kernels_per_layer * 32 * framework.eager_launch_s
    assert eager >= captured


def test_captured_sizes_are_padded_to():
    framework = load_framework("vllm")
    tokens = np.array([0, 1, 2, 3, 5, 8, 9, 17, 512, 513])
    assert framework.padded_tokens(tokens, True).tolist() == [0, 1, 2, 4, 8, 8, 16, 24, 512, 513]
    assert framework.padded_tokens(tokens, False).tolist() == tokens.tolist()


class TestMemory:
    def plan(self, target, draft=None, blocks=None, **changes):
        limits = {"gpu_memory_utilization": 0.9, "block_size": 16, "max_tokens": 8192, "max_sampled": 256} | changes
        return plan_memory(target, draft, num_kv_blocks=blocks, **limits)

    def test_llama_8b_on_h100_has_the_blocks_that_vllm_reports(self):
        """vLLM 0.11.0 reported 29,205 blocks for Llama-3.1-8B on one H100 (BLIS's table of measured block counts)."""
        assert abs(self.plan(deployment()).num_blocks / 29_205 - 1) < 0.05

    def test_kv_bytes_by_hand(self):
        assert deployment().kv_bytes_per_token == 32 * 2 * 8 * 128 * 2
        assert deployment("deepseek-v3", "h200-sxm", 8, "fp8").kv_bytes_per_token == 61 * (512 + 64) * 2
        assert deployment("llama-3.1-70b", tensor_parallel=8).kv_bytes_per_token == 80 * 2 * 1 * 128 * 2

    def test_kv_heads_are_replicated_when_there_are_fewer_than_chips(self):
        twice = deployment("qwen2.5-7b", tensor_parallel=4).kv_bytes_per_token
        assert twice == deployment("qwen2.5-7b", tensor_parallel=28).kv_bytes_per_token == 28 * 2 * 128 * 2

    def test_a_drafter_takes_weights_and_blocks(self):
        single = self.plan(deployment())
        drafted = self.plan(deployment(), deployment("llama-3.2-1b"))
        assert drafted.draft_weight_bytes == pytest.approx(2.47e9, rel=0.01)
        assert drafted.num_blocks < single.num_blocks * 0.82
        assert drafted.kv_bytes_per_token == single.kv_bytes_per_token + 16 * 2 * 8 * 64 * 2

    def test_windows_keep_their_tokens_only(self):
        """gpt-oss alternates full attention and windows of 128: every further token takes half of the layers' KV."""
        target = deployment("gpt-oss-120b", "h200-sxm")
        assert target.cached_kv_bytes_per_token == target.kv_bytes_per_token / 2
        assert target.windowed_kv_bytes == ((128, target.kv_bytes_per_token / 2),)
        few, many = (self.plan(target, max_num_seqs=seqs) for seqs in (1, 1024))
        assert few.num_blocks > many.num_blocks
        per_sequence = (128 + 16) * target.kv_bytes_per_token / 2
        assert few.num_blocks - many.num_blocks == pytest.approx(
            1023 * per_sequence / (16 * target.cached_kv_bytes_per_token), abs=1
        )

    @pytest.mark.parametrize("model", ["gpt-oss-20b", "gemma-3-27b"])
    def test_windows_never_cost_blocks(self, model):
        target = deployment(model, "h200-sxm")
        plan = self.plan(target, max_num_seqs=4096, max_tokens=1)
        left = 0.9 * plan.capacity_bytes - plan.weight_bytes - plan.activation_bytes
        all_layers = left // (target.kv_bytes_per_token * 16)
        assert plan.num_blocks >= 0.97 * all_layers

    def test_models_without_windows_or_with_nothing_else_pay_for_all(self):
        dense = deployment()
        assert dense.cached_kv_bytes_per_token == dense.kv_bytes_per_token
        assert dense.windowed_kv_bytes == ()

    def test_weights_divide_over_chips(self):
        assert math.isclose(deployment(tensor_parallel=4).weight_bytes * 4, deployment().weight_bytes, rel_tol=1e-3)

    def test_a_measured_block_count_overrides(self):
        plan = self.plan(deployment(), blocks=12_345)
        assert (plan.num_blocks, plan.overridden) == (12_345, True)

    def test_too_large_a_model_is_refused_with_the_sum(self):
        with pytest.raises(ForerunError, match=r"llama-3.1-70b does not fit 1 x h100-sxm: per chip 141.1 GB weights"):
            self.plan(deployment("llama-3.1-70b"))


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


def test_heads_must_divide_over_chips():
    with pytest.raises(
        ForerunError, match=r"32 heads of llama-3.1-8b do not divide by 3 \(one of 1, 2, 4, 8, 16, 32\)"
    ):
        deployment(tensor_parallel=3)


def test_a_chip_without_a_link_cannot_be_sharded():
    with pytest.raises(ForerunError, match=r"hardware\.link"):
        replace(deployment(), link=None, tensor_parallel=2)


def test_unknown_framework_is_refused_with_a_hint():
    with pytest.raises(ForerunError, match="did you mean 'vllm'"):
        load_framework("vlm")


def test_equal_deployments_have_one_timer():
    """Replications and points of a study price their steps in the same tables."""
    scenario = Scenario.model_validate(
        {
            "model": "llama-3.2-1b",
            "hardware": {"chip": "h100-sxm"},
            "workload": {
                "arrivals": {"process": "poisson", "request_rate": 1.0},
                "input_tokens": 8,
                "output_tokens": 8,
                "num_requests": 1,
            },
        }
    )
    timers = [build_run(scenario.with_values(changed)).main.timer.target for changed in ({}, {"slo.p99_ttft_ms": 1.0})]
    assert timers[0] is timers[1]
    assert build_run(scenario.with_values({"weights_dtype": "fp8"})).main.timer.target is not timers[0]
    assert build_run(scenario, factors={"h100-sxm.kernels.launch_s": 2.0}).main.timer.target is not timers[0]


def test_blocks_of_a_table_are_as_long_as_what_lies_before_them():
    requested = []

    def price(counts):
        requested.append((int(counts[0]), int(counts[-1])))
        costs = Costs.zeros(len(counts))
        costs.memory_s += counts
        return costs

    table = CostTable(price, 3000)
    assert [table.seconds(count) for count in (5, 300, 2500)] == [5.0, 300.0, 2500.0]
    assert list(table.rows(np.array([2047, 700, 300])).memory_s) == [2047.0, 700.0, 300.0]
    assert requested == [(0, 255), (256, 511), (2048, 3000), (512, 1023), (1024, 2047)]


def test_timers_of_the_same_kernels_share_their_tables_to_the_bit(monkeypatch):
    short = deployment()
    framework = short.framework.model_copy(update={"eager_launch_s": 1e-3, "step_s": 1e-3})
    long = replace(short, framework=framework)
    first = step_timer(short, 700)
    counts = np.arange(701)
    first._layers[1].rows(counts)
    first._attention_prices()
    second = step_timer(long, 2000)
    requested = []
    monkeypatch.setattr(
        second._layers[1], "price", lambda counts: requested.append(counts) or second._layer_costs(1)(counts)
    )
    result = second._layers[1].rows(counts)
    single = StepTimer(long, 2000)._layers[1].rows(counts)
    assert [len(counts) for counts in requested] == [512]  # the block that 700 cuts short; not the two before
    for name in Costs.__slots__:
        assert_array_equal(getattr(result, name), getattr(single, name))
    assert second._floor_s > first._floor_s
    assert second._attention_prices()[0].decode is first._attention_prices()[0].decode


def test_timers_of_other_kernels_share_nothing():
    first = step_timer(deployment(), 700)
    other = deployment()
    other = replace(other, framework=other.framework.model_copy(update={"rank_skew_s": 1e-5}))
    assert first.like is None
    assert step_timer(other, 700).like is None
