"""Frame of every page: menu, light and dark theme, URL, drawing and saving figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.dependencies import ALL

from dashboards.app.controls import Number, slider_id, state_id
from dashboards.app.downloads import figure_csv, figure_html, figure_title
from dashboards.app.page import Context, Page, in_browser
from dashboards.app.parts import UPLOADED, page_frame
from dashboards.app.uploads import LARGEST_MESSAGE_BYTES
from dashboards.theme import FONT, dark_template, light_template
from forerun.document import Json

SHARE = "Copy the address, which restores this view with all its choices"


def _schemes() -> object:
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


def app_frame(pages: Sequence[Page]) -> object:
    """Layout of the whole app; the current page is inserted into the element ``page``."""
    links = [
        dmc.NavLink(label=page.name, href=f"/{page.path}", active="exact", id={"kind": "link", "path": page.path})
        for page in pages
    ]
    hint: Any = {"root": {"title": SHARE}}
    share = dmc.Button("Copy link", id="share", size="compact-sm", variant="default", visibleFrom="xs", attributes=hint)
    menu = dmc.Burger(id="burger", opened=False, size="sm", hiddenFrom="sm", **{"aria-label": "menu"})
    left = dmc.Group([menu, dcc.Link("Forerun", href="/", className="brand")], gap="sm")
    right = dmc.Group([share, _schemes()], gap="xs", wrap="nowrap")
    header = dmc.Group([left, right], justify="space-between", h="100%", px="md", wrap="nowrap")
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
            dcc.Store(id="names", data={page.path: page.name for page in pages}),
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

    def show_page(path: str | None, search: str | None) -> object:
        wanted = (path or "").strip("/")
        page = next((page for page in pages if page.path == (wanted or pages[0].path)), None)
        if page is None:
            return page_frame("No such page", "The menu has all pages there are.")
        if page.starts:
            context.jobs.warm()
        return page.layout(search, context)

    app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))(show_page)
    app.callback(Output("shell", "navbar"), Input("burger", "opened"))(lambda opened: _navbar(opened))
    app.callback(Output("burger", "opened"), Input("url", "pathname"), prevent_initial_call=True)(lambda _path: False)
    schemes = (Output("scheme", "data"), Output("theme", "forceColorScheme"))
    in_browser(app, "scheme", *schemes, Input("scheme-choice", "value"))
    in_browser(app, "address", Output("address", "data"), Input(_any("state", ALL), "value"), on_opening=False)
    for page in pages:
        for name, control in page.fields.items():
            if isinstance(control, Number) and control.stops:  # the slider and the field follow each other
                field, slider = state_id(page.path, name), slider_id(page.path, name)
                both = [kind(part, "value") for kind in (Output, Input) for part in (field, slider)]
                in_browser(app, "pair", *both, State("stops", "data"))
    drawn = (Output(_any("graph"), "figure"), Output(_any("card"), "style"))
    in_browser(app, "draw", *drawn, Input(_any("spec"), "data"), Input("scheme", "data"), State("templates", "data"))
    of_page = {"kind": "upload", "page": MATCH}
    in_browser(
        app,
        "take",
        Output({"kind": "message", "page": MATCH, "name": UPLOADED}, "data"),
        Output({"kind": "area", "page": MATCH, "name": UPLOADED}, "children"),
        Input(of_page, "contents"),
        State(of_page, "filename"),
        State("largest", "data"),
        State({"kind": "message", "page": MATCH, "name": "most"}, "data"),
        on_opening=False,
    )
    in_browser(app, "heading", Output("names", "data"), Input("url", "pathname"), State("names", "data"))
    in_browser(app, "share", Output("share", "children"), Input("share", "n_clicks"), on_opening=False)
    clicks = [Input(_any(f"export-{kind}", ALL), "n_clicks") for kind in ("png", "svg")]
    in_browser(app, "picture", Output("picture", "data"), *clicks, on_opening=False)
    app.callback(
        Output(_any("download"), "data"),
        *(Input(_any(f"export-{kind}"), "n_clicks") for kind in ("csv", "html")),
        State(_any("spec"), "data"),
        prevent_initial_call=True,
    )(_download)


def _any(kind: str, which: object = MATCH) -> Json:
    """Pattern-matching id of the parts of one kind: ``MATCH`` for one part per call, ``ALL`` for all at once."""
    return {"kind": kind, "page": which, "name": which}


def _download(csv_clicks: int | None, html_clicks: int | None, spec: Json | None) -> object:
    if spec is None or not (csv_clicks or html_clicks):
        return no_update
    name = re.sub(r"[^a-z0-9]+", "-", figure_title(spec).lower()).strip("-") or "figure"
    kind, text = ("csv", figure_csv) if ctx.triggered_id["kind"] == "export-csv" else ("html", figure_html)
    return {"content": text(spec), "filename": f"{name}.{kind}", "type": f"text/{kind}", "base64": False}


def _navbar(opened: bool | None) -> Json:
    return {"width": 210, "breakpoint": "sm", "collapsed": {"mobile": not opened}}
