"""Files that are either whole or not there: staged beside their place, then moved into it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in the folder of ``path``, then move it to ``path`` in one step.

    Links are followed. A device or a pipe (``/dev/null``) is written in place.

    Raises:
        OSError: when the folder cannot be written or is full; nothing is left behind and an old file stays as it was.
    """
    if path.exists() and not path.is_file():
        write(path)
        return
    target = path.resolve()
    with StagedFiles(target.parent) as staged:
        staged.add(target.name, write)


def write_text_atomically(path: Path, text: str) -> None:
    """:func:`write_atomically` for text in UTF-8."""
    write_atomically(path, lambda temporary: _write_text(temporary, text))


class StagedFiles:
    """Several files of one folder that appear together: all are written aside first, and only then moved into place.

    Used as a context manager; leaving it with an exception removes what was staged. The folder is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staged: dict[str, Path] = {}

    def __enter__(self) -> StagedFiles:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def add(self, name: str, write: Callable[[Path], None]) -> None:
        """Stage file ``name``; ``write`` is handed the temporary path to fill."""
        temporary = self.folder / f".{name}.{os.getpid()}.tmp"
        self._staged[name] = temporary
        write(temporary)

    def add_text(self, name: str, text: str) -> None:
        """Stage file ``name`` with ``text`` in UTF-8."""
        self.add(name, lambda temporary: _write_text(temporary, text))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for name, temporary in self._staged.items():
                    os.replace(temporary, self.folder / name)
        finally:
            for temporary in self._staged.values():
                temporary.unlink(missing_ok=True)


@contextmanager
def writable_folder(folder: Path) -> Iterator[Path]:
    """Make ``folder`` and prove that it takes a file before long work starts; remove it again if nothing was put there.

    Raises:
        OSError: when the folder cannot be made or written.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, name a folder", str(folder))
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".forerun.{os.getpid()}.tmp"
    try:
        _write_text(probe, "")
        probe.unlink()
        yield folder
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def writable_file(path: Path) -> Iterator[Path]:
    """:func:`writable_folder` for the folder of ``path``.

    Raises:
        OSError: also when ``path`` is a folder.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    with writable_folder(path.resolve().parent):
        yield path


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
