"""Store of a sweep: a text file with one line per finished point, which several sweeps may share.

A line has the point's key, a checksum and the result as JSON. A line that was cut short or edited fails its checksum,
and its point is run again. While a point runs, its sweep holds an operating-system lock on a byte far beyond the text
that belongs to the key; the system frees the lock when the process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from forerun.errors import ForerunError
from simulator.studies.sweep.points import Point

STORE_VERSION = 3
HEADER = b"forerun sweep store %d\n"
CLAIMS_AT = 1 << 30
"""File offset of the bytes that are locked for running points."""

Outcome = dict[str, Any]
"""Outcome of a point: its ``document``, or the ``error`` for which it could not be run."""


class SweepStore:
    """Results of a study's points in a store; use it as a context manager."""

    def __init__(self, path: Path | None, points: Sequence[Point]) -> None:
        self.place = "the store" if path is None else str(path)
        self._keys = {point.key for point in points}
        self.outcomes: dict[str, Outcome] = {p.key: {"error": p.error} for p in points if p.error is not None}
        """Outcomes of the study's points by key, including refused points."""
        self._open = deque(point.key for point in points if point.error is None)
        self.runs: Counter[str] = Counter()
        """Number of recorded results by key, over all points in the store."""
        self.damaged = 0
        """Number of the study's points with a damaged result, which will run again."""
        self._damaged: set[str] = set()
        self._read = 0
        self._file = None
        if path is None:
            return
        if path.is_dir():
            raise ForerunError(f"{path}: is a folder; name a file for the store")
        if not path.resolve().parent.is_dir():
            raise ForerunError(f"{path}: there is no folder {path.parent} to keep the store in")
        with self._plain_errors():
            self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 closed by close()
        try:
            self._check_version()
            self.refresh()
            self.damaged = len(self._damaged & self._keys)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and release claimed points that are not finished."""
        if self._file is not None:
            self._file.close()

    @property
    def unfinished(self) -> int:
        """Points of the study without an outcome."""
        return len(self._keys) - len(self.outcomes)

    @property
    def others(self) -> int:
        """Number of points in the store that belong to other studies (scenarios, seeds or versions)."""
        return len(self.runs.keys() - self._keys)

    def claim(self, count: int) -> list[str]:
        """Claim up to ``count`` open points for this process; returns their keys."""
        claimed: list[str] = []
        for _ in range(len(self._open)):
            if len(claimed) >= count:
                break
            key = self._open.popleft()
            if key in self.outcomes:
                continue
            if not self._lock(key):
                self._open.append(key)
                continue
            self.refresh()
            if key in self.outcomes:
                self._unlock(key)
            else:
                claimed.append(key)
        return claimed

    def release(self, key: str) -> None:
        self._unlock(key)
        self._open.append(key)

    def record(self, key: str, outcome: Outcome) -> None:
        """Store the outcome of a claimed point."""
        text = json.dumps(outcome, allow_nan=False, separators=(",", ":"))
        line = f"{key} {_checksum(key, text)} {text}"
        if self._file is None:
            self._take(line)
            return
        data = f"\n{line}\n".encode()  # the first line end is that of a line cut short
        with self._plain_errors():
            if self._file.write(data) != len(data):
                raise OSError(0, "only a part was written")
        self.refresh()
        self._unlock(key)

    def retry_failed(self) -> None:
        """Reopen the failed points of this study; call this before the first claim."""
        for key in [key for key, outcome in self.outcomes.items() if "error" in outcome and self.runs[key]]:
            del self.outcomes[key]

    def refresh(self) -> None:
        """Read results that any process has recorded since the last read."""
        if self._file is None:
            return
        with self._plain_errors():
            self._file.seek(self._read)
            data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._read += end
        for line in data[:end].decode("utf-8", "replace").splitlines():
            if line:
                self._take(line)

    def _take(self, line: str) -> None:
        key, checksum, text = (*line.split(" ", 2), "", "")[:3]
        if checksum != _checksum(key, text):
            self._damaged.add(key)
            return
        self._damaged.discard(key)
        self.runs[key] += 1
        if key in self._keys:
            self.outcomes[key] = json.loads(text)

    def _check_version(self) -> None:
        assert self._file is not None
        header = HEADER % STORE_VERSION
        with self._plain_errors():
            self._file.seek(0)
            start = self._file.read(64)
            if not start:
                self._file.write(header)
        self._read = len(header)
        known = re.match(HEADER.replace(b"%d", rb"(\d+)"), start)
        if start.startswith(b"SQLite format 3"):
            raise ForerunError(f"{self.place}: is a database, as stores of Forerun 0.2 were; name another file")
        if start and known is None:
            raise ForerunError(f"{self.place}: is not a store of Forerun; name another file")
        if known is not None and int(known[1]) != STORE_VERSION:
            raise ForerunError(
                f"{self.place}: is a store of version {known[1].decode()}, this Forerun keeps version {STORE_VERSION}; "
                f"name another file"
            )

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """Convert file-system errors into one line that names the file and the way out."""
        try:
            yield
        except OSError as error:
            raise ForerunError(
                f"{self.place}: cannot be read and written ({error.strerror}); name another file, or, if the disk is "
                f"full, free space and run the same command to go on"
            ) from None

    def _lock(self, key: str) -> bool:
        """True if this process now has the lock of a key."""
        try:
            self._set_lock(key, True)
        except OSError:
            return False
        return True

    def _unlock(self, key: str) -> None:
        with suppress(OSError):
            self._set_lock(key, False)

    def _set_lock(self, key: str, held: bool) -> None:
        if self._file is None:
            return
        place = CLAIMS_AT + int(key[:7], 16)
        if sys.platform == "win32":
            import msvcrt

            os.lseek(self._file.fileno(), place, os.SEEK_SET)
            msvcrt.locking(self._file.fileno(), msvcrt.LK_NBLCK if held else msvcrt.LK_UNLCK, 1)
        else:
            import fcntl

            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB if held else fcntl.LOCK_UN, 1, place)


def _checksum(key: str, text: str) -> str:
    return hashlib.sha256(f"{key} {text}".encode()).hexdigest()
