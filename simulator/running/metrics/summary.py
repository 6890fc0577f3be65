"""The numbers of vLLM's serving benchmark, from the records of a simulated run, and the latency limits on them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.running.metrics.statistics import WeightedSample

if TYPE_CHECKING:
    from simulator.running.scenario import Scenario
    from simulator.serving.records import GapCounts, RequestRecords, SpeculationCounters

MS_PER_S = 1e3
LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Latencies of vLLM's serving benchmark: time to first token, time per output token, inter-token, end to end."""
REQUEST_LATENCIES = tuple(name for name in LATENCIES if name != "itl")
"""Latencies with one value per request."""

PERCENTILES = (50, 90, 95, 99)
"""Percentiles that every summary reports."""

_KEY = re.compile(rf"(mean|median|std|p\d+(?:\.\d+)?)_({'|'.join(LATENCIES)})_ms")
RATES = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")
"""Rates in a summary: requests, good requests, output tokens and all tokens per second."""


class Served(Protocol):
    """Inputs of a summary: a finished run, or the parts of one that a summary needs."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def requests(self) -> RequestRecords: ...

    @property
    def gaps(self) -> GapCounts: ...

    @property
    def speculation(self) -> SpeculationCounters | None: ...

    @property
    def shifts(self) -> Mapping[str, float]:
        """Factors on the figures of a kind that measured runs of the deployment ask for."""


def completed_requests(requests: RequestRecords) -> BoolArray:
    return requests.completed


def run_duration_s(requests: RequestRecords) -> float | None:
    """Seconds of simulated time from the first arrival to the last finish; None when nothing finished."""
    done = completed_requests(requests)
    return float(np.max(requests.finished_s[done])) - float(np.min(requests.arrival_s)) if done.any() else None


def request_latencies_ms(requests: RequestRecords) -> dict[str, FloatArray]:
    """TTFT, TPOT and end-to-end latency of each request, milliseconds, in the order of the records; NaN for none."""
    return {name: request_latency_ms(requests, name) for name in REQUEST_LATENCIES}


def request_latency_ms(requests: RequestRecords, name: str) -> FloatArray:
    """``ttft``, ``tpot`` or ``e2el`` of each request, milliseconds, in the order of the records; NaN for none."""
    values: FloatArray = getattr(requests, f"{name}_ms")
    return values


def summarise(result: Served) -> Json:
    """The flat summary of a run, keyed as the JSON that ``vllm bench serve --save-result`` writes.

    Definitions are vLLM's: TTFT from arrival, TPOT without the first token and only for requests of two or more,
    ITL over all gaps between deliveries pooled over requests, percentiles with linear interpolation, population
    standard deviation, token totals over completed requests. ``duration`` runs from the first arrival to the last
    finish (vLLM's clock starts when it starts to send, a moment before). What was not measured is None, never 0.

    ``request_goodput`` is good requests per second, with the limits of ``scenario.slo``
    (see :func:`good_requests`), and None without limits. Requests of a warm-up are left out, except from ITL.
    """
    requests = result.requests.measured
    done = completed_requests(requests)
    duration = run_duration_s(requests)
    completed = int(done.sum())
    input_tokens = int(requests.input_tokens[done].sum())
    output_tokens = int(requests.output_tokens[done].sum())
    good = good_requests(slo_limits(result.scenario.slo), requests, result.shifts)
    counts = (completed, None if good is None else int(good.sum()), output_tokens, input_tokens + output_tokens)
    summary: Json = {
        "completed": completed,
        "failed": len(requests) - completed,
        "duration": duration,
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        **{key: _rate(count, duration) for key, count in zip(RATES, counts, strict=True)},
    }
    if slower := result.shifts.get("throughput"):
        summary |= {key: summary[key] / slower for key in RATES if summary[key]}
        summary["duration"] = duration and duration * slower
    for name in LATENCIES:  # one at a time: each takes several times its own memory
        summary |= latency_statistics(name, latency_sample(result, name))
    return summary | speculation_summary(result.speculation)


def latency_sample(result: Served, name: str) -> WeightedSample:
    """All values of one of ``LATENCIES`` in a run, milliseconds, as measured runs of the deployment move them."""
    factor = result.shifts.get("tpot" if name == "itl" else name, 1.0)
    if name == "itl":
        return WeightedSample.of(result.gaps.gap_s * MS_PER_S * factor, result.gaps.count)
    values = request_latency_ms(result.requests.measured, name)
    values *= factor
    values = values[~np.isnan(values)]
    return WeightedSample.of(values)


def latency_statistics(name: str, sample: WeightedSample) -> dict[str, float | None]:
    """Mean, median, standard deviation and percentiles of one latency under vLLM's keys; None if never measured."""
    statistics = {"mean": sample.mean, "median": sample.median, "std": sample.std}
    row = {f"{key}_{name}_ms": value() if sample.size else None for key, value in statistics.items()}
    return row | {f"p{q}_{name}_ms": sample.percentile(q) if sample.size else None for q in PERCENTILES}


def speculation_summary(counters: SpeculationCounters | None) -> Json:
    """vLLM's ``spec_decode_*`` results; empty without speculation.

    ``acceptance_rate`` is the percentage of draft tokens accepted; ``acceptance_length`` counts the tokens of a verify
    step, the bonus token included; per-position rates are shares of drafts.
    """
    if counters is None:
        return {}
    drafts, drafted, accepted = counters.num_drafts, counters.draft_tokens, counters.accepted_tokens
    return {
        "spec_decode_acceptance_rate": 100.0 * accepted / drafted if drafted else None,
        "spec_decode_acceptance_length": 1.0 + accepted / drafts if drafts else None,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": (
            [count / drafts for count in counters.accepted_per_position] if drafts else None
        ),
    }


