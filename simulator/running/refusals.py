"""Refusal of invalid combinations of a scenario's sections, in the order of the checks.

:func:`check_sections` runs when a scenario is validated, :func:`refuse_unmodelled` before a run is built,
:func:`refuse_stream` before it starts; the ``check_*`` functions at the end are called with results of the build. A
single section checks its own values in its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import simulator.timing as timing
from forerun.errors import ForerunError, at_field
from hwprofiles import load_chip
from hwprofiles.catalogue import local_backends
from hwprofiles.dtypes import GGUF_BLOCKS
from simulator.llm import Architecture, MoeMlp, load_architecture
from simulator.serving import Pool
from simulator.serving.engine_config import EngineConfig, has_several_api_servers
from simulator.serving.fleet.fleet_config import (
    AutoscalerConfig,
    FaultsConfig,
    KvTransferConfig,
    PoolConfig,
    Role,
    RouterConfig,
)
from simulator.serving.kv_stores import LRU, EvictionSetting
from simulator.serving.rules import SCHEDULERS
from simulator.serving.store_config import SharedStoreConfig
from simulator.speculation import SpeculationConfig
from simulator.speculation.attention_level.alspec_config import AttentionSpeculationConfig, check_groups
from simulator.speculation.methods import METHODS
from simulator.speculation.proposal import input_slots, proposal
from simulator.speculation.speculation_config import CONFIDENCE_BUDGET, GRAMMAR, named
from simulator.timing.framework import LOCAL_FRAMEWORKS, load_framework
from simulator.timing.hardware_config import HardwareConfig, LayerShare
from simulator.workload.workload_config import WorkloadConfig

if TYPE_CHECKING:
    from simulator.workload import RequestStream


class ScenarioFields(Protocol):
    """Fields of ``simulator.running.scenario.Scenario`` that the checks read; its module imports this one."""

    @property
    def model(self) -> str | dict[str, Any]: ...
    @property
    def weights_dtype(self) -> str | dict[str, str] | None: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def hardware(self) -> HardwareConfig: ...
    @property
    def engine(self) -> EngineConfig: ...
    @property
    def router(self) -> RouterConfig: ...
    @property
    def pools(self) -> dict[str, PoolConfig] | None: ...
    @property
    def kv_transfer(self) -> KvTransferConfig | None: ...
    @property
    def kv_store(self) -> SharedStoreConfig | None: ...
    @property
    def faults(self) -> FaultsConfig | None: ...
    @property
    def autoscaler(self) -> AutoscalerConfig | None: ...
    @property
    def speculation(self) -> SpeculationConfig | None: ...
    @property
    def attention_speculation(self) -> AttentionSpeculationConfig | None: ...
    @property
    def workload(self) -> WorkloadConfig: ...
    def pool_section(self, pool: str, section: str) -> Any: ...


def check_sections(scenario: ScenarioFields) -> None:
    """Check the consistency of a scenario's sections, first for pools with their overrides."""
    _check_pools(scenario)
    _check_autoscaler(scenario)
    _check_router(scenario)
    if scenario.pools is None:
        check_groups(scenario.attention_speculation, scenario.hardware)


def _check_pools(scenario: ScenarioFields) -> None:
    pools = scenario.pools or {}
    if scenario.pools is not None and not pools:
        raise ValueError("pools: must not be empty")
    if pools and scenario.attention_speculation is not None:
        raise ValueError("pools: attention_speculation is modelled with equal replicas only; remove one of the two")
    for name, pool in pools.items():
        scenario.pool_section(name, "engine")
        if scenario.pool_section(name, "hardware").speculative_parallel != 1:
            raise ValueError(f"pools.{name}.hardware.speculative_parallel: only 1 is modelled in pools")
        if "routing" in pool.engine:
            raise ValueError(
                f"pools.{name}.engine.routing: set engine.routing of the scenario (new requests) or "
                f"kv_transfer.routing (finished prompts)"
            )
    roles = {pool.role for pool in pools.values()}
    if len(pools) > 1 and not any("role" in pool.model_fields_set for pool in pools.values()):
        raise ValueError(
            f"pools: {', '.join(pools)} state no role; give each one: role: both (all of the work), prefill or decode"
        )
    if roles not in (set(), {"both"}, {"prefill", "decode"}):
        raise ValueError(
            f"pools: roles are {', '.join(sorted(roles))}; let all be both, or some prefill and the others decode"
        )
    if scenario.kv_transfer is not None and "prefill" not in roles:
        raise ValueError("kv_transfer: no pool has the role prefill, so no KV travels; remove kv_transfer")
    if scenario.kv_transfer is not None and scenario.kv_transfer.draft_kv != "send":
        _check_draft_kv(scenario.kv_transfer.draft_kv, scenario.speculation)
    arrivals = scenario.workload.arrivals
    if scenario.router.when_full == "refuse" and arrivals is not None and arrivals.process == "closed-loop":
        raise ValueError(
            "router.when_full: a closed loop sends the next request as soon as one is refused, so all would fail; "
            "use queue, or lower max_concurrency"
        )


