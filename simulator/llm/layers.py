"""Building blocks of a layer: token mixer, feed-forward, and the weight matrices that an engine runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from forerun.errors import ForerunError

Part = Literal["embedding", "lm_head", "attention", "mlp", "expert", "shared_expert", "router", "norm"]
PARTS: tuple[Part, ...] = ("embedding", "lm_head", "attention", "mlp", "expert", "shared_expert", "router", "norm")
"""Parts of a model that can each have their own weight dtype."""

Split = Literal["column", "row", "replicated", "expert"]
"""Division of a matrix by tensor parallelism: its outputs, its inputs, not at all, or as routed experts. These have
each expert's intermediate dimension under TP, whole experts under EP."""

ActiveCounts = Literal["with-embedding", "without-embedding", "layers"]
"""Embedding tables that model makers include in active parameters: all, all but the input embedding, or none."""

QkNorm = Literal["head", "vector", "unlearned"]
"""Normalisation of queries and keys by learned vectors or without. One vector per head dimension (Qwen3, Gemma 3), one
over all heads together (OLMo 2, MiniMax-M2), or none (Llama 4)."""


class Tensor(NamedTuple):
    """One weight matrix: ``y[m, out_features] = x[m, in_features] w``, present ``copies`` times in a layer."""

    name: str
    out_features: int
    in_features: int
    part: Part
    split: Split
    copies: int = 1

    @property
    def elements(self) -> int:
        """Weights in all copies."""
        return self.out_features * self.in_features * self.copies


class State(NamedTuple):
    """Recurrent state that a layer keeps per sequence, independent of its length."""

    name: str
    elements: int
    dtype: str | None
    """Format in which engines store the state; None for the format of activations."""


