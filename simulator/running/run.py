"""Runs a scenario: simulates the cluster, prices its steps and gathers the records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from forerun.document import Json, plain_json
from forerun.errors import ForerunError, InvariantError, NothingServedError, StalledError, check_number, named_arguments
from forerun.result import LatencyStatistics, Summary
from forerun.tables import Table
from forerun.types import LONGEST_S
from simulator.running import metrics
from simulator.running.assumptions import Factors
from simulator.running.build import Build, build_run
from simulator.running.drafting import DrafterFactory
from simulator.running.invariants import FinishedRun, StepAudit, broken
from simulator.running.records import (
    ModelError,
    RunRecords,
    clock,
    request_records,
    speculation_counters,
)
from simulator.running.refusals import refuse_stream
from simulator.running.scenario import Scenario, ScenarioSource, as_scenario
from simulator.running.step_rows import DecodeSample, StepRows
from simulator.serving import FULL_ROWS, KvCacheReport, RunLog, StepLog
from simulator.serving.rules import SCHEDULERS
from simulator.speculation import PolicyFactory, window_note
from simulator.timing import ModelTimer
from simulator.workload import RequestStream, generate_requests

if TYPE_CHECKING:
    import pyarrow as pa

    from simulator.running.measured import MeasuredEvidence
    from simulator.running.metrics.uncertainty import Figures

T = TypeVar("T")
NEARLY_GONE = 0.98
"""Minimum share of KV blocks in use at which a run adds a note."""


class Figure(Generic[T]):
    """Descriptor: a value of a run's document as an attribute of its result."""

    def __init__(self, read: Callable[[metrics.RunDocument], T]) -> None:
        self._read = read

    def __get__(self, run: RunResult | None, owner: type[RunResult]) -> T:
        return self if run is None else self._read(run.data)  # type: ignore[return-value]


def _latency(name: str) -> Figure[LatencyStatistics]:
    keys = [f"{field}_{name}_ms" for field in LatencyStatistics._fields]
    return Figure(lambda data: LatencyStatistics(*map(data.summary.get, keys)))


def _of_summary(key: str) -> Figure[float | None]:
    return Figure(lambda data: data.summary.get(key))


class RunResult(RunRecords):
    """A finished run."""

    @cached_property
    def data(self) -> metrics.RunDocument:
        """The run's document, typed."""
        return metrics.run_data(self)

    @cached_property
    def document(self) -> Json:
        """The ``run`` JSON for one seed, as ``--json`` writes it."""
        return plain_json(self.data)  # type: ignore[no-any-return]

    @property
    def summary(self) -> Summary:
        """Metrics of vLLM's serving benchmark, by the benchmark's names."""
        return Summary(self.document["summary"])

    ttft_ms = _latency("ttft")
    """Time to first token, from arrival, in milliseconds."""
    tpot_ms = _latency("tpot")
    """Time per output token after the first, in milliseconds."""
    itl_ms = _latency("itl")
    """Gaps between deliveries of tokens, in milliseconds."""
    e2el_ms = _latency("e2el")
    """End-to-end latency, from arrival, in milliseconds."""
    completed = Figure(lambda data: data.summary["completed"])
    """Number of requests that received all their tokens."""
    failed = Figure(lambda data: data.summary["failed"])
    """Number of requests that did not complete."""
    duration_s = _of_summary("duration")
    """Seconds from the first arrival to the last finish; None if nothing finished."""
    request_throughput = _of_summary("request_throughput")
    """Completed requests per second."""
    request_goodput = _of_summary("request_goodput")
    """Requests per second within the SLO; None without an SLO."""
    output_throughput = _of_summary("output_throughput")
    """Output tokens per second."""
    acceptance_length = _of_summary("spec_decode_acceptance_length")
    """Mean tokens per verify step, bonus token included; None without speculation."""
    bottleneck: Figure[dict[str, float]] = Figure(lambda data: dict(data.bottleneck or {}))
    """Share of engine time bound by compute, memory, interconnect, latency, host and idle."""
    cost_usd: Figure[float | None] = Figure(lambda data: data.cost_usd)
    """Cost of the run in US dollars; None without prices."""
    meets_slo: Figure[bool | None] = Figure(lambda data: None if data.slo is None else data.slo["met"])
    """True if the run meets the scenario's SLO; None without one."""

    @property
    def title(self) -> str:
        """Model and hardware."""
        return metrics.run_title(self.document)

    def tables(self) -> list[Table]:
        """The applicable tables: serving, latency, speculation, SLO, engine, pools."""
        return metrics.run_tables(self.document)

    def records(self) -> list[Json]:
        """One row per request."""
        return self.to_arrow().to_pylist()

    def to_arrow(self, name: str = "requests") -> pa.Table:
        """Arrow table ``requests`` or ``steps``, as in the run's Parquet files, or a table by its name."""
        return metrics.run_columns(self, name) if name in ("requests", "steps") else super().to_arrow(name)


