"""Draft heads trained on a target's hidden states (EAGLE, EAGLE-3, P-EAGLE): public ones, or sized by the target."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged
from simulator.llm.architecture import Architecture
from simulator.llm.layers import Attention, DenseMlp, Layer, LayerGroup, Tensor
from simulator.llm.load import config_fields

MOE_INTERMEDIATE_RATIO = 6
"""Feed-forward width over hidden size in the dense layer that drafts for an MoE target, unless given.

Source: SpecForge's configs of EAGLE-3 heads for Qwen3-235B-A22B (24576 / 4096) and gpt-oss-20b (17280 / 2880); others
differ (Llama-4-Scout 6.4, Qwen3-30B-A3B 3), so give ``intermediate_size`` where it is known.
"""
EAGLE3_VOCABULARY = 32_000
"""Tokens that an EAGLE-3 head can propose (``draft_vocab_size`` in SafeAILab's and SpecForge's configs)."""
EAGLE3_HIDDEN_STATES = 3
"""Hidden states of the target (low, middle, high) that EAGLE-3 reads (arXiv:2503.01840, section 3.1)."""
PARALLEL_LAYERS = 4
"""Layers of a P-EAGLE head (SpecForge configs/qwen3-8b-peagle.json); DFlash heads have 5 (qwen3-8b-dflash.json)."""


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Sizes of a draft head that its config.json states; None is derived from the target."""

    num_layers: int | None = None
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    draft_vocab_size: int | None = None
    markov_rank: int | None = None


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A draft head that an engine runs with its target."""

    architecture: Architecture
    """Layers and LM head as a separate model; the embedding is the target's."""
    own_lm_head: bool
    """True if the head holds LM-head weights; otherwise it multiplies with the target's."""
    fused_hidden_states: int
    """Target hidden states of every new token that are projected to one before the first pass; 0 for none."""


def eagle_head(target: Architecture, sizes: HeadSizes) -> DraftHead:
    """EAGLE and EAGLE-2: an ``fc`` from (embedding, hidden state) to the hidden size, one layer, the target's LM head.

    Source: Li et al., "EAGLE", 2024, arXiv:2401.15077, section 4.1; EAGLE-2 (arXiv:2406.16858) uses the same weights.
    """
    hidden = target.hidden_size
    entry = Tensor("fc", hidden, 2 * hidden, "attention", "replicated")
    layers = _layers(target, sizes, 1, entry)
    return DraftHead(_model(f"{target.name}-eagle", target, layers, target.vocab_size), False, 0)


def eagle3_head(target: Architecture, sizes: HeadSizes) -> DraftHead:
    """EAGLE-3: one layer whose attention reads embedding and hidden state side by side. Three hidden states are fused
    by an ``fc`` once per new token; it has an LM head over a reduced vocabulary.

    Source: Li et al., "EAGLE-3", 2025, arXiv:2503.01840, section 3.1.
    """
    vocabulary = sizes.draft_vocab_size or min(EAGLE3_VOCABULARY, target.vocab_size)
    layers = _layers(target, sizes, 1)
    return DraftHead(_model(f"{target.name}-eagle3", target, layers, vocabulary), True, EAGLE3_HIDDEN_STATES)


def parallel_head(target: Architecture, sizes: HeadSizes) -> DraftHead:
    """A parallel drafter: an EAGLE-3 head of several layers that fills K masked positions in one pass.

    Source: "P-EAGLE" as in SpecForge's and vLLM's configs: 4 layers, LM head of its own over the whole vocabulary.
    """
    vocabulary = sizes.draft_vocab_size or target.vocab_size
    layers = _layers(target, sizes, PARALLEL_LAYERS)
    return DraftHead(_model(f"{target.name}-parallel", target, layers, vocabulary), True, EAGLE3_HIDDEN_STATES)


def _layers(target: Architecture, sizes: HeadSizes, count: int, entry: Tensor | None = None) -> tuple[LayerGroup, ...]:
    """The head's layers: the first with its entry, then equal ones. Without an entry the first layer's attention reads
    embedding and hidden state side by side."""
    first = Layer(_attention(target, sizes), _mlp(target, sizes))
    others = (sizes.num_layers or count) - 1
    attention = first.attention
    queries = attention.num_heads * attention.head_dim + attention.kv_elements_per_token
    doubled = Tensor("qkv_proj (embedding half)", queries, target.hidden_size, "attention", "column")
    extra = (entry or doubled,)
    groups = (LayerGroup(replace(first, extra_tensors=extra), 1),)
    return groups + ((LayerGroup(first, others),) if others else ())


