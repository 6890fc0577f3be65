"""Conversion of whole columns of file values to numbers; an unusable value is a problem of its row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from forerun.arrays import Array, BoolArray, FloatArray, IntArray
from traces.errors import comma_hint, shown
from traces.fields import SECONDS, UNITS_PER_SECOND, number_of

Values: TypeAlias = Sequence[object] | Array
T = TypeVar("T")

MAX_TOKENS = 1_000_000_000
"""Maximum tokens of one request; larger counts indicate a damaged file (the longest context windows have 1e7)."""

MAX_SECONDS = 1e11
"""Largest absolute time accepted, about the year 5138 as a Unix time; beyond it the unit must be wrong."""

NO_TIME = "{} is not a time such as '2023-11-16 18:17:03.97996' or a number"


class Problem(NamedTuple):
    """Why one value cannot be used: a short reason to count by, and the text of the error."""

    reason: str
    text: str


@dataclass(slots=True)
class Parsed:
    """Values as an array, and the problem of each row that has none (whose array entry means nothing)."""

    values: Array
    problems: dict[int, Problem] = field(default_factory=dict)

    def refuse(self, bad: BoolArray, reason: str, text: str) -> None:
        """Set a problem for the rows of a mask that have none yet; ``{}`` in the text is replaced by the number."""
        for row in np.flatnonzero(bad).tolist():
            number = self.values[row].item()
            if isinstance(number, float) and number.is_integer() and abs(number) < 1e15:
                number = int(number)
            self.problems.setdefault(row, Problem(reason, text.format(shown(number))))


class _Bad(Exception):
    """One bad value; its arguments are the reason and the text of its ``Problem``."""


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _plain_numbers(values: Values) -> Array | None:
    """All values as int64 or float64 if each is plainly a finite number, else None."""
    if isinstance(values, np.ndarray):
        return values if values.dtype.kind in "if" and np.isfinite(values).all() else None
    kinds = set(map(type, values))
    try:
        if kinds == {str}:
            texts = list(map(str, values))
            joined = "".join(texts)
            if not joined.isascii() or "_" in joined:
                return None
            with suppress(ValueError):
                return np.array(list(map(int, texts)), dtype=np.int64)
            numbers: Array = np.array(list(map(float, texts)), dtype=np.float64)
        elif kinds and kinds <= {int, float}:
            numbers = np.array(values, dtype=np.int64 if kinds == {int} else np.float64)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def _number(value: object) -> int | float:
    if _is_blank(value):
        raise _Bad("missing", "no value")
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        text = value.strip()
        if "_" in text or len(text) > 100:
            raise _Bad("not a number", f"{shown(text)} is not a number")
        try:
            value = float(text) if any(char in text for char in ".eEnN") else int(text)
        except ValueError:
            raise _Bad("not a number", f"{shown(text)} is not a number{comma_hint(text)}") from None
    number = number_of(value)
    if number is None:
        raise _Bad("not a number", f"{shown(value)} is not a number")
    if isinstance(number, float) and not math.isfinite(number):
        raise _Bad("not finite", f"{shown(number)} is not a finite number")
    if abs(number) > 1e30:
        raise _Bad("too large", f"{shown(number)} is too large")
    return number


def _converted(values: Values, convert: Callable[[object], T], instead: T) -> tuple[list[T], dict[int, Problem]]:
    """Values converted one by one; ``instead`` replaces values with a problem."""
    converted: list[T] = []
    problems = {}
    for row, value in enumerate(values):
        try:
            converted.append(convert(value))
        except _Bad as bad:
            converted.append(instead)
            problems[row] = Problem(*bad.args)
    return converted, problems


def _each(values: Values, convert: Callable[[object], float]) -> Parsed:
    """Convert value by value; int64 when every good value is an int."""
    zero: float = 0
    converted, problems = _converted(values, convert, zero)
    whole = all(type(number) is int and abs(number) < 2**63 for number in converted)
    return Parsed(np.array(converted, dtype=np.int64 if whole else np.float64), problems)


def _numbers(values: Values) -> Parsed:
    plain = _plain_numbers(values)
    return _each(values, _number) if plain is None else Parsed(plain)


def _filled(values: Values) -> tuple[Values, BoolArray]:
    """Values with 0 in place of empty fields, and a mask of the empty fields."""
    if isinstance(values, np.ndarray):
        return values, np.zeros(len(values), dtype=np.bool_)
    empty = np.array([_is_blank(value) for value in values], dtype=np.bool_)
    zero = "0" if str in set(map(type, values)) else 0
    return ([zero if blank else value for value, blank in zip(values, empty, strict=True)], empty)


def parse_counts(values: Values, minimum: int = 1, what: str = "tokens") -> Parsed:
    """Whole numbers >= ``minimum`` as int64; "472.0" counts as 472, everything else is a problem of its row."""
    parsed = _numbers(values)
    numbers = parsed.values
    parsed.refuse(numbers != np.rint(numbers), "not whole", f"{{}} is not a whole number of {what}")
    parsed.refuse(numbers < 0, "negative", f"{{}}: {what} cannot be negative")
    parsed.refuse(numbers < minimum, "zero", f"{{}} {what}: at least {minimum} expected")
    parsed.refuse(numbers > MAX_TOKENS, "too large", f"{{}}: more than {MAX_TOKENS} {what} cannot be right")
    if parsed.problems:
        numbers = numbers.copy()
        numbers[list(parsed.problems)] = 0
    return Parsed(numbers.astype(np.int64), parsed.problems)


def parse_turns(values: Values) -> Parsed:
    """Positions inside sessions; an empty field is -1."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "i" and values.min(initial=0) >= -1:
        return Parsed(values)
    filled, empty = _filled(values)
    parsed = parse_counts(filled, 0, "turns")
    parsed.values[empty] = -1
    return parsed


