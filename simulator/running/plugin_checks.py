"""Conformance checks of schedulers, routing, admission and eviction policies, and readers on small inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite, isnan
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from forerun.errors import ForerunError, InvariantError
from simulator.running.run import simulate
from simulator.running.scenario import Scenario
from simulator.serving import engine
from simulator.serving.fleet.fleet_config import RouterConfig
from simulator.serving.fleet.router import Admission
from simulator.serving.fleet.routing import Policy
from simulator.serving.log import RunLog
from simulator.serving.request_source import ReplicaEndpoint
from simulator.serving.rules import ADMISSION, EVICTION, ROUTING, SCHEDULERS, EvictionRule, SchedulerFacts
from traces.requests.formats import LAYOUTS
from traces.requests.table import FLOAT_COLUMNS

Entry = TypeVar("Entry")
NAME = "checked-plug-in"
TOKEN_COLUMNS = ("input_tokens", "output_tokens")
MOST_PLANS = 5_000
"""Number of steps after which a scheduler counts as stuck; the check scenarios need some hundreds."""
REQUESTS = 24
BURST = {
    "arrivals": {"process": "burst"},
    "input_tokens": {"distribution": "uniform", "min": 20, "max": 300},
    "output_tokens": {"distribution": "uniform", "min": 2, "max": 40},
    "num_requests": REQUESTS,
}
POISSON = BURST | {"arrivals": {"process": "poisson", "request_rate": 200.0}}
ENGINE = {"stepping": "exact-steps", "max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 512}
ENGINE |= {"entry_point": "offline"}  # an API server hands on the prompts of a burst one by one
SCHEDULED: Mapping[str, dict[str, Any]] = {
    "a burst": {"workload": BURST},
    "Poisson arrivals": {"workload": POISSON},
    "one place in the batch": {"workload": BURST, "engine": ENGINE | {"max_num_seqs": 1}},
    "few KV blocks": {"workload": BURST, "engine": ENGINE | {"num_kv_blocks": 40}},
    "a small token budget": {"workload": BURST, "engine": ENGINE | {"max_num_batched_tokens": 64}},
}
"""Scenarios of one replica by their name in messages; the last scenario is for schedulers that cut prompts."""
FAILING = {"events": [{"replica": 1, "at_s": 0.02, "down_s": 0.2}, {"replica": 0, "at_s": 0.05, "down_s": 0.1}]}
ALL_FAILING = {"events": [{"replica": number, "at_s": 0.02, "down_s": 0.05} for number in range(3)]}
ROUTED: Mapping[str, dict[str, Any]] = {
    "a burst": {"workload": BURST},
    "Poisson arrivals": {"workload": POISSON},
    "shared prompts": {"workload": POISSON | {"sessions": {"turns": 3, "think_time_s": 0.01}}},
    "full replicas": {"workload": BURST, "router": {"max_outstanding": 2}},
    "a full queue": {"workload": BURST, "router": {"max_outstanding": 2, "max_queue": 4}},
    "failing replicas": {"workload": POISSON, "faults": FAILING},
    "no replica up": {"workload": POISSON, "faults": ALL_FAILING},
}
"""Scenarios of three replicas by their name in messages."""


def check_scheduler(make: type[engine.Scheduler], **facts: Any) -> None:
    """Check a batching rule on small workloads: a burst, arrivals, one batch slot, few KV blocks, a small token budget.

    The checks: every request is in exactly one queue or batch; KV blocks have one owner and are freed; batch, blocks
    and tokens of a step are within their limits; requests end; two runs are equal; every run satisfies its invariants.

    Args:
        make: subclass of a scheduler in ``simulator.serving.engine``.
        facts: as in :func:`forerun.register.scheduler`.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """
    known = SchedulerFacts(make, **facts)
    name = make.__name__

    class Watched(make):  # type: ignore[misc,valid-type]
        """Subclass that checks every plan."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.requests: dict[int, Any] = {}
            self.plans = 0

        def add(self, sequence: Any) -> None:
            self.requests[sequence.index] = sequence
            super().add(sequence)

        def release(self, sequence: Any) -> None:
            self.requests.pop(sequence.index, None)
            super().release(sequence)

        def plan(self) -> Any:
            plan = super().plan()
            self.plans += 1
            for problem in _plan_problems(self, plan, known):
                raise ForerunError(problem)
            return plan

    entry = SchedulerFacts(**(asdict(known) | {"make": Watched}))
    for words, sections in SCHEDULED.items():
        if known.cuts_prompts or words != "a small token budget":
            settings = {"scheduler": NAME, **sections.get("engine", ENGINE)}
            _check_runs(name, words, SCHEDULERS, entry, 1, sections | {"engine": settings})


