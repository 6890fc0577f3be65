"""Tenstorrent tt-metal's ``ops_perf_results`` CSV: operations with their tensors; times are nanoseconds."""

from __future__ import annotations

import numpy as np

from forerun.arrays import Array, FloatArray
from forerun.yaml_files import packaged
from traces.errors import TraceError
from traces.fields import SECONDS
from traces.kernels.frame import Frame
from traces.kernels.table import KernelTable, Texts, Words, constant

FORMAT = "tt-metal"
DURATION = "DEVICE FW DURATION [ns]"
MARKER = "marker (signpost), not an operation"
NO_DURATION = "operation without a device duration"
OTHER_CHIP = "the same call on another chip of the mesh (the slowest one counts)"

_DTYPES: dict[str, str] = packaged("traces.kernels", "formats.yaml")[FORMAT]["dtypes"]


def is_tt_metal(names: tuple[str, ...]) -> bool:
    """True if these are the columns of an ops_perf file (their number varies from 74 to 139)."""
    return "OP CODE" in names and DURATION in names


def read_tt_metal(frame: Frame) -> KernelTable:
    """Operations of an ops_perf file: matrix products with their shape, everything else by name.

    On several chips a call has one row per chip; the slowest is kept.
    """
    frame.need("OP CODE", "OP TYPE", DURATION)
    frame = frame.drop(frame.texts("OP TYPE").equals("signpost"), MARKER)
    frame = frame.drop(~(np.nan_to_num(frame.floats(DURATION)) > 0), NO_DURATION)
    if not frame.rows:
        raise TraceError(f"{frame.path}: no operation with a device duration")
    frame = _slowest(frame)
    code = frame.texts("OP CODE")
    product = code.matching(lambda name: "matmul" in name.lower())
    sizes: dict[str, Array] = {}
    dtype = constant("", frame.rows)
    if product.any():
        first = [_axis(frame, 0, axis) for axis in "WZYX"]
        second = [_axis(frame, 1, axis) for axis in "WZYX"]
        sizes = {"m": first[0] * first[1] * first[2], "k": first[3], "n": second[3]}
        dtype = frame.texts("INPUT_1_DATATYPE").mapped(lambda name: _DTYPES.get(name, ""))
        batched = second[0] * second[1] > 1
        product &= (first[3] == second[2]) & ~batched & dtype.matching(bool)
        sizes = {name: np.where(product, values, 0) for name, values in sizes.items()}
    texts: Texts = {"name": code, "dtype": dtype, "cache": "cold"}
    texts |= frame.present(device="DEVICE ARCH", source="MATH FIDELITY")
    op = Words(product.astype(np.int32), ("other", "gemm"))
    return frame.kernels(frame.floats(DURATION) * SECONDS["ns"], op, sizes, texts, FORMAT)


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


def _axis(frame: Frame, tensor: int, axis: str) -> FloatArray:
    """Logical size of one axis: ``32[19]`` is padded[logical]; older files hold plain numbers."""
    padded = f"INPUT_{tensor}_{axis}_PAD[LOGICAL]"
    names = frame.texts(padded if frame.has(padded) else f"INPUT_{tensor}_{axis}")
    return np.array([_logical(name) for name in names.names])[names.codes]


def _logical(text: str) -> float:
    inner = text.partition("[")[2].rstrip("]") if "[" in text else text
    try:
        return float(inner)
    except ValueError:
        return 0.0
