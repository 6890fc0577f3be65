"""Building blocks of every page: figure cards with downloads, controls whose value is in the address, messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import Dash, Input, Output, dcc, html

Component = Any
"""A Dash component; the component libraries are not typed."""
Identity = dict[str, str]
EXPORTS = ("png", "svg", "csv", "html")
GRAPH_CONFIG: Any = {"displaylogo": False, "responsive": True, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}


def state_id(page: str, name: str) -> Identity:
    """Id of a control whose value is part of the address."""
    return {"kind": "state", "page": page, "name": name}


def control_id(page: str, name: str) -> Identity:
    """Id of the place of a control with its label."""
    return {"kind": "control", "page": page, "name": name}


def value_id(page: str, name: str) -> Identity:
    """Id of the words that say the value of a slider."""
    return {"kind": "value", "page": page, "name": name}


def shown_when(app: Dash, page: str, name: str, other: str, wanted: Callable[[Any], bool]) -> None:
    """Show the control ``name`` only while the value of ``other`` is ``wanted``."""

    def style(value: Any) -> dict[str, str]:
        return {} if wanted(value) else {"display": "none"}

    app.callback(Output(control_id(page, name), "style"), Input(state_id(page, other), "value"))(style)


def spec_id(page: str, name: str) -> Identity:
    """Id of the store that holds a figure without its colours of light or dark; what a page's callbacks fill."""
    return {"kind": "spec", "page": page, "name": name}


def area_id(page: str, name: str) -> Identity:
    """Id of a place that a page's callbacks fill with components."""
    return {"kind": "area", "page": page, "name": name}


def spec(figure: go.Figure | None) -> dict[str, Any] | None:
    """What a figure's store holds; None draws nothing."""
    if figure is None:
        return None
    plain = figure.to_plotly_json()
    layout = dict(plain["layout"])
    layout.pop("template", None)
    return {"data": plain["data"], "layout": layout}


def figure_card(page: str, name: str, height: int, label: str) -> Component:
    """The place of one figure of ``height`` pixels, with its downloads; ``label`` is for screen readers."""
    buttons = [
        dmc.Button(
            kind.upper(),
            id={"kind": f"export-{kind}", "page": page, "name": name},
            size="compact-xs",
            variant="subtle",
            color="gray",
        )
        for kind in EXPORTS
    ]
    graph = dcc.Graph(
        id={"kind": "graph", "page": page, "name": name},
        config=GRAPH_CONFIG,
        responsive=True,
        style={"height": f"{height}px"},
        figure={"data": [], "layout": {}},
    )
    aria: Any = {"aria-label": label}
    return dmc.Paper(
        [
            dcc.Store(id=spec_id(page, name)),
            dcc.Download(id={"kind": "download", "page": page, "name": name}),
            html.Div(graph, role="img", **aria),
            dmc.Group([dmc.Text("Save as", size="xs", c="dimmed"), *buttons], gap=2, justify="flex-end"),
        ],
        id={"kind": "card", "page": page, "name": name},
        withBorder=True,
        radius="md",
        p="xs",
        className="figure-card",
    )


def select(
    page: str,
    name: str,
    label: str,
    options: Sequence[str] | Sequence[dict[str, Any]],
    value: str | None,
    **more: Any,
) -> Component:
    """A choice from a list; long lists can be searched."""
    return html.Div(
        dmc.Select(
            id=state_id(page, name),
            label=label,
            data=list(options),
            value=value,
            searchable=len(options) > 8,
            allowDeselect=False,
            size="sm",
            maxDropdownHeight=320,
            **more,
        ),
        id=control_id(page, name),
    )


def slider(
    page: str, name: str, label: str, steps: Sequence[float], value: float, unit: str = "", live: bool = True
) -> Component:
    """A slider over the values of ``steps``: its own value is the place in them, the address holds the value.

    Args:
        live: answer while the knob moves, not only when it is let go.
    """
    place = min(range(len(steps)), key=lambda index: abs(steps[index] - value))
    shown = sorted({0, len(steps) // 2, len(steps) - 1})
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Text(label, size="sm", fw=500),
                    html.Span(
                        with_unit(steps[place], unit), title=unit, id=value_id(page, name), className="slider-value"
                    ),
                ],
                justify="space-between",
            ),
            dmc.Slider(
                id=state_id(page, name),
                min=0,
                max=len(steps) - 1,
                step=1,
                value=place,
                updatemode="drag" if live else "mouseup",
                marks=[{"value": index, "label": short(steps[index])} for index in shown],
                label=None,
                size="md",
                mb="lg",
                px="lg",
                thumbLabel=label,
            ),
        ],
        id=control_id(page, name),
    )


