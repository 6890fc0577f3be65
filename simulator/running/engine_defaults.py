"""What an engine sets by itself where a scenario does not: its limits, its batching rule, its formats."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from hwprofiles import ProfileError, load_chip
from simulator.serving.engine_config import EngineConfig
from simulator.timing import load_framework
from simulator.timing.framework import engine_defaults

FRAMEWORKS = {"tenstorrent": "tt-metal"}
"""Engine of the chips of a vendor that no other engine serves."""


def with_defaults(engine: EngineConfig, chip: str) -> EngineConfig:
    """The section with the framework of the chip, and the framework's own values, in fields that are not set.

    Fields that count as set stay the same, so that a copy with another chip gets that chip's defaults.
    """
    known = chosen_fields(engine)
    framework = engine.framework
    if "framework" not in known:
        with suppress(ProfileError):  # refused where the chip is needed
            framework = FRAMEWORKS.get(load_chip(chip).vendor, framework)
    defaults = engine_defaults(framework)
    if not defaults and framework == engine.framework:
        return engine
    defaults = {**defaults, "framework": framework}
    own = {name: value for name, value in defaults.items() if name not in known}
    return EngineConfig.model_construct(known, **{**dict(engine), **own})


def chosen_fields(section: BaseModel) -> set[str]:
    """Names of the fields that a scenario gives a value; null leaves a field to the engine."""
    return {name for name in section.model_fields_set if getattr(section, name) is not None}


def default_formats(engine: EngineConfig) -> dict[str, Any]:
    """Formats of weights and KV cache in which an engine stores them where a scenario names none."""
    if not engine.framework.startswith(tuple(FRAMEWORKS.values())):
        return {}
    framework = load_framework(engine.framework)
    return {"weights_dtype": framework.weights_dtype, "kv_cache_dtype": framework.kv_cache_dtype}
