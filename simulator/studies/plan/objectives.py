"""Objectives of a capacity plan: limits on latency statistics, or a share of good requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from forerun.arrays import BoolArray, FloatArray, IntArray
from forerun.errors import ArgumentError, ForerunError, check_number, without_unit
from forerun.tables import number
from forerun.types import LONGEST_S
from simulator.running.metrics.statistics import WeightedSample
from simulator.running.metrics.summary import (
    LATENCIES,
    Limit,
    Served,
    completed_requests,
    latency_sample,
    most_refused,
    request_latencies_ms,
    slo_limits,
)

if TYPE_CHECKING:
    from simulator.running.run import RunResult


PER_REQUEST = re.compile(r"(ttft|tpot|e2el)_ms")
GOODPUT = "goodput"
WAITING = ("ttft", "e2el")
"""Latencies that grow without bound under overload."""
RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class Objective:
    """Upper limits on statistics of a run, and a minimum share of requests within per-request limits."""

    limits: tuple[Limit, ...]
    per_request_ms: tuple[tuple[str, float], ...] = ()
    """(latency, limit in ms) pairs for a single request, used by ``goodput``."""
    goodput: float | None = None
    """Minimum share of all requests that are within every limit of ``per_request_ms``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the limits in the given order; goodput last."""
        return (*(limit.key for limit in self.limits), *((GOODPUT,) if self.goodput is not None else ()))

    def limit_of(self, key: str) -> float:
        """Limit of a name: milliseconds, or the share for goodput."""
        if key == GOODPUT:
            assert self.goodput is not None
            return self.goodput
        return next(limit.limit_ms for limit in self.limits if limit.key == key)

    def with_ttft_within(self, seconds: float) -> Objective:
        """Copy whose limits on TTFT are at most this long."""
        limits = [one._replace(limit_ms=min(one.limit_ms, 1e3 * seconds)) if one.latency == "ttft" else one
                  for one in self.limits]  # fmt: skip
        single = [(name, min(ms, 1e3 * seconds) if name == "ttft" else ms) for name, ms in self.per_request_ms]
        return replace(self, limits=tuple(limits), per_request_ms=tuple(single))

    def refuses_too_many(self, refused: int, requests: int) -> bool:
        """True if the share of refused requests alone makes a limit unreachable; goodput counts refusals itself."""
        return any(refused > most_refused(limit.statistic) * requests for limit in self.limits)

    def document(self) -> dict[str, float]:
        """The objective in the form of a scenario's ``slo`` section."""
        plain = {limit.key: limit.limit_ms for limit in self.limits}
        plain |= {f"{name}_ms": limit for name, limit in self.per_request_ms}
        return plain | ({GOODPUT: self.goodput} if self.goodput is not None else {})

    def slo_ratio(self, key: str, value: float | None) -> float:
        """Value over limit, met if at most 1; for goodput, the share of bad requests over the allowed share.

        An unmeasured value, such as TPOT of requests with a single output token, cannot violate a limit.
        """
        if value is None:
            return 0.0
        limit = self.limit_of(key)
        if key != GOODPUT:
            return value / limit
        bad, allowed = 1.0 - value, 1.0 - limit
        return bad / allowed if allowed > 0 else (0.0 if bad <= 0 else inf)


def objective_of(slo: Mapping[str, float], texts: Sequence[str] = ()) -> Objective:
    """Objective from a scenario's ``slo`` section; ``KEY=VALUE`` texts override it.

    Keys are ``STATISTIC_LATENCY_ms`` (mean, median or any percentile of ttft, tpot, itl, e2el), or ``goodput`` with
    ``ttft_ms``, ``tpot_ms`` or ``e2el_ms`` as the limits of a single request.
    """
    for name, limit in slo.items():
        check_number(f"slo {name}", limit, 0, 1e3 * LONGEST_S, whole=False)
    values = {key: float(value) for key, value in slo.items()}
    for text in map(str, texts):
        key, equals, value = text.partition("=")
        if not equals:
            raise ArgumentError("slo", f"{text}: write KEY=VALUE, for example p99_ttft_ms=1000 or goodput=0.95")
        values[key.strip()] = positive_number("slo", text, value)
    if not values:
        raise ArgumentError("slo", "give at least one limit to plan for, for example p99_ttft_ms=1000")
    goodput = values.pop(GOODPUT, None)
    single = tuple((m[1], values.pop(key)) for key in list(values) if (m := PER_REQUEST.fullmatch(key)))
    if goodput is not None and not 0 < goodput <= 1:
        raise ForerunError(f"slo.goodput: a share of requests in (0, 1], for example 0.95 (got {goodput:g})")
    if goodput is not None and not single:
        raise ForerunError("slo.goodput: say what a good request is, for example ttft_ms=1000 and tpot_ms=60")
    if single and goodput is None:
        raise ForerunError(
            f"slo.{single[0][0]}_ms: a limit of single requests needs the share that must hold it, for example "
            f"goodput=0.95; or limit a statistic, such as p99_{single[0][0]}_ms"
        )
    limits = slo_limits(values)
    limited = {limit.latency for limit in limits} | {name for name, _ in single}
    if not limited & set(WAITING):
        raise ForerunError(
            "slo: a limit on TPOT or ITL alone holds at any load, because requests may wait in the queue for ever; add "
            "one on TTFT or E2E latency, for example p99_ttft_ms=1000"
        )
    return Objective(limits, single, goodput)


