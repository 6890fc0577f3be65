"""Layouts: the meaning and unit of each column of a trace format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.arrays import BoolArray
from forerun.yaml_files import packaged
from traces.errors import TraceError, did_you_mean
from traces.fields import UNITS_PER_SECOND, Record, TraceColumn, column_words, squash, unit_of
from traces.requests.rows import Paths, RawChunk
from traces.requests.values import Values, is_date


@dataclass(frozen=True, slots=True)
class Options:
    """Reader options beyond the file itself; each format takes only those it can use.

    Attributes:
        block_tokens: tokens per prefix block (``hash_ids``, ``prefix_hashes``); None for the format's own.
        time_unit: unit of the arrival column, s, ms, us or ns; None for the format's own.
        drop_failures: leave out failed requests and count them; otherwise they are bad rows.
        model: keep only the requests of this model (BurstGPT).
        characters_per_token: estimate token counts from text at this ratio (ShareGPT); None refuses to guess.
        turns: "first" exchange of each conversation, or "all" with growing context (ShareGPT).
        session_interval_s: seconds between the starts of sessions that each count time from their own start (agentic).
        seed: random seed of generated traces (ServeGen).
        start_s: begin of the window of time to generate, in seconds of the pool's own clock (ServeGen).
        duration_s: length of that window in seconds (ServeGen).
        rate_scale: factor on every client's request rate (ServeGen).
    """

    block_tokens: int | None = None
    time_unit: str | None = None
    drop_failures: bool = True
    model: str | None = None
    characters_per_token: float | None = None
    turns: str = "first"
    session_interval_s: float = 0.0
    seed: int = 0
    start_s: float = 0.0
    duration_s: float = 3600.0
    rate_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.block_tokens is not None and (not isinstance(self.block_tokens, int) or self.block_tokens < 1):
            raise TraceError(f"block_tokens: {self.block_tokens!r}: whole tokens >= 1 expected")
        if self.time_unit is not None and self.time_unit not in UNITS_PER_SECOND:
            raise TraceError(f"time_unit: {self.time_unit!r}: one of {', '.join(UNITS_PER_SECOND)} expected")
        if self.turns not in ("first", "all"):
            raise TraceError(f"turns: {self.turns!r}: 'first' or 'all' expected")
        for name in ("characters_per_token", "duration_s", "rate_scale"):
            value = getattr(self, name)
            if value is not None and not (0 < value < float("inf")):
                raise TraceError(f"{name}: {value!r}: a finite number > 0 expected")
        for name in ("session_interval_s", "start_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise TraceError(f"{name}: {getattr(self, name)!r}: a finite number >= 0 expected")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise TraceError(f"seed: {self.seed!r}: a whole number >= 0 expected")


Drop = Callable[[RawChunk, Values, Options], Mapping[str, BoolArray]]
"""Function of a chunk, its output tokens and the options: rows to leave out, by reason."""
Prepare = Callable[[RawChunk, dict[object, Any]], dict[str, Values]]
"""Function of a chunk and what is known of earlier ones: columns that no single column holds."""
FAILED = "failed request"
"""Start of the reasons for leaving out failed requests, which the option ``drop_failures`` controls."""


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """Column layout of one trace format.

    Attributes:
        name: name of the format, as passed to ``format=``.
        title: short description, for lists and errors.
        columns: candidates for each canonical column, the preferred one first.
        signature: columns whose presence means this format and no other.
        required: canonical columns that must be found.
        options: names of the options this format takes.
        block_tokens: default tokens per prefix block; None if the file must state them.
        paths: columns that stand inside nested JSON records.
        keep: by reason to leave a row out, values of a column with which a row is kept.
        drop: further rows to leave out before they are judged, by reason (other models).
        prepare: derives canonical values that no single column holds (sessions from parents, latencies from stamps).
        merged: the rows are those of several clients or sessions one after the other, never in order of arrival.
        note: how the columns were chosen, if they were guessed.
    """

    name: str
    title: str
    columns: Mapping[str, tuple[TraceColumn, ...]]
    signature: tuple[str, ...] = ()
    required: tuple[str, ...] = ("arrival_s", "input_tokens", "output_tokens")
    options: frozenset[str] = frozenset({"time_unit"})
    block_tokens: int | None = None
    paths: Paths = field(default_factory=dict)
    keep: Mapping[str, Mapping[str, Sequence[object]]] = field(default_factory=dict)
    drop: Drop | None = None
    prepare: Prepare | None = None
    merged: bool = False
    note: str | None = None

    @property
    def whole_rows(self) -> bool:
        """True if more columns are needed than ``columns`` names."""
        return bool(self.paths or self.keep or self.drop or self.prepare)

    def accepts(self, names: Sequence[str]) -> bool:
        """True if a table with these column names has this format."""
        present = set(map(squash, names))
        if self.signature:
            return all(squash(name) in present for name in self.signature)
        return all(self.accepts_for(canonical, names) for canonical in self.required)

    def accepts_for(self, canonical: str, names: Sequence[str]) -> bool:
        """True if one of ``names`` is a column for the canonical one."""
        present = set(map(squash, names))
        return any(squash(column.name) in present for column in self.columns[canonical])

    def bind(self, names: Sequence[str], where: str) -> dict[str, TraceColumn]:
        """Choose the columns to use among ``names``; raises TraceError when one is missing or stands there twice."""
        by_squashed: dict[str, list[str]] = {}
        for name in names:
            by_squashed.setdefault(squash(name), []).append(name)
        chosen: dict[str, TraceColumn] = {}
        for canonical, columns in self.columns.items():
            column = next((one for one in columns if squash(one.name) in by_squashed), None)
            if column is not None:
                spellings = by_squashed[squash(column.name)]
                if len(spellings) > 1:
                    raise TraceError(
                        f"{where}: column {spellings[0]!r} appears {len(spellings)} times; keep one of them"
                    )
                chosen[canonical] = TraceColumn(spellings[0], column.unit)
            elif canonical in self.required:
                raise TraceError(f"{where}: {self._missing(canonical, names)}")
        return chosen

    def _missing(self, canonical: str, names: Sequence[str]) -> str:
        accepted = [column.name for column in self.columns[canonical]]
        listed = ", ".join(accepted[:8]) + (" ..." if len(accepted) > 8 else "")
        near = next((hint for name in names if (hint := did_you_mean(name, accepted))), "") if len(accepted) < 4 else ""
        seen = ", ".join(repr(name[:40]) for name in list(names)[:12]) or "none"
        return f"no column for {canonical} in format {self.name!r} (accepted: {listed}); columns found: {seen}{near}"


MAPPED: dict[str, str] = packaged("traces.requests", "guesses.yaml")["mapped"]
"""User-facing column roles -> canonical columns."""

MAP_EXAMPLE = "arrival=COLUMN,input=COLUMN,output=COLUMN"


def _roles() -> dict[str, dict[str, list[Any]]]:
    """Words in a column's name by the role that they indicate (``for``, strongest first) or rule out (``against``)."""
    roles: dict[str, dict[str, list[Any]]] = packaged("traces.requests", "guesses.yaml")["roles"]
    return roles


