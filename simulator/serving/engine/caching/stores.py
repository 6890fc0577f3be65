"""KV outside the chips: lanes that carry it, and stores that keep the hash blocks of prompts."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from simulator.serving.engine.caching.eviction import Eviction, EvictionOrder
from simulator.serving.engine.common import _on_grid, cython
from simulator.serving.engine.hash_blocks import HashBlocks

if TYPE_CHECKING:
    from simulator.serving.kv_stores import StoreSpace
    from traces import PrefixHashes


@cython.final
@cython.cclass
class Lane:
    """Path for KV. A copy takes ``latency + bytes / bandwidth`` and waits for the copies before it.

    Args:
        latency_s: seconds before the first byte of a copy.
        bytes_per_s: bandwidth of all workers together.
        workers: copies that proceed at the same time, each at its share of the bandwidth.
    """

    latency_s = cython.declare(cython.double, visibility="public")
    bytes_per_s = cython.declare(cython.double, visibility="public")
    booked_bytes = cython.declare(cython.double, visibility="public")
    """Bytes of all copies so far."""
    busy_s = cython.declare(cython.double, visibility="public")
    """Seconds of all copies so far, as the mean over workers."""
    _each: cython.double
    """Bandwidth of one worker."""
    _free_s: cython.double[::1]
    """Time at which each worker has finished its copies."""
    _gathered: cython.double
    """Bytes of the copy that the next step waits for."""

    def __init__(self, latency_s: float = 0.0, bytes_per_s: float = float("inf"), workers: int = 1) -> None:
        self.latency_s, self.bytes_per_s = latency_s, bytes_per_s
        self._each = bytes_per_s / workers
        self._free_s = array("d", [0.0]) * workers
        self.booked_bytes = self.busy_s = self._gathered = 0.0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, size: cython.double) -> cython.double:
        """Seconds of a copy of ``size`` bytes alone; 0 without bytes."""
        return self.latency_s + size / self._each if size > 0.0 else 0.0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _idlest(self) -> cython.longlong:
        """Worker that is free first."""
        place: cython.longlong
        first: cython.longlong = 0
        for place in range(1, len(self._free_s)):
            if self._free_s[place] < self._free_s[first]:
                first = place
        return first

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def wait_s(self, now: cython.double) -> cython.double:
        """Seconds from ``now`` until a copy can begin."""
        return max(0.0, self._free_s[self._idlest()] - now)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def occupy(self, now: cython.double, seconds: cython.double, size: cython.double) -> cython.double:
        """Begin a copy that takes ``seconds`` as soon after ``now`` as a worker is free; returns its end."""
        worker: cython.longlong = self._idlest()
        self._free_s[worker] = max(now, self._free_s[worker]) + seconds
        self.booked_bytes += size
        self.busy_s += seconds / len(self._free_s)
        return self._free_s[worker]

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def stream(self, now: cython.double, size: cython.double) -> cython.double:
        """Begin one of many small copies, whose latencies overlap with other copies; returns the time of arrival."""
        return self.occupy(now, size / self._each, size) + self.latency_s

    @cython.ccall
    def gather(self, size: cython.double) -> None:
        """Add bytes to the copy that the next step waits for."""
        self._gathered += size

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def taken(self) -> cython.double:
        """Take the gathered bytes, which lanes of stages carry."""
        size: cython.double = self._gathered
        self.booked_bytes += size
        self._gathered = 0.0
        return size

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def copied_s(self, now: cython.double) -> cython.double:
        """Begin the copy of all gathered bytes; returns the seconds from ``now`` to its end, 0 without bytes."""
        if not self._gathered:
            return 0.0
        wait_s: cython.double = self.wait_s(now)
        seconds: cython.double = _on_grid(self.seconds(self._gathered))
        self.occupy(now, seconds, self._gathered)
        self._gathered = 0.0
        return wait_s + seconds


@cython.final
@cython.cclass
class Store:
    """Hash blocks outside the chips, in order of use. A block can be read once its write has landed.

    Args:
        num_blocks: capacity in KV blocks.
        eviction: policy, and the hash blocks of all requests; None: LRU.
    """

    _capacity: cython.longlong
    _hash_blocks: HashBlocks
    _landed_s: cython.double[::1]
    """Time at which the write of each slot has landed."""
    used_blocks = cython.declare(cython.longlong, visibility="public")
    peak_blocks = cython.declare(cython.longlong, visibility="public")
    evicted_blocks: cython.longlong
    changes: cython.longlong
    """Hash blocks that came or left so far."""
    landed_s: cython.double
    """Time at which the latest write has landed."""
    order: EvictionOrder | None

    def __init__(self, num_blocks: int, eviction: tuple[Eviction, PrefixHashes] | None = None) -> None:
        self._capacity = num_blocks
        self._hash_blocks = HashBlocks()
        self.order = None if eviction is None else EvictionOrder(*eviction, self._hash_blocks)
        self._landed_s = array("d", bytes(8 * self._hash_blocks.capacity))
        self.used_blocks = self.peak_blocks = self.evicted_blocks = self.changes = 0
        self.landed_s = 0.0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def held(self, hash_block: cython.longlong, now: cython.double) -> cython.longlong:
        """KV blocks of a hash block that can be read ``now``; 0 if it is not here, or its write has not landed."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        return self._hash_blocks.blocks[slot] if slot >= 0 and self._landed_s[slot] <= now else 0

    @cython.exceptval(-2, check=True)
    @cython.ccall
    def visit(self, hash_block: cython.longlong, walk: cython.longlong, now: cython.double) -> cython.longlong:
        """KV blocks that ``held`` gives, along a prompt; -1 if this walk has been here before."""
        blocks: cython.longlong = self.held(hash_block, now)
        if blocks:
            slot: cython.longlong = self._hash_blocks.find(hash_block)
            if self._hash_blocks.seen[slot] == walk:
                return -1
            self._hash_blocks.seen[slot] = walk
        return blocks

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def use(self, hash_block: cython.longlong, now: cython.double) -> cython.longlong:
        """Make a hash block the most recently used; returns its KV blocks, 0 if it is not here."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0:
            return 0
        self._hash_blocks.step_out(slot)
        self._hash_blocks.line_up(slot)
        if self.order is not None:
            self.order.leave(slot)
            self.order.enter(slot, now)
        return self._hash_blocks.blocks[slot]

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def lacks(self, blocks: cython.longlong) -> cython.bint:
        """True if KV blocks fit only once others are evicted."""
        return self.used_blocks + blocks > self._capacity

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def fits(self, blocks: cython.longlong) -> cython.bint:
        """True if KV blocks fit in the empty store."""
        return blocks <= self._capacity

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def victim(self, now: cython.double) -> cython.longlong:
        """Slot of the hash block that leaves first; -1 if all are kept. By default it is the least recently used."""
        if self.order is None:
            return self._hash_blocks.oldest
        slot: cython.longlong = self.order.first(now)
        return -1 if self.order.kept(slot) else slot

    @cython.cfunc
    def evict(self, slot: cython.longlong) -> cython.longlong:
        """Evict the hash block of a slot; returns it, its KV blocks are ``evicted_blocks``."""
        hash_block: cython.longlong = self._hash_blocks.hash_block[slot]
        self.evicted_blocks = self._hash_blocks.blocks[slot]
        self.used_blocks -= self.evicted_blocks
        if self.order is not None:
            self.order.leave(slot)
        self._hash_blocks.step_out(slot)
        self._hash_blocks.remove(slot)
        self.changes += 1
        return hash_block

    @cython.ccall
    def put(
        self, hash_block: cython.longlong, blocks: cython.longlong, landed_s: cython.double, now: cython.double
    ) -> None:
        """Add a hash block that is not here, and for which there is room."""
        slot: cython.longlong = self._hash_blocks.put(hash_block, blocks)
        if self._hash_blocks.capacity > len(self._landed_s):
            self._landed_s = array("d", bytes(self._landed_s) + bytes(8 * len(self._landed_s)))
        self._landed_s[slot] = landed_s
        self.landed_s = max(self.landed_s, landed_s)
        self.changes += 1
        self._hash_blocks.line_up(slot)
        if self.order is not None:
            self.order.enter(slot, now)
        self.used_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)

    def lose_unwritten(self, now: float) -> None:
        """Drop the hash blocks whose writes have not landed: their server has failed."""
        slot: cython.longlong = self._hash_blocks.oldest
        while slot >= 0:
            after: cython.longlong = self._hash_blocks.after[slot]
            if self._landed_s[slot] > now:
                self.evict(slot)
            slot = after


@cython.final
@cython.cclass
class Tier:
    """Access of one prefix cache to a store: the lanes between them, and what has been copied.

    A hash block that comes back to the chips stays in the store too, so that its next eviction copies nothing (vLLM's
    ``OffloadingConnector`` keeps blocks on the CPU likewise).

    Args:
        store: where the hash blocks are.
        read: lane towards the chips.
        write: lane of the other direction.
        space: size and rules of the store, a ``StoreSpace``.
        own_read: the server's lane to a store that servers share; None if there is no further lane.
        own_write: the same lane in the other direction.
    """

    store = cython.declare(Store, visibility="public")
    name = cython.declare(object, visibility="public")
    read = cython.declare(Lane, visibility="public")
    write = cython.declare(Lane, visibility="public")
    own_read = cython.declare(object, visibility="public")
    own_write = cython.declare(object, visibility="public")
    background = cython.declare(cython.bint, visibility="public")
    """True if requests wait for their copies outside the batch."""
    computed = cython.declare(cython.bint, visibility="public")
    """True if blocks are saved when they have been computed, not when the tier above evicts them."""
    picky: cython.bint
    """True if a prefix is copied only where that takes less time than to compute it."""
    below = cython.declare(object, visibility="public")
    """Tier that takes what this store evicts; None if it is lost."""
    block_bytes = cython.declare(cython.double, visibility="public")
    written_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied to the store so far."""
    read_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied back to the chips so far."""

    def __init__(
        self,
        store: Store,
        read: Lane,
        write: Lane,
        space: StoreSpace,
        own_read: Lane | None = None,
        own_write: Lane | None = None,
    ) -> None:
        self.store, self.read, self.write, self.own_read, self.own_write = store, read, write, own_read, own_write
        self.name, self.block_bytes = space.name, space.block_bytes
        self.background, self.computed, self.picky = space.background, space.saves == "computed", space.picky
        self.below = None
        self.written_blocks = self.read_blocks = 0

    @cython.ccall
    def save(self, hash_block: cython.longlong, blocks: cython.longlong, now: cython.double) -> None:
        """Copy a hash block to the store. Not if it is there, or too large, or all that is there is kept."""
        evicted: cython.longlong
        slot: cython.longlong
        size: cython.double = blocks * self.block_bytes
        if self.store.use(hash_block, now) or not self.store.fits(blocks):
            return
        while self.store.lacks(blocks):
            slot = self.store.victim(now)
            if slot < 0:
                return
            evicted = self.store.evict(slot)
            if self.below is not None:
                self.below.save(evicted, self.store.evicted_blocks, now)
        landed_s: cython.double = self.write.stream(now, size)
        if self.own_write is not None:
            landed_s = max(landed_s, self.own_write.stream(now, size))
        self.store.put(hash_block, blocks, landed_s, now)
        self.written_blocks += blocks

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def load(self, hash_block: cython.longlong, now: cython.double) -> cython.longlong:
        """Copy a hash block to the chips beside the next step; returns its KV blocks."""
        blocks: cython.longlong = self.store.use(hash_block, now)
        self.read.gather(blocks * self.block_bytes)
        self.read_blocks += blocks
        return blocks

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def fetched_s(self, now: cython.double, blocks: cython.longlong, book: cython.bint) -> cython.double:
        """End of a copy of KV blocks to the chips that is requested ``now``; ``book``: the lanes carry it."""
        size: cython.double = blocks * self.block_bytes
        end: cython.double = now
        for lane in (self.read, self.own_read):
            if lane is not None:
                seconds: cython.double = _on_grid(lane.seconds(size))
                end = max(end, lane.occupy(now, seconds, size) if book else now + lane.wait_s(now) + seconds)
        if book:
            self.read_blocks += blocks
        return end


@cython.exceptval(-1, check=True)
@cython.cfunc
def _exposed_s(copy_s: cython.double, step_s: cython.double, first_share: cython.double) -> cython.double:
    """Seconds by which a copy outlasts the step that overlaps it: ``max(t / L, t - T (L - 1) / L)``.

    The KV of ``L`` layers arrives layer by layer, each before its layer is computed (SGLang HiCache, "layer-wise
    overlapping"; LMCache's layerwise retrieval): only the first layer's copy is never hidden.

    Args:
        copy_s: seconds of the copy, t.
        step_s: seconds of the step without the copy, T.
        first_share: share of the copy before the first layer can begin, 1 / L.
    """
    return _on_grid(max(copy_s * first_share, copy_s - step_s * (1.0 - first_share))) if copy_s > 0.0 else 0.0


@cython.final
@cython.cclass
class Copies:
    """Copies that the steps of one replica overlap or wait for: of swapped sequences, and of prefixes in stores.

    Args:
        clock: present time of the replica, as an array of one element that its prefix caches read.
        reads: (lane, share of a copy that nothing hides) of each store whose copies a step overlaps.
        swap: lane of preempted sequences; None if they are recomputed.
        swap_block_bytes: bytes of one swapped KV block.
        stages: pipeline stages, each with a lane of its own.
    """

    clock: cython.double[::1]
    _reads: list[tuple[Lane, float]]
    _swap: Lane | None
    _swap_block_bytes: cython.double
    _staged: list[tuple[Lane, float, list[Lane]]]

    def __init__(
        self,
        clock: array[float],
        reads: list[tuple[Lane, float]],
        swap: Lane | None = None,
        swap_block_bytes: float = 0.0,
        stages: int = 1,
    ) -> None:
        self.clock, self._reads, self._swap, self._swap_block_bytes = clock, reads, swap, swap_block_bytes
        self._staged = [
            (lane, share, [Lane(lane.latency_s, lane.bytes_per_s / stages) for _ in range(stages)])
            for lane, share in reads
        ]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def swaps(self) -> cython.bint:
        """True if preempted sequences are swapped."""
        return self._swap is not None

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def exposed_s(
        self, now: cython.double, step_s: cython.double, blocks_out: cython.longlong, blocks_in: cython.longlong
    ) -> cython.double:
        """Seconds by which copies lengthen a step that begins ``now``.

        Preempted sequences are copied before the step's kernels, one direction after the other, as in vLLM V0.
        """
        lane: Lane
        share: cython.double
        copy_s: cython.double = 0.0
        for lane, share in self._reads:
            copy_s = max(copy_s, _exposed_s(lane.copied_s(now), step_s, share))
        if self._swap is not None:
            lane = self._swap
            size_out: cython.double = blocks_out * self._swap_block_bytes
            size_in: cython.double = blocks_in * self._swap_block_bytes
            swap_s: cython.double = _on_grid(lane.seconds(size_out) + lane.seconds(size_in))
            lane.occupy(now, swap_s, size_out + size_in)
            copy_s += swap_s
        return copy_s

    @cython.cfunc
    def send(self, now: cython.double) -> list[tuple[float, float]]:
        """Begin the gathered copies of all stages; returns their end and unhidden share by store and stage."""
        lane: Lane
        stage: Lane
        size: cython.double
        ends = []
        for lane, share, stages in self._staged:
            size = lane.taken()
            part: cython.double = size / len(stages)
            seconds: cython.double = _on_grid(stages[0].seconds(part))
            lane.busy_s += seconds
            for stage in stages:
                ends.append((stage.occupy(now, seconds, part) if size else 0.0, share))
        return ends

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def staged_s(
        self,
        ends: list[tuple[float, float]],
        stage: cython.longlong,
        begin: cython.double,
        seconds: cython.double,
    ) -> cython.double:
        """Seconds by which the copies of one stage lengthen its work, which begins at ``begin``."""
        place: cython.longlong
        copy_s: cython.double = 0.0
        stages: cython.longlong = len(ends) // len(self._staged) if self._staged else 1
        for place in range(stage, len(ends), stages):
            copy_s = max(copy_s, _exposed_s(max(0.0, ends[place][0] - begin), seconds, ends[place][1]))
        return copy_s
