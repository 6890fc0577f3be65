"""Load and validate profiles, from the catalogue or from a user's YAML file; results are cached."""

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from forerun.errors import at_field, named_arguments
from forerun.yaml_files import TooLargeError, bounded_text, packaged, parse, problem_of
from hwprofiles.errors import ProfileError, did_you_mean
from hwprofiles.parameters import FAMILIES, FamilyParameters
from hwprofiles.records import Record, first_problem
from hwprofiles.schema import CORRECTIONS, KINDS, Chip, Link, read_kernel_sets

_R = TypeVar("_R", bound=Record)
_FOLDER = Path(__file__).parent
SOURCES = ("source", "field_sources")
TENSOR_GAIN = 3.0
"""Lowest ratio of fp16 to fp32 FLOP/s at which a chip without bf16 is assumed to have matrix units."""
LOCAL_LIBRARY, BACKENDS = "llama.cpp", ("rocm", "vulkan")
"""Kernel library of single machines, and its back ends that run on one card. Its default parameters are grouped by the
chip's vendor."""


@cache
def chip_names() -> tuple[str, ...]:
    """Return the names of all chips in the catalogue, sorted."""
    return _names("chips")


@cache
def link_names() -> tuple[str, ...]:
    """Return the names of all links in the catalogue, sorted."""
    return _names("links")


def systems() -> Mapping[str, Mapping[str, Any]]:
    """Multi-chip machines: name -> the fields of ``hardware`` that it sets."""
    known: Mapping[str, Mapping[str, Any]] = packaged("hwprofiles", "systems.yaml")
    return known


@named_arguments
def load_chip(name_or_path: str | Path) -> Chip:
    """Return a chip by catalogue name, or from a YAML file (a path that ends in .yaml or .yml).

    A file with ``extends: NAME`` contains only the fields that differ from that catalogue chip.

    Raises:
        ProfileError: no such chip or file, or a missing, unknown or out-of-range field; the message names file and
            field.
    """
    if not isinstance(name_or_path, str | Path):
        raise ProfileError(f"chip: a name or a path is expected (got {name_or_path!r})")
    path = Path(name_or_path)
    if not _is_path(str(name_or_path)):
        return _load_chip_by_name(str(name_or_path))
    if path.resolve().parent == _FOLDER / "chips":
        return _load_chip_by_name(path.stem)
    chip = _load_file(path, Chip)
    return chip.read_from(_profile_of_corrections(chip, path))


def load_link(name_or_path: str | Path) -> Link:
    """Return a link by catalogue name, or from a YAML file (a path that ends in .yaml or .yml).

    Raises:
        ProfileError: no such link or file, or a bad field; the message names file and field.
    """
    if _is_path(str(name_or_path)):
        return _load_file(Path(name_or_path), Link)
    return _load_link_by_name(str(name_or_path))


@cache
def load_defaults(kind: str) -> dict[str, dict[str, FamilyParameters]]:
    """Return the default kernel parameters (family -> dtype -> set) of a class of chips.

    Raises:
        ProfileError: no such class, or a bad field in its file.
    """
    if kind not in KINDS:
        raise ProfileError(f"no chip kind '{kind}'{did_you_mean(kind, KINDS)} (one of {', '.join(KINDS)})")
    sets = _default_sets(kind)[""]
    missing = [family for family in FAMILIES if family not in sets]
    if missing:
        raise ProfileError(f"defaults/{kind}.yaml: no parameters for {', '.join(missing)}")
    return sets


def load_local_defaults(chip: Chip, library: str = LOCAL_LIBRARY) -> dict[str, dict[str, FamilyParameters]]:
    """Return llama.cpp's default kernel parameters (family -> dtype -> set) for an uncalibrated chip. They depend on
    the vendor and, if the library's name ends in one (``llama.cpp-vulkan``), on the back end.

    Empty if the chip's class defaults already describe llama.cpp (Apple), or if the vendor has no entry.
    """
    sets, maker = _default_sets(LOCAL_LIBRARY), _local_maker(chip)
    own = sets.get(maker + library.removeprefix(LOCAL_LIBRARY), sets.get(maker))
    return sets.get(chip.vendor, {}) if own is None else own


