"""Pages, and the wiring of their views and background runs: plain values in, areas and figures out."""

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
"""Components by area, figures and stored data by name; what is left out stays empty."""
LOCAL = "local"
"""The session of code outside any request."""


class Context:
    """State shared by all pages: the served folders, and the background runs of each session."""

    def __init__(self, served: ServedFolders) -> None:
        self._served = served
        self.jobs = Jobs()

    @property
    def served(self) -> ServedFolders:
        """Folders that the session of this request may read: the served ones, and its own runs."""
        return self._served.of_session(session[LOCAL] if has_request_context() else LOCAL)

    @staticmethod
    def begin_session() -> None:
        """Give a browser that has none a session of its own, in a signed cookie."""
        session.setdefault(LOCAL, token_hex(8))


class View(NamedTuple):
    """Areas and figures that are computed anew whenever one of some controls changes."""

    compute: Callable[[Context, Values], Shown]
    controls: Sequence[str] = ()
    areas: Sequence[str] = ()
    figures: Sequence[str] = ()
    others: Mapping[str, Input] = {}
    """Further inputs by the name under which ``compute`` sees them."""
    tells: Sequence[str] = ()
    """Stores of the page that get what ``compute`` gives for their names, for views that follow this one."""
    message_at: str | None = parts.MESSAGE
    """Area that says what is wrong; None leaves it to another view."""


class Start(NamedTuple):
    """A button that starts a background run from the values of some controls."""

    button: str
    """Kind of the button."""
    controls: Sequence[str]
    make: Callable[[Context, Values], tuple[Task, str]]
    """The task, and what to call it."""
    field: str | None = None
    """The choice that shows the run once it is done."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the app."""

    path: str
    """Path in the address, without the slash; also the prefix in the ids of its components."""
    name: str
    """Label of the page in the menu."""
    says: str
    controls: Sequence[Control | Component | parts.Part]
    """Beside the content, in order; what is no control is shown as it is."""
    content: Sequence[Component | parts.Part]
    views: Sequence[View] = ()
    starts: Sequence[Start] = ()
    more: Callable[[Dash, Context], None] | None = None
    """Function that registers additional callbacks; None without any."""
    title: str = ""
    """Heading; the name where it is empty."""
    folded: Sequence[Control] = ()
    """Controls below the others that a click unfolds."""

    @property
    def fields(self) -> dict[str, Control]:
        """Its controls by name, also those in the content."""
        return {control.name: control for control in (*self.controls, *self.folded) if isinstance(control, Control)}

    def layout(self, search: str | None, context: Context) -> Component:
        """Layout of the page, with the controls restored from an address."""
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
        """Add its callbacks to ``app``."""
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
    """Add the callback ``name`` of ``assets/forerun.js``; ``on_opening`` calls it as the page opens, too."""
    call: Any = app.clientside_callback
    call(ClientsideFunction("forerun", name), *arguments, prevent_initial_call=not on_opening)


def show_while(app: Dash, page: str, name: str, other: str, wanted: Callable[[object], bool]) -> None:
    """Show the place of a control only while another one has a wanted value."""
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