@named_arguments
def simulate(
    scenario: ScenarioSource,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    full_step_rows: int | None = None,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
    stream: RequestStream | None = None,
    intervals: bool | Figures = False,
    cost_notes: bool = True,
    measured: str | Path | Sequence[str | Path] = (),
) -> RunResult:
    """Run a scenario to its end.

    Args:
        scenario: a ``Scenario``, a dict of its fields, or the path of its file.
        seed: seed of arrivals, lengths and acceptance; the same seed gives the same result, byte for byte.
        progress: called repeatedly with (requests ended, requests in total).
        full_step_rows: number of step records (divided equally between replicas) above which decode steps of one
            unchanged batch share a row; default: 131,072. 0 = no rows, only sums (``totals``).
        make_drafter: builds a custom drafter in place of the scenario's speculation method; see
            ``simulator.timing.Drafter`` and ``check_drafter``.
        make_policy: builds a custom draft policy for each replica, in place of the scenario's policy; see
            ``simulator.speculation.DraftPolicy`` and ``check_policy``.
        factors: on assumed parameters, for sensitivity studies (see ``simulator.running.assumptions``); default: none.
        stream: requests to serve in place of those that the scenario's workload describes.
        intervals: also estimate the model error of the summary's figures, or of a function's figures of a run (see
            ``simulator.running.metrics.uncertainty``). Simulates some of the requests seven more times: takes about as
            long as the run from 1,500 requests on, up to seven times as long for a few hundred.
        cost_notes: with attention-level speculation, note how far its assumed costs move decode steps, which takes
            longer than a run of few requests.
        measured: benchmark results (or one) of the deployment, as in the scenario's ``measured``, which they replace.

    Raises:
        InvariantError: the result breaks physics or conservation (see ``simulator.running.invariants``), a fault of the
            simulator; the error carries the result.
        ForerunError: the model does not fit, no request can be served, or the scenario uses a feature that is not
            modelled.
        hwprofiles.ProfileError: unknown or invalid chip or link.
        traces.TraceError: the trace cannot be read.
    """
    check_number("seed", seed, 0, inf, whole=True)
    began = clock()
    scenario = as_scenario(scenario)
    if measured:
        scenario = scenario.with_values(
            {"measured": [str(one) for one in ([measured] if isinstance(measured, str | Path) else measured)]}
        )
    build, evidence = measured_build(build_run(scenario, seed, make_drafter, make_policy, factors))
    if stream is None:
        stream = generate_requests(scenario.workload, seed)
    refuse_stream(stream, build.pools)
    audit, decoding, keep_steps = StepAudit(build.pools, stream.prefix_hashes), DecodeSample(), full_step_rows != 0

    def broken_run(problem: str, result: RunResult | None = None) -> InvariantError:
        described = scenario.model_dump_json(exclude_unset=True)
        return InvariantError(problem, described, seed, "" if keep_steps else " --no-steps", result)

    sampled = [decoding.take] if build.main.groups is not None and cost_notes else []
    rows = StepRows(build, [audit.take, *sampled], keep_steps)
    try:
        log = build.fleet.run(stream, progress, full_step_rows or FULL_ROWS, rows.take)
    except StalledError as error:
        raise broken_run(str(error)) from None
    rows.take(log.steps)
    _refuse_nothing_served(log)
    simulated_s = float(audit.totals.end_s.max())
    if simulated_s > LONGEST_S:
        raise ForerunError(
            f"the run lasts {simulated_s:.3g} s of simulated time, of which {LONGEST_S:.0e} s can be resolved; fewer "
            f"requests, shorter pauses or failures"
        )
    result = RunResult.of(build, log, rows, audit.totals, began)
    result = replace(result, notes=(*result.notes, *_notes(build, log, decoding, result.kv)))
    if scenario.measured is not None:
        result = replace(result, notes=(*result.notes, *_measured_notes(scenario, evidence)))
    if evidence is not None:
        result = replace(result, shifts=metrics.measured_shifts(evidence.posterior, scenario, build, result.requests))
    problem = broken(FinishedRun.of(build.pools, log, result.requests, audit, result.speculation))
    if problem is not None:
        raise broken_run(problem, result)
    if intervals:
        figures = metrics.summarise if intervals is True else intervals
        own, posterior = metrics.own_errors(scenario, build, result), evidence and evidence.posterior
        off = metrics.model_error(scenario, seed, build, stream, own, figures, posterior=posterior)
        result = replace(result, model_error=_doubted(off, scenario, evidence))
    return result