def _check_router(scenario: ScenarioFields) -> None:
    """Check that filters and scorers stand where a router uses them."""
    names = {scenario.engine.routing}
    if scenario.kv_transfer is not None:
        names.add(scenario.kv_transfer.routing)
    router = scenario.router
    if "scored" in names and not (router.scorers or router.filters) and router.picker != "random":
        raise ValueError("router.scorers: routing scored needs one at least, such as [{scorer: token-load}]")
    for field in ("filters", "scorers", "picker", "prefixes", "scrape_interval_s"):
        if field in router.model_fields_set and not names & {"scored"} | scenario.engine.model_fields_set & {"routing"}:
            raise ValueError(f"router.{field}: engine.routing {scenario.engine.routing} has none; set it to scored")


def _check_draft_kv(draft_kv: str, speculation: SpeculationConfig | None) -> None:
    if speculation is not None and speculation.method == "none":
        return
    if speculation is None or not METHODS[speculation.method].draft_slots:
        raise ValueError(f"kv_transfer.draft_kv: {draft_kv} is about a drafter with KV of its own; there is none")
    policy = named(speculation.policy)
    starves = policy.while_off == "starve"
    if policy.name == CONFIDENCE_BUDGET or (policy.name != "fixed" and starves != (draft_kv == "skip")):
        goes = "while_off: starve" if draft_kv == "skip" else "another while_off than starve"
        raise ValueError(f"kv_transfer.draft_kv: {draft_kv} goes with policy fixed, or one with {goes}")


def _check_autoscaler(scenario: ScenarioFields) -> None:
    scaler, hardware = scenario.autoscaler, scenario.hardware
    if scaler is None:
        return
    for name in ("pools", "faults"):
        if getattr(scenario, name) is not None:
            raise ValueError(f"autoscaler: cannot be combined with {name}; remove one of them")
    if hardware.pipeline_parallel > 1:
        raise ValueError("autoscaler: modelled without pipeline stages; set hardware.pipeline_parallel: 1")
    if not scaler.min_replicas <= hardware.replicas <= scaler.max_replicas:
        raise ValueError(
            f"autoscaler: hardware.replicas {hardware.replicas}, which are on at first, must lie between "
            f"min_replicas {scaler.min_replicas} and max_replicas {scaler.max_replicas}"
        )


def refuse_failures_and_pools(scenario: ScenarioFields) -> None:
    """Refuse failures and pools in studies that assume equal replicas without failures."""
    for name in ("pools", "faults"):
        if getattr(scenario, name) is not None:
            raise ForerunError(f"{name}: this looks at equal replicas that never fail; remove {name}")


def refuse_unmodelled(scenario: ScenarioFields, parts: Mapping[str, ScenarioFields], own_policy: bool = False) -> None:
    """Refuse features that no run models, by pool and for the fleet; ``own_policy``: the draft policy is custom."""
    failures, pools = scenario.faults, scenario.pools
    for name, part in parts.items():
        role: Role = "both" if pools is None else pools[name].role
        with at_field("" if pools is None else f"pools.{name}"):
            _refuse_pipeline(part.hardware.pipeline_parallel, role, failures is not None)
            for refuse in (_refuse_experts, _refuse_framework, _refuse_layout, _refuse_budget, _refuse_host_memory):
                refuse(part)
            _refuse_confidence(part)
            _refuse_policy(part, own_policy)
            _refuse_chip(part)
        if role == "both":
            continue
        if not part.engine.rules.continuous:
            raise ForerunError(f"pools.{name}.engine.scheduler: a static batch cannot share requests with another pool")
        chip = load_chip(part.hardware.chip)
        if role == "prefill" and not ((scenario.kv_transfer and scenario.kv_transfer.link) or chip.links.scale_out):
            raise ForerunError(f"kv_transfer.link: {chip.name} names no scale-out link; give one")
    _refuse_shared_store(scenario, parts)
    _refuse_clairvoyance(scenario, parts)
    replicas = sum(part.hardware.replicas for part in parts.values())
    for event in failures.events if failures is not None else ():
        if event.replica >= replicas:
            raise ForerunError(
                f"faults.events: there is no replica {event.replica}; they are numbered 0 to {replicas - 1}"
            )


