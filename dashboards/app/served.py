"""Files that the app may read: runs, logs and kernel traces inside the served folders, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from dashboards.replay_report import KERNELS, kind_of
from forerun.document import Json
from forerun.errors import ForerunError
from simulator.running.metrics.run_folder import RunFolder, load_run
from simulator.running.scenario import LOG_SUFFIXES
from traces import TraceError, sample_names, sample_path
from traces.files import head, is_parquet
from traces.kernels import recognise_columns
from traces.requests.detect import open_trace

DEPTH = 5
"""Maximum depth of subfolders that are searched below a served folder."""
MOST_ENTRIES = 20_000
"""Maximum number of files that a search visits."""
MOST_TRACES = 300
LARGEST_TRACE_BYTES = 256 * 2**20
TRACE_SUFFIXES = (".csv", ".parquet", ".csv.gz")
LARGEST_MEASURED_BYTES = 8 * 2**20
LARGEST_LOG_BYTES = 16 * 2**20
"""Largest size of a request log, bytes; larger logs can only be read on the command line."""
LOGS, RESULTS = "logs", "results"
"""Folders of a session's uploaded logs and benchmark results."""
MEASURED_SUFFIXES = (".csv", ".json", ".jsonl")
T = TypeVar("T")
OWN_FILES = ("summary.json", "trace.json", "plan.json", "replay.json", "compare.json", "sweep.json", "tune.json")
RUN_FILES = ("requests.parquet", "steps.parquet")
SESSION = "this session"
SAMPLE_TRACE = "shipped sample: kernels on one CPU core"
SAMPLE_CHIP = "shipped sample: one core of that CPU"


