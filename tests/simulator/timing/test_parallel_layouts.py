"""Models spread over chips: bytes add up, one chip is the plain model, exchanges have their closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from test_step import arrays, decode, deployment

from forerun.errors import ForerunError
from hwprofiles import load_link
from simulator.llm.layers import MoeMlp
from simulator.timing import ModelTimer, PipelineTimer, StepTimer, StepWork, causal_pairs, plan_memory, stage_timers
from simulator.timing.engine import send_kernel
from simulator.timing.kernels import exchange_bytes
from simulator.timing.work import slowest_group

MOES = ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")


def mixed(seqs, context, prompts, tokens, windows=(None,)):
    """Equal prompts beside an equal decoding batch."""
    work = decode(seqs, context, windows)
    return work._replace(
        prefill_seqs=prompts,
        prefill_tokens=prompts * tokens,
        prefill_pairs=tuple(prompts * causal_pairs(tokens, 0, w) for w in windows),
        prefill_kv_tokens=tuple(prompts * (tokens if w is None else min(tokens, w + tokens - 1)) for w in windows),
        sampled_prefills=prompts,
        sampled_kv_tokens=tuple(prompts * (tokens + 1) for _ in windows),
    )


def memory(one, stages=1, blocks=None):
    return plan_memory(
        one,
        None,
        gpu_memory_utilization=0.9,
        block_size=16,
        max_tokens=2048,
        max_sampled=64,
        num_kv_blocks=blocks,
        pipeline_parallel=stages,
    )


@pytest.mark.parametrize(
    ("model", "sizes"), [("deepseek-v3", [15, 15, 16, 15]), ("llama-3.1-70b", [27, 27, 26]), ("gpt-oss-20b", [12, 12])]
)
def test_layers_go_to_stages_as_vllm_deals_them(model, sizes):
    """``get_pp_indices``: what does not divide goes to the stages before the last, from the back."""
    stages = len(sizes)
    assert [s.architecture.num_layers for s in deployment(model).stages(stages)] == sizes


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "llama-3.2-1b"])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_stages_hold_the_model_once(model, stages):
    """Layers, KV and tables of all stages are those of the model; a tied table lies on the first and on the last."""
    whole = deployment(model, tensor_parallel=2)
    parts = whole.stages(stages)
    assert sum(p.layer_weight_bytes for p in parts) == pytest.approx(whole.layer_weight_bytes)
    assert sum(p.kv_bytes_per_token for p in parts) == pytest.approx(whole.kv_bytes_per_token)
    table = whole.architecture.vocab_size * whole.architecture.hidden_size / 2 * 2
    twice = table if whole.architecture.tie_word_embeddings else 0.0
    assert sum(p.weight_bytes for p in parts) == pytest.approx(whole.weight_bytes + twice)


def test_a_stage_keeps_the_order_of_windowed_layers():
    """gpt-oss alternates 128-token and full attention: half of every stage's layers are windowed."""
    for stage in deployment("gpt-oss-20b").stages(4):
        counts = {g.layer.attention.window: g.count for g in stage.architecture.layer_groups}
        assert counts == {128: 3, None: 3}


@pytest.mark.parametrize("model", MOES)
def test_experts_divide_over_all_chips_however_they_are_spread(model):
    """EP, TP inside an expert or both: a chip of eight holds an eighth of the experts' bytes."""
    plain = deployment(model, tensor_parallel=8)
    for ep in (1, 2, 4, 8):
        assert replace(plain, expert_parallel=ep).weight_bytes == pytest.approx(plain.weight_bytes)
    grouped = replace(plain, tensor_parallel=1, attention_data_parallel=8, expert_parallel=8)
    one = deployment(model)
    experts = sum(
        g.count * t.elements
        for g in one.architecture.layer_groups
        for t in g.layer.tensors(one.architecture.hidden_size)
        if t.part == "expert"
    )
    share = experts * {"gpt-oss-20b": 0.53125}.get(model, 2.0)
    assert grouped.weight_bytes == pytest.approx(one.weight_bytes - share * 7 / 8)


def test_attention_groups_have_a_cache_each():
    """Eight groups of one chip hold eight times the tokens of MLA, whose latent TP cannot split."""
    tp = deployment("deepseek-v3", "h200-sxm", tensor_parallel=8)
    dp = replace(tp, tensor_parallel=1, attention_data_parallel=8, expert_parallel=8)
    assert memory(tp).kv_bytes_per_token == memory(dp).kv_bytes_per_token
    assert memory(dp).replica_kv_bytes_per_token * 8 == memory(tp).replica_kv_bytes_per_token
    assert memory(dp).num_blocks > 4 * memory(tp).num_blocks


