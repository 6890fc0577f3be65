"""Decorators that add a plug-in under a name, which a scenario may then use.

>>> import forerun as fr
>>> from simulator.serving.engine import UnifiedScheduler
>>> @fr.register.scheduler("shortest-first")
... class ShortestFirst(UnifiedScheduler):
...     def add(self, sequence):
...         self.waiting.append(sequence)
...         ordered = sorted(self.waiting, key=lambda waiting: waiting.known_tokens)
...         self.waiting.clear()
...         self.waiting.extend(ordered)

A scenario with ``engine: {scheduler: shortest-first}`` then runs it. Worker
processes import plug-ins: with ``jobs`` other than 1, define yours in a module that the script imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from forerun.errors import ArgumentError
from simulator.running.drafting import BUILDERS, DraftRequest
from simulator.serving.rules import SchedulerFacts, register_admission, register_routing, register_scheduler
from simulator.speculation.methods import METHODS, MethodFacts
from simulator.speculation.policies import POLICIES, DraftPolicy
from simulator.speculation.speculation_config import POLICY_FIELDS
from simulator.timing import Drafter
from traces.requests.detect import register_reader

Plugin = TypeVar("Plugin", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
MakeDrafter = TypeVar("MakeDrafter", bound=Callable[[DraftRequest], Drafter])
MakePolicy = TypeVar("MakePolicy", bound=Callable[[int], DraftPolicy])
Reader = TypeVar("Reader", bound=Callable[[Path], Iterable[Mapping[str, Any]]])


def _adding(add: Callable[[Any], None]) -> Callable[[Plugin], Plugin]:
    """A decorator that adds what it decorates and leaves it as it is."""

    def decorate(plugin: Plugin) -> Plugin:
        try:
            add(plugin)
        except TypeError as error:
            raise ArgumentError("facts", str(error)) from None
        return plugin

    return decorate


def scheduler(name: str, **facts: Any) -> Callable[[Class], Class]:
    """Add a batching rule; ``engine.scheduler: NAME`` uses it.

    Args:
        name: in scenarios.
        facts: fields of :class:`simulator.serving.rules.SchedulerFacts`, such as ``cuts_prompts=False``.

    The class builds on one of ``simulator.serving.engine``, such as ``UnifiedScheduler`` (vLLM V1's rule). A replica
    that uses it runs interpreted. Most rules override ``add`` (a request joins ``waiting``) and ``_plan`` (the step);
    a preempted request returns to the head of ``waiting``. State ``first_come=True`` if requests join the batch in
    the order in which they came: every run is then checked for it.
    """
    return _adding(lambda make: register_scheduler(name, SchedulerFacts(make, **facts)))


def router(name: str) -> Callable[[Class], Class]:
    """Add a routing policy; ``engine.routing: NAME`` uses it.

    The class is a :class:`simulator.serving.fleet.routing.Policy`, built from the router's settings and the run's log.
    """
    return _adding(lambda make: register_routing(name, make))


def admission(name: str) -> Callable[[Class], Class]:
    """Add an admission rule; ``router.when_full: NAME`` uses it.

    The class is a :class:`simulator.serving.fleet.router.Admission`, built from the router's settings.
    """
    return _adding(lambda make: register_admission(name, make))


def drafter(name: str, **facts: Any) -> Callable[[MakeDrafter], MakeDrafter]:
    """Add a speculation method; ``speculation.method: NAME`` uses it.

    Args:
        name: in scenarios.
        facts: fields of :class:`simulator.speculation.methods.MethodFacts`, such as ``draft_slots=False``.

    The decorated class or function makes a :class:`simulator.timing.Drafter` from a
    :class:`simulator.running.drafting.DraftRequest`; ``simulator.timing.check_drafter`` tests it.
    """

    def add(make: MakeDrafter) -> None:
        METHODS[name], BUILDERS[name] = MethodFacts(**facts), make

    return _adding(add)


def policy(name: str) -> Callable[[MakePolicy], MakePolicy]:
    """Add a policy that chooses the number of draft tokens in each step; ``speculation.policy: NAME`` uses it.

    The decorated class or function makes a :class:`simulator.speculation.DraftPolicy` from the draft tokens of a full
    proposal, once per replica; ``simulator.speculation.check_policy`` tests it.
    """

    def add(make: MakePolicy) -> None:
        POLICY_FIELDS[name], POLICIES[name] = (), make

    return _adding(add)


def reader(name: str, title: str = "") -> Callable[[Reader], Reader]:
    """Add a format of request traces; ``workload.format: NAME`` and ``--format NAME`` use it.

    The decorated function takes the path of a file and yields one mapping per request with the canonical columns:
    ``arrival_s``, ``input_tokens``, ``output_tokens`` and the optional ones.
    """
    return _adding(lambda read: register_reader(name, title or name, read))
