"""How much of the prompts a prefix cache could serve: an unlimited one, or one with LRU eviction."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from traces.errors import TraceError
from traces.requests.table import IntArray, PrefixHashes, RequestTable


@dataclass(frozen=True, slots=True)
class PrefixStatistics:
    """Prefix sharing of a trace under a cache that keeps every block for ever.

    Attributes:
        block_tokens: tokens per block.
        token_hit: tokens of the longest prefix of blocks seen before, capped at the prompt, over all prompt tokens.
        block_hit: the same counted in blocks.
        mean_request_hit: unweighted mean over requests of each request's token hit.
        requests_with_hit: share of requests whose first block was seen before.
        unique_blocks: distinct block ids.
        total_blocks: block ids of all requests.
        blocks_used_once: share of the distinct blocks that one request used once.
    """

    block_tokens: int
    token_hit: float
    block_hit: float
    mean_request_hit: float
    requests_with_hit: float
    unique_blocks: int
    total_blocks: int
    blocks_used_once: float


@dataclass(slots=True)
class PrefixCounter:
    """Collects prefix sharing over the chunks of a trace; memory grows with the distinct blocks, not with the rows."""

    block_tokens: int
    _uses: Counter[int] = field(default_factory=Counter)
    _requests: int = 0
    _with_hit: int = 0
    _hit_blocks: int = 0
    _hit_tokens: int = 0
    _tokens: int = 0
    _share: float = 0.0

    def add(self, hashes: PrefixHashes, input_tokens: IntArray) -> None:
        """Look up each request's prefix, then remember its blocks."""
        uses = self._uses
        for ids, tokens in _requests(hashes, input_tokens):
            found = 0
            for block in ids:
                if block not in uses:
                    break
                found += 1
            uses.update(ids)
            hit = min(found * self.block_tokens, tokens)
            self._requests += 1
            self._with_hit += found > 0
            self._hit_blocks += found
            self._hit_tokens += hit
            self._tokens += tokens
            self._share += hit / tokens

    def result(self) -> PrefixStatistics:
        """The figures so far; raises TraceError before the first request."""
        if not self._requests:
            raise TraceError("prefix sharing of no requests is not defined")
        total = self._uses.total()
        return PrefixStatistics(
            block_tokens=self.block_tokens,
            token_hit=self._hit_tokens / self._tokens,
            block_hit=self._hit_blocks / total if total else 0.0,
            mean_request_hit=self._share / self._requests,
            requests_with_hit=self._with_hit / self._requests,
            unique_blocks=len(self._uses),
            total_blocks=total,
            blocks_used_once=sum(1 for uses in self._uses.values() if uses == 1) / max(len(self._uses), 1),
        )


def _requests(hashes: PrefixHashes, input_tokens: IntArray) -> Iterator[tuple[list[int], int]]:
    """Block ids and prompt tokens of each request as Python integers."""
    ids, offsets = hashes.ids.tolist(), hashes.offsets.tolist()
    for index, tokens in enumerate(input_tokens.tolist()):
        yield ids[offsets[index] : offsets[index + 1]], tokens


def lru_token_hit(table: RequestTable, capacities_blocks: Iterable[int]) -> dict[int, float]:
    """Share of prompt tokens served by a prefix cache of so many blocks with LRU eviction, by capacity.

    Each request first looks up its longest cached prefix; then its blocks are touched from the last to the first, so
    that of one request the first blocks stay longest (as vLLM frees them).

    Raises:
        TraceError: no block ids in the trace, or a capacity below 1 block.
    """
    if table.prefix_hashes is None:
        raise TraceError(f"{table.source or 'table'}: no prefix block ids in the trace")
    total = int(table.input_tokens.sum())
    hits = {}
    for capacity in capacities_blocks:
        if capacity < 1:
            raise TraceError(f"capacities_blocks: {capacity!r}: at least 1 block expected")
        hits[capacity] = _lru_hit_tokens(table.prefix_hashes, table.input_tokens, capacity) / total
    return hits


def _lru_hit_tokens(hashes: PrefixHashes, input_tokens: IntArray, capacity: int) -> int:
    """Prompt tokens served by an LRU cache of ``capacity`` blocks."""
    cache: OrderedDict[int, None] = OrderedDict()
    served = 0
    for ids, tokens in _requests(hashes, input_tokens):
        found = 0
        for block in ids:
            if block not in cache:
                break
            found += 1
        served += min(found * hashes.block_tokens, tokens)
        for block in reversed(ids):
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
                if len(cache) > capacity:
                    cache.popitem(last=False)
    return served


def infinite_cache_hits(table: RequestTable) -> IntArray:
    """Prompt tokens of each request that an unlimited prefix cache would serve, int64; TraceError without block ids."""
    if table.prefix_hashes is None:
        raise TraceError(f"{table.source or 'table'}: no prefix block ids in the trace")
    seen: set[int] = set()
    hits = np.zeros(len(table), dtype=np.int64)
    for index, (ids, tokens) in enumerate(_requests(table.prefix_hashes, table.input_tokens)):
        found = next((place for place, block in enumerate(ids) if block not in seen), len(ids))
        hits[index] = min(found * table.prefix_hashes.block_tokens, tokens)
        seen.update(ids)
    return hits
