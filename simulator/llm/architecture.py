"""A transformer as the engine runs it: layers, tables, and derived figures (parameters, bytes, KV per token)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forerun.errors import ForerunError
from hwprofiles.dtypes import dtype_bytes
from simulator.llm.layers import PARTS, ActiveCounts, Attention, DenseMlp, Layer, LayerGroup, Mixer, MoeMlp, Tensor

_CACHE_BYTES = 2.0
"""Bytes per element (bf16) in stated figures: KV and index caches, and states without a format of their own."""
_WIDE_BYTES = 4.0
_CONTEXTS = (8192, 131072, 1048576)
"""Contexts for which the memory of one sequence is stated, in tokens."""


class ParameterCount(NamedTuple):
    """Weights of a model by part, biases and norms included; a table shared by embedding and LM head counts once.

    ``active`` is what one token is multiplied with: everything but the experts it is not routed to and the input
    embedding, of which a token gathers one row. (A tied table counts: it is the LM head.) That is the convention of
    OpenAI's gpt-oss model card; vendors who count the input embedding too quote figures larger by one table.
    """

    total: int
    active: int
    embedding: int
    lm_head: int
    attention: int
    mlp: int
    expert: int
    shared_expert: int
    router: int
    norm: int


@dataclass(frozen=True, slots=True)
class MtpModule:
    """Multi-token-prediction layers published with the model, usable as its own drafter.

    One layer concatenates the normed hidden state and the normed embedding of the next token, projects them back to
    the hidden size (``eh_proj``, listed in ``layer.extra_tensors``), runs a full transformer layer and predicts one
    further token with the model's own embedding and LM head (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """

    count: int
    layer: Layer

    def parameters(self, hidden_size: int) -> int:
        """Weights of all MTP layers, without those shared with the model; never part of the model's total.

        Checkpoints may store copies of embedding and LM head too (DeepSeek-V3 does); engines share the model's own.
        """
        return self.count * sum(self.layer.parameters_by_part(hidden_size).values())


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer."""

    name: str
    hidden_size: int
    vocab_size: int
    layer_groups: tuple[LayerGroup, ...]
    tie_word_embeddings: bool
    max_position: int | None
    """Longest context in tokens that the model was published for; None if not stated."""
    source: str
    """Source of the numbers: a repository's config.json, or the user's file."""
    checkpoint_dtypes: Mapping[str, str] = field(hash=False)
    """Dtype of every part as published."""
    position_embeddings: int = 0
    """Rows of a learned position table; 0 with rotary or no position embedding."""
    final_norm_bias: bool = False
    mtp: MtpModule | None = None
    notes: tuple[str, ...] = ()
    """Notes for readers of results on how this model is described."""
    layer_order: tuple[int, ...] = ()
    """Group of each layer, from the first to the last; empty if the groups follow one another."""
    active_counts: ActiveCounts = "without-embedding"
    family: str = ""
    """Type of the model as its config names it; empty for Forerun's own fields."""
    model_tensors: tuple[Tensor, ...] = ()
    """Matrices outside the layers that every token passes, without embedding and LM head."""
    expert_routing: str | None = None
    """Spread of the router's tokens over experts, in the terms of ``hardware.expert_routing``; None if unknown."""
    expert_routing_range: tuple[str, str] = ("uniform", "uniform")
    """Most even and most uneven routing that are consistent with known facts of the model."""
    side_embedding: int = 0
    """Weights of further embedding tables from which a token gathers rows (Gemma 3n's per-layer embeddings)."""
    kv_cache_dtype: str | None = None
    """Format of the KV cache that a checkpoint has scales for, which engines use by default."""

    @property
    def num_layers(self) -> int:
        """Transformer layers, MTP layers not counted."""
        return sum(group.count for group in self.layer_groups)

    def layers_between(self, first: int, last: int) -> tuple[LayerGroup, ...]:
        """Layers ``first`` to ``last - 1``, identical ones together, in the order of ``layer_groups``."""
        groups = self.layer_groups
        order = self.layer_order or tuple(i for i, group in enumerate(groups) for _ in range(group.count))
        counts = [order[first:last].count(index) for index in range(len(groups))]
        return tuple(LayerGroup(group.layer, n) for group, n in zip(groups, counts, strict=True) if n)

    @property
    def _mixers(self) -> list[tuple[Mixer, int]]:
        return [(group.layer.mixer, group.count) for group in self.layer_groups if group.layer.mixer is not None]

    @property
    def kv_elements_per_token(self) -> int:
        """KV cache elements of one token in all layers, all heads."""
        return round(sum(count * mixer.kv_elements_per_token for mixer, count in self._mixers))

    def kv_elements(self, context_tokens: int) -> int:
        """KV cache elements of one sequence; a windowed layer keeps its window only."""
        return round(sum(count * mixer.kv_elements(context_tokens) for mixer, count in self._mixers))

    @property
    def index_elements_per_token(self) -> float:
        """Elements of one token in the index caches of all layers (sparse attention)."""
        return sum(count * mixer.index_elements_per_token for mixer, count in self._mixers)

    @property
    def state_bytes_per_sequence(self) -> float:
        """Bytes of recurrent state of one sequence over all layers; states without a stated format count 16 bits."""
        return sum(
            count * state.elements * (_WIDE_BYTES if state.dtype == "fp32" else _CACHE_BYTES)
            for mixer, count in self._mixers
            for state in mixer.states
        )

    def parameters_by_part(self) -> dict[str, int]:
        """Weights by part, in the order of ``PARTS``; MTP layers not counted."""
        counts: dict[str, int] = dict.fromkeys(PARTS, 0)
        for group in self.layer_groups:
            for part, count in group.layer.parameters_by_part(self.hidden_size).items():
                counts[part] += group.count * count
        for tensor in self.model_tensors:
            counts[tensor.part] += tensor.elements
        counts["embedding"] += (self.vocab_size + self.position_embeddings) * self.hidden_size + self.side_embedding
        counts["lm_head"] += 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        counts["norm"] += self.hidden_size * (2 if self.final_norm_bias else 1)
        return counts

    def parameters(self) -> ParameterCount:
        """Weights in total, per token and by part; MTP layers not counted (see ``mtp``)."""
        counts = self.parameters_by_part()
        active = sum(group.count * group.layer.active_parameters(self.hidden_size) for group in self.layer_groups)
        active += self.vocab_size * self.hidden_size + self.hidden_size * (2 if self.final_norm_bias else 1)
        active += sum(tensor.elements for tensor in self.model_tensors)
        return ParameterCount(sum(counts.values()), active, *counts.values())

    @property
    def active_as_published(self) -> int:
        """Active weights per token by the makers' convention, for comparison with the model card."""
        table = self.vocab_size * self.hidden_size
        beside = {"with-embedding": 0 if self.tie_word_embeddings else table, "without-embedding": 0, "layers": -table}
        return self.parameters().active + beside[self.active_counts]

    def weight_bytes(self, dtypes: Mapping[str, str] | str, dtype_bytes: Callable[[str], float]) -> dict[str, float]:
        """Bytes of the weights by part, on all chips together, with one dtype for all parts or one for each.

        Raises:
            ForerunError: ``dtypes`` leaves out a part of which the model has weights.
        """
        counts = self.parameters_by_part()
        if isinstance(dtypes, str):
            dtypes = dict.fromkeys(PARTS, dtypes)
        missing = [part for part in PARTS if counts[part] and part not in dtypes]
        if missing:
            raise ForerunError(f"{self.name}: no dtype given for {', '.join(missing)}")
        return {part: count * dtype_bytes(dtypes[part]) if count else 0.0 for part, count in counts.items()}


