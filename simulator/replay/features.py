"""What the learned correction looks at: the shape of a kernel and how physics sees it, as numbers by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip
from simulator.replay.predict import FAMILIES
from traces.kernels import OPS, KernelTable

FloatArray = NDArray[np.float64]

TILE = 128
PHYSICS = ("seconds", "balance", "launch", "waves", "last_wave")
"""Features of physics: log time, log of compute over memory time, share of launch, waves of tiles over the cores, and
how full the last one is."""
TILINGS = ((64, 64), (64, 128), (128, 256), (256, 128))
"""Tiles of GEMM libraries, rows x columns: how full the last wave of each is."""
GEMM = (
    *(f"fill:{rows}x{columns}" for rows, columns in TILINGS),
    "outputs",
    "work",
    "wide",
    "align:n",
    "align:k",
    "rest:m128",
    "rest:m256",
    "rest:n256",
)
"""What else decides which GEMM kernel a library picks and how well it fits: last waves, log of outputs and of
multiplications, log of n over k, divisibility, and what is left over of whole tiles."""
DECODE = ("items", "heads", "reads")
"""What else decides how a decode kernel runs: log of sequences times KV heads, of sequences times query heads, and of
KV tokens read over all KV heads."""
_ALIGNED = ("m", "q_len", "kv_len", "tokens")
"""Sizes whose divisibility by powers of two matters to tiles."""


def feature_names(family: str) -> tuple[str, ...]:
    """Names of the features of a family."""
    op = next(name for name in OPS if FAMILIES.get(name) == family)
    sizes = [*OPS[op].needed, *OPS[op].optional]
    extra = ["uneven"] if family == "moe" else ["warm"] if family == "attention_decode" else []
    aligned = [f"align:{name}" for name in sizes if name in _ALIGNED]
    group = ["group"] if family.startswith("attention") else []
    gemm = GEMM if family == "gemm" else DECODE if family == "attention_decode" else ()
    return (*sizes, *aligned, *group, *extra, *gemm, *PHYSICS)


def feature_matrix(
    names: tuple[str, ...], table: KernelTable, chip: Chip, seconds: FloatArray, parts: dict[str, FloatArray]
) -> FloatArray:
    """One column per name.

    Args:
        names: of ``feature_names``.
        table: rows of one family.
        chip: gives the number of cores.
        seconds: predicted by physics.
        parts: ``launch_s``, ``compute_s`` and ``memory_s`` of physics.
    """
    tiles = _tiles(names, table)
    waves = tiles / chip.compute.usable_cores
    known: dict[str, Any] = {
        "seconds": np.log2(seconds),
        "balance": np.log2((parts["compute_s"] + 1e-9) / (parts["memory_s"] + 1e-9)),
        "launch": parts["launch_s"] / seconds,
        "waves": np.log2(waves + 1e-3),
        "last_wave": waves / np.maximum(1.0, np.ceil(waves)),
    }
    columns = []
    for name in names:
        if name in known:
            columns.append(known[name])
        elif name.startswith("align:"):
            size = table.size(name.partition(":")[2])
            columns.append(np.minimum(9.0, np.log2(np.maximum(1, size & -size))))
        elif name in GEMM:
            columns.append(_gemm_feature(name, table, chip.compute.usable_cores))
        elif name in DECODE:
            columns.append(_decode_feature(name, table))
        elif name == "group":
            columns.append(np.log2(np.maximum(1, table.size("num_heads")) / np.maximum(1, table.size("num_kv_heads"))))
        elif name == "uneven":
            spread = table.word("distribution")
            columns.append(np.array([_unevenness(text) for text in spread.names])[spread.codes])
        elif name == "warm":
            columns.append(table.word("cache").equals("warm").astype(np.float64))
        else:
            columns.append(np.log2(1.0 + table.size(name)))
    return np.stack(columns, axis=1)


def _gemm_feature(name: str, table: KernelTable, cores: int) -> FloatArray:
    """One of the features in ``GEMM`` that is not an alignment."""
    m, n, k = (table.size(size).astype(np.float64) for size in ("m", "n", "k"))
    kind, _, what = name.partition(":")
    if kind == "fill":
        rows, columns = (int(text) for text in what.split("x"))
        waves = np.ceil(m / rows) * np.ceil(n / columns) / cores
        return np.asarray(waves / np.maximum(1.0, np.ceil(waves)))
    if kind == "rest":
        size, tile = {"m": m, "n": n}[what[0]], float(what[1:])
        return np.asarray((size % tile) / tile)
    return {"outputs": np.log2(m * n), "work": np.log2(m * n * k), "wide": np.log2(n / k)}[kind]


def _decode_feature(name: str, table: KernelTable) -> FloatArray:
    """One of the features in ``DECODE``."""
    heads = table.size("num_heads" if name == "heads" else "num_kv_heads")
    count = np.maximum(1, table.size("batch") * heads).astype(np.float64)
    return np.asarray(np.log2(count * table.size("kv_len") if name == "reads" else count), dtype=np.float64)


def _tiles(names: tuple[str, ...], table: KernelTable) -> FloatArray:
    """Independent pieces of work, roughly."""
    if "m" in names:
        return np.asarray(np.ceil(table.size("m") / TILE) * np.ceil(table.size("n") / TILE), dtype=np.float64)
    if "num_heads" in names:
        kv_heads = np.maximum(1, table.size("num_kv_heads"))
        rows = np.ceil(table.size("q_len") * table.size("num_heads") / kv_heads / TILE)
        return np.asarray(table.size("batch") * kv_heads * rows, dtype=np.float64)
    if "tokens" in names:
        return np.asarray(table.size("tokens") * table.size("experts_per_token") / TILE, dtype=np.float64)
    return np.ones(len(table))


def _unevenness(name: str) -> float:
    """The exponent in ``power_law_1.2``; 0 for balanced or not told."""
    try:
        return float(name.rpartition("_")[2])
    except ValueError:
        return 0.0
