"""Processes that share independent runs; without any, the work is done here, later."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, ParamSpec, Self, TypeVar

from forerun.errors import WorkerDiedError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

ORPHAN_CHECK_S = 1.0
"""How often a worker looks whether the process that it works for still lives."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class StartedWork(Generic[T]):
    """Work that has begun; call it for its result, or for the exception that it raised."""

    result: Callable[[], T]
    future: Future[T] | None = None
    """Tells when the result is there; None where the call does the work."""

    def __call__(self) -> T:
        return self.result()


class Workers:
    """A pool of ``count`` processes; with 0 the work is done by the caller when it requests the result.

    The processes end with the one that started them, however that ends. Where one of them dies, whatever was under way
    is tried once more, one at a time, so that only the work that killed it is lost.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> StartedWork[T]:
        """Begin ``work``. Its result raises a ``WorkerDiedError`` where two processes died over it."""
        task = partial(work, *args, **kwargs)
        if not self._count:
            return StartedWork(task)
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


def _alone(task: Callable[[], T]) -> T:
    """What ``task`` returns, from a process of its own."""
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
    """End the processes at once: a process that was killed while it waited for work keeps the queue's lock, for which
    the others would wait for ever."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()


def follow_parent(parent: int) -> None:
    """Prepare a worker: Ctrl-C ends it without a word, and so does the end of its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
