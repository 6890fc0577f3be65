"""What a learned correction is made of: features of a kernel as physics sees it, and symmetric regression trees."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip
from simulator.replay.predict import FAMILIES
from traces.kernels import OPS, KernelTable

FloatArray = NDArray[np.float64]

TREES = 200
"""Most trees, for families of few rows; ``MORE_TREES`` where there are ``MANY_ROWS`` or more."""
MORE_TREES = 400
DEPTH = 6
"""Questions per tree; one more where there are many rows."""
MANY_ROWS = 15_000
RATE = 0.15
BINS = 48
SMOOTHING = 8.0
"""Rows of zero error that every leaf is averaged with."""
ROBUST = 0.15
"""Errors beyond this are pulled with constant strength (pseudo-Huber loss)."""


class Trees(NamedTuple):
    """An ensemble: every tree asks the same question of all its nodes on one level.

    ``feature[t, l]`` and ``threshold[t, l]`` are the question of level l of tree t (value > threshold adds bit l to the
    leaf's number), ``leaf[t, i]`` is what leaf i adds.
    """

    feature: NDArray[np.int16]
    threshold: NDArray[np.float32]
    leaf: NDArray[np.float32]

    def __call__(self, features: FloatArray) -> FloatArray:
        """Sum over the trees for each row of ``features`` (rows x features)."""
        total = np.zeros(len(features))
        values = features.astype(np.float32)
        for feature, threshold, leaf in zip(self.feature, self.threshold, self.leaf, strict=True):
            number = np.zeros(len(features), dtype=np.int16)
            for level, (column, limit) in enumerate(zip(feature, threshold, strict=True)):
                number |= (values[:, column] > limit).astype(np.int16) << level
            total += leaf[number]
        return total


def fit_trees(features: FloatArray, target: FloatArray, check: NDArray[np.bool_]) -> Trees:
    """Fit an ensemble by gradient boosting and keep as many trees as serve rows it was not fitted on.

    Args:
        features: rows x features.
        target: what the sum of the trees should be.
        check: rows left out of the fit that decide how many trees are kept.

    Source: Friedman, "Greedy function approximation: a gradient boosting machine" (2001), doi:10.1214/aos/1013203451;
        symmetric trees as in Prokhorenkova et al., "CatBoost" (2018), doi:10.48550/arXiv.1706.09516.
    """
    values = features.astype(np.float32)
    edges = [_edges(values[~check, column]) for column in range(values.shape[1])]
    binned = np.stack([np.searchsorted(edge, values[:, i], side="left") for i, edge in enumerate(edges)])
    fitted = ~check
    many = len(target) >= MANY_ROWS
    trees, depth = (MORE_TREES, DEPTH + 1) if many else (TREES, DEPTH)
    estimate = np.zeros(len(target))
    found: list[tuple[list[int], list[float], NDArray[np.float32]]] = []
    errors = []
    for _ in range(trees):
        gap = target - estimate
        gradient = gap / np.sqrt(1.0 + (gap / ROBUST) ** 2)
        columns, cuts, number = _grow(binned[:, fitted], gradient[fitted], [len(edge) for edge in edges], depth)
        sums = np.bincount(number, gradient[fitted], 1 << depth)
        counts = np.bincount(number, minlength=1 << depth)
        leaf = (RATE * sums / (counts + SMOOTHING)).astype(np.float32)
        everywhere = np.zeros(len(target), dtype=np.int64)
        for level, (column, cut) in enumerate(zip(columns, cuts, strict=True)):
            everywhere |= (binned[column] > cut).astype(np.int64) << level
        estimate += leaf[everywhere]
        found.append((columns, [_limit(edges[column], cut) for column, cut in zip(columns, cuts, strict=True)], leaf))
        errors.append(float(np.abs(target - estimate)[check].mean()) if check.any() else 0.0)
    kept = found[: int(np.argmin(errors)) + 1] if check.any() else found
    return Trees(
        np.array([tree[0] for tree in kept], dtype=np.int16),
        np.array([tree[1] for tree in kept], dtype=np.float32),
        np.stack([tree[2] for tree in kept]),
    )


def _limit(edges: NDArray[np.float32], cut: int) -> float:
    return float(edges[cut]) if len(edges) else float("inf")


def _edges(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cuts between the values that occur, at most ``BINS`` of them, evenly by rank."""
    distinct = np.unique(values)
    if len(distinct) > BINS:
        distinct = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)).astype(np.float32))
    return np.asarray((distinct[1:] + distinct[:-1]) / 2, dtype=np.float32)


def _grow(
    binned: NDArray[np.int64], gradient: FloatArray, cuts: list[int], depth: int
) -> tuple[list[int], list[int], NDArray[np.int64]]:
    """One symmetric tree: per level the question that lowers the squared error most, over all its nodes together."""
    number = np.zeros(len(gradient), dtype=np.int64)
    columns, chosen = [], []
    for level in range(depth):
        nodes = 1 << level
        best, question = -1.0, (0, 0)
        for column, count in enumerate(cuts):
            if not count:
                continue
            place = number * (count + 1) + binned[column]
            size = nodes * (count + 1)
            sums = np.bincount(place, gradient, size).reshape(nodes, count + 1).cumsum(axis=1)
            rows = np.bincount(place, minlength=size).reshape(nodes, count + 1).cumsum(axis=1)
            left, left_rows = sums[:, :-1], rows[:, :-1]
            right, right_rows = sums[:, -1:] - left, rows[:, -1:] - left_rows
            gain = (left**2 / (left_rows + SMOOTHING) + right**2 / (right_rows + SMOOTHING)).sum(axis=0)
            cut = int(np.argmax(gain))
            if gain[cut] > best:
                best, question = float(gain[cut]), (column, cut)
        columns.append(question[0])
        chosen.append(question[1])
        number |= (binned[question[0]] > question[1]).astype(np.int64) << level
    return columns, chosen, number


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
