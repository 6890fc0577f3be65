"""A synthetic workload fitted to a trace: lognormal or empirical lengths, arrival rate and burstiness."""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, log, sqrt
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from traces.errors import TraceError
from traces.requests.table import RequestTable

_EMPIRICAL_POINTS = 200
_GOOD_DISTANCE = 0.1


@dataclass(frozen=True, slots=True)
class LengthFit:
    """A token length distribution.

    Attributes:
        mean: tokens, mean of the trace.
        cv: standard deviation over mean of the trace (population).
        max: largest length of the trace in tokens.
        lognormal_distance: largest difference between the trace's distribution function and that of the lognormal with
            the same mean and cv (Kolmogorov-Smirnov), 0 to 1.
        values: 200 equally likely lengths (mid-quantiles) that stand for the trace's own distribution.
    """

    mean: float
    cv: float
    max: int
    lognormal_distance: float
    values: tuple[int, ...]

    @property
    def distribution(self) -> str:
        """Distribution that represents the trace: constant, lognormal if within a distance of 0.1, else empirical."""
        if self.cv == 0:
            return "constant"
        return "lognormal" if self.lognormal_distance <= _GOOD_DISTANCE else "empirical"

    def as_scenario(self, distribution: str | None = None) -> int | dict[str, Any]:
        """The ``input_tokens`` or ``output_tokens`` field of a scenario; ``distribution`` overrules the choice.

        Raises:
            TraceError: a distribution other than constant, lognormal or empirical.
        """
        distribution = distribution or self.distribution
        if distribution not in ("constant", "lognormal", "empirical"):
            raise TraceError(f"distribution: {distribution!r}: constant, lognormal or empirical expected")
        if distribution == "constant" or self.cv == 0:
            return round(self.mean)
        if distribution == "lognormal":
            return {"distribution": "lognormal", "mean": round(self.mean, 3), "cv": round(self.cv, 4), "max": self.max}
        return {"distribution": "empirical", "values": list(self.values)}


@dataclass(frozen=True, slots=True)
class WorkloadFit:
    """Lengths and arrivals of a trace as parameters of a synthetic workload.

    Attributes:
        input_tokens, output_tokens: length distributions.
        num_requests: requests of the trace.
        request_rate: requests per second, (n - 1) / span; None without times.
        burstiness: shape of gamma inter-arrival times with the trace's CV, 1 / CV^2 as vLLM's ``--burstiness``
            (1 = Poisson, smaller = burstier); None without times or when all arrive at once.
    """

    input_tokens: LengthFit
    output_tokens: LengthFit
    num_requests: int
    request_rate: float | None
    burstiness: float | None

    def as_scenario(self, distribution: str | None = None) -> dict[str, Any]:
        """The ``workload`` section of a scenario; without times there is no ``arrivals``, which the user must give."""
        workload: dict[str, Any] = {}
        if self.request_rate is not None and self.burstiness is not None:
            poisson = abs(self.burstiness - 1.0) < 0.05
            rate = round(self.request_rate, 5)
            workload["arrivals"] = (
                {"process": "poisson", "request_rate": rate}
                if poisson
                else {"process": "gamma", "request_rate": rate, "burstiness": round(self.burstiness, 5)}
            )
        workload["input_tokens"] = self.input_tokens.as_scenario(distribution)
        workload["output_tokens"] = self.output_tokens.as_scenario(distribution)
        workload["num_requests"] = self.num_requests
        return workload


def fit_lengths(table: RequestTable) -> WorkloadFit:
    """Fit length distributions by moments and burstiness by the CV of the inter-arrival times.

    Raises:
        TraceError: an empty table.
    """
    if len(table) == 0:
        raise TraceError("fit_lengths: no requests to fit")
    rate = burstiness = None
    if table.arrival_s is not None and len(table) > 1 and table.duration_s > 0:
        gaps = np.diff(table.arrival_s)
        rate = float(1.0 / gaps.mean())
        variance = float(gaps.var())
        burstiness = float(gaps.mean() ** 2 / variance) if variance > 1e-18 else None
    return WorkloadFit(_fit(table.input_tokens), _fit(table.output_tokens), len(table), rate, burstiness)


def _fit(values: IntArray) -> LengthFit:
    """Moments, distance to the lognormal of the same moments, and mid-quantiles."""
    mean, std = float(values.mean()), float(values.std())
    shares = (np.arange(_EMPIRICAL_POINTS) + 0.5) / _EMPIRICAL_POINTS
    points = np.quantile(values, shares, method="inverted_cdf").astype(np.int64)
    distance = 1.0 if std == 0 else _lognormal_distance(values, mean, std / mean)
    return LengthFit(mean, std / mean, int(values.max()), distance, tuple(points.tolist()))


def _lognormal_distance(values: IntArray, mean: float, cv: float) -> float:
    """Kolmogorov-Smirnov distance to the lognormal with this mean and cv.

    Of a lognormal, sigma^2 = ln(1 + cv^2) and mu = ln(mean) - sigma^2 / 2.
    """
    sigma = sqrt(log(1.0 + cv * cv))
    mu = log(mean) - sigma * sigma / 2.0
    distinct, counts = np.unique(values, return_counts=True)
    below = np.cumsum(counts) / len(values)
    model = np.array([0.5 * (1.0 + erf((log(value) - mu) / (sigma * sqrt(2.0)))) for value in distinct.tolist()])
    before = np.concatenate([[0.0], below[:-1]])
    return float(max(np.max(np.abs(model - below)), np.max(np.abs(model - before))))
