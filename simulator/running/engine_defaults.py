"""Engine defaults for fields that a scenario does not set: limits, batching rule, formats."""

from __future__ import annotations

import re
from contextlib import suppress
from math import inf
from sys import maxsize
from typing import Any

from pydantic import BaseModel

from forerun.errors import ForerunError
from hwprofiles import Chip, ProfileError, load_chip
from simulator.llm import load_architecture
from simulator.llm.load import catalogue_model
from simulator.llm.mixers import IndexedAttention
from simulator.serving.engine_config import EngineConfig
from simulator.serving.rules import SCHEDULERS
from simulator.speculation import SpeculationConfig
from simulator.speculation.proposal import proposal
from simulator.timing import HardwareConfig, load_framework
from simulator.timing.framework import engine_defaults
from simulator.timing.releases import framework_of_version, is_build

STATES_SHARE = 0.25
"""Default maximum share of the chips' memory for recurrent states (assumed)."""
LEAST_SEQS: int = EngineConfig.model_fields["max_num_seqs"].default
FRAMEWORKS = {"tenstorrent": "tt-metal"}
"""Engine by chip vendor, for vendors whose chips only one engine supports."""


def with_defaults(
    engine: EngineConfig,
    hardware: HardwareConfig,
    model: str | dict[str, Any],
    speculation: SpeculationConfig | None,
    pooled: bool = False,
) -> EngineConfig:
    """Fill unset fields of the section with the chip's framework, the set of its release, and the set's default values.

    Engines of ``pooled`` replicas take the newest set: images of fleets hold other collectives than the release's. The
    set of explicitly set fields is unchanged, so that a copy with a different chip gets that chip's defaults.
    """
    known = chosen_fields(engine)
    framework, chip = engine.framework, None
    with suppress(ProfileError):  # refused where the chip is needed
        chip = load_chip(hardware.chip)
        if "framework" not in known:
            framework = FRAMEWORKS.get(chip.vendor, framework)
    if engine.release is not None:
        if not is_build(engine.release):
            raise ValueError(
                f"engine.release: write a release such as 0.19.0, an image's tag, or nightly of 2026-02"
                f" (got '{engine.release}')"
            )
        framework = framework_of_version(framework, None if pooled else engine.release)
    name = catalogue_model(model) or "" if isinstance(model, str) else ""
    defaults = engine_defaults(framework, chip, engine.entry_point, engine.release, name)
    if not defaults and framework == engine.framework:
        return engine
    defaults = {**defaults, "framework": framework}
    scheduler = SCHEDULERS.get(defaults.get("scheduler", ""))
    if framework not in FRAMEWORKS.values() and scheduler is not None:
        several = hardware.pipeline_parallel > 1 and not scheduler.pipelines
        if several or (engine.preemption == "swap" and not scheduler.swaps):
            defaults.pop("scheduler")  # vLLM's, which can
    chosen = engine.scheduler if "scheduler" in known else defaults.get("scheduler", engine.scheduler)
    if "vllm" not in SCHEDULERS[chosen].flags:
        defaults.pop("scheduler_reserve_full_isl", None)
    if chip is not None and load_framework(framework).kv_share_of == "static":
        given = "max_num_batched_tokens" in known
        tokens = engine.max_num_batched_tokens if given else defaults["max_num_batched_tokens"]
        defaults["gpu_memory_utilization"] = sglang_share(framework, chip, hardware, tokens)
    if chip is not None and defaults.get("max_num_seqs", 0) > LEAST_SEQS and "max_num_seqs" not in known:
        if load_framework(framework).divides_limits:  # a limit that is set; the default holds for each group
            defaults["max_num_seqs"] *= hardware.attention_data_parallel
        memory = STATES_SHARE * chip.memory.capacity_bytes * hardware.chips_per_stage
        each = state_bytes(model, speculation)
        defaults["max_num_seqs"] = min(
            defaults["max_num_seqs"], max(LEAST_SEQS, int(memory / each)) if each else maxsize
        )
    own = {name: value for name, value in defaults.items() if name not in known or name == "framework"}
    return EngineConfig.model_construct(known, **{**dict(engine), **own})


