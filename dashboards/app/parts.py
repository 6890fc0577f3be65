"""Building blocks of every page: figure cards with downloads, tables, tiles, messages, areas that views fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html

from dashboards.app.controls import Component, part_id, term
from dashboards.page import Tile
from dashboards.theme import BASIS_WORDS
from forerun.document import Json
from forerun.tables import Table

Part = Callable[[str], Component]
"""Function that builds a part of a page from the page's path."""
EXPORTS = ("png", "svg", "csv", "html")
GRAPH_CONFIG: Any = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}
NOT_YET = {"paper_bgcolor": "#0000", "plot_bgcolor": "#0000", "xaxis": {"visible": False}, "yaxis": {"visible": False}}
"""Layout of a figure before it is drawn: transparent, without axes."""
MESSAGE = "message"
"""Name of the area that shows a page's error messages."""
MOST_NOTES = 6
"""Maximum number of notes shown below a page's numbers; more notes are collapsed."""
UPLOADED = "uploaded"
"""Name of the store of a page's uploaded file, and of the area with the state of the upload."""


spec_id = partial(part_id, "spec")
"""Id of the store of a figure without theme colours; a page's views fill it."""
area_id = partial(part_id, "area")
"""Id of an area that a page's views fill with components."""
output_id = partial(part_id, "message")
"""Id of a store through which one view triggers another."""


def area(name: str) -> Part:
    """An area that a view fills."""
    return lambda page: html.Div(id=area_id(page, name), className="area")


def message_area(name: str = MESSAGE) -> Part:
    """Area for the error messages of a view."""
    return lambda page: dmc.Box(id=area_id(page, name), className="area", **{"aria-live": "polite"})


def heading(words: str) -> Part:
    """Section title."""
    return lambda _page: dmc.Title(words, order=2, className="section-title")


def side_by_side(*content: Part) -> Part:
    """Parts side by side; stacked on a narrow screen."""
    return lambda page: in_columns(*(part(page) for part in content))


def spec(figure: go.Figure | None) -> Json | None:
    """Content of a figure's store; None for no figure."""
    if figure is None:
        return None
    plain = figure.to_plotly_json()
    layout = dict(plain["layout"])
    layout.pop("template", None)
    return {"data": plain["data"], "layout": layout}


def upload(page: str, words: str, most: int = 1) -> Component:
    """Upload box; the browser refuses more or larger files, and a view gets ``{files: [{name, contents}]}``."""
    classes: Any = {"className": "upload", "className_active": "upload active"}
    box = dcc.Upload(dmc.Text(words, size="sm"), id={"kind": "upload", "page": page}, multiple=True, **classes)
    return html.Div([box, dcc.Store(id=output_id(page, UPLOADED)), dcc.Store(id=output_id(page, "most"), data=most)])


def figure_card(name: str, height: int, label: str, wide: bool = False, least: int = 0) -> Part:
    """Card of one figure of ``height`` pixels, with download buttons.

    Args:
        label: text for screen readers.
        wide: whether the figure scrolls sideways on a narrow screen, so that its numbers stay readable.
        least: minimum width in pixels; on narrower screens the figure scrolls.
    """
    aria: Any = {"aria-label": label}
    style = {"minWidth": f"{least}px"} if least else {}
    kind = "figure wide" if wide or least else "figure"

    def card(page: str) -> Component:
        def export(kind: str) -> Component:
            named: Any = {"aria-label": f"Save {label} as {kind.upper()}"}
            place = part_id(f"export-{kind}", page, name)
            return dmc.Button(kind.upper(), id=place, size="compact-xs", variant="subtle", className="export", **named)

        graph = dcc.Graph(
            id=part_id("graph", page, name),
            config=GRAPH_CONFIG,
            responsive=True,
            style={"height": f"{height}px"},
            figure={"data": [], "layout": NOT_YET},
        )
        save = [dmc.Text("Save as", size="xs", className="muted"), *map(export, EXPORTS)]
        content = [
            dcc.Store(id=spec_id(page, name)),
            dcc.Download(id=part_id("download", page, name)),
            html.Div(html.Div(graph, role="group", className=kind, style=style, **aria), className="figure-scroll"),
            dmc.Group(save, gap=2, justify="flex-end"),
        ]
        place = part_id("card", page, name)
        return dmc.Paper(content, id=place, withBorder=True, radius="md", p="xs", className="figure-card")

    return card


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def message(text: str) -> Component:
    return dmc.Alert(text, color="red", variant="light", radius="md", className="message", title=None)


