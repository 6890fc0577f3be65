"""Statistics of a request trace: lengths, arrivals and prefix sharing, from a table or a stream of chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from forerun.arrays import Array, FloatArray, IntArray
from traces.errors import TraceError
from traces.requests.table import PrefixHashes, RequestTable

PERCENTILES = {"p1": 1.0, "p5": 5.0, "p25": 25.0, "p50": 50.0, "p75": 75.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
PERCENTILES |= {"p999": 99.9}
"""Percentiles of token counts, linear interpolation as numpy's default."""

BIN_WIDTHS_S = (1, 10, 60)
"""Widths in seconds of the bins in which arrivals are counted."""

_MAX_GAPS = 4_000_000
_MAX_BINS = 20_000_000


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Distribution of a token count over requests; ``std`` is that of the population."""

    n: int
    total: int
    mean: float
    std: float
    min: int
    max: int
    percentiles: Mapping[str, float]

    @property
    def cv(self) -> float:
        return self.std / self.mean


@dataclass(frozen=True, slots=True)
class ArrivalStatistics:
    """Arrivals of a trace.

    Attributes:
        span_s: seconds from the first to the last arrival.
        mean_rps: (n - 1) / span; None when all arrive at once.
        iat_mean_s, iat_max_s: inter-arrival times in seconds.
        iat_cv: their standard deviation over their mean (1 for a Poisson process); None when all are 0.
        iat_p50_s, iat_p99_s: percentiles; None for a stream of more than four million rows.
        identical_times: requests that arrive at the time of the one before.
        dispersion: variance over mean of the counts in bins, by bin width in seconds (1 for a Poisson process).
        peak_over_mean: busiest bin over the mean bin, by bin width in seconds.
    """

    span_s: float
    mean_rps: float | None
    iat_mean_s: float
    iat_cv: float | None
    iat_p50_s: float | None
    iat_p99_s: float | None
    iat_max_s: float
    identical_times: int
    dispersion: Mapping[int, float]
    peak_over_mean: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class PrefixStatistics:
    """Prefix sharing of a trace under a cache that keeps every block for ever.

    Attributes:
        block_tokens: tokens per block.
        token_hit: tokens of the longest prefix of blocks seen before, capped at the prompt, over all prompt tokens.
        block_hit: the same counted in blocks.
        mean_request_hit: unweighted mean over requests of each request's token hit.
        requests_with_hit: share of requests whose first block was seen before.
        unique_blocks: distinct block ids.
        total_blocks: block ids of all requests.
        blocks_used_once: share of the distinct blocks that one request used once.
    """

    block_tokens: int
    token_hit: float
    block_hit: float
    mean_request_hit: float
    requests_with_hit: float
    unique_blocks: int
    total_blocks: int
    blocks_used_once: float


@dataclass(slots=True)
class PrefixCounter:
    """Collects prefix sharing over the chunks of a trace; memory grows with the distinct blocks, not with the rows."""

    block_tokens: int
    _uses: Counter[int] = field(default_factory=Counter)
    _requests: int = 0
    _with_hit: int = 0
    _hit_blocks: int = 0
    _hit_tokens: int = 0
    _tokens: int = 0
    _share: float = 0.0

    def add(self, hashes: PrefixHashes, input_tokens: IntArray) -> None:
        """Look up each request's prefix, then remember its blocks."""
        uses = self._uses
        for request, tokens in enumerate(input_tokens.tolist()):
            ids = hashes.of(request).tolist()
            cached = next((at for at, block in enumerate(ids) if block not in uses), len(ids))
            uses.update(ids)
            hit = min(cached * self.block_tokens, tokens)
            self._requests += 1
            self._with_hit += cached > 0
            self._hit_blocks += cached
            self._hit_tokens += hit
            self._tokens += tokens
            self._share += hit / tokens

    def result(self) -> PrefixStatistics:
        """Return the statistics so far; raises TraceError before the first request."""
        if not self._requests:
            raise TraceError("prefix sharing of no requests is not defined")
        total = self._uses.total()
        return PrefixStatistics(
            block_tokens=self.block_tokens,
            token_hit=self._hit_tokens / self._tokens,
            block_hit=self._hit_blocks / total if total else 0.0,
            mean_request_hit=self._share / self._requests,
            requests_with_hit=self._with_hit / self._requests,
            unique_blocks=len(self._uses),
            total_blocks=total,
            blocks_used_once=sum(1 for uses in self._uses.values() if uses == 1) / max(len(self._uses), 1),
        )


