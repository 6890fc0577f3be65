"""The prefix cache of a replica, and host memory behind it."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.hash_blocks import HashBlocks, Prompts
from simulator.serving.engine.prefix_index import HolderIndex


@cython.final
@cython.cclass
class HostCache:
    """HashBlocks that the chip has evicted, in host memory, in order of use.

    A hash block that comes back to the chip stays here too, so that its next eviction copies nothing (vLLM's
    ``OffloadingConnector`` keeps blocks on the CPU likewise).

    Args:
        num_blocks: capacity in blocks.
    """

    _capacity: cython.longlong
    _hash_blocks: HashBlocks
    used_blocks = cython.declare(cython.longlong, visibility="public")
    peak_blocks = cython.declare(cython.longlong, visibility="public")
    offloaded_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied to host memory so far."""
    loaded_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied back to the chip so far."""

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._hash_blocks = HashBlocks()
        self.used_blocks = self.peak_blocks = self.offloaded_blocks = self.loaded_blocks = 0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def get(self, hash_block: cython.longlong) -> cython.longlong:
        """Blocks of a hash block; 0 if it is not in host memory."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        return self._hash_blocks.blocks[slot] if slot >= 0 else 0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def fresh(self, hash_block: cython.longlong, walk: cython.longlong) -> cython.longlong:
        """KV blocks of a hash block not yet visited in this walk along a prompt; else 0."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0 or self._hash_blocks.seen[slot] == walk:
            return 0
        self._hash_blocks.seen[slot] = walk
        return self._hash_blocks.blocks[slot]

    @cython.ccall
    def put(self, hash_block: cython.longlong, blocks: cython.longlong) -> None:
        """Keep a hash block that the chip evicts as the most recently used; drop the oldest until it fits."""
        oldest: cython.longlong
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot >= 0:
            self._hash_blocks.step_out(slot)
            self._hash_blocks.line_up(slot)
            return
        if blocks > self._capacity:
            return
        while self.used_blocks + blocks > self._capacity:
            oldest = self._hash_blocks.oldest
            self.used_blocks -= self._hash_blocks.blocks[oldest]
            self._hash_blocks.step_out(oldest)
            self._hash_blocks.remove(oldest)
        self._hash_blocks.line_up(self._hash_blocks.put(hash_block, blocks))
        self.used_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        self.offloaded_blocks += blocks

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def load(self, hash_block: cython.longlong) -> cython.longlong:
        """Load a hash block back to the chip; returns its number of KV blocks."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        assert slot >= 0
        self._hash_blocks.step_out(slot)
        self._hash_blocks.line_up(slot)
        self.loaded_blocks += self._hash_blocks.blocks[slot]
        return self._hash_blocks.blocks[slot]


@cython.cclass
class NoPrefixCache:
    """Prefix cache that caches nothing."""

    shared_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that several requests count as their own: a hash block held by r requests counts r - 1 times."""
    idle_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that are cached and that no request uses."""
    host_tokens = cython.declare(cython.longlong, visibility="public")
    """Tokens from host memory among those that the latest match spares."""

    def __init__(self) -> None:
        self.shared_blocks = self.idle_blocks = self.host_tokens = 0

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[Any, ...]:
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
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing is kept."""

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Nothing to evict."""

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def take_loaded(self) -> cython.longlong:
        """Nothing comes from host memory."""
        return 0


