"""The table of published speculation speedups: one row per figure, each with its source."""

from __future__ import annotations

import csv
from importlib import resources
from typing import NamedTuple


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
    """Of ``baseline`` and ``speculative``."""
    speedup: float
    """Above 1 where speculation is faster."""
    source: str


def load_published() -> list[PublishedSpeedup]:
    """All rows, in the order of their sources."""
    path = resources.files("simulator.replay.speculation").joinpath("published.csv")
    with path.open(encoding="utf-8") as file:
        return [_row(row) for row in csv.DictReader(file)]


def _row(row: dict[str, str]) -> PublishedSpeedup:
    return PublishedSpeedup(
        id=row["id"],
        group=row["group"],
        hardware=row["hardware"],
        chips=int(row["chips"]) if row["chips"] else None,
        engine=row["engine"],
        model=row["model"],
        method=row["method"],
        tokens=row["tokens"],
        nodes=int(row["nodes"]) if row["nodes"] else None,
        task=row["task"],
        load_type=row["load_type"],
        load=row["load"],
        input_tokens=int(row["input_tokens"]) if row["input_tokens"] else None,
        output_tokens=int(row["output_tokens"]) if row["output_tokens"] else None,
        acceptance_length=_length(row["acceptance_length"]),
        baseline=float(row["baseline"]) if row["baseline"] else None,
        speculative=float(row["speculative"]) if row["speculative"] else None,
        unit=row["unit"],
        speedup=float(row["speedup"]),
        source=row["source"],
    )


def _length(text: str) -> float | None:
    """A length, or the middle of a range such as 2.29-2.56."""
    if not text:
        return None
    low, _, high = text.partition("-")
    return (float(low) + float(high or low)) / 2
