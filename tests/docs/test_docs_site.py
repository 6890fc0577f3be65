"""The documentation site builds without a warning, needs no network to read, and covers what it promises."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="needs the docs extra")
pytest.importorskip("material", reason="needs the docs extra")
ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=[\"']?(?:https?:)?//[^>]+>"
    r"|<link[^>]+rel=[\"']?(?:stylesheet|preconnect)[^>]+//[^>]+>"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nothing_is_fetched(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        assert not FETCHED.search(page.read_text(encoding="utf-8")), page
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8").replace('"', "").replace("'", ""), sheet


def test_reference_is_whole(site):
    from typer.main import get_command

    from simulator.cli.app import app
    from simulator.scenario import Scenario

    commands = (site / "reference/commands.html").read_text(encoding="utf-8")
    for name in get_command(app).commands:
        assert f"forerun {name}" in commands
    fields = (site / "reference/scenario.html").read_text(encoding="utf-8")
    for name in Scenario.model_fields:
        assert f"<code>{name}</code>" in fields
    api = (site / "reference/api.html").read_text(encoding="utf-8")
    for name in re.findall(r"^::: (\S+)", (ROOT / "docs/reference/api.md").read_text(encoding="utf-8"), re.M):
        assert f'id="{name}"' in api, name
