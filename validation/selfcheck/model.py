"""The reference transformer in torch on the CPU: random weights, a KV cache of its own, every kernel observable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from validation.selfcheck.sizes import DTYPE_BYTES, ModelSize

PACKED_QUERIES = 8
"""Most new tokens for which a KV head's query heads are packed into rows, to read K and V once."""
ROPE_BASE = 10_000.0


class Segment(NamedTuple):
    """New tokens of one sequence in a step.

    Attributes:
        slot: slot of the sequence in the KV cache.
        cached: number of tokens already in the cache.
        tokens: the new tokens.
    """

    slot: int
    cached: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One step: token ids of all segments, decoding sequences first, and the rows whose logits are wanted."""

    token_ids: Sequence[int]
    decodes: tuple[Segment, ...]
    chunks: tuple[Segment, ...]
    logit_rows: Sequence[int]


class KernelCall(NamedTuple):
    """A kernel as observed: operation, its sizes in the words of the canonical trace, seconds."""

    op: str
    sizes: dict[str, int]
    seconds: float


@dataclass
class Observer:
    """Times every kernel of a model while it runs.

    Args:
        clock: seconds now.
    """

    clock: Callable[[], float]
    calls: list[KernelCall] = field(default_factory=list)
    overhead_s: float = field(init=False)
    """Seconds that reading the clock adds to the time of a call; subtracted."""
    outside_s: float = field(init=False)
    """Further seconds that observing a call adds to its step."""

    def __post_init__(self) -> None:
        inside, around = [], []
        for _ in range(200):
            start = self.clock()
            inside.append(self.clock() - start)
        self.overhead_s = median(inside)
        for _ in range(200):
            start = self.clock()
            self.run("", {}, len, ())
            around.append(self.clock() - start)
        self.calls.clear()
        self.outside_s = max(0.0, median(around) - 2 * self.overhead_s)

    def run(self, op: str, sizes: dict[str, int], kernel: Callable[..., Any], *operands: Any) -> Any:
        """Call ``kernel`` and note its time."""
        start = self.clock()
        result = kernel(*operands)
        self.calls.append(KernelCall(op, sizes, max(1e-9, self.clock() - start - self.overhead_s)))
        return result


@dataclass
class ReferenceModel:
    """A transformer with random weights and room for ``slots`` sequences of ``longest`` tokens.

    Two models of the same seed share their first layers, embedding and LM head, so the shorter drafts for the longer.

    Args:
        size: of the model.
        seed: of the weights; each layer draws from a stream of its own.
        slots: sequences that the cache holds.
        longest: tokens of each.
        dtype: of weights, activations and cache: bf16 or fp32; probabilities are always fp32.
    """

    size: ModelSize
    seed: int
    slots: int
    longest: int
    dtype: str = "fp32"
    observer: Observer | None = None
    repeated: bool = False
    """True if all layers hold the first one's weights, each in its own memory: a model that is only timed."""

    def __post_init__(self) -> None:
        size = self.size
        self._dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[self.dtype]
        self._width = DTYPE_BYTES[self.dtype]
        hidden, heads = size.hidden, size.heads * size.head_dim
        fused = heads + 2 * size.kv_heads * size.head_dim
        shapes = ((fused, hidden), (hidden, heads), (2 * size.intermediate, hidden), (hidden, size.intermediate))
        scales = (1.0, size.gain, 1.0, size.gain)
        drawn = [
            tuple(self._matrix(layer, *shape, scale) for shape, scale in zip(shapes, scales, strict=True))
            for layer in range(1 if self.repeated else size.layers)
        ]
        copies = size.layers - len(drawn)
        self.layers = drawn + [tuple(matrix.clone() for matrix in drawn[0]) for _ in range(copies)]
        self.embedding = self._matrix(1000, size.vocabulary, hidden, sqrt(hidden))
        self.lm_head = self._matrix(1001, size.vocabulary, hidden, size.sharpness)
        self.norm = torch.ones(hidden, dtype=self._dtype)
        cache = (size.layers, self.slots, size.kv_heads, self.longest, size.head_dim)
        self.keys, self.values = torch.zeros(cache, dtype=self._dtype), torch.zeros(cache, dtype=self._dtype)
        self._angles = self._rotation(self.longest)
        ahead = torch.arange(self.longest)
        self._visible = torch.where(ahead[None, :] <= ahead[:, None], 0.0, float("-inf")).to(self._dtype)

    def probabilities(self, batch: PackedBatch) -> Any:
        """Run one step: K and V of the new tokens join the cache.

        Returns:
            Probabilities ``[len(batch.logit_rows), vocabulary]`` in fp32.
        """
        size, run = self.size, self._run
        count, hidden = len(batch.token_ids), size.hidden
        segments = (*batch.decodes, *batch.chunks)
        positions = torch.cat([torch.arange(s.cached, s.cached + s.tokens) for s in segments])
        cosines, sines = self._angles[0][positions], self._angles[1][positions]
        x = run("elementwise", {"bytes_moved": 2 * count * hidden * self._width}, self._embed, batch.token_ids)
        added = torch.zeros_like(x)
        rotated = (size.heads + size.kv_heads) * size.head_dim
        for index, (qkv, out, gate_up, down) in enumerate(self.layers):
            x, normed = self._norm(x, added)
            fused = self._linear(normed, qkv)
            moved = {"bytes_moved": 2 * rotated * count * self._width}
            queries, keys, values = run("elementwise", moved, self._rotate, fused, cosines, sines)
            attended = self._attention(batch, index, queries, keys, values)
            x, normed = self._norm(x, self._linear(attended, out))
            moved = {"bytes_moved": 3 * size.intermediate * count * self._width}
            activated = run("elementwise", moved, self._activate, self._linear(normed, gate_up))
            added = self._linear(activated, down)
        rows = torch.tensor(batch.logit_rows, dtype=torch.long)
        if not len(rows):
            return torch.zeros(0, size.vocabulary)
        _, normed = self._norm(x[rows], added[rows])
        scores = self._linear(normed, self.lm_head)
        moved = {"bytes_moved": 3 * size.vocabulary * len(rows) * 4}
        return run("elementwise", moved, self._softmax, scores)

    def _run(self, op: str, sizes: dict[str, int], kernel: Callable[..., Any], *operands: Any) -> Any:
        return kernel(*operands) if self.observer is None else self.observer.run(op, sizes, kernel, *operands)

    def _linear(self, x: Any, weight: Any) -> Any:
        sizes = {"m": x.shape[0], "n": weight.shape[0], "k": weight.shape[1]}
        return self._run("gemm", sizes, functional.linear, x, weight)

    def _norm(self, x: Any, added: Any) -> Any:
        """Residual sum and its RMS norm: four passes over the activations."""
        return self._run("elementwise", {"bytes_moved": 4 * x.numel() * self._width}, self._add_norm, x, added)

    def _add_norm(self, x: Any, added: Any) -> Any:
        x = x + added
        return x, functional.rms_norm(x, (self.size.hidden,), self.norm, 1e-6)

    def _embed(self, token_ids: Sequence[int]) -> Any:
        return functional.embedding(torch.tensor(token_ids, dtype=torch.long), self.embedding)

    def _rotate(self, fused: Any, cosines: Any, sines: Any) -> Any:
        """Queries ``[tokens, heads, head_dim]``, keys and values ``[tokens, kv_heads, head_dim]``.

        Source: Su et al., "RoFormer", arXiv:2104.09864, in the half-split form of Llama.
        """
        size, half = self.size, self.size.head_dim // 2
        parts = fused.view(len(fused), size.heads + 2 * size.kv_heads, size.head_dim)
        turned, values = parts[:, : size.heads + size.kv_heads], parts[:, size.heads + size.kv_heads :]
        swapped = torch.cat((-turned[..., half:], turned[..., :half]), -1)
        turned = turned * cosines[:, None] + swapped * sines[:, None]
        return turned[:, : size.heads], turned[:, size.heads :], values

    @staticmethod
    def _softmax(scores: Any) -> Any:
        return torch.softmax(scores.float(), -1)

    @staticmethod
    def _activate(gate_up: Any) -> Any:
        gate, up = gate_up.chunk(2, -1)
        return functional.silu(gate) * up

    def _attention(self, batch: PackedBatch, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Attention of the decoding sequences, then of the prompt chunks: a kernel each."""
        outputs, start = [], 0
        for op, segments in (("attention_decode", batch.decodes), ("attention_prefill", batch.chunks)):
            if segments:
                stop = start + sum(segment.tokens for segment in segments)
                part = slice(start, stop)
                sizes = self._attention_sizes(segments)
                operands = (segments, layer, queries[part], keys[part], values[part])
                outputs.append(self._run(op, sizes, self._attend, *operands))
                start = stop
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _attention_sizes(self, segments: Sequence[Segment]) -> dict[str, int]:
        size = self.size
        total = sum(s.cached + s.tokens for s in segments)
        return {
            "batch": len(segments),
            "q_len": round(sum(s.tokens for s in segments) / len(segments)),
            "kv_len": total // len(segments),
            "kv_tokens": total,
            "num_heads": size.heads,
            "num_kv_heads": size.kv_heads,
            "head_dim": size.head_dim,
        }

    def _attend(self, segments: Sequence[Segment], layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Write the new K and V, then attend, sequence by sequence."""
        outputs, start = [], 0
        for slot, cached, tokens in segments:
            part, length = slice(start, start + tokens), cached + tokens
            own_keys, own_values = self.keys[layer, slot], self.values[layer, slot]
            own_keys[:, cached:length] = keys[part].transpose(0, 1)
            own_values[:, cached:length] = values[part].transpose(0, 1)
            seen = self._visible[cached:length, :length] if tokens > 1 else None
            outputs.append(self._one(queries[part], own_keys[None, :, :length], own_values[None, :, :length], seen))
            start += tokens
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _one(self, queries: Any, keys: Any, values: Any, seen: Any) -> Any:
        """One sequence: ``[tokens, heads, head_dim]`` against its whole cache, to ``[tokens, heads x head_dim]``."""
        size, tokens = self.size, len(queries)
        attend = functional.scaled_dot_product_attention
        if tokens > PACKED_QUERIES:
            wide = attend(queries.transpose(0, 1)[None], keys, values, attn_mask=seen, enable_gqa=True)
            return wide[0].transpose(0, 1).reshape(tokens, -1)
        group = size.heads // size.kv_heads
        packed = queries.view(tokens, size.kv_heads, group, size.head_dim).transpose(0, 1)
        packed = packed.reshape(1, size.kv_heads, tokens * group, size.head_dim)
        mask = None if seen is None else seen.repeat_interleave(group, 0)
        attended = attend(packed, keys, values, attn_mask=mask)
        return attended.view(size.kv_heads, tokens, group, size.head_dim).transpose(0, 1).reshape(tokens, -1)

    def _matrix(self, stream: int, rows: int, columns: int, scale: float) -> Any:
        """Random weights whose product with a normed vector has standard deviation ``scale``. Rows and columns name it
        too: each matrix of a layer is its own."""
        key = (self.seed * 1_000_003 + stream * 7919 + rows * 31 + columns) % (1 << 62)
        generator = torch.Generator().manual_seed(key)
        return torch.randn(rows, columns, generator=generator).mul_(scale / sqrt(columns)).to(self._dtype)

    def _rotation(self, longest: int) -> tuple[Any, Any]:
        dimension = self.size.head_dim
        frequencies = ROPE_BASE ** (-torch.arange(0, dimension, 2) / dimension)
        angles = torch.outer(torch.arange(longest), frequencies).repeat(1, 2)
        return angles.cos().to(self._dtype), angles.sin().to(self._dtype)
