"""The page "Every comparison": what one measured run changes, known failures, and where every row stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dashboards.recorded_errors import ErrorRow
from forerun.tables import Table

SPLIT_WORDS = ("held out (train=0.7,seed=1)", "on the other 70% of the shapes")
"""Words of a profile whose fit left out what ``SPLIT`` of the kernels holds out."""
MARKS = {"sources": "Before and after one measured run", "constants": "Constants of engines: a quarter more of each"}
"""Tables of the page, by their marks in its text."""
MOST_SHOWN = 10


def trust_page(rows: Sequence[ErrorRow], version: str, tables: Mapping[str, Table] | None = None) -> str:
    """The page in Markdown.

    Args:
        rows: every comparison on record.
        version: of Forerun.
        tables: those of ``rows.json``, by title.
    """
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8").replace("VERSION", version)
    for mark, title in MARKS.items():
        table = (tables or {}).get(title)
        shown = "Not computed yet." if table is None else replace(table, rows=table.rows[:MOST_SHOWN]).markdown()
        page = page.replace(f"<!-- {mark} -->", shown)
    counts = Counter(row.section for row in rows)
    return page.replace("COUNTS", ", ".join(f"{count:,} of {section}" for section, count in counts.items()))


def scored_shapes(fitted: str) -> str:
    """Words on the rows that a fit of kernels saw among the scored shapes.

    Args:
        fitted: what it was fitted on, in the words of its profile, which names the split that it obeyed.
    """
    if fitted.startswith("nothing"):
        return "nothing fitted"
    return "left out" if any(words in fitted for words in SPLIT_WORDS) else "may be in the fit"
