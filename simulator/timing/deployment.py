"""One model on the chips of one replica: dtypes per part, the slice each chip holds, the bytes it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hwprofiles import AttentionShape, Chip, KernelLibrary, Link, dtype_bytes
from simulator.errors import ForerunError
from simulator.llm import PARTS, Architecture
from simulator.llm.layers import Attention, Layer, Tensor
from simulator.timing.framework import Framework

UNQUANTISED_PARTS = ("embedding", "lm_head", "router", "norm")
"""Parts that quantised checkpoints leave in 16 bits (AutoGPTQ, AutoAWQ and llm-compressor defaults)."""

ACTIVATION_BYTES = 2.0
"""Bytes per activation element: engines keep activations in bf16 between kernels."""


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

    def __post_init__(self) -> None:
        for group in self.architecture.layer_groups:
            _check_divisible(self.architecture.name, group.layer.attention, self.tensor_parallel)
        if self.tensor_parallel > 1 and self.link is None:
            raise ForerunError(
                f"hardware.link: chip '{self.chip.name}' has no scale-up link of its own; name one to use "
                f"tensor_parallel {self.tensor_parallel} (forerun chips list)"
            )

    def gemms(self, layer: Layer) -> Iterator[GemmSlice]:
        """Weight matrices of a layer that every token passes through (routed experts excluded), one chip's slice."""
        for tensor in layer.tensors(self.architecture.hidden_size):
            if tensor.part != "expert":
                yield self._slice(tensor)

    def attention_shape(self, attention: Attention) -> AttentionShape:
        """Attention of one layer on one chip, as its kernel sees it.

        MLA runs absorbed: all heads share one latent KV head (DeepSeek-V2, arXiv:2405.04434, section 2.1).
        """
        heads = attention.num_heads // self.tensor_parallel
        if attention.kind == "mla":
            assert attention.kv_lora_rank is not None
            assert attention.qk_rope_head_dim is not None
            return AttentionShape(
                num_heads=heads,
                num_kv_heads=1,
                qk_dim=attention.kv_lora_rank + attention.qk_rope_head_dim,
                v_dim=attention.kv_lora_rank,
                kv_bytes_per_token=attention.kv_elements_per_token * dtype_bytes(self.kv_dtype),
                dtype="bf16",
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
            dtype="bf16",
        )

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token on ONE chip, all layers."""
        return sum(
            group.count * self.attention_shape(group.layer.attention).kv_bytes_per_token
            for group in self.architecture.layer_groups
        )

    @property
    def layer_weight_bytes(self) -> float:
        """Weight bytes of the layers on ONE chip: column, row and expert tensors divide by TP, replicated do not."""
        architecture = self.architecture
        total = 0.0
        for group in architecture.layer_groups:
            for tensor in group.layer.tensors(architecture.hidden_size):
                share = 1 if tensor.split == "replicated" else self.tensor_parallel
                elements = tensor.out_features * tensor.in_features * tensor.copies / share
                total += group.count * elements * dtype_bytes(self.weight_dtypes[tensor.part])
        return total

    @property
    def weight_bytes(self) -> float:
        """Weight bytes on ONE chip: layers, and a share of the embedding and LM head."""
        architecture = self.architecture
        total = self.layer_weight_bytes
        table = architecture.vocab_size * architecture.hidden_size / self.tensor_parallel
        total += table * dtype_bytes(self.weight_dtypes["embedding"])
        if not architecture.tie_word_embeddings:
            total += table * dtype_bytes(self.weight_dtypes["lm_head"])
        return total

    def _slice(self, tensor: Tensor) -> GemmSlice:
        n, k = tensor.out_features, tensor.in_features
        if tensor.split == "column":
            n = -(-n // self.tensor_parallel)
        elif tensor.split == "row":
            k = -(-k // self.tensor_parallel)
        return GemmSlice(tensor.name, n, k, self.weight_dtypes[tensor.part], tensor.split)


def resolve_weight_dtypes(architecture: Architecture, asked: str | Mapping[str, str] | None) -> dict[str, str]:
    """Dtype of every part.

    ``asked`` None keeps the checkpoint's own; one name sets the weight matrices of the layers, and also the rest where
    it is an unquantised dtype; a mapping sets parts by name over the checkpoint's own, with ``default`` for all others.

    Raises:
        ForerunError: unknown part or dtype.
    """
    own: dict[str, str] = {part: _served(architecture.checkpoint_dtypes.get(part, "bf16")) for part in PARTS}
    if asked is None:
        return own
    if isinstance(asked, str):
        _check_dtype("weights_dtype", asked)
        wide = dtype_bytes(asked) >= 2
        return {part: asked if wide or part not in UNQUANTISED_PARTS else "bf16" for part in PARTS}
    for part, dtype in asked.items():
        if part not in (*PARTS, "default"):
            raise ForerunError(f"weights_dtype.{part}: no such part (one of default, {', '.join(PARTS)})")
        _check_dtype(f"weights_dtype.{part}", dtype)
    base = resolve_weight_dtypes(architecture, asked["default"]) if "default" in asked else own
    return {part: asked.get(part, base[part]) for part in PARTS}


def _served(dtype: str) -> str:
    """What an engine makes of a published dtype: 32-bit checkpoints are cast to bf16 (vLLM's ``dtype: auto``)."""
    return "bf16" if dtype in ("fp32", "tf32") else dtype


def _check_dtype(field: str, dtype: str) -> None:
    try:
        dtype_bytes(dtype)
    except ValueError as error:
        raise ForerunError(f"{field}: {error}") from None


def _check_divisible(model: str, attention: Attention, tensor_parallel: int) -> None:
    heads = attention.num_heads
    if heads % tensor_parallel:
        fitting = [str(n) for n in range(1, heads + 1) if heads % n == 0 and n <= 64]
        raise ForerunError(
            f"hardware.tensor_parallel: {heads} heads of {model} do not divide by {tensor_parallel} "
            f"(one of {', '.join(fitting)})"
        )
