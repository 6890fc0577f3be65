"""The table of published speculation speedups, one row per figure with its source; and constants fitted to some."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from forerun.yaml_files import packaged

PACKAGE = "validation.speculation"
FOLDER = resources.files(PACKAGE)


class PublishedSpeedup(NamedTuple):
    """One published speedup of speculative over plain decoding, as its source words it; None where it is silent."""

    id: str
    group: str
    """Rows of one table or figure."""
    hardware: str
    chips: int | None
    engine: str
    model: str
    method: str
    tokens: str
    """Draft tokens per step, as written."""
    nodes: int | None
    """Draft tokens in the tree."""
    task: str
    load_type: str
    load: str
    input_tokens: int | None
    output_tokens: int | None
    acceptance_length: float | None
    """Tokens per verify step, the bonus token included."""
    baseline: float | None
    speculative: float | None
    unit: str
    """Unit of ``baseline`` and ``speculative``."""
    speedup: float
    """Above 1 where speculation is faster."""
    source: str


_WHOLE = ("chips", "nodes", "input_tokens", "output_tokens")
_REAL = ("baseline", "speculative", "speedup")


@cache
def load_published() -> tuple[PublishedSpeedup, ...]:
    """All rows, in the order of their sources."""
    with FOLDER.joinpath("published.csv").open(encoding="utf-8") as file:
        return tuple(_row(row) for row in csv.DictReader(file))


def _row(row: Mapping[str, str]) -> PublishedSpeedup:
    values: dict[str, Any] = {name: row[name] for name in PublishedSpeedup._fields}
    values |= {name: int(row[name]) if row[name] else None for name in _WHOLE}
    values |= {name: float(row[name]) if row[name] else None for name in _REAL}
    return PublishedSpeedup(**values | {"acceptance_length": _length(row["acceptance_length"])})


def _length(text: str) -> float | None:
    """A length, or the middle of a range such as 2.29-2.56."""
    low, _, high = text.partition("-")
    return (float(low) + float(high or low)) / 2 if text else None


def constants_of(group: str) -> dict[str, Mapping[str, Any]]:
    """Constants that predictions of a published table take, by name."""
    return {name: entry for name, entry in packaged(PACKAGE, "constants.yaml").items() if group in entry["groups"]}
