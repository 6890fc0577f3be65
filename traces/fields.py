"""Fields of traces: canonical names and units of the columns in a file, and typed access to a row.

Formats are described in YAML, one entry per canonical column: ``arrival_s: "timestamp:ms"`` names a column and its
unit, a list names several, the preferred column first, and ``usage.prompt_tokens`` is a value inside a JSON object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from traces.errors import TraceError, comma_hint, shown

Record: TypeAlias = Mapping[str, object]
"""A JSON object, or a row by column name."""

UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Time units a column may have."""
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds of each unit."""
TIME_WORDS = {
    word: unit
    for unit, words in {
        "s": "s sec seconds",
        "ms": "ms millis milliseconds",
        "us": "us micros",
        "ns": "ns nanos",
    }.items()
    for word in words.split()
}
"""Words for units of time, with the unit of ``UNITS_PER_SECOND``."""


class TraceColumn(NamedTuple):
    """A column name and, for times, its unit: s, ms, us, ns, or None for dates and plausible guesses."""

    name: str
    unit: str | None = None


def candidates(names: str | Sequence[str]) -> tuple[TraceColumn, ...]:
    """Parse column names, each with an optional unit after a colon; names that fit several units come last."""
    plain, with_units = [], []
    for name, _, unit in (text.partition(":") for text in ([names] if isinstance(names, str) else names)):
        if unit in ("any", "suffix"):
            with_units += [TraceColumn(f"{name}_{suffix}", suffix) for suffix in UNITS_PER_SECOND]
        if unit != "suffix":
            plain.append(TraceColumn(name, None if unit in ("", "any") else unit))
    return (*plain, *with_units)


def squash(name: str) -> str:
    """Reduce a column name to lower-case letters and digits, so that ``Request tokens`` equals ``request_tokens``."""
    return "".join(char for char in name.lower() if char.isalnum())


def column_words(name: str) -> list[str]:
    """Lower-case words of a name such as ``promptToks``, ``prompt_toks`` or ``Prompt toks``."""
    return re.findall(r"[a-z]+|\d+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def unit_of(name: str) -> str | None:
    """Unit of time that the last word of a name states; None if it states none.

    >>> unit_of("arrivalMillis"), unit_of("ts")
    ('ms', None)
    """
    last = [word for word in column_words(name) if word.isalpha()][-1:]
    return TIME_WORDS.get(last[0]) if last and last[0] != name.lower() else None


def value_at(holder: object, path: str) -> object:
    """Value under a dotted path inside nested objects; None if the path does not exist."""
    for key in path.split("."):
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder


def object_at(holder: object, path: str) -> Record:
    """Object under a dotted path; empty if the path does not lead to an object."""
    value = value_at(holder, path)
    return value if isinstance(value, Mapping) else {}


def list_at(holder: object, path: str) -> list[object]:
    """List under a dotted path; empty if the path does not lead to a list."""
    value = value_at(holder, path)
    return value if isinstance(value, list) else []


def objects_of(value: object) -> list[Record]:
    """Objects in a list; other entries are skipped. Empty if ``value`` is not a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def objects_at(holder: object, path: str) -> list[Record]:
    """Objects in the list under a dotted path; other entries are skipped."""
    return objects_of(value_at(holder, path))


def number_of(value: object) -> int | float | None:
    """Return the value if it is a number; None for anything else, booleans included."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")


class Cells:
    """Typed access to one row or mapping by key; a missing key, an empty cell and NaN all return None.

    A key may be a dotted path into nested objects. Every method raises TraceError, with place (file and line) and key,
    if the value has another type.
    """

    def __init__(self, values: object, place: str) -> None:
        self.values: Record = values if isinstance(values, Mapping) else {}
        self.place = place

    def at(self, path: str, name: str | None = None) -> Cells:
        """Return access to the object under ``path``; errors refer to it as ``name``, or by the path if None."""
        return Cells(object_at(self.values, path), f"{self.place}: {name or path}")

    def with_values(self, values: Record) -> Cells:
        """Return the row with some values replaced."""
        return Cells({**self.values, **values}, self.place)

    def text(self, key: str) -> str | None:
        """Return the text under ``key``."""
        value = self.values.get(key)
        if value is None and "." in key:
            value = value_at(self.values, key)
        word = "" if value is None else str(value).strip()
        return None if word.lower() in ("", "nan", "none", "null") else word

    def number(self, key: str) -> float | None:
        """Return the finite number under ``key``."""
        word = self.text(key)
        if word is None:
            return None
        try:
            value = float(word)
        except ValueError:
            raise TraceError(f"{self.place}: {key}: {shown(word)} is no number{comma_hint(word)}") from None
        if not math.isfinite(value):
            raise TraceError(f"{self.place}: {key}: {shown(word)} is not finite")
        return value

    def count(self, key: str) -> int | None:
        """Return the integer from 1 to 1e12 under ``key``."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= 1e12:
            raise TraceError(f"{self.place}: {key}: {shown(self.text(key))} is no whole number from 1")
        return int(value)

    def several(self, key: str) -> int | None:
        """Return the integer > 1 under ``key``; None if it is 0 or 1, which tables use for disabled features."""
        return None if self.number(key) in (None, 0.0, 1.0) else self.count(key)

    def flag(self, key: str) -> bool | None:
        """Return the boolean under ``key``."""
        word = self.text(key)
        if word is None:
            return None
        if word.lower() not in (*_YES, *_NO):
            raise TraceError(f"{self.place}: {key}: {shown(word)} is neither true nor false")
        return word.lower() in _YES

    def positive(self, key: str) -> float | None:
        """Return the number > 0 under ``key``; None if it is <= 0, which tools write for values not measured."""
        value = self.number(key)
        return value if value is not None and value > 0 else None

    def rounded(self, key: str) -> int | None:
        """Return the positive number under ``key``, rounded; None if it rounds to 0."""
        value = self.positive(key)
        return round(value) if value else None