def test_the_stage_with_the_fewest_blocks_decides():
    one = deployment("llama-3.1-8b", "l4")
    stages = [memory(stage) for stage in one.stages(3)]
    both = memory(one, 3)
    assert both.num_blocks == min(plan.num_blocks for plan in stages)
    assert both.replica_kv_bytes_per_token == pytest.approx(one.kv_bytes_per_token)
    assert max(plan.num_blocks for plan in stages) > both.num_blocks


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("mixtral-8x7b", {"tensor_parallel": 8, "expert_parallel": 3}, "does not divide the 8 chips"),
        ("mixtral-8x7b", {"tensor_parallel": 16, "expert_parallel": 16}, "mixtral-8x7b has 8 experts, fewer than 16"),
        ("mixtral-8x7b", {"expert_routing": "zipf"}, "hardware.expert_routing: no routing 'zipf'"),
    ],
)
def test_what_does_not_divide_is_refused(model, changes, message):
    with pytest.raises(ForerunError, match=message):
        deployment(model, **changes)


def test_more_stages_than_layers_is_refused():
    with pytest.raises(ForerunError, match="has 32 layers, not enough for 33"):
        deployment().stages(33)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_one_stage_is_the_plain_model(model):
    one = deployment(model)
    plain, piped = ModelTimer(StepTimer(one, 512)), PipelineTimer(*stage_timers(one, 1, 512))
    work = mixed(7, 900, 2, 100, plain.windows)
    assert piped.seconds(work) == pytest.approx(plain.seconds(work), rel=1e-12)
    assert sum(piped.stage_seconds(work)) + piped.host_seconds(work) == pytest.approx(plain.seconds(work), rel=1e-9)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3"])
@pytest.mark.parametrize("stages", [2, 5])
def test_a_pass_is_the_model_and_its_sends(model, stages):
    """A batch alone: every layer once, and an output of two hidden states per token sent ``stages - 1`` times."""
    one = deployment(model, tensor_parallel=2)
    link = load_link("nvlink4")
    plain = ModelTimer(StepTimer(one, 512))
    first, *later = stage_timers(one, stages, 512)
    piped = PipelineTimer(first, later=tuple(later), link=link)
    work = mixed(7, 900, 2, 100, plain.windows)
    sent = float(send_kernel(one, link, np.array([207])).seconds[0])
    assert piped.seconds(work) == pytest.approx(plain.seconds(work) + (stages - 1) * sent, rel=1e-9)
    assert sum(piped.stage_seconds(work)) + piped.host_seconds(work) == pytest.approx(piped.seconds(work), rel=1e-9)
    costs, whole = piped.costs(arrays(work)), plain.costs(arrays(work))
    assert_allclose(costs.flops, whole.flops)
    assert_allclose(costs.bytes, whole.bytes)
    message = 2 * 207 * one.architecture.hidden_size * 2 / 2
    assert sent >= message / link.bandwidth_bytes_per_s


@pytest.mark.parametrize("model", MOES)
def test_every_token_reaches_its_experts_and_comes_back(model):
    """With k experts on R chips a token is sent to R (1 - (1 - 1/R)^k) of them, 2 bytes per element each way."""
    one = deployment(model, attention_data_parallel=4, expert_parallel=4, expert_routing="balanced", weights="bf16")
    mlp = one.architecture.layer_groups[0].layer.feed_forward
    assert isinstance(mlp, MoeMlp)
    there, back = exchange_bytes(one, mlp, np.array([0, 4096]))
    copies = 4 * (1 - 0.75**mlp.experts_per_token)
    assert there[1] == pytest.approx(4096 / 4 * copies * one.architecture.hidden_size * 2)
    assert (there[0], back[1]) == (0.0, there[1])
    narrow = replace(one, weight_dtypes={**one.weight_dtypes, "expert": "fp8"})
    assert exchange_bytes(narrow, mlp, np.array([4096]))[0][0] == pytest.approx(there[1] / 2)


