"""Conversion of file values to numbers: vectorised if all values are valid, with an exact report for each bad one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traces.errors import shown
from traces.requests.table import FloatArray, IntArray

Values: TypeAlias = Sequence[Any] | NDArray[Any]

MAX_TOKENS = 1_000_000_000
"""Maximum tokens of one request; larger counts indicate a damaged file (the longest context windows have 1e7)."""

MAX_SECONDS = 1e11
"""Largest absolute time accepted, about the year 5138 as a Unix time; beyond it the unit must be wrong."""

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Time units a column may have."""


class Problem(NamedTuple):
    """One value that cannot be used: index of its row, short reason to count by, what to say about it."""

    row: int
    reason: str
    text: str


class Parsed(NamedTuple):
    """Values as an array and the rows that have none (their array entries mean nothing)."""

    values: NDArray[Any]
    problems: list[Problem]


class _Bad(Exception):
    """Internal exception for one bad value, with reason and text."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text


def _plain_numbers(values: Values) -> NDArray[Any] | None:
    """All values as int64 or float64 when each one is plainly a number; None when any needs a closer look."""
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "if" else None
    kinds = set(map(type, values))
    try:
        if kinds == {str}:
            joined = "".join(values)
            if not joined.isascii() or "_" in joined:
                return None
            try:
                return np.array(list(map(int, values)), dtype=np.int64)
            except ValueError:
                return np.array(list(map(float, values)), dtype=np.float64)
        if kinds == {int}:
            return np.array(values, dtype=np.int64)
        if kinds and kinds <= {int, float}:
            return np.array(values, dtype=np.float64)
    except (ValueError, OverflowError):
        pass
    return None


def _number(value: object) -> int | float:
    """One finite number from a JSON value or a CSV field."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise _Bad("missing", "no value")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        text = value.strip()
        if "_" in text or len(text) > 100:
            raise _Bad("not a number", f"{shown(text)} is not a number")
        try:
            value = int(text)
        except ValueError:
            try:
                value = float(text)
            except ValueError:
                raise _Bad("not a number", f"{shown(text)} is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Bad("not a number", f"{shown(value)} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise _Bad("not finite", f"{shown(value)} is not a finite number")
    if abs(value) > 1e30:
        raise _Bad("too large", f"{shown(value)} is too large")
    return value


def _each(values: Values, convert: Callable[[object], int | float]) -> Parsed:
    """Convert value by value, collecting what cannot be converted; int64 when every good value is an int."""
    converted: list[int | float] = []
    problems = []
    for row, value in enumerate(values):
        try:
            converted.append(convert(value))
        except _Bad as bad:
            converted.append(0)
            problems.append(Problem(row, bad.reason, bad.text))
    whole = all(type(number) is int and abs(number) < 2**63 for number in converted)
    return Parsed(np.array(converted, dtype=np.int64 if whole else np.float64), problems)


def _count(value: object, minimum: int, what: str) -> int:
    """One whole number of at least ``minimum``."""
    number = _number(value)
    if number != int(number):
        raise _Bad("not whole", f"{shown(number)} is not a whole number of {what}")
    if number < 0:
        raise _Bad("negative", f"{shown(number)}: {what} cannot be negative")
    if number < minimum:
        raise _Bad("zero", f"{int(number)} {what}: at least {minimum} expected")
    if number > MAX_TOKENS:
        raise _Bad("too large", f"{shown(value)}: more than {MAX_TOKENS} {what} cannot be right")
    return int(number)


def parse_counts(values: Values, minimum: int = 1, what: str = "tokens") -> Parsed:
    """Whole numbers >= ``minimum`` as int64; "472.0" counts as 472, everything else is a problem of its row."""
    numbers = _plain_numbers(values)
    if numbers is not None and len(numbers):
        low, high = numbers.min(), numbers.max()
        if minimum <= low and high <= MAX_TOKENS and (numbers.dtype.kind == "i" or np.all(numbers == np.rint(numbers))):
            return Parsed(numbers.astype(np.int64), [])
    return _each(values, lambda value: _count(value, minimum, what))


def _duration(value: object) -> float:
    """One duration in seconds, NaN for an empty field."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    number = float(_number(value))
    if number < 0:
        raise _Bad("negative", f"{shown(number)} s: a duration cannot be negative")
    return number


def parse_durations(values: Values, units_per_second: int = 1) -> Parsed:
    """Durations >= 0 as float64 seconds; an empty field or null is NaN (not measured), other text is a problem."""
    empty = np.zeros(len(values), dtype=np.bool_)
    filled = values
    if not isinstance(values, np.ndarray):
        empty = np.array([value is None or value == "" for value in values], dtype=np.bool_)
        if empty.any():
            zero = "0" if str in set(map(type, values)) else 0
            filled = [zero if value is None or value == "" else value for value in values]
    numbers = _plain_numbers(filled)
    if numbers is None or not len(numbers) or not (numbers.min() >= 0 and np.isfinite(numbers.max())):
        parsed = _each(values, _duration)
        return Parsed(parsed.values / units_per_second, parsed.problems)
    return Parsed(np.where(empty, np.nan, numbers) / units_per_second, [])


_DATETIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_TO_THE_SECOND = 19
MANY_TIMES = 20_000
"""Dates in a chunk from which Arrow reads them: its import costs as much as so many."""
_LAST_NS = 7_258_118_400 * 10**9  # the first moment of 2200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds_of(text: object) -> int:
    """Nanoseconds since 1970 of an ISO 8601 date and time; no zone means UTC; any number of fractional digits.

    Raises an internal error with reason and text for anything else, or for years outside 1970 to 2199.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        raise _Bad("missing", "no value")
    match = _DATETIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _Bad("not a time", f"{shown(text)} is not a time such as '2023-11-16 18:17:03.97996' or a number")
    *parts, fraction, zone = match.groups()
    try:
        year, month, day, hour, minute, second = map(int, parts)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as problem:
        raise _Bad("not a time", f"{shown(text)}: {problem}") from None
    if not 1970 <= moment.year < 2200:
        raise _Bad("not a time", f"{shown(text)}: a year from 1970 to 2199 expected")
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    if zone and zone[0] in "+-":
        digits = zone[1:].replace(":", "").ljust(4, "0")
        shift = int(digits[:2]) * 3600 + int(digits[2:]) * 60
        whole += shift if zone[0] == "-" else -shift
    return whole * 10**9 + int((fraction or "").ljust(9, "0")[:9])


def _fast_datetimes(values: Values) -> IntArray | None:
    """Nanoseconds since 1970 when all values are well-formed times, all or none with a zone; None when any is not, or
    where they are too few for the import of Arrow to pay."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind != "M" or np.any(np.isnat(values)):
            return None
        moments = values.astype("M8[ns]").astype(np.int64)
        return moments if moments.min(initial=0) >= 0 and moments.max(initial=0) < _LAST_NS else None
    if len(values) < MANY_TIMES or set(map(type, values)) != {str} or min(map(len, values)) < _TO_THE_SECOND:
        return None
    import pyarrow as pa

    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            moments = pa.array(values, pa.string()).cast(kind).cast(pa.int64()).to_numpy()
        except (pa.ArrowException, UnicodeError):
            continue
        return moments if moments.min() >= 0 and moments.max() < _LAST_NS else None
    return None


@dataclass(slots=True)
class TimeColumn:
    """Reads one time column over all chunks of a file into seconds since the first time seen, without loss of digits.

    Attributes:
        units_per_second: unit of a numeric column; None for seconds, or the unit a Unix time must have.
        origin: first time seen, in the column's own unit.
        is_text: True when the column holds dates; None until the first value has been seen.
        guessed_unit: unit concluded from the size of the first value, for a note.
    """

    units_per_second: int | None = None
    origin: int | float | None = None
    is_text: bool | None = None
    guessed_unit: str | None = None

    def seconds(self, values: Values) -> Parsed:
        """Seconds since the first time seen (so earlier rows are negative), float64."""
        if self.is_text is None:
            self.is_text = self._looks_like_text(values)
        if self.is_text:
            moments = _fast_datetimes(values)
            parsed = Parsed(moments, []) if moments is not None else _each(values, nanoseconds_of)
            return self._since_origin(parsed, 10**9)
        numbers = _plain_numbers(values)
        if self.units_per_second is None:
            self._guess_unit(values)
        units = self.units_per_second or 1
        limit = MAX_SECONDS * units
        if numbers is not None and len(numbers) and numbers.min() >= 0 and numbers.max() <= limit:
            return self._since_origin(Parsed(numbers, []), units)
        parsed = _each(values, lambda value: _time_number(value, limit))
        return self._since_origin(parsed, units)

    def _looks_like_text(self, values: Values) -> bool:
        """Whether the first value that says anything is a date rather than a number."""
        if isinstance(values, np.ndarray) and values.dtype.kind == "M":
            return True
        for value in values:
            try:
                _number(value)
            except _Bad as bad:
                if bad.reason == "missing":
                    continue
                return isinstance(value, str) and _DATETIME.fullmatch(value.strip()) is not None
            return False
        return False

    def _guess_unit(self, values: Values) -> None:
        """Seconds, unless the first number can only be a Unix time in a smaller unit."""
        for value in values:
            try:
                first = abs(_number(value))
            except _Bad:
                continue
            unit = "ns" if first >= 1e17 else "us" if first >= 1e14 else "ms" if first >= 1e11 else "s"
            self.units_per_second = UNITS_PER_SECOND[unit]
            self.guessed_unit = None if unit == "s" else unit
            return

    def _since_origin(self, parsed: Parsed, units: int) -> Parsed:
        """Subtract the first time seen, in integers while both are whole, then divide by the unit."""
        times = parsed.values
        if self.origin is None:
            bad = {problem.row for problem in parsed.problems}
            first = next((row for row in range(len(times)) if row not in bad), None)
            self.origin = None if first is None else times[first].item()
        if self.origin is None:
            return Parsed(times.astype(np.float64), parsed.problems)
        if isinstance(self.origin, float) and self.origin.is_integer():
            self.origin = int(self.origin)
        origin = np.int64(self.origin) if times.dtype.kind == "i" and isinstance(self.origin, int) else self.origin
        seconds: FloatArray = (times - origin) / float(units)
        return Parsed(seconds, parsed.problems)


def _time_number(value: object, limit: float) -> int | float:
    """One time as a number from 0 to ``limit`` in the column's unit."""
    number = _number(value)
    if number < 0:
        raise _Bad("negative", f"{shown(number)}: an arrival time cannot be negative")
    if number > limit:
        raise _Bad("too large", f"{shown(value)}: too large for an arrival time; is the time unit right?")
    return number


def parse_hash_list(value: object) -> list[int]:
    """Block ids of one request: a JSON list of integers, or text such as "3 17 18" or "[3, 17, 18]".

    Unsigned 64-bit ids wrap into int64, which keeps them distinct. Raises an internal error for anything else.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return []
    if isinstance(value, str):
        items: list[Any] = value.strip().strip("[]").replace(",", " ").replace(";", " ").split()
        try:
            items = [int(item) for item in items]
        except ValueError:
            raise _Bad("not block ids", f"{shown(value)} is not a list of integer block ids") from None
    elif isinstance(value, list | tuple | np.ndarray):
        items = list(value)
    else:
        raise _Bad("not block ids", f"{shown(value)} is not a list of integer block ids")
    if not items:
        return []
    if set(map(type, items)) - {int, np.int64, np.uint64, np.int32}:
        raise _Bad("not block ids", f"{shown(value)} is not a list of integer block ids")
    if min(items) < -(2**63) or max(items) >= 2**64:
        raise _Bad("too large", f"{shown(value)}: block ids must fit into 64 bits")
    return [item - 2**64 if item >= 2**63 else item for item in items] if max(items) >= 2**63 else items


def parse_hash_lists(values: Values) -> tuple[list[list[int]], list[Problem]]:
    """Block ids of every row; a row that has none usable gets an empty list and a problem."""
    lists: list[list[int]] = []
    problems = []
    for row, value in enumerate(values):
        try:
            lists.append(parse_hash_list(value))
        except _Bad as bad:
            lists.append([])
            problems.append(Problem(row, bad.reason, bad.text))
    return lists, problems
