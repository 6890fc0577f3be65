"""Tasks of a run, each the requests that wait for each other, and what guessed tool calls saved and wasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from forerun.arrays import IntArray
from simulator.running.metrics.statistics import WeightedSample

if TYPE_CHECKING:
    from simulator.serving import RequestRecords
    from simulator.workload.generate import RequestStream


def task_section(stream: RequestStream, requests: RequestRecords) -> dict[str, Any]:
    """Number and seconds of the tasks in a stream whose requests wait for one another. From first arrival to last end;
    tasks with a failed request do not count.

    ``tool_calls``, where some are guessed: how many, how many of them right, and the seconds of tools that turns hid
    and that wrong guesses ran in vain.
    """
    assert stream.follows is not None
    task = _tasks(stream.follows, len(stream))
    first_s, last_s = np.full(len(stream), np.inf), np.full(len(stream), -np.inf)
    np.fmin.at(first_s, task, requests.arrival_s)
    np.maximum.at(last_s, task, np.nan_to_num(requests.finished_s, nan=np.inf))
    seconds = (last_s - first_s)[task == np.arange(len(stream))]
    sample = WeightedSample.of(seconds[np.isfinite(seconds)])
    figures = {f"p{q}_s": sample.percentile(q) if sample.size else None for q in (50, 90, 99)}
    section = {"count": len(seconds), "mean_s": sample.mean() if sample.size else None, **figures}
    return section if stream.guessed is None else section | {"tool_calls": _tool_calls(stream, requests)}


def _tool_calls(stream: RequestStream, requests: RequestRecords) -> dict[str, Any]:
    assert stream.follows is not None
    assert stream.guessed is not None
    before, waiting = stream.follows[np.argsort(requests.finished_s[stream.follows[:, 0]], kind="stable")].T
    last = np.full(len(stream), -1)
    last[waiting] = before  # of several, the one that ended last
    waiting = np.flatnonzero((last >= 0) & ~np.isnan(requests.arrival_s))
    turn_s = (requests.finished_s - requests.arrival_s)[last[waiting]]
    overlap_s, right = np.nan_to_num(stream.overlap_s(waiting, turn_s)), stream.guessed[waiting]
    return {
        "guessed": len(waiting),
        "right": int(right.sum()),
        "hidden_s": float(overlap_s[right].sum()),
        "wasted_s": float(overlap_s[~right].sum()),
    }


def _tasks(follows: IntArray, count: int) -> IntArray:
    """First request of each request's task."""
    first = list(range(count))

    def root(request: int) -> int:
        while first[request] != request:
            first[request] = request = first[first[request]]
        return request

    for before, waiting in follows.tolist():
        low, high = sorted((root(before), root(waiting)))
        first[high] = low
    return np.array([root(request) for request in range(count)])
