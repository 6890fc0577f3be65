"""Plans within a budget of watts: what it supplies, what needs more for it, and carbon over the day."""

import pytest
from scenario_parts import on_h100, poisson

from forerun.errors import ForerunError
from hwprofiles import load_chip
from simulator.studies.plan.command import plan
from simulator.studies.plan.document import carbon_of
from simulator.studies.study_file import study_of

SLO = {"p99_ttft_ms": 2000, "p99_tpot_ms": 60}


def chat():
    return on_h100(poisson(4, 60, 256, 32), model="llama-3.2-1b", engine={"max_num_seqs": 16})


def planned(budget, **options):
    vary = {"hardware.tensor_parallel": [1], "engine.max_num_batched_tokens": [8192]} | options.pop("vary", {})
    arguments = {"requests": 60, "replications": 1, "jobs": 1, "interval": False, "slo": SLO}
    return plan(study_of(chat(), vary), max_rate=True, power_budget_w=budget, **arguments | options).document


@pytest.fixture(scope="module")
def capped():
    return planned(10_000, vary={"hardware.power_limit_w": [700, 400]}, carbon=400)


def test_every_layout_gets_the_replicas_that_the_budget_supplies(capped):
    result = {row["set"]["hardware.power_limit_w"]: row for row in capped["candidates"]}
    assert {limit: row["replicas"] for limit, row in result.items()} == {700: 14, 400: 25}
    for limit, row in result.items():
        assert row["board_w"] == limit * row["chips"] <= 10_000 < limit * (row["chips"] + 1)
        assert row["rate_per_kw"] == pytest.approx(1e3 * row["max_rate"] / row["board_w"])
        assert row["power_w"] <= row["board_w"], "nothing draws more than its boards may"
    assert "within 10,000 W" in capped["conclusion"]
    assert capped["power_budget_w"] == 10_000


def test_the_rate_is_that_of_one_replica_times_as_many(capped):
    row = capped["candidates"][0]
    vary = {"hardware.power_limit_w": [row["set"]["hardware.power_limit_w"]]}
    (single,) = planned(row["board_w"] / row["replicas"], vary=vary)["candidates"]
    assert single["replicas"] == 1
    assert row["max_rate"] == pytest.approx(row["replicas"] * single["max_rate"])
    assert row["power_w"] == pytest.approx(row["replicas"] * single["power_w"])
    usd = single["usd_per_million_output_tokens"]
    assert row["usd_per_million_output_tokens"] == pytest.approx(usd, rel=1e-5), "tokens are counted whole"


def test_carbon_follows_from_the_energy_of_a_token(capped):
    row = capped["candidates"][0]
    joules = 1e6 / row["output_tokens_per_joule"]
    assert row["g_co2_per_million_output_tokens"] == pytest.approx([joules / 3.6e6 * 400] * 3)


def test_a_layout_that_the_budget_cannot_feed_says_so():
    result = planned(0.5 * load_chip("h100-sxm").power.tdp_w)
    (row,) = result["candidates"]
    assert row["status"] == "pruned"
    assert "more than the budget of 350 W" in row["reason"]


def test_carbon_over_the_day_counts_every_hour_as_long_as_it_lasts(tmp_path):
    day = tmp_path / "day.csv"
    day.write_text("hour,g_per_kwh\n0,300\n6,100\n18,200\n")
    assert carbon_of(day) == pytest.approx(((6 * 300 + 12 * 100 + 6 * 200) / 24, 100, 300))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hour,grams\n", "line 1"),
        ("hour,g_per_kwh\n", "no hour"),
        ("hour,g_per_kwh\n0,x\n", "line 2"),
        ("hour,g_per_kwh\n3,1\n2,1\n", "line 3"),
        ("hour,g_per_kwh\n3,-1\n", "line 2"),
    ],
)
def test_a_day_that_is_none_is_refused_with_its_line(tmp_path, text, says):
    day = tmp_path / "day.csv"
    day.write_text(text)
    with pytest.raises(ForerunError, match=says):
        carbon_of(day)
