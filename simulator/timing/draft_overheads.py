"""Host time that drafting adds beside its kernels, by method and engine."""

from __future__ import annotations

from functools import cache
from importlib import resources

from pydantic import BaseModel, ConfigDict, Field

from forerun.yaml_files import parse
from hwprofiles import Source
from simulator.errors import ForerunError, did_you_mean


class DraftOverhead(BaseModel):
    """Host seconds of one method in one engine that no kernel hides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_s: float = Field(default=0.0, ge=0)
    """Per step that drafts."""
    pass_s: float = Field(default=0.0, ge=0)
    """Per sequential pass."""
    per_sequence_s: float = Field(default=0.0, ge=0)
    """Per drafting sequence and step; of a look-up on the host, its own time."""
    per_context_token_s: float = Field(default=0.0, ge=0)
    """Per context token scanned in each step: look-ups on the host."""
    source: Source


VLLM_2025 = "vllm-2025"
"""Entry of vLLM's drafters before their passes were captured (July 2025)."""


@cache
def load_draft_overhead(framework: str, method: str) -> DraftOverhead:
    """The engine's entry for a method, or that of any engine.

    Raises:
        ForerunError: no such method.
    """
    text = resources.files("simulator.timing").joinpath("draft_overheads.yaml").read_text(encoding="utf-8")
    entries = parse(text)
    row = entries.get(framework, {}).get(method, entries["default"].get(method))
    if row is None:
        known = list(entries["default"])
        raise ForerunError(
            f"speculation.method: no drafter '{method}'{did_you_mean(method, known)} (one of {', '.join(known)})"
        )
    return DraftOverhead.model_validate(row)
