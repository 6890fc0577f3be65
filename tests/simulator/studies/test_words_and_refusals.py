"""Sentences of a comparison follow its figures; loads keep the shape of arrivals; studies without sense are refused."""

import json
import re

import pytest
from made_comparison import made_comparison, made_swing, made_variant
from refused import refused
from scenario_parts import drafts, on_h100
from tiny_scenario import tiny_data

import simulator
from forerun.document import read_document
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario, scenario_from
from simulator.studies.assumed import with_hits_scaled
from simulator.studies.compare.document import CompareDocument, compare_sentence
from simulator.studies.plan.trials import planned_load

METRIC = "output_throughput"


def speedup(ratio, low=None, high=None):
    return {METRIC: None if ratio is None else {"ratio": ratio, "low": low, "high": high}}


def sentence(*speedups, **changes):
    variants = [made_variant(name, one) for name, one in zip("abcd", [{METRIC: None}, *speedups], strict=False)]
    return compare_sentence(read_document(CompareDocument, made_comparison(variants, METRIC, **changes)))


@pytest.mark.parametrize(
    ("speedups", "pattern"),
    [
        ([(1.5, 1.4, 1.6)], r"^b improves .*1\.50x over a \(95 % interval 1\.40x to 1\.60x\)"),
        ([(1.5, 0.9, 2.0)], "does not differ surely from a"),
        ([(0.8, 0.7, 0.9)], r"^a has the better output throughput: b reaches 0\.80x(?!.*the others worse still)"),
        ([(0.8, 0.7, 0.9), (0.5, 0.4, 0.6)], "the others worse still"),
        ([(1.1,), (1.3,)], "^c improves "),  # without intervals the ratio decides
        ([(None,)], "none can be compared with a"),
    ],
)
def test_the_verdict_is_the_side_of_one_on_which_the_interval_lies(speedups, pattern):
    assert re.search(pattern, sentence(*(speedup(*one) for one in speedups)))


def test_every_load_at_which_a_variant_starts_or_stops_to_pay_is_named():
    sides = [(8.0, 7.0, 9.0, "below"), (16.0, None, None, "above")]
    places = [dict(zip(("variant", "value", "low", "high", "better"), ("b", *side), strict=True)) for side in sides]
    loads = ((4.0, 1.4), (12.0, 0.95), (32.0, 1.2))
    points = [{"value": value, "ratio": ratio, "low": None, "high": None} for value, ratio in loads]
    along = {"path": "workload.arrivals.max_concurrency", "metric": METRIC}
    curves = {**along, "requested": False, "curves": [{"variant": "b", "points": points}]}
    crossover = {**along, **places[0], "all": places}
    assert (
        "it pays below about 8 concurrent requests (7 to 9) and above about 16 concurrent requests; at other loads it "
        "costs up to 5%"
    ) in sentence(speedup(1.5, 1.4, 1.6), crossover=crossover, load_curves=curves, scenario=tiny_data())


def test_what_a_variant_costs_where_it_cannot_keep_up_is_not_left_out():
    along = {"path": "workload.arrivals.request_rate", "metric": METRIC}
    place = {"variant": "b", "value": 8.0, "low": 7.0, "high": 9.0, "better": "below"}
    points = [{"value": v, "ratio": r, "low": None, "high": None} for v, r in ((4.0, 1.4), (12.0, 0.98), (24.0, 0.6))]
    curves = {**along, "requested": False, "curves": [{"variant": "b", "points": points}]}
    served = {"path": along["path"], "requested": None, "a": 20.0, "b": 16.0}
    changes = {"crossover": {**along, **place, "all": [place]}, "load_curves": curves, "served_load": served}
    words = sentence(speedup(1.5, 1.4, 1.6), scenario=tiny_data(), **changes)
    assert "above it costs up to 2% where both keep up, 40% where one does not" in words


