"""Atomic writing of files, and folders locked for one writing process."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows: no advisory locks, and what two processes mixed is still found by its checksums
    fcntl = None  # type: ignore[assignment]

_PREFIX, _SUFFIX = ".forerun-held-", ".tmp"
"""Name of a folder that its process has locked; process ids would mean nothing in another container."""
_HELD: set[tuple[int, int]] = set()
"""Device and inode of the folders that this process has locked."""


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file in the folder of ``path``, then move it to ``path`` in one step.

    Links are followed. A device or a pipe (``/dev/null``) is written in place.

    Raises:
        OSError: when the folder cannot be written or is full; nothing is left behind and an old file stays as it was.
    """
    if path.exists() and not path.is_file():
        with _named(path):
            write(path)
        return
    target = path.resolve()
    with StagedFiles(target.parent) as staged:
        staged.add(target.name, write)


def write_text_atomically(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: _write_text(temporary, text))


class StagedFiles:
    """Several files of one folder that appear together: all are written aside and on the disk before the first moves.

    Used as a context manager; leaving it with an exception removes what was staged. The folder is made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = folder
        """Folder in which files are staged under their own names."""
        self._names: list[str] = []
        self._held = ExitStack()

    def __enter__(self) -> StagedFiles:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.place = self._held.enter_context(_held_folder(self.folder))
        return self

    def add(self, name: str, write: Callable[[Path], object]) -> None:
        """Stage file ``name``; ``write`` fills it under the path that it is handed. Files move in the order added."""
        with _named(self.folder / name):
            write(self.place / name)
        self.made(name)

    def made(self, name: str) -> None:
        """Count file ``name`` in, which is in :attr:`place` already."""
        self._names.append(name)

    def add_text(self, name: str, text: str) -> None:
        self.add(name, lambda temporary: _write_text(temporary, text))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for name in self._names:
                    _to_disk(self.place / name)
                for name in self._names:
                    os.replace(self.place / name, self.folder / name)
                _to_disk(self.folder)
        finally:
            self._held.close()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name ``path`` in an error that names no file, or only a staged one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and (error.filename is None or _PREFIX in str(error.filename)):
            error.filename = str(path)
        raise


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder of this process."""
    with _held_folder(Path(tempfile.gettempdir())) as place:
        yield place


@contextmanager
def _held_folder(folder: Path) -> Iterator[Path]:
    """Make a subfolder of ``folder``, locked until it is removed; remove subfolders that killed processes left. Without
    file locks, no subfolder that another process may own is removed.
    """
    for left in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError), _opened(left) as handle:
            if _lock(handle):
                shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        locked = False
        while not locked:  # another process may lock and remove the folder before this one locks it
            place = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, folder))
            with suppress(FileNotFoundError):
                handle = stack.enter_context(_opened(place))
                locked = _lock(handle) is not False and place.exists()
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        yield place


@contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """Open a folder that is not a link; None on systems without locks."""
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)


def _lock(folder: int | None) -> bool | None:
    """Lock an open folder: True if it is locked now, False if another process has the lock, None without locks."""
    try:
        if folder is not None:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return None if folder is None else True


def _to_disk(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes from writing an existing ``folder``; this process may lock it again.

    The lock is the system's and on the folder itself, so it leaves nothing behind and ends with the process. File
    systems without locks are not locked.

    Raises:
        BlockingIOError: another process has it.
    """
    with _opened(folder.resolve()) as handle:
        status = folder.stat()
        mark = (status.st_dev, status.st_ino)
        if mark in _HELD:
            yield
            return
        if _lock(handle) is False:
            words = "another forerun is writing into it; wait until it ends, or name another folder"
            raise BlockingIOError(errno.EWOULDBLOCK, words, str(folder))
        _HELD.add(mark)
        try:
            yield
        finally:
            _HELD.discard(mark)


@contextmanager
def writable_folder(folder: Path) -> Iterator[Path]:
    """Make ``folder`` and keep it for this process before long work starts; remove it again if nothing was put there.

    Raises:
        OSError: when the folder cannot be made or written, or another process writes it.
    """
    with _proven_folder(folder), locked_folder(folder):
        yield folder


@contextmanager
def _proven_folder(folder: Path) -> Iterator[None]:
    """Make ``folder`` and prove that it takes a file; remove it again if nothing was put there."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, name a folder", str(folder))
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _named(folder), tempfile.TemporaryFile(dir=folder):
            pass
        yield
    finally:
        if made and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def writable_file(path: Path) -> Iterator[Path]:
    """:func:`writable_folder` for the folder of ``path``, which others may write at the same time."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder, name a file", str(path))
    if path.exists() and not path.is_file():
        yield path
        return
    with _proven_folder(path.resolve().parent):
        yield path


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
