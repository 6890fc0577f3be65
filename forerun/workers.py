"""Worker processes for independent runs; without workers, or for little work, the caller does the work."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from forerun.errors import WorkerDiedError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

ORPHAN_CHECK_S = 1.0
"""Seconds between a worker's checks that its parent process is alive."""
OWN_WORK_S = 2.0
"""CPU seconds of work that a study does before it starts processes. Each new process must price kernels that this
process has not priced yet."""


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class StartedWork(Generic[T]):
    """Started work; a call returns its result or raises its exception."""

    result: Callable[[], T]
    future: Future[T] | None = None
    """Future of the result; None if the first call does the work."""

    def __call__(self) -> T:
        return self.result()


class Workers:
    """A pool of ``count`` processes; with 0, the caller does the work when it requests the result.

    Worker processes end with their parent process, however it ends. If a worker crashes, all running tasks are tried
    once more, one at a time, so that only the task that caused the crash is lost.

    Args:
        count: number of processes.
        own_work_s: CPU seconds of work that the caller does itself before it starts processes for the remaining work.
    """

    def __init__(self, count: int, own_work_s: float = 0.0) -> None:
        self._count = count
        self._own_work_s = own_work_s if count else inf
        self._waiting: dict[int, tuple[Callable[[], Any], list[StartedWork[Any]]]] = {}
        """Work that is not yet started, in order, with the list for its result or future."""
        self._pool: ProcessPoolExecutor | None = None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> StartedWork[T]:
        """Begin ``work``. Its result raises a ``WorkerDiedError`` if two processes crashed on it."""
        task = partial(work, *args, **kwargs)
        return self._wait(task) if self._own_work_s > 0 else self._sent(task)

    def _wait(self, task: Callable[[], T]) -> StartedWork[T]:
        """Defer ``task`` until its result is requested or processes are started."""
        sent: list[StartedWork[T]] = []
        key = id(sent)
        self._waiting[key] = task, sent

        def result() -> T:
            if sent:
                return sent[0]()
            self._waiting.pop(key, None)
            begin = time.process_time()
            value = task()
            sent.append(StartedWork(lambda: value))
            self._own_work_s -= time.process_time() - begin
            if self._own_work_s <= 0:
                waiting, self._waiting = self._waiting, {}
                for other, place in waiting.values():
                    place.append(self._sent(other))
            return value

        return StartedWork(result)

    def _sent(self, task: Callable[[], T]) -> StartedWork[T]:
        """Send ``task`` to the worker processes; forked processes inherit the prices that this process has computed."""
        from concurrent.futures.process import BrokenProcessPool

        self._pool = self._pool or _process_pool(self._count)
        try:
            future = self._pool.submit(task)
        except BrokenProcessPool:
            self._pool = _process_pool(self._count)
            future = self._pool.submit(task)

        def result() -> T:
            try:
                return future.result()
            except BrokenProcessPool:
                return _alone(task)

        return StartedWork(result, future)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            _end(self._pool)


def study_workers(jobs: int | None, long_runs: bool = False) -> Workers:
    """Workers of a study with the option ``jobs``; by default one process per core if that pays. With ``long_runs``
    they start at once."""
    if jobs is not None:
        return Workers(jobs if jobs > 1 else 0)
    return Workers(cores() if cores() > 1 else 0, 0.0 if long_runs else OWN_WORK_S)


def _alone(task: Callable[[], T]) -> T:
    """Run ``task`` in a separate process."""
    from concurrent.futures.process import BrokenProcessPool

    pool = _process_pool(1)
    try:
        return pool.submit(task).result()
    except BrokenProcessPool:
        raise WorkerDiedError("a worker process died over this run, twice (not enough memory for it?)") from None
    finally:
        _end(pool)


def _process_pool(count: int) -> ProcessPoolExecutor:
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(count, initializer=follow_parent, initargs=(os.getpid(),))


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes at once.

    A process that is killed while it waits for work still has the queue's lock, for which other processes would wait.
    """
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def follow_parent(parent: int) -> None:
    """Prepare a worker: it ends silently on Ctrl-C and when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
