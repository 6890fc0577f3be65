"""Layouts: the meaning and unit of each column of a trace format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from forerun.arrays import BoolArray
from forerun.yaml_files import packaged
from traces.errors import TraceError, did_you_mean
from traces.requests.rows import Flatten, RawChunk
from traces.requests.values import UNITS_PER_SECOND, Values, is_date


class TraceColumn(NamedTuple):
    """A column name and, for times, its unit: s, ms, us, ns, or None for dates and plausible guesses."""

    name: str
    unit: str | None = None


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


Drop = Callable[["Bound", RawChunk, Options], Mapping[str, BoolArray]]
Prepare = Callable[["Bound", RawChunk, dict[str, Any]], dict[str, Values]]


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
        flatten: turns a nested JSON record into a flat one.
        drop: rows to leave out before they are judged, by reason (failures, other models).
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
    flatten: Flatten | None = None
    drop: Drop | None = None
    prepare: Prepare | None = None
    merged: bool = False
    note: str | None = None

    def accepts(self, names: Sequence[str]) -> bool:
        """Whether a table with these column names has this format."""
        present = set(map(squash, names))
        if self.signature:
            return all(squash(name) in present for name in self.signature)
        return all(self.accepts_for(canonical, names) for canonical in self.required)

    def accepts_for(self, canonical: str, names: Sequence[str]) -> bool:
        """Whether one of ``names`` is a column for the canonical one."""
        present = set(map(squash, names))
        return any(squash(column.name) in present for column in self.columns[canonical])

    def bind(self, names: Sequence[str], where: str) -> Bound:
        """Choose the columns to use among ``names``; raises TraceError when one is missing or stands there twice."""
        by_squashed: dict[str, list[str]] = {}
        for name in names:
            by_squashed.setdefault(squash(name), []).append(name)
        chosen: dict[str, TraceColumn] = {}
        for canonical, candidates in self.columns.items():
            for candidate in candidates:
                spellings = by_squashed.get(squash(candidate.name))
                if spellings is None:
                    continue
                if len(spellings) > 1:
                    raise TraceError(
                        f"{where}: column {spellings[0]!r} appears {len(spellings)} times; keep one of them"
                    )
                chosen[canonical] = TraceColumn(spellings[0], candidate.unit)
                break
        for canonical in self.required:
            if canonical not in chosen:
                raise TraceError(f"{where}: {self._missing(canonical, names)}")
        used = {column.name for column in chosen.values()} | set(self.signature)
        return Bound(self, chosen, tuple(name for name in dict.fromkeys(names) if name not in used))

    def _missing(self, canonical: str, names: Sequence[str]) -> str:
        accepted = [column.name for column in self.columns[canonical]]
        listed = ", ".join(accepted[:8]) + (" ..." if len(accepted) > 8 else "")
        near = next((hint for name in names if (hint := did_you_mean(name, accepted))), "") if len(accepted) < 4 else ""
        seen = ", ".join(repr(name[:40]) for name in list(names)[:12]) or "none"
        return f"no column for {canonical} in format {self.name!r} (accepted: {listed}); columns found: {seen}{near}"


@dataclass(frozen=True, slots=True)
class Bound:
    """A layout with the columns chosen in one file."""

    layout: TraceLayout
    columns: Mapping[str, TraceColumn]
    unused: tuple[str, ...] = field(default=())

    def values(self, chunk: RawChunk, canonical: str) -> Values | None:
        """Raw values of a canonical column; None when the file does not have it, Nones where this chunk lacks it."""
        column = self.columns.get(canonical)
        if column is None:
            return None
        values = chunk.columns.get(column.name)
        return [None] * chunk.count if values is None else values


def squash(name: str) -> str:
    """A column name reduced to lower-case letters and digits, so that ``Request tokens`` equals ``request_tokens``."""
    return "".join(char for char in name.lower() if char.isalnum())


MAPPED = {
    "arrival": "arrival_s",
    "input": "input_tokens",
    "output": "output_tokens",
    "session": "session_id",
    "ttft": "measured_ttft_s",
    "e2e": "measured_e2e_s",
}
"""User-facing column roles -> canonical columns."""

MAP_EXAMPLE = "arrival=COLUMN,input=COLUMN,output=COLUMN"

_UNITS = {"s": "s", "sec": "s", "seconds": "s", "ms": "ms", "millis": "ms", "us": "us", "micros": "us", "ns": "ns",
          "nanos": "ns"}  # fmt: skip


@cache
def _role_words() -> dict[str, dict[str, Any]]:
    """Words in a column's name that indicate a role (``for``, strongest first) or speak against it (``against``)."""
    words: dict[str, Any] = dict(packaged("traces.requests", "guesses.yaml"))
    del words["no_tokens"], words["multiples"]
    return words


