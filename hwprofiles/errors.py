"""The package's one exception and the wording of its suggestions."""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST_MESSAGE = 1000
"""Characters of an error message; whatever is longer has swallowed a file."""


class ProfileError(ValueError):
    """A chip, a link or a kernel description that cannot be used; one line that names the place, the value and the
    way out."""

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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name closest to ``name``, else an empty string."""
    close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""
