"""Routing policies: which replica gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import Protocol

from simulator.serving.compiled import engine_module
from simulator.serving.feed import RoutedFeed
from simulator.serving.fleet.config import RouterConfig
from simulator.serving.log import RunLog
from simulator.serving.rules import ROUTING, made


class Policy(Protocol):
    """Chooses among replicas; asked once for every request that is handed out."""

    def choose(self, request: int, ports: Sequence[RoutedFeed]) -> RoutedFeed:
        """The replica, of those in ``ports`` (never empty), that gets ``request``; it is handed over at once."""

    def left(self, request: int, port: RoutedFeed) -> None:
        """``request`` no longer occupies ``port``: it ended, was handed on, or the replica failed."""

    def failed(self, port: RoutedFeed) -> None:
        """A replica has lost its cache."""


class RoundRobin:
    """In turn."""

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        self._next = 0

    def choose(self, request: int, ports: Sequence[RoutedFeed]) -> RoutedFeed:
        """The next of the replicas that can take requests."""
        chosen = ports[self._next % len(ports)]
        self._next += 1
        return chosen

    def left(self, request: int, port: RoutedFeed) -> None:
        """Load plays no part."""

    def failed(self, port: RoutedFeed) -> None:
        """Caches play no part."""


class LeastOutstanding(RoundRobin):
    """The replica with the fewest requests that it has not ended; the first of equals.

    While the replicas to choose from stay the same list, a heap holds an entry for every load that any of them had;
    those that are over are dropped when they come up.
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._ports: Sequence[RoutedFeed] = ()
        self._place: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def choose(self, request: int, ports: Sequence[RoutedFeed]) -> RoutedFeed:
        """The least loaded replica."""
        if ports is not self._ports:
            self._ports, self._heap = ports, []
            self._place = {}
            return min(ports, key=_outstanding)
        while True:
            if not self._heap or len(self._heap) > 8 * len(ports):
                self._place = {port.index: place for place, port in enumerate(ports)}
                self._heap = sorted((port.outstanding, place) for place, port in enumerate(ports))
            load, place = self._heap[0]
            if ports[place].outstanding == load:
                heapreplace(self._heap, (load + 1, place))
                return ports[place]
            heappop(self._heap)

    def left(self, request: int, port: RoutedFeed) -> None:
        """It holds one less."""
        if port.index in self._place:
            heappush(self._heap, (port.outstanding, self._place[port.index]))


class PrefixAware(RoundRobin):
    """The replica that was sent the longest start of this prompt before, unless load is out of balance.

    Load is out of balance when the busiest replica holds more than ``balance_abs_threshold`` requests more than the
    idlest and more than ``balance_rel_threshold`` times as many; then the idlest gets the request. Otherwise the
    longest match gets it if it covers more than ``cache_threshold`` of the prompt, and if not, the replica with the
    smallest table (then the idlest). The tables are the router's own record of what it sent where, least recently
    used first out, each as large as its replica's KV cache.

    Source: SGLang router documentation, "Cache-Aware Load-Balancing Router".
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._config = config
        hashes = log.stream.prefix_hashes
        self._unit_tokens = 0 if hashes is None else hashes.block_tokens
        self._input_tokens = log.input_tokens
        self._sent = None if hashes is None else engine_module().SentPrefixes(hashes)

    def choose(self, request: int, ports: Sequence[RoutedFeed]) -> RoutedFeed:
        """The replica with the longest match, or the idlest."""
        loads = [port.outstanding for port in ports]
        most, least = max(loads), min(loads)
        config, prompt = self._config, self._input_tokens[request]
        if most - least > config.balance_abs_threshold and most > config.balance_rel_threshold * least:
            chosen = ports[loads.index(least)]
        else:
            matches = self._matches(request, ports)
            longest = max(matches)
            if min(longest * self._unit_tokens, prompt) > config.cache_threshold * prompt:
                best = [port for port, match in zip(ports, matches, strict=True) if match == longest]
                chosen = best[0] if len(best) == 1 else min(best, key=_outstanding)
            else:
                chosen = min(ports, key=self._table_and_load)
        self._record(request, chosen)
        return chosen

    def failed(self, port: RoutedFeed) -> None:
        """Its table is void."""
        if self._sent is not None:
            self._sent.forget(port.index)

    def _table_and_load(self, port: RoutedFeed) -> tuple[int, int]:
        return 0 if self._sent is None else self._sent.size(port.index), port.outstanding

    def _matches(self, request: int, ports: Sequence[RoutedFeed]) -> list[int]:
        """Units at the start of a prompt that each replica was sent before."""
        if self._sent is None:
            return [0] * len(ports)
        found: list[int] = self._sent.leading(request, [port.index for port in ports])
        return found

    def _record(self, request: int, port: RoutedFeed) -> None:
        if self._sent is not None:
            self._sent.record(request, port.index, max(1, port.capacity_tokens // self._unit_tokens))


class KvAware(RoundRobin):
    """The replica with the lowest ``overlap_weight * prefill_blocks + decode_blocks``; the first of equals.

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

    def choose(self, request: int, ports: Sequence[RoutedFeed]) -> RoutedFeed:
        """The cheapest replica."""
        prompt = self._input_tokens[request]
        new = [prompt - cached for cached in self._cached(request, ports)]
        costs = [
            (self._weight * (self._prefilling(port) + tokens) + self._held.get(port.index, 0) + prompt)
            / port.block_size
            for port, tokens in zip(ports, new, strict=True)
        ]
        best = min(range(len(ports)), key=lambda i: (costs[i], ports[i].outstanding))
        index = ports[best].index
        self._held[index] = self._held.get(index, 0) + prompt
        self._pending.setdefault(index, {})[request] = new[best]
        return ports[best]

    def _cached(self, request: int, ports: Sequence[RoutedFeed]) -> list[int]:
        """Prompt tokens that each replica holds now."""
        caches = [port.prefix_cache() for port in ports]
        if self._holders is None:
            return [0] * len(ports)
        whole = self._holders.leading(request, [port.index for port in ports])
        return [cache.spared(request, here) for cache, here in zip(caches, whole, strict=True)]

    def left(self, request: int, port: RoutedFeed) -> None:
        """Its blocks are free."""
        self._held[port.index] -= self._input_tokens[request]
        self._pending[port.index].pop(request, None)

    def _prefilling(self, port: RoutedFeed) -> int:
        """Prompt tokens that the replica has still to compute."""
        pending = self._pending.get(port.index)
        if not pending:
            return 0
        for request in [r for r in pending if self._first_token_s[r] == self._first_token_s[r]]:
            del pending[request]
        return sum(pending.values())


def policy(name: str, config: RouterConfig, log: RunLog) -> Policy:
    """The policy called ``name`` for one run."""
    found: Policy = made(ROUTING[name], config, log)
    return found


def _outstanding(port: RoutedFeed) -> int:
    return port.outstanding
