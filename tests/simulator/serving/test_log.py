"""What a run writes down of its requests takes the memory of what is written, and no more."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simulator.running.metrics.statistics import WeightedSample
from simulator.serving.clock import on_grid
from simulator.serving.log import RunLog, StepLog
from simulator.serving.records import MOST_GAPS, GapCounts
from simulator.workload import RequestStream

STATM = Path("/proc/self/statm")


COLUMNS = """
import os
import numpy as np
from simulator.serving.log import RunLog, StepLog
from simulator.workload import RequestStream

def resident_bytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

count = 2_000_000
times, tokens = np.linspace(0.0, 1.0, count), np.full(count, 7)
stream = RequestStream(times, tokens, tokens.copy(), None)
before = resident_bytes()
log = RunLog(stream, StepLog(1), 0)
print((resident_bytes() - before) / count)
assert log.drafts[count - 1] == log.restarts[count - 1] == 0
assert np.isnan(log.finished_s[count - 1])
assert log.input_tokens[count - 1] == 7
"""


@pytest.mark.skipif(not STATM.exists(), reason=f"{sys.platform} does not say how much memory is in use")
def test_columns_that_nothing_writes_to_take_no_memory() -> None:
    """In a process of its own: a large one gives memory back now and then."""
    run = subprocess.run([sys.executable, "-c", COLUMNS], check=True, stdout=subprocess.PIPE, text=True)
    assert float(run.stdout) < 40  # bytes a request: three times and a number of a replica, each of them written


def test_arrivals_that_a_run_moves_are_not_those_of_the_workload() -> None:
    stream = RequestStream(np.zeros(3), np.full(3, 5), np.full(3, 5), 2)
    RunLog(stream, StepLog(1), 0).arrival_s[2] = 9.0
    assert stream.arrival_s.tolist() == [0.0, 0.0, 0.0]


def test_gaps_in_bins_do_not_depend_on_the_order_of_pooling() -> None:
    rng = np.random.default_rng(1)
    gap_s, count = on_grid(rng.lognormal(-4.0, 0.2, 2 * MOST_GAPS)), rng.integers(1, 200, 2 * MOST_GAPS)
    whole = GapCounts.pooled([GapCounts(gap_s, count)])
    parts = [GapCounts(gap_s[part::5], count[part::5]) for part in range(5)]
    grown = parts[0]
    for part in reversed(parts[1:]):
        grown = GapCounts.pooled([part, grown])
    for other in (GapCounts.pooled(parts), grown):
        assert np.array_equal(other.gap_s, whole.gap_s)
        assert np.array_equal(other.count, whole.count)
    assert len(whole.count) < MOST_GAPS
    binned, exact = WeightedSample.of(whole.gap_s, whole.count), WeightedSample.of(gap_s, count)
    assert binned.size == exact.size
    assert binned.mean() == pytest.approx(exact.mean(), rel=1e-12)
    for percent in (0.1, 50.0, 90.0, 99.0, 99.99):
        assert binned.percentile(percent) == pytest.approx(exact.percentile(percent), rel=1e-5)


def test_few_gaps_are_kept_as_they_are() -> None:
    one, other = (GapCounts(np.array(gaps), np.ones(len(gaps), dtype=np.int64)) for gaps in ([0.3, 0.1], [0.2]))
    assert GapCounts.pooled([one, other]).gap_s.tolist() == [0.3, 0.1, 0.2]
