"""The ``hardware`` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.types import PositiveInt, Replicas, Section
from hwprofiles import systems

Chips = Annotated[int, Field(gt=0, le=4096)]
"""Number of chips along one dimension of parallelism; bounded because tables grow with it."""


class LayerShare(Section):
    """Layers that another chip of the machine runs."""

    chip: str
    """Catalogue name or path of a chip profile: another card, or a CPU."""
    layers: PositiveInt | None = None
    """Number of layers; default: in proportion to the chip's share of the memory of all chips that run whole layers."""
    part: Literal["layers", "experts"] = "layers"
    """``layers``: whole ones, before those of ``hardware.chip`` (``--n-gpu-layers``, ``--tensor-split``). ``experts``:
    those of the first layers, whose attention stays (``--n-cpu-moe``)."""


class HardwareConfig(Section):
    """The chips that serve the model and how the model is spread over them."""

    chip: str
    """Catalogue name or path of a chip profile, or a system of several chips (t3000, quietbox, quietbox-blackhole,
    galaxy). A system sets the chip, ``tensor_parallel`` and ``link`` where they are not set."""
    tensor_parallel: Chips = 1
    """Chips that share every layer's attention and dense matrices."""
    pipeline_parallel: Chips = 1
    """Stages that the layers are split into, each on chips of its own."""
    expert_parallel: Chips = 1
    """Chips of a stage over which whole experts are spread; the rest of the stage's chips split each expert. If experts
    do not divide evenly, leftover places hold second copies of popular experts."""
    attention_data_parallel: Chips = 1
    """Groups of ``tensor_parallel`` chips in a stage that each hold all of attention and serve sequences of their own.
    The experts are spread over all of them. Each group has its own scheduler, token budget, KV cache and host work, and
    steps with the others. ``engine.max_num_seqs``, ``max_num_batched_tokens`` and ``num_kv_blocks`` are those of one
    group, as the engines' flags are; SGLang divides the first two among the groups."""
    expert_routing: str | None = None
    """Spread of tokens over experts: ``balanced``, ``uniform`` (each token picks at random), ``power-law-ALPHA``
    (NVIDIA's aiconfigurator measures 1.01 and 1.2), ``zipf-ALPHA`` (popular experts by rank; smooth in the batch) or
    ``identical`` (dummy tokens that are all alike); default: the routing in the model's catalogue entry, else
    ``uniform``."""
    layers_on: list[LayerShare] = Field(default_factory=list)
    """llama.cpp: other chips of the machine that run some of the layers, one chip after the other. ``hardware.chip``
    runs the rest, and the LM head."""
    tensor_chips: list[str] = Field(default_factory=list)
    """llama.cpp: chips of the other ``tensor_parallel`` ranks if they differ from ``chip``, which must have the least
    memory. All ranks have equal shares, and the slowest sets the pace."""
    speculative_parallel: PositiveInt = 1
    """Device groups of attention-level speculation."""
    replicas: Replicas = 1
    """Independent copies of the whole engine behind one router."""
    power_limit_w: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Board power limit of every chip (``nvidia-smi -pl``), in watts. It lowers clocks and so compute; memory bandwidth
    hardly falls. Default: the chip's TDP."""
    link: str | None = None
    """Link between the chips of a replica: catalogue name or path; default: the chip's own scale-up link."""
    pipeline_link: str | None = None
    """Link between pipeline stages: catalogue name or path; default: the link between the chips of a stage."""

    @model_validator(mode="before")
    @classmethod
    def _of_system(cls, data: Any) -> Any:
        name = data.get("chip") if isinstance(data, dict) else None
        system = systems().get(name) if isinstance(name, str) else None
        return data if system is None else {**system, **data, "chip": system["chip"]}

    @model_validator(mode="after")
    def _one_way_to_split(self) -> HardwareConfig:
        for name in ("layers_on", "tensor_chips"):
            others = ["pipeline_parallel", "expert_parallel", "attention_data_parallel", "speculative_parallel"]
            others += ["tensor_parallel"] if name == "layers_on" else []
            taken = next((other for other in others if getattr(self, other) > 1), None)
            if getattr(self, name) and taken is not None:
                raise ValueError(f"{name}: not modelled beside {taken}; leave that at 1")
        if self.tensor_chips and len(self.tensor_chips) != self.tensor_parallel - 1:
            raise ValueError(
                f"tensor_chips: names the {self.tensor_parallel - 1} ranks beside chip (got {len(self.tensor_chips)})"
            )
        experts = [share for share in self.layers_on if share.part == "experts"]
        if len(experts) > 1 or any(share.layers is None for share in experts):
            raise ValueError("layers_on: give part: experts once, with how many layers' experts run there")
        return self

    @property
    def chips_per_stage(self) -> int:
        """Chips that hold one pipeline stage."""
        return self.tensor_parallel * self.attention_data_parallel

    @property
    def chips_per_replica(self) -> int:
        """Chips of one copy of the engine."""
        return self.chips_per_stage * self.pipeline_parallel
