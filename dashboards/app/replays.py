"""Replays of served kernel traces, kept while nothing changes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from dashboards.app.served import Served
from hwprofiles import KernelLibrary, load_chip
from simulator.errors import ForerunError
from simulator.replay import ReplayReport, Split, calibrate, load_residuals, replay_kernels
from traces.kernels import KernelTable, read_kernels

PHYSICS = "the profile as it is"
LEARNED = "the profile with its learned residual"
FITTED = "fitted on 70 % of these shapes, scored on the rest"
LAYERS = (PHYSICS, LEARNED, FITTED)
SPLIT = Split(0.7, 1)
MOST_FITTED = 5000
"""Rows of a trace that is fitted while someone waits."""


def devices(served: Served, trace: str) -> list[str]:
    """Names of the devices in a served trace; empty where it does not say.

    Raises:
        ForerunError: no such trace.
        TraceError: it cannot be read.
    """
    table = _table(*_file(served, trace))
    word = table.word("device")
    return sorted({str(word.names[code]) for code in np.unique(word.codes)} - {""})


def replayed(
    served: Served, trace: str, chip: str, library: str, device: str | None = None, layer: str = PHYSICS
) -> ReplayReport:
    """A served trace replayed on a chip.

    Raises:
        ForerunError: no such trace, no rows to score, or no learned residual.
        ProfileError: no such chip or library.
        TraceError: the trace cannot be read.
    """
    return _replayed(*_file(served, trace), served.chip(chip), library, device, layer)


def _file(served: Served, trace: str) -> tuple[Path, int]:
    path = served.trace(trace)
    return path, path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _table(path: Path, _modified_ns: int) -> KernelTable:
    return read_kernels(path)


@lru_cache(maxsize=8)
def _replayed(path: Path, modified_ns: int, chip: str, library: str, device: str | None, layer: str) -> ReplayReport:
    table = _table(path, modified_ns)
    if device is not None:
        table = table.where(table.word("device").equals(device))
        if not len(table):
            raise ForerunError(f"device: no row of '{device[:80]}' in this trace")
    profile = load_chip(chip)
    if layer == FITTED:
        if len(table) > MOST_FITTED:
            raise ForerunError(
                f"trace: {len(table):,} rows are more than the {MOST_FITTED:,} that are fitted here; "
                f"forerun calibrate fits larger traces"
            )
        fitted = calibrate(table, profile, library, SPLIT, residual=False).chip
        return replay_kernels(table, KernelLibrary(fitted, library), SPLIT)
    residuals = load_residuals(chip) if layer == LEARNED else None
    return replay_kernels(table, KernelLibrary(profile, library), residuals=residuals)
