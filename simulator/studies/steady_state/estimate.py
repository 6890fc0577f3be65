"""Steady state of continuous batching in closed form: averages of a run within milliseconds, without events.

A replica serves R requests per second. An average request needs n decode (or verify) steps; a step of a batch of B
lasts d(B), and the prompts that join in it add x(B) per request: both are priced by the project's own step timer
(``step_prices``), at the mean context, with chunked prefill inside the token budget. Then

* **Batch.** While prompts keep joining, a step of B lasts ``s(B) = d(B) / (1 - R x(B))`` on average. Every decoding
  request advances by one step in it, so decoding is processor sharing with the service rate ``B / (n s(B))``, whose
  stationary distribution does not depend on the distribution of lengths: ``p(B) ~ prod_(k<=B) R n s(k) / k``
  (J. W. Cohen, "The multiple phase service network with generalized processor sharing", Acta Informatica 12,
  1979; F. P. Kelly, "Reversibility and Stochastic Networks", 1979, section 3.3). Prompts join in groups, a Poisson
  number with mean
  ``R s(B)`` per step; requests arrive in steps that are long and are decoded in the long ones after (``steady_state``).
* **Places.** B is at most m: ``max_num_seqs``, the requests whose KV fits at their mean length, or the batch at which
  the token budget just holds the prompts that keep it up. Requests beyond m queue: a geometric tail with ratio ``R n
  s(m) / m``, its mean scaled by (ca^2 + cs^2) / 2 (A. O. Allen, "Probability, Statistics, and Queueing Theory", 1990,
  section 5.3) for the variation of gaps and outputs.
* **Highest rate.** ``1 / (n d(m) / m + x(m))``, per replica; above it there is no steady state.
* **TPOT.** Little's law: a request decodes for ``mean(B) / R`` seconds.
* **TTFT.** The server's API server (M/G/1), the remainder of the step in which the request arrives (residual life,
  E[s^2] / 2 E[s]), one more step if the engine schedules ahead, the steps with its prompt, the wait while earlier
  prompts fill the token budget (M/G/1, Pollaczek-Khinchine), and the wait for a place.
* **Closed loop.** B, the prompts being processed and the queue add up to the concurrency, which determines the rate.
* **Speculation.** A step delivers the acceptance length of the scenario's acceptance, and costs the timer's seconds of
  target and drafter.

Averages only: percentiles, preemption, start-up and drain are for the event simulation. Below 0.6 of the highest rate
its TPOT and TTFT stay within some 10 % of the simulation's, at 0.9 within some 20 %; the highest rate within 5 %, but
where KV memory limits the batch preemption leaves less of it, much less with prompts longer than the token budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from numbers import Real
from typing import Any

from forerun.errors import ForerunError, named_arguments
from forerun.recent import RecentResults
from simulator.running.build import Build, build_run
from simulator.running.metrics.conclusion import api_server_remedy
from simulator.running.names import file_fields
from simulator.running.scenario import Scenario, ScenarioSource, as_scenario
from simulator.speculation import draft_survival
from simulator.speculation.speculation_config import GRAMMAR, named
from simulator.studies.steady_state.averages import Averages, SteadyReplica, make_replica
from simulator.studies.steady_state.traffic import Lengths, population, traffic

MOST_KEPT = 64
"""Maximum number of built timers and length samples that are cached for the next call."""
_BUILDS: RecentResults[Build] = RecentResults(MOST_KEPT)
_LENGTHS: RecentResults[Lengths] = RecentResults(MOST_KEPT)
_REPLICAS: RecentResults[SteadyReplica] = RecentResults(MOST_KEPT)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Means of a steady state; None if there is none, because of overload."""

    request_rate: float
    """Requests per second of all replicas; for a closed loop, the resulting rate."""
    concurrency: float | None
    """Mean number of requests in the system (Little's law); for a closed loop, its concurrency."""
    mean_ttft_s: float | None
    mean_tpot_s: float | None
    mean_e2e_s: float | None
    output_throughput: float
    """Output tokens per second, all replicas; at most the throughput at ``max_request_rate``."""
    max_request_rate: float
    """Requests per second that all replicas can serve in the long run."""
    step_s: float
    """Mean seconds of an engine step with decoding requests, joining prompts included."""
    bottleneck: dict[str, float]
    """Share of engine time bound by compute, memory, interconnect, latency, host; the remainder is idle."""
    acceptance_length: float
    """Tokens per verify step, the bonus token included; 1 without speculation."""
    kv_blocks: int
    """Number of KV blocks of a replica."""
    chips: int
    basis: str
    notes: tuple[str, ...]
    saturated: bool = False
    """True if the load exceeds the capacity in the long run."""
    batch: float = 0.0
    """Mean number of decoding requests of a replica."""
    max_batch: int = 0
    """Maximum decoding requests, limited by places, KV memory, or the token budget."""
    limited_by: str = "places"
    """Limit that sets ``max_batch``: ``places`` (max_num_seqs), ``kv`` or ``tokens`` (max_num_batched_tokens)."""