def test_uneven_routing_is_slower():
    """The chip with the most wanted experts sets the pace of kernels and exchange."""
    work = mixed(64, 500, 2, 900)
    seconds = []
    for routing in ("balanced", "uniform", "power-law-1.01", "power-law-1.2"):
        one = deployment(
            "qwen3-30b-a3b", attention_data_parallel=8, expert_parallel=8, expert_routing=routing, weights="bf16"
        )
        seconds.append(StepTimer(one, 2048).seconds(work))
    assert seconds[0] < seconds[1] < seconds[2] < seconds[3]


def test_a_single_prompt_keeps_one_group_busy():
    work = slowest_group(mixed(64, 500, 1, 900), 8)
    assert (work.prefill_tokens, work.prefill_pairs, work.decode_seqs) == (900, (900 * 901 // 2,), 8)
    assert work.decode_kv_tokens == (8 * 500,)
    spread = slowest_group(mixed(0, 1, 8, 900), 8)
    assert (spread.prefill_seqs, spread.prefill_tokens) == (1, 900)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(1, 4000), st.integers(0, 9), st.integers(1, 300), st.integers(1, 9))
def test_the_slowest_group_has_its_share(seqs, context, prompts, tokens, groups):
    work = mixed(seqs, context, prompts, tokens)
    seen = slowest_group(work, groups)
    for name in ("prefill_seqs", "prefill_tokens", "decode_seqs", "sampled_prefills"):
        whole, part = getattr(work, name), getattr(seen, name)
        assert whole <= part * groups
        assert part <= whole
    many = slowest_group(arrays(work), groups)
    assert [int(np.ravel(field)[0]) for field in many] == [int(np.ravel(field)[0]) for field in seen]


LAYOUTS = st.sampled_from([(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 1, 2), (1, 4, 4), (2, 2, 4), (1, 4, 1), (2, 4, 8)])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(MOES),
    LAYOUTS,
    st.sampled_from(["balanced", "uniform", "power-law-1.2"]),
    st.integers(1, 64),
    st.integers(1, 4000),
    st.integers(0, 4),
)
def test_no_layout_is_faster_than_light(model, layout, routing, seqs, context, prompts):
    """However it is spread, a chip does not move or multiply its share faster than the datasheet says."""
    tp, dp, ep = layout
    one = deployment(
        model,
        tensor_parallel=tp,
        attention_data_parallel=dp,
        expert_parallel=ep,
        expert_routing=routing,
        weights="bf16",
    )
    timer = StepTimer(one, 512)
    work = mixed(seqs, context, prompts, 100, timer.windows)
    costs = timer.costs(arrays(work))
    single = timer.seconds(work)
    assert single == pytest.approx(float(costs.device_s[0] + costs.host_s[0]), rel=0.02)
    assert single >= costs.bytes[0] / one.chip.memory.bandwidth_bytes_per_s
    assert single >= costs.flops[0] / one.chip.peak_flops("bf16")


def test_spans_and_single_steps_agree_with_groups():
    """A run of decode steps priced together equals the steps one by one."""
    one = deployment("qwen3-30b-a3b", attention_data_parallel=4, expert_parallel=4)
    timer = StepTimer(one, 512)
    keys = np.arange(9000, 9000 + 50 * 37, 37)
    work = StepWork(0, 0, (0,), (0,), 0, (0,), 37, 1, (keys,))
    disaggregated = [timer.seconds(work._replace(decode_kv_tokens=(int(k),))) for k in keys]
    assert_allclose(timer.seconds(work), disaggregated, rtol=1e-12)


def test_wide_expert_parallelism_gives_what_deepseek_published_and_as_much_on_every_node():
    """Decoding of DeepSeek-V3 on 18 nodes of H800, EP 144: 14,800 tokens/s a node at 20 to 22 tokens/s a user and
    4,989 tokens of KV in the mean (deepseek-ai/open-infra-index, day 6), so 88 sequences a chip. Prompts run on other
    chips, and two halves of a batch hide most of what the network takes, for which the exchange is that of chips on one
    switch."""
    per_node = {}
    for chips in (32, 72, 144):
        one = deployment("deepseek-v3", framework="sglang", attention_data_parallel=chips, expert_parallel=chips)
        costs = StepTimer(one, 1024).costs(arrays(decode(88 * chips, 4989)))
        per_node[chips] = 8 * 88 / float((costs.device_s + costs.host_s)[0])
    assert per_node[144] == pytest.approx(14_800, rel=0.2)
    assert max(per_node.values()) < 1.05 * min(per_node.values())
