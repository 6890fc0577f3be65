"""The page "How far to trust it": the words of ``page.md`` with every comparison in its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from simulator.replay.validation.errors import SECTIONS, ErrorRow


def trust_page(rows: Sequence[ErrorRow], version: str) -> str:
    """The page in Markdown.

    Args:
        rows: every comparison on record.
        version: of Forerun.
    """
    page = files("simulator.replay.validation").joinpath("page.md").read_text(encoding="utf-8")
    for section in SECTIONS:
        found = [row for row in rows if row.section == section]
        tables = "\n".join(_tables(found)) if found else "Not computed yet."
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
        yield "| comparison | predicted | n | MAPE | median | bias | basis | fitted |"
        yield "|---|---|---:|---:|---:|---:|---|---|"
        for row in part:
            yield (
                f"| {row.name} | {row.metric} | {row.n:,} | {_percent(row.mape)} | {_percent(row.median_ape)} | "
                f"{_percent(row.bias, '+')} | {row.basis or ''} | {row.fitted} |"
            )
        yield ""


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.1f} %"
