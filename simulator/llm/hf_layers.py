"""Attention, windows and feed-forward of each layer, as a Hugging Face config states them.

Every reader raises ForerunError, which names source and field, if a field is missing, invalid or not supported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simulator.llm.fields import Fields
from simulator.llm.hf_families import Family, Flag, moe_names
from simulator.llm.layers import (
    Attention,
    DenseMlp,
    FeedForward,
    LatentMoeMlp,
    Layer,
    Mixer,
    MoeMlp,
    QkNorm,
    Tensor,
)

CHUNK_NOTE = "chunked attention is priced as a sliding window of the chunk's size: an upper bound on keys read"
_FULL_TYPES = ("full_attention", "attention", "global")
_WINDOW_FIELDS = {
    "sliding_attention": "sliding_window",
    "local": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


@dataclass(frozen=True, slots=True)
class Config:
    """A config.json with normalised field names, and the values that every reader of layers needs."""

    fields: Fields
    family: Family
    num_layers: int
    hidden: int
    max_position: int | None


class Layers(NamedTuple):
    """Result of a reader of layers."""

    layers: list[Layer]
    mtp: Layer | None = None
    """Layer of a multi-token-prediction module; None if it equals the model's last layer."""
    notes: tuple[str, ...] = ()
    model_tensors: tuple[Tensor, ...] = ()
    side_embedding: int = 0


def uniform_layers(config: Config) -> Layers:
    """Layers that differ only in attention window and feed-forward (experts or dense)."""
    fields, family = config.fields, config.family
    windows, notes = read_windows(fields, family, config.num_layers, config.max_position)
    attention = read_attention(fields, family, config.hidden)
    if fields.has("attn_type_list"):
        per_layer(fields, "attn_type_list", config.num_layers, (1,))
    return Layers(layers_of(config, (replace(attention, window=window) for window in windows)), notes=notes)


def layers_of(config: Config, mixers: Iterable[Mixer | None]) -> list[Layer]:
    """One layer for each mixer, with the feed-forwards that the config lists, in order."""
    family = config.family
    mlps = read_layer_mlps(config)
    return [Layer(m, mlp, family.norms, family.norm_bias) for m, mlp in zip(mixers, mlps, strict=True)]


def stated(fields: Fields, flag: Flag | bool) -> bool:
    """True if a flag is set, by the family or by the config."""
    return flag if isinstance(flag, bool) else fields.flag(flag.key, flag.default)


def read_attention(fields: Fields, family: Family, hidden: int) -> Attention:
    """Attention that all layers share, except their windows."""
    heads = fields.whole("num_attention_heads")
    qkv_bias, output_bias = stated(fields, family.qkv_bias), stated(fields, family.output_bias)
    if family.mla:
        fields.seen.update(("num_key_value_heads", "head_dim", "qk_head_dim"))  # implied by what is read here
        nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
        return Attention(
            kind="mla",
            num_heads=heads,
            num_kv_heads=1,
            head_dim=nope + rope,
            v_head_dim=fields.whole("v_head_dim"),
            q_lora_rank=fields.whole_or("q_lora_rank", 0, low=0) or None,
            kv_lora_rank=fields.whole("kv_lora_rank"),
            qk_nope_head_dim=nope,
            qk_rope_head_dim=rope,
            qkv_bias=qkv_bias,
            output_bias=output_bias,
        )
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads_of(fields, "num_key_value_heads", heads),
        head_dim=_head_dim(fields, family, hidden, heads),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=_qk_norm(fields, family),
        sinks=family.sinks,
        output_gate="element" if stated(fields, family.output_gate) else None,
    )


def kv_heads_of(fields: Fields, key: str, heads: int) -> int:
    """Number of KV heads under ``key``; if absent, the number of heads."""
    kv_heads = fields.whole_or(key, heads)
    if heads % kv_heads:
        fields.fail(key, f"{kv_heads} does not divide num_attention_heads {heads}")
    return kv_heads


