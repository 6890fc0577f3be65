"""The race: common random numbers, regret that follows from latencies, a certificate that replays, a collapse."""

import csv
import io
import json
from itertools import pairwise

import numpy as np
import pytest
from acceptance_draws import draws
from scenario_parts import drafts, on_h100, poisson

from forerun import ForerunError, simulate
from forerun.parts import AcceptanceSampler, Batch
from forerun.testing import check_policy
from forerun_research.commands import race
from forerun_research.patterns import (
    LEVELS,
    Pattern,
    PatternTraffic,
    Stretch,
    changed,
    drawn,
    read_traffic,
    survival_by_level,
    traffic_of,
)
from forerun_research.race import (
    OFF,
    OWN,
    controlled,
    drafting_scenario,
    is_fixed,
    regret_of,
    run_controller,
    run_pattern,
    steps_of,
)

SPECULATION = drafts("eagle3", 3, acceptance={"per_position": [0.8, 0.6, 0.45]})


def chat(**speculation):
    return on_h100(poisson(4, 50, 512, 128), speculation=SPECULATION | speculation)


def traffic(seed=3, requests=40):
    base = drafting_scenario(chat())
    return base, traffic_of(drawn(np.random.default_rng(seed), requests), steps_of(base))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    result = race(chat(), patterns=4, requests=32, controllers=("goodput", OWN), jobs=1)
    folder = tmp_path_factory.mktemp("race")
    result.save(folder)
    return result, folder


def test_the_sentence_says_who_is_fastest_most_often_beside_who_wins_in_the_mean(finished):
    document = finished[0].document
    fastest = [min(row["latency_s"], key=row["latency_s"].get) for row in document["patterns"]]
    often = max(fastest, key=fastest.count)
    assert often != document["winner"], "else there is nothing to say"
    rows = {row["name"]: row["regret_mean"] for row in document["controllers"]}
    fixed = min((name for name in rows if name == "off" or name.startswith("fixed")), key=rows.__getitem__)
    assert rows[fixed] < rows[document["winner"]], "else a controller wins"
    beaten = f"No controller beats K={fixed.removeprefix('fixed-')} throughout in the mean"
    assert document["conclusion"].startswith(beaten)
    assert f"On {fastest.count(often)} of them {often} is the fastest" in document["conclusion"]


def test_regret_and_certificate_follow_from_the_latencies(finished):
    document = finished[0].document
    for row in document["controllers"]:
        regrets, speeds = [], []
        for pattern in document["patterns"]:
            latency = pattern["latency_s"]
            regrets.append(latency[row["name"]] / min(v for k, v in latency.items() if is_fixed(k)) - 1)
            speeds.append(latency[OFF] / latency[row["name"]])
        assert row["regret_mean"] == pytest.approx(np.mean(regrets))
        assert row["regret_worst"] == pytest.approx(max(regrets))
        assert row["speed_over_off_worst"] == pytest.approx(min(speeds))
    proof = document["certificate"]
    (winner,) = (row for row in document["controllers"] if row["name"] == proof["controller"])
    assert proof["at_least"] == winner["speed_over_off_worst"]
    assert proof["patterns"] == len(document["patterns"]) == 4
    assert not is_fixed(document["winner"])


def test_the_certificates_pattern_replays_to_the_stated_figure(finished):
    result, folder = finished
    again = race(chat(), controllers=("goodput", OWN), replay=folder / "closest.csv").document
    proof = result.document["certificate"]
    (row,) = (row for row in again["controllers"] if row["name"] == proof["controller"])
    assert row["speed_over_off_worst"] == pytest.approx(proof["at_least"], rel=1e-9)


def test_the_pattern_is_a_trace_that_a_scenario_reads(finished, tmp_path):
    scenario = chat().with_values({"workload": {"trace": str(finished[1] / "closest.csv")}})
    assert len(simulate(scenario).requests) == len((finished[1] / "closest.csv").read_text().splitlines()) - 1


def test_the_result_does_not_depend_on_processes_and_has_a_figure(finished):
    other = race(chat(), patterns=4, requests=32, controllers=("goodput", OWN), jobs=2)
    assert other.document == finished[0].document
    assert finished[0].figures == ("regret",)
    assert len(finished[0].figure("regret").data) == len(finished[0].document["controllers"])
    table = json.loads(finished[0].document["emit"]["vllm"])["num_speculative_tokens_per_batch_size"]
    assert [row[2] for row in table] == sorted({row[2] for row in table}, reverse=True), "K falls as batches grow"
    assert all(before[1] + 1 == after[0] for before, after in pairwise(table))


def test_all_controllers_see_the_same_requests_and_draws():
    base, result = traffic()
    assert run_controller(base, "fixed-2", result) == run_pattern(base, ("fixed-2",), result)["fixed-2"]
    one, three = (controlled(base, name, result).main.sampler for name in ("fixed-1", OWN))
    for request in range(4):
        assert (draws(one, request, 0, 20) == np.minimum(draws(three, request, 0, 20), 1)).all()


