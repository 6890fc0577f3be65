"""A view: what a page computes from its controls, with errors shown as one sentence instead of figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import Dash, Input, Output, html
from dash.exceptions import PreventUpdate

from dashboards.app.choices import checked
from dashboards.app.messages import sentence
from dashboards.app.parts import area_id, message, spec, spec_id, state_id

Values = dict[str, Any]
Shown = tuple[Mapping[str, Any], Mapping[str, go.Figure | None]]
"""Components by area, and figures by name; what is left out stays empty."""
MESSAGE = "message"


def register_view(
    app: Dash,
    page: str,
    controls: Sequence[str],
    areas: Sequence[str],
    figures: Sequence[str],
    compute: Callable[[Values], Shown],
    others: Mapping[str, Input] | None = None,
    tells: Sequence[str] = (),
    message_at: str | None = MESSAGE,
) -> None:
    """Recompute areas and figures of ``page`` whenever one of its ``controls`` or ``others`` changes.

    Args:
        controls: names of controls made with ``parts.select`` and its like; their values reach ``compute`` by name.
        areas: places made with ``area``.
        figures: places made with ``parts.figure_card``.
        others: further inputs by the name under which ``compute`` sees them.
        tells: stores of the page that get what ``compute`` gives for their names, for views that follow this one.
        message_at: area that says what is wrong; None leaves it to another view.
    """
    named = dict(others or {})
    outputs = [] if message_at is None else [Output(area_id(page, message_at), "children")]
    outputs += [Output(area_id(page, name), "children") for name in areas]
    outputs += [Output(told_id(page, name), "data") for name in tells]
    outputs += [Output(spec_id(page, name), "data") for name in figures]
    inputs = [Input(state_id(page, name), "value") for name in controls]
    names = (*controls, *named)

    def answer(*values: Any) -> list[Any]:
        try:
            given = dict(zip(names, values, strict=True))
            checked(given)
            shown, drawn = compute(given)
        except PreventUpdate:
            raise
        except Exception as error:
            said = [] if message_at is None else [message(sentence(error))]
            return [*said, *[None] * (len(areas) + len(tells) + len(figures))]
        nothing: list[Any] = [] if message_at is None else [None]
        return [*nothing, *(shown.get(name) for name in (*areas, *tells)), *(spec(drawn.get(name)) for name in figures)]

    app.callback(outputs, [*inputs, *named.values()])(answer)


def told_id(page: str, name: str) -> dict[str, str]:
    """Id of a store by which one view starts another."""
    return {"kind": "told", "page": page, "name": name}


def area(page: str, name: str) -> Any:
    """A place that a view fills."""
    return html.Div(id=area_id(page, name), className="area")


def message_area(page: str, name: str = MESSAGE) -> Any:
    """Where a view says what is wrong."""
    return dmc.Box(id=area_id(page, name), className="area", **{"aria-live": "polite"})
