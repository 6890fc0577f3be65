"""From a scenario to what happened: builds the parts, runs the cluster, prices the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hwprofiles import KernelLibrary, ProfileError, dtype_bytes, load_chip, load_link
from simulator.drafting import DrafterFactory, DraftRequest, build_drafter, drafting_notes, lookahead_tokens, models_of
from simulator.errors import ForerunError
from simulator.llm import Architecture, MoeMlp, load_architecture
from simulator.scenario import Scenario
from simulator.serving import (
    FULL_ROWS,
    Cluster,
    EngineCounters,
    EngineLimits,
    GapCounts,
    KvCacheReport,
    RequestRecords,
    RunLog,
    SpeculationCounters,
    StepRecords,
)
from simulator.serving.config import EngineConfig
from simulator.speculation import AcceptanceSampler, draft_survival, proposal
from simulator.timing import (
    Costs,
    Deployment,
    Drafter,
    EngineTimer,
    MemoryPlan,
    ModelTimer,
    StepTimer,
    load_framework,
    plan_memory,
    resolve_weight_dtypes,
)
from simulator.workload import generate_requests

BASIS_ORDER = ("calibrated", "datasheet", "extrapolated")
"""From the firmest ground to the least."""

PRICED_TOGETHER = 1 << 17
"""Steps whose bounds are computed at once: keeps memory flat on long runs."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run."""

    scenario: Scenario
    seed: int
    requests: RequestRecords
    steps: StepRecords
    gaps: GapCounts
    kv: KvCacheReport
    speculation: SpeculationCounters | None
    engine: EngineCounters
    basis: str
    """``datasheet``, ``calibrated`` or ``extrapolated``: the weakest that the kernel times rest on."""
    notes: tuple[str, ...]
    chips: int


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of a run, before anything has happened."""

    cluster: Cluster
    memory: MemoryPlan
    basis: str
    chips: int
    notes: tuple[str, ...]


def simulate(
    scenario: Scenario,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    full_step_rows: int | None = None,
    make_drafter: DrafterFactory | None = None,
) -> RunResult:
    """Run a scenario to its end.

    Args:
        scenario: what to run.
        seed: of arrivals, lengths and acceptance; the same seed gives the same result, byte for byte.
        progress: called now and then with (requests ended, requests in all).
        full_step_rows: step records beyond which decode steps of one unchanged batch share a row; default: a million.
        make_drafter: a drafter of your own in place of the one that the scenario's speculation method names; see
            ``simulator.timing.Drafter`` and ``check_drafter``.

    Raises:
        ForerunError: the model does not fit, no request can be served, or the scenario asks for something that is not
            modelled.
        hwprofiles.ProfileError: unknown or faulty chip or link.
        traces.TraceError: the trace cannot be read.
    """
    cpu, wall = time.process_time(), time.perf_counter()
    build = build_cluster(scenario, seed, make_drafter)
    stream = generate_requests(scenario.workload, seed)
    if not len(stream):
        raise ForerunError("workload: there is no request to serve")
    log = build.cluster.run(stream, progress, FULL_ROWS if full_step_rows is None else full_step_rows)
    if sum(log.failed) == len(stream):
        reasons = "; ".join(f"{count} x {reason}" for reason, count in sorted(log.refusals.items()))
        raise ForerunError(f"workload: no request can be served here ({reasons})")
    requests = _requests(log, build.cluster)
    steps = _steps(log, build.cluster.timer, scenario.hardware.tensor_parallel)
    ends = steps.start_s + steps.seconds
    notes = [*build.notes, *stream.notes]
    notes += [f"{count} requests refused: {reason}" for reason, count in sorted(log.refusals.items())]
    return RunResult(
        scenario=scenario,
        seed=seed,
        requests=requests,
        steps=steps,
        gaps=_gaps(log, build.cluster.fast),
        kv=_kv_report(build, steps, requests, log),
        speculation=_speculation(log, build.cluster.limits) if build.cluster.sampler is not None else None,
        engine=EngineCounters(
            steps=int(steps.steps.sum()),
            spans=log.steps.spans,
            exact_steps=log.exact_steps,
            simulated_s=float(ends.max()) if len(ends) else 0.0,
            cpu_s=time.process_time() - cpu,
            wall_s=time.perf_counter() - wall,
        ),
        basis=build.basis,
        notes=tuple(notes),
        chips=build.chips,
    )


def build_cluster(scenario: Scenario, seed: int, make_drafter: DrafterFactory | None = None) -> Build:
    """The cluster that a scenario describes, with its memory laid out; ``make_drafter`` replaces its drafter."""
    _refuse_unmodelled(scenario)
    hardware, engine = scenario.hardware, scenario.engine
    with at_field("hardware.chip"):
        chip = load_chip(hardware.chip)
    link_name = hardware.link or chip.links.scale_up
    with at_field("hardware.link"):
        link = load_link(link_name) if link_name else None
    with at_field("kv_cache_dtype"):
        dtype_bytes(scenario.kv_cache_dtype)
    framework = load_framework(engine.framework)
    kernels = KernelLibrary(chip, engine.framework)

    def deploy(architecture: Architecture, dtypes: dict[str, str], tensor_parallel: int) -> Deployment:
        return Deployment(
            architecture=architecture,
            chip=chip,
            kernels=kernels,
            link=link,
            framework=framework,
            tensor_parallel=tensor_parallel,
            weight_dtypes=dtypes,
            kv_dtype=scenario.kv_cache_dtype,
            cuda_graphs=engine.cuda_graphs,
        )

    architecture = load_architecture(scenario.model)
    target = deploy(architecture, resolve_weight_dtypes(architecture, scenario.weights_dtype), hardware.tensor_parallel)
    speculation = scenario.speculation
    drafter: Drafter | None = None
    drafted = lookahead = 0
    most_seqs = min(engine.max_num_seqs, engine.num_kv_blocks or _most_blocks(target, engine.block_size))
    largest_step = _largest_step(engine, most_seqs, 1)
    sampler = None
    if speculation is not None and speculation.method != "none":
        proposed = proposal(speculation)
        drafted, lookahead = proposed.nodes, lookahead_tokens(speculation, proposed)
        largest_step = _largest_step(engine, most_seqs, drafted + 1)
        request = DraftRequest(speculation, proposed, target, most_seqs, largest_step)
        with at_field("speculation.draft"):
            drafter = (make_drafter or build_drafter)(request)
        assert speculation.acceptance is not None
        sampler = AcceptanceSampler(draft_survival(speculation), seed, speculation.acceptance.spread or 0.0)
    most_sampled = min(engine.max_num_seqs * (drafted + 1), engine.max_num_batched_tokens)
    memory = plan_memory(
        target,
        drafter,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.block_size,
        max_tokens=engine.max_num_batched_tokens,
        max_sampled=most_sampled,
        num_kv_blocks=engine.num_kv_blocks,
    )
    timer = ModelTimer(StepTimer(target, largest_step), drafter)
    limits = EngineLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.block_size,
        num_blocks=memory.num_blocks,
        watermark_blocks=int(engine.kv_watermark * memory.num_blocks),
        max_model_len=engine.max_model_len or architecture.max_position,
        chunked_prefill=engine.enable_chunked_prefill and engine.scheduler != "prefill-first",
        query_len=drafted + 1,
        lookahead_tokens=lookahead,
    )
    cluster = Cluster(
        replicas=hardware.replicas,
        routing=engine.routing,
        scheduler=engine.scheduler,
        stepping=engine.stepping,
        limits=limits,
        timer=timer,
        sampler=sampler,
        prefix_caching=engine.enable_prefix_caching,
    )
    notes = [f"{architecture.name}: {note}" for note in architecture.notes]
    notes += drafting_notes(speculation) if speculation is not None else ()
    if engine.stepping == "fast" and not cluster.fast:
        notes.append("the fast path does not cover this scheduler or these limits: every step was simulated one by one")
    return Build(
        cluster=cluster,
        memory=memory,
        basis=_basis(kernels, [target, *models_of(drafter)]),
        chips=hardware.replicas * hardware.tensor_parallel,
        notes=tuple(notes),
    )


@contextmanager
def at_field(name: str) -> Iterator[None]:
    """Put the scenario's field ``name`` in front of what is refused inside."""
    try:
        yield
    except (ForerunError, ProfileError) as error:
        raise type(error)(f"{name}: {error}") from None


