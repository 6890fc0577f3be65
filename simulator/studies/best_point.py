"""What a sweep says in one sentence: its best point and how far it lies from the worst."""

from __future__ import annotations

from typing import Any

from simulator.errors import ForerunError, did_you_mean
from simulator.studies.conclusion import metric_words
from simulator.studies.paired import COSTS, HIGHER_IS_BETTER


def checked_metric(metric: str) -> str:
    """``metric`` if it is one that points can be ranked by.

    Raises:
        ForerunError: it is none.
    """
    if metric not in HIGHER_IS_BETTER:
        raise ForerunError(
            f"--metric: no metric '{metric}'{did_you_mean(metric, HIGHER_IS_BETTER)} (a key of the summary, "
            f"usd_per_million_output_tokens or energy_joules)"
        )
    return metric


def point_value(point: dict[str, Any], metric: str) -> float | None:
    """The metric of a point of a ``sweep`` document; None where it failed or did not measure it."""
    if point["status"] != "done":
        return None
    value = point.get(metric) if metric in COSTS else point["summary"].get(metric)
    return None if value is None else float(value)


def sweep_sentence(document: dict[str, Any], metric: str) -> str:
    """The best point by ``metric``, the worst, and how many failed."""
    known = [(p["name"], v) for p in document["points"] if (v := point_value(p, metric)) is not None]
    failed = document["counts"]["failed"]
    lost = f"; {failed} of {len(document['points'])} points failed" if failed else ""
    if not known:
        return f"No point measures {metric_words(metric)}{lost}."
    better = max if HIGHER_IS_BETTER[metric] else min
    worse = min if HIGHER_IS_BETTER[metric] else max
    best, worst = better(known, key=lambda item: item[1]), worse(known, key=lambda item: item[1])
    unit = " ms" if metric.endswith("_ms") else ""
    text = f"Best {metric_words(metric)}: {best[0]} with {best[1]:.4g}{unit}"
    if worst[1] != best[1] and min(abs(worst[1]), abs(best[1])) > 0:
        ratio = max(worst[1], best[1]) / min(worst[1], best[1])
        text += f", {ratio:.2f}x better than the worst of {len(known)} points ({worst[0]}, {worst[1]:.4g}{unit})"
    return f"{text}{lost}."
