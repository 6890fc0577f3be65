"""Replays in the app: of kernel traces at once, of benchmark results and steps in the background."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from dashboards.app.jobs import ProgressCallback
from dashboards.app.served import ServedFolders
from dashboards.recorded_errors import ErrorRow, read_errors
from dashboards.replay_report import write_replay
from forerun.document import Json
from forerun.errors import ForerunError
from forerun.workers import Workers, cores
from hwprofiles import KernelLibrary, load_chip
from simulator.replay import ReplayReport, Split, replay_kernels
from simulator.replay.calibrate import calibrate
from simulator.replay.requests import replay_requests
from simulator.replay.steps import steps_document
from simulator.running.scenario import Scenario, scenario_from
from traces.benchmark_results import read_runs
from traces.kernels import KernelTable, read_kernels
from traces.steps import read_steps

PHYSICS = "the profile as it is"
LEARNED = "the profile with its learned residual"
FITTED = "fitted on 70 % of these shapes, scored on the rest"
LAYERS = (PHYSICS, LEARNED, FITTED)
SPLIT = Split(0.7, 1)
RECORD = "errors.json"
MOST_FITTED = 5000
"""Maximum rows of a trace that is fitted while the user waits."""
MOST_RUNS = 40
"""Maximum number of measured runs of one file that the app simulates, evenly chosen; the command line simulates all."""


def record() -> list[ErrorRow]:
    """Rows of ``errors.json`` from the package or its checkout; empty if neither has the file."""
    package = Path(str(files("dashboards")))
    places = (package / RECORD, package.parent / "docs" / "validation" / RECORD)
    path = next((place for place in places if place.is_file()), None)
    return [] if path is None else _recorded(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _recorded(path: Path, _modified_ns: int) -> list[ErrorRow]:
    return read_errors(path)


def devices(served: ServedFolders, trace: str) -> list[str]:
    """Names of the devices in a served trace; empty if the trace does not name any."""
    table = _table(*_file(served, trace))
    word = table.word("device")
    return sorted({str(word.names[code]) for code in np.unique(word.codes)} - {""})


def replayed(
    served: ServedFolders, trace: str, chip: str, library: str, device: str | None = None, layer: str = PHYSICS
) -> ReplayReport:
    return _replayed(*_file(served, trace), served.chip(chip), library, device, layer)


def _file(served: ServedFolders, trace: str) -> tuple[Path, int]:
    path = served.trace(trace)
    return path, path.stat().st_mtime_ns


@lru_cache(maxsize=2)
def _table(path: Path, _modified_ns: int) -> KernelTable:
    return read_kernels(path)


@lru_cache(maxsize=8)
def _replayed(path: Path, modified_ns: int, chip: str, library: str, device: str | None, layer: str) -> ReplayReport:
    table = _table(path, modified_ns)
    if device is not None:
        table = table.where(table.word("device").equals(device))
        if not len(table):
            raise ForerunError(f"device: no row of '{device[:80]}' in this trace")
    profile = load_chip(chip)
    if layer == FITTED:
        if len(table) > MOST_FITTED:
            raise ForerunError(
                f"trace: {len(table):,} rows are more than the {MOST_FITTED:,} that are fitted here; "
                f"forerun calibrate fits larger traces"
            )
        fitted = calibrate(table, profile, library, SPLIT, residual=False).chip
        return replay_kernels(table, KernelLibrary(fitted, library), SPLIT)
    kernels = KernelLibrary(profile, library, corrected=layer == LEARNED)
    if layer == LEARNED and not kernels.corrections:
        raise ForerunError(f"{chip}: this profile has no learned correction")
    return replay_kernels(table, kernels)


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Task that simulates measured runs, or predicts steps; a scenario supplies what the file does not state."""

    file: Path
    steps: bool
    scenario: Scenario

    def __call__(self, folder: Path, tell: ProgressCallback) -> None:
        if self.steps:
            document = steps_document([read_steps(self.file)], self.scenario)
        else:
            runs, several = read_runs(self.file), cores() > 1
            with Workers(cores() if several else 0) as workers:
                options: Json = {"limit": MOST_RUNS, "progress": tell}
                start = workers.start if several else None
                document = replay_requests(runs, self.scenario, (self.file.name,), start=start, **options).document
        write_replay(folder, document)


def replay_task(
    served: ServedFolders, label: str, model: str, chip: str, framework: str, tensor_parallel: int
) -> ReplayTask:
    """Task for the replay of a served file; model, chip and engine apply if the file does not name them."""
    file, steps = served.measured_file(label)
    data = {
        "model": model,
        "hardware": {"chip": chip, "tensor_parallel": tensor_parallel},
        "engine": {"framework": framework},
        "workload": {"arrivals": {"process": "burst"}, "input_tokens": 512, "output_tokens": 128, "num_requests": 100},
    }
    return ReplayTask(file, steps, scenario_from(data, "replay"))