def evictions_of(scenario: ScenarioFields) -> dict[str, EvictionSetting]:
    """Eviction policies of the prefix cache and the stores, by their field."""
    stores = {f"engine.kv_stores.{place}": store for place, store in enumerate(scenario.engine.kv_stores)}
    settings = {f"{field}.eviction": store.eviction_setting for field, store in stores.items()}
    settings |= {} if scenario.kv_store is None else {"kv_store.eviction": scenario.kv_store.eviction_setting}
    return {"engine.prefix_cache_eviction": scenario.engine.eviction, **settings}


def _refuse_clairvoyance(scenario: ScenarioFields, parts: Mapping[str, ScenarioFields]) -> None:
    """Refuse a clairvoyant policy where a reference run does not tell which replicas serve which requests."""
    for name in ("faults", "autoscaler"):
        for part in parts.values() if getattr(scenario, name) is not None else ():
            for field, setting in evictions_of(part).items():
                if setting.rule.clairvoyant:
                    raise ForerunError(f"{field}: {setting.name} cannot know what {name} change; remove one of the two")
    for part in parts.values():
        caches = part.hardware.replicas * part.hardware.attention_data_parallel
        for field, setting in evictions_of(part).items() if caches > 1 else ():
            if setting.rule.clairvoyant and field != "kv_store.eviction":
                raise ForerunError(
                    f"{field}: {setting.name} cannot know which of {caches} caches will serve which requests; "
                    "take one replica without attention groups"
                )


def refuse_open_ended(pools: Iterable[Pool]) -> None:
    """Refuse eviction policies that must know the requests in advance, where a server takes them as they come."""
    for pool in pools:
        for setting in pool.evictions:
            if setting.rule.clairvoyant or setting.rule.by_session:
                knows = "all requests" if setting.rule.clairvoyant else "which requests continue a session"
                raise ForerunError(
                    f"engine.prefix_cache_eviction, kv_stores: {setting.name} must know {knows} in advance, and a "
                    "server does not; choose another policy"
                )


def _refuse_shared_store(scenario: ScenarioFields, parts: Mapping[str, ScenarioFields]) -> None:
    """Refuse a shared store that no replica uses, or whose users cut prompts into unequal blocks."""
    if scenario.kv_store is None:
        return
    sizes = {part.engine.page_tokens for part in parts.values() if part.engine.enable_prefix_caching}
    if not sizes:
        raise ForerunError("kv_store: no engine has enable_prefix_caching; set it to true, or remove kv_store")
    if len(sizes) > 1:
        raise ForerunError(
            f"kv_store: engines share blocks of one block_size (got {', '.join(map(str, sorted(sizes)))})"
        )
    for part in parts.values():
        if scenario.kv_store.name in [store.label for store in part.engine.kv_stores]:
            raise ForerunError(f"kv_store.name: {scenario.kv_store.name} is one of engine.kv_stores; choose another")


def _refuse_pipeline(pipeline_parallel: int, role: Role, failures: bool) -> None:
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


def _refuse_experts(scenario: ScenarioFields) -> None:
    hardware, architecture = scenario.hardware, load_architecture(scenario.model)
    experts = any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups)
    if not experts and hardware.expert_parallel > 1:
        raise ForerunError(f"hardware.expert_parallel: {architecture.name} has no experts to spread; leave it at 1")
    if not experts and hardware.attention_data_parallel > 1:
        raise ForerunError(
            f"hardware.attention_data_parallel: {architecture.name} has no experts that groups could share; more "
            f"copies of a dense model are hardware.replicas"
        )
    if not experts and any(share.part == "experts" for share in hardware.layers_on):
        raise ForerunError(f"hardware.layers_on: {architecture.name} has no experts; remove part: experts")
    stored = {"marlin": ("int4", "fp4", "mxfp4", "nvfp4a16"), "mxfp8": ("mxfp4",)}.get(scenario.engine.moe_backend)
    if stored is not None:
        dtype = timing.resolve_weight_dtypes(architecture, scenario.weights_dtype)["expert"]
        if not experts or dtype not in stored:
            kind = f"experts in {dtype}" if experts else "no experts"
            raise ForerunError(
                f"engine.moe_backend: {scenario.engine.moe_backend} multiplies experts stored in "
                f"{' or '.join(stored)}; {architecture.name} has {kind} here"
            )


