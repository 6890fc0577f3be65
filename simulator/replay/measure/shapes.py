"""Kernels that are timed: language-model shapes per family, small enough for the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "attention_verify", "norm", "memcpy")
"""Families that ``forerun measure`` can time. ``attention_verify`` gives ``attention_decode`` rows with ``q_len`` above
1; ``norm`` and ``memcpy`` give ``elementwise`` rows."""
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Formats that can be timed, with their bytes."""

HEAD_DIM = 128
VERIFY_LENGTHS = (2, 4, 8, 16)
NORM_WIDTH = 4096
"""Elements per row of the norm."""


class KernelShape(NamedTuple):
    """One kernel to time."""

    family: str
    """One of ``FAMILIES``."""
    op: str
    """Operation of the canonical trace."""
    dtype: str
    warm: bool
    """True if the same operands are read again and again, or come from memory each time."""
    sizes: Mapping[str, int]

    @property
    def operand_bytes(self) -> int:
        """Bytes of every operand once."""
        size, width = self.sizes, DTYPES[self.dtype]
        if self.op == "elementwise":
            return size["bytes_moved"]
        if self.op == "gemm":
            return width * (size["m"] * size["k"] + size["k"] * size["n"] + size["m"] * size["n"])
        tokens = size["kv_len"] * size["num_kv_heads"] + size["q_len"] * size["num_heads"]
        return 2 * width * size["batch"] * HEAD_DIM * tokens

    @property
    def flops(self) -> float:
        """Useful operations; 0 for a memory-bound pass."""
        size = self.sizes
        if self.op == "elementwise":
            return 0.0
        if self.op == "gemm":
            return 2.0 * size["m"] * size["n"] * size["k"]
        pairs = size["q_len"] * size["kv_len"] - (size["q_len"] - 1) * size["q_len"] / 2
        return 4.0 * HEAD_DIM * size["num_heads"] * size["batch"] * pairs


class Grid(NamedTuple):
    """Sizes of one machine class and effort, and the largest kernel worth timing there (see ``shapes.yaml``)."""

    weights: Sequence[tuple[int, int]]
    rows: Sequence[int]
    heads: Sequence[tuple[int, int]]
    batches: Sequence[int]
    contexts: Sequence[int]
    prompts: Sequence[int]
    passes: Sequence[int]
    most_flops: float
    most_bytes: float


@cache
def grid_of(device: str, quick: bool) -> Grid:
    """Grid of sizes for a device and effort; capped on Apple GPUs, whose smallest has 1/30 of an H100's memory."""
    grids = packaged("simulator.replay.measure", "shapes.yaml")
    grid = Grid(**grids["cpu" if device == "cpu" else "cuda"]["quick" if quick else "full"])
    return grid._replace(most_flops=1e12, most_bytes=2e9) if device == "mps" else grid


def kernel_shapes(
    device: str, quick: bool, families: Sequence[str], dtypes: Sequence[str], seed: int
) -> list[KernelShape]:
    """Everything to time, in random order, so that slow drifts of the machine do not look like effects of size.

    Args:
        device: ``cpu``, ``cuda``, ``rocm`` or ``mps``.
        quick: fewer and smaller shapes.
        families: some of ``FAMILIES``.
        dtypes: some of ``DTYPES``.
        seed: seed of the random order.

    Raises:
        ForerunError: an unknown family or format.
    """
    check_options("--families", families, FAMILIES)
    check_options("--dtype", dtypes, tuple(DTYPES))
    grid = grid_of(device, quick)
    shapes = [
        shape
        for dtype in dict.fromkeys(dtypes)
        for family in dict.fromkeys(families)
        for shape in _FAMILY_SHAPES[family](grid, dtype)
        if shape.flops <= grid.most_flops and shape.operand_bytes <= grid.most_bytes
    ]
    order = np.random.default_rng(seed).permutation(len(shapes))
    return [shapes[index] for index in order]


def check_options(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise ForerunError for a name that is not known, or for none at all."""
    if not given:
        raise ForerunError(f"{option}: nothing to measure (some of {', '.join(known)})")
    for name in given:
        if name not in known:
            raise ForerunError(f"{option}: no '{name}'{did_you_mean(name, known)} (some of {', '.join(known)})")


def _gemm(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for (n, k), m in product(grid.weights, grid.rows):
        yield KernelShape("gemm", "gemm", dtype, False, {"m": m, "n": n, "k": k})


def _attention(
    family: str, dtype: str, warm: bool, batch: int, q_len: int, kv_len: int, heads: Sequence[int]
) -> KernelShape:
    sizes = {"batch": batch, "q_len": q_len, "kv_len": kv_len, "num_heads": heads[0], "num_kv_heads": heads[1]}
    op = "attention_prefill" if family == "attention_prefill" else "attention_decode"
    return KernelShape(family, op, dtype, warm, {**sizes, "head_dim": HEAD_DIM})


def _prefill(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads, batch, tokens in product(grid.heads, (1, 2), grid.prompts):
        yield _attention("attention_prefill", dtype, False, batch, tokens, tokens, heads)


def _decode(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads, batch, context, warm in product(grid.heads, grid.batches, grid.contexts, (False, True)):
        yield _attention("attention_decode", dtype, warm, batch, 1, context, heads)


def _verify(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads, batch, context, q_len in product(grid.heads[:2], grid.batches[:2], grid.contexts[1::2], VERIFY_LENGTHS):
        yield _attention("attention_verify", dtype, False, batch, q_len, context, heads)


def _passes(family: str, grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for moved, warm in product(grid.passes, (False, True)):
        yield KernelShape(family, "elementwise", dtype, warm, {"bytes_moved": moved})


_FAMILY_SHAPES: Mapping[str, Callable[[Grid, str], Iterator[KernelShape]]] = {
    "gemm": _gemm,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "attention_verify": _verify,
    "norm": partial(_passes, "norm"),
    "memcpy": partial(_passes, "memcpy"),
}
