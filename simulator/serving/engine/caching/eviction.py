"""Eviction policies of the prefix cache and of stores, and the order in which hash blocks leave under one."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

from simulator.serving.engine.common import INFINITE, cython
from simulator.serving.engine.hash_blocks import HashBlocks


@cython.cclass
class Eviction:
    """Base of all eviction policies; alone, it evicts the least recently used hash block.

    Args:
        facts: ``EvictionFacts`` of the run: prompts, sessions, seconds to keep blocks, order of a reference run.
    """

    facts = cython.declare(object, visibility="public")

    def __init__(self, facts: Any) -> None:
        self.facts = facts

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Any:
        """A request begins; returns the requests whose hash blocks are to be ranked again."""
        return ()

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Any:
        """A request ends; returns the requests whose hash blocks are to be ranked again."""
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank of a hash block that nobody uses from now on. The lowest leaves first; of equals, the one used first."""
        return 0.0

    @cython.exceptval(check=True)
    @cython.ccall
    def kept_until(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Time up to which new requests wait rather than take the room of the hash block; 0: it is not kept."""
        return 0.0

    @cython.exceptval(check=True)
    @cython.ccall
    def waits(self, request: cython.longlong) -> cython.bint:
        """True if a request has to wait rather than take the room of hash blocks that are kept."""
        return True


@cython.cclass
class TimeToLive(Eviction):
    """Every hash block is kept for some seconds after its last use, then it leaves as under LRU."""

    @cython.exceptval(check=True)
    @cython.ccall
    def kept_until(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """End of the seconds."""
        return now + self.facts.retention_s


@cython.cclass
class SessionAware(Eviction):
    """Hash blocks that no session will come back to leave first, in LRU order, then the others."""

    _left: dict[int, int]
    """Requests still to come that wait for a request, by request."""
    _claims: dict[int, int]
    """Number of ended requests that have the hash block and others wait for."""
    _begun: set[int]
    _open: set[int]
    """Ended requests that others wait for."""

    def __init__(self, facts: Any) -> None:
        Eviction.__init__(self, facts)
        self._left, self._claims, self._begun, self._open = dict(facts.waiting), {}, set(), set()

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Any:
        """Count a session that waits for its tool or user."""
        if not self._left.get(request):
            return ()
        self._open.add(request)
        for hash_block in self.facts.prompt(request):
            self._claims[hash_block] = self._claims.get(hash_block, 0) + 1
        return (request,)

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Any:
        """Stop counting the requests that this one was the last to wait for."""
        returned = []
        for earlier in () if request in self._begun else self.facts.before.get(request, ()):
            self._left[earlier] -= 1
            if not self._left[earlier] and earlier in self._open:
                self._open.remove(earlier)
                returned.append(earlier)
                for hash_block in self.facts.prompt(earlier):
                    self._claims[hash_block] -= 1
        self._begun.add(request)
        return returned

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank 1 if a session will come back to the hash block, else 0."""
        return 1.0 if self._claims.get(hash_block) else 0.0


@cython.cclass
class PinUntilReturn(SessionAware):
    """Hash blocks of a session whose tool runs are kept until it comes back, at most some seconds; else LRU.

    Source: "Continuum: Efficient and Robust Multi-Turn LLM Agent Scheduling with KV Cache Time-to-Live" (2025,
    arXiv:2511.02230), with one time for all tools.
    """

    _until: dict[int, float]

    def __init__(self, facts: Any) -> None:
        SessionAware.__init__(self, facts)
        self._until = {}

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Any:
        """Pin the hash blocks of a session that will come back."""
        pinned = SessionAware.ends(self, request, now)
        for hash_block in self.facts.prompt(request) if pinned else ():
            self._until[hash_block] = now + self.facts.retention_s
        return pinned

    @cython.exceptval(check=True)
    @cython.ccall
    def kept_until(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Latest timeout of the sessions that will come back to it."""
        return self._until[hash_block] if self._claims.get(hash_block) else 0.0

    @cython.exceptval(check=True)
    @cython.ccall
    def waits(self, request: cython.longlong) -> cython.bint:
        """Only new sessions wait; one that comes back takes the room that is kept for the shortest time."""
        return request not in self.facts.before

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank 0 for every hash block, so that it leaves as under LRU after the timeout."""
        return 0.0


@cython.cclass
class LargestFirst(Eviction):
    """Hash blocks at the end of the longest prefixes leave first."""

    _size: dict[int, int]

    def __init__(self, facts: Any) -> None:
        Eviction.__init__(self, facts)
        self._size = {}

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Any:
        """Number the hash blocks of a prompt."""
        for position, hash_block in enumerate(self.facts.prompt(request)):
            self._size.setdefault(hash_block, position)
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank that is lower for a longer prefix."""
        return -float(self._size.get(hash_block, 0))


@cython.cclass
class SmallestFirst(LargestFirst):
    """Hash blocks of the shortest prompts leave first; a shared one counts for the longest prompt that has it."""

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Any:
        """Note the length of a prompt at its hash blocks."""
        prompt = self.facts.prompt(request)
        for hash_block in prompt:
            self._size[hash_block] = max(self._size.get(hash_block, 0), len(prompt))
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank that is higher for a longer prompt."""
        return float(self._size.get(hash_block, 0))


@cython.cclass
class Belady(Eviction):
    """The hash block whose next use is furthest leaves first; requests come in the order of a reference run.

    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
    (1966), algorithm MIN.
    """

    _uses: dict[int, list[int]]
    """Places in the order of the requests that have a hash block and have not begun, the next one last."""
    _place: dict[int, int]
    _begun: set[int]

    def __init__(self, facts: Any) -> None:
        Eviction.__init__(self, facts)
        self._uses, self._place, self._begun = {}, {}, set()
        for place, request in reversed(list(enumerate(facts.order))):
            self._place[request] = place
            for hash_block in facts.prompt(request):
                self._uses.setdefault(hash_block, []).append(place)

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Any:
        """Pass a request by; what it has in the cache and could not use is ranked by its next use."""
        self._begun.add(self._place.get(request, -1))
        return (request,)

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank that is lower for a later use."""
        uses = self._uses.get(hash_block, [])
        last: cython.longlong = len(uses) - 1
        while last >= 0 and uses[last] in self._begun:
            uses.pop()
            last -= 1
        return -float(uses[last]) if last >= 0 else -INFINITE


@cython.final
@cython.cclass
class EvictionOrder:
    """Unused hash blocks of a table, in the order in which they leave it under a policy other than LRU.

    Args:
        policy: the policy, an ``Eviction``.
        prompt: returns the hash blocks of a request.
        table: where the hash blocks are.
    """

    kept_blocks = cython.declare(cython.longlong, visibility="public")
    """KV blocks of the hash blocks that are kept."""
    _policy: Any
    _prompt: Any
    _table: HashBlocks
    _entries: dict[int, tuple[float, int, int, bool]]
    """Present heap entry of each slot. Rank or end of its time, count of its last use, slot, and True if it is kept."""
    _ranked: list[tuple[float, int, int, bool]]
    """Heap of hash blocks that are not kept; entries that are no longer present ones are dropped at the top."""
    _kept: list[tuple[float, int, int, bool]]
    _uses: cython.longlong

    def __init__(self, policy: Any, prompt: Any, table: HashBlocks) -> None:
        self._policy, self._prompt, self._table = policy, prompt, table
        self._entries, self._ranked, self._kept = {}, [], []
        self.kept_blocks = self._uses = 0

    @cython.cfunc
    def begins(self, request: cython.longlong, now: cython.double) -> None:
        """Pass on that a request begins."""
        self._rank_again(self._policy.begins(request, now), now)

    @cython.cfunc
    def ends(self, request: cython.longlong, now: cython.double) -> None:
        """Pass on that a request ends."""
        self._rank_again(self._policy.ends(request, now), now)

    @cython.cfunc
    def _rank_again(self, requests: Any, now: cython.double) -> None:
        slot: cython.longlong
        for request in requests:
            for hash_block in self._prompt(request):
                slot = self._table.find(hash_block)
                if slot in self._entries:
                    uses = self._entries[slot][1]
                    self.leave(slot)
                    self._place(slot, uses, self._until(slot, now), now)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def withheld(self, request: cython.longlong, now: cython.double) -> cython.longlong:
        """KV blocks whose room a request may not take; those that it finds there among them."""
        self.expire(now)
        return self.kept_blocks if self.kept_blocks and self._policy.waits(request) else 0

    @cython.cfunc
    def enter(self, slot: cython.longlong, now: cython.double) -> None:
        """Nobody uses the hash block of a slot from now on."""
        self._uses += 1
        self._place(slot, self._uses, self._until(slot, now), now)

    @cython.exceptval(check=True)
    @cython.cfunc
    def _until(self, slot: cython.longlong, now: cython.double) -> cython.double:
        until: cython.double = self._policy.kept_until(self._table.hash_block[slot], now)
        return until

    @cython.cfunc
    def _place(self, slot: cython.longlong, uses: Any, until: cython.double, now: cython.double) -> None:
        kept: cython.bint = until > now
        key: cython.double = until if kept else self._policy.rank(self._table.hash_block[slot], now)
        entry = (key, uses, slot, bool(kept))
        heap = self._kept if kept else self._ranked
        self._entries[slot] = entry
        if kept:
            self.kept_blocks += self._table.blocks[slot]
        if len(heap) > 64 + 4 * len(self._entries):
            heap[:] = [present for present in self._entries.values() if present[3] == kept]
            heapify(heap)
        else:
            heappush(heap, entry)

    @cython.cfunc
    def leave(self, slot: cython.longlong) -> None:
        """A request uses the hash block of a slot, or it has been evicted."""
        if self._entries.pop(slot)[3]:
            self.kept_blocks -= self._table.blocks[slot]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def kept(self, slot: cython.longlong) -> cython.longlong:
        """KV blocks of a slot that is kept; 0 if it is not."""
        entry = self._entries.get(slot)
        return self._table.blocks[slot] if entry is not None and entry[3] else 0

    @cython.cfunc
    def expire(self, now: cython.double) -> None:
        """Keep no longer what has been kept up to its time."""
        while self._kept and (self._stale(self._kept) or self._kept[0][0] <= now):
            entry = heappop(self._kept)
            if self._entries.get(entry[2]) is entry:
                self.leave(entry[2])
                self._place(entry[2], entry[1], 0.0, now)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _stale(self, heap: list[Any]) -> cython.bint:
        return self._entries.get(heap[0][2]) is not heap[0]

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def first(self, now: cython.double) -> cython.longlong:
        """Slot that leaves first: kept ones last, by the end of their time."""
        self.expire(now)
        for heap in (self._ranked, self._kept):
            while heap and self._stale(heap):
                heappop(heap)
            if heap:
                return heap[0][2]
        return -1
