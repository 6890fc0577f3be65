"""Published speed-ups of speculation: the table, its predictions, gates, and rows that nothing was fitted to."""

import pytest

from forerun.errors import ForerunError
from simulator.replay.scores import exceeded, parse_limit
from validation.speculation import (
    Comparison,
    Unpredicted,
    case_of,
    compare_published,
    compare_row,
    curve_scores,
    group_scores,
    load_published,
)

GROUPS = ["gptoss_h200", "magicdec"]
ROWS = load_published()


def rows(group):
    return [row for row in ROWS if row.group == group]


@pytest.fixture(scope="module")
def gptoss():
    compared, left = compare_published(rows("gptoss_h200"))
    assert not left
    return compared


def test_gptoss_grid_with_what_users_get(gptoss):
    """No profile, routing or head of its own: speedup within 10 % everywhere, 4 % on average."""
    for item in gptoss:
        assert abs(item.error) < 0.10, item.row.id
    assert group_scores(gptoss)[0].mape < 4
    assert group_scores(gptoss)[0].right_sign >= 90


def test_open_loop_eagle3_of_kubecon_loses_at_every_rate():
    compared, _ = compare_published(rows("kubecon2025")[:2])
    assert [item.predicted < 1.0 for item in compared] == [True, True]
    assert all(abs(item.error) < 0.1 for item in compared)


@pytest.mark.parametrize(("method", "below", "above"), [("draft", 8, 10), ("ngram", 4, 8)])
def test_speculation_of_2024_crosses_over_where_it_did(method, below, above):
    """vLLM's blog of 2024-10: a drafter stops paying between 8 and 10 requests/s, n-grams between 4 and 8. Fitted at
    1 request/s alone, by physics: with the learned correction of products n-grams gain 5.3 % less there (3.9 %)."""
    row = next(row for row in rows("vllm_blog2024") if row.method == method)
    gains = [compare_row(row._replace(load=str(rate))).predicted for rate in (1, below, above)]
    assert gains[0] == pytest.approx(row.speedup, rel=0.06)
    assert gains[0] > gains[1] > 1.0 > gains[2]


def test_tables_of_engines_that_others_measured():
    """SGLang's and vLLM V0's tables, to which nothing was fitted, and Spec-Bench's, to one row: mean error of every
    fourth row, in percent."""
    for group, most in (("eagle3_t3", 15), ("eagle3_t5", 20), ("specbench", 12), ("hass", 12)):
        compared, _ = compare_published(rows(group)[::4])
        assert group_scores(compared)[0].mape < most, group


def test_ranking_of_k_at_every_load(gptoss):
    """gpt-oss-120b with EAGLE-3: the published order of K = 0 and those K that were published, at 8 of 9 loads."""
    right = 0
    for load in sorted({item.row.load for item in gptoss}):
        here = [item for item in gptoss if item.row.load == load]
        gains = [{"0": 1.0} | {i.row.tokens: gain(i) for i in here} for gain in (lambda i: i.row.speedup, predicted)]
        right += len({tuple(sorted(gain, key=lambda k: -gain[k])) for gain in gains}) == 1
    assert right >= 8


def predicted(item):
    return item.predicted


def test_magicdec_within_what_one_constant_per_gpu_leaves():
    """One attention constant per GPU, fitted to one row of each: mean error of all rows below 10 %."""
    compared, _ = compare_published(rows("magicdec"))
    assert group_scores(compared)[0].mape < 10


def test_magicdec_gains_grow_with_the_batch():
    compared, left = compare_published([row for row in rows("magicdec") if row.hardware == "A100"])
    assert not left
    assert len(compared) >= 4
    gains = {}
    for item in compared:
        gains.setdefault((item.row.model, item.row.method, item.row.input_tokens), []).append(
            (int(item.row.load), item.predicted)
        )
    assert all(item.predicted > 1 for item in compared)
    assert all([gain for _, gain in sorted(of)] == sorted(gain for _, gain in of) for of in gains.values())


METRICS = ("mape", "bias", "wrong_sign")


