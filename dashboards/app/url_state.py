"""What a page shows, in the query of its address: read when a page opens, written by the browser on every change."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl

LONGEST = 4000


class Params:
    """Values from an address. A value that a control cannot take is replaced by the default, never an error."""

    def __init__(self, search: str | None) -> None:
        self._values = dict(parse_qsl((search or "").lstrip("?")[:LONGEST]))

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        """One of ``options``."""
        value = self._values.get(name, default)
        return value if value in options else default

    def choice_or_none(self, name: str, options: Sequence[str], default: str | None = None) -> str | None:
        """One of ``options``, or none."""
        value = self._values.get(name, default)
        return value if value in options else default

    def listed(self, name: str) -> list[str]:
        """Texts between commas."""
        return [text for text in self._values.get(name, "").split(",") if text]

    def number(self, name: str, low: float, high: float, default: float) -> float:
        """A number from ``low`` to ``high``."""
        try:
            value = float(self._values.get(name, default))
        except ValueError:
            return default
        return value if low <= value <= high else default

    def whole(self, name: str, low: int, high: int, default: int) -> int:
        """A whole number from ``low`` to ``high``."""
        return int(self.number(name, low, high, default))
