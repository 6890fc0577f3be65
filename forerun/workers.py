"""Processes that share independent runs; without any, the work is done here, later."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from forerun.errors import WorkerDiedError

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

ORPHAN_CHECK_S = 1.0
"""How often a worker looks whether the process that it works for still lives."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A pool of ``count`` processes; with 0 the work is done by the caller when it requests the result.

    The processes end with the one that started them, however that ends. Where one of them dies, whatever was under way
    is tried once more, one at a time, so that only the work that killed it is lost.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool = process_pool(count) if count > 0 else None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Callable[[], T]:
        """Begin ``work``; call what is returned to have its result, or the exception it raised.

        The call raises a ``WorkerDiedError`` where two processes died over the work.
        """
        task = partial(work, *args, **kwargs)
        if self._pool is None:
            return task
        from concurrent.futures.process import BrokenProcessPool

        try:
            future = self._pool.submit(task)
        except BrokenProcessPool:
            close_pool(self._pool, wait=False)
            self._pool = process_pool(self._count)
            future = self._pool.submit(task)

        def result() -> T:
            try:
                return future.result()
            except BrokenProcessPool:
                return _alone(task)

        return result

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            close_pool(self._pool, wait=kind is None)


def _alone(task: Callable[[], T]) -> T:
    """What ``task`` returns, from a process of its own.

    Raises:
        WorkerDiedError: the process died as well.
    """
    from concurrent.futures.process import BrokenProcessPool

    with process_pool(1) as pool:
        try:
            return pool.submit(task).result()
        except BrokenProcessPool:
            raise WorkerDiedError("a worker process died over this run, twice (not enough memory for it?)") from None


def process_pool(count: int) -> ProcessPoolExecutor:
    """A pool of ``count`` processes that end with this one, even when it is killed."""
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(count, initializer=follow_parent, initargs=(os.getpid(),))


def close_pool(pool: ProcessPoolExecutor, wait: bool) -> None:
    """Close ``pool``: after what was started when ``wait``, else at once, ending its processes."""
    from multiprocessing.connection import wait as wait_for

    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    # A process that is killed while it waits for work keeps the queue's lock: the others would wait for it for ever.
    while wait and not any(process.exitcode for process in processes):
        alive = [process.sentinel for process in processes if process.is_alive()]
        if not alive:
            break
        wait_for(alive, timeout=ORPHAN_CHECK_S)
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
