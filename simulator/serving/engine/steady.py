"""Sequences that decode one token in every step, counted together instead of visited one by one."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.sequence import Sequence


@cython.final
@cython.cclass
class Steady:
    """The sequences at the head of a batch to which every decode step gives one token, as sums over them.

    Their own fields stay as they were when they joined, until they leave.

    Args:
        reserved: tokens beyond those in the cache that each has blocks for.
        page_tokens: tokens for which blocks are allotted together.
        page_blocks: blocks of so many tokens.
    """

    count: cython.longlong
    """Number of counted sequences."""
    cached: cython.longlong
    """Tokens in their caches."""
    left: cython.longlong
    """Tokens that they have still to generate."""
    windows: cython.longlong[::1]
    """Attention windows, as ``Work`` has them."""
    keys: cython.longlong[::1]
    """Keys that they read, by window; not kept of full attention."""
    latest_s: cython.double
    """When each of them had its latest token."""
    _steps: cython.longlong
    """Decode steps so far."""
    _grown: cython.longlong
    """The step, counted the same way, for which they have blocks."""
    _reserved: cython.longlong
    _page_tokens: cython.longlong
    _page_blocks: cython.longlong
    _growing: cython.longlong[::1]
    """Number that needs another page, by the step modulo the tokens of a page."""
    _ending: dict[Any, Any]
    """Sequences in the order of the batch, by the step after which they have all their tokens."""
    _filling: cython.longlong[::1]
    """Number that reads fewer keys than a window has, by window."""
    _full: list[dict[int, int]]
    """Number of these that read as many as it has for the first time, by window and step."""

    def __init__(self, reserved: cython.longlong, page_tokens: cython.longlong, page_blocks: cython.longlong) -> None:
        self.count = self.cached = self.left = self._steps = self._grown = 0
        self.latest_s = 0.0
        self._reserved, self._page_tokens, self._page_blocks = reserved, page_tokens, page_blocks
        self._growing = array("q", [0]) * page_tokens
        self._ending = {}
        self.windows = self.keys = self._filling = array("q")
        self._full = []

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def growth(self) -> cython.longlong:
        """Blocks that they need for the next step beyond those that they have."""
        return 0 if self._grown == self._steps else self._growing[self._steps % self._page_tokens] * self._page_blocks

    @cython.cfunc
    def grow(self) -> None:
        """They have the blocks for the next step."""
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
        """Count a sequence that has blocks for the next step, if it had its latest token when the others had."""
        left: cython.longlong = sequence.output_tokens - sequence.generated_tokens
        if not self.count:
            self.latest_s = sequence.last_token_s
        if sequence.last_token_s != self.latest_s or sequence.blocks != self._pages(sequence.computed_tokens):
            return False
        sequence.ends_at = self._steps + left
        ending = self._ending.get(sequence.ends_at)
        if ending is None:
            self._ending[sequence.ends_at] = [sequence]
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
        """Take a sequence that is up to date into all sums but ``left``, or out of them: 1 or -1."""
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
        """True if the next step has the last token of any of them."""
        return self._steps + 1 in self._ending

    @cython.cfunc
    def advance(self, now: cython.double) -> Any:
        """Each of them has a token more; those that now have all of theirs leave and are returned."""
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
        ending = self._ending.pop(self._steps, None)
        if ending is not None:
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
