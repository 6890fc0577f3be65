"""What each Hugging Face model type implies beyond the fields of its config.json.

Source of every entry: the configuration and modelling classes of that ``model_type`` in huggingface/transformers
(or, for types with remote code, the repository's own ``configuration_*.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from simulator.llm.layers import QkNorm


class Flag(NamedTuple):
    """A boolean that the config may state under ``key``."""

    key: str
    default: bool


Moe = Literal["mixtral", "qwen", "deepseek", "llama4"]
Windows = Literal["none", "all", "upper", "alternate", "pattern", "chunked"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of one model type; a ``Flag`` is read from the config, a bool is fixed in the model's code."""

    tied: bool = False
    """``tie_word_embeddings`` where the config leaves it out."""
    head_dim: int | None = None
    """Default width of a head; None is hidden size over heads."""
    mla: bool = False
    qkv_bias: Flag | bool = False
    output_bias: Flag | bool = False
    qk_norm: QkNorm | None = None
    qk_norm_flag: Flag | None = None
    """Field that switches ``qk_norm``; None is always on."""
    sinks: bool = False
    norms: int = 2
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: Flag | bool = False
    moe: Moe | None = None
    router_bias: Flag | bool = False
    shared_gate: bool = False
    windows: Windows = "none"
    """Layers with a sliding window where the config has no ``layer_types``: none; all; those from ``max_window_layers``
    on if ``use_sliding_window``; every other from the first; all but every n-th; chunks but for layers without RoPE."""
    extra_positions: int | None = None
    """Rows of a learned position table beyond the longest context; None without such a table."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Field that holds what others call by the key."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Class defaults that published checkpoints rely on."""


_ATTENTION_BIAS = Flag("attention_bias", False)
_LLAMA = Family(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, mlp_bias=Flag("mlp_bias", False))
_QWEN2 = Family(qkv_bias=True, windows="upper")
_QWEN3 = replace(_LLAMA, mlp_bias=False, qk_norm="head", head_dim=128, windows="upper")
_GEMMA = Family(tied=True, head_dim=256, qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS)
_GEMMA2 = replace(_GEMMA, norms=4, windows="alternate", defaults={"sliding_window": 4096})
_GEMMA3 = replace(
    _GEMMA2,
    qk_norm="head",
    windows="pattern",
    defaults={
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
)
_DEEPSEEK_V2 = Family(mla=True, qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, moe="deepseek")
_DEEPSEEK_V3 = replace(_DEEPSEEK_V2, router_bias=True)
_GLM4_MOE = Family(
    head_dim=128,
    qkv_bias=_ATTENTION_BIAS,
    qk_norm="head",
    qk_norm_flag=Flag("use_qk_norm", False),
    moe="deepseek",
    router_bias=True,
)
_COHERE = Family(
    tied=True,
    norms=1,
    qkv_bias=_ATTENTION_BIAS,
    output_bias=_ATTENTION_BIAS,
    qk_norm="vector",
    qk_norm_flag=Flag("use_qk_norm", False),
)

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,
    "granite": _LLAMA,
    "mistral": Family(windows="all"),
    "mixtral": Family(windows="all", moe="mixtral"),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "mimo": _QWEN2,
    "qwen2_moe": replace(_QWEN2, qkv_bias=Flag("qkv_bias", True), moe="qwen", shared_gate=True),
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_moe": replace(_QWEN3, head_dim=None, moe="qwen"),
    "qwen3_vl_moe_text": replace(_QWEN3, head_dim=None, moe="qwen"),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gpt_oss": Family(
        head_dim=64,
        qkv_bias=Flag("attention_bias", True),
        output_bias=Flag("attention_bias", True),
        sinks=True,
        mlp_bias=True,
        router_bias=True,
        moe="mixtral",
        windows="alternate",
        defaults={"sliding_window": 128},
    ),
    "deepseek": Family(qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS, moe="deepseek"),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe_lite": _DEEPSEEK_V3,
    "glm4_moe": _GLM4_MOE,
    "glm4": Family(head_dim=128, qkv_bias=_ATTENTION_BIAS, norms=4),
    "llama4_text": replace(
        _LLAMA,
        mlp_bias=False,
        qk_norm="unlearned",
        qk_norm_flag=Flag("use_qk_norm", True),
        moe="llama4",
        windows="chunked",
        defaults={"attention_chunk_size": 8192},
    ),
    "minimax_m2": Family(
        qk_norm="vector",
        qk_norm_flag=Flag("use_qk_norm", True),
        moe="mixtral",
        router_bias=Flag("use_routing_bias", True),
    ),
    "phi3": Family(windows="all"),
    "internlm": Family(qkv_bias=Flag("bias", True), output_bias=Flag("bias", True)),
    "internlm2": Family(qkv_bias=Flag("bias", True), output_bias=Flag("bias", True)),
    "olmo2": replace(_LLAMA, mlp_bias=False, qk_norm="vector"),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, windows="pattern", defaults={"sliding_window": 4096, "sliding_window_pattern": 4}),
    "starcoder2": Family(
        tied=True,
        qkv_bias=Flag("use_bias", True),
        output_bias=Flag("use_bias", True),
        mlp_bias=Flag("use_bias", True),
        norm_bias=True,
        gated=False,
        windows="all",
    ),
    "falcon": Family(
        tied=True,
        qkv_bias=Flag("bias", False),
        output_bias=Flag("bias", False),
        mlp_bias=Flag("bias", False),
        norm_bias=True,
        gated=False,
        names={"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads"},
    ),
    "gpt_neox": Family(
        qkv_bias=Flag("attention_bias", True),
        output_bias=Flag("attention_bias", True),
        mlp_bias=True,
        norm_bias=True,
        gated=False,
    ),
    "opt": Family(
        tied=True,
        qkv_bias=Flag("enable_bias", True),
        output_bias=Flag("enable_bias", True),
        mlp_bias=Flag("enable_bias", True),
        norm_bias=True,
        gated=False,
        extra_positions=2,
        names={"intermediate_size": "ffn_dim"},
    ),
    "gpt2": Family(
        tied=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        gated=False,
        extra_positions=0,
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
    ),
}
"""Known model types."""

