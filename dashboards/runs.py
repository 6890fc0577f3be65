"""A run folder (summary.json, requests.parquet, steps.parquet) as arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.metrics.pools import chips_words

Column = NDArray[np.float64]

REQUEST_COLUMNS = (
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "preemptions",
    "scheduled_s",
    "first_token_s",
    "finished_s",
    "failed",
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
)
MOST_KEPT_ROWS = 2_000_000
"""Columns of larger tables are read anew whenever they are needed."""
BOUNDS = ("compute", "memory", "interconnect", "latency", "host")
"""What limits a step; ``steps.parquet`` has a column of seconds for each."""
STEP_COLUMNS = (
    *("replica", "start_s", "seconds", "output_tokens", "running", "waiting", "kv_blocks"),
    *(f"{bound}_s" for bound in BOUNDS),
)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run folder holds; columns as floats, NaN where something never happened. Equal only to itself."""

    folder: Path
    document: dict[str, Any]
    requests: Mapping[str, Column]
    steps: Mapping[str, Column]

    @property
    def basis(self) -> str:
        """What the predictions rest on: datasheet, calibrated or extrapolated."""
        return str(self.document["basis"])

    @property
    def name(self) -> str:
        """Model and hardware in a few words, e.g. ``llama-3.1-8b on 2 x h100-sxm``."""
        return run_name(self.document)


def run_name(document: dict[str, Any]) -> str:
    """Model and hardware of a run document in a few words."""
    scenario = document["scenario"]
    model = scenario["model"]
    name = model if isinstance(model, str) else str(model.get("name") or model.get("model_type") or "inline model")
    return f"{Path(name).name} on {chips_words(document)}"


def load_run(folder: Path) -> Run:
    """Read the run in ``folder``.

    Raises:
        ForerunError: when it is not a folder that ``forerun run --out`` wrote, naming the file and what is wrong.
        OSError: when a file cannot be read.
    """
    summary = folder / "summary.json"
    if not summary.is_file():
        raise ForerunError(f"{folder}: no summary.json in it (forerun run SCENARIO --out {folder} writes a run folder)")
    try:
        document = json.loads(summary.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ForerunError(f"{summary}: not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ForerunError(f"{summary}: not the summary of a run")
    missing = [key for key in ("summary", "basis", "scenario", "bottleneck", "kv_cache") if key not in document]
    if missing:
        raise ForerunError(f"{summary}: not the summary of a run: no {missing[0]!r}")
    return Run(
        folder,
        document,
        Columns(folder / "requests.parquet", REQUEST_COLUMNS),
        Columns(folder / "steps.parquet", STEP_COLUMNS),
    )


class Columns(Mapping[str, Column]):
    """Columns of a Parquet file as floats, each read when it is asked for; those of smaller tables are kept.

    Raises:
        ForerunError: the file is missing, no Parquet file, or lacks one of ``names``.
    """

    def __init__(self, path: Path, names: tuple[str, ...]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not path.is_file():
            raise ForerunError(f"{path}: missing from the run folder; run the scenario again with --out")
        try:
            metadata = pq.read_metadata(path)
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
        found = self._kept.get(name)
        if found is None:
            found = self._read(name)
            if self.rows <= MOST_KEPT_ROWS:
                self._kept[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _read(self, name: str) -> Column:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            values = pq.read_table(self._path, columns=[name], memory_map=True)[name]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ForerunError(f"{self._path}: {name}: cannot be read: {str(error).splitlines()[0]}") from None
        if values.null_count or pa.types.is_boolean(values.type):
            values = values.cast(pa.float64())
        return np.asarray(values.to_numpy(), dtype=np.float64)
