"""Canonical table of requests: one numpy column per attribute, one row per request, in order of arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from traces.errors import TraceError

DURATIONS = ("think_time_s", "measured_ttft_s", "measured_e2e_s")
FLOAT_COLUMNS = ("arrival_s", *DURATIONS)
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "session_id", "turn", *DURATIONS)
"""Array columns of a request table in canonical order (without ``prefix_hashes``, which is ragged)."""


def _frozen(values: object, dtype: type[np.generic], name: str) -> NDArray[Any]:
    """A read-only one-dimensional view of ``values`` in ``dtype``; raises TraceError for anything else."""
    try:
        array = np.asarray(values)
        if np.issubdtype(dtype, np.integer) and array.dtype.kind not in "iu" and array.size:
            raise TraceError(f"RequestTable: {name}: whole numbers expected, not {array.dtype}")
        view = array.astype(dtype, copy=False).view()
    except (TypeError, ValueError, OverflowError) as problem:
        raise TraceError(f"RequestTable: {name}: numbers expected ({problem})") from problem
    if view.ndim != 1:
        raise TraceError(f"RequestTable: {name}: one value per request expected, not {view.ndim} dimensions")
    view.setflags(write=False)
    return view


@dataclass(frozen=True, slots=True, eq=False)
class PrefixHashes:
    """Prefix block ids of every request, ragged: request i owns ``ids[offsets[i]:offsets[i + 1]]``.

    Equal ids mean equal tokens in that block and in all blocks before it.

    Attributes:
        offsets: int64[n + 1], rising from 0 to ``len(ids)``.
        ids: int64, all block ids of all requests one after the other.
        block_tokens: tokens in one block; the last block of a request may be partial.
    """

    offsets: IntArray
    ids: IntArray
    block_tokens: int

    def __post_init__(self) -> None:
        offsets = _frozen(self.offsets, np.int64, "prefix_hashes.offsets")
        ids = _frozen(self.ids, np.int64, "prefix_hashes.ids")
        if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(ids) or np.any(np.diff(offsets) < 0):
            raise TraceError("RequestTable: prefix_hashes.offsets: must rise from 0 to the number of ids")
        if isinstance(self.block_tokens, bool) or not isinstance(self.block_tokens, int) or self.block_tokens < 1:
            raise TraceError(f"RequestTable: prefix_hashes.block_tokens: {self.block_tokens!r}: >= 1 expected")
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, request: int) -> IntArray:
        """Block ids of one request, first block first."""
        return self.ids[self.offsets[request] : self.offsets[request + 1]]

    def take(self, rows: IntArray) -> PrefixHashes:
        """The block ids of ``rows`` (indices, in the order given)."""
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        starts = np.repeat(self.offsets[:-1][rows] - offsets[:-1], counts)
        return PrefixHashes(offsets, self.ids[np.arange(offsets[-1], dtype=np.int64) + starts], self.block_tokens)

    @classmethod
    def of_groups(
        cls, tokens: IntArray, shared_tokens: IntArray | int, group: IntArray, own: IntArray, block_tokens: int
    ) -> PrefixHashes:
        """Requests that share whole blocks of their first ``shared_tokens`` with their ``group``. All blocks are shared
        with requests of the same ``own`` number."""
        blocks = -(-tokens // block_tokens)
        offsets = np.concatenate(([0], np.cumsum(blocks)))
        position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], blocks)
        shared = position < np.repeat(shared_tokens // block_tokens + 0 * blocks, blocks)
        width = int(blocks.max(initial=0)) + 1
        number = np.where(shared, int(own.max(initial=0)) + 1 + np.repeat(group, blocks), np.repeat(own, blocks))
        return cls(offsets, number * width + position, block_tokens)

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], block_tokens: int) -> PrefixHashes:
        """Build from one sequence of ids per request."""
        counts = np.fromiter((len(ids) for ids in lists), dtype=np.int64, count=len(lists))
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        flat = np.fromiter((block for ids in lists for block in ids), dtype=np.int64, count=int(offsets[-1]))
        return cls(offsets, flat, block_tokens)

    @classmethod
    def concatenate(cls, parts: Sequence[PrefixHashes]) -> PrefixHashes:
        """Concatenate several parts; all must have the same block size."""
        sizes = {part.block_tokens for part in parts}
        if len(sizes) != 1:
            raise TraceError(f"prefix_hashes: block sizes differ ({sorted(sizes)} tokens); read such traces separately")
        ends = np.cumsum([0] + [len(part.ids) for part in parts])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, ends, strict=False)]
        flat = np.concatenate([part.ids for part in parts])
        return cls(np.append(np.concatenate(offsets), ends[-1]).astype(np.int64), flat, sizes.pop())


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """Requests of one trace as read-only numpy columns, in order of arrival.

    Attributes:
        input_tokens: prompt tokens, int64, >= 1.
        output_tokens: generated tokens, int64, >= 1.
        arrival_s: seconds since the first request, float64, never falling; None when the trace holds no times.
            In a chunk of a stream the first value is not 0.
        session_id: int64 code of the session or client a request belongs to, -1 for none; None when not recorded.
            ``session_names[code]`` is the name in the file.
        turn: position of the request inside its session from 0, -1 for none; None when not recorded.
        think_time_s: seconds between the previous answer of the session and this request, NaN if not recorded.
        prefix_hashes: prefix block ids, or None.
        follows: which requests wait for which: int64[m, 2], rows (waited for, waiting), the first before the second;
            None if the trace does not tell.
        measured_ttft_s: measured time to first token in seconds, NaN if not measured; None when not recorded.
        measured_e2e_s: measured end-to-end latency in seconds, NaN if not measured; None when not recorded.
        began_s: ``arrival_s`` 0 by the clock of the trace's time zone, in seconds since 1970; None without dates.
        source: where the rows came from.
        format: name of the trace format.
        skipped: rows left out, by reason.
        notes: remarks a reader of results should see (rows sorted, columns not used, assumptions made).

    Raises:
        TraceError: a column of another length, a token count below 1, a time that is not finite, negative or falling.
    """

    input_tokens: IntArray
    output_tokens: IntArray
    arrival_s: FloatArray | None = None
    session_id: IntArray | None = None
    session_names: tuple[str, ...] = ()
    turn: IntArray | None = None
    think_time_s: FloatArray | None = None
    prefix_hashes: PrefixHashes | None = None
    follows: IntArray | None = None
    measured_ttft_s: FloatArray | None = None
    measured_e2e_s: FloatArray | None = None
    began_s: float | None = None
    source: str = ""
    format: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, values in self.columns().items():
            dtype = np.float64 if name in FLOAT_COLUMNS else np.int64
            object.__setattr__(self, name, _frozen(values, dtype, name))
            if len(getattr(self, name)) != len(self.input_tokens):
                raise TraceError(
                    f"RequestTable: {name}: {len(values)} values for {len(self.input_tokens)} input_tokens"
                )
        for name in ("input_tokens", "output_tokens"):
            if np.any(getattr(self, name) < 1):
                raise TraceError(f"RequestTable: {name}: every request needs at least 1 token")
        if self.prefix_hashes is not None and len(self.prefix_hashes) != len(self):
            raise TraceError(f"RequestTable: prefix_hashes: {len(self.prefix_hashes)} rows for {len(self)} requests")
        self._check_times()
        self._check_follows()
        object.__setattr__(self, "skipped", MappingProxyType(dict(self.skipped)))
        object.__setattr__(self, "notes", tuple(self.notes))

    def _check_times(self) -> None:
        """Check that arrivals are finite, from 0 and never fall, durations not negative, session codes known."""
        arrival = self.arrival_s
        if arrival is not None and len(arrival):
            if not np.all(np.isfinite(arrival)) or arrival[0] < 0:
                raise TraceError("RequestTable: arrival_s: finite seconds >= 0 expected")
            if np.any(np.diff(arrival) < 0):
                raise TraceError("RequestTable: arrival_s: must not fall; sort the rows by arrival")
        for name, values in self.columns().items():
            if name in DURATIONS and (np.any(values < 0) or np.any(np.isinf(values))):
                raise TraceError(f"RequestTable: {name}: finite seconds >= 0 (or NaN for not measured) expected")
        object.__setattr__(self, "session_names", tuple(self.session_names))
        codes = self.session_id
        if codes is not None and len(codes) and (codes.min() < -1 or codes.max() >= len(self.session_names)):
            raise TraceError("RequestTable: session_id: codes must be -1 or an index into session_names")

    def _check_follows(self) -> None:
        if self.follows is None:
            return
        pairs = np.asarray(self.follows)
        if pairs.ndim != 2 or pairs.shape[1:] != (2,):
            raise TraceError("RequestTable: follows: pairs of rows expected")
        before, waiting = (_frozen(pairs[:, side], np.int64, "follows") for side in (0, 1))
        if np.any(before < 0) or np.any(before >= waiting) or np.any(waiting >= len(self)):
            raise TraceError("RequestTable: follows: rows that wait for earlier rows expected")
        object.__setattr__(self, "follows", np.column_stack([before, waiting]))

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last arrival; NaN when the trace holds no times."""
        arrival = self.arrival_s
        return float("nan") if arrival is None or len(arrival) == 0 else float(arrival[-1] - arrival[0])

    def columns(self) -> dict[str, NDArray[Any]]:
        """The array columns that are present, by name in canonical order."""
        arrays = {name: getattr(self, name) for name in COLUMNS}
        return {name: values for name, values in arrays.items() if values is not None}

    def take(self, rows: slice | IntArray) -> RequestTable:
        """Return the selected rows (a slice or ascending indices); arrival times are unchanged."""
        indices = np.arange(len(self), dtype=np.int64)[rows]
        parts: dict[str, Any] = {part.name: getattr(self, part.name) for part in fields(self)}
        parts |= {name: values[indices] for name, values in self.columns().items()}
        if self.prefix_hashes is not None:
            parts["prefix_hashes"] = self.prefix_hashes.take(indices)
        if self.follows is not None:
            place = np.full(len(self), -1, dtype=np.int64)
            place[indices] = np.arange(len(indices))
            pairs = place[self.follows]
            parts["follows"] = pairs[np.all(pairs >= 0, axis=1)]
        return RequestTable(**parts)

    def from_time_zero(self) -> RequestTable:
        """Return the same requests with arrivals shifted so that the first is at 0."""
        if self.arrival_s is None or not len(self):
            return self
        first = float(self.arrival_s[0])
        began_s = None if self.began_s is None else self.began_s + first
        return replace(self, arrival_s=self.arrival_s - first, began_s=began_s)

    def head(self, count: int) -> RequestTable:
        """The first ``count`` requests."""
        return self.take(slice(0, count))

    def sessions(self) -> Iterator[tuple[str, IntArray]]:
        """Each session's name and the rows of its requests in order of arrival; requests of no session are left out."""
        if self.session_id is None:
            return
        order = np.argsort(self.session_id, kind="stable").astype(np.int64)
        codes = self.session_id[order]
        starts = np.flatnonzero(np.diff(codes, prepend=-2))
        for rows in np.split(order, starts[1:]) if len(order) else []:
            code = int(self.session_id[rows[0]])
            if code >= 0:
                yield self.session_names[code], rows
