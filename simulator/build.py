"""From a scenario to the parts of its run: hardware, model, drafter, memory, limits, cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from hwprofiles import Chip, ProfileError, dtype_bytes, load_chip, load_link
from simulator.assumptions import Assumptions, Factors
from simulator.drafting import (
    DrafterFactory,
    DraftRequest,
    adjusted_drafter,
    build_drafter,
    drafting_notes,
    drafting_rule,
    lookahead_tokens,
    models_of,
)
from simulator.errors import ForerunError
from simulator.host_memory import offload_space, swap_space
from simulator.llm import Architecture, MoeMlp, load_architecture
from simulator.scenario import Scenario
from simulator.serving import (
    Cluster,
    EngineLimits,
    Fleet,
)
from simulator.serving.config import EngineConfig
from simulator.serving.fleet_config import Role
from simulator.speculation import PolicyFactory, borrowed_acceptance, draft_survival, proposal, sampler_of
from simulator.speculation.attention_level.overlap import DeviceGroups, device_groups
from simulator.timing import (
    Deployment,
    Drafter,
    MemoryPlan,
    ModelTimer,
    PipelineTimer,
    RemoteDrafter,
    StepTimer,
    fit_apart,
    load_framework,
    plan_memory,
    resolve_weight_dtypes,
    stage_timers,
)

BASIS_ORDER = ("calibrated", "datasheet", "extrapolated")
"""From the firmest ground to the least."""


@dataclass(frozen=True, slots=True)
class PoolBuild:
    """Equal replicas of a run."""

    name: str
    role: Role
    replicas: int
    chips: int
    """Of one replica."""
    chips_per_stage: int
    """Chips of it that share the work of one pipeline stage."""
    chip: Chip
    cluster: Cluster
    memory: MemoryPlan
    usd_per_chip_hour: float | None
    peak_flops_per_s: float
    """Dense, of one chip, in the dtype of the weight matrices (of the experts where there are any): what MFU is of."""


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of a run, before anything has happened."""

    cluster: Cluster
    """The replicas; of several pools, those that generate."""
    memory: MemoryPlan
    basis: str
    chips: int
    """Of all replicas together."""
    notes: tuple[str, ...]
    pools: tuple[PoolBuild, ...]
    """In the order of their replicas' numbers; one where all replicas are equal."""
    fleet: Fleet | None = None
    """What runs in place of ``cluster``, where there are pools or failures."""
    groups: DeviceGroups | None = None
    """Device groups of attention-level speculation, where there are any."""

    @property
    def main(self) -> PoolBuild:
        """The first pool that generates."""
        return next(pool for pool in self.pools if pool.role != "prefill")

    @property
    def fast(self) -> bool:
        """Whether the fast path runs it."""
        return self.cluster.fast if self.fleet is None else self.fleet.fast