def parse_durations(values: Values, units_per_second: int = 1) -> Parsed:
    """Durations >= 0 as float64 seconds; an empty field or null is NaN (not measured), other text is a problem."""
    filled, empty = _filled(values)
    parsed = _numbers(filled)
    parsed.refuse(parsed.values < 0, "negative", "{} s: a duration cannot be negative")
    return Parsed(np.where(empty, np.nan, parsed.values) / units_per_second, parsed.problems)


_DATETIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\s*(Z|UTC|[+-]\d\d(?::?\d\d)?)?", re.ASCII
)
_PLAIN_DATETIME = re.compile(r"(?:19[7-9]|2[01]\d)\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?", re.ASCII)
"""Dates that NumPy reads as ``nanoseconds_of`` does."""
_LAST_NS = 7_258_118_400 * 10**9  # the first moment of 2200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def nanoseconds_of(text: object) -> int:
    """Nanoseconds since 1970 of an ISO 8601 date and time; no zone means UTC; any number of fractional digits.

    Raises an internal error for anything else, or for years outside 1970 to 2199.
    """
    if _is_blank(text):
        raise _Bad("missing", "no value")
    match = _DATETIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise _Bad("not a time", NO_TIME.format(shown(text)))
    *parts, fraction, zone = match.groups()
    try:
        year, month, day, hour, minute, second = map(int, parts)
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError as problem:
        raise _Bad("not a time", f"{shown(text)}: {problem}") from None
    if not 1970 <= moment.year < 2200:
        raise _Bad("not a time", f"{shown(text)}: a year from 1970 to 2199 expected")
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    return (whole - _zone_s(zone)) * 10**9 + int((fraction or "").ljust(9, "0")[:9])


def is_date(value: object) -> bool:
    """True if a value is written as ``nanoseconds_of`` reads it."""
    return isinstance(value, str) and _DATETIME.fullmatch(value.strip()) is not None


def float_of(value: object) -> float | None:
    """Number that a value holds, as one or as text; None for anything else."""
    with suppress(ValueError):
        return None if value is None or isinstance(value, bool) else float(str(value))
    return None


def moment_of(value: object, unit_s: float | None = None) -> float | None:
    """Seconds since 1970 of a date, or of a Unix time in ``unit_s`` (None: by its size); None for anything else."""
    with suppress(_Bad):
        if is_date(value):
            return nanoseconds_of(value) * 1e-9
    number = float_of(value)
    if number is None or not math.isfinite(number):
        return None
    return number * (SECONDS[unix_unit(number)] if unit_s is None else unit_s)


def unix_unit(number: float) -> str:
    """Unit in which a number of this size is a Unix time."""
    size = abs(number)
    return "ns" if size >= 1e17 else "us" if size >= 1e14 else "ms" if size >= 1e11 else "s"


def _zone_s(zone: str | None) -> int:
    """Seconds by which a zone such as ``+05:30``, ``-08``, ``Z`` or none is ahead of UTC.

    >>> _zone_s("+0530"), _zone_s("-08"), _zone_s("Z")
    (19800, -28800, 0)
    """
    if not zone or zone[0] not in "+-":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    shift = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return shift if zone[0] == "+" else -shift


