"""Hybrid, linear, sparse and compressed attention: published parameters, caches and states by hand, nothing misread."""

import json
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import ForerunError
from simulator.llm import architecture_aliases, architecture_summary, from_hf_config, load_architecture

SHARED = Path(os.environ.get("FORERUN_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "model_configs"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"no configs of current models in {SHARED}")

FAMILIES = yaml.safe_load((Path(__file__).parent / "current_models.yaml").read_text(encoding="utf-8"))
"""Geometry of one model of each family, from its published config.json."""


def read(name, **changes):
    return from_hf_config(FAMILIES[name] | {"torch_dtype": "bfloat16"} | changes, source=name)


TOTALS = [
    ("qwen3-next-80b-a3b", 79_674_391_296, 3.9e9, "tensors of Qwen/Qwen3-Next-80B-A3B-Instruct"),
    ("lfm2-1.2b", 1_170_340_608, 1.17e9, "model card: 1,170,340,608 parameters"),
    ("kimi-linear-48b-a3b", 48.6e9, 3.1e9, "name and model card: 48B-A3B"),
    ("minimax-text-01", 456e9, 45.9e9, "model card: 456B, 45.9B activated"),
    ("gemma-3n-e4b", 6.87e9, None, "model card: 7.85B with encoders of images (0.3B) and sound (0.68B)"),
]


@pytest.mark.parametrize(("name", "total", "active", "source"), TOTALS)
def test_parameters_are_as_published(name, total, active, source):
    architecture = read(name)
    assert architecture.parameters().total == pytest.approx(total, rel=0.03), source
    if active:
        assert architecture.active_as_published == pytest.approx(active, rel=0.03), source


PUBLISHED = {
    "Qwen--Qwen3-VL-8B-Instruct": (8.2e9, None),
    "nvidia--DeepSeek-V4-Flash-NVFP4": (284e9, 13e9),
    "nvidia--Gemma-4-31B-IT-NVFP4": (30.7e9, None),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": (49.9e9, None),
    "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": (120e9, 12e9),
    "nvidia--NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (31.6e9, 3.2e9),
    "nvidia--Nemotron-H-56B-Base-8K": (56e9, None),
    "nvidia--Qwen3.5-397B-A17B-NVFP4": (397e9, 17e9),
    "nvidia--Qwen3.6-35B-A3B-NVFP4": (35e9, 3.4e9),
    "zai-org--GLM-5.2-FP8": (744e9, 40e9),
    "zai-org--GLM-5.3": (744e9, 40e9),
}
"""Total and active parameters as the repository's name or its model card says, MTP layers and encoders left out, of
models that are not in the catalogue (GLM-5: arXiv:2602.15763; DeepSeek-V4: model card)."""
SHIPPED = {name.lower().replace("/", "--"): model for name, model in architecture_aliases().items()}


@shared
@pytest.mark.parametrize("name", PUBLISHED)
def test_current_models_have_their_published_parameters(name):
    total, active = PUBLISHED[name]
    architecture = load_architecture(SHARED / f"{name}_config.json")
    assert architecture.parameters().total == pytest.approx(total, rel=0.03)
    if active:
        assert architecture.active_as_published == pytest.approx(active, rel=0.03)


@shared
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.json")), ids=lambda path: path.stem)
def test_every_current_config_is_read(path):
    summary = architecture_summary(load_architecture(path))
    json.dumps(summary, allow_nan=False)
    assert summary["parameters_total"] >= summary["parameters_active"] > 0
    assert summary["kv_bytes_per_token"] > 0
    if shipped := SHIPPED.get(path.stem.removesuffix("_config").lower()):
        entry, architecture = load_architecture(shipped), load_architecture(path)
        assert architecture.layer_groups == entry.layer_groups, "the catalogue says what its publisher says"
        assert architecture.checkpoint_dtypes == entry.checkpoint_dtypes


@shared
@pytest.mark.parametrize(
    "name",
    [
        *(
            "nvidia/DeepSeek-V3.1-NVFP4",
            "nvidia/GLM-5.1-NVFP4",
            "nvidia/GLM-5.2-NVFP4",
            "nvidia/Qwen3.5-397B-A17B-NVFP4",
        ),
        *("nvidia/Gemma-4-31B-IT-NVFP4", "nvidia/MiniMax-M2.5-NVFP4", "nvidia/Qwen3-235B-A22B-NVFP4"),
        *("nvidia/Kimi-K2.6-NVFP4", "nvidia/DeepSeek-V4-Flash-NVFP4", "nvidia/Qwen3.6-35B-A3B-NVFP4"),
    ],
)
def test_names_of_checkpoints_in_four_bits_mean_what_their_files_say(name):
    """Attention, shared experts and dense layers may stay in 16 bits; Qwen3.6 is made for weight-only kernels."""
    named = load_architecture(name)
    stated = load_architecture(SHARED / f"{name.replace('/', '--')}_config.json")
    parts = {tensor.part for group in named.layer_groups for tensor in group.layer.tensors(named.hidden_size)}
    assert {part: named.checkpoint_dtypes[part] for part in parts} == {
        part: stated.checkpoint_dtypes[part] for part in parts
    }


def kv_index_state(architecture):
    summary = architecture_summary(architecture)
    return summary["kv_bytes_per_token"], summary["index_bytes_per_token"], summary["state_bytes_per_sequence"]


@pytest.mark.parametrize(
    ("name", "kv_bytes", "index_bytes", "state_bytes"),
    [
        # 12 of 48 layers cache 2 heads of 256 for keys and values; 36 keep 32 matrices of 128 x 128 in fp32 and three
        # tokens of 2 x 16 x 128 + 32 x 128 channels in bf16
        (
            "qwen3-next-80b-a3b",
            *(12 * 2 * 2 * 256 * 2, 0, 36 * (32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2)),
        ),
        # 7 of 27 layers cache a latent of 512 + 64; 20 keep 32 matrices of 128 x 128 in fp32 and three tokens of
        # queries, keys and values in bf16
        ("kimi-linear-48b-a3b", 7 * (512 + 64) * 2, 0, 20 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)),
        # 6 attention blocks of 2 KV heads of 128; 23 Mamba-2 blocks of 64 heads x 64 x state 128 in fp32, and three
        # tokens of 64 x 64 + 2 x 8 x 128 channels in bf16
        ("nemotron-h", 6 * 2 * 2 * 128 * 2, 0, 23 * (64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2)),
        # 6 attention layers of 8 KV heads of 64; 10 convolutions that keep two tokens of 2,048 channels
        ("lfm2-1.2b", 6 * 2 * 8 * 64 * 2, 0, 10 * 2 * 2048 * 2),
        # 10 attention layers of 8 KV heads of 128; 70 lightning layers of 64 matrices of 128 x 128 in fp32
        ("minimax-text-01", 10 * 2 * 8 * 128 * 2, 0, 70 * 64 * 128 * 128 * 4),
        # 61 layers cache a latent of 512 + 64 and an index key of 128 per token
        ("deepseek-v3.2", 61 * 576 * 2, 61 * 128 * 2, 0),
        # 60 layers of 4 KV heads of 128; 57 keep an index key of 128 as well
        ("minimax-m3", 60 * 2 * 4 * 128 * 2, 57 * 128 * 2, 0),
        # The last 15 of 35 layers read an earlier cache
        ("gemma-3n-e4b", 20 * 2 * 2 * 256 * 2, 0, 0),
    ],
)
def test_caches_and_states_by_hand(name, kv_bytes, index_bytes, state_bytes):
    assert kv_index_state(read(name)) == (kv_bytes, index_bytes, state_bytes)


def test_states_take_the_stated_dtype():
    name = "qwen3-next-80b-a3b"
    assert kv_index_state(read(name, mamba_ssm_dtype="bfloat16"))[2] < kv_index_state(read(name))[2]


def test_layers_that_share_an_indexer_cache_no_index_keys():
    """GLM-5.2's ``indexer_types``: three of four layers after the third read what an earlier one chose."""
    kinds = ["full"] * 3 + ["shared", "shared", "shared", "full"] * 14 + ["shared", "shared"]
    shared_layers = read("deepseek-v3.2", indexer_types=kinds)
    assert kv_index_state(shared_layers)[1] == kinds.count("full") * 128 * 2
    indexer = 64 * 128 * 1536 + 128 * 7168 + 64 * 7168 + 2 * 128
    saved = read("deepseek-v3.2").parameters().total - shared_layers.parameters().total
    assert saved == kinds.count("shared") * indexer


def test_deepseek_v4_pro_at_a_million_tokens_is_the_published_9_62_gib():
    """30 layers keep an entry of 512 and an index key of 128 for 4 tokens, 31 an entry for 128 tokens, all of them 128
    tokens of 512 in their window; published: 9.62 GiB of bf16 per sequence of 1M tokens."""
    architecture, tokens = read("deepseek-v4"), 1024**2
    entries = 30 * tokens // 4 * 512 + 31 * tokens // 128 * 512
    assert architecture.kv_elements(tokens) == entries + 61 * 128 * 512
    assert architecture.index_elements_per_token * tokens == 30 * tokens // 4 * 128
    total = 2 * (architecture.kv_elements(tokens) + architecture.index_elements_per_token * tokens)
    assert total / 1024**3 == pytest.approx(9.62, abs=0.01)


def test_gemma_4_31b_is_not_read_as_a_plain_llama():
    """At 131,072 tokens: 10 global layers of 4 KV heads of 512, 50 windows of 1,024 with 16 heads of 256: 11.6 GB. As
    wide as the local layers it would be 22.3 GB."""
    architecture = read("gemma-4")
    expected = 2 * (10 * 131072 * 2 * 4 * 512 + 50 * 1024 * 2 * 16 * 256)
    assert 2 * architecture.kv_elements(131072) == expected
    assert expected / 1e9 == pytest.approx(11.58, abs=0.01)
    far = next(g.layer for g in architecture.layer_groups if g.layer.attention.window is None)
    fused = next(tensor for tensor in far.tensors(5376) if tensor.name == "qkv_proj")
    assert fused.out_features == (32 + 4) * 512, "values are the keys: no projection of their own"


def test_mimo_v2_by_hand():
    """9 full layers of 4 KV heads, 39 windows of 8; keys of 192, values of 128. MTP: three windowed, dense layers of
    0.33B as its card says."""
    architecture = read("mimo-v2")
    assert kv_index_state(architecture)[0] == (9 * 4 + 39 * 8) * (192 + 128) * 2
    assert architecture.mtp.count == 3
    assert architecture.mtp.parameters(4096) / 3 == pytest.approx(0.33e9, rel=0.02)


def test_nemotron_nas_blocks_by_hand():
    """Widths of 2/3 x multiple x 1,024 rounded up to 256; a block without attention caches nothing."""
    architecture = read("nemotron-nas")
    assert kv_index_state(architecture)[0] == 2 * 2 * 2 * 128 * 2
    widths = [
        group.layer.feed_forward and group.layer.feed_forward.intermediate_size for group in architecture.layer_groups
    ]
    assert widths == [1792, 512, None]


def test_step_gates_its_heads_where_the_config_says_so():
    gated, plain = (read("step-3.7", use_head_wise_attn_gate=flag).parameters().total for flag in (True, False))
    assert gated - plain == 45 * 64 * 4096


def test_qwen3_5_drafts_with_an_attention_layer():
    architecture = read("qwen3-next-80b-a3b", mtp_num_hidden_layers=1)
    assert architecture.mtp.layer.attention.num_kv_heads == 2


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "nemotron-h", "deepseek-v4", "nemotron-nas", "gemma-3n-e4b"])
def test_what_needs_attention_over_every_key_says_so_in_one_line(name):
    architecture = read(name)
    with pytest.raises(ForerunError, match="plain softmax attention is required here") as caught:
        [group.layer.attention for group in architecture.layer_groups]
    assert "\n" not in str(caught.value)


