"""NVIDIA AIConfigurator's Parquet tables (Apache-2.0): milliseconds of one kernel call on one GPU.

Column meanings: the collector of ai-dynamo/aiconfigurator (``aiconfigurator_core/systems/data``). Unsuitable rows are
excluded by rule and counted, never silently: rows timed without a captured graph, formats that this project does
not model, tables of kernels that it does not predict.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from forerun.arrays import BoolArray, IntArray
from forerun.yaml_files import packaged
from traces.fields import SECONDS
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, Texts, Words, constant, whole, words

FORMAT = "aiconfigurator"
NAMES = packaged("traces.kernels", "formats.yaml")[FORMAT]
DTYPES: dict[str, str] = NAMES["dtypes"]
SPARSE_MODULES: dict[str, tuple[str, str]] = NAMES["sparse_modules"]

ABSORBED_PROMPTS = "flash_attention"
"""Value of ``kernel_source`` for a prompt of MLA timed against the shared latent, as a decode step is: SGLang's
FlashAttention on chips before Blackwell. Source: ``collector/sglang/collect_mla.py`` of ai-dynamo/aiconfigurator."""

_MLA_ROPE, _MLA_NOPE, _MLA_LATENT, _MLA_VALUE = 64, 128, 512, 128


def is_aiconfigurator(names: tuple[str, ...]) -> bool:
    """True if the columns belong to an AIConfigurator table."""
    named = {"framework", "version", "kernel_source", "op_name"} & set(names)
    return len(named) > 1 or ("latency" in names and any(name in names for name in (*_TABLES, "op_name")))


def read_aiconfigurator(frame: Frame) -> KernelTable:
    for column, read in _TABLES.items():
        if column in frame.names:
            frame.need("latency")
            return read(frame)
    return _unpredicted(frame, frame.path.stem.removesuffix("_perf"))


def _gemm(frame: Frame) -> KernelTable:
    frame.need("m", "n", "k")
    frame = frame.without(NAMES["left_out"]["gemm"])
    frame, dtype = _priced(frame, "gemm_dtype")
    return _table(frame, "gemm", frame.sizes("m", "n", "k"), {"dtype": dtype})


def _attention(frame: Frame) -> KernelTable:
    """Self-attention: prefill rows have ``isl`` new tokens, decode rows one token on ``step`` cached ones.

    A bf16 call on an fp8 cache that TensorRT-LLM's prefill serves is fp8 arithmetic (it reaches fp8 rates).
    """
    frame.need("op_name")
    operation = frame.texts("op_name")
    if not {"context_attention", "generation_attention"} & set(operation.names):
        return _unpredicted(frame, operation.names[0])
    frame.need("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step")
    known = operation.equals("context_attention") | operation.equals("generation_attention")
    frame = frame.drop(~known, "no prediction for this attention (not causal)")
    frame, dtype = _priced(frame, "attn_dtype")
    frame, kv_dtype = _priced(frame, "kv_cache_dtype")
    dtype = frame.texts("attn_dtype").mapped(DTYPES.__getitem__)
    decode = frame.texts("op_name").equals("generation_attention")
    sizes = _attention_sizes(frame) | frame.sizes(num_kv_heads="num_key_value_heads", head_dim="head_dim")
    if frame.has("window_size"):
        sizes |= frame.sizes(window="window_size")
    sizes["num_kv_heads"] = np.where(sizes["num_kv_heads"] > 0, sizes["num_kv_heads"], sizes["num_heads"])
    if _framework(frame).names == ("trtllm",):
        native = kv_dtype.equals("fp8") & ~decode
        dtype = Words(np.where(native, len(dtype.names), dtype.codes).astype(np.int32), (*dtype.names, "fp8"))
    op = Words(decode.astype(np.int32), ("attention_prefill", "attention_decode"))
    return _table(frame, op, sizes, {"dtype": dtype, "kv_dtype": kv_dtype, "cache": "warm"})


def _mla(frame: Frame) -> KernelTable:
    """DeepSeek's MLA core attention. Whole keys and values for a prompt, the shared latent for a decode step and for
    prompts that were timed so (``ABSORBED_PROMPTS``)."""
    frame.need("batch_size", "isl", "num_heads", "kv_cache_dtype", "step", "op_name")
    operation = frame.texts("op_name")
    if frame.has("gemm_type") and any(name in SPARSE_MODULES for name in operation.names):
        return _sparse_module(frame)
    whole = frame.has("gemm_type") or "fp8_block" in frame.texts("mla_dtype").names  # with the layer's projections
    if whole or not {"mla_context", "mla_generation"} & set(operation.names):
        return _unpredicted(frame, frame.path.stem.removesuffix("_perf"))
    frame, kv_dtype = _priced(frame, "kv_cache_dtype")
    decode = frame.texts("op_name").equals("mla_generation")
    shared = decode | frame.texts("kernel_source").equals(ABSORBED_PROMPTS) if frame.has("kernel_source") else decode
    sizes = _attention_sizes(frame)
    sizes["num_kv_heads"] = np.where(shared, 1, sizes["num_heads"])
    sizes["head_dim"] = np.where(shared, _MLA_LATENT + _MLA_ROPE, _MLA_NOPE + _MLA_ROPE)
    sizes["v_head_dim"] = np.where(shared, _MLA_LATENT, _MLA_VALUE)
    sizes["latent"] = shared.astype(np.int64)
    op = Words(decode.astype(np.int32), ("attention_prefill", "attention_decode"))
    return _table(frame, op, sizes, {"dtype": "bf16", "kv_dtype": kv_dtype, "cache": "warm"})


def _sparse_module(frame: Frame) -> KernelTable:
    """Attention modules that read chosen or compressed keys: DeepSeek-V3.2's, V4's, GLM-5's and MiniMax-M3's."""
    frame.need("batch_size", "isl", "num_heads", "kv_cache_dtype", "step", "model")
    names = frame.texts("op_name").names
    for name in names:
        if name not in SPARSE_MODULES:
            frame = frame.drop(frame.texts("op_name").equals(name), f"no prediction for '{name}'")
    frame = frame.drop(_beyond_grid(frame), "more prompt tokens than the kernel's grid takes")
    frame = frame.without(NAMES["left_out"]["sparse"])
    frame, dtype = _priced(frame, "gemm_type")
    frame, kv_dtype = _priced(frame, "kv_cache_dtype", {"fp8_e4m3": "fp8"})
    dtype = frame.texts("gemm_type").mapped(DTYPES.__getitem__)
    operation, model = frame.texts("op_name"), frame.texts("model")
    op = operation.mapped(lambda name: SPARSE_MODULES[name][0])
    kinds = [SPARSE_MODULES[name][1] for name in operation.names]
    layer = words([f"{model.names[m]} {kinds[k]}" for m, k in zip(model.codes, operation.codes, strict=True)])
    texts: Texts = {"dtype": dtype, "kv_dtype": kv_dtype, "cache": "warm", "name": layer}
    return _table(frame, op, _attention_sizes(frame), texts)


MOST_BLOCKS = 65535
"""Maximum blocks in the second and third dimension of a CUDA grid."""


def _beyond_grid(frame: Frame) -> BoolArray:
    """Rows of DeepSeek's sparse attention with more prompt tokens than a grid has blocks, under vLLM on a B200. With
    fewer than 64 heads (which another kernel serves), such rows take half the time of half as many tokens.
    """
    if not frame.has("device"):
        return np.zeros(frame.rows, dtype=bool)
    tokens = whole(frame.floats("batch_size")) * whole(frame.floats("isl"))
    here = frame.texts("device").matching(lambda name: "B200" in name) & _framework(frame).equals("vllm")
    prompts = frame.texts("op_name").equals("dsa_context_module")
    few = whole(frame.floats("num_heads")) < 64
    return np.asarray(here & prompts & few & (tokens > MOST_BLOCKS))


def _moe(frame: Frame) -> KernelTable:
    frame.need("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    frame, dtype = _priced(frame, "moe_dtype")
    sizes = frame.sizes(
        tokens="num_tokens", hidden="hidden_size", intermediate="inter_size", experts_per_token="topk",
        num_experts="num_experts", tensor_parallel="moe_tp_size", expert_parallel="moe_ep_size",
    )  # fmt: skip
    texts: Texts = {"dtype": dtype, **frame.present(routing="distribution")}
    if frame.has("kernel_source"):
        plain = frame.texts("kernel_source").matching(lambda name: "nongated" in name)
        sizes["projections"] = np.where(plain, 2, 0)
        if frame.has("op_name") and frame.texts("op_name").names == ("moe_context",):
            texts["source"] = frame.texts("kernel_source").mapped(lambda name: f"{name}_context")
    return _table(frame, "moe", sizes, texts)


def _recurrent(frame: Frame) -> KernelTable:
    """Gated delta nets, Kimi delta attention and Mamba-2. The scan over prompts, the update for decoded or verified
    tokens, and the short convolution before both, a memory-bound kernel with rows of its own.
    """
    frame.need("batch_size", "seq_len", "kernel_source", "phase", "op_name", "d_conv")
    frame = frame.without(NAMES["left_out"]["recurrent"])
    rule = frame.texts("op_name")
    convolving = frame.texts("kernel_source").matching(lambda name: "conv1d" in name)
    prompt = frame.texts("phase").equals("context")
    operations = ("recurrent_prefill", "recurrent_decode", "elementwise")
    op = Words(np.where(convolving, 2, ~prompt).astype(np.int32), operations)
    phases = [f"convolution {name}-{phase}" for name in rule.names for phase in ("scan", "update")]
    codes = np.where(convolving, len(rule.names) + 2 * rule.codes + ~prompt, rule.codes).astype(np.int32)
    if frame.has("d_state"):
        frame = frame.drop(~convolving, "no prediction for Mamba-2's scans")
        op, codes = Words(op.codes[convolving], operations), codes[convolving]
        heads, width, groups, state = (whole(frame.floats(n)) for n in ("nheads", "head_dim", "n_groups", "d_state"))
        sizes = _convolution(frame, heads * width + 2 * groups * state)
    else:
        frame.need("num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim")
        sizes = frame.sizes(batch="batch_size", q_len="seq_len", num_heads="num_v_heads", num_kv_heads="num_k_heads",
                       head_dim="head_k_dim", v_head_dim="head_v_dim")  # fmt: skip
        moved = _convolution(frame, _delta_channels(frame))
        sizes = {name: np.where(convolving, 0, values) for name, values in sizes.items()}
        sizes |= {name: np.where(convolving, values, 0) for name, values in moved.items()}
    names = Words(codes, (*rule.names, *phases))
    return _table(frame, op, sizes, {"dtype": "bf16", "cache": "warm", "name": names})


def _delta_channels(frame: Frame) -> IntArray:
    """Channels of a delta rule's convolution: queries, keys and values. Collectors of TensorRT-LLM, and of SGLang
    before 0.5.14, call it on as many as the keys have."""
    keys = whole(frame.floats("num_k_heads")) * whole(frame.floats("head_k_dim"))
    values = whole(frame.floats("num_v_heads")) * whole(frame.floats("head_v_dim"))
    older = frame.texts("version").matching(lambda name: name.startswith("0.5.") and int(name.split(".")[2]) < 14)
    alone = _framework(frame).equals("trtllm") | (_framework(frame).equals("sglang") & older)
    return np.where(alone, keys, 2 * keys + values)


def _convolution(frame: Frame, channels: IntArray) -> dict[str, IntArray]:
    """Bytes that a convolution moves, and the number of pieces that it processes one by one.

    Every channel of every token and of each sequence's tail is read and written in 16 bits. For every further verified
    token SGLang writes a whole tail, other engines only one token.
    """
    batch, kept = whole(frame.floats("batch_size")), whole(frame.floats("d_conv")) - 1
    tokens = batch * whole(frame.floats("seq_len"))
    further = np.where(frame.texts("phase").equals("context"), 0, tokens - batch)
    further = further * np.where(_framework(frame).equals("sglang"), kept, 1)
    return {"bytes_moved": 2 * (2 * (tokens + kept * batch) + further) * channels, "pieces": batch * channels}


def _collective(frame: Frame, dtype_column: str) -> KernelTable:
    """Collectives: ``message_size`` counts elements; rows that include host launches (eager) are left out."""
    frame.need("num_gpus", "message_size")
    frame = frame.without(NAMES["left_out"]["collective"])
    if not frame.rows:
        return _unpredicted(frame, "")
    widths, operations = NAMES["element_bytes"], NAMES["collectives"]
    unknown = frame.texts(dtype_column).matching(lambda name: name not in widths)
    frame = frame.drop(unknown, "message format of unknown width")
    foreign = frame.texts("op_name").matching(lambda name: name not in operations)
    frame = frame.drop(foreign, "no prediction for this collective")
    width, operation = frame.texts(dtype_column), frame.texts("op_name")
    sizes = frame.sizes(world_size="num_gpus", message_bytes="message_size")
    sizes["message_bytes"] = sizes["message_bytes"] * np.array([widths[name] for name in width.names])[width.codes]
    op = operation.mapped(operations.__getitem__)
    texts: Texts = {"library": "nccl"} if dtype_column == "nccl_dtype" else {}
    return _table(frame, op, sizes, texts)


_TABLES: dict[str, Callable[[Frame], KernelTable]] = {
    "gemm_dtype": _gemm,
    "mla_dtype": _mla,
    "moe_dtype": _moe,
    "nccl_dtype": partial(_collective, dtype_column="nccl_dtype"),
    "allreduce_dtype": partial(_collective, dtype_column="allreduce_dtype"),
    "attn_dtype": _attention,
    "d_conv": _recurrent,
}
"""The column that identifies a table, and its reader."""


def _unpredicted(frame: Frame, operation: str) -> KernelTable:
    if frame.rows:
        frame.skipped[f"no prediction for '{operation}'"] = frame.rows
    return frame.kernels(np.zeros(0), "other", {}, {}, FORMAT)


def _attention_sizes(frame: Frame) -> dict[str, IntArray]:
    """Batch, heads and lengths; a decode row's single token (``isl`` 1) follows ``step`` cached ones."""
    sizes = frame.sizes(batch="batch_size", q_len="isl", num_heads="num_heads", kv_len="step")
    sizes["kv_len"] = sizes["kv_len"] + sizes["q_len"]
    return sizes


def _priced(frame: Frame, column: str, also: dict[str, str] | None = None) -> tuple[Frame, Words]:
    known = DTYPES | (also or {})
    for name in frame.texts(column).names:
        if name not in known:
            frame = frame.drop(frame.texts(column).equals(name), f"format '{name}' is not priced")
    return frame, frame.texts(column).mapped(known.__getitem__)


def _framework(frame: Frame) -> Words:
    if not frame.has("framework"):
        return constant("", frame.rows)
    return frame.texts("framework").mapped(str.lower)


def _table(frame: Frame, op: str | Words, sizes: dict[str, IntArray], texts: Texts) -> KernelTable:
    named = {"library": _framework(frame), **frame.present(source="kernel_source"), **texts}
    return frame.kernels(frame.floats("latency") * SECONDS["ms"], op, sizes, named, FORMAT)
