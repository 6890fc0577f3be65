"""The frame of every HTML page: self-contained, light and dark, figures as data for a slim build of plotly.js."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

import plotly.graph_objects as go

from dashboards.theme import BASIS_WORDS, dark_template, light_template
from forerun.document import Json
from forerun.tables import LONG_WORDS, Table, term_html

PLOTLY = "plotly-cartesian-4.1.1.min.js.gz"
"""File of plotly.js's official minified cartesian build, without maps and 3D: a third of the full size."""
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy: no network access, whatever the texts in a page are."""


MOST_ON_A_PHONE = 9
"""Maximum columns of a heat map that a narrow screen shows readably at once."""


class Tile(NamedTuple):
    """A key figure, shown as a tile."""

    label: str
    value: str
    unit: str
    detail: str


def page_html(title: str, sections: Iterable[str], figures: Mapping[str, go.Figure]) -> str:
    """HTML of a whole page.

    Args:
        title: title of the window, plain text.
        sections: HTML of the page's parts; a figure is drawn in the element whose id is its name.
        figures: Plotly figures by id.
    """
    body = "\n".join(filter(None, sections))
    templates = {"light": light_template().to_plotly_json(), "dark": dark_template().to_plotly_json()}
    plotly = base64.b64encode(_file(PLOTLY)).decode() if figures else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)} · Forerun</title>
<link rel="icon" href="data:,">
<style>{asset("shared.css")}{asset("report.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="figures">{figures_json(figures)}</script>
<script type="application/json" id="templates">{in_script(json.dumps(templates))}</script>
<script type="text/plain" id="plotly">{plotly}</script>
<script>{asset("shared.js")}{asset("report.js")}</script>
</body>
</html>
"""


def header(title: str, says: str, lead: str, marks: Iterable[tuple[str, str]] = ()) -> str:
    """Page header: title, kind of page, lead sentence, and badges as (text, style: ``good``, ``bad`` or empty)."""
    badges = "".join(f'<span class="badge {kind}">{escape(text)}</span>' for text, kind in marks)
    return (
        f'<header><h1>{escape(title)}</h1><p>{escape(says)}</p><p class="lead">{escape(lead)}</p>'
        + (f'<div class="badges">{badges}</div>' if badges else "")
        + "</header>"
    )


def footer(*facts: str) -> str:
    return f"<footer>{escape(' · '.join(facts))}</footer>"


def basis_words(basis: str | None) -> str:
    return BASIS_WORDS.get(basis or "datasheet", str(basis))


def tiles_html(tiles: Sequence[Tile]) -> str:
    """Key figures as tiles, in one or two rows."""

    def one(tile: Tile) -> str:
        unit = f" <small>{escape(tile.unit)}</small>" if tile.unit else ""
        return (
            f'<div class="tile"><div class="label">{term_html(tile.label)}</div>'
            f'<div class="value">{escape(tile.value)}{unit}</div><div class="detail">{escape(tile.detail)}</div></div>'
        )

    columns = len(tiles) if len(tiles) <= 6 else -(-len(tiles) // 2)
    return f'<section class="tiles" style="--columns: {columns}">{"".join(map(one, tiles))}</section>'


def card(title: str, content: str) -> str:
    """A titled box; empty without content."""
    return f'<section class="card"><h2>{escape(title)}</h2>{content}</section>' if content else ""


def table_card(table: Table) -> str:
    """A table in a titled box; empty without rows."""
    return card(table.title, table.html())


def commands_card(title: str, commands: Mapping[str, str], shown: int | None = None) -> str:
    """Commands to paste, by purpose, each with a copy button; commands after the first ``shown`` are collapsed."""
    parts = [
        f'<div class="command"><div><b>{escape(name)}</b><button type="button" class="copy">Copy</button></div>'
        f'<pre tabindex="0">{escape(text)}</pre></div>'
        for name, text in commands.items()
    ]
    more = parts[shown:] if shown is not None else []
    rest = f"<details><summary>{len(more)} more</summary>{''.join(more)}</details>" if more else ""
    return card(title, "".join(parts[:shown]) + rest)


def folded(title: str, text: str) -> str:
    """Collapsed text below a title; a click expands it."""
    return (
        f'<section class="card"><details><summary>{escape(title)}</summary><pre tabindex="0">{escape(text)}</pre>'
        "</details></section>"
    )


def bullets(notes: Iterable[str]) -> str:
    """HTML list of notes; empty without notes."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def grid(*cards: str) -> str:
    """Boxes side by side; a single box has the whole width."""
    shown = [content for content in cards if content]
    if len(shown) < 2:
        return "".join(shown)
    return f'<div class="grid">{"".join(shown)}</div>'


def figure_cards(figures: Mapping[str, go.Figure]) -> dict[str, str]:
    """HTML of the element of every figure, by id; a fixed height avoids layout shifts on drawing.

    A map, or a figure with long names, scrolls sideways on a narrow screen.
    """
    return {
        name: f'<section class="card plot"><div class="scroll"><div class="figure{_wide(figure)}" id="{name}" '
        f'style="min-height: {figure.layout.height or 420}px"></div></div></section>'
        for name, figure in figures.items()
    }


def _wide(figure: go.Figure) -> str:
    names = [y for trace in figure.data if trace.y is not None for y in trace.y if isinstance(y, str)]
    maps = any(trace.type == "heatmap" and len(trace.x) > MOST_ON_A_PHONE for trace in figure.data)
    return " wide" if maps or any(len(line) > LONG_WORDS for name in names for line in name.split("<br>")) else ""


def figures_json(figures: Mapping[str, go.Figure]) -> str:
    """JSON of the figures without their template, which the page contains once."""
    plain = {}
    for name, figure in figures.items():
        spec = json.loads(figure.to_json())
        spec["layout"].pop("template", None)
        plain[name] = {"data": spec["data"], "layout": spec["layout"]}
    return in_script(json.dumps(plain, allow_nan=False))


def in_script(text: str) -> str:
    """Escape JSON so that it cannot close the script element that contains it."""
    return text.replace("<", "\\u003c")


def scenario_yaml(scenario: Json) -> str:
    import yaml

    return yaml.safe_dump(dict(scenario), sort_keys=False, default_flow_style=None, width=100)


def asset(name: str) -> str:
    return _file(name).decode("utf-8")


def _file(name: str) -> bytes:
    return files("dashboards").joinpath("assets", name).read_bytes()
