"""How a chip serves prompt chunks and single queries of one batch: which structure, and its parameters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Chip, KernelLibrary
from hwprofiles.parameters import FamilyParameters
from simulator.replay.fit import ROBUST_SCALE, Coordinate
from simulator.replay.predict import predict_table
from simulator.replay.split import Split, training_rows
from traces.kernels import KernelTable

FloatArray = NDArray[np.float64]

MIXED_ROWS = 2000
SEARCH_ROWS = 400
"""Rows on which the shares of the on-chip store are compared."""
KEPT_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Shares of the on-chip store that are tried for batches of prompt chunks and single queries."""
MOVED = (
    Coordinate("mixed_efficiency", 0.2, 1.0),
    Coordinate("mixed_overlap", 1.0, 10.0),
    Coordinate("idle_tile_s", 0.0, 1e-8),
)
"""What a fit of one pass over both moves."""
START = {"mixed_efficiency": 0.9, "mixed_overlap": 2.0, "idle_tile_s": 1e-9}


def mixed_structure(
    table: KernelTable,
    chip: Chip,
    fitted: dict[str, FamilyParameters],
    decode: dict[str, FamilyParameters],
    split: Split,
    least_rows: int,
) -> dict[str, FamilyParameters]:
    """How batches of prompt chunks and single queries run, for every fitted prefill set the trace has such batches of.

    Args:
        table: measured kernels.
        chip: whose limits they obey.
        fitted: prefill sets by format.
        decode: decode sets by format.
        split: which shapes a fit may see.
        least_rows: fewest mixed rows worth a fit.

    Returns:
        Prefill sets, by format, with the structure that explains the mixed rows of the training split best: two
        kernels, or one pass with its own bandwidth, overlap and time per idle tile.
    """
    rows = table.where(table.word("op").equals("attention_mixed"))
    found = {}
    for dtype, prefill in fitted.items():
        part = rows.where(rows.word("kv_dtype").equals(dtype) | rows.word("dtype").equals(dtype))
        part = part.where(training_rows(part, split))
        if len(part) < least_rows:
            continue
        part = _spread(part, MIXED_ROWS)
        some = _spread(part, SEARCH_ROWS)
        start = prefill.model_copy(update={"mixed": "one-pass", **START})
        tried = [
            _solve(some, chip, dtype, decode, start.model_copy(update={"kept_share": share})) for share in KEPT_SHARES
        ]
        best = min(tried, key=lambda one: _mean_error(some, chip, dtype, decode, one))
        best = _solve(part, chip, dtype, decode, best)
        apart = prefill.model_copy(update={"mixed": "separate"})
        found[dtype] = min((apart, best), key=lambda one: _mean_error(part, chip, dtype, decode, one))
    return found


def _spread(part: KernelTable, rows: int) -> KernelTable:
    """At most so many rows, evenly chosen."""
    return part.where(np.linspace(0, len(part) - 1, min(len(part), rows)).astype(np.int64))


def _errors(
    part: KernelTable, chip: Chip, dtype: str, decode: dict[str, FamilyParameters], prefill: FamilyParameters
) -> FloatArray:
    """Logarithm of predicted over measured."""
    own = {"generic": {"attention_prefill": {dtype: prefill}, "attention_decode": decode}}
    kernels = KernelLibrary(chip.model_copy(update={"kernels": own}))
    return np.log(predict_table(part, kernels).seconds / part.measured_s)


def _mean_error(
    part: KernelTable, chip: Chip, dtype: str, decode: dict[str, FamilyParameters], prefill: FamilyParameters
) -> float:
    return float(np.mean(np.abs(_errors(part, chip, dtype, decode, prefill))))


def _solve(
    part: KernelTable, chip: Chip, dtype: str, decode: dict[str, FamilyParameters], start: FamilyParameters
) -> FamilyParameters:
    from scipy.optimize import least_squares

    def parameters_at(position: FloatArray) -> FamilyParameters:
        values = {one.name: one.value(float(x)) for one, x in zip(MOVED, position, strict=True)}
        return start.model_copy(update=values)

    first = np.array([one.scaled(float(getattr(start, one.name))) for one in MOVED])

    def errors(position: FloatArray) -> FloatArray:
        return _errors(part, chip, dtype, decode, parameters_at(position))

    found = least_squares(
        errors,
        np.clip(first, 1e-3, 1.0 - 1e-3),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        diff_step=np.full(len(MOVED), 1e-3),
        max_nfev=30,
    )
    return parameters_at(np.asarray(found.x, dtype=np.float64))
