"""Scenarios from a browser: they name no files of the server and are no larger than the app may run.

It is read in the process that runs it, where memory and time are bounded: a short text can take long to read.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.app.jobs import ProgressCallback, RunTask
from dashboards.app.served import LARGEST_LOG_BYTES, LOGS, SESSION, ServedFolders
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.llm import architecture_aliases, published_head_names
from simulator.llm.load import readable_checkpoint
from simulator.running.metrics.files import write_text_atomically
from simulator.running.scenario import Scenario, parse_yaml, scenario_from

LARGEST_MESSAGE_BYTES = 24 * 2**20
"""Largest request from a browser, bytes: uploads, and figures sent back to be saved."""
LARGEST_UPLOAD_BYTES = 512 * 1024
LOG_ENDINGS = (".csv", ".tsv", ".jsonl")
MOST_LOGS = 6
"""Logs of a session that are kept; older ones are removed."""
MOST_REQUESTS = 200_000
"""Requests of a run that the app makes."""
MOST_TOKENS = 2_000_000
"""Tokens of a prompt, an answer or a system prompt."""
MOST_REPLICAS = 1024
Key = str | int


@dataclass(frozen=True, slots=True)
class UploadTask:
    """Reads an uploaded scenario and runs it."""

    text: str
    name: str
    served: ServedFolders

    def __call__(self, folder: Path, tell: ProgressCallback) -> None:
        RunTask(uploaded_scenario(self.text, self.name, self.served))(folder, tell)


def uploaded_text(contents: str, name: str) -> str:
    """The text of an upload as the browser sends it (``data:...;base64,...``)."""
    encoded = contents.partition(",")[2]
    if not name.lower().endswith((".yaml", ".yml", ".json")):
        raise ForerunError(f"{name[:80]}: a scenario is YAML or JSON; the page Your traffic takes logs of requests")
    if len(encoded) * 3 // 4 > LARGEST_UPLOAD_BYTES:
        raise ForerunError(f"{name[:80]}: larger than {LARGEST_UPLOAD_BYTES // 1024} KiB, which no scenario is")
    return _decoded(encoded, f"{name[:80]}: not a text file; a scenario is YAML or JSON")


def _decoded(encoded: str, complaint: str) -> str:
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise ForerunError(complaint) from None


def keep_log(contents: str, name: str, served: ServedFolders) -> str:
    """Keep an uploaded log of requests for this session, and give the label under which it is served."""
    file = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[-60:] or "log"
    encoded = contents.partition(",")[2]
    if not file.lower().endswith(LOG_ENDINGS):
        raise ForerunError(
            f"{name[:80]}: a log of requests is CSV, TSV or JSONL text, one request a line ({', '.join(LOG_ENDINGS)}); "
            f"put a compressed or Parquet file into a folder that forerun dash serves"
        )
    if len(encoded) * 3 // 4 > LARGEST_LOG_BYTES:
        raise ForerunError(
            f"{name[:80]}: larger than {LARGEST_LOG_BYTES >> 20} MiB; forerun workloads show and forerun plan take it"
        )
    text = _decoded(encoded, f"{name[:80]}: not a text file; a log of requests is CSV or JSONL text")
    folder = served.session / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    before = sorted((path for path in folder.iterdir() if path.name != file), key=lambda path: path.stat().st_mtime)
    for old in before[: max(0, len(before) - MOST_LOGS + 1)]:
        old.unlink()
    write_text_atomically(folder / file, text)
    return f"{SESSION}/{file}"


def uploaded_scenario(text: str, name: str, served: ServedFolders) -> Scenario:
    place = Path(name.replace("\\", "/")).name[:80] or "upload"
    data = parse_yaml(text, place)
    if not isinstance(data, dict):
        raise ForerunError(f"{place}: a scenario is a mapping with model, hardware and workload at its top")
    return checked_size(scenario_from(confined(data, served, place), place), place)


def confined(data: Json, served: ServedFolders, place: str) -> Json:
    """``data`` with every file name replaced by the file of a served folder that it means.

    Any text could be taken for a path by one field or another, now or later, so all are looked at, whatever their
    field: one that has the form of a path, or that happens to name a file from here, must lie in a served folder.
    Fields of an inline model are data and stay as they are.
    """
    result: Json = deepcopy(data)
    inline = isinstance(result.get("model"), dict)
    for holder, key, path in list(_leaves(result, ())):
        text = holder[key]
        if not isinstance(text, str) or (inline and path[0] == "model"):
            continue
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
    """``scenario`` if the app may run it; one with a trace takes as many of its rows as may be."""
    data = scenario.model_dump(mode="json", exclude_none=True, include={"workload", "hardware", "pools"})
    for holder, key, path in _leaves(data, ()):
        most, value = _most_of(path), holder[key]
        if most is not None and isinstance(value, int | float) and value > most:
            raise ForerunError(
                f"{place}: {'.'.join(map(str, path))}: at most {most:,} here (got {value:,.15g}); "
                f"use forerun run for more"
            )
    if scenario.workload.num_requests is None and scenario.workload.trace is not None:
        return scenario.with_values({"workload.num_requests": MOST_REQUESTS})
    return scenario


def _most_of(path: tuple[Key, ...]) -> int | None:
    """Largest number that may stand at this place of an uploaded scenario; None for any."""
    if path[-1] == "num_requests":
        return MOST_REQUESTS
    if path[-1] in ("replicas", "system_prompts"):
        return MOST_REPLICAS
    return MOST_TOKENS if any("tokens" in str(key) or key == "turns" for key in path) else None


def _known_by_name(path: tuple[Key, ...], text: str) -> bool:
    """True if catalogues know a name with a slash: a Hugging Face repository of a model or draft head."""
    known = text in published_head_names() or (readable_checkpoint(text) is not None and not Path(text).exists())
    return path[-1] == "model" and (known or text.lower() in architecture_aliases())


def _like_a_path(text: str) -> bool:
    if "/" in text or "\\" in text or text.startswith(("~", ".", "file:")) or "\0" in text:
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return True


def _leaves(data: object, path: tuple[Key, ...]) -> Iterator[tuple[Any, Any, tuple[Key, ...]]]:
    """(holder, key, path) of every value in ``data`` that holds no others."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        here = (*path, key)
        if isinstance(value, dict | list):
            yield from _leaves(value, here)
        else:
            yield data, key, here
