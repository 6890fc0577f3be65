"""Hit rates as data: published by task and tolerance, or one's own by layer or by context."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from forerun.yaml_files import parse
from simulator.errors import ForerunError, did_you_mean

TOLERANCE = 0.10
"""The tolerance lambda that the paper recommends."""


@cache
def _published() -> dict[str, Any]:
    text = resources.files("simulator.speculation.attention_level").joinpath("hit_rates.yaml").read_text("utf-8")
    data: dict[str, Any] = parse(text)
    return data


def published_hit_rates(task: str) -> dict[float, float | None]:
    """Hit rate of ``task`` by tolerance; None where none was published.

    Raises:
        ForerunError: no such task.
    """
    tasks = _published()["tasks"]
    if task not in tasks:
        raise ForerunError(f"task: no hit rates of '{task}'{did_you_mean(task, tasks)} (one of {', '.join(tasks)})")
    return {float(tolerance): rate for tolerance, rate in tasks[task].items()}


def published_hit_rate(task: str, tolerance: float) -> float:
    """Share of layers that pass verification in ``task`` at the tolerance lambda.

    Raises:
        ForerunError: no such task, or no published rate at that tolerance; nothing is interpolated.
    """
    rates = published_hit_rates(task)
    rate = next((r for t, r in rates.items() if abs(t - tolerance) < 1e-9), None)
    if rate is None:
        known = ", ".join(f"{t:g}" for t, r in rates.items() if r is not None)
        raise ForerunError(
            f"lambda: no hit rate of '{task}' at {tolerance:g} was published (known at {known}); give hit_rate instead"
        )
    return rate


def rate_at_context(points: list[list[float]], context_tokens: Any) -> Any:
    """Hit rate at a context, linear in its logarithm between measured points and constant outside them.

    Args:
        points: [context in tokens, hit rate], contexts rising.
        context_tokens: a number or an array, >= 1.
    """
    contexts, rates = zip(*points, strict=True)
    return np.interp(np.log(np.maximum(context_tokens, 1.0)), np.log(contexts), rates)


def batch_hit_rate(rate: Any, queries: Any, verification: str) -> Any:
    """Hit rate of a layer over a whole batch.

    Args:
        rate: of one query.
        queries: tokens verified together, sequences times tokens per sequence.
        verification: ``joint``: one norm over the batch, as the published kernel sums it, taken to pass as often as one
            query does; ``every-query``: all must pass, and they do so independently: ``rate ** queries``.
    """
    return rate if verification == "joint" else rate**queries
