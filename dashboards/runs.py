"""A run folder (summary.json, requests.parquet, steps.parquet) as arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
BOUNDS = ("compute", "memory", "interconnect", "latency", "host")
"""What limits a step; ``steps.parquet`` has a column of seconds for each."""
STEP_COLUMNS = (
    *("replica", "start_s", "seconds", "output_tokens", "running", "waiting", "kv_blocks"),
    *(f"{bound}_s" for bound in BOUNDS),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run folder holds; columns as floats, NaN where something never happened."""

    folder: Path
    document: dict[str, Any]
    requests: dict[str, Column]
    steps: dict[str, Column]

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
    except ValueError as error:
        raise ForerunError(f"{summary}: not JSON: {error}") from None
    missing = [key for key in ("summary", "basis", "scenario", "bottleneck", "kv_cache") if key not in document]
    if missing:
        raise ForerunError(f"{summary}: not the summary of a run: no {missing[0]!r}")
    return Run(
        folder,
        document,
        _read_columns(folder / "requests.parquet", REQUEST_COLUMNS),
        _read_columns(folder / "steps.parquet", STEP_COLUMNS),
    )


def _read_columns(path: Path, names: Sequence[str]) -> dict[str, Column]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise ForerunError(f"{path}: missing from the run folder; run the scenario again with --out")
    try:
        table = pq.read_table(path, columns=list(names))
    except pa.ArrowInvalid as error:
        raise ForerunError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from None
    absent = [name for name in names if name not in table.column_names]
    if absent:
        raise ForerunError(f"{path}: no column {absent[0]!r}")
    return {name: _floats(table[name]) for name in names}


def _floats(column: Any) -> Column:
    import pyarrow as pa

    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
