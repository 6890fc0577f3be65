"""What each Hugging Face model type implies beyond the fields of its config.json: ``hf_families.yaml``, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal, NamedTuple

from forerun.yaml_files import parse
from simulator.llm.layers import ActiveCounts, QkNorm


class Flag(NamedTuple):
    """A boolean that the config may state under ``key``."""

    key: str
    default: bool


class MoeNames(NamedTuple):
    """Fields in which a family states its experts."""

    experts: str
    width: str
    picked: str
    shared_count: str | None = None
    """Number of shared experts, each as wide as a routed one (or as ``shared_width`` says)."""
    shared_width: str | None = None
    """Width of one shared expert, or of all where there is no ``shared_count``."""


Moe = Literal["mixtral", "qwen", "deepseek", "llama4", "kimi", "step", "gemma4", "minimax-m3", "nemotron", "lfm2"]
Windows = Literal["none", "all", "upper", "alternate", "pattern", "chunked"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of one model type; a ``Flag`` is read from the config, a bool is fixed in the model's code."""

    tied: bool = False
    """``tie_word_embeddings`` where the config leaves it out."""
    head_dim: int | None = None
    """Default width of a head; None is hidden size over heads."""
    mla: bool = False
    qkv_bias: Flag | bool = False
    output_bias: Flag | bool = False
    qk_norm: QkNorm | None = None
    qk_norm_flag: Flag | None = None
    """Field that switches ``qk_norm``; None is always on."""
    sinks: bool = False
    norms: int = 2
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: Flag | bool = False
    moe: Moe | None = None
    router_bias: Flag | bool = False
    shared_gate: bool = False
    windows: Windows = "none"
    """Layers with a sliding window where the config has no ``layer_types``: none; all; those from ``max_window_layers``
    on if ``use_sliding_window``; every other from the first; all but every n-th; chunks but for layers without RoPE."""
    extra_positions: int | None = None
    """Rows of a learned position table beyond the longest context; None without such a table."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Field that holds what others call by the key."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Class defaults that published checkpoints rely on."""
    layers: str = "uniform"
    """How its layers are read: all alike but for windows and experts, or by a reader of ``hf_hybrid.READERS``."""
    active_counts: ActiveCounts = "without-embedding"
    """What the makers' count of active parameters covers (``Architecture.active_counts``)."""
    output_gate: Flag | bool = False
    inert: tuple[str, ...] = ()
    """Fields that may state a shape, but of nothing that this family's checkpoints hold."""


_FLAGS = ("qkv_bias", "output_bias", "qk_norm_flag", "mlp_bias", "router_bias", "output_gate")


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("simulator.llm").joinpath("hf_families.yaml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = parse(text)
    return tables


@cache
def known_family(model_type: str) -> Family | None:
    """Facts of a model type; None if it is not known here."""
    entry = _tables()["families"].get(model_type)
    if entry is None:
        return None
    stated = {name: value for name, value in entry.items() if name != "like"}
    for name in _FLAGS:
        if isinstance(stated.get(name), dict):
            ((key, default),) = stated[name].items()
            stated[name] = Flag(key, default)
    if "inert" in stated:
        stated["inert"] = tuple(stated["inert"])
    base = known_family(entry["like"]) if "like" in entry else Family()
    assert base is not None
    return replace(base, **stated)


def expert_fields(moe: Moe) -> MoeNames:
    """Fields in which a family states its experts."""
    return MoeNames(**_tables()["experts"][moe])


def why_refused(model_type: str) -> str | None:
    """Why a model type that would be misread as something else is not modelled; None for any other type."""
    return next((reason for reason, types in _tables()["refused"].items() if model_type in types), None)


def generic_family(latent: bool) -> Family:
    """A type not known here that has all of Llama's fields, and MLA where ``latent``."""
    llama = known_family("llama")
    assert llama is not None
    return replace(llama, windows="upper", mla=latent, qk_norm="head", qk_norm_flag=Flag("use_qk_norm", False))
