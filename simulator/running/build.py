"""Build of a scenario: hardware, model, drafter, memory, limits, pools, fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import simulator.serving as serving  # for what a step time does not need
import simulator.timing as timing
import simulator.workload as workload
from forerun.arrays import IntArray
from forerun.errors import at_field
from hwprofiles import Chip, KernelLibrary, Link, dtype_bytes, load_chip, load_link, weakest
from simulator.llm import load_architecture
from simulator.llm.load import readable_checkpoint
from simulator.llm.published_names import kept_wider
from simulator.running.assumptions import Assumptions, Factors
from simulator.running.engine_defaults import replaced_scheduler
from simulator.running.refusals import (
    chained_cards,
    check_draft_chips,
    check_layer_counts,
    check_store,
    refuse_failures_and_pools,
    refuse_unmodelled,
)
from simulator.running.scenario import Scenario
from simulator.serving import EngineLimits, KvTransferConfig, Pool, RouterConfig, StoreSpace
from simulator.serving.store_config import KvStoreConfig, SharedStoreConfig
from simulator.speculation import AcceptanceSampler, PolicyFactory, attention_level, borrowed_acceptance, sampler_of
from simulator.speculation.proposal import input_slots, proposal
from simulator.speculation.speculation_config import trims
from simulator.timing.framework import SORTED_COPIES, Framework
from simulator.timing.hardware_config import SERVER_CHIPS, LayerShare
from simulator.timing.mixed_chips import HostKernels, OtherDevice, SlowestKernels
from simulator.timing.releases import reaches

if TYPE_CHECKING:
    from simulator.running.drafting import DrafterFactory

_LATELY: deque[timing.ModelTimer] = deque(maxlen=64)
"""Recent timing models, latest first, so that the runs of a study share recorded prices. The search is linear, because
a chip contains mappings and cannot be hashed."""
EXTRAPOLATED = "extrapolated"
DISK_LATENCY_S = 1e-4
"""Default latency of a local disk: a read of an NVMe drive (assumed)."""
IN_STEP = {"host": "in-step"}
"""Media whose copies a step overlaps by default."""
CHUNK_TOKENS, CHUNK_CONTEXT = 2048, 16384
"""Size of the prompt chunk, and its larger context, from which the time to compute a prompt again is estimated."""
PEAK_CHUNK = 8192
"""Prompt tokens of the step that llm-d calibrates ``peakPrefillThroughput`` with (its ``max_num_batched_tokens``)."""
NOTED_PADDING = 1.05
"""Minimum slowdown, from padding to captured sizes, of a step without draft tokens at which a note reports it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuild(Pool):
    """A pool of identical replicas with their parts."""

    chips_per_stage: int
    chip: Chip
    memory: timing.MemoryPlan
    usd_per_chip_hour: float | None
    peak_flops_per_s: float
    """Dense peak FLOP/s of one chip in the dtype of the weight matrices (MoE: the experts'); the denominator of MFU."""
    notes: tuple[str, ...]
    assumed: bool = False
    """True if results depend on attention-level speculation or a borrowed acceptance, not on kernel times alone."""
    other_chips: tuple[Chip, ...] = ()
    """Further chips that run some of the layers, before or after ``chip``."""
    groups: attention_level.DeviceGroups | None = None

    @property
    def usual_steps(self) -> timing.StepWork[IntArray]:
        """Usual steps: a prompt, and a decode or verify batch."""
        limits, windows = self.limits, self.timer.windows
        return timing.usual_steps(windows, limits.query_len, limits.max_num_seqs, limits.max_num_batched_tokens)

    @property
    def basis(self) -> str:
        """Evidence level of the kernels of usual steps."""
        basis = self.timer.costs(self.usual_steps).evidence.basis
        return weakest((basis, EXTRAPOLATED)) if self.assumed else basis


@dataclass(frozen=True, slots=True)
class Build:
    """The parts of a run, before the simulation."""

    scenario: Scenario
    seed: int
    fleet: serving.Fleet
    pools: tuple[PoolBuild, ...]
    """Pools of the fleet, in order of replica number; a single pool if all replicas are equal."""
    notes: tuple[str, ...]

    @property
    def main(self) -> PoolBuild:
        return next(pool for pool in self.pools if pool.role != "prefill")

    def with_pools(self, change: Callable[[PoolBuild], PoolBuild]) -> Build:
        pools = tuple(map(change, self.pools))
        return replace(self, pools=pools, fleet=replace(self.fleet, pools=pools))

    @property
    def memory(self) -> timing.MemoryPlan:
        return self.main.memory

    @property
    def basis(self) -> str:
        return weakest(pool.basis for pool in self.pools)

    @property
    def chips(self) -> int:
        return sum(pool.replicas * pool.chips for pool in self.pools)


def build_replica(scenario: Scenario, seed: int = 0, **choices: Any) -> Build:
    """``build_run`` for callers that need a single kind of replica and no failures."""
    refuse_failures_and_pools(scenario)
    return build_run(scenario, seed, **choices)


