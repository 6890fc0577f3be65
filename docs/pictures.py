"""Draw the pictures of README and docs, each from the block above it: python docs/pictures.py [PAGE...] (make docs).

A block of Python leaves a ``figure``; a command with ``--out`` a report; ``forerun dash`` shows the page that the
picture's title names. Without Chromium or Playwright the pictures stay as they are.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from doc_blocks import Block, blocks, commands

from dashboards.page import page_html
from simulator.cli import main as forerun

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
WIDTH, FIGURE_WIDTH = 1280, 860
PAGE_HEIGHT, REPORT_HEIGHT = 1180, 1750
WAIT_MS = 120_000
LARGEST_BYTES = 300_000
DRAWN = """() => {
  const seen = [...document.querySelectorAll('.figure')].filter(e => e.offsetParent);
  return seen.length && seen.every(e => e.querySelector('.main-svg') && !e.querySelector('[data-dash-is-loading]'));
}"""


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; None where there is none."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        yield None
        return
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@contextmanager
def dashboard(folders: list[Path]) -> Iterator[str]:
    """The dashboard's address while it is served."""
    from werkzeug.serving import make_server

    from dashboards.app import create_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as session:
        app, context = create_app(folders, Path(session))
        server = make_server("127.0.0.1", 0, app.server, threaded=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        context.jobs.close()
        server.shutdown()


def photograph(opened: Any, address: str, path: Path, *, width: int = WIDTH, height: int) -> None:
    """A picture of one page once its figures are drawn."""
    page = opened.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.set_default_timeout(WAIT_MS)
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.wait_for_function(DRAWN)
    page.screenshot(path=path)
    page.close()
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size / 1e3:.0f} kB")
    if size > LARGEST_BYTES:
        sys.exit(f"{path}: larger than {LARGEST_BYTES / 1e3:.0f} kB")


def command_lines(block: Block) -> list[list[str]]:
    """The commands of a block; what ``make demo`` runs in its place."""
    if "make demo" not in block.text:
        return [words[1:] for words, _ in commands(block.text) if words[0] == "forerun"]
    command = ["make", "--dry-run", "--no-print-directory", "--assume-old=.venv/ready", "demo"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [shlex.split(printed)[1:]]


def draw(opened: Any, page: Path) -> None:
    """The pictures of one page, with all its blocks run in order."""
    listed = blocks(page)
    last = max((place for place, block in enumerate(listed) if block.picture), default=-1)
    names: dict[str, Any] = {"__name__": page.stem}
    for block in listed[: last + 1]:
        picture = page.parent / block.picture if block.picture else None
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), names)
            if picture:
                figure, alone = names["figure"], Path("figure.html").resolve()
                body = '<div id="figure-one" class="figure"></div>'
                alone.write_text(page_html(page.stem, [body], {"figure-one": figure}), encoding="utf-8")
                height = int(figure.layout.height or 420) + 60
                photograph(opened, alone.as_uri(), picture, width=FIGURE_WIDTH, height=height)
        elif picture or "skip" not in block.directives:
            for command in command_lines(block):
                run(opened, command, picture, block.address)


def run(opened: Any, command: list[str], picture: Path | None, address: str | None) -> None:
    """One command of a block, and the picture of what it shows."""
    if command[0] == "dash":
        if picture:
            with dashboard([Path(name) for name in command[1:]]) as base:
                photograph(opened, f"{base}/{address or ''}", picture, height=PAGE_HEIGHT)
        return
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        code = forerun(command)
    if picture and code:
        sys.exit(f"forerun {shlex.join(command)}: exit code {code}: {errors.getvalue()}")
    if picture:
        report = Path(command[command.index("--out") + 1], "report.html").resolve()
        photograph(opened, report.as_uri(), picture, height=REPORT_HEIGHT)


def main() -> None:
    """Draw the pictures of some pages; of all without an argument."""
    pages = [Path(name).resolve() for name in sys.argv[1:]] or PAGES
    with browser() as opened:
        if opened is None:
            print("The pictures stay as they are: no Chromium on the path, or no Playwright.")
        for page in pages if opened is not None else ():
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                Path("examples").symlink_to(ROOT / "examples")
                draw(opened, page)
                os.chdir(ROOT)


if __name__ == "__main__":
    main()
