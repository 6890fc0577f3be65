"""Background runs: a few tasks at a time, each in a separate process, with progress and cancellation.

Dash's own background callbacks (its diskcache manager) were considered and rejected: they limit neither the number of
runs nor their memory and time, let a run outlive the server, fork a process that has threads, read pickles from a
folder on the disk, and need four more packages. The code that they would need around them is as long as this module.
Pools (loky, ``concurrent.futures``) were tried: each run then needs a pool of one process, which must be watched. One
process waits for the next task, with the simulator imported. This module and those of the tasks do not import Dash,
which a process needs a second for.
"""

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
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from dashboards.app.messages import sentence
from forerun.errors import ForerunError
from forerun.workers import follow_parent
from simulator.running.scenario import Scenario

ProgressCallback = Callable[[int, int], None]
"""Function to report progress: units of work that are done, and their total."""
Task = Callable[[Path, ProgressCallback], None]
"""Picklable function that does the work and writes its files into a folder; raises an exception on failure."""

MOST_RUNNING, MOST_TOGETHER = 2, 4
"""Maximum number of simultaneous runs of one session, and of all sessions."""
MOST_KEPT = 12
"""Number of finished runs per session whose files are retained; the files of older runs are removed."""
LONGEST_S, UNSEEN_S, WATCH_S = 1800.0, 300.0, 5.0
"""Seconds until a run is ended, until a run that no page follows is ended, and between such checks. Browsers slow the
timers of hidden pages down to one call a minute."""
MOST_MEMORY_BYTES = 6 * 2**30
"""Memory limit of one run, bytes; never more than the machine's memory divided by ``MOST_TOGETHER``."""
PROGRESS_EVERY_S = 0.1
IMPORTED_AHEAD = (
    "numpy.random",
    "simulator.running.run",
    "simulator.serving.recording",
    "simulator.studies.plan.document",
    "simulator.studies.plan.search",
    "traces.requests.read",
)
"""Modules that a waiting process imports before it receives a task."""
FIRST, FINISHED = "first answer", "finished"
"""States of a run with results to show."""
NO_MEMORY = "the run needs more memory than it may have here; ask for fewer requests or tokens, or use forerun run"


@dataclass(frozen=True, slots=True)
class RunTask:
    """One simulated run."""

    scenario: Scenario
    seed: int = 0

    def __call__(self, folder: Path, tell: ProgressCallback) -> None:
        from simulator.running.metrics import run_document
        from simulator.running.metrics.run_folder import write_run
        from simulator.running.run import simulate

        result = simulate(self.scenario, self.seed, tell, intervals=True)
        write_run(folder, result, run_document(result))


