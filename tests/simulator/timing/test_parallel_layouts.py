"""Models spread over chips: bytes add up, one chip is the plain model, exchanges have their closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from timing_steps import arrays, decode, deployment, memory_plan, mixed

from simulator.timing import StepTimer

MOES = ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b")


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
    share = experts * {"gpt-oss-20b": 0.53125 * 3072 / 2880}.get(model, 2.0)  # MXFP4, in tiles of 256
    assert grouped.weight_bytes == pytest.approx(one.weight_bytes - share * 7 / 8)


def test_attention_groups_have_a_cache_each():
    """Eight groups of one chip hold eight times the tokens of MLA, whose latent TP cannot split."""
    tp = deployment("deepseek-v3", "h200-sxm", tensor_parallel=8)
    dp = replace(tp, tensor_parallel=1, attention_data_parallel=8, expert_parallel=8)
    assert memory_plan(tp).kv_bytes_per_token == memory_plan(dp).kv_bytes_per_token
    assert memory_plan(dp).replica_kv_bytes_per_token * 8 == memory_plan(tp).replica_kv_bytes_per_token
    assert memory_plan(dp).num_blocks > 4 * memory_plan(tp).num_blocks


def test_the_stage_with_the_fewest_blocks_decides():
    one = deployment("llama-3.1-8b", "l4")
    stages = [memory_plan(stage) for stage in one.stages(3)]
    both = memory_plan(one, pipeline_parallel=3)
    assert both.num_blocks == min(plan.num_blocks for plan in stages)
    assert both.replica_kv_bytes_per_token == pytest.approx(one.kv_bytes_per_token)
    assert max(plan.num_blocks for plan in stages) > both.num_blocks


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
