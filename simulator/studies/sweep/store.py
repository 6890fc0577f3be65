"""Where a sweep keeps its results: one SQLite file that several processes may share and any of them may be killed over.

Every point is claimed in one transaction before it runs and recorded in one when it has. A claim has an owner and a
lease that its owner renews; claims of a dead process on this machine, and claims whose lease ran out, are open again. A
result is taken only from the owner of the claim, so each point is recorded once.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from forerun.errors import ForerunError
from simulator.studies.sweep.points import Point

APPLICATION_ID = 0x464F5245
"""``FORE``: marks a SQLite file as a store of ours."""
STORE_VERSION = 2
LEASE_S = 60.0
BUSY_S = 60.0
"""Seconds to wait for the transaction of another process."""
SCAN_S = 1.0
"""How often to look from the first point on whether one has been given back."""
SCHEMA = """
CREATE TABLE points (
    key TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    scenario TEXT,
    seed INTEGER NOT NULL,
    replications INTEGER NOT NULL,
    build TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'done', 'failed')),
    owner TEXT,
    lease_until REAL,
    runs INTEGER NOT NULL DEFAULT 0,
    document TEXT,
    error TEXT,
    checksum TEXT
) WITHOUT ROWID
"""


class StoredPoint(NamedTuple):
    """The stored state of a point."""

    key: str
    status: str
    document: dict[str, Any] | None
    error: str | None
    runs: int
    """How often a result of it was recorded."""


class SweepStore:
    """Points of one study in a store; use it as a context manager.

    Args:
        path: the file; None keeps everything in memory.
        points: of the study, in order. Others that the store holds are left alone.

    Raises:
        ForerunError: not a store, a store of another version, or a file that cannot be written; one line.
    """

    def __init__(self, path: Path | None, points: Sequence[Point], lease_s: float = LEASE_S) -> None:
        self.place = "the store" if path is None else str(path)
        self.owner = f"{_machine()}|{os.getpid()}|{_started(os.getpid())}|{uuid.uuid4().hex[:12]}"
        self._lease_s = lease_s
        self._from = 0
        """Position before which nothing was open when last looked at: claiming all points takes one walk over them."""
        self._scanned = -inf
        self.damaged = 0
        """Number of results whose checksum did not match and whose points were reopened."""
        if path is not None and path.is_dir():
            raise ForerunError(f"{path}: is a folder; name a file for the store")
        if path is not None and not path.resolve().parent.is_dir():
            raise ForerunError(f"{path}: there is no folder {path.parent} to keep the store in")
        with self._plain_errors():
            self._base = sqlite3.connect(":memory:" if path is None else path, timeout=BUSY_S, isolation_level=None)
            self._base.text_factory = lambda raw: raw.decode("utf-8", "replace")  # what is damaged fails its checksum
            try:
                self._base.execute("PRAGMA temp_store = MEMORY")
                self._prepare(points)
            except BaseException:
                self._base.close()
                raise

    def __enter__(self) -> SweepStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    def claim(self, count: int) -> list[str]:
        """Keys of up to ``count`` open points, now this process's to run."""
        if count < 1:
            return []
        with self._transaction():
            claimed = self._open_points(count)
            if not claimed and self._from and time.monotonic() - self._scanned > SCAN_S:
                self._from, self._scanned = 0, time.monotonic()
                claimed = self._open_points(count)
            lease = time.time() + self._lease_s
            self._base.executemany(
                "UPDATE points SET status = 'running', owner = ?, lease_until = ? WHERE key = ?",
                [(self.owner, lease, key) for key in claimed],
            )
        return claimed

    def _open_points(self, count: int) -> list[str]:
        """Keys of up to ``count`` points that nobody runs, from where the last look ended."""
        rows = self._base.execute(
            "SELECT position, key FROM mine CROSS JOIN points USING (key) WHERE position >= ? AND (status = 'pending' "
            "OR (status = 'running' AND lease_until < ? AND owner != ?)) ORDER BY position LIMIT ?",
            (self._from, time.time(), self.owner, count),
        ).fetchall()
        if rows:
            self._from = rows[-1][0] + 1
        return [key for _, key in rows]

    def renew(self) -> None:
        """Extend the lease of all that this process runs."""
        with self._transaction():
            self._base.execute(
                "UPDATE points SET lease_until = ? WHERE status = 'running' AND owner = ?",
                (time.time() + self._lease_s, self.owner),
            )

    def release(self) -> None:
        """Open again what this process has claimed and not finished."""
        with self._transaction():
            self._open_claims_of(self.owner)

    def record(self, results: Sequence[tuple[str, dict[str, Any] | None, str | None]]) -> None:
        """Store results as (key, document, error); results of claims lost in the meantime are dropped."""
        rows = [
            (
                "done" if error is None else "failed",
                text,
                error,
                result_checksum(key, text, error),
                key,
                self.owner,
            )
            for key, document, error in results
            for text in [None if document is None else _json(document)]
        ]
        with self._transaction():
            self._base.executemany(
                "UPDATE points SET status = ?, document = ?, error = ?, checksum = ?, owner = NULL, "
                "lease_until = NULL, runs = runs + 1 WHERE key = ? AND owner = ? AND status = 'running'",
                rows,
            )

    def retry_failed(self) -> None:
        """Open the failed points of this study again."""
        with self._transaction():
            self._base.execute(
                "UPDATE points SET status = 'pending', error = NULL WHERE status = 'failed' AND scenario IS NOT NULL "
                "AND key IN (SELECT key FROM mine)"
            )
            self._from = 0

    def free_dead(self) -> None:
        """Open the claims of processes of this machine that no longer run."""
        with self._plain_errors():
            owners = self._base.execute(
                "SELECT DISTINCT owner FROM points WHERE status = 'running' AND owner IS NOT NULL"
            ).fetchall()
        dead = [owner for (owner,) in owners if owner != self.owner and _is_dead(owner)]
        if dead:
            with self._transaction():
                for owner in dead:
                    self._open_claims_of(owner)
            self._from = 0

    def counts(self) -> dict[str, int]:
        """Points of this study by status."""
        with self._plain_errors():
            rows = self._base.execute(
                "SELECT status, count(*) FROM mine JOIN points USING (key) GROUP BY status"
            ).fetchall()
        return dict.fromkeys(("pending", "running", "done", "failed"), 0) | dict(rows)

    def rows(self) -> list[StoredPoint]:
        """The points of this study in order."""
        with self._plain_errors():
            rows = self._base.execute(
                "SELECT key, status, document, error, runs FROM mine JOIN points USING (key) ORDER BY position"
            ).fetchall()
        return [
            StoredPoint(key, status, None if document is None else json.loads(document), error, runs)
            for key, status, document, error, runs in rows
        ]

    def others(self) -> int:
        """Points in the store that are not of this study: other scenarios, seeds or versions."""
        with self._plain_errors():
            row = self._base.execute("SELECT count(*) FROM points WHERE key NOT IN (SELECT key FROM mine)").fetchone()
        return int(row[0])

    def _prepare(self, points: Sequence[Point]) -> None:
        with self._transaction():
            self._check_version()
            rows = [
                (
                    point.key,
                    point.name,
                    _json(dict(point.set)),
                    None if point.scenario is None else point.scenario.model_dump_json(exclude_none=True),
                    point.seed,
                    point.replications,
                    _build(),
                    "pending" if point.error is None else "failed",
                    point.error,
                )
                for point in points
            ]
            self._base.executemany(
                "INSERT OR IGNORE INTO points "
                "(key, name, settings, scenario, seed, replications, build, status, error) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
        self._base.execute("CREATE TEMP TABLE mine (position INTEGER PRIMARY KEY, key TEXT UNIQUE)")
        self._base.executemany("INSERT INTO mine VALUES (?, ?)", [(i, p.key) for i, p in enumerate(points)])
        self._reopen_damaged()

    def _reopen_damaged(self) -> None:
        """Open the points again whose result is not the one that was recorded: a file may be edited, or break."""
        with self._transaction():
            kept = self._base.execute(
                "SELECT key, document, error, checksum FROM mine JOIN points USING (key) WHERE runs > 0 "
                "AND status IN ('done', 'failed')"
            )
            damaged = [(key,) for key, text, error, mark in kept if mark != result_checksum(key, text, error)]
            self._base.executemany(
                "UPDATE points SET status = 'pending', document = NULL, error = NULL, runs = 0 WHERE key = ?", damaged
            )
        self.damaged = len(damaged)

    def _check_version(self) -> None:
        application = self._base.execute("PRAGMA application_id").fetchone()[0]
        version = self._base.execute("PRAGMA user_version").fetchone()[0]
        tables = self._base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application == 0 and version == 0 and tables == 0:
            self._base.execute(SCHEMA)
            self._base.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._base.execute(f"PRAGMA user_version = {STORE_VERSION}")
        elif application != APPLICATION_ID:
            raise ForerunError(f"{self.place}: is a database, but not a store of Forerun; name another file")
        elif version != STORE_VERSION:
            raise ForerunError(
                f"{self.place}: is a store of version {version}, this Forerun keeps version {STORE_VERSION}; "
                f"name another file"
            )

    def _open_claims_of(self, owner: str) -> None:
        self._base.execute(
            "UPDATE points SET status = 'pending', owner = NULL, lease_until = NULL "
            "WHERE status = 'running' AND owner = ?",
            (owner,),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A transaction that locks the file against other writers."""
        with self._plain_errors():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        """SQLite's complaints as one line that names the file and what to do."""
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "full" in text or "disk I/O" in text:
                advice = "the disk is full or failing; free space and run the same command to go on"
            elif "not a database" in text or "malformed" in text:
                advice = "is not a store of Forerun; name another file"
            elif "readonly" in text:
                advice = "cannot be written; name another file, or change its permissions"
            elif "locked" in text:
                advice = f"another process has held it for {BUSY_S:.0f} s; try again when that has ended"
            else:
                advice = "cannot be used as a store"
            raise ForerunError(f"{self.place}: {advice} ({text[:120]})") from None


def result_checksum(key: str, document: str | None, error: str | None) -> str:
    """Checksum of a recorded result."""
    return hashlib.sha256(json.dumps([key, document, error]).encode()).hexdigest()


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _build() -> str:
    from simulator.studies.sweep.points import build_mark

    return build_mark()


def _machine() -> str:
    """This machine, and the process namespace on it: process numbers mean something only inside."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}{namespace}"


def _started(pid: int) -> str:
    """When a process was started, in kernel ticks; empty where that is unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_dead(owner: str) -> bool:
    """Whether the owner of a claim is a process of this machine that has ended."""
    machine, pid, started, _ = owner.split("|")
    if machine != _machine() or os.name == "nt":  # there, asking after a process can end it
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    now = _started(int(pid))
    return bool(started) and now != started
