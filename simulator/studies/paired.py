"""Paired comparison of runs on common random numbers: ratios with intervals, and texts for metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Any

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import DocumentPart
from forerun.errors import ArgumentError, did_you_mean
from forerun.tables import number
from simulator.running.metrics.statistics import EQUAL, mean_interval
from simulator.running.metrics.summary import LATENCIES, PERCENTILES, RATES
from simulator.running.metrics.uncertainty import (
    LEAST_SURE,
    MOST_SURE,
    doubts,
    metric_draws,
    sampling_draws,
    stated_probability,
)
from simulator.running.records import ModelError

LEVEL = 0.95
NORMAL_95 = 1.959963984540054
"""Half-width of a 95 % interval of a normal distribution, in standard deviations."""

LATENCY_STATISTICS = ("mean", "median", "std", *(f"p{percent}" for percent in PERCENTILES))
Widening = Callable[[FloatArray], FloatArray]
COSTS = ("usd_per_million_output_tokens", "energy_joules")
HIGHER_IS_BETTER: Mapping[str, bool] = {
    **dict.fromkeys(RATES, True),
    "duration": False,
    **{f"{statistic}_{name}_ms": False for name in LATENCIES for statistic in LATENCY_STATISTICS},
    **dict.fromkeys(COSTS, False),
}
"""Compared metrics; true if a higher value is better."""


def checked_metric(metric: str) -> str:
    """Return ``metric`` if results can be compared by it, else raise an error."""
    if metric not in HIGHER_IS_BETTER:
        hint = did_you_mean(metric, HIGHER_IS_BETTER)
        known = "a key of the summary, usd_per_million_output_tokens or energy_joules"
        raise ArgumentError("metric", f"no metric '{metric}'{hint} ({known})")
    return metric


@dataclass(frozen=True)
class Ratio(DocumentPart):
    """Speedup of a variant over the baseline; above 1 is better for every metric."""

    ratio: float
    low: float | None
    high: float | None
    probability: float | None = None
    """Probability that the ratio is above 1, random and model error combined; None if the model error is unknown."""

    @property
    def verdict(self) -> int:
        """Verdict: 1 surely better, -1 surely worse, 0 undecided; without an interval the ratio alone decides."""
        low, high = (self.ratio if end is None else end for end in (self.low, self.high))
        return 1 if low > 1.0 else -1 if high < 1.0 else 0

    @property
    def side(self) -> int:
        """The verdict; if it is undecided, 1 for a probably better and -1 for a probably worse variant."""
        if self.verdict or self.probability is None:
            return self.verdict
        likely = (self.probability >= MOST_SURE) - (self.probability <= LEAST_SURE)
        return likely if likely * (self.ratio - 1.0) > 0.0 else 0

    @property
    def undecided(self) -> bool:
        """True if ratio and probability point to different sides: the model error reverses the prediction."""
        return self.probability is not None and (self.ratio - 1.0) * (self.probability - 0.5) < 0.0


def metric_values(document: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Compared metrics of one run's document; a metric is None if it was not measured or the run failed (None)."""
    if document is None:
        return dict.fromkeys(HIGHER_IS_BETTER)
    summary = document["summary"]
    return {name: document.get(name) if name in COSTS else summary.get(name) for name in HIGHER_IS_BETTER}


def paired_ratio(base: Sequence[float | None], other: Sequence[float | None], higher_is_better: bool) -> Ratio | None:
    """Geometric mean of the ratios of runs that share their random numbers, with a Student-t interval on logarithms.

    Args:
        base: the metric of each run of the baseline.
        other: the metric of each run of the variant, in the same order of seeds.
        higher_is_better: False inverts the ratio, so that above 1 is better.

    Returns:
        None if a run did not measure the metric or the metric is 0, so that the ratio is undefined.

    Source: A. M. Law, "Simulation Modeling and Analysis" (5th ed., 2015), sections 10.2.1 and 11.2, applied to
    logarithms: the ratio of positive outputs is the paired difference of their logarithms.
    """
    if not base or len(base) != len(other):
        return None
    logs = []
    for before, after in zip(base, other, strict=True):
        if before is None or after is None or not before > 0 or not after > 0:
            return None
        logs.append(log(after) - log(before) if higher_is_better else log(before) - log(after))
    centre = sum(logs) / len(logs)
    if len(logs) < 2:
        return Ratio(exp(centre), None, None)
    low, high = mean_interval(logs, LEVEL)
    centre = min(max(centre, low), high)  # the mean of equal numbers may be one digit off them
    return Ratio(exp(centre), exp(low), exp(high))


