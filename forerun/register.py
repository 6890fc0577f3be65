"""Decorators that add a plug-in under a name, which a scenario may then use.

A name in use is refused, unless ``replace=True`` is stated; so is a class or function that could not be called later.

>>> import forerun as fr
>>> from simulator.serving.engine import UnifiedScheduler
>>> @fr.register.scheduler("shortest-prompt-first")
... class ShortestFirst(UnifiedScheduler):
...     def add(self, sequence):
...         self.waiting.append(sequence)
...         ordered = sorted(self.waiting, key=lambda waiting: waiting.known_tokens)
...         self.waiting.clear()
...         self.waiting.extend(ordered)

A scenario with ``engine: {scheduler: shortest-prompt-first}`` then runs it. Worker
processes import plug-ins: with ``jobs`` other than 1, define yours in a module that the script imports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import getattr_static, signature
from pathlib import Path
from typing import Any, TypeVar

from forerun.errors import ArgumentError, ForerunError, shown
from simulator.running.drafting import BUILDERS, DraftRequest
from simulator.serving.rules import (
    ADMISSION,
    EVICTION,
    EVICTION_METHODS,
    ROUTING,
    SCHEDULERS,
    EvictionRule,
    SchedulerFacts,
    register_admission,
    register_eviction,
    register_routing,
    register_scheduler,
)
from simulator.speculation.methods import METHODS, MethodFacts
from simulator.speculation.policies import POLICIES, DraftPolicy
from simulator.speculation.speculation_config import POLICY_FIELDS
from simulator.timing import Drafter
from traces.requests.detect import FORMATS, register_reader

Plugin = TypeVar("Plugin", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)
MakeDrafter = TypeVar("MakeDrafter", bound=Callable[[DraftRequest], Drafter])
MakePolicy = TypeVar("MakePolicy", bound=Callable[[int], DraftPolicy])
Reader = TypeVar("Reader", bound=Callable[[Path], Iterable[Mapping[str, object]]])


def _adding(
    what: str,
    name: str,
    known: Collection[str],
    replace: bool,
    add: Callable[[Any], None],
    takes: int,
    methods: Mapping[str, int],
    base: type = object,
) -> Callable[[Plugin], Plugin]:
    """Decorator that registers a plug-in and returns it unchanged.

    Args:
        what: name of the function of this module that is called.
        name: name of the plug-in.
        known: names in use.
        replace: whether a name in use is allowed.
        add: function that adds the plug-in to its registry.
        takes: number of arguments that the plug-in is called with.
        methods: methods that a class needs, with the number of arguments that each is called with.
        base: required base class.

    Raises:
        ForerunError: the name is in use, or the plug-in does not accept the arguments of its later calls.
    """
    if not isinstance(name, str) or not name.strip():
        raise ForerunError(f"fr.register.{what}: a name is needed, as in @fr.register.{what}('mine')")
    if name not in known and not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
        raise ForerunError(f"fr.register.{what}: {shown(name)}: a name is lower-case words with dashes between them")
    if name in known and not replace:
        raise ForerunError(f"fr.register.{what}: the name {name!r} is in use; choose another, or state replace=True")

    def decorate(plugin: Plugin) -> Plugin:
        place = f"fr.register.{what}({name!r}): {getattr(plugin, '__name__', repr(plugin))}"
        if not callable(plugin) or (base is not object and not isinstance(plugin, type)):
            raise ForerunError(f"{place} is not a class{'' if base is not object else ' or a function'}")
        if isinstance(plugin, type) and base not in (object, type) and not issubclass(plugin, base):
            raise ForerunError(f"{place} does not build on {base.__name__} of simulator.serving.engine")
        _check_call(place, plugin, takes)
        for method, count in methods.items() if isinstance(plugin, type) else ():
            if getattr(plugin, method, None) in (None, getattr(base, "_plan", None)):  # a base's _plan is abstract
                raise ForerunError(f"{place} has no method {method}")
            bound = isinstance(getattr_static(plugin, method), staticmethod | classmethod)
            _check_call(f"{place}.{method}", getattr(plugin, method), count, 0 if bound else 1)
        try:
            add(plugin)
        except TypeError as error:
            raise ArgumentError("facts", str(error)) from None
        return plugin

    return decorate


def _check_call(place: str, function: Callable[..., Any], count: int, itself: int = 0) -> None:
    """Refuse a function that cannot be called with ``itself + count`` positional arguments."""
    try:
        signature(function).bind(*range(itself + count))
    except TypeError as error:
        raise ForerunError(f"{place} is called with {count} argument{'s' * (count != 1)}: {error}") from None
    except ValueError:  # a compiled function without a signature
        return


def scheduler(name: str, *, replace: bool = False, **facts: Any) -> Callable[[Class], Class]:
    """Add a batching rule; ``engine.scheduler: NAME`` uses it.

    Args:
        name: name of the rule in scenarios.
        facts: fields of :class:`simulator.serving.rules.SchedulerFacts`, such as ``cuts_prompts=False``.

    The class is a subclass of one in ``simulator.serving.engine``, such as ``UnifiedScheduler`` (vLLM V1's rule). A
    replica that uses it runs interpreted. Most rules override ``add`` (a request joins ``waiting``) and ``_plan`` (the
    step); a preempted request returns to the head of ``waiting``. Set ``first_come=True`` if requests join the batch in
    order of arrival; every run is then checked for this. ``fr.testing.check_scheduler`` checks the class.
    """
    from simulator.serving.engine import Scheduler

    def add(make: Class) -> None:
        register_scheduler(name, SchedulerFacts(make, **facts))

    return _adding("scheduler", name, SCHEDULERS, replace, add, 3, {"add": 1, "_plan": 0}, Scheduler)


def router(name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Add a routing policy; ``engine.routing: NAME`` uses it.

    The class is a :class:`simulator.serving.fleet.routing.Policy`, built from the router's settings and the run's log;
    ``fr.testing.check_router`` checks it.
    """
    methods = {"choose": 2, "left": 2, "failed": 1}
    return _adding("router", name, ROUTING, replace, lambda make: register_routing(name, make), 2, methods, type)


def admission(name: str, *, replace: bool = False) -> Callable[[Class], Class]:
    """Add an admission rule; ``router.when_full: NAME`` uses it.

    The class is a :class:`simulator.serving.fleet.router.Admission`, built from the router's settings;
    ``fr.testing.check_admission`` checks it.
    """
    methods = {"takers": 1, "refusal": 2}
    return _adding("admission", name, ADMISSION, replace, lambda make: register_admission(name, make), 1, methods, type)


def eviction(name: str, *, replace: bool = False, **facts: Any) -> Callable[[Class], Class]:
    """Add an eviction policy; ``engine.prefix_cache_eviction: NAME`` and ``eviction: NAME`` of a store use it.

    Args:
        name: name of the policy in scenarios.
        facts: fields of :class:`simulator.serving.rules.EvictionRule`, such as ``by_session=True``.

    The class builds on ``simulator.serving.engine.Eviction``, whose methods it overrides, or has the same methods. It
    is made from :class:`simulator.serving.kv_stores.EvictionFacts`, once for each cache and store. Compiled replicas
    call it too. ``fr.testing.check_eviction`` checks it.
    """

    def add(make: Class) -> None:
        register_eviction(name, EvictionRule(make, **facts))

    return _adding("eviction", name, EVICTION, replace, add, 1, EVICTION_METHODS, type)


def drafter(name: str, *, replace: bool = False, **facts: Any) -> Callable[[MakeDrafter], MakeDrafter]:
    """Add a speculation method; ``speculation.method: NAME`` uses it.

    Args:
        name: name of the method in scenarios.
        facts: fields of :class:`simulator.speculation.methods.MethodFacts`, such as ``draft_slots=False``.

    The decorated class or function makes a :class:`simulator.timing.Drafter` from a
    :class:`simulator.running.drafting.DraftRequest`; ``fr.testing.check_drafter`` checks it.
    """

    def add(make: MakeDrafter) -> None:
        METHODS[name], BUILDERS[name] = MethodFacts(**facts), make

    return _adding("drafter", name, METHODS, replace, add, 1, {"parts": 1})


def policy(name: str, *, replace: bool = False) -> Callable[[MakePolicy], MakePolicy]:
    """Add a policy that chooses the number of draft tokens in each step; ``speculation.policy: NAME`` uses it.

    The decorated class or function makes a :class:`simulator.speculation.DraftPolicy` from the number of draft tokens
    of a full proposal, once per replica; ``fr.testing.check_policy`` checks it.
    """

    def add(make: MakePolicy) -> None:
        POLICY_FIELDS[name], POLICIES[name] = (), make

    return _adding("policy", name, POLICY_FIELDS, replace, add, 1, {"choose": 1, "observe": 2})


def reader(name: str, title: str = "", *, replace: bool = False) -> Callable[[Reader], Reader]:
    """Add a format of request traces; ``workload.format: NAME`` and ``--format NAME`` use it.

    The decorated function takes the path of a file and yields one mapping per request with the canonical columns:
    ``arrival_s``, ``input_tokens``, ``output_tokens`` and the optional ones; ``fr.testing.check_reader`` checks it on a
    file.
    """
    known = {"auto", *FORMATS}
    return _adding("reader", name, known, replace, lambda read: register_reader(name, title or name, read), 1, {})
