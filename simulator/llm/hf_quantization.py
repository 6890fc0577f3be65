"""Which dtype each part of a published checkpoint has: ``torch_dtype`` and ``quantization_config`` of a config.json."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import translate

from forerun.yaml_files import packaged
from simulator.llm.fields import Fields, shown_value
from simulator.llm.layers import PARTS, Part

QUANTISABLE: tuple[Part, ...] = ("attention", "mlp", "expert", "shared_expert")
"""Parts made of linear layers that quantisers convert by default; embeddings, router and norms stay."""
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
                 "float8_e4m3fn": "fp8"}  # fmt: skip
_FP8 = ("fp8", "fp8_block")
_BLOCK = [128, 128]
"""Weights that share a scale in ``fp8_block``."""


def checkpoint_dtypes(config: Fields, num_layers: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Dtype of every part as published, and remarks.

    A part of which only some layers are excluded from quantisation counts as quantised.

    Raises:
        ForerunError: an unknown dtype or quantisation method, or a malformed ``quantization_config``.
    """
    base, notes = _base_dtype(config)
    dtypes: dict[str, str] = dict.fromkeys(PARTS, base)
    if not config.has("quantization_config"):
        return dtypes, notes
    quantization = config.section("quantization_config")
    if quantization.get("quant_algo") == "MIXED_PRECISION" and quantization.has("quantized_layers"):
        rest = _fp8(quantization) if quantization.get("quant_method") == "fp8" else base  # DeepSeek-V4's own
        listed = _listed_dtypes(quantization.section("quantized_layers"))
        return dtypes | dict.fromkeys(QUANTISABLE, rest) | listed, notes
    converted = _converted_dtype(quantization)
    excluded = [
        pattern
        for key in ("ignore", "modules_to_not_convert", "exclude_modules", "llm_int8_skip_modules", "ignored_layers")
        for pattern in quantization.texts(key)
    ]
    if not excluded and quantization.get("quant_method") == "mxfp4":
        excluded = ["self_attn"]
    is_excluded = _excluding(excluded)
    for part in QUANTISABLE:
        if not all(_is_excluded(part, layer, is_excluded) for layer in range(num_layers)):
            dtypes[part] = converted
    if config.get("expert_dtype") == "fp4" and dtypes["expert"] in _FP8:  # DeepSeek-V4: fp8 but for its experts
        dtypes["expert"] = "mxfp4"
    return dtypes, notes


def _listed_dtypes(layers: Fields) -> dict[str, str]:
    """Dtype of each part where every converted module is listed with its algorithm; the commonest of a part counts."""
    counts_by_part: dict[str, Counter[str]] = {}
    algorithms, patterns = (
        packaged("simulator.llm", "hf_quantization.yaml")["modelopt"],
        packaged("simulator.llm", "hf_quantization.yaml")["part_patterns"],
    )
    for name in layers.values:
        algorithm = layers.section(name).choice("quant_algo", algorithms, None)
        part = next((part for part, pattern in patterns.items() if re.search(pattern, name)), None)
        if part and algorithm:
            counts_by_part.setdefault(part, Counter())[algorithms[algorithm]] += 1
    return {part: counts.most_common(1)[0][0] for part, counts in counts_by_part.items()}


def _base_dtype(config: Fields) -> tuple[str, tuple[str, ...]]:
    key = "dtype" if config.has("dtype") else "torch_dtype"
    stated = config.text(key, None)
    if stated is None:
        return "bf16", ("the config states no torch_dtype; bf16 is assumed",)
    name = stated.removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        config.fail(key, f"'{name[:40]}' is not one of {', '.join(_TORCH_DTYPES)}")
    return _TORCH_DTYPES[name], ()


