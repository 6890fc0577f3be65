"""What a plan is for: the rate of its benchmark commands, and the part of a long trace that stands for it."""

import re

import numpy as np
import pytest
from scenario_parts import lognormal, on_h100, poisson

from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.studies.artefacts import artefact
from simulator.studies.compare.command import compare
from simulator.studies.plan.command import plan
from simulator.studies.plan.trials import planned_load
from simulator.studies.steady_state.estimate import estimate
from simulator.workload import generate_requests

QUICK = {
    "slo": {"p99_ttft_ms": 2000, "p99_tpot_ms": 80},
    "vary": {"hardware.tensor_parallel": [1], "engine.max_num_batched_tokens": [8192]},
    "replications": 1,
    "requests": 300,
    "headroom": False,
    "interval": False,
    "jobs": 1,
}
RATE = {"vllm-bench": r"--request-rate (\S+)", "guidellm": r"rate=([\d.]+)", "aiperf": r"--request-rate (\S+)"}


@pytest.mark.parametrize("name", RATE)
@pytest.mark.parametrize("load", [{"rate": 40.0}, {"growth": 8.0}, {"max_rate": True}])
def test_benchmark_commands_offer_the_planned_rate(name, load):
    planned = plan(on_h100({"trace": "azure-conv-2023"}), **QUICK | load)
    text = artefact(name, planned.scenario)
    rate = planned.document["request_rate"] or planned.best["max_rate"]
    assert float(re.search(RATE[name], text)[1]) == pytest.approx(rate, rel=5e-3)
    replicas = planned.best["replicas"]
    assert (f"router of {replicas} replicas" in text) == (replicas > 1)
    if replicas > 1:
        assert f"{rate / replicas:.3g}" in text.split("\n")[0]


@pytest.fixture
def day(tmp_path):
    """A log whose requests come every 10 s, but for an hour in which they come every second."""
    gaps = np.full(5000, 10.0)
    gaps[2000:3500] = 1.0
    arrival = np.cumsum(gaps)
    path = tmp_path / "day.csv"
    rows = [f"{at:.1f},{100 + n % 7},{20 + n % 5}" for n, at in enumerate(arrival)]
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("load", [{}, {"growth": 3.0}])
def test_a_part_of_a_trace_is_its_busiest(day, load):
    planned = plan(on_h100({"trace": str(day)}), **QUICK | load | {"requests": 1000})
    assert planned.document["request_rate"] == pytest.approx(load.get("growth", 1.0), rel=0.01)
    assert any("busiest 1,000 requests in a row, from 5:33:10 to 5:49:49" in note for note in planned.document["notes"])
    played = generate_requests(planned.scenario.workload, 0)
    assert len(played) == 1000
    assert played.arrival_s[-1] == pytest.approx(999 / load.get("growth", 1.0))


def test_skipped_rows_begin_at_time_zero(day):
    def stream(**part):
        return generate_requests(on_h100({"trace": str(day)} | part).workload, 0)

    whole, part = stream(), stream(skip_requests=1990, num_requests=20)
    assert part.arrival_s.tolist() == (whole.arrival_s[1990:2010] - whole.arrival_s[1990]).tolist()
    assert part.input_tokens.tolist() == whole.input_tokens[1990:2010].tolist()
    with pytest.raises(ForerunError, match=r"workload.skip_requests: 5000 skipped, .* has 5000 requests"):
        stream(skip_requests=5000)


LOAD = on_h100(
    poisson(10.0, 200, lognormal(600, 0.8, 4000), lognormal(120, 0.6, 1000)), prices={"usd_per_chip_hour": 2.0}
)
SLO = {"p99_ttft_ms": 400, "p99_tpot_ms": 25}
FEW = {"vary": {"hardware.tensor_parallel": [1]}, "replications": 2, "requests": 200, "jobs": 1}


@pytest.mark.parametrize("confidence", [0.6, 0.9])
@pytest.mark.parametrize("rate", [18.0, 30.0, 60.0])
def test_what_holds_does_so_with_the_confidence_requested(rate, confidence):
    """Of the runs and of the model's error; a layout below it misses, whatever it costs less."""
    planned = plan(LOAD, rate=rate, slo=SLO, confidence=confidence, **FEW)
    assert planned.best is not None
    for row in planned.document["candidates"]:
        sure = row["confidence"]
        if row["status"] == "meets":
            assert sure["probability"] >= confidence
            assert sure["share"] >= confidence
            assert row["max_rate"] is None or row["max_rate"] >= rate
            assert row["max_rate"] is None or row["headroom"] >= 0.0
    assert "%" in planned.conclusion
    assert "more than requested" not in planned.conclusion


def test_more_confidence_never_costs_less():
    plans = [plan(LOAD, rate=60.0, slo=SLO, confidence=one, headroom=False, **FEW) for one in (0.5, 0.9, 0.99)]
    costs = [float("inf") if one.best is None else one.best["usd_per_hour"] for one in plans]
    assert costs == sorted(costs)


def test_the_highest_rate_is_one_that_is_met_with_confidence():
    surer, less = (
        plan(LOAD, max_rate=True, slo=SLO, confidence=one, **FEW | {"requests": 800}).best for one in (0.9, 0.6)
    )
    assert surer["confidence"]["probability"] >= 0.9
    assert less["confidence"]["probability"] >= 0.6
    assert surer["max_rate"] < less["max_rate"]


