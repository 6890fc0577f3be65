"""``forerun dash``: the dashboard in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Option, Typer

from simulator.cli.output import refuse_unused

PARTS = ("dash", "dash_mantine_components")
DEFAULT_FOLDER = Path("out")


def register(commands: Typer) -> None:
    commands.command("dash", epilog="Example: forerun dash out --port 8050")(dash)


def dash(
    line: Context,
    folders: Annotated[
        list[Path] | None,
        Argument(
            metavar="[DIR]...",
            help="Folders whose runs and kernel traces are shown, read-only; default: out, where there is one.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, Option(help="Address to serve on; other than this machine's own needs --expose.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, Option(min=0, max=65535, help="Port to serve on; 0 picks a free one.")] = 8050,
    expose: Annotated[
        bool, Option("--expose", help="Allow a --host that others can reach; the token lets them in.")
    ] = False,
    measured: Annotated[
        list[Path] | None,
        Option(metavar="RESULT", help="Benchmark result that the page What if starts with; repeatable, at most ten."),
    ] = None,
    token: Annotated[
        bool, Option("--token", help="Ask for a token, which the printed address has; --expose always does.")
    ] = False,
) -> None:
    """Open the interactive dashboard in a browser."""
    import importlib.util
    import sys

    from forerun.errors import ForerunError, install_hint

    missing = [name for name in PARTS if importlib.util.find_spec(name) is None]
    if missing:
        raise ForerunError(f"dash: {missing[0]} is not installed; {install_hint('dashboard')}")
    from dashboards.app import serve_dashboard
    from dashboards.app.server import is_loopback
    from dashboards.app.uploads import MOST_RESULTS
    from traces.benchmark_results import read_runs

    if is_loopback(host):
        refuse_unused(line, f"with --host {host}, which only this machine reaches", "expose")
    else:
        if not expose:
            raise ForerunError(
                f"--host {host}: others could reach this address, and nothing is encrypted; add --expose if you mean it"
            )
        print(
            f"forerun: with the token, anyone who reaches {host} can read the folders and start runs", file=sys.stderr
        )
    served = folders or ([DEFAULT_FOLDER] if DEFAULT_FOLDER.is_dir() else [])
    results = measured or []
    if len(results) > MOST_RESULTS:
        raise ForerunError(f"--measured: at most {MOST_RESULTS} results (got {len(results)})")
    for result in results:
        read_runs(result)
    serve_dashboard(served, host, port, token, results)
