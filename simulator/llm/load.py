"""Model look-up: by catalogue name, by Hugging Face repository, from a file, or from inline fields."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import cast, get_args

import yaml

from forerun.errors import ForerunError, did_you_mean, named_arguments
from forerun.yaml_files import TooLargeError, bounded_text, packaged_file, parse
from simulator.llm.architecture import Architecture
from simulator.llm.fields import Fields, joined_lines, shown_value
from simulator.llm.hf_config import from_hf_config
from simulator.llm.layers import ActiveCounts
from simulator.llm.own_format import from_own_fields, is_own_format
from simulator.llm.published_names import NamedCheckpoint, named_checkpoint, stated_formats, with_formats

_SUFFIXES = (".json", ".yaml", ".yml")
_GGUF = ".gguf"
_CONFIG_NAME, _QUANT_NAME = "config.json", "hf_quant_config.json"
"""File names of a model's config, and of NVIDIA ModelOpt's quantisation config in the same folder."""
_ENTRY_FIELDS = ("name", "aliases", "source", "published_parameters", "expert_routing", "config")


@dataclass(frozen=True, slots=True)
class PublishedParameters:
    """Parameter counts that a model's makers state, to check the catalogue against."""

    total: int
    active: int | None
    """Active parameters per token; None if not stated."""
    active_counts: ActiveCounts
    """Tables in the stated active count (``Architecture.active_counts``)."""
    exact: bool
    """True if ``total`` is exact to the last digit, as counted from the checkpoint's tensors."""
    other_parameters: int
    """Weights in ``total`` outside the language model: a vision encoder and its projector."""
    includes_mtp: bool
    """True if ``total`` includes the MTP layers with their own copies of embedding and LM head."""
    source: str


def architecture_names() -> tuple[str, ...]:
    """Names of the catalogue, sorted."""
    return tuple(sorted(_catalogue_names()))


@cache
def architecture_aliases() -> Mapping[str, str]:
    """Alias (Hugging Face repository, in lower case) -> catalogue name."""
    names = architecture_names()
    return {alias.lower(): name for name in names for alias in _catalogue_entry(name).texts("aliases")}


def published_repositories(model: str) -> tuple[str, ...]:
    """Hugging Face repositories of a catalogue model, as they are spelled there; empty for any other model."""
    checkpoint = readable_checkpoint(model)
    name = checkpoint.model if checkpoint else _catalogue_name(model)
    return tuple(alias for alias in _catalogue_entry(name).texts("aliases") if "/" in alias) if name else ()


def load_architecture(model: str | Path | Mapping[str, object]) -> Architecture:
    """Find and read a model.

    Args:
        model: a catalogue name (``llama-3.1-8b``), a Hugging Face repository of such a model in any format that its
            name states, ``hf:OWNER/NAME`` (its config in the local cache), a file (JSON or YAML: a config.json, or
            Forerun's own fields) or folder with a config.json, or the fields themselves.

    Raises:
        ForerunError: no such model or file, or a wrong field; one line naming it and the way out.
    """
    if isinstance(model, Mapping):
        return _from_values(model, "model")
    if isinstance(model, str) and (known := _catalogue_name(model)):
        return _from_catalogue(known)
    if not isinstance(model, str | Path) or not str(model).strip():
        raise ForerunError(f"model: must name a model or a file, not {shown_value(model)} (forerun models list)")
    if isinstance(model, str) and model.startswith("hf:"):
        from simulator.llm.hub import hub_folder

        return replace(_from_file(hub_folder(model)), name=model.rpartition("/")[2].partition("@")[0].lower())
    path = Path(model)
    if _exists(path):
        return _from_file(path)
    if isinstance(model, Path) or path.suffix.lower() in (*_SUFFIXES, _GGUF):
        raise ForerunError(f"{model}: no such file")
    if (named := _from_name(model)) is not None:
        return named
    names = (*architecture_names(), *architecture_aliases())
    hint = _published_hint(model) or did_you_mean(model.lower(), [n for n in names if _may_mean(model, n)])
    cached = f"hf:{model} from the Hugging Face cache, " if re.fullmatch(r"[\w.-]+/[\w.-]+", model) else ""
    raise ForerunError(
        joined_lines(f"model: no model '{model[:120]}'{hint} (forerun models list, {cached}or a path to a config.json)")
    )


