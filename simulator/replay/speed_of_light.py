"""Measured rows that no such chip can have produced: faster than its datasheet, or in another unit."""

from __future__ import annotations

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import ForerunError
from hwprofiles import Chip
from simulator.replay.predict import Prediction
from traces.kernels import KernelTable
from traces.kernels.table import equal_rows

TOLERANCE = 1.10
"""Tolerance of the check: clocks may boost above the datasheet's clock."""
SUSPECT_SHARE = 0.05
"""Share of impossible rows from which the whole slice of a trace is not believed."""
UNIT_FACTOR = 200.0
"""Median factor between measurement and prediction that only another unit explains."""

IMPOSSIBLE = "faster than the chip's datasheet by more than 10 %"
SUSPECT = "same kind of kernel, same source, as rows faster than the datasheet"


def sol_seconds(prediction: Prediction, chip: Chip) -> FloatArray:
    """Least time the datasheet allows: arithmetic at the dense peak, bytes at the memory's bandwidth.

    If operands may already be on the chip, bytes up to the size of its store need not come from memory.
    """
    spared = np.where(prediction.warm, chip.on_chip.capacity_bytes, 0.0)
    memory = np.maximum(0.0, prediction.bytes - spared) / chip.memory.bandwidth_bytes_per_s
    memory = np.maximum(memory, prediction.bytes / chip.on_chip.bandwidth_bytes_per_s)
    return np.maximum(prediction.flops / prediction.peak_flops, memory)


def impossible_rows(table: KernelTable, prediction: Prediction, chip: Chip) -> tuple[BoolArray, dict[str, int]]:
    """Rows to drop because they beat the datasheet, and rows of suspect slices; with counts by reason.

    A slice is one operation, library, kernel source and format, with grouped heads separate. If more than
    ``SUSPECT_SHARE`` of its rows are impossible, all its rows are dropped: they were measured in the same wrong way.

    Raises:
        ForerunError: most rows are impossible, or off by a factor that only a wrong unit explains.
    """
    predicted = np.isfinite(prediction.seconds)
    light = sol_seconds(prediction, chip)
    bad = predicted & (table.measured_s * TOLERANCE < light)
    check_unit(table, prediction, bad, predicted)
    grouped = (table.size("num_heads") > table.size("num_kv_heads")).astype(np.int64)
    columns = [table.word(name).codes for name in ("op", "library", "source", "dtype", "kv_dtype", "device")]
    suspect = np.zeros(len(table), dtype=bool)
    if bad.any():
        for part in equal_rows([*columns, grouped]):
            known = predicted[part]
            if bad[part].sum() > SUSPECT_SHARE * known.sum():
                suspect[part] = known
    suspect &= ~bad
    counts = {IMPOSSIBLE: int(bad.sum()), SUSPECT: int(suspect.sum())}
    return bad | suspect, {reason: rows for reason, rows in counts.items() if rows}


def check_unit(table: KernelTable, prediction: Prediction, bad: BoolArray, predicted: BoolArray) -> None:
    """Raise ForerunError when most measurements cannot be seconds of this chip."""
    rows = int(predicted.sum())
    if not rows:
        return
    factor = float(np.median(table.measured_s[predicted] / prediction.seconds[predicted]))
    if bad.sum() * 2 > rows:
        raise ForerunError(
            f"{table.source}: {int(bad.sum())} of {rows} rows are faster than the chip's datasheet allows (the median "
            f"is {1 / factor:.3g} times faster than predicted): another unit than the format's, or another chip?"
        )
    if factor > UNIT_FACTOR:
        raise ForerunError(
            f"{table.source}: the median row takes {factor:.3g} times as long as predicted: times must be in seconds, "
            f"these look like {_unit(factor)}"
        )


def _unit(factor: float) -> str:
    power = round(np.log10(factor) / 3)
    return {1: "milliseconds", 2: "microseconds", 3: "nanoseconds"}.get(power, "seconds")
