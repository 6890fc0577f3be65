"""Readers for measured serving runs; the format is recognised by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from traces.benchmark_results.canonical import COLUMNS, SIGNATURE, canonical_runs
from traces.benchmark_results.names import TABLES, name_of
from traces.benchmark_results.results import (
    aiperf_runs,
    guidellm_runs,
    inference_perf_run,
    inferencex_run,
    llama_bench_run,
    llmd_run,
    named_runs,
    text_runs,
    vllm_run,
    yaml_value,
)
from traces.benchmark_results.run import MeasuredRun
from traces.benchmark_results.text import json_rows
from traces.errors import TraceError, did_you_mean
from traces.fields import Cells, Record
from traces.files import csv_rows, json_value, read_text

FORMATS: dict[str, str] = {name: table["title"] for name, table in TABLES.items()}
_DOCUMENTS: dict[str, Callable[[Record, str, Path], MeasuredRun | Iterator[MeasuredRun]]] = {
    "vllm-bench": vllm_run,
    "aiperf": aiperf_runs,
    "inference-perf": inference_perf_run,
    "guidellm": guidellm_runs,
    "inferencex": inferencex_run,
    "llm-d": llmd_run,
    "llama-bench": llama_bench_run,
}
_KINDS: dict[str, type] = {"object": dict, "list": list, "any": object}
_SUFFIXES = (".csv", ".json", ".jsonl", ".yaml", ".yml", ".txt", ".md", ".log")
_VLLM_COLUMNS = frozenset({"backend", "model_id", "mean_ttft_ms"})
"""Columns of the table that ``vllm bench sweep`` makes of its results."""
TableReader = Callable[[Iterator[Cells], Path], Iterator[MeasuredRun]]
_TABLES: dict[str, tuple[frozenset[str], TableReader]] = {}


def register_table(format: str, title: str, signature: frozenset[str], reader: TableReader) -> None:
    """Register a reader for a kind of table of measured runs, tried before the general one.

    ``signature`` are columns whose presence means this table (keys of the first record of JSON lines); the reader gets
    a CSV table's rows (none for JSON lines) and the file.
    """
    FORMATS[format] = title
    _TABLES[format] = (signature, reader)


def read_runs(path: str | Path, format: str = "auto") -> list[MeasuredRun]:
    """Return all runs in a file, or in the files of a folder whose format is recognised.

    Of a sweep of ``vllm bench``, which writes each result into a file of its own and into summaries, each counts once.

    Raises:
        TraceError: no such file or format, not recognised, or a row that cannot be read; one line naming the place.
    """
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"--format: no format '{format}'{did_you_mean(format, FORMATS)} (one of {', '.join(FORMATS)})")
    file = Path(path)
    if file.is_dir():
        runs = list(_folder(file, format))
        if not runs:
            raise TraceError(f"{file}: no file in this folder is recognised as measured serving runs")
        return runs
    runs = list(_read(file, format))
    if not runs:
        raise TraceError(f"{file}: no run in it")
    return runs


def _folder(folder: Path, format: str) -> Iterator[MeasuredRun]:
    """Runs of the files of a folder; tables of any names count where no file is one client's result."""
    once: set[str] = set()
    listed = (file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix in _SUFFIXES)
    kinds = {file: kind for file in listed if (kind := recognised(file, format))}
    for file, kind in kinds.items():
        if kind == "table" and set(kinds.values()) != {"table"}:
            continue
        for run in read_runs(file, format):
            key = repr(replace(run, name="", place="")) if kind == "vllm-bench" else None
            if key not in once:
                yield run
            if key:
                once.add(key)


def as_runs(source: str | Path | Sequence[MeasuredRun | str | Path]) -> list[MeasuredRun]:
    """Return runs unchanged, or read them from a file, a folder or several of these.

    Raises:
        TraceError: a file that cannot be read; one line naming it.
    """
    runs: list[MeasuredRun] = []
    for one in [source] if isinstance(source, str | Path) else source:
        runs += [one] if isinstance(one, MeasuredRun) else read_runs(one)
    return runs


def recognised(file: Path, format: str = "auto") -> str | None:
    """Format of a file; None for one without results, such as a log or a configuration."""
    try:
        kind = detect(file) if format == "auto" else format
        return None if kind == "table" and not read_runs(file) else kind
    except TraceError:
        return None


