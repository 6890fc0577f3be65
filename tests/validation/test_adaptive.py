"""``forerun validate adaptive``: published confidence-scheduled verification beside simulated runs."""

import pytest

from validation.speculation.adaptive import _between, _met, adaptive_tables, compare_adaptive


@pytest.fixture(scope="module")
def document():
    return compare_adaptive()


def test_every_published_cell_is_scored_or_marked_as_fitted(document):
    for name, table in adaptive_tables().items():
        baseline = table.get("baseline", "none")
        cells = sum(len(by_streams) for mode, by_streams in table["cells"].items() if mode != baseline)
        rows = [row for row in document["rows"] if row["table"] == name]
        fitted = [row for row in rows if row["fitted"]]
        assert len(rows) == cells
        fit = table.get("fit", {"tokens": ()})
        assert len(fitted) == len(fit["tokens"]) + bool(fit.get("rule"))
        assert all(abs(row["error"]) < 0.02 for row in fitted), "a fitted cell is met"


def test_the_ladder_of_deepseek_v4_pro_is_within_its_tolerance(document):
    score = document["scores"][0]
    assert score["right_sign"] == score["rows"] == 16
    assert score["median"] < 0.12
    assert score["worst"] < 0.21


def test_the_21_cells_on_mi355x_and_the_step_without_graphs_on_gb200(document):
    """Beyond the captured sizes a step waits for its launches: K = 7 at 256 streams falls behind plain decoding."""
    scores = {score["table"]: score for score in document["scores"]}
    assert scores["dsv4_flash_mi355x"]["right_sign"] == scores["dsv4_flash_mi355x"]["rows"] == 12
    assert scores["dsv4_flash_mi355x"]["median"] < 0.10
    assert scores["glm52_gb200"]["worst"] < 0.12
    assert scores["qwen3_32b_h200_rates"]["median"] < 0.12


def test_adaptive_verification_overtakes_fixed_k_where_it_was_published(document):
    crossings = {crossing["table"]: crossing for crossing in document["crossings"]}
    assert crossings["dsv4_pro_b300"]["predicted"] == (None, 1)
    for table, loads in (("dsv4_flash_mi355x", (32, 64)), ("qwen3_32b_h200_rates", (4, 8))):
        assert crossings[table]["predicted"] == crossings[table]["published"] == loads
    assert "chosen looking at these rows" in document["note"]


def test_a_crossing_lies_after_the_last_load_that_is_behind():
    assert _between([1, 2, 4], [True, True, True]) == (None, 1)
    assert _between([1, 2, 4], [False, True, True]) == (1, 2)
    assert _between([1, 2, 4], [True, False, False]) == (4, None)


def test_ranges_that_are_all_that_is_stored(document):
    verdicts = {one["table"]: _met(one["published"], one["predicted"]) for one in document["ranges"]}
    assert verdicts == {
        "minimax_m3_mi325x": "hit",
        "dsv4_flash_rtx_pro_6000": "miss",
        "grammar_rtx_3090": "hit",
        "areno_h200": "miss",
    }


def test_what_dynamic_k_costs_where_it_never_drafts(document):
    """Gemma-4-31B on an H100 NVL: tokens take what they took, and the two cells that set the constants are met."""
    for row in document["zero_drafts"]:
        (plain, dynamic), (ours, theirs) = row["published_ms"], row["predicted_ms"]
        assert abs(ours / plain - 1.0) < 0.13
        assert theirs > ours
        if row["fitted"]:
            assert abs(theirs / ours - dynamic / plain) < 0.01