def counts_no_tokens(name: str) -> bool:
    """True for a column of characters, bytes or words, which no ratio turns into tokens exactly, or of thousands."""
    words = packaged("traces.requests", "guesses.yaml")
    return bool(column_words(name) & {*words["no_tokens"], *words["multiples"]})


def no_tokens_hint(names: Sequence[str]) -> str:
    """Remark on columns of characters, bytes, words or thousands, for an error about missing token counts."""
    others = [name for name in names if counts_no_tokens(name)]
    if not others:
        return ""
    if column_words(others[0]) & set(packaged("traces.requests", "guesses.yaml")["no_tokens"]):
        return f"; {others[0]!r} counts no tokens: add a column that the model's tokenizer counts"
    return f"; {others[0]!r} counts thousands or millions of tokens: add a column of single tokens"


def mapped_layout(
    mapping: Mapping[str, str], names: Sequence[str], where: str, sample: Mapping[str, Any]
) -> TraceLayout:
    """The layout of a table whose columns a user names; what is not named is guessed from the other names.

    Args:
        mapping: a column for each of some of ``MAPPED``, perhaps with a time unit behind a colon (``"ts:ms"``).
        names: columns that are there.
        where: how an error names the file.
        sample: values of one row, where there is one to look at.
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
        if word in ("input", "output") and counts_no_tokens(name):
            raise TraceError(f"{where}: columns: {word}={text}: tokens are needed{no_tokens_hint([name])}")
        chosen[word] = TraceColumn(name, unit or _unit_of(name))
    free = [name for name in names if name not in {column.name for column in chosen.values()}]
    guesses = {word: _guess(word, free, sample) for word in _role_words() if word not in chosen}
    guessed = {word: header for word, header in guesses.items() if header is not None}
    chosen |= {
        word: TraceColumn(header, _unit_of(header) if word == "arrival" else None) for word, header in guessed.items()
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


def can_guess(names: Sequence[str], sample: Mapping[str, Any]) -> bool:
    """Whether the names of some columns, and the values of a row, tell both token counts."""
    return all(_guess(word, names, sample) for word in ("input", "output"))


def _guess(word: str, names: Sequence[str], sample: Mapping[str, Any]) -> str | None:
    """The column whose name fits ``word`` best; for arrivals else the only one with dates. None without or in a tie."""
    ranked, dated = [], []
    for name in names:
        parts = column_words(name)
        if parts & set(_role_words()[word]["against"]):
            continue
        if word != "arrival" and (counts_no_tokens(name) or (name in sample and not _is_count(sample[name]))):
            continue
        ranks = [rank for rank, words in enumerate(_role_words()[word]["for"]) if parts & set(words)]
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


def column_words(name: str) -> set[str]:
    """Lower-case words of a name such as ``promptToks``, ``prompt_toks`` or ``Prompt toks``."""
    return set(re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()))


def _unit_of(name: str) -> str | None:
    last = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())[-1:]
    return _UNITS.get(last[0]) if last and last[0] != name.lower() else None


def _is_count(value: object) -> bool:
    try:
        return float(str(value)) >= 0 and not isinstance(value, bool)
    except ValueError:
        return value is None or value == ""
