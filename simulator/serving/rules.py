"""Registry of schedulers, routing, admission and eviction policies, with the properties of each.

A further one is a class and an entry here; ``register_scheduler``, ``register_routing``, ``register_admission``
and ``register_eviction`` add one of your own, which a scenario may then name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

from forerun.types import OneOf


@dataclass(frozen=True, slots=True)
class SchedulerFacts:
    """Properties of a scheduler that other parts of the simulator depend on."""

    make: str | Callable[..., Any]
    """Makes a ``Scheduler`` from limits, prefix cache and swap space. A class of your own that builds on one of
    ``simulator.serving.engine``, or the name of a class there."""
    mixes: bool = True
    """True if a step may mix prompts and decoding sequences; otherwise prompts go first."""
    cuts_prompts: bool = True
    """True if the scheduler can split a prompt at the end of a step's token budget."""
    budgets_decodes: bool = True
    """True if decoding sequences count against the token budget; if not, all of them decode."""
    continuous: bool = True
    """True if requests join and leave the batch at any step."""
    swaps: bool = False
    """True if the scheduler can swap preempted sequences to host memory."""
    pipelines: bool = False
    """True if the scheduler can keep several batches in flight in a pipeline."""
    multi_step: bool = False
    """True if several decode steps may run between two looks at the queue (``num_scheduler_steps``)."""
    by_priority: bool = False
    """True if the scheduler takes request priorities into account."""
    first_come: bool = False
    """True if requests of one replica join the batch in the order of arrival; every run is checked for it."""
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Command-line flags that select the scheduler, by engine; engines without such a scheduler are omitted."""


SCHEDULERS: dict[str, SchedulerFacts] = {
    "vllm-v1": SchedulerFacts(
        "UnifiedScheduler", swaps=True, pipelines=True, first_come=True, flags={"vllm": (), "sglang": ()}
    ),
    "priority": SchedulerFacts(
        "PriorityScheduler", by_priority=True, flags={"vllm": ("--scheduling-policy", "priority")}
    ),
    "prefill-first": SchedulerFacts(
        "PrefillFirstScheduler",
        mixes=False,
        cuts_prompts=False,
        budgets_decodes=False,
        multi_step=True,
        first_come=True,
    ),
    "sglang": SchedulerFacts(
        "SglangScheduler", mixes=False, budgets_decodes=False, first_come=True, flags={"sglang": ()}
    ),
    "guaranteed-no-evict": SchedulerFacts("NoEvictScheduler", first_come=True),
    "static": SchedulerFacts("StaticScheduler", mixes=False, budgets_decodes=False, continuous=False, first_come=True),
}
ROUTING: dict[str, str | Callable[..., Any]] = {
    "round-robin": "simulator.serving.fleet.routing:RoundRobin",
    "random": "simulator.serving.fleet.routing:Random",
    "least-outstanding": "simulator.serving.fleet.routing:LeastOutstanding",
    "prefix-aware": "simulator.serving.fleet.routing:PrefixAware",
    "kv-aware": "simulator.serving.fleet.routing:KvAware",
    "scored": "simulator.serving.fleet.scored:Scored",
}
"""Factories by name: each makes a ``Policy`` from a router's settings and a run's log."""


@dataclass(frozen=True, slots=True)
class EvictionRule:
    """Properties of an eviction policy that a scenario's checks depend on."""

    make: str | Callable[..., Any]
    """Makes a policy from ``EvictionFacts``. A callable of your own, or the name of a class of the engine."""
    retains: bool = False
    """True if it keeps blocks for a number of seconds."""
    by_session: bool = False
    """True if it needs to know which requests wait for which."""
    clairvoyant: bool = False
    """True if it needs the order of all requests, from a reference run."""


EVICTION: dict[str, EvictionRule] = {
    "lru": EvictionRule("Eviction"),
    "ttl": EvictionRule("TimeToLive", retains=True),
    "pin": EvictionRule("PinUntilReturn", retains=True, by_session=True),
    "session-aware": EvictionRule("SessionAware", by_session=True),
    "largest-first": EvictionRule("LargestFirst"),
    "smallest-first": EvictionRule("SmallestFirst"),
    "belady": EvictionRule("Belady", clairvoyant=True),
}
EVICTION_METHODS = {"begins": 2, "ends": 2, "rank": 2, "kept_until": 2, "waits": 1}
"""Methods of an eviction policy, with their numbers of arguments."""
ADMISSION: dict[str, str | Callable[..., Any]] = {
    "queue": "simulator.serving.fleet.router:QueueWhenFull",
    "refuse": "simulator.serving.fleet.router:RefuseWhenFull",
}
"""Factories by name: each makes an ``Admission`` from a router's settings."""


def register_scheduler(name: str, facts: SchedulerFacts) -> None:
    """Register a custom batching rule under a name for scenarios."""
    SCHEDULERS[name] = facts


def register_routing(name: str, make: Callable[..., Any]) -> None:
    """Register a custom routing policy under a name for scenarios."""
    ROUTING[name] = make


def register_admission(name: str, make: Callable[..., Any]) -> None:
    """Register a custom admission rule under a name for scenarios."""
    ADMISSION[name] = make


def register_eviction(name: str, rule: EvictionRule) -> None:
    """Register a custom eviction policy under a name for scenarios."""
    EVICTION[name] = rule


def made(make: str | Callable[..., Any], *arguments: Any) -> Any:
    """Call ``make`` with the arguments; a string ``module:name`` is imported first."""
    if not isinstance(make, str):
        return make(*arguments)
    module, _, name = make.partition(":")
    return getattr(import_module(module), name)(*arguments)


SchedulerName = Annotated[str, OneOf(SCHEDULERS)]
RoutingName = Annotated[str, OneOf(ROUTING)]
AdmissionName = Annotated[str, OneOf(ADMISSION)]
EvictionName = Annotated[str, OneOf(EVICTION)]
