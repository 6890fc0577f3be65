"""Random draws of accepted draft tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.serving.engine.common import ALL_BITS, GOLDEN, cython


@cython.final
@cython.cclass
class Thresholds:
    """Draws below which so many draft tokens are accepted, ascending; one row per class of requests."""

    values: cython.ulonglong[:, ::1]
    classes: cython.longlong

    def __init__(self, values: Any) -> None:
        self.values = np.ascontiguousarray(np.atleast_2d(values))
        self.classes = len(self.values)


@cython.final
@cython.cclass
class Draws:
    """Accepted draft tokens of each verify step: the draws of an ``AcceptanceSampler``, one by one."""

    sampler: Any
    drift: Any
    drift_start: cython.double
    cells: dict[Any, Any]
    usual: Thresholds
    by_class: cython.bint
    """Whether the class of each request is given; else it is drawn."""
    class_of: cython.longlong[::1]
    positions: cython.longlong
    key: cython.ulonglong
    class_key: cython.ulonglong
    first_mix: cython.ulonglong
    second_mix: cython.ulonglong

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.drift = sampler.drift
        self.positions = sampler.num_speculative_tokens
        self.usual = Thresholds(sampler.thresholds(-1))
        self.cells = {-1: self.usual}
        self.key, self.class_key = sampler.key, sampler.class_key
        self.by_class = sampler.class_of is not None
        self.class_of = np.ascontiguousarray(sampler.class_of if self.by_class else [0], dtype=np.int64)
        self.first_mix, self.second_mix = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def accepted(self, request: cython.longlong, step: cython.longlong, context: cython.longlong) -> cython.longlong:
        """Draft tokens that a request accepts in its ``step``-th verify step, with so many tokens in its cache."""
        table: Thresholds = self.usual
        row: cython.longlong = 0
        taken: cython.longlong = self.positions
        place: cython.longlong
        bits: cython.ulonglong
        if self.drift is not None:
            table = self._of_cell(self.drift.cell(context))
        if self.by_class:
            row = self.class_of[request]
        elif table.classes > 1:
            bits = self._bits(self.class_key, request, 0)
            row = int((bits >> 11) * 2.0**-53 * table.classes)
        bits = self._bits(self.key, request, step)
        for place in range(self.positions):
            if table.values[row, place] <= bits:
                taken -= 1
        return taken

    @cython.cfunc
    def _of_cell(self, cell: Any) -> Thresholds:
        table = self.cells.get(cell)
        if table is None:
            table = self.cells[cell] = Thresholds(self.sampler.thresholds(cell))
        return table

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _bits(self, key: cython.ulonglong, stream: cython.ulonglong, position: cython.ulonglong) -> cython.ulonglong:
        """64 random bits at one position of a stream."""
        state: cython.ulonglong = (key + (stream + 1) * GOLDEN) & ALL_BITS
        state = self._mixed(state)
        return self._mixed((state + (position + 1) * GOLDEN) & ALL_BITS)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _mixed(self, state: cython.ulonglong) -> cython.ulonglong:
        state = ((state ^ (state >> 30)) * self.first_mix) & ALL_BITS
        state = ((state ^ (state >> 27)) * self.second_mix) & ALL_BITS
        return state ^ (state >> 31)
