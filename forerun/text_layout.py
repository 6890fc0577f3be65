"""Text wrapping: lines break between words, but never between a number and its unit."""

from __future__ import annotations

import re
from collections.abc import Sequence

_AFTER_FIGURE = re.compile(r"(?:[munk]?s|min|h|d|%|[kMGT]?i?B|[kM]?[WJ]|[a-z]+/s|x)(?:\.\.[-+~$]?[.\d]|[,;:)]|$)")
"""Pattern of a word that belongs to the preceding number: a unit, alone or at the end of an interval."""


def pieces(text: str) -> list[str]:
    """Split a text into the parts between which a line may break: words, and numbers with their units.

    >>> pieces("p99 TPOT 17.5 ms 137..153 ms")
    ['p99', 'TPOT', '17.5 ms', '137..153 ms']
    """
    parts: list[str] = []
    for word in text.split():
        if parts and parts[-1][-1].isdigit() and _AFTER_FIGURE.match(word):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def lines_of(text: str, width: int) -> list[str]:
    """Wrap ``text`` to lines of at most ``width`` characters; only a single piece longer than that is cut."""
    lines: list[str] = []
    for piece in pieces(text):
        if lines and len(lines[-1]) + 1 + len(piece) <= width:
            lines[-1] += f" {piece}"
        else:
            lines += [piece[at : at + width] for at in range(0, len(piece), width)]
    return lines or [""]


def shared_widths(least: Sequence[int], widest: Sequence[int], room: int) -> list[int]:
    """Column widths: a minimum each, then the full width of the first column, then equal shares for the others."""
    widths = list(least)
    left = room - sum(widths)
    first = min(left, widest[0] - widths[0])
    widths[0] += first
    left -= first
    while left > 0 and (short := [index for index in range(len(widths)) if widths[index] < widest[index]]):
        for index in short[:left]:
            widths[index] += 1
        left -= len(short[:left])
    return widths
