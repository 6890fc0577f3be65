"""Capacity plans: the winner is that of exhaustive simulation, the highest rate that of a fine sweep."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_scenario import plain_scenario
from scenario_parts import drafts, lognormal, on_h100, poisson
from tiny_scenario import tiny_data

from forerun.errors import ForerunError, InvariantError
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario, scenario_from
from simulator.studies.plan.command import plan
from simulator.studies.plan.document import plan_document
from simulator.studies.plan.layouts import layouts, search_axes
from simulator.studies.plan.objectives import GOODPUT, latency_words, limits_words, objective_of, reached, resampled
from simulator.studies.plan.options import PlanOptions
from simulator.studies.plan.search import (
    highest_by_hour,
    hourly_rates,
    infeasible_reason,
    make_plan,
    miss_words,
    overload,
)
from simulator.studies.plan.summary import headroom_words
from simulator.studies.plan.trials import (
    Held,
    Observation,
    find_highest_rate,
    highest_rate,
    holds_unloaded,
    judge,
    planned_load,
    trial,
)
from simulator.studies.study_file import StudyFile, Variant, parse_vary, settings_name

VARY = ("hardware.tensor_parallel=1,2", "engine.max_num_batched_tokens=512,4096", "hardware.replicas=1,2,3")
SLO = ("p99_ttft_ms=400", "p99_tpot_ms=25")
CHAT = """
model: llama-3.1-8b
hardware: {chip: a100-sxm-80gb}
workload:
  arrivals: {process: poisson, request_rate: 12.0}
  input_tokens: {distribution: lognormal, mean: 600, cv: 0.8, max: 4000}
  output_tokens: {distribution: lognormal, mean: 120, cv: 0.6, max: 1000}
  num_requests: 200
