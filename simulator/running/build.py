"""From a scenario to the parts of its run: hardware, model, drafter, memory, limits, pools, fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forerun.errors import ForerunError
from hwprofiles import Chip, KernelLibrary, Link, ProfileError, dtype_bytes, load_chip, load_link, weakest
from hwprofiles.dtypes import GGUF_BLOCKS
from simulator.llm import Architecture, MoeMlp, load_architecture
from simulator.running.assumptions import Assumptions, Factors
from simulator.running.drafting import (
    DrafterFactory,
    DraftRequest,
    adjusted_drafter,
    build_drafter,
    drafting_notes,
    drafting_rule,
    lookahead_tokens,
    verified_survival,
)
from simulator.running.scenario import Scenario, overridden_section
from simulator.serving import (
    EngineLimits,
    Faults,
    Fleet,
    HostSpace,
    KvLink,
    KvTransferConfig,
    Pool,
)
from simulator.serving.fleet.fleet_config import Role
from simulator.serving.rules import SCHEDULERS
from simulator.speculation import AcceptanceSampler, PolicyFactory, attention_level, borrowed_acceptance, sampler_of
from simulator.speculation.proposal import proposal
from simulator.timing import (
    Deployment,
    Drafter,
    MemoryPlan,
    ModelTimer,
    PipelineTimer,
    RemoteDrafter,
    StepTimer,
    decode_step,
    fit_separate_processes,
    load_framework,
    plan_memory,
    resolve_weight_dtypes,
    stage_timers,
    step_timer,
    usual_steps,
)
from simulator.timing.framework import LOCAL_FRAMEWORKS, Framework
from simulator.timing.hardware_config import LayerShare
from simulator.timing.mixed_chips import HostKernels, OtherDevice, SlowestKernels

EXTRAPOLATED = "extrapolated"
HANDS_ON_FIRST_TOKEN = {"sglang": True, "trtllm": True, "vllm": False, "generic": True}
"""Whether a framework's prefill engine delivers the first token. vLLM's does not: its decode engine computes the last
prompt token again ("Disaggregated Prefilling" in its documentation; ``kv_connector`` of v0.9 to v0.11)."""
NOTED_PADDING = 1.05
"""Slowdown of a step without draft tokens, by padding to captured sizes, from which a note names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuild(Pool):
    """A pool of identical replicas and the parts that they are built from."""

    chips_per_stage: int
    """Chips of a replica that share the work of one pipeline stage."""
    chip: Chip
    memory: MemoryPlan
    usd_per_chip_hour: float | None
    peak_flops_per_s: float
    """Dense peak FLOP/s of one chip in the dtype of the weight matrices (MoE: the experts'); the denominator of MFU."""
    notes: tuple[str, ...]
    assumed: bool = False
    """Whether results also rest on attention-level speculation or a borrowed acceptance, not on kernel times alone."""
    other_chips: tuple[Chip, ...] = ()
    """Chips that run some of the layers, before or after ``chip``."""
    groups: attention_level.DeviceGroups | None = None
    """Device groups of attention-level speculation; None without it."""

    @property
    def basis(self) -> str:
        """Evidence level of the kernels of usual steps: a prompt, and a decode or verify batch."""
        limits = self.limits
        work = usual_steps(self.timer.windows, limits.query_len, limits.max_num_seqs, limits.max_num_batched_tokens)
        basis = self.timer.costs(work).evidence.basis
        return weakest((basis, EXTRAPOLATED)) if self.assumed else basis


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of a run, before anything has happened."""

    fleet: Fleet
    pools: tuple[PoolBuild, ...]
    """Pools of the fleet, in order of replica number; a single pool where all replicas are equal."""
    notes: tuple[str, ...]

    @property
    def main(self) -> PoolBuild:
        """The first pool that generates."""
        return next(pool for pool in self.pools if pool.role != "prefill")

    @property
    def memory(self) -> MemoryPlan:
        """Memory plan of a replica of the main pool."""
        return self.main.memory

    @property
    def basis(self) -> str:
        """Weakest evidence level of the kernels of usual steps over all pools."""
        return weakest(pool.basis for pool in self.pools)

    @property
    def chips(self) -> int:
        """Number of chips of all replicas together."""
        return sum(pool.replicas * pool.chips for pool in self.pools)


def build_replica(
    scenario: Scenario,
    seed: int = 0,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
) -> Build:
    """``build_run`` for callers that need a single kind of replica and no failures.

    Raises:
        ForerunError: also where the scenario has pools or failures.
    """
    for name in ("pools", "faults"):
        if getattr(scenario, name) is not None:
            raise ForerunError(f"{name}: this looks at equal replicas that never fail; remove {name}")
    return build_run(scenario, seed, make_drafter, make_policy, factors)


def build_run(
    scenario: Scenario,
    seed: int = 0,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
) -> Build:
    """The fleet that a scenario describes, its memory laid out.

    Args:
        scenario: what to build.
        seed: seed of acceptance draws and of random failures.
        make_drafter: replaces the drafter that the scenario names.
        make_policy: replaces the draft policy that the scenario names.
        factors: multiply assumed parameters (see ``simulator.running.assumptions``).

    Raises:
        ForerunError: something does not fit or is not modelled.
        hwprofiles.ProfileError: unknown or faulty chip or link.
    """
    assumed = Assumptions(factors or {})

    def build_pool(part: Scenario) -> PoolBuild:
        return _replicas(part, assumed, seed, make_drafter, make_policy)

    pools = tuple(_pool(scenario, name, build_pool) for name in scenario.pools or ("all",))
    _refuse_faults(scenario, sum(pool.replicas for pool in pools))
    fleet = Fleet(
        pools=pools,
        routing=scenario.engine.routing,
        router=scenario.router,
        decode_routing=(scenario.kv_transfer or KvTransferConfig()).routing,
        links=_links(scenario, pools, assumed),
        faults=Faults(scenario.faults, seed) if scenario.faults is not None else None,
        autoscaler=scenario.autoscaler,
        initial=scenario.hardware.replicas,
    )
    notes = [note for pool in pools for note in pool.notes]
    return Build(fleet, pools, tuple(dict.fromkeys(notes)))


def _pool(scenario: Scenario, name: str, build_pool: Callable[[Scenario], PoolBuild]) -> PoolBuild:
    """Build one pool, or all replicas where the scenario has no pools."""
    if scenario.pools is None:
        if scenario.faults is not None:
            _refuse_pipeline(scenario.hardware.pipeline_parallel, "both", failures=True)
        pool, scaler = build_pool(scenario), scenario.autoscaler
        return _priced(pool if scaler is None else replace(pool, replicas=scaler.max_replicas), scenario)
    config = scenario.pools[name]
    changes: dict[str, Any] = {"pools": None, "faults": None, "kv_transfer": None}
    changes |= {section: overridden_section(scenario, name, section) for section in ("hardware", "engine")}
    try:
        part = scenario.model_copy(update=changes)
        _refuse_pipeline(part.hardware.pipeline_parallel, config.role, scenario.faults is not None)
        pool = build_pool(part)
    except ForerunError as error:
        raise ForerunError(f"pools.{name}: {error}") from None
    if config.role != "both" and pool.offload is not None:
        raise ForerunError(
            f"pools.{name}.engine.kv_offloading_bytes: not modelled with disaggregated prefill; remove it, or "
            f"give every pool the role both"
        )
    if config.role != "both" and not pool.rules.continuous:
        raise ForerunError(f"pools.{name}.engine.scheduler: a static batch cannot share requests with another pool")
    return _priced(replace(pool, name=name, role=config.role), scenario, config.usd_per_chip_hour)


def _priced(pool: PoolBuild, scenario: Scenario, pool_usd: float | None = None) -> PoolBuild:
    """The pool with the price of its chips: its own, else that of the scenario."""
    usd = scenario.prices.of(pool.chip.name) if scenario.prices is not None else None
    return replace(pool, usd_per_chip_hour=pool_usd or usd)


class _Machine(NamedTuple):
    """Chips, links and software of a replica, under the assumptions of a study."""

    chip: Chip
    link: Link | None
    framework: Framework
    kernels: KernelLibrary


class _Drafting(NamedTuple):
    """What drafts for a replica; nothing without speculation."""

    drafter: Drafter | None = None
    sampler: AcceptanceSampler | None = None
    drafted: int = 0
    """Draft tokens verified per sequence and step."""
    lookahead: int = 0


def _replicas(
    scenario: Scenario,
    assumed: Assumptions,
    seed: int,
    make_drafter: DrafterFactory | None,
    make_policy: PolicyFactory | None,
) -> PoolBuild:
    """Equal replicas as the scenario's own ``hardware`` and ``engine`` describe them."""
    scenario = _of_one_group(scenario)
    hardware, engine, speculation = scenario.hardware, scenario.engine, scenario.speculation
    machine = _machine(scenario, assumed)
    architecture = load_architecture(scenario.model)
    refuse_layout(scenario, architecture)
    target = _target(scenario, architecture, machine)
    most_seqs = min(engine.max_num_seqs, engine.measured_pages or _most_blocks(target, engine.page_tokens))
    drafting = _drafting(scenario, target, most_seqs, seed, make_drafter)
    target = replace(target, other_devices=_other_devices(scenario, target, assumed))
    drafter = drafting.drafter
    if drafting.drafted:
        graphs = machine.framework.for_engine(engine.max_num_seqs, drafting.drafted + 1, engine.cuda_graph_sizes)
        target = replace(target, framework=graphs)
    memory = _memory(scenario, target, drafting)
    groups = _device_groups(scenario, target)
    largest_step = _largest_step(scenario, most_seqs, drafting.drafted + 1)
    timer = _timer(scenario, target, drafter, groups, machine.link, largest_step)
    rule = None
    if speculation is not None and drafter is not None:
        rule = drafting_rule(speculation, timer, make_policy, seed)
        timer.adjusted = None if rule is None else adjusted_drafter(speculation, drafter, machine.framework.name)
    if rule is not None and hardware.pipeline_parallel > 1:
        raise ForerunError("speculation.policy: with pipeline_parallel above 1 only 'fixed' is modelled")
    borrowed = borrowed_acceptance(speculation, scenario.model)
    matrices = "expert" if architecture.parameters().expert else "mlp"
    pool = PoolBuild(
        replicas=hardware.replicas,
        scheduler=engine.scheduler,
        stepping=engine.stepping,
        limits=_limits(scenario, architecture, memory, drafting, machine.framework),
        timer=timer,
        sampler=drafting.sampler,
        prefix_caching=engine.enable_prefix_caching,
        swap=_swap_space(scenario, machine.chip, memory, assumed),
        rule=rule,
        offload=_offload_space(scenario, machine.chip, memory, assumed),
        chips=hardware.chips_per_replica * hardware.speculative_parallel,
        chips_per_stage=hardware.chips_per_stage,
        chip=machine.chip,
        memory=memory,
        usd_per_chip_hour=None,
        peak_flops_per_s=machine.chip.peak_flops(target.weight_dtypes[matrices]),
        assumed=bool(groups or borrowed),
        notes=(),
        other_chips=tuple(device.chip for device in target.other_devices),
        groups=groups,
        hits=None if groups is None else attention_level.drawn_hits(groups, seed, most_seqs),
    )
    return replace(pool, notes=tuple(_notes(scenario, architecture, pool, drafter, borrowed)))