MADE_UP = st.builds(
    "_".join,
    st.tuples(
        st.sampled_from(["madeup", "num_madeup", "n_madeup", "madeup_global", "madeup_kv", "rope_madeup"]),
        st.sampled_from(["heads", "head_dim", "layers", "rank", "size", "groups", "experts", "window", "state_size",
                         "topk", "pattern", "layer_types", "dims", "kv_heads", "share_layers", "compress_ratio"]),
    ),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), MADE_UP, st.sampled_from([4, 2.5, [4, 8], "ab", True, {"a": 1}]))
def test_an_unknown_geometry_key_is_refused_by_name(name, key, value):
    with pytest.raises(ForerunError, match=rf"^{name}: {key} \(.*may change the shape of layers"):
        read(name, **{key: value})


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), MADE_UP, st.sampled_from([None, False, 0, [], {}, ""]))
def test_an_unknown_key_that_is_off_is_let_stand(name, key, value):
    assert read(name, **{key: value}).layer_groups == read(name).layer_groups


PUBLISHED_BESIDES = {
    "phi3": {"original_max_position_embeddings": 4096, "full_attn_mod": 1, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid"},
    "cohere": {"use_embedding_sharing": True, "use_parallel_block": True, "position_embedding_type": "rope_gptj"},
    "cohere2": {"layer_switch": 4, "order_of_interleaved_layers": "local_attn_first", "sliding_window_pattern": 4},
    "granite": {"attention_multiplier": 0.0078, "embedding_multiplier": 12.0, "residual_multiplier": 0.22},
    "opt": {"do_layer_norm_before": True, "ffn_dim": 512, "layerdrop": 0.1, "activation_function": "relu"},
    "starcoder2": {"embedding_dropout": 0.1, "scale_attention_softmax_in_fp32": True, "mlp_type": "default"},
    "qwen2": {"use_mrope": True, "max_window_layers": 28, "vision_start_token_id": 1, "image_token_id": 2},
    "llama": {"pretraining_tp": 1, "num_labels": 2, "mm_hidden_size": 1024, "mm_vision_select_layer": -2},
    "mistral": {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}, "initializer_range": 0.02},
    "falcon": {"alibi": False, "parallel_attn": True, "multi_query": True, "hidden_dropout": 0.1},
    "gpt_neox": {
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
        "classifier_dropout": 0.1,
    },
}


