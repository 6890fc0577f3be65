"""Pages, and the callbacks of their views and background runs: from control values to areas and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, NamedTuple

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate
from flask import has_request_context, session

from dashboards.app import parts
from dashboards.app.controls import (
    ChoiceField,
    Component,
    Control,
    Values,
    checked_fields,
    control_id,
    state_id,
    values_of,
)
from dashboards.app.job_panel import job_id, job_part
from dashboards.app.jobs import Jobs, Task
from dashboards.app.messages import sentence
from dashboards.app.served import ServedFolders

Shown = Mapping[str, Any]
"""Result of a view: components by area, figures and stored data by name; missing names are shown empty."""
LOCAL = "local"
"""Name of the session of code that runs outside any request."""


class Context:
    """State shared by all pages: the served folders, and the background runs of each session."""

    def __init__(self, served: ServedFolders) -> None:
        self._served = served
        self.jobs = Jobs()

    @property
    def served(self) -> ServedFolders:
        """Folders that the session of this request may read: the served folders and the session's own runs."""
        return self._served.of_session(session[LOCAL] if has_request_context() else LOCAL)

    @staticmethod
    def begin_session() -> None:
        """Create a session in a signed cookie for a browser without a session."""
        session.setdefault(LOCAL, token_hex(8))


class View(NamedTuple):
    """Areas and figures that are recomputed whenever one of the given controls changes."""

    compute: Callable[[Context, Values], Shown]
    controls: Sequence[str] = ()
    areas: Sequence[str] = ()
    figures: Sequence[str] = ()
    others: Mapping[str, Input] = {}
    """Further Dash inputs, by their keys in the values that ``compute`` gets."""
    tells: Sequence[str] = ()
    """Names of the page's stores that get results of ``compute``, as inputs of further views."""
    message_at: str | None = parts.MESSAGE
    """Area that shows error messages; None = another view shows them."""


class Start(NamedTuple):
    """A button that starts a background run from the values of some controls."""

    button: str
    """Value of ``kind`` in the id of the button."""
    controls: Sequence[str]
    make: Callable[[Context, Values], tuple[Task, str]]
    """Function that returns the task and a name for its run."""
    field: str | None = None
    """Name of the choice control in which the finished run is selected."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the app."""

    path: str
    """Path in the URL, without the slash; also the ``page`` in the ids of the page's components."""
    name: str
    """Label of the page in the menu."""
    says: str
    controls: Sequence[Control | Component | parts.Part]
    """Controls in the side column, in order; other components are shown unchanged."""
    content: Sequence[Control | Component | parts.Part]
    views: Sequence[View] = ()
    starts: Sequence[Start] = ()
    more: Callable[[Dash, Context], None] | None = None
    """Function that registers additional callbacks; None without any."""
    title: str = ""
    """Heading of the page; empty = the name."""
    folded: Sequence[Control] = ()
    """Further controls in a collapsed section below ``controls``."""

    @property
    def fields(self) -> dict[str, Control]:
        """Controls of the page by name, folded ones and those in the content included."""
        shown = (*self.controls, *self.folded, *self.content)
        return {control.name: control for control in shown if isinstance(control, Control)}

    def layout(self, search: str | None, context: Context) -> Component:
        """Layout of the page, with the values of controls from a URL's query string."""
        served = context.served
        values, changed = values_of(list(self.fields.values()), search, served)

        def shown(part: object) -> Component:
            if isinstance(part, Control):
                return part.place(self.path, values[part.name], served)
            return part(self.path) if callable(part) else part

        content = [parts.warning_area(changed), *map(shown, (parts.message_area(), *self.content))]
        if self.controls:
            beside = list(map(shown, self.controls))
            if self.folded:
                beside.append(parts.fold("More parameters", list(map(shown, self.folded))))
            content = [parts.with_controls(beside, content)]
        return parts.page_frame(self.title or self.name, self.says, *content)

    def register(self, app: Dash, context: Context) -> None:
        """Add the page's callbacks to ``app``."""
        for view in self.views:
            _register_view(app, context, self, view)
        for start in self.starts:
            _register_start(app, context, self, start)
        for control in self.fields.values():
            if control.when is not None:
                show_while(app, self.path, control.name, *control.when)
        if self.more is not None:
            self.more(app, context)


def in_browser(app: Dash, name: str, *arguments: Input | Output | State, on_opening: bool = True) -> None:
    """Add the callback ``name`` of ``assets/forerun.js``; if ``on_opening``, it is also called when the page opens."""
    call: Any = app.clientside_callback
    call(ClientsideFunction("forerun", name), *arguments, prevent_initial_call=not on_opening)


def show_while(app: Dash, page: str, name: str, other: str, wanted: Callable[[object], bool]) -> None:
    """Show a control only while the value of the control ``other`` passes the test ``wanted``."""
    app.callback(Output(control_id(page, name), "style"), Input(state_id(page, other), "value"))(
        lambda value: {} if wanted(value) else {"display": "none"}
    )


def _register_view(app: Dash, context: Context, page: Page, view: View) -> None:
    at = [] if view.message_at is None else [Output(parts.area_id(page.path, view.message_at), "children")]
    outputs = [
        *at,
        *(Output(parts.area_id(page.path, name), "children") for name in view.areas),
        *(Output(parts.output_id(page.path, name), "data") for name in view.tells),
        *(Output(parts.spec_id(page.path, name), "data") for name in view.figures),
    ]
    inputs = [Input(state_id(page.path, name), "value") for name in view.controls]
    names, fields = (*view.controls, *view.others), page.fields

    def answer(*values: object) -> list[object]:
        try:
            by_name = dict(zip(names, values, strict=True))
            shown = view.compute(context, checked_fields(fields, by_name, context.served))
        except PreventUpdate:
            raise
        except Exception as error:
            return [*(parts.message(sentence(error)) for _ in at), *[None] * (len(outputs) - len(at))]
        filled = (shown.get(name) for name in (*view.areas, *view.tells))
        return [*(None for _ in at), *filled, *(parts.spec(shown.get(name)) for name in view.figures)]

    app.callback(outputs, [*inputs, *view.others.values()])(answer)


def _register_start(app: Dash, context: Context, page: Page, start: Start) -> None:
    fields = page.fields

    def begin(clicks: int | None, *values: object) -> tuple[object, object]:
        if not clicks:
            return no_update, no_update
        try:
            served = context.served
            checked = checked_fields(fields, dict(zip(start.controls, values, strict=True)), served)
            return None, context.jobs.start(*start.make(context, checked), served.session)
        except Exception as error:
            return parts.message(sentence(error)), no_update

    app.callback(
        Output(parts.area_id(page.path, "started"), "children"),
        Output(job_id(page.path, "token"), "data"),
        Input({"kind": start.button, "page": page.path}, "n_clicks"),
        *(State(state_id(page.path, name), "value") for name in start.controls),
        prevent_initial_call=True,
    )(begin)
    if start.field is None:
        return
    choice = fields[start.field]
    assert isinstance(choice, ChoiceField)

    def show(done: dict[str, str | None] | None) -> tuple[object, object]:
        label = job_part(done, "label")
        labels = choice.offered(context.served)
        return (labels, label) if label in labels else (no_update, no_update)

    app.callback(
        Output(state_id(page.path, start.field), "data"),
        Output(state_id(page.path, start.field), "value"),
        Input(job_id(page.path, "done"), "data"),
        prevent_initial_call=True,
    )(show)
