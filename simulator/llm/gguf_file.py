"""A model from the header of a GGUF file: metadata as fields of a config.json, formats by tensor."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from forerun.errors import ForerunError, install_hint
from forerun.yaml_files import packaged
from hwprofiles.dtypes import mixed_dtype, shares_of
from simulator.llm.architecture import Architecture
from simulator.llm.fields import joined_lines
from simulator.llm.hf_config import from_hf_config
from simulator.llm.layers import PARTS, Attention, Mixer, Part, Tensor

_TOLERANCE = 0.01
"""Share by which the described model may differ from the tensors of the file: rope factors, merged vectors, padding."""


class TensorInfo(NamedTuple):
    """One tensor as a GGUF header lists it."""

    name: str
    kind: str
    """Name of the tensor's format in ggml."""
    elements: int
    bits_per_weight: float
    """Exact: bytes of a block, scales included, over its weights."""
    rows: int
    """Last dimension: outputs of a matrix."""


class Header(NamedTuple):
    """Header of a GGUF file: its metadata and list of tensors."""

    fields: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]


def from_gguf(path: Path) -> Architecture:
    """Read a model from a GGUF file, or from all parts of a split one.

    Raises:
        ForerunError: no package gguf, a damaged file or a missing part, an unknown architecture, or tensors that do not
            match the metadata.
    """
    header = read_header(path)
    for part in _other_parts(path, header):
        header = Header(header.fields, header.tensors + read_header(part).tensors)
    name = header.fields.get("general.architecture")
    families = packaged("simulator.llm", "gguf_names.yaml")["families"]
    if name not in families:
        _fail(path, f"general.architecture '{name}' is not read here (one of {', '.join(sorted(families))})")
    config = _config(str(name), header)
    title = header.fields.get("general.name")
    architecture = from_hf_config(config, name=title if isinstance(title, str) and title.strip() else path.stem,
                           source=str(path))  # fmt: skip
    own = sum(tensor.elements for tensor in header.tensors if not _extra(tensor, architecture))
    total = architecture.parameters().total
    if abs(own - total) > _TOLERANCE * total:
        _fail(path, f"its tensors hold {own:,} weights, but its metadata describe a model of {total:,}")
    note = f"{bits_per_weight(header):.3f} bits per weight over all tensors; " + _kinds_in_words(header)
    return replace(architecture, checkpoint_dtypes=_dtypes(header), notes=(*architecture.notes, note))


def read_header(path: Path) -> Header:
    """Metadata and tensor list of one file; its data are not touched and need not be there.

    Raises:
        ForerunError: no package gguf, or not a GGUF file, or one that ends early.
    """
    try:
        import gguf
    except ImportError:
        _fail(path, f"reading GGUF files needs the package gguf; {install_hint('local')}")

    class HeaderReader(gguf.GGUFReader):  # type: ignore[misc]
        """The package's reader without views of tensor data, which a header does not contain."""

        def _get(self, offset: int, dtype: object, count: int = 1, override_order: object = None) -> Any:
            numbers = super()._get(offset, dtype, count, override_order)
            if len(numbers) < int(count):  # else a damaged length would be walked through to its end
                raise ValueError("ends early")
            return numbers

        def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
            self.infos = tuple(_tensor(gguf, field.parts) for field in fields)

    try:
        reader = HeaderReader(path)
        # vocabularies are long and say nothing here
        values = {key: f.contents() for key, f in reader.fields.items() if not key.startswith("tokenizer.")}
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror or error}")
    except Exception as error:  # the package meets damage with whatever its parsing meets
        _fail(path, f"is not a GGUF file, or is damaged: {str(error)[:120] or type(error).__name__}")
    return Header(values, reader.infos)


def bits_per_weight(header: Header) -> float:
    """Bits per weight over all tensors."""
    weights = sum(tensor.elements for tensor in header.tensors)
    return sum(tensor.elements * tensor.bits_per_weight for tensor in header.tensors) / weights if weights else 0.0


def _fail(path: Path, message: str) -> NoReturn:
    raise ForerunError(joined_lines(f"{path}: {message}"))