def local_backends(chip: Chip) -> tuple[str, ...]:
    """Back ends of llama.cpp that have separate default parameters for the card group of this chip."""
    start = f"{_local_maker(chip)}-"
    names = tuple(name.removeprefix(start) for name in _default_sets(LOCAL_LIBRARY) if name.startswith(start))
    return tuple(name for name in names if name in BACKENDS)


def _local_maker(chip: Chip) -> str:
    """Name of the card group whose llama.cpp kernels a chip uses: the chip's vendor and math formats."""
    rates = chip.compute.dense_flops_per_s
    plain = "bf16" not in rates and rates.get("fp16", 0.0) < TENSOR_GAIN * rates.get("fp32", 0.0)
    kind = "-with-fp8" if "fp8" in rates else ""
    if plain:
        kind = "-without-tensor-cores" if "int8" in rates else "-without-int8"
    return "cpu" if chip.kind == "cpu" else f"{chip.vendor}{kind}"


@cache
def _default_sets(name: str) -> dict[str, dict[str, dict[str, FamilyParameters]]]:
    """Parameter sets of a defaults file, by vendor for llama.cpp and under the key "" for a class of chips.

    A set without a source overrides fields of the first set of its family.
    """
    place = f"defaults/{name}.yaml"
    data = _parse((_FOLDER / place).read_text("utf-8"), place)
    grouped: dict[str, Any] = data if name == LOCAL_LIBRARY else {"": data}
    for families in grouped.values():
        for sets in families.values():
            first = next(iter(sets.values()))
            sets.update({dtype: one if "source" in one else _overlaid(first, one) for dtype, one in sets.items()})
    try:
        return read_kernel_sets(grouped)
    except ValueError as error:
        raise ProfileError(f"{place}: {error}") from None


def _is_path(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text


def _names(folder: str) -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in (_FOLDER / folder).glob("*.yaml")))


@cache
def _load_chip_by_name(name: str) -> Chip:
    chip = _load_named("chips", name, Chip, "chip")
    return chip.read_from(_FOLDER / "fits" / f"{name}.yaml")


@cache
def _load_link_by_name(name: str) -> Link:
    return _load_named("links", name, Link, "link")


def named_chip(text: str) -> str | None:
    """The one chip or system that a device name of ``nvidia-smi``, other tools or cloud providers means; else None.

    >>> [named_chip(name) for name in ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM-64GB", "Tesla V100-SXM2-32GB")]
    ['h100-sxm', None, 'v100-sxm']
    """
    tables = packaged("hwprofiles", "published.yaml")
    plain = re.sub(r"[\s_/,()-]+", " ", text.lower()).strip()
    plain = re.sub(r"^gpu \d+: | uuid: .*", "", re.sub(r"\b(rtx|gtx|rx)(?=\d)", r"\1 ", plain))
    stated = [name for name, pattern in tables["device_names"].items() if re.fullmatch(pattern, plain)]
    if stated or any(re.fullmatch(pattern, plain) for pattern in tables["device_hints"]):
        return next(iter(stated), None)
    words = set(re.sub(r"\b\d+ ?g(i?b)?\b|(?<=sxm)\d", "", plain).split()) - set(tables["plain_words"])
    vendors = {vendor for vendor, names in tables["vendor_words"].items() if words & set(names)}
    words -= {name for names in tables["vendor_words"].values() for name in names}
    alike = [name for name in chip_names() if words and words == set(re.sub("-\\d+gb$|^apple-", "", name).split("-"))]
    chips = [load_chip(name) for name in alike if states_memory_of(plain, name)]
    return chips[0].name if len(chips) == 1 and vendors <= {chips[0].vendor} else None


def states_memory_of(text: str, name: str) -> bool:
    """True unless a device name states a memory that is not the chip's."""
    stated = re.search(r"\b(\d+) ?g(i?b)?\b", text.lower())
    capacity = load_chip(name).memory.capacity_bytes
    return stated is None or 0.92 < capacity / float(stated[1]) / 1e9 < 1.1


