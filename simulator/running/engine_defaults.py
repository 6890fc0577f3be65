"""What an engine sets by itself where a scenario does not: its limits, its batching rule, its formats."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from hwprofiles import Chip, ProfileError, load_chip
from simulator.serving.engine_config import EngineConfig
from simulator.serving.rules import SCHEDULERS
from simulator.timing import HardwareConfig, load_framework
from simulator.timing.framework import engine_defaults

FRAMEWORKS = {"tenstorrent": "tt-metal"}
"""Engine of the chips of a vendor that no other engine serves."""
STEP_TOKENS: int = EngineConfig.model_fields["max_num_batched_tokens"].default
SGLANG_STEPS = ((35, 2048), (60, 4096))
"""GiB of a chip's memory, and the prompt tokens that a step of SGLang holds by default below it."""


def with_defaults(engine: EngineConfig, hardware: HardwareConfig) -> EngineConfig:
    """The section with the framework of the chip, and the framework's own values, in fields that are not set.

    Fields that count as set stay the same, so that a copy with another chip gets that chip's defaults.
    """
    known = chosen_fields(engine)
    framework, chip = engine.framework, None
    with suppress(ProfileError):  # refused where the chip is needed
        chip = load_chip(hardware.chip)
        if "framework" not in known:
            framework = FRAMEWORKS.get(chip.vendor, framework)
    defaults = engine_defaults(framework)
    if not defaults and framework == engine.framework:
        return engine
    defaults = {**defaults, "framework": framework}
    scheduler = SCHEDULERS.get(defaults.get("scheduler", ""))
    if framework not in FRAMEWORKS.values() and scheduler is not None:
        several = hardware.pipeline_parallel > 1 and not scheduler.pipelines
        if several or (engine.preemption == "swap" and not scheduler.swaps):
            defaults.pop("scheduler")  # vLLM's, which can
    if chip is not None and load_framework(framework).kv_share_of == "static":
        given = engine.max_num_batched_tokens if "max_num_batched_tokens" in known else None
        defaults |= sglang_limits(framework, chip, hardware, given)
    own = {name: value for name, value in defaults.items() if name not in known}
    return EngineConfig.model_construct(known, **{**dict(engine), **own})


def sglang_limits(framework: str, chip: Chip, hardware: HardwareConfig, step_tokens: int | None) -> dict[str, Any]:
    """Prompt tokens of a step (of all attention groups), and the share of a chip's memory for weights and KV, that
    SGLang sets by itself; ``step_tokens`` where they are given.

    Source: SGLang 0.5, ``_handle_gpu_memory_settings`` of ``server_args.py``: MiB kept for a step's prompts, captured
        graphs and their padding in each attention group, rounded to a share of three decimals.
    """
    capacity_gib, groups = chip.memory.capacity_bytes / 2**30, hardware.attention_data_parallel
    tokens = step_tokens or next((most for gib, most in SGLANG_STEPS if capacity_gib < gib), STEP_TOKENS)
    chips = hardware.chips_per_stage * hardware.pipeline_parallel
    graphs = load_framework(framework).on(chip, hardware.chips_per_stage).max_captured_tokens
    padding = (4.5 if graphs > 300 else 3.0) * graphs * groups if groups > 1 else 0.0
    kept = 512 + 1.5 * max(tokens, 2048) + 2 * graphs + chips / 8 * 1024 + padding
    if capacity_gib > 60:
        kept = max(kept, 10 * 1024)
    return {
        "max_num_batched_tokens": tokens,
        "gpu_memory_utilization": max(0.01, round(1.0 - kept / 1024 / capacity_gib, 3)),
    }


def chosen_fields(section: BaseModel) -> set[str]:
    """Names of the fields that a scenario gives a value; null leaves a field to the engine."""
    return {name for name in section.model_fields_set if getattr(section, name) is not None}


def replaced_scheduler(engine: EngineConfig) -> str | None:
    """The framework's own scheduler where another stands in for it that the scenario does not choose; else None."""
    own: str = engine_defaults(engine.framework).get("scheduler", engine.scheduler)
    return None if own == engine.scheduler or "scheduler" in chosen_fields(engine) else own


def default_formats(engine: EngineConfig) -> dict[str, Any]:
    """Formats of weights and KV cache in which an engine stores them where a scenario names none."""
    if not engine.framework.startswith(tuple(FRAMEWORKS.values())):
        return {}
    framework = load_framework(engine.framework)
    return {"weights_dtype": framework.weights_dtype, "kv_cache_dtype": framework.kv_cache_dtype}
