"""What the simulator raises: for input it cannot honour, and for results that cannot be."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Iterable

LONGEST_MESSAGE = 1000
"""Characters of an error message; whatever is longer has swallowed a file."""


class ForerunError(ValueError):
    """Bad input: one line that names the file or field, the value, and what would be right."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class LawBrokenError(RuntimeError):
    """A simulated result that breaks physics or conservation: a fault of the simulator, not of its input.

    Args:
        law: what is broken, with the numbers.
        scenario: what was run, as JSON that ``forerun run`` takes.
        seed: with which it was run.
    """

    def __init__(self, law: str, scenario: str, seed: int) -> None:
        super().__init__(law, scenario, seed)
        self.law, self.scenario, self.seed = law, scenario, seed

    @property
    def mark(self) -> str:
        """A short name of scenario and seed, the same each time."""
        return f"{zlib.crc32(f'{self.seed} {self.scenario}'.encode()):08x}"

    def __str__(self) -> str:
        """The law and how to see it broken again."""
        return f"{self.law}; reproduce it with seed {self.seed} and the scenario {self.scenario}"


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
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""