def test_acceptance_by_request_is_the_one_that_was_requested():
    rates = survival_by_level([0.8, 0.5])
    sampler = AcceptanceSampler(rates, 1, class_of=np.array([0, len(LEVELS) - 1]))
    for request, row in enumerate((0, len(LEVELS) - 1)):
        accepted = draws(sampler, request, 0, 40_000)
        assert np.mean(accepted >= 1) == pytest.approx(rates[row, 0], abs=0.01)
        assert np.mean(accepted >= 2) == pytest.approx(rates[row, 1], abs=0.01)


def test_the_compiled_loop_draws_by_request_as_the_oracle_does():
    base, result = traffic()
    fast, exact = (
        run_controller(base.with_values({"engine.stepping": stepping}), "fixed-3", result).latency_s
        for stepping in ("fast", "exact-steps")
    )
    assert fast == exact


def test_a_table_collapses_where_load_hovers_about_its_threshold_and_our_controller_does_not():
    """vllm-project/vllm#49548 (July 2026): [[1,4,2],[5,512,0]] with MTP K = 2 took 8 requests of 180 tokens from 232 to
    between 24 and 157 tok/s, though neither K is slow by itself. What a change of K costs there was not published: here
    it is what would explain the report: seconds rather than milliseconds."""

    def outcomes(requests, switch_s):
        policy = {"name": "batch-table", "table": [[1, 4, 2], [5, 512, 0]], "switch_s": switch_s}
        policy |= {"step_s": 0.0, "per_sequence_s": 0.0}  # the report is on changes of K alone
        sections = {
            "model": "glm-4.5-air",
            "weights_dtype": "fp8",
            "hardware": {"chip": "rtx-pro-6000", "tensor_parallel": 2},
            "speculation": drafts("mtp", 2, acceptance={"per_position": [0.8, 0.6]}, policy=policy),
        }
        base = drafting_scenario(on_h100(poisson(4, 50, 512, 128), **sections))
        return {name: run_controller(base, name, requests) for name in (OFF, "fixed-2", "batch-table", OWN)}

    eight = PatternTraffic(np.zeros(8), np.full(8, 512), np.full(8, 180), np.ones(8))
    free = outcomes(eight, 0.0)
    assert free["batch-table"].tokens_per_s > 0.6 * free["fixed-2"].tokens_per_s, "no K is slow by itself"
    shares = {}
    for switch_s in (1.0, 30.0):
        result = outcomes(eight, switch_s)
        shares[switch_s] = result["batch-table"].tokens_per_s / result["fixed-2"].tokens_per_s
        assert result[OWN].tokens_per_s > 0.97 * max(result["fixed-2"].tokens_per_s, result[OFF].tokens_per_s)
    assert 24 / 232 < shares[1.0] < 157 / 232
    assert shares[30.0] < 24 / 232
    pattern = Pattern(1, 0.0, 1.0, (Stretch(60, 6.0, 1.0, 512, 180),))
    moderate = traffic_of(pattern, lambda seqs, tokens, context: 0.0195)
    hovering = outcomes(moderate, 0.3)
    assert hovering["batch-table"].latency_s > 1.5 * hovering["fixed-2"].latency_s
    assert regret_of(hovering, OWN) < 0.02


@pytest.mark.parametrize("name", ["p-min", "entropy", OWN])
def test_policies_keep_the_rules(name):
    check_policy(controlled(drafting_scenario(chat(policy=name)), name, traffic()[1]).main.rule.make_policy, 3)


@pytest.mark.parametrize("name", ["p-min", "entropy"])
def test_gates_close_as_acceptance_falls(name):
    policy = controlled(drafting_scenario(chat()), name, traffic()[1]).main.rule.make_policy()
    for accepted, depth in (([3] * 8, 3), ([0] * 8, 1)):
        for _ in range(100):
            policy.observe(3, accepted)
        assert policy.choose(Batch(8, 8000)) == depth


def test_a_controller_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from simulator.speculation.policies import BatchTable\ndef policy(most):\n    return BatchTable((most, 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    document = race(chat(), patterns=1, requests=16, controllers=("mine:policy",), jobs=1).document
    assert document["winner"] == "mine:policy"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1"),
        ("a,b\n1,2\n", "line 1"),
        ("{}\n1,2,3\n", "line 2"),
        ("{}\n-1,2,3,1\n", "line 2"),
        ("{}\n", "none of its"),
    ],
)
def test_a_pattern_that_is_none_is_refused_with_its_line(text, says):
    with pytest.raises(ForerunError, match=says):
        read_traffic(text.format("arrival_s,input_tokens,output_tokens,acceptance_factor"), "p.csv")


def test_patterns_survive_their_file():
    result = traffic()[1]
    again = read_traffic(result.csv, "p.csv")
    assert again.arrival_s.tolist() == result.arrival_s.tolist()
    assert again.level.tolist() == result.level.tolist()
    assert len(list(csv.reader(io.StringIO(result.csv)))) == len(result.arrival_s) + 1


def test_a_changed_pattern_is_near_and_not_the_same():
    rng = np.random.default_rng(1)
    first = Pattern(1, 0.2, 0.5, (Stretch(20, 8.0, 0.7, 512, 64),) * 3)
    second = changed(rng, first)
    assert second != first
    assert len(second.stretches) == 3
    assert (second.hard_share, second.hard_factor) == (first.hard_share, first.hard_factor)
