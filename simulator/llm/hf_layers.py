"""Attention, windows and feed-forward of each layer, as a Hugging Face config states them."""

from __future__ import annotations

from simulator.llm.fields import Fields
from simulator.llm.hf_families import Family, Flag
from simulator.llm.layers import Attention, DenseMlp, MoeMlp, QkNorm

CHUNK_NOTE = "chunked attention is priced as a sliding window of the chunk's size: an upper bound on keys read"
_FULL_TYPES = ("full_attention", "attention", "global")
_WINDOW_FIELDS = {
    "sliding_attention": "sliding_window",
    "local": "sliding_window",
    "chunked_attention": "attention_chunk_size",
}


def stated(fields: Fields, flag: Flag | bool) -> bool:
    """A boolean fixed by the family, or read from the config."""
    return flag if isinstance(flag, bool) else fields.flag(flag.key, flag.default)


def read_attention(fields: Fields, family: Family, hidden: int) -> Attention:
    """Attention that all layers share, apart from their windows.

    Raises:
        ForerunError: heads that do not divide, or a field missing or wrong.
    """
    heads = fields.whole("num_attention_heads")
    qkv_bias, output_bias = stated(fields, family.qkv_bias), stated(fields, family.output_bias)
    if family.mla:
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
    kv_heads = fields.whole_or("num_key_value_heads", heads)
    if heads % kv_heads:
        fields.fail("num_key_value_heads", f"{kv_heads} does not divide num_attention_heads {heads}")
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=_head_dim(fields, family, hidden, heads),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=_qk_norm(fields, family),
        sinks=family.sinks,
    )


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    default = family.head_dim
    if default is None and not fields.has("head_dim") and hidden % heads:
        fields.fail("num_attention_heads", f"{heads} does not divide hidden_size {hidden}, and head_dim is missing")
    return fields.whole_or("head_dim", default or hidden // heads)


def _qk_norm(fields: Fields, family: Family) -> QkNorm | None:
    on = family.qk_norm_flag is None or stated(fields, family.qk_norm_flag)
    return family.qk_norm if on else None


def read_windows(
    fields: Fields, family: Family, num_layers: int, max_position: int | None
) -> tuple[list[int | None], tuple[str, ...]]:
    """Attention window of each layer in tokens (None: full), and remarks.

    A window that covers the longest context is none.

    Raises:
        ForerunError: ``layer_types`` of another length or with an unknown kind, or a window without a size.
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
    """Kind of each layer by the family's rule, where the config has no ``layer_types``."""
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
    """Whether each layer of Llama 4 has rotary embedding: every 4th has none (``no_rope_layer_interval``)."""
    listed = fields.items("no_rope_layers")
    if listed:
        if len(listed) != num_layers:
            fields.fail("no_rope_layers", f"lists {len(listed)} layers, but num_hidden_layers is {num_layers}")
        return [bool(value) for value in listed]
    interval = fields.whole_or("no_rope_layer_interval", 4)
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]


def read_layer_mlps(fields: Fields, family: Family, num_layers: int, hidden: int) -> list[DenseMlp | MoeMlp]:
    """Feed-forward of each layer.

    Raises:
        ForerunError: a field missing or wrong, or more experts per token than experts.
    """
    sparse = _sparse_layers(fields, family, num_layers)
    moe = _read_moe(fields, family) if any(sparse) else None
    dense = None if all(sparse) else _read_dense(fields, family)
    mlps: list[DenseMlp | MoeMlp] = []
    for is_sparse in sparse:
        mlp = moe if is_sparse else dense
        assert mlp is not None
        mlps.append(mlp)
    return mlps


def _read_dense(fields: Fields, family: Family) -> DenseMlp:
    llama4_width = family.moe == "llama4" and fields.has("intermediate_size_mlp")
    width = fields.whole("intermediate_size_mlp" if llama4_width else "intermediate_size")
    return DenseMlp(width, gated=family.gated, bias=stated(fields, family.mlp_bias))


def _sparse_layers(fields: Fields, family: Family, num_layers: int) -> list[bool]:
    """Whether each layer has experts."""
    layers = range(num_layers)
    if family.moe is None:
        return [False] * num_layers
    kinds = fields.texts("mlp_layer_types")
    if kinds:
        if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
            fields.fail("mlp_layer_types", f"must list 'dense' or 'sparse' for each of {num_layers} layers")
        return [kind == "sparse" for kind in kinds]
    if family.moe == "mixtral":
        return [True] * num_layers
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
    first_sparse = fields.whole_or("first_k_dense_replace", 0, low=0)
    frequency = fields.whole_or("moe_layer_freq", 1)
    if not fields.has("n_routed_experts"):
        return [False] * num_layers
    return [layer >= first_sparse and layer % frequency == 0 for layer in layers]


def _layer_index(fields: Fields, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        fields.fail(key, "must list layer numbers")
    return value


def _read_moe(fields: Fields, family: Family) -> MoeMlp:
    """Experts by the names that each family gives their fields."""
    shared = 0
    if family.moe == "deepseek":
        experts, width = "n_routed_experts", fields.whole("moe_intermediate_size")
        shared = fields.whole_or("n_shared_experts", 0, low=0) * width
    elif family.moe == "qwen":
        experts, width = "num_experts", fields.whole("moe_intermediate_size")
        shared = fields.whole_or("shared_expert_intermediate_size", 0, low=0) if family.shared_gate else 0
    else:
        experts, width = "num_local_experts", fields.whole("intermediate_size")
        shared = width if family.moe == "llama4" else 0
    count = fields.whole(experts)
    older_name = "experts_per_token" if fields.has("experts_per_token") else "num_experts_per_tok"
    picked_key = "num_experts_per_tok" if fields.has("num_experts_per_tok") else older_name
    picked = fields.whole(picked_key)
    if picked > count:
        fields.fail(picked_key, f"{picked} exceeds {experts} {count}")
    return MoeMlp(
        num_experts=count,
        experts_per_token=picked,
        intermediate_size=width,
        shared_intermediate_size=shared,
        gated=family.gated,
        bias=stated(fields, family.mlp_bias),
        router_bias=stated(fields, family.router_bias),
        shared_gate=family.shared_gate and shared > 0,
    )
