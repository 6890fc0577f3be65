"""Named unknowns of attention-level speculation: a value, a range and a source each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from forerun.yaml_files import parse
from simulator.errors import ForerunError, did_you_mean

MECHANISM = ("send_s", "verify_s", "sync_s", "skip_launch_s")
"""Costs that the mechanism adds to the kernels of a layer; fields of a scenario's ``attention_speculation``."""
SYNC_PARTS = ("priority_swap_s", "residual_swap_s", "kv_rows_s")
"""Messages that end a layer, one after the other: ``sync_s`` is their sum."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One unknown."""

    name: str
    value: float
    low: float
    high: float
    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ForerunError(f"{self.name}: {self.value:g} lies outside its range {self.low:g} to {self.high:g}")


@dataclass(frozen=True, slots=True)
class ConsistencySet:
    """One documented parameter set for a published result, with what was published and what else is plausible."""

    name: str
    description: str
    label: str
    model: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kernels_per_layer: int
    window_tokens: int
    parameters: Mapping[str, Parameter]
    published: Mapping[str, Any]
    cases: tuple[tuple[str, Mapping[str, float]], ...]
    """Named alternatives: the parameters that differ from the set's values."""

    def values(self, changes: Mapping[str, float] | None = None) -> dict[str, float]:
        """The set's values, some of them changed.

        Raises:
            ForerunError: a parameter that the set does not have.
        """
        known = {name: parameter.value for name, parameter in self.parameters.items()}
        for name in changes or {}:
            if name not in known:
                raise ForerunError(
                    f"{self.name}: no parameter '{name}'{did_you_mean(name, known)} ({', '.join(known)})"
                )
        return {**known, **(changes or {})}


@cache
def _file() -> dict[str, Any]:
    text = resources.files("simulator.speculation.attention_level").joinpath("parameters.yaml").read_text("utf-8")
    data: dict[str, Any] = parse(text)
    return data


def mechanism_costs(chip_kind: str) -> dict[str, Parameter]:
    """Fixed costs of the mechanism as assumed for a class of chips (``Chip.kind``), by the names of ``MECHANISM``."""
    sets = _file()["mechanism"]
    entry = sets.get(chip_kind, sets["other"])
    source = _source(entry["source"])
    parts = [entry[name] for name in SYNC_PARTS]
    sync = {end: sum(part[end] for part in parts) for end in ("value", "low", "high")}
    return {
        "send_s": Parameter("send_s", what="send", source=source, **entry["send_s"]),
        "verify_s": Parameter("verify_s", what="verification", source=source, **entry["verify_s"]),
        "sync_s": Parameter("sync_s", what="synchronisation", source=source, **sync),
        "skip_launch_s": Parameter("skip_launch_s", what="skipped launch", source=source, **entry["skip_launch_s"]),
    }


def consistency_sets() -> tuple[str, ...]:
    """Names of the documented parameter sets."""
    return tuple(_file()["consistency"])


def consistency_set(name: str) -> ConsistencySet:
    """A documented parameter set by name.

    Raises:
        ForerunError: no such set.
    """
    sets = _file()["consistency"]
    if name not in sets:
        raise ForerunError(f"no parameter set '{name}'{did_you_mean(name, sets)} (one of {', '.join(sets)})")
    entry = dict(sets[name])
    parameters = {
        key: Parameter(key, **{**fields, "source": _source(fields["source"])})
        for key, fields in entry.pop("parameters").items()
    }
    cases = tuple((case["name"], case["set"]) for case in entry.pop("cases"))
    return ConsistencySet(name=name, parameters=parameters, cases=cases, **entry)


def _source(source: Mapping[str, Any]) -> str:
    return f"{source['kind']}: {source['reference']}"
