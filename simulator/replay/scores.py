"""Distance of predictions from measurements: figures of one group of rows, and limits of a build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import ForerunError, did_you_mean
from simulator.replay.predict import REGIMES, Prediction
from traces.kernels import KernelTable


class Score(NamedTuple):
    """Errors over ``n`` rows, in percent of the measurement; ``coverage90`` is None if no interval is known."""

    op: str
    regime: str
    dtype: str
    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    coverage90: float | None


def error_figures(signed: FloatArray) -> dict[str, float]:
    """Mean, median and 90th percentile of the magnitudes of errors in percent, and their bias."""
    ape = np.abs(signed)
    return {
        "mape": float(ape.mean()),
        "median_ape": float(np.median(ape)),
        "p90_ape": float(np.percentile(ape, 90)),
        "bias": float(signed.mean()),
    }


def _score(op: str, regime: str, dtype: str, table: KernelTable, prediction: Prediction, rows: BoolArray) -> Score:
    ratio = (table.measured_s / prediction.seconds)[rows]
    low, high, measured = prediction.low[rows], prediction.high[rows], table.measured_s[rows]
    known = np.isfinite(low) & np.isfinite(high)
    inside = ((ratio >= low) & (ratio <= high))[known]
    coverage = float(inside.mean() * 100.0) if known.any() else None
    signed = (prediction.seconds[rows] - measured) / measured * 100.0
    return Score(op, regime, dtype, len(measured), **error_figures(signed), coverage90=coverage)


def all_scores(table: KernelTable, prediction: Prediction) -> Iterator[Score]:
    """Scores by operation and format, for all rows and for each regime that occurs."""
    op, labels = table.word("op"), dtype_labels(table)
    names, label_codes = np.unique(labels, return_inverse=True)
    for code, name in enumerate(op.names):
        for label_code, label in enumerate(names):
            rows = (op.codes == code) & (label_codes == label_code)
            for regime_code, regime in ((-1, "all"), *enumerate(REGIMES)):
                part = rows if regime_code < 0 else rows & (prediction.regime == regime_code)
                if part.any():
                    yield _score(name, regime, str(label), table, prediction, part)


def overall_score(table: KernelTable, prediction: Prediction) -> Score:
    """The figures over all rows."""
    return _score("all", "all", "all", table, prediction, np.ones(len(table), dtype=bool))


def dtype_labels(table: KernelTable) -> NDArray[np.str_]:
    """The format of every row; attention whose KV cache has another one reads ``bf16/fp8``."""
    dtype, kv = table.word("dtype"), table.word("kv_dtype")
    labels = [[first if second in ("", first) else f"{first}/{second}" for second in kv.names] for first in dtype.names]
    return np.asarray(np.array(labels)[dtype.codes, kv.codes], dtype=np.str_)


METRICS = ("mape", "median_ape", "p90_ape", "bias")
ALL = "all"


class ErrorLimit(NamedTuple):
    """Largest allowed magnitude of an error metric in percent, over all rows or over one group."""

    group: str
    metric: str
    value: float


def parse_limit(text: str, metrics: Sequence[str] = METRICS, groups: Sequence[str] | None = None) -> ErrorLimit:
    """Read ``mape=12`` (all rows) or ``gemm.mape=8`` (one group, one of ``groups`` where given); percent.

    Raises:
        ForerunError: no such metric or group, or no number >= 0.
    """
    key, equals, value = text.partition("=")
    group, _, metric = key.strip().rpartition(".")
    if not equals:
        raise ForerunError(f"--fail-above: '{text}' is not [GROUP.]METRIC=VALUE, e.g. {metrics[0]}=12")
    if metric not in metrics:
        hint = did_you_mean(metric, metrics)
        hint = hint or (f"; write {metric}.{metrics[0]}={value}" if groups is None else "")
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
    return ErrorLimit(group or ALL, metric, limit)


def exceeded(limits: Iterable[ErrorLimit], scores: Iterable[tuple[str, str, Any]]) -> list[str]:
    """One line per score that exceeds a limit.

    A score is (group, what it is called in a line, object that has the metrics); a group may have several.

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
