"""Readers for measured serving runs; the format is recognised by content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from traces.benchmark_results import silicon, unified
from traces.benchmark_results.canonical import COLUMNS, SIGNATURE, canonical_runs
from traces.benchmark_results.llmservingsim import llmservingsim_run
from traces.benchmark_results.results import aiperf_run, guidellm_runs, inference_perf_run, vllm_run
from traces.benchmark_results.run import MeasuredRun
from traces.errors import TraceError, did_you_mean
from traces.files import Cells, csv_rows, json_value, read_text

FORMATS = {
    "forerun": "Forerun's own CSV: settings under scenario names, metrics under vLLM's",
    "unified": "the 68-column CSV of published results (InferenceX, TensorRT-LLM, NIM, vLLM, SGLang ...)",
    "silicon": "served TTFT and TPOT of AIConfigurator's validation (CSV)",
    "vllm-bench": "result JSON of vllm bench serve, or result lines of SGLang's bench_serving",
    "aiperf": "profile_export JSON of AIPerf or GenAI-Perf",
    "inference-perf": "lifecycle metrics JSON of inference-perf",
    "guidellm": "benchmark report JSON of GuideLLM",
    "llmservingsim": "requests.jsonl of LLMServingSim's vLLM runs, meta.json beside it",
}
TableReader = Callable[[Iterator[Cells], Path], Iterator[MeasuredRun]]
_CSV: dict[str, tuple[frozenset[str], TableReader]] = {
    "silicon": (silicon.SIGNATURE, lambda rows, file: silicon.silicon_runs(rows)),
    "unified": (unified.SIGNATURE, lambda rows, file: unified.unified_runs(rows)),
}


def register_table(format: str, title: str, signature: frozenset[str], reader: TableReader) -> None:
    """Register a reader for a kind of CSV table of measured runs, tried before the general one.

    Args:
        format: name of the format, as passed to ``format=``.
        title: short description, for lists of formats.
        signature: columns whose presence means this table.
        reader: function that returns the runs of a table's rows and file.
    """
    FORMATS[format] = title
    later = {name: _CSV.pop(name) for name in list(_CSV)}
    _CSV.update({format: (signature, reader), **later})


def read_runs(path: str | Path, format: str = "auto") -> list[MeasuredRun]:
    """Return all runs in a file, or in the files of a folder whose format is recognised.

    Raises:
        TraceError: no such file or format, not recognised, or a row that cannot be read; one line naming the place.
    """
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"--format: no format '{format}'{did_you_mean(format, FORMATS)} (one of {', '.join(FORMATS)})")
    file = Path(path)
    if file.is_dir():
        every_run = []
        for name in sorted(file.rglob("*")):
            if name.is_file() and name.suffix in (".csv", ".json", ".jsonl") and _recognised(name, format):
                every_run += read_runs(name, format)
        if not every_run:
            raise TraceError(f"{file}: no file in this folder is recognised as measured serving runs")
        return every_run
    runs = list(_read(file, format))
    if not runs:
        raise TraceError(f"{file}: no run in it")
    return runs


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
        return detect(file) is not None if format == "auto" else True
    except TraceError:
        return False


def detect(file: Path) -> str | None:
    """Return the format of a file, or None if it is not recognised.

    Raises:
        TraceError: it cannot be read.
    """
    if file.suffix == ".csv":
        columns, _ = csv_rows(file)
        names = frozenset(columns)
        for format, (signature, _) in _CSV.items():
            if signature <= names:
                return format
        return "forerun" if names & SIGNATURE or names <= frozenset(COLUMNS) else None
    text = read_text(file)
    first = text.lstrip()[:1]
    if first != "{":
        return None
    head = text.lstrip().partition("\n")[0]
    if file.suffix == ".jsonl":
        line = json_value(head, str(file))
        return _json_format(line) if isinstance(line, dict) else None
    value = json_value(text, str(file))
    return _json_format(value) if isinstance(value, dict) else None


def _json_format(value: dict[str, Any]) -> str | None:
    if "queued_ts" in value and "input_toks" in value:
        return "llmservingsim"
    if isinstance(value.get("benchmarks"), list):
        return "guidellm"
    if isinstance(value.get("successes"), dict) and "load_summary" in value:
        return "inference-perf"
    if isinstance(value.get("request_latency"), dict) or isinstance(value.get("time_to_first_token"), dict):
        return "aiperf"
    if "mean_ttft_ms" in value or "output_throughput" in value:
        return "vllm-bench"
    return None


def _read(file: Path, format: str) -> Iterator[MeasuredRun]:
    if format == "auto":
        detected = detect(file)
        if detected is None:
            raise TraceError(f"{file}: not recognised as measured serving runs (one of {', '.join(FORMATS)})")
        format = detected
    if format == "forerun" or format in _CSV:
        columns, rows = csv_rows(file)
        if format == "forerun":
            yield from canonical_runs(columns, rows, str(file))
            return
        signature, reader = _CSV[format]
        missing = sorted(signature - set(columns))
        if missing:
            raise TraceError(f"{file}: column '{missing[0]}' is missing; not a table in the format '{format}'")
        yield from reader(rows, file)
    elif format == "llmservingsim":
        yield llmservingsim_run(file)
    else:
        yield from _documents(file, format)


def _documents(file: Path, format: str) -> Iterator[MeasuredRun]:
    text = read_text(file)
    if file.suffix == ".jsonl":
        lines = [(f"{file}:{number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    else:
        lines = [(str(file), text)]
    for place, part in lines:
        value = json_value(part, place)
        if not isinstance(value, dict) or _json_format(value) != format:
            raise TraceError(f"{place}: no JSON object in the format '{format}'")
        if format == "vllm-bench":
            yield vllm_run(value, place, file)
        elif format == "aiperf":
            yield aiperf_run(value, place, file)
        elif format == "inference-perf":
            yield inference_perf_run(value, place, file)
        else:
            yield from guidellm_runs(value, place, file)