@dataclass(frozen=True, slots=True)
class ServedFolders:
    """Folders whose runs and traces are shown, and the folder for runs that the app simulates.

    Every file is addressed by a label that this class generates; an unknown label is refused, so no text from a browser
    is ever used as a path.
    """

    folders: tuple[Path, ...]
    """Served folders; they may be empty."""
    session: Path
    """Folder for the runs of one session, or for all sessions before ``of_session`` selects one."""
    given: tuple[Path, ...] = ()
    """Benchmark results that the what-if page starts with."""

    @classmethod
    def of(cls, folders: Iterable[Path], place: Path, given: Iterable[Path] = ()) -> ServedFolders:
        """Serve folders, with ``place`` for the runs that the app simulates, and benchmark results to start with."""
        paths = tuple(Path(folder).resolve() for folder in folders)
        for folder in paths:
            if not folder.is_dir():
                raise ForerunError(f"{folder}: no such folder to serve")
        return cls(paths, place.resolve(), tuple(Path(path).resolve() for path in given))

    def of_session(self, name: str) -> ServedFolders:
        """Copy with the same folders and the runs of one session alone."""
        return replace(self, session=self.session / name)

    def runs(self) -> dict[str, Path]:
        """Run folders by label: runs of this session first, then runs of the served folders by name."""
        folders = {label: path.parent for label, path in self._documents("summary.json").items()}
        return {label: at for label, at in folders.items() if all((at / name).is_file() for name in RUN_FILES)}

    def run(self, label: str) -> RunFolder:
        folder = _labelled(self.runs(), "run", "run", label)
        return _load(folder, (folder / "summary.json").stat().st_mtime_ns)

    def plans(self) -> dict[str, Path]:
        """``plan.json`` of capacity plans by label: this session's plans first, then plans of the served folders."""
        return self._documents("plan.json")

    def plan(self, label: str) -> Json:
        """The document of the plan with this label."""
        document = self._read(_labelled(self.plans(), "plan", "capacity plan", label), label)
        if not {"candidates", "conclusion", "pareto"} <= document.keys():
            raise ForerunError(f"plan: {label[:120]}: plan.json is not what forerun plan --out writes")
        return document

    def replays(self) -> dict[str, Path]:
        """``replay.json`` of replays of benchmark results or steps by label, this session's replays first."""
        return self._documents("replay.json")

    def replay(self, label: str) -> Json:
        """The document of the replay of benchmark results or steps with this label."""
        document = self._read(_labelled(self.replays(), "replay", "replay", label), label)
        if kind_of(document) in (None, KERNELS):
            raise ForerunError(
                f"replay: {label[:120]}: replay.json is not what forerun replay requests or steps --out writes"
            )
        return document

    def measured(self) -> dict[str, tuple[Path, bool]]:
        """Files of measured serving runs or engine steps by label, with a flag for files of steps."""
        tables = self._tables(MEASURED_SUFFIXES, LARGEST_MEASURED_BYTES, _measured_kind)
        return {name: (path, _measured_kind(path, path.stat().st_mtime_ns) == "steps") for name, path in tables.items()}

    def measured_file(self, label: str) -> tuple[Path, bool]:
        return _labelled(self.measured(), "file", "measured runs or steps", label)

    def traces(self) -> dict[str, Path]:
        """Kernel traces by label, the shipped sample first."""
        traces = {SAMPLE_TRACE: _sample("kernels-cpu.csv")}
        return traces | self._tables(TRACE_SUFFIXES, LARGEST_TRACE_BYTES, _recognised)

    def trace(self, label: str) -> Path:
        return _labelled(self.traces(), "trace", "kernel trace", label)

    def logs(self) -> dict[str, Path]:
        """Request logs by label: logs uploaded in this session, then samples, then logs of the served folders."""
        uploaded = sorted((self.session / LOGS).glob("*"), key=lambda path: -path.stat().st_mtime)
        logs = {f"{SESSION}/{path.name}": path for path in uploaded}
        logs |= {name: sample_path(name) for name in sample_names()}
        return logs | self._tables(LOG_SUFFIXES, LARGEST_LOG_BYTES, _is_log)

    def log(self, label: str) -> Path:
        return _labelled(self.logs(), "log", "log of requests", label)

    def results(self) -> dict[str, Path]:
        """Benchmark results by label: those that the app was started with, then uploads of this session."""
        given = {path.name.replace(",", "-"): path for path in self.given}
        uploaded = sorted((self.session / RESULTS).glob("*"), key=lambda path: path.stat().st_mtime)
        return given | {f"{SESSION}/{path.name}": path for path in uploaded}

    def chip(self, name: str) -> str:
        """Name or file to load for a chip: a catalogue name, or the file of the shipped sample's machine."""
        return str(_sample("kernels-cpu.machine.yaml")) if name == SAMPLE_CHIP else name

    def confined(self, name: str) -> Path | None:
        """File inside a served folder with the relative path ``name``; None if it does not exist or lies outside."""
        for folder in self.folders:
            try:
                path = (folder / name).resolve()
                if path.is_relative_to(folder) and path.is_file():
                    return path
            except (OSError, ValueError):
                continue
        return None

    def _read(self, path: Path, label: str) -> Json:
        """Document of a file, without the server's own folders in its texts."""
        try:
            text = path.read_text(encoding="utf-8")
            for folder in (self.session / LOGS, self.session, *self.folders, sample_path(sample_names()[0]).parent):
                text = text.replace(json.dumps(f"{folder}{os.sep}")[1:-1], "")
            document = json.loads(text)
        except ValueError:
            raise ForerunError(f"{path.stem}: {label[:120]}: {path.name} is not JSON") from None
        return document if isinstance(document, dict) else {}

    def _documents(self, name: str) -> dict[str, Path]:
        """Files of this name by their folder's label: this session's files first, then files of the served folders."""
        made = sorted(self.session.glob(f"*/{name}"), key=lambda path: -path.stat().st_mtime)
        documents = {f"{SESSION}/{path.parent.name}": path for path in made}
        for label, path in self._files():
            if path.name == name:
                documents[os.path.dirname(label) or path.parent.name] = path
        return documents

    def _tables(self, suffixes: tuple[str, ...], largest: int, holds: Callable[[Path, int], object]) -> dict[str, Path]:
        """Files of the served folders by label whose content passes ``holds``, without Forerun's own files."""
        tables: dict[str, Path] = {}
        for label, path in self._files():
            if len(tables) > MOST_TRACES:
                break
            if path.name.endswith(suffixes) and path.name not in (*RUN_FILES, *OWN_FILES):
                stat = path.stat()
                if stat.st_size <= largest and holds(path, stat.st_mtime_ns):
                    tables[label] = path
        return tables

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Files below the served folders with their labels, bounded in depth and number; links are not followed."""
        seen = 0
        for root in self.folders:
            prefix = f"{root.name}/" if len(self.folders) > 1 else ""
            for place, folders, names in os.walk(root):
                inside = Path(place).relative_to(root)
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                if len(inside.parts) >= DEPTH:
                    folders.clear()
                for name in sorted(names):
                    seen += 1
                    if seen > MOST_ENTRIES:
                        return
                    path = Path(place, name)
                    if not path.is_symlink():
                        yield prefix + (inside / name).as_posix(), path


def _labelled(known: Mapping[str, T], field: str, what: str, label: str) -> T:
    if label not in known:
        raise ForerunError(f"{field}: no {what} '{label[:120]}' in the served folders")
    return known[label]


def _sample(name: str) -> Path:
    return Path(str(files("traces") / "samples" / name))


@lru_cache(maxsize=4)
def _load(folder: Path, _modified_ns: int) -> RunFolder:
    return load_run(folder)


@lru_cache(maxsize=4096)
def _is_log(path: Path, modified_ns: int) -> bool:
    """True if a table contains requests; only its head is read."""
    try:
        return not _recognised(path, modified_ns) and open_trace(path, "auto").streams
    except (TraceError, OSError, ValueError, RecursionError):
        return False


def _columns(path: Path) -> tuple[str, ...]:
    """Column names in the first line of a CSV file."""
    line = head(path).decode("utf-8", "replace").splitlines()[0]
    return tuple(name.strip().strip('"') for name in line.split(","))


@lru_cache(maxsize=4096)
def _measured_kind(path: Path, _modified_ns: int) -> str | None:
    """``steps``, ``runs`` or None, by the content of a file."""
    from traces.benchmark_results.read import recognised
    from traces.steps import COLUMNS

    try:
        if path.suffix == ".csv":
            names = set(_columns(path))
            if "measured_s" in names and names <= set(COLUMNS):
                return "steps"
        return "runs" if recognised(path) is not None else None
    except (TraceError, OSError, IndexError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=4096)
def _recognised(path: Path, _modified_ns: int) -> bool:
    """True if the columns of a table are those of a kernel trace; only its head is read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = tuple(pq.read_schema(path).names) if is_parquet(path) else _columns(path)
    except (TraceError, OSError, IndexError, pa.ArrowException):
        return False
    return recognise_columns(names) is not None
