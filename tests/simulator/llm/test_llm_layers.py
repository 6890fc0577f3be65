"""Layers by hand: shapes, KV elements, split labels, active experts."""

import pickle
from collections import Counter
from dataclasses import replace

import pytest

from forerun.errors import ForerunError
from simulator.llm import Attention, Layer, MoeMlp, load_architecture


def shapes(layer, hidden):
    return {tensor.name: (tensor.out_features, tensor.in_features, tensor.split) for tensor in layer.tensors(hidden)}


def test_grouped_query_layer_by_hand():
    layer = load_architecture("llama-3.1-8b").layer_groups[0].layer
    assert shapes(layer, 4096) == {
        "qkv_proj": ((32 + 2 * 8) * 128, 4096, "column"),
        "o_proj": (4096, 32 * 128, "row"),
        "gate_up_proj": (2 * 14336, 4096, "column"),
        "down_proj": (4096, 14336, "row"),
    }
    assert layer.attention.kv_elements_per_token == 2 * 8 * 128


def test_latent_attention_layer_by_hand():
    """DeepSeek-V3, arXiv:2412.19437, section 4.2: 128 heads, ranks 1536 and 512, head widths 128 + 64."""
    architecture = load_architecture("deepseek-v3")
    dense, moe = (group.layer for group in architecture.layer_groups)
    assert [group.count for group in architecture.layer_groups] == [3, 58]
    assert shapes(dense, 7168) == {
        "qkv_a_proj": (1536 + 512 + 64, 7168, "replicated"),
        "q_b_proj": (128 * 192, 1536, "column"),
        "kv_b_proj": (128 * (128 + 128), 512, "column"),
        "o_proj": (7168, 128 * 128, "row"),
        "gate_up_proj": (2 * 18432, 7168, "column"),
        "down_proj": (7168, 18432, "row"),
    }
    assert shapes(moe, 7168)["router"] == (256, 7168, "replicated")
    assert shapes(moe, 7168)["experts.gate_up_proj"] == (2 * 2048, 7168, "expert")
    assert shapes(moe, 7168)["shared_experts.down_proj"] == (7168, 2048, "row")
    copies = {tensor.name: tensor.copies for tensor in moe.tensors(7168)}
    assert copies["experts.down_proj"] == 256
    assert copies["shared_experts.down_proj"] == 1
    assert dense.attention.kv_elements_per_token == 512 + 64
    assert architecture.kv_elements_per_token == 61 * 576


def test_latent_attention_without_a_compressed_query():
    layer = load_architecture("deepseek-v2-lite").layer_groups[0].layer
    assert shapes(layer, 2048)["q_proj"] == (16 * 192, 2048, "column")
    assert shapes(layer, 2048)["kv_a_proj"] == (512 + 64, 2048, "replicated")


def test_active_parameters_count_the_chosen_experts_only():
    layer = Layer(Attention(4, 2, 8), MoeMlp(num_experts=8, experts_per_token=2, intermediate_size=16))
    attention = 32 * (4 + 2 * 2) * 8 + 32 * 32
    assert layer.active_parameters(32) == attention + 8 * 32 + 2 * 3 * 32 * 16 + 2 * 32
    assert sum(layer.parameters_by_part(32).values()) == attention + 8 * 32 + 8 * 3 * 32 * 16 + 2 * 32


def test_active_parameters_of_a_dense_model_leave_out_the_input_embedding():
    counts = load_architecture("llama-3.1-8b").parameters()
    assert counts.total - counts.active == 128256 * 4096
    tied = load_architecture("llama-3.2-1b").parameters()
    assert tied.active == tied.total
    assert tied.lm_head == 0


def test_windows_bound_what_a_sequence_keeps():
    """Gemma 3 27B (arXiv:2503.19786): five local layers of 1,024 tokens for each global one."""
    architecture = load_architecture("gemma-3-27b")
    windows = {group.layer.attention.window: group.count for group in architecture.layer_groups}
    assert windows == {1024: 52, None: 10}
    per_layer = 2 * 16 * 128
    assert architecture.kv_elements(1000) == 62 * 1000 * per_layer
    assert architecture.kv_elements(100_000) == (52 * 1024 + 10 * 100_000) * per_layer


def test_gpt_oss_details():
    architecture = load_architecture("gpt-oss-20b")
    assert {g.layer.attention.window: g.count for g in architecture.layer_groups} == {128: 12, None: 12}
    attention = architecture.layer_groups[0].layer.attention
    assert attention.sinks
    assert attention.qkv_bias
    assert architecture.checkpoint_dtypes["expert"] == "mxfp4"
    assert architecture.checkpoint_dtypes["attention"] == "bf16"


def test_llama_4_interleaves_dense_and_sparse_layers():
    maverick = load_architecture("llama-4-maverick")
    kinds = Counter()
    for group in maverick.layer_groups:
        kinds[type(group.layer.feed_forward).__name__, group.layer.attention.window] += group.count
    assert kinds == {("DenseMlp", 8192): 24, ("MoeMlp", 8192): 12, ("MoeMlp", None): 12}


def test_weight_bytes_by_part():
    architecture = load_architecture("qwen3-30b-a3b")
    counts = architecture.parameters()
    dtypes = dict.fromkeys(("embedding", "lm_head", "attention", "router", "norm"), "bf16") | {"expert": "fp8"}
    sizes = architecture.weight_bytes(dtypes, {"bf16": 2.0, "fp8": 1.0}.__getitem__)
    assert sizes["expert"] == counts.expert
    assert sum(sizes.values()) == 2 * counts.total - counts.expert
    assert sum(architecture.weight_bytes("bf16", lambda _: 2.0).values()) == 2 * counts.total
    with pytest.raises(ForerunError, match="expert"):
        architecture.weight_bytes({key: value for key, value in dtypes.items() if key != "expert"}, lambda _: 2.0)


def test_tied_embeddings_are_stored_once():
    untied = load_architecture("llama-3.1-8b")
    tied = replace(untied, tie_word_embeddings=True)
    assert untied.parameters().total - tied.parameters().total == 128256 * 4096
    assert untied.parameters().active == tied.parameters().active


def test_architectures_travel_between_processes_and_compare_by_value():
    architecture = load_architecture("deepseek-v3")
    copy = pickle.loads(pickle.dumps(architecture))
    assert copy == architecture
    assert hash(copy) == hash(architecture)
