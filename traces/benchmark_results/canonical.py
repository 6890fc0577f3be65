"""Forerun's own table of measured serving runs (CSV): settings under scenario names, metrics under vLLM's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traces.benchmark_results.run import (
    ACCESS,
    METRICS,
    PROCESSES,
    MeasuredRun,
    TokenCounts,
    facts_of,
    latencies_ms,
)
from traces.errors import TraceError, did_you_mean
from traces.fields import Cells

_OWN_RULES = ("name", "process", "input_tokens", "output_tokens", "unusable", "tokenizer", "data_parallel_attention")
_FACTS = {name: name for name in ACCESS if name not in _OWN_RULES}
COLUMNS = ("run", *_FACTS, "process", "trace_format", "input_tokens", "output_tokens", "min_input_tokens",
           "min_output_tokens", *METRICS)  # fmt: skip
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
        facts = facts_of(cells, _FACTS)
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
            **facts,  # type: ignore[arg-type]
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
