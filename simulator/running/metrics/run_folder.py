"""A run folder: written in one transaction, and read back only if all its files belong to one run.

``summary.json`` identifies the run (a checksum of its content except computing time) and holds a checksum of every
other file; tables, timeline and report carry the same identifier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray
from forerun.document import Json, json_text, plain_json
from forerun.errors import ForerunError
from simulator.running.metrics.files import StagedFiles, locked_folder
from simulator.running.metrics.summary import request_latencies_ms
from simulator.running.metrics.timeline import thinning_remarks, write_timeline
from simulator.running.metrics.usage import BOUNDS, chips_words

if TYPE_CHECKING:
    import pyarrow as pa

    from simulator.running.records import RunRecords

Column = FloatArray

SUMMARY_FILE = "summary.json"
REQUESTS_FILE = "requests.parquet"
STEPS_FILE = "steps.parquet"
TIMELINE_FILE = "trace.json"
OWN_TIMES = ("cpu_s", "wall_s")
"""Parts of ``engine`` that differ between runs of the same scenario and seed."""
RUN_KEY = b"forerun.run"
"""Metadata key of the Parquet tables under which the name of their run is stored."""
REQUEST_COLUMNS = (
    *("arrival_s", "input_tokens", "output_tokens", "preemptions", "scheduled_s", "first_token_s", "finished_s"),
    *("failed", "ttft_ms", "tpot_ms", "e2el_ms"),
)
STEP_COLUMNS = (
    *("replica", "start_s", "seconds", "output_tokens", "running", "waiting", "kv_blocks"),
    *(f"{bound}_s" for bound in BOUNDS),
)
MOST_KEPT_ROWS = 2_000_000
"""Rows beyond which a table's columns are not kept but read again when needed."""


def write_run(
    folder: Path,
    result: RunRecords,
    document: Json,
    also: Mapping[str, Callable[[Path], object]] | None = None,
) -> Json:
    """Write the records of ``result`` and its ``document`` into ``folder``; all files appear together or none does.

    ``requests.parquet`` and ``steps.parquet`` hold the columns of the records (seconds, tokens, FLOPs, bytes), the
    former also ``ttft_ms``, ``tpot_ms`` and ``e2el_ms``; null where something never happened. ``trace.json`` opens in
    ui.perfetto.dev and chrome://tracing.
    """
    kept = getattr(result, "steps_kept", True)
    if not kept:
        result = replace(result, steps=result.steps.take(np.zeros(0, dtype=np.int64)))
    remarks = thinning_remarks(len(result.steps), len(result.requests))
    if not kept:
        remarks.append("no step records were kept: figures over time are missing")
    if document.get("replications", 1) > 1:
        remarks.append(
            f"the tables, figures and timeline beside this summary are those of the run with seed {result.seed}"
        )
    document = document | {"notes": [*document.get("notes", ()), *remarks]}
    run = run_id(document)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder), StagedFiles(folder) as staged:
        staged.add(REQUESTS_FILE, lambda path: write_parquet(path, run_columns(result, "requests"), run))
        staged.add(STEPS_FILE, lambda path: write_parquet(path, run_columns(result, "steps"), run))
        staged.add(TIMELINE_FILE, lambda path: write_timeline(path, result, run=run))
        sums = {name: checksum(staged.place / name) for name in (REQUESTS_FILE, STEPS_FILE, TIMELINE_FILE)}
        document |= {"run": run, "files": sums}
        summary = json_text(document)
        (staged.place / SUMMARY_FILE).write_text(summary, encoding="utf-8")
        for name, make in (also or {}).items():
            make(staged.place)
            staged.made(name)
        # Last, so that a move that was interrupted leaves an old summary, whose checksums the new tables do not have.
        staged.add_text(SUMMARY_FILE, summary)
    return document


def run_id(document: Mapping[str, Any]) -> str:
    """A checksum of all that ``document`` says: the same for the same scenario, seed and version."""
    content = {key: value for key, value in plain_json(document).items() if key not in ("run", "files")}
    if isinstance(content.get("engine"), dict):
        content["engine"] = {key: value for key, value in content["engine"].items() if key not in OWN_TIMES}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def run_columns(result: RunRecords, name: str) -> pa.Table:
    """The ``requests`` (with their latencies in ms) or ``steps`` of a run as their files hold them: NaN as null."""
    import pyarrow as pa

    columns: Mapping[str, NDArray[np.generic]] = result.steps.columns()
    if name == "requests":
        latencies = {f"{key}_ms": values for key, values in request_latencies_ms(result.requests).items()}
        columns = result.requests.columns() | latencies
    return pa.table({key: pa.array(values, from_pandas=True) for key, values in columns.items()})


