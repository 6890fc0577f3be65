"""Which layers of a config have experts, rotary embedding or four bits: as listed, by their interval, or refused."""

import pytest
from test_llm_hf_config import DEEPSEEK, LLAMA, MOE

from forerun.errors import ForerunError
from simulator.llm import MoeMlp, from_hf_config

LLAMA4 = LLAMA | {
    "model_type": "llama4_text",
    "num_local_experts": 4,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 1024,
    "attention_chunk_size": 128,
}


def sparse(config):
    """How many layers have experts."""
    groups = from_hf_config(config).layer_groups
    return sum(group.count for group in groups if isinstance(group.layer.feed_forward, MoeMlp))


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        (LLAMA4, 4),
        (LLAMA4 | {"moe_layers": [1, 3]}, 2),
        (LLAMA4 | {"interleave_moe_layer_step": 2}, 2),
        (MOE, 4),
        (MOE | {"mlp_only_layers": [0]}, 3),
        (MOE | {"decoder_sparse_step": 2}, 2),
        (MOE | {"decoder_sparse_step": 4}, 1),
        (DEEPSEEK, 3),
        (DEEPSEEK | {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}, 2),
    ],
)
def test_layers_with_experts(config, layers):
    assert sparse(config) == layers


@pytest.mark.parametrize(
    ("changes", "full"), [({}, 1), ({"no_rope_layer_interval": 2}, 2), ({"no_rope_layers": [1, 0, 0, 0]}, 3)]
)
def test_layers_without_rotary_embedding_see_everything(changes, full):
    """Llama 4 attends to chunks where it rotates and to everything where it does not."""
    windows = {g.layer.attention.window: 0 for g in from_hf_config(LLAMA4 | changes).layer_groups}
    for group in from_hf_config(LLAMA4 | changes).layer_groups:
        windows[group.layer.attention.window] += group.count
    assert windows[None] == full
    assert sum(windows.values()) == 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA4 | {"no_rope_layers": [1, 0]}, "no_rope_layers lists 2 layers, but num_hidden_layers is 4"),
        (LLAMA4 | {"moe_layers": ["first"]}, "moe_layers must list layer numbers"),
        (MOE | {"mlp_only_layers": [True]}, "mlp_only_layers must list layer numbers"),
        (DEEPSEEK | {"mlp_layer_types": ["dense"]}, "mlp_layer_types must list 'dense' or 'sparse' for each of 4"),
        (DEEPSEEK | {"mlp_layer_types": ["dense"] * 3 + ["wet"]}, "must list 'dense' or 'sparse' for each of 4 layers"),
    ],
)  # fmt: skip
def test_lists_that_do_not_fit_are_refused(config, message):
    with pytest.raises(ForerunError) as caught:
        from_hf_config(config)
    assert message in str(caught.value).replace(":", "")
    assert "\n" not in str(caught.value)


def grouped(weights, activation_bits=None):
    activations = {"input_activations": activation_bits and {"num_bits": activation_bits}}
    groups = {} if weights is None else {"group_0": {"weights": weights, **activations}}
    return LLAMA | {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}


@pytest.mark.parametrize(
    ("weights", "activation_bits", "dtype"),
    [
        ({"num_bits": 8, "type": "float"}, 8, "fp8"),
        ({"num_bits": 4, "type": "float"}, 4, "fp4"),
        ({"num_bits": 8, "type": "int"}, 8, "int8"),
        ({"num_bits": 4}, None, "int4"),
        ({"num_bits": 8, "type": "float"}, None, "w8a16_fp8"),
        ({"num_bits": 4, "type": "float"}, None, "nvfp4a16"),
        ({"num_bits": 4, "type": "float", "group_size": 32}, None, "mxfp4"),
        ({"num_bits": 8, "type": "int"}, None, "w8a16"),
    ],
)
def test_bits_and_type_of_a_group_are_a_format(weights, activation_bits, dtype):
    config = grouped(weights, activation_bits)
    assert from_hf_config(config).checkpoint_dtypes["mlp"] == dtype
    modelopt = config["quantization_config"] | {"quant_method": "modelopt"}
    assert from_hf_config(LLAMA | {"quantization_config": modelopt}).checkpoint_dtypes["mlp"] == dtype


def test_patterns_that_take_long_to_match_are_refused():
    config = grouped({"num_bits": 4})
    group = config["quantization_config"]["config_groups"]["group_0"]
    for slow in ("(.*)*self_attn(.*)*x$", "(a|a)*x", "(a?){40}x", ".*.*.*.*.*.*x$", "(.{0,60}){0,60}x"):
        group["targets"] = [f"re:{slow}"]
        with pytest.raises(ForerunError, match="take too long to match"):
            from_hf_config(config)
    for usual in (r".*layers\.\d+\.(mlp|self_attn)\..*_proj.*", ".*model.*layers.*mlp.*proj.*", r"(model\.)?layers.*$"):
        group["targets"] = [f"re:{usual}"]
        from_hf_config(config)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, "config_groups must name at least one group"),
        ({"num_bits": 6, "type": "float"}, "num_bits must be 4 or 8, not 6"),
        ({"num_bits": 3, "type": "int"}, "num_bits must be 4 or 8, not 3"),
    ],
)
def test_groups_of_other_formats_are_refused(weights, message):
    with pytest.raises(ForerunError) as caught:
        from_hf_config(grouped(weights))
    assert message in str(caught.value).replace(":", "")