def _other_counts(name: str) -> list[str]:
    """Remarks on a column of characters, bytes or words, which no ratio turns into tokens exactly, or of thousands."""
    others = packaged("traces.requests", "guesses.yaml")["no_tokens"]
    return [remark for remark, words in others.items() if not set(words).isdisjoint(column_words(name))]


def no_tokens_hint(names: Sequence[str]) -> str:
    """Remark on columns of characters, bytes, words or thousands, for an error about missing token counts."""
    return next((f"; {name!r} counts {remarks[0]}" for name in names if (remarks := _other_counts(name))), "")


def mapped_layout(mapping: Mapping[str, str], names: Sequence[str], where: str, sample: Record) -> TraceLayout:
    """The layout of a table whose columns a user names; what is not named is guessed from the other names.

    Args:
        mapping: a column for each of some of ``MAPPED``, perhaps with a time unit behind a colon (``"ts:ms"``).
        names: columns that are there.
        where: how an error names the file.
        sample: values of one row, if there is one to look at.
    """
    chosen: dict[str, TraceColumn] = {}
    for word, text in mapping.items():
        if word not in MAPPED:
            raise TraceError(f"{where}: columns: no '{word}'{did_you_mean(word, MAPPED)} (one of {', '.join(MAPPED)})")
        name, unit = (text, "") if text in names or ":" not in text else text.rsplit(":", 1)
        if name not in names:
            raise TraceError(
                f"{where}: columns: {word}: no column '{name}'{did_you_mean(name, names)} (columns: {', '.join(names)})"
            )
        if unit and unit not in UNITS_PER_SECOND:
            raise TraceError(f"{where}: columns: {word}={text}: the unit is one of {', '.join(UNITS_PER_SECOND)}")
        if word in ("input", "output") and _other_counts(name):
            raise TraceError(f"{where}: columns: {word}={text}: tokens are needed{no_tokens_hint([name])}")
        chosen[word] = TraceColumn(name, unit or unit_of(name))
    free = [name for name in names if name not in {column.name for column in chosen.values()}]
    guesses = {word: _guess(word, free, sample) for word in _roles() if word not in chosen}
    guessed = {word: header for word, header in guesses.items() if header is not None}
    chosen |= {
        word: TraceColumn(header, unit_of(header) if word == "arrival" else None) for word, header in guessed.items()
    }
    for word in ("input", "output"):
        if word not in chosen:
            listed = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
            raise TraceError(
                f"{where}: which column counts {word} tokens? Columns: {listed}{no_tokens_hint(names)}. Say it "
                f"with --map {MAP_EXAMPLE}, or workload.columns in a scenario"
            )
    guesses_text = ", ".join(f"{word} = '{header}'" for word, header in guessed.items())
    return TraceLayout(
        "by its columns",
        "a table whose columns are named by the user, or guessed from their names",
        {MAPPED[word]: (column,) for word, column in chosen.items()},
        required=("input_tokens", "output_tokens"),
        options=frozenset({"block_tokens", "time_unit"}),
        note=f"guessed from the columns' names: {guesses_text} (--map {MAP_EXAMPLE} says otherwise)"
        if guesses_text
        else None,
    )


