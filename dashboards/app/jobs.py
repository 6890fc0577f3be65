"""Work in the background: each task in a process of its own, with progress, that can be cancelled; few at a time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import ForerunError
from simulator.scenario import Scenario
from simulator.workers import follow_parent

Tell = Callable[[int, int], None]
"""Called with how much is done, and of how much."""
Task = Callable[[Path, Tell], None]
"""Writes its files into a folder; must be picklable. Raises on failure."""

MOST_RUNNING = 2
MOST_KEPT = 12
"""Finished runs whose files are kept; older ones are removed."""
LONGEST_S = 1800.0
TOLD_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class RunTask:
    """One simulated run."""

    scenario: Scenario
    seed: int = 0

    def __call__(self, folder: Path, tell: Tell) -> None:
        """Run, and write the run's files."""
        from simulator.metrics import run_document
        from simulator.metrics.run_folder import write_run
        from simulator.run import simulate

        result = simulate(self.scenario, self.seed, tell)
        write_run(folder, result, run_document(result))


class JobView(NamedTuple):
    """Where a run stands."""

    state: str
    """running, finished, failed or cancelled."""
    done: int
    total: int
    message: str
    """What went wrong, in one sentence; else empty."""
    folder: Path


@dataclass(slots=True)
class _Job:
    process: SpawnProcess
    receiver: Connection
    folder: Path
    started: float
    state: str = "running"
    done: int = 0
    total: int = 0
    message: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Jobs:
    """Background runs of one app.

    Args:
        folder: where each run gets a folder of its own.
        most_running: at once.
    """

    def __init__(self, folder: Path, most_running: int = MOST_RUNNING) -> None:
        self.folder = folder
        self.most_running = most_running
        self._jobs: dict[str, _Job] = {}
        self._lock = threading.Lock()
        self._context = multiprocessing.get_context("spawn")

    def start(self, task: Task, name: str) -> str:
        """Begin a task and return its id, which cannot be guessed.

        Args:
            task: what to do in a process of its own.
            name: beginning of the folder's name; letters, digits and hyphens are kept.

        Raises:
            ForerunError: as many runs are under way as may be.
        """
        with self._lock:
            running = [job for job in self._jobs.values() if self._look(job).state == "running"]
            if len(running) >= self.most_running:
                raise ForerunError(
                    f"{len(running)} runs are under way, which is the most at once; wait for one or cancel it"
                )
            self._forget_old()
            token = secrets.token_urlsafe(9)
            kept = "".join(letter if letter.isalnum() else "-" for letter in name)[:40].strip("-") or "run"
            folder = self.folder / f"{kept}-{len(self._jobs) + 1}-{secrets.token_hex(2)}"
            receiver, sender = self._context.Pipe(duplex=False)
            arguments = (sender, task, folder, os.getpid())
            process = self._context.Process(target=work, args=arguments, name=f"forerun {kept}")
            process.start()
            sender.close()
            self._jobs[token] = _Job(process, receiver, folder, time.monotonic())
            return token

    def look(self, token: str) -> JobView | None:
        """Where the run stands; None for an id of no run."""
        job = self._jobs.get(token)
        return None if job is None else self._look(job)

    def cancel(self, token: str) -> None:
        """End the run if it is still under way; its files are removed."""
        job = self._jobs.get(token)
        if job is not None and self._look(job).state == "running":
            _end(job, "cancelled", "cancelled")

    def close(self) -> None:
        """End all runs."""
        for token in list(self._jobs):
            self.cancel(token)

    def _look(self, job: _Job) -> JobView:
        with job.lock:
            if job.state == "running":
                _listen(job)
        if job.state == "running" and time.monotonic() - job.started > LONGEST_S:
            _end(job, "failed", f"the run took longer than {LONGEST_S / 60:.0f} minutes and was ended")
        return JobView(job.state, job.done, job.total, job.message, job.folder)

    def _forget_old(self) -> None:
        ended = [token for token, job in self._jobs.items() if job.state != "running"]
        for token in ended[: max(0, len(ended) - MOST_KEPT + 1)]:
            shutil.rmtree(self._jobs.pop(token).folder, ignore_errors=True)


def _listen(job: _Job) -> None:
    """Take in what the process has said."""
    try:
        while job.receiver.poll():
            kind, *rest = job.receiver.recv()
            if kind == "progress":
                job.done, job.total = rest
            else:
                job.state, job.message = kind, rest[0]
                job.process.join(timeout=5)
                return
    except (EOFError, OSError):
        job.state, job.message = "failed", "the run ended before it was done; it may have needed too much memory"


def _end(job: _Job, state: str, message: str) -> None:
    with job.lock:
        job.process.terminate()
        job.process.join(timeout=5)
        if job.process.is_alive():
            job.process.kill()
            job.process.join(timeout=5)
        job.state, job.message = state, message
        shutil.rmtree(job.folder, ignore_errors=True)


def work(sender: Connection, task: Task, folder: Path, parent: int | None = None) -> None:
    """What the process does: the task, saying how far it is; it ends with its ``parent``, however that ends."""
    if parent is not None:
        follow_parent(parent)
    try:
        task(folder, _teller(sender))
        answer: tuple[Any, ...] = ("finished", "")
    except MemoryError:
        answer = ("failed", "the run needs more memory than there is; ask for fewer requests")
    except Exception as error:
        from dashboards.app.messages import sentence

        answer = ("failed", sentence(error))
    with contextlib.suppress(OSError):
        sender.send(answer)


def _teller(sender: Connection) -> Tell:
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= TOLD_EVERY_S or done == total:
            last = now
            sender.send(("progress", done, total))

    return tell