@dataclass(slots=True)
class Job:
    """A background run and its status."""

    process: SpawnProcess
    receiver: Connection
    folder: Path
    started: float
    seen: float
    """Time at which a page last requested the run's status, by ``time.monotonic``."""
    state: str = "running"
    """State of the run: running, finished, failed or cancelled."""
    done: int = 0
    total: int = 0
    answered: bool = False
    """True if the run's folder contains a first answer, which the run is still refining."""
    message: str = ""
    """Error message in one sentence; empty without an error."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Jobs:
    """Background runs of one app."""

    def __init__(self, most_running: int = MOST_RUNNING, most_together: int = MOST_TOGETHER) -> None:
        self._most_running, self._most_together = most_running, most_together
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._context = multiprocessing.get_context("spawn")
        self._warm: tuple[SpawnProcess, Connection, Connection] | None = None
        """Waiting process with the simulator imported, and its connections for tasks and for messages."""

    def warm(self) -> None:
        """Start a process for the next task, unless one waits, because imports take as long as a small task."""
        with self._lock:
            self._warm = self._waiting_process()

    def _waiting_process(self) -> tuple[SpawnProcess, Connection, Connection]:
        if self._warm is not None and self._warm[0].is_alive():
            return self._warm
        tasks, to_do = self._context.Pipe(duplex=False)
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=wait_for_task, args=(tasks, sender, os.getpid()), name="forerun task")
        process.start()
        tasks.close()
        sender.close()
        return process, to_do, receiver

    def start(self, task: Task, name: str, place: Path) -> str:
        """Start a task and return its id, which cannot be guessed."""
        with self._lock:
            running = [job for job in self._jobs.values() if self._look(job).state == "running"]
            mine = sum(job.folder.parent == place for job in running)
            if mine >= self._most_running:
                raise ForerunError(f"{mine} runs are under way, which is the most at once; wait for one or cancel it")
            if len(running) >= self._most_together:
                raise ForerunError(
                    f"{len(running)} runs of all browsers are under way, which is the most at once; try again soon"
                )
            self._forget_old(place)
            token = secrets.token_urlsafe(9)
            kept = "".join(letter if letter.isalnum() else "-" for letter in name)[:40].strip("-") or "run"
            folder = place / f"{kept}-{len(self._jobs) + 1}-{secrets.token_hex(2)}"
            process, to_do, receiver = self._waiting_process()
            self._warm = None
            to_do.send((task, folder))
            to_do.close()
            job = self._jobs[token] = Job(process, receiver, folder, time.monotonic(), time.monotonic())
            threading.Thread(target=self._watch, args=(job,), name="forerun watch", daemon=True).start()
            return token

    def _watch(self, job: Job) -> None:
        """End a run that takes too long, or that no page follows (the browser was closed or shows another page)."""
        while self._look(job).state == "running":
            if time.monotonic() - job.seen > UNSEEN_S:
                _end(job, "cancelled", "cancelled")
                return
            time.sleep(WATCH_S)

    def look(self, token: str) -> Job | None:
        """Status of the run with this id; None if the id is unknown. The call marks the run as followed by a page."""
        job = self._jobs.get(token)
        if job is None:
            return None
        job.seen = time.monotonic()
        return self._look(job)

    def cancel(self, token: str) -> None:
        """Cancel the run if it is still running, and remove its files."""
        job = self._jobs.get(token)
        if job is not None and self._look(job).state == "running":
            _end(job, "cancelled", "cancelled")

    def close(self) -> None:
        for token in list(self._jobs):
            self.cancel(token)
        if self._warm is not None:
            self._warm[0].terminate()
            self._warm[0].join(timeout=5)
            self._warm = None

    def _look(self, job: Job) -> Job:
        with job.lock:
            if job.state == "running":
                _listen(job)
        if job.state == "running" and time.monotonic() - job.started > LONGEST_S:
            _end(job, "failed", f"the run took longer than {LONGEST_S / 60:.0f} minutes and was ended")
        return job

    def _forget_old(self, place: Path) -> None:
        ended = [token for token, job in self._jobs.items() if job.state != "running" and job.folder.parent == place]
        for token in ended[: max(0, len(ended) - MOST_KEPT + 1)]:
            shutil.rmtree(self._jobs.pop(token).folder, ignore_errors=True)


def _listen(job: Job) -> None:
    try:
        while job.receiver.poll():
            kind, *rest = job.receiver.recv()
            if kind == "progress":
                job.done, job.total = rest
            elif kind == "answered":
                job.answered = True
            else:
                job.state, job.message = kind, rest[0]
                job.process.join(timeout=5)
                return
    except (EOFError, OSError):
        job.state, job.message = "failed", f"the run ended before it was done; perhaps {NO_MEMORY}"


def _end(job: Job, state: str, words: str) -> None:
    with job.lock:
        if job.state != "running":
            return
        job.process.terminate()
        job.process.join(timeout=5)
        if job.process.is_alive():
            job.process.kill()
            job.process.join(timeout=5)
        job.state, job.message = state, words
        shutil.rmtree(job.folder, ignore_errors=True)


def wait_for_task(tasks: Connection, sender: Connection, parent: int) -> None:
    """Main function of a process: import modules, receive a task and run it; exit if ``parent`` exits."""
    follow_parent(parent)
    limit_memory()
    for name in IMPORTED_AHEAD:
        import_module(name)
    with contextlib.suppress(EOFError):
        work(sender, *tasks.recv())


def work(sender: Connection, task: Task, folder: Path) -> None:
    """Run the task and send its progress and its final state."""
    try:
        task(folder, Teller(sender))
        answer: tuple[object, ...] = ("finished", "")
    except MemoryError:
        answer = ("failed", NO_MEMORY)
    except Exception as error:
        answer = ("failed", sentence(error))
    with contextlib.suppress(OSError):
        sender.send(answer)


def limit_memory() -> None:
    """Set the memory limit of a run for this process and its children, if the operating system supports it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    with contextlib.suppress(OSError, ValueError):
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        most = min(MOST_MEMORY_BYTES, machine // MOST_TOGETHER)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


class Teller:
    """Sender of a task's messages to the server: progress, and the existence of a first answer."""

    def __init__(self, sender: Connection) -> None:
        self._sender, self._last = sender, 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last >= PROGRESS_EVERY_S or done == total:
            self._last = now
            self._sender.send(("progress", done, total))

    def answered(self) -> None:
        self._sender.send(("answered",))
