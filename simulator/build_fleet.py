"""From a scenario with pools or failures to the parts of its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hwprofiles import load_link
from simulator.assumptions import Assumptions, Factors
from simulator.build import BASIS_ORDER, Build, PoolBuild, at_field, build_cluster
from simulator.drafting import DrafterFactory
from simulator.errors import ForerunError
from simulator.scenario import Scenario, overridden_section
from simulator.serving import Faults, Fleet, KvLink, KvTransferConfig, Pool
from simulator.serving.fleet_config import Role
from simulator.speculation import PolicyFactory

HANDS_ON_FIRST_TOKEN = {"sglang": True, "trtllm": True, "vllm": False, "generic": True}
"""Whether a framework's prefill engine delivers the first token. vLLM's does not: its decode engine computes the last
prompt token again ("Disaggregated Prefilling" in its documentation; ``kv_connector`` of v0.9 to v0.11)."""

SLOW = "failures and prompts handed between pools are beyond the fast path: every step was simulated one by one"


def build_run(
    scenario: Scenario,
    seed: int,
    make_drafter: DrafterFactory | None = None,
    make_policy: PolicyFactory | None = None,
    factors: Factors | None = None,
) -> Build:
    """The parts of a run of any scenario.

    Args:
        scenario, seed, make_drafter, make_policy, factors: as ``build_cluster``.

    Raises:
        ForerunError: something does not fit or is not modelled.
        hwprofiles.ProfileError: unknown or faulty chip or link.
    """
    if scenario.pools is None and scenario.faults is None:
        return build_cluster(scenario, seed, make_drafter, make_policy, factors)

    def build_alone(part: Scenario) -> Build:
        return build_cluster(part, seed, make_drafter, make_policy, factors)

    parts = [_build_pool(scenario, name, build_alone) for name in scenario.pools or ("all",)]
    pools = tuple(part.pools[0] for part in parts)
    replicas = sum(pool.replicas for pool in pools)
    for event in scenario.faults.events if scenario.faults is not None else ():
        if event.replica >= replicas:
            raise ForerunError(
                f"faults.events: there is no replica {event.replica}; they are numbered 0 to {replicas - 1}"
            )
    fleet = Fleet(
        pools=tuple(_pool(pool) for pool in pools),
        routing=scenario.engine.routing,
        router=scenario.router,
        decode_routing=(scenario.kv_transfer or KvTransferConfig()).routing,
        links=_links(scenario, pools, Assumptions(factors or {})),
        faults=Faults(scenario.faults, seed) if scenario.faults is not None else None,
    )
    main = next(part for part in parts if part.pools[0].role != "prefill")
    notes = [note for part in parts for note in part.notes]
    if not fleet.fast and any(part.fast and part.cluster.stepping == "fast" for part in parts):
        notes.append(SLOW)
    return Build(
        cluster=main.cluster,
        memory=main.memory,
        basis=max((part.basis for part in parts), key=BASIS_ORDER.index),
        chips=sum(part.chips for part in parts),
        notes=tuple(dict.fromkeys(notes)),
        pools=pools,
        fleet=fleet,
        groups=main.groups,
    )


def _build_pool(scenario: Scenario, name: str, build_alone: Callable[[Scenario], Build]) -> Build:
    """One pool as if it stood alone."""
    changes: dict[str, Any] = {"pools": None, "faults": None, "kv_transfer": None}
    role: Role = "both"
    usd = scenario.prices.usd_per_chip_hour if scenario.prices is not None else None
    if scenario.pools is not None:
        pool = scenario.pools[name]
        role, usd = pool.role, pool.usd_per_chip_hour or usd
        changes |= {section: overridden_section(scenario, name, section) for section in ("hardware", "engine")}
    try:
        alone = scenario.model_copy(update=changes)
        if alone.hardware.pipeline_parallel > 1:
            _refuse_pipeline(scenario, role)
        build = build_alone(alone)
    except ForerunError as error:
        raise ForerunError(f"pools.{name}: {error}" if scenario.pools is not None else str(error)) from None
    if role != "both" and build.cluster.offload is not None:
        raise ForerunError(
            f"pools.{name}.engine.kv_offloading_bytes: not modelled where prefill and decode are apart; remove it, or "
            f"give every pool the role both"
        )
    if role != "both" and build.cluster.scheduler == "static":
        raise ForerunError(f"pools.{name}.engine.scheduler: a static batch cannot share requests with another pool")
    return replace(build, pools=(replace(build.pools[0], name=name, role=role, usd_per_chip_hour=usd),))


def _pool(build: PoolBuild) -> Pool:
    return replace(build.cluster.pool(build.name), role=build.role)


def _refuse_pipeline(scenario: Scenario, role: Role) -> None:
    """Refuse what a replica with batches in flight cannot do.

    Raises:
        ForerunError: the field, and what would be right.
    """
    if role != "both":
        raise ForerunError(
            f"hardware.pipeline_parallel: a {role} pool hands KV over between whole steps and needs 1; spread its "
            f"model by tensor_parallel"
        )
    if scenario.faults is not None:
        raise ForerunError(
            "hardware.pipeline_parallel: failures are modelled for replicas without pipeline stages; leave it at 1, or "
            "remove faults"
        )


def _links(scenario: Scenario, pools: tuple[PoolBuild, ...], assumed: Assumptions) -> dict[tuple[str, str], KvLink]:
    """What carries KV between each prefill pool and each decode pool."""
    config = scenario.kv_transfer or KvTransferConfig()
    found = {}
    for source in (pool for pool in pools if pool.role == "prefill"):
        name = config.link or source.chip.links.scale_out
        if name is None:
            raise ForerunError(f"kv_transfer.link: {source.chip.name} names no scale-out link; give one")
        with at_field("kv_transfer.link"):
            link = assumed.link(load_link(name))
        assert link is not None
        for target in (pool for pool in pools if pool.role == "decode"):
            links = config.links or min(source.chips, target.chips)
            found[source.name, target.name] = KvLink(
                latency_s=link.latency_s,
                bandwidth_bytes_per_s=links * link.bandwidth_bytes_per_s,
                bytes_per_token=source.memory.replica_kv_bytes_per_token,
                samples_first=_samples_first(config, scenario.engine.framework),
            )
    return found


def _samples_first(config: KvTransferConfig, framework: str) -> bool:
    if config.first_token is not None:
        return config.first_token == "prefill"
    return HANDS_ON_FIRST_TOKEN.get(framework, True)