def _most_blocks(target: Deployment, block_size: int) -> int:
    """KV blocks that no memory plan exceeds: a chip full of them."""
    return max(1, int(target.chip.memory.capacity_bytes // (target.kv_bytes_per_token * block_size)))


def _largest_step(engine: EngineConfig, most_seqs: int, query_len: int) -> int:
    """Most tokens of one step.

    The last sequence that the budget admits verifies all of its tokens; schedulers without chunks decode their whole
    batch, whatever the budget.

    Raises:
        ForerunError: the budget does not hold the tokens that a single sequence verifies.
    """
    budget = engine.max_num_batched_tokens
    if query_len > budget:
        raise ForerunError(
            f"engine.max_num_batched_tokens: {budget} is less than the {query_len} tokens that one sequence verifies; "
            f"raise it, or draft fewer"
        )
    batch = most_seqs * query_len
    if engine.scheduler == "vllm-v1":
        return min(max(budget, batch), budget + query_len - 1)
    return max(budget, batch)


def _refuse_unmodelled(scenario: Scenario) -> None:
    hardware = scenario.hardware
    for name in ("pipeline_parallel", "expert_parallel", "speculative_parallel"):
        if getattr(hardware, name) != 1:
            raise ForerunError(f"hardware.{name}: only 1 is modelled so far (got {getattr(hardware, name)})")


def _basis(kernels: KernelLibrary, deployments: Sequence[Deployment]) -> str:
    """The weakest ground that the kernels of these models rest on, in the dtypes that they run in.

    Routers are left out: their work is a thousandth of a layer's.
    """
    found = set()
    for deployment in deployments:
        dtypes = deployment.weight_dtypes
        mlps = [group.layer.mlp for group in deployment.architecture.layer_groups]
        parts = {"attention", "lm_head"} | {"expert" if isinstance(mlp, MoeMlp) else "mlp" for mlp in mlps}
        parts |= {"shared_expert" for mlp in mlps if isinstance(mlp, MoeMlp) and mlp.shared_intermediate_size}
        found |= {kernels.basis("moe" if part == "expert" else "gemm", dtypes[part]) for part in parts}
        found |= {kernels.basis(f"attention_{phase}", deployment.kv_dtype) for phase in ("prefill", "decode")}
        if deployment.tensor_parallel > 1:
            found.add(kernels.basis("collective", "any"))
    return max(found, key=BASIS_ORDER.index)


def _requests(log: RunLog, cluster: Cluster) -> RequestRecords:
    drafts = np.asarray(log.drafts, dtype=np.int64)
    return RequestRecords(
        arrival_s=np.asarray(log.arrival_s),
        input_tokens=log.stream.input_tokens,
        output_tokens=log.stream.output_tokens,
        scheduled_s=np.asarray(log.scheduled_s),
        first_token_s=np.asarray(log.first_token_s),
        finished_s=np.asarray(log.finished_s),
        replica=np.asarray(log.replica, dtype=np.int64),
        preemptions=np.asarray(log.preemptions, dtype=np.int64),
        cached_tokens=np.asarray(log.cached_tokens, dtype=np.int64),
        drafts=drafts,
        draft_tokens=drafts * (cluster.limits.query_len - 1),
        accepted_tokens=np.asarray(log.accepted_tokens, dtype=np.int64),
        failed=np.asarray(log.failed, dtype=bool),
    )


def _steps(log: RunLog, timer: EngineTimer, chips: int) -> StepRecords:
    """Engine steps with their bounds.

    Kernels are priced again by formula to see what bounds them; the shares are then laid on the seconds that the step
    took, which interpolated decode attention makes differ by some 1e-4.
    """
    steps = log.steps
    parts, keys = [], []
    for start in range(0, max(1, len(steps)), PRICED_TOGETHER):
        work = steps.work(start, start + PRICED_TOGETHER)
        parts.append(timer.costs(work))
        keys.append(work.decode_kv_tokens[0])
    costs = Costs(*(np.concatenate([getattr(part, name) for part in parts]) for name in Costs.__slots__))
    count = steps.column("steps")
    priced = costs.device_s + costs.host_s
    scale = np.divide(steps.column("seconds"), priced, out=np.ones_like(priced), where=priced > 0)
    return StepRecords(
        replica=steps.integers("replica"),
        start_s=steps.column("start_s").copy(),
        seconds=steps.column("seconds").copy(),
        prefill_seqs=steps.integers("prefill_seqs"),
        prefill_tokens=steps.integers("prefill_tokens"),
        decode_seqs=steps.integers("decode_seqs"),
        query_len=steps.integers("query_len"),
        decode_kv_tokens=np.concatenate(keys),
        output_tokens=steps.integers("output_tokens"),
        running=steps.integers("running"),
        waiting=steps.integers("waiting"),
        kv_blocks=steps.integers("kv_blocks"),
        compute_s=costs.compute_s * scale,
        memory_s=costs.memory_s * scale,
        interconnect_s=costs.interconnect_s * scale,
        latency_s=costs.latency_s * scale,
        host_s=costs.host_s * scale,
        flops=costs.flops * count * chips,
        bytes=costs.bytes * count * chips,
        steps=steps.integers("steps"),
    )


def _gaps(log: RunLog, fast: bool) -> GapCounts:
    explicit = np.asarray(log.gaps_s)
    ones = np.ones(len(explicit), dtype=np.int64)
    if not fast:
        return GapCounts(explicit, ones)
    decoding, steps = log.steps.integers("decode_seqs"), log.steps.integers("steps")
    delivered = decoding > 0
    return GapCounts(
        np.concatenate((log.steps.column("seconds")[delivered] / steps[delivered], explicit)),
        np.concatenate(((decoding * steps)[delivered], ones)),
    )


def _speculation(log: RunLog, limits: EngineLimits) -> SpeculationCounters:
    counts = log.accepted_counts
    drafts = int(counts.sum())
    at_least = np.cumsum(counts[::-1])[::-1][1:]
    return SpeculationCounters(
        num_drafts=drafts,
        draft_tokens=drafts * (limits.query_len - 1),
        accepted_tokens=int(at_least.sum()),
        accepted_per_position=tuple(int(n) for n in at_least),
    )


def _kv_report(build: Build, steps: StepRecords, requests: RequestRecords, log: RunLog) -> KvCacheReport:
    cached = log.stream.prefix_hashes is not None and build.cluster.prefix_caching
    memory, busy = build.memory, float(steps.seconds.sum())
    return KvCacheReport(
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        peak_blocks=int(steps.kv_blocks.max()) if len(steps) else 0,
        mean_blocks=float((steps.kv_blocks * steps.seconds).sum() / busy) if busy else 0.0,
        preemptions=int(requests.preemptions.sum()),
        prefix_hit_tokens=int(requests.cached_tokens.sum()) if cached else None,
        bytes_per_token=memory.kv_bytes_per_token * (build.chips / build.cluster.replicas),
        weights_bytes=memory.weight_bytes,
        draft_weights_bytes=memory.draft_weight_bytes,
        activation_bytes=memory.activation_bytes,
        capacity_bytes=memory.capacity_bytes,
        overridden=memory.overridden,
    )
