"""Row-by-row validation of raw chunks: valid rows become canonical pieces, bad rows raise an error or are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, IntArray
from traces.errors import TraceError
from traces.files import OnError
from traces.requests.layout import Bound, Options, TraceLayout
from traces.requests.rows import RawChunk
from traces.requests.table import PrefixHashes
from traces.requests.values import (
    MAX_TOKENS,
    UNITS_PER_SECOND,
    Problem,
    TimeColumn,
    Values,
    parse_counts,
    parse_durations,
    parse_hash_lists,
    parse_turns,
)

_COMMON_BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)
_DURATIONS = ("think_time_s", "measured_ttft_s", "measured_e2e_s")


@dataclass(slots=True)
class Piece:
    """Good rows of one chunk in file order; arrivals count from the first time of the file and are not yet sorted."""

    arrays: dict[str, NDArray[Any]]
    prefix_hashes: PrefixHashes | None = None
    after: PrefixHashes | None = None
    """Numbers (``arrays["request"]``) of the requests that each waits for, where rows say so."""

    def __len__(self) -> int:
        return len(self.arrays["input_tokens"])

    def take(self, rows: IntArray | slice) -> Piece:
        """Return the selected rows, in the given order."""
        if isinstance(rows, slice):
            rows = np.arange(len(self), dtype=np.int64)[rows]
        hashes, after = (None if lists is None else lists.take(rows) for lists in (self.prefix_hashes, self.after))
        return Piece({name: values[rows] for name, values in self.arrays.items()}, hashes, after)

    @classmethod
    def concatenate(cls, pieces: Sequence[Piece]) -> Piece:
        """Pieces of one file one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        hashes = [piece.prefix_hashes for piece in pieces if piece.prefix_hashes is not None]
        after = [piece.after for piece in pieces if piece.after is not None]
        arrays = {name: np.concatenate([piece.arrays[name] for piece in pieces]) for name in pieces[0].arrays}
        joined = (PrefixHashes.concatenate(lists) if lists else None for lists in (hashes, after))
        return cls(arrays, *joined)


@dataclass(slots=True)
class Report:
    """Notes and skip counts of one read, without its rows."""

    on_error: OnError = "stop"
    skipped: Counter[str] = field(default_factory=Counter)
    notes: dict[str, None] = field(default_factory=dict)
    session_codes: dict[str, int] = field(default_factory=dict)
    clock_s: float | None = None
    """From when arrivals count, by the clock of the file, in seconds since 1970; None without dates."""

    def note(self, text: str) -> None:
        self.notes[text] = None

    def bad_rows(self, chunk: RawChunk, bad: dict[int, Problem], last: int | None = None) -> None:
        """Stop at the first bad row of the chunk up to row ``last``, or count all of them by reason."""
        broken_rows = [broken for broken in chunk.broken if last is None or broken[0] < chunk.lines[last]]
        broken_rows += [(chunk.lines[row], *problem) for row, problem in bad.items() if last is None or row <= last]
        if not broken_rows:
            return
        if self.on_error == "stop":
            number, _, text = min(broken_rows)
            raise TraceError(f"{chunk.place.format(number)}: {text} (on_error: skip leaves out and counts bad rows)")
        self.skipped.update(reason for _, reason, _ in broken_rows)

    def codes_of(self, values: Values) -> IntArray:
        """Session codes; an empty name is no session."""
        codes = self.session_codes
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        names = ("" if value is None else str(value).strip() for value in plain)
        return np.array([codes.setdefault(name, len(codes)) if name else -1 for name in names], dtype=np.int64)


def pieces_of(
    layout: TraceLayout,
    names: Sequence[str] | None,
    where: str,
    chunks: Iterable[RawChunk],
    options: Options,
    report: Report,
    limit: int | None = None,
) -> Iterator[Piece]:
    """Validate the chunks of one trace."""
    left = limit
    bound: Bound | None = None
    clock = TimeColumn()
    state: dict[str, Any] = {}
    for chunk in chunks:
        if chunk.count == 0:
            report.bad_rows(chunk, {})
            continue
        if bound is None:
            bound = layout.bind(list(chunk.columns) if names is None else names, where)
            _introduce(bound, clock, options, report)
            if chunk.note:
                report.note(chunk.note)
        piece = _piece(bound, chunk, clock, options, report, state, left)
        report.clock_s = clock.clock_s
        if clock.guessed_unit:
            report.note(f"arrival times taken as Unix time in {clock.guessed_unit}, from their size")
        if len(clock.zones) > 1:
            zones = ", ".join(sorted(clock.zones))
            report.note(f"arrival times are of several time zones ({zones}): hours are those of the first row's")
        if len(piece):
            yield piece
        if left is not None:
            left -= len(piece)
            if left <= 0:
                return


