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
from dataclasses import MISSING, replace
from dataclasses import fields as dataclass_fields
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from simulator.llm.architecture import Architecture
from simulator.llm.fields import Fields
from simulator.llm.layers import PARTS, Attention, DenseMlp, FeedForward, LatentMoeMlp, Layer, LayerGroup, Mixer, MoeMlp

Described = TypeVar("Described")

_MODEL_FIELDS = ("name", "hidden_size", "vocab_size", "tie_word_embeddings", "max_position", "source",
                 "checkpoint_dtypes", "layers")  # fmt: skip
_LAYER_FIELDS = ("count", "attention", "mlp", "norms", "norm_bias")
_MOST_LAYERS = 10_000


def is_own_format(values: Mapping[str, object]) -> bool:
    """True if a mapping is in Forerun's own fields rather than a Hugging Face config."""
    return "layers" in values and "num_hidden_layers" not in values and "model_type" not in values


def from_own_fields(values: Mapping[str, object], *, source: str = "model") -> Architecture:
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
        name=fields.text("name", "") or "custom",
        hidden_size=fields.whole("hidden_size"),
        vocab_size=fields.whole("vocab_size"),
        layer_groups=tuple(
            _group(Fields.of(entry, source, f"layers[{index}].")) for index, entry in enumerate(entries)
        ),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        max_position=fields.whole_or("max_position", None),
        source=fields.text("source", "") or source,
        checkpoint_dtypes=_dtypes(fields, "checkpoint_dtypes"),
    )


def _dtypes(fields: Fields, key: str) -> dict[str, str]:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return dict.fromkeys(PARTS, value or "bf16")
    parts = fields.section(key)
    parts.refuse_others(PARTS)
    return {part: parts.text(part, "bf16") for part in PARTS}


def _group(fields: Fields) -> LayerGroup:
    fields.refuse_others(_LAYER_FIELDS)
    mixer = _mixer(fields.section("attention")) if fields.has("attention") else None
    mlp = _mlp(fields.section("mlp")) if fields.has("mlp") else None
    if mixer is None and mlp is None:
        fields.fail("attention", "and mlp are both missing: a layer has at least one of them")
    layer = Layer(
        mixer,
        mlp,
        norms=fields.whole_or("norms", (mixer is not None) + (mlp is not None), low=0, high=16),
        norm_bias=fields.flag("norm_bias", False),
    )
    return LayerGroup(layer, fields.whole_or("count", 1, high=_MOST_LAYERS))


def _mixer(fields: Fields) -> Mixer:
    from simulator.llm.mixers import MIXERS

    kind = fields.choice("kind", ("gqa", "mla", *MIXERS), "gqa")
    return _built(fields, MIXERS[kind], "kind") if kind in MIXERS else _attention(fields, kind)


def _attention(fields: Fields, kind: str) -> Attention:
    heads = fields.whole("num_heads")
    if kind == "mla":
        values = {"num_kv_heads": 1, "head_dim": fields.whole("qk_nope_head_dim") + fields.whole("qk_rope_head_dim")}
        for key in ("kv_lora_rank", "v_head_dim"):
            fields.whole(key)
    else:
        for key in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
            if fields.has(key):
                fields.fail(key, "belongs to kind: mla")
        values = {"num_kv_heads": fields.whole_or("num_kv_heads", heads)}
        if heads % values["num_kv_heads"]:
            fields.fail("num_kv_heads", f"{values['num_kv_heads']} does not divide num_heads {heads}")
    return _built(replace(fields, values={**fields.values, "kind": kind, **values}), Attention)


def _mlp(fields: Fields) -> FeedForward:
    if not fields.has("num_experts"):
        return _built(fields, DenseMlp)
    experts, picked = fields.whole("num_experts"), fields.whole("experts_per_token")
    if picked > experts:
        fields.fail("experts_per_token", f"{picked} exceeds num_experts {experts}")
    return _built(fields, LatentMoeMlp if fields.has("latent_size") else MoeMlp)


_OPTIONAL_ZERO = ("shared_intermediate_size", "ratio", "top_k", "index_heads", "index_head_dim")
"""Fields for which zero means absent."""


def _built(fields: Fields, kind: type[Described], *besides: str) -> Described:
    """Build an object from fields with the same names; fields with a default may be omitted.

    Raises:
        ForerunError: an unknown field, a missing field, or a wrong value.
    """
    described = {field.name: field.default for field in dataclass_fields(kind)}  # type: ignore[arg-type]
    fields.refuse_others((*described, *besides))
    types = get_type_hints(kind)
    return kind(**{name: _value(fields, name, types[name], default) for name, default in described.items()})


def _value(fields: Fields, name: str, expected: object, default: object) -> object:
    required = default is MISSING
    if expected is Attention:
        return _attention(section := fields.section(name), section.choice("kind", ("gqa", "mla"), "gqa") or "gqa")
    if not required and not fields.has(name):
        return default
    if expected is bool:
        return fields.flag(name, False)
    options = [option for option in (expected, *get_args(expected)) if get_origin(option) is Literal]
    if options or expected is str:
        allowed = get_args(options[0]) if options else ("fp32", "bf16", "fp16")
        return fields.choice(name, allowed, None)
    return fields.whole(name, low=0 if name in _OPTIONAL_ZERO else 1)