def _tensor(gguf: Any, parts: list[Any]) -> TensorInfo:
    _, name, _, dims, kind, _ = parts
    known = gguf.GGMLQuantizationType(kind[0])
    weights, size = gguf.GGML_QUANT_SIZES[known]
    elements = prod(map(int, dims))
    return TensorInfo(bytes(name).decode(), known.name, elements, 8 * size / weights, int(dims[-1]) if len(dims) else 1)


def _other_parts(path: Path, header: Header) -> list[Path]:
    count = header.fields.get("split.count")
    if not isinstance(count, int) or count <= 1:
        return []
    match = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", path.name)
    if match is None:
        _fail(path, f"is one of {count} parts, but its name does not say which (-00001-of-{count:05d}.gguf)")
    stem = path.name[: match.start()]
    others = [path.with_name(f"{stem}-{part:05d}-of-{match[2]}.gguf") for part in range(1, count + 1)]
    for other in others:
        if not other.is_file():
            _fail(other, f"no such file ({path.name} is one of {count} parts)")
    if int(match[1]) != 1:
        _fail(path, f"is not the first part, which holds the metadata; give {others[0].name}")
    return others[1:]


def _extra(tensor: TensorInfo, architecture: Architecture) -> bool:
    """True if a tensor is no weight of the model: rope factors, and the MTP layers after the model's layers."""
    layer = re.match(r"blk\.(\d+)\.", tensor.name)
    return tensor.name.startswith(("rope_", "mtp.")) or (layer is not None and int(layer[1]) >= architecture.num_layers)


def _part(tensor: TensorInfo) -> Part:
    patterns = packaged("simulator.llm", "gguf_names.yaml")["parts"]
    return next((part for part, pattern in patterns.items() if re.search(pattern, tensor.name)), "attention")


def _dtypes(header: Header) -> dict[str, str]:
    weights: dict[str, Counter[str]] = {}
    formats = packaged("simulator.llm", "gguf_names.yaml")["formats"]
    for tensor in header.tensors:
        kind = formats.get(tensor.kind, tensor.kind.lower())
        weights.setdefault(_part(tensor), Counter())[kind] += tensor.elements
    return {part: mixed_dtype(weights[part]) if part in weights else "fp32" for part in PARTS}


def _kinds_in_words(header: Header) -> str:
    weights = Counter[tuple[str, float]]()
    for tensor in header.tensors:
        weights[tensor.kind, tensor.bits_per_weight] += tensor.elements
    total = sum(weights.values())
    return ", ".join(f"{kind} ({bits:g}) {count / total:.1%}" for (kind, bits), count in weights.most_common())


def recipe_names() -> tuple[str, ...]:
    """File types of llama.cpp's quantiser by name."""
    return tuple(packaged("simulator.llm", "gguf_recipes.yaml"))


def recipe_of(name: str) -> dict[str, str] | None:
    """Formats of a GGUF file type by role of the matrix; None if there is no such type."""
    recipes: dict[str, dict[str, str]] = packaged("simulator.llm", "gguf_recipes.yaml")
    return recipes.get(name.lower()) or recipes.get(f"{name.lower()}_m")  # Q4_K is short for Q4_K_M


def recipe_dtypes(architecture: Architecture, name: str) -> dict[str, str] | None:
    """Format of every part of a model in a GGUF file of a type (``q4_k_m``); None for other types."""
    recipe = recipe_of(name)
    if recipe is None:
        return None
    weights: dict[str, dict[str, float]] = {part: defaultdict(float) for part in PARTS}
    for group in architecture.layer_groups:
        for tensor in group.layer.tensors(architecture.hidden_size):
            elements = tensor.out_features * tensor.in_features * tensor.copies * group.count
            for role, share in _roles(tensor, group.layer.mixer):
                dtype = recipe.get(role, recipe["default"])
                for kind, part in shares_of(dtype).items():
                    weights[tensor.part][kind] += elements * share * part
    dtypes = {part: mixed_dtype(counts) if counts else recipe["default"] for part, counts in weights.items()}
    # A table that is the LM head too gets the head's format (llama_tensor_get_type: ``!qs.has_output``).
    table = recipe["output" if architecture.tie_word_embeddings else "embedding"]
    return dtypes | {"embedding": table, "lm_head": recipe["output"], "router": "fp32", "norm": "fp32"}