@pytest.mark.parametrize("model_type", PUBLISHED_BESIDES)
def test_published_fields_of_training_numerics_and_media_change_nothing(model_type):
    plain = FAMILIES["llama"] | {"model_type": model_type, "torch_dtype": "bfloat16", "max_position_embeddings": 4096}
    assert from_hf_config(plain | PUBLISHED_BESIDES[model_type]).layer_groups


@pytest.mark.parametrize("section", ["linear_attn_config", "sparse_attention_config"])
def test_unknown_keys_of_sections_are_refused_too(section):
    name = next(name for name, config in FAMILIES.items() if section in config)
    with pytest.raises(ForerunError, match=rf"{section}\.num_madeup_heads"):
        read(name, **{section: FAMILIES[name][section] | {"num_madeup_heads": 3}})


def test_unknown_keys_beside_a_text_config_are_refused_too():
    inner = FAMILIES["llama"] | {"torch_dtype": "bfloat16"}
    with pytest.raises(ForerunError, match=r"^config\.json: global_head_dim"):
        from_hf_config({"model_type": "llava", "text_config": inner, "global_head_dim": 512})
    from_hf_config({"model_type": "llava", "text_config": inner, "vision_feature_layer": -2, "image_seq_length": 576})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("kimi-linear-48b-a3b", {"num_hidden_layers": 28}, "must share out layers 1 to 28"),
        ("nemotron-h", {"hybrid_override_pattern": "MX"}, "names a block 'X'"),
        ("nemotron-h", {"num_hidden_layers": 50}, "the pattern has 52 blocks"),
        ("deepseek-v4", {"compress_ratios": [4] * 60}, "lists 60 layers, but num_hidden_layers is 61"),
        ("deepseek-v4", {"compress_ratios": [7] * 61}, "names '7', which is not modelled"),
        ("mimo-v2", {"hybrid_layer_pattern": [2] * 48}, "names '2', which is not modelled"),
        ("deepseek-v3.2", {"indexer_types": ["odd"] * 61}, "names 'odd', which is not modelled"),
        ("qwen3-next-80b-a3b", {"mamba_ssm_dtype": "int8"}, "'int8' is not one of bfloat16, float16, float32"),
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": None}, "linear_num_value_heads is missing"),
        ("nemotron-nas", {"block_configs": [{}] * 3}, r"block_configs\[0\].attention is missing"),
        ("minimax-text-01", {"shared_intermediate_size": 64}, "shared experts of this family are not modelled"),
    ],
)
def test_what_does_not_fit_is_refused_by_field(name, changes, message):
    with pytest.raises(ForerunError, match=message) as caught:
        read(name, **changes)
    assert "\n" not in str(caught.value)


