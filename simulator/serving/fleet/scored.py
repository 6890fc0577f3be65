"""Routing by filters and weighted scorers over a view of the replicas, as llm-d's endpoint picker does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.errors import ForerunError
from simulator.serving.clock import ROUTE
from simulator.serving.fleet.fleet_config import FilterConfig, RouterConfig, ScorerConfig
from simulator.serving.fleet.routing import PrefixTables, PromptsInFlight, RoundRobin
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint

if TYPE_CHECKING:
    from simulator.serving.timeline import Timeline

MOST_SCRAPES = 3_000_000
"""Maximum number of scrapes of one run."""
Endpoints = Sequence[ReplicaEndpoint]


class ReplicaState(NamedTuple):
    """Metrics of a replica, as its engine exports them."""

    waiting: int = 0
    running: int = 0
    kv_use: float = 0.0
    """Share of the KV blocks that running requests hold."""


def state_of(endpoint: ReplicaEndpoint) -> ReplicaState:
    """Present metrics of a replica; requests that its API server has not passed on count as waiting."""
    scheduler = endpoint.scheduler()
    running = len(scheduler.running)
    return ReplicaState(
        endpoint.outstanding - running, running, scheduler.used_blocks / max(1, scheduler.limits.num_blocks)
    )


class RouterView:
    """Replicas as the router knows them: their metrics as of the last scrape, its own requests exactly."""

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        self._interval_s, self._endless = config.scrape_interval_s, log.endless
        self._states: dict[int, ReplicaState] = {}
        self._prefixes = PrefixTables(config, log, config.prefixes != "sent")
        self._input_tokens = log.input_tokens
        self.in_flight = PromptsInFlight(log)
        """Prompt tokens that replicas have still to compute, without those that they cache."""
        self.cold: dict[int, int] = {}
        """Last request without a cached prefix that each replica was sent, counted from 1."""
        self._sent_to: dict[int, int] = {}
        """Replica of each request that others wait for."""
        self._before = (
            {} if log.stream.follows is None else {int(late): int(early) for early, late in log.stream.follows}
        )
        self._matched: tuple[int, dict[int, int]] = (-1, {})

    def start(self, env: Timeline, endpoints: Endpoints) -> None:
        """Scrape every ``scrape_interval_s`` from now on; with interval 0, metrics are always the present ones."""
        if self._interval_s:
            self._scrape((env, endpoints, MOST_SCRAPES))

    def _scrape(self, scrape: tuple[Timeline, Endpoints, int]) -> None:
        env, endpoints, left = scrape
        self._states = {endpoint.index: state_of(endpoint) for endpoint in endpoints}
        if not left and not self._endless:
            raise ForerunError(
                f"router.scrape_interval_s: {float(env.now):,.0f} s have over {MOST_SCRAPES:,} scrapes; "
                "raise it, or serve fewer requests"
            )
        if left == MOST_SCRAPES or env.peek() < inf:  # otherwise nothing will ever happen again
            env.call(self._scrape, (env, endpoints, left - 1), self._interval_s, ROUTE)

    def state(self, endpoint: ReplicaEndpoint) -> ReplicaState:
        """Metrics of a replica as the router knows them."""
        return self._states.get(endpoint.index, ReplicaState()) if self._interval_s else state_of(endpoint)

    def matched(self, request: int, endpoints: Endpoints) -> list[int]:
        """Prompt tokens that each replica caches, as far as the router knows."""
        of, tokens = self._matched
        if of != request or any(endpoint.index not in tokens for endpoint in endpoints):
            prompt, known = self._input_tokens[request], self._prefixes.leading(request, endpoints)
            tokens = {endpoint.index: min(prompt, count) for endpoint, count in zip(endpoints, known, strict=True)}
            self._matched = request, tokens
        return [tokens[endpoint.index] for endpoint in endpoints]

    def shares(self, request: int, endpoints: Endpoints) -> list[float]:
        """Shares of the prompt that each replica caches."""
        return [tokens / self._input_tokens[request] for tokens in self.matched(request, endpoints)]

    def new_tokens(self, request: int, endpoints: Endpoints) -> list[int]:
        """Prompt tokens that each replica would have to compute."""
        return [self._input_tokens[request] - tokens for tokens in self.matched(request, endpoints)]

    def session(self, request: int) -> int | None:
        """Replica that served the turn before; None for the first turn."""
        return self._sent_to.get(self._before.get(request, -1))

    def sent(self, request: int, endpoint: ReplicaEndpoint, endpoints: Endpoints) -> None:
        """Record that a request goes to one of the replicas that could take it."""
        if not any(self.matched(request, endpoints)):
            self.cold[endpoint.index] = max(self.cold.values(), default=0) + 1
        self.in_flight.add(request, endpoint, self.new_tokens(request, [endpoint])[0])
        self._prefixes.record(request, endpoint)
        self._matched = -1, {}
        if self._before:
            self._sent_to[request] = endpoint.index

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Forget the prefixes of a replica that has lost its cache."""
        self._prefixes.forget(endpoint)


