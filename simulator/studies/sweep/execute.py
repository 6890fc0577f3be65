"""The loop of a sweep: claim points, run them on processes of this machine or a Dask cluster, record what came out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any, Protocol

from forerun.errors import ArgumentError, install_hint
from forerun.workers import close_pool, cores, process_pool
from simulator.studies.sweep.points import Point, build_mark, run_point
from simulator.studies.sweep.store import LEASE_S, SweepStore

Task = Mapping[str, Any]
Outcome = dict[str, Any]

CONNECT_S = 5.0
"""Timeout for a first answer of a cluster, seconds."""
NO_WORKERS_S = 30.0
"""Seconds that a cluster may be without workers or unreachable."""
LOCAL = "local"


class WorkerPool(Protocol):
    """Interface of a pool of workers that runs tasks."""

    def slots(self) -> int:
        """Points to have under way at once; a little more than run, so that none waits for the next."""

    def submit(self, task: Task) -> Future[Outcome]:
        """Start a task."""

    def lost(self, error: BaseException) -> bool:
        """Whether a task failed because its worker died, so that it may be tried again."""

    def restart(self) -> None:
        """Replace workers that died, so that tasks can run again."""

    def close(self, wait: bool) -> None:
        """End; without ``wait`` at once."""


def open_pool(cluster: str | None, jobs: int | None) -> WorkerPool:
    """Local processes, or a Dask cluster.

    Args:
        cluster: None for processes of this machine, ``local`` for a Dask cluster started here, else the address of a
            Dask scheduler such as ``tcp://10.0.0.1:8786``.
        jobs: processes here; default: one per core.

    Raises:
        ForerunError: no such cluster, or Dask is not installed.
    """
    return LocalPool(jobs or cores()) if cluster is None else DaskPool(cluster, jobs or cores())


class LocalPool:
    """Processes of this machine."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._pool = process_pool(jobs)

    def slots(self) -> int:
        """Two per process."""
        return 2 * self._jobs

    def submit(self, task: Task) -> Future[Outcome]:
        """Start a task; in a new pool where the old one broke."""
        try:
            return self._pool.submit(run_point, task)
        except BrokenProcessPool:
            self.restart()
            return self._pool.submit(run_point, task)

    def lost(self, error: BaseException) -> bool:
        """Whether a process died."""
        return isinstance(error, BrokenProcessPool)

    def restart(self) -> None:
        """New processes."""
        close_pool(self._pool, wait=False)
        self._pool = process_pool(self._jobs)

    def close(self, wait: bool) -> None:
        """End the processes."""
        close_pool(self._pool, wait)


def check_cluster(cluster: str | None) -> None:
    """Refuse a cluster that cannot be reached from here, before anything is written.

    Raises:
        ForerunError: Dask is not installed, or no scheduler answers at the address.
    """
    if cluster is None:
        return
    if find_spec("distributed") is None:
        raise ArgumentError("cluster", f"Dask is not installed here; {install_hint('cluster')}")
    if cluster != LOCAL:
        with _answering(cluster):
            import_module("distributed").Client(cluster, timeout=CONNECT_S).close()


@contextmanager
def _answering(address: str) -> Iterator[None]:
    """Say in one line that no scheduler answers.

    Raises:
        ForerunError: naming the address.
    """
    try:
        yield
    except (OSError, TimeoutError):
        raise ArgumentError(
            "cluster", f"{address}: no Dask scheduler answers there; start one with 'dask scheduler', or use local"
        ) from None
    except ValueError as error:
        raise ArgumentError(
            "cluster", f"{address}: not the address of a Dask scheduler ({error}); write tcp://HOST:8786, or local"
        ) from None


class DaskPool:
    """Workers of a Dask cluster; the scheduler runs a task again on another worker when its worker dies."""

    def __init__(self, address: str, jobs: int) -> None:
        distributed: Any = import_module("distributed")
        self.address = address
        self._cluster: Any = None
        self._distributed = distributed
        with _answering(address):
            if address == LOCAL:
                self._cluster = distributed.LocalCluster(
                    n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
                )
                self._client = distributed.Client(self._cluster, timeout=CONNECT_S)
            else:
                self._client = distributed.Client(address, timeout=CONNECT_S)
        self._executor = self._client.get_executor(pure=False, retries=2)
        self._absent_since: float | None = None

    def slots(self) -> int:
        """Two per thread of the cluster's workers.

        Raises:
            ForerunError: the cluster has been out of reach or without workers for too long.
        """
        threads = 0
        if self._client.status == "running":
            try:
                threads = sum(self._client.nthreads().values())
            except (OSError, TimeoutError):
                threads = 0
        if threads:
            self._absent_since = None
            return 2 * threads
        since = self._absent_since = self._absent_since or time.monotonic()
        if time.monotonic() - since > NO_WORKERS_S:
            raise ArgumentError(
                "cluster",
                f"{self.address}: no worker for {NO_WORKERS_S:.0f} s; start some with 'dask worker "
                f"{self.address}', and run the same command to go on",
            )
        return 0

    def submit(self, task: Task) -> Future[Outcome]:
        """Send a task."""
        future: Future[Outcome] = self._executor.submit(run_point, task)
        return future

    def lost(self, error: BaseException) -> bool:
        """Whether workers died over a task, or the scheduler forgot it."""
        return isinstance(error, self._distributed.KilledWorker | CancelledError | OSError)

    def restart(self) -> None:
        """Dask replaces its workers itself."""

    def close(self, wait: bool) -> None:
        """Leave the cluster; a local one ends."""
        self._executor.shutdown(wait=wait)
        self._client.close(timeout=CONNECT_S)
        if self._cluster is not None:
            self._cluster.close(timeout=CONNECT_S)


