"""LLMServingSim's layer profiles (MIT): microseconds (older: nanoseconds) per layer; the folder names the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from forerun.arrays import Array, FloatArray
from forerun.yaml_files import packaged
from traces.errors import TraceError
from traces.fields import SECONDS
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, Texts, Words, concatenate

FORMAT = "llmservingsim"
ACTIVATION_BYTES = 2
SKEW_REPEATS = 3
"""Iterations that ``skew.csv`` adds up; the profiler runs three. Its rows at one length take 3.00 to 3.06 times what
``attention.csv`` has for the same batch (5th to 95th percentile of 13,006 rows of the RTX 4090)."""


class ModelShape(NamedTuple):
    """Model dimensions that a profile depends on."""

    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    num_experts: int = 0
    experts_per_token: int = 0


MODELS = {
    name: ModelShape(**shape) for name, shape in packaged("traces.kernels", "formats.yaml")[FORMAT]["models"].items()
}


class Place(NamedTuple):
    """Device, model and tensor parallelism from a folder's name."""

    device: str
    model: ModelShape
    tp: int


def is_llmservingsim(names: tuple[str, ...]) -> bool:
    """True if these are the columns of an LLMServingSim profile."""
    return (
        {"layer", "time_us"} <= set(names)
        or {"prefill_chunk", "n_decode", "time_us"} <= set(names)
        or {"tokens", "activated_experts", "time_us"} <= set(names)
        or "t_skew_us" in names
        or "latency(ns)" in names
    )


def read_llmservingsim(frame: Frame) -> KernelTable:
    """Kernels of ``dense``, ``per_sequence``, ``attention``, ``moe``, ``skew`` or ``layers``."""
    place = _place(frame)
    if frame.has("latency(ns)"):
        return _layers(frame, place, "layer_name", "input", frame.floats("latency(ns)") * SECONDS["ns"])
    if frame.has("t_skew_us"):
        return _skewed(frame, place)
    seconds = frame.floats("time_us") * SECONDS["us"]
    if frame.has("prefill_chunk"):
        return _attention(frame, place, seconds)
    if frame.has("activated_experts"):
        return _experts(frame, place, seconds)
    return _layers(frame, place, "layer", "tokens" if frame.has("tokens") else "sequences", seconds)


def _place(frame: Frame) -> Place:
    folder = frame.path.parent.name
    match = re.search(r"tp(\d+)", folder)
    model = next((shape for name, shape in MODELS.items() if name in folder), None)
    if match is None or model is None:
        known = ", ".join(MODELS)
        raise TraceError(
            f"{frame.path}: the folder must be named <device>_<model>_tp<n>, with one of the models {known}"
        )
    return Place(folder.split("_")[0], model, int(match[1]))


def _layers(frame: Frame, place: Place, layer_column: str, rows_column: str, seconds: FloatArray) -> KernelTable:
    """Layers other than attention and experts: GEMMs by name, memory-bound kernels, and all others by name only."""
    model, tp = place.model, place.tp
    heads, kv_heads = model.num_heads * model.head_dim / tp, max(1.0, model.num_kv_heads / tp) * model.head_dim
    wide = model.intermediate / tp
    gemms: dict[str, tuple[float, float]] = {
        "qkv_proj": (heads + 2 * kv_heads, model.hidden),
        "q_proj": (heads, model.hidden),
        "k_proj": (kv_heads, model.hidden),
        "v_proj": (kv_heads, model.hidden),
        "o_proj": (model.hidden, heads),
        "lm_head": (model.vocab / tp, model.hidden),
    }
    if not model.num_experts:
        gemms |= {
            "gate_up_proj": (2 * wide, model.hidden),
            "gate_proj": (wide, model.hidden),
            "up_proj": (wide, model.hidden),
            "down_proj": (model.hidden, wide),
        }
    passes: dict[str, float] = {
        "layernorm": 4 * model.hidden,
        "final_layernorm": 4 * model.hidden,
        "embedding": 2 * model.hidden,
        "act_fn": 3 * wide,
        "rotary_emb": 2 * (heads + kv_heads),
        "rope": 2 * (heads + kv_heads),
    }
    layers = frame.texts(layer_column)
    count = frame.floats(rows_column)
    choice = ("gemm", "elementwise", "other")
    codes = [0 if name in gemms else 1 if name in passes else 2 for name in layers.names]
    op = Words(np.array(codes, dtype=np.int32)[layers.codes], choice)

    def by_layer(values: Mapping[str, float]) -> FloatArray:
        return np.array([float(values.get(name, 0.0)) for name in layers.names])[layers.codes]

    sizes = {
        "m": count,
        "n": by_layer({name: outputs for name, (outputs, _) in gemms.items()}),
        "k": by_layer({name: inputs for name, (_, inputs) in gemms.items()}),
        "bytes_moved": count * by_layer(passes) * ACTIVATION_BYTES,
    }
    # The profiler calls one layer again and again: what a pass moves is still in the card's large cache.
    warm = (op.equals("elementwise") & (layer_column == "layer")).astype(np.int32)
    return _table(frame, place, seconds, op, sizes, {"name": layers, "cache": Words(warm, ("", "warm"))})


