"""Dtype of each part of a published checkpoint: ``torch_dtype`` and ``quantization_config`` of a config.json."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from re import _parser  # type: ignore[attr-defined]
from typing import NamedTuple

from forerun.yaml_files import packaged
from hwprofiles.dtypes import MIXED, MLX_BITS, MLX_GROUPS, mixed_dtype, mlx_dtype
from simulator.llm.fields import Fields, shown_value
from simulator.llm.layers import PARTS, Layer, Part, Tensor

QUANTISABLE: tuple[Part, ...] = ("attention", "mlp", "expert", "shared_expert")
"""Parts made of linear layers that quantisers convert by default; embeddings, router and norms stay."""
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
                 "float8_e4m3fn": "fp8"}  # fmt: skip
QUANTISATION_KEYS = ("quantization_config", "quantization")
"""Sections of a config.json that state its formats; the second is MLX's."""
_FP8 = ("fp8", "fp8_block")
_BLOCK = [128, 128]
"""Weights that share a scale in ``fp8_block``."""
LEAST_SHARE = 0.02
"""Minimum share of a part's weights for which a second format counts."""
MOST_REPEATS, MOST_CHOICES_BITS = 63, 26
"""Characters of a module's name that a repeat takes, and ways to match a pattern (power of two): four repeats."""
_WHOLE = 16
"""Minimum bits at which weights or activations count as not quantised."""


class ModuleFormat(NamedTuple):
    """Modules that a quantiser treats by their names, and their dtype."""

    matches: Callable[[str], bool]
    dtype: str


class Formats(NamedTuple):
    """Dtypes of a quantised checkpoint's modules: the first rule that matches, else the quantiser's default."""

    rules: Sequence[ModuleFormat]
    default: str
    """Dtype of the linear layers that no rule names."""
    tables: str | None = None
    """Dtype of embedding and LM head if the quantiser converts these too."""
    notes: tuple[str, ...] = ()

    def of(self, names: Sequence[str]) -> str | None:
        """Dtype of the module that has one of ``names``; None if no rule names it."""
        return next((rule.dtype for rule in self.rules if any(map(rule.matches, names))), None)


