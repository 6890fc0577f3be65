"""Readers for measured serving runs; the format is recognised by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from traces.benchmark_results.canonical import COLUMNS, SIGNATURE, canonical_runs
from traces.benchmark_results.results import TABLES, aiperf_run, guidellm_runs, inference_perf_run, vllm_run
from traces.benchmark_results.run import MeasuredRun
from traces.errors import TraceError, did_you_mean
from traces.fields import Cells, Record
from traces.files import csv_rows, json_value, read_text

FORMATS: dict[str, str] = {name: table["title"] for name, table in TABLES.items()}
_DOCUMENTS: dict[str, Callable[[Record, str, Path], MeasuredRun | Iterator[MeasuredRun]]] = {
    "vllm-bench": vllm_run,
    "aiperf": aiperf_run,
    "inference-perf": inference_perf_run,
    "guidellm": guidellm_runs,
}
_KINDS: dict[str, type] = {"object": dict, "list": list, "any": object}
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
    once: set[str] = set()
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.suffix in (".csv", ".json", ".jsonl") and _recognised(file, format):
            swept = detect(file) == "vllm-bench"
            for run in read_runs(file, format):
                key = repr(replace(run, name="", place="")) if swept else None
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


def _recognised(file: Path, format: str) -> bool:
    try:
        return format != "auto" or detect(file) is not None
    except TraceError:
        return False


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
        if text[:1] in ("{", "["):
            value = json_value(text.partition("\n")[0] if file.suffix == ".jsonl" else text, str(file))
        if isinstance(value, list):
            value = next(iter(value), None)
        if not isinstance(value, dict):
            return None
        names = frozenset(value)
    for format, (signature, _) in _TABLES.items():
        if signature <= names:
            return format
    if isinstance(value, dict):
        return _json_format(value)
    return "forerun" if names & SIGNATURE or names <= frozenset(COLUMNS) else None


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
        if detected is None and file.suffix == ".csv" and csv_rows(file)[0][:2] == ("Metric", "avg"):
            raise TraceError(f"{file}: the CSV of AIPerf states no load; give the JSON that it writes beside it")
        if detected is None:
            raise TraceError(
                f"{file}: not recognised as measured serving runs; a table of your own needs a column such as "
                f"mean_ttft_ms, mean_tpot_ms or output_throughput; others: {', '.join(list(FORMATS)[1:])}; "
                "kernel times: forerun replay kernels"
            )
        format = detected
    if format == "vllm-bench" and file.suffix == ".csv":
        for cells in csv_rows(file)[1]:
            yield vllm_run(cells.values, cells.place, file)
    elif format in _DOCUMENTS:
        yield from _documents(file, format)
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


def _documents(file: Path, format: str) -> Iterator[MeasuredRun]:
    text = read_text(file)
    lines = [(str(file), text)]
    if file.suffix == ".jsonl":
        lines = [(f"{file}:{number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for place, part in lines:
        whole = json_value(part, place)
        several = isinstance(whole, list)
        for number, value in enumerate(whole if isinstance(whole, list) else [whole]):
            where = f"{place}: [{number}]" if several else place
            if not isinstance(value, dict) or _json_format(value) != format:
                raise TraceError(f"{where}: no JSON object in the format '{format}'")
            runs = _DOCUMENTS[format](value, where, file)
            for run in [runs] if isinstance(runs, MeasuredRun) else runs:
                yield replace(run, name=f"{run.name} {number}") if several else run
