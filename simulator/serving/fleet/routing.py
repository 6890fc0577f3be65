"""Routing policies: which replica gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from simulator.serving.compiled import engine_module
from simulator.serving.fleet.fleet_config import RouterConfig
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint
from simulator.serving.rules import ROUTING, made

if TYPE_CHECKING:
    from simulator.serving.engine import HolderIndex


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


class Random(RoundRobin):
    """A replica at random, each as likely: a Kubernetes Service without a gateway, for each connection.

    Source: Kubernetes, Virtual IPs and Service Proxies: kube-proxy in iptables mode chooses a backend at random.
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._rng = np.random.default_rng([log.seed, 0x4A7D])

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """A replica at random."""
        return endpoints[int(self._rng.integers(len(endpoints)))]


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


class PrefixTables:
    """Prefixes that replicas hold, as a router knows them.

    It knows them by KV events, or by its own record of what it sent. The record is a table per replica, least recently
    used first out, as large as its KV cache and host tier together, or ``table_tokens``.
    """

    def __init__(self, config: RouterConfig, log: RunLog, events: bool = False) -> None:
        self._most, self._events = config.table_tokens, events
        hashes = log.stream.prefix_hashes
        self.block_tokens = 0 if hashes is None else hashes.block_tokens
        self._index: Any = None
        if hashes is not None:
            known = _holders(log, config.prefixes == "held-by-all-layers") if self._events else None
            self._index = engine_module().SentPrefixes(hashes) if known is None else known

    def leading(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> list[int]:
        """Tokens at the start of a request that each replica holds."""
        if self._index is None:
            return [0] * len(endpoints)
        blocks = self._index.leading(request, [endpoint.index for endpoint in endpoints])
        return [self.block_tokens * count for count in blocks]

    def size(self, endpoint: ReplicaEndpoint) -> int:
        """Hash blocks in a replica's table."""
        return 0 if self._index is None else int(self._index.size(endpoint.index))

    def record(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Record that a request goes to a replica."""
        if self._index is not None and not self._events:
            most = self._most or endpoint.capacity_tokens
            self._index.record(request, endpoint.index, max(1, most // self.block_tokens))

    def forget(self, endpoint: ReplicaEndpoint) -> None:
        """Clear the table of a replica that has lost its cache."""
        if self._index is not None and not self._events:
            self._index.forget(endpoint.index)


def _holders(log: RunLog, by_all_layers: bool = False) -> HolderIndex | None:
    """Index of the prefixes that replicas cache, kept by the run; None if no prompts are known to repeat."""
    hashes = log.stream.prefix_hashes
    if log.holders is None and hashes is not None:
        log.holders = engine_module().HolderIndex(hashes, by_all_layers)
    return log.holders


class PromptsInFlight:
    """Prompt tokens of requests without a first token, by the replica that a router sent them to."""

    def __init__(self, log: RunLog) -> None:
        self._first_token_s = log.first_token_s
        self._pending: dict[int, dict[int, int]] = {}

    def add(self, request: int, endpoint: ReplicaEndpoint, tokens: int) -> None:
        """Count the tokens of a request that goes to a replica."""
        self._pending.setdefault(endpoint.index, {})[request] = tokens

    def drop(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Stop counting a request that no longer occupies a replica."""
        self._pending.get(endpoint.index, {}).pop(request, None)

    def tokens(self, endpoint: ReplicaEndpoint) -> int:
        """Prompt tokens that the replica has still to compute."""
        pending = self._pending.get(endpoint.index)
        if not pending:
            return 0
        for request in [r for r in pending if self._first_token_s[r] == self._first_token_s[r]]:
            del pending[request]
        return sum(pending.values())


class PrefixAware(RoundRobin):
    """Chooses the replica that was sent the longest prefix of this prompt before, unless load is out of balance.

    Load is out of balance when the busiest replica holds more than ``balance_abs_threshold`` requests more than the
    idlest and more than ``balance_rel_threshold`` times as many; then the idlest gets the request. Otherwise the
    longest match gets it if it covers more than ``cache_threshold`` of the prompt, and if not, the replica with the
    smallest table (then the idlest).

    Source: SGLang router documentation, "Cache-Aware Load-Balancing Router".
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._config = config
        self._input_tokens = log.input_tokens
        self._tables = PrefixTables(config, log)

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The replica with the longest match, or the idlest."""
        loads = [endpoint.outstanding for endpoint in endpoints]
        most, least = max(loads), min(loads)
        config, prompt = self._config, self._input_tokens[request]
        if most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least:
            chosen = endpoints[loads.index(least)]
        else:
            matches = self._tables.leading(request, endpoints)
            longest = max(matches)
            if min(longest, prompt) > config.cache_threshold * prompt:
                best = [endpoint for endpoint, match in zip(endpoints, matches, strict=True) if match == longest]
                chosen = best[0] if len(best) == 1 else min(best, key=_outstanding)
            else:
                chosen = min(endpoints, key=lambda endpoint: (self._tables.size(endpoint), endpoint.outstanding))
        self._tables.record(request, chosen)
        return chosen

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Clear the table of a replica that has lost its cache."""
        self._tables.forget(endpoint)


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
        self._holders = _holders(log)
        self._held: dict[int, int] = {}
        """Prompt tokens outstanding, by replica."""
        self._in_flight = PromptsInFlight(log)

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        """The cheapest replica."""
        prompt = self._input_tokens[request]
        new = [prompt - cached for cached in self._cached(request, endpoints)]
        costs = [
            (self._weight * (self._in_flight.tokens(endpoint) + tokens) + self._held.get(endpoint.index, 0) + prompt)
            / endpoint.block_size
            for endpoint, tokens in zip(endpoints, new, strict=True)
        ]
        best = min(range(len(endpoints)), key=lambda i: (costs[i], endpoints[i].outstanding))
        index = endpoints[best].index
        self._held[index] = self._held.get(index, 0) + prompt
        self._in_flight.add(request, endpoints[best], new[best])
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
        self._in_flight.drop(request, endpoint)


def routing_policy(name: str, config: RouterConfig, log: RunLog) -> Policy:
    """The policy called ``name`` for one run."""
    policy_object: Policy = made(ROUTING[name], config, log)
    return policy_object


def _outstanding(endpoint: ReplicaEndpoint) -> int:
    return endpoint.outstanding
