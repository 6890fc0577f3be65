"""Reading config.json: families' rules, quantised checkpoints, and one clear line for whatever is wrong."""

import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from hwprofiles.dtypes import dtype_bytes, math_dtype
from simulator.llm import MoeMlp, from_hf_config
from simulator.running.scenario import scenario_from

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
DEEPSEEK = LLAMA | {
    "model_type": "deepseek_v3",
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
}


def attention(config):
    return from_hf_config(config).layer_groups[0].layer.attention


def windows(config):
    return {g.layer.attention.window: g.count for g in from_hf_config(config).layer_groups}


def test_missing_field_is_named_with_its_file():
    config = {key: value for key, value in LLAMA.items() if key != "num_attention_heads"}
    with pytest.raises(ForerunError, match=r"^my/config\.json: num_attention_heads is missing"):
        from_hf_config(config, source="my/config.json")


def test_misspelt_field_gets_a_hint():
    config = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"} | {"num_hiden_layers": 4}
    with pytest.raises(ForerunError, match="did you mean 'num_hiden_layers'"):
        from_hf_config(config)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
@pytest.mark.parametrize(
    "value", [0, -1, 1.5, float("nan"), float("inf"), "32", True, [32], {}, 10**30, pytest.param(10**5000, id="huge")]
)
def test_wrong_value_is_refused_by_name(key, value):
    with pytest.raises(ForerunError, match=f"^config.json: {key} must be"):
        from_hf_config(LLAMA | {key: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 8"),
        ({"num_attention_heads": 7, "num_key_value_heads": 7}, "num_attention_heads 7 does not divide hidden_size 256"),
        ({"model_type": "mamba"}, "state-space"),
        ({"model_type": "t5"}, "not a decoder-only"),
        ({"model_type": "bert"}, "not a decoder-only"),
        ({"is_encoder_decoder": True}, "decoder-only"),
        ({"index_topk": 2048}, r"index_topk \(2048\) may change the shape"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "a draft head, not a model; name its folder in speculation"),
        ({"draft_vocab_size": 32000}, "an EAGLE-3 draft head, not a model; name its folder in speculation.draft.model"),
        (
            {"model_type": "qwen9_exp", "intermediate_size": None},
            "'qwen9_exp' is a type that Forerun does not know, and",
        ),
        ({"torch_dtype": "int3"}, "torch_dtype"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers"),
        ({"layer_types": ["linear_attention"] * 4}, "linear_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window is missing"),
        ({"quantization_config": {"quant_method": "gtpq", "bits": 4}}, "did you mean 'gptq'"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "bits must be 4 or 8"),
        ({"quantization_config": []}, "quantization_config"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers"),
        ({"word_embed_proj_dim": 8}, "differs from hidden_size, which is not modelled"),
    ],
)
def test_what_cannot_be_honoured_is_refused(change, message):
    with pytest.raises(ForerunError, match=message):
        from_hf_config(LLAMA | change)


def test_vision_only_config_is_refused():
    with pytest.raises(ForerunError, match="vision"):
        from_hf_config({"model_type": "x", "vision_config": {"hidden_size": 8}})
    with pytest.raises(ForerunError, match="decoder-only"):
        from_hf_config({"model_type": "siglip_vision_model", "hidden_size": 8})


def test_text_part_of_a_multimodal_config():
    inner = {key: value for key, value in LLAMA.items() if key not in ("torch_dtype", "tie_word_embeddings")}
    outer = {"model_type": "llava", "text_config": inner, "torch_dtype": "float16", "tie_word_embeddings": True}
    architecture = from_hf_config(outer)
    assert architecture.tie_word_embeddings
    assert architecture.checkpoint_dtypes["attention"] == "fp16"
    assert any("text part only" in note for note in architecture.notes)
    with pytest.raises(ForerunError, match=r"text_config\.hidden_size must be"):
        from_hf_config(outer | {"text_config": inner | {"hidden_size": -1}})


@pytest.mark.parametrize(
    ("model_type", "tied"),
    [("llama", False), ("qwen2", False), ("mistral", False), ("gemma2", True), ("gemma3_text", True), ("cohere", True)],
)
def test_tying_defaults_follow_the_family(model_type, tied):
    config = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"} | {"model_type": model_type}
    assert from_hf_config(config).tie_word_embeddings is tied


def test_head_width_defaults_follow_the_family():
    assert attention(LLAMA).head_dim == 32
    assert attention(LLAMA | {"head_dim": 64}).head_dim == 64
    assert attention(LLAMA | {"model_type": "qwen3"}).head_dim == 128
    assert attention(LLAMA | {"model_type": "gemma2"}).head_dim == 256
    assert attention(LLAMA | {"num_key_value_heads": None}).num_kv_heads == 8


def test_biases_follow_the_family():
    assert not attention(LLAMA).qkv_bias
    assert attention(LLAMA | {"attention_bias": True}).output_bias
    assert attention(LLAMA | {"model_type": "qwen2"}).qkv_bias
    assert not attention(LLAMA | {"model_type": "qwen2"}).output_bias
    assert attention(LLAMA | {"model_type": "qwen3"}).qk_norm == "head"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sliding_window": 128}, {None: 4}),
        ({"model_type": "mistral", "sliding_window": 128}, {128: 4}),
        ({"model_type": "mistral", "sliding_window": None}, {None: 4}),
        ({"model_type": "mistral", "sliding_window": 4096}, {None: 4}),
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, {None: 4}),
        (
            {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": True, "max_window_layers": 3},
            {None: 3, 128: 1},
        ),
        ({"model_type": "gemma2", "sliding_window": 128}, {128: 2, None: 2}),
        ({"model_type": "gemma3_text", "sliding_window": 128, "sliding_window_pattern": 4}, {128: 3, None: 1}),
        ({"layer_types": ["full_attention", *["sliding_attention"] * 3], "sliding_window": 64}, {None: 1, 64: 3}),
    ],
)
def test_windows_follow_the_family(change, expected):
    assert windows(LLAMA | change) == expected


