"""Predicted seconds for every row of a kernel table, by groups of rows that differ in sizes only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import ForerunError
from hwprofiles import BASES, KernelLibrary, KernelTime, ProfileError, load_link
from hwprofiles.dtypes import format_of
from hwprofiles.formulas import HEAD_SIZES
from hwprofiles.operations import COPY, OPERATIONS, row_call, stored_set
from simulator.replay.modules import Modules
from traces.kernels import COLLECTIVES, OPS, OTHER, WORDS, KernelTable, kernel_class
from traces.kernels.table import IndexArray, equal_rows

REGIMES = ("latency", "memory", "compute")
"""Resources that bound a kernel; a collective is bound by latency or by the link, which counts as memory."""


@dataclass(slots=True)
class Prediction:
    """One value per row of a table; NaN or code -1 if a row cannot be predicted."""

    seconds: FloatArray
    regime: NDArray[np.int8]
    """Code into ``REGIMES``."""
    basis: NDArray[np.int8]
    """Code into ``BASES``."""
    flops: FloatArray
    bytes: FloatArray
    """Bytes to move every operand once (for a collective, the minimum sent by one chip)."""
    warm: BoolArray
    """True if operands may already be on the chip."""
    peak_flops: FloatArray
    low: FloatArray
    high: FloatArray
    """``low`` and ``high``: ends of the 90 % interval as factors on ``seconds``; NaN if none is known."""
    launch_s: FloatArray
    compute_s: FloatArray
    memory_s: FloatArray
    refused: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be predicted, by reason."""

    @classmethod
    def empty(cls, rows: int) -> Prediction:
        """Nothing predicted yet."""
        numbers: dict[str, Any] = {
            item.name: np.full(rows, np.nan)
            for item in fields(cls)
            if item.name not in ("regime", "basis", "warm", "refused")
        }
        code = np.full(rows, -1, dtype=np.int8)
        return cls(regime=code, basis=code.copy(), warm=np.zeros(rows, dtype=bool), **numbers)

    def put(self, rows: IndexArray, time: KernelTime, basis: str, peak: float, warm: bool) -> None:
        """Fill in ``rows``."""
        for name, values in time._asdict().items():
            getattr(self, name)[rows] = values
        self.peak_flops[rows] = peak
        self.warm[rows] = warm
        self.basis[rows] = BASES.index(basis)
        bound = np.asarray(time.bound)
        self.regime[rows] = np.select([bound == name for name in REGIMES], list(range(len(REGIMES))), -1)

    def where(self, rows: NDArray[Any]) -> Prediction:
        """The prediction of some rows."""
        parts = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "refused"}
        return Prediction(**{name: values[rows] for name, values in parts.items()}, refused=Counter(self.refused))


def predict_table(table: KernelTable, kernels: KernelLibrary) -> Prediction:
    """Predict every row; rows that cannot be are counted in ``refused`` with their reason.

    Raises:
        ForerunError: collectives on a chip without a scale-up link.
    """
    result = Prediction.empty(len(table))
    op = table.word("op")
    for code, name in enumerate(op.names):
        rows = np.flatnonzero(op.codes == code)
        if not len(rows):
            continue
        if name == OTHER:
            _refuse_others(table, rows, result)
        elif name in COLLECTIVES:
            _collective(table, kernels, name, rows, result)
        elif name.startswith("sparse"):
            _sparse(table, kernels, name, rows, result)
        else:
            rows = _consistent(table, name, rows, result)
            for part in kernel_groups(table, name, rows):
                _guarded(table, name, part, kernels, result)
                if name == "moe" and table.text("routing", part[0]) not in ("balanced", ""):
                    result.bytes[part] = 0.0  # uneven routing may touch fewer experts than expected: no lower bound
    return result


def _refuse_others(table: KernelTable, rows: IndexArray, result: Prediction) -> None:
    names = table.word("name")
    kinds = [kernel_class(name) for name in names.names]
    for kind in sorted(set(kinds)):
        count = int(np.isin(names.codes[rows], [code for code, other in enumerate(kinds) if other == kind]).sum())
        if count:
            result.refused[f"{kind} kernel without a shape"] += count


