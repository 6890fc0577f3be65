"""``tune --worth``: what a better drafter is worth by load, and the acceptance length that pays."""

import pytest
from plain_scenario import plain_scenario

from simulator.running.metrics.usage import HOURS_PER_MONTH
from simulator.studies.tune.command import tune
from simulator.studies.tune.tuning import find_drafts
from simulator.studies.tune.worth import draft_worth

BATCHES = (1, 16, 256)


def scenario(**changes):
    acceptance = {"per_position": [0.73, 0.52, 0.35]}
    return plain_scenario(
        inputs=1024,
        outputs=256,
        engine={"framework": "vllm"},
        speculation={"method": "eagle3", "num_speculative_tokens": 3, "acceptance": acceptance},
    ).with_values({"prices": {"usd_per_chip_hour": 2.0}, **changes})


@pytest.fixture(scope="module")
def tuned():
    return find_drafts(scenario(), BATCHES, (512, 8192))


@pytest.fixture(scope="module")
def worths(tuned):
    return {(one.improvement, one.batch): one for one in draft_worth(tuned)}


def test_more_accepted_tokens_gain_their_share_of_a_lone_request(tuned, worths):
    """Alone, a token takes step / length: the gain is that of the length."""
    length = tuned.break_even[-3].expected_length
    assert worths["+0.1 tokens per step", 1].gain == pytest.approx((length + 0.1) / length, rel=1e-9)
    assert worths["rates 5 % higher", 1].gain > worths["+0.1 tokens per step", 1].gain


def test_half_the_drafting_time_is_worth_the_time_that_drafting_took(tuned, worths):
    cell, (grid, plain_s, times) = tuned.mean[0], tuned.priced
    place, column = tuned.choices.index(cell.best), len(tuned.cells)
    whole = float(times[place].seconds(cell.best.length(grid.contexts))[column])
    none = grid.token_time(cell.best.scenario, cell.best.length(grid.contexts), {}, 0.0)
    free = float(none.seconds(cell.best.length(grid.contexts))[column])
    assert worths["half the drafting time", 1].gain == pytest.approx(whole / ((whole + free) / 2), rel=0.01)
    assert free < whole < plain_s[column]


def test_dollars_are_those_of_a_replica_that_runs_all_month(worths):
    one = worths["rates 5 % higher", 16]
    assert one.usd_per_month == pytest.approx(2.0 * HOURS_PER_MONTH * (1.0 - 1.0 / one.gain))
    assert all(one.low <= one.gain <= one.high for one in worths.values())


def test_where_no_draft_pays_nothing_is_gained():
    lost = find_drafts(scenario(**{"speculation.acceptance": {"alpha": 0.05}}), (1, 256), (512,))
    assert {round(one.gain, 12) for one in draft_worth(lost) if one.batch == 256} == {1.0}


def test_a_longer_window_is_worth_something_beyond_the_trained_one():
    window = {"speculation.draft": {"trained_window": 1024}, "workload.input_tokens": 4096}
    worths = draft_worth(find_drafts(scenario(**window), (1,), (512,)))
    assert [one.gain > 1.1 for one in worths if one.improvement == "acceptance holds at any context"] == [True]
    names = {one.improvement for one in draft_worth(find_drafts(scenario(), (1,), (512,)))}
    assert "acceptance holds at any context" not in names


def test_every_cell_has_the_acceptance_length_that_pays(tuned):
    for cell, even in zip((*tuned.cells, *tuned.mean), tuned.break_even, strict=True):
        assert (even.expected_length > even.acceptance_length) == (cell.best_speedup > 1.0)
        assert even.low <= even.acceptance_length <= even.high


def test_the_document_has_it_only_where_requested():
    result = tune(scenario(prices=None), batch=[1, 8], context=[512], worth=True)
    assert {table.name for table in result.tables()} >= {"worth", "pays"}
    assert all(one["usd_per_month"] is None for one in result.document["worth"])
    assert "Of the drafter's improvements most is gained by" in result.conclusion
    assert "worth" not in tune(scenario(), batch=[1], context=[512]).document
