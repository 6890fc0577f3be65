"""One fit: the measured rows of a kernel family and format, and the physics that must explain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip, KernelLibrary, KernelTime, load_link
from hwprofiles.parameters import FamilyParameters
from simulator.replay.groups import IndexArray, equal_rows
from simulator.replay.predict import (
    FAMILIES,
    attention_rows,
    gemm_rows,
    moe_rows,
    pass_rows,
    stored_format,
    stored_pass,
)
from traces.kernels import COLLECTIVES, KernelTable

FloatArray = NDArray[np.float64]

CORE: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "gemm": {"n": (1024, 1 << 40), "k": (1024, 1 << 40)},
    "attention_prefill": {"head_dim": (128, 128), "window": (0, 0)},
    "attention_decode": {"head_dim": (128, 128), "window": (0, 0)},
    "collective": {"message_bytes": (1 << 20, 1 << 60)},
}
"""Shapes of today's language models: where a trace has enough of them, physics is fitted on them, not on odd sizes."""
MIN_CORE_ROWS = 16

_WORDS = ("op", "dtype", "kv_dtype", "cache", "distribution", "source")


@dataclass(frozen=True, slots=True)
class FitProblem:
    """Rows of one family and stored format on one chip.

    Attributes:
        chip: whose limits bound the physics.
        family: of kernel parameters.
        dtype: of the stored operand; ``any`` for families that have none.
        table: the rows.
        parts: rows that one call of the library predicts, each with its call.
    """

    chip: Chip
    family: str
    dtype: str
    table: KernelTable
    parts: tuple[tuple[IndexArray, Callable[[KernelLibrary], Any]], ...]

    def __len__(self) -> int:
        return len(self.table)

    def seconds(self, parameters: FamilyParameters) -> FloatArray:
        """Predicted seconds of every row under ``parameters``."""
        return self.times(parameters)[0]

    def times(self, parameters: FamilyParameters) -> tuple[FloatArray, NDArray[np.str_]]:
        """Predicted seconds of every row, and what bounds it."""
        kernels = KernelLibrary(chip_with(self.chip, self.family, self.dtype, parameters), "fit")
        seconds = np.empty(len(self.table))
        bound = np.empty(len(self.table), dtype="<U7")
        for rows, call in self.parts:
            time = call(kernels)
            seconds[rows] = time.seconds
            bound[rows] = time.bound if isinstance(time, KernelTime) else _collective_bound(time)
        return seconds, bound

    def where(self, rows: NDArray[Any]) -> FitProblem:
        """The same fit on some of its rows."""
        return make_problem(self.chip, self.family, self.dtype, self.table.where(rows))


def chip_with(chip: Chip, family: str, dtype: str, parameters: FamilyParameters) -> Chip:
    """``chip`` with one parameter set only, under the library name ``fit``."""
    return chip.model_copy(update={"kernels": {"fit": {family: {dtype: parameters}}}})


def make_problem(chip: Chip, family: str, dtype: str, table: KernelTable) -> FitProblem:
    """Prepare the calls that predict ``table``, whose rows all belong to ``family`` and ``dtype``."""
    columns: list[NDArray[Any]] = [table.word(name).codes for name in _WORDS]
    if family == "collective":
        columns.append(table.size("world_size"))
    if family == "elementwise":
        columns.append(table.word("name").codes)
    if family == "moe":
        columns += [table.size("projections") == 2, table.size("activated_experts") > 0]
    parts = tuple((rows, _call(chip, family, table, rows)) for rows in equal_rows(columns))
    return FitProblem(chip, family, dtype, table, parts)


def _call(chip: Chip, family: str, table: KernelTable, rows: IndexArray) -> Callable[[KernelLibrary], Any]:
    if family == "gemm":
        return lambda kernels: gemm_rows(table, kernels, rows)
    if family == "moe":
        return lambda kernels: moe_rows(table, kernels, rows)
    if family.startswith("attention"):
        return lambda kernels: attention_rows(table, kernels, rows)
    if family == "elementwise":
        return lambda kernels: pass_rows(table, kernels, rows)
    op = table.word("op")
    name = op.names[op.codes[rows[0]]]
    size = table.size("message_bytes")[rows].astype(np.float64)
    world = int(table.size("world_size")[rows[0]])
    link = load_link(chip.links.scale_up or "")
    return lambda kernels: kernels.collective(name, size, world, link)


def _collective_bound(time: Any) -> NDArray[np.str_]:
    return np.where(time.latency_s >= time.transfer_s, "latency", "memory")


def family_rows(table: KernelTable) -> dict[tuple[str, str], IndexArray]:
    """Row indices by family and stored format, for every operation that has parameters of its own; kernels of routed
    experts apart, by the name the trace gives them."""
    op, dtype, kv = table.word("op"), table.word("dtype"), table.word("kv_dtype")
    kernel = np.full(len(table), -1, dtype=np.int64)
    for operation, column in (("moe", "source"), ("elementwise", "name")):
        own = op.equals(operation)
        kernel[own] = table.word(column).codes[own]
    found: dict[tuple[str, str], list[IndexArray]] = {}
    for rows in equal_rows([op.codes, dtype.codes, kv.codes, kernel]):
        name = op.names[op.codes[rows[0]]]
        if name not in FAMILIES or name == "attention_mixed":
            continue
        family = FAMILIES[name]
        stored = dtype.names[dtype.codes[rows[0]]]
        if family.startswith("attention"):
            stored = kv.names[kv.codes[rows[0]]] or stored
        if name in COLLECTIVES:
            stored = "any"
        if family in ("moe", "elementwise"):
            stored = (stored_format if family == "moe" else stored_pass)(table, rows[0])
        found.setdefault((family, {"fp16": "bf16"}.get(stored, stored)), []).append(rows)
    return {key: np.sort(np.concatenate(parts)) for key, parts in found.items()}


def core_rows(family: str, table: KernelTable) -> NDArray[np.bool_]:
    """Rows of today's model shapes; all rows where the trace has too few of those."""
    core = np.ones(len(table), dtype=bool)
    for name, (low, high) in CORE.get(family, {}).items():
        values = table.size(name)
        core &= (values >= low) & (values <= high)
    return core if core.sum() >= MIN_CORE_ROWS else np.ones(len(table), dtype=bool)
