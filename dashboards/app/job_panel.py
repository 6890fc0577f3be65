"""Progress and cancelling of one background run on a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import MATCH, Dash, Input, Output, State, dcc, no_update

from dashboards.app import choices
from dashboards.app.context import Context
from dashboards.app.jobs import Task
from dashboards.app.messages import sentence
from dashboards.app.parts import Component, area_id, message, state_id
from dashboards.app.served import SESSION
from dashboards.app.views import Values

Asked = tuple[Task, str]
"""A task to run in the background, and its name."""

POLL_MS = 400


def job_id(page: str, part: str) -> dict[str, str]:
    """Id of a part of a page's panel: ``token`` (the run under way), ``done`` (label of the finished run) ..."""
    return {"kind": f"job-{part}", "page": page}


def job_panel(page: str) -> Component:
    """Bar, words and cancel button; hidden while nothing has been started."""
    return dmc.Box(
        [
            dcc.Store(id=job_id(page, "token")),
            dcc.Store(id=job_id(page, "done")),
            dcc.Interval(id=job_id(page, "poll"), interval=POLL_MS, disabled=True),
            dmc.Group(
                [
                    dmc.Progress(id=job_id(page, "bar"), value=0, animated=True, style={"flex": 1}, size="lg"),
                    dmc.Text("", id=job_id(page, "text"), size="sm", miw=150),
                    dmc.Button("Cancel", id=job_id(page, "cancel"), size="compact-sm", variant="default"),
                ],
                id=job_id(page, "panel"),
                style={"display": "none"},
            ),
            dmc.Box(id=job_id(page, "message"), **{"aria-live": "polite"}),
        ]
    )


def register_start(
    app: Dash, context: Context, page: str, button: str, controls: Sequence[str], make: Callable[[Values], Asked]
) -> None:
    """Let a page's button start a background run; what its values have wrong is said beside it.

    Args:
        app: the app.
        context: starts the runs.
        page: name of the page.
        button: kind of its button.
        controls: names whose values are asked for.
        make: the task that these values, by name, ask for, and what to call it.
    """

    def begin(clicks: int | None, *values: Any) -> tuple[Any, Any]:
        if not clicks:
            return no_update, no_update
        try:
            given = dict(zip(controls, values, strict=True))
            choices.checked(given)
            return None, context.jobs.start(*make(given))
        except Exception as error:
            return message(sentence(error)), no_update

    app.callback(
        Output(area_id(page, "started"), "children"),
        Output(job_id(page, "token"), "data"),
        Input({"kind": button, "page": page}, "n_clicks"),
        *(State(state_id(page, name), "value") for name in controls),
        prevent_initial_call=True,
    )(begin)


def register_finished(app: Dash, page: str, field: str, known: Callable[[], Iterable[str]]) -> None:
    """Let a page's list choose what a background run left, once it is among those known.

    Args:
        app: the app.
        page: name of the page.
        field: name of the list.
        known: the labels there are.
    """

    def show(label: str | None) -> tuple[Any, Any]:
        labels = list(known())
        return (labels, label) if label in labels else (no_update, no_update)

    app.callback(
        Output(state_id(page, field), "data"),
        Output(state_id(page, field), "value"),
        Input(job_id(page, "done"), "data"),
        prevent_initial_call=True,
    )(show)


def register(app: Dash, context: Context) -> None:
    """Add the callbacks of all panels."""

    def follow(_ticks: int | None, token: str | None, shown: str | None) -> tuple[Any, ...]:
        view = context.jobs.look(token) if token else None
        if view is None:
            return 0, "", {"display": "none"}, True, no_update, None
        if view.state == "running":
            share = 100.0 * view.done / view.total if view.total else 0.0
            words = f"{view.done:,} of {view.total:,}" if view.total else "starting"
            return share, words, {"display": "flex"}, False, no_update, None
        done = f"{SESSION}/{view.folder.name}" if view.state == "finished" else None
        hidden = {"display": "none"}
        if view.state == "finished":
            return 100, "done", hidden, True, done if done != shown else no_update, None
        said = dmc.Text("Cancelled.", size="sm", c="dimmed") if view.state == "cancelled" else message(view.message)
        return 0, view.state, hidden, True, no_update, said

    def cancel(clicks: int | None, token: str | None) -> Any:
        if clicks and token:
            context.jobs.cancel(token)
        return no_update

    def part(name: str) -> dict[str, Any]:
        return {"kind": f"job-{name}", "page": MATCH}

    app.callback(
        Output(part("bar"), "value"),
        Output(part("text"), "children"),
        Output(part("panel"), "style"),
        Output(part("poll"), "disabled"),
        Output(part("done"), "data"),
        Output(part("message"), "children"),
        Input(part("poll"), "n_intervals"),
        Input(part("token"), "data"),
        State(part("done"), "data"),
        prevent_initial_call=True,
    )(follow)
    app.callback(
        Output(part("cancel"), "n_clicks"),
        Input(part("cancel"), "n_clicks"),
        State(part("token"), "data"),
        prevent_initial_call=True,
    )(cancel)