def reached(objective: Objective, result: Served) -> dict[str, float | None]:
    """Value of every limited metric, in milliseconds or as a share; None if not measured."""
    samples = {name: latency_sample(result, name) for name in {limit.latency for limit in objective.limits}}
    values = {limit.key: statistic(limit.statistic, samples[limit.latency]) for limit in objective.limits}
    if objective.goodput is not None:
        values[GOODPUT] = float(good(objective, result).mean())
    return values


def good(objective: Objective, result: Served) -> BoolArray:
    """True for requests completed within every per-request limit; a missing TPOT cannot violate its limit."""
    latencies = request_latencies_ms(result.requests)
    within = completed_requests(result.requests)
    for name, limit in objective.per_request_ms:
        within = within & ~(latencies[name] * result.shifts.get(name, 1.0) > limit)
    return np.asarray(within, dtype=np.bool_)


def statistic(name: str, sample: WeightedSample) -> float | None:
    """``mean``, ``median``, ``std`` or a percentile such as ``p99.9`` of a sample; None if it is empty."""
    if not sample.size:
        return None
    if name in ("mean", "median", "std"):
        value: float = getattr(sample, name)()
        return value
    return sample.percentile(float(name.removeprefix("p")))


def resampled(objective: Objective, result: RunResult, seed: int = 0) -> list[dict[str, float | None]] | None:
    """Values of the limited metrics on block-bootstrap resamples of one run, for runs without randomness.

    Requests in order of arrival are resampled in circular blocks of ``10 n^(1/3)``, so that bursts stay together. The
    result is None if a limit is on the inter-token latency, which has no value per request.

    Source: D. N. Politis and J. P. Romano, "A circular block-resampling procedure for stationary data" (1992).
    """
    latencies = request_latencies_ms(result.requests)
    latencies = {name: values * result.shifts.get(name, 1.0) for name, values in latencies.items()}
    if any(limit.latency not in latencies for limit in objective.limits):
        return None
    fine = good(objective, result) if objective.goodput is not None else None
    ranked = {limit.latency: np.unique(latencies[limit.latency], return_inverse=True) for limit in objective.limits}
    count = len(result.requests)
    block = min(count, max(1, round(10 * count ** (1 / 3))))
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(RESAMPLES):
        starts = generator.integers(0, count, -(-count // block))
        chosen = ((starts[:, None] + np.arange(block)) % count).ravel()[:count]
        row = {
            limit.key: statistic(limit.statistic, _sample(*ranked[limit.latency], chosen)) for limit in objective.limits
        }
        rows.append(row | ({} if fine is None else {GOODPUT: float(fine[chosen].mean())}))
    return rows


def _sample(values_ms: FloatArray, rank: IntArray, chosen: IntArray) -> WeightedSample:
    """Sample of the chosen requests, from the ascending values of all and the rank of each; NaN is no value."""
    count = np.bincount(rank[chosen], minlength=len(values_ms))
    kept = (count > 0) & ~np.isnan(values_ms)
    return WeightedSample(values_ms[kept], np.cumsum(count[kept], dtype=np.int64))


def positive_number(argument: str, place: str, text: str) -> float:
    """Parse the number in an option's text; refuse all but finite numbers above 0, naming the option."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (value > 0 and isfinite(value)):
        raise ArgumentError(argument, f"{place}: {without_unit(text, place.partition('=')[0], 'positive number')}")
    return value


def latency_words(key: str, value: float | None) -> str:
    """Text of a statistic and its value, e.g. ``p99 TTFT 812 ms``."""
    if key == GOODPUT:
        return "goodput unknown" if value is None else f"goodput {value:.1%}"
    name, latency, _ = key.rsplit("_", 2)
    label = latency.upper() if latency in LATENCIES else latency
    return f"{name} {label} {'unknown' if value is None else f'{number(value)} ms'}"


def limits_words(objective: Objective) -> str:
    """Text of the objective, e.g. ``p99 TTFT <= 1,000 ms and p99 TPOT <= 60 ms``."""
    parts = [f"{limit.statistic} {limit.latency.upper()} <= {number(limit.limit_ms)} ms" for limit in objective.limits]
    if objective.goodput is not None:
        single = ", ".join(f"{name.upper()} <= {number(limit)} ms" for name, limit in objective.per_request_ms)
        parts.append(f"{number(objective.goodput)} of requests within {single}")
    return " and ".join(parts)
