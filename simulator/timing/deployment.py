"""One model on the chips of one replica: dtypes per part, and the slice and bytes on each chip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import NamedTuple, cast

from forerun.errors import ForerunError, did_you_mean
from hwprofiles import AttentionShape, Chip, KernelLibrary, Link, ProfileError, dtype_bytes
from hwprofiles.dtypes import DTYPES, VARIANT, format_of
from hwprofiles.kernels.moe import read_routing
from hwprofiles.kernels.recurrent import RecurrentShape
from hwprofiles.kernels.sparse import IndexShape, SparseShape
from hwprofiles.library import MixingShape
from hwprofiles.parameters import DecodeParameters
from simulator.llm import PARTS, Architecture
from simulator.llm.layers import Attention, Layer, LayerGroup, Mixer, MoeMlp, Tensor
from simulator.llm.mixers import (
    INDEX_KEYS,
    INDEX_WEIGHTS,
    BlockSparseAttention,
    CompressedAttention,
    GatedDeltaNet,
    IndexedAttention,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    Recurrent,
    SharedKvAttention,
)
from simulator.llm.published_names import weight_dtypes
from simulator.timing.framework import LOCAL_FRAMEWORKS, ElementwiseKernels, Framework
from simulator.timing.mixed_chips import OtherDevice

ACTIVATION_BYTES = 2.0
"""Bytes per activation element: engines keep activations in bf16 between kernels."""


FUSED_MXFP8 = "sglang_flashinfer_trtllm_moe"
"""SGLang's name for FlashInfer's kernel of MXFP4 experts with MXFP8 activations that also chooses the experts."""
INDEX_KEY_BYTES = 1.0 + 4.0 / 128
"""Bytes per element of an index key stored in fp8, with one scale per 128 (``indexer_k_cache`` of vLLM)."""
SCALED_BYTES = 4.0 / 128
"""Bytes of scales per element of a latent stored in fp8. The rotary part of the latent stays in 16 bits (656 bytes a
token for DeepSeek-V3.2: ``fp8_ds_mla`` of vLLM and FlashMLA)."""


class GemmSlice(NamedTuple):
    """One weight matrix as one chip holds it: y[m, n] = x[m, k] w[k, n]."""

    name: str
    n: int
    k: int
    dtype: str
    split: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model, its dtypes and the chips of one replica.

    ``weight_dtypes`` maps every part of a model (``simulator.llm.PARTS``) to a dtype.
    """

    architecture: Architecture
    chip: Chip
    kernels: KernelLibrary
    link: Link | None
    framework: Framework
    tensor_parallel: int
    weight_dtypes: Mapping[str, str]
    kv_dtype: str
    cuda_graphs: bool = True
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    expert_routing: str = "uniform"
    first_stage: bool = True
    """True if this pipeline stage has the embedding."""
    last_stage: bool = True
    """True if this pipeline stage has the final norm and the LM head."""
    other_devices: tuple[OtherDevice, ...] = ()
    """Layers that other chips of the machine run, in the order of the layers."""
    experts_at: OtherDevice | None = None
    """Device that runs the experts of layers with ``on_other_device``."""

    def __post_init__(self) -> None:
        _check_experts(self)
        for mixer, _ in self._mixers:
            _check_divisible(self.architecture.name, mixer, self.tensor_parallel)
        if self.group_chips > 1 and self.link is None:
            raise ForerunError(
                f"hardware.link: chip '{self.chip.name}' has no scale-up link of its own; name one to use "
                f"{self.group_chips} chips together (forerun chips list)"
            )

    def runs_kernels_of(self, other: Deployment) -> bool:
        """True if steps run the same kernels as under ``other``: the deployments differ at most in host costs."""
        equal = (getattr(self, one.name) == getattr(other, one.name) for one in fields(self) if one.name != "framework")
        return all(equal) and self.framework.runs_kernels_of(other.framework)

    @property
    def group_chips(self) -> int:
        """Number of chips that share one copy of these layers, all attention groups together."""
        return self.tensor_parallel * self.attention_data_parallel

    @property
    def passes(self) -> ElementwiseKernels:
        """Memory-bound kernels of a layer: the engine's on GPUs or with a fixed batch, else none (fits exclude
        them)."""
        return self.framework.passes if self._on_gpu or self.framework.fixed_batch else ElementwiseKernels()

    @property
    def _on_gpu(self) -> bool:
        return self.chip.kind in ("gpu-datacenter", "gpu-consumer")

    @property
    def norms_in_reductions(self) -> bool:
        """True if norms are fused into the preceding all-reduces, which needs TP above 1 and one attention group."""
        reduced = self.tensor_parallel > 1 and self.attention_data_parallel == 1
        return self.framework.norms_in_reductions and self._on_gpu and reduced

    @property
    def shared_overlap_tokens(self) -> int:
        """Maximum tokens of a step in which shared experts overlap routed experts; only in captured graphs."""
        captured = self.framework.max_captured_tokens if self.cuda_graphs and self._on_gpu else 0
        return min(captured, self.framework.shared_overlap_tokens)

    @property
    def joins_attention(self) -> bool:
        """True if one launch attends for prompt chunks and decoding sequences: FlashAttention-3, so on Hopper alone."""
        return self.framework.joins_attention and self.chip.compute.is_hopper

    def writes_cache(self, attention: Attention) -> bool:
        """True if the measured kernel of a layer's decode attention writes the new keys and values too."""
        kernel = self.attention_shape(attention).kernel
        return cast(DecodeParameters, self.kernels.parameters("attention_decode", kernel)).writes_cache

    @property
    def skew_s(self) -> float:
        """Seconds that every collective waits for the slowest of the ranks that share a layer."""
        return self.framework.rank_skew_s * (self.tensor_parallel - 1)

    @property
    def expert_tensor_parallel(self) -> int:
        """Number of chips that share one expert."""
        return self.group_chips // self.expert_parallel

    def expert_slots(self, experts: int) -> int:
        """Number of expert slots on all chips, equally many per chip. Leftover slots have second copies of popular
        experts (DeepSeek's EPLB: 288 slots for 256 experts on 144 chips)."""
        return -(-experts // self.expert_parallel) * self.expert_parallel

    def stages(self, count: int) -> tuple[Deployment, ...]:
        """Split the model into ``count`` pipeline stages of whole layers.

        Leftover layers go to the stages before the last stage, from the back, because the last stage also runs the LM
        head (``get_pp_indices`` in ``vllm/distributed/utils.py``). A tied embedding is on the first and on the last
        stage.

        Raises:
            ForerunError: fewer layers than stages.
        """
        layers = self.architecture.num_layers
        if count > layers:
            raise ForerunError(
                f"hardware.pipeline_parallel: {self.architecture.name} has {layers} layers, not enough for {count} "
                f"stages; use at most {layers}"
            )
        if count == 1:
            return (self,)
        sizes = [layers // count] * count
        for index in range(layers % count):
            sizes[-2 - index] += 1
        ends = list(accumulate(sizes))
        return tuple(
            replace(
                self._layers(self.architecture.layers_between(end - size, end)),
                first_stage=index == 0,
                last_stage=index == count - 1,
            )
            for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
        )

    @property
    def homes(self) -> tuple[Deployment, ...]:
        """Deployments of the layers by chip, in layer order, this chip's last; only this one if it runs all."""
        if not self.other_devices:
            return (self,)
        first, stages = 0, []
        for place in self.other_devices:
            if not place.experts:
                part = self._layers(self.architecture.layers_between(first, first + place.layers))
                part = replace(part, first_stage=first == 0, last_stage=False)
                stages.append(replace(part, chip=place.chip, kernels=place.kernels, link=place.link))
                first += place.layers
        groups: tuple[LayerGroup, ...] = ()
        last = self.architecture.num_layers
        experts = next((place for place in self.other_devices if place.experts), None)
        if experts is not None:
            cut = min(last, first + experts.layers)
            groups = tuple(_marked(group) for group in self.architecture.layers_between(first, cut))
            first_own = cut
        else:
            first_own = first
        stage = self._layers((*groups, *self.architecture.layers_between(first_own, last)))
        return (*stages, replace(stage, first_stage=first == 0, experts_at=experts))

    def _layers(self, groups: tuple[LayerGroup, ...]) -> Deployment:
        """Deployment of the given layers on the same chip."""
        architecture = replace(self.architecture, layer_groups=groups, layer_order=())
        return replace(self, architecture=architecture, other_devices=())

    @property
    def compute_dtype(self) -> str:
        """Format of attention and of activations: fp32 if the attention weights are fp32, else bf16."""
        return "fp32" if self.weight_dtypes["attention"] == "fp32" else "bf16"

    @property
    def _cache_kernels(self) -> str:
        """Format that selects attention kernels: the narrower of KV cache format and compute format."""
        narrower = dtype_bytes(self.kv_dtype) < dtype_bytes(self.compute_dtype)
        return self.kv_dtype if narrower else self.compute_dtype

    @property
    def activation_bytes(self) -> float:
        """Bytes per activation element between kernels."""
        return dtype_bytes("fp32") if self.compute_dtype == "fp32" else ACTIVATION_BYTES

    @property
    def expert_kernels(self) -> str:
        """Format that the kernels of routed experts are measured under. MXFP4 experts take activations in MXFP8 on
        chips that multiply 4-bit floats, if dense layers are in 8 bits (DeepSeek-V4) or the engine does so."""
        experts, native = self.weight_dtypes["expert"], self.chip.compute.multiplies_fp4
        narrow = self.framework.mxfp8_experts or self._has_8_bit_layers
        return "mxfp4_mxfp8" if experts == "mxfp4" and narrow and native else experts

    @property
    def expert_kernel(self) -> str:
        """Kernel of routed experts where their format has two, else empty. With activations in MXFP8, vLLM and SGLang
        run gpt-oss, whose dense layers are in 16 bits, in another kernel than DeepSeek-V4 with its layers in 8."""
        return FUSED_MXFP8 if self.expert_kernels == "mxfp4_mxfp8" and not self._has_8_bit_layers else ""

    @property
    def _has_8_bit_layers(self) -> bool:
        """True if dense layers are stored in 8 bits."""
        return self.weight_dtypes["attention"].startswith(("fp8", "mxfp8"))

    def gemms(self, layer: Layer) -> Iterator[GemmSlice]:
        """Weight matrices of a layer that every token passes through (routed experts excluded), one chip's slice."""
        for tensor in self._as_run(layer.tensors(self.architecture.hidden_size)):
            if tensor.part != "expert":
                yield self._slice(tensor)

    def mixer_gemms(self, mixer: Mixer) -> list[GemmSlice]:
        """Weight matrices of a token mixer, one chip's slice."""
        return [self._slice(tensor) for tensor in self._as_run(mixer.tensors(self.architecture.hidden_size))]

    def _as_run(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Matrices in the engine's form: an index's key and head-weight matrices are one if the engine fuses them."""
        keys = 0
        for tensor in tensors:
            if tensor.name == INDEX_KEYS and self.framework.joins_index_keys:
                keys = tensor.out_features
            elif tensor.name == INDEX_WEIGHTS:
                yield tensor._replace(out_features=tensor.out_features + keys)
            else:
                yield tensor

    def attention_shape(self, attention: Attention) -> AttentionShape:
        """Attention shape of one layer on one chip, as input of its kernel.

        MLA decodes absorbed: all heads share one latent KV head (DeepSeek-V2, arXiv:2405.04434, section 2.1). Engines
        expand the latent for prompts, but llama.cpp does not.
        """
        heads = attention.num_heads // self.tensor_parallel
        if attention.kind == "mla":
            assert attention.kv_lora_rank is not None
            assert attention.qk_rope_head_dim is not None
            absorbed = self.framework.kernel_library in LOCAL_FRAMEWORKS
            return AttentionShape(
                num_heads=heads,
                num_kv_heads=1,
                qk_dim=attention.kv_lora_rank + attention.qk_rope_head_dim,
                v_dim=attention.kv_lora_rank,
                kv_bytes_per_token=attention.kv_elements_per_token * dtype_bytes(self.kv_dtype),
                dtype=self._cache_kernels,
                expanded=None if absorbed else (attention.head_dim, attention.value_dim),
            )
        kv_heads = max(1, attention.num_kv_heads // self.tensor_parallel)
        return AttentionShape(
            num_heads=heads,
            num_kv_heads=kv_heads,
            qk_dim=attention.head_dim,
            v_dim=attention.v_head_dim or attention.head_dim,
            kv_bytes_per_token=attention.kv_elements_per_token
            * kv_heads
            / attention.num_kv_heads
            * dtype_bytes(self.kv_dtype),
            dtype=self._cache_kernels,
            windowed=attention.window is not None,
            slots=self.framework.slots,
        )

    def mixing(self, mixer: Mixer) -> tuple[tuple[MixingShape, int | None], ...]:
        """Token-mixing kernel shapes of a layer on one chip, each with the attention window of its keys.

        A layer whose index selects keys has two kernels: the index over every key, and attention over selected keys.
        """
        if isinstance(mixer, Attention | SharedKvAttention):
            attention = mixer if isinstance(mixer, Attention) else mixer.attention
            return ((self.attention_shape(attention), attention.window),)
        if isinstance(mixer, Recurrent):
            return ((self._recurrent_shape(mixer), None),)
        if isinstance(mixer, IndexedAttention):
            return self._indexed(mixer)
        if isinstance(mixer, BlockSparseAttention):
            return self._block_sparse(mixer)
        assert isinstance(mixer, CompressedAttention)
        return self._compressed(mixer)

    def _indexed(self, mixer: IndexedAttention) -> tuple[tuple[MixingShape, int | None], ...]:
        """Shapes of DeepSeek's indexed attention: index replicated on all chips, attention heads divided."""
        rule = f"{self.kv_dtype}{VARIANT}dsa"
        dense = self.attention_shape(mixer.attention)
        sparse = SparseShape(
            dense.num_heads,
            1,
            dense.qk_dim,
            dense.v_dim,
            self._latent_bytes(mixer.attention),
            rule,
            most=mixer.top_k,
            dense_width=mixer.attention.head_dim + mixer.attention.value_dim,
        )
        key = mixer.index_head_dim * INDEX_KEY_BYTES
        index = IndexShape(mixer.index_heads, mixer.index_head_dim, key, rule, top_k=mixer.top_k)
        return ((index, None), (sparse, mixer.top_k)) if mixer.own_indexer else ((sparse, mixer.top_k),)

    def _block_sparse(self, mixer: BlockSparseAttention) -> tuple[tuple[MixingShape, int | None], ...]:
        """Shapes of MiniMax-M3's block-sparse attention: index heads divided like KV heads, scores in 16 bits."""
        rule = f"{self.kv_dtype}{VARIANT}msa"
        dense = self.attention_shape(mixer.attention)
        kept = dense.kv_bytes_per_token
        sparse = SparseShape(
            dense.num_heads, dense.num_kv_heads, dense.qk_dim, dense.v_dim, kept, rule, most=mixer.reach
        )
        key = mixer.index_elements_per_token * dtype_bytes(self.kv_dtype)
        heads = max(1, mixer.index_heads // self.tensor_parallel)
        index = IndexShape(heads, mixer.index_head_dim, key, rule, top_k=mixer.reach, math="bf16")
        return ((index, None), (sparse, mixer.reach))

    def _compressed(self, mixer: CompressedAttention) -> tuple[tuple[MixingShape, int | None], ...]:
        """Shapes of DeepSeek-V4's compressed attention: all heads share entries, replicated on every chip."""
        rule = f"{self.kv_dtype}{VARIANT}{'csa' if mixer.top_k else 'hca'}"
        heads = mixer.num_heads // self.tensor_parallel
        entry = mixer.head_dim * dtype_bytes(self.kv_dtype)
        sparse = SparseShape(heads, 1, mixer.head_dim, mixer.head_dim, entry, rule)
        if mixer.ratio:
            sparse = sparse._replace(ratio=float(mixer.ratio), local=float(mixer.window), most=mixer.top_k)
        if not mixer.top_k:
            return ((sparse, mixer.reach),)
        key = mixer.index_head_dim * INDEX_KEY_BYTES
        sizes = (mixer.index_heads, mixer.index_head_dim, key, rule, float(mixer.ratio), mixer.top_k)
        return ((IndexShape(*sizes), None), (sparse, mixer.reach))

    def _latent_bytes(self, attention: Attention) -> float:
        """Bytes of a cached latent; a latent in 8 bits includes scales and its rotary part in 16 bits."""
        latent, rotated = attention.latent_dims
        size = dtype_bytes(self.kv_dtype)
        return latent * (size + SCALED_BYTES) + 2.0 * rotated if size < ACTIVATION_BYTES else (latent + rotated) * size

    def _recurrent_shape(self, mixer: Recurrent) -> RecurrentShape:
        """Shape of a recurrent layer on one chip, as input of its kernels.

        Kernels and fits have names, except for one decay per head: decay per key channel (Kimi delta attention), no
        delta rule (Mamba-2, whose state counts as key and whose head as value; lightning attention). A short
        convolution alone has no heads.
        """
        heads = mixer.heads // self.tensor_parallel
        dtype = self.compute_dtype
        if isinstance(mixer, GatedDeltaNet):
            values = mixer.num_value_heads // self.tensor_parallel
            shape = RecurrentShape(heads, values, mixer.key_head_dim, mixer.value_head_dim, dtype)
        elif isinstance(mixer, KimiDeltaAttention):
            shape = RecurrentShape(heads, heads, mixer.head_dim, mixer.head_dim, f"{dtype}{VARIANT}kda")
        elif isinstance(mixer, LightningAttention):
            shape = RecurrentShape(heads, heads, mixer.head_dim, mixer.head_dim, f"{dtype}{VARIANT}lightning")
        elif isinstance(mixer, Mamba2):
            groups = max(1, mixer.num_groups // self.tensor_parallel)
            shape = RecurrentShape(groups, heads, mixer.state_size, mixer.head_dim, f"{dtype}{VARIANT}mamba2")
        else:
            shape = RecurrentShape(0, 0, 0, 0, dtype)
        kernel = float(mixer.conv_kernel)
        return shape._replace(
            conv_channels=mixer.conv_channels / self.tensor_parallel,
            conv_kernel=kernel,
            tail_growth=kernel - 1.0 if self.framework.tail_of_each_token else 1.0,
            vector_bytes=self.activation_bytes,
        )

    @property
    def _mixers(self) -> list[tuple[Mixer, int]]:
        """Mixer and number of layers of every layer group that has a mixer."""
        return [(group.layer.mixer, group.count) for group in self.architecture.layer_groups if group.layer.mixer]

    @property
    def mixing_layers(self) -> dict[tuple[MixingShape, int | None], int]:
        """Number of layers by shape and window of their token mixer."""
        merged: dict[tuple[MixingShape, int | None], int] = {}
        for mixer, count in self._mixers:
            for kind in self.mixing(mixer):
                merged[kind] = merged.get(kind, 0) + count
        return merged

    def state_bytes_per_sequence(self, drafted: int = 0) -> float:
        """Bytes of recurrent state per sequence on ONE chip, all layers; unfinished compressed entries are replicated.

        Args:
            drafted: draft tokens that a step verifies: a recurrence stores its state after each token, for rollback
                (unfinished entries are projections of single tokens, which are dropped one by one).
        """
        return sum(
            count
            * state.elements
            * dtype_bytes(state.dtype or self.compute_dtype)
            * ((1 + drafted) / self.tensor_parallel if isinstance(mixer, Recurrent) else 1)
            for mixer, count in self._mixers
            for state in mixer.states
        )

    @property
    def recurrent_layers(self) -> tuple[int, float]:
        """Number of layers with a recurrent state, and bytes of the largest state of one sequence on ONE chip."""
        layers = [
            (count, sum(state.elements * dtype_bytes(state.dtype or self.compute_dtype) for state in mixer.states))
            for mixer, count in self._mixers
            if isinstance(mixer, Recurrent)
        ]
        largest = max((size for _, size in layers), default=0.0)
        return sum(count for count, _ in layers), largest / self.tensor_parallel

    @property
    def caching_layers(self) -> tuple[int, float]:
        """Number of layers that cache all tokens, and bytes of a token in the widest such layer, on ONE chip."""
        layers = [
            (count, size) for mixer, count in self._mixers for window, size in self._cached(mixer) if window is None
        ]
        return sum(count for count, _ in layers), max((size for _, size in layers), default=0.0)

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token on ONE chip, all layers, keys of indexers included."""
        return sum(size for _, size in self._kv_by_window())

    @property
    def index_bytes_per_token(self) -> float:
        """Bytes of one token in the caches of indexers on ONE chip, all layers."""
        return sum(count * self._index_bytes(mixer) for mixer, count in self._mixers)

    @property
    def cached_kv_bytes_per_token(self) -> float:
        """KV bytes on ONE chip per further token of a sequence, in layers with full attention.

        Layers with a window store only the window's tokens (``windowed_kv_bytes``). If every layer of a model has a
        window, all layers count, as if no token were dropped.
        """
        return sum(size for window, size in self._kv_by_window() if window is None) or self.kv_bytes_per_token

    @property
    def windowed_kv_bytes(self) -> tuple[tuple[int, float], ...]:
        """(window in tokens, KV bytes of one token on ONE chip) of layers that drop tokens outside their window.

        Source: vLLM's hybrid KV cache manager (docs/design/hybrid_kv_cache_manager, v0.11): blocks outside a sliding
        window are freed, and all kinds of layers share one pool.
        """
        windows = self._kv_by_window()
        if all(window is not None for window, _ in windows):
            return ()
        return tuple((window, size) for window, size in windows if window is not None)

    @property
    def caches_by_window(self) -> dict[int | None, tuple[int, float]]:
        """Number of layers, and KV bytes of one token on ONE chip, of each window; window None: never dropped."""
        caches: dict[int | None, tuple[int, float]] = {}
        for mixer, layers in self._mixers:
            for window, size in self._cached(mixer):
                count, total = caches.get(window, (0, 0.0))
                caches[window] = (count + layers, total + layers * size)
        return caches

    def _kv_by_window(self) -> list[tuple[int | None, float]]:
        """Window and KV bytes per token of every group of layers that caches keys."""
        return [(window, count * size) for mixer, count in self._mixers for window, size in self._cached(mixer)]

    def _cached(self, mixer: Mixer) -> list[tuple[int | None, float]]:
        """(window, bytes) of one token's cache entries in a layer on ONE chip; window None: never dropped."""
        if isinstance(mixer, Attention):
            return [(mixer.window, self.attention_shape(mixer).kv_bytes_per_token)]
        if isinstance(mixer, IndexedAttention):
            return [(None, self._latent_bytes(mixer.attention) + self._index_bytes(mixer))]
        if isinstance(mixer, BlockSparseAttention):
            dense = self.attention_shape(mixer.attention)
            return [(None, dense.kv_bytes_per_token + self._index_bytes(mixer))]
        if isinstance(mixer, CompressedAttention):
            entry = mixer.head_dim * dtype_bytes(self.kv_dtype)
            kept = [(None, entry / mixer.ratio + self._index_bytes(mixer))] if mixer.ratio else []
            return [*kept, (mixer.window, entry)]
        return []

    def _index_bytes(self, mixer: Mixer) -> float:
        """Bytes of one token in the index cache of a layer on ONE chip."""
        narrow = not isinstance(mixer, BlockSparseAttention)
        return mixer.index_elements_per_token * (INDEX_KEY_BYTES if narrow else dtype_bytes(self.kv_dtype))

    @property
    def layer_weight_bytes(self) -> float:
        """Weight bytes of the layers on ONE chip.

        Column and row tensors divide by TP, experts by all chips of the group (whole experts by EP, each expert by the
        remaining chips), replicated tensors not at all. Kernels of MXFP4 experts may need a padded hidden size.
        """
        architecture = self.architecture
        total = 0.0
        for group in architecture.layer_groups:
            for tensor in group.layer.tensors(architecture.hidden_size):
                if tensor.split == "expert" and runs_on_other_device(group.layer):
                    continue
                share = {"replicated": 1, "expert": self.group_chips}.get(tensor.split, self.tensor_parallel)
                copies = self.expert_slots(tensor.copies) if tensor.split == "expert" else tensor.copies
                elements = tensor.out_features * tensor.in_features * copies / share
                if tensor.split == "expert" and self.weight_dtypes[tensor.part] == "mxfp4":
                    elements *= self.framework.padded(architecture.hidden_size) / architecture.hidden_size
                total += group.count * elements * dtype_bytes(self.weight_dtypes[tensor.part])
        return total

    @property
    def weight_bytes(self) -> float:
        """Weight bytes on ONE chip: layers, and a share of the embedding and LM head."""
        architecture = self.architecture
        total = self.layer_weight_bytes
        table = architecture.vocab_size * architecture.hidden_size / self.tensor_parallel
        tied = architecture.tie_word_embeddings
        if self.first_stage or (self.last_stage and tied):
            total += table * dtype_bytes(self.weight_dtypes["embedding"])
        if self.last_stage and not tied:
            total += table * dtype_bytes(self.weight_dtypes["lm_head"])
        return total

    def _slice(self, tensor: Tensor) -> GemmSlice:
        n, k = tensor.out_features, tensor.in_features
        if tensor.split != "expert":
            n *= tensor.copies  # a product per group of heads or per stream: as much work as one over all of them
        if tensor.split == "column":
            n = -(-n // self.tensor_parallel)
        elif tensor.split == "row":
            k = -(-k // self.tensor_parallel)
        return GemmSlice(tensor.name, n, k, self.weight_dtypes[tensor.part], tensor.split)


def _marked(group: LayerGroup) -> LayerGroup:
    """Mark the layers so that their experts, if any, run on another device."""
    mlp = group.layer.feed_forward
    if not isinstance(mlp, MoeMlp):
        return group
    return replace(group, layer=replace(group.layer, feed_forward=replace(mlp, on_other_device=True)))


def runs_on_other_device(layer: Layer) -> bool:
    """True if another chip runs the experts of a layer."""
    return isinstance(layer.feed_forward, MoeMlp) and layer.feed_forward.on_other_device


def resolve_weight_dtypes(architecture: Architecture, requested: str | Mapping[str, str] | None) -> dict[str, str]:
    """Dtype of every part.

    ``requested`` None keeps the checkpoint's dtypes. One name sets the weight matrices of the layers, and all other
    parts too if it is an unquantised dtype. A mapping sets parts by name, with ``default`` for all remaining parts.

    Raises:
        ForerunError: unknown part or dtype.
    """
    dtypes: dict[str, str] = {part: _served(architecture.checkpoint_dtypes.get(part, "bf16")) for part in PARTS}
    if requested is None:
        return dtypes
    if isinstance(requested, str):
        check_weight_format(requested)
        return weight_dtypes(architecture, requested)
    for part, dtype in requested.items():
        if part not in (*PARTS, "default"):
            raise ForerunError(f"weights_dtype.{part}: no such part (one of default, {', '.join(PARTS)})")
        _check_dtype(f"weights_dtype.{part}", dtype)
    base = resolve_weight_dtypes(architecture, requested["default"]) if "default" in requested else dtypes
    return {part: requested.get(part, base[part]) for part in PARTS}


def check_weight_format(name: str) -> None:
    """Refuse a name of ``weights_dtype`` that is neither a format nor a GGUF file type.

    Raises:
        ForerunError: unknown name; the message suggests the nearest names.
    """
    if name not in DTYPES:
        from simulator.llm.gguf_file import recipe_names, recipe_of

        if recipe_of(name) is not None:
            return
        if format_of(name) not in DTYPES and (close := did_you_mean(name, recipe_names())):
            raise ForerunError(f"weights_dtype: no format or GGUF file type '{name}'{close}")
    _check_dtype("weights_dtype", name)


def _served(dtype: str) -> str:
    """Dtype in which an engine serves a checkpoint's dtype: fp32 is cast to bf16 (vLLM's ``dtype: auto``)."""
    return "bf16" if dtype in ("fp32", "tf32") else dtype


def _check_dtype(field: str, dtype: str) -> None:
    try:
        dtype_bytes(dtype)
    except ValueError as error:
        raise ForerunError(f"{field}: {error}") from None


def _check_experts(deployment: Deployment) -> None:
    """Refuse expert parallelism that does not divide the model's experts or the chips evenly."""
    name, ep = deployment.architecture.name, deployment.expert_parallel
    try:
        read_routing(deployment.expert_routing)
    except ProfileError as error:
        raise ForerunError(f"hardware.expert_routing: {error}") from None
    if deployment.group_chips % ep:
        raise ForerunError(
            f"hardware.expert_parallel: {ep} does not divide the {deployment.group_chips} chips of a stage "
            f"(tensor_parallel x attention_data_parallel)"
        )
    for group in deployment.architecture.layer_groups:
        mlp = group.layer.feed_forward
        if isinstance(mlp, MoeMlp) and mlp.num_experts < ep:
            raise ForerunError(
                f"hardware.expert_parallel: {name} has {mlp.num_experts} experts, fewer than {ep} chips; spread them "
                f"over at most that many"
            )


def _check_divisible(model: str, mixer: Mixer, tensor_parallel: int) -> None:
    heads = mixer.heads
    if heads % tensor_parallel:
        fitting = [str(n) for n in range(1, heads + 1) if heads % n == 0 and n <= 64]
        raise ForerunError(
            f"hardware.tensor_parallel: {heads} heads of {model} do not divide by {tensor_parallel} "
            f"(one of {', '.join(fitting)})"
        )