def test_quantisation_stated_beside_the_config_counts(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["llama"] | {"torch_dtype": "bfloat16"}))
    quantised = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantised))
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "hf_quant_config.json"):
        assert load_architecture(path).checkpoint_dtypes["attention"] == "fp8"
    (tmp_path / "config.json").unlink()
    with pytest.raises(ForerunError, match=r"read beside its model's config\.json"):
        load_architecture(tmp_path / "hf_quant_config.json")


def test_algorithm_without_a_method_is_modelopts(tmp_path):
    unnamed = {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}
    config = FAMILIES["llama"] | {"torch_dtype": "bfloat16", "quantization_config": unnamed}
    alone = from_hf_config(config).checkpoint_dtypes
    assert (alone["mlp"], alone["attention"], alone["lm_head"]) == ("fp4", "bf16", "bf16")
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_algo": "NVFP4"}}))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": unnamed}))
    assert load_architecture(tmp_path).checkpoint_dtypes == alone


def test_flag_of_norms_counts_where_a_family_has_them():
    shape = FAMILIES["llama"] | {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    shape |= {"model_type": "qwen3_moe"}
    with_norms, without = (from_hf_config(shape | {"use_qk_norm": on}) for on in (True, False))
    assert with_norms.layer_groups == from_hf_config(shape).layer_groups
    assert with_norms.parameters().total > without.parameters().total
    with pytest.raises(ForerunError, match="use_qk_norm"):
        read("llama", use_qk_norm=True)


def test_text_part_of_minimax_m3_is_read_whatever_its_place():
    flat = read("minimax-m3")
    nested = {"model_type": "minimax_m3_vl", "vision_config": {"hidden_size": 64}, "torch_dtype": "bfloat16"}
    text = {key: value for key, value in FAMILIES["minimax-m3"].items() if key != "model_type"}
    for config in (nested | {"text_config": text}, nested | text):
        assert from_hf_config(config).layer_groups == flat.layer_groups


def test_mixed_quantisation_counts_by_part():
    layers = {
        "model.layers.0.linear_attn.in_proj_qkv": {"quant_algo": "FP8"},
        "model.layers.0.mlp.experts.0.up_proj": {"quant_algo": "W4A16_NVFP4"},
        "model.layers.0.mlp.shared_expert.up_proj": {"quant_algo": "NVFP4"},
        "lm_head": {"quant_algo": "NVFP4"},
    }
    quantization = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    dtypes = read("qwen3-next-80b-a3b", quantization_config=quantization).checkpoint_dtypes
    assert {part: dtype for part, dtype in dtypes.items() if dtype != "bf16"} == {
        "attention": "fp8", "expert": "nvfp4a16", "shared_expert": "fp4", "lm_head": "fp4",
    }  # fmt: skip


def test_own_fields_describe_every_kind_of_layer():
    layers = [
        {"attention": {"kind": "gated delta net", "conv_kernel": 4, "num_key_heads": 2, "num_value_heads": 4,
                       "key_head_dim": 16, "value_head_dim": 16}, "mlp": {"intermediate_size": 64}},
        {"attention": {"kind": "Mamba-2", "conv_kernel": 4, "num_heads": 4, "head_dim": 16, "state_size": 32,
                       "num_groups": 1}},
        {"mlp": {"num_experts": 4, "experts_per_token": 1, "intermediate_size": 32, "latent_size": 16}},
        {"attention": {"kind": "indexed sparse attention", "top_k": 64, "index_heads": 2, "index_head_dim": 16,
                       "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "output_gate": "head"}},
         "mlp": {"intermediate_size": 64}},
    ]  # fmt: skip
    model = {"name": "mine", "hidden_size": 64, "vocab_size": 100, "layers": layers}
    architecture = load_architecture(model)
    assert architecture.state_bytes_per_sequence == (4 * 16 * 16 + 4 * 16 * 32) * 4 + 3 * (128 + 64 + 64) * 2
    assert architecture.kv_elements_per_token == 2 * 2 * 16
    assert architecture.index_elements_per_token == 16
    with pytest.raises(ForerunError, match="num_key_head is not a field here; did you mean 'num_key_heads'"):
        load_architecture(model | {"layers": [{"attention": layers[0]["attention"] | {"num_key_head": 1}}]})
    with pytest.raises(ForerunError, match="a layer has at least one of them"):
        load_architecture(model | {"layers": [{"count": 2}]})


WRAPPED = yaml.safe_load((Path(__file__).parent / "wrapped_models.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("thinker of Qwen3-Omni", 30.5e9),
        ("text part of GLM-4.5V", 106e9),
        ("text part of Mistral-Small-3.2", 23.6e9),
        ("Apertus-70B", 70.6e9),
        ("AFM-4.5B", 4.6e9),
        ("EXAONE-4.0-32B", 32e9),
        ("dots.llm1", 142e9),
        ("ERNIE-4.5-21B-A3B", 21.8e9),
        ("ERNIE-4.5-300B-A47B", 300e9),
        ("Hunyuan-A13B", 80e9),
        ("Hunyuan-7B", 7.5e9),
    ],
)
def test_wrappers_and_feed_forwards_without_a_gate(name, total):
    """Totals of the model cards; a layer of two matrices read as Llama's three would be a third too large."""
    assert from_hf_config(WRAPPED[name]).parameters().total == pytest.approx(total, rel=0.03)


def test_an_unknown_type_with_an_activation_of_ungated_layers_is_refused():
    config = WRAPPED["AFM-4.5B"] | {"model_type": "somebody", "architectures": ["SomebodyForCausalLM"]}
    with pytest.raises(ForerunError, match="hidden_act 'relu2' mostly has no gate"):
        from_hf_config(config)
