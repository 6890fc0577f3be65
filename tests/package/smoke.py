"""Installs the built wheel into a fresh environment with the core dependencies alone and uses it from another folder.

Run: python tests/package/smoke.py DIST [--python PYTHON] [--lowest] [--dashboard]
``--lowest`` pins every dependency to its declared lower bound; ``--dashboard`` adds that extra and requests a page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from floors import floors

SCENARIO = """\
model: llama-3.1-8b
hardware: {chip: h100-sxm}
workload: {trace: azure-conv-2023, num_requests: 50}
"""
PAGES = """\
import sys
from pathlib import Path
from dashboards.app.page import Context
from dashboards.app.pages import PAGES
from dashboards.app.served import ServedFolders
context = Context(ServedFolders((Path(sys.argv[1]),), Path(sys.argv[2])))
print(len([page.layout("", context).to_plotly_json() for page in PAGES]))
"""
WAIT_S = 120


def main() -> int:
    """Install, try everything that needs files of the package, and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--dashboard", action="store_true")
    requested = parser.parse_args()
    wheel = newest(requested.dist, "forerun-*.whl")
    assert wheel is not None, f"{requested.dist}: no wheel"
    added = newest(requested.dist, "forerun_research-*.whl")
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        run([requested.python, "-m", "venv", str(home / "venv")], home)
        python = home / "venv" / "bin" / "python"
        extra = "[dashboard]" if requested.dashboard else ""
        pins = []
        if requested.lowest:
            (home / "floors.txt").write_text("\n".join(floors(["dashboard"])), encoding="utf-8")
            pins = ["--constraint", str(home / "floors.txt")]
        run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins, f"{wheel}{extra}"],
            home,
        )
        use(home / "venv" / "bin" / "forerun", home)
        assert "race: this command needs forerun-research" in run(
            [str(home / "venv" / "bin" / "forerun"), "race"], home, 2
        )
        if added is not None:
            run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(added)], home)
            assert "--patterns" in run([str(home / "venv" / "bin" / "forerun"), "race", "--help"], home)
        if requested.dashboard:
            page(home / "venv" / "bin" / "forerun", home)
            assert int(run([str(python), "-c", PAGES, "out", "."], home)) > 5
        version = run([str(python), "--version"], home).strip()
    print(f"{wheel.name} works on {version}{', lowest dependencies' if requested.lowest else ''}{extra}")
    return 0


def newest(folder: Path, pattern: str) -> Path | None:
    """The wheel that was built last."""
    return max(folder.resolve().glob(pattern), key=lambda path: path.stat().st_mtime, default=None)


def use(forerun: Path, home: Path) -> None:
    """Everything that reads files which must be in the wheel."""
    (home / "chat.yaml").write_text(SCENARIO, encoding="utf-8")
    assert "forerun" in run([str(forerun), "--help"], home)
    run([str(forerun), "run", "chat.yaml", "--out", "out"], home)
    summary = json.loads((home / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["summary"]["completed"] == 50, summary["summary"]
    assert (home / "out" / "report.html").stat().st_size > 10_000
    for catalogue, name in (("chips", "h100-sxm"), ("models", "llama-3.1-8b"), ("workloads", "azure-conv-2023")):
        assert name in run([str(forerun), catalogue, "list"], home)
    curves = run([str(forerun), "workloads", "curves"], home)
    assert "eagle3" in curves
    samples = run([str(forerun.with_name("python")), "-c", SAMPLES], home).split()
    scores = json.loads(run([str(forerun), "replay", "kernels", samples[0], "--chip", samples[1], "--json", "-"], home))
    assert scores["overall"]["n"] > 200, scores["overall"]
    assert "validate: this command needs Forerun's checkout" in run([str(forerun), "validate"], home, expected=2)


SAMPLES = """\
from importlib.resources import files
folder = files("traces") / "samples"
print(folder / "kernels-cpu.csv", folder / "kernels-cpu.machine.yaml")
"""


def page(forerun: Path, home: Path) -> None:
    """The dashboard answers."""
    with subprocess.Popen([str(forerun), "dash", "out", "--port", "8791"], cwd=home, env=clean()) as server:
        try:
            deadline = time.monotonic() + WAIT_S
            while True:
                try:
                    with urllib.request.urlopen("http://127.0.0.1:8791/", timeout=5) as answer:
                        assert answer.status == 200
                        return
                except OSError:
                    assert server.poll() is None, "forerun dash ended"
                    assert time.monotonic() < deadline, "forerun dash does not answer"
                    time.sleep(0.5)
        finally:
            server.terminate()


def run(command: list[str], home: Path, expected: int = 0) -> str:
    """Output of a command (with errors if it should fail), outside of the checkout and without it on the path."""
    done = subprocess.run(command, cwd=home, env=clean(), capture_output=True, text=True)
    assert done.returncode == expected, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout + (done.stderr if expected else "")


def clean() -> dict[str, str]:
    """The environment without what points into a checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


if __name__ == "__main__":
    sys.exit(main())
