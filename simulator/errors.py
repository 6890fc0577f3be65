"""The one exception that the simulator raises for input it cannot honour."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ForerunError(ValueError):
    """Bad input: one line that names the file or field, the value, and what would be right."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'h100-sxm'?`` for the known word nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
