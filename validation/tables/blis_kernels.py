"""Kernel tables of BLIS / InferSim (Apache-2.0): microseconds per call; GEMM in fp8, attention in bf16."""

from __future__ import annotations

import numpy as np

from traces.kernels.frame import Frame
from traces.kernels.read import register_kernel_table
from traces.kernels.table import KernelTable, Words, make_table

FORMAT = "blis"
MICROSECONDS = 1e-6
WARM_UP = "first call of a series, slower than the larger second one (warm-up)"


def read_blis(frame: Frame) -> KernelTable:
    """Kernels of one BLIS table; the GEMM rows are fp8 (their MFU is relative to the fp8 peak).

    Raises:
        TraceError: a column is missing.
    """
    if frame.has("m", "n", "k"):
        sizes = {name: frame.floats(name) for name in ("m", "n", "k")}
        return make_table(
            frame.floats("latency_us") * MICROSECONDS, "gemm", sizes, {"dtype": "fp8"}, str(frame.path), FORMAT
        )
    frame.need("model_heads", "model_kv_heads", "head_dim", "dtype")
    if frame.has("source_file"):
        frame = frame.drop(_warm_up(frame), WARM_UP)
    decode = frame.has("kv_len")
    same = np.ones(frame.rows)
    tp = frame.floats("tp") if frame.has("tp") else same
    length = frame.floats("kv_len" if decode else "seq_len")
    sizes = {
        "batch": frame.floats("batch_size") if frame.has("batch_size") else same,
        "q_len": same if decode else length,
        "kv_len": length,
        "num_heads": frame.floats("model_heads") / tp,
        "num_kv_heads": frame.floats("model_kv_heads") / tp,
        "head_dim": frame.floats("head_dim"),
    }
    texts: dict[str, str | Words] = {
        "dtype": frame.texts("dtype"),
        "kv_dtype": frame.texts("kv_dtype" if frame.has("kv_dtype") else "dtype"),
        "cache": "warm",
    }
    if frame.has("gpu"):
        texts["device"] = frame.texts("gpu")
    op = "attention_decode" if decode else "attention_prefill"
    return make_table(
        frame.floats("latency_us") * MICROSECONDS, op, sizes, texts, str(frame.path), FORMAT, skipped=frame.skipped
    )


def _warm_up(frame: Frame) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The first row of each source file where the next, larger one took less time."""
    file, seconds = frame.texts("source_file").codes, frame.floats("latency_us")
    first = np.r_[True, file[1:] != file[:-1]]
    faster = np.r_[(seconds[1:] < seconds[:-1]) & (file[1:] == file[:-1]), False]
    return np.asarray(first & faster)


register_kernel_table(FORMAT, lambda names: "latency_us" in names and "mfu" in names, read_blis)
