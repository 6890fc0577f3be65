"""Named unknowns of attention-level speculation: a value, a range and a source each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from forerun.errors import ForerunError
from forerun.yaml_files import parse

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


@cache
def parameter_file() -> dict[str, Any]:
    """``parameters.yaml``: costs of the mechanism, and published results with what is not known about them."""
    text = resources.files("simulator.speculation.attention_level").joinpath("parameters.yaml").read_text("utf-8")
    data: dict[str, Any] = parse(text)
    return data


def mechanism_costs(chip_kind: str) -> dict[str, Parameter]:
    """Fixed costs of the mechanism as assumed for a class of chips (``Chip.kind``), by the names of ``MECHANISM``."""
    sets = parameter_file()["mechanism"]
    entry = sets.get(chip_kind, sets["other"])
    source = source_words(entry["source"])
    parts = [entry[name] for name in SYNC_PARTS]
    sync = {end: sum(part[end] for part in parts) for end in ("value", "low", "high")}
    return {
        "send_s": Parameter("send_s", what="send", source=source, **entry["send_s"]),
        "verify_s": Parameter("verify_s", what="verification", source=source, **entry["verify_s"]),
        "sync_s": Parameter("sync_s", what="synchronisation", source=source, **sync),
        "skip_launch_s": Parameter("skip_launch_s", what="skipped launch", source=source, **entry["skip_launch_s"]),
    }


def source_words(source: Mapping[str, Any]) -> str:
    return f"{source['kind']}: {source['reference']}"