def _refuse_framework(scenario: ScenarioFields) -> None:
    hardware, framework = scenario.hardware, scenario.engine.framework
    local = framework in LOCAL_FRAMEWORKS
    field = next((name for name in ("layers_on", "tensor_chips") if getattr(hardware, name)), None)
    if field is not None and not local:
        raise ForerunError(
            f"hardware.{field}: unlike chips share a model under engine.framework: llama.cpp (got {framework})"
        )
    engine = scenario.engine
    if engine.rules.mixes and load_framework(framework).prompts == "sequential":
        raise ForerunError(
            f"engine.scheduler: {framework} computes no prompts beside decoding sequences; leave it at prefill-first "
            f"(got {engine.scheduler})"
        )
    if engine.scheduler_recv_interval > 1:
        if not framework.startswith("sglang"):
            raise ForerunError(
                f"engine.scheduler_recv_interval: a flag of SGLang (got engine.framework: {framework}); remove it"
            )
        if hardware.pipeline_parallel > 1 or hardware.attention_data_parallel > 1:
            raise ForerunError(
                "engine.scheduler_recv_interval: SGLang looks for requests before every step with pipeline stages and "
                "attention groups; remove it"
            )
    if engine.scheduler_reserve_full_isl and "vllm" not in engine.rules.flags:
        field = "engine.scheduler_reserve_full_isl"
        raise ForerunError(f"{field}: of vLLM's scheduler (got engine.scheduler: {engine.scheduler}); remove it")
    if (engine.batch_wait_timeout_iters > 0) != (engine.batch_wait_max_tokens_ratio > 0):
        raise ForerunError(
            "engine.batch_wait_timeout_iters: limits the wait of prompts for batch_wait_max_tokens_ratio of "
            "max_num_batched_tokens; set both or neither"
        )
    if engine.batch_wait_timeout_iters and not (
        framework.startswith("trtllm") and hardware.attention_data_parallel == hardware.pipeline_parallel == 1
    ):
        raise ForerunError(
            f"engine.batch_wait_timeout_iters: TensorRT-LLM's, without attention groups and pipeline stages (got "
            f"engine.framework: {framework}); remove it"
        )
    streams = framework.startswith(("vllm", "sglang", "trtllm")) and engine.entry_point == "server"
    if engine.stream_interval > 1 and not streams:
        raise ForerunError(
            "engine.stream_interval: only servers of vLLM, SGLang and TensorRT-LLM stream several tokens at once; "
            "remove it"
        )
    if engine.api_server_count > 1 and not has_several_api_servers(framework, engine.entry_point):
        raise ForerunError("engine.api_server_count: only servers of vLLM and SGLang can have several; remove it")
    if engine.backend is not None:
        backends = local_backends(load_chip(scenario.hardware.chip)) if framework == "llama.cpp" else ()
        if engine.backend not in backends:
            raise ForerunError(
                f"engine.backend: only llama.cpp on Radeons before RDNA 4 has kernels of {engine.backend} (got "
                f"engine.framework: {framework} on {scenario.hardware.chip}); remove it"
            )
    if engine.flash_attention:
        return
    if not local:
        raise ForerunError(
            f"engine.flash_attention: {framework} has no attention without it; leave it true, or "
            f"choose engine.framework: llama.cpp"
        )
    if scenario.kv_cache_dtype in GGUF_BLOCKS:
        raise ForerunError(
            f"engine.flash_attention: llama.cpp needs it for a cache in {scenario.kv_cache_dtype}; "
            f"leave it true, or set kv_cache_dtype: fp16"
        )


def chained_cards(scenario: ScenarioFields) -> int:
    """Number of equal cards that each step passes through alone, one after the other: llama.cpp's split by layers."""
    return int(scenario.hardware.pipeline_parallel) if scenario.engine.framework in LOCAL_FRAMEWORKS else 1


