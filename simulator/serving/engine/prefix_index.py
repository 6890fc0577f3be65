"""Replicas by the prefix hash blocks that they hold, for prefix-aware routers."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from simulator.serving.engine.common import cython
from simulator.serving.engine.hash_blocks import HashBlocks, Prompts


@cython.cclass
class HolderIndex:
    """Holders of each hash block as bits: one walk gives every replica's share of a prompt.

    Args:
        hashes: prefix hashes of all requests.
        by_all_layers: a replica holds a hash block until its layers with a window have dropped it.
    """

    _prompts: Prompts
    _hash_blocks: HashBlocks
    _marks: cython.ulonglong[::1]
    """A bit per replica, in ``_words`` words of each slot."""
    _words: cython.longlong
    _walk: cython.longlong
    _by_all_layers: cython.bint

    def __init__(self, hashes: Any, by_all_layers: bool = False) -> None:
        self._prompts, self._by_all_layers = Prompts(hashes), by_all_layers
        self._hash_blocks = HashBlocks()
        self._words, self._walk = 1, 0
        self._marks = array("Q", bytes(8 * self._hash_blocks.capacity))

    @cython.ccall
    def add(self, hash_block: cython.longlong, replica: cython.longlong) -> None:
        """Record that a replica holds a hash block."""
        word: cython.longlong
        if replica >= 64 * self._words:
            self._widen(replica // 64 + 1)
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0:
            slot = self._hash_blocks.put(hash_block, 0)
            if self._hash_blocks.capacity * self._words > len(self._marks):
                self._marks = array("Q", bytes(self._marks) + bytes(len(self._marks) * 8))
            for word in range(self._words):
                self._marks[slot * self._words + word] = 0
        self._marks[slot * self._words + replica // 64] |= cython.cast(cython.ulonglong, 1) << (replica % 64)

    @cython.cfunc
    def _widen(self, words: cython.longlong) -> None:
        """Room for more replicas."""
        wider = np.zeros((self._hash_blocks.capacity, words), dtype=np.uint64)
        wider[:, : self._words] = np.asarray(self._marks).reshape(self._hash_blocks.capacity, self._words)
        self._marks, self._words = array("Q", wider.tobytes()), words

    @cython.ccall
    def drop(self, hash_block: cython.longlong, replica: cython.longlong) -> None:
        """Record that a replica no longer holds a hash block."""
        word: cython.longlong
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0 or replica >= 64 * self._words:
            return
        self._marks[slot * self._words + replica // 64] &= ~(cython.cast(cython.ulonglong, 1) << (replica % 64))
        for word in range(self._words):
            if self._marks[slot * self._words + word]:
                return
        self._hash_blocks.remove(slot)

    @cython.ccall
    def pass_by(self, hash_block: cython.longlong, replica: cython.longlong) -> None:
        """Record that the layers with a window of a replica no longer hold a hash block."""
        if self._by_all_layers:
            self.drop(hash_block, replica)

    def drop_all(self, replica: int) -> None:
        """A replica has lost everything."""
        slot: cython.longlong
        places = np.asarray(self._hash_blocks._places)
        for slot in places[places >= 0].tolist():
            self.drop(self._hash_blocks.hash_block[slot], replica)

    def leading(self, request: cython.longlong, replicas: list[int]) -> list[int]:
        """Number of leading hash blocks of a request that each replica holds without a gap; each replica once."""
        position: cython.longlong
        slot: cython.longlong
        word: cython.longlong
        bit: cython.longlong
        replica: cython.longlong
        known: cython.bint
        lost: cython.ulonglong
        mark: cython.ulonglong
        left: cython.longlong = len(replicas)
        self._prompts.open(request)
        hash_blocks: cython.longlong = self._prompts.end - self._prompts.first
        if left and max(replicas) >= 64 * self._words:
            self._widen(max(replicas) // 64 + 1)
        holding: cython.ulonglong[::1] = array("Q", bytes(8 * self._words))
        counts: cython.longlong[::1] = array("q", [hash_blocks]) * (64 * self._words)
        for replica in replicas:
            holding[replica // 64] |= cython.cast(cython.ulonglong, 1) << (replica % 64)
        self._walk += 1
        for position in range(hash_blocks):
            if not left:
                break
            slot = self._hash_blocks.find(self._prompts.ids[self._prompts.first + position])
            known = slot >= 0 and self._hash_blocks.seen[slot] != self._walk
            if known:
                self._hash_blocks.seen[slot] = self._walk
            for word in range(self._words):
                mark = self._marks[slot * self._words + word] if known else 0
                lost = holding[word] & ~mark
                holding[word] &= mark
                if not lost:
                    continue
                for bit in range(64):
                    if (lost >> bit) & 1:
                        counts[64 * word + bit] = position
                        left -= 1
        return [counts[replica] for replica in replicas]


@cython.final
@cython.cclass
class SentPrefixes(HolderIndex):
    """Prefixes that a router has sent to each replica: one LRU table of hash blocks per replica."""

    _tables: dict[Any, Any]

    def __init__(self, hashes: Any) -> None:
        HolderIndex.__init__(self, hashes)
        self._tables = {}

    def size(self, replica: int) -> int:
        """HashBlocks in a replica's table."""
        size: int = self._tables[replica].used if replica in self._tables else 0
        return size

    def forget(self, replica: int) -> None:
        """Drop all entries of a replica that has lost its cache."""
        if self._tables.pop(replica, None) is not None:
            self.drop_all(replica)

    def record(self, request: cython.longlong, replica: cython.longlong, most: cython.longlong) -> None:
        """Record a request sent to a replica, whose table holds at most ``most`` hash blocks."""
        slot: cython.longlong
        hash_block: cython.longlong
        position: cython.longlong
        table: HashBlocks
        if replica not in self._tables:
            self._tables[replica] = HashBlocks()
        table = self._tables[replica]
        self._prompts.open(request)
        position = self._prompts.end
        while position > self._prompts.first:
            position -= 1
            hash_block = self._prompts.ids[position]
            slot = table.find(hash_block)
            if slot < 0:
                self.add(hash_block, replica)
                slot = table.put(hash_block, 0)
            else:
                table.step_out(slot)
            table.line_up(slot)
        while table.used > most:
            slot = table.oldest
            table.step_out(slot)
            table.remove(slot)
            self.drop(table.hash_block[slot], replica)
