"""What each Hugging Face model type implies beyond the fields of its config.json.

Source of every entry: the configuration and modelling classes of that ``model_type`` in huggingface/transformers
(or, for types with remote code, the repository's own ``configuration_*.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from simulator.llm.layers import ActiveCounts, QkNorm


class Flag(NamedTuple):
    """A boolean that the config may state under ``key``."""

    key: str
    default: bool


class MoeNames(NamedTuple):
    """Fields in which a family states its experts."""

    experts: str
    width: str
    picked: str
    shared_count: str | None = None
    """Number of shared experts, each as wide as a routed one (or as ``shared_width`` says)."""
    shared_width: str | None = None
    """Width of one shared expert, or of all where there is no ``shared_count``."""


Moe = Literal["mixtral", "qwen", "deepseek", "llama4", "kimi", "step", "gemma4", "minimax-m3", "nemotron", "lfm2"]
_DEEPSEEK_NAMES = MoeNames("n_routed_experts", "moe_intermediate_size", "num_experts_per_tok", "n_shared_experts")
MOE_NAMES: Mapping[Moe, MoeNames] = {
    "mixtral": MoeNames("num_local_experts", "intermediate_size", "num_experts_per_tok"),
    "llama4": MoeNames("num_local_experts", "intermediate_size", "num_experts_per_tok", None, "intermediate_size"),
    "qwen": MoeNames("num_experts", "moe_intermediate_size", "num_experts_per_tok"),
    "deepseek": _DEEPSEEK_NAMES,
    "nemotron": _DEEPSEEK_NAMES._replace(shared_width="moe_shared_expert_intermediate_size"),
    "kimi": MoeNames("num_experts", "moe_intermediate_size", "num_experts_per_token", "num_shared_experts"),
    "step": MoeNames("moe_num_experts", "moe_intermediate_size", "moe_top_k", None, "share_expert_dim"),
    "gemma4": MoeNames("num_experts", "moe_intermediate_size", "top_k_experts", None, "intermediate_size"),
    "minimax-m3": MoeNames("num_local_experts", "intermediate_size", "num_experts_per_tok", "n_shared_experts"),
    "lfm2": MoeNames("num_experts", "moe_intermediate_size", "num_experts_per_tok"),
}
"""Gemma 4's dense feed-forward runs beside the experts, as a shared expert does."""

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
    layers: str = "uniform"
    """How its layers are read: all alike but for windows and experts, or by a reader of ``hf_hybrid.READERS``."""
    active_counts: ActiveCounts = "without-embedding"
    """What the makers' count of active parameters covers (``Architecture.active_counts``)."""
    output_gate: Flag | bool = False
    inert: tuple[str, ...] = ()
    """Fields that may state a shape, but of nothing that this family's checkpoints hold."""


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

