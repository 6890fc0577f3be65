"""Gates: limits on the figures of a replay that a build must keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any, NamedTuple

from simulator.errors import ForerunError, did_you_mean

METRICS = ("mape", "median_ape", "p90_ape", "bias")
ALL = "all"


class Limit(NamedTuple):
    """Largest allowed percentage of a metric (its magnitude), over all rows or over those of one group."""

    group: str
    metric: str
    value: float


def parse_limit(text: str, metrics: Sequence[str] = METRICS, groups: Sequence[str] | None = None) -> Limit:
    """Read ``mape=12`` (all rows) or ``gemm.mape=8`` (one group); percent.

    Args:
        text: as written.
        metrics: what may be limited.
        groups: names before the dot, where they are known beforehand.

    Raises:
        ForerunError: no such metric or group, or no number >= 0.
    """
    key, equals, value = text.partition("=")
    group, _, metric = key.strip().rpartition(".")
    if not equals:
        raise ForerunError(f"--fail-above: '{text}' is not [GROUP.]METRIC=VALUE, e.g. {metrics[0]}=12")
    if metric not in metrics:
        hint = did_you_mean(metric, metrics)
        raise ForerunError(f"--fail-above: no metric '{metric}'{hint} (one of {', '.join(metrics)})")
    if groups is not None and group not in (ALL, "", *groups):
        hint = did_you_mean(group, groups)
        raise ForerunError(f"--fail-above: no group '{group}'{hint} (one of {', '.join((ALL, *groups))})")
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not (limit >= 0 and isfinite(limit)):
        raise ForerunError(f"--fail-above: '{text}': a percentage >= 0 is needed, e.g. {metric}=12")
    return Limit(group or ALL, metric, limit)


def exceeded(limits: Iterable[Limit], scores: Iterable[tuple[str, str, Any]]) -> list[str]:
    """One line per score that exceeds a limit.

    Args:
        limits: by group.
        scores: (group, what it is called in a line, object that has the metrics); a group may have several.

    Raises:
        ForerunError: a limit on a group that was not scored.
    """
    known = list(scores)
    lines = []
    for limit in limits:
        chosen = [(label, score) for group, label, score in known if group == limit.group]
        if not chosen:
            there = ", ".join(sorted({group for group, _, _ in known} - {ALL})) or "none"
            raise ForerunError(f"--fail-above: no '{limit.group}' rows were scored (there are {there})")
        for label, score in chosen:
            value = float(getattr(score, limit.metric))
            if abs(value) > limit.value:
                lines.append(f"{label}: {limit.metric} {value:.2f} % exceeds {limit.value:g} %")
    return lines