def sglang_share(framework: str, chip: Chip, hardware: HardwareConfig, tokens: int) -> float:
    """Share of a chip's memory that SGLang uses for weights and KV, depending on the prompt tokens of a step.

    Source: SGLang 0.5, ``_handle_gpu_memory_settings`` of ``server_args.py``: MiB reserved for a step's prompts,
        captured graphs and their padding in each attention group, rounded to a share of three decimals.
    """
    capacity_gib, groups = chip.memory.capacity_bytes / 2**30, hardware.attention_data_parallel
    chips = hardware.chips_per_stage * hardware.pipeline_parallel
    graphs = load_framework(framework).on(chip, hardware.chips_per_stage).max_captured_tokens
    padding = (4.5 if graphs > 300 else 3.0) * graphs * groups if groups > 1 else 0.0
    kept = 512 + 1.5 * max(tokens, 2048) + 2 * graphs + chips / 8 * 1024 + padding
    if capacity_gib > 60:
        kept = max(kept, 10 * 1024)
    return max(0.01, round(1.0 - kept / 1024 / capacity_gib, 3))


def state_bytes(model: str | dict[str, Any], speculation: SpeculationConfig | None) -> float:
    """Bytes per sequence in addition to KV: recurrent states, one more for each draft token. Infinite if the drafter
    has a fixed-size cache per sequence; 0 for an unknown model."""
    drafts = speculation if speculation is not None and speculation.method != "none" else None
    if drafts is not None and drafts.draft is not None and drafts.draft.kv_tokens is not None:
        return inf
    with suppress(ForerunError):  # refused where the model is needed
        states = load_architecture(model).state_bytes_per_sequence
        return states * (1 + proposal(drafts).nodes) if drafts is not None and states else states
    return 0.0


def chosen_fields(section: BaseModel) -> set[str]:
    """Names of the fields that a scenario sets; a null field counts as not set."""
    return {name for name in section.model_fields_set if getattr(section, name) is not None}


def replaced_scheduler(engine: EngineConfig) -> str | None:
    """The framework's own scheduler if a different scheduler replaces it by default; else None."""
    own: str = engine_defaults(engine.framework).get("scheduler", engine.scheduler)
    return None if own == engine.scheduler or "scheduler" in chosen_fields(engine) else own


def _is_blackwell(chip: Chip) -> bool:
    return chip.vendor == "nvidia" and chip.compute.multiplies_fp4


def default_formats(engine: EngineConfig, model: str | dict[str, Any], chip: str) -> dict[str, Any]:
    """Formats in which an engine stores weights and KV cache if a scenario does not set them.

    Source: vLLM 0.11 ``attention/layer.py``, SGLang 0.5 ``configure_kv_cache_dtype``: a KV cache is in the format of
        the checkpoint's scales, if it has any. SGLang 0.5 ``_set_default_nsa_kv_cache_dtype``: latents that an indexer
        chooses from (DeepSeek-V3.2, GLM-5) are FP8 on Blackwell.
    """
    if not engine.framework.startswith(tuple(FRAMEWORKS.values())):
        plain = isinstance(model, dict) and not re.search("kv_cache|k_proj", str(model.get("quantization_config")))
        with suppress(ForerunError):  # refused where the model is needed
            scaled = None if plain else load_architecture(model).kv_cache_dtype
            if scaled is None and engine.framework.startswith("sglang") and _is_blackwell(load_chip(chip)):
                mixers = (group.layer.mixer for group in load_architecture(model).layer_groups)
                scaled = "fp8" if any(isinstance(mixer, IndexedAttention) for mixer in mixers) else None
            return {} if scaled is None else {"kv_cache_dtype": scaled}
        return {}
    framework = load_framework(engine.framework)
    name = catalogue_model(model) or "" if isinstance(model, str) else ""
    if name.startswith(framework.wide_attention):
        weights = {**(framework.weights_dtype or {}), "default": "bf16", "mlp": "bfp8"}
        return {"weights_dtype": weights, "kv_cache_dtype": "bf16"}
    return {"weights_dtype": framework.weights_dtype, "kv_cache_dtype": framework.kv_cache_dtype}