class Limit(NamedTuple):
    """An upper limit on one aggregate of one latency, e.g. ``p99_ttft_ms`` <= 500."""

    key: str
    statistic: str
    latency: str
    limit_ms: float


def slo_limits(slo: Mapping[str, float]) -> tuple[Limit, ...]:
    """The limits of a scenario's ``slo`` section, in the order written.

    Raises:
        ForerunError: for a key that is not ``<mean|median|std|pNN>_<ttft|tpot|itl|e2el>_ms``.
    """
    limits = []
    for key, limit_ms in slo.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise ForerunError(
                f"slo.{key}: not a latency limit; write for example p99_ttft_ms, mean_tpot_ms or p95_e2el_ms"
            )
        limits.append(Limit(key, match[1], match[2], float(limit_ms)))
    return tuple(limits)


REFUSED = 0.01
"""Share of requests that may be refused before a limit on a mean counts as missed."""


def most_refused(statistic: str) -> float:
    """Share of refused requests above which a limit on a statistic is missed; for a high percentile, the share beyond.

    >>> most_refused("p95"), most_refused("mean")
    (0.05, 0.01)
    """
    percent = float(statistic[1:]) if statistic[1:].replace(".", "").isdigit() else 0.0
    return round((100 - percent) / 100, 12) if percent >= 90 else REFUSED


def good_requests(limits: tuple[Limit, ...], requests: RequestRecords, shifts: Mapping[str, float]) -> BoolArray | None:
    """Requests completed within every limit that applies to a single request; None without such limits.

    A request is good when its own TTFT, TPOT and end-to-end latency are within the limits set on any aggregate of
    that latency (the strictest counts). A request without a TPOT (one output token) cannot break a TPOT limit, as
    in vLLM's ``--goodput``. Limits on the inter-token latency have no per-request value and are left out. ``shifts``
    are those of ``Served``.
    """
    applied = [limit for limit in limits if limit.latency in REQUEST_LATENCIES and limit.statistic != "std"]
    if not applied:
        return None
    within = completed_requests(requests)
    for limit in applied:
        factor = shifts.get(limit.latency, 1.0)
        within = within & ~(request_latency_ms(requests, limit.latency) * factor > limit.limit_ms)
    return within


def slo_report(result: Served, summary: Json) -> Json | None:
    """Every limit of the scenario with the value reached, and the share of requests within all per-request limits.

    Returns:
        ``{"met": bool, "good_share": float or None, "limits": {key: {"limit", "value", "met"}}}``; ``good_share``
        counts refused requests as not good, and a limit is missed if more than ``most_refused`` are refused; None
        without limits.
    """
    limits = slo_limits(result.scenario.slo)
    if not limits:
        return None
    rows, requests = {}, result.requests.measured
    done = completed_requests(requests)
    for limit in limits:
        value, refused = summary[limit.key], float(np.mean(~done))
        met = None if value is None else value <= limit.limit_ms and refused <= most_refused(limit.statistic)
        rows[limit.key] = {"limit": limit.limit_ms, "value": value, "met": met}
    good = good_requests(limits, requests, result.shifts)
    share = None if good is None or not len(done) else float(good.sum()) / len(done)
    met = all(row["met"] is True for row in rows.values())
    return {"met": met, "good_share": share, "limits": rows}


def _rate(count: int | None, duration_s: float | None) -> float | None:
    return count / duration_s if duration_s and count is not None else None
