"""Redraw the pictures of the README from real runs: python docs/pictures.py (needs chromium on the path).

Each picture is the HTML report of a shipped example, photographed by a headless browser.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dashboards.report import write_report
from simulator.metrics import run_document
from simulator.metrics.export import write_run
from simulator.run import simulate
from simulator.scenario import load_scenario

ROOT = Path(__file__).resolve().parent.parent
PICTURES = {"report": ("examples/chat-h100-draft.yaml", 1280, 1750)}
"""Name: scenario, width and height in pixels."""


def photograph(page: Path, picture: Path, width: int, height: int) -> None:
    """Screenshot of a local page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no chromium on the path")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--hide-scrollbars",
                "--virtual-time-budget=8000",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )


def main() -> None:
    """Draw every picture."""
    for name, (scenario, width, height) in PICTURES.items():
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(load_scenario(ROOT / scenario))
            write_run(Path(folder), result, run_document(result))
            write_report(Path(folder))
            photograph(Path(folder) / "report.html", ROOT / "docs/pictures" / f"{name}.png", width, height)


if __name__ == "__main__":
    main()