def _plan_problems(scheduler: Any, plan: Any, facts: SchedulerFacts) -> Iterator[str]:
    """Messages about rules that a scheduler's state breaks after it has planned a step."""
    limits, sequences = scheduler.limits, scheduler.everything()
    places = [sequence.index for sequence in sequences]
    for index in scheduler.requests.keys() - set(places):
        yield f"request {index} is lost: it neither waits nor runs"
    for index in places:
        if places.count(index) > 1:
            yield f"request {index} is in {places.count(index)} places of the queue and the batch"
    if len(scheduler.running) > limits.max_num_seqs:
        yield f"{len(scheduler.running)} requests run, max_num_seqs is {limits.max_num_seqs}"
    for sequence in [*scheduler.waiting, *scheduler.swapped]:
        if sequence.blocks:
            yield f"request {sequence.index} waits and holds {sequence.blocks} KV blocks"
    owned = sum(sequence.blocks for sequence in sequences)
    if owned > scheduler.used_blocks:
        yield f"requests own {owned} KV blocks, {scheduler.used_blocks} are in use: some have two owners"
    if scheduler.used_blocks > limits.num_blocks:
        yield f"{scheduler.used_blocks} KV blocks are in use, there are {limits.num_blocks}"
    scheduled = [sequence.index for sequence in (*plan.decodes, *(sequence for sequence, _ in plan.chunks))]
    if len(set(scheduled)) < len(scheduled):
        yield "a step schedules a request twice"
    if scheduler.waiting and not (scheduler.running or scheduled or plan.padding or scheduler.closed):
        yield "a step is empty while requests wait and none runs"
    if any(tokens < 1 for _, tokens in plan.chunks):
        yield "a step computes a chunk without a token"
    tokens = sum(tokens for _, tokens in plan.chunks)
    tokens += (plan.steady + len(plan.decodes)) * scheduler.query_len if facts.budgets_decodes else 0
    if tokens > limits.max_num_batched_tokens:
        yield f"a step has {tokens} tokens, max_num_batched_tokens is {limits.max_num_batched_tokens}"
    if scheduler.plans > MOST_PLANS:
        yield f"{MOST_PLANS} steps do not end {REQUESTS} requests"


class _WatchedPolicy:
    """Wrapper of a routing policy that checks every choice."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.left, self.failed = policy.left, policy.failed

    def choose(self, request: int, endpoints: Sequence[ReplicaEndpoint]) -> ReplicaEndpoint:
        offered = list(endpoints)
        chosen = self._policy.choose(request, endpoints)
        if list(endpoints) != offered:
            raise ForerunError("choose changes the list of replicas that it is given")
        if getattr(chosen, "down", False):
            raise ForerunError(f"request {request} is sent to replica {chosen.index}, which has failed")
        if not any(chosen is endpoint for endpoint in offered):
            raise ForerunError(f"request {request} is sent to {chosen!r}, which is none of the replicas to choose from")
        return chosen


class _WatchedAdmission:
    """Wrapper of an admission rule that checks every answer."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def takers(self, endpoints: Sequence[ReplicaEndpoint]) -> Sequence[ReplicaEndpoint]:
        offered = list(endpoints)
        takers = self._admission.takers(endpoints)
        if list(endpoints) != offered:
            raise ForerunError("takers changes the list of replicas that it is given")
        for taker in takers:
            if not any(taker is endpoint for endpoint in offered):
                raise ForerunError(f"takers returns {taker!r}, which is none of the replicas that it is given")
        if len({id(taker) for taker in takers}) < len(takers):
            raise ForerunError("takers returns a replica twice")
        return takers

    def refusal(self, queued: int, up: bool) -> str | None:
        reason = self._admission.refusal(queued, up)
        if reason is not None and not (isinstance(reason, str) and reason.strip()):
            raise ForerunError(f"refusal returns {reason!r}, neither a reason nor None")
        return reason


