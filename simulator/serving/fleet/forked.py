"""Independent replicas in several processes, with the same result to the byte as in one process."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from forerun.workers import cores
from simulator.serving.fleet.pool import Pool
from simulator.serving.log import CONDENSED_AT, COUNTED, RunLog, StepLog
from simulator.serving.records import GapCounts

WORTH_FORKING = 200_000
"""Requests from which further processes pay: pricing the steps stays with one, and so does a third of the time. With
two cores 400,000 requests on eight replicas took 2.5 s instead of 3.7, 100,000 0.71 instead of 0.78."""
OF_REQUESTS = (*COUNTED, "scheduled_s", "first_token_s", "finished_s")
"""Columns of the log that a replica writes for its requests."""
SUMS = ("swapped_blocks", "exact_steps", "accepted_counts")
"""Counters that replicas share."""

Serve = Callable[[Sequence[int]], int]
"""Runs the replicas of these numbers; returns the blocks that requests still hold."""


def shares(pool: Pool, log: RunLog, requests: int) -> list[range]:
    """Replicas per process; one process if forking does not pay or state is shared."""
    kept = log.steps.condense is None or pool.copies or pool.hits is not None
    if requests < WORTH_FORKING or kept or pool.staged or pool.rule is not None:
        return [range(pool.replicas)]
    from multiprocessing import parent_process  # not for a run that is too short for it

    if parent_process() is not None or threading.active_count() > 1 or sys.platform != "linux":
        return [range(pool.replicas)]
    count = min(cores(), pool.replicas)
    ends = [pool.replicas * part // count for part in range(count + 1)]
    return [range(*ends[part : part + 2]) for part in range(count)]


class Helper:
    """A copy of this process that runs some of the replicas and writes its results to a file. Step rows come first,
    then all other results, then the file offset at which these begin.

    Args:
        serve: runs replicas.
        numbers: indices of the replicas to run.
        requests: indices of the requests of these replicas.
        log: of the run, in which nothing has happened yet.
    """

    def __init__(self, serve: Serve, numbers: range, requests: IntArray, log: RunLog) -> None:
        self._serve, self._numbers, self._requests, self._log = serve, numbers, requests, log
        self._file = TemporaryFile()  # noqa: SIM115 - both processes close it
        with warnings.catch_warnings():
            # Python counts the threads of the BLAS library, which has handlers for this.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._child = os.fork()
        if not self._child:
            failed = 1
            try:
                self._work()
                failed = 0
            finally:
                os._exit(failed)

    def _work(self) -> None:
        log, before = self._log, self._log.ended[0]
        log.progress, log.steps.condense = None, self._write
        held = self._serve(self._numbers)
        log.settle()
        self._write(log.steps)
        begin = self._file.tell()
        columns = {name: np.asarray(getattr(log, name))[self._requests] for name in OF_REQUESTS}
        sums = {name: getattr(log, name) for name in SUMS}
        pickle.dump((held, log.ended[0] - before, columns, sums, log.gaps()), self._file)
        self._file.write(begin.to_bytes(8, "little"))
        self._file.flush()

    def _write(self, steps: StepLog) -> None:
        self._file.write(steps.rows().tobytes())

    def take(self) -> int:
        """Copy the helper's results into the log; returns the blocks that requests still hold. If the helper failed,
        its replicas run in this process, so that their error is raised here."""
        log, file = self._log, self._file
        _, status = os.waitpid(self._child, 0)
        with file:
            if status:
                return self._serve(self._numbers)
            file.seek(-8, os.SEEK_END)
            left = int.from_bytes(file.read(8), "little")
            for output in log.outputs.values():
                output.rows.flush()
            file.seek(0)
            while left:
                piece = file.read(min(left, 8 * log.steps.width * CONDENSED_AT))
                log.steps.extend(np.frombuffer(piece).reshape(-1, log.steps.width))
                left -= len(piece)
            message: tuple[int, int, dict[str, Any], dict[str, Any], GapCounts] = pickle.load(file)
        held, ended, columns, sums, gaps = message
        for name, values in columns.items():
            np.asarray(getattr(log, name))[self._requests] = values
        for name, value in sums.items():
            setattr(log, name, getattr(log, name) + value)
        log.gap_tables.append(gaps)
        log.ended[0] += ended
        log.tell()
        return held