def _even(counts: Sequence[int]) -> list[float]:
    """1 for the smallest count and 0 for the largest, linear between; 1 if all are equal."""
    least, most = min(counts), max(counts)
    return [1.0 if most == least else (most - count) / (most - least) for count in counts]


def _active(config: ScorerConfig, counts: Sequence[int]) -> list[float]:
    """1 up to ``idle`` requests, else the distance to the busiest replica as a share of its requests."""
    most = max(counts)
    return [1.0 if count <= config.idle else (most - count) / most * config.max_busy_score for count in counts]


def _unused_longest(view: RouterView, request: int, endpoints: Endpoints) -> list[float]:
    """For requests without a cached prefix, the order in which replicas were last sent such a request; else 0.5."""
    if any(view.matched(request, endpoints)):
        return [0.5] * len(endpoints)
    order = sorted(range(len(endpoints)), key=lambda place: view.cold.get(endpoints[place].index, 0))
    if len(order) == 1 or not view.cold:
        return [1.0] * len(endpoints)
    rank = {place: number for number, place in enumerate(order)}
    unused = [endpoint.index not in view.cold for endpoint in endpoints]
    return [1.0 if unused[place] else 1.0 - rank[place] / (len(order) - 1) for place in range(len(endpoints))]


def _prefix(config: ScorerConfig, view: RouterView, request: int, endpoints: Endpoints) -> list[float]:
    """Cached share of the prompt, mixed with its cached tokens by ``length_weight``."""
    weight, full = config.length_weight, config.length_tokens
    lengths = [min(1.0, tokens / full) ** 2 for tokens in view.matched(request, endpoints)]
    shares = view.shares(request, endpoints)
    return [weight * length + (1.0 - weight) * share for length, share in zip(lengths, shares, strict=True)]


def _token_load(config: ScorerConfig, view: RouterView, request: int, endpoints: Endpoints) -> list[float]:
    """1 without prompt tokens in flight, this request's included, down to 0 at ``threshold_tokens``."""
    new = view.new_tokens(request, endpoints)
    loads = [view.in_flight.tokens(endpoint) + tokens for endpoint, tokens in zip(endpoints, new, strict=True)]
    return [1.0 - min(1.0, load / config.threshold_tokens) for load in loads]


def _load_aware(config: ScorerConfig, view: RouterView, request: int, endpoints: Endpoints) -> list[float]:
    """0.5 without waiting requests, down to 0 at ``threshold`` of them."""
    return [0.5 * (1.0 - min(1.0, view.state(one).waiting / config.threshold)) for one in endpoints]