@dataclass(frozen=True, slots=True)
class RequestStatistics:
    """Statistics of a request trace; None for values that the trace does not contain."""

    requests: int
    source: str
    format: str
    input_tokens: TokenStatistics
    output_tokens: TokenStatistics
    length_correlation: float | None
    arrivals: ArrivalStatistics | None
    prefix: PrefixStatistics | None
    sessions: int | None
    requests_per_session: float | None
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain values for JSON (no NaN, no infinity)."""
        return asdict(self)


@dataclass(slots=True)
class _Lengths:
    """Token counts as a weighted multiset: memory grows with the distinct counts."""

    counts: Counter[int] = field(default_factory=Counter)

    def add(self, values: IntArray) -> None:
        distinct, times = np.unique(values, return_counts=True)
        self.counts.update(dict(zip(distinct.tolist(), times.tolist(), strict=True)))

    def result(self) -> TokenStatistics:
        """Moments and percentiles, exact."""
        values = np.array(sorted(self.counts), dtype=np.int64)
        weights = np.array([self.counts[value] for value in values.tolist()], dtype=np.int64)
        n, total = int(weights.sum()), int(values @ weights)
        mean = total / n
        std = float(np.sqrt(np.sum(weights * (values - mean) ** 2) / n))
        ends = np.cumsum(weights)
        percentiles = {name: _weighted_percentile(values, ends, share) for name, share in PERCENTILES.items()}
        return TokenStatistics(n, total, mean, std, int(values[0]), int(values[-1]), percentiles)


def _weighted_percentile(values: IntArray, ends: IntArray, percent: float) -> float:
    """Percentile with linear interpolation of the multiset whose i-th value fills the ranks up to ``ends[i]``."""
    place = (int(ends[-1]) - 1) * percent / 100.0
    low = int(place)
    at_low = int(values[np.searchsorted(ends, low, side="right")])
    at_next = int(values[np.searchsorted(ends, min(low + 1, int(ends[-1]) - 1), side="right")])
    return at_low + (at_next - at_low) * (place - low)


@dataclass(slots=True)
class _Arrivals:
    """Inter-arrival times and counts in bins, chunk by chunk."""

    first: float | None = None
    last: float = 0.0
    n: int = 0
    gaps: list[FloatArray] | None = field(default_factory=list)
    gap_count: int = 0
    gap_mean: float = 0.0
    gap_squares: float = 0.0
    gap_max: float = 0.0
    identical: int = 0
    bins: dict[int, IntArray] = field(default_factory=dict)

    def add(self, arrival_s: FloatArray) -> None:
        if not len(arrival_s):
            return
        if self.first is None:
            self.first = float(arrival_s[0])
            self.bins = {width: np.zeros(0, dtype=np.int64) for width in BIN_WIDTHS_S}
            gaps = np.diff(arrival_s)
        else:
            gaps = np.diff(arrival_s, prepend=self.last)
        if np.any(gaps < 0):
            raise TraceError("describe_requests: chunks must follow each other in order of arrival")
        self.last = float(arrival_s[-1])
        self.n += len(arrival_s)
        self._add_gaps(gaps)
        for width in list(self.bins):
            self._add_bins(width, arrival_s - self.first)

    def _add_gaps(self, gaps: FloatArray) -> None:
        """Merge moments (Chan, Golub and LeVeque, 1979) and keep the gaps for percentiles while they are few."""
        if not len(gaps):
            return
        mean, count = float(gaps.mean()), len(gaps)
        total, difference = self.gap_count + count, mean - self.gap_mean
        self.gap_squares += float(np.sum((gaps - mean) ** 2)) + difference**2 * self.gap_count * count / total
        self.gap_mean += difference * count / total
        self.gap_count = total
        self.gap_max = max(self.gap_max, float(gaps.max()))
        self.identical += int(np.count_nonzero(gaps == 0))
        if self.gaps is not None:
            self.gaps.append(gaps)
            if self.gap_count > _MAX_GAPS:
                self.gaps = None

    def _add_bins(self, width: int, since_s: FloatArray) -> None:
        """Count arrivals in bins; widths that would need too many bins are given up."""
        size = int(since_s[-1] // width) + 1
        if size > _MAX_BINS:
            del self.bins[width]
            return
        base = int(since_s[0] // width)
        counted = np.bincount((since_s // width).astype(np.int64) - base)
        grown = np.zeros(max(size, len(self.bins[width])), dtype=np.int64)
        grown[: len(self.bins[width])] = self.bins[width]
        grown[base : base + len(counted)] += counted
        self.bins[width] = grown

    def result(self) -> ArrivalStatistics | None:
        """The figures, or None with fewer than two arrivals."""
        if self.first is None or self.n < 2:
            return None
        span = self.last - self.first
        gaps = None if self.gaps is None else np.concatenate(self.gaps)
        p50, p99 = (None, None) if gaps is None else (float(value) for value in np.percentile(gaps, [50, 99]))
        return ArrivalStatistics(
            span_s=span,
            mean_rps=(self.n - 1) / span if span > 0 else None,
            iat_mean_s=self.gap_mean,
            iat_cv=float(np.sqrt(self.gap_squares / self.gap_count)) / self.gap_mean if self.gap_mean > 0 else None,
            iat_p50_s=p50,
            iat_p99_s=p99,
            iat_max_s=self.gap_max,
            identical_times=self.identical,
            dispersion={width: float(bins.var() / bins.mean()) for width, bins in self.bins.items()},
            peak_over_mean={width: float(bins.max() / bins.mean()) for width, bins in self.bins.items()},
        )


@dataclass(slots=True)
class _Correlation:
    """Pearson correlation of input and output tokens x and y from exact running sums."""

    sums: list[list[int]] = field(default_factory=lambda: [[0] * 3 for _ in range(3)])
    """Sums of the products of each pair of (1, x, y)."""

    def add(self, x: IntArray, y: IntArray) -> None:
        columns: Array = np.stack([np.ones_like(x), x, y])
        if len(x) and int(columns.max()) ** 2 * len(x) >= 2**62:
            columns = columns.astype(object)
        more = (columns @ columns.T).tolist()
        self.sums = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(self.sums, more, strict=True)]

    def result(self) -> float | None:
        """The correlation, or None when either side is constant."""
        (n, x, y), (_, xx, xy), (_, _, yy) = self.sums
        spread = (n * xx - x**2) * (n * yy - y**2)
        return (n * xy - x * y) / float(spread) ** 0.5 if spread > 0 else None


def describe_requests(requests: RequestTable | Iterable[RequestTable]) -> RequestStatistics:
    """Figures of a trace, given whole or as the chunks of ``iter_requests`` (same figures, bounded memory).

    Definitions: inter-arrival CV = std / mean; dispersion = variance / mean of counts in bins that start at the first
    arrival; prefix sharing in order of arrival under a cache that keeps everything.

    Raises:
        TraceError: no requests, or chunks out of order.
    """
    lengths = {"input_tokens": _Lengths(), "output_tokens": _Lengths()}
    arrivals, correlation, skipped = _Arrivals(), _Correlation(), Counter[str]()
    prefix: PrefixCounter | None = None
    sessions: set[int] = set()
    in_session = 0
    notes: dict[str, None] = {}
    table = None
    for table in [requests] if isinstance(requests, RequestTable) else requests:
        for name, counter in lengths.items():
            counter.add(getattr(table, name))
        correlation.add(table.input_tokens, table.output_tokens)
        if table.arrival_s is not None:
            arrivals.add(table.arrival_s)
        if table.prefix_hashes is not None:
            prefix = prefix or PrefixCounter(table.prefix_hashes.block_tokens)
            prefix.add(table.prefix_hashes, table.input_tokens)
        if table.session_id is not None:
            used = table.session_id[table.session_id >= 0]
            sessions.update(np.unique(used).tolist())
            in_session += len(used)
        skipped.update(table.skipped)
        notes.update(dict.fromkeys(table.notes))
    if table is None or correlation.sums[0][0] == 0:
        raise TraceError("describe_requests: no requests to describe")
    return RequestStatistics(
        requests=correlation.sums[0][0],
        source=table.source,
        format=table.format,
        input_tokens=lengths["input_tokens"].result(),
        output_tokens=lengths["output_tokens"].result(),
        length_correlation=correlation.result(),
        arrivals=arrivals.result(),
        prefix=None if prefix is None else prefix.result(),
        sessions=len(sessions) if table.session_id is not None else None,
        requests_per_session=in_session / len(sessions) if sessions else None,
        skipped=dict(skipped),
        notes=tuple(notes),
    )
