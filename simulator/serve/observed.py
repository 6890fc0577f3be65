"""Readers of a live engine's own measurements: Prometheus text and range queries, OTLP spans, benchmarks."""

from __future__ import annotations

import json
import math
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from forerun.document import Json
from forerun.errors import ArgumentError, ForerunError, install_hint
from forerun.yaml_files import packaged
from traces.requests.calls import TracedSpan, outer_note, requests_of, spans_of

PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
CLOCK = "forerun:simulated_seconds"
"""Metric of a simulated engine's clock, which may run faster than wall-clock time."""
LEAST_COUNT, LARGEST_COUNT = 1e-9, 1e15
"""Plausible range of a nonzero counter: a nanosecond to integers that double precision represents exactly."""
MOST_POSITIONS = 4096
PARTS = 5
"""Number of lengths that represent one histogram bucket."""
Sample = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a Prometheus sample."""


def metric_tables() -> Json:
    """Names and buckets of metrics, from ``metrics.yaml``."""
    return packaged("simulator.serve", "metrics.yaml")


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and the number of values behind it."""

    number: float
    mean: float


@dataclass(frozen=True, slots=True)
class Observed:
    """Metrics of a live engine over a time window; a value is None if the source lacks it."""

    source: str
    duration_s: float | None = None
    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prompt_lengths: tuple[tuple[int, float], ...] = ()
    """(tokens, number of requests); from a histogram, spread within its buckets."""
    output_lengths: tuple[tuple[int, float], ...] = ()
    arrivals: tuple[tuple[float, int, int], ...] = ()
    """(arrival seconds, prompt tokens, output tokens) of each request; empty without spans."""
    ttft: Mean | None = None
    itl: Mean | None = None
    """Gaps between deliveries of tokens; a verify step delivers several tokens at once."""
    tpot: Mean | None = None
    """Total time of all tokens after the first token of each request, divided by their number."""
    prefill: Mean | None = None
    e2el: Mean | None = None
    cache_queries: float | None = None
    cache_hits: float | None = None
    drafts: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    accepted_per_position: tuple[float, ...] = ()
    preemptions: float | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens that hit the prefix cache."""
        if self.cache_hits is None:
            return None
        queries = self.cache_queries if self.cache_queries is not None else self.prompt_tokens
        return self.cache_hits / queries if queries else None

    @property
    def acceptance_length(self) -> float | None:
        """Mean tokens per verify step, bonus token included."""
        if not self.drafts or self.accepted_tokens is None:
            return None
        return 1.0 + self.accepted_tokens / self.drafts


def observe_url(url: str, seconds: float) -> Observed:
    """Metrics between two scrapes of a ``/metrics`` URL."""
    import time

    first, began = _scraped(url), time.monotonic()
    time.sleep(seconds)
    last, took = _scraped(url), time.monotonic() - began
    return between(first, last, url, took)


def _scraped(url: str) -> dict[Sample, float]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise ForerunError(f"{url}: cannot be read ({getattr(error, 'reason', error)})") from None
    return samples_of(text, url)


def observe_files(files: Sequence[Path], seconds: float | None) -> Observed:
    """Metrics from one file, or the difference between two scrapes in two files.

    Args:
        files: one Prometheus text or two (earlier, later), a range query's JSON, OTLP JSON, or a benchmark result.
        seconds: time that the text covers, or time between the two texts, if the files do not state it.
    """
    texts = [(file, _text(file)) for file in files]
    if len(texts) == 2:
        (early, one), (late, other) = texts
        return between(samples_of(one, str(early)), samples_of(other, str(late)), str(late), seconds)
    if len(texts) != 1:
        raise ForerunError(f"twin: one file, or an earlier and a later scrape, expected (got {len(texts)})")
    ((file, text),) = texts
    if text.lstrip()[:1] in ("{", "["):
        seen = _json(file, text)
        if seconds is not None and seen.duration_s is not None:
            raise ArgumentError("seconds", f"has no effect with {file}, which says how long it covers; remove it")
        return seen if seconds is None else replace(seen, duration_s=seconds)
    return between({}, samples_of(text, str(file)), str(file), seconds)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ForerunError(f"{file}: cannot be read ({reason})") from None


def _json(file: Path, text: str) -> Observed:
    try:
        data = json.loads(text)
    except ValueError:
        data = _lines(text)
    if isinstance(data, Mapping) and isinstance(data.get("data"), Mapping) and "result" in data["data"]:
        return _range_query(data["data"], str(file))
    if spans := list(spans_of(data)):
        return _of_spans(spans, str(file))
    return _benchmark(file)


def _lines(text: str) -> list[Any]:
    """Documents of a JSON-lines file, as an OTLP file exporter writes it; [] for any other text."""
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return []


def samples_of(text: str, place: str) -> dict[Sample, float]:
    """Parse all samples of a Prometheus text."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise ForerunError(f"forerun twin needs prometheus-client; {install_hint('serve')}") from None
    try:
        families = list(text_string_to_metric_families(text))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ForerunError(f"{place}: no Prometheus text ({error})") from None
    samples: dict[Sample, float] = {}
    for sample in (sample for family in families for sample in family.samples):
        key, value = (sample.name, tuple(sorted(sample.labels.items()))), _number(sample.value)
        if samples.setdefault(key, value) != value and value == value:
            raise ForerunError(f"{place}: {sample.name} is given twice with the same labels; keep one scrape in a file")
    if not any(name.startswith(("vllm:", "sglang:", "llamacpp:", "dynamo_")) for name, _ in samples):
        raise ForerunError(f"{place}: no metrics of vLLM, SGLang, llama.cpp or Dynamo in it")
    return samples