def chip_name(text: str, known: tuple[str, ...]) -> str | None:
    """Catalogue chip for a published device name: ``h100-sxm`` for "NVIDIA H100 80GB HBM3"; None if unknown."""
    word = text.strip().lower().replace("_", "-")
    if word in known:
        return word
    if (exact := named_chip(text)) in known:
        return exact
    if (name := _published_chip(word)) is not None:
        return None if name == "none" else name
    named = [chip for chip in known if re.search(r"\d", chip) and re.search(_chip_pattern(chip), word)]
    return max(named, key=len, default=None)


def machine_name(text: str) -> str | None:
    """Catalogue chip or system that a device name of a result or a launch line means.

    >>> [machine_name(name) for name in ("Tenstorrent N300", "n300 L", "T3K")]
    ['n300-board', 'n300-chip', 't3000']
    """
    name = chip_name(text, (*chip_names(), *systems()))
    return board if (board := f"{name}-board") in systems() else name


def _device_hint(text: str) -> str:
    """Hint at the chips or the system that a device name may mean; empty if the tables have none."""
    plain = re.sub(r"[\s_/,-]+", " ", text.lower()).strip()
    hints = packaged("hwprofiles", "published.yaml")["device_hints"]
    meant = next((", ".join(f"'{one}'" for one in hints[key]) for key in hints if re.fullmatch(key, plain)), None)
    system = systems().get(named_chip(text) or "")
    if system is not None:
        return f"; it is {system['tensor_parallel']} x {system['chip']}, and hardware.chip of a scenario takes it"
    return f"; did you mean {' or '.join(meant.rsplit(', ', 1))}?" if meant else ""


def _published_chip(word: str) -> str | None:
    """Catalogue chip of a device name by ``published.yaml``: ``none`` = device without a profile, None = not listed."""
    chips: dict[str, str | None] = packaged("hwprofiles", "published.yaml")["chips"]
    return next((name for pattern, name in chips.items() if re.search(pattern, word)), None)


@cache
def _chip_pattern(chip: str) -> str:
    """Regular expression that finds a catalogue chip in device names: RTX 4090, RTX4090 24GB, nvidia-l40s, V100-SXM2.

    Names with Ti, Super, Laptop, Max-Q or D match only catalogue chips with that word in their name.
    """
    other = "".join(
        rf"(?!.*\b{word}\b)" for word in ("ti", "super", "laptop", "max-q", "d") if word not in chip.split("-")
    )
    end = "(?![0-9a-z])" if chip[-1].isdigit() else ""
    return r"(?<![a-z0-9])" + chip.replace("-", "[ -]?") + end + other


def _load_named(folder: str, name: str, model: type[_R], noun: str) -> _R:
    names = _names(folder)
    if noun == "chip" and name not in names and (exact := named_chip(name)) in names:
        name = exact
    if name not in names:
        known = "forerun chips list" if noun == "chip" else ", ".join(names)
        meant = chip_name(name, names) if noun == "chip" else None
        meant = meant if meant in names and states_memory_of(name, meant) else None
        absent = noun == "chip" and _published_chip(name.lower().replace("_", "-")) == "none"
        hint = "" if absent else did_you_mean(name, names)
        if meant in names and " or '" not in hint:
            hint = f"; did you mean '{meant}'?"
        if noun == "chip":
            hint = _device_hint(name) or hint
        if noun == "chip" and not hint:
            hint = "; it is not in the catalogue; describe it in one YAML file: docs/how-to/own-chip"
        raise ProfileError(f"no {noun} '{name}'{hint} ({known}, or a path to a .yaml file)")
    place = f"{folder}/{name}.yaml"
    return _validate(_extended(_catalogue_data(folder, name), place, model), place, model)


def _catalogue_data(folder: str, name: str) -> dict[str, Any]:
    place = f"{folder}/{name}.yaml"
    data: dict[str, Any] = _parse((_FOLDER / place).read_text("utf-8"), place)
    fits = _FOLDER / "fits" / f"{name}.json"
    if folder == "chips" and fits.exists():
        data["kernels"] = _overlaid(json.loads(fits.read_bytes())["kernels"], data.get("kernels", {}))
    return data


