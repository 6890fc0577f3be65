"""The ``hardware`` section of a scenario."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from simulator.settings import PositiveInt, Section


class HardwareConfig(Section):
    """The chips that serve the model and how the model is spread over them."""

    chip: str
    """Catalogue name or path of a chip profile."""
    tensor_parallel: PositiveInt = 1
    pipeline_parallel: PositiveInt = 1
    expert_parallel: PositiveInt = 1
    speculative_parallel: PositiveInt = 1
    """Device groups of attention-level speculation."""
    replicas: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Independent copies of the whole engine behind one router."""
    link: str | None = None
    """Link between the chips of a replica: catalogue name or path; default: the chip's own scale-up link."""