def check_router(make: Callable[[RouterConfig, RunLog], Policy]) -> None:
    """Check a routing policy on three replicas: full replicas, failing replicas, no replica up.

    The checks: it chooses one of the offered replicas, which exclude failed ones; it changes no list; requests end; two
    runs are equal; every run satisfies its invariants.

    Args:
        make: class that is built from the router's settings and the run's log.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """

    def watched(config: RouterConfig, log: RunLog) -> Policy:
        return _WatchedPolicy(make(config, log))

    for words, sections in ROUTED.items():
        settings = {**ENGINE, "routing": NAME}
        _check_runs(_name_of(make), words, ROUTING, watched, 3, sections | {"engine": settings})


def check_admission(make: Callable[[RouterConfig], Admission]) -> None:
    """Check an admission rule on three replicas: full replicas, failing replicas, no replica up.

    The checks: it returns only offered replicas, each once; every refusal has a reason; no request waits for ever; two
    runs are equal; every run satisfies its invariants.

    Args:
        make: class that is built from the router's settings.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """

    def watched(config: RouterConfig) -> Admission:
        return _WatchedAdmission(make(config))

    for words, sections in ROUTED.items():
        router = {"max_outstanding": 3, **sections.get("router", {}), "when_full": NAME}
        _check_runs(_name_of(make), words, ADMISSION, watched, 3, sections | {"engine": ENGINE, "router": router})


def check_eviction(make: type, **facts: Any) -> None:
    """Check an eviction policy on sessions with few KV blocks, in the prefix cache and in a store behind it.

    The checks: ranks and times are numbers; requests end; two runs are equal; every run satisfies its invariants.

    Args:
        make: class that is built from ``EvictionFacts``.
        facts: as in :func:`forerun.register.eviction`.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """

    class Watched(make):  # type: ignore[misc]
        """Subclass that checks every answer."""

        def rank(self, hash_block: int, now: float) -> float:
            return _number("rank", super().rank(hash_block, now))

        def kept_until(self, hash_block: int, now: float) -> float:
            return _number("kept_until", super().kept_until(hash_block, now))

    entry = EvictionRule(**(asdict(EvictionRule(make, **facts)) | {"make": Watched}))
    policy = {"name": NAME, "seconds": 0.05} if entry.retains else NAME
    store = {"bytes": 2e6, "eviction": policy}
    settings = ENGINE | {"prefix_cache_eviction": policy, "num_kv_blocks": 60, "kv_stores": [store]}
    load = POISSON | {"sessions": {"turns": 3, "think_time_s": 0.01}}
    _check_runs(make.__name__, "sessions", EVICTION, entry, 2, {"workload": load, "engine": settings})


def _number(method: str, value: object) -> float:
    if not isinstance(value, float | int) or isnan(value):
        raise ForerunError(f"{method} returns {value!r}, not a number")
    return value


