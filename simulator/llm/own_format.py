"""A model in Forerun's own fields: layer groups written out, for architectures that no config.json describes.

name: my-model
hidden_size: 4096
vocab_size: 128000
layers:
  - count: 32
    attention: {num_heads: 32, num_kv_heads: 8, head_dim: 128}
    mlp: {intermediate_size: 14336}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any, get_args

from simulator.llm.architecture import Architecture
from simulator.llm.fields import Fields
from simulator.llm.hf_quantization import own_dtypes
from simulator.llm.layers import Attention, DenseMlp, Layer, LayerGroup, MoeMlp, QkNorm

_MODEL_FIELDS = ("name", "hidden_size", "vocab_size", "tie_word_embeddings", "max_position", "source",
                 "checkpoint_dtypes", "layers")  # fmt: skip
_LAYER_FIELDS = ("count", "attention", "mlp", "norms", "norm_bias")
_MOST_LAYERS = 10_000


def is_own_format(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is in Forerun's own fields rather than a Hugging Face config."""
    return "layers" in values and "num_hidden_layers" not in values and "model_type" not in values


def from_own_fields(values: Mapping[str, Any], *, name: str | None = None, source: str = "model") -> Architecture:
    """Read a model in Forerun's own fields; unknown fields are refused.

    Raises:
        ForerunError: a field is unknown, missing or wrong; one line naming source and field.
    """
    fields = Fields.of(values, source)
    fields.refuse_others(_MODEL_FIELDS)
    entries = fields.items("layers")
    if not entries:
        fields.fail("layers", "must list at least one group of layers")
    return Architecture(
        name=name or fields.text("name", "") or "custom",
        hidden_size=fields.whole("hidden_size"),
        vocab_size=fields.whole("vocab_size"),
        layer_groups=tuple(
            _group(Fields.of(entry, source, f"layers[{index}].")) for index, entry in enumerate(entries)
        ),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        max_position=fields.whole_or("max_position", None),
        source=fields.text("source", "") or source,
        checkpoint_dtypes=own_dtypes(fields, "checkpoint_dtypes"),
    )


def _group(fields: Fields) -> LayerGroup:
    fields.refuse_others(_LAYER_FIELDS)
    layer = Layer(
        attention=_attention(fields.section("attention")),
        mlp=_mlp(fields.section("mlp")),
        norms=fields.whole_or("norms", 2, low=0, high=16),
        norm_bias=fields.flag("norm_bias", False),
    )
    return LayerGroup(layer, fields.whole_or("count", 1, high=_MOST_LAYERS))


def _attention(fields: Fields) -> Attention:
    fields.refuse_others(field.name for field in dataclass_fields(Attention))
    heads = fields.whole("num_heads")
    qkv_bias, output_bias = fields.flag("qkv_bias", False), fields.flag("output_bias", False)
    window = fields.whole_or("window", None)
    if fields.choice("kind", ("gqa", "mla"), "gqa") == "mla":
        nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
        return Attention(
            kind="mla",
            num_heads=heads,
            num_kv_heads=1,
            head_dim=nope + rope,
            v_head_dim=fields.whole("v_head_dim"),
            window=window,
            q_lora_rank=fields.whole_or("q_lora_rank", None),
            kv_lora_rank=fields.whole("kv_lora_rank"),
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
        )
    for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        if fields.has(key):
            fields.fail(key, "belongs to kind: mla")
    kv_heads = fields.whole_or("num_kv_heads", heads)
    if heads % kv_heads:
        fields.fail("num_kv_heads", f"{kv_heads} does not divide num_heads {heads}")
    norm = fields.choice("qk_norm", get_args(QkNorm), None)
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=fields.whole("head_dim"),
        v_head_dim=fields.whole_or("v_head_dim", None),
        window=window,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=next((kind for kind in get_args(QkNorm) if kind == norm), None),
        sinks=fields.flag("sinks", False),
    )


def _mlp(fields: Fields) -> DenseMlp | MoeMlp:
    width = fields.whole("intermediate_size")
    gated, bias = fields.flag("gated", True), fields.flag("bias", False)
    if not fields.has("num_experts"):
        fields.refuse_others(field.name for field in dataclass_fields(DenseMlp))
        return DenseMlp(width, gated=gated, bias=bias)
    fields.refuse_others(field.name for field in dataclass_fields(MoeMlp))
    experts, picked = fields.whole("num_experts"), fields.whole("experts_per_token")
    if picked > experts:
        fields.fail("experts_per_token", f"{picked} exceeds num_experts {experts}")
    return MoeMlp(
        num_experts=experts,
        experts_per_token=picked,
        intermediate_size=width,
        shared_intermediate_size=fields.whole_or("shared_intermediate_size", 0, low=0),
        gated=gated,
        bias=bias,
        router_bias=fields.flag("router_bias", False),
        shared_gate=fields.flag("shared_gate", False),
    )