def test_the_highest_rate_with_the_model_error_lies_near_that_without():
    """Near capacity a slower engine misses by a factor of tens: no margin on the limit finds the rate that is sure."""
    arrivals = poisson(20.0, 2000, lognormal(500, 0.8, 4096), lognormal(200, 0.6, 1024))
    data = on_h100(arrivals, engine={"api_server_count": 8})  # one server would limit the faster layout
    vary = {"hardware.tensor_parallel": [1, 8], "engine.max_num_batched_tokens": [2048]}
    given = {"max_rate": True, "slo": {"p99_ttft_ms": 500}, "vary": vary, "jobs": 1}
    with_error, without = (
        {row["layout"]: row["max_rate"] for row in plan(data, interval=interval, **given).document["candidates"]}
        for interval in (True, False)
    )
    assert with_error.keys() == without.keys()
    assert all(0.8 * rate < with_error[layout] <= rate for layout, rate in without.items())


def test_a_more_lenient_limit_never_lowers_the_highest_rate():
    """Beyond some seconds only a growing queue reaches a limit, so a thousand seconds hold what ten do."""
    given = QUICK | {"max_rate": True, "requests": None}
    scenario = on_h100(poisson(8.0, 64, 512, 64), engine={"max_num_seqs": 8})
    rates = [plan(scenario, **given | {"slo": {"p99_ttft_ms": 1e3 * s}}).best["max_rate"] for s in (2, 10, 1000)]
    assert rates == sorted(rates)
    assert rates[2] < 1.1 * rates[0]


def test_a_load_far_above_all_layouts_names_what_they_serve():
    planned = plan(
        on_h100(poisson(8.0, 64, 512, 64)), **QUICK | {"rate": 1e6, "max_replicas": 1, "slo": {"p99_ttft_ms": 20}}
    )
    assert "cannot keep up: it serves about" in planned.conclusion


@pytest.mark.parametrize("seed", [100, 200])
def test_a_run_of_the_planned_deployment_meets_the_slo(seed):
    """Plan, then run with seeds that the plan has not seen."""
    planned = plan(LOAD, rate=40.0, slo=SLO, headroom=False, **FEW)
    summaries = [simulate(planned.scenario, seed + n).summary for n in range(5)]
    met = [all(summary[key] <= limit for key, limit in SLO.items()) for summary in summaries]
    assert np.mean(met) >= 0.8


SESSIONS = {
    "arrivals": {"request_rate": 0.5},
    "sessions": {"turns": 5, "think_time_s": 4.0},
    "input_tokens": 200,
    "output_tokens": 50,
    "num_requests": 20,
}


def test_a_plan_of_conversations_serves_all_their_turns_and_says_what_its_rate_counts():
    scenario = on_h100(SESSIONS)
    planned = plan(scenario, **{key: value for key, value in QUICK.items() if key != "requests"}, rate=2.0)
    played = planned_load(scenario, None, own_arrivals=False).long_enough(scenario, 2.0, 1.0)
    assert played.requests == 5 * 2 * 3 * (60 + 2 * 4 * 4), "turns of three minutes, and of the rise of the load"
    assert "2 conversations per second" in planned.title
    assert "max conversations/s" in planned.tables()[0].columns
    assert "in each of 5 turns" in planned.document["plan_summary"]["traffic"]
    client = artefact("vllm-bench", planned.scenario)
    assert float(re.search(RATE["vllm-bench"], client)[1]) == pytest.approx(10.0)


def test_a_long_run_holds_the_highest_rate_of_conversations_and_not_much_more():
    talks = {"sessions": {"turns": 8, "think_time_s": 1.0}, "input_tokens": 64, "output_tokens": 128}
    scenario = on_h100(poisson(0.5, 64, 64, 128) | talks, engine={"max_num_seqs": 4})
    highest = plan(scenario, max_rate=True, **QUICK | {"requests": None}).best.max_rate
    for share, held in ((0.85, True), (1.25, False)):
        load = {"workload.arrivals.request_rate": share * highest, "workload.num_requests": 12_000}
        assert simulate(scenario.with_values(load | {"slo": QUICK["slo"]})).meets_slo == held


def test_growing_conversations_have_no_steady_state_in_closed_form():
    with pytest.raises(ForerunError, match=r"^workload\.sessions: prompts that grow from turn to turn"):
        estimate(on_h100(SESSIONS))
    compared = compare(on_h100(SESSIONS), vary={"engine.max_num_seqs": [1, 8]}, replications=1, jobs=1, interval=False)
    assert "can be served" not in compared.conclusion
    curves = next(table for table in compared.tables() if table.name == "load curves")
    assert all(str(row[0]).endswith(" conversations/s") for row in curves.rows)


def test_a_plan_moves_its_progress_with_every_candidate_that_is_judged_and_every_rate_that_is_searched():
    """Headroom takes most of the time: the highest rates of what holds, a failed replica, twice the load."""
    seen = []
    options = FEW | {"requests": None, "replications": 1, "interval": False}
    planned = plan(LOAD, rate=10.0, slo=SLO, **options, progress=lambda done, total: seen.append((done, total)))
    tried = sum(one["status"] in ("meets", "misses") for one in planned.document["candidates"])
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    assert len(seen) >= 2 * tried
    assert all(done <= total for done, total in seen)