def build_cluster(
    scenario: Scenario,
    seed: int,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
) -> Build:
    """The cluster that a scenario describes, with its memory laid out.

    Args:
        scenario: what to build.
        seed: of acceptance.
        make_drafter: replaces the drafter that the scenario names.
        make_policy: replaces its policy.
        factors: multiply assumed parameters (see ``simulator.assumptions``).
    """
    _refuse_fleet(scenario)
    assumed = Assumptions(factors or {})
    hardware, engine = scenario.hardware, scenario.engine
    with at_field("hardware.chip"):
        chip = assumed.chip(load_chip(hardware.chip))
    link_name = hardware.link or chip.links.scale_up
    with at_field("hardware.link"):
        link = assumed.link(load_link(link_name) if link_name else None)
    with at_field("kv_cache_dtype"):
        dtype_bytes(scenario.kv_cache_dtype)
    framework = assumed.framework(load_framework(engine.framework)).on(chip)
    if engine.front_end == "offline":
        framework = framework.without_front_end()
    if engine.sampling == "top-p":
        framework = framework.sorting(load_architecture(scenario.model).vocab_size)
    framework = framework.for_engine(engine.max_num_seqs, sizes=engine.cuda_graph_sizes)
    framework = framework.scheduled(engine.async_scheduling)
    scales, marlin = framework.static_activation_scales, _runs_marlin(scenario, chip)
    kernels = assumed.kernels(chip, framework.kernel_library, engine.flash_decoding, scales, marlin)

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
            expert_parallel=hardware.expert_parallel,
            attention_data_parallel=hardware.attention_data_parallel,
            expert_routing=hardware.expert_routing,
        )

    architecture = load_architecture(scenario.model)
    refuse_layout(scenario, architecture)
    target = deploy(architecture, resolve_weight_dtypes(architecture, scenario.weights_dtype), hardware.tensor_parallel)
    speculation = scenario.speculation
    drafter: Drafter | None = None
    drafted = lookahead = 0
    most_seqs = min(engine.max_num_seqs, engine.measured_pages or _most_blocks(target, engine.page_tokens))
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
        sampler = sampler_of(speculation.acceptance, draft_survival(speculation), seed)
    if drafted:
        graphs = framework.for_engine(engine.max_num_seqs, drafted + 1, engine.cuda_graph_sizes)
        target = replace(target, framework=graphs)
    most_sampled = min(engine.max_num_seqs * (drafted + 1), engine.max_num_batched_tokens)
    memory = plan_memory(
        target,
        drafter,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.page_tokens,
        max_tokens=engine.max_num_batched_tokens,
        max_sampled=most_sampled,
        num_kv_blocks=engine.measured_pages,
        pipeline_parallel=hardware.pipeline_parallel,
        max_num_seqs=engine.max_num_seqs,
    )
    if isinstance(drafter, RemoteDrafter):
        with at_field("speculation.draft"):
            memory = fit_apart(
                memory,
                drafter,
                gpu_memory_utilization=engine.gpu_memory_utilization,
                max_tokens=engine.max_num_batched_tokens,
            )
    groups = device_groups(scenario.attention_speculation, target)
    if hardware.pipeline_parallel > 1:
        with at_field("hardware.pipeline_link"):
            between = load_link(hardware.pipeline_link) if hardware.pipeline_link else link
        first, *later = stage_timers(target, hardware.pipeline_parallel, largest_step)
        timer: ModelTimer = PipelineTimer(first, drafter, later=tuple(later), link=between)
    else:
        timer = ModelTimer(StepTimer(target, largest_step, groups.of_timer if groups else None), drafter)
    rule = None
    if speculation is not None and drafter is not None:
        rule = drafting_rule(speculation, timer, make_policy)
        timer.adjusted = None if rule is None else adjusted_drafter(speculation, drafter)
    if rule is not None and hardware.pipeline_parallel > 1:
        raise ForerunError("speculation.policy: with pipeline_parallel above 1 only 'fixed' is modelled")
    limits = EngineLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.page_tokens,
        num_blocks=memory.num_blocks,
        watermark_blocks=int(engine.kv_watermark * memory.num_blocks),
        max_model_len=engine.max_model_len or architecture.max_position,
        chunked_prefill=engine.enable_chunked_prefill and engine.scheduler != "prefill-first",
        query_len=drafted + 1,
        lookahead_tokens=lookahead,
        intake_s=framework.intake_s,
        intake_work_s=framework.intake_work_s,
        intake_per_token_s=framework.intake_per_token_s,
        schedules_ahead=framework.schedules_ahead,
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
        router=scenario.router,
        swap=swap_space(scenario, chip, memory, assumed),
        rule=rule,
        offload=offload_space(scenario, chip, memory, assumed),
    )
    notes = [f"{architecture.name}: {note}" for note in architecture.notes]
    notes += drafting_notes(speculation) if speculation is not None else ()
    borrowed = borrowed_acceptance(speculation, scenario.model)
    notes += [borrowed] if borrowed is not None else []
    if isinstance(drafter, RemoteDrafter):
        apart = drafter.deployment
        notes.append(
            f"the drafter runs on {apart.tensor_parallel} x {apart.chip.name} per replica over {drafter.link.name}: "
            f"those chips are not in chips, cost, utilisation and energy"
        )
    notes += groups.notes if groups is not None else ()
    if hardware.pipeline_parallel > 1:
        notes.append("pipeline: batches in flight are simulated one by one, as many as there are stages")
    elif engine.stepping == "fast" and not cluster.fast:
        why = (
            "this scheduler, swapping or these limits"
            if rule is None or rule.by_batch_alone
            else "a policy that learns"
        )
        notes.append(f"the fast path does not cover {why}: every step was simulated one by one")
    usd = scenario.prices.usd_per_chip_hour if scenario.prices is not None else None
    chips = hardware.chips_per_replica * hardware.speculative_parallel
    matrices = "expert" if architecture.parameters().expert else "mlp"
    peak = chip.peak_flops(target.weight_dtypes[matrices])
    pool = PoolBuild(
        "all", "both", hardware.replicas, chips, hardware.chips_per_stage, chip, cluster, memory, usd, peak
    )
    return Build(
        cluster=cluster,
        memory=memory,
        basis="extrapolated" if groups or borrowed else _basis([target, *models_of(drafter)]),
        chips=hardware.replicas * chips,
        notes=tuple(notes),
        pools=(pool,),
        groups=groups,
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
    return max(1, int(target.chip.memory.capacity_bytes // (target.cached_kv_bytes_per_token * block_size)))


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


def _refuse_fleet(scenario: Scenario) -> None:
    for name in ("pools", "faults"):
        if getattr(scenario, name) is not None:
            raise ForerunError(f"{name}: this looks at equal replicas that never fail; remove {name}")


def refuse_layout(scenario: Scenario, architecture: Architecture) -> None:
    """Refuse ways of spreading a model over chips that it has no use for, or that its scheduler cannot drive.

    Raises:
        ForerunError: the field, and what would be right.
    """
    hardware = scenario.hardware
    if not any(isinstance(group.layer.mlp, MoeMlp) for group in architecture.layer_groups):
        if hardware.expert_parallel > 1:
            raise ForerunError(f"hardware.expert_parallel: {architecture.name} has no experts to spread; leave it at 1")
        if hardware.attention_data_parallel > 1:
            raise ForerunError(
                f"hardware.attention_data_parallel: {architecture.name} has no experts that groups could share; more "
                f"copies of a dense model are hardware.replicas"
            )
    if scenario.engine.moe_backend == "marlin":
        dtype = resolve_weight_dtypes(architecture, scenario.weights_dtype)["expert"]
        experts = any(isinstance(group.layer.mlp, MoeMlp) for group in architecture.layer_groups)
        if not experts or dtype not in ("int4", "fp4", "mxfp4"):
            found = f"experts in {dtype}" if experts else "no experts"
            raise ForerunError(
                f"engine.moe_backend: marlin multiplies experts stored in 4 bits; {architecture.name} has {found} here"
            )
    if hardware.pipeline_parallel > 1 and scenario.engine.scheduler != "vllm-v1":
        raise ForerunError(
            f"hardware.pipeline_parallel: several batches in flight need engine.scheduler: vllm-v1 "
            f"(got {scenario.engine.scheduler})"
        )
    if hardware.speculative_parallel > 1 and hardware.chips_per_replica > hardware.tensor_parallel:
        raise ForerunError(
            "hardware.speculative_parallel: two device groups hold whole layers; leave pipeline_parallel and "
            "attention_data_parallel at 1"
        )
    if hardware.pipeline_link is not None and hardware.pipeline_parallel == 1:
        raise ForerunError("hardware.pipeline_link: there is one stage; set pipeline_parallel, or leave the link out")


def _runs_marlin(scenario: Scenario, chip: Chip) -> bool:
    """Whether experts stored in 4 bits go through Marlin's kernels."""
    engine = scenario.engine
    if engine.moe_backend != "auto" or engine.framework != "vllm":
        return engine.moe_backend == "marlin"
    dtypes = resolve_weight_dtypes(load_architecture(scenario.model), scenario.weights_dtype)
    return dtypes["expert"] == "mxfp4" and chip.vendor == "nvidia" and "fp4" not in chip.compute.dense_flops_per_s


def _basis(deployments: Sequence[Deployment]) -> str:
    """The weakest ground that the kernels of these models rest on, in the dtypes that they run in.

    Routers are left out: their work is a thousandth of a layer's.
    """
    found = set()
    for deployment in deployments:
        dtypes = deployment.weight_dtypes
        mlps = [group.layer.mlp for group in deployment.architecture.layer_groups]
        parts = {"attention", "lm_head"} | {"expert" if isinstance(mlp, MoeMlp) else "mlp" for mlp in mlps}
        parts |= {"shared_expert" for mlp in mlps if isinstance(mlp, MoeMlp) and mlp.shared_intermediate_size}
        kernels = deployment.kernels
        found |= {kernels.basis("moe" if part == "expert" else "gemm", dtypes[part]) for part in parts}
        found |= {kernels.basis(f"attention_{phase}", deployment.kv_dtype) for phase in ("prefill", "decode")}
        if deployment.group_chips > 1:
            found.add(kernels.basis("collective", "any"))
    return max(found, key=BASIS_ORDER.index)