def between(first: Mapping[Sample, float], last: Mapping[Sample, float], place: str, seconds: float | None) -> Observed:
    """Metrics between two scrapes; a counter that decreased is assumed to have restarted from zero."""
    odd = {key for samples in (first, last) for key, value in samples.items() if not _counts_something(key, value)}
    last = {key: value for key, value in last.items() if key not in odd}
    grown = {key: value - first.get(key, 0.0) if value >= first.get(key, 0.0) else value for key, value in last.items()}
    clock = next((value for (name, _), value in grown.items() if name == CLOCK), None)
    duration = clock if clock is not None else seconds
    counts, histograms = _counts(grown), _histograms(grown)
    notes = [f"{name}: ignored, a value or label of it is no count" for name in sorted({name for name, _ in odd})]
    used = tuple(note for note in notes if note.startswith(_names_used()))
    seen = replace(Observed(place, duration, notes=used, **counts), **histograms, **_positions(grown))
    tokens = counts.get("output_tokens", seen.output_tokens)
    begun = seen.ttft.number if seen.ttft else seen.requests
    if seen.itl is not None and tokens and begun is not None and tokens > begun:
        later = max(tokens - begun, seen.itl.number)  # each gap ends with a token
        seen = replace(seen, tpot=Mean(later, seen.itl.number * seen.itl.mean / later))
    return seen


def _number(value: Any) -> float:
    """Convert a value to float; NaN if it is not a number, or has hundreds of digits."""
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return math.nan


def _counts_something(key: Sample, value: float) -> bool:
    """True if a sample has a plausible value (count or seconds) and a valid bucket or position label."""
    labels = dict(key[1])
    bounded = not key[0].endswith("_bucket") or _number(labels.get("le")) >= 0
    placed = "position" not in labels or _number(labels["position"]) in range(MOST_POSITIONS)
    return (value == 0 or LEAST_COUNT <= value <= LARGEST_COUNT) and bounded and placed


def _names_used() -> tuple[str, ...]:
    """Prefixes of the names of metrics that the twin uses."""
    tables = metric_tables()
    groups = [*tables["counters"].values(), *tables["histograms"].values()]
    return (PER_POSITION, CLOCK, *(name for names in groups for name in names))


def _counts(grown: Mapping[Sample, float]) -> Json:
    counts: Json = {}
    for what, names in metric_tables()["counters"].items():
        known = {f"{name}_total" for name in names} | set(names)
        values = [value for (name, _), value in grown.items() if name in known]
        if values:
            counts[what] = sum(values)
    return counts


def _histograms(grown: Mapping[Sample, float]) -> Json:
    histograms: Json = {}
    for what, names in metric_tables()["histograms"].items():
        name = next((name for name in names if any(key[0] == f"{name}_count" for key in grown)), None)
        if name is None:
            continue
        counted = {labels: value for (sample, labels), value in grown.items() if sample == f"{name}_count"}
        summed = {labels: value for (sample, labels), value in grown.items() if sample == f"{name}_sum"}
        count = sum(value for labels, value in counted.items() if labels in summed)
        total = sum(value for labels, value in summed.items() if labels in counted)
        if count <= 0:
            continue
        if what.endswith("_lengths"):
            histograms[what] = _lengths(grown, name, total / count)
            histograms.setdefault("requests", count)
            histograms[{"prompt_lengths": "prompt_tokens", "output_lengths": "output_tokens"}[what]] = total
        else:
            histograms[what] = Mean(count, total / count)
    return histograms


