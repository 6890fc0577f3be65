"""Every picture of README and docs is drawn from the block above it, and no other picture is kept."""

import re

import pictures
from doc_blocks import blocks
from pictures import PAGES, ROOT, command_lines, draw

SHOWN = re.compile(r"!\[[^]]*\]\((\S+\.png)")


def uses(page):
    return [((page.parent / block.picture).resolve(), block) for block in blocks(page) if block.picture is not None]


def test_every_picture_stands_below_the_block_that_draws_it():
    drawn = [path for page in PAGES for path, _ in uses(page)]
    texts = ((page.parent, page.read_text(encoding="utf-8")) for page in PAGES)
    assert sorted(drawn) == sorted((folder / name).resolve() for folder, text in texts for name in SHOWN.findall(text))
    assert set(drawn) == set((ROOT / "docs" / "pictures").rglob("*.png"))


def test_a_picture_shown_twice_has_one_command():
    commands = {}
    for page in PAGES:
        for path, block in uses(page):
            if block.language != "python":
                commands.setdefault(path, []).append(command_lines(block))
    assert all(one == several[0] for several in commands.values() for one in several)
    assert commands[ROOT / "docs/pictures/report.png"][0] == [
        ["run", "examples/chat-h100-draft.yaml", "--out", "out/demo"]
    ]


def test_a_picture_is_drawn_by_the_command_above_it(tmp_path, monkeypatch):
    """The page's own command is run, whatever it is, and its report is what is photographed."""
    page = tmp_path / "page.md"
    page.write_text("```console\n$ forerun run a.yaml --out out/a\n...\n```\n\n![A report](a.png)\n")
    done = []
    monkeypatch.setattr(pictures, "forerun", done.append)
    monkeypatch.setattr(pictures, "photograph", lambda _, address, path, **size: done.append((address, path)))
    monkeypatch.chdir(tmp_path)
    draw(None, page)
    report = (tmp_path / "out" / "a" / "report.html").as_uri()
    assert done == [["run", "a.yaml", "--out", "out/a"], (report, tmp_path / "a.png")]
