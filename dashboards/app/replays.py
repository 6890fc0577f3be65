"""Replays of served kernel traces, kept while nothing changes."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from dashboards.app.served import Served
from hwprofiles import KernelLibrary, load_chip
from simulator.errors import ForerunError
from simulator.replay import ReplayReport, load_residuals, replay_kernels
from traces.kernels import KernelTable, read_kernels


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
    served: Served, trace: str, chip: str, library: str, device: str | None = None, residual: bool = False
) -> ReplayReport:
    """A served trace replayed on a chip.

    Raises:
        ForerunError: no such trace, no rows to score, or no learned residual.
        ProfileError: no such chip or library.
        TraceError: the trace cannot be read.
    """
    return _replayed(*_file(served, trace), served.chip(chip), library, device, residual)


def _file(served: Served, trace: str) -> tuple[Path, int]:
    path = served.trace(trace)
    return path, path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _table(path: Path, _modified_ns: int) -> KernelTable:
    return read_kernels(path)


@lru_cache(maxsize=8)
def _replayed(
    path: Path, modified_ns: int, chip: str, library: str, device: str | None, residual: bool
) -> ReplayReport:
    table = _table(path, modified_ns)
    if device is not None:
        table = table.where(table.word("device").equals(device))
        if not len(table):
            raise ForerunError(f"device: no row of '{device[:80]}' in this trace")
    kernels = KernelLibrary(load_chip(chip), library)
    return replay_kernels(table, kernels, residuals=load_residuals(chip) if residual else None)
