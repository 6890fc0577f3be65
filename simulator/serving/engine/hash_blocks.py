"""A hash table of prefix hash blocks, and the hash blocks of prompts."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import ALL_BITS, GOLDEN, cython


@cython.final
@cython.cclass
class HashBlocks:
    """Hash table of prefix hash blocks with a few numbers each, and optionally their order of use.

    Open addressing with linear probing, at most half full.
    """

    used = cython.declare(cython.longlong, visibility="public")
    oldest: cython.longlong
    """The slot used longest ago, of those in order; -1 for none."""
    latest: cython.longlong
    capacity: cython.longlong
    """Slots."""
    _places: cython.longlong[::1]
    """The slot in each place of the hash table; -1 if it is empty."""
    _shift: cython.longlong
    _free: cython.longlong
    """A slot that is empty, from which ``after`` leads to the others; -1 for none."""
    hash_block: cython.longlong[::1]
    blocks: cython.longlong[::1]
    holders: cython.longlong[::1]
    """Number of requests that hold the hash block."""
    seen: cython.longlong[::1]
    """The latest walk that came by."""
    before: cython.longlong[::1]
    after: cython.longlong[::1]
    """The slots used next before and after it."""

    def __init__(self) -> None:
        none = array("q")
        self.hash_block = self.blocks = self.holders = self.seen = self.before = self.after = none
        self.used = self.capacity = 0
        self.oldest = self.latest = self._free = -1
        self._grow()

    @cython.cfunc
    def _grow(self) -> None:
        """Twice as many slots; all hash blocks find their place anew."""
        slot: cython.longlong
        capacity: cython.longlong = max(64, 2 * self.capacity)
        more = bytes(8 * (capacity - self.capacity))
        self.hash_block = array("q", bytes(self.hash_block) + more)
        self.blocks = array("q", bytes(self.blocks) + more)
        self.holders = array("q", bytes(self.holders) + more)
        self.seen = array("q", bytes(self.seen) + more)
        self.before = array("q", bytes(self.before) + more)
        self.after = array("q", bytes(self.after) + more)
        self._places = array("q", [-1]) * (2 * capacity)
        self._shift = 64 - int(capacity).bit_length()
        full: cython.longlong = self.capacity
        self.capacity = capacity
        for slot in range(full):
            self._places[self._empty_place(self.hash_block[slot])] = slot
        for slot in range(full, capacity):
            self.after[slot] = self._free
            self._free = slot

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _place(self, hash_block: cython.ulonglong) -> cython.longlong:
        """The preferred slot of a hash block; eight consecutive ones share a cache line."""
        return ((((hash_block >> 3) * GOLDEN) & ALL_BITS) >> self._shift) & ~7 | (hash_block & 7)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _empty_place(self, hash_block: cython.longlong) -> cython.longlong:
        """The first empty place for a hash block that stands nowhere."""
        place: cython.longlong = self._place(hash_block)
        while self._places[place] >= 0:
            place = (place + 1) & (2 * self.capacity - 1)
        return place

    @cython.exceptval(-2, check=True)
    @cython.ccall
    def find(self, hash_block: cython.longlong) -> cython.longlong:
        """The slot of a hash block; -1 if it is not here."""
        slot: cython.longlong
        place: cython.longlong = self._place(hash_block)
        while True:
            slot = self._places[place]
            if slot < 0 or self.hash_block[slot] == hash_block:
                return slot
            place = (place + 1) & (2 * self.capacity - 1)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def put(self, hash_block: cython.longlong, blocks: cython.longlong) -> cython.longlong:
        """Add a hash block that is not in the table; its slot is not yet in the LRU order."""
        if self._free < 0:
            self._grow()
        slot: cython.longlong = self._free
        self._free = self.after[slot]
        self.hash_block[slot], self.blocks[slot], self.holders[slot], self.seen[slot] = hash_block, blocks, 0, 0
        self._places[self._empty_place(hash_block)] = slot
        self.used += 1
        return slot

    @cython.cfunc
    def remove(self, slot: cython.longlong) -> None:
        """Delete a hash block that is not in the LRU order; later entries of its probe sequence move up."""
        last: cython.longlong = 2 * self.capacity - 1
        hole: cython.longlong = self._place(self.hash_block[slot])
        while self._places[hole] != slot:
            hole = (hole + 1) & last
        place: cython.longlong = (hole + 1) & last
        while self._places[place] >= 0:
            wanted: cython.longlong = self._place(self.hash_block[self._places[place]])
            if ((place - wanted) & last) >= ((place - hole) & last):
                self._places[hole] = self._places[place]
                hole = place
            place = (place + 1) & last
        self._places[hole] = -1
        self.after[slot] = self._free
        self._free = slot
        self.used -= 1

    @cython.cfunc
    def line_up(self, slot: cython.longlong) -> None:
        """Append a slot to the LRU order as the most recently used; it must not be in it yet."""
        self.before[slot], self.after[slot] = self.latest, -1
        if self.latest < 0:
            self.oldest = slot
        else:
            self.after[self.latest] = slot
        self.latest = slot

    @cython.cfunc
    def step_out(self, slot: cython.longlong) -> None:
        """Remove a slot from the LRU order."""
        before: cython.longlong = self.before[slot]
        after: cython.longlong = self.after[slot]
        if before < 0:
            self.oldest = after
        else:
            self.after[before] = after
        if after < 0:
            self.latest = before
        else:
            self.before[after] = before


@cython.final
@cython.cclass
class Prompts:
    """The prefix hash blocks of requests, one request at a time.

    Args:
        hashes: ``PrefixHashes`` of all requests; without any, they are computed one request after the other.
    """

    ids: cython.const[cython.longlong][::1]  # type: ignore[valid-type]
    first: cython.longlong
    """The hash blocks of the request in hand are ``ids[first:end]``."""
    end: cython.longlong
    _offsets: cython.const[cython.longlong][::1]  # type: ignore[valid-type]
    _source: Any

    def __init__(self, hashes: Any) -> None:
        self._source = None if len(hashes) else hashes
        self.ids, self._offsets = memoryview(hashes.ids), memoryview(hashes.offsets)
        self.first = self.end = 0

    @cython.cfunc
    def open(self, request: cython.longlong) -> None:
        """Take a request in hand."""
        if self._source is None:
            self.first, self.end = self._offsets[request], self._offsets[request + 1]
        else:
            self.ids = memoryview(self._source.of(request))
            self.first, self.end = 0, len(self.ids)
