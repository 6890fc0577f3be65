"""Families whose layers differ in kind or in the sizes of their heads: one reader of layers each.

Source of each: the modelling code of that ``model_type`` in huggingface/transformers, or in SGLang and vLLM where it is
remote code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from simulator.llm.fields import LARGEST, Fields
from simulator.llm.hf_families import mixer_sizes, refuse_unread
from simulator.llm.hf_layers import (
    Config,
    Layers,
    kv_heads_of,
    layers_of,
    per_layer,
    read_attention,
    read_dense,
    read_layer_mlps,
    read_moe,
    read_windows,
)
from simulator.llm.layers import Attention, DenseMlp, FeedForward, Layer, Mixer, Tensor
from simulator.llm.mixers import (
    RECURRENT_DTYPE,
    BlockSparseAttention,
    CompressedAttention,
    GatedDeltaNet,
    IndexedAttention,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    SharedKvAttention,
    ShortConvolution,
)

_STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def state_dtype(fields: Fields, *keys: str) -> str:
    """Format of recurrent states under one of ``keys``; fp32 if none is stated."""
    stated = [fields.choice(key, _STATE_DTYPES, None) for key in keys]
    return next((_STATE_DTYPES[name] for name in stated if name), RECURRENT_DTYPE)


def _linear_kinds(config: Config, linear: str, period_key: str, period: int) -> list[bool]:
    fields, count = config.fields, config.num_layers
    if fields.has("layer_types"):
        fields.seen.add(period_key)
        return [kind == linear for kind in per_layer(fields, "layer_types", count, (linear, "full_attention"))]
    interval = fields.whole_or(period_key, period)
    return [(layer + 1) % interval != 0 for layer in range(count)]


def _delta_net(config: Config) -> Layers:
    """Qwen3-Next and Qwen3.5: gated delta nets with gated attention as every fourth layer."""
    fields = config.fields
    attention = read_attention(fields, config.family, config.hidden)
    linear = GatedDeltaNet(**mixer_sizes(fields, "delta-net"), state_dtype=state_dtype(fields, "mamba_ssm_dtype"))
    kinds = _linear_kinds(config, "linear_attention", "full_attention_interval", 4)
    layers = layers_of(config, (linear if kind else attention for kind in kinds))
    return Layers(layers, mtp=replace(layers[-1], mixer=attention))


def _kimi(config: Config) -> Layers:
    """Kimi Linear and Kimi-K3: delta attention, latent attention without rotation as every fourth layer."""
    fields = config.fields
    linear = fields.section("linear_attn_config")
    kda = {layer for layer in linear.items("kda_layers") if isinstance(layer, int)}
    full = {layer for layer in linear.items("full_attn_layers") if isinstance(layer, int)}
    if kda | full != set(range(1, config.num_layers + 1)) or kda & full:
        linear.fail("kda_layers", f"and full_attn_layers must share out layers 1 to {config.num_layers}")
    full_rank = linear.flag("use_full_rank_gate", False)
    delta = KimiDeltaAttention(**mixer_sizes(linear, "kimi"), full_rank_gate=full_rank)
    refuse_unread(linear)
    gated = fields.flag("mla_use_output_gate", False)
    attention = replace(read_attention(fields, config.family, config.hidden), output_gate="element" if gated else None)
    layers = layers_of(config, (delta if layer in kda else attention for layer in range(1, config.num_layers + 1)))
    if not fields.has("attn_res_block_size"):
        return Layers(layers)
    # attention residuals: before mixer and feed-forward, a query and a norm over what earlier blocks of layers put out
    return Layers([replace(layer, norms=layer.norms + 4) for layer in layers])


_NEMOTRON_BLOCKS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_blocks(fields: Fields, letters_key: str, names_key: str) -> list[str]:
    """Kind of each block of a Nemotron-H model, whether letters or names state it; empty if neither does."""
    letters = fields.text(letters_key, "")
    blocks = [_NEMOTRON_BLOCKS.get(letter, letter) for letter in letters] or fields.texts(names_key)
    for block in blocks:
        if block not in _NEMOTRON_BLOCKS.values():
            fields.fail(letters_key if letters else names_key, f"names a block '{block[:40]}', which is not modelled")
    return blocks


def _nemotron_h(config: Config) -> Layers:
    """Nemotron-H and Nemotron-3: every block is a mixer or a feed-forward, never both."""
    fields, family = config.fields, config.family
    blocks = nemotron_blocks(fields, "hybrid_override_pattern", "layers_block_type")
    if len(blocks) != config.num_layers:
        fields.fail("num_hidden_layers", f"is {config.num_layers}, but the pattern has {len(blocks)} blocks")
    mixers: dict[str, Mixer] = {
        "attention": read_attention(fields, family, config.hidden),
        "mamba": Mamba2(
            **mixer_sizes(fields, "nemotron-h"),
            conv_bias=fields.flag("use_conv_bias", True),
            projection_bias=fields.flag("use_bias", False),
            state_dtype=state_dtype(fields, "mamba_ssm_cache_dtype"),
        ),
    }
    mlps: dict[str, FeedForward] = {}
    if "mlp" in blocks:
        mlps["mlp"] = read_dense(fields, family)
    if "moe" in blocks:
        mlps["moe"] = read_moe(fields, family)
        fields.seen.add("intermediate_size")
    layers = [Layer(mixers.get(block), mlps.get(block), family.norms) for block in blocks]
    mtp = nemotron_blocks(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    if mtp and (len(mtp) > 2 or mtp[-1] not in mlps or mtp[0] not in mixers):
        fields.fail("mtp_layers_block_type", "must be a mixer and a feed-forward of the model's own kinds")
    return Layers(layers, mtp=Layer(mixers[mtp[0]], mlps[mtp[1]], 2) if mtp else None)


def _mamba(fields: Fields) -> Mamba2:
    """Mamba-2 of Granite 4 and Falcon-H1, with states in the model's format (vLLM's ``mamba2_state_dtype``)."""
    bias, projections = fields.flag("mamba_conv_bias", True), fields.flag("mamba_proj_bias", False)
    sizes = mixer_sizes(fields, "mamba")
    return Mamba2(**sizes, conv_bias=bias, projection_bias=projections, state_dtype="bf16")


def _granite(config: Config) -> Layers:
    """Granite 4: Mamba-2 or attention without positions, and in every layer experts or a dense feed-forward."""
    kinds = per_layer(config.fields, "layer_types", config.num_layers, ("mamba", "attention"))
    mixers = {"mamba": _mamba(config.fields), "attention": read_attention(config.fields, config.family, config.hidden)}
    return Layers(layers_of(config, (mixers[kind] for kind in kinds)))


def _falcon_h1(config: Config) -> Layers:
    """Falcon-H1: Mamba-2 and attention read the same normed state, and a dense feed-forward follows."""
    mamba, attention = _mamba(config.fields), read_attention(config.fields, config.family, config.hidden)
    pair = [Layer(mamba, None, norms=0), Layer(attention, read_dense(config.fields, config.family), norms=2)]
    note = "Mamba-2 and attention of a layer are listed as two layers, which run one after the other"
    return Layers(pair * config.num_layers, notes=(note,))


def _blocks(config: Config) -> Layers:
    """Nemotron-NAS (DeciLM): each block states the parts of Llama's layer that it keeps."""
    fields = config.fields
    entries = fields.items("block_configs")
    if len(entries) != config.num_layers:
        fields.fail("block_configs", f"lists {len(entries)} blocks, but num_hidden_layers is {config.num_layers}")
    heads = fields.whole("num_attention_heads")
    head_dim = fields.whole_or("head_dim", config.hidden // heads)
    layers = []
    for index, entry in enumerate(entries):
        block = Fields.of(entry, fields.source, f"{fields.prefix}block_configs[{index}].")
        mixing, ffn = block.section("attention"), block.section("ffn")
        for part in (mixing, ffn):
            if part.get("replace_with_linear") or part.get("sparsify"):
                part.fail("replace_with_linear", "or sparsify is set, which is not modelled")
        mixer = None
        if not mixing.flag("no_op", False):
            group = mixing.whole("n_heads_in_group")
            window = mixing.whole_or("window_length", None)
            mixer = Attention(heads, heads // group, head_dim, window=window)
        mlp = None if ffn.flag("no_op", False) else DenseMlp(_block_width(ffn, config.hidden))
        for part in (block, mixing, ffn):
            refuse_unread(part)
        layers.append(Layer(mixer, mlp, norms=(mixer is not None) + (mlp is not None)))
    fields.seen.update(("num_key_value_heads", "intermediate_size"))
    return Layers(layers)


def _block_width(ffn: Fields, hidden: int) -> int:
    """Two thirds of the multiple of 4 x hidden, rounded up to 256 (``_ffn_mult_to_intermediate_size``)."""
    if ffn.has("intermediate_size"):
        return ffn.whole("intermediate_size")
    multiple = ffn.require("ffn_mult", "a number of hidden sizes")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < LARGEST:
        ffn.fail("ffn_mult", "must be a positive number")
    return -(-int(2 * multiple * hidden / 3) // 256) * 256


def _indexed(config: Config) -> Layers:
    """DeepSeek-V3.2 and GLM-5: latent attention over keys that an indexer chooses."""
    fields, count = config.fields, config.num_layers
    mixer = IndexedAttention(read_attention(fields, config.family, config.hidden), **mixer_sizes(fields, "indexed"))
    own = [True] * count
    if fields.has("indexer_types"):
        own = [kind == "full" for kind in per_layer(fields, "indexer_types", count, ("full", "shared"))]
    if fields.has("layer_types"):
        per_layer(fields, "layer_types", count, ("deepseek_sparse_attention",))
    # restates indexer_types, and GLM states its routed experts a second time
    fields.seen.update(("index_topk_freq", "index_topk_pattern", "index_skip_topk_offset", "num_experts"))
    fields.seen.add("index_share_for_mtp_iteration")  # the MTP layer of a later pass reads the first one's choice
    layers = layers_of(config, (replace(mixer, own_indexer=one) for one in own))
    return Layers(layers, mtp=replace(layers[-1], mixer=mixer))


def _compressed(config: Config) -> Layers:
    """DeepSeek-V4: compressed sparse and heavily compressed attention in alternate layers, several residual streams."""
    fields, hidden = config.fields, config.hidden
    streams = fields.whole_or("hc_mult", 4)
    mix = Tensor("hyper_connection", (2 + streams) * streams, streams * hidden, "router", "replicated", 2)
    plain = CompressedAttention(**mixer_sizes(fields, "compressed"))
    fields.whole_or("num_key_value_heads", 1, high=1)
    sparse = replace(plain, ratio=4, **mixer_sizes(fields, "compressed-index"))
    kinds = {0: plain, 4: sparse, 128: replace(plain, ratio=128)}
    ratios = _ratios(fields, config.num_layers)
    fields.seen.update(("qk_rope_head_dim", "num_hash_layers"))  # rotated part of a head; layers that route by a table
    layers = [replace(layer, extra_tensors=(mix,)) for layer in layers_of(config, (kinds[ratio] for ratio in ratios))]
    last = fields.items("compress_ratios")[config.num_layers : config.num_layers + 1]
    mtp = replace(layers[-1], mixer=next((kind for ratio, kind in kinds.items() if [ratio] == last), plain))
    head = Tensor("hyper_connection_head", streams, streams * hidden, "router", "replicated")
    return Layers(layers, mtp=mtp, model_tensors=(head,))


def _ratios(fields: Fields, num_layers: int) -> list[int]:
    names = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    if fields.has("layer_types"):
        return [names[kind] for kind in per_layer(fields, "layer_types", num_layers, names)]
    return per_layer(fields, "compress_ratios", num_layers, names.values())


def _block_sparse(config: Config) -> Layers:
    """MiniMax-M3: grouped-query attention over the best blocks of keys, except the first layers."""
    fields, count = config.fields, config.num_layers
    attention = read_attention(fields, config.family, config.hidden)
    fields.seen.update(("moe_intermediate_size", "shared_intermediate_size", "num_mtp_modules"))
    section = fields.section("sparse_attention_config")
    if not section.flag("use_sparse_attention", True):
        section.fail("use_sparse_attention", "is false; leave sparse_attention_config out")
    sparse = per_layer(section, "sparse_attention_freq", count, (0, 1))
    no_value = [0] * count
    if section.has("sparse_disable_index_value"):
        no_value = per_layer(section, "sparse_disable_index_value", count, (0, 1))
    mixer = BlockSparseAttention(attention, **mixer_sizes(section, "block-sparse"))
    section.seen.update(("sparse_init_block", "sparse_local_block", "sparse_score_type"))  # which blocks, not how many
    refuse_unread(section)
    mixers = [
        replace(mixer, index_value=not without) if chosen else attention
        for chosen, without in zip(sparse, no_value, strict=True)
    ]
    return Layers(layers_of(config, mixers))


def _lightning(config: Config) -> Layers:
    """MiniMax-Text-01: lightning attention with softmax attention as every eighth layer."""
    fields, count = config.fields, config.num_layers
    attention = read_attention(fields, config.family, config.hidden)
    linear = LightningAttention(1, attention.num_heads, attention.head_dim)
    if fields.has("attn_type_list"):
        kinds = [kind == 0 for kind in per_layer(fields, "attn_type_list", count, (0, 1))]
    else:
        kinds = _linear_kinds(config, "linear_attention", "full_attention_interval", 8)
    if fields.whole_or("shared_intermediate_size", 0, low=0):
        fields.fail("shared_intermediate_size", "is set: shared experts of this family are not modelled")
    return Layers(layers_of(config, (linear if kind else attention for kind in kinds)))


def _convolution(config: Config) -> Layers:
    """LFM2: gated short convolutions, with attention as some layers."""
    fields, count = config.fields, config.num_layers
    attention = read_attention(fields, config.family, config.hidden)
    fields.seen.update(("conv_dim", "conv_dim_out", "block_dim", "num_heads"))  # hidden size and heads again
    convolution = ShortConvolution(
        conv_kernel=fields.whole("conv_L_cache"), channels=config.hidden, bias=fields.flag("conv_bias", False)
    )
    if fields.has("layer_types"):
        kinds = [kind == "conv" for kind in per_layer(fields, "layer_types", count, ("conv", "full_attention"))]
    else:
        full = fields.items("full_attn_idxs")
        kinds = [layer not in full for layer in range(count)]
    layers = layers_of(config, (convolution if kind else attention for kind in kinds))
    if not fields.flag("block_auto_adjust_ff_dim", False):
        return Layers(layers)
    multiple = fields.whole_or("block_multiple_of", 256)
    stated = fields.get("block_ffn_dim_multiplier")
    scale = stated if isinstance(stated, int | float) and not isinstance(stated, bool) else 1.0

    def adjusted(width: int) -> int:  # stated before Llama's two thirds and rounding (``Lfm2MLP``)
        return -(-int(float(scale) * int(2 * width / 3)) // multiple) * multiple

    return Layers([_with_width(layer, adjusted) for layer in layers])


def _with_width(layer: Layer, change: Callable[[int], int]) -> Layer:
    mlp = layer.feed_forward
    if not isinstance(mlp, DenseMlp):
        return layer
    return replace(layer, feed_forward=replace(mlp, intermediate_size=change(mlp.intermediate_size)))


def _shared_after(config: Config, mixers: list[Attention]) -> list[Mixer]:
    """Let the last ``num_kv_shared_layers`` layers read the cache of the last earlier layer of the same kind."""
    own = config.num_layers - config.fields.whole_or("num_kv_shared_layers", 0, low=0, high=config.num_layers - 1)
    return [mixer if index < own else SharedKvAttention(mixer) for index, mixer in enumerate(mixers)]


def _per_layer_inputs(config: Config, layers: list[Layer]) -> Layers:
    """Gemma's per-layer embeddings: a second embedding table, and two small matrices in each layer."""
    fields, hidden = config.fields, config.hidden
    width = fields.whole_or("hidden_size_per_layer_input", 0, low=0)
    vocabulary = fields.whole_or("vocab_size_per_layer_input", 0, low=0)
    if not width:
        return Layers(layers)
    gate = Tensor("per_layer_input_gate", width, hidden, "mlp", "replicated")
    back = Tensor("per_layer_projection", hidden, width, "mlp", "replicated")
    widened = [
        replace(layer, norms=layer.norms + 1, extra_tensors=(*layer.extra_tensors, gate, back)) for layer in layers
    ]
    columns = width * config.num_layers
    projection = Tensor("per_layer_model_projection", columns, hidden, "mlp", "replicated")
    return Layers(widened, model_tensors=(projection,), side_embedding=vocabulary * columns)


def _gemma4(config: Config) -> Layers:
    """Gemma 4: global layers with wider heads, fewer KV heads, and values that are the keys."""
    fields, family = config.fields, config.family
    local = read_attention(fields, family, config.hidden)
    equal = fields.flag("attention_k_eq_v", False)
    kv_key = "num_global_key_value_heads" if equal and fields.has("num_global_key_value_heads") else ""
    far = replace(
        local,
        head_dim=fields.whole_or("global_head_dim", local.head_dim),
        num_kv_heads=kv_heads_of(fields, kv_key, local.num_heads) if kv_key else local.num_kv_heads,
        shared_key_value=equal,
    )
    fields.seen.update(("num_global_key_value_heads", "expert_intermediate_size"))
    windows, _ = read_windows(fields, family, config.num_layers, config.max_position)
    mixers = [replace(far if window is None else local, window=window) for window in windows]
    moe = fields.flag("enable_moe_block", False)
    layers = layers_of(config, _shared_after(config, mixers))
    if moe:  # three norms around the experts, and the router's scale
        layers = [replace(layer, norms=layer.norms + 4) for layer in layers]
    if fields.flag("use_double_wide_mlp", False):
        layers = [
            _with_width(layer, lambda width: 2 * width) if isinstance(layer.mixer, SharedKvAttention) else layer
            for layer in layers
        ]
    return _per_layer_inputs(config, layers)


def _gemma3n(config: Config) -> Layers:
    """Gemma 3n: shared KV, per-layer embeddings, a low-rank residual and several residual streams (AltUp)."""
    fields, hidden = config.fields, config.hidden
    widths = fields.get("intermediate_size")
    if isinstance(widths, list):
        listed = per_layer(fields, "intermediate_size", config.num_layers, widths)
        mlps: list[FeedForward] = [DenseMlp(fields._whole("intermediate_size", width, 1, LARGEST)) for width in listed]
    else:
        mlps = read_layer_mlps(config)
    local = read_attention(fields, config.family, hidden)
    windows, _ = read_windows(fields, config.family, config.num_layers, config.max_position)
    mixers = _shared_after(config, [replace(local, window=window) for window in windows])
    rank, streams = fields.whole_or("laurel_rank", 64), fields.whole_or("altup_num_inputs", 4)
    extra = (
        Tensor("laurel_left", rank, hidden, "mlp", "replicated"),
        Tensor("laurel_right", hidden, rank, "mlp", "replicated"),
        Tensor("altup_router", streams, hidden, "router", "replicated"),
        Tensor("altup_coefficients", streams * (streams + 1), streams, "router", "replicated"),
    )
    layers = [
        Layer(mixer, mlp, config.family.norms + 3, extra_tensors=extra)  # of laurel, of altup's router, of its output
        for mixer, mlp in zip(mixers, mlps, strict=True)
    ]
    fields.seen.update(("altup_active_idx", "activation_sparsity_pattern"))
    described = _per_layer_inputs(config, layers)
    projections = Tensor("altup_projections", hidden, hidden, "mlp", "replicated", 2 * (streams - 1))
    return described._replace(model_tensors=(*described.model_tensors, projections))


def _mimo(config: Config) -> Layers:
    """MiMo-V2: windowed layers with KV heads and sinks of their own; values narrower than keys."""
    fields, family, count = config.fields, config.family, config.num_layers
    sinks = fields.flag("add_full_attention_sink_bias", False)
    full = replace(
        read_attention(fields, family, config.hidden), v_head_dim=fields.whole_or("v_head_dim", None), sinks=sinks
    )
    window = fields.whole("sliding_window" if fields.has("sliding_window") else "sliding_window_size")
    heads = fields.whole_or("swa_num_attention_heads", full.num_heads)
    key = "swa_num_key_value_heads" if fields.has("swa_num_key_value_heads") else "num_key_value_heads"
    near = replace(
        full,
        num_heads=heads,
        num_kv_heads=kv_heads_of(fields, key, heads),
        head_dim=fields.whole_or("swa_head_dim", full.head_dim),
        v_head_dim=fields.whole_or("swa_v_head_dim", full.v_head_dim),
        window=window,
        sinks=fields.flag("add_swa_attention_sink_bias", False),
    )
    fields.seen.update(("sliding_window_size", "attention_chunk_size"))  # the window again
    pattern = per_layer(fields, "hybrid_layer_pattern", count, (0, 1))
    layers = layers_of(config, (near if kind else full for kind in pattern))
    return Layers(layers, mtp=Layer(near, read_dense(fields, family)))


def _step(config: Config) -> Layers:
    """Step-3.5 and Step-3.7 Flash: windowed layers that may have more heads; a gate per head."""
    fields, family = config.fields, config.family
    full = read_attention(fields, family, config.hidden)
    if fields.flag("use_head_wise_attn_gate", False):
        full = replace(full, output_gate="head")
    near = full
    if fields.has("attention_other_setting"):
        other = fields.section("attention_other_setting")
        other.texts("attention_types")
        heads = other.whole_or("num_attention_heads", full.num_heads)
        kv_key = "num_key_value_heads" if other.has("num_key_value_heads") else "num_attention_groups"
        width = other.whole_or("head_dim", full.head_dim)
        near = replace(full, num_heads=heads, num_kv_heads=kv_heads_of(other, kv_key, heads), head_dim=width)
        other.seen.update(("attention_type", "true_head_dim"))
        refuse_unread(other)
    fields.seen.update(("n_shared_experts", "num_experts", "num_experts_per_tok", "use_moe"))
    kinds = per_layer(fields, "layer_types", config.num_layers, ("full_attention", "sliding_attention"))
    window = fields.whole("sliding_window") if "sliding_attention" in kinds else None
    near = replace(near, window=window)
    layers = layers_of(config, (full if kind == "full_attention" else near for kind in kinds))
    return Layers(layers, mtp=Layer(near, read_dense(fields, family)))


READERS: Mapping[str, Callable[[Config], Layers]] = {
    "delta-net": _delta_net,
    "kimi": _kimi,
    "nemotron-h": _nemotron_h,
    "granite": _granite,
    "falcon-h1": _falcon_h1,
    "blocks": _blocks,
    "indexed": _indexed,
    "compressed": _compressed,
    "block-sparse": _block_sparse,
    "lightning": _lightning,
    "convolution": _convolution,
    "gemma4": _gemma4,
    "gemma3n": _gemma3n,
    "mimo": _mimo,
    "step": _step,
}
"""Readers of layers by the name in ``Family.layers``."""