def _attention(target: Architecture, sizes: HeadSizes) -> Attention:
    """Full attention with the target's heads. Where the target has latent attention, one KV head per head (as Kimi-K2's
    published EAGLE-3 head)."""
    mixers = [group.layer.mixer for group in target.layer_groups if group.layer.mixer is not None]
    own = next((mixer.softmax_attention for mixer in mixers if mixer.softmax_attention is not None), None)
    if own is None:
        raise ForerunError(f"speculation.method: {target.name} has no attention layer, whose heads a draft head copies")
    heads = sizes.num_attention_heads or own.num_heads
    kv_heads = own.num_kv_heads if own.kind == "gqa" else heads
    head_dim = own.head_dim if own.kind == "gqa" else own.value_dim
    return Attention(heads, sizes.num_key_value_heads or kv_heads, sizes.head_dim or head_dim)


def _mlp(target: Architecture, sizes: HeadSizes) -> DenseMlp:
    if sizes.intermediate_size is not None:
        return DenseMlp(sizes.intermediate_size)
    mlp = [group.layer.feed_forward for group in target.layer_groups if group.layer.feed_forward][-1]
    if isinstance(mlp, DenseMlp):
        return DenseMlp(mlp.intermediate_size)
    return DenseMlp(MOE_INTERMEDIATE_RATIO * target.hidden_size)


def _model(name: str, target: Architecture, layers: tuple[LayerGroup, ...], vocabulary: int) -> Architecture:
    return Architecture(
        name=name,
        hidden_size=target.hidden_size,
        vocab_size=vocabulary,
        layer_groups=layers,
        tie_word_embeddings=False,
        max_position=target.max_position,
        source=target.source,
        checkpoint_dtypes={},
    )


class PublishedHead(NamedTuple):
    """One public draft head."""

    method: str
    """Method of the head, as in ``speculation.method``."""
    hidden_size: int
    sizes: HeadSizes
    source: str
    default_for: str | None = None
    """Target model for which this head is the default; None for no target."""


def published_head_names() -> tuple[str, ...]:
    """Repositories in the catalogue, in alphabetical order."""
    return tuple(sorted(_heads()))


def published_head(name: str, method: str, target: Architecture) -> PublishedHead:
    """Published head, by repository of its weights; checked to fit the target. EAGLE-2 runs EAGLE's heads.

    Raises:
        ForerunError: no such head, of another method, or for a target of another hidden size.
    """
    heads = _heads()
    path = Path(name)
    head = heads.get(name) or (_head_in(path) if path.exists() or path.suffix == ".json" else None)
    if head is None:
        raise ForerunError(
            f"model: no public draft head '{name[:120]}'{did_you_mean(name, heads)}; leave model out to derive the "
            f"sizes from the target, or give them ({', '.join(field.name for field in fields(HeadSizes))})"
        )
    if head.method != ("eagle" if method == "eagle2" else method):
        raise ForerunError(f"model: {name} is a head of method {head.method}, not {method}")
    if head.hidden_size != target.hidden_size:
        raise ForerunError(
            f"model: {name} reads hidden states of size {head.hidden_size}, {target.name} has {target.hidden_size}"
        )
    return head


def _head_in(path: Path) -> PublishedHead:
    """An EAGLE head as its config.json states it: with Llama's fields, or a layer's within those of ``speculators``."""
    fields = config_fields(path)
    layer = fields.section("transformer_layer_config") if fields.has("transformer_layer_config") else fields
    named = " ".join((*fields.texts("architectures"), fields.text("speculators_model_type", ""))).lower()
    reduced = fields.whole_or("draft_vocab_size", None)
    keys = ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    own = {key: layer.whole_or(key, None) for key in keys}
    sizes = HeadSizes(num_layers=layer.whole_or("num_hidden_layers", None), draft_vocab_size=reduced, **own)
    if reduced is None and "eagle" not in named:
        fields.fail("architectures", "names no EAGLE head, and draft_vocab_size is missing")
    method = "eagle3" if reduced or "eagle3" in named else "eagle"
    return PublishedHead(method, layer.whole("hidden_size"), sizes, str(path))


def usual_head(method: str, target: Architecture) -> PublishedHead | None:
    """Default public head for a target; None if there is none, so that sizes are derived from the target."""
    return next((h for h in _heads().values() if (h.method, h.default_for) == (method, target.name)), None)


@cache
def _heads() -> dict[str, PublishedHead]:
    rows: dict[str, dict[str, Any]] = packaged("simulator.llm", "draft_heads.yaml")["heads"]
    known = [field.name for field in fields(HeadSizes)]
    sizes = {name: HeadSizes(**{key: row[key] for key in known if key in row}) for name, row in rows.items()}
    return {
        name: PublishedHead(row["method"], row["hidden_size"], sizes[name], row["source"], row.get("default_for"))
        for name, row in rows.items()
    }
