"""Named unknowns of attention-level speculation: a value, a range and a source each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.errors import ForerunError
from forerun.yaml_files import packaged

MECHANISM = {
    "send_s": "send",
    "verify_s": "verification",
    "sync_s": "synchronisation",
    "skip_launch_s": "skipped launch",
}
"""Costs that the mechanism adds to a layer, in words; fields of a scenario's ``attention_speculation``."""
SYNC_PARTS = ("priority_swap_s", "residual_swap_s", "kv_rows_s")
"""Messages that end a layer, one after the other: ``sync_s`` is their sum."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Unknown parameter: its value, range and source."""

    name: str
    value: float
    low: float
    high: float
    what: str
    source: str

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ForerunError(f"{self.name}: {self.value:g} lies outside its range {self.low:g} to {self.high:g}")


def parameter_file() -> dict[str, Any]:
    """Content of ``parameters.yaml``: costs of the mechanism, and published results with their unknown parameters."""
    return packaged("simulator.speculation.attention_level", "parameters.yaml")


def mechanism_costs(chip_kind: str) -> dict[str, Parameter]:
    """Fixed costs of the mechanism as assumed for a class of chips (``Chip.kind``), by the names of ``MECHANISM``."""
    sets = parameter_file()["mechanism"]
    entry = sets.get(chip_kind, sets["other"])
    source = source_words(entry["source"])
    sync = {end: sum(entry[name][end] for name in SYNC_PARTS) for end in ("value", "low", "high")}
    ranges = {**entry, "sync_s": sync}
    return {name: Parameter(name, what=what, source=source, **ranges[name]) for name, what in MECHANISM.items()}


def source_words(source: Mapping[str, Any]) -> str:
    return f"{source['kind']}: {source['reference']}"