WAKE_S = 1.0
"""Seconds between checks of the loop while no point finishes."""
OTHERS_POLL_S = 0.2
"""Seconds between checks whether another process has finished the remaining points."""
MOST_DEATHS = 3
"""Workers that may die over a point before it counts as failed."""

ProgressCall = Callable[[int, int], None]


def execute(
    points: Mapping[str, Point], store: SweepStore, pool: WorkerPool, progress: ProgressCall | None = None
) -> None:
    """Run every open point of ``store``; returns when all are done or failed, by this process or another.

    Args:
        points: points by key.
        store: the store that holds the points.
        pool: workers that run the points.
        progress: called with (points finished, points in all).

    Raises:
        ForerunError: the store cannot be written, the cluster is gone, or its workers have another version. What has
            finished is kept; open claims are given back.
    """
    loop = _Loop(points, store, pool, progress)
    try:
        loop.run()
    except BaseException:
        with suppress(Exception):
            store.release()
        raise


class _Loop:
    def __init__(
        self, points: Mapping[str, Point], store: SweepStore, pool: WorkerPool, progress: ProgressCall | None
    ) -> None:
        self._points = points
        self._store = store
        self._pool = pool
        self._progress = progress
        self._under_way: dict[Future[Outcome], str] = {}
        self._again: list[str] = []
        """Claimed points whose worker died."""
        self._deaths: Counter[str] = Counter()
        self._renewed = time.monotonic()
        self._shown = -inf

    def run(self) -> None:
        self._store.free_dead()
        while True:
            self._start_points()
            self._show()
            if self._under_way:
                done, _ = wait(self._under_way, timeout=WAKE_S, return_when=FIRST_COMPLETED)
                self._record(done)
            else:
                counts = self._store.counts()
                if not counts["pending"] and not counts["running"]:
                    self._shown = -inf
                    self._show()
                    return
                time.sleep(OTHERS_POLL_S)
                self._store.free_dead()
            if time.monotonic() - self._renewed > LEASE_S / 4:
                self._store.renew()
                self._renewed = time.monotonic()

    def _start_points(self) -> None:
        if self._again:  # one of these may have killed its worker: each runs alone, so that no other pays for it
            chosen = [] if self._under_way else [self._again.pop()]
        else:
            chosen = self._store.claim(self._pool.slots() - len(self._under_way))
        for key in chosen:
            self._under_way[self._pool.submit(self._points[key].task())] = key

    def _record(self, done: set[Future[Outcome]]) -> None:
        results: list[tuple[str, Outcome | None, str | None]] = []
        broken = False
        for future in done:
            key = self._under_way.pop(future)
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or (error is not None and self._pool.lost(error)):
                broken = True
                self._deaths[key] += 1
                if self._deaths[key] < MOST_DEATHS:
                    self._again.append(key)
                else:
                    results.append((key, None, f"its worker died {MOST_DEATHS} times (out of memory?)"))
                continue
            if isinstance(error, ImportError):
                raise ArgumentError("cluster", f"a worker cannot run Forerun ({error}); install it on every worker")
            if error is not None:
                results.append((key, None, f"internal error: {type(error).__name__}: {error}"))
                continue
            outcome = future.result()
            if "build" in outcome:
                raise ArgumentError(
                    "cluster",
                    f"a worker has Forerun {outcome['build']}, this is {build_mark()}; "
                    f"install the same on every worker",
                )
            results.append((key, outcome.get("document"), outcome.get("error")))
        self._store.record(results)
        if broken and not self._under_way:
            self._pool.restart()

    def _show(self) -> None:
        if self._progress is not None and time.monotonic() - self._shown > WAKE_S:  # counting walks over all points
            self._shown = time.monotonic()
            counts = self._store.counts()
            self._progress(counts["done"] + counts["failed"], len(self._points))