def check_reader(read: Callable[[Path], Iterable[Mapping[str, Any]]], file: str | Path) -> None:
    """Check a reader of request traces on a file of its format.

    The checks: it yields mappings with the canonical columns; times are finite, not negative and ascending; token
    counts are integers from 1; two reads of the file are equal.

    Args:
        read: function that yields a mapping for each request of a file.
        file: a sample file of the format with two requests or more.

    Raises:
        ForerunError: a rule is broken; one line about the first broken rule, with the number of the request.
    """
    name = _name_of(read)
    rows = _requests_of(name, read, Path(file))
    known, before = LAYOUTS["forerun"].columns, 0.0
    for number, row in enumerate(rows):
        place = f"{name}: request {number}"
        if not isinstance(row, Mapping):
            raise ForerunError(f"{place} is {row!r}, not a mapping of columns")
        for column in row.keys() - known.keys():
            raise ForerunError(f"{place} has a column {column!r}; columns are {', '.join(known)}")
        for column in ("arrival_s", *TOKEN_COLUMNS):
            if row.get(column) is None:
                raise ForerunError(f"{place} has no {column}")
        for column in FLOAT_COLUMNS:
            value = row.get(column)
            if value is not None and not (_is_number(value) and isfinite(value) and value >= 0):
                raise ForerunError(f"{place}: {column} is {value!r}, not a number of seconds from 0")
        for column in TOKEN_COLUMNS:
            if not (_is_number(row[column]) and row[column] >= 1 and row[column] == int(row[column])):
                raise ForerunError(f"{place}: {column} is {row[column]!r}, not a whole number from 1")
        if row["arrival_s"] < before:
            raise ForerunError(
                f"{place}: arrival_s {row['arrival_s']!r} is before that of the request before, {before!r}"
            )
        before = row["arrival_s"]
    if len(rows) < 2:
        raise ForerunError(f"{name}: {file} has {len(rows)} requests; a sample of two or more is needed")
    if rows != _requests_of(name, read, Path(file)):
        raise ForerunError(f"{name}: {file} reads differently the second time")


def _requests_of(name: str, read: Callable[[Path], Iterable[Mapping[str, Any]]], file: Path) -> list[Mapping[str, Any]]:
    try:
        return list(read(file))
    except ForerunError:
        raise
    except Exception as error:
        raise ForerunError(f"{name}: {file}: {type(error).__name__}: {error}") from error


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _name_of(make: Callable[..., Any]) -> str:
    return getattr(make, "__name__", repr(make))


def _check_runs(
    name: str,
    words: str,
    registered: MutableMapping[str, Entry],
    entry: Entry,
    replicas: int,
    sections: Mapping[str, Any],
) -> None:
    """Run a scenario twice with a registry entry; raise if a run fails or the two differ.

    Args:
        name: name of the plug-in, for messages.
        words: description of the scenario, for messages.
        registered: the registry.
        entry: the plug-in as an entry of the registry.
        replicas: number of replicas in the scenario.
        sections: further sections of the scenario.
    """
    hardware = {"chip": "h100-sxm", "replicas": replicas}
    runs = []
    with _entry(registered, entry):
        scenario = Scenario.model_validate({"model": "llama-3.2-1b", "hardware": hardware, **sections})
        for _ in range(2):
            try:
                runs.append(simulate(scenario).requests)
            except InvariantError as error:
                raise ForerunError(f"{name}: {error.invariant} (with {words})") from error
            except ForerunError as error:
                raise ForerunError(f"{name}: {error} (with {words})") from error
            except Exception as error:
                raise ForerunError(f"{name}: {type(error).__name__}: {error} (with {words})") from error
    for column in ("scheduled_s", "finished_s", "replica"):
        one, other = (getattr(run, column) for run in runs)
        if not np.array_equal(one, other, equal_nan=True):
            raise ForerunError(f"{name}: two runs of one seed differ in {column} (with {words})")


@contextmanager
def _entry(registered: MutableMapping[str, Entry], entry: Entry) -> Iterator[None]:
    """Context manager that adds an entry to a registry temporarily."""
    registered[NAME] = entry
    try:
        yield
    finally:
        del registered[NAME]