def remark(text: str) -> Component:
    return dmc.Alert(text, color="gray", variant="light", radius="md", className="remark")


def warning_area(lines: Sequence[str]) -> Component:
    """Warning about parts of a link that cannot be shown and their replacements; None without such parts."""
    if not lines:
        return None
    title = "This link requested something that cannot be shown"
    return dmc.Alert(
        [html.Div(line) for line in lines], title=title, color="yellow", variant="light", className="changed"
    )


def rests_on(basis: str | None, notes: Iterable[str] = ()) -> Component:
    """Evidence level of a page's numbers, with notes; ``basis`` is None before anything is computed."""
    lines: list[Component] = [dmc.Text(note, size="xs", className="muted") for note in dict.fromkeys(notes)]
    if len(lines) > MOST_NOTES:
        lines = [fold(f"{len(lines)} notes on these numbers", lines)]
    words = "" if basis is None else BASIS_WORDS.get(basis, "")
    sentence = f"These numbers rest on: {words}." if words else "What numbers rest on stands here when there are any."
    head = [
        html.Span(f"basis: {basis or 'nothing yet'}", className=f"basis-badge {basis or ''}"),
        dmc.Text(sentence if words or basis is None else "", size="sm", className="muted"),
    ]
    return dmc.Stack([dmc.Group(head, gap="xs"), *lines], gap=4, className="basis")


def fold(title: str, content: Sequence[Component]) -> Component:
    """Collapsed content below a title; a click expands it."""
    return html.Details([html.Summary(title), dmc.Stack(list(content), gap="sm")])


def tiles(rows: Iterable[Tile]) -> Component:
    """Key figures as tiles."""

    def one(tile: Tile) -> Component:
        value = dmc.Text([tile.value, html.Small(f" {tile.unit}" if tile.unit else "")], className="tile-value")
        around = [dmc.Text(words, size="xs", className="muted") for words in (term(tile.label), tile.detail)]
        return dmc.Paper([around[0], value, around[1]], withBorder=True, radius="md", p="xs", className="tile")

    return dmc.SimpleGrid(list(map(one, rows)), cols={"base": 2, "sm": 3, "xl": 6}, spacing="sm")


def table_panel(shown: Table) -> Component:
    """A table in a titled box; None without rows.

    The browser fills the place with the table's HTML, as reports have it: a component for every cell would take
    seconds.
    """
    filled: Any = {"data-html": shown.html()}
    return panel(shown.title, html.Div(className="table", **filled)) if shown.rows else None


def table_stack(tables: Iterable[Table]) -> Component:
    """Tables below each other; tables without rows are omitted."""
    return dmc.Stack([shown for table in tables if (shown := table_panel(table)) is not None], gap="md")


def commands_panel(title: str, commands: Mapping[str, str]) -> Component:
    """Commands to paste, by engine, each with a copy button; None without commands."""
    parts: list[Component] = []
    for engine, text in commands.items():
        named: Any = {"aria-label": f"Copy the command for {engine}"}
        copy = dmc.CopyButton(value=text, children="Copy", copiedChildren="Copied", size="compact-xs", **named)
        parts.append(dmc.Group([dmc.Text(engine, size="sm", fw=600), copy], justify="space-between"))
        parts.append(dmc.Code(text, block=True, className="flags"))
    return panel(title, *parts) if parts else None


def panel(title: str, *content: Component, **more: object) -> Component:
    """A titled box."""
    heading = [dmc.Title(title, order=2, className="card-title")] if title else []
    return dmc.Paper(dmc.Stack([*heading, *content], gap="sm"), withBorder=True, radius="md", p="md", **more)


def page_frame(title: str, says: str, *content: Component) -> Component:
    """A page: title, one sentence about its purpose, and content."""
    head = [dmc.Title(title, order=1, className="page-title"), dmc.Text(says, className="muted")]
    return dmc.Stack([html.Div(head), *content], gap="md", className="page")


def with_controls(controls: Sequence[Component], content: Sequence[Component]) -> Component:
    """Controls in a column beside the content; above the content on a narrow screen."""
    return html.Div(
        [panel("", *controls, className="controls"), dmc.Stack(list(content), gap="md", className="content")],
        className="with-controls",
    )


def in_columns(*content: Component) -> Component:
    """Boxes side by side; stacked on a narrow screen."""
    return dmc.SimpleGrid(list(content), cols={"base": 1, "lg": 2}, spacing="md")
