"""Length of a run that shows a steady state, for compare, tune and plan alike."""

from __future__ import annotations

from math import ceil

import numpy as np

from forerun.errors import ForerunError, InvariantError, StalledError
from simulator.running.scenario import Scenario
from simulator.studies.steady_state.estimate import estimate
from simulator.studies.steady_state.traffic import population
from simulator.workload import RequestStream
from simulator.workload.generate import conversation

SPAN_S = 60.0
"""Minimum span of arrivals in seconds, so that a growing queue becomes visible."""
SPAN_LIMITS = 20.0
"""Minimum span of arrivals as a multiple of the longest wait that matters, or of a request's latency under load."""
LOADED = 3.0
"""Latency under load relative to a request alone: requests take two to three times as long near a crossover."""
LEAST_SPAN_S, LEAST_SPAN_LIMITS = 10.0, 10.0
"""Seconds of arrivals, and multiples of the wait, below which a run is too short for a verdict."""
CONVERSATIONS_LONGER = 3.0
"""Factor on the span of conversations: a waiting turn delays the next turn, so overload becomes visible slowly."""
MOST_REQUESTS = 30_000
"""Maximum number of requests to which a run is lengthened."""


def steady_requests(scenario: Scenario, rate: float, longest_wait_s: float = 0.0) -> int:
    """Number of requests that shows the steady state of ``rate`` requests or conversations per second.

    Args:
        scenario: scenario that determines the duration of requests and the turns of conversations.
        rate: arrival rate, requests or conversations per second.
        longest_wait_s: longest wait for a first token that an SLO allows.
    """
    turns, rising_s = conversation(scenario.workload)
    span_s = max(SPAN_S, SPAN_LIMITS * max(longest_wait_s, loaded_latency_s(scenario))) + rising_s
    return min(MOST_REQUESTS, ceil(span_s * rate * turns * (1.0 if turns == 1.0 else CONVERSATIONS_LONGER)))


def steady_loop_requests(concurrency: int) -> int:
    """Number of requests that shows the steady state of a closed loop: each place is used ``SPAN_LIMITS`` times."""
    return min(MOST_REQUESTS, ceil(SPAN_LIMITS * concurrency))


def most_telling_rate(scenario: Scenario, requests: int, longest_wait_s: float) -> float:
    """Highest rate at which a run of this length shows a steady state."""
    turns, rising_s = conversation(scenario.workload)
    return requests / turns / (max(LEAST_SPAN_S, LEAST_SPAN_LIMITS * longest_wait_s) + rising_s)


def loaded_latency_s(scenario: Scenario) -> float:
    """Latency of the mean request under load: ``LOADED`` times its latency alone; 0 if no request can be served."""
    try:
        alone_s = estimate(scenario, concurrency=1.0).mean_e2e_s or 0.0
    except ForerunError:
        alone_s = _simulated_alone_s(scenario)
    return LOADED * alone_s


def _simulated_alone_s(scenario: Scenario) -> float:
    """Simulated latency of the mean request alone, for scenarios without a closed form."""
    from simulator.running.run import serve

    try:
        lengths = population(scenario.workload)
        prompt, answer = (max(1, round(float(one.mean()))) for one in (lengths.input_tokens, lengths.output_tokens))
        alone = RequestStream(np.zeros(1), np.array([prompt]), np.array([answer]), None)
        return float(np.nan_to_num(serve(scenario, 0, stream=alone).requests.finished_s[0]))
    except (ForerunError, InvariantError, StalledError):
        return 0.0
