"""Flat tables made from Vidur's profiles: one row per measurement, several devices in one file."""

from __future__ import annotations

from traces.kernels.frame import Frame
from traces.kernels.read import register_kernel_table
from traces.kernels.table import KernelTable, Words, make_table
from traces.kernels.vidur import FORMAT, LIBRARY, MILLISECONDS, SEVERAL_NODES


def read_vidur_flat(frame: Frame) -> KernelTable:
    """Kernels of one flat table: products, attention or collectives."""
    texts: dict[str, str | Words] = {"dtype": "fp16", "library": LIBRARY}
    if frame.has("M", "N", "K"):
        op: str | Words = "gemm"
        sizes = {"m": frame.floats("M"), "n": frame.floats("N"), "k": frame.floats("K")}
        texts["name"] = frame.texts("op")
    elif frame.has("phase"):
        phase = frame.texts("phase")
        op = phase.mapped("attention_{}".format)
        new = frame.floats("q_tokens_per_seq")
        sizes = {
            "batch": frame.floats("batch"),
            "q_len": new,
            "kv_len": frame.floats("kv_cache_before") + new,
            "num_heads": frame.floats("q_heads_per_gpu"),
            "num_kv_heads": frame.floats("kv_heads_per_gpu"),
            "head_dim": frame.floats("head_dim"),
        }
        texts |= {"kv_dtype": "fp16", "cache": "warm", "source": frame.texts("backend")}
    else:
        frame.need("op", "world", "devices_per_node", "bytes")
        frame = frame.drop(frame.floats("devices_per_node") < frame.floats("world"), SEVERAL_NODES)
        op = frame.texts("op")
        sizes = {"message_bytes": frame.floats("bytes"), "world_size": frame.floats("world")}
        texts |= {"library": "nccl", "source": frame.texts("node")}
    texts["device"] = frame.texts("device")
    return make_table(
        frame.floats("median_ms") * MILLISECONDS, op, sizes, texts, str(frame.path), FORMAT, skipped=frame.skipped
    )


register_kernel_table("vidur-flat", lambda names: "median_ms" in names, read_vidur_flat)
