"""Layouts that cannot hold an SLO, told without simulating them: bounds that err on the side of trying."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.studies.objectives import WAITING, Objective, latency_words
from simulator.studies.steady_state import Replica

FloatArray = NDArray[np.float64]

RATE_MARGIN = 1.25
"""A replica is granted this much more than the analytic highest rate before a queue counts as sure."""
LATENCY_MARGIN = 0.75
"""Share of an analytic latency without load that is surely reached."""


def overload(steady: Replica | None, objective: Objective, replicas: int, arrival_s: FloatArray) -> str | None:
    """Why a queue surely grows over a limit at this number of replicas, or None where it may not.

    By time t at most ``n (m + 1.25 R t)`` requests have been started: n replicas of m places, R the analytic highest
    rate of one. Request k, which arrives at t_k, therefore waits at least ``(k / n - m) / (1.25 R) - t_k``; quantiles
    of that over all requests bound those of TTFT and E2E latency, and its mean theirs.

    Args:
        steady: analytic averages of one replica; None where there are none. Not used where prompts share prefixes, for
            routing decides what a cache is worth.
        objective: the SLO.
        replicas: how many.
        arrival_s: arrivals of the run, rising.
    """
    if steady is None or not len(arrival_s) or steady.traffic.cached_tokens.any():
        return None
    start_s = (np.arange(len(arrival_s)) / replicas - steady.most) / (RATE_MARGIN * steady.most_rate)
    wait_s = np.maximum(0.0, start_s - (arrival_s - arrival_s[0]))
    for quantile, limit_s in bearable_waits(objective):
        least = float(np.mean(wait_s)) if quantile is None else float(np.quantile(wait_s, quantile, method="lower"))
        if least > limit_s:
            rate = len(arrival_s) / max(float(arrival_s[-1] - arrival_s[0]), 1e-9)
            served = replicas * steady.most_rate
            return (
                f"asked for {rate:,.3g} req/s, serves about {served:,.3g} in the long run: the queue outgrows the SLO"
            )
    return None


def hopeless(steady: Replica | None, objective: Objective) -> str | None:
    """Why an SLO is out of reach even without load, or None where it may hold.

    The mean latencies of a request alone, times ``LATENCY_MARGIN``, bound the mean and every percentile from the 90th:
    company never makes a request faster, and such latencies follow the lengths of requests, whose mean is checked to
    lie below their 90th percentile. Other statistics are not judged.
    """
    if steady is None or steady.traffic.cached_tokens.any():
        return None
    lengths = (steady.traffic.input_tokens, steady.traffic.output_tokens)
    if any(float(np.percentile(tokens, 90)) < float(tokens.mean()) for tokens in lengths):
        return None
    alone = steady.closed_loop(1.0)
    latencies = {"ttft": alone.ttft_s, "tpot": alone.tpot_s, "e2el": alone.e2e_s}
    for limit in objective.limits:
        seconds = latencies.get(limit.latency)
        bounded = limit.statistic == "mean" or (limit.statistic[0] == "p" and float(limit.statistic[1:]) >= 90)
        if seconds is not None and bounded and LATENCY_MARGIN * seconds * 1e3 > limit.limit_ms:
            mean = latency_words(f"mean_{limit.latency}_ms", seconds * 1e3)
            return f"a request that has a replica to itself has {mean}: {limit.key} {limit.limit_ms:g} is out of reach"
    return None


def bearable_waits(objective: Objective) -> list[tuple[float | None, float]]:
    """Longest waits that the objective allows: a quantile of the requests (None for their mean), and seconds."""
    waits: list[tuple[float | None, float]] = []
    for limit in objective.limits:
        if limit.latency in WAITING and limit.statistic != "std":
            quantile = {"mean": None, "median": 0.5}.get(limit.statistic, 0.0)
            if quantile == 0.0:
                quantile = float(limit.statistic[1:]) / 100
            waits.append((quantile, limit.limit_ms / 1e3))
    if objective.goodput is not None:
        waits += [(objective.goodput, ms / 1e3) for name, ms in objective.per_request_ms if name in WAITING]
    return waits
