"""ServeGen client pools: a seeded request table drawn from per-client rates, burstiness and token distributions."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import FloatArray, IntArray
from traces.errors import TraceError, shown
from traces.files import csv_lines, load_document, unpacked_bytes
from traces.requests.layout import Options
from traces.requests.rows import RawChunk

_SUFFIX = "-trace.csv"
_MODALITIES = ("image", "audio", "video")
_MAX_REQUESTS = 20_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """One window of a client: start and length in seconds, requests per second, gap distribution and its shape."""

    start_s: float
    length_s: float
    rate: float
    pattern: str
    shape: float


def pool_files(path: Path) -> list[Path]:
    """Trace files of a pool by name; a single file is a pool of one client."""
    return sorted(path.glob(f"chunk-*{_SUFFIX}")) if path.is_dir() else [path]


def is_servegen_header(fields: list[str]) -> bool:
    """True for the fields of a ServeGen client's window: t, rate, cv, pattern, arg1, arg2."""
    if len(fields) != 6 or fields[3] not in ("", "Gamma", "Weibull"):
        return False
    try:
        return all(math.isfinite(float(fields[index])) for index in (0, 1, 2, 4, 5))
    except ValueError:
        return False


def read_load_windows(path: Path) -> list[Window]:
    """Windows of one client; raises TraceError naming the line that is not a window."""
    text = unpacked_bytes(path).decode("utf-8-sig", errors="replace")
    rows: list[tuple[float, float, str, float]] = []
    for line, fields in csv_lines(path, text):
        if not is_servegen_header(fields):
            raise TraceError(f"{path}:{line}: {shown(','.join(fields))}: t,rate,cv,pattern,shape,scale expected")
        start, rate, shape = float(fields[0]), float(fields[1]), float(fields[4])
        if start < 0 or not 0 <= rate <= 1e6 or (rows and start <= rows[-1][0]):
            raise TraceError(f"{path}:{line}: rising times and a rate from 0 to 1e6 requests/s expected")
        if fields[3] and rate and not 1e-3 <= shape <= 1e6:
            raise TraceError(f"{path}:{line}: shape {shape}: 0.001 to 1e6 expected for {fields[3]}")
        rows.append((start, rate, fields[3], shape))
    if not rows:
        raise TraceError(f"{path}: no windows; lines of t,rate,cv,pattern,shape,scale expected")
    step = rows[1][0] - rows[0][0] if len(rows) > 1 else 600.0
    ends = [row[0] for row in rows[1:]] + [rows[-1][0] + step]
    return [
        Window(start, end - start, rate, kind, shape)
        for (start, rate, kind, shape), end in zip(rows, ends, strict=True)
    ]


def _gaps(window: Window, count: int, rng: np.random.Generator) -> FloatArray:
    """Inter-arrival gaps with mean 1: gamma or Weibull of the window's shape, exponential where none was fitted."""
    if window.pattern == "Gamma":
        return rng.gamma(window.shape, 1.0 / window.shape, count)
    if window.pattern == "Weibull":
        return rng.weibull(window.shape, count) / math.gamma(1.0 + 1.0 / window.shape)
    return rng.exponential(1.0, count)


def arrivals(windows: list[Window], start_s: float, end_s: float, scale: float, rng: np.random.Generator) -> FloatArray:
    """Arrival times of one client in [start_s, end_s): a renewal process run in operational time.

    Operational time is the integral of the rate, so the expected number of requests is that of the file whatever the
    burstiness; gaps are drawn with the shape of the window they begin in, and the remainder of a gap carries over into
    the next window. The first gap is the residual of a gap at a random moment, so that the process starts in
    equilibrium (Cox, "Renewal Theory", 1962, section 2.1).
    """
    arrivals_by_window: list[FloatArray] = []
    left: float | None = None
    for window in windows:
        low, high = max(window.start_s, start_s), min(window.start_s + window.length_s, end_s)
        if low >= high or window.rate <= 0:
            continue
        rate = window.rate * scale
        span = (high - low) * rate
        if span > _MAX_REQUESTS:
            raise TraceError(
                f"about {span:.0f} requests in one window; choose a shorter duration_s or a rate_scale < 1"
            )
        if left is None:
            ends = np.cumsum(_gaps(window, 4096, rng))
            met = rng.uniform(0.0, ends[-1])
            left = float(ends[np.searchsorted(ends, met)] - met)
        at = left
        while at < span:
            size = int(1.1 * (span - at)) + 64
            times = at + np.concatenate([[0.0], np.cumsum(_gaps(window, size, rng))])
            arrivals_by_window.append(low + times[:-1][times[:-1] < span] / rate)
            beyond = np.searchsorted(times, span)
            at = float(times[min(int(beyond), size)])
        left = at - span
    return np.concatenate(arrivals_by_window) if arrivals_by_window else np.zeros(0)


Pmf = tuple[IntArray, FloatArray]