_QWEN3_NEXT = Family(
    head_dim=256,
    active_counts="with-embedding",
    qkv_bias=_ATTENTION_BIAS,
    output_bias=_ATTENTION_BIAS,
    qk_norm="head",
    output_gate=Flag("attn_output_gate", True),
    layers="delta-net",
)
_QWEN3_NEXT_MOE = replace(_QWEN3_NEXT, moe="qwen", shared_gate=True)
_INDEXED = replace(_DEEPSEEK_V3, layers="indexed")
_DEEPSEEK_V4 = Family(moe="deepseek", router_bias=True, layers="compressed", defaults={"sliding_window": 128})
_STEP = Family(
    active_counts="with-embedding",
    qk_norm="head",
    moe="step",
    router_bias=Flag("use_moe_router_bias", True),
    layers="step",
    inert=("share_q_dim", "moe_every_n_layer", "moe_layer_offset", "use_qk_norm", "use_moe", "need_fp32_gate"),
    names={
        "moe_num_experts": "num_experts",
        "moe_top_k": "num_experts_per_tok",
        "num_key_value_heads": "num_attention_groups",
    },
)
_MIMO_V2 = Family(
    qkv_bias=_ATTENTION_BIAS,
    moe="deepseek",
    router_bias=True,
    layers="mimo",
    defaults={"num_nextn_predict_layers": 3},
)
_GEMMA4 = replace(_GEMMA3, layers="gemma4", moe="gemma4", router_bias=True, defaults={"sliding_window": 512})
_GEMMA3N = replace(_GEMMA3, layers="gemma3n", defaults={"sliding_window": 512})
_MINIMAX_M3 = Family(
    active_counts="layers",
    qk_norm="head",
    qk_norm_flag=Flag("use_qk_norm", True),
    moe="minimax-m3",
    router_bias=Flag("use_routing_bias", True),
    layers="block-sparse",
)
_MINIMAX_01 = Family(moe="mixtral", active_counts="layers", layers="lightning")
_LFM2 = Family(
    tied=True,
    qk_norm="head",
    layers="convolution",
    names={"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"},
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
    "qwen3_moe": replace(_QWEN3, head_dim=None, moe="qwen", active_counts="with-embedding"),
    "qwen3_omni_moe_text": replace(
        _QWEN3, head_dim=None, moe="qwen", active_counts="with-embedding", inert=("use_qk_norm",)
    ),
    "qwen3_vl_moe_text": replace(_QWEN3, head_dim=None, moe="qwen", active_counts="with-embedding"),
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
    "glm4v_moe_text": _GLM4_MOE,
    "dots1": replace(_DEEPSEEK_V3, mla=False, qk_norm="head", windows="upper"),
    "glm4": Family(head_dim=128, qkv_bias=_ATTENTION_BIAS, norms=4),
    "llama4_text": replace(
        _LLAMA,
        mlp_bias=False,
        qk_norm="unlearned",
        active_counts="with-embedding",
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
        active_counts="layers",
        inert=("use_mtp", "num_mtp_modules", "mtp_transformer_layers", "mlp_intermediate_size"),
    ),
    "phi3": Family(windows="all"),
    "internlm": Family(qkv_bias=Flag("bias", True), output_bias=Flag("bias", True)),
    "internlm2": Family(qkv_bias=Flag("bias", True), output_bias=Flag("bias", True)),
    "apertus": replace(_LLAMA, gated=False, qk_norm="head", inert=("qk_norm",)),
    "arcee": replace(_LLAMA, gated=False),
    "nemotron": replace(_LLAMA, gated=False, norm_bias=True),
    "exaone4": replace(_LLAMA, qk_norm="head", inert=("sliding_window_pattern",)),
    "smollm3": replace(_LLAMA, tied=True, windows="upper", inert=("no_rope_layers", "no_rope_layer_interval")),
    "olmo2": replace(_LLAMA, mlp_bias=False, qk_norm="vector"),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        windows="pattern",
        inert=("layer_switch", "order_of_interleaved_layers"),
        defaults={"sliding_window": 4096, "sliding_window_pattern": 4},
    ),
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
        inert=("multi_query", "parallel_attn", "num_ln_in_parallel_attn"),
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
    "qwen3_next": _QWEN3_NEXT_MOE,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT_MOE,
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": _INDEXED,
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_ref": _DEEPSEEK_V4,
    "kimi_linear": Family(moe="kimi", mla=True, router_bias=True, layers="kimi"),
    "nemotron_h": Family(
        qkv_bias=_ATTENTION_BIAS,
        output_bias=_ATTENTION_BIAS,
        norms=1,
        gated=False,
        mlp_bias=Flag("mlp_bias", False),
        moe="nemotron",
        router_bias=True,
        layers="nemotron-h",
        names={"head_dim": "attention_head_dim"},
    ),
    "nemotron-nas": replace(_LLAMA, layers="blocks"),
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_text": _MINIMAX_M3,
    "minimax": _MINIMAX_01,
    "minimax_m1": _MINIMAX_01,
    "minimax_text_01": _MINIMAX_01,
    "gemma4_text": _GEMMA4,
    "gemma3n_text": _GEMMA3N,
    "mimo_v2_flash": _MIMO_V2,
    "mimo_v2": _MIMO_V2,
    "step3p5": _STEP,
    "step3p7": _STEP,
    "lfm2": _LFM2,
    "lfm2_moe": replace(_LFM2, moe="lfm2", router_bias=Flag("use_expert_bias", True)),
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
         "granitemoehybrid"),
        _STATE_SPACE,
    ),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "bert", "roberta", "xlm-roberta",
         "distilbert", "albert", "electra", "deberta", "deberta-v2", "modernbert", "nomic_bert", "clip", "siglip",
         "siglip_vision_model", "clip_vision_model", "vit", "dinov2", "swin", "wav2vec2"),
        _ENCODER,
    ),
    "mllama": "has cross-attention layers, which are not modelled",
    "mllama_text_model": "has cross-attention layers, which are not modelled",
}  # fmt: skip
"""Model types that would be misread as something else, and why."""
