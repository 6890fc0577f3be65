"""Row-by-row validation of raw chunks: valid rows become canonical pieces, bad rows raise an error or are counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from forerun.arrays import Array, BoolArray, FloatArray, IntArray
from traces.errors import TraceError
from traces.fields import UNITS_PER_SECOND, TraceColumn
from traces.files import OnError
from traces.requests.layout import FAILED, Options, TraceLayout
from traces.requests.rows import RawChunk
from traces.requests.table import DURATIONS, PrefixHashes
from traces.requests.values import (
    MAX_TOKENS,
    Parsed,
    Problem,
    TimeColumn,
    Values,
    parse_counts,
    parse_durations,
    parse_hash_lists,
    parse_turns,
)

_COMMON_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_CACHED = ("cache_read", "cache_written")
"""Columns of prompt tokens that are not in the column of input tokens (Anthropic's API counts so)."""
_WHOLE = re.compile(r"\s*[-+]?\d{1,4000}\s*")
_PARSERS: dict[str, Callable[[Values], Parsed]] = {
    "input_tokens": parse_counts,
    "output_tokens": parse_counts,
    "turn": parse_turns,
    "request": partial(parse_counts, minimum=0, what="requests"),
}


@dataclass(slots=True)
class Piece:
    """Good rows of one chunk in file order; arrivals count from the file's first time."""

    arrays: dict[str, Array]
    lists: dict[str, PrefixHashes] = field(default_factory=dict)
    """Ragged columns: ``prefix_hashes``, and ``after``, numbers (``arrays["request"]``) of the requests waited for."""

    def __len__(self) -> int:
        return len(self.arrays["input_tokens"])

    def take(self, rows: IntArray | slice) -> Piece:
        """Return the selected rows, in the given order."""
        if isinstance(rows, slice):
            rows = np.arange(len(self), dtype=np.int64)[rows]
        lists = {name: column.take(rows) for name, column in self.lists.items()}
        return Piece({name: values[rows] for name, values in self.arrays.items()}, lists)

    @classmethod
    def concatenate(cls, pieces: Sequence[Piece]) -> Piece:
        """Pieces of one file one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        arrays = {name: np.concatenate([piece.arrays[name] for piece in pieces]) for name in pieces[0].arrays}
        names = pieces[0].lists
        return cls(arrays, {name: PrefixHashes.concatenate([piece.lists[name] for piece in pieces]) for name in names})


@dataclass(slots=True)
class Scan:
    """Reading of one trace, chunk by chunk.

    Attributes:
        layout: layout of its format.
        options: options of the reader.
        on_error: "stop" at the first bad row, or "skip" and count bad rows.
        skipped: rows left out so far, by reason.
        notes: remarks so far.
        session_codes: code of each session seen.
        clock: arrival times seen.
        columns: columns chosen in the file, by canonical name.
    """

    layout: TraceLayout
    options: Options
    on_error: OnError = "stop"
    skipped: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    session_codes: dict[str, int] = field(default_factory=dict)
    clock: TimeColumn = field(default_factory=TimeColumn)
    columns: Mapping[str, TraceColumn] = field(default_factory=dict)
    _seen: dict[object, Any] = field(default_factory=dict)

    def note(self, text: str | None) -> None:
        if text:
            self.notes[text] = None

    def pieces(
        self, chunks: Iterable[RawChunk], names: Sequence[str] | None, where: str, limit: int | None
    ) -> Iterator[Piece]:
        """Good rows of the chunks, at most ``limit``; ``names`` are the columns, None for the chunks' own."""
        left = limit
        for chunk in chunks:
            if chunk.count == 0:
                self._bad_rows(chunk, {})
                continue
            if not self.columns:
                names = list(chunk.columns) if names is None else names
                self.columns = self.layout.bind(names, where)
                self._introduce(names)
                self.note(chunk.note)
            piece = self._piece(chunk, left)
            if self.clock.guessed_unit:
                self.note(f"arrival times taken as Unix time in {self.clock.guessed_unit}, from their size")
            if len(self.clock.zones) > 1:
                zones = ", ".join(sorted(self.clock.zones))
                self.note(f"arrival times are of several time zones ({zones}): hours are those of the first row's")
            if len(piece):
                yield piece
            if left is not None:
                left -= len(piece)
                if left <= 0:
                    return

    def _introduce(self, names: Sequence[str]) -> None:
        self.note(self.layout.note)
        if cached := [self.columns[name].name for name in _CACHED if name in self.columns]:
            self.note(f"prompts are {' + '.join([self.columns['input_tokens'].name, *cached])}")
        arrival = self.columns.get("arrival_s")
        if arrival is None:
            self.note("no arrival times in the file")
        elif unit := self.options.time_unit or arrival.unit:
            self.clock.units_per_second = UNITS_PER_SECOND[unit]
        used = {column.name for column in self.columns.values()} | set(self.layout.signature)
        used |= {name for kept in self.layout.keep.values() for name in kept}
        unused = [name for name in dict.fromkeys(names) if name not in used]
        if unused:
            more = f" and {len(unused) - 12} more" if len(unused) > 12 else ""
            self.note(f"columns not used: {', '.join(name[:40] for name in unused[:12])}{more}")

    def _values(self, chunk: RawChunk, canonical: str) -> Values | None:
        """Raw values of a canonical column; None if the file does not have it."""
        column = self.columns.get(canonical)
        return None if column is None else chunk.column(column.name)

    def _dropped(self, chunk: RawChunk) -> dict[str, BoolArray]:
        """Rows to leave out, by reason; a row counts under its first reason alone."""
        reasons: dict[str, BoolArray] = {}
        for reason, kept in self.layout.keep.items():
            if self.options.drop_failures or not reason.startswith(FAILED):
                masks = [[value not in values for value in chunk.column(name)] for name, values in kept.items()]
                reasons[reason] = np.any(masks, axis=0)
        if self.layout.drop is not None:
            reasons |= self.layout.drop(chunk, chunk.column(self.columns["output_tokens"].name), self.options)
        gone = np.zeros(chunk.count, dtype=np.bool_)
        for reason, mask in reasons.items():
            reasons[reason] = mask & ~gone
            gone |= mask
        return reasons

    def _piece(self, chunk: RawChunk, left: int | None) -> Piece:
        """The good rows of one chunk, at most ``left``."""
        dropped = self._dropped(chunk)
        derived = self.layout.prepare(chunk, self._seen) if self.layout.prepare else {}
        keep = np.ones(chunk.count, dtype=np.bool_)
        for mask in dropped.values():
            keep &= ~mask
        bad: dict[int, Problem] = {}

        def refuse(canonical: str, problems: Mapping[int, Problem]) -> None:
            column = self.columns.get(canonical)
            name = column.name if column else canonical
            for row, problem in problems.items():
                if keep[row]:
                    bad.setdefault(row, Problem(f"{name}: {problem.reason}", f"{name}: {problem.text}"))

        piece = Piece({})
        for canonical in ("arrival_s", "input_tokens", "output_tokens", *DURATIONS, "turn", "request"):
            values = derived[canonical] if canonical in derived else self._values(chunk, canonical)
            if values is None:
                continue
            if canonical == "arrival_s":
                parsed = self.clock.seconds(values)
            elif canonical in DURATIONS:
                column = self.columns.get(canonical)
                unit = column.unit if column and column.unit and canonical not in derived else "s"
                parsed = parse_durations(values, UNITS_PER_SECOND[unit])
            else:
                parsed = _PARSERS[canonical](values)
            refuse(canonical, parsed.problems)
            piece.arrays[canonical] = parsed.values
        for canonical in [name for name in _CACHED if name in self.columns]:
            parsed = parse_durations(chunk.column(self.columns[canonical].name))
            refuse(canonical, parsed.problems)
            piece.arrays["input_tokens"] = piece.arrays["input_tokens"] + np.nan_to_num(parsed.values).astype(np.int64)
        sent = self._moments(chunk, "sent_at") if "sent_at" in self.columns else piece.arrays.get("arrival_s")
        for canonical, stamp in (("measured_ttft_s", "first_token_at"), ("measured_e2e_s", "ended_at")):
            if stamp in self.columns and sent is not None:
                took = self._moments(chunk, stamp) - sent
                piece.arrays[canonical] = np.where(took >= 0, took, np.nan)
        for canonical in ("prefix_hashes", "after"):
            values = derived.get(canonical, self._values(chunk, canonical))
            if values is None or (canonical == "after" and "request" not in piece.arrays):
                continue
            lists, problems = parse_hash_lists(values)
            refuse(canonical, problems)
            block = 1
            if canonical == "prefix_hashes":
                block = self._block_tokens(chunk)
                refuse(canonical, _misfits(lists, block, piece.arrays["input_tokens"], piece.arrays["output_tokens"]))
            piece.lists[canonical] = PrefixHashes.from_lists(lists, block)
        keep[list(bad)] = False
        rows = np.flatnonzero(keep)
        last = None
        if left is not None and len(rows) >= left:
            rows = rows[:left]
            last = int(rows[-1])
        self._bad_rows(chunk, bad, last)
        for reason, mask in dropped.items():
            self.skipped[reason] += int(np.count_nonzero(mask if last is None else mask[: last + 1]))
        self.skipped += Counter()  # forget reasons counted 0 times
        sessions = derived.get("session_id", self._values(chunk, "session_id"))
        if len(rows) < chunk.count:
            piece = piece.take(rows)
            sessions = None if sessions is None else [sessions[row] for row in rows.tolist()]
        if sessions is not None:
            piece.arrays["session_id"] = self._codes_of(sessions)
        return piece

    def _moments(self, chunk: RawChunk, canonical: str) -> FloatArray:
        """Times of a column on the clock of the arrivals, NaN where not recorded."""
        parsed = self.clock.seconds(chunk.column(self.columns[canonical].name))
        moments: FloatArray = parsed.values.astype(np.float64)
        moments[list(parsed.problems)] = np.nan
        return moments

    def _block_tokens(self, chunk: RawChunk) -> int:
        """Tokens per block by the option, else by the file (one value for all rows), else by the format."""
        if self.options.block_tokens is not None:
            return self.options.block_tokens
        declared = self._values(chunk, "block_tokens")
        if declared is not None:
            sizes = {int(text) for text in map(str, declared) if _WHOLE.fullmatch(text)}
            if len(sizes) == 1 and 1 <= min(sizes) <= MAX_TOKENS:
                return sizes.pop()
            if sizes or self.layout.block_tokens is None:
                raise TraceError(
                    f"{chunk.place.format(chunk.lines[0])}: block_tokens: one whole number >= 1, the same in every "
                    f"row, expected; found {sorted(sizes)[:5]}"
                )
        if self.layout.block_tokens is None:
            raise TraceError(
                f"{chunk.place.format(chunk.lines[0])}: {self.columns['prefix_hashes'].name}: how many tokens has a "
                "block? Give a column block_tokens or the option block_tokens=512"
            )
        return self.layout.block_tokens

    def _bad_rows(self, chunk: RawChunk, bad: Mapping[int, Problem], last: int | None = None) -> None:
        """Stop at the first bad row of the chunk up to row ``last``, or count all of them by reason."""
        broken_rows = [broken for broken in chunk.broken if last is None or broken[0] < chunk.lines[last]]
        broken_rows += [(chunk.lines[row], *problem) for row, problem in bad.items() if last is None or row <= last]
        if broken_rows and self.on_error == "stop":
            number, _, text = min(broken_rows)
            raise TraceError(f"{chunk.place.format(number)}: {text} (on_error: skip leaves out and counts bad rows)")
        self.skipped.update(reason for _, reason, _ in broken_rows)

    def _codes_of(self, values: Values) -> IntArray:
        """Session codes; an empty name is no session."""
        codes = self.session_codes
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        names = ("" if value is None else str(value).strip() for value in plain)
        return np.array([codes.setdefault(name, len(codes)) if name else -1 for name in names], dtype=np.int64)


def _misfits(
    lists: Sequence[Sequence[int]], block: int, input_tokens: IntArray, output_tokens: IntArray
) -> dict[int, Problem]:
    """Rows whose number of block ids cannot fit their tokens.

    Ids cover the prompt, its last part of a block or not, or the whole blocks of prompt and answer except its last
    token, which no engine computes.
    """
    counts = np.fromiter((len(ids) for ids in lists), dtype=np.int64, count=len(lists))
    fits = (counts == 0) | (counts == -(-input_tokens // block)) | (counts == input_tokens // block)
    fits |= counts == (input_tokens + output_tokens - 1) // block
    misfits = {}
    for row in np.flatnonzero(~fits).tolist():
        tokens, count = int(input_tokens[row]), int(counts[row])
        others = [size for size in _COMMON_BLOCKS if count in (-(-tokens // size), tokens // size)]
        hint = f"; block_tokens={others[0]} would fit" if others else ""
        text = f"{count} block ids for {tokens} input tokens, but {-(-tokens // block)} blocks of {block} tokens{hint}"
        misfits[row] = Problem("block count", text)
    return misfits
