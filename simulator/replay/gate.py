"""The gate of a replay: limits on its figures that a build must keep."""

from __future__ import annotations

from typing import NamedTuple

from simulator.errors import ForerunError, did_you_mean
from simulator.replay.scores import Score

METRICS = ("mape", "median_ape", "p90_ape", "bias")


class Limit(NamedTuple):
    """Largest allowed value of a metric (the magnitude for ``bias``), over all rows or over those of one operation."""

    op: str
    metric: str
    value: float


def parse_limit(text: str) -> Limit:
    """Read ``mape=12`` (all rows) or ``gemm.mape=8`` (one operation); percent.

    Raises:
        ForerunError: no such metric, or no number >= 0.
    """
    key, equals, value = text.partition("=")
    op, dot, metric = key.strip().rpartition(".")
    if not equals:
        raise ForerunError(f"--fail-above: '{text}' is not METRIC=VALUE, e.g. mape=12")
    if metric not in METRICS:
        hint = did_you_mean(metric, METRICS)
        raise ForerunError(f"--fail-above: no metric '{metric}'{hint} (one of {', '.join(METRICS)})")
    try:
        limit = float(value)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise ForerunError(f"--fail-above: '{text}': a percentage >= 0 is needed, e.g. {metric}=12")
    return Limit(op if dot else "all", metric, limit)


def broken(limits: list[Limit], overall: Score, groups: tuple[Score, ...]) -> list[str]:
    """One line per limit that is exceeded; an operation counts in every format that occurs.

    Raises:
        ForerunError: a limit on an operation that has no rows.
    """
    lines = []
    for limit in limits:
        found = [group for group in groups if group.op == limit.op and group.regime == "all"]
        chosen = [overall] if limit.op == "all" else found
        if not chosen:
            ops = sorted({group.op for group in groups})
            raise ForerunError(f"--fail-above: no '{limit.op}' rows were scored (there are {', '.join(ops)})")
        for group in chosen:
            value = float(getattr(group, limit.metric))
            if abs(value) > limit.value:
                name = "overall" if limit.op == "all" else f"{group.op} {group.dtype}"
                lines.append(f"{name}: {limit.metric} {value:.2f} % exceeds {limit.value:g} %")
    return lines
