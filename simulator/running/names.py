"""Check of a scenario's names in catalogues and files, before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from os.path import isfile
from pathlib import Path
from typing import Any

from forerun.errors import ForerunError, named_arguments
from hwprofiles import chip_names, dtype_bytes, load_chip, load_link, systems
from hwprofiles.catalogue import named_chip
from hwprofiles.dtypes import DTYPES, formats_meant
from hwprofiles.kernels.moe import read_routing
from simulator.llm import architecture_names, load_architecture
from simulator.timing import load_framework
from simulator.timing.deployment import check_weight_format
from traces.catalogue import resolve

Scenario = Any
"""A ``simulator.running.scenario.Scenario``, whose module imports this one."""
SUFFIXES = (".csv", ".gguf", ".json", ".npz", ".yaml", ".yml")


CHIP_FIELDS = ("hardware.chip", "hardware.layers_on.*.chip", "hardware.tensor_chips.*", "pools.*.hardware.chip",
               "speculation.draft.chip")  # fmt: skip
FORMAT_FIELDS = ("weights_dtype", "weights_dtype.*", "kv_cache_dtype", "speculation.draft.weights_dtype")


@named_arguments
def chips() -> tuple[str, ...]:
    """Names of the chips of the catalogue, sorted."""
    return chip_names()


@named_arguments
def models() -> tuple[str, ...]:
    """Names of the models of the catalogue, sorted."""
    return architecture_names()


def places(data: Any, fields: Sequence[str]) -> Iterator[tuple[Any, Any, str]]:
    """Texts of plain data at dotted fields, as (container, key, field); ``*`` in a field matches every entry of a list
    or mapping."""
    for field in fields:
        holders: list[tuple[Any, str]] = [(data, "")]
        *parents, last = field.split(".")
        for part in parents:
            holders = [(one[key], f"{path}{key}.") for one, path in holders for key in _keys(one, part)]
        for holder, path in holders:
            yield from ((holder, key, f"{path}{key}") for key in _keys(holder, last) if isinstance(holder[key], str))


def _keys(holder: Any, name: str) -> list[Any]:
    entries = list(holder) if isinstance(holder, dict) else list(range(len(holder))) if isinstance(holder, list) else []
    return [key for key in entries if name in ("*", str(key))]


def catalogue_words(data: Any) -> tuple[Any, dict[str, str]]:
    """Replace other tools' names of chips and formats by catalogue names; also returns a note by field."""
    notes: dict[str, str] = {}
    for fields, read in ((CHIP_FIELDS, _chip), (FORMAT_FIELDS, _format)):
        for holder, key, field in list(places(data, fields)):
            if (name := read(holder[key])) is not None:
                about = "" if read is _format or name in systems() else f" ({load_chip(name).description})"
                data = data if notes else deepcopy(data)
                notes[field] = f"{field}: '{holder[key]}' is read as {name}{about}"
                for own, place, _ in places(data, [field]):
                    own[place] = name
    return data, notes


def _chip(text: str) -> str | None:
    return None if text in (*chip_names(), *systems()) or _is_file("", text) else named_chip(text)


def _format(text: str) -> str | None:
    formats = formats_meant(text)
    return formats[0] if len(formats) == 1 and text not in DTYPES else None


def check_names(scenario: Scenario, files: bool = True) -> None:
    """Look up chips, links, models, dtypes, frameworks and traces by the names that a scenario gives.

    Compatibility and memory are checked when the scenario is built.

    Args:
        scenario: the scenario.
        files: whether to look up files too; a scenario may be created before its files exist.
    """
    for field, look_up, name in _names(scenario):
        if not files and (isinstance(name, Mapping) or _is_file(field, str(name))):
            continue
        try:
            look_up(name)
        except ForerunError as error:
            text = str(error).removeprefix("model: ").removeprefix("engine.framework: ")
            raise ForerunError(text if text.startswith(f"{field}:") else f"{field}: {text}") from None


def _is_file(field: str, name: str) -> bool:
    """True if a name denotes a file, existing or not."""
    try:
        suffix = Path(name).suffix.lower()
        there = Path(name).is_file() or (field.endswith("model") and name != "" and Path(name).is_dir())
    except (OSError, ValueError):  # a name that no file can have
        return False
    return there or suffix in SUFFIXES or (field == "workload.trace" and suffix != "")


def file_fields(data: Any) -> Iterator[tuple[Any, Any, Path]]:
    """Texts of plain data that name an existing file, as (container, key, path)."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    for place, value in entries:
        if not isinstance(value, str):
            yield from file_fields(value)
        elif ("/" in value or "." in value) and isfile(value):
            yield data, place, Path(value)


def _names(scenario: Scenario) -> Iterator[tuple[str, Callable[[Any], object], Any]]:
    """(field, lookup function, name) for each field of the scenario that is set."""
    hardware, engine, workload = scenario.hardware, scenario.engine, scenario.workload
    names: list[tuple[str, Callable[[Any], object], Any]] = [
        ("model", load_architecture, scenario.model),
        ("kv_cache_dtype", dtype_bytes, scenario.kv_cache_dtype),
        ("hardware.chip", load_chip, hardware.chip),
        ("hardware.link", load_link, hardware.link),
        ("hardware.pipeline_link", load_link, hardware.pipeline_link),
        ("hardware.expert_routing", read_routing, hardware.expert_routing),
        ("engine.framework", load_framework, engine.framework),
        ("engine.host_link", load_link, engine.host_link),
        ("workload.trace", resolve, workload.trace),
    ]
    names += [(f"hardware.layers_on.{i}.chip", load_chip, share.chip) for i, share in enumerate(hardware.layers_on)]
    names += [(f"hardware.tensor_chips.{i}", load_chip, name) for i, name in enumerate(hardware.tensor_chips)]
    dtypes = scenario.weights_dtype
    if isinstance(dtypes, dict):
        names += [(f"weights_dtype.{part}", dtype_bytes, dtype) for part, dtype in dtypes.items()]
    else:
        names.append(("weights_dtype", check_weight_format, dtypes))
    if scenario.kv_transfer is not None:
        names.append(("kv_transfer.link", load_link, scenario.kv_transfer.link))
    draft = scenario.speculation.draft if scenario.speculation is not None else None
    if scenario.speculation is not None and draft is not None:
        names += [("speculation.draft.chip", load_chip, draft.chip), ("speculation.draft.link", load_link, draft.link)]
        if scenario.speculation.method == "draft-model":
            names.append(("speculation.draft.model", load_architecture, draft.model))
    for pool, config in (scenario.pools or {}).items():
        names += [
            (f"pools.{pool}.hardware.chip", load_chip, config.hardware.get("chip")),
            (f"pools.{pool}.hardware.link", load_link, config.hardware.get("link")),
            (f"pools.{pool}.engine.framework", load_framework, config.engine.get("framework")),
        ]
    return (entry for entry in names if entry[2] is not None)