class MeasuredBatches(NamedTuple):
    """Attention batches, one per row: a prompt chunk, and sequences of one new token each."""

    new: FloatArray
    cached: FloatArray
    """Cached tokens before the chunk."""
    seqs: FloatArray
    context: FloatArray
    """Context of each sequence, or their mean."""
    tokens: FloatArray
    """Contexts in total."""
    longest: FloatArray
    """Context of the longest sequences; 0 if all are alike."""
    many: FloatArray


def _attention(frame: Frame, place: Place, seconds: FloatArray) -> KernelTable:
    """One kernel over a prompt chunk, over single-token sequences, or over both."""
    new, cached, seqs, context = map(frame.floats, ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
    none = np.zeros(frame.rows)
    return _mixed(frame, place, seconds, MeasuredBatches(new, cached, seqs, context, seqs * context, none, none))


def _skewed(frame: Frame, place: Place) -> KernelTable:
    """Batches of unequal lengths, each with the same batch at the mean and at the longest length: three rows each.

    The file's times are sums over the profiler's iterations.
    """
    new, cached, seqs, big, short, long, mean = map(frame.floats, ("pc", "kp", "n", "nb", "kvs", "kv_big", "kv_mean"))
    total = big * long + (seqs - big) * short
    none = np.zeros(frame.rows)
    parts = []
    for column, length, tokens, longest in (
        ("t_mean_us", mean, seqs * mean, none),
        ("t_max_us", long, seqs * long, none),
        ("t_skew_us", np.maximum(1.0, np.rint(total / seqs)), total, long),
    ):
        seconds = frame.floats(column) * SECONDS["us"] / SKEW_REPEATS
        parts.append(_mixed(frame, place, seconds, MeasuredBatches(new, cached, seqs, length, tokens, longest, big)))
    return concatenate(parts)


def _mixed(frame: Frame, place: Place, seconds: FloatArray, batch: MeasuredBatches) -> KernelTable:
    new, cached, seqs, context, tokens, longest, many = batch
    decode_only, prefill_only = new == 0, seqs == 0
    choice = ("attention_prefill", "attention_decode", "attention_mixed")
    code = np.where(decode_only, 1, np.where(prefill_only, 0, 2)).astype(np.int32)
    model, tp = place.model, place.tp
    same = np.ones(frame.rows)
    uneven = np.where(np.abs(tokens - seqs * np.rint(context)) > 0.5, np.rint(tokens), 0.0)
    sizes: dict[str, Array] = {
        "batch": np.where(decode_only, seqs, 1.0),
        "q_len": np.where(decode_only, 1.0, new),
        "kv_len": np.where(decode_only, np.rint(context), cached + new),
        "kv_tokens": np.where(decode_only, uneven, 0.0),
        "longest_kv": np.where(prefill_only, 0.0, longest),
        "longest_batch": np.where(longest > 0, many, 0.0),
        "decode_batch": np.where(decode_only, 0.0, seqs),
        "decode_kv_len": np.where(decode_only | prefill_only, 0.0, np.rint(context)),
        "decode_kv_tokens": np.where(decode_only, 0.0, uneven),
        "num_heads": same * (model.num_heads // tp),
        "num_kv_heads": same * max(1, model.num_kv_heads // tp),
        "head_dim": same * model.head_dim,
    }
    return _table(frame, place, seconds, Words(code, choice), sizes, {"kv_dtype": "bf16", "cache": "warm"})


def _experts(frame: Frame, place: Place, seconds: FloatArray) -> KernelTable:
    model = place.model
    same = np.ones(frame.rows)
    sizes = {
        "tokens": frame.floats("tokens"),
        "active_experts": frame.floats("activated_experts"),
        "num_experts": same * model.num_experts,
        "experts_per_token": same * model.experts_per_token,
        "hidden": same * model.hidden,
        "intermediate": same * model.intermediate,
        "tensor_parallel": same * place.tp,
    }
    return _table(frame, place, seconds, "moe", sizes, {})


def _table(
    frame: Frame, place: Place, seconds: FloatArray, op: str | Words, sizes: dict[str, Array], texts: Texts
) -> KernelTable:
    named = {"dtype": "bf16", "device": place.device, "library": "vllm", **texts}
    return frame.kernels(seconds, op, sizes, named, FORMAT)
