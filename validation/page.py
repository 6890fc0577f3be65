"""The page "How far to trust it": the words of ``page.md``, every comparison, and what was fitted on what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dashboards.recorded_errors import SECTIONS, ErrorRow
from validation.facts import facts

SPLIT_WORDS = ("held out (train=0.7,seed=1)", "on the other 70% of the shapes")
"""Words of a profile whose fit left out what ``SPLIT`` of the kernels holds out."""


def trust_page(rows: Sequence[ErrorRow], version: str) -> str:
    """The page in Markdown.

    Args:
        rows: every comparison on record.
        version: of Forerun.
    """
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    fitted = "\n".join(f"| {f.constant} | {f.table} | {f.rows} | {f.split} |" for f in facts())
    page = page.replace("<!-- fitted -->", f"| constant | table | rows | split |\n|---|---|---|---|\n{fitted}")
    for section in SECTIONS:
        section_rows = [row for row in rows if row.section == section]
        tables = "\n".join(_tables(section_rows)) if section_rows else "Not computed yet."
        page = page.replace(f"<!-- {section} -->", tables.rstrip())
    return page.replace("VERSION", version)


def _tables(rows: Sequence[ErrorRow]) -> Iterator[str]:
    for ships, title in ((True, "Anyone can compute these"), (False, "On measured tables that do not ship")):
        part = [row for row in rows if row.ships is ships]
        if not part:
            continue
        dates = sorted({row.date for row in part if row.date})
        yield f"### {title}{f' ({dates[-1]})' if dates else ''}"
        yield ""
        kernels = part[0].section == "kernels"
        more = " scored shapes |" if kernels else ""
        yield f"| comparison | predicted | n | MAPE | median | bias | basis |{more} fitted |"
        yield f"|---|---|---:|---:|---:|---:|---|{'---|' if kernels else ''}---|"
        for row in part:
            scored = f" {scored_shapes(row.fitted)} |" if kernels else ""
            yield (
                f"| {row.name} | {row.metric} | {row.n:,} | {_percent(row.mape)} | {_percent(row.median_ape)} | "
                f"{_percent(row.bias, '+')} | {row.basis or ''} |{scored} {row.fitted} |"
            )
        yield ""


def scored_shapes(fitted: str) -> str:
    """Words on the rows that a fit of kernels saw among the scored shapes.

    Args:
        fitted: what it was fitted on, in the words of its profile, which names the split that it obeyed.
    """
    if fitted.startswith("nothing"):
        return "nothing fitted"
    return "left out" if any(words in fitted for words in SPLIT_WORDS) else "may be in the fit"


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f} %"
