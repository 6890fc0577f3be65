"""Rows that contradict one another are left out by what was measured alone."""

from dataclasses import replace

import pytest

from traces.benchmark_results import MeasuredRun
from validation.tables.contradictions import CONTRADICTED, OF_RELEASE, without_contradictions


def row(place, tpot_ms, streams=1, release="1.3", **more):
    facts = {"model": "llama-3.1-8b", "chip": "h100", "framework": "trtllm", "framework_version": release}
    measured = {"mean_tpot_ms": tpot_ms} | more.pop("measured", {})
    return MeasuredRun(f"r{place}", f"a.csv:{place}", max_concurrency=streams, measured=measured, **facts, **more)


def reasons(*runs):
    return [run.unusable for run in without_contradictions(runs)]


def test_a_release_half_of_whose_repeated_rows_contradict_each_other_is_not_believed():
    assert reasons(row(1, 8.1), row(2, 41.9), row(3, 30.0, 4), row(4, 9.0, release="1.2")) == [
        *(CONTRADICTED, CONTRADICTED, OF_RELEASE), None]  # fmt: skip


def test_one_contradiction_among_many_repeated_rows_leaves_the_others():
    consistent = [row(place, 5.0 + place / 100, streams) for place, streams in enumerate((2, 2, 4, 4), 10)]
    assert reasons(row(1, 8.0), row(2, 24.0), *consistent) == [CONTRADICTED, CONTRADICTED, *[None] * 4]


@pytest.mark.parametrize("other", [row(2, 23.0), row(2, 80.0, 2), row(2, 80.0, num_requests=9)])
def test_rows_within_the_ratio_or_of_other_configurations_stay(other):
    assert reasons(row(1, 8.0), other) == [None, None]


def test_waiting_times_and_rows_without_a_release_are_not_compared():
    slow_start = {"measured": {"mean_ttft_ms": 900.0}}
    assert reasons(row(1, 8.0, measured={"mean_ttft_ms": 90.0}), row(2, 8.0, **slow_start)) == [None, None]
    assert reasons(*(replace(run, framework_version=None) for run in (row(1, 8.0), row(2, 80.0)))) == [None, None]
