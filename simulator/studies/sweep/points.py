"""Points of a sweep: their scenarios, the keys of their results, and the function that runs a point."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from forerun.document import Json
from forerun.errors import ForerunError
from simulator.running.names import file_fields
from simulator.running.scenario import Scenario

PACKAGES = ("simulator", "hwprofiles", "traces")
"""Packages whose source and data a result depends on, in addition to its scenario."""
DROPPED = ("scenario", "engine", "per_replication")
"""Parts of a run's document that a point omits: already known, or different in every run."""
ONE_AT_A_TIME = threading.Lock()
"""Lock with which workers that have several threads simulate one point at a time."""


@dataclass(frozen=True, slots=True)
class Point:
    """One combination of a sweep."""

    name: str
    set: Mapping[str, Any]
    scenario: Scenario | None
    """Scenario of the point; None if the combination is invalid, with the reason in ``error``."""
    seed: int
    replications: int
    key: str
    error: str | None = None

    def task(self) -> Json:
        """Task of a worker as plain data; relative file names are made absolute."""
        assert self.scenario is not None
        data = self.scenario.model_dump(mode="json", exclude_unset=True)
        for holder, name, path in file_fields(data):
            holder[name] = str(path.resolve())
        return {"scenario": data, "seed": self.seed, "replications": self.replications, "build": build_mark()}


def make_point(name: str, settings: Mapping[str, Any], scenario: Scenario, seed: int, replications: int) -> Point:
    return Point(name, dict(settings), scenario, seed, replications, point_key(scenario, seed, replications))


def refused_point(
    name: str, settings: Mapping[str, Any], base: Scenario, seed: int, replications: int, error: str
) -> Point:
    mark = [base.model_dump(mode="json"), dict(settings), seed, replications, build_mark(), error]
    return Point(name, dict(settings), None, seed, replications, _digest(mark), error)


def point_key(scenario: Scenario, seed: int, replications: int) -> str:
    """Key of a result: a hash of everything that the result depends on.

    These are the scenario with the content of every file in it, the seeds, and Forerun's version and source code, so
    that results of different origin are never mixed.
    """
    data = scenario.model_dump(mode="json", exclude_none=True)
    for holder, name, path in file_fields(data):
        holder[name] = f"sha256:{_file_digest(str(path.resolve()), path.stat().st_mtime_ns)}"
    return _digest([data, seed, replications, build_mark()])


@cache
def build_mark() -> str:
    """Version and a hash of the source and catalogues, e.g. ``0.1.0+3f2a9c01d4e5``."""
    from forerun.version import VERSION

    mark = hashlib.sha256()
    for package in PACKAGES:
        root = Path(str(resources.files(package)))
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".yaml", ".npz") and path.is_file():
                mark.update(path.relative_to(root).as_posix().encode())
                mark.update(path.read_bytes())
    return f"{VERSION}+{mark.hexdigest()[:12]}"


def run_point(task: Mapping[str, Any]) -> Json:
    """Run a point; callable in a worker process on any machine.

    Returns:
        ``{"document": ...}``, ``{"error": ...}`` if the point cannot be run, or ``{"build": ...}`` if this worker's
        version of Forerun differs from the caller's.
    """
    if task["build"] != build_mark():
        return {"build": build_mark()}
    from simulator.running.metrics import combine_replications
    from simulator.running.scenario import scenario_from
    from simulator.studies.runs import run_document_of

    try:
        with ONE_AT_A_TIME:
            scenario = scenario_from(task["scenario"], "scenario")
            seeds = range(task["seed"], task["seed"] + task["replications"])
            measured = scenario.measured is not None
            documents = [run_document_of(scenario, seed, intervals=measured and seed == seeds[0]) for seed in seeds]
            combined = combine_replications(documents)
    except Exception as error:
        text = " ".join(str(error).split())
        kind = "" if isinstance(error, ForerunError | OSError) else f"internal error: {type(error).__name__}: "
        return {"error": f"{kind}{text}"}
    engine = {name: combined["engine"][name] for name in ("steps", "simulated_s")}  # not what differs between machines
    return {"document": {name: value for name, value in combined.items() if name not in DROPPED} | {"engine": engine}}


@cache
def _file_digest(path: str, changed_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:32]