def mtp_architecture(target: Architecture) -> Architecture:
    """The MTP layer of a model as a one-layer drafter with the target's embedding and LM head, listed as tied.

    A checkpoint with several MTP layers drafts one further token with each; engines run the first one repeatedly.

    Raises:
        ForerunError: the model has none.
    """
    if target.mtp is None:
        raise ForerunError(
            f"model: {target.name} was published without multi-token-prediction layers; choose another method"
        )
    return Architecture(
        name=f"{target.name}-mtp",
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        layer_groups=(LayerGroup(target.mtp.layer, 1),),
        tie_word_embeddings=True,
        max_position=target.max_position,
        source=target.source,
        checkpoint_dtypes=target.checkpoint_dtypes,
    )


def architecture_summary(architecture: Architecture) -> dict[str, Any]:
    """Human-readable summary of a model as a JSON-compatible mapping.

    Bytes are for one replica on one chip, with caches in ``kv_cache_dtype``. ``kv_bytes_per_token`` is for a token
    inside every window; ``memory_per_sequence`` is for a whole context.
    """
    counts = architecture.parameters()
    hidden = architecture.hidden_size
    weight_bytes = architecture.weight_bytes(architecture.checkpoint_dtypes, dtype_bytes)
    largest = sorted(filter(weight_bytes.get, weight_bytes), key=lambda part: -weight_bytes[part])
    return {
        "name": architecture.name,
        "family": architecture.family,
        "parameters": counts.total,
        "active_parameters": counts.active,
        "parameters_total": counts.total,
        "parameters_active": architecture.active_as_published,
        "parameters_active_counts": architecture.active_counts,
        "parameters_by_part": {part: count for part, count in architecture.parameters_by_part().items() if count},
        "mtp_parameters": architecture.mtp.parameters(hidden) if architecture.mtp else None,
        "num_layers": architecture.num_layers,
        "hidden_size": hidden,
        "vocab_size": architecture.vocab_size,
        "tie_word_embeddings": architecture.tie_word_embeddings,
        "max_position": architecture.max_position,
        "layers": [
            {"count": group.count, **_mixer_summary(group.layer.mixer), **_mlp_summary(group.layer.feed_forward)}
            for group in architecture.layer_groups
        ],
        "kv_elements_per_token": architecture.kv_elements_per_token,
        "kv_cache_dtype": "bf16",
        "kv_bytes_per_token": _CACHE_BYTES * architecture.kv_elements_per_token,
        "index_bytes_per_token": _CACHE_BYTES * architecture.index_elements_per_token,
        "state_bytes_per_sequence": architecture.state_bytes_per_sequence,
        "memory_per_sequence": memory_per_sequence(architecture),
        "checkpoint_dtypes": dict(architecture.checkpoint_dtypes),
        "weight_bytes": sum(weight_bytes.values()),
        "weight_formats": list(dict.fromkeys(architecture.checkpoint_dtypes[part] for part in largest)),
        "source": architecture.source,
        "notes": list(architecture.notes),
    }