@named_arguments
def estimate(
    scenario: ScenarioSource,
    request_rate: float | None = None,
    concurrency: float | None = None,
    *,
    rate: float | None = None,
) -> Estimate:
    """Steady-state means of a scenario in closed form, in milliseconds and without simulating.

    Args:
        scenario: a ``Scenario``, a dict of its fields, or the path of its file; its arrivals give the load unless one
            of the arguments below is set.
        request_rate: requests per second over all replicas, in an open loop.
        concurrency: outstanding requests over all replicas, in a closed loop.
        rate: the same as ``request_rate``.

    Raises:
        ForerunError: both loads at once, a load that is not positive, a scenario without a closed form (static
            batching, pipeline stages, pools, failures, sessions, policies that change K), or any error of ``build_run``
            and ``generate_requests``.
    """
    scenario = as_scenario(scenario)
    if rate is not None:
        if request_rate is not None:
            raise ForerunError("estimate: give rate or request_rate, not both")
        request_rate = rate
    if request_rate is not None and concurrency is not None:
        raise ForerunError("estimate: give request_rate or concurrency, not both")
    for name, value in (("request_rate", request_rate), ("concurrency", concurrency)):
        known = isinstance(value, Real) and not isinstance(value, bool)
        if value is not None and not (known and 0 < value < inf):
            raise ForerunError(f"estimate: {name} must be a positive number (got {value!r})")
    if request_rate is None and concurrency is None:
        request_rate, concurrency = _own_load(scenario)
    build, lengths, replica = steady_parts(scenario)
    replicas = scenario.hardware.replicas
    if request_rate is None:
        assert concurrency is not None
        used = min(float(replicas), concurrency)
        averages = replica.closed_loop(concurrency / used)
        request_rate = averages.rate * used
    else:
        used = float(replicas)
        averages = replica.open_loop(request_rate * (1.0 - replica.traffic.refused) / used)
        concurrency = None if averages.in_system is None else averages.in_system * used
    share = used / replicas
    bottleneck = {bound: busy * share for bound, busy in averages.bounds.items()}
    return Estimate(
        request_rate=request_rate,
        concurrency=concurrency,
        mean_ttft_s=averages.ttft_s,
        mean_tpot_s=averages.tpot_s,
        mean_e2e_s=averages.e2e_s,
        output_throughput=averages.rate * used * float(replica.traffic.output_tokens.mean()),
        max_request_rate=replica.most_rate * replicas,
        step_s=averages.step_s,
        bottleneck=bottleneck | {"idle": max(0.0, 1.0 - sum(bottleneck.values()))},
        acceptance_length=replica.acceptance_length,
        kv_blocks=build.memory.num_blocks,
        chips=build.chips,
        basis=build.basis,
        notes=tuple(_notes(build, lengths, replica, averages)),
        saturated=averages.saturated,
        batch=averages.batch,
        max_batch=replica.most,
        limited_by=replica.limited_by,
    )


def max_request_rate(scenario: Scenario) -> float:
    """Requests per second that the scenario's replicas can serve in the long run, whatever the latency.

    Raises:
        ForerunError: same reasons as in ``estimate``.
    """
    return steady_parts(scenario)[2].most_rate * scenario.hardware.replicas


