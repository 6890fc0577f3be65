"""Token mixers other than softmax attention over every key: recurrent, convolutional, sparse, compressed, shared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from simulator.llm.layers import Attention, Mixer, State, Tensor

RECURRENT_DTYPE = "fp32"
"""Default format of recurrent states: SGLang's, and the value of ``mamba_ssm_dtype`` in configs that state it."""


@dataclass(frozen=True, slots=True)
class Recurrent(Mixer):
    """A layer that keeps a matrix per head and the tail of a short convolution instead of keys and values."""

    conv_kernel: int
    """Tokens that the causal depthwise convolution before the recurrence sees; a sequence keeps all but the newest."""

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of that convolution; 0 without one."""
        return 0

    @property
    def state_elements(self) -> int:
        """Elements of the matrices of all heads."""
        return self.width * self.head_dim

    @property
    def states(self) -> tuple[State, ...]:
        """The matrices, and the convolution's tail.

        Source: ``MambaStateShapeCalculator`` in ``vllm/model_executor/layers/mamba/mamba_utils.py``.
        """
        matrices = State("recurrent", self.state_elements, getattr(self, "state_dtype", None))
        tail = State("convolution", self.conv_channels * (self.conv_kernel - 1), None)
        return (*(matrices,) * bool(self.state_elements), *(tail,) * bool(self.conv_channels))


@dataclass(frozen=True, slots=True)
class GatedDeltaNet(Recurrent):
    """Gated delta rule: one decay per head (Qwen3-Next, Qwen3.5).

    Source: Yang et al., "Gated Delta Networks", 2024, arXiv:2412.06464; ``Qwen3NextGatedDeltaNet`` in transformers.
    """

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    state_dtype: str = RECURRENT_DTYPE
    label: ClassVar[str] = "gated delta net"

    @property
    def heads(self) -> int:
        return self.num_key_heads

    @property
    def key_width(self) -> int:
        """Width of all keys together, and of all queries."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Width of all values together, and of the output gate."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_width + self.value_width

    @property
    def state_elements(self) -> int:
        return self.num_value_heads * self.key_head_dim * self.value_head_dim

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield Tensor("in_proj_qkvz", self.conv_channels + self.value_width, hidden_size, "attention", "column")
        yield Tensor("in_proj_ba", 2 * self.num_value_heads, hidden_size, "attention", "column")
        yield Tensor("out_proj", hidden_size, self.value_width, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        return self.conv_channels * self.conv_kernel + 2 * self.num_value_heads

    @property
    def norm_parameters(self) -> int:
        return self.value_head_dim


@dataclass(frozen=True, slots=True)
class KimiDeltaAttention(Recurrent):
    """Gated delta rule with one decay per key channel (Kimi Linear, Kimi-K3).

    Source: Kimi Team, "Kimi Linear", 2025, arXiv:2510.26692, section 3; ``KimiDeltaAttention`` in SGLang.
    """

    num_heads: int
    head_dim: int
    full_rank_gate: bool = False
    """True if the output gate is one matrix; otherwise it has a bottleneck of ``head_dim`` channels, like the decay."""
    state_dtype: str = RECURRENT_DTYPE
    label: ClassVar[str] = "Kimi delta attention"

    @property
    def conv_channels(self) -> int:
        return 3 * self.width

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield Tensor("qkv_proj", 3 * self.width, hidden_size, "attention", "column")
        yield Tensor("b_proj", self.num_heads, hidden_size, "attention", "column")
        yield Tensor("f_a_proj", self.head_dim, hidden_size, "attention", "replicated")
        yield Tensor("f_b_proj", self.width, self.head_dim, "attention", "column")
        if self.full_rank_gate:
            yield Tensor("g_proj", self.width, hidden_size, "attention", "column")
        else:
            yield Tensor("g_a_proj", self.head_dim, hidden_size, "attention", "replicated")
            yield Tensor("g_b_proj", self.width, self.head_dim, "attention", "column")
        yield Tensor("o_proj", hidden_size, self.width, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        return self.conv_channels * self.conv_kernel + self.num_heads + self.width

    @property
    def norm_parameters(self) -> int:
        return self.head_dim


@dataclass(frozen=True, slots=True)
class Mamba2(Recurrent):
    """Selective state space with a scalar decay per head.

    Source: Dao and Gu, "Transformers are SSMs", 2024, arXiv:2405.21060; ``NemotronHMamba2Mixer`` in transformers.
    """

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    """Groups of heads that share their input and output maps B and C."""
    conv_bias: bool = True
    projection_bias: bool = False
    state_dtype: str = RECURRENT_DTYPE
    label: ClassVar[str] = "Mamba-2"

    @property
    def conv_channels(self) -> int:
        return self.width + 2 * self.num_groups * self.state_size

    @property
    def state_elements(self) -> int:
        return self.width * self.state_size

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        outputs = self.width + self.conv_channels + self.num_heads
        yield Tensor("in_proj", outputs, hidden_size, "attention", "column")
        yield Tensor("out_proj", hidden_size, self.width, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        total = self.conv_channels * (self.conv_kernel + self.conv_bias) + 3 * self.num_heads
        if self.projection_bias:
            total += self.width + self.conv_channels + self.num_heads + hidden_size
        return total

    @property
    def norm_parameters(self) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class LightningAttention(Recurrent):
    """Linear attention with a fixed decay per head and no convolution (MiniMax-Text-01).

    Source: MiniMax, "MiniMax-01", 2025, arXiv:2501.08313, section 2.2; ``MiniMaxLightningAttention`` in transformers.
    """

    num_heads: int
    head_dim: int
    state_dtype: str = RECURRENT_DTYPE
    label: ClassVar[str] = "lightning attention"

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield Tensor("qkv_proj", 3 * self.width, hidden_size, "attention", "column")
        yield Tensor("output_gate", self.width, hidden_size, "attention", "column")
        yield Tensor("out_proj", hidden_size, self.width, "attention", "row")

    @property
    def norm_parameters(self) -> int:
        return self.width


@dataclass(frozen=True, slots=True)
class ShortConvolution(Recurrent):
    """A gated short convolution and nothing else (LFM2; source: ``Lfm2ShortConv`` in transformers)."""

    channels: int
    bias: bool = False
    label: ClassVar[str] = "short convolution"

    @property
    def heads(self) -> int:
        return self.channels

    @property
    def conv_channels(self) -> int:
        return self.channels

    @property
    def state_elements(self) -> int:
        return 0

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield Tensor("in_proj", 3 * self.channels, hidden_size, "attention", "column")
        yield Tensor("out_proj", hidden_size, self.channels, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        return self.channels * (self.conv_kernel + 4 * self.bias) + hidden_size * self.bias


@dataclass(frozen=True, slots=True)
class AttentionVariant(Mixer):
    """Attention whose kernels read only some keys, or keys of another layer."""

    attention: Attention

    @property
    def softmax_attention(self) -> Attention:
        return self.attention

    @property
    def heads(self) -> int:
        return self.attention.num_heads


@dataclass(frozen=True, slots=True)
class SharedKvAttention(AttentionVariant):
    """Attention over an earlier layer's keys and values, without a cache (Gemma 3n, Gemma 4 E2B and E4B).

    ``attention`` is that of the layer whose KV cache is read; the query and output projections are this layer's own.
    """

    label: ClassVar[str] = "shared-KV attention"

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.attention.windows

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        attention = self.attention
        yield Tensor("q_proj", attention.num_heads * attention.head_dim, hidden_size, "attention", "column")
        yield Tensor("o_proj", hidden_size, attention.num_heads * attention.value_dim, "attention", "row")

    @property
    def norm_parameters(self) -> int:
        return self.attention.head_dim if self.attention.qk_norm == "head" else 0


@dataclass(frozen=True, slots=True)
class SelectiveAttention(AttentionVariant):
    """Attention over keys that an index chooses; every key stays in the cache all the same."""

    @property
    def kv_elements_per_token(self) -> float:
        return self.attention.kv_elements_per_token

    def vector_parameters(self, hidden_size: int) -> int:
        return self.attention.vector_parameters(hidden_size)


INDEX_KEYS, INDEX_WEIGHTS = "indexer.wk", "indexer.weights_proj"
"""Names of the matrices for the keys of an indexer and for the weights of its heads."""


@dataclass(frozen=True, slots=True)
class IndexedAttention(SelectiveAttention):
    """Latent attention over the ``top_k`` keys that an indexer chooses (DeepSeek-V3.2, GLM-5).

    Source: DeepSeek-AI, "DeepSeek-V3.2", 2025, arXiv:2512.02556, section 2.1; ``Indexer`` in the repository's
    inference/model.py.
    """

    top_k: int
    index_heads: int
    index_head_dim: int
    own_indexer: bool = True
    """False if the layer reads the keys that an earlier layer's indexer chose (GLM-5.2's ``indexer_types``)."""
    label: ClassVar[str] = "indexed sparse attention"

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None, self.top_k) if self.own_indexer else (self.top_k,)

    @property
    def index_elements_per_token(self) -> float:
        return self.index_head_dim if self.own_indexer else 0

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        """The attention's matrices, then the indexer's; its queries come from the attention's compressed query.

        The weights of index heads stay in the model's own format, as a router's do (``weights_proj`` of the published
        checkpoints, and of every engine).
        """
        yield from self.attention.tensors(hidden_size)
        if self.own_indexer:
            queries = self.index_heads * self.index_head_dim
            rank = self.attention.q_lora_rank or hidden_size
            yield Tensor("indexer.wq_b", queries, rank, "attention", "replicated")
            yield Tensor(INDEX_KEYS, self.index_head_dim, hidden_size, "attention", "replicated")
            yield Tensor(INDEX_WEIGHTS, self.index_heads, hidden_size, "router", "replicated")

    @property
    def norm_parameters(self) -> int:
        return self.attention.norm_parameters + (2 * self.index_head_dim if self.own_indexer else 0)


@dataclass(frozen=True, slots=True)
class BlockSparseAttention(SelectiveAttention):
    """Grouped-query attention over the ``top_blocks`` blocks of keys that index heads score highest (MiniMax-M3).

    Source: MiniMax, "MiniMax Sparse Attention", 2026, arXiv:2606.13392; ``MiniMaxM3Attention`` in SGLang.
    """

    block_size: int
    top_blocks: int
    index_heads: int
    index_head_dim: int
    index_value: bool = False
    """True if the index heads also compute a separate attention output."""
    label: ClassVar[str] = "block-sparse attention"

    @property
    def reach(self) -> int:
        """Maximum number of tokens that a query reads."""
        return self.block_size * self.top_blocks

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None, self.reach)

    @property
    def index_elements_per_token(self) -> float:
        return self.index_head_dim * (2 if self.index_value else 1)

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        yield from self.attention.tensors(hidden_size)
        shared = 2 if self.index_value else 1
        outputs = (self.index_heads + shared) * self.index_head_dim
        yield Tensor("index_qkv_proj", outputs, hidden_size, "attention", "column")
        if self.index_value:
            yield Tensor("index_o_proj", hidden_size, self.index_heads * self.index_head_dim, "attention", "row")

    @property
    def norm_parameters(self) -> int:
        return self.attention.norm_parameters + 2 * self.index_head_dim


@dataclass(frozen=True, slots=True)
class CompressedAttention(Mixer):
    """Multi-query attention over a window of tokens and over compressed entries, one per ``ratio`` tokens.

    Keys serve as values too. Ratio 4 (compressed sparse attention) reads the ``top_k`` entries that an indexer chooses,
    ratio 128 (heavily compressed) all of them, ratio 0 the window alone. Source: DeepSeek-AI, "DeepSeek-V4", 2026,
    section 2.3; ``DeepseekV4Attention`` and its compressors in transformers.
    """

    num_heads: int
    head_dim: int
    window: int
    q_lora_rank: int
    output_groups: int
    output_lora_rank: int
    ratio: int = 0
    top_k: int = 0
    """Entries that a query reads; 0 reads all."""
    index_heads: int = 0
    index_head_dim: int = 0
    label: ClassVar[str] = "compressed attention"

    @property
    def softmax_attention(self) -> Attention:
        return Attention(self.num_heads, 1, self.head_dim)

    @property
    def overlap(self) -> int:
        """Windows of tokens that one entry mixes: two where entries are chosen, so that each has two projections."""
        return 2 if self.top_k else 1

    @property
    def reach(self) -> int | None:
        """Maximum number of tokens that the entries read by a query can represent; None is all."""
        if not self.ratio:
            return self.window
        return self.top_k * self.ratio if self.top_k else None

    @property
    def windows(self) -> tuple[int | None, ...]:
        return (None, self.reach) if self.top_k else (self.reach,)

    @property
    def kv_elements_per_token(self) -> float:
        return self.head_dim / self.ratio if self.ratio else self.head_dim

    def kv_elements(self, context_tokens: int) -> float:
        entries = context_tokens // self.ratio if self.ratio else 0
        return (min(context_tokens, self.window) + entries) * self.head_dim

    @property
    def index_elements_per_token(self) -> float:
        return self.index_head_dim / self.ratio if self.top_k else 0

    @property
    def states(self) -> tuple[State, ...]:
        widths = (self.head_dim + (self.index_head_dim if self.top_k else 0)) * self.overlap
        return (State("compressor", 2 * widths * self.ratio * self.overlap, "fp32"),) if self.ratio else ()

    def tensors(self, hidden_size: int) -> Iterator[Tensor]:
        width = self.num_heads * self.head_dim
        yield Tensor("qkv_a_proj", self.q_lora_rank + self.head_dim, hidden_size, "attention", "replicated")
        yield Tensor("q_b_proj", width, self.q_lora_rank, "attention", "column")
        if self.ratio:
            yield Tensor("compressor", 2 * self.overlap * self.head_dim, hidden_size, "attention", "replicated")
        if self.top_k:
            compressed = 2 * self.overlap * self.index_head_dim
            queries = self.index_heads * self.index_head_dim
            yield Tensor("indexer.compressor", compressed, hidden_size, "attention", "replicated")
            yield Tensor("indexer.q_b_proj", queries, self.q_lora_rank, "attention", "replicated")
            yield Tensor(INDEX_WEIGHTS, self.index_heads, hidden_size, "router", "replicated")
        groups, rank = self.output_groups, self.output_lora_rank
        yield Tensor("o_a_proj", rank, width // groups, "attention", "column", groups)
        yield Tensor("o_b_proj", hidden_size, groups * rank, "attention", "row")

    def vector_parameters(self, hidden_size: int) -> int:
        widths = self.head_dim + (self.index_head_dim if self.top_k else 0)
        return self.num_heads + self.ratio * self.overlap * widths

    @property
    def norm_parameters(self) -> int:
        entries = (self.head_dim if self.ratio else 0) + (self.index_head_dim if self.top_k else 0)
        return self.q_lora_rank + self.head_dim + entries


MIXERS: dict[str, type[Mixer]] = {
    kind.label: kind
    for kind in (GatedDeltaNet, KimiDeltaAttention, Mamba2, LightningAttention, ShortConvolution, SharedKvAttention,
                 IndexedAttention, BlockSparseAttention, CompressedAttention)
}  # fmt: skip
"""Token mixers other than softmax attention, by label."""
