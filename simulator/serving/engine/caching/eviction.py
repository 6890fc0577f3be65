"""Eviction policies of the prefix cache and of stores, and the order in which hash blocks leave under one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from simulator.serving.engine.common import INFINITE, cython
from simulator.serving.engine.hash_blocks import HashBlocks, Prompts

if TYPE_CHECKING:
    from simulator.serving.kv_stores import EvictionFacts
    from traces import PrefixHashes


@cython.cclass
class Eviction:
    """Base of all eviction policies; alone, it evicts the least recently used hash block.

    Args:
        facts: ``EvictionFacts`` of the run: prompts, sessions, seconds to keep blocks, order of a reference run.
    """

    facts = cython.declare(object, visibility="public")
    _retention_s: cython.double
    _prompts: Prompts
    _known: HashBlocks
    """Hash blocks that the policy keeps a number of."""

    def __init__(self, facts: EvictionFacts) -> None:
        self.facts, self._retention_s = facts, facts.retention_s
        self._prompts, self._known = Prompts(facts.hashes), HashBlocks()

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        """A request begins; returns the requests whose hash blocks are to be ranked again."""
        return ()

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        """A request ends; returns the requests whose hash blocks are to be ranked again."""
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        """Rank of a hash block unused from ``now`` on. The lowest leaves first; of equals, the one ranked first."""
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

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _slot(self, hash_block: cython.longlong) -> cython.longlong:
        """Slot of a hash block among the known ones; a new one has zeros."""
        slot: cython.longlong = self._known.find(hash_block)
        return self._known.put(hash_block, 0) if slot < 0 else slot


@cython.cclass
class TimeToLive(Eviction):
    """Every hash block is kept for some seconds after its last use, then it leaves as under LRU."""

    @cython.exceptval(check=True)
    @cython.ccall
    def kept_until(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        return now + self._retention_s


@cython.cclass
class SessionAware(Eviction):
    """Hash blocks that no session will come back to leave first, in LRU order, then the others.

    ``holders`` of a known hash block: ended requests with it that others wait for; ``seen``: the latest of them.
    """

    _left: dict[int, int]
    """Requests still to come that wait for a request, by request."""
    _begun: set[int]
    _open: set[int]
    """Ended requests that others wait for."""

    def __init__(self, facts: EvictionFacts) -> None:
        Eviction.__init__(self, facts)
        self._left, self._begun, self._open = dict(facts.waiting), set(), set()

    @cython.cfunc
    def _claim(self, request: cython.longlong, claims: cython.longlong) -> None:
        """Add to the claims on the hash blocks of a request."""
        position: cython.longlong
        slot: cython.longlong
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.end):
            slot = self._slot(self._prompts.ids[position])
            self._known.holders[slot] += claims
            if claims > 0:
                self._known.seen[slot] = request

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        if not self._left.get(request):
            return ()
        self._open.add(request)
        self._claim(request, 1)
        return (request,)

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        returned = []
        for earlier in () if request in self._begun else self.facts.before.get(request, ()):
            self._left[earlier] -= 1
            if not self._left[earlier] and earlier in self._open:
                self._open.remove(earlier)
                returned.append(earlier)
                self._claim(earlier, -1)
        self._begun.add(request)
        return returned

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        slot: cython.longlong = self._slot(hash_block)
        return 1.0 if self._known.holders[slot] else 0.0


@cython.cclass
class PinUntilReturn(SessionAware):
    """Hash blocks of a session whose tool runs are kept until it comes back, at most some seconds; else LRU.

    Source: "Continuum: Efficient and Robust Multi-Turn LLM Agent Scheduling with KV Cache Time-to-Live" (2025,
    arXiv:2511.02230), with one time for all tools.
    """

    _until: dict[int, float]
    """End of the longest time for which the hash blocks of an ended request are kept."""

    def __init__(self, facts: EvictionFacts) -> None:
        SessionAware.__init__(self, facts)
        self._until = {}

    @cython.ccall
    def ends(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        self._until[request] = now + self._retention_s
        return SessionAware.ends(self, request, now)

    @cython.exceptval(check=True)
    @cython.ccall
    def kept_until(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        slot: cython.longlong = self._slot(hash_block)
        return self._until[self._known.seen[slot]] if self._known.holders[slot] else 0.0

    @cython.exceptval(check=True)
    @cython.ccall
    def waits(self, request: cython.longlong) -> cython.bint:
        return request not in self.facts.before

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        return now


@cython.cclass
class SmallestFirst(Eviction):
    """Hash blocks of the shortest prompts leave first; a shared one counts for the longest prompt that has it.

    ``blocks`` of a known hash block: that length.
    """

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        position: cython.longlong
        slot: cython.longlong
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.end):
            slot = self._slot(self._prompts.ids[position])
            self._known.blocks[slot] = max(self._known.blocks[slot], self._prompts.end - self._prompts.first)
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        slot: cython.longlong = self._slot(hash_block)
        return self._known.blocks[slot]


@cython.cclass
class LargestFirst(SmallestFirst):
    """Hash blocks at the end of the longest prefixes leave first. ``blocks`` of a known one: its position."""

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        position: cython.longlong
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.end):
            if self._known.find(self._prompts.ids[position]) < 0:
                self._known.put(self._prompts.ids[position], position - self._prompts.first)
        return ()

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        return -SmallestFirst.rank(self, hash_block, now)


@cython.cclass
class Belady(Eviction):
    """The hash block whose next use is furthest leaves first; requests come in the order of a reference run.

    Uses of all hash blocks are numbered from 1. ``blocks`` of a known hash block: its next use, 0 for none.

    Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5
    (1966), algorithm MIN.
    """

    _place: dict[int, int]
    """Place of a request in the order."""
    _begun: cython.longlong[::1]
    """1 at the places of requests that have begun."""
    _place_of: cython.longlong[::1]
    """Place of the request of each use."""
    _later: cython.longlong[::1]
    """Use of the same hash block after each use; 0 for none."""

    def __init__(self, facts: EvictionFacts) -> None:
        position: cython.longlong
        slot: cython.longlong
        place: cython.longlong
        uses: cython.longlong = 0
        Eviction.__init__(self, facts)
        self._place = {request: place for place, request in enumerate(facts.order)}
        self._begun = array("q", bytes(8 * max(1, len(facts.order))))
        for request in facts.order:
            self._prompts.open(request)
            uses += self._prompts.end - self._prompts.first
        self._place_of, self._later = array("q", bytes(8 * (uses + 1))), array("q", bytes(8 * (uses + 1)))
        for place in range(len(facts.order) - 1, -1, -1):
            self._prompts.open(facts.order[place])
            for position in range(self._prompts.first, self._prompts.end):
                slot = self._slot(self._prompts.ids[position])
                self._place_of[uses], self._later[uses] = place, self._known.blocks[slot]
                self._known.blocks[slot] = uses
                uses -= 1

    @cython.ccall
    def begins(self, request: cython.longlong, now: cython.double) -> Iterable[int]:
        if request in self._place:
            self._begun[self._place[request]] = 1
        return (request,)

    @cython.exceptval(check=True)
    @cython.ccall
    def rank(self, hash_block: cython.longlong, now: cython.double) -> cython.double:
        slot: cython.longlong = self._slot(hash_block)
        use: cython.longlong = self._known.blocks[slot]
        while use and self._begun[self._place_of[use]]:
            use = self._later[use]
        self._known.blocks[slot] = use
        return -self._place_of[use] if use else -INFINITE


@cython.final
@cython.cclass
class RankedSlots:
    """Slots in order of a key, with a linked list for each key and a heap of the keys.

    Lists are rings of nodes. Node ``2 slot`` is a slot, node ``2 number + 1`` the beginning of a list.
    """

    _keys: list[float]
    """Heap of the keys; a key whose list is empty leaves when it is the lowest."""
    _starts: dict[float, int]
    """Beginning of the list of each key."""
    _unused: list[int]
    _after: cython.longlong[::1]
    """Neighbours of each node; -1 for slots that are in no list."""
    _before: cython.longlong[::1]
    _latest: cython.longlong
    """Beginning of the list that was added to last, -1 for none, and its key."""
    _latest_key: cython.double
    _lowest: cython.longlong
    """Beginning of the list of the lowest key, -1 where it has to be looked up, and its key."""
    _lowest_key: cython.double

    def __init__(self) -> None:
        self._keys, self._starts, self._unused = [], {}, []
        self._after, self._before = array("q", [-1]) * 64, array("q", [-1]) * 64
        self._latest = self._lowest = -1
        self._latest_key = self._lowest_key = 0.0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def has(self, slot: cython.longlong) -> cython.bint:
        """True if a slot is in one of the lists."""
        return 2 * slot < len(self._after) and self._after[2 * slot] >= 0

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _start_of(self, key: cython.double) -> cython.longlong:
        """Beginning of the list of a key; a new one is empty."""
        start: cython.longlong = self._starts.get(key, -1)
        if start < 0:
            start = self._unused.pop() if self._unused else 2 * len(self._starts) + 1
            self._reach(start)
            self._after[start] = self._before[start] = start
            self._starts[key] = start
            heappush(self._keys, key)
            if key < self._lowest_key:
                self._lowest = -1
        return start

    @cython.cfunc
    def _reach(self, node: cython.longlong) -> None:
        while node >= len(self._after):
            more = array("q", [-1]) * len(self._after)
            self._after, self._before = array("q", bytes(self._after)) + more, array("q", bytes(self._before)) + more

    @cython.cfunc
    def add(self, slot: cython.longlong, key: cython.double) -> None:
        """Append a slot to the list of a key."""
        self._reach(2 * slot)
        if self._latest < 0 or key != self._latest_key:
            self._latest, self._latest_key = self._start_of(key), key
        last: cython.longlong = self._before[self._latest]
        self._before[2 * slot], self._after[2 * slot] = last, self._latest
        self._after[last] = self._before[self._latest] = 2 * slot

    @cython.cfunc
    def remove(self, slot: cython.longlong) -> None:
        """Take a slot out of its list."""
        before: cython.longlong = self._before[2 * slot]
        after: cython.longlong = self._after[2 * slot]
        self._after[before], self._before[after], self._after[2 * slot] = after, before, -1

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def first(self, limit: cython.double) -> cython.longlong:
        """First slot of the lowest key, if that is at most ``limit``; -1 if there is none."""
        while self._lowest < 0 or self._after[self._lowest] == self._lowest:
            if self._lowest >= 0:
                self._unused.append(self._starts.pop(heappop(self._keys)))
                if self._lowest == self._latest:
                    self._latest = -1
                self._lowest = -1
            if not self._keys:
                return -1
            self._lowest_key = self._keys[0]
            self._lowest = self._starts[self._keys[0]]
        return self._after[self._lowest] // 2 if self._lowest_key <= limit else -1


@cython.final
@cython.cclass
class EvictionOrder:
    """Unused hash blocks of a table, in the order in which they leave it under a policy other than LRU.

    Args:
        policy: the policy, an ``Eviction``.
        hashes: ``PrefixHashes`` of all requests.
        table: where the hash blocks are.
    """

    kept_blocks = cython.declare(cython.longlong, visibility="public")
    """KV blocks of the hash blocks that are kept."""
    changes: cython.longlong
    """Hash blocks that began or ceased to be kept so far."""
    _policy: Eviction
    _prompts: Prompts
    _table: HashBlocks
    _since: cython.double[::1]
    """Time of the last use of each slot."""
    _ranked: RankedSlots
    """Hash blocks that are not kept, by their rank."""
    _kept: RankedSlots
    """The others, by the end of their time."""

    def __init__(self, policy: Eviction, hashes: PrefixHashes, table: HashBlocks) -> None:
        self._policy, self._prompts, self._table, self._since = policy, Prompts(hashes), table, array("d")
        self._ranked, self._kept, self.kept_blocks = RankedSlots(), RankedSlots(), 0
        self.changes = 0

    @cython.cfunc
    def begins(self, request: cython.longlong, now: cython.double) -> None:
        """Pass on that a request begins."""
        self._rank_again(self._policy.begins(request, now), now)

    @cython.cfunc
    def ends(self, request: cython.longlong, now: cython.double) -> None:
        """Pass on that a request ends."""
        self._rank_again(self._policy.ends(request, now), now)

    @cython.cfunc
    def _rank_again(self, requests: Iterable[int], now: cython.double) -> None:
        """Rank hash blocks of requests again, the last one of each first."""
        slot: cython.longlong
        position: cython.longlong
        for request in requests:
            self._prompts.open(request)
            for position in range(self._prompts.end - 1, self._prompts.first - 1, -1):
                slot = self._table.find(self._prompts.ids[position])
                if slot >= 0 and (self._ranked.has(slot) or self._kept.has(slot)):
                    self.leave(slot)
                    self._place(slot, now)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def withheld(self, request: cython.longlong) -> cython.longlong:
        """KV blocks whose room a request may not take; those that it finds there among them."""
        return self.kept_blocks if self.kept_blocks and self._policy.waits(request) else 0

    @cython.cfunc
    def enter(self, slot: cython.longlong, now: cython.double) -> None:
        """Nobody uses the hash block of a slot from now on."""
        if slot >= len(self._since):
            self._since = array("d", bytes(self._since) + bytes(8 * self._table.capacity))
        self._since[slot] = now
        self._place(slot, now)

    @cython.cfunc
    def _place(self, slot: cython.longlong, now: cython.double) -> None:
        until: cython.double = self._policy.kept_until(self._table.hash_block[slot], self._since[slot])
        if until > now:
            self._kept.add(slot, until)
            self.kept_blocks += self._table.blocks[slot]
            self.changes += 1
        else:
            self._ranked.add(slot, self._policy.rank(self._table.hash_block[slot], self._since[slot]))

    @cython.cfunc
    def leave(self, slot: cython.longlong) -> None:
        """A request uses the hash block of a slot, or it has been evicted."""
        if self._kept.has(slot):
            self._kept.remove(slot)
            self.kept_blocks -= self._table.blocks[slot]
            self.changes += 1
        else:
            self._ranked.remove(slot)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def kept(self, slot: cython.longlong) -> cython.longlong:
        """KV blocks of a slot that is kept; 0 if it is not."""
        return self._table.blocks[slot] if self._kept.has(slot) else 0

    @cython.cfunc
    def expire(self, now: cython.double) -> None:
        """Keep no longer what has been kept up to its time."""
        slot: cython.longlong = self._kept.first(now)
        while slot >= 0:
            self.leave(slot)
            self._ranked.add(slot, self._policy.rank(self._table.hash_block[slot], self._since[slot]))
            slot = self._kept.first(now)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def first(self, now: cython.double) -> cython.longlong:
        """Slot that leaves first: kept ones last, by the end of their time."""
        self.expire(now)
        slot: cython.longlong = self._ranked.first(INFINITE)
        return self._kept.first(INFINITE) if slot < 0 else slot
