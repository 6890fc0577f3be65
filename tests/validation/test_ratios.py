"""Published ratios: stated probabilities come true, losses are not called gains, and what ships is what was fitted."""

import pytest

from simulator.running.metrics.uncertainty import LEAST_SURE, MOST_SURE
from simulator.studies.unshared import DEPLOYMENT, DRAFTING, known_errors
from validation.speculation.ratios import (
    fit_unshared,
    left_out_probabilities,
    load_ratios,
    probability,
    refreshed,
    reliability,
    ten_bins,
)

MANY = 30
"""Rows from which a bin is judged by its own difference; smaller bins only by chance."""
REPORTS = ("llama_cpp22673", "sglang6949_tp1", "sglang6949_tp4", "vllm39680", "eagle298", "vllm22331", "kimi_k3_mi355x",
           "kimi_k3_mi355x_long", "gemma4_26b_gb10", "qwen_27b_strix_halo", "qwen_27b_strix_halo_dflash2",
           "specforge339", "angelslim163")  # fmt: skip
"""Tables of threads that ask why drafting, or more chips, did not pay."""


@pytest.fixture(scope="module")
def left_out():
    """Stated probability of every row, by fits without its table."""
    return dict(zip(load_ratios(), left_out_probabilities(load_ratios()), strict=True))


def test_what_ships_is_what_the_facts_give():
    fitted = fit_unshared(load_ratios())
    assert {kind: list(of) for kind, of in fitted.items()} == {kind: list(of) for kind, of in known_errors().items()}
    for kind, of in fitted.items():
        assert of == pytest.approx(known_errors()[kind], rel=0.05)


def test_no_weaker_evidence_has_a_narrower_ratio():
    for of in known_errors().values():
        assert of["calibrated"] <= of["extrapolated"] <= of["datasheet"]


def test_stated_probabilities_of_drafting_come_true_with_tables_left_out(left_out):
    """Within 7 points, or the standard deviation that chance gives the bin's tables; small bins within 2.5 of it."""
    rows = [row for row in left_out if row.kind == DRAFTING]
    bins = reliability(rows, [left_out[row] for row in rows], ten_bins)
    assert sum(one.rows for one in bins) == len(rows)
    assert len({row.table for row in rows}) > 60
    off = {one.name: abs(one.observed - one.stated) for one in bins}
    large = [one for one in bins if one.rows >= MANY]
    assert [one.name for one in large if off[one.name] > max(0.07, one.chance)] == []
    assert [one.name for one in bins if off[one.name] > 2.5 * one.chance] == []
    assert max(off["0.8 to 0.9"], off["0.9 to 1.0"]) < 0.03, "three rows in four"


def test_stated_probabilities_of_layouts_come_true_where_there_are_many(left_out):
    rows = [row for row in left_out if row.kind == DEPLOYMENT]
    bins = reliability(rows, [left_out[row] for row in rows], ten_bins)
    for one in bins:
        if one.rows >= MANY:
            assert abs(one.observed - one.stated) < 0.07
        if one.tables > 2:
            assert abs(one.observed - one.stated) < 2.5 * one.chance


@pytest.mark.parametrize("by", ["evidence", "framework", "method", "chips"])
def test_probabilities_hold_by_group(left_out, by):
    rows = [row for row in left_out if row.kind == DRAFTING]
    for one in reliability(rows, [left_out[row] for row in rows], lambda row: getattr(row, by)):
        assert abs(one.observed - one.stated) <= max(0.07, 2.5 * one.chance), one.name


def test_reports_of_losses_are_not_called_gains(left_out):
    """Of those that were predicted as gains, none is called better, and none is likelier than 90 %."""
    reports = {row: stated for row, stated in left_out.items() if row.table in REPORTS}
    lost = [row for row in reports if row.published < 1.0]
    assert len(lost) >= 25
    right = [row for row in lost if probability(row, known_errors()) < MOST_SURE]
    assert len(right) / len(lost) >= 17 / 20
    assert all(probability(row, known_errors()) <= MOST_SURE for row in lost)
    gained = [row for row in reports if row.published > 1.05]
    assert all(reports[row] > LEAST_SURE for row in gained)


def test_predictions_have_the_right_side_in_published_rows_as_before():
    rows = [row for row in load_ratios() if not row.source and row.kind == DRAFTING]
    right = [abs(row.published - 1) <= 0.02 or (row.published > 1) == (row.predicted > 1) for row in rows]
    assert sum(right) / len(right) >= 0.93


def test_new_predictions_replace_only_their_rows():
    from validation.speculation import compare_published, load_published

    chosen = [row for row in load_published() if row.id == "trtllm_dsr1_mtp-01"] or list(load_published())[-1:]
    compared, _ = compare_published(chosen)
    rows = [row._replace(predicted=9.0) for row in load_ratios()]
    new = refreshed(rows, compared)
    changed = [after.id for before, after in zip(rows, new, strict=True) if before != after]
    assert changed == [one.row.id for one in compared]
    before = {row.id: row for row in load_ratios()}
    assert all(row == before[row.id] for row in new if row.id in changed)
