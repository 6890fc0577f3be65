"""Tables of measured runs with columns of their own, read as ``columns.yaml`` says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from forerun.yaml_files import packaged
from traces.benchmark_results import MeasuredRun, register_table
from traces.fields import Cells

TABLES: dict[str, dict[str, Any]] = packaged("validation.tables", "columns.yaml")
WORDS = ("name", "model", "chip", "framework", "framework_version", "weights_dtype", "kv_cache_dtype", "speculation")
SEVERAL = ("tensor_parallel", "expert_parallel", "data_parallel_attention")
NUMBERS = ("request_rate", "acceptance_length")
WAVES, LARGE = 4, 4096
"""Requests drawn for each place of a server in steady state, two where that would be more than ``LARGE``."""
SEED = 1


def column_runs(table: Mapping[str, Any], rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of a table.

    Args:
        table: an entry of ``columns.yaml``.
        rows: of the table.

    Raises:
        TraceError: a cell that is no number where one is needed.
    """
    for cells in rows:
        facts: dict[str, Any] = dict(table["constants"])
        facts |= {name: value for name, where in table["fields"].items() if (value := _fact(cells, name, where))}
        measured = {metric: _value(cells, where) for metric, where in table["measured"].items()}
        for column, patterns in table.get("words", {}).items():
            stated: dict[str, Any] = next(
                (v for p, v in patterns.items() if re.search(p, cells.text(column) or "", re.I)), {}
            )
            if "metric" in stated:
                value = cells.positive("value")
                measured[stated["metric"]] = None if value is None else value * stated["scale"]
            else:
                facts |= stated
        if "process" not in facts:
            facts["process"] = "poisson" if facts.get("request_rate") else "closed-loop"
        yield MeasuredRun(
            place=cells.place,
            measured={metric: value for metric, value in measured.items() if value is not None},
            unusable=_refusal(table, cells),
            notes=tuple(table.get("notes", ())),
            **{"name": ""} | facts | _drawn(table, cells, facts),
        )


def _fact(cells: Cells, name: str, where: Any) -> Any:
    if isinstance(where, dict):
        return round(_value(cells, where) or 0)
    if name in WORDS:
        return cells.text(where)
    if name in NUMBERS:
        return cells.positive(where)
    return cells.several(where) if name in SEVERAL else cells.count(where) if cells.positive(where) else None


def _value(cells: Cells, where: str | Mapping[str, Any]) -> float | None:
    """A cell, scaled, times one column and over another; None where one of them is empty."""
    rule: Mapping[str, Any] = {"column": where} if isinstance(where, str) else where
    value, times = cells.positive(rule["column"]), rule.get("times")
    factor = cells.positive(times) if times else 1.0
    divisor = cells.positive(rule["over"]) if "over" in rule else 1.0
    return None if value is None or not factor or not divisor else value * factor * rule.get("scale", 1) / divisor


def _refusal(table: Mapping[str, Any], cells: Cells) -> str | None:
    for column, patterns in table.get("refused", {}).items():
        for pattern, reason in patterns.items():
            if re.search(pattern, cells.text(column) or "", re.IGNORECASE):
                return str(reason)
    return None


def _drawn(table: Mapping[str, Any], cells: Cells, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths from a histogram of equal bins, drawn evenly; empty where the table has none."""
    if "lengths" not in table or "input_tokens" not in facts:
        return {}
    column, least, most = table["lengths"]
    counts = np.array([float(count) for count in (cells.text(column) or "").split(";") if count])
    if not counts.sum():
        return {}
    edges = np.linspace(cells.positive(least) or 1.0, cells.positive(most) or 1.0, len(counts) + 1)
    places = int(facts.get("max_concurrency", 1))
    count = max(2 * places, min(LARGE, WAVES * places))
    shares = (np.arange(count) + 0.5) / count
    share_below = np.concatenate(([0.0], np.cumsum(counts) / counts.sum()))
    answers: IntArray = np.maximum(2, np.interp(shares, share_below, edges)).astype(np.int64)
    np.random.default_rng(SEED).shuffle(answers)
    prompts: IntArray = np.full(count, facts["input_tokens"], dtype=np.int64)
    return {"lengths": (prompts, answers), "num_requests": count, "output_tokens": int(answers.mean())}


def _register(name: str, table: dict[str, Any]) -> None:
    register_table(name, table["title"], frozenset(table["signature"]), lambda rows, file: column_runs(table, rows))


for _name, _table in TABLES.items():
    _register(_name, _table)
