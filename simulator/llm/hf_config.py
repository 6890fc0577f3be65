"""From a Hugging Face ``config.json`` to an ``Architecture``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from simulator.llm.architecture import Architecture, MtpModule
from simulator.llm.fields import Fields
from simulator.llm.hf_families import Family, Flag, known_family, refuse_unread, text_type
from simulator.llm.hf_layers import Config, Layers, uniform_layers
from simulator.llm.hf_quantization import cache_dtype, checkpoint_dtypes
from simulator.llm.layers import Tensor, group_layers, layer_order

MOST_LAYERS = 2000
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
_INHERITED = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "quantization", "architectures")
UNGATED = ("relu2", "xielu", "relu_squared")
"""Activations of feed-forward layers with two matrices instead of Llama's three."""
_MTP_NORMS = 3
"""Additional norms of an MTP layer: on hidden state and embedding, and before the LM head."""


def from_hf_config(
    config: Mapping[str, object], *, name: str | None = None, source: str = "config.json"
) -> Architecture:
    """Read a decoder-only language model from the fields of its Hugging Face ``config.json``.

    Of a multimodal model the text part is read. A key that may state a shape (``hf_names.yaml``) and that the model's
    family does not read is refused; other keys without a meaning here are ignored, as every library ignores some.

    Args:
        config: the parsed JSON object.
        name: name of the model; by default the config's ``_name_or_path`` or its ``model_type``.
        source: file name for errors, stored as the architecture's source.

    Raises:
        ForerunError: a field is missing, invalid, or of an unsupported model; one line that names source and field.
    """
    outer = Fields.of(config, source)
    if outer.has("thinker_config"):  # Qwen's models that also speak: the part that reads and writes text
        outer = outer.section("thinker_config")
    fields, notes = _text_part(outer)
    family, fields = _family(fields)
    read = Config(
        fields=fields,
        family=family,
        num_layers=fields.whole("num_hidden_layers", high=MOST_LAYERS),
        hidden=fields.whole("hidden_size"),
        max_position=fields.whole_or("max_position_embeddings", None),
    )
    layers = _layers(family.layers, read)
    dtypes, dtype_notes = checkpoint_dtypes(fields, layers.layers, read.hidden)
    positions = 0
    if family.extra_positions is not None:
        positions = fields.whole("max_position_embeddings") + family.extra_positions
    architecture = Architecture(
        name=name or _stated_name(outer),
        hidden_size=read.hidden,
        vocab_size=fields.whole("vocab_size"),
        layer_groups=group_layers(layers.layers),
        layer_order=layer_order(layers.layers),
        tie_word_embeddings=fields.flag("tie_word_embeddings", family.tied),
        max_position=read.max_position,
        source=source,
        checkpoint_dtypes=dtypes,
        position_embeddings=positions,
        final_norm_bias=family.norm_bias,
        mtp=_mtp(fields, layers, read.hidden),
        notes=(*notes, *dtype_notes, *layers.notes),
        active_counts=family.active_counts,
        family=fields.text("model_type", ""),
        model_tensors=layers.model_tensors,
        side_embedding=layers.side_embedding,
        kv_cache_dtype=cache_dtype(fields),
    )
    for part in (outer, fields):
        refuse_unread(part)
    return architecture


def _layers(reader: str, config: Config) -> Layers:
    if reader == "uniform":
        return uniform_layers(config)
    from simulator.llm.hf_hybrid import READERS

    return READERS[reader](config)


def _text_part(outer: Fields) -> tuple[Fields, tuple[str, ...]]:
    """The language model's own fields, plus fields of the outer config for both parts."""
    key = next((key for key in _TEXT_SECTIONS if outer.has(key)), None)
    if key is None:
        if not outer.has("vocab_size") and ("vision_config" in outer.values or "image_size" in outer.values):
            outer.fail("text_config", "is missing: a vision model alone; Forerun reads language models")
        if outer.has("vision_config"):
            return outer, ("text part only; the vision encoder is left out",)
        return outer, ()
    inner = outer.section(key)
    values = dict(inner.values)
    outer.seen.update(_INHERITED)
    for shared in _INHERITED:
        if values.get(shared) is None and shared in outer.values:
            values[shared] = outer.values[shared]
    if not inner.has("model_type"):
        values["model_type"] = text_type(outer.text("model_type", ""))
    return replace(inner, values=values), ("text part only; encoders of other media are left out",)


