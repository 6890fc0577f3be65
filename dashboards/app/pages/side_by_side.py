"""Two views beside each other: any two addresses of the app, each still to be worked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html

from dashboards.app.controls import Component, Control, state_id
from dashboards.app.page import Context, Page, in_browser
from dashboards.app.parts import output_id, remark
from dashboards.app.served import ServedFolders
from forerun.errors import ForerunError, did_you_mean

NAME = "beside"
FRAMES = "frames"
LONGEST_ADDRESS = 2000


@dataclass(frozen=True, slots=True)
class Address(Control):
    """The address of another page, from its slash on."""

    paths: Sequence[str] = ()

    def default_in(self, served: ServedFolders) -> str:
        return ""

    def checked(self, value: Any, served: ServedFolders) -> str:
        parts = urlsplit(value) if isinstance(value, str) and len(value) <= LONGEST_ADDRESS else None
        if parts is None or (value and (parts.scheme or parts.netloc or parts.path.strip("/") not in self.paths)):
            word = str(value)[:80]
            hint = did_you_mean(word.strip("/").partition("?")[0], self.paths)
            raise ForerunError(f"{self.label}: '{word}' is no address of a page{hint}, for example /what-if?rate=4")
        return str(value)

    def widget(self, page: str, value: Any, served: ServedFolders) -> Component:
        return dmc.TextInput(
            id=state_id(page, self.name), label=self.label, placeholder="/what-if?rate=4", value=value, debounce=600
        )


def side_by_side_page(others: Sequence[Page]) -> Page:
    """The page that shows two views of ``others``."""
    fields = [Address(name, f"View {name.upper()}", paths=[other.path for other in others]) for name in "ab"]
    words = "Pin a view above, turn to another, and press Beside pinned; or paste two addresses of this app."
    views = [html.Iframe(title=one.label, name=one.name, className="view") for one in fields]
    content = [dcc.Store(id=output_id(NAME, FRAMES)), remark(words), html.Div(views, className="beside")]

    def more(app: Dash, _context: Context) -> None:
        shown = [Input(state_id(NAME, one.name), "value") for one in fields]
        in_browser(app, "frames", Output(output_id(NAME, FRAMES), "data"), *shown)

    return Page(NAME, "Side by side", "Two views of this app beside each other.", fields, content, more=more)