def can_guess(names: Sequence[str], sample: Record) -> bool:
    """True if the names of some columns, and the values of a row, tell both token counts."""
    return all(_guess(word, names, sample) for word in ("input", "output"))


def _guess(word: str, names: Sequence[str], sample: Record) -> str | None:
    """Column whose name fits ``word`` best, for arrivals else the only one with dates; None in a tie."""
    ranked, dated = [], []
    for name in names:
        parts = set(column_words(name))
        if not parts.isdisjoint(_roles()[word]["against"]):
            continue
        if word != "arrival" and (_other_counts(name) or (name in sample and not _is_count(sample[name]))):
            continue
        ranks = [rank for rank, words in enumerate(_roles()[word]["for"]) if parts & set(words)]
        if ranks:
            ranked.append((ranks[0], len(parts), name))
        elif word == "arrival" and is_date(sample.get(name)):
            dated.append(name)
    if not ranked and len(dated) == 1:
        return dated[0]
    ranked.sort()
    if not ranked or (len(ranked) > 1 and ranked[0][:2] == ranked[1][:2]):
        return None
    return ranked[0][2]


def _is_count(value: object) -> bool:
    try:
        return float(str(value)) >= 0 and not isinstance(value, bool)
    except ValueError:
        return value is None or value == ""
