"""Working set of requests: hit rates of LRU prefix caches of every size, from their prefix hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray, IntArray
from simulator.workload.generate import RequestStream

MOST_REQUESTS = 20_000
"""Requests that are looked at: time grows with their square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSet:
    """Reuse of the prompts of some requests, each served at once, by one cache of all.

    Source: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2) (1970).
    """

    requests: int
    prompt_tokens: int
    unique_tokens: int
    """Tokens of all different hash blocks: what a cache without limit holds in the end."""
    reuse_tokens: FloatArray
    """Tokens of different hash blocks used since the last use of a reused one, ascending."""
    reused: FloatArray
    """Prompt tokens that are reused at up to each distance."""

    def hit_rate(self, tokens: float) -> float:
        """Share of prompt tokens that an LRU cache of a size in tokens serves; infinity: a cache without limit."""
        place = int(np.searchsorted(self.reuse_tokens, tokens, "right"))
        return float(self.reused[place - 1]) / self.prompt_tokens if place and self.prompt_tokens else 0.0

    def tokens_for(self, share: float) -> float:
        """Least tokens of an LRU cache with a share of the hits of one without limit; 0 without reuse."""
        if not len(self.reused):
            return 0.0
        return float(self.reuse_tokens[np.searchsorted(self.reused, share * self.reused[-1] * (1 - 1e-12))])


def working_set(stream: RequestStream) -> WorkingSet | None:
    """Working set of a request stream; None without prefix hashes."""
    hashes = stream.prefix_hashes
    if hashes is None:
        return None
    order = np.argsort(_served_s(stream), kind="stable")[:MOST_REQUESTS]
    size = hashes.block_tokens
    latest: dict[int, int] = {}
    held = np.zeros(len(order))  # tokens whose latest use is that of each request
    distances: dict[float, float] = {}
    for place, request in enumerate(order.tolist()):
        ids: Sequence[int] = hashes.of(request).tolist()
        prompt = min(len(ids), (int(stream.input_tokens[request]) - 1) // size)
        uses = [latest.get(block, -1) for block in ids]
        hits = next((at for at, use in enumerate(uses[:prompt]) if use < 0), prompt)
        since = {use: float(held[use:place].sum()) for use in set(uses[:hits])}
        far = 0.0
        for use in uses[:hits]:
            far = max(far, since[use])
            distances[far] = distances.get(far, 0.0) + size
        for use in uses:
            if use >= 0:
                held[use] -= size
        for block in ids:
            latest[block] = place
        held[place] = size * len(set(ids))
    near = np.array(sorted(distances))
    return WorkingSet(
        requests=len(order),
        prompt_tokens=int(stream.input_tokens[order].sum()),
        unique_tokens=size * len(latest),
        reuse_tokens=near,
        reused=np.cumsum([distances[one] for one in near.tolist()]),
    )


def _served_s(stream: RequestStream) -> FloatArray:
    """Times at which requests come if each is served at once."""
    times = np.array(stream.arrival_s, dtype=np.float64)
    pairs: IntArray = np.zeros((0, 2), dtype=np.int64) if stream.follows is None else stream.follows
    think_s = np.zeros(len(times)) if stream.think_s is None else stream.think_s
    for before, waiting in pairs[np.argsort(pairs[:, 1], kind="stable")].tolist():
        times[waiting] = max(times[waiting], times[before] + think_s[waiting])
    return times
