"""Help texts kept in the user's cache folder: ``--help`` prints one without importing what it describes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from importlib.machinery import PathFinder
from io import StringIO
from typing import Any, TextIO

from forerun.disk_cache import kept

PACKAGES = ("dashboards", "forerun", "hwprofiles", "simulator", "traces", "validation")
"""Folders beside each other, in a checkout and where a wheel is installed, from which options are declared."""
PRINTERS = ("click", "rich", "typer")
"""Libraries that lay out the help."""
TERMINAL = (
    *("COLUMNS", "TERMINAL_WIDTH", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE", "TYPER_USE_RICH", "_TYPER_FORCE_DISABLE_TERMINAL"),
)
"""Environment variables by which they decide on width and colour."""


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a command line consists of command names and ``--help``; without any word it asks for help too."""
    return not words or (words[-1] in ("-h", "--help") and all(word[:1].isalpha() for word in words[:-1]))


def help_text(words: Sequence[str], command: Callable[[Sequence[str]], Any]) -> str:
    """What ``command`` prints for words that ask for help, from the cache folder if code and terminal are the same."""

    def printed() -> str:
        with redirect_stdout(_Captured(sys.stdout)) as captured:
            command(words)
        return captured.getvalue()

    terminal = [_width(), sys.stdout.isatty(), sys.stdout.encoding, *map(os.environ.get, TERMINAL)]
    return kept(f"help {list(words)} {terminal} {_installed()} {list(_code())}", (), printed)


class _Captured(StringIO):
    """Text for a stream, which looks like it to libraries that choose colours and characters by it."""

    encoding = ""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.encoding, self.isatty = stream.encoding, stream.isatty  # type: ignore[method-assign]


def _width() -> int | None:
    for descriptor in range(3):
        with suppress(OSError):
            return os.get_terminal_size(descriptor).columns
    return None


def _installed() -> list[str]:
    """Names of the files and folders of the libraries, which contain their versions."""
    specs = map(PathFinder.find_spec, PRINTERS)
    folders = {os.path.dirname(os.path.dirname(spec.origin)) for spec in specs if spec is not None and spec.origin}
    return [name for folder in sorted(folders) for name in sorted(os.listdir(folder)) if name.startswith(PRINTERS)]


def _code() -> Iterator[tuple[str, int, int]]:
    """Path, size and time of change of every file of code."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for package in PACKAGES:
        for folder, folders, files in os.walk(os.path.join(root, package)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in files:
                if name.endswith(".py"):
                    state = os.stat(os.path.join(folder, name))
                    yield name, state.st_size, state.st_mtime_ns
