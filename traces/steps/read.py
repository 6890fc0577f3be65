"""Reading measured engine steps: the canonical table, or the step annotations in a torch.profiler trace."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.errors import TraceError, did_you_mean, shown
from traces.files import Cells, check_table_size, csv_rows, load_document
from traces.steps.table import COLUMNS, SCOPES, StepTable, step_table

FORMATS = {
    "forerun": "CSV or Parquet with the columns of a step trace (also a run's own steps.parquet)",
    "torch-profiler": "Chrome trace with the step annotations of vLLM or SGLang",
}
_PHASE = r"(\d{1,18})\(sq(\d{1,18})sk(\d{1,18})sqsq(\d{1,18})sqsk(\d{1,18})\)"
_VLLM = re.compile(rf"execute_\d+_context_{_PHASE}_generation_{_PHASE}")
_VLLM_PROMPT = re.compile(r"execute_context_(\d{1,18})\((\d{1,18})_(\d{1,18})\)_generation_0\(0\)")
_SGLANG_EXTEND = re.compile(r"step\[EXTEND bs=(\d{1,18}) toks=(\d{1,18})\]")
_OTHERS = re.compile(r"execute_|step\[")
US_PER_S = 1e6


def read_steps(path: str | Path, format: str = "auto") -> StepTable:
    """Return all measured steps in a file.

    Raises:
        TraceError: no such file or format, an unknown column, a bad cell, or no step in it.
    """
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"--format: no format '{format}'{did_you_mean(format, FORMATS)} (one of {', '.join(FORMATS)})")
    file = Path(path)
    if not file.exists():
        raise TraceError(f"{file}: no such file")
    if file.is_dir():
        raise TraceError(f"{file}: is a folder; name a step trace in it")
    names = file.name.lower()
    profiler = names.endswith((".json", ".json.gz"))
    skipped: dict[str, int] = {}
    if format == "torch-profiler" or (format == "auto" and profiler):
        rows = list(_profiler_rows(file, skipped))
    elif names.endswith(".parquet"):
        rows = list(_parquet_rows(file, skipped))
    else:
        rows = list(_csv_rows(file))
    if not rows:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        raise TraceError(f"{file}: no measured step in it{f' ({reasons})' if reasons else ''}")
    return step_table(rows, str(file), skipped)


def _csv_rows(file: Path) -> Iterator[Mapping[str, Any]]:
    columns, cells = csv_rows(file)
    _check_columns(columns, file)
    for row in cells:
        yield _row(row)


def _check_columns(columns: tuple[str, ...], file: Path) -> None:
    for column in columns:
        if column not in COLUMNS:
            raise TraceError(f"{file}: unknown column '{column}'{did_you_mean(column, COLUMNS)} of a step trace")
    if "measured_s" not in columns:
        raise TraceError(f"{file}: column measured_s is missing")


def _row(cells: Cells) -> dict[str, Any]:
    row: dict[str, Any] = {"place": cells.place}
    for name in COLUMNS[:-2]:
        value = cells.number(name)
        if value is not None and (value < 0 or value != int(value)):
            raise TraceError(f"{cells.place}: {name}: {shown(cells.text(name))} is no count")
        row[name] = None if value is None else int(value)
    measured = cells.number("measured_s")
    if measured is None or measured <= 0:
        raise TraceError(
            f"{cells.place}: measured_s: {shown(cells.text('measured_s'))} is no positive number of seconds"
        )
    scope = cells.text("scope")
    if scope is not None and scope not in SCOPES:
        raise TraceError(f"{cells.place}: scope: '{scope}' is not one of {', '.join(SCOPES)}")
    return {**row, "measured_s": measured, "scope": scope}


def _parquet_rows(file: Path, skipped: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    """Rows of a Parquet file; in a run's own ``steps.parquet`` the simulated seconds stand for the measured ones."""
    import pyarrow
    import pyarrow.parquet

    try:
        check_table_size(file)
        table = pyarrow.parquet.read_table(file)
        names, cells = table.column_names, table.to_pylist()
    except TraceError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise TraceError(f"{file}: not readable as Parquet ({str(error).splitlines()[0][:80]})") from None
    own = "seconds" in names and "replica" in names
    if not own:
        _check_columns(tuple(names), file)
    for number, row in enumerate(cells):
        if own and row.get("steps", 1) != 1:
            skipped["several steps in one row"] = skipped.get("several steps in one row", 0) + 1
            continue
        if own:
            row["measured_s"] = row["seconds"]
        yield _row(Cells(row, f"{file}: row {number}"))


def _profiler_rows(file: Path, skipped: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    """Steps by their annotation on the device's time line; without one, a trace of one step by its kernels.

    Source: vLLM's and SGLang's profiler annotations: sums over sequences of new tokens (sq), keys (sk), sq^2 and sq sk.
    """
    document = load_document(file)
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise TraceError(f"{file}: no traceEvents; a Chrome trace of torch.profiler expected")
    complete = [e for e in events if isinstance(e, dict) and e.get("ph") == "X"]
    marked = [e for e in complete if _OTHERS.match(str(e.get("name", "")))]
    on_device = [e for e in marked if e.get("cat") == "gpu_user_annotation"]
    kernels = [e for e in complete if e.get("cat") == "kernel"]
    known = {str(e["name"]) for e in marked if _composition(str(e["name"])) is not None}
    if not on_device and len(known) == 1 and kernels:
        name, seconds = next(iter(known)), _busy_us(kernels, file) / US_PER_S
        yield {**(_composition(name) or {}), "measured_s": seconds, "scope": "device", "place": f"{file}: {name}"}
        return
    for event in on_device or marked:
        name, seconds = str(event["name"]), _number(event, "dur", file) / US_PER_S
        composition = _composition(name)
        if composition is None or not on_device or seconds <= 0:
            reason = "annotation on the host only" if composition else "annotation without the context lengths"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        yield {**composition, "measured_s": seconds, "scope": "device", "place": f"{file}: {name}"}


def _number(event: Mapping[str, Any], key: str, file: Path) -> float:
    return Cells(event, f"{file}: event {shown(event.get('name'))}").number(key) or 0.0


def _busy_us(kernels: Sequence[Mapping[str, Any]], file: Path) -> float:
    busy = end = 0.0
    spans = [(_number(event, "ts", file), _number(event, "dur", file)) for event in kernels]
    for start, stop in sorted((start, start + lasts) for start, lasts in spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy


def _composition(name: str) -> dict[str, int] | None:
    match = _VLLM.fullmatch(name)
    if match:
        seqs, sq, sk, sqsq, sqsk, decoding, dq, dk, _, _ = (int(text) for text in match.groups())
        row = {"prefill_seqs": seqs, "prefill_tokens": sq, "prefill_kv_tokens": sk,
               "prefill_pairs": sqsk - (sqsq - sq) // 2}  # fmt: skip
        query = dq // decoding if decoding else 1
        return {**row, "decode_seqs": decoding, "query_len": max(query, 1), "decode_kv_tokens": dk}
    match = _VLLM_PROMPT.fullmatch(name)
    if match:
        seqs, tokens, squares = (int(text) for text in match.groups())
        pairs = (squares + tokens) // 2
        return {"prefill_seqs": seqs, "prefill_tokens": tokens, "prefill_kv_tokens": tokens, "prefill_pairs": pairs}
    match = _SGLANG_EXTEND.fullmatch(name)
    if match:
        return {"prefill_seqs": int(match.group(1)), "prefill_tokens": int(match.group(2))}
    return None