def test_assumptions_that_turn_the_verdict_over_are_named():
    rows = [made_swing(name, ["b"]) for name in ("acceptance", "host time per step", "x", "y")]
    assert "It rests on acceptance, host time per step, x and others" in sentence(
        speedup(1.5, 1.4, 1.6), sensitivity=rows
    )
    assert "and others" not in sentence(speedup(1.5, 1.4, 1.6), sensitivity=rows[:2])
    calm = [made_swing("acceptance", ["c"])]
    assert "No assumed parameter reverses this" in sentence(speedup(1.5, 1.4, 1.6), sensitivity=calm)
    assert "No assumed" not in sentence(speedup(1.5, 1.4, 1.6), sensitivity=calm, basis="datasheet")
    assert "It rests on" not in sentence(speedup(1.5, 0.9, 2.0), sensitivity=rows), "no verdict, nothing to turn over"


@pytest.mark.parametrize(
    ("arrivals", "kept"),
    [
        ({"process": "gamma", "request_rate": 2.0, "burstiness": 0.5}, ("gamma", 0.5)),
        ({"process": "constant", "request_rate": 2.0}, ("constant", None)),
        ({"process": "poisson", "request_rate": 2.0}, ("poisson", None)),
        ({"process": "closed-loop", "max_concurrency": 3}, ("poisson", None)),
    ],
)
def test_another_rate_keeps_how_requests_arrive(arrivals, kept):
    requested = scenario_from(tiny_data(arrivals=arrivals), "test")
    load = planned_load(requested, 40, own_arrivals=False)
    result = load.at(requested, 9.0).workload
    assert (result.arrivals.process, result.arrivals.burstiness) == kept
    assert (result.arrivals.request_rate, result.num_requests) == (9.0, 40)


def test_a_verdict_needs_a_long_run():
    requested = scenario_from(tiny_data(num_requests=12), "test")
    free, inputs = (planned_load(requested, count, own_arrivals=False) for count in (None, 40))
    assert inputs.long_enough(requested, 5.0, 1.0) == inputs
    longer = [free.long_enough(requested, rate, 1.0).requests for rate in (1.0, 2.0, 4.0)]
    assert longer[0] >= 12
    assert longer[2] == pytest.approx(2 * longer[1], abs=1)
    assert free.long_enough(requested, 1.0, 1e3).requests > longer[0], "who may wait long shows only in a long run"


@pytest.mark.parametrize("config", [{"hit_rate": [0.2, 0.9]}, {"hit_rate": 0.6},
                                    {"hit_rate_by_context": [[1024, 0.9], [16384, 0.5]]}])  # fmt: skip
def test_hit_rates_are_scaled_and_never_pass_one(config):
    data = tiny_data() | {"attention_speculation": config, "hardware": {"chip": "n300", "speculative_parallel": 2}}
    before, after = scenario_from(data, "test"), with_hits_scaled(scenario_from(data, "test"), 1.5)

    def rates(scenario, context):
        inputs = scenario.attention_speculation
        return inputs.layer_hit_rates(2, context)

    for context in (1024, 16384):
        expected = [min(1.0, 1.5 * rate) for rate in rates(before, context)]
        assert rates(after, context) == pytest.approx(expected)
    plain = scenario_from(tiny_data(), "test")
    assert with_hits_scaled(plain, 1.5) is plain


def test_a_study_is_no_scenario_and_a_name_may_be_too_long(tmp_path):
    file = tmp_path / "study.json"
    file.write_text(json.dumps({"scenario": tiny_data(), "vary": {"engine.max_num_seqs": [1, 2]}}))
    with refused("is a study file; forerun compare and forerun sweep take it"):
        load_scenario(file)
    file.write_text(json.dumps(tiny_data() | {"model": "a/" + "x" * 5000}))
    with refused() as caught:
        simulate(load_scenario(file))
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("speculation", "words"),
    [(None, "the intervals contain no chance"), (drafts("ngram", 2, 0.5), "such as acceptance")],
)
def test_a_comparison_on_a_trace_says_what_is_left_to_chance(tmp_path, speculation, words):
    trace = tmp_path / "few.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},64,8\n" for i in range(6)))
    scenario = on_h100({"trace": str(trace)}, model="llama-3.2-1b", speculation=speculation)
    few = {"replications": 2, "crossover": "none", "sensitivity": False, "jobs": 1}
    result = simulator.compare(scenario, vary={"engine.max_num_seqs": [2, 8]}, **few)
    (note,) = [note for note in result.document["notes"] if note.startswith("every run replays the same requests")]
    assert note.endswith(words)
