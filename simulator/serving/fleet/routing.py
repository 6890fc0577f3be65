"""Routing policies: which replica gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from simulator.serving.compiled import engine_module
from simulator.serving.fleet.fleet_config import RouterConfig
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint
from simulator.serving.rules import ROUTING, made


class Policy(Protocol):
    """Chooses a replica, once for every request."""

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """Choose the replica in ``endpoints`` (never empty) for ``request``, which is sent at once."""

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """``request`` no longer occupies ``endpoint``: it ended, was handed on, or the replica failed."""

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Forget the state of a replica that has lost its cache."""


class RoundRobin:
    """Round robin over the replicas."""

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        self._next = 0

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The next of the replicas that can take requests."""
        chosen = endpoints[self._next % len(endpoints)]
        self._next += 1
        return chosen

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Does nothing: round robin ignores load."""

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Caches play no part."""


class LeastOutstanding(RoundRobin):
    """Chooses the replica with the fewest unfinished requests; the first one on a tie.

    As long as the list of replicas is unchanged, a heap holds an entry for every load that a replica had; outdated
    entries are dropped when they reach the top.
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._endpoints: Sequence[ReplicaEndpoint] = ()
        self._place: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The least loaded replica."""
        if endpoints is not self._endpoints:
            self._endpoints, self._heap = endpoints, []
            self._place = {}
            return min(endpoints, key=_outstanding)
        while True:
            if not self._heap or len(self._heap) > 8 * len(endpoints):
                self._place = {endpoint.index: place for place, endpoint in enumerate(endpoints)}
                self._heap = sorted((endpoint.outstanding, place) for place, endpoint in enumerate(endpoints))
            load, place = self._heap[0]
            if endpoints[place].outstanding == load:
                heapreplace(self._heap, (load + 1, place))
                return endpoints[place]
            heappop(self._heap)

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Push the replica's new load onto the heap."""
        if endpoint.index in self._place:
            heappush(self._heap, (endpoint.outstanding, self._place[endpoint.index]))


class PrefixAware(RoundRobin):
    """Chooses the replica that was sent the longest prefix of this prompt before, unless load is out of balance.

    Load is out of balance when the busiest replica holds more than ``balance_abs_threshold`` requests more than the
    idlest and more than ``balance_rel_threshold`` times as many; then the idlest gets the request. Otherwise the
    longest match gets it if it covers more than ``cache_threshold`` of the prompt, and if not, the replica with the
    smallest table (then the idlest). The tables are the router's own record of what it sent where, least recently
    used first out, each as large as its replica's KV cache and host tier together, or ``table_tokens``.

    Source: SGLang router documentation, "Cache-Aware Load-Balancing Router".
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._config = config
        hashes = log.stream.prefix_hashes
        self._block_tokens = 0 if hashes is None else hashes.block_tokens
        self._input_tokens = log.input_tokens
        self._sent = None if hashes is None else engine_module().SentPrefixes(hashes)

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The replica with the longest match, or the idlest."""
        loads = [endpoint.outstanding for endpoint in endpoints]
        most, least = max(loads), min(loads)
        config, prompt = self._config, self._input_tokens[request]
        if most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least:
            chosen = endpoints[loads.index(least)]
        else:
            matches = self._matches(request, endpoints)
            longest = max(matches)
            if min(longest * self._block_tokens, prompt) > config.cache_threshold * prompt:
                best = [endpoint for endpoint, match in zip(endpoints, matches, strict=True) if match == longest]
                chosen = best[0] if len(best) == 1 else min(best, key=_outstanding)
            else:
                chosen = min(endpoints, key=self._table_and_load)
        self._record(request, chosen)
        return chosen

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Clear the table of a replica that has lost its cache."""
        if self._sent is not None:
            self._sent.forget(endpoint.index)

    def _table_and_load(self, endpoint: ReplicaEndpoint) -> tuple[int, int]:
        return 0 if self._sent is None else self._sent.size(endpoint.index), endpoint.outstanding

    def _matches(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> list[int]:
        """HashBlocks at the start of a prompt that each replica was sent before."""
        if self._sent is None:
            return [0] * len(endpoints)
        matches: list[int] = self._sent.leading(request, [endpoint.index for endpoint in endpoints])
        return matches

    def _record(self, request: int, endpoint: ReplicaEndpoint) -> None:
        if self._sent is not None:
            most = self._config.table_tokens or endpoint.capacity_tokens
            self._sent.record(request, endpoint.index, max(1, most // self._block_tokens))


class KvAware(RoundRobin):
    """Chooses the replica with the lowest ``overlap_weight * prefill_blocks + decode_blocks``; the first one on a tie.

    ``prefill_blocks`` are the prompt blocks that the replica would still have to compute: of this request beyond what
    its KV cache holds now, and of those it was sent and that have no first token yet. ``decode_blocks`` are the prompt
    blocks of everything outstanding there, this request included. Blocks that requests share are counted for each.

    Source: NVIDIA Dynamo documentation, "Router Design", cost calculation.
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._weight = config.overlap_weight
        self._input_tokens = log.input_tokens
        self._first_token_s = log.first_token_s
        self._hashes = log.stream.prefix_hashes
        if log.holders is None and self._hashes is not None:
            log.holders = engine_module().HolderIndex(self._hashes)
        self._holders = log.holders
        self._held: dict[int, int] = {}
        """Prompt tokens outstanding, by replica."""
        self._pending: dict[int, dict[int, int]] = {}
        """Prompt tokens to compute of requests without a first token, by replica and request."""

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The cheapest replica."""
        prompt = self._input_tokens[request]
        new = [prompt - cached for cached in self._cached(request, endpoints)]
        costs = [
            (self._weight * (self._prefilling(endpoint) + tokens) + self._held.get(endpoint.index, 0) + prompt)
            / endpoint.block_size
            for endpoint, tokens in zip(endpoints, new, strict=True)
        ]
        best = min(range(len(endpoints)), key=lambda i: (costs[i], endpoints[i].outstanding))
        index = endpoints[best].index
        self._held[index] = self._held.get(index, 0) + prompt
        self._pending.setdefault(index, {})[request] = new[best]
        return endpoints[best]

    def _cached(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> list[int]:
        """Prompt tokens that each replica holds now."""
        caches = [endpoint.prefix_cache() for endpoint in endpoints]
        if self._holders is None:
            return [0] * len(endpoints)
        whole = self._holders.leading(request, [endpoint.index for endpoint in endpoints])
        return [cache.spared(request, here) for cache, here in zip(caches, whole, strict=True)]

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Release the request's blocks."""
        self._held[endpoint.index] -= self._input_tokens[request]
        self._pending[endpoint.index].pop(request, None)

    def _prefilling(self, endpoint: ReplicaEndpoint) -> int:
        """Prompt tokens that the replica has still to compute."""
        pending = self._pending.get(endpoint.index)
        if not pending:
            return 0
        for request in [r for r in pending if self._first_token_s[r] == self._first_token_s[r]]:
            del pending[request]
        return sum(pending.values())


def routing_policy(name: str, config: RouterConfig, log: RunLog) -> Policy:
    """The policy called ``name`` for one run."""
    policy_object: Policy = made(ROUTING[name], config, log)
    return policy_object


def _outstanding(endpoint: ReplicaEndpoint) -> int:
    return endpoint.outstanding