def _may_mean(text: str, name: str) -> bool:
    """True if a model of the catalogue has the generation and the size of a text, where that names them.

    >>> pairs = ("lama-1b", "llama-3.2-1b"), ("qwen3-7b", "qwen3-1.7b"), ("mistral-8b", "mixtral-8x7b")
    >>> tuple(_may_mean(*pair) for pair in pairs)
    (True, False, False)
    """
    sizes = r"(?<![\d.])\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?b\b"
    return _version(text) in ("", _version(name)) and {*re.findall(sizes, text.lower())} <= {*re.findall(sizes, name)}


def _version(name: str) -> str:
    """First number in a model's name that is no size, its generation in most families; empty if there is none."""
    number = re.search(r"\d+(\.\d+)?(?![\d.]*b)", name.rsplit("/", 1)[-1].lower())
    return number[0] if number else ""


def published_parameters(name: str) -> PublishedParameters | None:
    """Parameter counts that the makers of a catalogue model state; None if they state none.

    Raises:
        ForerunError: not a catalogue name.
    """
    known = _catalogue_name(name)
    if known is None:
        raise ForerunError(f"model: no model '{name[:120]}'{did_you_mean(name, architecture_names())}")
    return _published(_catalogue_entry(known))


def _published(entry: Fields) -> PublishedParameters | None:
    if not entry.has("published_parameters"):
        return None
    fields = entry.section("published_parameters")
    fields.refuse_others(PublishedParameters.__dataclass_fields__)
    return PublishedParameters(
        total=fields.whole("total", high=10**14),
        active=fields.whole_or("active", None, high=10**14),
        active_counts=cast(ActiveCounts, fields.choice("active_counts", get_args(ActiveCounts), "with-embedding")),
        exact=fields.flag("exact", False),
        other_parameters=fields.whole_or("other_parameters", 0, high=10**14),
        includes_mtp=fields.flag("includes_mtp", False),
        source=str(fields.require("source")),
    )


@cache
def _catalogue_names() -> frozenset[str]:
    return frozenset(file.stem for file in packaged_file("simulator.llm", "catalogue").glob("*.yaml"))


@cache
def _catalogue_entry(name: str) -> Fields:
    file = f"catalogue/{name}.yaml"
    return Fields.of(parse(packaged_file("simulator.llm", file).read_text("utf-8")), file)


@cache
def _from_catalogue(name: str) -> Architecture:
    return _from_entry(_catalogue_entry(name), name)


def _catalogue_name(model: str) -> str | None:
    """Catalogue name for a model name in any case or a repository; only repositories need a search of all files."""
    lowered = model.lower()
    if lowered in _catalogue_names():
        return lowered
    return architecture_aliases().get(lowered) if "/" in model and not model.endswith((*_SUFFIXES, _GGUF)) else None


def _from_entry(entry: Fields, name: str | None) -> Architecture:
    """A model in the catalogue's form: source and published counts around the fields of a config.json."""
    entry.refuse_others(_ENTRY_FIELDS)
    source = entry.section("source")
    source.refuse_others(("kind", "reference", "date"))
    reference = source.text("reference", None) or str(source.require("reference", "where the numbers come from"))
    config = entry.section("config")
    name = entry.text("name", name)
    architecture = from_hf_config(config.values, name=name, source=f"{entry.source}: config")
    published = _published(entry)
    counts = published.active_counts if published and published.active else architecture.active_counts
    if entry.has("expert_routing"):
        routing = entry.section("expert_routing")
        routing.refuse_others(("typical", "least", "most", "source"))
        typical, *ends = (str(routing.require(key)) for key in ("typical", "least", "most"))
        architecture = replace(architecture, expert_routing=typical, expert_routing_range=(ends[0], ends[1]))
    return replace(architecture, source=reference, active_counts=counts)