def write_parquet(path: Path, table: pa.Table, run: str = "") -> None:
    """Write a table as Parquet (zstd), with the name of the run that it is of."""
    import pyarrow.parquet as pq

    with path.open("wb") as file:  # Arrow opens no name that is not UTF-8
        pq.write_table(table.replace_schema_metadata({RUN_KEY: run.encode()}), file, compression="zstd")


def checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return "sha256:" + hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class RunFolder:
    """Contents of a run folder; columns are floats, NaN for events that never happened. Equal only to itself."""

    folder: Path
    document: Json
    requests: Mapping[str, Column]
    steps: Mapping[str, Column]

    @property
    def basis(self) -> str:
        return str(self.document["basis"])

    @property
    def name(self) -> str:
        """Model and hardware in a few words, e.g. ``llama-3.1-8b on 2 x h100-sxm``."""
        model = self.document["scenario"]["model"]
        name = model if isinstance(model, str) else str(model.get("name") or model.get("model_type") or "inline model")
        return f"{Path(name).name} on {chips_words(self.document)}"


def load_run(folder: Path) -> RunFolder:
    """Read the run in ``folder``."""
    document = load_summary(folder)
    for name in (REQUESTS_FILE, STEPS_FILE, TIMELINE_FILE):
        path = folder / name
        if name == TIMELINE_FILE and not path.is_file():
            continue
        if not path.is_file():
            raise ForerunError(f"{path}: missing from the run folder; run the scenario again with --out")
        if checksum(path) != document["files"].get(name):
            raise ForerunError(
                f"{path}: not of the run in {SUMMARY_FILE}, or changed since; run the scenario again with --out"
            )
    return RunFolder(
        folder,
        document,
        LazyColumns(folder / REQUESTS_FILE, REQUEST_COLUMNS),
        LazyColumns(folder / STEPS_FILE, STEP_COLUMNS),
    )


def load_summary(folder: Path) -> Json:
    """``summary.json`` of the run in ``folder``, as it was written."""
    path = folder / SUMMARY_FILE
    if not path.is_file():
        raise ForerunError(
            f"{folder}: no {SUMMARY_FILE} in it (forerun run SCENARIO --out {folder} writes a run folder)"
        )
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ForerunError(f"{path}: not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("summary"), dict):
        raise ForerunError(f"{path}: not the summary of a run")
    files = document.get("files")
    if not isinstance(files, dict) or not {REQUESTS_FILE, STEPS_FILE} <= files.keys():
        raise ForerunError(
            f"{path}: has no checksums of the files beside it, as an earlier Forerun wrote it; run the scenario again "
            f"with --out"
        )
    if document.get("run") != run_id(document):
        raise ForerunError(f"{path}: changed since the run was written; run the scenario again with --out")
    return document


class LazyColumns(Mapping[str, Column]):
    """Columns of a Parquet file as floats, each read when it is requested; columns of small tables are kept."""

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with path.open("rb") as file:
                metadata = pq.read_metadata(file)
        except pa.ArrowInvalid as error:
            raise ForerunError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
        present = metadata.schema.to_arrow_schema().names
        absent = [name for name in names if name not in present]
        if absent:
            raise ForerunError(f"{path}: no column {absent[0]!r}")
        self.rows = int(metadata.num_rows)
        self._path, self._names = path, names
        self._kept: dict[str, Column] = {}

    def __getitem__(self, name: str) -> Column:
        if name not in self._names:
            raise KeyError(name)
        column = self._kept[name] if name in self._kept else self._read(name)
        if self.rows <= MOST_KEPT_ROWS:
            self._kept[name] = column
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str) -> Column:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self._path.open("rb") as file:
                values = pq.read_table(file, columns=[name])[name]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ForerunError(f"{self._path}: {name}: cannot be read: {str(error).splitlines()[0]}") from None
        if values.null_count or pa.types.is_boolean(values.type):
            values = values.cast(pa.float64())
        return np.asarray(values.to_numpy(), dtype=np.float64)
