"""Transformer architectures: a catalogue, any Hugging Face config.json, and the tensors that an engine runs."""

from simulator.llm.architecture import (
    Architecture,
    MtpModule,
    ParameterCount,
    architecture_summary,
    mtp_architecture,
)
from simulator.llm.draft_heads import DraftHead, HeadSizes, eagle3_head, eagle_head, parallel_head
from simulator.llm.hf_config import from_hf_config
from simulator.llm.layers import PARTS, Attention, DenseMlp, Layer, LayerGroup, MoeMlp, Part, Tensor
from simulator.llm.load import (
    PublishedParameters,
    architecture_aliases,
    architecture_names,
    load_architecture,
    published_parameters,
    published_repositories,
)
from simulator.llm.published_heads import PublishedHead, published_head, published_head_names, usual_head

__all__ = [
    "PARTS",
    "Architecture",
    "Attention",
    "DenseMlp",
    "DraftHead",
    "HeadSizes",
    "Layer",
    "LayerGroup",
    "MoeMlp",
    "MtpModule",
    "ParameterCount",
    "Part",
    "PublishedHead",
    "PublishedParameters",
    "Tensor",
    "architecture_aliases",
    "architecture_names",
    "architecture_summary",
    "eagle3_head",
    "eagle_head",
    "from_hf_config",
    "load_architecture",
    "mtp_architecture",
    "parallel_head",
    "published_head",
    "published_head_names",
    "published_parameters",
    "published_repositories",
    "usual_head",
]