class Dataset:
    """Token distributions of one client by window."""

    def __init__(self, path: Path) -> None:
        document = load_document(path)
        self.path = path
        windows = document if isinstance(document, dict) else {"": {}}
        try:
            self._windows = sorted((float(key), value) for key, value in windows.items() if isinstance(value, dict))
        except (TypeError, ValueError):
            raise TraceError(f"{path}: an object of windows, keyed by their start in seconds, expected") from None
        self._cache: dict[tuple[int, str], Pmf | None] = {}

    def fields(self) -> set[str]:
        return {name for _, window in self._windows for name in window}

    def pmf(self, time_s: float, field: str, minimum: int) -> Pmf:
        """Values >= ``minimum`` and cumulative probabilities for the window that holds ``time_s``.

        A window without data takes the nearest earlier one that has some, else the nearest later one.
        """
        starts = [start for start, _ in self._windows]
        here = int(np.searchsorted(starts, time_s, side="right")) - 1
        for index in [*range(here, -1, -1), *range(max(here + 1, 0), len(starts))]:
            distribution = self._at(index, field, minimum)
            if distribution is not None:
                return distribution
        raise TraceError(f"{self.path}: {field}: no window holds a distribution of values >= {minimum}")

    def _at(self, index: int, field: str, minimum: int) -> Pmf | None:
        """Parse the distribution of one window once; it is a string that holds a Python dict."""
        key = (index, field)
        if key in self._cache:
            return self._cache[key]
        start, window = self._windows[index]
        text = window.get(field, "{}")
        try:
            table = ast.literal_eval(text) if isinstance(text, str) else text
            pairs = sorted((int(value), float(weight)) for value, weight in table.items())
            values = np.array([value for value, _ in pairs], dtype=np.int64)
            weights = np.array([weight for _, weight in pairs], dtype=np.float64)
            if np.any(weights < 0) or not np.all(np.isfinite(weights)) or np.any(np.abs(values) > 1e9):
                raise ValueError("probabilities and token counts must be finite and >= 0")
        except (ValueError, SyntaxError, AttributeError, TypeError, OverflowError, MemoryError, RecursionError) as bad:
            raise TraceError(
                f"{self.path}: window {start:.0f}: {field}: a dict of tokens: probability expected ({bad})"
            ) from None
        usable = (values >= minimum) & (weights > 0)
        distribution = (values[usable], np.cumsum(weights[usable]) / weights[usable].sum()) if usable.any() else None
        self._cache[key] = distribution
        return distribution

    def draw(self, times_s: FloatArray, field: str, minimum: int, rng: np.random.Generator) -> IntArray:
        uniform = rng.random(len(times_s))
        drawn = np.zeros(len(times_s), dtype=np.int64)
        starts = np.array([start for start, _ in self._windows])
        windows = np.searchsorted(starts, times_s, side="right")
        for window in np.unique(windows):
            rows = windows == window
            values, cumulative = self.pmf(float(times_s[rows][0]), field, minimum)
            places = np.minimum(np.searchsorted(cumulative, uniform[rows], side="right"), len(values) - 1)
            drawn[rows] = values[places]
        return drawn


def _input_tokens(dataset: Dataset, times_s: FloatArray, rng: np.random.Generator) -> IntArray:
    """Prompt tokens; of a multimodal client text plus count times tokens per image, audio and video (assumed)."""
    fields = dataset.fields()
    if "input_tokens" in fields:
        return dataset.draw(times_s, "input_tokens", 1, rng)
    total = dataset.draw(times_s, "text_tokens", 0, rng)
    for modality in _MODALITIES:
        if f"{modality}_tokens" in fields:
            each = dataset.draw(times_s, f"{modality}_tokens", 0, rng)
            count = dataset.draw(times_s, f"{modality}_count", 0, rng) if f"{modality}_count" in fields else 1
            total = total + each * count
    return np.maximum(total, 1)


def servegen_chunks(path: Path, options: Options) -> Iterator[RawChunk]:
    """One chunk per client, its name as session; each client draws from its own stream, whatever the others are."""
    files = pool_files(path)
    start, end = options.start_s, options.start_s + options.duration_s
    loads: Mapping[Path, list[Window]] = {file: read_load_windows(file) for file in files}
    expected = sum(
        window.rate
        * options.rate_scale
        * max(0.0, min(end, window.start_s + window.length_s) - max(start, window.start_s))
        for windows in loads.values()
        for window in windows
    )
    if expected > _MAX_REQUESTS:
        raise TraceError(f"{path}: about {expected:.0f} requests; choose a shorter duration_s or a rate_scale < 1")
    any_request = False
    for file, windows in loads.items():
        name = file.name.removesuffix(_SUFFIX)
        digits = int("".join(char for char in name if char.isdigit()) or 0)
        rng = np.random.default_rng([options.seed, digits])
        times = arrivals(windows, start, end, options.rate_scale, rng)
        if len(times) == 0:
            continue
        any_request = True
        dataset = Dataset(file.with_name(f"{name}-dataset.json"))
        columns: dict[str, Any] = {
            "arrival_s": times - start,
            "input_tokens": _input_tokens(dataset, times, rng),
            "output_tokens": dataset.draw(times, "output_tokens", 1, rng),
            "session_id": [name] * len(times),
        }
        yield RawChunk(columns, len(times), range(1, len(times) + 1), place=f"{file}: request {{}}")
    if not any_request:
        raise TraceError(f"{path}: {_no_load(loads, start, end)}")


def _no_load(loads: Mapping[Path, list[Window]], start: float, end: float) -> str:
    """Error for a window without load, with the times that have some."""
    busy = [window for windows in loads.values() for window in windows if window.rate > 0]
    if not busy:
        return "no client has any load"
    first, last = min(window.start_s for window in busy), max(window.start_s + window.length_s for window in busy)
    later = min((window.start_s for window in busy if window.start_s >= end), default=first)
    return (
        f"no request between {start:.0f} s and {end:.0f} s; there is load from {first:.0f} s to {last:.0f} s, "
        f"for example with start_s={later:.0f}"
    )
