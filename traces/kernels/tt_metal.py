"""Tenstorrent tt-metal's ``ops_perf_results`` CSV: operations with their tensors; times are nanoseconds."""

from __future__ import annotations

import re

import numpy as np

from forerun.arrays import Array, BoolArray, FloatArray
from forerun.yaml_files import packaged
from traces.errors import TraceError
from traces.fields import SECONDS
from traces.kernels.columns import COLLECTIVES
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, Texts, words

FORMAT = "tt-metal"
DURATION = "DEVICE FW DURATION [ns]"
MARKER = "marker (signpost), not an operation"
NO_DURATION = "operation without a device duration"
OTHER_CHIP = "the same call on another chip of the mesh (the slowest one counts)"

BATCHED = "batched matrix product, which no prediction covers"
_NAMES = packaged("traces.kernels", "formats.yaml")[FORMAT]
_DTYPES: dict[str, str] = _NAMES["dtypes"]
_OPERATIONS = {op: re.compile(pattern, re.IGNORECASE) for op, pattern in _NAMES["operations"].items()}
_CAUSAL = re.compile(r"is_causal['\"]?[:=;] ?['\"]?(true|1)", re.IGNORECASE)


def is_tt_metal(names: tuple[str, ...]) -> bool:
    """True if these are the columns of an ops_perf file (their number varies from 74 to 139)."""
    return "OP CODE" in names and DURATION in names


def read_tt_metal(frame: Frame) -> KernelTable:
    """Operations of an ops_perf file with the shapes that their tensors state.

    On several chips a call has one row per chip; the slowest is kept.
    """
    frame.need("OP CODE", "OP TYPE", DURATION)
    frame = frame.drop(frame.texts("OP TYPE").equals("signpost"), MARKER)
    frame = frame.drop(~(np.nan_to_num(frame.floats(DURATION)) > 0), NO_DURATION)
    if not frame.rows:
        raise TraceError(f"{frame.path}: no operation with a device duration")
    chips = len(frame.texts("DEVICE ID").names) if frame.has("DEVICE ID") else 1
    frame = _slowest(frame)
    batched = frame.texts("OP CODE").matching(_OPERATIONS["gemm"].search)
    if batched.any():
        second = [_axis(frame, 1, axis) for axis in "WZYX"]
        frame = frame.drop(batched & (second[0] * second[1] > 1), BATCHED)
    code = frame.texts("OP CODE")
    kind = code.mapped(lambda name: next((op for op, pattern in _OPERATIONS.items() if pattern.search(name)), "other"))
    op, sizes = kind.texts(), dict[str, Array]()
    dtype = np.full(frame.rows, "", dtype=object)

    def put(name: str, known: BoolArray, tensor: int, **values: Array) -> None:
        """Set the sizes of an operation's rows; a row with an unknown size stays without a shape."""
        mine = op == name
        formats = frame.texts(f"INPUT_{tensor}_DATATYPE").mapped(lambda text: _DTYPES.get(text, "")).texts()
        good = mine & known & (formats != "")
        op[mine & ~good] = "other"
        dtype[good] = formats[good]
        for size, column in values.items():
            sizes[size] = np.where(good, column, sizes.get(size, 0))

    if (op == "gemm").any():
        first, second = ([_axis(frame, tensor, axis) for axis in "WZYX"] for tensor in (0, 1))
        put("gemm", first[3] == second[2], 1, m=first[0] * first[1] * first[2], k=first[3], n=second[3])
    if not frame.has("INPUT_0_DATATYPE", "INPUT_0_MEMORY", "OUTPUT_0_DATATYPE", "OUTPUT_0_MEMORY"):
        op[op != "gemm"] = "other"
    else:
        if (op == "attention_prefill").any():
            query, keys = ([_axis(frame, tensor, axis) for axis in "WZYX"] for tensor in (0, 1))
            masked = frame.texts("ATTRIBUTES").matching(_CAUSAL.search) & (query[2] == keys[2])
            heads = {"num_heads": query[1], "num_kv_heads": keys[1], "head_dim": query[3]}
            put("attention_prefill", masked, 0, batch=query[0], q_len=query[2], kv_len=keys[2], **heads)
        into, out = (_tensor_bytes(frame, name) for name in ("INPUT_0", "OUTPUT_0"))
        ranks = {"all_gather": out / np.maximum(into, 1), "reduce_scatter": into / np.maximum(out, 1)}
        for name in COLLECTIVES[:3]:
            world = np.rint(ranks.get(name, np.full(frame.rows, float(chips))))
            put(name, world > 1, 0, message_bytes=np.maximum(into, out), world_size=world)
        names = [name for name in frame.names if name.endswith("_MEMORY")]
        moved = sum(_tensor_bytes(frame, name.removesuffix("_MEMORY"), dram=True) for name in names)
        put("elementwise", np.asarray(moved) > 0, 0, bytes_moved=np.rint(moved))
    texts: Texts = {"name": code, "dtype": words(dtype), "cache": "cold"}
    texts |= frame.present(device="DEVICE ARCH", source="MATH FIDELITY")
    return frame.kernels(frame.floats(DURATION) * SECONDS["ns"], words(op), sizes, texts, FORMAT)


def _tensor_bytes(frame: Frame, tensor: str, dram: bool = False) -> FloatArray:
    """Bytes of a tensor, such as ``INPUT_0``, of each row; with ``dram`` those alone that lie in DRAM."""
    if not frame.has(f"{tensor}_DATATYPE"):
        return np.zeros(frame.rows)
    formats = frame.texts(f"{tensor}_DATATYPE")
    width = np.array([_NAMES["element_bytes"].get(name, 0.0) for name in formats.names])[formats.codes]
    for axis in "WZYX":
        width = width * _axis(frame, tensor, axis)
    return width * frame.texts(f"{tensor}_MEMORY").matching(lambda name: "DRAM" in name) if dram else width


def _slowest(frame: Frame) -> Frame:
    """Slowest of the rows with one GLOBAL CALL COUNT, one per chip."""
    if not frame.has("GLOBAL CALL COUNT", "DEVICE ID") or len(frame.texts("DEVICE ID").names) < 2:
        return frame
    call, seconds = frame.floats("GLOBAL CALL COUNT"), frame.floats(DURATION)
    order = np.lexsort((seconds, call))
    last = np.r_[call[order][1:] != call[order][:-1], True]
    keep = np.zeros(frame.rows, dtype=bool)
    keep[order[last]] = True
    return frame.drop(~keep, OTHER_CHIP)


def _axis(frame: Frame, tensor: int | str, axis: str) -> FloatArray:
    """Logical size of one axis of an input: ``32[19]`` is padded[logical]; older files hold plain numbers."""
    name = f"INPUT_{tensor}_{axis}" if isinstance(tensor, int) else f"{tensor}_{axis}"
    names = frame.texts(f"{name}_PAD[LOGICAL]" if frame.has(f"{name}_PAD[LOGICAL]") else name)
    return np.array([_logical(name) for name in names.names])[names.codes]


def _logical(text: str) -> float:
    inner = text.partition("[")[2].rstrip("]") if "[" in text else text
    try:
        return float(inner)
    except ValueError:
        return 0.0
