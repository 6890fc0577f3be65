"""Scenarios from a browser: checked for server files that they name and for size.

A scenario is read in the process that runs it, with limits of memory and time: a short text can take long to read.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

from dashboards.app.jobs import ProgressCallback, RunTask
from dashboards.app.served import LARGEST_LOG_BYTES, LARGEST_MEASURED_BYTES, LOGS, RESULTS, SESSION, ServedFolders
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.llm import architecture_aliases, published_head_names
from simulator.llm.load import readable_checkpoint
from simulator.running.measured_runs import run_scenario
from simulator.running.metrics.files import write_text_atomically
from simulator.running.scenario import Scenario, parse_yaml, scenario_from
from simulator.studies.steady_state.ranges import few_requests
from traces.benchmark_results import read_runs

LARGEST_MESSAGE_BYTES = 24 * 2**20
"""Largest request from a browser, bytes: uploads, and figures sent back to be saved."""
LARGEST_UPLOAD_BYTES = 512 * 1024
LOG_ENDINGS = (".csv", ".tsv", ".jsonl")
MOST_KEPT = 16
"""Maximum number of retained files per session and folder; older files are removed."""
MOST_RESULTS = 10
"""Maximum number of benchmark results that a prediction rests on."""
UNCHECKED, DEPLOYMENTS = "unchecked", "deployments.json"
MOST_MEASURED_REQUESTS = 20_000
"""Maximum number of requests of an uploaded benchmark result, which the server simulates again."""
MOST_REQUESTS = 200_000
"""Maximum number of requests of a run that the app simulates."""
MOST_TOKENS = 2_000_000
"""Maximum tokens of a prompt, an answer or a system prompt."""
MOST_REPLICAS = 1024
Key = str | int


@dataclass(frozen=True, slots=True)
class UploadTask:
    """Task that reads an uploaded scenario and runs it."""

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
    """Save an uploaded request log for this session, and return the label under which it is served."""
    if not name.lower().endswith(LOG_ENDINGS):
        raise ForerunError(
            f"{name[:80]}: a log of requests is CSV, TSV or JSONL text, one request a line ({', '.join(LOG_ENDINGS)}); "
            f"put a compressed or Parquet file into a folder that forerun dash serves"
        )
    if len(contents) * 3 // 4 > LARGEST_LOG_BYTES:
        raise ForerunError(
            f"{name[:80]}: larger than {LARGEST_LOG_BYTES >> 20} MiB; forerun workloads show and forerun plan take it"
        )
    complaint = f"{name[:80]}: not a text file; a log of requests is CSV or JSONL text"
    return f"{SESSION}/{_keep(contents, name, LOGS, complaint, served).name}"


def _keep(contents: str, name: str, kind: str, complaint: str, served: ServedFolders) -> Path:
    """Write an uploaded text into the session's folder ``kind``, under a name that no path can be."""
    file = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[-60:] or kind
    text = _decoded(contents.partition(",")[2], complaint)
    folder = served.session / kind
    folder.mkdir(parents=True, exist_ok=True)
    before = sorted((path for path in folder.iterdir() if path.name != file), key=lambda path: path.stat().st_mtime)
    for old in before[: max(0, len(before) - MOST_KEPT + 1)]:
        old.unlink()
    write_text_atomically(folder / file, text)
    return folder / file


def keep_results(files: Sequence[Mapping[str, str]], data: Json, served: ServedFolders) -> list[str]:
    """Save uploaded benchmark results for this session, all or none, and return their labels.

    ``data`` is the scenario of their deployment with the results that count already; all must be evidence together.
    """
    measured, paths, most = data["measured"], [], f"larger than {LARGEST_MEASURED_BYTES >> 20} MiB"
    base = scenario_from({**data, "measured": None}, "what-if")
    try:
        for contents, name in ((one["contents"], one["name"][-80:]) for one in files):
            if len(contents) * 3 // 4 > LARGEST_MEASURED_BYTES:
                raise ForerunError(f"{name}: {most}; forerun run --measured takes it")
            complaint = f"{name}: not a text file, as every benchmark result is"
            paths.append(_keep(contents, name, UNCHECKED, complaint, served))
            for run in read_runs(paths[-1]):
                confined({"trace": run.trace, "settings": dict(run.settings)}, served, name)
                if (run_scenario(run, base).workload.num_requests or 0) > MOST_MEASURED_REQUESTS:
                    raise ForerunError(
                        f"{name}: more than {MOST_MEASURED_REQUESTS:,} requests; forerun run --measured takes it"
                    )
        few_requests(data | {"measured": measured | {"files": [*measured["files"], *map(str, paths)]}})
        (served.session / RESULTS).mkdir(exist_ok=True)
        return [f"{SESSION}/{path.replace(served.session / RESULTS / path.name).name}" for path in paths]
    finally:
        rmtree(served.session / UNCHECKED, ignore_errors=True)


def pinned(served: ServedFolders, new: Json | None = None) -> Json:
    """Deployments of this session's benchmark results by label, ``new`` ones included, which are remembered."""
    file = served.session / DEPLOYMENTS
    known: Json = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if new:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(file, json.dumps(known := known | new))
    return known


def uploaded_scenario(text: str, name: str, served: ServedFolders) -> Scenario:
    place = Path(name.replace("\\", "/")).name[:80] or "upload"
    data = parse_yaml(text, place)
    if not isinstance(data, dict):
        raise ForerunError(f"{place}: a scenario is a mapping with model, hardware and workload at its top")
    return checked_size(scenario_from(confined(data, served, place), place), place)


def confined(data: Json, served: ServedFolders, place: str) -> Json:
    """Copy of ``data`` with every file name replaced by the path of that file in a served folder.

    Any field may read its text as a path, now or later, so all texts are checked: a text that has the form of a path,
    or that is the name of an existing file, must denote a file in a served folder. Fields of an inline model are data
    and are not checked.
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
    """Return ``scenario`` if the app may run it; a scenario with a trace is limited to ``MOST_REQUESTS`` rows."""
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
    """Maximum value of the field at ``path`` in an uploaded scenario; None = no limit."""
    if path[-1] == "num_requests":
        return MOST_REQUESTS
    if path[-1] in ("replicas", "system_prompts"):
        return MOST_REPLICAS
    return MOST_TOKENS if any("tokens" in str(key) or key == "turns" for key in path) else None


def _known_by_name(path: tuple[Key, ...], text: str) -> bool:
    """True if a name with a slash is a Hugging Face repository of a catalogued model or draft head."""
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
    """(container, key, path) of every value in ``data`` that is not itself a list or mapping."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        here = (*path, key)
        if isinstance(value, dict | list):
            yield from _leaves(value, here)
        else:
            yield data, key, here