def _other_devices(scenario: Scenario, target: Deployment, assumed: Assumptions) -> tuple[OtherDevice, ...]:
    """What other chips of the machine run. llama.cpp runs a step through equal cards one after the other too.

    Raises:
        ForerunError: more layers than the model has, experts that it lacks or that do not fit, or no link.
    """
    hardware, architecture = scenario.hardware, target.architecture
    shares = list(hardware.layers_on) or [LayerShare(chip=hardware.chip)] * (_chained_cards(scenario) - 1)
    if not shares:
        return ()
    chips = []
    for number, share in enumerate(shares):
        with at_field(f"hardware.layers_on.{number}.chip"):
            chips.append(target.chip if share.chip == hardware.chip else assumed.chip(load_chip(share.chip)))
    counts = _layer_counts(architecture, shares, [chip.memory.capacity_bytes for chip in chips], target.chip)
    devices = []
    for share, chip, layers in zip(shares, chips, counts, strict=True):
        name = hardware.pipeline_link or hardware.link or target.chip.links.host or "pcie4-x16"
        with at_field("hardware.pipeline_link"):
            link = assumed.link(load_link(name))
        assert link is not None
        kernels = target.kernels if chip is target.chip else _kernels(scenario, chip, target.framework, assumed)
        if chip.kind == "cpu":
            kernels = HostKernels(kernels, target.kernels, link)
        devices.append(OtherDevice(chip, kernels, layers, link, share.part == "experts"))
    return tuple(devices)