def _family(fields: Fields) -> tuple[Family, Fields]:
    """The family of a config, and its fields under their common names, class defaults filled in."""
    model_type = fields.text("model_type", "")
    family = known_family(model_type)
    _refuse_unmodelled(fields, family)
    if family is None:
        return _generic(fields, model_type), fields
    fields.seen.update(family.inert, family.names.values())
    values = dict(fields.values)
    for common, own in family.names.items():
        if common not in values and own in values:
            values[common] = fields.get(own)
    if model_type == "nemotron_h" and values.get("num_hidden_layers") is None:
        from simulator.llm.hf_hybrid import nemotron_blocks

        values["num_hidden_layers"] = len(nemotron_blocks(fields, "hybrid_override_pattern", "layers_block_type"))
    if model_type == "falcon" and not fields.flag("new_decoder_architecture", False):
        # ``FalconConfig`` counts KV heads by three fields: grouped, one for all, or one per head
        values["num_key_value_heads"] = 1 if fields.flag("multi_query", True) else None
    for key, default in family.defaults.items():
        if values.get(key) is None and not (key == "sliding_window" and key in values):
            values[key] = default
    if model_type in ("falcon", "gpt2") and values.get("intermediate_size") is None:
        values["intermediate_size"] = 4 * fields.whole("n_embd" if model_type == "gpt2" else "hidden_size")
    if fields.has("word_embed_proj_dim") and fields.get("word_embed_proj_dim") != fields.get("hidden_size"):
        fields.fail("word_embed_proj_dim", "differs from hidden_size, which is not modelled")
    if model_type == "deepseek_v2" and fields.get("topk_method") == "noaux_tc":
        family = replace(family, router_bias=True)  # such code has V3's score-correction bias
    return family, replace(fields, values=values)


def _refuse_unmodelled(fields: Fields, family: Family | None) -> None:
    if family is not None and family.refused:
        fields.fail("model_type", f"'{fields.get('model_type')}' {family.refused}")
    if fields.flag("is_encoder_decoder", False):
        fields.fail("is_encoder_decoder", "is true: only decoder-only models are modelled")
    head = "an EAGLE-3 draft head" if fields.has("draft_vocab_size") else "a draft head"
    for architecture in fields.texts("architectures"):
        if fields.has("draft_vocab_size") or "eagle" in architecture.lower() or "medusa" in architecture.lower():
            what = f"'{architecture[:60]}' is {head}, not a model; name its folder in speculation.draft.model"
            fields.fail("architectures", what)


def _generic(fields: Fields, model_type: str) -> Family:
    """Llama's structure for an unknown type, only if the config states everything that Llama's class would imply."""
    for key in ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size", "tie_word_embeddings"):
        if model_type and not fields.has(key):
            fields.fail(
                "model_type",
                f"'{model_type[:40]}' is a type that Forerun does not know, and {key} is missing, with which it could "
                "be read as Llama; describe its layers in Forerun's own fields (docs/how-to/own-model)",
            )
        fields.require(key, "no model_type")
    for key, value in fields.values.items():
        if "expert" in key and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            fields.fail(key, f"names experts, but model_type '{model_type[:40]}' is not known here")
    if fields.text("hidden_act", "") in UNGATED:
        fields.fail(
            "hidden_act",
            f"'{fields.get('hidden_act')}' mostly has no gate, and model_type '{model_type[:40]}' is not known here",
        )
    for architecture in fields.texts("architectures"):
        if not architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")):
            fields.fail("architectures", f"'{architecture[:60]}' is not a causal language model")
    llama = known_family("llama")
    assert llama is not None
    return replace(
        llama,
        windows="upper",
        mla=fields.has("kv_lora_rank"),
        qk_norm="head",
        qk_norm_flag=Flag("use_qk_norm", False),
    )


def _mtp(fields: Fields, layers: Layers, hidden: int) -> MtpModule | None:
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    counts = [fields.whole_or(key, 0, low=0, high=MOST_LAYERS) for key in keys]
    if not any(counts):
        return None
    layer = layers.mtp or layers.layers[-1]
    projection = Tensor("eh_proj", hidden, 2 * hidden, "mlp", "replicated")
    extra = (projection, *layer.extra_tensors)
    return MtpModule(max(counts), replace(layer, norms=layer.norms + _MTP_NORMS, extra_tensors=extra))


def _stated_name(outer: Fields) -> str:
    for key in ("_name_or_path", "name_or_path", "model_type"):
        value = outer.get(key)
        if isinstance(value, str) and value:
            return " ".join(value[:120].split())
    return "custom"