def detect(file: Path) -> str | None:
    """Return the format of a file, or None if it is not recognised.

    Raises:
        TraceError: it cannot be read.
    """
    value: object = None
    if file.suffix == ".csv":
        names = frozenset(csv_rows(file)[0])
        if names >= _VLLM_COLUMNS:
            return "vllm-bench"
    else:
        text = read_text(file).lstrip()
        if not text:
            raise TraceError(f"{file}: empty")
        if text[:1] in ("{", "["):
            value = json_value(text.partition("\n")[0] if file.suffix == ".jsonl" else text, str(file))
        elif file.suffix in (".yaml", ".yml"):
            value = yaml_value(file)
        if value is None:
            return "table"
        whole, value = value, next(iter(value), None) if isinstance(value, list) else value
        if not isinstance(value, dict):
            return None
        names = frozenset(value)
    for format, (signature, _) in _TABLES.items():
        if signature <= names:
            return format
    if isinstance(value, dict):
        return _json_format(value) or ("table" if json_rows(whole, str(file)) else None)
    if _json_format(dict.fromkeys(names)) == "llama-bench":
        return "llama-bench"
    others = names - frozenset(COLUMNS)
    return "table" if any(map(name_of, others)) or not (names & SIGNATURE or not others) else "forerun"


def _json_format(value: Record) -> str | None:
    """Format of a JSON object by the fields that ``formats.yaml`` has for each; the last format that fits counts."""
    for format, table in reversed(TABLES.items()):
        for fields in table.get("recognised", ()):
            if all(name in value and isinstance(value[name], _KINDS[kind]) for name, kind in fields.items()):
                return format
    return None


def _read(file: Path, format: str) -> Iterator[MeasuredRun]:
    if format == "auto":
        detected = detect(file)
        if detected is None:
            raise TraceError(
                f"{file}: not recognised as measured serving runs; a table of your own needs a column such as "
                f"mean_ttft_ms, mean_tpot_ms or output_throughput; others: {', '.join(list(FORMATS)[1:])}; "
                "kernel times: forerun replay kernels"
            )
        format = detected
    if format in ("vllm-bench", "llama-bench") and file.suffix == ".csv":
        for cells in csv_rows(file)[1]:
            yield (vllm_run if format == "vllm-bench" else llama_bench_run)(cells.values, cells.place, file)
    elif format in _DOCUMENTS:
        yield from _documents(file, format)
    elif format == "table":
        text = read_text(file)
        if file.suffix == ".csv" or (text.lstrip()[:1] not in ("{", "[") and file.suffix not in (".yaml", ".yml")):
            yield from text_runs(text, file)
        else:
            objects = [row for place, whole in _values(file, text) for row in json_rows(whole, place)]
            yield from named_runs(objects, file, printed=False)
    elif format in _TABLES and file.suffix != ".csv":
        yield from _TABLES[format][1](iter(()), file)
    else:
        columns, rows = csv_rows(file)
        if format == "forerun":
            yield from canonical_runs(columns, rows, str(file))
            return
        signature, reader = _TABLES[format]
        missing = sorted(signature - set(columns))
        if missing:
            raise TraceError(f"{file}: column '{missing[0]}' is missing; not a table in the format '{format}'")
        yield from reader(rows, file)


def _values(file: Path, text: str) -> Iterator[tuple[str, object]]:
    """Values of a JSON, JSON-lines or YAML file, each with its place."""
    if file.suffix in (".yaml", ".yml"):
        yield str(file), yaml_value(file)
    elif file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield f"{file}:{number}", json_value(line, f"{file}:{number}")
    else:
        yield str(file), json_value(text, str(file))


def _documents(file: Path, format: str) -> Iterator[MeasuredRun]:
    for place, whole in _values(file, read_text(file)):
        several = isinstance(whole, list)
        for number, value in enumerate(whole if isinstance(whole, list) else [whole]):
            where = f"{place}: [{number}]" if several else place
            if not isinstance(value, dict) or _json_format(value) != format:
                raise TraceError(f"{where}: no JSON object in the format '{format}'")
            runs = _DOCUMENTS[format](value, where, file)
            for run in [runs] if isinstance(runs, MeasuredRun) else runs:
                yield replace(run, name=f"{run.name} {number}") if several and format != "llama-bench" else run