def test_gates_hold_or_say_what_broke(gptoss):
    def broken(text, compared=gptoss):
        return exceeded([parse_limit(text, METRICS, GROUPS)], [(s.group, s.group, s) for s in group_scores(compared)])

    assert broken("gptoss_h200.mape=10") == []
    (words,) = broken("gptoss_h200.mape=0.1")
    assert words.startswith("gptoss_h200: mape ")
    assert broken("gptoss_h200.wrong_sign=0", [one._replace(predicted=1 / one.predicted) for one in gptoss])
    with pytest.raises(ForerunError, match="no 'magicdec' rows were scored"):
        broken("magicdec.bias=50")


@pytest.mark.parametrize("text", ["map=3", "gptos_h200.mape=3", "gptoss_h200.mean=3", "all.mape=x", "all.mape=-1"])
def test_bad_gates_are_refused(text):
    with pytest.raises(ForerunError, match="--fail-above"):
        parse_limit(text, METRICS, GROUPS)


def test_every_row_names_its_source_and_is_there_once():
    assert len(ROWS) > 400
    assert len({row.id for row in ROWS}) == len(ROWS)
    assert all(len(row.source) > 5 and row.speedup > 0 for row in ROWS)


def test_speedups_are_the_ratio_of_their_two_figures():
    """Where a source gives both sides: seconds fall and tokens per second rise by the speedup."""
    checked = 0
    for row in ROWS:
        if row.baseline and row.speculative and row.unit:
            ratio = row.speculative / row.baseline
            assert min(abs(ratio / row.speedup - 1), abs(1 / ratio / row.speedup - 1)) < 0.06, row
            checked += 1
    assert checked > 80


def test_deepseek_mtp_within_three_percent_and_best_k_within_rounding():
    """No constant was fitted on this table; the largest error is 2.1 %, at K = 2."""
    result = [compare_row(row) for row in rows("trtllm_dsr1_mtp")]
    assert [item.row.tokens for item in result] == ["1", "2", "4", "5"]
    assert all(abs(item.error) < 0.03 for item in result)
    best = max(result, key=lambda item: item.predicted)
    assert best.row.tokens in ("2", "4")  # published: 2.25 and 2.21 within their rounding


def test_constants_fitted_on_one_table_hold_on_another():
    """vLLM's host costs come from #20780 at K = 2 and 6; #16937 is another run of the same heads."""
    errors = [compare_row(row).error for row in rows("vllm16937")]
    assert len(errors) == 3
    assert max(map(abs, errors)) < 0.08


def test_a_row_that_cannot_be_predicted_says_why():
    reasons = {row.group: case_of(row) for row in ROWS}
    for group, part in (
        ("chen2023", "TPU"),
        ("peagle_vs_eagle3", "baseline"),
        ("vllm12755", "fixed number"),
        ("clover", "not in the catalogue"),
    ):
        outcome = reasons[group]
        assert isinstance(outcome, Unpredicted)
        assert part in outcome.reason


def test_prompts_dilute_the_speedup():
    """The same steps, longer prompts: what speculation does not touch takes a larger share."""
    row = next(row for row in rows("trtllm_dsr1_mtp"))
    short, long = (compare_row(row._replace(input_tokens=n, output_tokens=32)) for n in (64, 8192))
    assert isinstance(short, Comparison)
    assert isinstance(long, Comparison)
    assert long.predicted < short.predicted


def test_prompts_of_requests_that_one_step_ends_share_a_pass():
    """Launches bound a mixture's prompts under SGLang, so that two together take as long as one: with sixteen streams a
    verify step ends half a request, with 32 a whole one, and of steps that end any more than one."""
    row = next(row for row in rows("dflash_t3") if row.id == "dflash_t3-06")
    few, many = (compare_row(row._replace(load=load)).predicted for load in ("16", "32"))
    assert many > few


def test_curves_beyond_their_fit():
    scores = curve_scores()
    assert len(scores) >= 8
    errors = sorted(abs(score.error) for score in scores)
    assert errors[len(errors) // 2] < 0.05


def test_command_scores_one_table(forerun):
    document = forerun("validate", "speculation", "--group", "trtllm_blog02", "--json", "-").document
    assert [group["group"] for group in document["groups"]] == ["trtllm_blog02"]
    assert all("frameworks.yaml: trtllm" in row["constants"] for row in document["rows"])
