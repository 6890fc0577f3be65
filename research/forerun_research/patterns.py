"""Traffic that a controller may meet: load steps, acceptance that drifts, easy beside hard requests, long prompts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from forerun import ForerunError
from forerun.parts import FloatArray, IntArray, RequestStream, scaled_survival

LEVELS = tuple(round(0.1 + 0.05 * n, 2) for n in range(22))
"""Factors on the scenario's conditional acceptance that a request may have."""
BATCHES = (1.0, 96.0)
"""Least and most concurrent requests that a stretch of traffic aims at."""
OUTPUTS = (32, 256)
PROMPTS = (64, 4096)
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "acceptance_factor")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive requests with the same parameters."""

    requests: int
    batch: float
    """Requests at once, had they no drafts: sets the rate of arrivals (Little's law)."""
    acceptance: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """A stream of requests by its parameters."""

    seed: int
    hard_share: float
    """Share of requests, chosen at random, whose drafts are accepted less often."""
    hard_factor: float
    stretches: tuple[Stretch, ...]

    @property
    def words(self) -> str:
        batches = " -> ".join(f"{one.batch:.0f}" for one in self.stretches)
        factors = " -> ".join(f"{one.acceptance:.2f}" for one in self.stretches)
        return f"{batches} at once, acceptance x {factors}, {self.hard_share:.0%} hard"


@dataclass(frozen=True, slots=True)
class PatternTraffic:
    """Requests, and how well each one's drafts are accepted."""

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    factor: FloatArray

    @property
    def stream(self) -> RequestStream:
        return RequestStream(self.arrival_s, self.input_tokens, self.output_tokens, None)

    @property
    def level(self) -> IntArray:
        """Place of each request's factor among ``LEVELS``."""
        nearest: IntArray = np.abs(self.factor[:, None] - np.asarray(LEVELS)).argmin(axis=1)
        return nearest

    @property
    def csv(self) -> str:
        """Request trace that ``workload.trace`` reads; the last column is for ``forerun race --replay`` alone."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        columns = (self.arrival_s, self.input_tokens, self.output_tokens, self.factor)
        writer.writerows([repr(float(a)), int(i), int(o), f"{f:.4f}"] for a, i, o, f in zip(*columns, strict=True))
        return text.getvalue()


def read_traffic(text: str, place: str) -> PatternTraffic:
    """The requests that ``Traffic.csv`` wrote."""
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ForerunError(f"{place}: line 1: a pattern's columns are {', '.join(COLUMNS)}")
    values = []
    for line, row in enumerate(rows[1:], 2):
        try:
            arrival, prompt, output, factor = map(float, row)
        except ValueError:
            raise ForerunError(f"{place}: line {line}: four numbers are needed ({', '.join(COLUMNS)})") from None
        if not (arrival >= 0 and prompt >= 1 and output >= 1 and 0 <= factor <= 10):
            raise ForerunError(f"{place}: line {line}: arrivals and factors from 0, tokens from 1")
        values.append((arrival, prompt, output, factor))
    if not values:
        raise ForerunError(f"{place}: holds none of its requests")
    arrival_s, prompts, outputs, factors = np.array(sorted(values)).T
    return PatternTraffic(arrival_s, prompts.astype(np.int64), outputs.astype(np.int64), factors)


def survival_by_level(survival: Sequence[float]) -> FloatArray:
    """Chances that at least i tokens are accepted (columns) under each of ``LEVELS`` (rows)."""
    return np.array([scaled_survival(list(survival), level) for level in LEVELS])


def drawn(rng: np.random.Generator, requests: int) -> Pattern:
    count = int(rng.integers(1, 6))
    stretches = tuple(_stretch(rng, max(4, requests // count)) for _ in range(count))
    hard_share = float(rng.uniform(0.0, 0.8)) if rng.random() < 0.5 else 0.0
    return Pattern(int(rng.integers(2**31)), hard_share, float(rng.uniform(0.1, 0.6)), stretches)


def changed(rng: np.random.Generator, pattern: Pattern) -> Pattern:
    """A pattern near another: one stretch drawn anew, load and acceptance of all moved a little."""
    requests = sum(one.requests for one in pattern.stretches)
    moved = [
        replace(
            one,
            batch=float(np.clip(one.batch * np.exp(0.25 * rng.standard_normal()), *BATCHES)),
            acceptance=float(np.clip(one.acceptance * np.exp(0.15 * rng.standard_normal()), 0.1, 1.1)),
        )
        for one in pattern.stretches
    ]
    if rng.random() < 0.5:
        moved[int(rng.integers(len(moved)))] = _stretch(rng, max(4, requests // len(moved)))
    return replace(pattern, stretches=tuple(moved), seed=int(rng.integers(2**31)))


def _stretch(rng: np.random.Generator, requests: int) -> Stretch:
    def between(ends: tuple[float, float]) -> float:
        return float(np.exp(rng.uniform(*np.log(ends))))

    acceptance = float(rng.uniform(0.2, 1.1))
    return Stretch(requests, between(BATCHES), acceptance, round(between(PROMPTS)), round(between(OUTPUTS)))


def traffic_of(pattern: Pattern, step_seconds: Callable[[int, int, int], float]) -> PatternTraffic:
    rng = np.random.default_rng(pattern.seed)
    columns: list[list[FloatArray]] = [[], [], [], []]
    now = 0.0
    for one in pattern.stretches:
        batch = max(1, round(one.batch))
        rate = one.batch / (one.output * step_seconds(batch, 0, one.prompt + one.output // 2))
        arrivals = now + np.cumsum(rng.exponential(1.0 / rate, one.requests))
        now = float(arrivals[-1])
        spread = [np.exp(0.4 * rng.standard_normal(one.requests) - 0.08) for _ in range(2)]
        hard = rng.random(one.requests) < pattern.hard_share
        columns[0].append(arrivals)
        columns[1].append(np.maximum(1, np.round(one.prompt * spread[0])))
        columns[2].append(np.maximum(2, np.round(one.output * spread[1])))
        columns[3].append(one.acceptance * np.where(hard, pattern.hard_factor, 1.0))
    arrival_s, prompts, outputs, factors = map(np.concatenate, columns)
    kept = np.clip(factors, LEVELS[0], LEVELS[-1])
    return PatternTraffic(arrival_s, prompts.astype(np.int64), outputs.astype(np.int64), kept)