def counted(count: int, noun: str) -> str:
    """``1 chip``, ``2 chips``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(value: float) -> str:
    """A number on a slider: 131072 is ``128k``."""
    return f"{value / 1024:g}k" if value >= 1024 and value % 1024 == 0 else f"{value:g}"


def with_unit(value: float, unit: str) -> str:
    """The value of a slider in words."""
    return f"{short(value)} {unit}".strip()


def at(steps: Sequence[float], place: Any) -> float:
    """The value at a slider's place; the nearest end for a place that is none."""
    index = int(place) if isinstance(place, int | float) else 0
    return steps[min(max(index, 0), len(steps) - 1)]


def message(text: str) -> Component:
    """One sentence about what is wrong."""
    return dmc.Alert(text, color="red", variant="light", radius="md", className="message", title=None)


def remark(text: str) -> Component:
    """One sentence in passing."""
    return dmc.Alert(text, color="gray", variant="light", radius="md", className="remark")


def rests_on(basis: str | None, notes: Iterable[str] = ()) -> Component:
    """What the numbers of a page rest on; None where nothing was computed."""
    from dashboards.figures.theme import BASIS_WORDS

    lines = [dmc.Text(note, size="xs", c="dimmed") for note in dict.fromkeys(notes)]
    words = "" if basis is None else BASIS_WORDS.get(basis, "")
    told = f"These numbers rest on: {words}." if words else "What numbers rest on stands here when there are any."
    head = [
        dmc.Badge(
            f"basis: {basis or 'nothing yet'}", variant="light", color="teal" if basis == "calibrated" else "gray"
        ),
        dmc.Text(told if words or basis is None else "", size="sm", c="dimmed"),
    ]
    return dmc.Stack([dmc.Group(head, gap="xs"), *lines], gap=4, className="basis")


def tiles(rows: Iterable[tuple[str, str, str, str]]) -> Component:
    """Numbers that matter: (label, value, unit, detail)."""
    return dmc.SimpleGrid(
        [
            dmc.Paper(
                [
                    dmc.Text(label, size="xs", c="dimmed"),
                    dmc.Text([value, html.Small(f" {unit}" if unit else "")], className="tile-value"),
                    dmc.Text(detail, size="xs", c="dimmed"),
                ],
                withBorder=True,
                radius="md",
                p="xs",
                className="tile",
            )
            for label, value, unit, detail in rows
        ],
        cols={"base": 2, "sm": 3, "xl": 6},
        spacing="sm",
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1) -> Component:
    """A table that scrolls sideways where it must; columns from ``numbers_from`` are right-aligned.

    Without any text in ``columns`` it has no head.
    """

    def aligned(index: int) -> dict[str, str]:
        return {"textAlign": "right" if index >= numbers_from else "left"}

    names = [dmc.TableTh(column, style=aligned(i)) for i, column in enumerate(columns)]
    head = [dmc.TableThead(dmc.TableTr(names))] if any(columns) else []
    body = [dmc.TableTr([dmc.TableTd(cell, style=aligned(i)) for i, cell in enumerate(row)]) for row in rows]
    return dmc.TableScrollContainer(
        dmc.Table([*head, dmc.TableTbody(body)], highlightOnHover=True, fz="sm", className="plain"),
        minWidth=320,
        type="native",
    )


def card(title: str, *content: Component, **more: Any) -> Component:
    """A titled box."""
    heading = [dmc.Text(title, fw=600)] if title else []
    return dmc.Paper(dmc.Stack([*heading, *content], gap="sm"), withBorder=True, radius="md", p="md", **more)


def page_frame(title: str, says: str, *content: Component) -> Component:
    """A page: its name, what it answers in one sentence, and its content."""
    head = [dmc.Title(title, order=2), dmc.Text(says, c="dimmed")]
    return dmc.Stack([html.Div(head), *content], gap="md", className="page")


def with_controls(controls: Sequence[Component], content: Sequence[Component]) -> Component:
    """Controls beside the content; above it on a narrow screen."""
    return dmc.Grid(
        [
            dmc.GridCol(card("", *controls, className="controls"), span={"base": 12, "md": 3}),
            dmc.GridCol(dmc.Stack(list(content), gap="md"), span={"base": 12, "md": 9}),
        ],
        gutter="md",
    )


def columns(*content: Component) -> Component:
    """Boxes beside each other; below each other on a narrow screen."""
    return dmc.SimpleGrid(list(content), cols={"base": 1, "lg": 2}, spacing="md")
