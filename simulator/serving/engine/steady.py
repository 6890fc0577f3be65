"""Sequences that decode one token in every step, counted together instead of visited one by one."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.sequence import Sequence

SLOTS = cython.declare(cython.longlong, 1024)
"""Slots in which endings are counted by their step modulo this power of two; an empty slot saves a look-up."""


@cython.final
@cython.cclass
class Steady:
    """The sequences at the head of a batch to which every decode step gives one token, as sums over them.

    The fields of a sequence stay as they were when it joined, until it leaves.

    Args:
        reserved: tokens beyond the cached ones that each sequence has blocks for.
        page_tokens: tokens per page; blocks are allocated a page at a time.
        page_blocks: KV blocks per page.
    """

    count: cython.longlong
    """Number of counted sequences."""
    cached: cython.longlong
    """Tokens in their caches."""
    left: cython.longlong
    """Tokens that the counted sequences have still to generate."""
    windows: cython.longlong[::1]
    """Attention windows, as ``Work`` has them."""
    keys: cython.longlong[::1]
    """Keys that the counted sequences read, by window; not counted for full attention."""
    latest_s: cython.double
    """Time of the latest token, the same for every counted sequence."""
    _steps: cython.longlong
    """Decode steps so far."""
    _grown: cython.longlong
    """The step, in the same count, for which all counted sequences have blocks."""
    _reserved: cython.longlong
    _page_tokens: cython.longlong
    _page_blocks: cython.longlong
    _growing: cython.longlong[::1]
    """Number that needs another page, by the step modulo the tokens of a page."""
    _ending: dict[Any, Any]
    """Sequences in batch order, by the step in which they get their last token."""
    _ending_slots: cython.longlong[::1]
    """Steps of ``_ending`` in each slot."""
    _filling: cython.longlong[::1]
    """Number that reads fewer keys than a window has, by window."""
    _full: list[dict[int, int]]
    """Number of sequences that first fill the window in a step, by window and step."""

    def __init__(self, reserved: cython.longlong, page_tokens: cython.longlong, page_blocks: cython.longlong) -> None:
        self.count = self.cached = self.left = self._steps = self._grown = 0
        self.latest_s = 0.0
        self._reserved, self._page_tokens, self._page_blocks = reserved, page_tokens, page_blocks
        self._growing = array("q", [0]) * page_tokens
        self._ending = {}
        self._ending_slots = array("q", [0]) * SLOTS
        self.windows = self.keys = self._filling = array("q")
        self._full = []

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def growth(self) -> cython.longlong:
        """Additional blocks that the counted sequences need for the next step."""
        return 0 if self._grown == self._steps else self._growing[self._steps % self._page_tokens] * self._page_blocks

    @cython.cfunc
    def grow(self) -> None:
        """Record that all counted sequences have blocks for the next step."""
        self._grown = self._steps

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _pages(self, tokens: cython.longlong) -> cython.longlong:
        """Blocks of whole pages with room for the reserved tokens behind ``tokens``."""
        return -(-(tokens + self._reserved) // self._page_tokens) * self._page_blocks

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _phase(self, sequence: Sequence) -> cython.longlong:
        """When a sequence that is up to date needs another page: a step modulo the tokens of a page."""
        return (self._steps - sequence.computed_tokens - self._reserved + 1) % self._page_tokens

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def join(self, sequence: Sequence) -> cython.bint:
        """Count a sequence that has blocks for the next step, if its latest token came with the others'."""
        left: cython.longlong = sequence.output_tokens - sequence.generated_tokens
        if not self.count:
            self.latest_s = sequence.last_token_s
        if sequence.last_token_s != self.latest_s or sequence.blocks != self._pages(sequence.computed_tokens):
            return False
        sequence.ends_at = self._steps + left
        ending = self._ending.get(sequence.ends_at)
        if ending is None:
            self._ending[sequence.ends_at] = [sequence]
            self._ending_slots[sequence.ends_at % SLOTS] += 1
        else:
            ending.append(sequence)
        if len(self._full) != len(self.windows):
            self._full = [{} for _ in self.windows]
            self.keys = array("q", [0]) * len(self.windows)
            self._filling = array("q", [0]) * len(self.windows)
        self.left += left
        self._count(sequence, 1)
        return True

    @cython.cfunc
    def _count(self, sequence: Sequence, one: cython.longlong) -> None:
        """Add an up-to-date sequence to all sums but ``left`` (1), or subtract it (-1)."""
        w: cython.longlong
        missing: cython.longlong
        self._growing[self._phase(sequence)] += one
        self.count += one
        self.cached += one * sequence.computed_tokens
        for w in range(len(self.windows)):
            missing = self.windows[w] - sequence.computed_tokens - 1
            if self.windows[w] >= 0:
                self.keys[w] += one * (self.windows[w] - max(0, missing))
            if missing > 0:
                self._filling[w] += one
                full = self._full[w]
                full[self._steps + missing] = full.get(self._steps + missing, 0) + one

    @cython.cfunc
    def ends(self) -> cython.bint:
        """True if a counted sequence gets its last token in the next step."""
        return self._ending_slots[(self._steps + 1) % SLOTS] > 0 and self._steps + 1 in self._ending

    @cython.cfunc
    def advance(self, now: cython.double) -> Any:
        """Add a token to every counted sequence; remove and return the sequences that have finished."""
        sequence: Sequence
        w: cython.longlong
        self._steps += 1
        self.cached += self.count
        self.left -= self.count
        self.latest_s = now
        for w in range(len(self.windows)):
            if self._filling[w]:
                self.keys[w] += self._filling[w]
                self._filling[w] -= self._full[w].pop(self._steps, 0)
        ending = self._ending.pop(self._steps, None) if self._ending_slots[self._steps % SLOTS] else None
        if ending is not None:
            self._ending_slots[self._steps % SLOTS] -= 1
            for sequence in ending:
                self._settle(sequence)
                self._count(sequence, -1)
        return ending

    @cython.cfunc
    def leave(self) -> None:
        """Write the counted progress back into each sequence and stop counting."""
        sequence: Sequence
        for ending in self._ending.values():
            for sequence in ending:
                self._settle(sequence)
        self._ending.clear()
        self._ending_slots = array("q", [0]) * SLOTS
        self._full = []
        self._growing = array("q", [0]) * self._page_tokens
        self.count = self.cached = self.left = 0

    @cython.cfunc
    def _settle(self, sequence: Sequence) -> None:
        """Bring the fields of a sequence up to date."""
        tokens: cython.longlong = sequence.output_tokens - sequence.generated_tokens - (sequence.ends_at - self._steps)
        sequence.computed_tokens += tokens
        sequence.generated_tokens += tokens
        sequence.last_token_s = self.latest_s
        sequence.blocks = self._pages(sequence.computed_tokens - (self._steps - self._grown))
