"""Methods of speculation, and the properties of each.

A further one is an entry of ``methods.yaml`` and a builder of its drafter in ``simulator.running.drafting.BUILDERS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.yaml_files import packaged


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """Properties of a method that other parts of the simulator depend on."""

    fields: tuple[str, ...] = ()
    """Fields of ``draft`` that the method uses."""
    trees: bool = False
    """Whether it can draft a tree instead of a chain."""
    draft_slots: bool = True
    """Whether it keeps KV of its own drafts, so that the engine reserves slots for the next step's.

    Source: vLLM V1 sets ``num_lookahead_tokens`` for EAGLE heads, MTP and draft models only (``vllm/v1/core/sched``).
    """
    checkpoint: bool = True
    """Whether an engine needs the path of its weights."""
    looks_up: bool = False
    """Whether it drafts by looking up repeated text in the context, and drafts nothing without a match."""
    trained_window: int = 0
    """Longest context that its public drafters are trained on, in tokens; 0 where no source states one."""
    times_of: str = ""
    """Method whose measured host times stand in for its own (``timing/draft_overheads.yaml``)."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What engines call it, by engine."""


def _read_methods() -> dict[str, MethodFacts]:
    tables = packaged("simulator.speculation", "methods.yaml")
    methods = {}
    for name, facts in tables["methods"].items():
        grouped = [field for group in facts.get("uses", ()) for field in tables["groups"][group]]
        known = {key: value for key, value in facts.items() if key != "uses"}
        methods[name] = MethodFacts(**known | {"fields": (*grouped, *facts.get("fields", ()))})
    return methods


METHODS = _read_methods()
"""``none`` switches speculation off and leaves the rest of the block standing, to compare with."""


def names_in(engine: str) -> dict[str, str]:
    return {method: facts.names[engine] for method, facts in METHODS.items() if engine in facts.names}