def with_model_error(
    ratio: Ratio,
    base: ModelError,
    other: ModelError,
    metric: str,
    evidence: Iterable[Mapping[str, float]],
    own: Widening | None = None,
) -> Ratio:
    """Widen a ratio's interval by the model error, and compute the probability that the ratio is above 1.

    Shared error sources move both runs in every draw: a kernel that is 10 % slower than predicted is slower in both. If
    the evidence caps the probability (``stated_probability``), the interval is widened to a normal error with it.

    Args:
        ratio: the ratio with its sampling interval.
        base, other: model error of each run.
        evidence: shares of device time by evidence level of both runs.
        metric: metric of the ratio. Cost per token has the throughput's error, unless arrivals alone determine it.
        own: adds the error of what the two do not share to logarithms of the ratio (``Unshared.draws``).
    """
    erring = "output_throughput" if metric == "usd_per_million_output_tokens" else metric
    error_draws = [metric_draws(error, erring) for error in (base, other)]
    if any(draws is None for draws in error_draws) or (erring != metric and ratio.low == ratio.high):
        return ratio
    sign = 1.0 if HIGHER_IS_BETTER[erring] else -1.0
    draws = sign * (np.asarray(error_draws[1]) - np.asarray(error_draws[0]))
    draws = draws if own is None else own(draws)
    if ratio.low is not None and ratio.high is not None and ratio.low > 0:
        draws = draws + sampling_draws(erring, log(ratio.high / ratio.low) / 2 / NORMAL_95)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tie = float(np.mean(np.abs(log(ratio.ratio) + draws) < EQUAL))
    above = float(np.mean(log(ratio.ratio) + draws > EQUAL)) + tie / 2
    ends = ratio.ratio * min(1.0, exp(low)), ratio.ratio * max(1.0, exp(high))
    stated = stated_probability(above, *evidence, *doubts(base, other))
    if stated != above:
        beyond = ratio.ratio ** (1.0 - NORMAL_95 / NormalDist().inv_cdf(max(stated, 1.0 - stated)))
        ends = min(ends[0], beyond), max(ends[1], beyond)
    return Ratio(ratio.ratio, *ends, stated)


METRIC_WORDS = {
    "request_throughput": "request throughput",
    "request_goodput": "goodput",
    "output_throughput": "output throughput",
    "total_token_throughput": "total token throughput",
    "duration": "duration",
    "usd_per_million_output_tokens": "cost per output token",
    "energy_joules": "energy",
    "spec_decode_acceptance_length": "acceptance length",
}
LATENCY_WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "end-to-end latency"}
STATISTIC_WORDS = {"std": "spread of"}
LOAD_WORDS = {
    "workload.arrivals.request_rate": "{} {unit}",
    "workload.arrivals.max_concurrency": "{} concurrent requests",
    "workload.arrivals.rate_scale": "{} times the trace's rate",
}


def metric_words(metric: str) -> str:
    """Label of a summary key, e.g. ``p99 TTFT``."""
    if metric in METRIC_WORDS:
        return METRIC_WORDS[metric]
    statistic, name, _ = metric.split("_")
    return f"{STATISTIC_WORDS.get(statistic, statistic)} {LATENCY_WORDS[name]}"


def metric_with_unit(metric: str) -> str:
    """Label of a summary key with its unit, e.g. ``p99 TTFT (ms)``."""
    units = {"output_throughput": " (tok/s)", **dict.fromkeys(RATES[:2], " (req/s)"), COSTS[0]: " ($/Mtok)"}
    return metric_words(metric) + units.get(metric, " (ms)" if metric.endswith("_ms") else "")


def load_of(settings: Mapping[str, Any]) -> tuple[float, ...]:
    """Values of the load fields (``LOAD_WORDS``) in settings by dotted path."""
    return tuple(float(settings[path]) for path in LOAD_WORDS if path in settings)


def load_words(path: str, value: float | None, unit: str = "req/s") -> str:
    """Text of a load, e.g. ``41 req/s``; ``unit`` is the unit of a rate."""
    shown = "?" if value is None else number(value, 3)
    return LOAD_WORDS.get(path, path.rsplit(".", 1)[-1] + " {}").format(shown, unit=unit)


def times(ratio: float) -> str:
    """Text of a speedup, e.g. ``1.32x``, with enough digits to show a small effect."""
    return f"{ratio:.3f}x" if abs(ratio - 1.0) < 0.05 else f"{ratio:.2f}x"