def _lengths(grown: Mapping[Sample, float], name: str, mean: float) -> tuple[tuple[int, float], ...]:
    """Lengths from a histogram: log-uniform within each bucket, then scaled to the known mean."""
    below: dict[float, float] = {}
    for (sample, labels), value in grown.items():
        if sample == f"{name}_bucket":
            bound = float(dict(labels)["le"])
            below[bound] = below.get(bound, 0.0) + value
    lengths, before, least = [], 0.0, 1.0
    for bound in sorted(below):
        count, most = below[bound] - before, bound if math.isfinite(bound) else 2.0 * least
        if count > 0:
            wide = max(most, least) / least
            lengths += [(least * wide ** ((part + 0.5) / PARTS), count / PARTS) for part in range(PARTS)]
        before, least = below[bound], max(most, 1.0)
    total = sum(count for _, count in lengths)
    if not total:
        return ((max(1, round(mean)), 1.0),)
    scale = mean / (sum(tokens * count for tokens, count in lengths) / total)
    return tuple((max(1, round(tokens * scale)), count) for tokens, count in lengths)


def _positions(grown: Mapping[Sample, float]) -> Json:
    by_position: dict[int, float] = {}
    for (name, labels), value in grown.items():
        if name in (PER_POSITION, f"{PER_POSITION}_total"):
            position = int(float(dict(labels).get("position", -1)))
            by_position[position] = by_position.get(position, 0.0) + value
    return {"accepted_per_position": tuple(by_position[at] for at in sorted(by_position))} if by_position else {}


def _range_query(data: Mapping[str, Any], place: str) -> Observed:
    """Metrics from the growth of every series in a range query's result."""
    first: dict[Sample, float] = {}
    last: dict[Sample, float] = {}
    times: list[float] = []
    try:
        for series in data["result"]:
            labels = {str(name): str(value) for name, value in dict(series.get("metric", {})).items()}
            values = series.get("values") or [series.get("value", [0, "0"])]
            key = (labels.pop("__name__", ""), tuple(sorted(labels.items())))
            first[key], last[key] = _number(values[0][1]), _number(values[-1][1])
            times += [_number(values[0][0]), _number(values[-1][0])]
    except (AttributeError, LookupError, TypeError, ValueError):
        raise ForerunError(f"{place}: no answer of a range query (data.result holds no series of values)") from None
    if not all(map(math.isfinite, times)) or not times or max(times) <= min(times):
        raise ForerunError(f"{place}: a range query over some time expected (query_range, not query)")
    return between(first, last, place, max(times) - min(times))


def _of_spans(spans: Sequence[TracedSpan], place: str) -> Observed:
    rows, outer = requests_of(spans)
    if len(rows) < 2:
        raise ForerunError(f"{place}: no spans of requests with gen_ai.usage attributes in it")
    origin = rows[0]["began"]
    timed = [row for row in rows if row["ttft"] is not None and row["output"] > 1]
    later = sum(row["output"] - 1 for row in timed)
    took_s = sum(row["e2el"] - row["ttft"] for row in timed)
    return Observed(
        place,
        duration_s=max(row["began"] + row["e2el"] for row in rows) - origin,
        requests=len(rows),
        prompt_tokens=sum(row["prompt"] for row in rows),
        output_tokens=sum(row["output"] for row in rows),
        arrivals=tuple((row["began"] - origin, int(row["prompt"]), int(row["output"])) for row in rows),
        ttft=_mean([row["ttft"] for row in rows]),
        prefill=_mean([row["prefill"] for row in rows]),
        tpot=Mean(later, took_s / later) if later else None,
        notes=(outer_note(outer),) if outer else (),
    )


def _mean(values: Sequence[float | None]) -> Mean | None:
    known = [value for value in values if value is not None]
    return Mean(len(known), sum(known) / len(known)) if known else None


def _benchmark(file: Path) -> Observed:
    from traces.benchmark_results import read_runs

    runs = read_runs(file)
    if len(runs) != 1:
        raise ForerunError(f"{file}: holds {len(runs)} runs; a result of one is expected")
    (run,) = runs
    measured, count = run.measured, float(run.num_requests or 0) or None
    rate = measured.get("request_throughput")
    lengths = {
        f"{what}_lengths": ((one, 1.0),) if isinstance(one, int) else tuple((end, 1.0) for end in one)
        for what, one in (("prompt", run.input_tokens), ("output", run.output_tokens))
        if one is not None
    }
    latencies = {
        name: Mean(count or 1.0, measured[f"mean_{name}_ms"] / 1e3)
        for name in ("ttft", "tpot", "itl", "e2el")
        if f"mean_{name}_ms" in measured
    }
    tokens = count * float(np.mean(run.output_tokens)) if count and run.output_tokens is not None else 0.0
    drafts = tokens / run.acceptance_length if run.acceptance_length and tokens else None
    accepted = None if drafts is None else tokens - drafts
    duration = count / rate if count and rate else None
    seen = Observed(str(file), duration, count, drafts=drafts, accepted_tokens=accepted, notes=run.notes)
    return replace(seen, **lengths, **latencies)  # type: ignore[arg-type]
