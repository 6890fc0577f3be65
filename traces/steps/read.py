"""Reading measured engine steps: the canonical table, or the step annotations in a torch.profiler trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from traces.errors import TraceError, did_you_mean, shown
from traces.fields import Cells, Record, objects_at
from traces.files import load_document, table_rows
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
        TraceError: no such file or format, an unknown column, a bad cell, or a file without steps.
    """
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"--format: no format '{format}'{did_you_mean(format, FORMATS)} (one of {', '.join(FORMATS)})")
    file = Path(path)
    if not file.exists():
        raise TraceError(f"{file}: no such file")
    if file.is_dir():
        raise TraceError(f"{file}: is a folder; name a step trace in it")
    skipped = Counter[str]()
    profiler = format == "torch-profiler" or (format == "auto" and file.name.lower().endswith((".json", ".json.gz")))
    rows = list(_profiler_rows(file, skipped) if profiler else _table_rows(file, skipped))
    if not rows:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in skipped.items())
        raise TraceError(f"{file}: no measured step in it{f' ({reasons})' if reasons else ''}")
    return step_table(rows, str(file), skipped)


def _table_rows(file: Path, skipped: Counter[str]) -> Iterator[Record]:
    """Rows of a canonical table; simulated seconds of a run's own ``steps.parquet`` serve as measured ones."""
    columns, rows = table_rows(file)
    own = "seconds" in columns and "replica" in columns
    for column in () if own else columns:
        if column not in COLUMNS:
            raise TraceError(f"{file}: unknown column '{column}'{did_you_mean(column, COLUMNS)} of a step trace")
    if not own and "measured_s" not in columns:
        raise TraceError(f"{file}: column measured_s is missing")
    for cells in rows:
        if own and cells.values.get("steps", 1) != 1:
            skipped["several steps in one row"] += 1
        else:
            yield _row(cells.with_values({"measured_s": cells.values["seconds"]}) if own else cells)


def _row(cells: Cells) -> dict[str, object]:
    row: dict[str, object] = {"place": cells.place}
    for name in COLUMNS[:-2]:
        value = cells.number(name)
        if value is not None and (value < 0 or value != int(value)):
            raise TraceError(f"{cells.place}: {name}: {shown(cells.text(name))} is no count")
        row[name] = None if value is None else int(value)
    measured = cells.positive("measured_s")
    if measured is None:
        raise TraceError(
            f"{cells.place}: measured_s: {shown(cells.text('measured_s'))} is no positive number of seconds"
        )
    scope = cells.text("scope")
    if scope is not None and scope not in SCOPES:
        raise TraceError(f"{cells.place}: scope: '{scope}' is not one of {', '.join(SCOPES)}")
    return {**row, "measured_s": measured, "scope": scope}


def _profiler_rows(file: Path, skipped: Counter[str]) -> Iterator[Record]:
    """Steps from the annotations on the device's time line; a trace without annotations is one step, from its kernels.

    Source: vLLM's and SGLang's profiler annotations: sums over sequences of new tokens (sq), keys (sk), sq^2 and sq sk.
    """
    document = load_document(file)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise TraceError(f"{file}: no traceEvents; a Chrome trace of torch.profiler expected")
    complete = [event for event in objects_at(document, "traceEvents") if event.get("ph") == "X"]
    marked = [event for event in complete if _OTHERS.match(str(event.get("name", "")))]
    on_device = [event for event in marked if event.get("cat") == "gpu_user_annotation"]
    kernels = [event for event in complete if event.get("cat") == "kernel"]
    known = {name: work for event in marked if (work := _composition(name := str(event["name"]))) is not None}
    if not on_device and len(known) == 1 and kernels:
        [(name, work)] = known.items()
        yield _measured(work, _busy_us(kernels, file), f"{file}: {name}")
        return
    for event in on_device or marked:
        name, lasted_us = str(event["name"]), _number(event, "dur", file)
        if name not in known or not on_device or lasted_us <= 0:
            host = name in known
            skipped["annotation on the host only" if host else "annotation without the context lengths"] += 1
        else:
            yield _measured(known[name], lasted_us, f"{file}: {name}")


def _measured(work: Record, lasted_us: float, place: str) -> Record:
    return {**work, "measured_s": lasted_us / US_PER_S, "scope": "device", "place": place}


def _number(event: Record, key: str, file: Path) -> float:
    return Cells(event, f"{file}: event {shown(event.get('name'))}").number(key) or 0.0


def _busy_us(kernels: Sequence[Record], file: Path) -> float:
    busy = end = 0.0
    spans = [(_number(event, "ts", file), _number(event, "dur", file)) for event in kernels]
    for start, stop in sorted((start, start + lasts) for start, lasts in spans):
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return busy


def _composition(name: str) -> dict[str, int] | None:
    """Work of a step, parsed from its annotation; None if the annotation does not state it."""
    if match := _VLLM.fullmatch(name):
        seqs, sq, sk, sqsq, sqsk, decoding, dq, dk, _, _ = map(int, match.groups())
        query = dq // decoding if decoding else 1
        return {
            "prefill_seqs": seqs,
            "prefill_tokens": sq,
            "prefill_kv_tokens": sk,
            "prefill_pairs": sqsk - (sqsq - sq) // 2,
            "decode_seqs": decoding,
            "query_len": max(query, 1),
            "decode_kv_tokens": dk,
        }
    if match := _VLLM_PROMPT.fullmatch(name):
        seqs, tokens, squares = map(int, match.groups())
        pairs = (squares + tokens) // 2
        return {"prefill_seqs": seqs, "prefill_tokens": tokens, "prefill_kv_tokens": tokens, "prefill_pairs": pairs}
    if match := _SGLANG_EXTEND.fullmatch(name):
        return {"prefill_seqs": int(match[1]), "prefill_tokens": int(match[2])}
    return None
