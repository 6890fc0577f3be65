"""The files of a run: summary.json, requests.parquet, steps.parquet and trace.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.document import json_text
from simulator.metrics.files import StagedFiles
from simulator.metrics.summary import request_latencies_ms
from simulator.metrics.timeline import thinning_remarks, write_timeline

if TYPE_CHECKING:
    from simulator.run import RunResult

SUMMARY_FILE = "summary.json"
REQUESTS_FILE = "requests.parquet"
STEPS_FILE = "steps.parquet"
TIMELINE_FILE = "trace.json"


def write_run(folder: Path, result: RunResult, document: dict[str, Any]) -> dict[str, Any]:
    """Write the records of ``result`` and its ``document`` into ``folder``; all files appear together or none does.

    ``requests.parquet`` and ``steps.parquet`` hold the columns of the records (seconds, tokens, FLOPs, bytes), the
    former also ``ttft_ms``, ``tpot_ms`` and ``e2el_ms``; null where something never happened. ``trace.json`` opens in
    ui.perfetto.dev and chrome://tracing.

    Returns:
        The document as written: its notes also say which seed the tables are of, where there are several, and what
        the timeline leaves out.

    Raises:
        OSError: when the folder cannot be written; no file of the run is left half-written.
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
    latencies = {f"{name}_ms": values for name, values in request_latencies_ms(result.requests).items()}
    with StagedFiles(folder) as staged:
        staged.add(REQUESTS_FILE, lambda path: write_parquet(path, result.requests.columns() | latencies))
        staged.add(STEPS_FILE, lambda path: write_parquet(path, result.steps.columns()))
        staged.add(TIMELINE_FILE, lambda path: write_timeline(path, result))
        staged.add_text(SUMMARY_FILE, json_text(document))
    return document


def write_parquet(path: Path, columns: Mapping[str, NDArray[np.generic]]) -> None:
    """Write numpy columns as Parquet (zstd), NaN as null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    pq.write_table(pa.table(arrays), path, compression="zstd")
