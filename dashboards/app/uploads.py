"""A scenario that came through the browser: safe to parse, and unable to name files of the server."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dashboards.app.served import Served
from simulator.errors import ForerunError
from simulator.llm import architecture_aliases, published_head_names
from simulator.scenario import Scenario, parse_yaml, scenario_from

LARGEST_UPLOAD_BYTES = 512 * 1024
MOST_REQUESTS = 200_000
"""Requests of a run that the app makes."""
Key = str | int


def uploaded_text(contents: str) -> str:
    """The text of an upload as the browser sends it (``data:...;base64,...``).

    Raises:
        ForerunError: too large, or not text.
    """
    encoded = contents.partition(",")[2]
    if len(encoded) * 3 // 4 > LARGEST_UPLOAD_BYTES:
        raise ForerunError(f"upload: larger than {LARGEST_UPLOAD_BYTES // 1024} KiB, which no scenario is")
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise ForerunError("upload: not a text file; a scenario is YAML or JSON") from None


def uploaded_scenario(text: str, name: str, served: Served) -> Scenario:
    """The scenario in an uploaded file.

    Raises:
        ForerunError: not a scenario, one that names files outside the served folders, or one too large for the app.
        TraceError: a trace that cannot be found by name.
    """
    place = Path(name.replace("\\", "/")).name[:80] or "upload"
    refuse_aliases(text, place)
    data = parse_yaml(text, place)
    if not isinstance(data, dict):
        raise ForerunError(f"{place}: a scenario is a mapping with model, hardware and workload at its top")
    return checked_size(scenario_from(confined(data, served, place), place), place)


def refuse_aliases(text: str, place: str) -> None:
    """Refuse YAML aliases, which let a few lines stand for gigabytes.

    Raises:
        ForerunError: there is one.
    """
    try:
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.AliasToken):
                raise ForerunError(f"{place}:{token.start_mark.line + 1}: aliases (*{token.value}) are not taken here")
    except yaml.YAMLError:
        return  # parse_yaml says what is wrong, with the line


def confined(data: dict[str, Any], served: Served, place: str) -> dict[str, Any]:
    """``data`` with every file name replaced by the file of a served folder that it means.

    Any text could be taken for a path by one field or another, now or later, so all are looked at, whatever their
    field: one that has the form of a path, or that happens to name a file from here, must lie in a served folder.
    Fields of an inline model are data and stay as they are.

    Raises:
        ForerunError: a path outside; with its field.
    """
    result: dict[str, Any] = _copy(data)
    inline = isinstance(result.get("model"), dict)
    for holder, key, path in list(_texts(result, ())):
        if inline and path[0] == "model":
            continue
        text = holder[key]
        if not _like_a_path(text) or _known_by_name(path, text):
            continue
        file = served.confined(text)
        if file is None:
            raise ForerunError(
                f"{place}: {'.'.join(map(str, path))}: '{text[:80]}' is no file of the served folders; "
                f"name one of theirs, or something from the catalogue"
            )
        holder[key] = str(file)
    return result


def checked_size(scenario: Scenario, place: str) -> Scenario:
    """``scenario`` if the app may run it.

    Raises:
        ForerunError: too many requests, or replicas.
    """
    asked = scenario.workload.num_requests
    if asked is not None and asked > MOST_REQUESTS:
        raise ForerunError(
            f"{place}: workload.num_requests: at most {MOST_REQUESTS:,} here (got {asked:,}); "
            f"use forerun run for longer ones"
        )
    if asked is None and scenario.workload.trace is not None:
        return scenario.with_values({"workload.num_requests": MOST_REQUESTS})
    return scenario


def _known_by_name(path: tuple[Key, ...], text: str) -> bool:
    """Names with a slash that the catalogues know: Hugging Face repositories of models and draft heads."""
    return path[-1] == "model" and (text.lower() in architecture_aliases() or text in published_head_names())


def _like_a_path(text: str) -> bool:
    if "/" in text or "\\" in text or text.startswith(("~", ".", "file:")) or "\0" in text:
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return True


def _copy(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copy(value) for key, value in data.items()}
    return [_copy(value) for value in data] if isinstance(data, list) else data


def _texts(data: Any, path: tuple[Key, ...]) -> Iterator[tuple[Any, Any, tuple[Key, ...]]]:
    """(holder, key, dotted path) of every text in ``data``."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        here = (*path, key)
        if isinstance(value, str):
            yield data, key, here
        else:
            yield from _texts(value, here)