def _profile_of_corrections(chip: Chip, path: Path) -> Path:
    """Profile whose learned corrections apply to a chip read from ``path``. It is ``path``, or the profile of a
    catalogue chip with the same fitted kernels."""
    if chip.kernels and not path.with_suffix(CORRECTIONS).exists():
        for file in sorted((_FOLDER / "fits").glob(f"*{CORRECTIONS}")):
            name = file.name.removesuffix(CORRECTIONS)
            if _load_chip_by_name(name).kernels == chip.kernels:
                return file.with_name(f"{name}.yaml")
    return path


def _load_file(path: Path, model: type[_R]) -> _R:
    try:
        text = bounded_text(path)
    except TooLargeError as error:
        raise ProfileError(f"{error}; is this a profile?") from None
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from None
    return _validate(_extended(_parse(text, str(path)), str(path), model), str(path), model)


def _extended(data: object, place: str, model: type[Record]) -> object:
    """Merge profile data into the catalogue chip that ``extends`` names; a parameter set is replaced as a whole."""
    if model is not Chip or not isinstance(data, dict) or "extends" not in data:
        return data
    own = {key: value for key, value in data.items() if key != "extends"}
    name = data["extends"]
    if name not in chip_names():
        close = did_you_mean(str(name), chip_names())
        raise ProfileError(f"{place}: extends: no chip '{name}'{close} (forerun chips list)")
    base = _catalogue_data("chips", name)
    merged = _overlaid(base, own)
    for group, values in own.items():
        before = base.get(group)
        if isinstance(before, dict) and "source" in before and isinstance(values, dict) and "source" not in values:
            changed = [key for key in values if key not in SOURCES and values[key] != before.get(key)]
            unnamed = {
                "kind": "assumed",
                "reference": f"{place}, which names no source",
                "date": before["source"]["date"],
            }
            merged[group]["field_sources"] = {
                **before.get("field_sources", {}),
                **dict.fromkeys(changed, unnamed),
                **values.get("field_sources", {}),
            }
    if _limits(merged) != _limits(base):  # the kernels of the base chip were not measured on this chip
        merged |= {"like": own.get("like", name), "kernels": own.get("kernels", {})}
    return merged


def _limits(data: Mapping[str, object]) -> list[object]:
    """Profile fields that kernel times depend on: the limits without their sources and without memory capacity."""
    groups = [data.get(group) for group in ("compute", "memory", "on_chip")]
    return [
        {key: value for key, value in group.items() if key not in unmeasured} if isinstance(group, dict) else group
        for group, unmeasured in zip(groups, (SOURCES, (*SOURCES, "capacity_bytes"), SOURCES), strict=True)
    ]


def _overlaid(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, Any]:
    """Merge ``own`` into ``base``; a mapping with a ``source`` is replaced as a whole."""
    merged = dict(base)
    for key, value in own.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict) and "source" not in value:
            merged[key] = _overlaid(before, value)
        else:
            merged[key] = value
    return merged


def _parse(text: str, place: str) -> Any:
    try:
        return parse(text)
    except yaml.YAMLError as error:
        what, line = problem_of(error)
        where = "" if line is None else f":{line}"
        raise ProfileError(f"{place}{where}: not valid YAML: {what}") from None


def _validate(data: object, place: str, model: type[_R]) -> _R:
    if not isinstance(data, dict):
        raise ProfileError(f"{place}: a mapping of fields is needed, found {type(data).__name__}")
    try:
        record = model.model_validate(data)
    except ValidationError as error:
        raise ProfileError(f"{place}: {first_problem(error, model)}") from None
    for field, name in record.links if isinstance(record, Chip) else ():
        if isinstance(name, str):
            with at_field(f"{place}: links.{field}"):
                load_link(name)
    if isinstance(record, Chip) and record.like not in (None, *chip_names()):
        close = did_you_mean(str(record.like), chip_names())
        raise ProfileError(f"{place}: like: no chip '{record.like}'{close} (forerun chips list)")
    return record
