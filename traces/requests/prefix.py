"""Share of prompt tokens that an unlimited prefix cache could serve."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forerun.arrays import IntArray
from traces.errors import TraceError
from traces.requests.table import PrefixHashes


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
        for request, tokens in enumerate(input_tokens.tolist()):
            ids = hashes.of(request).tolist()
            cached = next((at for at, block in enumerate(ids) if block not in uses), len(ids))
            uses.update(ids)
            hit = min(cached * self.block_tokens, tokens)
            self._requests += 1
            self._with_hit += cached > 0
            self._hit_blocks += cached
            self._hit_tokens += hit
            self._tokens += tokens
            self._share += hit / tokens

    def result(self) -> PrefixStatistics:
        """Return the statistics so far; raises TraceError before the first request."""
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
