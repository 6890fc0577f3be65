"""Facts of Hugging Face model types beyond the fields of a config.json, and fields that may be ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from forerun.yaml_files import packaged
from simulator.llm.fields import Fields, shown_value
from simulator.llm.layers import ActiveCounts, QkNorm


class Flag(NamedTuple):
    """A boolean that the config may state under ``key``."""

    key: str
    default: bool


NORM_FLAG = Flag("use_qk_norm", True)


class MoeNames(NamedTuple):
    """Fields in which a family states its experts."""

    experts: str
    width: str
    picked: str
    shared_count: str | None = None
    """Field with the number of shared experts, each as wide as a routed expert (or ``shared_width``)."""
    shared_width: str | None = None
    """Width of one shared expert, or of all if there is no ``shared_count``."""
    dense_width: str | None = None
    """Field with the width of layers without experts, for families with a separate field."""
    latent_width: str | None = None
    """Field with the width of the projection that the experts read, for families that may have one."""


Moe = (
    Literal["mixtral", "qwen", "deepseek", "llama4", "kimi", "step", "gemma4", "minimax-m3", "nemotron"]
    | Literal["lfm2", "ernie", "hunyuan", "granite"]
)
Windows = Literal["none", "all", "upper", "alternate", "pattern", "chunked"]


@dataclass(frozen=True, slots=True)
class Family:
    """Facts of one model type; a ``Flag`` is read from the config, a bool is fixed in the model's code."""

    tied: bool = False
    """True if embeddings are tied by default, that is, without ``tie_word_embeddings`` in the config."""
    head_dim: int | None = None
    """Default width of a head; None is hidden size over heads."""
    mla: bool = False
    qkv_bias: Flag | bool = False
    output_bias: Flag | bool = False
    qk_norm: QkNorm | None = None
    qk_norm_flag: Flag = NORM_FLAG
    """Field that switches ``qk_norm`` in a family that has one."""
    sinks: bool = False
    norms: int = 2
    norm_bias: bool = False
    gated: bool = True
    mlp_bias: Flag | bool = False
    moe: Moe | None = None
    router_bias: Flag | bool = False
    shared_gate: bool = False
    windows: Windows = "none"
    """Layers with a sliding window if the config has no ``layer_types``. None; all; from ``max_window_layers`` on if
    ``use_sliding_window``; every other, from the first; all but every n-th; chunks except in layers without RoPE."""
    extra_positions: int | None = None
    """Rows of a learned position table beyond the longest context; None without such a table."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Usual field name -> this family's name for it."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Class defaults that published checkpoints rely on."""
    layers: str = "uniform"
    """Reader of the layers: equal except windows and experts, or one of ``hf_hybrid.READERS``."""
    active_counts: ActiveCounts = "without-embedding"
    """Tables in the makers' count of active parameters (``Architecture.active_counts``)."""
    output_gate: Flag | bool = False
    inert: tuple[str, ...] = ()
    """Fields with a shape of something that this family's checkpoints do not contain."""
    refused: str = ""
    """Reason why models of this type are not supported; empty if they are."""


@cache
def known_family(model_type: str) -> Family | None:
    """The family of a model type in ``hf_families.yaml``; None if it has no such type."""
    facts = packaged("simulator.llm", "hf_families.yaml").get(model_type)
    if facts is None:
        return None
    base = known_family(facts["like"]) if "like" in facts else Family()
    assert base is not None
    return replace(base, **{name: _fact(value) for name, value in facts.items() if name != "like"})


def moe_names(moe: Moe) -> MoeNames:
    """Names of the fields in which MoE families state their experts."""
    return MoeNames(**_names()["experts"][moe])


def mixer_sizes(fields: Fields, layers: str) -> dict[str, Any]:
    """Sizes of a token mixer, read from the config fields that ``hf_names.yaml`` names."""
    return {size: fields.whole(key) for size, key in _names()["mixers"][layers].items()}


def text_type(model_type: str) -> str:
    """Type of a model's text part if ``text_config`` does not state it."""
    return str(_names()["text_types"].get(model_type, model_type))


def refuse_unread(fields: Fields) -> None:
    """Refuse a field that may state a shape and that no reader requested.

    Raises:
        ForerunError: naming the first such field.
    """
    for key, value in fields.values.items():
        if key not in fields.seen and not _says_nothing(value) and _may_shape(key):
            fields.fail(
                key,
                f"({shown_value(value)}) may change the shape of layers, and Forerun does not know it for this model; "
                "remove it if it does not",
            )


def _fact(value: Any) -> Any:
    if isinstance(value, dict) and all(isinstance(default, bool) for default in value.values()):
        return Flag(*next(iter(value.items())))
    return tuple(value) if isinstance(value, list) else value


@cache
def _names() -> dict[str, Any]:
    names = dict(packaged("simulator.llm", "hf_names.yaml"))
    for key in ("shape_words", "inert", "inert_endings", "other_beginnings", "media"):
        names[key] = names[key].split()
    names["ignored"] = re.compile(
        rf"_({'|'.join(names['inert_endings'])})$|^({'|'.join(names['other_beginnings'])})"
        rf"|(^|_)({'|'.join(names['media'])})(_|$)"
    )
    return names


def _may_shape(key: str) -> bool:
    names = _names()
    if key in names["inert"] or names["ignored"].search(key):
        return False
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower())
    return not set(words).isdisjoint(names["shape_words"])


def _says_nothing(value: object) -> bool:
    return value is None or value is False or (not isinstance(value, bool) and value in (0, "", [], {}))
