"""The app and its server: local by default, one process, nothing from the network."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dash import Dash
from flask import abort, request

from dashboards.app import job_panel, shell
from dashboards.app.context import Context, Page
from dashboards.app.jobs import Jobs
from dashboards.app.pages import pages
from dashboards.app.served import Served
from simulator.errors import ForerunError

LARGEST_MESSAGE_BYTES = 24 * 2**20
"""Of what a browser may send: figures come back to be saved."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
}


def create_app(folders: Sequence[Path], session: Path, hosts: Sequence[str] = LOCAL_NAMES) -> tuple[Dash, Context]:
    """The app over some folders of runs and traces.

    Args:
        folders: served, read-only.
        session: an empty folder for runs that the app makes.
        hosts: names under which the app may be asked; others are refused, so that no foreign page can reach it by
            pointing its own name here. Empty: any.

    Returns:
        The app, and what its pages share; close ``context.jobs`` in the end.

    Raises:
        ForerunError: a folder that is not there.
    """
    _load_before_threads()
    context = Context(Served(folders, session), Jobs(session))
    shown: tuple[Page, ...] = pages()
    app = Dash(
        "forerun",
        title="Forerun",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        assets_folder=str(Path(__file__).parent / "assets"),
        add_log_handler=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.layout = shell.frame(shown)
    shell.register(app, shown, context)
    job_panel.register(app, context)
    for page in shown:
        page.register(app, context)
    server = app.server
    server.config["MAX_CONTENT_LENGTH"] = LARGEST_MESSAGE_BYTES
    server.secret_key = secrets.token_bytes(32)
    server.before_request(lambda: _refuse_foreign(hosts))
    server.after_request(_secured)
    return app, context


def serve(folders: Sequence[Path], host: str, port: int) -> None:
    """Serve the app until Ctrl-C.

    Raises:
        ForerunError: a folder that is not there, or an address that cannot be used.
    """
    from werkzeug.serving import make_server

    check_free(host, port)
    with ExitStack() as stack:
        session = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forerun-")))
        app, context = create_app(folders, session, () if not is_loopback(host) else LOCAL_NAMES)
        stack.callback(context.jobs.close)
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = make_server(host, port, app.server, threaded=True)
        with_brackets = f"[{host}]" if ":" in host else host
        print(f"Serving http://{with_brackets}:{server.server_port}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        finally:
            server.server_close()


def check_free(host: str, port: int) -> None:
    """See that the address can be served.

    Raises:
        ForerunError: it cannot, and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
    except OSError as error:
        raise ForerunError(f"--host {host} --port {port}: cannot be served ({error.strerror or error})") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _load_before_threads() -> None:
    """Import what requests would else import while others use it: Plotly takes a half-imported pandas for a whole one.

    pandas is no part of this package; pyarrow imports it where it is installed.
    """
    for name in ("pyarrow.parquet", "pandas"):
        with suppress(ImportError):
            import_module(name)


def _refuse_foreign(hosts: Sequence[str]) -> None:
    """Refuse requests for another name than ours, and changes asked for by other sites' pages."""
    asked = urlsplit(f"//{request.host}").hostname
    if hosts and asked not in hosts:
        abort(403)
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        abort(403)


def _secured(response: Any) -> Any:
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)
    return response
