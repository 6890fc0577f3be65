"""Validated reading of model descriptions: every wrong value is refused with file and field."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeVar

from forerun.errors import ForerunError, did_you_mean

LARGEST = 10**9
"""Largest width or count accepted; anything above is taken for a typing error."""

Default = TypeVar("Default")


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown_value(value: object) -> str:
    """Short form of any value for error messages."""
    try:
        return _short.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or nesting without end
        return f"a {type(value).__name__} too long to show"


def joined_lines(message: str) -> str:
    """The message on one line: line breaks from values or keys are removed."""
    return " ".join(message.splitlines())


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of one mapping of a model description, with the location for error messages.

    A field that is null counts as absent, as it does in a Hugging Face config.
    """

    values: Mapping[str, object]
    source: str
    """File, or other origin, for error messages."""
    prefix: str = ""
    seen: set[str] = field(default_factory=set, compare=False)
    """Fields that were read; fields outside this set did not influence the result."""

    @classmethod
    def of(cls, values: object, source: str, prefix: str = "") -> Fields:
        """Wrap ``values``, which must be a mapping with text keys."""
        place = f"{source}: {prefix.rstrip('.')}".rstrip(": ")
        if not isinstance(values, Mapping):
            raise ForerunError(f"{place}: must be an object of fields, not {_kind(values)}")
        for key in values:
            if not isinstance(key, str):
                raise ForerunError(f"{place}: field name {shown_value(key)} must be text")
        return cls(values, source, prefix)

    def fail(self, key: str, message: str) -> NoReturn:
        """Refuse a field: raises ForerunError, ``source: field message``."""
        raise ForerunError(joined_lines(f"{self.source}: {self.prefix}{key[:80]} {message}"))

    def get(self, key: str) -> object:
        """Raw value under ``key``; None if absent."""
        self.seen.add(key)
        return self.values.get(key)

    def has(self, key: str) -> bool:
        """True if the field is present and not null."""
        return self.get(key) is not None

    def require(self, key: str, why: str = "") -> object:
        """The raw value of a field that must be there."""
        value = self.get(key)
        if value is None:
            hint = did_you_mean(key, self.values) if key not in self.values else ""
            self.fail(key, f"is missing{f' ({why})' if why else ''}{hint}")
        return value

    def whole(self, key: str, low: int = 1, high: int = LARGEST) -> int:
        """A required whole number within [low, high]."""
        return self._whole(key, self.require(key, f"a whole number from {low}"), low, high)

    def whole_or(self, key: str, default: Default, low: int = 1, high: int = LARGEST) -> int | Default:
        """A whole number within [low, high], or ``default`` if the field is absent."""
        return self._whole(key, self.values[key], low, high) if self.has(key) else default

    def flag(self, key: str, default: bool) -> bool:
        """True if the field is true; ``default`` if it is absent."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"must be true or false, not {shown_value(value)}")
        return value

    def text(self, key: str, default: Default) -> str | Default:
        """A text, or ``default`` if the field is absent."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(key, f"must be text, not {shown_value(value)}")
        return value

    def choice(self, key: str, allowed: Iterable[str], default: Default) -> str | Default:
        """One of ``allowed``, or ``default`` if the field is absent."""
        value = self.text(key, None)
        if value is None:
            return default
        if value not in (known := sorted(allowed)):
            self.fail(key, f"{shown_value(value)} is not one of {', '.join(known)}{did_you_mean(value, known)}")
        return value

    def collapsed(self, keys: Iterable[str | None]) -> Fields:
        """The same fields; a list with one equal value per layer becomes that value."""
        lists = {key: value for key in keys if key and isinstance(value := self.values.get(key), list)}
        alike = {key: value[0] for key, value in lists.items() if value and all(one == value[0] for one in value)}
        return replace(self, values={**self.values, **alike})

    def items(self, key: str) -> list[object]:
        """A list; empty if the field is absent."""
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            self.fail(key, f"must be a list, not {_kind(value)}")
        return list(value)

    def texts(self, key: str) -> list[str]:
        """A list of texts; empty if the field is absent."""
        texts = []
        for value in self.items(key):
            if not isinstance(value, str):
                self.fail(key, f"must list texts, not {shown_value(value)}")
            texts.append(value)
        return texts

    def section(self, key: str) -> Fields:
        """A nested mapping that must be there."""
        return Fields.of(self.require(key), self.source, f"{self.prefix}{key}.")

    def refuse_others(self, known: Iterable[str]) -> None:
        """Refuse fields not in ``known``."""
        names = sorted(known)
        for key in self.values:
            if key not in names:
                self.fail(key, f"is not a field here{did_you_mean(key, names)} (one of {', '.join(names)})")

    def _whole(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"must be a whole number, not {shown_value(value)}")
        if not low <= value <= high:
            self.fail(key, f"must be from {low} to {high}, not {shown_value(value)}")
        return value


def _kind(value: object) -> str:
    names = {"list": "a list", "str": "text", "NoneType": "null", "int": "a number", "float": "a number"}
    return names.get(type(value).__name__, type(value).__name__)
