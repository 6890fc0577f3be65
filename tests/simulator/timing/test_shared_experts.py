"""Attention groups that share experts, and layers priced one by one: work is conserved, however it is spread."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from timing_steps import arrays, decode, deployment, mixed

from hwprofiles.kernels.moe import read_routing
from simulator.timing import StepTimer, StepWork, load_framework
from simulator.timing.kernels import (
    exchange_bytes,
    expert_call,
    layer_calls,
    layer_elementwise,
    price,
    shared_expert_calls,
)
from simulator.timing.work import slowest_group

MODEL = "qwen3-30b-a3b"


def exchange_seconds(one, mlp, tokens):
    calls = [call for call in shared_expert_calls(one, mlp, tokens) if call.op == "collective"]
    assert [call.name for call in calls] == ["expert dispatch", "expert combine"]
    return sum(price(call, one.kernels).seconds for call in calls)


def expert_kernel(one, mlp, tokens):
    return price(expert_call(one, mlp, tokens), one.kernels)


def spread(groups, tensor_parallel=1, expert_parallel=None, model=MODEL, **changes):
    """Attention in ``groups`` groups, experts whole over all chips by default; no graphs, no padding."""
    chips = groups * tensor_parallel
    return deployment(
        model,
        "h200-sxm",
        tensor_parallel,
        attention_data_parallel=groups,
        expert_parallel=expert_parallel or chips,
        **{"cuda_graphs": False} | changes,
    )


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("seqs", [4, 8, 9, 13])
def test_work_of_all_chips_together_is_that_of_one(groups, seqs):
    """Costs hold the work of the mean chip: times the chips it is what a single chip does for the whole batch."""
    one, many = (StepTimer(spread(n), 512) for n in (1, groups))
    work = arrays(decode(seqs, 700))
    whole, part = one.costs(work), many.costs(work)
    assert groups * part.flops == pytest.approx(whole.flops, rel=1e-6)


def test_rows_of_logits_are_dealt_out_too():
    """Four groups: five to eight rows are two for the slowest group, four rows are one."""
    timer = StepTimer(replace(spread(4), framework=load_framework("reference")), 512)
    work = decode(8, 700)
    four, five, eight, nine = (timer.seconds(work, rows) for rows in (4, 5, 8, 9))
    assert four < five == eight < nine
    priced = [timer.costs(arrays(work), np.array([rows])).device_s.item() for rows in (4, 5, 8, 9)]
    assert_allclose(priced, (four, five, eight, nine), rtol=0.02)
    assert priced[1] == priced[2]


class TestExchange:
    def test_tokens_reach_every_chip_that_holds_one_of_their_experts(self):
        """Eight of 128 experts picked at random reach 8 (1 - (7/8)^8) = 5.25 of eight chips; sent in fp8 or bf16."""
        one = spread(8)
        mlp = one.architecture.layer_groups[0].layer.feed_forward
        balanced = replace(one, expert_routing="balanced")
        there, back = exchange_bytes(balanced, mlp, np.array([0, 800, 8000]))
        reached = 8 * (1 - (7 / 8) ** mlp.experts_per_token)
        assert_allclose(there, np.array([0, 100, 1000]) * reached * 2048 * 2)
        assert_allclose(back, there)
        narrow = replace(balanced, weight_dtypes={**one.weight_dtypes, "expert": "fp8"})
        assert_allclose(exchange_bytes(narrow, mlp, np.array([800]))[0], 100 * reached * 2048)
        assert_allclose(exchange_bytes(narrow, mlp, np.array([800]))[1], 100 * reached * 2048 * 2)
        popular = replace(one, expert_routing="power-law-1.2")
        assert (exchange_bytes(popular, mlp, np.array([800]))[0] > there[1]).all()

    def test_whole_experts_take_an_all_to_all_each_way_split_ones_a_gather_and_a_scatter(self):
        tokens = np.array([0, 64])
        whole, split = spread(4, expert_parallel=4), spread(4, expert_parallel=1)
        mlp = whole.architecture.layer_groups[0].layer.feed_forward
        there, back = exchange_bytes(whole, mlp, tokens)
        due = sum(whole.kernels.collective("all_to_all", b, 4, whole.link).seconds for b in (there, back))
        assert_allclose(exchange_seconds(whole, mlp, tokens), [0, due[1]])
        message = tokens * 2048 * 2.0
        due = split.kernels.collective("all_gather", message, 4, split.link).seconds
        due = due + split.kernels.collective("reduce_scatter", message, 4, split.link).seconds
        assert_allclose(exchange_seconds(split, mlp, tokens), [0, due[1]])

    def test_the_slowest_chip_takes_longer_for_the_same_work(self):
        even, uneven = (replace(spread(4), expert_routing=name) for name in ("balanced", "power-law-1.2"))
        mlp = even.architecture.layer_groups[0].layer.feed_forward
        tokens = np.array([0, 1, 512])
        times = [expert_kernel(one, mlp, tokens) for one in (even, uneven)]
        assert_allclose(times[0].flops, times[1].flops)
        assert times[1].seconds[2] > times[0].seconds[2]
        per_token = 2 * 3 * 2048 * mlp.intermediate_size * mlp.experts_per_token
        assert_allclose(times[1].flops, per_token * tokens / 4)
        assert read_routing("balanced") != read_routing("power-law-1.2")


@given(st.integers(0, 50), st.integers(0, 9), st.integers(1, 8), st.integers(1, 900))
def test_the_slowest_group_of_equal_sequences_has_its_whole_share(seqs, prompts, groups, context):
    """Sequences are dealt out whole; a group's keys, tokens and pairs are those of its own sequences."""
    work = mixed(seqs, context, prompts, 7)
    seen = slowest_group(work, groups)
    decoding, prefilling = -(-seqs // groups), -(-prompts // groups)
    assert seen._replace(dp_imbalance=0.0) == mixed(decoding, context, prefilling, 7)
    assert seen.all_group_tokens == work.tokens
    as_arrays = slowest_group(arrays(work), groups)
    for name in StepWork._fields:
        assert np.asarray(getattr(as_arrays, name)).ravel().tolist() == np.asarray(getattr(seen, name)).ravel().tolist()


class TestLayersByHand:
    """Kernels beside attention, by their work: 2 FLOP per weight and token, collectives of the residual stream."""

    @pytest.mark.parametrize("tensor_parallel", [1, 2, 4])
    def test_dense_layers(self, tensor_parallel):
        one = deployment("llama-3.1-8b", tensor_parallel=tensor_parallel, cuda_graphs=False)
        timer = StepTimer(one, 64)
        tokens = np.array([0, 1, 32, 64])
        cost = timer.layer_costs(one.architecture.layer_groups[0].layer, tokens)
        weights = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
        assert_allclose(cost.flops, 2 * weights * tokens / tensor_parallel)
        ring = one.kernels.collective("all_reduce", tokens * 4096 * 2.0, tensor_parallel, one.link).seconds
        due = 2 * np.where(tokens > 0, ring, 0.0) if tensor_parallel > 1 else np.zeros(4)
        assert_allclose(cost.interconnect_s, due)
        rotated = (32 + 8) * 128 / tensor_parallel
        cached = 2 * 8 * 128 / tensor_parallel
        elementwise = tokens * 2 * (8 * 4096 + 2 * rotated + 2 * cached + 3 * 14336 / tensor_parallel)
        streamed = sum(
            one.kernels.gemm(tokens, g.n, g.k, g.dtype).bytes for g in one.gemms(one.architecture.layer_groups[0].layer)
        )
        assert_allclose(cost.bytes, streamed + elementwise)

    def test_an_activation_without_a_gate_is_read_and_written(self):
        """Two passes over 16384 values of OPT-6.7B where a gated one takes three."""
        one = deployment("opt-6.7b", cuda_graphs=False)
        layer, tokens = one.architecture.layer_groups[0].layer, np.array([0, 8])
        cost = StepTimer(one, 8).layer_costs(layer, tokens)
        streamed = sum(one.kernels.gemm(tokens, g.n, g.k, g.dtype).bytes for g in one.gemms(layer))
        rotated = cached = (32 + 32) * 128
        assert_allclose(cost.bytes, streamed + tokens * 2 * (8 * 4096 + 2 * rotated + 2 * cached + 2 * 16384))

    @pytest.mark.parametrize(
        ("model", "framework", "due"),
        [
            ("llama-3.1-8b", "generic", 4),  # two norms, rotary embedding, activation
            ("llama-3.1-8b", "vllm", 5),  # and the KV write that its measured attention leaves out
            ("llama-3.1-8b", "sglang", 4),
            ("llama-3.1-8b", "trtllm", 3),  # measured with rotary embedding and write
            ("qwen3-8b", "generic", 5),
            ("qwen3-8b", "vllm", 7),  # queries and keys are normed in a kernel each
            ("qwen3-8b", "sglang", 5),  # on two streams at once
            ("qwen3-8b", "trtllm", 4),  # norms and rotary embedding in one
            ("gemma-3-27b", "sglang", 5),
            ("qwen3-30b-a3b", "sglang", 5),  # no activation beside the experts, but the choice of them
            ("qwen3-30b-a3b", "trtllm", 3),  # which TensorRT-LLM's measured experts hold
            ("deepseek-v3", "vllm", 7),  # dense layer: norms of both latents
            ("deepseek-v3", "trtllm", 4),
        ],
    )
    def test_launches_are_counted(self, model, framework, due):
        """The passes of a layer that no measured kernel of the engine's library holds."""
        one = deployment(model, framework=framework, cuda_graphs=False)
        forwards = layer_elementwise(one, one.architecture.layer_groups[0].layer, one.architecture.hidden_size)
        assert sum(launches for _, _, launches in forwards) == due
        assert all(elements > 0 and launches > 0 for _, elements, launches in forwards)

    def test_an_engine_s_own_passes_are_those_of_gpus(self):
        """Fits of other chips stand on layers without them."""
        for chip, due in (("h100-sxm", 5), ("l40s", 5), ("n150", 4), ("cpu", 4)):
            one = deployment("llama-3.1-8b", chip, framework="vllm", cuda_graphs=False)
            forwards = layer_elementwise(one, one.architecture.layer_groups[0].layer, 4096)
            assert sum(launches for _, _, launches in forwards) == due

    def test_shared_experts_are_added(self):
        """GLM-4.5-Air: the sum of shared and routed experts, and the activation of the shared."""
        one = deployment("glm-4.5-air", framework="sglang", cuda_graphs=False)
        layer = one.architecture.layer_groups[-1].layer
        names = [name for name, _, _ in layer_elementwise(one, layer, one.architecture.hidden_size)]
        assert names[-3:] == ["expert choice", "shared sum", "shared_experts.activation"]

    def test_a_measured_kernel_that_writes_the_cache_is_not_followed_by_a_write(self):
        """A100's attention under vLLM was measured with the write (v0.14), H100's without it."""
        for chip, written in (("a100-sxm-80gb", False), ("a100-pcie-80gb", False), ("h100-sxm", True)):
            one = deployment("llama-3.1-8b", chip, framework="vllm", cuda_graphs=False)
            names = [name for name, _, _ in layer_elementwise(one, one.architecture.layer_groups[0].layer, 4096)]
            assert ("KV write" in names) == written

    def test_norms_are_part_of_reductions_where_the_engine_has_them_so(self):
        """TensorRT-LLM's all-reduce takes the norm behind it: no launch, where there is an all-reduce."""
        for framework, tp, due in (("trtllm", 1, 2), ("trtllm", 4, 0), ("vllm", 4, 2)):
            one = deployment("llama-3.1-70b", framework=framework, tensor_parallel=tp, weights="fp8")
            forwards = layer_elementwise(one, one.architecture.layer_groups[0].layer, 8192)
            assert forwards[0][2] == due

    @pytest.mark.parametrize(("framework", "most"), [("vllm", 256), ("sglang", 512), ("trtllm", 2048), ("generic", 0)])
    def test_shared_experts_run_beside_the_routed(self, framework, most):
        """In captured graphs up to the engine's threshold they add the least that their work takes, else their time."""
        one = deployment("deepseek-v3", "h200-sxm", framework=framework, tensor_parallel=8)
        layer, tokens = one.architecture.layer_groups[-1].layer, np.array([8, max(1, most), most + 8])
        for call in layer_calls(one, layer, tokens):
            kernel = price(call, one.kernels)
            exposed = np.broadcast_to(kernel.exposed, tokens.shape)
            if call.name.startswith("shared_experts."):
                least = kernel.sol_s / kernel.seconds
                assert_allclose(exposed, np.where(tokens <= most, least, 1.0))
                assert np.all(least < 0.6)
            else:
                assert_allclose(exposed, 1.0)

    def test_without_captured_graphs_shared_experts_come_after_the_routed(self):
        """Their stream exists in captured graphs alone."""
        one = deployment("deepseek-v3", "h200-sxm", framework="vllm", tensor_parallel=8, cuda_graphs=False)
        assert one.shared_overlap_tokens == 0

    def test_the_head(self):
        """LM head over the vocabulary, a norm, three passes over fp32 logits, and their gathering."""
        for tp in (1, 4):
            timer = StepTimer(deployment("llama-3.1-70b", tensor_parallel=tp, weights="fp8"), 64)
            head = timer._head.rows(np.arange(65))
            tokens = np.arange(65)
            assert_allclose(head.flops, 2 * 8192 * -(-128_256 // tp) * tokens)
            one = timer.deployment
            product = one.kernels.gemm(tokens, -(-128_256 // tp), 8192, "bf16").bytes
            assert_allclose(head.bytes, product + tokens * (4 * 8192 * 2 + 3 * 128_256 * 4))
            gathered = one.kernels.collective("all_gather", tokens * 128_256 * 2.0, tp, one.link).seconds
            assert_allclose(head.interconnect_s, np.where(tokens > 0, gathered, 0.0) if tp > 1 else 0 * tokens)


class TestWideExpertParallelism:
    def test_places_that_are_left_hold_second_copies(self):
        """DeepSeek-V3's 256 experts on 144 chips: two places each, 288 in all (DeepSeek's decode deployment)."""
        wide = spread(144, model="deepseek-v3")
        assert wide.expert_slots(256) == 288
        assert spread(128, model="deepseek-v3").expert_slots(256) == 256
        assert wide.layer_weight_bytes == pytest.approx(spread(128, model="deepseek-v3").layer_weight_bytes)

    @pytest.mark.parametrize("framework", ["vllm", "sglang"])
    def test_a_chip_does_no_more_when_all_get_more_chips(self, framework):
        """88 sequences a chip at 5,000 tokens: the exchange brings a chip the tokens of its own experts alone, and each
        group has its own host work, so that a step takes no longer over 144 chips than over 32."""
        seconds = []
        for groups in (32, 144):
            one = spread(groups, model="deepseek-v3", framework=framework, weights="fp8")
            timer = StepTimer(one, 2048)
            seconds.append(timer.seconds(decode(88 * groups, 5000)))
        assert 0.8 * seconds[0] < seconds[1] < 1.05 * seconds[0]
