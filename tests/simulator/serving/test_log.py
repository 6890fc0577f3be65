"""What a run writes down of its requests takes the memory of what is written, and no more."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator.serving.log import RunLog, StepLog
from simulator.workload import RequestStream

STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Of this process."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason=f"{sys.platform} does not say how much memory is in use")
def test_columns_that_nothing_writes_to_take_no_memory() -> None:
    count = 2_000_000
    times, tokens = np.linspace(0.0, 1.0, count), np.full(count, 7)
    stream = RequestStream(times, tokens, tokens.copy(), None)
    before = resident_bytes()
    log = RunLog(stream, StepLog(1), 0)
    assert (resident_bytes() - before) / count < 40  # three times and a number of a replica, each of them written
    assert log.drafts[count - 1] == log.restarts[count - 1] == 0
    assert np.isnan(log.finished_s[count - 1])
    assert log.input_tokens[count - 1] == 7


def test_arrivals_that_a_run_moves_are_not_those_of_the_workload() -> None:
    stream = RequestStream(np.zeros(3), np.full(3, 5), np.full(3, 5), 2)
    RunLog(stream, StepLog(1), 0).arrival_s[2] = 9.0
    assert stream.arrival_s.tolist() == [0.0, 0.0, 0.0]
