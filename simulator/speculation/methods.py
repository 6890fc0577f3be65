"""Methods of speculation, and the properties of each.

A further one is an entry of ``methods.yaml`` and a builder of its drafter in ``simulator.running.drafting.BUILDERS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.yaml_files import packaged


@dataclass(frozen=True, slots=True)
class EngineName:
    """An engine's name of a method, and the release that it is known from."""

    name: str
    since: str
    date: str
    source: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the engine's speculative config that the method needs."""
    other: str = ""
    """Remark on names that relatives of the method have."""
    sequential: EngineName | None = None
    """Name of the method for drafters with a sequential head (``draft.markov_rank``); None if it is the same."""
    by_confidence: EngineName | None = None
    """Name of the method if drafts are verified by confidence; None if the engine then verifies the whole proposal."""


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """Properties of a method that other parts of the simulator depend on."""

    fields: tuple[str, ...] = ()
    """Fields of ``draft`` that the method uses."""
    trees: bool = False
    """True if the method can draft a tree instead of a chain."""
    draft_slots: bool = True
    """True if the drafter keeps KV of its drafts, so that the engine reserves slots for the next step's drafts.

    Source: vLLM V1 sets ``num_lookahead_tokens`` for EAGLE heads, MTP and draft models only (``vllm/v1/core/sched``).
    """
    checkpoint: bool = True
    """True if an engine needs the path of its weights."""
    looks_up: bool = False
    """True if the method drafts by looking up repeated text in the context, and drafts nothing without a match."""
    trained_window: int = 0
    """Longest context that its public drafters are trained on, in tokens; 0 if no source states one."""
    times_of: str = ""
    """Method whose measured host times are used in place of its own (``timing/draft_overheads.yaml``)."""
    names: Mapping[str, EngineName] = field(default_factory=dict)
    """Name of the method in each engine."""


def _read_methods() -> dict[str, MethodFacts]:
    tables = packaged("simulator.speculation", "methods.yaml")
    methods = {}
    for name, facts in tables["methods"].items():
        grouped = [field for group in facts.get("uses", ()) for field in tables["groups"][group]]
        known = {key: value for key, value in facts.items() if key != "uses"}
        known["names"] = {
            engine: _engine_name(tables["engines"][engine], text) for engine, text in facts.get("names", {}).items()
        }
        methods[name] = MethodFacts(**known | {"fields": (*grouped, *facts.get("fields", ()))})
    return methods


def _engine_name(release: Mapping[str, Any], text: str | Mapping[str, Any]) -> EngineName:
    facts = {**release, "name": text} if isinstance(text, str) else dict(text)
    for relative in {"sequential", "by_confidence"} & set(facts):
        facts[relative] = _engine_name(release, facts[relative])
    return EngineName(**facts | {"since": str(facts["since"]), "date": str(facts["date"])})


METHODS = _read_methods()
"""Methods by name; ``none`` switches speculation off but leaves the section's fields unchanged, for comparisons."""


def emitted_name(engine: str, method: str, by_confidence: bool = False, sequential: bool = False) -> EngineName | None:
    """An engine's name of a method, or of its drafters that are verified by confidence or have a sequential head; None
    if it has none."""
    known = METHODS[method].names.get(engine)
    if known is None or by_confidence:
        return None if known is None else known.by_confidence
    return known.sequential if sequential and known.sequential is not None else known


def option_release(engine: str, option: str) -> EngineName:
    """Earliest known engine release with an option of its launch command.

    Raises:
        KeyError: no such option: an emitter may not write it.
    """
    tables = packaged("simulator.speculation", "methods.yaml")
    facts = tables["engines"][engine] | (tables["options"][engine][option] or {})
    return _engine_name(facts, {**facts, "name": option})


def names_in(engine: str) -> dict[str, str]:
    return {method: facts.names[engine].name for method, facts in METHODS.items() if engine in facts.names}