def _from_values(values: Mapping[str, object], source: str, name: str | None = None) -> Architecture:
    fields = Fields.of(values, source)
    if isinstance(fields.get("config"), Mapping):
        return _from_entry(fields, name)
    if is_own_format(values):
        return from_own_fields(values, source=source)
    return from_hf_config(values, source=source, name=name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _from_file(path: Path) -> Architecture:
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ForerunError(f"{path}: no such file (a model's folder holds a config.json)")
    if path.suffix.lower() == _GGUF:
        from simulator.llm.gguf_file import from_gguf  # an extra's package, and only here

        return from_gguf(path)
    if path.name.endswith(_QUANT_NAME):
        path = _beside(path, _QUANT_NAME, _CONFIG_NAME)
        if not path.is_file():
            raise ForerunError(f"{path}: no such file (a quantisation config is read beside its model's config.json)")
    separate = _beside(path, _CONFIG_NAME, _QUANT_NAME)
    beside = path.name.endswith(_CONFIG_NAME) and separate.is_file()
    return _from_texts(path, _text(path), separate, _text(separate) if beside else None)


@lru_cache(maxsize=64)  # of what was in the files: a study requests its model at every run
def _from_texts(path: Path, text: str, separate: Path, quantisation: str | None) -> Architecture:
    values = _object(path, text)
    own = values.get("quantization_config")
    own = own if isinstance(own, Mapping) else {}
    unnamed = bool(own) and "quant_method" not in own
    if quantisation is not None and (unnamed or _states_no_quantisation(values)):
        stated = Fields.of(_object(separate, quantisation), str(separate)).section("quantization")
        values = {**values, "quantization_config": {"quant_method": "modelopt", **stated.values, **own}}
    name = path.resolve().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    return _from_values(values, str(path), name or None)


def config_fields(path: Path) -> Fields:
    """Fields of a config.json, or of the one in a folder."""
    file = path / _CONFIG_NAME if path.is_dir() else path
    return Fields.of(_object(file, _text(file)), str(file))


def _beside(path: Path, name: str, other: str) -> Path:
    return path.with_name(path.name.removesuffix(name) + other)


def _states_no_quantisation(values: Mapping[str, object]) -> bool:
    sections = (values, *(value for value in values.values() if isinstance(value, Mapping)))
    return not any({"quantization_config", "quantization"} & section.keys() for section in sections)


def _text(path: Path) -> str:
    if path.suffix.lower() not in _SUFFIXES:
        raise ForerunError(f"{path}: a model file ends in {', '.join((*_SUFFIXES, _GGUF))}")
    try:
        return bounded_text(path)
    except TooLargeError as error:
        raise ForerunError(f"{error}; give the model's config.json") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ForerunError(f"{path}: cannot be read as text: {getattr(error, 'strerror', None) or error}") from None


def _object(path: Path, text: str) -> Mapping[str, object]:
    try:
        values = json.loads(text) if path.suffix.lower() == ".json" else parse(text)
    except yaml.MarkedYAMLError as error:
        line = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ForerunError(f"{path}:{line} is not valid YAML: {error.problem}") from None
    except json.JSONDecodeError as error:
        raise ForerunError(f"{path}: line {error.lineno} is not valid JSON: {error.msg}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ForerunError(f"{path}: cannot be parsed: {str(error).splitlines()[0][:120]}") from None
    if not isinstance(values, Mapping):
        raise ForerunError(f"{path}: must be an object of fields, not a {type(values).__name__}")
    return values


def stored_dtype(model: str, dtype: str) -> str:
    """The catalogue's format of a published one: FP8 of some repositories has a scale for each block."""
    return next((one for one in stated_formats(model) if dtype == "fp8" and one == "fp8_block"), dtype)


def _published_hint(text: str) -> str:
    """Catalogue model and formats that a published name means, as a hint; empty if the catalogue has no such model."""
    named = named_checkpoint(text, _known_models())
    if named is None:
        return ""
    if named.formats is None:
        return f"; did you mean '{named.model}'?"
    if named.formats:
        return f"; it is {named.model} with weights_dtype: {' or '.join(named.formats)} here"
    if re.search("gguf$", text.lower()):
        return f"; it is {named.model}; name the file type too: {text}:Q4_K_M"
    return f"; it is {named.model} in a format that the name leaves open; set weights_dtype beside model: {named.model}"


def named_dtype(model: str) -> str | None:
    """Weight format in a model's name, such as ``fp4`` for "Kimi-K2.6-NVFP4"; None without exactly one."""
    formats = stated_formats(model)
    return formats[0] if len(formats) == 1 else None


def catalogue_model(text: str) -> str | None:
    """Catalogue model of a published name, ignoring owner, tuning and format suffix; None if unknown."""
    named = named_checkpoint(text, _known_models())
    return None if named is None else named.model


def readable_checkpoint(model: object) -> NamedCheckpoint | None:
    """Model and format of a name that means one of each; None for a name of the catalogue and for anything else."""
    if not isinstance(model, str) or _catalogue_name(model):
        return None
    named = named_checkpoint(model, _known_models())
    return named if named is not None and named.readable else None


@lru_cache(maxsize=64)
def _from_name(text: str) -> Architecture | None:
    named = readable_checkpoint(text)
    return None if named is None else with_formats(_from_catalogue(named.model), text, named)


@cache
def _known_models() -> dict[str, str]:
    aliases = architecture_aliases()
    known = {alias.rsplit("/", 1)[-1]: name for alias, name in sorted(aliases.items(), reverse=True)}
    return {**known, **aliases, **{name: name for name in architecture_names()}}


Model = Architecture
load_model = named_arguments(load_architecture, "load_model")