def _converted_dtype(quantization: Fields) -> str:
    methods, algorithms = (
        packaged("simulator.llm", "hf_quantization.yaml")["methods"],
        packaged("simulator.llm", "hf_quantization.yaml")["modelopt"],
    )
    if not quantization.has("quant_algo"):
        quantization.require("quant_method", f"one of {', '.join(sorted(methods))}")
    method = quantization.choice("quant_method", methods, "modelopt")  # whose word quant_algo is
    if method == "fp8":
        return _fp8(quantization)
    if methods[method] == "bits":
        return _integer_dtype(quantization, "bits" if quantization.has("bits") else "w_bit")
    if method == "bitsandbytes":
        return "int4" if quantization.flag("load_in_4bit", False) else "int8"
    if method == "modelopt":
        algorithm = quantization.text("quant_algo", None)
        if algorithm is None and quantization.has("config_groups"):
            return _grouped_dtype(quantization)
        quantization.choice("quant_algo", algorithms, None)
        return str(algorithms[quantization.require("quant_algo")])
    return _grouped_dtype(quantization) if method == "compressed-tensors" else str(methods[method])


def _fp8(fields: Fields, key: str = "weight_block_size") -> str:
    """FP8 with one scale for a tensor or a channel, or for each block where its size is stated."""
    block = fields.items(key)
    if block and block != _BLOCK:
        fields.fail(key, f"must be {_BLOCK}, not {shown_value(block)}")
    return "fp8_block" if block else "fp8"


def _integer_dtype(fields: Fields, key: str) -> str:
    bits = fields.whole(key, low=1, high=16)
    if bits not in (4, 8):
        fields.fail(key, f"must be 4 or 8, not {bits}")
    return f"int{bits}"


def _grouped_dtype(quantization: Fields) -> str:
    """Dtype of compressed-tensors' first group of layers; further groups of one checkpoint are not distinguished."""
    groups = quantization.section("config_groups")
    if not groups.values:
        quantization.fail("config_groups", "must name at least one group")
    weights = groups.section(next(iter(groups.values))).section("weights")
    bits = weights.whole("num_bits", low=1, high=16)
    kind = weights.choice("type", ("int", "float"), "int")
    if kind == "int":
        return _integer_dtype(weights, "num_bits")
    if bits not in (4, 8):
        weights.fail("num_bits", f"must be 4 or 8, not {bits}")
    return _fp8(weights, "block_structure") if bits == 8 else "fp4"


def _is_excluded(part: Part, layer: int, excluded: Callable[[str], bool]) -> bool:
    """Whether every module of a part in a layer is excluded; each family names its modules in one of the ways."""
    groups: dict[str, list[str]] = {}
    for module in packaged("simulator.llm", "hf_quantization.yaml")["modules"][part]:
        name = f"model.layers.{layer}.{module}"
        groups.setdefault(name.rsplit(".", 1)[0] if name.endswith("_proj") else name, []).append(name)
    return any(all(map(excluded, names)) for names in groups.values())


def _excluding(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a quantiser's exclusion patterns name a module: a regex (``re:``), a glob, or part of the dotted name.

    The text part of a multimodal checkpoint carries ``language_model`` in its names.
    """
    parts, globs, expressions = set(), [], []
    for pattern in patterns:
        if pattern.startswith("re:"):
            with suppress(re.error, RecursionError, OverflowError):
                expressions.append(re.compile(pattern[3:]))
            continue
        pattern = pattern.replace("model.language_model.", "model.").removeprefix("language_model.")
        if "*" in pattern or "?" in pattern:
            globs += [translate(pattern), translate(pattern + ".*")]
        else:
            parts.add(tuple(pattern.strip(".").split(".")))
    lengths = {len(part) for part in parts}
    glob = re.compile("|".join(globs) or r"(?!)")

    def excluded(name: str) -> bool:
        words = name.split(".")
        if any(tuple(words[at : at + n]) in parts for n in lengths for at in range(len(words) - n + 1)):
            return True
        if glob.match(name):
            return True
        spellings = (name, f"language_model.{name}")
        return any(one.match(spelling) for one in expressions for spelling in spellings)

    return excluded