prices: {usd_per_chip_hour: 2.0}
"""


@pytest.fixture
def chat(tmp_path):
    file = tmp_path / "chat.yaml"
    file.write_text(CHAT)
    return file


def study(file, *vary):
    return StudyFile(str(file), load_scenario(file), parse_vary(vary), ())


def planned_for(file, *vary, slo=SLO, **options):
    """A plan with few runs of few requests."""
    few = {"replications": 2, "requests": 200, "headroom": False, "jobs": 1}
    return make_plan(study(file, *vary), objective_of({}, slo), PlanOptions(**few | options))


@pytest.mark.parametrize(
    ("slo", "rate"), [(SLO, 30.0), (("mean_ttft_ms=60",), 20.0), (("goodput=0.9", "ttft_ms=300", "tpot_ms=18"), 12.0)]
)
def test_winner_is_that_of_the_whole_grid(chat, slo, rate):
    objective = objective_of({}, slo)
    planned = planned_for(chat, *VARY, slo=slo, rate=rate, interval=False)
    load = planned_load(planned.study.scenario, 200, own_arrivals=False)
    holding = []
    for layout in layouts(planned.study, search_axes(planned.study)):
        for replicas in (1, 2, 3):
            driven = layout.with_replicas(load.at(layout.scenario, rate), replicas)
            verdict = judge(objective, trial(driven, objective, [0, 1]))
            if verdict.meets:
                cost = layout.usd_per_hour * replicas
                holding.append((cost, verdict.slo_ratio, len(holding), layout.named(replicas)))
    assert (planned.best.name if planned.best is not None else None) == (min(holding)[-1] if holding else None)
    assert len(holding) < 12


def test_a_plan_that_fails_for_the_models_error_alone_names_the_confidence_that_accepts_a_layout():
    scenario = on_h100({**poisson(1.0, 100, 512, 200), "arrivals": {"process": "closed-loop", "max_concurrency": 8}})
    one = {
        "vary": {"hardware.tensor_parallel": [1]},
        "max_replicas": 1,
        "headroom": False,
        "jobs": 1,
        "replications": 2,
    }
    failed = plan(scenario, rate=8.0, slo={"p99_ttft_ms": 60}, **one)
    share = re.search(r"the model's error decides: --confidence (0\.\d+) accepts a layout\.$", failed.conclusion)[1]
    assert any(
        "a closed loop has no rate, so Poisson arrivals are planned" in note for note in failed.document["notes"]
    )
    assert plan(scenario, rate=8.0, slo={"p99_ttft_ms": 60}, confidence=float(share), **one).best is not None


def test_pruned_layouts_miss_when_they_are_simulated(chat):
    objective = objective_of({}, SLO)
    planned = planned_for(chat, *VARY, rate=60.0, requests=1500)
    load = planned_load(planned.study.scenario, 1500, own_arrivals=False)
    pruned = [candidate for candidate in planned.candidates if candidate.status == "pruned"]
    assert pruned
    for candidate in pruned:
        driven = candidate.layout.with_replicas(load.at(candidate.layout.scenario, 60.0), candidate.replicas)
        assert not judge(objective, trial(driven, objective, [0])).meets


@pytest.mark.parametrize("values", [{}, {"speculation": drafts("ngram", 3, 0.6)}])
@pytest.mark.parametrize("key", ["p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "std_e2el_ms"])
def test_what_the_longest_request_alone_holds_every_request_holds_without_load(chat, values, key):
    scenario = load_scenario(chat).with_values({"workload.num_requests": 60, **values})
    light = planned_load(scenario, 60, own_arrivals=False).at(scenario, 0.02)
    message = []
    for limit_ms in (1, 10, 30, 100, 300, 1000, 3000, 10_000, 1e6):
        objective = objective_of({}, [f"{key}={limit_ms}", "p99_e2el_ms=1e9"])
        message.append(holds_unloaded(light, [0, 1], objective))
        if message[-1]:
            assert judge(objective, trial(light, objective, [0, 1])).meets, limit_ms
    assert message == sorted(message)
    assert message[-1]
    assert not message[0]


def test_bisection_agrees_with_a_fine_sweep(chat):
    objective = objective_of({}, SLO)
    scenario = load_scenario(chat)
    load = planned_load(scenario, 250, own_arrivals=False)
    result, tried, verdict, _ = find_highest_rate(scenario, load, objective, [0, 1], 10.0)
    assert verdict.meets
    rates = result * np.arange(0.9, 1.1, 0.01)
    holds = [judge(objective, trial(load.at(scenario, rate), objective, [0, 1])).meets for rate in rates]
    assert result == pytest.approx(rates[holds.index(False) - 1], rel=0.02)
    assert tried < 15


@pytest.mark.parametrize(
    ("model", "hardware", "slo", "engine"),
    [
        ("llama-3.3-70b", {"chip": "h100-sxm", "tensor_parallel": 4}, SLO, {}),
        ("gpt-oss-120b", {"chip": "h200-sxm"}, ("p95_ttft_ms=1000", "p95_tpot_ms=30"), {}),
        ("qwen3-8b", {"chip": "a100-sxm-80gb"}, ("p99_e2el_ms=20000",), {"max_num_seqs": 32}),
        ("llama-3.1-8b", {"chip": "l40s"}, ("goodput=0.95", "ttft_ms=500", "tpot_ms=40"), {}),
    ],
)
def test_interpolation_finds_the_rate_that_a_bisection_finds(model, hardware, slo, engine):
    lengths = {"input_tokens": lognormal(1000, 0.8, 4096), "output_tokens": lognormal(200, 0.6, 1024)}
    workload = {"arrivals": {"request_rate": 1.0}, "num_requests": 400, **lengths}
    scenario, objective = on_h100(workload, model=model, hardware=hardware, engine=engine), objective_of({}, slo)
    load = planned_load(scenario, 400, own_arrivals=False)

    def slo_ratio_at(rate):
        return judge(objective, trial(load.at(scenario, rate), objective, [0])).slo_ratio

    low, high = 0.1, 100.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slo_ratio_at(middle) <= 1.0 else (low, middle)
    highest, tried = highest_rate(slo_ratio_at, 20.0)
    assert highest == pytest.approx(low, rel=0.03)
    assert tried <= 16


def test_a_miss_that_the_mean_does_not_show_names_the_runs_that_miss():
    objective = objective_of({}, ["p99_ttft_ms=100"])
    runs = [Observation({"p99_ttft_ms": value}, 0, 10, 1.0, 1.0) for value in (90.0, 80.0, 70.0, 60.0, 130.0)]
    verdict = judge(objective, runs)
    assert not verdict.meets
    assert miss_words(verdict, 0.9) == "p99 TTFT 86 ms, and only 80% of 5 runs meet the SLO (90% required)"
    assert miss_words(judge(objective, runs[:4]), 0.9) == "p99 TTFT 75 ms"


@given(threshold=st.floats(1e-3, 1e3), guess=st.floats(1e-2, 1e2))
def test_bisection_brackets_any_threshold(threshold, guess):
    result, tried = highest_rate(lambda rate: rate / threshold, guess)
    assert threshold / 1.01 <= result <= threshold
    assert tried <= 40
    for held in (0.0, guess / 4):
        result, tried = highest_rate(lambda rate: 2.0, guess, held=held)
        assert result == held, "no other holds"
        assert tried <= 16


def test_trace_is_replayed_and_growth_presses_it_together(project_root):
    vary = ("hardware.tensor_parallel=1", "engine.max_num_batched_tokens=2048")
    options = {"slo": ("p99_ttft_ms=1000", "p99_tpot_ms=60"), "growth": 9.0, "requests": 600, "headroom": True}
    planned = planned_for(project_root / "examples" / "chat-h100.yaml", *vary, **options)
    document = plan_document(planned)
    custom = planned_load(planned.study.scenario, 600, own_arrivals=True).recorded_rate
    assert document["request_rate"] == pytest.approx(9 * custom)
    best = document["best"]
    assert best["replicas"] == 3
    assert best["confidence"]["method"] == "block bootstrap"
    assert best["max_rate"] >= document["request_rate"]
    points = best["load_points"]
    assert points[0]["request_rate"] == document["request_rate"]
    assert len(points) > 2, "every load of the search is a point"
    assert max(p["request_rate"] for p in points if p["meets_slo"]) == pytest.approx(best["max_rate"])
    cost = points[0]["usd_per_million_output_tokens"] * points[0]["output_tokens_per_s_per_chip"]
    assert cost == pytest.approx(best["usd_per_hour"] / best["chips"] / 3600 * 1e6, rel=1e-3)
    assert document["next_cheaper"]["layout"].startswith("2 x h100-sxm")
    assert document["plan_summary"]["next cheaper"].startswith("2 x h100-sxm TP1 fails: p99")


def test_refused_layouts_are_listed_with_their_reason(chat):
    vary = ("model=llama-3.1-8b,llama-3.1-405b", "hardware.tensor_parallel=1,3", "hardware.replicas=1")
    planned = planned_for(chat, *vary, rate=2.0, confidence=0.8)
    reasons = {candidate.name: candidate.reason for candidate in planned.candidates if candidate.status == "refused"}
    assert len(reasons) == 6
    for words in ("do not divide by 3", "does not fit"):
        assert any(words in reason for reason in reasons.values())
    assert planned.best is not None


def test_same_seed_same_plan_whatever_the_processes(chat):
    single, shared = (planned_for(chat, *VARY, rate=20.0, jobs=jobs) for jobs in (1, 2))
    assert plan_document(single) == plan_document(shared)


def test_highest_rate_of_every_layout(chat):
    vary = ("hardware.tensor_parallel=1,2", "engine.max_num_batched_tokens=2048", "hardware.replicas=1")
    rows = plan_document(planned_for(chat, *vary, max_rate=True, confidence=0.8))["candidates"]
    rates = [row["max_rate"] for row in rows]
    assert rates == sorted(rates, reverse=True)
    assert [row["set"]["hardware.tensor_parallel"] for row in rows] == [2, 1]
    assert all(row["values"]["p99_ttft_ms"] <= 400 and row["values"]["p99_tpot_ms"] <= 25 for row in rows)
    assert rows[0]["flags"]["vllm"].startswith("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel")


def test_prices_of_other_chips_come_from_their_profiles(chat):
    vary = ("hardware.chip=a100-sxm-80gb,h100-sxm", "hardware.tensor_parallel=1", "hardware.replicas=1,2,3")
    planned = planned_for(chat, *vary, rate=8.0)
    prices = {c.layout.scenario.hardware.chip: c.layout.usd_per_hour for c in planned.candidates}
    assert prices == {"a100-sxm-80gb": 2.0, "h100-sxm": 2.65}
    assert planned.by_price
    assert any("price of a100-sxm-80gb" in note for note in planned.notes)
    document = plan_document(planned)
    sources = {chip: one["source"] for row in document["candidates"] for chip, one in row["prices"].items()}
    assert sources == {
        "a100-sxm-80gb": "given with the plan",
        "h100-sxm": "assumed: Hugging Face GPU price dataset, cloud on-demand, 2026",
    }
    words = document["plan_summary"]["price of a chip for an hour"]
    assert all(f"({source})" in words for source in sources.values())


@pytest.mark.parametrize(
    ("limit", "replicas", "overloaded"),
    [("p99_ttft_ms=1000", 1, True), ("p99_ttft_ms=1e7", 1, False), ("p99_ttft_ms=1000", 40, False)],
)
def test_bounds_know_what_they_do_not_know(chat, limit, replicas, overloaded):
    steady, arrivals = layouts(study(chat), {})[0].steady, np.arange(4000) / 400.0
    assert bool(overload(steady, objective_of({}, (limit,)), replicas, arrivals, 1.0)) == overloaded
    assert overload(None, objective_of({}, SLO), 1, arrivals, 1.0) is None
    assert infeasible_reason(steady, objective_of({}, ("p99_ttft_ms=1",))) is not None
    assert infeasible_reason(steady, objective_of({}, ("p50_ttft_ms=1",))) is None


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ((), "at least one limit"),
        (("p99_ttft=5",), "not a latency limit"),
        (("p99_ttft_ms",), "write KEY=VALUE"),
        *(((f"p99_ttft_ms={limit}",), "must be a positive number without") for limit in (-3, "soon", "nan", "inf")),
        (("goodput=0.9",), "what a good request is"),
        (("goodput=1.5", "ttft_ms=9"), r"\(0, 1\]"),
        (("ttft_ms=9",), "needs the share"),
        (("p99_tpot_ms=50",), "wait in the queue for ever"),
    ],
)
def test_objectives_that_are_none(texts, words):
    with pytest.raises(ForerunError, match=words):
        objective_of({}, texts)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["p99_ttft_ms=0.5"], "is out of reach"),
        (["p99_ttft_ms=9", "--set", "model=deepseek-v3"], "No layout can be built"),
    ],
)
def test_nothing_that_holds_is_a_verdict(chat, forerun, arguments, words):
    outcome = forerun("plan", chat, "--rate", 2, "--slo", *arguments, "--jobs", 1, "--requests", 50)
    assert outcome.code == 1
    assert words in " ".join(outcome.out.split())


def test_command_writes_what_it_says(chat, forerun, tmp_path):
    out = tmp_path / "out"
    arguments = "--rate 3 --requests 60 --jobs 1 --replications 1 --slo p99_ttft_ms=2000"
    vary = "--vary hardware.tensor_parallel=1,2 --json -"
    document = forerun("plan", chat, *arguments.split(), *vary.split(), "--out", out).document
    assert document["best"]["chips"] == 1
    needed = "layout chips usd_per_hour usd_per_million_output_tokens max_rate meets_slo binding bottleneck basis flags"
    assert all(set(needed.split()) <= set(row) for row in document["candidates"])
    names = sorted(path.name for path in out.iterdir())
    assert names == ["plan.json", "report.html", "report.md", "study.yaml", "summary.html"]
    report = (out / "report.md").read_text()
    assert document["conclusion"].split(" is the cheapest")[0] in report
    rerun = report.split("```sh\nforerun ")[1].split("\n")[0].split()
    rerun[1] = str(out / "study.yaml")
    assert forerun(*rerun, "--json", "-", "--jobs", 1).document["candidates"] == document["candidates"]


def test_what_misses_at_any_load_is_given_up_at_once():
    """A ratio that the load does not move, beside one that falls with it and one that a low load alone meets."""
    assert highest_rate(lambda rate: 1.3 + 1e-3 * rate, 10.0) == (0.0, 3)
    assert highest_rate(lambda rate: 0.9 + 0.05 * rate, 10.0)[0] == pytest.approx(2.0, rel=0.01)
    assert highest_rate(lambda rate: 1.02 if rate > 0.3 else 0.99, 10.0)[0] == pytest.approx(0.3, rel=0.01)


def test_scenarios_own_speculation_is_tried_on_and_off(chat):
    scenario = load_scenario(chat).with_values({"speculation": drafts("ngram", 3, 0.5)})
    assert search_axes(StudyFile("here", scenario, {}, ()))["speculation.method"] == ("ngram", "none")


def test_experts_on_all_chips_stay_so_at_every_number_of_chips():
    hardware = {"chip": "h100-sxm", "tensor_parallel": 4, "expert_parallel": 4}
    scenario = plain_scenario("gpt-oss-120b", "h100-sxm", 100, 10, 10).with_values({"hardware": hardware})
    tried = StudyFile("here", scenario, {}, ())
    spread = [layout.scenario.hardware for layout in layouts(tried, {"hardware.tensor_parallel": (1, 2, 8)})]
    assert [one.expert_parallel for one in spread] == [one.tensor_parallel for one in spread] == [1, 2, 8]
    half = replace(tried, scenario=scenario.with_values({"hardware.expert_parallel": 2}))
    assert [one.scenario.hardware.expert_parallel for one in layouts(half, {"hardware.tensor_parallel": (4, 8)})] == [
        2,
        2,
    ]


def test_a_fault_of_one_layout_is_a_row_and_not_the_end(chat, monkeypatch):
    """The runs of two-chip layouts break an invariant; the plan goes on and says so."""
    from simulator.studies.plan import search

    honest = search._judge

    def faulty(scenario, *rest):
        if scenario.hardware.tensor_parallel == 2:
            raise InvariantError("a step ends before it starts", "{}", 0)
        return honest(scenario, *rest)

    monkeypatch.setattr(search, "_judge", faulty)
    few = {"replications": 1, "requests": 100, "headroom": False, "jobs": 1, "confidence": 0.8}
    result = plan(study(chat, *VARY), rate=12.0, slo=SLO, **few)
    rows = {row["status"]: row for row in result.document["candidates"]}
    assert result.best is not None
    assert "a step ends before it starts" in rows["error"]["reason"]
    assert rows["error"]["meets_slo"] is None
    assert "Internal errors; please report them" in [table.title for table in result.tables()]


def test_a_spare_replica_is_rented_and_the_brief_says_what_it_is_for(chat):
    arguments = {"rate": 3.0, "slo": {"p99_ttft_ms": 2000.0}, "vary": {"hardware.tensor_parallel": [1]}}
    bare, spare = (plan(chat, **arguments, requests=60, replications=1, jobs=1, spare=spare) for spare in (0, 1))
    assert (bare.best["replicas"], spare.best["replicas"]) == (1, 2)
    assert spare.best["usd_per_hour"] == 2 * bare.best["usd_per_hour"]
    assert spare.best["set"]["hardware.replicas"] == 2
    assert spare.best["layout"].startswith("1+1 x a100-sxm-80gb")
    assert spare.best["max_rate"] == bare.best["max_rate"], "what holds with the spare one down"
    without, brief = (result.document["plan_summary"] for result in (bare, spare))
    assert (
        "while it is down nothing is served; one more replica keeps every limit, for $1,460"
        in without["a replica fails"]
    )
    assert "1 of the 2 may be down and, as predicted," in brief["a replica fails"]
    assert brief["how sure"].startswith("every limit is met as predicted, and with")
    assert "--spare 1" in spare.command


def test_the_brief_tells_cost_failure_growth_and_what_would_change_it(chat, tmp_path):
    slo, vary = {"p99_ttft_ms": 1500.0, "p99_tpot_ms": 60.0}, {"hardware.tensor_parallel": [1]}
    arguments = {"rate": 24.0, "slo": slo, "vary": vary, "requests": 500, "replications": 1, "finalists": 1, "jobs": 1}
    result = plan(chat, **arguments)
    brief, best = result.document["plan_summary"], result.best
    unsearched = plan(chat, **arguments, headroom=False).document["plan_summary"]
    fewer = f"{best['replicas'] - 1} of {best['replicas']} replicas"
    assert not {"a replica fails", "twice the load"} & unsearched.keys(), "what was not computed is not there"
    assert brief["usd_per_month"] == 730 * best["usd_per_hour"]
    assert f"{fewer} left" in brief["a replica fails"]
    replicas = int(brief["twice the load"].split()[0])
    assert best["replicas"] < replicas <= 2 * best["replicas"] + 1
    assert f"{best['headroom']:.0%} more traffic" in brief["what would change it"]
    assert result.table("plan_summary").rows
    result.save(tmp_path)
    page = (tmp_path / "summary.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", page)
    wanted = ["Traffic and promise", "What would change the decision", "Prices", "Decision"]
    assert headings == ["Every chip that was compared, with its cost from best to worst case", *wanted]
    text = re.sub("<(style|script).*?</\\1>|<.*?>", " ", page, flags=re.S)
    assert not re.findall(r"--[a-z]|[a-z]+_[a-z]+|TP\d|-token steps|not tried", text), "no names of options or fields"
    highest = plan(chat, max_rate=True, slo=slo, vary=vary, requests=60, replications=1, jobs=1)
    assert highest.document["plan_summary"] is None


def test_the_page_to_present_has_every_chip_with_its_evidence_and_risk(chat, tmp_path):
    chips = ["mi300x", "h100-sxm", "a100-sxm-80gb"]
    few = {"requests": 200, "replications": 1, "finalists": 1, "jobs": 1}
    vary = {"hardware.chip": chips, "hardware.tensor_parallel": [1], "engine.max_num_batched_tokens": [2048]}
    prices = {"mi300x": 2.0, "h100-sxm": 30.0, "a100-sxm-80gb": 40.0}
    scenario = load_scenario(chat).with_values({"prices": {"usd_per_chip_hour": prices}})
    result = plan(scenario, rate=60.0, slo={"p99_ttft_ms": 1500.0, "p99_tpot_ms": 60.0}, vary=vary, **few)
    result.save(tmp_path)
    page = (tmp_path / "summary.html").read_text()
    text = " ".join(re.sub("<(style|script).*?</\\1>|<.*?>", " ", page, flags=re.S).split())
    rows = {row["chip"]: row for row in result.document["by_chip"]}
    assert list(rows) == chips, "each of them, though two cost fifteen times the cheapest"
    for row in rows.values():
        low, high = row["usd_per_month_range"]
        assert low <= row["usd_per_month"] == 730 * prices[row["chip"]] * row["chips"] <= high
        assert re.search(r"replicas? left|while it is down nothing is served", row["replica_fails"])
        assert "replicas" in row["twice_the_load"]
        assert f"${row['usd_per_month']:,.0f}" in text
    assert rows["mi300x"]["usd_per_month_range"][0] < rows["mi300x"]["usd_per_month_range"][1]
    assert (result.best.basis, result.best.probability) == ("datasheet", 0.9)
    assert "with at most 90 % probability on chips that were never measured" in result.conclusion
    assert "never measured on this chip; risk 10 % or more" in text
    assert "h100-sxm: $30.00 an hour (given with the plan)" in text
    assert f"Rent {result.best.chips} mi300x chip for ${730 * result.best.usd_per_hour:,.0f} a month" in text
    assert "99 of 100 requests start to answer within 1.5 s" in text
    assert "h100-sxm" in text.partition("is the cheapest that was measured")[0].rpartition(". ")[2]


def test_prices_by_name_hold_for_the_chip_of_a_file_and_a_run_says_which_it_lacks(chat, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: h100-sxm\nname: mine\n")
    few = {"requests": 60, "replications": 1, "finalists": 1, "jobs": 1, "headroom": False, "interval": False}
    scenario = load_scenario(chat).with_values(
        {"hardware.chip": str(mine), "prices": {"usd_per_chip_hour": {"mine": 7.5}}}
    )
    planned = plan(scenario, rate=2.0, slo={"p99_ttft_ms": 3000.0}, vary={"hardware.tensor_parallel": [1]}, **few)
    assert planned.best.usd_per_hour == 7.5
    priced, other = (
        simulate(scenario.with_values({"workload.num_requests": 20, "hardware.chip": chip})).document
        for chip in (str(mine), "l40s")
    )
    assert priced["cost_usd"] > 0
    assert not any("prices" in note for note in priced["notes"])
    assert other["cost_usd"] is None
    assert "prices.usd_per_chip_hour: no price of l40s (only mine), so no cost is known" in other["notes"]


def test_only_the_price_of_another_chip_would_change_the_answer(chat):
    few = {"requests": 60, "replications": 1, "finalists": 4, "jobs": 1, "headroom": False, "interval": False}
    for path, values in (("hardware.tensor_parallel", [1, 2]), ("hardware.chip", ["a100-sxm-80gb", "h100-sxm"])):
        summary = plan(chat, rate=2.0, slo={"p99_ttft_ms": 3000.0}, vary={path: values}, **few).document["plan_summary"]
        named = re.findall(r"a price \d+% lower for", summary["what would change it"])
        assert len(named) == (path == "hardware.chip")


def test_cheaper_layouts_that_are_less_sure_stand_in_one_line(chat, monkeypatch):
    """One replica meets the SLO as predicted; a chance of 79 % is less than the 90 % required, of two it is 95 %."""
    from simulator.studies.plan import search

    monkeypatch.setattr(
        search, "chance_to_hold", lambda run, *_: Held(0.79 if run.hardware.replicas == 1 else 0.95, {}, {})
    )
    planned = planned_for(chat, "hardware.tensor_parallel=1", rate=2.0)
    assert planned.best.replicas == 2
    text = plan_document(planned)["plan_summary"]["cheaper, less sure"]
    assert re.fullmatch(
        r"1 x a100-sxm-80gb TP1, \d+-token steps \(1 chip, \$1,460 a month\) with 79 % probability", text
    )
    monkeypatch.setattr(search, "chance_to_hold", lambda *_: Held(0.95, {}, {}))
    sure = plan_document(planned_for(chat, "hardware.tensor_parallel=1", rate=2.0))["plan_summary"]
    assert "cheaper, less sure" not in sure


def test_variants_keep_their_names_and_sections_are_spelled_out(chat):
    variants = [Variant("half price", {"prices": {"usd_per_chip_hour": 1.0}}, load_scenario(chat))]
    named = replace(study(chat, "hardware.tensor_parallel=1"), variants=tuple(variants))
    first = layouts(named, search_axes(named))[0]
    assert first.name == "a100-sxm-80gb TP1, 2048-token steps, half price"
    assert settings_name({"prices": {"usd_per_chip_hour": 2.6}}) == "usd_per_chip_hour=2.6"


def test_prices_by_chip(chat):
    arguments = {"slo": {"p99_ttft_ms": 2000.0}, "requests": 60, "replications": 1, "jobs": 1, "headroom": False}
    vary = {"hardware.tensor_parallel": [1], "hardware.chip": ["a100-sxm-80gb", "h100-sxm"],
            "engine.max_num_batched_tokens": [2048]}  # fmt: skip
    priced = load_scenario(chat).with_values({"prices.usd_per_chip_hour": {"a100-sxm-80gb": 1.5, "h100-sxm": 9.0}})
    result = plan(priced, rate=2.0, vary=vary, finalists=2, **arguments)
    rows = {row["set"]["hardware.chip"]: row["usd_per_hour"] for row in result.document["candidates"]}
    assert rows == {"a100-sxm-80gb": 1.5, "h100-sxm": 9.0}
    run = simulate(priced.with_values({"workload.num_requests": 20}))
    assert run.document["cost_usd"] == pytest.approx(1.5 * run.summary["duration"] / 3600)


def test_from_a_log_to_a_plan(tmp_path, forerun):
    rows = [f"2024-05-01 10:00:{second:02d},{300 + 10 * second},{40 + second}" for second in range(60)]
    log = tmp_path / "my.csv"
    log.write_text("\n".join(["when,prompt_toks,gen_toks", *rows, ""]))
    words = "--slo p99_ttft_ms=2000 --vary hardware.tensor_parallel=1 --jobs 1 --no-headroom --json -"
    command = ("plan", log, *words.split())
    document = forerun(*command).document
    message = " ".join(document["notes"])
    assert "taken: model llama-3.1-8b, hardware.chip h100-sxm (--set model=NAME --set hardware.chip=NAME" in message
    assert "arrival = 'when', input = 'prompt_toks', output = 'gen_toks'" in message
    assert document["request_rate"] == pytest.approx(60 / 59, rel=0.05)
    other = ["--map", "arrival=when,input=gen_toks,output=prompt_toks", "--set", "model=llama-3.2-1b"]
    turned = forerun(*command, *other).document
    columns = {"arrival": "when", "input": "gen_toks", "output": "prompt_toks"}
    assert turned["scenario"]["workload"]["columns"] == columns
    assert not any("guessed" in note or "model" in note for note in turned["notes"])
    assert "is a log of requests, not a scenario; forerun plan" in forerun("run", log).error_line
    assert "--map arrival: write WORD=COLUMN" in forerun(*command, "--map", "arrival").error_line


def test_a_profile_is_planned_for_its_busiest_moment_and_by_the_hour():
    profile = [(0, 0.2), (28_800, 0.3), (43_200, 2.0), (72_000, 1.6), (86_400, 0.2)]
    workload = poisson(20.0, 200, 512, 64)
    workload["arrivals"]["profile"] = profile
    axes = {"hardware.tensor_parallel": (1,), "engine.max_num_batched_tokens": (2048,)}
    slo = {"p99_ttft_ms": 300, "p99_tpot_ms": 12}
    few = {"replications": 1, "requests": 200, "finalists": 1, "max_replicas": 8, "jobs": 1, "interval": False}
    result = plan(on_h100(workload), slo=slo, vary=axes, **few)
    hours, most = result.document["hours"], result.best["replicas"]
    assert result.document["request_rate"] == 40
    assert [hour["start_s"] for hour in hours] == [3600 * n for n in range(24)]
    assert hours[0]["request_rate"] == pytest.approx(20 * (0.2 + 0.1 / 8))
    assert max(hour["request_rate"] for hour in hours) == 40
    by_rate = sorted((hour["request_rate"], hour["replicas"]) for hour in hours)
    assert [n for _, n in by_rate] == sorted(n for _, n in by_rate)
    assert (by_rate[0][1], by_rate[-1][1]) == (1, most)
    assert most > 1
    assert "by the hour" in result.document["plan_summary"]
    assert result.table("hours").rows[0][3] == 1
    shorter = highest_by_hour([(0, 1.0), (240, 3.0)])
    assert len(shorter) == 24
    assert shorter[-1] == (230, 1.0)


def test_a_plan_of_pools_finds_how_many_replicas_each_needs():
    """The example has two of each; the decode pool is one larger than it has to be."""
    scenario = load_scenario("examples/disaggregated-h100.yaml").with_values({"workload.num_requests": 200})
    result = plan(scenario, replications=1, headroom=False, interval=False, jobs=1)
    document = result.document
    pools = [row for row in document["candidates"] if row["layout"].startswith("prefill")]
    assert len(pools) == 36
    assert pools[0]["layout"] == "prefill 2 x h200-sxm TP1 + decode 1 x h100-sxm TP1"
    assert pools[0]["flags"]["vllm"].count("vllm serve") == 2
    commands = next(table for table in result.tables() if table.name == "commands").rows
    assert not any("\n" in str(cell) for row in commands for cell in row), "a pasted line is a comment or a command"
    assert any("pools.prefill.hardware.tensor_parallel" in note for note in document["notes"])
    best = document["best"]
    assert best["layout"] == "3 x h100-sxm TP1, not split", "equal replicas are tried too"
    assert best["usd_per_hour"] == 3 * 2.5 < pools[0]["usd_per_hour"]


def test_pools_for_twice_the_load_are_searched_and_not_only_rented_twice():
    scenario = load_scenario("examples/disaggregated-h100.yaml").with_values({"workload.num_requests": 200})
    vary = {"pools.prefill.hardware.replicas": [2, 3, 4], "pools.decode.hardware.replicas": [1, 2]}
    document = plan(scenario, vary=vary, replications=1, interval=False, jobs=1).document
    (row,) = [row for row in document["by_chip"] if row["chip"] == "h200-sxm + h100-sxm"]
    words = re.fullmatch(r"(prefill .*) \((\d+) chips, \$([\d,]+) a month\)", row["twice_the_load"])
    assert words is not None, row["twice_the_load"]
    assert words[1] in {one["layout"] for one in document["candidates"]}
    assert float(words[3].replace(",", "")) < 2 * row["usd_per_month"]


SHARE = ("goodput=0.9", "ttft_ms=500", "tpot_ms=50")


@pytest.fixture(scope="module")
def result():
    return simulate(scenario_from(tiny_data(num_requests=80), "test"))


def test_slo_ratio_is_a_share_of_the_limit_or_of_the_bad_requests_allowed():
    latency, share = objective_of({}, ("p99_ttft_ms=200",)), objective_of({}, SHARE)
    assert latency.slo_ratio("p99_ttft_ms", 50.0) == 0.25
    assert latency.slo_ratio("p99_ttft_ms", None) == 0.0, "what was never measured breaks no limit"
    assert share.slo_ratio(GOODPUT, 0.95) == pytest.approx(0.5)
    assert share.slo_ratio(GOODPUT, 0.8) == pytest.approx(2.0)
    all_of_them = objective_of({}, ("goodput=1", "ttft_ms=500"))
    assert [all_of_them.slo_ratio(GOODPUT, value) for value in (1.0, 0.999)] == [0.0, inf]


def test_what_was_reached_is_what_the_requests_say(result):
    requests = result.requests
    ttft = 1e3 * (requests.first_token_s - requests.arrival_s)
    tpot = 1e3 * (requests.finished_s - requests.first_token_s) / (requests.output_tokens - 1)
    values = reached(objective_of({}, ("mean_ttft_ms=900", "p99_itl_ms=900", *SHARE)), result)
    assert values["mean_ttft_ms"] == pytest.approx(ttft.mean())
    gaps = np.repeat(result.gaps.gap_s, result.gaps.count) * 1e3
    assert gaps.min() <= values["p99_itl_ms"] <= gaps.max()
    assert values["p99_itl_ms"] >= np.quantile(gaps, 0.98)
    fine = (ttft <= 500) & ~(tpot > 50)
    assert values[GOODPUT] == pytest.approx(fine.mean())


def test_resamples_scatter_about_the_run(result):
    objective = objective_of({}, ("mean_ttft_ms=900", *SHARE))
    values = reached(objective, result)
    rows = resampled(objective, result, seed=1)
    assert rows == resampled(objective, result, seed=1) != resampled(objective, result, seed=2)
    for key, value in values.items():
        drawn = np.array([row[key] for row in rows])
        assert abs(drawn.mean() - value) <= 4 * drawn.std() / np.sqrt(len(rows)) + 0.02 * value
    assert np.std([row["mean_ttft_ms"] for row in rows]) > 0
    assert resampled(objective_of({}, ("p99_itl_ms=9", "p99_ttft_ms=9")), result) is None


def test_a_multiple_in_a_sentence_is_written_out():
    assert headroom_words(3083.0, 1.0) == "3,083 times the load"
    assert headroom_words(2.345, 1.0) == "2.35 times the load"


def test_objectives_read_as_sentences():
    objective = objective_of({}, ("p99_ttft_ms=1000", *SHARE))
    assert limits_words(objective) == "p99 TTFT <= 1,000 ms and 0.9 of requests within TTFT <= 500 ms, TPOT <= 50 ms"
    assert latency_words(GOODPUT, 0.875) == "goodput 87.5%"
    assert latency_words(GOODPUT, None) == "goodput unknown"
    assert latency_words("p99_ttft_ms", 812.0) == "p99 TTFT 812 ms"
    assert latency_words("p99_ttft_ms", None) == "p99 TTFT unknown"


def test_replicas_by_the_hour_of_a_log_follow_its_clock_and_cost_no_more_than_the_fixed_fleet(tmp_path, forerun):
    gaps = [400.0] * 8 + [8.0] * 450 + [400.0] * 8  # from 10:30: a slow hour, a busy one, a slow one
    seconds = np.cumsum([0.0, *gaps])
    start = datetime(2024, 5, 1, 10, 30)
    rows = [f"{start + timedelta(seconds=float(one))}+02:00,900,400" for one in seconds]
    log = tmp_path / "day.csv"
    log.write_text("\n".join(["timestamp,prompt_tokens,output_tokens", *rows, ""]))
    words = "--slo p99_tpot_ms=11 --slo p99_ttft_ms=1000 --growth 100 --vary hardware.tensor_parallel=1 --jobs 1 "
    words += "--vary engine.max_num_batched_tokens=2048 --no-interval --json -"
    document = forerun("plan", log, *words.split()).document
    hours, most = document["hours"], document["best"]["replicas"]
    assert [hour["clock"][-5:] for hour in hours] == ["10:30", "11:00", "12:00", "13:00"]
    assert sum(hour["request_rate"] * 3600 for hour in hours[1:3]) == pytest.approx(45000, rel=0.05)
    assert most > 1
    assert max(hour["replicas"] for hour in hours) <= most
    assert hours[0]["replicas"] == 1
    price = document["best"]["usd_per_hour"] / most
    assert all(hour["usd"] == pytest.approx(price * hour["replicas"]) for hour in hours)
    assert all(hour["fixed_usd"] == pytest.approx(price * most) for hour in hours)
    assert "at all hours" in document["plan_summary"]["by the hour"]


def test_hours_of_a_log_without_dates_count_from_its_first_request():
    rates = hourly_rates(np.array([0.0, 10.0, 9000.0]), None)
    assert rates == [(0.0, 2 / 3600), (3600.0, 0.0), (7200.0, 1 / 1800)]