def _chained_cards(scenario: Scenario) -> int:
    """Equal cards that a step passes one after the other, with nothing else in flight: llama.cpp's split by layers."""
    local = scenario.engine.framework in LOCAL_FRAMEWORKS
    return scenario.hardware.pipeline_parallel if local else 1


def _layer_counts(
    architecture: Architecture, shares: Sequence[LayerShare], capacities: Sequence[float], chip: Chip
) -> list[int]:
    """Number of layers of every share: as configured, else in proportion to the memory that is left.

    Raises:
        ForerunError: more than there are, or experts that there are not.
    """
    layers = architecture.num_layers
    free = [place for place, share in enumerate(shares) if share.layers is None]
    requested = sum(share.layers or 0 for share in shares if share.part == "layers")
    memory = sum(capacities[place] for place in free) + chip.memory.capacity_bytes
    counts = [share.layers or round((layers - requested) * capacities[i] / memory) for i, share in enumerate(shares)]
    whole = sum(count for count, share in zip(counts, shares, strict=True) if share.part == "layers")
    if whole >= layers or max(counts) > layers or min(counts) < 1:
        raise ForerunError(
            f"hardware.layers_on: {architecture.name} has {layers} layers, of which hardware.chip runs one at least; "
            f"others would run {whole}"
        )
    experts = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
    if not experts and any(share.part == "experts" for share in shares):
        raise ForerunError(f"hardware.layers_on: {architecture.name} has no experts; remove part: experts")
    return counts


