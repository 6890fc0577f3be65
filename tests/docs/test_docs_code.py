"""Every code block of the documentation runs, at reduced size where a comment says so."""

from pathlib import Path

import pytest
from doc_blocks import SHELLS, blocks, run_block
from typer.main import get_command

from simulator.cli.app import application

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if "validation" not in page.parts)
COMMANDS = set(getattr(get_command(application()), "commands", ()))


def runnable(block):
    return "skip" not in block.directives and block.directives.get("needs", "run") in COMMANDS


@pytest.mark.parametrize("name", [name for name in PAGES if any(map(runnable, blocks(DOCS / name)))])
def test_blocks_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks(DOCS / name):
        if runnable(block):
            run_block(block, names, capsys)


def test_every_command_block_runs_or_says_why_not():
    for name in PAGES:
        for block in blocks(DOCS / name):
            if block.language in SHELLS - {"console"}:
                assert "skip" in block.directives, f"{name}:{block.line}: no console block, and no reason to skip"


def test_how_tos_and_tutorial_are_mostly_run():
    found = [b for name in PAGES for b in blocks(DOCS / name) if b.language in ("console", "python")]
    assert sum(map(runnable, found)) >= 0.7 * len(found) > 20
