"""Fenced blocks of the documentation, and running them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from simulator.cli import main

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)(?: title=\"(?P<title>[^\"]+)\")?\s*$")
PICTURE = re.compile(r"!\[[^]]*\]\((?P<path>\S+\.png)(?: \"(?P<title>[^\"]+)\")?\)$")
DIRECTIVE = re.compile(r"<!-- (skip|exit|needs): (.+?) -->")
SHELLS = {"sh", "bash", "shell", "console"}


class Block(NamedTuple):
    """One fenced block with what the comments before it say, and the picture after it."""

    line: int
    language: str
    title: str | None
    text: str
    directives: dict[str, str]
    picture: str | None
    """File beside the page."""
    address: str | None
    """Page of the dashboard that the picture shows."""


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    result, directives, lines = [], {}, page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        if message := DIRECTIVE.search(line):
            directives[message[1]] = message[2]
        elif fence := FENCE.match(line):
            end = next(i for i in range(number + 1, len(lines)) if lines[i].strip() == "```")
            text = "\n".join(inner[len(fence["indent"]) :] for inner in lines[number + 1 : end]) + "\n"
            drawn = PICTURE.match(lines[end + 2]) if end + 2 < len(lines) else None
            picture = (drawn["path"], drawn["title"]) if drawn else (None, None)
            result.append(Block(number + 1, fence["language"], fence["title"], text, directives, *picture))
            directives, number = {}, end
        elif line.strip():
            directives = {}
        number += 1
    return result


def commands(text: str) -> list[tuple[list[str], list[str]]]:
    """Commands of a console block, each with the output lines shown under it."""
    rows: list[tuple[list[str], list[str]]] = []
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            rows.append((shlex.split(line[2:], comments=True), []))
        elif line.strip() and line.strip() != "..." and rows:
            rows[-1][1].append(line)
    return rows


def run_block(block: Block, names: dict[str, object], capture) -> None:
    """Do what a reader would do with a block, in the current folder; fails where it does not come out as shown."""
    if block.title is not None:
        Path(block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        exec(compile(block.text, f"block at line {block.line}", "exec"), names)
    elif block.language == "console":
        for words, shown in commands(block.text):
            assert words[0] == "forerun", f"line {block.line}: mark what is not ours with a skip comment"
            capture.readouterr()
            code = main(words[1:])
            printed = capture.readouterr()
            assert code == int(block.directives.get("exit", "0")), f"{shlex.join(words)}: {printed.err}"
            message = " ".join((printed.out + printed.err).split())
            for line in shown:
                assert " ".join(line.split()) in message, f"{shlex.join(words)} does not print: {line}\n{printed.out}"
