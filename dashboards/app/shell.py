"""The frame of every page: menu, light and dark, the address, drawing and saving figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.dependencies import ALL

from dashboards.app.controls import Number, slider_id, state_id
from dashboards.app.downloads import figure_csv, figure_html, figure_title
from dashboards.app.page import Context, Page
from dashboards.app.parts import UPLOADED, page_frame
from dashboards.app.uploads import LARGEST_MESSAGE_BYTES
from dashboards.theme import FONT, dark_template, light_template

PIN = "Keep the address of this view, to put another beside it"
SHOW_SIDE_BY_SIDE = "Show the pinned view and this one side by side"


def _schemes() -> Any:
    """The choice between light and dark."""
    return dmc.SegmentedControl(
        id="scheme-choice",
        data=[{"value": name, "label": name.capitalize()} for name in ("auto", "light", "dark")],
        **{"aria-label": "Colours"},
        value="auto",
        size="xs",
        transitionDuration=0,  # the words change with the page, not after it
        persistence="forerun",
        persistence_type="local",
    )


def app_frame(pages: Sequence[Page]) -> Any:
    """The layout of the whole app; a page goes into ``page``."""
    links = [
        dmc.NavLink(label=page.name, href=f"/{page.path}", active="exact", id={"kind": "link", "path": page.path})
        for page in pages
    ]
    pins = [
        dmc.Button("Pin view", id="pin", size="compact-sm", variant="default", attributes={"root": {"title": PIN}}),
        dmc.Button(
            "Beside pinned",
            id="put-beside",
            size="compact-sm",
            variant="default",
            attributes={"root": {"title": SHOW_SIDE_BY_SIDE}},
        ),
    ]
    header = dmc.Group(
        [
            dmc.Group(
                [
                    dmc.Burger(id="burger", opened=False, size="sm", hiddenFrom="sm", **{"aria-label": "menu"}),
                    dcc.Link("Forerun", href="/", className="brand"),
                ],
                gap="sm",
            ),
            dmc.Group([*pins, _schemes()], gap="xs", wrap="nowrap"),
        ],
        justify="space-between",
        h="100%",
        px="md",
        wrap="nowrap",
    )
    templates = {"light": light_template().to_plotly_json(), "dark": dark_template().to_plotly_json()}
    stops = {
        f"{page.path}/{name}": {"stops": list(control.stops), "unit": control.unit, "label": control.label}
        for page in pages
        for name, control in page.fields.items()
        if isinstance(control, Number) and control.stops
    }
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme", data="light"),
            dcc.Store(id="templates", data=templates),
            dcc.Store(id="stops", data=stops),
            dcc.Store(id="address"),
            dcc.Store(id="picture"),
            dcc.Store(id="largest", data=LARGEST_MESSAGE_BYTES),
            dcc.Store(id="pinned", storage_type="session"),
            dmc.AppShell(
                [
                    dmc.AppShellHeader(header),
                    dmc.AppShellNavbar(dmc.Stack(links, gap=2), p="sm", **{"aria-label": "Pages"}),
                    dmc.AppShellMain(html.Div(id="page")),
                ],
                id="shell",
                header={"height": 60},
                navbar=_navbar(opened=False),
                padding={"base": "xs", "sm": "md"},
                transitionDuration=0,  # a menu that slides away would have figures drawn anew in every width on the way
            ),
        ],
        id="theme",
        theme={
            "fontFamily": FONT,
            "primaryColor": "blue",
            "primaryShade": {"light": 8, "dark": 8},
            "headings": {"fontFamily": FONT},
        },
        defaultColorScheme="auto",
    )


def register(app: Dash, pages: Sequence[Page], context: Context) -> None:
    """Add the frame's callbacks to ``app``."""

    def show_page(path: str | None, search: str | None) -> Any:
        wanted = (path or "").strip("/")
        page = next((page for page in pages if page.path == (wanted or pages[0].path)), None)
        if page is None:
            return page_frame("No such page", "The menu has all pages there are.")
        return page.layout(search, context)

    in_browser: Any = app.clientside_callback
    app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))(show_page)
    app.callback(Output("shell", "navbar"), Input("burger", "opened"))(lambda opened: _navbar(opened))
    app.callback(Output("burger", "opened"), Input("url", "pathname"), prevent_initial_call=True)(lambda _path: False)
    in_browser(
        ClientsideFunction("forerun", "scheme"),
        Output("scheme", "data"),
        Output("theme", "forceColorScheme"),
        Input("scheme-choice", "value"),
    )
    in_browser(
        ClientsideFunction("forerun", "address"),
        Output("address", "data"),
        Input({"kind": "state", "page": ALL, "name": ALL}, "value"),
        prevent_initial_call=True,
    )
    _pair_sliders(app, pages)
    in_browser(
        ClientsideFunction("forerun", "draw"),
        Output({"kind": "graph", "page": MATCH, "name": MATCH}, "figure"),
        Output({"kind": "card", "page": MATCH, "name": MATCH}, "style"),
        Input({"kind": "spec", "page": MATCH, "name": MATCH}, "data"),
        Input("scheme", "data"),
        State("templates", "data"),
    )
    in_browser(
        ClientsideFunction("forerun", "take"),
        Output({"kind": "message", "page": MATCH, "name": UPLOADED}, "data"),
        Output({"kind": "area", "page": MATCH, "name": UPLOADED}, "children"),
        Input({"kind": "upload", "page": MATCH}, "contents"),
        State({"kind": "upload", "page": MATCH}, "filename"),
        State("largest", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        ClientsideFunction("forerun", "pin"),
        Output("pinned", "data"),
        Output("put-beside", "style"),
        Input("pin", "n_clicks"),
        State("pinned", "data"),
    )
    in_browser(
        ClientsideFunction("forerun", "beside"),
        Output("url", "href"),
        Input("put-beside", "n_clicks"),
        State("pinned", "data"),
        prevent_initial_call=True,
    )
    in_browser(
        ClientsideFunction("forerun", "picture"),
        Output("picture", "data"),
        Input({"kind": "export-png", "page": ALL, "name": ALL}, "n_clicks"),
        Input({"kind": "export-svg", "page": ALL, "name": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    app.callback(
        Output({"kind": "download", "page": MATCH, "name": MATCH}, "data"),
        Input({"kind": "export-csv", "page": MATCH, "name": MATCH}, "n_clicks"),
        Input({"kind": "export-html", "page": MATCH, "name": MATCH}, "n_clicks"),
        State({"kind": "spec", "page": MATCH, "name": MATCH}, "data"),
        prevent_initial_call=True,
    )(_download)


def _pair_sliders(app: Dash, pages: Sequence[Page]) -> None:
    """A number's slider and its field follow each other."""
    in_browser: Any = app.clientside_callback
    for page in pages:
        for name, control in page.fields.items():
            if isinstance(control, Number) and control.stops:
                field, slider = state_id(page.path, name), slider_id(page.path, name)
                in_browser(
                    ClientsideFunction("forerun", "pair"),
                    Output(field, "value"),
                    Output(slider, "value"),
                    Input(field, "value"),
                    Input(slider, "value"),
                    State("stops", "data"),
                )


def _download(csv_clicks: int | None, html_clicks: int | None, spec: dict[str, Any] | None) -> Any:
    if spec is None or not (csv_clicks or html_clicks):
        return no_update
    name = re.sub(r"[^a-z0-9]+", "-", figure_title(spec).lower()).strip("-") or "figure"
    if ctx.triggered_id["kind"] == "export-csv":
        return {"content": figure_csv(spec), "filename": f"{name}.csv", "type": "text/csv", "base64": False}
    return {"content": figure_html(spec), "filename": f"{name}.html", "type": "text/html", "base64": False}


def _navbar(opened: bool | None) -> dict[str, Any]:
    return {"width": 210, "breakpoint": "sm", "collapsed": {"mobile": not opened}}