def test_sparse_layers_of_deepseek():
    groups = from_hf_config(DEEPSEEK).layer_groups
    assert [(isinstance(g.layer.feed_forward, MoeMlp), g.count) for g in groups] == [(False, 1), (True, 3)]
    assert groups[1].layer.feed_forward.shared_intermediate_size == 64
    with pytest.raises(ForerunError, match="num_experts_per_tok 9 exceeds n_routed_experts 8"):
        from_hf_config(DEEPSEEK | {"num_experts_per_tok": 9})
    assert from_hf_config(DEEPSEEK).mtp is None
    assert from_hf_config(DEEPSEEK | {"num_nextn_predict_layers": 2}).mtp.count == 2


EIGHT_BITS = {"input_activations": {"num_bits": 8, "type": "float", "dynamic": True}}
FP8_SCOUT = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}, **EIGHT_BITS}},
    "ignore": ["re:.*lm_head", "re:.*self_attn", "re:.*router"],
}
FP8_BLOCKS = FP8_SCOUT | {
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]},
            **EIGHT_BITS,
        }
    }
}
INT4_EXPERTS = {
    "quant_method": "compressed-tensors",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
}


@pytest.mark.parametrize(
    ("quantization", "attention_dtype", "mlp", "expert", "shared"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, *["fp8_block"] * 4),
        ({"quant_method": "fp8", "weight_block_size": None}, *["fp8"] * 4),
        (FP8_BLOCKS, "bf16", *["fp8_block"] * 3),
        ({"quant_method": "awq", "bits": 4}, "int4", "int4", "int4", "int4"),
        ({"quant_method": "gptq", "bits": 8}, *["w8a16"] * 4),
        ({"quant_method": "mxfp4"}, "bf16", "mxfp4", "mxfp4", "mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", "fp4", "fp4", "fp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", "int4", "int4", "int4"),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]},
            "fp8:0.75+bf16:0.25",
            "fp8",
            "fp8",
            "fp8",
        ),
        ({"quant_method": "fp8", "ignored_layers": ["language_model.model.layers.*.self_attn"]}, "bf16", *["fp8"] * 3),
        ({"quant_method": "fp8", "ignored_layers": ["re:vision_tower.*", "mlp.gate"]}, "fp8", *["fp8"] * 3),
        (FP8_SCOUT, "bf16", "fp8", "fp8", "fp8"),
        (INT4_EXPERTS, "bf16", "bf16", "int4", "bf16"),
    ],
)
def test_quantised_checkpoints_by_part(quantization, attention_dtype, mlp, expert, shared):
    dtypes = from_hf_config(DEEPSEEK | {"quantization_config": quantization}).checkpoint_dtypes
    assert (dtypes["attention"], dtypes["mlp"]) == (attention_dtype, mlp)
    assert (dtypes["expert"], dtypes["shared_expert"]) == (expert, shared)
    assert {dtypes[part] for part in ("embedding", "lm_head", "router", "norm")} == {"bf16"}