def measured_build(build: Build) -> tuple[Build, MeasuredEvidence | None]:
    """The build as measured runs of its deployment move it, and their evidence; without such runs, as it is."""
    if build.scenario.measured is None:
        return build, None
    from simulator.running.measured import evidence_for  # it reads benchmark results, which plain runs do not

    evidence = evidence_for(build.scenario, simulate)
    return (build, None) if evidence is None else (evidence.moved(build), evidence)


def _measured_notes(scenario: Scenario, evidence: MeasuredEvidence | None) -> tuple[str, ...]:
    """Notes on a scenario's measured runs: what they do not state, or that they are of another deployment."""
    from simulator.running.measured import other_deployment_note

    return (other_deployment_note(scenario, simulate),) if evidence is None else evidence.notes


def _doubted(error: ModelError, scenario: Scenario, evidence: MeasuredEvidence | None) -> ModelError:
    """The model error, marked if measured runs of another deployment lie outside their nine in ten."""
    if scenario.measured is None or evidence is not None:
        return error
    from simulator.running.measured import is_surprised

    return {**error, "doubted": is_surprised(scenario, simulate)}


def serve(
    scenario: Scenario, seed: int = 0, stream: RequestStream | None = None, factors: Factors | None = None
) -> metrics.Rerun:
    """Simulate only the requests of a run, for studies that compare latencies of many runs.

    Each request has the same times as in ``simulate``. Steps are not recorded, so bottlenecks, energy, evidence and
    invariants of the run are not known.

    Raises:
        ForerunError: same reasons as in ``simulate``.
    """
    if stream is None:
        stream = generate_requests(scenario.workload, seed)
    build, evidence = measured_build(build_run(scenario, seed, factors=factors))
    served = _served(scenario, build, stream)
    if evidence is None:
        return served
    return served._replace(shifts=metrics.measured_shifts(evidence.posterior, scenario, build, served.requests))


def error_of_run(
    scenario: Scenario,
    seed: int,
    figures: Figures,
    own: metrics.OwnErrors | None = None,
    like: ModelError | None = None,
) -> ModelError:
    """Model error of a run's metrics, as ``simulate`` computes it with ``intervals``, without its result or advice.

    ``own`` is the error data that the run recorded; without it, the run is simulated again. ``like`` is the error at
    another load, if known.
    """
    build, evidence = measured_build(build_run(scenario, seed))
    stream = generate_requests(scenario.workload, seed)
    if own is None:
        own = metrics.own_errors(scenario, build, _served(scenario, build, stream))
    off = metrics.model_error(
        scenario, seed, build, stream, own, figures, like, evidence and evidence.posterior, advise=False
    )
    return _doubted(off, scenario, evidence)


def _served(scenario: Scenario, build: Build, stream: RequestStream) -> metrics.Rerun:
    refuse_stream(stream, build.pools)
    log = build.fleet.run(stream, None, 0, StepLog.forget)
    _refuse_nothing_served(log)
    requests = request_records(log)
    return metrics.Rerun(scenario, requests, log.gaps(), speculation_counters(log, build.main))


def _refuse_nothing_served(log: RunLog) -> None:
    if np.sum(log.failed) == len(log.failed):
        raise NothingServedError("; ".join(refusal_words(log.refusals)))


def refusal_words(refusals: Mapping[str, int]) -> list[str]:
    """Refusal reasons with counts of requests; reasons that differ only in the first number share a line.

    >>> refusal_words({"needs 11 KV blocks, the replica has 10": 2, "needs 30 KV blocks, the replica has 10": 1})
    ['3 requests: needs 11 to 30 KV blocks, the replica has 10']
    """
    alike: dict[tuple[str, str], dict[int, int]] = {}
    for reason, count in refusals.items():
        begin, figure, rest = re.fullmatch(r"(\D*)(\d*)(.*)", reason, re.DOTALL).groups()  # type: ignore[union-attr]
        alike.setdefault((begin, rest), {})[int(figure or 0)] = count
    lines = []
    for (begin, rest), counts in sorted(alike.items()):
        least, most = min(counts), max(counts)
        figure = "" if not most else f"{least}" if least == most else f"{least} to {most}"
        total = sum(counts.values())
        lines.append(f"{total} request{'s' * (total > 1)}: {begin}{figure}{rest}")
    return lines