def _refuse_layout(scenario: ScenarioFields) -> None:
    hardware, engine = scenario.hardware, scenario.engine
    if hardware.pipeline_parallel > chained_cards(scenario) and not engine.rules.pipelines:
        able = " or ".join(name for name, facts in SCHEDULERS.items() if facts.pipelines)
        raise ForerunError(
            f"hardware.pipeline_parallel: several batches in flight need engine.scheduler: {able} "
            f"(got {engine.scheduler})"
        )
    if engine.num_scheduler_steps > 1 and not engine.rules.multi_step:
        able = " or ".join(name for name, facts in SCHEDULERS.items() if facts.multi_step)
        raise ForerunError(
            f"engine.num_scheduler_steps: several steps between two looks at the queue need engine.scheduler: {able} "
            f"(got {engine.scheduler})"
        )
    if engine.num_scheduler_steps > 1 and hardware.attention_data_parallel > 1:
        raise ForerunError("engine.num_scheduler_steps: not modelled for attention groups; leave it at 1")
    if hardware.speculative_parallel > 1 and hardware.chips_per_replica > hardware.tensor_parallel:
        raise ForerunError(
            "hardware.speculative_parallel: two device groups hold whole layers; leave pipeline_parallel and "
            "attention_data_parallel at 1"
        )
    if hardware.pipeline_link is not None and hardware.pipeline_parallel == 1 and not hardware.layers_on:
        raise ForerunError("hardware.pipeline_link: there is one stage; set pipeline_parallel, or leave the link out")


def _refuse_budget(scenario: ScenarioFields) -> None:
    speculation, budget = scenario.speculation, scenario.engine.max_num_batched_tokens
    drafted = 0 if speculation is None or speculation.method == "none" else proposal(speculation).nodes
    needed = drafted + 1 + input_slots(speculation, scenario.engine.framework)
    if needed > budget:
        raise ForerunError(
            f"engine.max_num_batched_tokens: {budget} is less than the {needed} tokens that one sequence "
            f"verifies and drafts; raise it, or draft fewer"
        )


def _refuse_confidence(scenario: ScenarioFields) -> None:
    speculation, hardware = scenario.speculation, scenario.hardware
    if speculation is None or (named(speculation.policy).name != CONFIDENCE_BUDGET and speculation.method != GRAMMAR):
        return
    where = None
    if hardware.pipeline_parallel > 1 or hardware.attention_data_parallel > 1:
        where = "pipeline stages or attention groups"
    elif scenario.attention_speculation is not None:
        where = "attention_speculation"
    elif not scenario.engine.rules.continuous:
        where = f"engine.scheduler: {scenario.engine.scheduler}"
    if where is not None:
        field = "method: grammar" if speculation.method == GRAMMAR else f"policy: {CONFIDENCE_BUDGET}"
        raise ForerunError(f"speculation.{field} is not modelled with {where}")


def _refuse_policy(scenario: ScenarioFields, own_policy: bool) -> None:
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none" or scenario.hardware.pipeline_parallel == 1:
        return
    if own_policy or named(speculation.policy).name != "fixed":
        raise ForerunError("speculation.policy: with pipeline_parallel above 1 only 'fixed' is modelled")


def _refuse_chip(scenario: ScenarioFields) -> None:
    """Refuse features that the chip, its arithmetic or its links do not support."""
    hardware, engine = scenario.hardware, scenario.engine
    chip = load_chip(hardware.chip)
    others = (load_chip(name) for name in hardware.tensor_chips)
    if any(other.memory.capacity_bytes < chip.memory.capacity_bytes for other in others):
        raise ForerunError("hardware.tensor_chips: name the card with the least memory hardware.chip")
    if engine.samples_on is not None and not (load_framework(engine.framework).fixed_batch or chip.host.sequence_s):
        raise ForerunError(
            f"engine.samples_on: only Tenstorrent's software chooses between host and device, {chip.name} under "
            f"{engine.framework} does not; remove it"
        )
    if engine.moe_backend == "mxfp8" and not chip.compute.multiplies_fp4:
        raise ForerunError(f"engine.moe_backend: mxfp8 needs FP4 arithmetic, which {chip.name} lacks; leave it at auto")
    defaults = any(
        store.medium == "host" and None in (store.read_bytes_per_s, store.latency_s) for store in engine.kv_stores
    )
    copies = engine.preemption != "recompute" or engine.kv_offloading_bytes is not None or defaults
    if copies and not (engine.host_link or chip.links.host):
        raise ForerunError(f"engine.host_link: {chip.name} names no link to its host; give one, for example pcie5-x16")
    if scenario.kv_store is not None and not (scenario.kv_store.link or chip.links.scale_out):
        raise ForerunError(f"kv_store.link: {chip.name} names no scale-out link; give one")
    draft = None if scenario.speculation is None else scenario.speculation.draft
    links = chip.links.host or chip.links.scale_out
    if draft is not None and draft.chip is not None and not (draft.link or links):
        raise ForerunError(
            f"speculation.draft: link: chip '{chip.name}' names no host link; name one (forerun chips list)"
        )


