"""The ``hardware`` section of a scenario."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from forerun.types import PositiveInt, Replicas, Section
from hwprofiles import Chip, systems

SERVER_CHIPS, RACK_SCALE = 8, ("gh200", "gb200", "gb300", "rubin")
"""GPUs that one server's link connects (HGX, DGX, OAM baseboards), and prefixes of chips whose link spans a rack."""

Chips = Annotated[int, Field(gt=0, le=4096)]
"""Number of chips along one dimension of parallelism; bounded because tables grow with it."""


class LayerShare(Section):
    """Layers that another chip of the machine runs."""

    chip: str
    """Catalogue name or path of a chip profile: another card, or a CPU."""
    layers: PositiveInt | None = None
    """Number of layers; default: in proportion to the chip's share of the memory of all chips that run whole layers."""
    part: Literal["layers", "experts"] = "layers"
    """``layers``: whole layers, before the layers of ``hardware.chip`` (``--n-gpu-layers``, ``--tensor-split``).
    ``experts``: only the experts of the first layers (``--n-cpu-moe``)."""


class HardwareConfig(Section):
    """The chips that serve the model and how the model is spread over them."""

    chip: str
    """Catalogue name or path of a chip profile, or a system of several chips (t3000, quietbox, quietbox-blackhole,
    galaxy). A system sets the chip, and ``tensor_parallel`` and ``link`` unless they are set."""
    tensor_parallel: Chips = 1
    """Number of chips that share every layer's attention and dense matrices."""
    pipeline_parallel: Chips = 1
    """Number of stages that the layers are split into, each on separate chips."""
    expert_parallel: Chips = 1
    """Number of chips of a stage over which whole experts are spread; further chips split each expert. If experts do
    not divide evenly, leftover slots have second copies of popular experts."""
    attention_data_parallel: Chips = 1
    """Number of groups of ``tensor_parallel`` chips in a stage, each with all attention weights and its own sequences.
    The experts are spread over all groups. Each group has its own scheduler, token budget, KV cache and host work; all
    groups step together. ``engine.max_num_seqs``, ``max_num_batched_tokens`` and ``num_kv_blocks`` apply to one group,
    like the engines' flags; SGLang divides the first two among the groups."""
    expert_routing: str | None = None
    """Spread of tokens over experts: ``balanced``, ``uniform`` (each token picks at random), ``power-law-ALPHA``
    (NVIDIA's aiconfigurator measures 1.01 and 1.2), ``zipf-ALPHA`` (popular experts by rank; smooth in the batch) or
    ``identical`` (equal dummy tokens); default: the routing in the model's catalogue entry, else ``uniform``."""
    layers_on: list[LayerShare] = Field(default_factory=list)
    """llama.cpp: other chips of the machine that run some of the layers, one chip after the other. ``hardware.chip``
    runs the remaining layers and the LM head."""
    tensor_chips: list[str] = Field(default_factory=list)
    """llama.cpp: chips of ``tensor_parallel`` ranks 1, 2, ... if they differ from ``chip``, which must have the least
    memory. All ranks have equal shares, and the slowest rank determines the step time."""
    speculative_parallel: PositiveInt = 1
    """Number of device groups of attention-level speculation."""
    replicas: Replicas = 1
    """Number of independent copies of the whole engine behind one router."""
    power_limit_w: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Board power limit of every chip (``nvidia-smi -pl``), in watts. A limit lowers clocks and so compute; memory
    bandwidth hardly falls. Default: the chip's TDP."""
    link: str | None = None
    """Link between the chips of a replica: catalogue name or path; default: the chip's own scale-up link. If a stage
    has more chips than a server, the default is its scale-out link; chips of one server keep the scale-up link under a
    network."""
    pipeline_link: str | None = None
    """Link between pipeline stages: catalogue name or path; default: the link between the chips of a stage. If all
    stages together have more chips than a server, the default is the chip's scale-out link."""

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

    def default_link(self, chip: Chip, stages: int = 1) -> str | None:
        """Name of the link between the chips of ``stages`` stages if the scenario names none."""
        server = chip.kind == "gpu-datacenter" and chip.vendor in ("nvidia", "amd")
        if not server or chip.name.startswith(RACK_SCALE):
            return chip.links.scale_up
        linked = self.chips_per_stage * self.speculative_parallel * stages
        return chip.links.scale_up if linked <= SERVER_CHIPS else chip.links.scale_out or "infiniband-ndr"

    @property
    def chips_per_stage(self) -> int:
        """Number of chips of one pipeline stage."""
        return self.tensor_parallel * self.attention_data_parallel

    @property
    def chips_per_replica(self) -> int:
        """Number of chips of one copy of the engine."""
        return self.chips_per_stage * self.pipeline_parallel
