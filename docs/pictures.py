"""Redraw the pictures from real runs: python docs/pictures.py [gallery] (needs chromium and the dev extra).

``report`` is the HTML report of a shipped example, ``dash-*`` are pages of the dashboard; ``gallery`` runs the blocks
of docs/gallery.md and keeps the figure of each.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.report import write_report
from simulator.running.metrics import run_document
from simulator.running.metrics.run_folder import write_run
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
REPORTS = {"report": ("examples/chat-h100-draft.yaml", 1280, 1750)}
"""Name: scenario, width and height in pixels."""
PAGES = {
    "dash-what-if": ("what-if?method=eagle3&k=3&rate=16&requests=2000", 2, 1280, 1180, "Simulate this load"),
    "dash-speculation": ("speculation", 4, 1280, 1330, None),
}
"""Name: address, figures to wait for, width and height in pixels, and a button to press first."""
WAIT_MS = 120_000
LARGEST_BYTES = 300_000


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    result = shutil.which("chromium") or shutil.which("google-chrome")
    if result is None:
        sys.exit("no chromium on the path")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=result, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def dashboard() -> Iterator[str]:
    """The dashboard's address while it is served."""
    from werkzeug.serving import make_server

    from dashboards.app import create_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as session:
        app, context = create_app([], Path(session))
        server = make_server("127.0.0.1", 0, app.server, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        context.jobs.close()
        server.shutdown()


def photograph(opened: Any, address: str, name: str, width: int, height: int, figures: int, button: str | None) -> None:
    """A picture of one page once its figures are drawn."""
    page = opened.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    page.wait_for_function(
        """figures => [...document.querySelectorAll('.js-plotly-plot')].filter(
        e => e.offsetParent && e.data && e.data.length && e.querySelector('.main-svg')).length >= figures""",
        arg=figures,
    )
    if button is not None:
        page.get_by_role("button", name=button).click()
        page.wait_for_function(
            "() => document.querySelector('.js-plotly-plot .legend').textContent.includes('simulated')"
        )
    page.wait_for_load_state("networkidle")
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1e3:.0f} kB")
    if size > LARGEST_BYTES:
        sys.exit(f"{path}: larger than {LARGEST_BYTES / 1e3:.0f} kB")


PICTURED = re.compile(r"(?:!\[[^]]*\]\((pictures/gallery/[\w-]+\.png)\)\n\n)?```python\n(.*?)```", re.S)
"""A block of the gallery, with the picture above it."""


def gallery(opened: Any) -> None:
    """The figure of each block of the gallery, under the name above it."""
    from dashboards.page import page_html

    names: dict[str, Any] = {"__name__": "gallery"}
    for picture, block in PICTURED.findall((ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")):
        exec(compile(block, picture, "exec"), names)
        if picture:
            body = '<div id="figure-one" class="figure"></div>'
            with tempfile.TemporaryDirectory() as folder:
                page = Path(folder) / "figure.html"
                page.write_text(page_html(picture, [body], {"figure-one": names["figure"]}), encoding="utf-8")
                height = int(names["figure"].layout.height or 420) + 60
                (PICTURES / "gallery").mkdir(exist_ok=True)
                name = picture.removeprefix("pictures/").removesuffix(".png")
                photograph(opened, page.as_uri(), name, 860, height, 1, None)


def main() -> None:
    """Draw every picture, or those of the gallery alone."""
    with browser() as opened:
        gallery(opened)
        if "gallery" in sys.argv[1:]:
            return
        for name, (scenario, width, height) in REPORTS.items():
            with tempfile.TemporaryDirectory() as folder:
                result = simulate(load_scenario(ROOT / scenario))
                write_run(Path(folder), result, run_document(result))
                page = write_report(Path(folder))
                photograph(opened, page.as_uri(), name, width, height, 4, None)
        with dashboard() as base:
            for name, (address, figures, width, height, button) in PAGES.items():
                photograph(opened, f"{base}/{address}", name, width, height, figures, button)


if __name__ == "__main__":
    main()