def _own_load(scenario: Scenario) -> tuple[float | None, float | None]:
    """Rate or concurrency of the scenario's own arrivals; the concurrency of a burst is its number of requests."""
    workload = scenario.workload
    arrivals = workload.arrivals
    if arrivals is not None and arrivals.max_concurrency is not None:
        return None, float(arrivals.max_concurrency)
    if arrivals is not None and arrivals.request_rate is not None:
        return arrivals.request_rate, None
    lengths = _lengths(scenario)
    if arrivals is not None and arrivals.process == "burst":
        return None, float(workload.num_requests or len(lengths.input_tokens))
    if lengths.trace_rate is None:
        raise ForerunError("estimate: the trace's arrivals span no time; give request_rate or concurrency")
    return lengths.trace_rate, None


def steady_parts(scenario: Scenario) -> tuple[Build, Lengths, SteadyReplica]:
    """Build of a scenario, its request lengths, and one replica in steady state; cached for the next call."""
    _refuse(scenario)
    lengths = _lengths(scenario)
    build = kept_build(scenario)
    key = _key(scenario.model_dump(exclude={"slo", "prices"}))
    return build, lengths, _REPLICAS.get(key, lambda: _replica(scenario, build, lengths))


def _refuse(scenario: Scenario) -> None:
    """Refuse scenarios that the formulas do not describe; the event simulation accepts all of these."""
    policy = "fixed" if scenario.speculation is None else named(scenario.speculation.policy).name
    reasons = {
        f"engine.scheduler: {scenario.engine.scheduler} batching has": not scenario.engine.rules.continuous,
        "hardware.pipeline_parallel: several batches in flight have": scenario.hardware.pipeline_parallel > 1,
        "pools: replicas of several kinds have": bool(scenario.pools),
        "measured: steps that measured runs move have": scenario.measured is not None,
        "faults: failing replicas have": scenario.faults is not None,
        "workload.sessions: prompts that grow from turn to turn have": scenario.workload.sessions is not None,
        f"speculation.policy: '{policy}' changes K with the load, which has": policy != "fixed",
        "speculation.method: a grammar verifies what it forces, which has": (
            scenario.speculation is not None and scenario.speculation.method == GRAMMAR
        ),
    }
    for words, present in reasons.items():
        if present:
            raise ForerunError(f"{words} no steady state in closed form here; use forerun run")


def kept_build(scenario: Scenario) -> Build:
    """Build of a scenario; cached for later scenarios that differ only in arrivals or SLO."""
    key = _key(scenario.model_dump(exclude={"workload": {"arrivals"}, "slo": True}))
    return _BUILDS.get(key, lambda: build_run(scenario))


def _lengths(scenario: Scenario) -> Lengths:
    workload = scenario.workload
    return _LENGTHS.get(_key(workload.model_dump()), lambda: population(workload))


def _replica(scenario: Scenario, build: Build, lengths: Lengths) -> SteadyReplica:
    pool, speculation = build.main, scenario.speculation
    survival = None if speculation is None or speculation.method == "none" else draft_survival(speculation)
    served = traffic(lengths, pool.limits, pool.replicas, pool.prefix_caching)
    prefill_first = not scenario.engine.rules.mixes
    limits = pool.limits
    return make_replica(
        pool.timer, limits.together, served, survival, groups=limits.groups, prefill_first=prefill_first
    )


def _notes(build: Build, lengths: Lengths, replica: SteadyReplica, averages: Averages) -> Iterator[str]:
    yield from build.notes
    yield from lengths.notes
    if replica.traffic.refused:
        yield f"{replica.traffic.refused:.1%} of requests are too long to be served and are left out"
    if replica.limited_by == "kv":
        yield "KV memory limits the batch: preempted prompts are computed again, which the highest rate leaves out"
    if replica.limited_by == "api-server":
        yield f"the API server limits the highest rate: {api_server_remedy(build.scenario.engine.model_dump())}"
    if averages.saturated:
        yield "the load exceeds the capacity: queues grow as long as it lasts"


def _key(data: Any) -> tuple[str, ...]:
    """Cache key: ``data`` as text, and the state of every file in it, so that changed files are read again."""
    stats = {path: path.stat() for _, _, path in file_fields(data)}
    return (repr(data), *sorted(f"{path} {status.st_mtime_ns} {status.st_size}" for path, status in stats.items()))