def _consistent(table: KernelTable, op: str, rows: IndexArray, result: Prediction) -> IndexArray:
    bad = np.zeros(len(rows), dtype=bool)
    if op.startswith("attention"):
        reason = "query heads are no multiple of the KV heads"
        bad = table.size("num_heads")[rows] % np.maximum(1, table.size("num_kv_heads")[rows]) != 0
    elif op == "moe":
        reason = "more experts per token than experts"
        bad = table.size("experts_per_token")[rows] > table.size("num_experts")[rows]
    if bad.any():
        result.refused[reason] += int(bad.sum())
    return rows[~bad]


def kernel_groups(table: KernelTable, op: str, rows: IndexArray) -> Iterator[IndexArray]:
    """Rows of one operation, grouped by call: formats, cache state, kernel and group of chips."""
    columns: list[NDArray[Any]] = [table.word(name).codes for name in OPERATIONS[op].words]
    if op.startswith("attention"):
        columns.append(attention_kernels(table))
    elif op == "moe":
        columns += [table.size("projections") != 2, table.size("active_experts") > 0]
    elif op in COLLECTIVES:
        columns.append(table.size("world_size"))
    for part in equal_rows([column[rows] for column in columns]):
        yield rows[part]


def priced_columns(table: KernelTable, rows: IndexArray) -> dict[str, Any]:
    """Columns of some rows that one call prices: sizes as arrays, texts of the first row."""
    columns = OPS[table.text("op", rows[0])]
    row: dict[str, Any] = {name: table.size(name)[rows].astype(float) for name in columns.needed + columns.optional}
    row |= {name: table.text(name, rows[0]) for name in WORDS}
    if row["op"] == "elementwise" and kernel_class(row["name"]) == COPY:
        row["name"] = COPY
    return row


def attention_kernels(table: KernelTable) -> IntArray:
    """Number of the attention kernel of every row; equal for rows that one kernel of a format serves."""
    size = np.searchsorted(HEAD_SIZES, np.minimum(table.size("head_dim"), HEAD_SIZES[-1]))
    value = table.size("v_head_dim")
    latent = (value > 0) & (value != table.size("head_dim"))
    return np.where(latent, -1, 2 * size + (table.size("window") > 0))


def _sparse(table: KernelTable, kernels: KernelLibrary, op: str, rows: IndexArray, result: Prediction) -> None:
    for part in kernel_groups(table, op, rows):
        try:
            modules = Modules(table, part, kernels)
            if modules.beyond_memory.any():
                beyond = int(modules.beyond_memory.sum())
                result.refused["more KV than the chip's memory holds in all layers of the model"] += beyond
                part = part[~modules.beyond_memory]
                modules = Modules(table, part, kernels) if len(part) else modules
        except ForerunError as error:
            result.refused[str(error)] += len(part)
            continue
        if len(part):
            _guarded(table, op, part, kernels, result, modules.times)


def _collective(table: KernelTable, kernels: KernelLibrary, op: str, rows: IndexArray, result: Prediction) -> None:
    name = kernels.chip.links.scale_up
    if name is None:
        raise ForerunError(f"chip '{kernels.chip.name}' has no scale-up link, so '{op}' rows cannot be predicted")
    for part in kernel_groups(table, op, rows):
        world = int(table.size("world_size")[part[0]])
        if world < 2:
            result.refused["collective of one chip"] += len(part)
            continue
        time = row_call(op, priced_columns(table, part))(kernels)
        share = 1.0 if op == "send_recv" else (world - 1) / world
        light = time.bytes * share * kernels.chip.memory.bandwidth_bytes_per_s / load_link(name).bandwidth_bytes_per_s
        result.put(part, time._replace(bytes=light), kernels.basis("collective", "any"), 1.0, False)


def _guarded(
    table: KernelTable,
    op: str,
    rows: IndexArray,
    kernels: KernelLibrary,
    result: Prediction,
    call: Callable[[KernelLibrary], KernelTime] | None = None,
) -> None:
    """Predict ``rows``; a format that the chip cannot compute in gives a refusal reason instead of an error."""
    math = "bf16" if op == "elementwise" else table.text("dtype", rows[0])
    try:
        time = (call or row_call(op, priced_columns(table, rows)))(kernels)
        stored = stored_set(op, priced_columns(table, rows[:1]))
        peak = max(kernels.chip.peak_flops(name) for name in {math, format_of(stored)} - {"any"})
        basis = kernels.basis(OPERATIONS[op].family, stored)
    except ProfileError:
        result.refused[f"{kernels.chip.name} cannot compute in {math}"] += len(rows)
        return
    result.put(rows, time, basis, peak, table.text("cache", rows[0]) in OPERATIONS[op].held)
