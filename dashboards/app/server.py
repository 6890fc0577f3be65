"""The app and its server: local by default, one process, nothing from the network, a session for each browser."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import plotly.io
from dash import Dash
from flask import Response, abort, redirect, request, session

from dashboards.app import shell
from dashboards.app.job_panel import register_panels
from dashboards.app.page import Context
from dashboards.app.pages import PAGES
from dashboards.app.served import ServedFolders
from dashboards.app.uploads import LARGEST_MESSAGE_BYTES
from dashboards.page import asset
from forerun.errors import ForerunError
from simulator.running.metrics.files import scratch_folder

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
}
POLICY = (
    "default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
"""Content security policy: only the app's scripts run; the component library and Plotly need inline styles."""
ADMITTED = "admitted"
SHARED = {"shared.js": "text/javascript", "shared.css": "text/css"}
"""Script and style sheet shared with reports, with their media types."""
INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""


def create_app(
    folders: Sequence[Path],
    place: Path,
    hosts: Sequence[str] = LOCAL_NAMES,
    token: str | None = None,
    measured: Sequence[Path] = (),
) -> tuple[Dash, Context]:
    """Create the app for some folders of runs and traces.

    Args:
        folders: folders to serve, read-only.
        place: an empty folder for the runs that the app simulates, with one subfolder per session.
        hosts: host names that the app answers to; other names are refused against DNS rebinding by foreign pages.
            Empty: any.
        token: access token required in the first URL that a browser opens (``/?token=...``); None = no token.
        measured: benchmark results that the what-if page starts with.

    Returns:
        The app, and the context shared by its pages; the caller must close ``context.jobs``.

    Raises:
        ForerunError: a folder does not exist.
    """
    _load_before_threads()
    context = Context(ServedFolders.of(folders, place, measured))
    app = Dash(
        "forerun",
        title="Forerun",
        update_title="",
        index_string=INDEX,
        serve_locally=True,
        suppress_callback_exceptions=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        add_log_handler=False,
        external_scripts=["/shared.js"],
        external_stylesheets=["/shared.css"],
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.layout = shell.app_frame(PAGES)
    shell.register(app, PAGES, context)
    register_panels(app, context.jobs)
    for page in PAGES:
        page.register(app, context)
    policy = POLICY.format(scripts=" ".join(app.csp_hashes()))
    server = app.server
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_MESSAGE_BYTES
    server.config["SESSION_COOKIE_SAMESITE"] = "Strict"
    for name, kind in SHARED.items():
        server.add_url_rule(f"/{name}", name, partial(_shared_file, name, kind))
    server.secret_key = secrets.token_bytes(32)
    server.before_request(lambda: _refuse_foreign(hosts))
    if token is not None:
        server.before_request(lambda: _admit(token))
    server.before_request(context.begin_session)

    def secured(response: Any) -> object:
        for name, value in (*SECURITY.items(), ("Content-Security-Policy", policy)):
            response.headers.setdefault(name, value)
        return response

    server.after_request(secured)
    return app, context


def _shared_file(name: str, kind: str) -> Response:
    return Response(asset(name), mimetype=kind)


def serve_dashboard(
    folders: Sequence[Path], host: str, port: int, with_token: bool = False, measured: Sequence[Path] = ()
) -> None:
    """Serve the app until Ctrl-C.

    Args:
        folders: folders to serve, read-only.
        host: address to serve on.
        port: port to serve on; 0 picks a free port.
        with_token: require a token, part of the printed URL; always required if other machines can reach ``host``.
        measured: benchmark results that the what-if page starts with.

    Raises:
        ForerunError: a folder does not exist, or the address cannot be used.
    """
    from werkzeug.serving import make_server

    check_free(host, port)
    plotly.io.templates.default = None  # figures have a template of their own; each would copy this one first
    local = is_loopback(host)
    token = secrets.token_urlsafe(18) if with_token or not local else None
    with ExitStack() as stack:
        place = stack.enter_context(scratch_folder())
        app, context = create_app(folders, place, (*LOCAL_NAMES, host) if local else (), token, measured)
        stack.callback(context.jobs.close)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server(host, port, app.server, threaded=True)
        with_brackets = f"[{host}]" if ":" in host else host
        query = f"?token={token}" if token else ""
        print(f"Serving http://{with_brackets}:{server.server_port}/{query} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        finally:
            server.server_close()


def check_free(host: str, port: int) -> None:
    """Raise an error if the address is in use or not available."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        raise ForerunError(f"--host {host} --port {port}: cannot be served ({error.strerror or error})") from None


def is_loopback(host: str) -> bool:
    """True if only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _load_before_threads() -> None:
    """Import pandas and pyarrow before threads start: Plotly would use a half-imported pandas of another thread.

    pandas is not a dependency of this package; pyarrow imports it if it is installed.
    """
    for name in ("pyarrow.parquet", "pandas"):
        with suppress(ImportError):
            import_module(name)


def _refuse_foreign(hosts: Sequence[str]) -> None:
    """Refuse requests for other host names than ``hosts``, and requests from pages of other sites."""
    try:
        hostname = urlsplit(f"//{request.host}").hostname
        origin = request.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != request.host
    except ValueError:  # brackets that hold no address
        abort(403)
    if foreign or (hosts and hostname not in hosts):
        abort(403)


def _admit(token: str) -> object:
    """Admit and remember a browser that sends the token; other browsers get a page that explains where the token is."""
    token_sent = request.args.get("token")
    if token_sent is not None and hmac.compare_digest(token_sent.encode(), token.encode()):
        session[ADMITTED] = True
        return redirect(request.path)
    if session.get(ADMITTED) is True:
        return None
    words = "Open the address with its token that forerun dash printed in its terminal.\n"
    return Response(words, 403, mimetype="text/plain")