def _introduce(bound: Bound, clock: TimeColumn, options: Options, report: Report) -> None:
    if bound.layout.note is not None:
        report.note(bound.layout.note)
    arrival = bound.columns.get("arrival_s")
    if arrival is not None:
        unit = options.time_unit or arrival.unit
        clock.units_per_second = None if unit is None else UNITS_PER_SECOND[unit]
    else:
        report.note("no arrival times in the file")
    if bound.unused:
        more = f" and {len(bound.unused) - 12} more" if len(bound.unused) > 12 else ""
        report.note(f"columns not used: {', '.join(name[:40] for name in bound.unused[:12])}{more}")


def _piece(
    bound: Bound,
    chunk: RawChunk,
    clock: TimeColumn,
    options: Options,
    report: Report,
    state: dict[str, Any],
    left: int | None,
) -> Piece:
    """The good rows of one chunk, no more than ``left``."""
    gone = np.zeros(chunk.count, dtype=np.bool_)
    dropped: dict[str, BoolArray] = {}
    if bound.layout.drop is not None:
        for reason, mask in bound.layout.drop(bound, chunk, options).items():
            dropped[reason] = mask & ~gone
            gone |= mask
    derived = bound.layout.prepare(bound, chunk, state) if bound.layout.prepare else {}
    arrays: dict[str, NDArray[Any]] = {}
    bad: dict[int, Problem] = {}

    def refuse(canonical: str, problems: Mapping[int, Problem]) -> None:
        column = bound.columns.get(canonical)
        name = column.name if column else canonical
        for row, problem in problems.items():
            if not gone[row]:
                bad.setdefault(row, Problem(f"{name}: {problem.reason}", f"{name}: {problem.text}"))

    for canonical in ("arrival_s", "input_tokens", "output_tokens", *_DURATIONS, "turn", "request"):
        values = derived[canonical] if canonical in derived else bound.values(chunk, canonical)
        if values is None:
            continue
        if canonical == "arrival_s":
            parsed = clock.seconds(values)
        elif canonical in _DURATIONS:
            column = bound.columns.get(canonical)
            unit = column.unit if column and column.unit and canonical not in derived else "s"
            parsed = parse_durations(values, UNITS_PER_SECOND[unit])
        elif canonical == "turn":
            parsed = parse_turns(values)
        else:
            parsed = parse_counts(values, 0, "requests") if canonical == "request" else parse_counts(values)
        refuse(canonical, parsed.problems)
        arrays[canonical] = parsed.values
    hashes = after = None
    if (values := bound.values(chunk, "prefix_hashes")) is not None:
        lists, problems = parse_hash_lists(values)
        block = _block_tokens(bound, chunk, options)
        refuse("prefix_hashes", problems)
        refuse("prefix_hashes", _misfits(lists, block, arrays["input_tokens"], arrays["output_tokens"]))
        hashes = PrefixHashes.from_lists(lists, block)
    if "request" in arrays and (values := bound.values(chunk, "after")) is not None:
        lists, problems = parse_hash_lists(values)
        refuse("after", problems)
        after = PrefixHashes.from_lists(lists, 1)
    keep = ~gone
    keep[list(bad)] = False
    rows = np.flatnonzero(keep)
    last = None
    if left is not None and len(rows) >= left:
        rows = rows[:left]
        last = int(rows[-1])
    report.bad_rows(chunk, bad, last)
    for reason, mask in dropped.items():
        report.skipped[reason] += int(np.count_nonzero(mask if last is None else mask[: last + 1]))
    report.skipped += Counter()  # forget reasons counted 0 times
    sessions = derived.get("session_id", bound.values(chunk, "session_id"))
    piece = Piece(arrays, hashes, after)
    if len(rows) < chunk.count:
        piece = piece.take(rows)
        sessions = None if sessions is None else [sessions[row] for row in rows.tolist()]
    if sessions is not None:
        piece.arrays["session_id"] = report.codes_of(sessions)
    return piece


def _misfits(
    lists: Sequence[Sequence[int]], block: int, input_tokens: NDArray[Any], output_tokens: NDArray[Any]
) -> dict[int, Problem]:
    """Rows whose number of block ids cannot fit their tokens.

    Ids cover the prompt, its last part of a block or not, or the whole blocks of prompt and answer but for its last
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


def _block_tokens(bound: Bound, chunk: RawChunk, options: Options) -> int:
    """Tokens per block: as the option says, as the file says (one value for all rows), or as the format defines."""
    if options.block_tokens is not None:
        return options.block_tokens
    declared = bound.values(chunk, "block_tokens")
    if declared is not None:
        sizes = {value for value in map(_whole, declared) if value is not None}
        if len(sizes) == 1 and 1 <= min(sizes) <= MAX_TOKENS:
            return sizes.pop()
        if sizes or bound.layout.block_tokens is None:
            raise TraceError(
                f"{chunk.place.format(chunk.lines[0])}: block_tokens: one whole number >= 1, the same in every row, "
                f"expected; found {sorted(sizes)[:5]}"
            )
    if bound.layout.block_tokens is None:
        raise TraceError(
            f"{chunk.place.format(chunk.lines[0])}: {bound.columns['prefix_hashes'].name}: how many tokens has a "
            "block? Give a column block_tokens or the option block_tokens=512"
        )
    return bound.layout.block_tokens


def _whole(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
