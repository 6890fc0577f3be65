"""Laws of queueing: what happens to a request happens in order, and Little's law holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from simulator.laws.outcome import TIME_TOLERANCE_S, Outcome, first_of


def order(outcome: Outcome) -> Iterator[str]:
    """A request arrives, is scheduled, has its first token and then its last, in this order."""
    requests = outcome.requests
    done = np.isfinite(requests.finished_s)
    stages = ("arrival_s", "scheduled_s", "first_token_s", "finished_s")
    for earlier, later in pairwise(stages):
        before, after = getattr(requests, earlier)[done], getattr(requests, later)[done]
        wrong = ~(after >= before - TIME_TOLERANCE_S)
        if wrong.any():
            row = first_of(wrong)
            yield f"request {np.flatnonzero(done)[row]}: {later} {after[row]:.9g} is before {earlier} {before[row]:.9g}"


def little(outcome: Outcome) -> Iterator[str]:
    """The engines hold no more requests over time than are in the system over time; a closed loop of N holds at most N
    on average (throughput times mean latency <= N) and at every moment.

    Steps of a pipeline overlap with the batches before them and are left out.

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9(3) (1961).
    """
    requests, done = outcome.requests, outcome.done
    if not done.any():
        return
    arrival, finished = requests.arrival_s[done], requests.finished_s[done]
    latencies_s = float((finished - arrival).sum())
    held_s = sum(
        float(((part.steps.running + part.steps.waiting) * part.steps.seconds).sum())
        for part in outcome.by_pool()
        if not part.staged
    )
    if held_s > latencies_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"engines held requests for {held_s:.9g} s in all, requests were in the system for {latencies_s:.9g} s"
    most = outcome.max_concurrency
    if most is None:
        return
    duration_s = float(finished.max() - arrival.min())
    if latencies_s > most * duration_s * (1.0 + 1e-9) + TIME_TOLERANCE_S:
        yield f"throughput times latency is {latencies_s / duration_s:.6g} requests in a closed loop of {most}"
    early = np.sort(arrival)[most:] < np.sort(finished)[: max(0, len(finished) - most)] - TIME_TOLERANCE_S
    if early.any():
        yield f"request {first_of(early) + most} was sent while a closed loop of {most} was full"