def _device_groups(scenario: Scenario, target: Deployment) -> attention_level.DeviceGroups | None:
    if scenario.attention_speculation is None:
        return None
    return attention_level.DeviceGroups(scenario.attention_speculation, target)


def _of_one_group(scenario: Scenario) -> Scenario:
    """The scenario with the engine's limits as one attention group has them."""
    engine, groups = scenario.engine, scenario.hardware.attention_data_parallel
    if groups == 1 or not load_framework(engine.framework).divides_limits:
        return scenario
    limits = {name: max(1, getattr(engine, name) // groups) for name in ("max_num_seqs", "max_num_batched_tokens")}
    return scenario.model_copy(update={"engine": engine.model_copy(update=limits)})


def _machine(scenario: Scenario, assumed: Assumptions) -> _Machine:
    hardware, engine = scenario.hardware, scenario.engine
    with at_field("hardware.chip"):
        chip = assumed.chip(load_chip(hardware.chip))
    if hardware.power_limit_w is not None:
        with at_field("hardware.power_limit_w"):
            chip = chip.at_power_limit(hardware.power_limit_w)
    link_name = hardware.link or chip.links.scale_up
    with at_field("hardware.link"):
        link = assumed.link(load_link(link_name) if link_name else None)
    framework = assumed.framework(load_framework(engine.framework)).on(chip, hardware.tensor_parallel)
    if engine.entry_point == "offline":
        framework = framework.without_api_server()
    if engine.sampling == "top-p":
        framework = framework.sorting(load_architecture(scenario.model).vocab_size)
    framework = framework.for_engine(engine.max_num_seqs, sizes=engine.cuda_graph_sizes)
    framework = framework.scheduled(engine.async_scheduling)
    kernels = _kernels(scenario, chip, framework, assumed)
    others = []
    for number, name in enumerate(hardware.tensor_chips):
        with at_field(f"hardware.tensor_chips.{number}"):
            others.append(load_chip(name))
    if any(other.memory.capacity_bytes < chip.memory.capacity_bytes for other in others):
        raise ForerunError("hardware.tensor_chips: name the card with the least memory hardware.chip")
    if others:
        kernels = SlowestKernels([kernels, *(_kernels(scenario, other, framework, assumed) for other in others)])
    return _Machine(chip, link, framework, kernels)


def _kernels(scenario: Scenario, chip: Chip, framework: Framework, assumed: Assumptions) -> KernelLibrary:
    """The engine's kernels on a chip."""
    engine = scenario.engine
    scales, marlin = framework.static_activation_scales, _runs_marlin(scenario, chip)
    return assumed.kernels(
        chip,
        framework.kernel_library,
        engine.flash_decoding,
        scales,
        marlin,
        engine.kernel_correction,
        engine.flash_attention,
        framework.reductions,
    )


def _target(scenario: Scenario, architecture: Architecture, machine: _Machine) -> Deployment:
    """The model on the chips of a replica."""
    hardware = scenario.hardware
    with at_field("kv_cache_dtype"):
        dtype_bytes(scenario.kv_cache_dtype)
    weight_dtypes = resolve_weight_dtypes(architecture, scenario.weights_dtype)
    with at_field("weights_dtype"):
        for dtype in sorted(set(weight_dtypes.values())):
            machine.chip.math_dtype(dtype)
    return Deployment(
        architecture=architecture,
        chip=machine.chip,
        kernels=machine.kernels,
        link=machine.link,
        framework=machine.framework,
        tensor_parallel=hardware.tensor_parallel,
        weight_dtypes=weight_dtypes,
        kv_dtype=scenario.kv_cache_dtype,
        cuda_graphs=scenario.engine.cuda_graphs,
        expert_parallel=hardware.expert_parallel,
        attention_data_parallel=hardware.attention_data_parallel,
        expert_routing=hardware.expert_routing or architecture.expert_routing or "uniform",
    )


def _drafting(
    scenario: Scenario, target: Deployment, most_seqs: int, seed: int, make_drafter: DrafterFactory | None
) -> _Drafting:
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        return _Drafting()
    proposed = proposal(speculation)
    largest_step = _largest_step(scenario, most_seqs, proposed.nodes + 1)
    with at_field("speculation.draft"):
        drafter = (make_drafter or build_drafter)(DraftRequest(speculation, proposed, target, most_seqs, largest_step))
    assert speculation.acceptance is not None
    sampler = sampler_of(speculation.acceptance, verified_survival(speculation), seed)
    return _Drafting(drafter, sampler, proposed.nodes, lookahead_tokens(speculation, proposed))


def _memory(scenario: Scenario, target: Deployment, drafting: _Drafting) -> MemoryPlan:
    engine = scenario.engine
    memory = plan_memory(
        target,
        drafting.drafter,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        block_size=engine.page_tokens,
        max_tokens=engine.max_num_batched_tokens,
        max_sampled=min(engine.max_num_seqs * (drafting.drafted + 1), engine.max_num_batched_tokens),
        num_kv_blocks=engine.measured_pages,
        pipeline_parallel=1 if target.other_devices else scenario.hardware.pipeline_parallel,
        max_num_seqs=engine.max_num_seqs,
        drafted=drafting.drafted,
        max_context=engine.max_model_len or target.architecture.max_position or 0,
    )
    if not isinstance(drafting.drafter, RemoteDrafter):
        return memory
    if scenario.hardware.attention_data_parallel > 1:
        raise ForerunError(
            "speculation.draft.chip: a drafter on chips of its own is not modelled for attention groups; leave the "
            "chip out, or leave hardware.attention_data_parallel at 1"
        )
    with at_field("speculation.draft"):
        return fit_separate_processes(
            memory,
            drafting.drafter,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            max_tokens=engine.max_num_batched_tokens,
        )


def _timer(
    scenario: Scenario,
    target: Deployment,
    drafter: Drafter | None,
    groups: attention_level.DeviceGroups | None,
    link: Link | None,
    largest_step: int,
) -> ModelTimer:
    hardware = scenario.hardware
    if hardware.pipeline_parallel == 1 or target.other_devices:
        target_timer = StepTimer(target, largest_step, groups.of_timer) if groups else step_timer(target, largest_step)
        return ModelTimer(target_timer, drafter)
    with at_field("hardware.pipeline_link"):
        between = load_link(hardware.pipeline_link) if hardware.pipeline_link else link
    first, *later = stage_timers(target, hardware.pipeline_parallel, largest_step)
    return PipelineTimer(first, drafter, later=tuple(later), link=between)


def _limits(
    scenario: Scenario, architecture: Architecture, memory: MemoryPlan, drafting: _Drafting, framework: Framework
) -> EngineLimits:
    """Limits of each attention group."""
    engine, groups = scenario.engine, scenario.hardware.attention_data_parallel
    num_blocks = memory.num_blocks // groups
    return EngineLimits(
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        block_size=engine.page_tokens,
        num_blocks=num_blocks,
        page_tokens=memory.page_tokens,
        watermark_blocks=int(engine.kv_watermark * num_blocks),
        max_model_len=engine.max_model_len or architecture.max_position,
        chunked_prefill=engine.enable_chunked_prefill and engine.rules.cuts_prompts,
        query_len=drafting.drafted + 1,
        lookahead_tokens=drafting.lookahead,
        api_server_s=framework.api_server_s,
        api_server_work_s=framework.api_server_work_s,
        tokenisation_per_token_s=framework.tokenisation_per_token_s,
        groups=groups,
        round_robin=framework.group_choice == "in-turn",
        dp_wait_limit_steps=framework.dp_wait_limit_steps,
        schedules_ahead=framework.schedules_ahead,
    )


def _notes(
    scenario: Scenario, architecture: Architecture, pool: PoolBuild, drafter: Drafter | None, borrowed: str | None
) -> Iterator[str]:
    """Notes on replicas before they run."""
    yield from (f"{architecture.name}: {note}" for note in architecture.notes)
    if architecture.expert_routing is not None and scenario.hardware.expert_routing is None:
        least, most = architecture.expert_routing_range
        yield (
            f"experts: {architecture.name}'s router is taken for {architecture.expert_routing}, as in benchmark "
            f"results of random tokens; other text may spread them as {least} or {most} do (hardware.expert_routing)"
        )
    if scenario.speculation is not None:
        yield from drafting_notes(scenario.speculation)
    if borrowed is not None:
        yield borrowed
    if isinstance(drafter, RemoteDrafter):
        draft = drafter.deployment
        yield (
            f"the drafter runs on {draft.tensor_parallel} x {draft.chip.name} per replica over {drafter.link.name}: "
            f"those chips are not in chips, cost, utilisation and energy"
        )
    if pool.groups is not None:
        yield from pool.groups.notes
    if pool.rule is not None:
        yield from _padding_note(scenario, pool)
    if scenario.hardware.layers_on or scenario.hardware.tensor_chips:
        yield f"several chips: cost, utilisation and energy are those of {pool.chip.name} alone"
    if scenario.hardware.pipeline_parallel > _chained_cards(scenario):
        yield "pipeline: batches in flight are simulated one by one, as many as there are stages"


def _padding_note(scenario: Scenario, pool: PoolBuild) -> Iterator[str]:
    """What padding adds to a step of one sequence without draft tokens, if a policy may stop drafting."""
    assert isinstance(pool.timer, ModelTimer)
    timer, engine, tokens = pool.timer.target, scenario.engine, pool.limits.query_len
    plain = timer.deployment.framework.for_engine(engine.max_num_seqs, 1, engine.cuda_graph_sizes)
    unpadded = step_timer(replace(timer.deployment, framework=plain), timer.max_tokens)
    work = decode_step(timer.windows, 1, 1, 1024)
    ratio = timer.seconds(work) / unpadded.seconds(work)
    if ratio >= NOTED_PADDING:
        yield (
            f"speculation.policy: CUDA graphs are captured for multiples of {tokens} tokens, so steps without draft "
            f"tokens are padded; with one sequence they take {ratio:.2f}x as long as with method: none"
        )


@contextmanager
def at_field(name: str) -> Iterator[None]:
    """Prefix errors raised in the body with the scenario field ``name``."""
    try:
        yield
    except (ForerunError, ProfileError) as error:
        raise type(error)(f"{name}: {error}") from None


def _most_blocks(target: Deployment, block_size: int) -> int:
    """Upper bound on the KV blocks of any memory plan: the number that fills a chip's whole memory."""
    return max(1, int(target.chip.memory.capacity_bytes // (target.cached_kv_bytes_per_token * block_size)))


def _largest_step(scenario: Scenario, most_seqs: int, query_len: int) -> int:
    """Most tokens of one step, of one attention group.

    The last sequence that the budget admits verifies all of its tokens; schedulers that do not budget decodes decode
    their whole batch, whatever the budget. What groups wait for may be the prompts of one and the batch of another.

    Raises:
        ForerunError: the budget does not hold the tokens that a single sequence verifies.
    """
    engine = scenario.engine
    budget = engine.max_num_batched_tokens
    if query_len > budget:
        raise ForerunError(
            f"engine.max_num_batched_tokens: {budget} is less than the {query_len} tokens that one sequence verifies; "
            f"raise it, or draft fewer"
        )
    batch = most_seqs * query_len
    if scenario.hardware.attention_data_parallel > 1:
        return budget + batch
    if engine.rules.budgets_decodes:
        return min(max(budget, batch), budget + query_len - 1)
    return max(budget, batch)


def refuse_layout(scenario: Scenario, architecture: Architecture) -> None:
    """Refuse parallel layouts that the model cannot use or that the scheduler cannot drive.

    Raises:
        ForerunError: the field, and what would be right.
    """
    hardware = scenario.hardware
    if not any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups):
        if hardware.expert_parallel > 1:
            raise ForerunError(f"hardware.expert_parallel: {architecture.name} has no experts to spread; leave it at 1")
        if hardware.attention_data_parallel > 1:
            raise ForerunError(
                f"hardware.attention_data_parallel: {architecture.name} has no experts that groups could share; more "
                f"copies of a dense model are hardware.replicas"
            )
    if scenario.engine.moe_backend == "marlin":
        dtype = resolve_weight_dtypes(architecture, scenario.weights_dtype)["expert"]
        experts = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
        if not experts or dtype not in ("int4", "fp4", "mxfp4"):
            kind = f"experts in {dtype}" if experts else "no experts"
            raise ForerunError(
                f"engine.moe_backend: marlin multiplies experts stored in 4 bits; {architecture.name} has {kind} here"
            )
    field = next((name for name in ("layers_on", "tensor_chips") if getattr(hardware, name)), None)
    if field is not None and scenario.engine.framework not in LOCAL_FRAMEWORKS:
        raise ForerunError(
            f"hardware.{field}: unlike chips share a model under engine.framework: llama.cpp "
            f"(got {scenario.engine.framework})"
        )
    if not scenario.engine.flash_attention:
        if scenario.engine.framework not in LOCAL_FRAMEWORKS:
            raise ForerunError(
                f"engine.flash_attention: {scenario.engine.framework} has no attention without it; leave it true, or "
                f"choose engine.framework: llama.cpp"
            )
        if scenario.kv_cache_dtype in GGUF_BLOCKS:
            raise ForerunError(
                f"engine.flash_attention: llama.cpp needs it for a cache in {scenario.kv_cache_dtype}; "
                f"leave it true, or set kv_cache_dtype: fp16"
            )
    if hardware.pipeline_parallel > _chained_cards(scenario) and not scenario.engine.rules.pipelines:
        able = " or ".join(name for name, facts in SCHEDULERS.items() if facts.pipelines)
        raise ForerunError(
            f"hardware.pipeline_parallel: several batches in flight need engine.scheduler: {able} "
            f"(got {scenario.engine.scheduler})"
        )
    if hardware.speculative_parallel > 1 and hardware.chips_per_replica > hardware.tensor_parallel:
        raise ForerunError(
            "hardware.speculative_parallel: two device groups hold whole layers; leave pipeline_parallel and "
            "attention_data_parallel at 1"
        )
    if hardware.pipeline_link is not None and hardware.pipeline_parallel == 1 and not hardware.layers_on:
        raise ForerunError("hardware.pipeline_link: there is one stage; set pipeline_parallel, or leave the link out")


def _runs_marlin(scenario: Scenario, chip: Chip) -> bool:
    """Whether experts stored in 4 bits go through Marlin's kernels."""
    engine = scenario.engine
    if engine.moe_backend != "auto" or engine.framework != "vllm":
        return engine.moe_backend == "marlin"
    dtypes = resolve_weight_dtypes(load_architecture(scenario.model), scenario.weights_dtype)
    return dtypes["expert"] == "mxfp4" and chip.vendor == "nvidia" and "fp4" not in chip.compute.dense_flops_per_s


def _refuse_pipeline(pipeline_parallel: int, role: Role, failures: bool) -> None:
    """Refuse features that a replica with several batches in flight does not support.

    Raises:
        ForerunError: the field, and what would be right.
    """
    if pipeline_parallel == 1:
        return
    if role != "both":
        raise ForerunError(
            f"hardware.pipeline_parallel: a {role} pool hands KV over between whole steps and needs 1; spread its "
            f"model by tensor_parallel"
        )
    if failures:
        raise ForerunError(
            "hardware.pipeline_parallel: failures are modelled for replicas without pipeline stages; leave it at 1, or "
            "remove faults"
        )


def _refuse_faults(scenario: Scenario, replicas: int) -> None:
    """Refuse failures of replicas that do not exist.

    Raises:
        ForerunError: naming the replica.
    """
    for event in scenario.faults.events if scenario.faults is not None else ():
        if event.replica >= replicas:
            raise ForerunError(
                f"faults.events: there is no replica {event.replica}; they are numbered 0 to {replicas - 1}"
            )


def _links(scenario: Scenario, pools: tuple[PoolBuild, ...], assumed: Assumptions) -> dict[tuple[str, str], KvLink]:
    """Links that carry KV between each prefill pool and each decode pool."""
    config = scenario.kv_transfer or KvTransferConfig()
    pool_links: dict[tuple[str, str], KvLink] = {}
    for source in (pool for pool in pools if pool.role == "prefill"):
        name = config.link or source.chip.links.scale_out
        if name is None:
            raise ForerunError(f"kv_transfer.link: {source.chip.name} names no scale-out link; give one")
        with at_field("kv_transfer.link"):
            link = assumed.link(load_link(name))
        assert link is not None
        for target in (pool for pool in pools if pool.role == "decode"):
            links = config.links or min(source.chips, target.chips)
            pool_links[source.name, target.name] = KvLink(
                latency_s=link.latency_s,
                bandwidth_bytes_per_s=links * link.bandwidth_bytes_per_s,
                bytes_per_token=source.memory.replica_kv_bytes_per_token,
                samples_first=_samples_first(config, scenario.engine.framework),
            )
    return pool_links


def _samples_first(config: KvTransferConfig, framework: str) -> bool:
    if config.first_token is not None:
        return config.first_token == "prefill"
    return HANDS_ON_FIRST_TOKEN.get(framework, True)


def _swap_space(scenario: Scenario, chip: Chip, memory: MemoryPlan, assumed: Assumptions) -> HostSpace | None:
    """Host memory for preempted sequences; None where they are computed again.

    Attention groups swap beside one another, each over its own chips' links.

    Raises:
        ForerunError: no link to the host is known, or these replicas do not swap.
    """
    engine = scenario.engine
    if engine.preemption == "recompute":
        return None
    if not engine.rules.swaps:
        raise ForerunError(f"engine.preemption: the {engine.scheduler} scheduler only recomputes; remove swap")
    if scenario.hardware.pipeline_parallel > 1:
        raise ForerunError(
            "engine.preemption: replicas with pipeline stages only recompute; remove swap, or leave "
            "hardware.pipeline_parallel at 1"
        )
    return _host_space(scenario, chip, memory, assumed, engine.swap_space_bytes)


def _host_space(
    scenario: Scenario, chip: Chip, memory: MemoryPlan, assumed: Assumptions, capacity_bytes: float
) -> HostSpace:
    """Host memory of each attention group, behind the link between its chips and the host.

    Raises:
        ForerunError: no such link is known.
    """
    name, groups = scenario.engine.host_link or chip.links.host, scenario.hardware.attention_data_parallel
    if name is None:
        raise ForerunError(f"engine.host_link: {chip.name} names no link to its host; give one, for example pcie5-x16")
    with at_field("engine.host_link"):
        link = assumed.link(load_link(name))
    assert link is not None
    block_bytes = memory.kv_bytes_per_token * memory.block_size
    blocks = groups * int(capacity_bytes // block_bytes)
    return HostSpace(blocks, block_bytes / link.bandwidth_bytes_per_s / groups, link.latency_s)


def _offload_space(scenario: Scenario, chip: Chip, memory: MemoryPlan, assumed: Assumptions) -> HostSpace | None:
    """Host memory for blocks evicted from the prefix cache; None where evicted blocks are discarded.

    Raises:
        ForerunError: nothing is cached, host memory holds no block, no link to the host is known, or these replicas
            cannot wait for copies.
    """
    engine = scenario.engine
    if engine.kv_offloading_bytes is None:
        return None
    if not engine.enable_prefix_caching:
        raise ForerunError(
            "engine.kv_offloading_bytes: it keeps what the prefix cache evicts, and enable_prefix_caching is false; "
            "set that to true, or remove kv_offloading_bytes"
        )
    if scenario.hardware.pipeline_parallel > 1:
        raise ForerunError(
            "engine.kv_offloading_bytes: not modelled for replicas with pipeline stages; remove it, or leave "
            "hardware.pipeline_parallel at 1"
        )
    space = _host_space(scenario, chip, memory, assumed, engine.kv_offloading_bytes)
    if not space.num_blocks:
        block_bytes = memory.kv_bytes_per_token * memory.block_size
        raise ForerunError(
            f"engine.kv_offloading_bytes: {engine.kv_offloading_bytes:g} holds no block of {block_bytes:g} bytes; "
            f"raise it, or remove it"
        )
    return space
