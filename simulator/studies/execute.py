"""The loop of a sweep: claim points, run them in a pool, record what came out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress

from simulator.errors import ForerunError
from simulator.studies.points import Point, build_mark
from simulator.studies.pools import Outcome, Pool
from simulator.studies.store import LEASE_S, SweepStore

WAKE_S = 1.0
"""How often the loop looks around while nothing finishes."""
OTHERS_POLL_S = 0.2
"""How often to look whether another process has finished the rest."""
MOST_DEATHS = 3
"""Workers that may die over a point before it counts as failed."""

ProgressCall = Callable[[int, int], None]


def execute(points: Mapping[str, Point], store: SweepStore, pool: Pool, progress: ProgressCall | None = None) -> None:
    """Run every open point of ``store``; returns when all are done or failed, whoever ran them.

    Args:
        points: by key.
        store: whose points they are.
        pool: where they run.
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
        self, points: Mapping[str, Point], store: SweepStore, pool: Pool, progress: ProgressCall | None
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
                raise ForerunError(f"--cluster: a worker cannot run Forerun ({error}); install it on every worker")
            if error is not None:
                results.append((key, None, f"internal error: {type(error).__name__}: {error}"))
                continue
            outcome = future.result()
            if "build" in outcome:
                raise ForerunError(
                    f"--cluster: a worker has Forerun {outcome['build']}, this is {build_mark()}; "
                    f"install the same on every worker"
                )
            results.append((key, outcome.get("document"), outcome.get("error")))
        self._store.record(results)
        if broken and not self._under_way:
            self._pool.restart()

    def _show(self) -> None:
        if self._progress is not None:
            counts = self._store.counts()
            self._progress(counts["done"] + counts["failed"], len(self._points))
