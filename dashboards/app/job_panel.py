"""Panel of a page's background run: progress, a cancel button, and error messages."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import MATCH, Dash, Input, Output, State, dcc, no_update

from dashboards.app.jobs import FINISHED, FIRST, Jobs
from dashboards.app.parts import area, message
from dashboards.app.served import SESSION
from forerun.document import Json

POLL_MS = 400


def job_id(page: str, part: str) -> dict[str, str]:
    """Id of a part of a page's panel: ``token`` (id of the run), ``done`` (label and state of the run) ..."""
    return {"kind": f"job-{part}", "page": page}


def job_part(done: object, name: str) -> str | None:
    """``label`` or ``state`` of a run, from the untrusted ``done`` store of its page; None if it is not a text."""
    value = done.get(name) if isinstance(done, dict) else None
    return value if isinstance(value, str) else None


def job_panel(page: str) -> object:
    """Progress bar, progress text, cancel button and error message; hidden until a run is started."""
    named: Any = {"aria-label": "Progress of the run"}
    return dmc.Box(
        [
            dcc.Store(id=job_id(page, "token")),
            dcc.Store(id=job_id(page, "done")),
            dcc.Interval(id=job_id(page, "poll"), interval=POLL_MS, disabled=True),
            area("started")(page),
            dmc.Group(
                [
                    dmc.Progress(id=job_id(page, "bar"), value=0, animated=True, style={"flex": 1}, size="lg", **named),
                    dmc.Text("", id=job_id(page, "text"), size="sm", miw=150),
                    dmc.Button("Cancel", id=job_id(page, "cancel"), size="compact-sm", variant="default"),
                ],
                id=job_id(page, "panel"),
                style={"display": "none"},
            ),
            dmc.Box(id=job_id(page, "message"), **{"aria-live": "polite"}),
        ],
        className="job",
    )


def register_panels(app: Dash, jobs: Jobs) -> None:
    """Add the callbacks of all panels."""

    def follow(_ticks: int | None, token: str | None, shown: dict[str, str] | None) -> tuple[object, ...]:
        hidden = {"display": "none"}
        view = jobs.look(token) if token else None
        if view is None:
            return 0, "", hidden, True, no_update, None
        state = FIRST if view.state == "running" and view.answered else view.state
        done: object = {
            "state": state,
            "label": f"{SESSION}/{view.folder.name}" if state in (FIRST, FINISHED) else None,
        }
        done = done if done != shown else no_update
        if view.state == "running":
            share = 100.0 * view.done / view.total if view.total else 0.0
            words = f"{view.done:,} of {view.total:,}" if view.total else "starting"
            return share, words, {"display": "flex"}, False, done, None
        jobs.warm()
        if view.state == FINISHED:
            return 100, "done", hidden, True, done, None
        text = dmc.Text("Cancelled.", size="sm", className="muted")
        return 0, view.state, hidden, True, done, text if view.state == "cancelled" else message(view.message)

    def cancel(clicks: int | None, token: str | None) -> object:
        if clicks and token:
            jobs.cancel(token)
        return no_update

    def part(name: str) -> Json:
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