def _roles(tensor: Tensor, mixer: Mixer | None) -> list[tuple[str, float]]:
    """Role names of a matrix in quantisation recipes, each with its share of the matrix's weights."""
    if tensor.name.endswith("down_proj") and tensor.part != "shared_expert":
        return [("down", 1.0)]
    if tensor.part == "expert":
        return [("experts", 1.0)]
    if tensor.name == "qkv_proj" and isinstance(mixer, Attention):
        values = mixer.num_kv_heads * (mixer.v_head_dim or mixer.head_dim) / tensor.out_features
        return [("v", values), ("default", 1.0 - values)]
    return [({"o_proj": "o", "in_proj_qkvz": "qkv"}.get(tensor.name, "default"), 1.0)]


Config = dict[str, Any]


def _moe_of_llama(config: Config, header: Header, name: str) -> None:
    """Correct Mixtral's files, which state Llama's architecture."""
    if header.fields.get("llama.expert_count"):
        config["model_type"] = "mixtral"


def _latent_heads(config: Config, header: Header, name: str) -> None:
    """Widths of MLA's heads; newer files also state the widths of the cached latent."""
    prefix = f"{name}.attention"
    key = header.fields.get(f"{prefix}.key_length_mla") or header.fields.get(f"{prefix}.key_length")
    value = header.fields.get(f"{prefix}.value_length_mla") or header.fields.get(f"{prefix}.value_length")
    if isinstance(key, int) and isinstance(config.get("qk_rope_head_dim"), int):
        config["qk_nope_head_dim"] = key - config["qk_rope_head_dim"]
    config["v_head_dim"] = value
    config["num_key_value_heads"] = config["head_dim"] = None
    if any(".exp_probs_b" in tensor.name for tensor in header.tensors):
        config["model_type"] = "deepseek_v3"


def _delta_values(config: Config, header: Header, name: str) -> None:
    """Derive the width of value heads: the inner width divided by their number."""
    inner, heads = header.fields.get(f"{name}.ssm.inner_size"), config.get("linear_num_value_heads")
    if isinstance(inner, int) and isinstance(heads, int) and heads:
        config["linear_value_head_dim"] = inner // heads


def _expert_width(config: Config, header: Header, name: str) -> None:
    """Families whose configs call the width of an expert ``intermediate_size``."""
    width = config.pop("moe_intermediate_size", None)
    config["intermediate_size"] = width or config.get("intermediate_size")


def _widths_listed(config: Config, header: Header, name: str) -> None:
    """Set the attention layers: layers with KV heads."""
    listed = config.get("num_key_value_heads")
    if isinstance(listed, list):
        config["full_attn_idxs"] = [layer for layer, heads in enumerate(listed) if heads]
        config["num_key_value_heads"] = max(listed, default=0)


_ADAPT: Mapping[str, Callable[[Config, Header, str], None]] = {
    "llama": _moe_of_llama,
    "deepseek2": _latent_heads,
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), _delta_values),
    **dict.fromkeys(("gpt-oss", "minimax-m2"), _expert_width),
    "lfm2": _widths_listed,
}
"""Changes from an architecture's metadata to the fields of a config.json, by ``general.architecture``."""


def _config(name: str, header: Header) -> Config:
    """The metadata as config.json fields; values implied by the model class are read from the tensors."""
    family = dict(packaged("simulator.llm", "gguf_names.yaml")["families"][name])
    config: Config = {"model_type": family.pop("model_type"), "torch_dtype": "float16"}
    for field, key in {**packaged("simulator.llm", "gguf_names.yaml")["common"], **family}.items():
        value = header.fields.get(f"{name}.{key}")
        config[field] = value[0] if isinstance(value, list) and len(set(value)) == 1 else value
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].rows
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = config["qkv_bias"] = "blk.0.attn_q.bias" in tensors
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in tensors
    if name == "gpt-oss":
        config["attention_bias"] = True
    drafts = config.get("num_nextn_predict_layers") or config.get("mtp_num_hidden_layers") or 0
    if config["num_hidden_layers"] is not None and isinstance(drafts, int):
        config["num_hidden_layers"] -= drafts  # llama.cpp counts MTP layers among the blocks
    if name in _ADAPT:
        _ADAPT[name](config, header, name)
    return {field: value for field, value in config.items() if value is not None}
