"""Coverage of intervals: inside and outside are distinguished, shares and causes follow from the rows."""

import pytest

from traces.benchmark_results import MeasuredRun
from validation.coverage import SOURCES, Banded, causes_of, coverage_page, coverage_table, source_of


def row(ratio, table="a", trained=False, source=SOURCES[0]):
    return Banded(source, table, "mean_ttft_ms", ratio, 0.8, 1.25, trained)


def test_a_measurement_at_the_end_of_its_band_lies_inside():
    assert [row(ratio).inside for ratio in (0.79, 0.8, 1.0, 1.25, 1.26)] == [False, True, True, True, False]


def test_shares_and_widths_are_those_of_the_rows():
    (line,) = coverage_table([row(1.0), row(1.1), row(2.0), row(0.9)], lambda one: one.source, "").rows
    assert line[2:5] == [4, "75%", "56%"]
    (unbanded,) = coverage_table(
        [row(2.0)._replace(low=float("nan"), high=float("nan"))], lambda one: one.source, ""
    ).rows
    assert unbanded[2:] == [1, "", "", "+100 %", "50.0 %", "50.0 %"], "a metric without bands has errors alone"


def test_tables_that_lie_outside_as_a_whole_are_named():
    rows = [row(1.0), row(1.1), row(3.0, "off"), row(2.5, "off"), row(3.0, "seen", trained=True)]
    assert "`off` (0 of 2 inside)" in causes_of(rows)
    assert "seen" not in causes_of(rows)
    assert causes_of(rows[:2]) == "No table lies outside as a whole."
    assert "`off` (0 of 2 inside)" in coverage_page(rows, "1.0")


@pytest.mark.parametrize(
    ("model", "chip", "dtype", "source"),
    [
        ("meta-llama/Llama-3.1-8B", "H100", None, SOURCES[0]),
        ("meta-llama/Llama-3.1-8B", "A100", None, SOURCES[1]),
        ("meta-llama/Llama-3.1-8B-FP8", "H100", None, SOURCES[2]),
        ("mistralai/Mixtral-8x7B-v0.1", "H100", "fp8", SOURCES[3]),
    ],
)
def test_every_run_belongs_to_a_source(model, chip, dtype, source):
    run = MeasuredRun(name="", place="", model=model, chip=chip, weights_dtype=dtype)
    assert source_of(run) == source