GENERIC = replace(_LLAMA, windows="upper")
"""A type not known here that has all of Llama's fields."""

_STATE_SPACE = "has state-space or linear-attention layers, which are not modelled"
_ENCODER = "is not a decoder-only language model"
REFUSED_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba", "zamba2", "rwkv", "recurrent_gemma", "falcon_h1",
         "nemotron_h", "granitemoehybrid", "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
         "minimax", "minimax_text_01", "kimi_linear", "lfm2"),
        _STATE_SPACE,
    ),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "bert", "roberta", "xlm-roberta",
         "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert", "nomic_bert", "clip", "siglip",
         "siglip_vision_model", "clip_vision_model", "vit", "dinov2", "swin", "wav2vec2"),
        _ENCODER,
    ),
    **dict.fromkeys(
        ("deepseek_v32", "deepseek_v4", "glm_moe_dsa"), "has sparse attention with an indexer, which is not modelled"
    ),
    "mllama": "has cross-attention layers, which are not modelled",
    "mllama_text_model": "has cross-attention layers, which are not modelled",
    "gemma3n": "has per-layer embeddings, which are not modelled",
    "gemma3n_text": "has per-layer embeddings, which are not modelled",
}  # fmt: skip
"""Model types that would be misread as something else, and why."""

REFUSED_FIELDS: Mapping[str, str] = {
    "index_topk": "sparse attention with an indexer is not modelled",
    "ssm_state_size": "state-space layers are not modelled",
    "mamba_d_state": "state-space layers are not modelled",
    "linear_num_value_heads": "linear-attention layers are not modelled",
    "linear_attn_config": "linear-attention layers are not modelled",
    "cross_attention_layers": "cross-attention layers are not modelled",
    "hidden_size_per_layer_input": "per-layer embeddings are not modelled",
}
"""Fields that betray layers that are not modelled, whatever the model type."""
