"""Host memory beside a replica: for preempted sequences, and for what the prefix cache evicts."""

from __future__ import annotations

from hwprofiles import Chip, Link, ProfileError, load_link
from simulator.assumptions import Assumptions
from simulator.errors import ForerunError
from simulator.scenario import Scenario
from simulator.serving import OffloadSpace, SwapSpace
from simulator.timing import MemoryPlan


def swap_space(scenario: Scenario, chip: Chip, memory: MemoryPlan, assumed: Assumptions) -> SwapSpace | None:
    """Host memory for preempted sequences; None where they are computed again.

    Attention groups swap beside one another, each over its own chips' links.

    Raises:
        ForerunError: no link to the host is known, or these replicas do not swap.
    """
    engine, groups = scenario.engine, scenario.hardware.attention_data_parallel
    if engine.preemption == "recompute":
        return None
    if engine.scheduler != "vllm-v1":
        raise ForerunError(f"engine.preemption: the {engine.scheduler} scheduler only recomputes; remove swap")
    if scenario.hardware.pipeline_parallel > 1:
        raise ForerunError(
            "engine.preemption: replicas with pipeline stages only recompute; remove swap, or leave "
            "hardware.pipeline_parallel at 1"
        )
    link = _host_link(scenario, chip, assumed)
    block_bytes = memory.kv_bytes_per_token * memory.block_size
    return SwapSpace(
        num_blocks=groups * int(engine.swap_space_bytes // block_bytes),
        block_s=block_bytes / link.bandwidth_bytes_per_s / groups,
        latency_s=link.latency_s,
    )


def _host_link(scenario: Scenario, chip: Chip, assumed: Assumptions) -> Link:
    """The link between each chip and its host.

    Raises:
        ForerunError: none is known.
    """
    name = scenario.engine.host_link or chip.links.host
    if name is None:
        raise ForerunError(f"engine.host_link: {chip.name} names no link to its host; give one, for example pcie5-x16")
    try:
        link = assumed.link(load_link(name))
    except ProfileError as error:
        raise ProfileError(f"engine.host_link: {error}") from None
    assert link is not None
    return link


def offload_space(scenario: Scenario, chip: Chip, memory: MemoryPlan, assumed: Assumptions) -> OffloadSpace | None:
    """Host memory for what the prefix cache evicts; None where it is lost.

    Raises:
        ForerunError: nothing is cached, host memory holds no block, no link to the host is known, or these replicas
            cannot wait for copies.
    """
    engine, groups = scenario.engine, scenario.hardware.attention_data_parallel
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
    link = _host_link(scenario, chip, assumed)
    block_bytes = memory.kv_bytes_per_token * memory.block_size
    blocks = groups * int(engine.kv_offloading_bytes // block_bytes)
    if not blocks:
        raise ForerunError(
            f"engine.kv_offloading_bytes: {engine.kv_offloading_bytes:g} holds no block of {block_bytes:g} bytes; "
            f"raise it, or remove it"
        )
    return OffloadSpace(blocks, block_bytes / link.bandwidth_bytes_per_s / groups, link.latency_s)