def per_layer(fields: Fields, key: str, num_layers: int, allowed: Iterable[Any]) -> list[Any]:
    """A list with one of ``allowed`` for each layer; further entries, for MTP layers, are accepted."""
    values, known = fields.items(key), list(allowed)
    if len(values) < num_layers:
        fields.fail(key, f"lists {len(values)} layers, but num_hidden_layers is {num_layers}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | str) or value not in known:
            fields.fail(key, f"names {str(value)[:40]!r}, which is not modelled (one of {', '.join(map(str, known))})")
    return values[:num_layers]


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    default = family.head_dim
    if default is None and not fields.has("head_dim") and hidden % heads:
        fields.fail("num_attention_heads", f"{heads} does not divide hidden_size {hidden}, and head_dim is missing")
    return fields.whole_or("head_dim", default or hidden // heads)


def _qk_norm(fields: Fields, family: Family) -> QkNorm | None:
    return family.qk_norm if family.qk_norm and stated(fields, family.qk_norm_flag) else None


def read_windows(
    fields: Fields, family: Family, num_layers: int, max_position: int | None
) -> tuple[list[int | None], tuple[str, ...]]:
    """Attention window of each layer in tokens (None: full), and remarks.

    A window that covers the longest context is none.
    """
    kinds = fields.texts("layer_types")
    if kinds and len(kinds) != num_layers:
        fields.fail("layer_types", f"lists {len(kinds)} layers, but num_hidden_layers is {num_layers}")
    kinds = kinds or _implied_kinds(fields, family, num_layers)
    windows: list[int | None] = []
    for kind in kinds:
        key = _WINDOW_FIELDS.get(kind)
        if key is None and kind not in _FULL_TYPES:
            fields.fail("layer_types", f"names '{kind[:40]}', which is not modelled")
        size = fields.whole(key) if key else None
        windows.append(None if size is None or (max_position is not None and size >= max_position) else size)
    chunked = "chunked_attention" in kinds and any(windows)
    return windows, (CHUNK_NOTE,) if chunked else ()


def _implied_kinds(fields: Fields, family: Family, num_layers: int) -> list[str]:
    full, sliding = "full_attention", "sliding_attention"
    layers = range(num_layers)
    if family.windows == "chunked":
        return ["chunked_attention" if rotary else full for rotary in _rotary_layers(fields, num_layers)]
    if family.windows == "none" or fields.whole_or("sliding_window", None, low=0) in (None, 0):
        return [full] * num_layers
    if family.windows == "all":
        return [sliding if fields.flag("use_sliding_window", True) else full] * num_layers
    if family.windows == "upper":
        first = fields.whole_or("max_window_layers", 0, low=0)
        windowed = fields.flag("use_sliding_window", False)
        return [sliding if windowed and layer >= first else full for layer in layers]
    if family.windows == "alternate":
        return [full if layer % 2 else sliding for layer in layers]
    key = "_sliding_window_pattern" if fields.has("_sliding_window_pattern") else "sliding_window_pattern"
    period = fields.whole(key)
    return [sliding if (layer + 1) % period else full for layer in layers]


def _rotary_layers(fields: Fields, num_layers: int) -> list[bool]:
    """True for each layer of Llama 4 with rotary embedding: every 4th has none (``no_rope_layer_interval``)."""
    listed = fields.items("no_rope_layers")
    if listed:
        if len(listed) != num_layers:
            fields.fail("no_rope_layers", f"lists {len(listed)} layers, but num_hidden_layers is {num_layers}")
        return [bool(value) for value in listed]
    interval = fields.whole_or("no_rope_layer_interval", 4)
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def read_layer_mlps(config: Config) -> list[FeedForward]:
    fields, family = config.fields, config.family
    sparse = _sparse_layers(fields, family, config.num_layers)
    moe = read_moe(fields, family) if any(sparse) else None
    dense = None if all(sparse) else read_dense(fields, family)
    if moe is not None:
        fields.seen.update(("intermediate_size", "intermediate_size_mlp"))  # of dense layers, where there are none
    return [mlp for is_sparse in sparse if (mlp := moe if is_sparse else dense) is not None]


def read_dense(fields: Fields, family: Family) -> DenseMlp:
    """The feed-forward of layers without experts."""
    own = moe_names(family.moe).dense_width if family.moe else None
    width = fields.whole(own if own and fields.has(own) else "intermediate_size")
    return DenseMlp(width, gated=family.gated, bias=stated(fields, family.mlp_bias))


def _sparse_layers(fields: Fields, family: Family, num_layers: int) -> list[bool]:
    layers = range(num_layers)
    if family.moe is None:
        return [False] * num_layers
    kinds = fields.texts("mlp_layer_types")
    if kinds:
        if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
            fields.fail("mlp_layer_types", f"must list 'dense' or 'sparse' for each of {num_layers} layers")
        fields.seen.update(("moe_layer_freq", "first_k_dense_replace"))  # the same once more
        return [kind == "sparse" for kind in kinds]
    if family.moe in ("mixtral", "gemma4"):
        return [family.moe == "mixtral" or fields.flag("enable_moe_block", False)] * num_layers
    if family.moe == "granite":
        return [fields.whole_or("num_local_experts", 0, low=0) > 0] * num_layers
    if family.moe == "qwen":
        step = fields.whole_or("decoder_sparse_step", 1)
        dense = {_layer_index(fields, "mlp_only_layers", layer) for layer in fields.items("mlp_only_layers")}
        return [layer not in dense and (layer + 1) % step == 0 for layer in layers]
    if family.moe == "llama4":
        listed = fields.items("moe_layers")
        if listed:
            chosen = {_layer_index(fields, "moe_layers", layer) for layer in listed}
            return [layer in chosen for layer in layers]
        step = fields.whole_or("interleave_moe_layer_step", 1)
        return [(layer + 1) % step == 0 for layer in layers]
    return _sparse_after_dense(fields, family, num_layers)


def _sparse_after_dense(fields: Fields, family: Family, num_layers: int) -> list[bool]:
    """Layers with experts: all after the first few, or the listed ones."""
    if isinstance(fields.get("moe_layer_freq"), list):
        return [flag == 1 for flag in per_layer(fields, "moe_layer_freq", num_layers, (0, 1))]
    listed = fields.text("moe_layers_enum", "") if family.moe == "step" else ""
    if listed:
        if not all(part.strip().isdigit() for part in listed.split(",")):
            fields.fail("moe_layers_enum", "must list layer numbers with commas between them")
        chosen = {int(part) for part in listed.split(",")}
        return [layer in chosen for layer in range(num_layers)]
    first_sparse = fields.whole_or("num_dense_layers" if family.moe == "lfm2" else "first_k_dense_replace", 0, low=0)
    frequency = fields.whole_or("moe_layer_freq", 1)
    if family.moe == "deepseek" and not fields.has("n_routed_experts"):
        return [False] * num_layers
    last = fields.whole_or("moe_layer_end_index", -1, low=-1)
    end = num_layers if last < 0 else last + 1
    return [first_sparse <= layer < end and layer % frequency == 0 for layer in range(num_layers)]


def _layer_index(fields: Fields, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        fields.fail(key, "must list layer numbers")
    return value


def read_moe(fields: Fields, family: Family) -> MoeMlp:
    """Experts by the names that each family gives their fields."""
    assert family.moe is not None
    names = moe_names(family.moe)
    fields = fields.collapsed(names)
    width, count = fields.whole(names.width), fields.whole(names.experts)
    if family.moe == "qwen":
        shared = fields.whole_or("shared_expert_intermediate_size", 0, low=0) if family.shared_gate else 0
    else:
        each = fields.whole(names.shared_width) if names.shared_width else width
        shared = each * (fields.whole_or(names.shared_count, 0, low=0) if names.shared_count else 1)
        shared = shared if names.shared_count or names.shared_width else 0
    older_name = "experts_per_token" if fields.has("experts_per_token") else names.picked
    picked_key = names.picked if fields.has(names.picked) else older_name
    picked = fields.whole(picked_key)
    if picked > count:
        fields.fail(picked_key, f"{picked} exceeds {names.experts} {count}")
    moe = MoeMlp(
        num_experts=count,
        experts_per_token=picked,
        intermediate_size=width,
        shared_intermediate_size=shared,
        gated=family.gated,
        bias=stated(fields, family.mlp_bias),
        router_bias=stated(fields, family.router_bias),
        shared_gate=family.shared_gate and shared > 0,
    )
    if names.latent_width is None or not fields.has(names.latent_width):
        return moe
    latent = LatentMoeMlp(**{name: getattr(moe, name) for name in MoeMlp.__dataclass_fields__})
    normed = family.moe == "kimi" and fields.flag("latent_moe_use_norm", False)
    return replace(latent, latent_size=fields.whole(names.latent_width), latent_norm=normed)