@cython.cclass
class PrefixCache(NoPrefixCache):
    """HashBlocks of cached prompt, shared by the running requests and kept in LRU order when none of them needs them.

    A hash block is one hash of the trace: ``block_tokens`` prompt tokens (fewer at the end of a prompt), in whole
    engine blocks. Blocks that no request uses are evicted, oldest first, when running requests need their room; a
    request's later hash blocks before its earlier ones, as vLLM frees blocks (tail first). A hash block leaves the
    cache as a whole. What a request holds is always the start of its hash blocks, so their number says which.

    Args:
        hashes: prefix hashes of all requests.
        block_size: tokens per engine block; divides ``hashes.block_tokens``.
        input_tokens: prompt lengths of all requests.
        output_tokens: answer lengths, where ``hashes`` go on through the answers and cover whole hash blocks alone;
            None where they end with the prompt.
        host: where evicted hash blocks go; None drops them.
        index: index of the whole hash blocks held here; None without such a router.
        replica: number of the replica, for the index.
        page_tokens: tokens after which a recurrent state is kept, the only places where a hit may end; 0 = those of a
            block.
    """

    _prompts: Prompts
    _hash_blocks: HashBlocks
    _host: HostCache | None
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
    _loaded: cython.longlong
    _walks: cython.longlong
    _matched: cython.longlong
    """Counts of the latest lookup: hash blocks found; their KV blocks: all, on the chip, and in use there."""
    _blocks: cython.longlong
    _here: cython.longlong
    _in_use: cython.longlong

    def __init__(
        self,
        hashes: Any,
        block_size: int,
        input_tokens: Any,
        output_tokens: Any = None,
        host: HostCache | None = None,
        index: HolderIndex | None = None,
        replica: int = 0,
        page_tokens: int = 0,
    ) -> None:
        NoPrefixCache.__init__(self)
        self._prompts = Prompts(hashes)
        self._hash_blocks = HashBlocks()
        self._host, self._index, self._replica = host, index, replica
        self._input_tokens = input_tokens
        self._answers = output_tokens is not None
        self._output_tokens = input_tokens if output_tokens is None else output_tokens
        self._block_size, self._hash_block_tokens = block_size, hashes.block_tokens
        self._page_tokens = page_tokens or block_size
        self._whole = self._hash_block_tokens // self._block_size
        self._loaded = self._walks = self._matched = self._blocks = self._here = self._in_use = 0

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[Any, ...]:
        """The cached start of a request's prompt; hash blocks in host memory continue the start that is on the chip.

        Args:
            request: index of the request.
            tokens: tokens it has to put in the cache; the last of them is always computed, as its logits are needed.

        Returns:
            HashBlocks found, tokens they spare, and how many of their blocks running requests hold already.
        """
        prompt_blocks: cython.longlong = self._input_tokens[request] // self._block_size
        self._walk(request, 0, prompt_blocks)
        spared: cython.longlong = self._spared_tokens(tokens)
        if self._page_tokens > self._block_size:  # tokens behind the last kept state are computed again in other blocks
            self._walk(request, 0, -(-spared // self._block_size))
        self.host_tokens = max(0, spared - self._here * self._block_size)
        return self._matched, spared, self._in_use

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
        prompts.open(request)
        prompt_blocks: cython.longlong = self._input_tokens[request] // self._block_size
        self._walks += 1
        self._matched = whole
        self._blocks = self._here = whole * self._whole
        self._in_use = 0
        for position in range(prompts.first + whole, prompts.end):
            if self._blocks >= most:
                break
            hash_block = prompts.ids[position]
            slot = table.find(hash_block)
            if slot < 0:
                size = 0 if self._host is None else cython.cast(HostCache, self._host).fresh(hash_block, self._walks)
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
                if table.holders[slot]:
                    self._in_use += size

    @cython.cfunc
    def _keep_unit(self, hash_block: cython.longlong, blocks: cython.longlong) -> None:
        """Add a hash block on the chip that one request holds."""
        slot: cython.longlong = self._hash_blocks.put(hash_block, blocks)
        self._hash_blocks.holders[slot] = 1
        if self._index is not None and blocks == self._whole:
            self._index.add(hash_block, self._replica)

    @cython.ccall
    def hold(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Let a request use cached hash blocks. Hash blocks in host memory are copied to blocks that the request counts
        as its own."""
        position: cython.longlong
        slot: cython.longlong
        blocks: cython.longlong
        held: HashBlocks = self._hash_blocks
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.first + hash_blocks):
            slot = held.find(self._prompts.ids[position])
            if slot < 0:
                blocks = cython.cast(HostCache, self._host).load(self._prompts.ids[position])
                self._keep_unit(self._prompts.ids[position], blocks)
                self._loaded += blocks
                continue
            if held.holders[slot]:
                self.shared_blocks += held.blocks[slot]
            else:
                held.step_out(slot)
                self.idle_blocks -= held.blocks[slot]
            held.holders[slot] += 1

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
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """End a request: keep its answer as far as hashes know it, without the last token."""
        if self._answers:
            computed: cython.longlong = self._input_tokens[request] + self._output_tokens[request] - 1
            hash_blocks = self._keep(
                request, hash_blocks, computed // self._hash_block_tokens * self._hash_block_tokens
            )
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
            hash_blocks += 1
        return hash_blocks

    @cython.ccall
    def release(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Release the hash blocks of a request."""
        slot: cython.longlong
        held: HashBlocks = self._hash_blocks
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

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Evict the least recently used hash blocks until the idle ones fit in ``free_blocks``."""
        slot: cython.longlong
        hash_block: cython.longlong
        blocks: cython.longlong
        while self.idle_blocks > free_blocks and self._hash_blocks.oldest >= 0:
            slot = self._hash_blocks.oldest
            hash_block, blocks = self._hash_blocks.hash_block[slot], self._hash_blocks.blocks[slot]
            self._hash_blocks.step_out(slot)
            self._hash_blocks.remove(slot)
            self.idle_blocks -= blocks
            if self._index is not None and blocks == self._whole:
                self._index.drop(hash_block, self._replica)
            if self._host is not None:
                self._host.put(hash_block, blocks)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def take_loaded(self) -> cython.longlong:
        """Blocks copied from host memory since the last time."""
        loaded: cython.longlong = self._loaded
        self._loaded = 0
        return loaded
