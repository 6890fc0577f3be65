"""``tune --router``: the search for a routing rule, its gain on fresh seeds, and the files that it writes."""

import pytest
import yaml
from numpy.testing import assert_allclose

import forerun as fr
from forerun.errors import ForerunError
from simulator.launch.endpoint_picker import read_endpoint_picker
from simulator.running.scenario import Scenario, load_scenario
from simulator.studies.compare.command import compare
from simulator.studies.tune.command import tune_router
from simulator.studies.tune.routes import rule_words


def fleet(**changes):
    load = {"arrivals": {"request_rate": 12.0}, "output_tokens": 30,
            "shared_prefixes": {"groups": 8, "prompts": 6, "system_tokens": 3000, "question_tokens": 100}}  # fmt: skip
    return {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm", "replicas": 3}, "workload": load} | changes


def scored(**router):
    return {"engine": {"routing": "scored"}, "router": router}


BEST = {"filters": [{"filter": "prefix-affinity", "peak_prefill_tokens_per_s": 40000.0}],
        "scorers": [{"scorer": "token-load"}]}  # fmt: skip


@pytest.fixture(scope="module")
def from_round_robin():
    return tune_router(fleet(), rules=6, replications=3, jobs=1)


def test_affinity_beats_round_robin_where_prompts_share_prefixes(from_round_robin):
    data = from_round_robin.data
    assert data.better
    assert data.gain.low > 1.0
    assert "prefix" in data.best.rule
    assert from_round_robin.conclusion.startswith(f"{data.best.rule} is better than yours (round-robin): ")
    assert from_round_robin.scenario.engine.routing == "scored"


def test_the_gain_is_that_of_a_comparison_on_the_same_seeds(from_round_robin):
    """And the search has used other seeds, so that the best of many is not favoured."""
    given, best = Scenario(**fleet()), from_round_robin.scenario
    again = compare({"given": given, "best": best}, replications=3, crossover="none", sensitivity=False,
                    interval=False, metric="mean_e2el_ms", jobs=1)  # fmt: skip
    gain = again.data.compared[0].speedup["mean_e2el_ms"]
    assert_allclose([gain.ratio, gain.low], [from_round_robin.data.gain.ratio, from_round_robin.data.gain.low])
    searched = next(row for row in from_round_robin.data.rules if row.rule == from_round_robin.data.best.rule)
    assert searched.ratio != from_round_robin.data.gain.ratio


def test_no_rule_is_named_better_than_one_that_is_as_good():
    data = fleet(workload={"arrivals": {"request_rate": 1.0}, "input_tokens": 200, "output_tokens": 20,
                           "num_requests": 60}, **scored(scorers=[{"scorer": "requests"}]))  # fmt: skip
    result = tune_router(data, rules=6, replications=3, jobs=1)
    routing = result.scenario.engine.routing
    assert any("no endpoint-picker.yaml" in note for note in result.document["notes"]) == (routing != "scored")
    assert not result.data.better
    assert result.conclusion.startswith("No rule is better than yours (requests): the best of ")
    assert rule_words(result.scenario) == "requests"
    assert yaml.safe_load(result.files["best.yaml"])["router"]["scorers"] == [{"scorer": "requests"}]


def test_rules_of_one_search_share_their_seeds_and_a_second_search_finds_the_same(from_round_robin):
    again = tune_router(fleet(), rules=6, replications=3, jobs=1)
    assert again.data == from_round_robin.data
    runs = {row.runs for row in again.data.rules}
    assert runs == {1, 2, 4}
    own = next(row for row in again.data.rules if row.rule == "round-robin")
    assert (own.runs, own.ratio) == (4, 1.0)


def test_other_settings_of_the_router_stay():
    result = tune_router(fleet(router={"latency_s": 0.25, "table_tokens": 9000}), rules=4, replications=2, jobs=1)
    for row in result.data.rules:
        assert row.router["latency_s"] == 0.25
        assert row.router["table_tokens"] == 9000


def test_the_search_starts_from_the_given_rule_and_varies_its_numbers():
    given = scored(filters=[{"filter": "prefix-affinity", "threshold": 0.77, "peak_prefill_tokens_per_s": 5000.0}],
                   scorers=[{"scorer": "session", "weight": 3.0}, {"scorer": "token-load"}])  # fmt: skip
    result = tune_router(fleet(**given), rules=10, replications=2, jobs=1)
    names = [row.rule for row in result.data.rules]
    assert "prefix-affinity 0.77, until 18 s at 5,000 tok/s; 3 session + 1 token-load" in names
    assert sum("session" in name for name in names) > 2


def test_the_files_are_the_given_scenario_the_best_and_the_endpoint_picker_s(tmp_path, from_round_robin):
    from_round_robin.save(tmp_path)
    assert load_scenario(tmp_path / "scenario.yaml").engine.routing == "round-robin"
    best = load_scenario(tmp_path / "best.yaml")
    assert best == from_round_robin.scenario
    picker = read_endpoint_picker(str(tmp_path / "endpoint-picker.yaml"), pooled=False)
    assert [one["scorer"] for one in picker.router["scorers"]] == [one.scorer for one in best.router.scorers]


def test_the_command_prints_the_rule_and_refuses_what_has_no_effect(tmp_path, forerun):
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(fleet()))
    words = ("tune", file, "--router", "--rules", 3, "--replications", 2, "--jobs", 1, "--no-progress")
    outcome = forerun(*words, "--metric", "p90_ttft_ms", "--emit", "endpoint-picker")
    assert "in p90 TTFT" in outcome.out
    assert "kind: EndpointPickerConfig" in outcome.out
    assert "has no effect with --router" in forerun(*words, "--tokens", "1,2").err
    assert "no metric 'speed'" in forerun(*words, "--metric", "speed").err
    assert "there is nothing to route" in forerun(*words, "--set", "hardware.replicas=1").err


def test_equal_scores_on_a_recorded_trace_depend_on_the_seed():
    """A run whose rule draws at random is not the same run under another seed."""
    assert Scenario(**fleet() | {"workload": {"trace": "azure-conv-2023"}, **scored(**BEST)}).random
    assert not Scenario(**fleet() | {"workload": {"trace": "azure-conv-2023"}}).random


def test_a_fleet_whose_own_rule_cannot_run_is_refused():
    with pytest.raises(ForerunError, match=r"engine\.routing"):
        fr.tune_router(fleet(engine={"routing": "nonesuch"}))
