"""Names of published checkpoints: the catalogue's model, and the formats that the name's endings state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from forerun.yaml_files import packaged
from hwprofiles.dtypes import DTYPES, GGUF_BLOCKS, dtype_bytes
from simulator.llm.architecture import Architecture
from simulator.llm.layers import PARTS

UNQUANTISED_PARTS = ("embedding", "lm_head", "router", "norm")
"""Parts that quantised checkpoints leave in 16 bits (AutoGPTQ, AutoAWQ and llm-compressor defaults)."""
FOUR_BIT_FLOATS = ("fp4", "mxfp4", "nvfp4a16")
_FILE_TYPE = re.compile(r"[-.]((?:ud-)?i?q\d_[a-z0-9_]+|bf16|f16)-gguf$|(?:-gguf)?:([a-z0-9_-]+)$")
"""File type of a GGUF repository: the tag that llama.cpp and vLLM take, or a part of the name."""


class NamedCheckpoint(NamedTuple):
    """Catalogue model and formats that the name of a published checkpoint means."""

    model: str
    formats: tuple[str, ...] | None
    """Formats that the weights may have; None where the name states none, empty where it is none that Forerun has."""
    kv_cache_dtype: str | None
    readable: bool
    """True if the name means one model in one format."""

    @property
    def weights_dtype(self) -> str | None:
        """The format of the weights; None where the name states none."""
        return self.formats[0] if self.formats else None


def named_checkpoint(text: str, models: Mapping[str, str]) -> NamedCheckpoint | None:
    """Read a published name; None where it is of no model of the catalogue.

    Args:
        text: a repository such as ``RedHatAI/Qwen3-32B-FP8-dynamic`` or ``unsloth/Qwen3-8B-GGUF:Q4_K_M``; in results
            also a name in words, such as "LLaMA v3.1 8B".
        models: catalogue model by name and repository, in lower case, with and without owner.
    """
    removed: list[Mapping[str, Any]] = []
    for rest, ending in _shortened(text):
        removed.append(ending)
        for spelling, same in _spellings(rest, models):
            if spelling in models:
                formats, kv = _common(text, removed), next((row["kv"] for row in removed if "kv" in row), None)
                same = same and not any(row.get("loose") for row in removed)
                return NamedCheckpoint(models[spelling], formats, kv, same and (formats is None or len(formats) == 1))
    return None


def stated_formats(text: str) -> tuple[str, ...]:
    """Formats that a name may mean, whatever its model; empty where it states none."""
    return _common(text, [ending for _, ending in _shortened(text)]) or ()


def weight_dtypes(architecture: Architecture, name: str) -> dict[str, str]:
    """Dtype of every part where the layers' matrices are in one format, or in a file type of llama.cpp.

    Four-bit floats are those of the published checkpoints, which may keep parts wider (``kept_wider``).
    """
    if name in GGUF_BLOCKS or name not in DTYPES:
        from simulator.llm.gguf_file import recipe_dtypes

        recipe = recipe_dtypes(architecture, name)
        if recipe is not None:
            return {part: recipe[part] for part in PARTS}
    wide = dtype_bytes(name) >= 2
    dtypes = {part: name if wide or part not in UNQUANTISED_PARTS else "bf16" for part in PARTS}
    return dtypes | kept_wider(architecture.name, name)


def kept_wider(model: str, name: str) -> dict[str, str]:
    """Formats of the parts that published checkpoints of a catalogue model keep wider than ``name``."""
    rows = packaged("simulator.llm", "published_models.yaml")["kept_wider"] if name in FOUR_BIT_FLOATS else []
    return next((row["parts"] for row in rows if re.fullmatch(row["models"], model)), {})


def requantised(architecture: Architecture, name: str) -> str | dict[str, str]:
    """Format of a model that others converted, as ``weights_dtype`` says it. Of a model with parts in 4 bits, a format
    of 4 bits takes the place of these alone, and FP8 of a model in FP8 is its makers' own.

    Source: layers excluded in amd/Kimi-K2.5-MXFP4 (ROCm/ATOM#167, of its predecessor), nvidia/Kimi-K2.6-NVFP4 and
        nvidia/DeepSeek-V4-Flash-NVFP4 (hf_quant_config.json): all but the routed experts, as their makers do.
    """
    own = architecture.checkpoint_dtypes
    if name == "fp8" and "fp8_block" in own.values():
        return {}
    narrow = [part for part, dtype in own.items() if dtype_bytes(dtype) < 1]
    return dict.fromkeys(narrow, name) if narrow and name in DTYPES and dtype_bytes(name) < 1 else name


def with_formats(architecture: Architecture, text: str, checkpoint: NamedCheckpoint) -> Architecture:
    """The catalogue's model in the formats of a published checkpoint, with a note that says what was taken."""
    dtype, kv, dtypes = checkpoint.weights_dtype, checkpoint.kv_cache_dtype, dict(architecture.checkpoint_dtypes)
    note = f"'{text}' is read as {architecture.name}, weights {f'in {dtype}' if dtype else 'as published'}"
    if dtype is not None:
        taken = requantised(architecture, dtype)
        own = {part: "mxfp4" for part, stored in dtypes.items() if stored == "mxfp4" and "gguf" in text.lower()}
        dtypes |= (weight_dtypes(architecture, taken) if isinstance(taken, str) else taken) | own  # GGUF files keep it
        if dtype.startswith("mlx"):  # mlx.core.quantize converts embedding and LM head too
            dtypes |= dict.fromkeys(("embedding", "lm_head"), dtype)
    note += f" and a KV cache in {kv}" if kv else ""
    if dtype in DTYPES and dtype_bytes(dtype) < 2:
        kept = ", ".join(f"{part} in {wider}" for part, wider in kept_wider(architecture.name, dtype).items())
        note += f", {kept} as in NVIDIA's checkpoint" if kept else "; its config.json says which layers stay wider"
    return replace(architecture, checkpoint_dtypes=dtypes, kv_cache_dtype=kv, notes=(note, *architecture.notes))


def _shortened(text: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A name, and the rest of it after each ending that is removed, from the last, with the ending's row."""
    word = _word(text)
    yield word, {}
    if file_type := _FILE_TYPE.search(word):
        from simulator.llm.gguf_file import recipe_of

        name = file_type[1] or file_type[2]
        word = word[: file_type.start()]
        yield word, {"formats": [name] if recipe_of(name) else []}
    while matches := [(end.start(), row) for row, ending in _endings() if (end := ending.search(word))]:
        start, row = min(matches, key=lambda one: one[0])
        word = word[:start]
        yield word, row


def _word(text: str) -> str:
    return re.sub(r"[\s()]+", "-", text.lower()).strip("-/")


def _spellings(name: str, models: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Ways to write a model's name, and True if they mean the same model."""
    tail = name.rsplit("/", 1)[-1]
    owner, _, rest = tail.partition("_")
    plain = re.sub("^llama-?v?(?=[0-9])", "llama-", tail.removeprefix("nvidia-").removeprefix("meta-"))
    yield from ((name, True), (tail, True), (plain, True))
    if any(model.startswith(f"{owner}/") for model in models):
        yield rest, True
    if re.fullmatch(r"llama-\d+b", tail):
        yield tail.replace("llama-", "llama-2-"), False  # TensorRT-LLM's tables of 2024 call Llama 2 so


def _common(text: str, endings: Sequence[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """Formats that all endings of a name allow; None where none states any. A word of the name marks MLX's."""
    stated = [row["formats"] for row in endings if "formats" in row]
    if not stated:
        return None
    word = _word(text)
    own = [one for one in stated[0] if one.startswith("mlx") == (re.search("(^|[-/])mlx(-|$)", word) is not None)]
    common = [one for one in own or stated[0] if all(one in other for other in stated)]
    blocks = re.fullmatch(packaged("simulator.llm", "published_models.yaml")["in_blocks"], word)
    return tuple("fp8_block" if one == "fp8" and blocks else one for one in common)


@cache
def _endings() -> list[tuple[dict[str, Any], re.Pattern[str]]]:
    rows = packaged("simulator.llm", "published_models.yaml")["endings"]
    return [(row, re.compile(rf"[-._](?:{row['end']})$")) for row in rows]
