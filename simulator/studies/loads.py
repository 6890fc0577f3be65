"""How hard a scenario is driven: requests per second, drawn anew or a trace's own arrivals played faster."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from simulator.errors import ForerunError
from simulator.scenario import Scenario
from simulator.studies.traffic import population

SPAN_S = 60.0
"""Seconds of arrivals that a plan simulates at least: a queue that grows must have the time to show."""
SPAN_LIMITS = 20.0
"""The same, in multiples of the longest time that the SLO lets a request wait for its first token."""
LEAST_SPAN_S = 10.0
LEAST_SPAN_LIMITS = 10.0
"""Seconds of arrivals, and multiples of that wait, below which a run is too short to tell whether a rate is held."""
MOST_REQUESTS = 30_000
"""Requests beyond which a run is not made longer for the sake of ``SPAN_S``."""


@dataclass(frozen=True, slots=True)
class Load:
    """How to offer a scenario's requests at a rate; arrivals at two rates differ in their time scale alone."""

    kind: str
    """``process``: drawn arrivals of that rate. ``trace``: the trace's own arrivals, played faster or slower."""
    own_rate: float | None
    """Requests per second of the scenario as it is, where that is known."""
    requests: int | None
    """Requests of a run; None leaves the scenario's own number, at least."""

    def at(self, scenario: Scenario, rate: float) -> Scenario:
        """The scenario with ``rate`` requests per second."""
        workload = scenario.workload
        changes: dict[str, Any] = {}
        if self.kind == "trace":
            assert self.own_rate is not None
            changes["arrivals"] = {"process": "trace", "rate_scale": rate / self.own_rate}
        else:
            arrivals = workload.arrivals
            kept = {}
            if arrivals is not None and arrivals.process in ("gamma", "constant"):
                kept = {"process": arrivals.process}
                if arrivals.burstiness is not None:
                    kept["burstiness"] = arrivals.burstiness  # type: ignore[assignment]
            changes["arrivals"] = {"process": "poisson", **kept, "request_rate": rate}
        if self.requests is not None:
            changes["num_requests"] = self.requests
        return scenario.with_values({f"workload.{name}": value for name, value in changes.items()})

    def most_telling_rate(self, scenario: Scenario, longest_wait_s: float) -> float:
        """Rate above which a run of this load would be too short for a verdict."""
        if scenario.workload.trace is not None:
            count = len(population(self._limited(scenario).workload).input_tokens)
        else:
            count = self.requests or scenario.workload.num_requests or 1
        return count / max(LEAST_SPAN_S, LEAST_SPAN_LIMITS * longest_wait_s)

    def _limited(self, scenario: Scenario) -> Scenario:
        return scenario if self.requests is None else scenario.with_values({"workload.num_requests": self.requests})

    def long_enough(self, scenario: Scenario, rate: float, longest_wait_s: float) -> Load:
        """The same load over enough requests for a verdict at ``rate``; traces and given numbers stay as they are."""
        if self.kind == "trace" or self.requests is not None or scenario.workload.trace is not None:
            return self
        span = max(SPAN_S, SPAN_LIMITS * longest_wait_s)
        own = scenario.workload.num_requests or 0
        return Load(self.kind, self.own_rate, max(own, min(MOST_REQUESTS, ceil(span * rate))))


def load_of(scenario: Scenario, requests: int | None, *, own_arrivals: bool) -> Load:
    """The load of a scenario.

    Args:
        scenario: what is planned.
        requests: requests of each run, or None.
        own_arrivals: keep a trace's own arrivals; else they are drawn (Poisson, unless the scenario says otherwise).

    Raises:
        ForerunError: own arrivals are asked of a closed loop, or of a trace that has none.
    """
    workload = scenario.workload
    arrivals = workload.arrivals
    replayed = workload.trace is not None and (arrivals is None or arrivals.process == "trace")
    if own_arrivals and replayed:
        limited = scenario if requests is None else scenario.with_values({"workload.num_requests": requests})
        own = population(limited.workload).trace_rate
        if own is None:
            raise ForerunError(f"workload.trace: {workload.trace}: arrivals that span no time have no rate to plan for")
        return Load("trace", own, requests)
    rate = arrivals.request_rate if arrivals is not None else None
    return Load("process", rate, requests)