def checkpoint_dtypes(config: Fields, layers: Sequence[Layer], hidden: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Dtype of every part as published, and remarks.

    A part with two weight formats gets a mixed dtype, unless the second has less than ``LEAST_SHARE`` of the weights.

    Raises:
        ForerunError: an unknown dtype or quantisation method, or a malformed ``quantization_config``.
    """
    base, notes = _base_dtype(config)
    dtypes: dict[str, str] = dict.fromkeys(PARTS, base)
    key = next((key for key in QUANTISATION_KEYS if config.has(key)), None)
    if key is None:
        return dtypes, notes
    quantization = config.section(key)
    nested = quantization.get("quant_config") if quantization.get("quant_method") == "quark" else None
    if isinstance(nested, Mapping):  # older exports of Quark
        quantization = replace(quantization, values={**quantization.values, **nested})
    notes = (*notes, *_cache_note(quantization))
    if quantization.get("quant_algo") == "MIXED_PRECISION" and quantization.has("quantized_layers"):
        rest = _fp8(quantization) if quantization.get("quant_method") == "fp8" else base  # DeepSeek-V4's own
        listed = _listed_dtypes(quantization.section("quantized_layers"))
        return dtypes | dict.fromkeys(QUANTISABLE, rest) | listed, notes
    formats = _formats(quantization, base)
    weights: dict[Part, Counter[str]] = {part: Counter() for part in QUANTISABLE}
    for number, layer in enumerate(layers):
        for tensor in layer.tensors(hidden):
            if tensor.part in weights:
                pieces = list(_module_names(number, tensor))
                for names in pieces:
                    weights[tensor.part][formats.of(names) or formats.default] += tensor.elements // len(pieces)
    for part, counts in weights.items():
        kept = {name: count for name, count in counts.items() if count >= LEAST_SHARE * counts.total()}
        dtypes[part] = mixed_dtype(kept) if kept else formats.default
    for part, name in (("embedding", "model.embed_tokens"), ("lm_head", "lm_head")):
        dtypes[part] = formats.of([name]) or formats.tables or base
    if config.get("expert_dtype") == "fp4" and dtypes["expert"] in _FP8:  # DeepSeek-V4: fp8 but for its experts
        dtypes["expert"] = "mxfp4"
    several = [f"{part} {dtype}" for part, dtype in dtypes.items() if MIXED in dtype]
    mixed = (f"weights in several formats, with their shares: {', '.join(several)}",) if several else ()
    return dtypes, (*notes, *formats.notes, *mixed)


def cache_dtype(config: Fields) -> str | None:
    """Format of the KV cache for which a checkpoint has scales; None without such scales."""
    key = next((key for key in QUANTISATION_KEYS if config.has(key)), None)
    stated = None if key is None else _stated_cache(config.section(key))
    return "fp8" if stated in ("FP8", "8 bits") else None


def _stated_cache(quantization: Fields) -> str | None:
    scheme = quantization.get("kv_cache_scheme")
    bits = scheme.get("num_bits", 8) if isinstance(scheme, Mapping) else None
    keys = [group.get("output_tensors") for name, group in _quark_groups(quantization) if "k_proj" in name]
    if any(isinstance(key, Mapping) and str(key.get("dtype")).startswith("fp8") for key in keys):
        return "FP8"
    return quantization.text("kv_cache_quant_algo", None) or (f"{bits} bits" if bits else None)


def _cache_note(quantization: Fields) -> tuple[str, ...]:
    """A remark on the KV cache format of a checkpoint."""
    stated = _stated_cache(quantization)
    return (f"the checkpoint has scales for a KV cache in {stated}; kv_cache_dtype chooses another",) if stated else ()


def _module_names(layer: int, tensor: Tensor) -> Iterator[list[str]]:
    """Names that each stored module of a layer's matrix may have, one list for a module; families differ."""
    tables = packaged("simulator.llm", "hf_quantization.yaml")
    leaf = tensor.name.removeprefix("experts.").removeprefix("shared_experts.")
    recurrent = tensor.part == "attention" and leaf.startswith(("in_proj", "out_proj"))
    prefixes = tables["prefixes"]["recurrent" if recurrent else tensor.part]
    for piece in tables["modules"].get(leaf, [leaf]):
        leaves = dict.fromkeys((piece, leaf, *tables["other_names"].get(piece, ())))
        inside = [f"{prefix}.{name}" for prefix in prefixes for name in leaves] + prefixes
        yield [f"model.layers.{layer}.{name}" for name in inside]


def _listed_dtypes(layers: Fields) -> dict[str, str]:
    """Dtype of each part where every converted module is listed with its algorithm, in the shares of its modules."""
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
    return {part: mixed_dtype(counts) for part, counts in counts_by_part.items()}


def _base_dtype(config: Fields) -> tuple[str, tuple[str, ...]]:
    key = "dtype" if config.has("dtype") else "torch_dtype"
    stated = config.text(key, None)
    if stated is None:
        return "bf16", ("the config states no torch_dtype; bf16 is assumed",)
    name = stated.removeprefix("torch.")
    if name not in _TORCH_DTYPES:
        config.fail(key, f"'{name[:40]}' is not one of {', '.join(_TORCH_DTYPES)}")
    return _TORCH_DTYPES[name], ()


def _formats(quantization: Fields, base: str) -> Formats:
    """Formats of a quantised checkpoint by module, whatever the quantiser; excluded modules first."""
    if not quantization.has("quant_method") and quantization.has("bits") and not quantization.has("quant_algo"):
        return _mlx(quantization, base)
    tables = packaged("simulator.llm", "hf_quantization.yaml")
    excluded = [pattern for key in tables["excluded"] for pattern in quantization.texts(key)]
    if not excluded and quantization.get("quant_method") == "mxfp4":
        excluded = ["self_attn"]
    formats = _converted(quantization, base)
    return formats._replace(rules=(ModuleFormat(_named(excluded, quantization), base), *formats.rules))


def _mlx(quantization: Fields, base: str) -> Formats:
    """MLX's formats, which apply to embedding and LM head too; exceptions are listed by module name."""
    rules = []
    for name, own in quantization.values.items():
        if "." in name or isinstance(own, Mapping | bool):
            quantization.seen.add(name)
            dtype = base if own is False else _mlx_dtype(quantization if own is True else quantization.section(name))
            rules.append(ModuleFormat(_named([name.replace("switch_mlp", "experts")], quantization), dtype))
    default = _mlx_dtype(quantization)
    return Formats(rules, default, tables=default)


def _mlx_dtype(fields: Fields) -> str:
    mode = fields.choice("mode", ("affine", "mxfp4", "mxfp8", "nvfp4"), "affine")
    if mode != "affine":
        return "nvfp4a16" if mode == "nvfp4" else mode
    bits, group = fields.whole("bits"), fields.whole_or("group_size", MLX_GROUPS[0])
    if bits not in MLX_BITS:
        fields.fail("bits", f"must be one of {', '.join(map(str, MLX_BITS))}, not {bits}")
    if group not in MLX_GROUPS:
        fields.fail("group_size", f"must be one of {', '.join(map(str, sorted(MLX_GROUPS)))}, not {group}")
    return mlx_dtype(bits, group)


def _converted(quantization: Fields, base: str) -> Formats:
    tables = packaged("simulator.llm", "hf_quantization.yaml")
    methods, algorithms = tables["methods"], tables["modelopt"]
    if not quantization.has("quant_algo"):
        quantization.require("quant_method", f"one of {', '.join(sorted(methods))}")
    method = quantization.choice("quant_method", methods, "modelopt")  # whose word quant_algo is
    if method == "fp8":
        return Formats((), _fp8(quantization))
    if methods[method] == "bits":
        return _by_bits(quantization, base)
    if method in ("torchao", "hqq"):
        return _one_format(quantization, method)
    if method == "quark":
        return _quark(quantization, base)
    if method == "bitsandbytes":
        return Formats((), "int4" if quantization.flag("load_in_4bit", False) else "int8")
    algorithm = quantization.choice("quant_algo", algorithms, None) if method == "modelopt" else None
    if algorithm is not None:
        notes = (_wide_note("4-bit weights", 8),) if algorithm.startswith("W4A8") else ()
        return Formats((), str(algorithms[algorithm]), notes=notes)
    if method == "compressed-tensors" or (method == "modelopt" and quantization.has("config_groups")):
        return _grouped(quantization, base)
    if method == "modelopt":
        quantization.require("quant_algo")
    return Formats((), str(methods[method]))


def _by_bits(quantization: Fields, base: str) -> Formats:
    """AWQ, GPTQ and AutoRound: bits for all linear layers, with exceptions by layer name."""
    default, notes = _by_width(quantization)
    rules = []
    for section in ("dynamic", "extra_config"):
        for name in quantization.section(section).values if quantization.has(section) else ():
            own = quantization.section(section).section(name)
            whole = name.startswith("-:") or own.get("bits") == _WHOLE
            merged = Fields({**quantization.values, **own.values}, own.source, own.prefix)
            dtype, more = (base, ()) if whole else _by_width(merged)
            notes += more
            rules.append(
                ModuleFormat(_named([f"re:{name.removeprefix('-:').removeprefix('+:')}"], quantization), dtype)
            )
    return Formats(rules, default, notes=tuple(dict.fromkeys(notes)))


def _by_width(fields: Fields) -> tuple[str, tuple[str, ...]]:
    kind = fields.choice("data_type", ("int", "fp", "mx_fp", "nv_fp"), "int")
    key = "bits" if fields.has("bits") else "w_bit"
    scales = {"mx_fp": 32, "nv_fp": 16}.get(kind)
    return _weights_dtype(fields, key, kind != "int", fields.whole_or("act_bits", _WHOLE, high=64), scales)


def _weights_dtype(
    fields: Fields, key: str, is_float: bool, activation_bits: int, group: int | None
) -> tuple[str, tuple[str, ...]]:
    """Dtype from weight and activation bits, and a remark if arithmetic is priced in a wider format."""
    bits = fields.whole(key, low=1, high=16)
    if bits not in (4, 8):
        fields.fail(key, f"must be 4 or 8, not {bits}")
    whole = activation_bits >= _WHOLE
    if bits == 8:
        return ("w8a16_fp8" if whole else _fp8(fields, "block_structure"), ()) if is_float else (
            "w8a16" if whole else "int8", ()
        )  # fmt: skip
    if is_float and group != 32 and activation_bits == 4:
        return "fp4", ()
    dtype = "int4" if not is_float else "mxfp4" if group == 32 else "nvfp4a16"
    return dtype, () if whole else (_wide_note(f"4-bit weights ({dtype})", activation_bits),)


def _wide_note(weights: str, activation_bits: int) -> str:
    return f"{weights} with {activation_bits}-bit activations are priced with arithmetic in 16 bits"


def _fp8(fields: Fields, key: str = "weight_block_size") -> str:
    """FP8 with one scale for a tensor or a channel, or for each block where its size is stated."""
    block = fields.items(key)
    if block and block != _BLOCK:
        fields.fail(key, f"must be {_BLOCK}, not {shown_value(block)}")
    return "fp8_block" if block else "fp8"


def _grouped(quantization: Fields, base: str) -> Formats:
    """Groups of compressed-tensors: a target is a module's name, a regular expression (``re:``) or a class of modules.

    Names come before classes, and what no target names is not quantised.

    Source: vLLM v0.11, ``compressed_tensors/utils.py``, ``find_matched_target``.
    """
    groups = quantization.section("config_groups")
    if not groups.values:
        quantization.fail("config_groups", "must name at least one group")
    rules: list[ModuleFormat] = []
    notes: list[str] = []
    default = base
    for name in groups.values:
        group = groups.section(name)
        dtype, more = _group_dtype(group)
        notes += more
        targets = group.texts("targets") if group.has("targets") else ["Linear"]
        classes = [target for target in targets if not target.startswith("re:") and target[:1].isupper()]
        named = [target for target in targets if target not in classes]
        if named:
            rules.append(ModuleFormat(_named(named, quantization), dtype))
        for one in classes:
            if re.search("expert|moe", one.lower()):
                rules.append(ModuleFormat(_named(["re:.*experts.*"], quantization), dtype))
            else:
                default = dtype
    return Formats(rules, default, notes=tuple(dict.fromkeys(notes)))


def _group_dtype(group: Fields) -> tuple[str, tuple[str, ...]]:
    weights = group.section("weights")
    inputs = group.get("input_activations")
    activation_bits = group.section("input_activations").whole_or("num_bits", 8, high=64) if inputs else _WHOLE
    is_float = weights.choice("type", ("int", "float"), "int") == "float"
    return _weights_dtype(weights, "num_bits", is_float, activation_bits, weights.whole_or("group_size", None, low=-1))


def _quark(quantization: Fields, base: str) -> Formats:
    """AMD's Quark: a format for all layers, and others for modules by name, in the words of compressed-tensors."""
    groups = {"": quantization.section("global_quant_config"), **dict(_quark_groups(quantization))}
    values = {
        name or "all": {
            "targets": [name or "Linear"],
            "weights": _quark_tensor(group.section("weight")),
            "input_activations": _quark_tensor(group.section("input_tensors")) if group.has("input_tensors") else None,
        }
        for name, group in groups.items()
        if group.has("weight") or not name
    }
    return _grouped(replace(quantization, values={"config_groups": values}), base)


def _quark_groups(quantization: Fields) -> Iterator[tuple[str, Fields]]:
    for key in ("layer_quant_config", "kv_cache_quant_config"):
        if quantization.has(key):
            groups = quantization.section(key)
            yield from ((name, groups.section(name)) for name in groups.values)


def _quark_tensor(tensor: Fields) -> dict[str, object]:
    dtype = tensor.text("dtype", "") or ""
    bits = re.search(r"\d+", dtype)
    kind = "int" if "int" in dtype else "float"
    return {
        "num_bits": int(bits[0]) if bits else 0,
        "type": kind,
        "group_size": tensor.whole_or("group_size", None, low=-1),
    }


def _one_format(quantization: Fields, method: str) -> Formats:
    """One format for all linear layers, by the name of torchao's configuration or by HQQ's bits."""
    if method == "hqq":
        stated: object = f"hqq{quantization.section('quant_config').section('weight_quant_params').whole('nbits')}"
    else:
        stated = quantization.require("quant_type")
        stated = stated.get("default", stated) if isinstance(stated, Mapping) else stated
        stated = stated.get("_type", "") if isinstance(stated, Mapping) else stated
    plain, known = str(stated).lower().replace("_", ""), packaged("simulator.llm", "hf_quantization.yaml")["named"]
    dtype = next((known[pattern] for pattern in known if re.fullmatch(pattern, plain)), None)
    if dtype is None:
        quantization.fail(
            "quant_method", f"{method} with {shown_value(stated)} is not read; its formats are not known here"
        )
    return Formats((), dtype)


def _choices_bits(pattern: _parser.SubPattern) -> float:
    """Ways to match the repeats and branches of a parsed regular expression against a name, as a power of two."""
    bits = 0.0
    for operation, arguments in pattern:
        if "REPEAT" in str(operation):
            low, high, body = arguments
            inner = _choices_bits(body)
            bits += math.inf if inner and high > 1 else inner + math.log2(1 + min(high - low, MOST_REPEATS))
        elif str(operation) == "BRANCH":
            bits += math.log2(sum(2.0 ** _choices_bits(one) for one in arguments[1]))
        else:
            inside = arguments if isinstance(arguments, tuple) else (arguments,)
            bits += sum(_choices_bits(one) for one in inside if isinstance(one, _parser.SubPattern))
    return bits


def _named(patterns: Sequence[str], fields: Fields) -> Callable[[str], bool]:
    """True for the modules that patterns name: a regex (``re:``), a glob, or part of the dotted name.

    The text part of a multimodal checkpoint carries ``language_model`` in its names.
    """
    parts, globs, expressions = set(), [], []
    for pattern in patterns:
        if pattern.startswith("re:"):
            try:
                expressions.append(re.compile(pattern[3:]))
                bits = _choices_bits(_parser.parse(pattern[3:].removesuffix("$").removesuffix(".*")))
            except (re.error, RecursionError, OverflowError):
                fields.fail("", f"{shown_value(pattern)} is no regular expression")
            if bits > MOST_CHOICES_BITS:
                why = "repeats within repeats, or too many of them, take too long to match; write it with fewer"
                fields.fail("", f"{shown_value(pattern)}: {why}")
            continue
        pattern = pattern.replace("language_model.", "").replace("model.model.", "model.")
        if "*" in pattern or "?" in pattern:
            globs += [translate(pattern), translate(pattern + ".*")]
        else:
            parts.add(tuple(pattern.strip(".").split(".")))
    lengths = {len(part) for part in parts}
    glob = re.compile("|".join(globs) or r"(?!)")

    def matches(name: str) -> bool:
        words = name.split(".")
        if any(tuple(words[at : at + n]) in parts for n in lengths for at in range(len(words) - n + 1)):
            return True
        if glob.match(name):
            return True
        spellings = (name, f"language_model.{name}", name.replace("model.", "model.language_model.", 1))
        return any(one.match(spelling) for one in expressions for spelling in spellings)

    return matches
