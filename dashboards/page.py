"""The frame of every HTML page: self-contained, light and dark, its figures as data."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

import plotly.graph_objects as go

from dashboards.figures.theme import dark_template, light_template


def page_html(title: str, body: str, figures: dict[str, go.Figure]) -> str:
    """A whole page as text.

    Args:
        title: of the window, plain text.
        body: HTML of everything on the page; a figure goes into the element that has its name as id.
        figures: by id.
    """
    from plotly.offline import get_plotlyjs

    templates = {"light": light_template().to_plotly_json(), "dark": dark_template().to_plotly_json()}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{asset("report.css")}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="figures">{figures_json(figures)}</script>
<script type="application/json" id="templates">{in_script(json.dumps(templates))}</script>
<script>{get_plotlyjs()}</script>
<script>{asset("report.js")}</script>
</body>
</html>
"""


def card(title: str, content: str) -> str:
    """A titled box; empty without content."""
    return f'<section class="card"><h2>{escape(title)}</h2>{content}</section>' if content else ""


def grid(*cards: str) -> str:
    """Boxes beside each other; a single one takes the whole width."""
    shown = [content for content in cards if content]
    if len(shown) < 2:
        return "".join(shown)
    return f'<div class="grid">{"".join(shown)}</div>'


def figure_cards(figures: dict[str, go.Figure]) -> dict[str, str]:
    """The place of every figure, by id."""
    return {name: f'<section class="card plot"><div class="figure" id="{name}"></div></section>' for name in figures}


def figures_json(figures: dict[str, go.Figure]) -> str:
    """Figures without their template, which the page holds once."""
    plain = {}
    for name, figure in figures.items():
        spec = json.loads(figure.to_json())
        spec["layout"].pop("template", None)
        plain[name] = {"data": spec["data"], "layout": spec["layout"]}
    return in_script(json.dumps(plain, allow_nan=False))


def in_script(text: str) -> str:
    """JSON that cannot close the script element it stands in."""
    return text.replace("<", "\\u003c")


def asset(name: str) -> str:
    """A style sheet or script of the package."""
    return files("dashboards").joinpath("assets", name).read_text(encoding="utf-8")
