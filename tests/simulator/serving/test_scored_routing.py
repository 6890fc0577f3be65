"""Routing by filters and scorers: what each scorer counts, what the router knows, and how it chooses."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from plain_scenario import plain_data
from test_routing import Endpoint, log_of

from forerun.errors import ForerunError
from simulator.running.build import build_run
from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import RouterConfig
from simulator.serving.fleet.scored import Scored

SHARED = {"groups": 12, "prompts": 6, "system_tokens": 1500, "question_tokens": 150}


def fleet(router, replicas=4, engine=None, **workload):
    load = {"arrivals": {"process": "poisson", "request_rate": 25.0}, "shared_prefixes": SHARED, "output_tokens": 60}
    return {
        "model": "llama-3.1-8b",
        "hardware": {"chip": "h100-sxm", "replicas": replicas},
        "engine": {"routing": "scored"} | (engine or {}),
        "router": router,
        "workload": load | workload,
    }


def columns(run):
    return {name: np.asarray(values).tolist() for name, values in run.requests.columns().items()}


def scored(log, endpoints=(), **fields):
    """A router, and endpoints with a scheduler behind them."""
    for endpoint in endpoints:
        endpoint.busy = SimpleNamespace(running=[], used_blocks=0, limits=SimpleNamespace(num_blocks=100))
        endpoint.scheduler = lambda endpoint=endpoint: endpoint.busy
    return Scored(RouterConfig.model_validate({"picker": "first"} | fields), log)


def test_one_scorer_without_staleness_is_the_plain_rule_byte_for_byte():
    by_scores = simulate(fleet({"scorers": [{"scorer": "requests"}], "picker": "first"}), 3)
    plain = simulate(fleet({}, engine={"routing": "least-outstanding"}), 3)
    assert columns(by_scores) == columns(plain)


@pytest.mark.parametrize("scorer", ["queue", "running", "kv-use", "load-aware"])
def test_compiled_and_interpreted_engine_route_alike_with_stale_metrics(scorer):
    data = fleet({"scorers": [{"scorer": scorer}], "scrape_interval_s": 0.05})
    data["hardware"]["replicas"] = 2
    exact = {**data, "engine": {**data["engine"], "stepping": "exact-steps"}}
    assert columns(simulate(data)) == columns(simulate(exact))


def test_metrics_are_as_old_as_the_scrape_and_the_routers_own_requests_are_exact():
    burst = {"arrivals": {"process": "burst"}, "num_requests": 40}
    router = {"scorers": [{"scorer": "queue"}], "picker": "first", "scrape_interval_s": 100.0}
    stale = simulate(fleet(router, **burst))
    assert set(stale.requests.replica.tolist()) == {0}, "nothing was queued at the only scrape"
    fresh = simulate(fleet(router | {"scrape_interval_s": 0.0}, **burst))
    assert len(set(fresh.requests.replica.tolist())) == 4
    own = simulate(
        fleet({"scorers": [{"scorer": "requests"}, {"scorer": "queue"}], "scrape_interval_s": 100.0}, **burst)
    )
    assert_array_equal(np.bincount(own.requests.replica), [10] * 4)


def test_affinity_keeps_to_replicas_that_cache_enough_of_the_prompt():
    log = log_of([[1, 2, 3, 4], [1, 2, 3, 9], [1, 8, 8, 8]])
    endpoints = [Endpoint(0), Endpoint(1, outstanding=0)]
    router = scored(log, endpoints, filters=[{"filter": "prefix-affinity", "threshold": 0.75, "max_ttft_penalty_s": 0}],
                    scorers=[{"scorer": "requests"}])  # fmt: skip
    assert router.choose(0, endpoints) is endpoints[0]
    endpoints[0].outstanding = 9
    assert router.choose(1, endpoints) is endpoints[0], "three quarters are cached there, whatever its load"
    assert router.choose(2, endpoints) is endpoints[1], "one quarter is not enough"


def test_affinity_breaks_when_prompts_in_flight_take_longer_than_the_penalty():
    lists = [[1, 2], [1, 2], [7] * 2, [1, 2]]
    log = log_of(lists, prompts=[32] * 4)
    endpoints = [Endpoint(0), Endpoint(1)]
    gate = {"filter": "prefix-affinity", "peak_prefill_tokens_per_s": 100.0}
    patient = scored(log, endpoints, filters=[gate | {"max_ttft_penalty_s": 0.4}], scorers=[{"scorer": "requests"}])
    strict = scored(log, endpoints, filters=[gate | {"max_ttft_penalty_s": 0.3}], scorers=[{"scorer": "requests"}])
    for router, chosen in ((patient, 0), (strict, 1)):
        endpoints[0].outstanding = 0
        assert router.choose(0, endpoints) is endpoints[0]
        endpoints[0].outstanding = 1
        assert router.choose(3, endpoints).index == chosen, "32 tokens at 100 per second are 0.32 s"
    log.first_token_s[0] = 1.0
    again = scored(log, endpoints, filters=[gate | {"max_ttft_penalty_s": 0.3}], scorers=[{"scorer": "requests"}])
    again.choose(0, endpoints[:1])
    assert again.choose(1, endpoints) is endpoints[0], "a first token ends the prompt"


def test_token_load_counts_tokens_that_are_not_cached():
    log = log_of([[1, 2, 3, 4], [5, 6, 7, 8, 9], [1, 2, 3, 4, 5]])
    endpoints = [Endpoint(0), Endpoint(1)]
    router = scored(log, endpoints, scorers=[{"scorer": "token-load", "threshold_tokens": 200}])
    assert router.choose(0, endpoints) is endpoints[0]
    assert router.choose(1, endpoints) is endpoints[1]
    assert router.choose(2, endpoints) is endpoints[0], "64 tokens in flight and 16 new ones, 80 and 80 on the other"


def test_scores_of_metrics_are_those_of_the_endpoint_picker():
    log = log_of([[1]])
    endpoints = [Endpoint(0, outstanding=4), Endpoint(1, outstanding=8), Endpoint(2, outstanding=10)]
    router = scored(log, endpoints, scorers=[{"scorer": "queue"}])
    for endpoint, running, blocks in zip(endpoints, (1, 3, 4), (10, 50, 90), strict=True):
        endpoint.busy.running, endpoint.busy.used_blocks = [None] * running, blocks

    def scores(name, **fields):
        config = RouterConfig.model_validate({"scorers": [{"scorer": name, **fields}]}).scorers[0]
        from simulator.serving.fleet.scored import SCORERS

        return SCORERS[name](config, router.view, 0, endpoints)

    assert_allclose(scores("queue"), [1, 1 / 3, 0])
    assert_allclose(scores("running"), [1, 1 / 3, 0])
    assert_allclose(scores("kv-use"), [0.9, 0.5, 0.1])
    assert_allclose(scores("load-aware", threshold=5), [0.5 * (1 - 3 / 5), 0, 0])
    assert_allclose(scores("requests", idle=4, max_busy_score=0.5), [1, 0.1, 0])
    assert_allclose(scores("prefix"), [0, 0, 0])
    assert_allclose(scores("no-hit-lru"), [1, 1, 1])


def test_new_prefixes_go_to_the_replica_that_was_given_none_for_longest():
    log = log_of([[1], [2], [3], [1]])
    endpoints = [Endpoint(0), Endpoint(1)]
    router = scored(log, endpoints, scorers=[{"scorer": "no-hit-lru"}])
    assert [router.choose(request, endpoints).index for request in range(3)] == [0, 1, 0]


def test_turns_of_a_session_stay_where_the_first_went():
    sessions = {"sessions": {"turns": 4, "think_time_s": 0.5}, "input_tokens": 300, "num_requests": 120,
                "shared_prefixes": None}  # fmt: skip
    for router in (
        {"scorers": [{"scorer": "session", "weight": 5}, {"scorer": "requests"}]},
        {"filters": [{"filter": "session-affinity"}], "scorers": [{"scorer": "requests"}]},
    ):
        run = simulate(fleet(router, **sessions))
        replicas = run.requests.replica.reshape(-1, 4)
        assert (replicas == replicas[:, :1]).all()
        assert len(set(replicas[:, 0].tolist())) == 4


def test_equal_scores_are_decided_by_the_seed():
    data = fleet({"scorers": [{"scorer": "prefix"}]})
    first, again, other = (simulate(data, seed).requests.replica.tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert len(set(first)) >= 3


def test_affinity_finds_more_in_the_caches_than_round_robin_and_events_tell_no_less():
    affinity = {"filters": [{"filter": "prefix-affinity"}], "scorers": [{"scorer": "token-load"}]}
    rates = [
        simulate(data).kv.prefix_hit_rate
        for data in (
            fleet({}, engine={"routing": "round-robin"}),
            fleet(affinity),
            fleet(affinity | {"prefixes": "held"}),
        )
    ]
    assert rates[0] < rates[1]
    assert rates[0] < rates[2]


def test_windows_take_prefixes_out_of_a_router_s_index_as_published():
    """llm-d's pd-disaggregation/benchmark-results/vllm-gpt-oss-120b-h200-multi-tier (vLLM 0.27.1) at 40 req/s.

    Eight prefill and two decode servers gave 22.1 req/s: the router's index forgot prefixes whose windows were evicted.
    """
    scorers = [{"scorer": "prefix", "weight": 3}, {"scorer": "queue", "weight": 2}, {"scorer": "kv-use", "weight": 2}]
    stages = [{"rate": rate, "seconds": 60} for rate in (20, 30, 40)]
    data = fleet({"scorers": scorers, "scrape_interval_s": 0.05}, output_tokens=256)
    data |= {"model": "gpt-oss-120b", "hardware": {"chip": "h200-sxm"}}
    data["engine"] |= {"framework": "vllm", "release": "0.27.0", "block_size": 128}
    data["pools"] = {
        "prefill": {"hardware": {"replicas": 8}},
        "decode": {"hardware": {"replicas": 2, "tensor_parallel": 4}},
    }
    shared = {"groups": 1000, "prompts": 5, "system_tokens": 16000, "question_tokens": 256, "block_tokens": 128}
    data["workload"] |= {"shared_prefixes": shared, "arrivals": {"stages": stages, "drain": 60}}
    rates = {}
    for prefixes in ("held", "held-by-all-layers"):
        data["router"] |= {"prefixes": prefixes}
        rates[prefixes] = simulate(data).document["stages"][-1]["request_throughput"]
    assert_allclose(rates["held-by-all-layers"], 22.1, rtol=0.12)
    assert rates["held"] > rates["held-by-all-layers"]


def test_settings_of_scored_rules_change_no_other_rule():
    """So that one scenario compares rules by ``engine.routing`` alone."""
    settings = {"scorers": [{"scorer": "prefix"}], "prefixes": "held"}
    with_settings, plain = (simulate(fleet(router, engine={"routing": "prefix-aware"})) for router in (settings, {}))
    assert columns(with_settings) == columns(plain)


def test_the_peak_prefill_rate_is_predicted_unless_it_is_given():
    """llm-d measured 15,928 prompt tokens per second of Qwen3-32B on two H100 (its calibration matrix)."""
    router = {"filters": [{"filter": "prefix-affinity"}], "scorers": [{"scorer": "token-load"}]}
    data = fleet(router) | {"model": "qwen3-32b", "hardware": {"chip": "h100-sxm", "tensor_parallel": 2, "replicas": 2}}
    data["engine"]["framework"] = "vllm"
    predicted = build_run(scenario_from(data, "test")).fleet.router.filters[0].peak_prefill_tokens_per_s
    assert_allclose(predicted, 15928, rtol=0.08)
    data["router"]["filters"][0]["peak_prefill_tokens_per_s"] = 9000.0
    assert build_run(scenario_from(data, "test")).fleet.router.filters[0].peak_prefill_tokens_per_s == 9000


def test_a_run_s_document_reads_back_as_its_scenario():
    router = {"filters": [{"filter": "session-affinity"}], "scorers": [{"scorer": "queue"}], "scrape_interval_s": 0.5}
    run = simulate(fleet(router))
    again = simulate(run.document["scenario"])
    assert columns(again) == columns(run)


REFUSED = [
    ({}, {"routing": "scored"}, "router.scorers: routing scored needs one"),
    ({"scorers": [{"scorer": "queue"}]}, {}, "router.scorers: engine.routing round-robin has none"),
    ({"scorers": [{"scorer": "prefix"}], "scrape_interval_s": 1.0}, {"routing": "scored"}, "look at metrics"),
    ({"scorers": [{"scorer": "queue", "threshold_tokens": 5}]}, {"routing": "scored"}, "scorer queue has no use"),
    (
        {"filters": [{"filter": "session-affinity", "threshold": 0.5}], "scorers": [{"scorer": "queue"}]},
        {"routing": "scored"},
        "filter session-affinity has no use",
    ),
]


@pytest.mark.parametrize(("router", "engine", "says"), REFUSED)
def test_fields_without_a_use_are_refused(router, engine, says):
    with pytest.raises(ForerunError, match=says):
        scenario_from(plain_data(router=router, engine=engine), "test")
