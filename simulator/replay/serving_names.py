"""Names that published serving results use for models, chips, engines and number formats, in the catalogue's words."""

from __future__ import annotations

import re
from functools import cache

from simulator.llm.load import architecture_aliases, architecture_names

_CHIPS = (
    (r"gb[23]00", None),
    (r"b200", "b200-sxm"),
    (r"b300", "b300-sxm"),
    (r"h200", "h200-sxm"),
    (r"h100.*pcie", "h100-pcie"),
    (r"h100.*nvl", "h100-nvl"),
    (r"h100", "h100-sxm"),
    (r"a100.*(pcie.*80|80.*pcie)", "a100-pcie-80gb"),
    (r"a100.*40", "a100-sxm-40gb"),
    (r"a100", "a100-sxm-80gb"),
)
"""Patterns of device names, most telling first, and the chip each means; None = the chip of that very name, if any."""
_ENGINES = {"trtllm": r"trt|tensorrt", "sglang": r"sglang|^sgl", "vllm": r"vllm"}
_OLDER = {"trtllm": (16, "trtllm-0.14"), "vllm": (13, "vllm-0.11")}
"""Last minor version of an engine's earlier parameter set, and that set."""
_OTHER_ENGINE = r"atom|mindie|lmdeploy|metal"
_SUFFIXES = ("-fp8-dynamic", "-fp8", "-nvfp4", "-fp4", "-bf16", "-instruct", "-chat", "-it", "-hf", "-0528", "-v0.1",
             "-awq", "-gptq")  # fmt: skip
_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16", "16-bit": "bf16",
           "fp8": "fp8", "fp8_block": "fp8", "float8": "fp8", "e4m3": "fp8", "nvfp4": "fp4", "fp4": "fp4",
           "mxfp4": "mxfp4", "int8": "int8", "w8a8": "int8", "int4": "int4", "w4a16": "int4"}  # fmt: skip


def chip_name(text: str, known: tuple[str, ...]) -> str | None:
    """The chip that a published name means, such as ``h100-sxm`` for "NVIDIA H100 80GB HBM3"; None if unknown.

    Args:
        text: as published.
        known: names of the catalogue, taken as they are.
    """
    word = text.strip().lower().replace("_", "-")
    if word in known:
        return word
    name = next((name for pattern, name in _CHIPS if re.search(pattern, word)), None)
    if name is not None:
        return name
    named = [chip for chip in known if re.search(r"\d", chip) and re.search(_spelling(chip), word)]
    return max(named, key=len, default=None)


@cache
def _spelling(chip: str) -> str:
    """A pattern of a catalogue name in a device name: RTX 4090, RTX4090 24GB, nvidia-l40s, V100-SXM2."""
    end = r"(?![0-9])" if chip[-1].isdigit() else ""
    return r"(?<![a-z0-9])" + chip.replace("-", "[ -]?") + end


def framework_name(text: str) -> str | None:
    """``vllm``, ``sglang`` or ``trtllm``, also under an orchestrator such as dynamo; None for another engine."""
    word = text.strip().lower()
    if word == "generic":
        return word
    if re.search(_OTHER_ENGINE, word):
        return None
    return next((name for name, pattern in _ENGINES.items() if re.search(pattern, word)), None)


def framework_of_version(framework: str, version: str | None) -> str:
    """The parameter set of an engine's version.

    TensorRT-LLM of 2024 (up to v0.16) ran another runtime; vLLM up to v0.13 schedules a step after the one before it.
    """
    found = re.match(r"v?0\.(\d+)", version or "")
    last, older = _OLDER.get(framework, (-1, framework))
    return older if found and int(found.group(1)) <= last else framework


def dtype_name(text: str) -> str | None:
    """A weight format in the catalogue's words; None for one that is not known."""
    return _DTYPES.get(text.strip().lower())


def model_name(text: str) -> str | None:
    """The catalogue's model that a published name means, whatever its owner, tuning or format suffix; None if none."""
    word = re.sub(r"\s+", "-", text.strip().lower())
    names = _known_models()
    for candidate in _spellings(word):
        if candidate in names:
            return names[candidate]
    return None


def _spellings(word: str) -> list[str]:
    """Ways to write a model, from the most to the least literal."""
    tail = word.rsplit("/", 1)[-1]
    found = [word, tail]
    changed = True
    while changed:
        changed = False
        for suffix in _SUFFIXES:
            if tail.endswith(suffix):
                tail, changed = tail.removesuffix(suffix), True
                found.append(tail)
    if re.fullmatch(r"llama-\d+b", tail):
        found.append(tail.replace("llama-", "llama-2-"))  # TensorRT-LLM's tables of 2024 call Llama 2 so
    plain = tail.replace("llama-v", "llama-").replace("llama2", "llama-2").replace("llama3", "llama-3")
    return [*found, plain, re.sub(r"^meta-", "", plain)]


@cache
def _known_models() -> dict[str, str]:
    """Catalogue names and aliases, and the part of an alias behind its owner, in lower case."""
    aliases = architecture_aliases()
    known = {alias.rsplit("/", 1)[-1]: name for alias, name in sorted(aliases.items(), reverse=True)}
    return {**known, **aliases, **{name: name for name in architecture_names()}}