def _refuse_host_memory(scenario: ScenarioFields) -> None:
    engine, staged = scenario.engine, scenario.hardware.pipeline_parallel > 1
    if engine.preemption != "recompute":
        if not engine.rules.swaps:
            raise ForerunError(f"engine.preemption: the {engine.scheduler} scheduler only recomputes; remove swap")
        if staged:
            raise ForerunError(
                "engine.preemption: replicas with pipeline stages only recompute; remove swap, or leave "
                "hardware.pipeline_parallel at 1"
            )
    if engine.eviction != LRU and not engine.enable_prefix_caching:
        raise ForerunError("engine.prefix_cache_eviction: enable_prefix_caching is false; set it to true, or remove it")
    field = "kv_stores" if engine.kv_stores else "kv_offloading_bytes"
    if _stores_on_host(engine) and not engine.enable_prefix_caching:
        raise ForerunError(
            f"engine.{field}: it keeps what the prefix cache evicts, and enable_prefix_caching is false; "
            f"set that to true, or remove {field}"
        )
    slow = scenario.kv_store is not None or any(
        (store.loads or store.medium) not in ("in-step", "host") for store in engine.kv_stores
    )
    if slow and not engine.rules.continuous:
        raise ForerunError(
            f"engine.scheduler: requests of a {engine.scheduler} batch cannot wait for a store outside the batch; "
            "leave only host memory with loads: in-step"
        )


def _stores_on_host(engine: EngineConfig) -> bool:
    """True if KV goes to memories of the server."""
    return engine.kv_offloading_bytes is not None or bool(engine.kv_stores)


def refuse_stream(stream: RequestStream, pools: Iterable[Pool]) -> None:
    """Refuse request streams that the pools cannot serve."""
    if not len(stream):
        raise ForerunError("workload: there is no request to serve")
    if stream.warm_up is not None and stream.warm_up.all():
        raise ForerunError("workload.warm_up: it takes in every request; shorten it, or serve more requests")
    hashes = stream.prefix_hashes
    for pool in pools:
        for setting in pool.evictions if stream.follows is None else ():
            if setting.rule.by_session:
                raise ForerunError(
                    f"engine.prefix_cache_eviction, kv_stores: {setting.name} is about sessions, and no request of "
                    "this workload waits for another; choose another policy, or give workload.sessions"
                )
        size = pool.limits.block_size
        if pool.shares_blocks(hashes) and hashes.block_tokens % size:
            raise ForerunError(
                f"engine.block_size: blocks of {size} tokens cannot cache prefix hashes of {hashes.block_tokens} "
                f"tokens; choose a divisor of it, or enable_prefix_caching: false"
            )


def check_layer_counts(architecture: Architecture, shares: Sequence[LayerShare], counts: Sequence[int]) -> None:
    """Check the number of layers that each of ``hardware.layers_on`` runs."""
    layers = architecture.num_layers
    whole = sum(count for count, share in zip(counts, shares, strict=True) if share.part == "layers")
    if whole >= layers or max(counts) > layers or min(counts) < 1:
        raise ForerunError(
            f"hardware.layers_on: {architecture.name} has {layers} layers, of which hardware.chip runs one at "
            f"least; others would run {whole}"
        )


def check_draft_chips(hardware: HardwareConfig) -> None:
    """Check the layout of a target whose drafter runs on separate chips."""
    if hardware.attention_data_parallel > 1:
        raise ForerunError(
            "speculation.draft.chip: a drafter on chips of its own is not modelled for attention groups; leave the "
            "chip out, or leave hardware.attention_data_parallel at 1"
        )


def check_draft_passes(drafter: timing.Drafter | None, method: str) -> None:
    """Check that a drafter can stop after any of its passes."""
    if not isinstance(drafter, timing.SequentialDrafter):
        raise ForerunError(
            f"speculation.policy: confidence-threshold needs sequential passes of a drafter on the target's chips; "
            f"{method} has none"
        )


def check_store(field: str, size: float, block_bytes: float, blocks: int) -> None:
    """Check that at least one block fits in a store of ``size`` bytes."""
    if not blocks:
        raise ForerunError(f"{field}: {size:g} holds no block of {block_bytes:g} bytes; raise it, or remove it")