def _notes(build: Build, log: RunLog, decoding: DecodeSample, kv: KvCacheReport) -> Iterator[str]:
    if log.stream.prefix_hashes is None and any(pool.stores for pool in build.pools):
        short = build.scenario.engine.kv_offloading_bytes is not None
        field = "kv_store" if build.scenario.kv_store else f"engine.{'kv_offloading_bytes' if short else 'kv_stores'}"
        yield f"{field} changes nothing: no prompts of this workload are known to repeat"
    if log.stream.prefix_hashes is None and any(pool.eviction.name != "lru" for pool in build.pools):
        yield "engine.prefix_cache_eviction changes nothing: no prompts of this workload are known to repeat"
    if log.stream.priorities is not None and not any(pool.rules.by_priority for pool in build.pools):
        able = " or ".join(name for name, facts in SCHEDULERS.items() if facts.by_priority)
        yield f"workload.priorities change nothing: only engine.scheduler {able} looks at them"
    scenario, engine = build.scenario, build.scenario.engine
    if engine.framework == "vllm" and engine.max_num_batched_tokens < engine.max_num_seqs:
        yield (
            f"engine.max_num_batched_tokens: {engine.max_num_batched_tokens} is below max_num_seqs "
            f"{engine.max_num_seqs}; vLLM refuses to start with this"
        )
    if log.stage_open_s:
        idle = 1.0 - log.stage_busy_s / log.stage_open_s
        yield f"pipeline: stages stood idle {idle:.1%} of the time in which batches were in flight (bubbles)"
    yield from (words.replace(": ", " refused: ", 1) for words in refusal_words(log.refusals))
    restarts = int(np.sum(log.restarts))
    if restarts:
        yield f"failed replicas: requests started again on another one {restarts} times"
    timer, groups = build.main.timer, build.main.groups
    if groups is not None and isinstance(timer, ModelTimer) and len(decoding):
        steps = decoding.steps
        work = (steps.decode_seqs, steps.query_len, steps.decode_kv_tokens)
        yield groups.range_note(timer.target, *work, steps.seconds / steps.steps)
    beyond = window_note(scenario.speculation, log.stream.input_tokens)
    if beyond is not None:
        yield beyond
    yield from _in_step(log.stream, build.main.sampler is not None)
    yield from _few_streams(log.stream, build)
    if kv.peak_blocks >= NEARLY_GONE * kv.num_blocks:
        yield (
            f"KV memory was nearly gone: {kv.peak_blocks / kv.num_blocks:.0%} of {kv.num_blocks:,} blocks "
            f"({kv.num_blocks * kv.block_size:,} tokens) in use at the peak, {kv.preemptions:,} preemptions"
        )


def _few_streams(stream: RequestStream, build: Build) -> Iterator[str]:
    """Remark on a closed loop with more requests than can run, or than fit in the KV caches."""
    if stream.max_concurrency is None:
        return
    decoding = [(pool.replicas, pool.limits.together) for pool in build.pools if pool.role != "prefill"]
    places = sum(replicas * limits.max_num_seqs for replicas, limits in decoding)
    tokens = sum(replicas * limits.num_blocks * limits.block_size for replicas, limits in decoding)
    mean = float((stream.input_tokens + stream.output_tokens).mean())
    outstanding = min(stream.max_concurrency, len(stream))
    if places < outstanding:
        yield (
            f"engine.max_num_seqs lets {places:,} requests run at once (SGLang divides it among attention groups) and "
            f"{outstanding:,} are outstanding: the others wait"
        )
    if tokens < outstanding * mean and stream.prefix_hashes is None:
        yield (
            f"KV memory holds {tokens / mean:,.1f} requests of {mean:,.0f} tokens and {outstanding:,} are outstanding: "
            "the others wait or are preempted. A larger engine.gpu_memory_utilization, a narrower kv_cache_dtype or "
            "more chips hold more"
        )


def _in_step(stream: RequestStream, drafting: bool) -> Iterator[str]:
    """Remark on a closed loop whose requests stay synchronised, because all answers have equal length."""
    most, outputs = stream.max_concurrency, stream.output_tokens
    if not stream.stays_in_step:
        return
    low, high = (round(share * outputs[0]) for share in (0.9, 1.1))
    if drafting:
        why = "Requests accept drafts unequally, and measured loops are out of step: TTFT is much shorter there"
    else:
        why = (
            "Answers of real requests differ: with 10 % of spread TTFT of Llama-3.1-8B at 64 at once is a third, TPOT "
            "within a few percent"
        )
    yield (
        f"every answer has {outputs[0]} tokens, so the {most} requests of the closed loop stay in step: they end and "
        f"come back together, and their prompts queue behind one another. {why}. Give workload.output_tokens a "
        f"spread, such as {{distribution: uniform, min: {low}, max: {high}}}"
    )
