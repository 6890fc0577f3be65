"""The one exception that all four packages raise for what they were given, and the wording of its message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST_MESSAGE = 1000
"""Characters of an error message; whatever is longer has swallowed a file."""


class ForerunError(ValueError):
    """Bad input: one line that names the file, field or argument, the value, and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(message: str) -> str:
    """``message`` as one printable line: line ends become spaces, control characters and broken text are spelled out.

    The middle of a message beyond ``LONGEST_MESSAGE`` characters is left out: file and reason stand at its ends.
    """
    text = " ".join(message.splitlines())
    if not text.isprintable():
        text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    half = LONGEST_MESSAGE // 2 - 3
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint such as ``; did you mean 'h100-sxm'?`` for the known word nearest to ``word``, or an empty string."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    near = near or difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def shown(value: object, width: int = 40) -> str:
    """``value`` as it may stand in a one-line message: its repr, without line ends, cut to ``width`` characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, a structure nested too deep
        text = f"<{type(value).__name__}>"
    return text if len(text) <= width else f"{text[: width - 3]}..."