def build_run(
    scenario: Scenario,
    seed: int = 0,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
) -> Build:
    """Build the fleet of a scenario, with its memory plan."""
    assumed = Assumptions(factors or {})
    pools = build_pools(scenario, seed, make_drafter, make_policy, assumed)
    fleet = serving.Fleet(
        pools=pools,
        routing=scenario.engine.routing,
        router=_with_peak_rate(scenario.router, next(pool for pool in pools if pool.role != "decode")),
        decode_routing=(scenario.kv_transfer or KvTransferConfig()).routing,
        links=_links(scenario, pools, assumed),
        faults=serving.Faults(scenario.faults, seed) if scenario.faults is not None else None,
        autoscaler=scenario.autoscaler,
        initial=scenario.hardware.replicas,
        seed=seed,
    )
    of_pools = (note for pool in pools for note in pool.notes)
    return Build(scenario, seed, fleet, pools, tuple(dict.fromkeys((*(scenario.notes or ()), *of_pools))))


def build_pools(
    scenario: Scenario,
    seed: int = 0,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    assumed: Assumptions | None = None,
) -> tuple[PoolBuild, ...]:
    """Build each kind of replica of a scenario, with its memory plan."""
    parts = {name: _of_one_group(part) for name, part in _parts(scenario).items()}
    refuse_unmodelled(scenario, parts, make_policy is not None)
    built = []
    for name, part in parts.items():
        with at_field("" if scenario.pools is None else f"pools.{name}"):
            replica = _Replica(part, assumed or Assumptions({}), seed)
            built.append(_without_draft_kv(scenario, _as_pool(scenario, name, replica.pool(make_drafter, make_policy))))
    return tuple(built)


def prefill_tokens_per_s(pool: Pool) -> float:
    """Prompt tokens that an idle replica computes per second, in one step of at most ``PEAK_CHUNK`` tokens."""
    timer, tokens = pool.timer, min(PEAK_CHUNK, pool.limits.max_num_batched_tokens)
    work = timing.sequence_work(timer.windows, [(tokens, 0)], [], 1, 0)
    step = timer.costs(timing.StepWork.of_numbers([np.array([number]) for number in work.numbers]))
    bounds_s = step.compute_s + step.memory_s + step.interconnect_s + step.latency_s + step.host_s
    return float(tokens / (bounds_s[0] * pool.step_factors[0]))


def _with_peak_rate(router: RouterConfig, pool: Pool) -> RouterConfig:
    """Router settings with the predicted prefill rate in filters that lack one."""
    if all(one.filter != "prefix-affinity" or one.peak_prefill_tokens_per_s for one in router.filters):
        return router
    rate = {"peak_prefill_tokens_per_s": float(f"{prefill_tokens_per_s(pool):.4g}")}
    filters = (one if one.peak_prefill_tokens_per_s else one.model_copy(update=rate) for one in router.filters)
    return router.model_copy(update={"filters": tuple(filters)})


def _parts(scenario: Scenario) -> dict[str, Scenario]:
    """One scenario per pool, for one kind of replica; without pools, the scenario itself as pool ``all``."""
    if scenario.pools is None:
        return {"all": scenario}
    alone: dict[str, Any] = {"pools": None, "faults": None, "kv_transfer": None}
    own = {
        name: {part: scenario.pool_section(name, part) for part in ("hardware", "engine")} for name in scenario.pools
    }
    return {name: scenario.model_copy(update=alone | sections) for name, sections in own.items()}


def _as_pool(scenario: Scenario, name: str, pool: PoolBuild) -> PoolBuild:
    usd = scenario.prices.of(pool.chip.name) if scenario.prices is not None else None
    if scenario.pools is None or scenario.pools[name].role != "decode":
        way_s = pool.limits.api_server_s + scenario.router.latency_s
        pool = replace(pool, limits=replace(pool.limits, api_server_s=way_s))
    if scenario.pools is not None:
        config = scenario.pools[name]
        return replace(pool, name=name, role=config.role, usd_per_chip_hour=config.usd_per_chip_hour or usd)
    replicas = pool.replicas if scenario.autoscaler is None else scenario.autoscaler.max_replicas
    return replace(pool, replicas=replicas, usd_per_chip_hour=usd)


def _without_draft_kv(scenario: Scenario, pool: PoolBuild) -> PoolBuild:
    """Add a policy to a pool if prompts arrive without the drafter's KV: it catches up, or lacks context."""
    from simulator.running.drafting import always_full

    config, speculation, timer = scenario.kv_transfer or KvTransferConfig(), scenario.speculation, pool.timer
    if config.draft_kv == "send" or speculation is None or not isinstance(timer, timing.ModelTimer) or pool.rule:
        return pool
    if timer.drafter is None:
        return pool
    timer = replace(timer, adjusted=timing.AdjustedDrafter(timer.drafter, speculation.depth))
    return replace(pool, timer=timer, rule=always_full(speculation, config.draft_kv == "skip"))


