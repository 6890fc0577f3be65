"""Which kernels are timed: language-model shapes per family, small enough for the machine that times them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from forerun.errors import ForerunError, did_you_mean

FAMILIES = ("gemm", "attention_prefill", "attention_decode", "attention_verify", "norm", "memcpy")
"""What ``forerun measure`` can time. ``attention_verify`` gives ``attention_decode`` rows with ``q_len`` above 1;
``norm`` and ``memcpy`` give ``elementwise`` rows."""
DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Formats that can be timed, with their bytes."""

HEAD_DIM = 128
VERIFY_LENGTHS = (2, 4, 8, 16)
NORM_WIDTH = 4096
"""Elements per row of the norm."""


class KernelShape(NamedTuple):
    """One kernel to time.

    Attributes:
        family: one of ``FAMILIES``.
        op: operation of the canonical trace.
        dtype: format of all operands.
        warm: whether the same operands are read again and again, or come from memory each time.
        sizes: size column -> whole number.
    """

    family: str
    op: str
    dtype: str
    warm: bool
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
    """Sizes of one machine class and effort, and the largest kernel worth timing there.

    Attributes:
        weights: (n, k) of matrix products.
        rows: m of matrix products.
        heads: (query heads, KV heads).
        batches, contexts: of decode attention.
        prompts: tokens of prefill attention.
        passes: bytes moved by norm and copy.
        most_flops, most_bytes: kernels beyond are left out.
    """

    weights: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    passes: tuple[int, ...]
    most_flops: float
    most_bytes: float


_SMALL = ((1024, 1024), (2048, 1024), (1024, 4096), (4096, 1024), (2048, 2048), (4096, 4096))
_LARGE = ((6144, 4096), (28672, 4096), (4096, 14336), (8192, 8192), (10240, 8192), (1280, 8192))


def _powers(first: int, last: int, step: int = 1) -> tuple[int, ...]:
    return tuple(1 << power for power in range(first, last + 1, step))


GRIDS = {
    ("cpu", True): Grid(
        _SMALL,
        (1, 4, 16, 64, 256),
        ((32, 8), (8, 8), (16, 2)),
        (1, 4, 16),
        _powers(8, 12, 2),
        _powers(6, 11),
        _powers(14, 26, 2),
        3e9,
        1.4e8,
    ),
    ("cpu", False): Grid(
        (*_SMALL, (2048, 4096), (6144, 4096)),
        _powers(0, 8),
        ((32, 8), (8, 8), (16, 2), (24, 8)),
        (1, 2, 4, 16),
        _powers(8, 12),
        (*_powers(6, 11), 384, 768),
        _powers(14, 26),
        6e9,
        1.4e8,
    ),
    ("cuda", True): Grid(
        (*_SMALL[3:], *_LARGE[:3]),
        (1, 16, 64, 256, 1024, 4096),
        ((32, 8), (32, 32), (8, 1)),
        (1, 8, 64),
        _powers(9, 15, 2),
        _powers(8, 14),
        _powers(20, 30, 2),
        1e13,
        8e9,
    ),
    ("cuda", False): Grid(
        (*_SMALL, *_LARGE),
        _powers(0, 14),
        ((32, 8), (32, 32), (64, 8), (8, 1)),
        _powers(0, 8),
        _powers(8, 17),
        (*_powers(7, 15), 384, 768, 1536, 3072),
        _powers(18, 31),
        5e13,
        1.6e10,
    ),
}
for _quick in (True, False):
    GRIDS["rocm", _quick] = GRIDS["cuda", _quick]
    GRIDS["mps", _quick] = GRIDS["cuda", _quick]._replace(most_flops=1e12, most_bytes=2e9)
"""Sizes by device and ``--quick``; of Apple's GPUs the smallest has a thirtieth of an H100's memory."""


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
    grid = GRIDS[device, quick]
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
    for n, k in grid.weights:
        for m in grid.rows:
            yield KernelShape("gemm", "gemm", dtype, False, {"m": m, "n": n, "k": k})


def _attention(
    family: str, dtype: str, warm: bool, batch: int, q_len: int, kv_len: int, heads: tuple[int, int]
) -> KernelShape:
    sizes = {"batch": batch, "q_len": q_len, "kv_len": kv_len, "num_heads": heads[0], "num_kv_heads": heads[1]}
    op = "attention_prefill" if family == "attention_prefill" else "attention_decode"
    return KernelShape(family, op, dtype, warm, {**sizes, "head_dim": HEAD_DIM})


def _prefill(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads in grid.heads:
        for batch in (1, 2):
            for tokens in grid.prompts:
                yield _attention("attention_prefill", dtype, False, batch, tokens, tokens, heads)


def _decode(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads in grid.heads:
        for batch in grid.batches:
            for context in grid.contexts:
                for warm in (False, True):
                    yield _attention("attention_decode", dtype, warm, batch, 1, context, heads)


def _verify(grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for heads in grid.heads[:2]:
        for batch in grid.batches[:2]:
            for context in grid.contexts[1::2]:
                for q_len in VERIFY_LENGTHS:
                    yield _attention("attention_verify", dtype, False, batch, q_len, context, heads)


def _passes(family: str, grid: Grid, dtype: str) -> Iterator[KernelShape]:
    for moved in grid.passes:
        yield KernelShape(family, "elementwise", dtype, False, {"bytes_moved": moved})
        yield KernelShape(family, "elementwise", dtype, True, {"bytes_moved": moved})


_FAMILY_SHAPES: Mapping[str, Callable[[Grid, str], Iterator[KernelShape]]] = {
    "gemm": _gemm,
    "attention_prefill": _prefill,
    "attention_decode": _decode,
    "attention_verify": _verify,
    "norm": lambda grid, dtype: _passes("norm", grid, dtype),
    "memcpy": lambda grid, dtype: _passes("memcpy", grid, dtype),
}
