"""Forerun's own table of measured serving runs (CSV): settings under scenario names, metrics under vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from traces.benchmark_results.run import METRICS, PROCESSES, MeasuredRun, TokenCounts, latencies_ms
from traces.errors import TraceError, did_you_mean
from traces.files import Cells

WORDS = ("run", "model", "chip", "framework", "framework_version", "weights_dtype", "kv_cache_dtype", "process",
         "trace", "trace_format", "speculation")  # fmt: skip
COUNTS = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "replicas", "max_concurrency", "input_tokens",
          "output_tokens", "min_input_tokens", "min_output_tokens", "num_requests", "max_num_seqs",
          "max_num_batched_tokens", "max_model_len", "num_kv_blocks", "block_size",
          "num_speculative_tokens")  # fmt: skip
NUMBERS = ("request_rate", "burstiness", "gpu_memory_utilization", "acceptance_length")
FLAGS = ("prefix_caching", "chunked_prefill")
_OWN_RULES = ("run", "process", "trace_format")
COLUMNS = (*WORDS, *COUNTS, *NUMBERS, *FLAGS, *METRICS)
SIGNATURE = frozenset(METRICS)
"""Columns that identify a canonical table, unless columns of another source are present."""


def canonical_runs(columns: Iterable[str], rows: Iterable[Cells], file: str) -> Iterator[MeasuredRun]:
    """Runs of a canonical table.

    With ``min_input_tokens``, input lengths are uniform between it and ``input_tokens``; outputs likewise.

    Raises:
        TraceError: an unknown column, a cell that is no number, or a run without any metric.
    """
    columns = tuple(columns)
    for column in columns:
        if column not in COLUMNS:
            raise TraceError(f"{file}: unknown column '{column}'{did_you_mean(column, COLUMNS)}")
    for number, cells in enumerate(rows, start=1):
        measured = latencies_ms(cells, {name: name for name in METRICS})
        if not measured:
            raise TraceError(f"{cells.place}: no metric is given (one of {', '.join(METRICS[:3])} ...)")
        facts: dict[str, Any] = {name: cells.text(name) for name in WORDS if name not in _OWN_RULES}
        facts |= {name: cells.count(name) for name in COUNTS if not name.endswith("put_tokens")}
        facts |= {name: cells.positive(name) for name in NUMBERS} | {name: cells.flag(name) for name in FLAGS}
        if "speculation" in columns and facts["speculation"] is None:
            facts["speculation"] = "none"
        yield MeasuredRun(
            name=cells.text("run") or f"run {number}",
            place=cells.place,
            process=_process(cells),
            input_tokens=_tokens(cells, "input_tokens"),
            output_tokens=_tokens(cells, "output_tokens"),
            trace_format=cells.text("trace_format") or "auto",
            measured=measured,
            **facts,
        )


def _process(cells: Cells) -> str | None:
    process = cells.text("process")
    if process is not None:
        if process not in PROCESSES:
            raise TraceError(f"{cells.place}: process: '{process}' is not one of {', '.join(PROCESSES)}")
        return process
    if cells.count("max_concurrency") is not None:
        return "closed-loop"
    return "poisson" if cells.positive("request_rate") is not None else None


def _tokens(cells: Cells, name: str) -> TokenCounts | None:
    most, least = cells.count(name), cells.count(f"min_{name}")
    if most is None or least is None:
        return most
    if least > most:
        raise TraceError(f"{cells.place}: min_{name}: {least} is more than {name} {most}")
    return (least, most)
