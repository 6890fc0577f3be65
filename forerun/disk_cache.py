"""Results kept in the user's cache folder between commands, keyed by the content that they were made from."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from forerun.version import VERSION

V = TypeVar("V")

VARIABLE = "FORERUN_CACHE"
"""Environment variable with the folder; ``off`` keeps nothing."""
MOST_ENTRIES = 256
"""Entries kept; the oldest leave first."""
_CHECKSUM_BYTES = 32


def cache_folder() -> Path | None:
    """The folder of kept results; None where nothing is kept."""
    chosen = os.environ.get(VARIABLE)
    if chosen is not None:
        return None if chosen in ("", "off") else Path(chosen)
    base = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "forerun"
    except RuntimeError:  # a user without a home
        return None


def kept(name: str, files: Iterable[Path], make: Callable[[], V]) -> V:
    """The result of ``make``, read from the cache folder if it was made from the same files before.

    An entry that is missing, damaged or belongs to another user is made again; a folder that cannot be written to is
    not used. Writers replace whole files, so several processes may share the folder, and any file may be deleted.

    Args:
        name: of the result; whatever else it depends on, such as the code, must be in it.
        files: data files that the result depends on.
        make: makes the result; it must be picklable.
    """
    folder = cache_folder()
    if folder is None:
        return make()
    content = hashlib.sha256(repr((name, VERSION, sys.version)).encode())
    for file in files:
        content.update(repr((file.name, file.stat().st_size)).encode() + file.read_bytes())
    path = folder / f"{content.hexdigest()}.pickle"
    with suppress(Exception):  # unpickling a damaged file may raise anything
        entry = path.read_bytes()
        checksum, body = entry[:_CHECKSUM_BYTES], entry[_CHECKSUM_BYTES:]
        if hashlib.sha256(body).digest() == checksum and _is_own(path):
            result: V = pickle.loads(body)
            return result
    result = make()
    with suppress(OSError):
        _write(path, pickle.dumps(result, protocol=5))
    return result


def _is_own(path: Path) -> bool:
    return os.name == "nt" or path.stat().st_uid == os.getuid()


def _write(path: Path, body: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    try:
        part.write_bytes(hashlib.sha256(body).digest() + body)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    entries = sorted(path.parent.glob("*.pickle"), key=lambda entry: entry.stat().st_mtime)
    for entry in entries[:-MOST_ENTRIES]:
        entry.unlink(missing_ok=True)