class Mixer:
    """Base class of token mixers, with one subclass for each kind of layer.

    Kernel lists read only these members: matrices, cached values per token, state per sequence.
    """

    __slots__ = ()
    label: ClassVar[str]
    """Name of the kind in tables and error messages."""
    num_heads: int
    head_dim: int

    @property
    def heads(self) -> int:
        """Heads that tensor parallelism divides."""
        return self.num_heads

    @property
    def kv_elements_per_token(self) -> float:
        """Elements that one token leaves in the KV cache of this layer, all heads together."""
        return 0

    def kv_elements(self, context_tokens: int) -> float:
        """Elements that a sequence of ``context_tokens`` keeps in the KV cache of this layer."""
        return context_tokens * self.kv_elements_per_token

    @property
    def softmax_attention(self) -> Attention | None:
        """Softmax attention that a draft head for this model copies; None for a recurrent layer."""
        return None

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Windows of the keys that its kernels read, in tokens; None is every key."""
        return ()

    @property
    def index_elements_per_token(self) -> float:
        """Elements that one token leaves in the cache of an indexer, which chooses the keys that attention reads."""
        return 0

    @property
    def states(self) -> tuple[State, ...]:
        """Recurrent state of one sequence."""
        return ()

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        """Weight matrices in running order."""
        raise NotImplementedError

    def vector_parameters(self, hidden_size: int) -> int:
        """Number of weights outside matrix products: biases, sinks, convolutions, decay rates."""
        return 0

    @property
    def norm_parameters(self) -> int:
        """Weights of the norms inside the mixer."""
        return 0


@dataclass(frozen=True, slots=True)
class Attention(Mixer):
    """Softmax attention over every key, or over a window of them.

    ``gqa`` covers multi-head, grouped-query and multi-query attention. ``mla`` is multi-head latent attention
    (DeepSeek-V2, arXiv:2405.04434, section 2.1): ``num_kv_heads`` is 1 because all heads share one latent, ``head_dim``
    is ``qk_nope_head_dim + qk_rope_head_dim``, and the rank fields are set.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kind: Literal["gqa", "mla"] = "gqa"
    v_head_dim: int | None = None
    """Width of a value head; None means ``head_dim``."""
    window: int | None = None
    """Number of most recent keys that a query sees, including its own; None is full causal attention."""
    q_lora_rank: int | None = None
    """MLA: rank of the compressed query; None projects queries directly."""
    kv_lora_rank: int | None = None
    qk_nope_head_dim: int | None = None
    qk_rope_head_dim: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: QkNorm | None = None
    sinks: bool = False
    """True if one learned logit per head joins the softmax without a key (gpt-oss)."""
    output_gate: Literal["element", "head"] | None = None
    """Sigmoid gate on the output, projected from the layer's input: one per element (Qwen3-Next, Kimi-K3), one per head
    (Step-3.5)."""
    shared_key_value: bool = False
    """True if values are the keys before norm and rotation: no value projection, and both are cached (Gemma 4)."""

    label: ClassVar[str] = "attention"

    @property
    def softmax_attention(self) -> Attention:
        return self

    @property
    def value_dim(self) -> int:
        """Width of one value head."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (self.window,)

    @property
    def latent_dims(self) -> tuple[int, int]:
        """MLA's (latent, rotary) widths of a cached token; (0, 0) for other attention."""
        return (self.kv_lora_rank or 0, self.qk_rope_head_dim or 0)

    @property
    def kv_elements_per_token(self) -> int:
        if self.kind == "mla":
            return sum(self.latent_dims)
        return self.num_kv_heads * (self.head_dim + self.value_dim)

    def kv_elements(self, context_tokens: int) -> int:
        """Elements that a sequence of ``context_tokens`` keeps in this layer, at most ``window`` tokens' worth."""
        kept = context_tokens if self.window is None else min(context_tokens, self.window)
        return kept * self.kv_elements_per_token

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        """Projection matrices; attention itself has no weights.

        MLA's ``kv_b_proj`` holds both up-projections. Absorbed decoding multiplies the query by one half and the output
        by the other (batched per head): the same weights and the same FLOPs per token as the matrix listed here.
        """
        out = self.num_heads * self.value_dim
        if self.kind == "mla":
            latent, rope = self.latent_dims
            queries = self.num_heads * self.head_dim
            if self.q_lora_rank:
                down = self.q_lora_rank + latent + rope
                yield Tensor("qkv_a_proj", down, hidden_size, "attention", "replicated")
                yield Tensor("q_b_proj", queries, self.q_lora_rank, "attention", "column")
            else:
                yield Tensor("q_proj", queries, hidden_size, "attention", "column")
                yield Tensor("kv_a_proj", latent + rope, hidden_size, "attention", "replicated")
            up = self.num_heads * ((self.qk_nope_head_dim or 0) + self.value_dim)
            yield Tensor("kv_b_proj", up, latent, "attention", "column")
            if self.output_gate == "element":
                yield Tensor("gate_proj", out, hidden_size, "attention", "column")
        else:
            yield Tensor("qkv_proj", self._fused_outputs, hidden_size, "attention", "column")
        if self.output_gate == "head":
            yield Tensor("gate_proj", self.num_heads, hidden_size, "attention", "column")
        yield Tensor("o_proj", hidden_size, out, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        total = hidden_size if self.output_bias else 0
        if self.qkv_bias:
            mla = (self.q_lora_rank or 0) + sum(self.latent_dims)
            total += mla if self.kind == "mla" else self._fused_outputs
        return total + (self.num_heads if self.sinks else 0)

    @property
    def _fused_outputs(self) -> int:
        """Output columns of the fused projection to queries, their gate, keys and values."""
        queries = self.num_heads * self.head_dim * (2 if self.output_gate == "element" else 1)
        values = 0 if self.shared_key_value else self.value_dim
        return queries + self.num_kv_heads * (self.head_dim + values)

    @property
    def norm_parameters(self) -> int:
        latent = (self.q_lora_rank or 0) + (self.kv_lora_rank or 0) if self.kind == "mla" else 0
        if self.qk_norm == "head":
            return latent + 2 * self.head_dim
        if self.qk_norm == "vector":
            return latent + (self.num_heads + self.num_kv_heads) * self.head_dim
        return latent


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """Dense feed-forward; ``gated`` adds a gate projection to the up-projection (SwiGLU, GeGLU)."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False

    def tensors(self, hidden_size: int, part: Part = "mlp") -> Iterator[Tensor]:
        """Fused gate and up-projection, then the down-projection."""
        yield from _feed_forward(hidden_size, self.intermediate_size, self.gated, part)

    def vector_parameters(self, hidden_size: int) -> int:
        """Biases."""
        return (self.intermediate_size * (2 if self.gated else 1) + hidden_size) if self.bias else 0


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Mixture of experts: a router picks ``experts_per_token`` of ``num_experts``; shared experts see every token."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    """Intermediate size of one routed expert."""
    shared_intermediate_size: int = 0
    """Intermediate size of all shared experts together; 0 for none."""
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    """True if a learned scalar gate scales the shared expert (Qwen2-MoE)."""
    on_other_device: bool = field(default=False, kw_only=True)
    """True if a different chip than the layer's own stores and runs the routed experts."""

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        """Router, routed experts (``copies`` of them), shared experts."""
        yield Tensor("router", self.num_experts, hidden_size, "router", "replicated")
        for tensor in _feed_forward(self.expert_width(hidden_size), self.intermediate_size, self.gated, "expert"):
            yield tensor._replace(split="expert", copies=self.num_experts)
        if self.shared_intermediate_size:
            yield from _feed_forward(hidden_size, self.shared_intermediate_size, self.gated, "shared_expert")
        if self.shared_gate:
            yield Tensor("shared_expert_gate", 1, hidden_size, "shared_expert", "replicated")

    def expert_width(self, hidden_size: int) -> int:
        """Input and output width of a routed expert."""
        return hidden_size

    def expert_vector_parameters(self, hidden_size: int) -> int:
        """Biases of ONE routed expert."""
        width = self.expert_width(hidden_size)
        return (self.intermediate_size * (2 if self.gated else 1) + width) if self.bias else 0


@dataclass(frozen=True, slots=True)
class LatentMoeMlp(MoeMlp):
    """Experts that read a narrower projection of the residual stream (Nemotron-3 Super and Ultra, Kimi-K3)."""

    latent_size: int = 0
    latent_norm: bool = False
    """True if the experts' sum is normed before it is projected back (Kimi-K3)."""

    def expert_width(self, hidden_size: int) -> int:
        return self.latent_size

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield Tensor("latent_down_proj", self.latent_size, hidden_size, "shared_expert", "replicated")
        yield from MoeMlp.tensors(self, hidden_size)
        yield Tensor("latent_up_proj", hidden_size, self.latent_size, "shared_expert", "replicated")


FeedForward = DenseMlp | MoeMlp
"""Feed-forward that follows the mixer in a layer; ``LatentMoeMlp`` is a ``MoeMlp``."""


def _feed_forward(hidden_size: int, intermediate_size: int, gated: bool, part: Part) -> Iterator[Tensor]:
    prefix = {"mlp": "", "expert": "experts.", "shared_expert": "shared_experts."}.get(part, "")
    if gated:
        yield Tensor(f"{prefix}gate_up_proj", 2 * intermediate_size, hidden_size, part, "column")
    else:
        yield Tensor(f"{prefix}up_proj", intermediate_size, hidden_size, part, "column")
    yield Tensor(f"{prefix}down_proj", hidden_size, intermediate_size, part, "row")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a token mixer, then a feed-forward; either may be missing (Nemotron-H, Nemotron-NAS)."""

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: int = 2
    """Norm vectors of the hidden size: 2 before mixer and feed-forward, 4 if their outputs are also normed."""
    norm_bias: bool = False
    """True if norms are LayerNorm with a bias, rather than RMSNorm."""
    extra_tensors: tuple[Tensor, ...] = ()
    """Matrices outside mixer and feed-forward, such as the projection that starts an MTP layer."""

    @property
    def attention(self) -> Attention:
        """The mixer, which must be softmax attention.

        Raises:
            ForerunError: the mixer is of another kind, or missing.
        """
        if not isinstance(self.mixer, Attention):
            kind = "no token mixer" if self.mixer is None else self.mixer.label
            raise ForerunError(f"model: plain softmax attention is required here, but it has layers with {kind}")
        return self.mixer

    def tensors(self, hidden_size: int) -> tuple[Tensor, ...]:
        """Every weight matrix of the layer as the engine runs it (fused QKV, fused gate and up), in running order.

        Biases and norm vectors are counted in ``Architecture.parameters``.
        """
        parts = (part.tensors(hidden_size) for part in (self.mixer, self.feed_forward) if part is not None)
        return (*self.extra_tensors, *(tensor for part in parts for tensor in part))

    def parameters_by_part(self, hidden_size: int) -> dict[str, int]:
        """Weights of the layer by part, vectors included."""
        counts: dict[str, int] = dict.fromkeys(PARTS, 0)
        for tensor in self.tensors(hidden_size):
            counts[tensor.part] += tensor.elements
        counts["norm"] += self.norms * hidden_size * (2 if self.norm_bias else 1)
        if self.mixer is not None:
            counts["attention"] += self.mixer.vector_parameters(hidden_size)
            counts["norm"] += self.mixer.norm_parameters
        mlp = self.feed_forward
        if isinstance(mlp, MoeMlp):
            counts["expert"] += mlp.num_experts * mlp.expert_vector_parameters(hidden_size)
            counts["router"] += mlp.num_experts if mlp.router_bias else 0
            if isinstance(mlp, LatentMoeMlp) and mlp.latent_norm:
                counts["norm"] += mlp.latent_size
        elif mlp is not None:
            counts["mlp"] += mlp.vector_parameters(hidden_size)
        return counts

    def active_parameters(self, hidden_size: int) -> int:
        """Weights that one token passes through: everything but the experts it is not routed to."""
        counts, mlp = self.parameters_by_part(hidden_size), self.feed_forward
        if not isinstance(mlp, MoeMlp):
            return sum(counts.values())
        idle_experts = mlp.num_experts - mlp.experts_per_token
        return sum(counts.values()) - counts["expert"] // mlp.num_experts * idle_experts


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """``count`` identical layers of a model."""

    layer: Layer
    count: int


def group_layers(layers: list[Layer]) -> tuple[LayerGroup, ...]:
    """Identical layers together, in the order in which each kind first appears."""
    counts: dict[Layer, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(LayerGroup(layer, count) for layer, count in counts.items())


def layer_order(layers: list[Layer]) -> tuple[int, ...]:
    """Group of ``group_layers`` for every layer, from first to last."""
    groups = {layer: index for index, layer in enumerate(dict.fromkeys(layers))}
    return tuple(groups[layer] for layer in layers)