def memory_per_sequence(architecture: Architecture) -> list[dict[str, object]]:
    """Bytes of memory per sequence, by kind, at several context lengths that the model supports."""
    longest = architecture.max_position or _CONTEXTS[-1]
    contexts = [tokens for tokens in _CONTEXTS if tokens <= longest] or [longest]
    return [
        {
            "context_tokens": tokens,
            "kv_bytes": _CACHE_BYTES * architecture.kv_elements(tokens),
            "index_bytes": _CACHE_BYTES * architecture.index_elements_per_token * tokens,
            "state_bytes": architecture.state_bytes_per_sequence,
        }
        for tokens in contexts
    ]


def _mixer_summary(mixer: Mixer | None) -> dict[str, object]:
    if mixer is None:
        return {"attention": None, "num_heads": None, "num_kv_heads": None, "head_dim": None, "window": None,
                "kv_elements_per_token": 0}  # fmt: skip
    return {
        "attention": mixer.kind if isinstance(mixer, Attention) else mixer.label,
        "num_heads": mixer.heads,
        "num_kv_heads": getattr(mixer, "num_kv_heads", None),
        "head_dim": getattr(mixer, "head_dim", None),
        "window": getattr(mixer, "window", None),
        "kv_elements_per_token": mixer.kv_elements_per_token,
        "index_elements_per_token": mixer.index_elements_per_token,
        "states": [state._asdict() for state in mixer.states],
    }


def _mlp_summary(mlp: DenseMlp | MoeMlp | None) -> dict[str, object]:
    if mlp is None:
        return {"mlp": None}
    if isinstance(mlp, DenseMlp):
        return {"mlp": "dense", "intermediate_size": mlp.intermediate_size}
    return {
        "mlp": "moe",
        "intermediate_size": mlp.intermediate_size,
        "num_experts": mlp.num_experts,
        "experts_per_token": mlp.experts_per_token,
        "shared_intermediate_size": mlp.shared_intermediate_size,
        "latent_size": getattr(mlp, "latent_size", None),
    }
