"""Vidur's profiles (MIT): milliseconds of GPU kernel time per layer operation, fp16."""

from __future__ import annotations

import numpy as np

from forerun.arrays import Array, FloatArray
from traces.errors import TraceError
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, Texts, Words, concatenate

MILLISECONDS = 1e-3
ACTIVATION_BYTES = 2
FORMAT = "vidur"
LIBRARY = "portable"
"""Library of kernels of 2024 and earlier: H100 rows run as if without the chip's asynchronous copies and clusters (9 %
off predictions for such kernels, 16 % off predictions for current ones); on an A100 there is no difference."""
SEVERAL_NODES = "collective across several nodes"

Columns = dict[str, Array]


def is_vidur(names: tuple[str, ...]) -> bool:
    """True if these are the columns of a Vidur profile."""
    return any(name.startswith("time_stats.") for name in names)


def read_vidur(frame: Frame) -> KernelTable:
    """Kernels of ``mlp.csv``, ``attention.csv``, ``all_reduce.csv`` or ``send_recv.csv``."""
    if frame.has("is_prefill"):
        return _attention(frame)
    if frame.has("collective"):
        return _collective(frame)
    if frame.has("n_embd", "num_tokens"):
        return _layer(frame)
    raise TraceError(
        f"{frame.path}: a Vidur file, but neither mlp, attention nor a collective (columns: {frame.listed})"
    )


def _layer(frame: Frame) -> KernelTable:
    """``mlp.csv``: every kernel of one layer but attention; each timed operation becomes its own rows."""
    frame.need("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers")
    tokens, tp = frame.floats("num_tokens"), frame.floats("num_tensor_parallel_workers")
    hidden, heads, kv_heads = frame.floats("n_embd"), frame.floats("n_head"), frame.floats("n_kv_head")
    wide = frame.floats("n_expanded_embd")
    gated = frame.texts("use_gated_mlp").matching(_is_true) if frame.has("use_gated_mlp") else True
    head_dim = hidden / heads
    factor = np.where(gated, 2.0, 1.0)
    gemms = {
        "attn_pre_proj": ((heads + 2 * kv_heads) * head_dim / tp, hidden),
        "attn_post_proj": (hidden, heads * head_dim / tp),
        "mlp_up_proj": (factor * wide / tp, hidden),
        "mlp_down_proj": (hidden, wide / tp),
    }
    passes = {
        "input_layernorm": 2 * hidden,
        "post_attention_layernorm": 2 * hidden,
        "add": 3 * hidden,
        "mlp_act": (factor + 1.0) * wide / tp,
        "attn_rope": 2 * (heads + kv_heads) * head_dim / tp,
    }
    calls: list[tuple[str, str, Columns]]
    calls = [(name, "gemm", {"m": tokens, "n": n, "k": k}) for name, (n, k) in gemms.items()]
    for name, width in passes.items():
        calls.append((name, "elementwise", {"bytes_moved": np.rint(ACTIVATION_BYTES * tokens * width)}))
    parts = [_timed(frame, *call) for call in calls if frame.has(f"time_stats.{call[0]}.median")]
    if not parts:
        raise TraceError(f"{frame.path}: no timed operation (columns time_stats.<operation>.median)")
    return concatenate(parts)


def _attention(frame: Frame) -> KernelTable:
    """``attention.csv``: one prompt chunk on cached tokens, or a batch of single queries."""
    frame.need("n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size", "prefill_chunk_size",
               "kv_cache_size")  # fmt: skip
    prefill = frame.texts("is_prefill").matching(_is_true)
    tp, heads = frame.floats("num_tensor_parallel_workers"), frame.floats("n_q_head")
    cached = frame.floats("kv_cache_size")
    new = np.where(prefill, frame.floats("prefill_chunk_size"), 1.0)
    sizes = {
        "batch": np.where(prefill, 1.0, frame.floats("batch_size")),
        "q_len": new,
        "kv_len": cached + new,
        "num_heads": heads / tp,
        "num_kv_heads": frame.floats("n_kv_head") / tp,
        "head_dim": frame.floats("n_embd") / heads,
    }

    def picked(statistic: str) -> FloatArray:
        prompts, decodes = (frame.floats(f"time_stats.attn_{phase}.{statistic}") for phase in ("prefill", "decode"))
        return np.where(prefill, prompts, decodes) * MILLISECONDS

    op = Words(np.where(prefill, 0, 1).astype(np.int32), ("attention_prefill", "attention_decode"))
    texts: Texts = {"dtype": "fp16", "kv_dtype": "fp16", "cache": "warm", "library": LIBRARY}
    texts |= frame.present(source="attention_backend")
    return frame.kernels(picked("median"), op, sizes, texts, FORMAT, picked("std"))


def _collective(frame: Frame) -> KernelTable:
    frame.need("num_workers", "devices_per_node", "size")
    frame = frame.drop(frame.floats("devices_per_node") < frame.floats("num_workers"), SEVERAL_NODES)
    name = frame.texts("collective").names[0] if frame.rows else "all_reduce"
    if not frame.has(f"time_stats.{name}.median"):
        raise TraceError(f"{frame.path}: no column 'time_stats.{name}.median'")
    sizes = {"message_bytes": frame.floats("size"), "world_size": frame.floats("num_workers")}
    return _timed(frame, name, name, sizes, {"library": "nccl", "dtype": "fp16"})


def _timed(frame: Frame, operation: str, op: str, sizes: Columns, texts: Texts | None = None) -> KernelTable:
    median = frame.floats(f"time_stats.{operation}.median") * MILLISECONDS
    spread = f"time_stats.{operation}.std"
    named: Texts = {"dtype": "fp16", "library": LIBRARY, "name": operation, **(texts or {})}
    return frame.kernels(
        median, op, sizes, named, FORMAT, frame.floats(spread) * MILLISECONDS if frame.has(spread) else None
    )


def _is_true(text: str) -> bool:
    return text.lower() in ("true", "1")