def group(targets, bits, kind="int", **more):
    """A group of compressed-tensors with weights of so many bits and activations in 16, unless ``more`` says so."""
    return {"targets": targets, "weights": {"num_bits": bits, "type": kind}, "input_activations": None, **more}


EXPERTS, ATTENTION = group(["re:.*mlp.experts.*"], 4), group(["re:.*self_attn.*"], 8)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([ATTENTION, EXPERTS], {"attention": "w8a16", "mlp": "bf16", "expert": "int4"}),
        ([EXPERTS, ATTENTION], {"attention": "w8a16", "mlp": "bf16", "expert": "int4"}),
        ([group(["Linear"], 8, "float", **EIGHT_BITS), EXPERTS], {"attention": "fp8", "mlp": "fp8", "expert": "int4"}),
        ([group(["Linear"], 4), group(["re:.*down_proj"], 8)],
         {"attention": "int4", "mlp": "int4:0.6667+w8a16:0.3333", "expert": "int4:0.6667+w8a16:0.3333"}),
        ([group(["re:model.layers.[0-1].self_attn.o_proj", "model.layers.2.mlp.experts.0.up_proj"], 4, "float")],
         {"attention": "bf16:0.7949+nvfp4a16:0.2051", "expert": "bf16:0.8889+nvfp4a16:0.1111"}),
        ([group(["re:.*lm_head"], 8)], {"attention": "bf16", "lm_head": "w8a16"}),
    ],
)  # fmt: skip
def test_groups_of_a_checkpoint_count_for_their_targets(groups, expected):
    """Names come before classes, in whatever order the groups stand; modules that no target names keep their dtype."""
    quantization = {"quant_method": "compressed-tensors", "ignore": ["re:.*router"]}
    quantization["config_groups"] = {f"group_{number}": one for number, one in enumerate(groups)}
    architecture = from_hf_config(DEEPSEEK | {"quantization_config": quantization})
    assert {part: architecture.checkpoint_dtypes[part] for part in expected} == expected
    assert any("several formats" in note for note in architecture.notes) == any("+" in one for one in expected.values())


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"bits": 4, "group_size": 64, "mode": "affine"}, {"mlp": "mlx4", "embedding": "mlx4", "lm_head": "mlx4"}),
        ({"bits": 6, "group_size": 32}, {"mlp": "mlx6_g32", "lm_head": "mlx6_g32", "norm": "bf16"}),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, {"attention": "mxfp4", "embedding": "mxfp4"}),
        ({"bits": 3, "group_size": 64, "lm_head": {"bits": 6, "group_size": 64}, "model.embed_tokens": False,
          "model.layers.1.mlp.switch_mlp.down_proj": {"bits": 8, "group_size": 64}},
         {"attention": "mlx3", "expert": "mlx3:0.8889+mlx8:0.1111", "lm_head": "mlx6", "embedding": "bf16"}),
        ({"bits": 4, "group_size": 64, "language_model.model.layers.0.self_attn.o_proj": {"bits": 8, "group_size": 64}},
         {"attention": "mlx4:0.8974+mlx8:0.1026", "mlp": "mlx4"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
def test_mlx_checkpoints_have_their_bits_by_module(quantization, expected, key):
    dtypes = from_hf_config(DEEPSEEK | {"torch_dtype": "bfloat16", key: quantization}).checkpoint_dtypes
    assert {part: dtypes[part] for part in expected} == expected


def test_bytes_of_mlx_formats_include_scale_and_bias():
    assert (dtype_bytes("mlx4"), dtype_bytes("mlx4_g32"), dtype_bytes("mlx8_g128")) == (0.5625, 0.625, 1.03125)
    with pytest.raises(ForerunError, match=r"quantization\.bits must be one of 2, 3, 4, 5, 6, 8, not 7"):
        from_hf_config(LLAMA | {"quantization": {"bits": 7, "group_size": 64}})


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "nvfp4a16"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp", "act_bits": 4}, "fp4"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp"}, "nvfp4a16"),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4, "dynamic": {r"-:.*\.self_attn\..*": {}, r"+:.*down.*": {"bits": 8}}},
         "int4:0.6667+w8a16:0.3333"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.0.mlp.down_proj": {"bits": 16}}},
         "int4:0.6667+bf16:0.3333"),
    ],
)  # fmt: skip
def test_weights_alone_in_few_bits_are_no_arithmetic_in_few_bits(quantization, dtype):
    assert from_hf_config(DEEPSEEK | {"quantization_config": quantization}).checkpoint_dtypes["mlp"] == dtype
    assert math_dtype(dtype, {"bf16", "fp8", "int8", "fp4"}) == ("fp4" if dtype == "fp4" else "bf16")