class _Drafting(NamedTuple):
    """Drafter of a replica and its acceptance; empty without speculation."""

    drafter: timing.Drafter | None = None
    sampler: AcceptanceSampler | None = None
    drafted: int = 0
    """Number of draft tokens verified per sequence and step."""
    lookahead: int = 0


class _Replica:
    """Builds one kind of replica from a scenario's own ``hardware`` and ``engine``."""

    def __init__(self, scenario: Scenario, assumed: Assumptions, seed: int) -> None:
        self.scenario, self.assumed, self.seed = scenario, assumed, seed
        self.hardware, self.engine, self.speculation = scenario.hardware, scenario.engine, scenario.speculation
        self.architecture = load_architecture(scenario.model)
        self.weight_dtypes = timing.resolve_weight_dtypes(self.architecture, scenario.weights_dtype)

    def pool(self, make_drafter: DrafterFactory | None, make_policy: PolicyFactory | None) -> PoolBuild:
        """Build the model on chips, then drafter, memory, timer and limits, each from the earlier ones."""
        hardware, engine, speculation = self.hardware, self.engine, self.speculation
        target = self._target()
        chip, framework = target.chip, target.framework
        page_bytes = target.cached_kv_bytes_per_token * engine.page_tokens
        most_blocks = max(1, int(chip.memory.capacity_bytes // page_bytes))
        most_seqs = min(engine.max_num_seqs, engine.measured_pages or most_blocks)
        drafting = self._drafting(target, most_seqs, make_drafter)
        target = replace(target, other_devices=self._other_devices(target))
        if drafting.drafted:
            each = drafting.drafted + 1
            limits = (engine.max_num_seqs * each, 1) if self._trims else (engine.max_num_seqs, each)
            graphs = framework.for_engine(*limits, engine.cuda_graph_sizes)
            target = replace(target, framework=graphs)
        memory = self._memory(target, drafting)
        attention = self.scenario.attention_speculation
        groups = None if attention is None else attention_level.DeviceGroups(attention, target)
        timer = self._timer(target, drafting.drafter, groups, self._largest_step(most_seqs, drafting.drafted + 1))
        rule = budget = None
        if speculation is not None and drafting.drafter is not None:
            from simulator.running.drafting import adjusted_drafter, drafting_rule, verify_budget

            assert drafting.sampler is not None
            budget = verify_budget(speculation, timer, drafting.sampler.rates, most_seqs) if self._trims else None
            rule = drafting_rule(speculation, timer, make_policy, self.seed, engine.stepping == "exact-steps")
            timer.adjusted = None if rule is None else adjusted_drafter(speculation, drafting.drafter, framework.name)
        if type(timer) is timing.ModelTimer and not (groups or make_drafter or timer.adjusted):
            timer = _used_lately(timer)
        borrowed = borrowed_acceptance(speculation, self.scenario.model)
        matrices = "expert" if self.architecture.parameters().expert else "mlp"
        pool = PoolBuild(
            replicas=hardware.replicas,
            scheduler=engine.scheduler,
            stepping=engine.stepping,
            limits=self._limits(memory, drafting, framework),
            timer=timer,
            sampler=drafting.sampler,
            prefix_caching=engine.enable_prefix_caching,
            swap=None if engine.preemption == "recompute" else self._host_space(chip, memory, engine.swap_space_bytes),
            rule=rule,
            budget=budget,
            eviction=engine.eviction,
            stores=self._stores(chip, memory),
            chips=hardware.chips_per_replica * hardware.speculative_parallel,
            chips_per_stage=hardware.chips_per_stage,
            chip=chip,
            memory=memory,
            usd_per_chip_hour=None,
            peak_flops_per_s=chip.peak_flops(self.weight_dtypes[matrices]),
            assumed=bool(groups or borrowed),
            notes=(),
            other_chips=tuple(device.chip for device in target.other_devices),
            groups=groups,
            hits=None if groups is None else attention_level.drawn_hits(groups, self.seed, most_seqs),
        )
        notes = tuple(self._notes(pool, drafting.drafter, borrowed))
        return replace(pool, notes=notes, recompute_s=self._recompute_s(pool))

    @property
    def _trims(self) -> bool:
        """True if a step verifies only some of the draft tokens."""
        return trims(self.speculation)

    def _target(self) -> timing.Deployment:
        scenario, hardware, engine = self.scenario, self.hardware, self.engine
        with at_field("hardware.chip"):
            chip = self.assumed.chip(load_chip(hardware.chip))
        if hardware.power_limit_w is not None:
            with at_field("hardware.power_limit_w"):
                chip = chip.at_power_limit(hardware.power_limit_w)
        framework = self._framework(chip)
        kernels = self._kernels(chip, framework)
        others = []
        for number, name in enumerate(hardware.tensor_chips):
            with at_field(f"hardware.tensor_chips.{number}"):
                others.append(load_chip(name))
        if others:
            kernels = SlowestKernels([kernels, *(self._kernels(other, framework) for other in others)])
        with at_field("kv_cache_dtype"):
            dtype_bytes(scenario.kv_cache_dtype)
        with at_field("weights_dtype"):
            for dtype in sorted(set(self.weight_dtypes.values())):
                chip.math_dtype(dtype)
        return timing.Deployment(
            architecture=self.architecture,
            chip=chip,
            kernels=kernels,
            link=self._link(chip),
            framework=framework,
            tensor_parallel=hardware.tensor_parallel,
            weight_dtypes=self.weight_dtypes,
            kv_dtype=scenario.kv_cache_dtype,
            cuda_graphs=engine.cuda_graphs,
            expert_parallel=hardware.expert_parallel,
            attention_data_parallel=hardware.attention_data_parallel,
            expert_routing=hardware.expert_routing or self.architecture.expert_routing or "uniform",
        )

    def _link(self, chip: Chip) -> Link | None:
        """Link between the chips of a stage; a network joins servers whose chips keep their own link."""
        name = self.hardware.link or self.hardware.default_link(chip)
        link = self.assumed.link(name, "hardware.link") if name else None
        inner = chip.links.scale_up
        linked = self.hardware.chips_per_stage * self.hardware.speculative_parallel
        if link is None or not link.network or inner in (None, name) or linked <= SERVER_CHIPS:
            return link
        return link.model_copy(
            update={"server": self.assumed.link(inner, "hardware.link"), "server_chips": SERVER_CHIPS}
        )

    def _framework(self, chip: Chip) -> Framework:
        engine = self.engine
        framework = self.assumed.framework(timing.load_framework(engine.framework))
        if engine.samples_on is not None:
            framework = framework.model_copy(update={"samples_on": engine.samples_on})
        framework = framework.on(chip, self.hardware.tensor_parallel, self.architecture.vocab_size)
        framework = framework.with_experts(chip.name, self.architecture, self.weight_dtypes["expert"])
        if engine.entry_point == "offline":
            framework = framework.without_api_server()
        if reaches(engine.framework, engine.release, framework.sinks_captured or "0"):
            framework = framework.model_copy(update={"sink_launches": 0})
        if framework.broadcasts_until and reaches(engine.framework, engine.release, framework.broadcasts_until):
            framework = framework.model_copy(update={"rank_s": 0.0})
        sorts_until = framework.sorts_logits_until
        if sorts_until and not reaches(engine.framework, engine.release, sorts_until):
            framework = framework.model_copy(update={"logit_copies": SORTED_COPIES})
        if engine.sampling == "top-p":
            framework = framework.sorting(self.architecture.vocab_size)
        if engine.moe_backend != "auto":
            framework = framework.model_copy(update={"mxfp8_experts": engine.moe_backend == "mxfp8"})
        framework = framework.streaming_every(engine.stream_interval)
        framework = framework.for_engine(engine.max_num_seqs, sizes=engine.cuda_graph_sizes)
        return framework.scheduled(engine.async_scheduling)

    def _kernels(self, chip: Chip, framework: Framework) -> KernelLibrary:
        engine = self.engine
        marlin = engine.moe_backend == "marlin"
        if engine.moe_backend == "auto" and framework.triton_experts:
            hopper = chip.compute.asynchronous and reaches(engine.framework, engine.release, framework.triton_experts)
            older = chip.vendor == "nvidia" and not (chip.compute.multiplies_fp4 or hopper)
            marlin = self.weight_dtypes["expert"] == "mxfp4" and older
        until = framework.wide_tiles_until
        wide = until is not None and chip.compute.is_hopper and not reaches(engine.framework, engine.release, until)
        return self.assumed.kernels(
            chip,
            "-".join(filter(None, (framework.kernel_library, engine.backend))),
            engine.flash_decoding,
            framework.static_activation_scales,
            marlin,
            engine.kernel_correction,
            engine.flash_attention,
            framework.reductions,
            wide,
        )

    def _drafting(self, target: timing.Deployment, most_seqs: int, make_drafter: DrafterFactory | None) -> _Drafting:
        speculation = self.speculation
        if speculation is None or speculation.method == "none":
            return _Drafting()
        from simulator.running import drafting
        from simulator.speculation.confidence import drafts_that_vary

        proposed = proposal(speculation)
        largest_step = self._largest_step(most_seqs, proposed.nodes + 1)
        stages = 1 if chained_cards(self.scenario) > 1 else self.hardware.pipeline_parallel
        request = drafting.DraftRequest(speculation, proposed, target, most_seqs, largest_step, stages)
        with at_field("speculation.draft"):
            drafter = (make_drafter or drafting.build_drafter)(request)
        survival = drafting.verified_survival(speculation)
        acceptance = drafts_that_vary(speculation, float(survival[0]))
        sampler = sampler_of(acceptance, survival, self.seed, speculation.draft)
        return _Drafting(drafter, sampler, proposed.nodes, drafting.lookahead_tokens(speculation, proposed))

    def _other_devices(self, target: timing.Deployment) -> tuple[OtherDevice, ...]:
        """Further chips of the machine, with the layers or experts that each chip runs."""
        hardware = self.hardware
        shares = list(hardware.layers_on) or [LayerShare(chip=hardware.chip)] * (chained_cards(self.scenario) - 1)
        if not shares:
            return ()
        chips = []
        for number, share in enumerate(shares):
            with at_field(f"hardware.layers_on.{number}.chip"):
                chips.append(target.chip if share.chip == hardware.chip else self.assumed.chip(load_chip(share.chip)))
        counts = self._layer_counts(shares, [chip.memory.capacity_bytes for chip in chips], target.chip)
        name = hardware.pipeline_link or hardware.link or target.chip.links.host or "pcie4-x16"
        link = self.assumed.link(name, "hardware.pipeline_link")
        devices = []
        for share, chip, layers in zip(shares, chips, counts, strict=True):
            kernels = target.kernels if chip is target.chip else self._kernels(chip, target.framework)
            if chip.kind == "cpu":
                kernels = HostKernels(kernels, target.kernels, link)
            devices.append(OtherDevice(chip, kernels, layers, link, share.part == "experts"))
        return tuple(devices)

    def _layer_counts(self, shares: Sequence[LayerShare], capacities: Sequence[float], chip: Chip) -> list[int]:
        """Number of layers of every share: as configured, else in proportion to the remaining memory."""
        layers = self.architecture.num_layers
        free = [place for place, share in enumerate(shares) if share.layers is None]
        requested = sum(share.layers or 0 for share in shares if share.part == "layers")
        memory = sum(capacities[place] for place in free) + chip.memory.capacity_bytes
        counts = [s.layers or round((layers - requested) * capacities[i] / memory) for i, s in enumerate(shares)]
        check_layer_counts(self.architecture, shares, counts)
        return counts

    def _memory(self, target: timing.Deployment, drafting: _Drafting) -> timing.MemoryPlan:
        engine, drafter = self.engine, drafting.drafter
        limits: dict[str, Any] = {
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "block_size": engine.page_tokens,
            "max_tokens": engine.max_num_batched_tokens,
            "max_sampled": min(engine.max_num_seqs * (drafting.drafted + 1), engine.max_num_batched_tokens),
            "num_kv_blocks": engine.measured_pages,
            "pipeline_parallel": 1 if target.other_devices else self.hardware.pipeline_parallel,
            "max_num_seqs": engine.max_num_seqs,
            "drafted": drafting.drafted,
            "max_context": engine.max_model_len or self.architecture.max_position or 0,
            "usual_tokens": workload.usual_tokens(self.scenario.workload) if target.windowed_kv_bytes else 0.0,
        }
        try:
            memory = timing.plan_memory(target, drafter, **limits)
        except timing.DoesNotFit as error:
            least = engine.max_model_len or engine.max_num_batched_tokens
            if not (changes := timing.remedies(target, drafter, least, limits)):
                raise
            facts = str(error).rpartition("; ")[0]
            raise timing.DoesNotFit(f"{facts}; it fits with {changes}") from None
        if not isinstance(drafter, timing.RemoteDrafter):
            return memory
        check_draft_chips(self.hardware)
        share, tokens = engine.gpu_memory_utilization, engine.max_num_batched_tokens
        with at_field("speculation.draft"):
            return timing.fit_separate_processes(memory, drafter, gpu_memory_utilization=share, max_tokens=tokens)

    def _timer(
        self,
        target: timing.Deployment,
        drafter: timing.Drafter | None,
        groups: attention_level.DeviceGroups | None,
        largest_step: int,
    ) -> timing.ModelTimer:
        stages, between = self.hardware.pipeline_parallel, self.hardware.pipeline_link
        if between is None and self.hardware.link is None:
            between = self.hardware.default_link(target.chip, stages)
        if groups:
            return timing.ModelTimer(groups.timer(timing.step_timer(target, largest_step)), drafter)
        if stages == 1 or target.other_devices:
            timer = timing.step_timer(target, largest_step)
            if drafter is not None:
                per_sequence = target.framework.recurrent_drafts == "per-sequence"
                recurrent = per_sequence and target.architecture.state_bytes_per_sequence > 0
                timer = timer.by_sequence() if recurrent else timer
            return timing.ModelTimer(timer, drafter)
        with at_field("hardware.pipeline_link"):
            link = load_link(between) if between else target.link
        first, *later = timing.stage_timers(target, stages, largest_step)
        fused = getattr(drafter, "fused_hidden_states", 0)
        return timing.PipelineTimer(first, drafter, later=tuple(later), link=link, fused_hidden_states=fused)

    def _keeps_window_blocks(self, framework: Framework) -> bool:
        """True if blocks that a window has passed stay in the prefix cache."""
        until = framework.window_blocks_until
        return until is not None and not reaches(self.engine.framework, self.engine.release, until)

    def _limits(self, memory: timing.MemoryPlan, drafting: _Drafting, framework: Framework) -> EngineLimits:
        engine, groups = self.engine, self.hardware.attention_data_parallel
        num_blocks, servers = memory.num_blocks // groups, engine.api_server_count * groups
        return EngineLimits(
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            block_size=engine.page_tokens,
            num_blocks=num_blocks,
            page_tokens=memory.page_tokens,
            window_blocks=memory.window_blocks if self._keeps_window_blocks(framework) else 0.0,
            window_room=memory.window_room,
            watermark_blocks=int(engine.kv_watermark * num_blocks),
            max_model_len=engine.max_model_len or self.architecture.max_position,
            chunked_prefill=engine.enable_chunked_prefill and engine.rules.cuts_prompts,
            query_len=drafting.drafted + 1,
            lookahead_tokens=drafting.lookahead,
            draft_slots=input_slots(self.speculation, framework.name) if engine.rules.budgets_decodes else 0,
            api_server_s=framework.api_server_s,
            api_server_work_s=framework.api_server_work_s / servers,
            tokenisation_per_token_s=framework.tokenisation_per_token_s / servers,
            streaming_s=framework.streaming_s / servers,
            groups=groups,
            round_robin=framework.group_choice == "round-robin",
            dp_wait_limit_steps=framework.dp_wait_limit_steps,
            batch_wait_steps=engine.batch_wait_timeout_iters,
            batch_wait_tokens=engine.batch_wait_max_tokens_ratio * engine.max_num_batched_tokens,
            schedules_ahead=framework.schedules_ahead,
            reserve_full_isl=engine.scheduler_reserve_full_isl,
            scheduler_steps=engine.num_scheduler_steps,
            recv_interval=engine.scheduler_recv_interval,
        )

    def _largest_step(self, most_seqs: int, query_len: int) -> int:
        """Maximum tokens of one step of one attention group. Schedulers that do not budget decodes decode their whole
        batch; a step of groups may combine the prompts of one group with the batch of another."""
        budget, batch = self.engine.max_num_batched_tokens, most_seqs * query_len
        if self.hardware.attention_data_parallel > 1:
            return budget + batch
        if self.engine.rules.budgets_decodes:
            return min(max(budget, batch), budget + query_len - 1)
        return max(budget, batch)

    def _host_space(self, chip: Chip, memory: timing.MemoryPlan, capacity_bytes: float) -> StoreSpace:
        """Host memory of a server, ``capacity_bytes`` per chip; chips copy in parallel, each over its own link."""
        name = self.engine.host_link or chip.links.host
        assert name is not None
        link = self.assumed.link(name, "engine.host_link")
        return StoreSpace(
            num_blocks=self._blocks_in(memory, capacity_bytes),
            block_bytes=memory.replica_kv_bytes_per_token * memory.block_size,
            read_bytes_per_s=link.bandwidth_bytes_per_s * self.hardware.chips_per_replica,
            latency_s=link.latency_s,
        )

    def _blocks_in(self, memory: timing.MemoryPlan, capacity_bytes: float) -> int:
        """KV blocks that fit in ``capacity_bytes`` per chip, as many for each attention group."""
        groups = self.hardware.attention_data_parallel
        return groups * int(capacity_bytes // (memory.kv_bytes_per_token * memory.block_size))

    def _stores(self, chip: Chip, memory: timing.MemoryPlan) -> tuple[StoreSpace, ...]:
        """Stores behind the prefix cache, in order."""
        engine, shared, block_bytes = self.engine, self.scenario.kv_store, memory.kv_bytes_per_token * memory.block_size
        if engine.kv_offloading_bytes is not None:
            spaces = [self._host_space(chip, memory, engine.kv_offloading_bytes)]
            check_store("engine.kv_offloading_bytes", engine.kv_offloading_bytes, block_bytes, spaces[0].num_blocks)
        else:
            spaces = []
        for place, config in enumerate(engine.kv_stores):
            spaces.append(self._store(chip, memory, config))
            size = config.bytes / self.hardware.chips_per_replica
            check_store(f"engine.kv_stores.{place}.bytes", size, block_bytes, spaces[-1].num_blocks)
        if shared is not None and engine.enable_prefix_caching:
            spaces.append(self._shared_store(chip, memory, shared))
            check_store("kv_store.bytes", shared.bytes, spaces[-1].block_bytes, spaces[-1].num_blocks)
        return tuple(spaces)

    def _store(self, chip: Chip, memory: timing.MemoryPlan, config: KvStoreConfig) -> StoreSpace:
        """One of ``engine.kv_stores``; what it leaves out is the chips' links to their host."""
        size = config.bytes / self.hardware.chips_per_replica
        if config.medium == "host" and None in (config.read_bytes_per_s, config.latency_s):
            space = self._host_space(chip, memory, size)
        else:
            space = StoreSpace(
                num_blocks=self._blocks_in(memory, size),
                block_bytes=memory.replica_kv_bytes_per_token * memory.block_size,
                read_bytes_per_s=config.read_bytes_per_s or 0.0,
                latency_s=DISK_LATENCY_S,
            )
        read = config.read_bytes_per_s or space.read_bytes_per_s
        return replace(
            space,
            name=config.label,
            medium=config.medium,
            read_bytes_per_s=read,
            write_bytes_per_s=config.write_bytes_per_s or read,
            latency_s=space.latency_s if config.latency_s is None else config.latency_s,
            lanes=config.lanes,
            saves=config.saves,
            first_share=min(1.0, self.hardware.pipeline_parallel / self.architecture.num_layers),
            background=(config.loads or IN_STEP.get(config.medium)) != "in-step",
            picky=config.fetch == "faster",
            eviction=config.eviction_setting,
        )

    def _shared_store(self, chip: Chip, memory: timing.MemoryPlan, config: SharedStoreConfig) -> StoreSpace:
        """The store that all servers share."""
        name = config.link or chip.links.scale_out
        assert name is not None
        link = self.assumed.link(name, "kv_store.link")
        block_bytes = memory.replica_kv_bytes_per_token * memory.block_size
        return StoreSpace(
            num_blocks=int(config.bytes // block_bytes),
            block_bytes=block_bytes,
            read_bytes_per_s=config.read_bytes_per_s,
            write_bytes_per_s=config.write_bytes_per_s,
            latency_s=config.latency_s,
            lanes=config.lanes,
            name=config.name,
            medium="shared",
            saves=config.saves,
            background=True,
            picky=config.fetch == "faster",
            eviction=config.eviction_setting,
            link=(link.latency_s, link.bandwidth_bytes_per_s * (config.links or self.hardware.chips_per_replica)),
        )

    def _recompute_s(self, pool: PoolBuild) -> tuple[float, float]:
        """Seconds per token to compute a prompt, and how many more for each token before it, from two chunks."""
        if not any(store.picky for store in pool.stores):
            return 0.0, 0.0
        chunk = min(pool.limits.max_num_batched_tokens, CHUNK_TOKENS)
        first_s, later_s = (
            float(pool.timer.seconds(timing.sequence_work(pool.timer.windows, [(chunk, context)], []))) / chunk
            for context in (0, CHUNK_CONTEXT)
        )
        deeper_s = max(0.0, later_s - first_s) / CHUNK_CONTEXT
        return max(0.0, first_s - deeper_s * chunk / 2), deeper_s

    def _contradictions(self) -> Iterator[str]:
        """Notes on formats in the scenario that differ from the formats in the checkpoint's name."""
        named = readable_checkpoint(self.scenario.model)
        if named is None:
            return
        weights, kv = named.weights_dtype, named.kv_cache_dtype
        if weights and self.weight_dtypes != timing.resolve_weight_dtypes(self.architecture, None):
            yield f"weights_dtype: {self.scenario.weights_dtype} is used, although the model's name says {weights}"
        if kv and self.scenario.kv_cache_dtype != kv:
            yield f"kv_cache_dtype: {self.scenario.kv_cache_dtype} is used, although the model's name says {kv}"

    def _notes(self, pool: PoolBuild, drafter: timing.Drafter | None, borrowed: str | None) -> Iterator[str]:
        architecture, hardware = self.architecture, self.hardware
        yield from (f"{architecture.name}: {note}" for note in architecture.notes)
        yield from self.scenario.readings
        yield from self._contradictions()
        stated = self.scenario.weights_dtype
        if isinstance(stated, str) and (kept := kept_wider(architecture.name, stated)):
            parts = ", ".join(f"{part} in {wider}" for part, wider in kept.items())
            yield f"weights_dtype: {stated} of {architecture.name} is taken as published, {parts}; others by part"
        if architecture.expert_routing is not None and hardware.expert_routing is None:
            least, most = architecture.expert_routing_range
            yield (
                f"experts: {architecture.name}'s router is taken for {architecture.expert_routing}, as in benchmark "
                f"results of random tokens; other text may spread them as {least} or {most} do "
                f"(hardware.expert_routing)"
            )
        if self.speculation is not None:
            from simulator.running.drafting import drafting_notes

            yield from drafting_notes(self.speculation)
        if borrowed is not None:
            yield borrowed
        if isinstance(drafter, timing.RemoteDrafter):
            draft = drafter.deployment
            yield (
                f"the drafter runs on {draft.tensor_parallel} x {draft.chip.name} per replica over "
                f"{drafter.link.name}: those chips are not in chips, cost, utilisation and energy"
            )
        own = replaced_scheduler(self.engine)
        if own is not None:
            yield (
                f"engine.scheduler: {own} is what {self.engine.framework} runs, without pipelines and swapping here; "
                f"{self.engine.scheduler} stands in"
            )
        if pool.groups is not None:
            yield from pool.groups.notes
        if pool.rule is not None:
            yield from self._padding_note(pool)
        groups, each = hardware.attention_data_parallel, hardware.tensor_parallel
        if min(groups, each) > 1 and self.engine.framework.startswith("sglang"):
            yield (
                f"hardware: {groups} attention groups of {each} chips are {groups * each} chips; SGLang's --tp-size "
                f"{each} counts all chips: with --dp-size {groups} it is tensor_parallel: {max(1, each // groups)}"
            )
        network = hardware.default_link(pool.chip, hardware.pipeline_parallel)
        named = hardware.link or (hardware.pipeline_link if hardware.default_link(pool.chip) != network else None)
        if network != pool.chip.links.scale_up and named is None:
            yield (
                f"hardware: {hardware.chips_per_replica * hardware.speculative_parallel} chips are more than one "
                f"server of {SERVER_CHIPS} x {pool.chip.name}: servers are taken as joined by {network}, with "
                f"{pool.chip.links.scale_up} inside; hardware.link names another link"
            )
        if pool.chip.name == "galaxy-chip" and hardware.tensor_parallel != 32:
            yield (
                "hardware: a Galaxy is priced with its own implementation of Llama-70B on all 32 chips; models that "
                "take fewer run those of smaller boards: hardware.chip: n150 with link: tenstorrent-ethernet"
            )
        if hardware.layers_on or hardware.tensor_chips:
            yield f"several chips: cost, utilisation and energy are those of {pool.chip.name} alone"
        if hardware.pipeline_parallel > chained_cards(self.scenario):
            yield "pipeline: batches in flight are simulated one by one, as many as there are stages"

    def _padding_note(self, pool: PoolBuild) -> Iterator[str]:
        """Note on the time that padding adds to a step of one sequence, if a policy may stop drafting."""
        assert isinstance(pool.timer, timing.ModelTimer)
        timer, engine = pool.timer.target, self.engine
        plain = timer.deployment.framework.for_engine(engine.max_num_seqs, 1, engine.cuda_graph_sizes)
        unpadded = timing.step_timer(replace(timer.deployment, framework=plain), timer.max_tokens)
        work = timing.decode_step(timer.windows, 1, 1, 1024)
        ratio = timer.seconds(work) / unpadded.seconds(work)
        if ratio >= NOTED_PADDING:
            yield (
                f"speculation.policy: CUDA graphs are captured for multiples of {pool.limits.query_len} tokens, so "
                f"steps without draft tokens are padded; with one sequence they take {ratio:.2f}x as long as with "
                f"method: none"
            )


def _used_lately(timer: timing.ModelTimer) -> timing.ModelTimer:
    """Equal timing model of an earlier run, with its recorded prices; else ``timer``."""
    for known in list(_LATELY):
        if known.target is timer.target and known == timer:
            return known
    _LATELY.appendleft(timer)
    return timer


def _of_one_group(scenario: Scenario) -> Scenario:
    """Copy of the scenario with the engine's limits for one attention group."""
    engine, groups = scenario.engine, scenario.hardware.attention_data_parallel
    if groups == 1 or not timing.load_framework(engine.framework).divides_limits:
        return scenario
    limits = {name: max(1, getattr(engine, name) // groups) for name in ("max_num_seqs", "max_num_batched_tokens")}
    return scenario.model_copy(update={"engine": engine.model_copy(update=limits)})


def _links(
    scenario: Scenario, pools: Iterable[PoolBuild], assumed: Assumptions
) -> dict[tuple[str, str], serving.KvLink]:
    config = scenario.kv_transfer or KvTransferConfig()
    framework = timing.load_framework(scenario.engine.framework)
    # vLLM's decode engine computes the last prompt token again ("Disaggregated Prefilling" in its documentation)
    samples = config.first_token or ("decode" if framework.kernel_library == "vllm" else "prefill")
    pool_links: dict[tuple[str, str], serving.KvLink] = {}
    for source in (pool for pool in pools if pool.role == "prefill"):
        name = config.link or source.chip.links.scale_out
        assert name is not None
        link = assumed.link(name, "kv_transfer.link")
        unsent = 0.0
        timer = source.timer
        if config.draft_kv != "send" and isinstance(timer, timing.ModelTimer) and timer.drafter is not None:
            unsent = timer.drafter.kv_bytes_per_token * timer.target.deployment.tensor_parallel
        for target in (pool for pool in pools if pool.role == "decode"):
            links = config.links or min(source.chips, target.chips)
            pool_links[source.name, target.name] = serving.KvLink(
                latency_s=link.latency_s,
                bandwidth_bytes_per_s=links * link.bandwidth_bytes_per_s,
                bytes_per_token=source.memory.replica_kv_bytes_per_token - unsent,
                samples_first=samples == "prefill",
                setup_s=framework.transfer_setup_s if scenario.engine.entry_point == "server" else 0.0,
                draft_kv=config.draft_kv,
            )
    return pool_links
