"""What an inference engine adds to the kernels: host time per step, captured graphs, reserved memory."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from hwprofiles import Chip
from simulator.errors import ForerunError, did_you_mean


class FrameworkSource(BaseModel):
    """Where a framework's figures come from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    reference: str
    date: str


class Framework(BaseModel):
    """Host costs and graph capture of one engine; times in seconds, sizes in bytes or tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    step_s: float = Field(ge=0)
    per_sequence_s: float = Field(ge=0)
    kernels_per_layer: int = Field(ge=0)
    eager_launch_s: float = Field(ge=0)
    max_captured_tokens: int = Field(ge=0)
    captured_multiple: int = Field(ge=1)
    reserved_bytes: float = Field(ge=0)
    source: FrameworkSource

    def padded_tokens(self, tokens: NDArray[np.int64], cuda_graphs: bool) -> NDArray[np.int64]:
        """Tokens that the linear layers really compute: padded to the next captured size where a graph is replayed.

        Source: vLLM's default capture list 1, 2, 4, 8, 16, 24, ... (``CompilationConfig.cudagraph_capture_sizes``).
        """
        if not cuda_graphs:
            return tokens
        multiple = self.captured_multiple
        padded = np.where(tokens <= 2, tokens, np.where(tokens <= 4, 4, -(-tokens // multiple) * multiple))
        return np.where(tokens <= self.max_captured_tokens, padded, tokens)

    def on(self, chip: Chip) -> Framework:
        """The same engine on a chip whose own software adds host time to every step and sequence."""
        host = chip.host
        return self.model_copy(
            update={"step_s": self.step_s + host.step_s, "per_sequence_s": self.per_sequence_s + host.sequence_s}
        )


@cache
def load_framework(name: str) -> Framework:
    """The catalogue's framework ``name``.

    Raises:
        ForerunError: no such framework.
    """
    text = resources.files("simulator.timing").joinpath("frameworks.yaml").read_text(encoding="utf-8")
    known = yaml.safe_load(text)
    if name not in known:
        raise ForerunError(
            f"engine.framework: no framework '{name}'{did_you_mean(name, known)} (one of {', '.join(known)})"
        )
    entry = dict(known[name])
    entry["source"] = {**entry["source"], "date": str(entry["source"]["date"])}
    return Framework(name=name, **entry)
