"""The prefix cache of a replica, with stores behind it."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from simulator.serving.engine.caching.eviction import Eviction, EvictionOrder
from simulator.serving.engine.caching.stores import Tier
from simulator.serving.engine.common import cython
from simulator.serving.engine.hash_blocks import HashBlocks, Prompts
from simulator.serving.engine.prefix_index import HolderIndex

if TYPE_CHECKING:
    from traces import PrefixHashes


@cython.cclass
class NoPrefixCache:
    """Prefix cache that caches nothing."""

    shared_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that several requests count as their own: a hash block held by r requests counts r - 1 times."""
    idle_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that are cached and that no request uses."""
    tier_tokens = cython.declare(object, visibility="public")
    """Tokens by tier among those that the latest match spares; None if the chip holds them all."""
    slow = cython.declare(cython.bint, visibility="public")
    """True if the latest match needs a copy that requests wait for outside the batch."""
    withheld = cython.declare(cython.longlong, visibility="public")
    """Blocks, kept by the eviction policy, that the request of the latest match may not take the room of."""

    def __init__(self) -> None:
        self.shared_blocks = self.idle_blocks = self.withheld = 0
        self.tier_tokens, self.slow = None, False

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[int, int, int]:
        """Nothing is found."""
        return 0, 0, 0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def spared(self, request: cython.longlong, whole: cython.longlong) -> cython.longlong:
        """Nothing is spared."""
        return 0

    @cython.ccall
    def hold(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing to hold."""

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def add(
        self, request: cython.longlong, hash_blocks: cython.longlong, computed_tokens: cython.longlong
    ) -> cython.longlong:
        """Nothing is kept."""
        return 0

    @cython.ccall
    def release(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing was held."""

    @cython.ccall
    def ends(self, request: cython.longlong) -> None:
        """Nothing to rank."""

    @cython.ccall
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing is kept."""

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Nothing to evict."""

    @cython.ccall
    def match_chip(self, request: cython.longlong, tokens: cython.longlong) -> tuple[int, int, int]:
        """Nothing is found."""
        return 0, 0, 0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def fetch(self, request: cython.longlong, hash_blocks: cython.longlong) -> cython.double:
        """Nothing is anywhere else."""
        return 0.0

    @cython.ccall
    def save(self) -> None:
        """Nothing to save."""


@cython.cclass
class PrefixCache(NoPrefixCache):
    """HashBlocks of cached prompt, shared by the running requests and kept in an order when none of them needs them.

    A hash block is one hash of the trace: ``block_tokens`` prompt tokens (fewer at the end of a prompt), in whole
    engine blocks. Blocks that no request uses are evicted, by default in LRU order, when running requests need room; a
    request's later hash blocks before its earlier ones, as vLLM frees blocks (tail first). A hash block leaves the
    cache as a whole. What a request holds is always the start of its hash blocks, so their number says which.

    Args:
        hashes: prefix hashes of all requests.
        block_size: tokens per engine block; divides ``hashes.block_tokens``.
        input_tokens: prompt lengths of all requests.
        output_tokens: answer lengths, where ``hashes`` go on through the answers and cover whole hash blocks alone;
            None where they end with the prompt.
        tiers: stores behind the chips, in order.
        clock: present time, as an array of one element.
        recompute_s: seconds per token to compute a prompt again, and how many more for each token before it.
        index: index of the whole hash blocks held here; None without such a router.
        replica: number of the replica, for the index.
        page_tokens: tokens after which a recurrent state is kept, the only places where a hit may end; 0 = those of a
            block.
        eviction: policy of eviction, and the hash blocks of all requests; None: LRU.
        window_blocks: KV blocks of layers with a window that stay cached for each block computed. Nothing is found by
            them alone, but they age the others in LRU order; other policies evict them at once.
        window_room: room for windows of running requests, as a share of the KV blocks. With ``window_blocks``, idle
            blocks fill the share of it that free blocks are of all.
    """

    _order: EvictionOrder | None
    _orders: list[EvictionOrder]
    """Orders of eviction here and in the stores, but for LRU."""
    _prompts: Prompts
    _hash_blocks: HashBlocks
    _tiers: list[Tier]
    _reach: cython.longlong
    """Number of tiers that a walk looks at."""
    _evicts_to: Tier | None
    _saves: cython.bint
    """True if a tier keeps what has been computed."""
    _unsaved: list[tuple[int, int]]
    """(hash block, KV blocks) that have been computed since the last step ended."""
    _clock: cython.double[::1]
    _recompute_s: tuple[float, float]
    _tier_blocks: cython.longlong[::1]
    """KV blocks of each tier in the latest lookup."""
    _latest_tier: cython.longlong
    _index: HolderIndex | None
    _replica: cython.longlong
    _input_tokens: cython.longlong[::1]
    _output_tokens: cython.longlong[::1]
    _answers: cython.bint
    _block_size: cython.longlong
    _page_tokens: cython.longlong
    _hash_block_tokens: cython.longlong
    _whole: cython.longlong
    """KV blocks per full hash block."""
    _window_blocks: cython.double
    _window_room: cython.double
    _owed: cython.double
    """Fraction of a block that windows have passed and that no whole block stands for yet."""
    _passed: cython.longlong
    """Number of hash blocks that windows have passed so far; its negative names the latest."""
    _passed_of: dict[int, int]
    """Hash blocks of what windows have passed, by name, for the index."""
    _walks: cython.longlong
    _matched: cython.longlong
    """Counts of the latest lookup: hash blocks found; KV blocks: all, on the chip, in use there; hash blocks there."""
    _blocks: cython.longlong
    _here: cython.longlong
    _in_use: cython.longlong
    _changes: cython.longlong
    """Changes on the chip so far that a lookup may notice."""
    _seen_changes: cython.longlong
    """Latest lookup of ``_match``: changes here, in the order and in stores; request, tokens, time and result."""
    _seen_request: cython.longlong
    _seen_tokens: cython.longlong
    _seen_s: cython.double
    _seen_spared: cython.longlong
    _kept_here: cython.longlong
    """KV blocks on the chip that the latest lookup found and the policy keeps."""
    _chip_hash_blocks: cython.longlong

    def __init__(
        self,
        hashes: Any,
        block_size: int,
        input_tokens: Any,
        output_tokens: Any = None,
        tiers: tuple[Tier, ...] = (),
        index: HolderIndex | None = None,
        replica: int = 0,
        page_tokens: int = 0,
        clock: array[float] | None = None,
        recompute_s: tuple[float, float] = (0.0, 0.0),
        first_walk: int = 0,
        eviction: tuple[Eviction, PrefixHashes] | None = None,
        window_blocks: float = 0.0,
        window_room: float = 0.0,
    ) -> None:
        tier: Tier
        NoPrefixCache.__init__(self)
        self._prompts = Prompts(hashes)
        self._hash_blocks = HashBlocks()
        self._tiers, self._index, self._replica = list(tiers), index, replica
        self._reach = len(self._tiers)
        self._order = None if eviction is None else EvictionOrder(*eviction, self._hash_blocks)
        self._orders = [] if self._order is None else [self._order]
        for tier in self._tiers:
            if tier.store.order is not None:
                self._orders.append(tier.store.order)
        self._evicts_to = None if not self._tiers or self._tiers[0].computed else self._tiers[0]
        for tier, below in pairwise(self._tiers):
            tier.below = None if below.computed else below
        self._saves = True in [tier.computed for tier in self._tiers]
        self._unsaved = []
        self._clock = array("d", [0.0]) if clock is None else clock
        self._recompute_s = recompute_s
        self._tier_blocks = array("q", [0]) * max(1, self._reach)
        self._latest_tier = self._chip_hash_blocks = 0
        self._input_tokens = input_tokens
        self._answers = output_tokens is not None
        self._output_tokens = input_tokens if output_tokens is None else output_tokens
        self._block_size, self._hash_block_tokens = block_size, hashes.block_tokens
        self._page_tokens = page_tokens or block_size
        self._whole = self._hash_block_tokens // self._block_size
        self._walks, self._passed, self._passed_of = first_walk, 0, {}
        self._window_blocks, self._owed = (window_blocks if eviction is None else 0.0), 0.0
        self._window_room = window_room if self._window_blocks else 0.0
        self._matched = self._blocks = self._here = self._in_use = self._kept_here = self._changes = 0
        self._seen_request = self._seen_tokens = self._seen_changes = self._seen_spared = -1
        self._seen_s = 0.0

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[int, int, int]:
        """The cached start of a request's prompt; hash blocks in stores continue the start that is on the chip.

        Args:
            request: index of the request.
            tokens: tokens it has to put in the cache; the last of them is always computed, as its logits are needed.

        Returns:
            HashBlocks found, tokens they spare, and how many of their blocks running requests hold already.
        """
        spared: cython.longlong = self._match(request, tokens)
        stored: cython.longlong = spared - self._here * self._block_size
        self.tier_tokens, self.slow = None, False
        if stored > 0:
            if not self._pays(spared):
                return self.match_chip(request, tokens)
            self._split(stored)
        self._withhold(request)
        return self._matched, spared, self._in_use

    @cython.ccall
    def match_chip(self, request: cython.longlong, tokens: cython.longlong) -> tuple[int, int, int]:
        """The cached start of a prompt on the chip alone, with the arguments and the result of ``match``."""
        self._reach, self._seen_request = 0, -1
        spared: cython.longlong = self._match(request, tokens)
        self._reach, self._seen_request = len(self._tiers), -1
        self.tier_tokens, self.slow = None, False
        self._withhold(request)
        return self._matched, spared, self._in_use

    @cython.cfunc
    def _withhold(self, request: cython.longlong) -> None:
        """Count the blocks that are kept, without those that the latest match found."""
        if self._order is not None:
            self.withheld = self._order.withheld(request)
            if self.withheld:
                self.withheld -= self._kept_here

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _match(self, request: cython.longlong, tokens: cython.longlong) -> cython.longlong:
        """Tokens that ``match`` spares. A request that waits is not looked up again before something changes."""
        tier: Tier
        changes: cython.longlong = self._changes
        landed_s: cython.double = 0.0
        for tier in self._tiers:
            changes += tier.store.changes
            landed_s = max(landed_s, tier.store.landed_s)
        if self._order is not None:
            self._order.expire(self._clock[0])
            changes += self._order.changes
        same: cython.bint = changes == self._seen_changes and landed_s <= self._seen_s
        if same and request == self._seen_request and tokens == self._seen_tokens:
            return self._seen_spared
        self._walk(request, 0, self._input_tokens[request] // self._block_size)
        spared: cython.longlong = self._spared_tokens(tokens)
        if self._page_tokens > self._block_size:  # tokens behind the last kept state are computed again in other blocks
            self._walk(request, 0, -(-spared // self._block_size))
        self._seen_changes, self._seen_request, self._seen_tokens = changes, request, tokens
        self._seen_s, self._seen_spared = self._clock[0], spared
        return spared

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _pays(self, spared: cython.longlong) -> cython.bint:
        """True if the stored part of the first ``spared`` tokens is to be copied rather than computed again."""
        tier: Tier
        place: cython.longlong
        picky: cython.bint = False
        now: cython.double = self._clock[0]
        end: cython.double = now
        for place in range(len(self._tiers)):
            tier = cython.cast(Tier, self._tiers[place])
            if self._tier_blocks[place]:
                picky |= tier.picky
                end = max(end, tier.fetched_s(now, self._tier_blocks[place], False))
        first: cython.double = self._here * self._block_size
        each_s, deeper_s = self._recompute_s
        return not picky or end - now < (spared - first) * (each_s + deeper_s * (spared + first) / 2.0)

    @cython.cfunc
    def _split(self, stored: cython.longlong) -> None:
        """Divide ``stored`` tokens of the latest match among the tiers; what a match leaves out is of the last one."""
        tier: Tier
        place: cython.longlong
        tokens = [self._block_size * blocks for blocks in self._tier_blocks]
        beyond: cython.longlong = sum(tokens) - stored
        tokens[self._latest_tier] = max(0, tokens[self._latest_tier] - beyond)
        self.tier_tokens = {}
        for place in range(len(self._tiers)):
            tier = cython.cast(Tier, self._tiers[place])
            self.slow |= tier.background and self._tier_blocks[place] > 0
            self.tier_tokens[tier.name] = tokens[place]

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def spared(self, request: cython.longlong, whole: cython.longlong) -> cython.longlong:
        """Tokens that ``match`` spares a whole prompt, given its leading hash blocks on the chip."""
        prompt: cython.longlong = self._input_tokens[request]
        prompt_blocks: cython.longlong = prompt // self._block_size
        self._walk(request, min(whole, prompt_blocks // self._whole), prompt_blocks)
        return self._spared_tokens(prompt)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _spared_tokens(self, tokens: cython.longlong) -> cython.longlong:
        page: cython.longlong = self._page_tokens  # at whose end a recurrent state is kept
        return min(self._blocks * self._block_size // page, (tokens - 1) // page) * page

    @cython.cfunc
    def _walk(self, request: cython.longlong, whole: cython.longlong, most: cython.longlong) -> None:
        """Find the leading cached hash blocks of a request, up to ``most`` engine blocks; the first ``whole`` are known
        hits."""
        position: cython.longlong
        earlier: cython.longlong
        slot: cython.longlong
        hash_block: cython.longlong
        size: cython.longlong
        prompts: Prompts = self._prompts
        table: HashBlocks = self._hash_blocks
        order: EvictionOrder | None = self._order
        prompts.open(request)
        prompt_blocks: cython.longlong = self._input_tokens[request] // self._block_size
        self._walks += 1
        self._seen_request = -1
        for position in range(self._reach):
            self._tier_blocks[position] = 0
        self._matched = self._chip_hash_blocks = whole
        self._blocks = self._here = whole * self._whole
        self._in_use = self._kept_here = 0
        for position in range(prompts.first + whole, prompts.end):
            if self._blocks >= most:
                break
            hash_block = prompts.ids[position]
            slot = table.find(hash_block)
            if slot < 0:
                size = self._stored(hash_block)
            elif self._here < self._blocks or table.seen[slot] == self._walks:
                break
            else:
                table.seen[slot] = self._walks
                size = table.blocks[slot]
            if not size or self._blocks + size > prompt_blocks:
                break  # the same hash for prompts that differ in length: other tokens
            for earlier in range(prompts.first, prompts.first + whole):
                if prompts.ids[earlier] == hash_block:
                    return
            self._blocks += size
            self._matched += 1
            if slot >= 0:
                self._here += size
                self._chip_hash_blocks += 1
                if table.holders[slot]:
                    self._in_use += size
                elif order is not None:
                    self._kept_here += order.kept(slot)
            else:
                self._tier_blocks[self._latest_tier] += size

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _stored(self, hash_block: cython.longlong) -> cython.longlong:
        """KV blocks of a hash block in the first store that holds it; 0 if none does, or a prompt has it twice."""
        tier: Tier
        place: cython.longlong
        blocks: cython.longlong
        for place in range(self._reach):
            tier = cython.cast(Tier, self._tiers[place])
            blocks = tier.store.visit(hash_block, self._walks, self._clock[0])
            if blocks:
                self._latest_tier = place
                return max(0, blocks)
        return 0

    @cython.cfunc
    def _tier_of(self, hash_block: cython.longlong) -> Tier:
        """The first tier that holds a hash block."""
        tier: Tier
        for tier in self._tiers:
            if tier.store.held(hash_block, self._clock[0]):
                return tier
        raise AssertionError("a hash block has left its store since it was found")

    @cython.cfunc
    def _keep_unit(self, hash_block: cython.longlong, blocks: cython.longlong) -> None:
        """Add a hash block on the chip that one request holds."""
        slot: cython.longlong = self._hash_blocks.put(hash_block, blocks)
        self._hash_blocks.holders[slot] = 1
        self._changes += 1
        if self._index is not None and blocks == self._whole:
            self._index.add(hash_block, self._replica)

    @cython.cfunc
    def _keep_passed(self, hash_block: cython.longlong, passed: cython.double) -> None:
        """Add KV blocks that windows have passed in a hash block, which nobody uses.

        Source: vLLM's ``SlidingWindowManager``, which frees them at the end of the LRU list under their hashes.
        """
        self._owed += passed
        blocks: cython.longlong = int(self._owed)
        self._owed -= blocks
        self._passed += 1
        if self._index is not None:
            self._passed_of[-self._passed] = hash_block
        self._hash_blocks.line_up(self._hash_blocks.put(-self._passed, blocks))
        self.idle_blocks += blocks

    @cython.ccall
    def hold(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Let a request use cached hash blocks. Hash blocks in stores are copied to blocks that the request counts as
        its own."""
        position: cython.longlong
        slot: cython.longlong
        blocks: cython.longlong
        tier: Tier
        order: EvictionOrder
        held: HashBlocks = self._hash_blocks
        self._changes += 1
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.first + hash_blocks):
            slot = held.find(self._prompts.ids[position])
            if slot < 0:
                blocks = self._tier_of(self._prompts.ids[position]).load(self._prompts.ids[position], self._clock[0])
                self._keep_unit(self._prompts.ids[position], blocks)
                continue
            if self._saves:  # what the chip serves is used in the stores that hold it too (vLLM's ``manager.touch``)
                for tier in self._tiers:
                    if tier.computed:
                        tier.store.use(self._prompts.ids[position], self._clock[0])
            if held.holders[slot]:
                self.shared_blocks += held.blocks[slot]
            else:
                held.step_out(slot)
                if self._order is not None:
                    self._order.leave(slot)
                self.idle_blocks -= held.blocks[slot]
            held.holders[slot] += 1
        for order in self._orders:
            order.begins(request, self._clock[0])

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def fetch(self, request: cython.longlong, hash_blocks: cython.longlong) -> cython.double:
        """Begin to copy the stored part of the hash blocks that the latest match found; returns when it is here."""
        tier: Tier
        position: cython.longlong
        place: cython.longlong
        now: cython.double = self._clock[0]
        end: cython.double = now
        self._prompts.open(request)
        for position in range(self._prompts.first + self._chip_hash_blocks, self._prompts.first + hash_blocks):
            self._tier_of(self._prompts.ids[position]).store.use(self._prompts.ids[position], now)
        for place in range(len(self._tiers)):
            tier = cython.cast(Tier, self._tiers[place])
            if self._tier_blocks[place]:
                end = max(end, tier.fetched_s(now, self._tier_blocks[place], True))
        return end

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def add(
        self, request: cython.longlong, hash_blocks: cython.longlong, computed_tokens: cython.longlong
    ) -> cython.longlong:
        """Share a prompt's hash blocks that are complete once ``computed_tokens`` tokens are in the cache.

        Args:
            request: index of the request.
            hash blocks: hash blocks it holds so far.
            computed_tokens: tokens of the request in the cache.

        Returns:
            Hash blocks that it holds now. A block that another request has put in the cache meanwhile stays a private
            copy, and so does everything after it.
        """
        prompt: cython.longlong = self._input_tokens[request]
        complete: cython.longlong = min(prompt, computed_tokens)
        if self._answers or complete < prompt:
            complete = complete // self._hash_block_tokens * self._hash_block_tokens
        return self._keep(request, hash_blocks, complete)

    @cython.ccall
    def ends(self, request: cython.longlong) -> None:
        """Let the policies of eviction know that a request has ended."""
        order: EvictionOrder
        for order in self._orders:
            order.ends(request, self._clock[0])

    @cython.ccall
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """End a request: keep its answer as far as hashes know it, without the last token."""
        if self._answers:
            computed: cython.longlong = self._input_tokens[request] + self._output_tokens[request] - 1
            hash_blocks = self._keep(
                request, hash_blocks, computed // self._hash_block_tokens * self._hash_block_tokens
            )
        self.ends(request)
        self.release(request, hash_blocks)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _keep(
        self, request: cython.longlong, hash_blocks: cython.longlong, complete: cython.longlong
    ) -> cython.longlong:
        """Put the hash blocks of a request's first ``complete`` tokens into the cache; returns how many it holds."""
        blocks: cython.longlong
        hash_block: cython.longlong
        prompts: Prompts = self._prompts
        if hash_blocks * self._hash_block_tokens >= complete:
            return hash_blocks
        prompts.open(request)
        while prompts.first + hash_blocks < prompts.end:
            blocks = (
                min((hash_blocks + 1) * self._hash_block_tokens, complete) - hash_blocks * self._hash_block_tokens
            ) // self._block_size
            hash_block = prompts.ids[prompts.first + hash_blocks]
            if blocks <= 0 or self._hash_blocks.find(hash_block) >= 0:
                break
            self._keep_unit(hash_block, blocks)
            if self._window_blocks:
                self._keep_passed(hash_block, blocks * self._window_blocks)
            if self._saves:
                self._unsaved.append((hash_block, blocks))
            hash_blocks += 1
        return hash_blocks

    @cython.ccall
    def release(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Release the hash blocks of a request."""
        slot: cython.longlong
        held: HashBlocks = self._hash_blocks
        self._changes += 1
        self._prompts.open(request)
        position: cython.longlong = self._prompts.first + hash_blocks
        while position > self._prompts.first:
            position -= 1
            slot = held.find(self._prompts.ids[position])
            held.holders[slot] -= 1
            if held.holders[slot]:
                self.shared_blocks -= held.blocks[slot]
            else:
                held.line_up(slot)
                self.idle_blocks += held.blocks[slot]
                if self._order is not None:
                    self._order.enter(slot, self._clock[0])

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Evict hash blocks, by default the least recently used, until the idle ones fit in ``free_blocks``."""
        slot: cython.longlong
        hash_block: cython.longlong
        blocks: cython.longlong
        free_blocks += int(free_blocks * self._window_room)
        while self.idle_blocks > free_blocks and self._hash_blocks.oldest >= 0:
            slot = self._hash_blocks.oldest
            if self._order is not None:
                slot = self._order.first(self._clock[0])
                self._order.leave(slot)
            hash_block, blocks = self._hash_blocks.hash_block[slot], self._hash_blocks.blocks[slot]
            self._hash_blocks.step_out(slot)
            self._hash_blocks.remove(slot)
            self.idle_blocks -= blocks
            if hash_block < 0:
                if self._index is not None:
                    self._index.pass_by(self._passed_of.pop(hash_block), self._replica)
                continue
            self._changes += 1
            if self._index is not None and blocks == self._whole:
                self._index.drop(hash_block, self._replica)
            if self._evicts_to is not None:
                self._evicts_to.save(hash_block, blocks, self._clock[0])

    @cython.ccall
    def save(self) -> None:
        """Begin to copy what has been computed since the last time to the stores that keep it."""
        tier: Tier
        for tier in self._tiers:
            if tier.computed:
                for hash_block, blocks in self._unsaved:
                    tier.save(hash_block, blocks, self._clock[0])
        self._unsaved.clear()
