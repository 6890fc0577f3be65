"""KV blocks of finished prompts, kept for requests that start with the same tokens."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from simulator.serving.host_cache import HostCache
from traces import PrefixHashes


class HolderIndex:
    """Which replicas hold each unit, as the bits of a number: one walk tells of all replicas how much
    of a prompt they hold.

    A replica is bit ``1 << its number``.
    """

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}

    def add(self, unit: int, bit: int) -> None:
        """A replica holds a unit from now on."""
        self._holders[unit] = self._holders.get(unit, 0) | bit

    def drop(self, unit: int, bit: int) -> None:
        """A replica holds a unit no longer."""
        left = self._holders[unit] & ~bit
        if left:
            self._holders[unit] = left
        else:
            del self._holders[unit]

    def drop_all(self, bit: int) -> None:
        """A replica has lost everything."""
        for unit in [unit for unit, holders in self._holders.items() if holders & bit]:
            self.drop(unit, bit)

    def leading(self, units: Sequence[int], replicas: Sequence[int]) -> list[int]:
        """How many of the first ``units`` each of the replicas holds without a gap."""
        found = dict.fromkeys(replicas, len(units))
        holding = sum(1 << replica for replica in replicas)
        for position, unit in enumerate(units):
            left = holding & self._holders.get(unit, 0)
            lost = holding ^ left
            while lost:
                replica = lost.bit_length() - 1
                found[replica] = position
                lost ^= 1 << replica
            holding = left
            if not holding:
                break
        return [found[replica] for replica in replicas]


class NoPrefixCache:
    """Stands in where nothing is cached."""

    shared_blocks = 0
    idle_blocks = 0
    host_tokens = 0
    """Of the tokens that the latest match spares, those that come from host memory."""

    def take_loaded(self) -> int:
        """Nothing comes from host memory."""
        return 0

    def match(self, request: int, tokens: int) -> tuple[list[int], int, int]:
        """Nothing is found."""
        return [], 0, 0

    def spared(self, request: int, units: Sequence[int], whole: int) -> int:
        """Nothing is spared."""
        return 0

    def hold(self, units: list[int]) -> None:
        """Nothing to hold."""

    def add(self, request: int, units: list[int], computed_tokens: int) -> None:
        """Nothing is kept."""

    def release(self, units: list[int]) -> None:
        """Nothing was held."""

    def finish(self, request: int, units: list[int]) -> None:
        """Nothing is kept."""

    def shrink(self, free_blocks: int) -> None:
        """Nothing to evict."""


class PrefixCache(NoPrefixCache):
    """Units of cached prompt, shared by the running requests and kept in LRU order when none of them needs them.

    A unit is one hash of the trace: ``block_tokens`` prompt tokens (fewer at the end of a prompt), in whole engine
    blocks. Blocks that no request uses are evicted, oldest first, when running requests need their room; a request's
    later units before its earlier ones, as vLLM frees blocks (tail first). A unit leaves the cache as a whole.

    Args:
        hashes: prefix hashes of all requests.
        block_size: tokens per engine block; divides ``hashes.block_tokens``.
        input_tokens: prompt lengths of all requests.
        output_tokens: answer lengths, where ``hashes`` go on through the answers and cover whole units alone; None
            where they end with the prompt.
        host: where evicted units go; None drops them.
        index: told of the whole units that are here; None where nobody asks.
        replica: number of the replica, for the index.
    """

    def __init__(
        self,
        hashes: PrefixHashes,
        block_size: int,
        input_tokens: Sequence[int],
        output_tokens: Sequence[int] | None = None,
        host: HostCache | None = None,
        index: HolderIndex | None = None,
        replica: int = 0,
    ) -> None:
        self._index = index
        self._bit = 1 << replica
        self._whole = hashes.block_tokens // block_size
        """Blocks of a whole unit."""
        self._host = host
        self._loaded = 0
        self._output_tokens = output_tokens
        self._hashes = hashes
        self._block_size = block_size
        self._input_tokens = input_tokens
        self._references: dict[int, int] = {}
        """Requests that hold each cached unit."""
        self._blocks: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Unreferenced units, least recently used first."""
        self.idle_blocks = 0
        """Blocks that are cached and that no request uses."""
        self.shared_blocks = 0
        """Blocks that more than one request counts as its own: a unit held by r requests counts r - 1 times."""

    def match(self, request: int, tokens: int) -> tuple[list[int], int, int]:
        """The cached start of a request's prompt.

        Args:
            request: index of the request.
            tokens: tokens it has to put in the cache; the last of them is always computed, as its logits are needed.

        Units in host memory continue the start that is on the chip.

        Returns:
            Units found, tokens they spare, and how many of their blocks running requests hold already.
        """
        found: dict[int, None] = {}
        blocks = in_use = here = 0
        for unit, size, holders in self._leading(self._hashes.of(request).tolist(), request, 0):
            if unit in found:
                break
            found[unit] = None
            blocks += size
            here += size if holders is not None else 0
            in_use += size if holders else 0
        spared = self._spared_tokens(blocks, tokens)
        self.host_tokens = max(0, spared - here * self._block_size)
        return list(found), spared, in_use

    def spared(self, request: int, units: Sequence[int], whole: int) -> int:
        """The tokens that ``match`` spares a whole prompt, where the start of it is known to be here.

        Args:
            request: index of the request.
            units: its units up to the first that comes twice.
            whole: how many of them at its start are whole and on the chip.
        """
        prompt = self._input_tokens[request]
        blocks = self._whole * min(whole, prompt // self._block_size // self._whole)
        rest = islice(units, blocks // self._whole, None)
        blocks += sum(size for _, size, _ in self._leading(rest, request, blocks))
        return self._spared_tokens(blocks, prompt)

    def _spared_tokens(self, blocks: int, tokens: int) -> int:
        size = self._block_size
        return min(blocks * size, (tokens - 1) // size * size)

    def _leading(self, units: Iterable[int], request: int, blocks: int) -> Iterator[tuple[int, int, int | None]]:
        """The units that are here without a gap, behind ``blocks`` blocks that are on the chip: (unit, its blocks,
        requests that hold it; None for one in host memory)."""
        references, host, here = self._references, self._host, blocks
        most = self._input_tokens[request] // self._block_size
        for unit in units:
            holders = references.get(unit)
            if holders is not None and here == blocks:
                size = self._blocks[unit]
            elif holders is None and host is not None:
                size = host.get(unit) or 0
            else:
                return
            if not size or blocks + size > most:  # the same hash for prompts that differ in length: other tokens
                return
            blocks += size
            here += size if holders is not None else 0
            yield unit, size, holders

    def _keep_unit(self, unit: int, blocks: int) -> None:
        """A unit is on the chip from now on, and one request holds it."""
        self._references[unit] = 1
        self._blocks[unit] = blocks
        if self._index is not None and blocks == self._whole:
            self._index.add(unit, self._bit)

    def hold(self, units: list[int]) -> None:
        """A request starts to use cached units; those in host memory are copied to blocks that it counts as its own."""
        for unit in units:
            if unit not in self._references:
                assert self._host is not None
                blocks = self._host.load(unit)
                self._keep_unit(unit, blocks)
                self._loaded += blocks
                continue
            if self._references[unit]:
                self.shared_blocks += self._blocks[unit]
            else:
                del self._idle[unit]
                self.idle_blocks -= self._blocks[unit]
            self._references[unit] += 1

    def add(self, request: int, units: list[int], computed_tokens: int) -> None:
        """Prompt units that are complete once ``computed_tokens`` are in the cache become available to others.

        Args:
            request: index of the request.
            units: units it holds so far; new ones are appended. A unit that another request has put in the cache
                meanwhile stays a private copy, and so does everything after it.
            computed_tokens: tokens of the request in the cache.
        """
        per_unit = self._hashes.block_tokens
        prompt = self._input_tokens[request]
        done = len(units)
        if self._output_tokens is not None:
            self._keep(request, units, min(computed_tokens, prompt) // per_unit)
            return
        complete = prompt if computed_tokens >= prompt else computed_tokens // per_unit * per_unit
        if done * per_unit >= complete:
            return
        for position, unit in enumerate(self._hashes.of(request)[done:].tolist(), start=done):
            end = min((position + 1) * per_unit, prompt)
            blocks = (end - position * per_unit) // self._block_size
            if end > complete or not blocks or unit in self._references:
                return
            self._keep_unit(unit, blocks)
            units.append(unit)

    def finish(self, request: int, units: list[int]) -> None:
        """A request has ended: its answer is kept as far as hashes know it, but for the last token, and let go."""
        if self._output_tokens is not None:
            computed = self._input_tokens[request] + self._output_tokens[request] - 1
            self._keep(request, units, computed // self._hashes.block_tokens)
        self.release(units)

    def _keep(self, request: int, units: list[int], whole: int) -> None:
        """The first ``whole`` units of a request are complete; as far as they are not cached, they are from now on."""
        done = len(units)
        for unit in self._hashes.of(request)[done:whole].tolist():
            if unit in self._references:
                return
            self._keep_unit(unit, self._whole)
            units.append(unit)

    def release(self, units: list[int]) -> None:
        """A request lets go of its units."""
        for unit in reversed(units):
            self._references[unit] -= 1
            if self._references[unit]:
                self.shared_blocks -= self._blocks[unit]
            else:
                self._idle[unit] = None
                self.idle_blocks += self._blocks[unit]

    def shrink(self, free_blocks: int) -> None:
        """Evict the least recently used units until the idle ones fit in ``free_blocks``."""
        while self.idle_blocks > free_blocks and self._idle:
            unit, _ = self._idle.popitem(last=False)
            del self._references[unit]
            blocks = self._blocks.pop(unit)
            if self._index is not None and blocks == self._whole:
                self._index.drop(unit, self._bit)
            self.idle_blocks -= blocks
            if self._host is not None:
                self._host.put(unit, blocks)

    def take_loaded(self) -> int:
        """Blocks copied from host memory since the last time."""
        loaded, self._loaded = self._loaded, 0
        return loaded