@pytest.mark.parametrize("block", [[64, 128], [128], "128x128"])
def test_blocks_of_another_size_are_refused(block):
    quantization = {"quant_method": "fp8", "weight_block_size": block}
    with pytest.raises(ForerunError, match=r"quantization_config\.weight_block_size must be"):
        from_hf_config(DEEPSEEK | {"quantization_config": quantization})


def test_unknown_type_with_all_of_llamas_fields_is_read_as_llama():
    known, unknown = from_hf_config(LLAMA), from_hf_config(LLAMA | {"model_type": "newcomer"})
    assert unknown.layer_groups == known.layer_groups


@pytest.mark.parametrize("key", ["num_key_value_heads", "tie_word_embeddings", "intermediate_size"])
def test_unknown_type_must_state_what_its_class_would_imply(key):
    config = {k: v for k, v in LLAMA.items() if k != key} | {"model_type": "newcomer"}
    with pytest.raises(ForerunError, match=f"'newcomer' is a type that Forerun does not know, and {key} is missing"):
        from_hf_config(config)


def test_unknown_type_with_experts_is_refused():
    with pytest.raises(ForerunError, match="moe_num_experts names experts"):
        from_hf_config(LLAMA | {"model_type": "newcomer", "moe_num_experts": 64})


def test_unknown_keys_are_fine():
    assert from_hf_config(LLAMA | {"rope_theta": 5e5, "anything": {"x": [1]}}) == from_hf_config(LLAMA)


FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}
FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}
QUARK = {"quant_method": "quark", "global_quant_config": {"weight": FP4, "input_tensors": FP4}, "exclude": ["lm_head"]}
HQQ = {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4, "group_size": 64}}}
TORCHAO = {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8DynamicActivationFloat8WeightConfig"}}}


@pytest.mark.parametrize(
    ("quantization", "attention_dtype", "mlp_dtype"),
    [
        (QUARK, "mxfp4", "mxfp4"),
        (QUARK | {"layer_quant_config": {"*self_attn*": {"weight": FP8, "input_tensors": FP8}}}, "fp8", "mxfp4"),
        (QUARK | {"exclude": ["re:.*self_attn.*", "lm_head"]}, "bf16", "mxfp4"),
        ({"quant_method": "quark", "quant_config": {"global_quant_config": {"weight": FP8}}}, "w8a16_fp8", "w8a16_fp8"),
        (QUARK | {"global_quant_config": {"weight": {"dtype": "int4", "group_size": 128}}}, "int4", "int4"),
        (TORCHAO, "fp8", "fp8"),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only"}, "int4", "int4"),
        (HQQ, "int4", "int4"),
        (HQQ | {"skip_modules": ["self_attn"]}, "bf16", "int4"),
        ({"quant_method": "mxfp8"}, "mxfp8", "mxfp8"),
        ({"quant_method": "modelopt_fp4"}, "fp4", "fp4"),
    ],
)
def test_formats_of_quark_torchao_hqq_and_plain_methods(quantization, attention_dtype, mlp_dtype):
    dtypes = from_hf_config(LLAMA | {"quantization_config": quantization}).checkpoint_dtypes
    assert (dtypes["attention"], dtypes["mlp"], dtypes["embedding"]) == (attention_dtype, mlp_dtype, "bf16")


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        (QUARK | {"global_quant_config": {"weight": {"dtype": "fp6_e2m3"}}}, "num_bits must be 4 or 8, not 6"),
        (TORCHAO | {"quant_type": "intx_weight_only"}, "torchao with 'intx_weight_only' is not read"),
        ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 5}}}, "hqq with 'hqq5' is not read"),
    ],
)
def test_formats_without_a_name_are_refused(quantization, message):
    with pytest.raises(ForerunError, match=message):
        from_hf_config(LLAMA | {"quantization_config": quantization})


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        QUARK | {"layer_quant_config": {"*k_proj": {"weight": FP4, "input_tensors": FP4, "output_tensors": FP8}}},
    ],
)
def test_a_checkpoint_with_scales_for_its_kv_cache_is_served_with_that_format(quantization):
    config = LLAMA | {"quantization_config": quantization}
    assert from_hf_config(config).kv_cache_dtype == "fp8"
    data = tiny_data() | {"model": config}
    assert scenario_from(data, "chat.yaml").kv_cache_dtype == "fp8"
    assert scenario_from(data | {"kv_cache_dtype": "bf16"}, "chat.yaml").kv_cache_dtype == "bf16"


HYBRID = {
    "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "mamba_d_state": 16,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 8, "mamba_d_head": 64, "mamba_n_groups": 1,
    "mamba_chunk_size": 256, "mamba_conv_bias": True, "mamba_proj_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
MAMBA = 256 * (2 * 512 + 2 * 16 + 8) + 512 * 256 + (512 + 2 * 16) * 5 + 3 * 8 + 512
ATTENTION = 2 * 256 * 256 + 2 * 2 * 32 * 256


def test_granite_4_has_mamba_or_attention_and_experts_in_every_layer():
    kinds = ["mamba", "attention", "mamba"]
    experts = {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 64,
        "shared_intermediate_size": 96,
    }
    config = HYBRID | experts | {"model_type": "granitemoehybrid", "num_hidden_layers": 3, "layer_types": kinds}
    moe = 4 * 3 * 256 * 64 + 3 * 256 * 96 + 4 * 256
    architecture = from_hf_config(config)
    assert architecture.parameters().total == 1000 * 256 + 2 * MAMBA + ATTENTION + 3 * (moe + 2 * 256) + 256
    assert architecture.kv_elements_per_token == 2 * 2 * 32
    dense = from_hf_config(config | {"num_local_experts": 0, "num_experts_per_tok": 0})
    assert architecture.parameters().total - dense.parameters().total == 3 * (4 * 3 * 256 * 64 + 4 * 256)


def test_falcon_h1_has_mamba_beside_attention_in_every_layer():
    config = HYBRID | {"model_type": "falcon_h1", "num_hidden_layers": 3, "intermediate_size": 512, "mamba_d_ssm": 512,
                       "key_multiplier": 0.5, "attention_in_multiplier": 1.0, "mamba_rms_norm": False}  # fmt: skip
    architecture = from_hf_config(config)
    assert architecture.parameters().total == 1000 * 256 + 3 * (MAMBA + ATTENTION + 3 * 256 * 512 + 2 * 256) + 256
    assert architecture.kv_elements_per_token == 3 * 2 * 2 * 32
    assert any("listed as two layers" in note for note in architecture.notes)
