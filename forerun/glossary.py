"""Definitions of the terms of Forerun's output: a page of the documentation, and tooltips of pages and reports."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

ENTRY = re.compile(r"^\*\*(.+?)\*\*\n:   (.+)$", re.MULTILINE)


def glossary_text() -> str:
    """The glossary as Markdown: sections of terms, each with its definition in a paragraph."""
    return files("forerun").joinpath("glossary.md").read_text("utf-8")


@cache
def _definitions() -> dict[str, str]:
    """Definition by term in lower case, the longest term first; single letters, which are units too, are left out."""
    entries = {}
    for heading, words in ENTRY.findall(glossary_text().replace("`", "")):
        entries |= {_plain(term): f"{heading}: {words}" for term in re.split(r", | \(|\)", heading) if len(term) > 1}
    return dict(sorted(entries.items(), key=lambda entry: -len(entry[0])))


@cache
def definition(words: str) -> str | None:
    """Definition of the longest term in a label such as ``p99 TTFT`` or ``mean_ttft_ms``; None where there is none.

    >>> definition("p99_tpot_ms")[:30]
    'TPOT, time per output token: ('
    """
    label = _plain(words)
    matching = (entry for term, entry in _definitions().items() if re.search(rf"\b{re.escape(term)}s?\b", label))
    return next(matching, None)


def _plain(words: str) -> str:
    return words.lower().replace("_", " ").strip()
