"""The loop of a sweep: claim points, run them in processes or on a Dask cluster, record results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from importlib import import_module
from types import TracebackType
from typing import Any, TypeVar

from forerun.errors import ArgumentError, WorkerDiedError, install_hint
from forerun.workers import StartedWork, Workers, cores
from simulator.studies.frame import ProgressCall
from simulator.studies.sweep.points import Point, build_mark, run_point
from simulator.studies.sweep.store import Outcome, SweepStore

T = TypeVar("T")

CONNECT_S = 5.0
"""Timeout for the first response of a cluster, seconds."""
NO_WORKERS_S = 30.0
"""Seconds that a cluster may be without workers or unreachable."""
LOCAL = "local"
WAKE_S = 1.0
"""Maximum seconds between iterations of the loop while no point finishes."""
OTHERS_POLL_S = 0.2
"""Seconds between checks for points that another process has finished."""


class SweepWorkers(Workers):
    """Processes of this machine that run points."""

    def __init__(self, jobs: int | None) -> None:
        super().__init__(jobs or cores())

    @property
    def slots(self) -> int:
        """Number of points to submit at once; slightly more than can run, so that no worker waits."""
        return 2 * self._count


class DaskWorkers(SweepWorkers):
    """Workers of a Dask cluster; the scheduler runs a task again on another worker when its worker dies."""

    def __init__(self, address: str, jobs: int | None) -> None:
        super().__init__(jobs)
        try:
            self._distributed: Any = import_module("distributed")
        except ImportError:
            raise ArgumentError("cluster", f"Dask is not installed here; {install_hint('cluster')}") from None
        self.address = address
        self._absent_since: float | None = None
        self._cluster: Any = None
        try:
            if address == LOCAL:
                self._cluster = self._distributed.LocalCluster(
                    n_workers=self._count, threads_per_worker=1, dashboard_address=None, silence_logs=50
                )
            self._client = self._distributed.Client(self._cluster or address, timeout=CONNECT_S)
        except (OSError, TimeoutError):
            raise ArgumentError(
                "cluster", f"{address}: no Dask scheduler answers there; start one with 'dask scheduler', or use local"
            ) from None
        except ValueError as error:
            raise ArgumentError(
                "cluster", f"{address}: not the address of a Dask scheduler ({error}); write tcp://HOST:8786, or local"
            ) from None
        self._executor = self._client.get_executor(pure=False, retries=2)

    @property
    def slots(self) -> int:
        """Number of points to submit at once: two per thread of the cluster's workers."""
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

    def start(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> StartedWork[T]:
        """Submit ``work``. Its result raises a ``WorkerDiedError`` if several workers crashed on it."""
        future: Future[T] = self._executor.submit(work, *args, **kwargs)

        def result() -> T:
            try:
                return future.result()
            except self._distributed.KilledWorker:
                raise WorkerDiedError("workers of the cluster died over this run (not enough memory for it?)") from None

        return StartedWork(result, future)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(wait=kind is None)
        self._client.close(timeout=CONNECT_S)
        if self._cluster is not None:
            self._cluster.close(timeout=CONNECT_S)


def execute(
    points: Mapping[str, Point], store: SweepStore, workers: SweepWorkers, progress: ProgressCall | None = None
) -> None:
    """Run every open point of ``store``; returns when all points are done or failed, in this or another process."""
    under_way: dict[Future[Outcome], tuple[str, StartedWork[Outcome]]] = {}
    while store.unfinished:
        for key in store.claim(workers.slots - len(under_way)):
            started = workers.start(run_point, points[key].task())
            assert started.future is not None
            under_way[started.future] = key, started
        if under_way:
            done, _ = wait(under_way, timeout=WAKE_S, return_when=FIRST_COMPLETED)
        else:
            time.sleep(OTHERS_POLL_S)
            store.refresh()
            done = set()
        for future in done:
            key, started = under_way.pop(future)
            try:
                store.record(key, _outcome(started))
            except (CancelledError, OSError):  # the cluster lost it
                store.release(key)
        if progress is not None:
            progress(len(points) - store.unfinished, len(points))


def _outcome(result: StartedWork[Outcome]) -> Outcome:
    try:
        outcome = result()
    except (CancelledError, OSError):
        raise
    except ImportError as error:
        raise ArgumentError("cluster", f"a worker cannot run Forerun ({error}); install it on every worker") from None
    except WorkerDiedError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"internal error: {type(error).__name__}: {error}"}
    if "build" in outcome:
        raise ArgumentError(
            "cluster",
            f"a worker has Forerun {outcome['build']}, this is {build_mark()}; install the same on every worker",
        )
    return outcome