def _fast_datetimes(values: Values) -> IntArray | None:
    """Nanoseconds since 1970 when all values are well-formed times of one zone, or of none; None when any is not."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind != "M" or np.any(np.isnat(values)):
            return None
        moments = values.astype("M8[ns]").astype(np.int64)
    else:
        texts = [value for value in values if isinstance(value, str)]
        local = _PLAIN_DATETIME.match(texts[0]) if texts and len(texts) == len(values) else None
        if local is None:
            return None
        zone = texts[0][local.end() :]
        plain = [text.removesuffix(zone) for text in texts if text.endswith(zone)]
        if len(plain) < len(texts) or not all(map(_PLAIN_DATETIME.fullmatch, plain)):
            return None
        try:
            moments = np.array(plain, dtype="M8[ns]").astype(np.int64)
            moments += nanoseconds_of(texts[0]) - moments[0]
        except (ValueError, _Bad):
            return None
    return moments if moments.min(initial=0) >= 0 and moments.max(initial=0) < _LAST_NS else None


LEAST_UNIX_S = 1e9
"""Seconds from which a number is a Unix time (2001 on) and not a time since a start."""


@dataclass(slots=True)
class TimeColumn:
    """Reader of one time column over all chunks of a file: exact seconds since the first time seen.

    Attributes:
        units_per_second: unit of a numeric column; None for seconds, or the unit a Unix time must have.
        origin: first time seen, in the column's own unit.
        is_text: True when the column holds dates; None until the first value has been seen.
        guessed_unit: unit concluded from the size of the first value, for a note.
        zone_s: seconds by which the clock of the first date is ahead of UTC.
        zones: time zones of the dates seen, as written.
    """

    units_per_second: int | None = None
    origin: int | float | None = None
    is_text: bool | None = None
    guessed_unit: str | None = None
    zone_s: int = 0
    zones: set[str] = field(default_factory=set)

    @property
    def clock_s(self) -> float | None:
        """First time seen by the clock of its time zone, in seconds since 1970; None without dates."""
        if self.origin is None:
            return None
        seconds = self.origin / (10**9 if self.is_text else self.units_per_second or 1)
        return seconds + self.zone_s if self.is_text or seconds >= LEAST_UNIX_S else None

    def seconds(self, values: Values) -> Parsed:
        """Seconds since the first time seen (so earlier rows are negative), float64."""
        if self.is_text is None:
            first = next((value for value in values if not _is_blank(value)), None)
            dated = _DATETIME.fullmatch(first.strip()) if isinstance(first, str) else None
            self.is_text = dated is not None or isinstance(first, np.datetime64)
            if dated is not None:
                self.zone_s = _zone_s(dated[8])
        if self.is_text:
            moments = _fast_datetimes(values)
            if moments is None:
                dates = (_DATETIME.fullmatch(value.strip()) for value in values if isinstance(value, str))
                self.zones |= {dated[8] or "none, taken as UTC" for dated in dates if dated is not None}
            return self._since_origin(_each(values, nanoseconds_of) if moments is None else Parsed(moments), 10**9)
        if self.units_per_second is None:
            self._guess_unit(values)
        units = self.units_per_second or 1
        parsed = _numbers(values)
        for row, problem in parsed.problems.items():
            if problem.reason == "not a number":
                hint = comma_hint(str(values[row]))
                parsed.problems[row] = Problem("not a time", NO_TIME.format(shown(values[row])) + hint)
        parsed.refuse(parsed.values < 0, "negative", "{}: an arrival time cannot be negative")
        too_large = "{}: too large for an arrival time; is the time unit right?"
        parsed.refuse(parsed.values > MAX_SECONDS * units, "too large", too_large)
        return self._since_origin(parsed, units)

    def _guess_unit(self, values: Values) -> None:
        """Seconds, unless the first number can only be a Unix time in a smaller unit."""
        for value in values:
            try:
                unit = unix_unit(_number(value))
            except _Bad:
                continue
            self.units_per_second = UNITS_PER_SECOND[unit]
            self.guessed_unit = None if unit == "s" else unit
            return

    def _since_origin(self, parsed: Parsed, units: int) -> Parsed:
        """Subtract the first time seen, in integers while both are whole, then divide by the unit."""
        times = parsed.values
        if self.origin is None:
            first = next((row for row in range(len(times)) if row not in parsed.problems), None)
            self.origin = None if first is None else times[first].item()
        if self.origin is None:
            return Parsed(times.astype(np.float64), parsed.problems)
        if isinstance(self.origin, float) and self.origin.is_integer():
            self.origin = int(self.origin)
        origin = np.int64(self.origin) if times.dtype.kind == "i" and isinstance(self.origin, int) else self.origin
        seconds: FloatArray = (times - origin) / float(units)
        return Parsed(seconds, parsed.problems)


def parse_hash_list(value: object) -> list[int]:
    """Block ids of one request, a JSON list of integers or text such as "3 17 18".

    Unsigned 64-bit ids wrap into int64, which keeps them distinct. Raises an internal error for anything else.
    """
    if _is_blank(value):
        return []
    items = value
    if isinstance(value, str):
        with suppress(ValueError):
            items = list(map(int, value.strip().strip("[]").replace(",", " ").replace(";", " ").split()))
    if not isinstance(items, list | tuple | np.ndarray) or set(map(type, items)) - {int, np.int64, np.uint64, np.int32}:
        raise _Bad("not block ids", f"{shown(value)} is not a list of integer block ids")
    ids: list[int] = list(items)
    if ids and (min(ids) < -(2**63) or max(ids) >= 2**64):
        raise _Bad("too large", f"{shown(value)}: block ids must fit into 64 bits")
    return [item - 2**64 if item >= 2**63 else item for item in ids] if ids and max(ids) >= 2**63 else ids


def parse_hash_lists(values: Values) -> tuple[list[list[int]], dict[int, Problem]]:
    """Block ids of every row; a row that has none usable gets an empty list and a problem."""
    return _converted(values, parse_hash_list, [])