Scorer = Callable[[ScorerConfig, RouterView, int, Endpoints], list[float]]
SCORERS: dict[str, Scorer] = {
    "prefix": _prefix,
    "token-load": _token_load,
    "requests": lambda config, view, request, endpoints: _active(config, [one.outstanding for one in endpoints]),
    "queue": lambda config, view, request, endpoints: _even([view.state(one).waiting for one in endpoints]),
    "running": lambda config, view, request, endpoints: _even([view.state(one).running for one in endpoints]),
    "kv-use": lambda config, view, request, endpoints: [1.0 - view.state(one).kv_use for one in endpoints],
    "load-aware": _load_aware,
    "no-hit-lru": lambda config, view, request, endpoints: _unused_longest(view, request, endpoints),
    "session": lambda config, view, request, endpoints: [
        float(one.index == view.session(request)) for one in endpoints
    ],
}
"""Scores of replicas by scorer; higher is better.

Source: READMEs of llm-d-router's plug-ins (August 2026).
"""


class Scored(RoundRobin):
    """Chooses among the replicas that pass all filters the one with the highest weighted sum of scores.

    ``prefix-affinity`` keeps the replicas that cache at least ``threshold`` of the prompt, unless there is none, it
    explores, or the least loaded of them needs over ``max_ttft_penalty_s`` more for its prompts in flight than the
    least loaded of the others, at ``peak_prefill_tokens_per_s``. ``session-affinity`` keeps the replica of the turn
    before. Equal scores are decided at random, by the run's seed, or for the first under ``picker: first``.

    Source: llm-d-router, prefix-cache-affinity-filter, scorers and max-score-picker (August 2026).
    """

    def __init__(self, config: RouterConfig, log: RunLog) -> None:
        super().__init__(config, log)
        self._config = config
        self._scorers = [(SCORERS[scorer.scorer], scorer) for scorer in config.scorers]
        self._rng = np.random.default_rng([log.seed, 0x5C0E])
        self.view = RouterView(config, log)

    def choose(self, request: int, endpoints: Endpoints) -> ReplicaEndpoint:
        """The best replica that passes the filters."""
        self.view.matched(request, endpoints)  # once for all, whatever the filters leave
        left = endpoints
        for one in self._config.filters:
            left = self._kept(one, request, left)
        totals = [0.0] * len(left)
        for score, scorer in self._scorers:
            for place, value in enumerate(score(scorer, self.view, request, left)):
                totals[place] += scorer.weight * value
        chosen = left[self._picked(totals)]
        self.view.sent(request, chosen, endpoints)
        return chosen

    def left(self, request: int, endpoint: ReplicaEndpoint) -> None:
        """Its prompt is no longer in flight."""
        self.view.in_flight.drop(request, endpoint)

    def failed(self, endpoint: ReplicaEndpoint) -> None:
        """Forget what the replica cached."""
        self.view.failed(endpoint)

    def _kept(self, config: FilterConfig, request: int, endpoints: Endpoints) -> Endpoints:
        """Replicas that pass a filter; all of them where none does."""
        view = self.view
        if config.filter == "session-affinity":
            return [one for one in endpoints if one.index == view.session(request)] or endpoints
        if config.exploration and self._rng.random() < config.exploration:
            return endpoints
        shares = view.shares(request, endpoints)
        sticky = [one for one, share in zip(endpoints, shares, strict=True) if share >= config.threshold]
        if not sticky or len(sticky) == len(endpoints):
            return endpoints
        if config.max_ttft_penalty_s:
            assert config.peak_prefill_tokens_per_s is not None
            others = [one for one, share in zip(endpoints, shares, strict=True) if share < config.threshold]
            least, of_others = (min(map(view.in_flight.tokens, part)) for part in (sticky, others))
            if (least - of_others) / config.peak_prefill_tokens_per_s > config.max_ttft_penalty_s:
                return endpoints
        return sticky

    def _picked(self, totals: Sequence[float]) -> int:
        """Place of the chosen replica."""
        picker, best = self._config.picker, max(totals)
        if picker == "weighted-random" and sum(totals) > 0:
            return int(self._rng.choice(len(totals), p=np.array(totals) / sum(totals)))
        ties = (
            range(len(totals)) if picker in ("random", "weighted-random") else np.flatnonzero(np.array(totals) == best)
        )
        return int(ties[0] if picker == "first" or len(ties) == 1 else ties[int(self._rng.integers(len(ties)))])
