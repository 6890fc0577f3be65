"""Replicas that come and go: nothing is lost, a steady load needs what it needs, and rules do what they document."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_scenario import ROUTINGS
from pydantic import ValidationError
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from simulator.serving.fleet.autoscaler import FleetLoad, Hpa, Saturation
from simulator.serving.fleet.fleet_config import AutoscalerConfig
from simulator.workload.generate import varied

WAVES = {"process": "poisson", "request_rate": 40.0, "profile": [[0, 0.1], [2, 2.0], [4, 0.1]]}


def scenario_of(autoscaler=None, replicas=1, **workload) -> Scenario:
    data = tiny_data(**workload)
    data["hardware"]["replicas"] = replicas
    data["engine"]["routing"] = "least-outstanding"
    return scenario_from(data | ({} if autoscaler is None else {"autoscaler": autoscaler}), "test")


def load(outstanding=0, waiting=0, kv=(), queues=None) -> FleetLoad:
    return FleetLoad(outstanding, outstanding - waiting, waiting, kv, (0,) * len(kv) if queues is None else queues)


def hpa(**changes) -> Hpa:
    plain = {"target": 10.0, "max_replicas": 20, "start_up_s": 1.0, "scale_down_window_s": 0.0}
    return Hpa(AutoscalerConfig(**(plain | changes)))


@settings(max_examples=150, deadline=None)
@given(
    rule=st.sampled_from(["hpa", "llm-d"]),
    metric=st.sampled_from(["outstanding", "running", "waiting", "kv_cache"]),
    target=st.floats(0.02, 20),
    initial=st.integers(1, 3),
    interval_s=st.floats(0.01, 1.0),
    window_s=st.floats(0, 1.0),
    down_s=st.floats(0, 1.0),
    start_up_s=st.floats(0.01, 2.0),
    routing=st.sampled_from(ROUTINGS),
    blocks=st.sampled_from([None, 150]),
    seed=st.integers(0, 1000),
)
def test_nothing_is_lost_and_rent_covers_the_work(
    rule, metric, target, initial, interval_s, window_s, down_s, start_up_s, routing, blocks, seed
):
    custom = {"target": target, "metric": metric, "window_s": window_s, "scale_down_window_s": down_s}
    scaler = {"rule": rule, "max_replicas": 4, "interval_s": interval_s, "start_up_s": start_up_s}
    scenario = scenario_of(scaler | (custom if rule == "hpa" else {}), initial, arrivals=WAVES, num_requests=40)
    scenario = scenario.with_values({"engine.routing": routing, "engine.num_kv_blocks": blocks})
    result = simulate(scenario, seed)  # its invariants: every request once, tokens conserved, no block left
    assert result.summary["completed"] == 40
    end_s = np.nanmax(result.requests.finished_s)
    counts = np.array([counts for _, *counts in result.scaling.changes])
    assert counts.min() >= 0
    assert counts.sum(axis=1).max() <= 4
    assert counts[:, 1].min() >= 1
    assert result.scaling.until(end_s) >= result.totals.seconds.sum() - 1e-6
    assert result.document["scaling"]["mean_replicas"] <= counts.sum(axis=1).max() + 1e-9


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_load_that_leaves_no_wish_gives_the_fixed_fleet(replicas):
    scaler = {"target": 10.0, "max_replicas": replicas, "min_replicas": replicas, "start_up_s": 1.0, "interval_s": 0.1}
    fixed, scaled = (simulate(scenario_of(one, replicas), 1).document for one in (None, scaler))
    assert scaled["summary"] == fixed["summary"]
    assert scaled["energy_joules"] == pytest.approx(fixed["energy_joules"], rel=1e-12)
    steady = scaler | {"min_replicas": 1, "max_replicas": 5, "tolerance": 1e9}
    assert simulate(scenario_of(steady, replicas), 1).document["summary"] == fixed["summary"]


def test_waves_are_served_by_fewer_replicas_than_their_crest_needs():
    scaler = {"target": 4.0, "max_replicas": 6, "interval_s": 0.1, "start_up_s": 0.3, "scale_down_window_s": 0.3}
    slow = {"arrivals": WAVES, "num_requests": 300}
    scaled = simulate(scenario_of(scaler, 1, **slow), 0).document["scaling"]
    assert scaled["scale_ups"] > 2
    assert scaled["scale_downs"] > 0
    assert scaled["mean_replicas"] < scaled["peak_replicas"]


def test_the_hpa_asks_for_the_total_over_the_target():
    assert hpa().wanted(0.0, 2, load(outstanding=35)) == 4
    assert hpa().wanted(0.0, 2, load(outstanding=21)) == 2, "within the tolerance"
    assert hpa().wanted(0.0, 2, load(outstanding=500)) == 6, "at most 4 more in 15 s"
    assert hpa().wanted(0.0, 8, load(outstanding=500)) == 16, "or twice as many"
    assert hpa(metric="waiting").wanted(0.0, 2, load(outstanding=100, waiting=30)) == 3
    assert hpa(metric="kv_cache", target=0.5).wanted(0.0, 2, load(kv=(0.9, 0.5))) == 3


def test_the_hpa_goes_down_when_a_wish_has_lasted():
    rule = hpa(scale_down_window_s=60.0)
    assert rule.wanted(0.0, 4, load(outstanding=40)) == 4
    assert [rule.wanted(at_s, 4, load(outstanding=10)) for at_s in (15.0, 59.0, 61.0)] == [4, 4, 1]


def test_the_window_averages_what_was_seen():
    rule = hpa(window_s=30.0)
    assert rule.wanted(0.0, 2, load(outstanding=0)) == 0
    assert rule.wanted(15.0, 2, load(outstanding=80)) == 4


@pytest.mark.parametrize(
    ("kv", "queues", "wanted"),
    [
        ((0.6,), (0,), 1),
        ((0.71,), (0,), 2),
        ((0.2,), (3,), 2),
        ((0.9,), (0,), 2),
        ((0.34, 0.34), (0, 0), 1),
        ((0.36, 0.36), (0, 0), 2),
        ((0.9, 0.2), (0, 0), 2),
    ],
)
def test_llm_d_looks_at_what_is_spare(kv, queues, wanted):
    rule = Saturation(AutoscalerConfig(rule="llm-d", max_replicas=9, start_up_s=1.0))
    assert rule.wanted(0.0, len(kv), load(kv=kv, queues=queues)) == wanted


def test_llm_d_waits_for_the_one_that_starts():
    rule = Saturation(AutoscalerConfig(rule="llm-d", max_replicas=9, start_up_s=1.0))
    assert rule.wanted(0.0, 2, load(kv=(0.99,), queues=(9,))) == 2


def test_a_rate_profile_gives_each_moment_its_rate():
    profile = ((0.0, 0.0), (10.0, 2.0), (20.0, 0.5), (30.0, 0.5))
    times = varied(np.arange(200_000) / 1000.0, profile)
    assert np.all(np.diff(times) >= 0)
    for at_s in (5.0, 12.0, 25.0, 30.0 + 5.0, 90.0 + 25.0):
        rate = np.interp(at_s % 30.0, *zip(*profile, strict=True))
        assert np.sum(np.abs(times - at_s) < 0.1) / 200.0 == pytest.approx(rate, rel=0.02)
    assert varied(np.array([3.0, 7.0]), ((0.0, 1.0), (5.0, 1.0))).tolist() == [3.0, 7.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_replicas": 2, "min_replicas": 3}, "min_replicas"),
        ({"max_replicas": 10_001}, "max_replicas: must be less than or equal to 10000"),
        ({"target": None}, "target"),
        ({"rule": "llm-d"}, "target"),
        ({"max_replicas": 1, "replicas": 2}, "hardware.replicas"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, message):
    replicas = changes.pop("replicas", 1)
    plain = {"target": 5.0, "max_replicas": 4, "start_up_s": 1.0}
    with pytest.raises(ForerunError, match=message):
        scenario_of({k: v for k, v in (plain | changes).items() if v is not None}, replicas)


@pytest.mark.parametrize("profile", [[[0, 1]], [[1, 1], [2, 1]], [[0, 1], [0, 2]], [[0, 0], [5, 0]], [[0, -1], [5, 1]]])
def test_a_profile_without_a_rate_is_refused(profile):
    with pytest.raises(ForerunError, match="profile"):
        scenario_of(arrivals={"process": "poisson", "request_rate": 1.0, "profile": profile})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"interval_s": 1e-9}, "interval_s"),
        ({"interval_s": 1.0, "scale_down_window_s": 1e6}, r"scale_down_window_s: 1e\+06 s is more than 100,000 times"),
        ({"interval_s": 0.02, "window_s": 2001.0}, "window_s: 2001 s is more than 100,000 times interval_s"),
    ],
)
def test_looks_and_windows_that_never_end_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        AutoscalerConfig(**{"target": 1.0, "max_replicas": 2, "start_up_s": 1.0} | fields)


def test_a_run_with_looks_without_end_is_refused(monkeypatch):
    monkeypatch.setattr("simulator.serving.fleet.autoscaler.MOST_LOOKS", 10)
    scaler = {"target": 10.0, "max_replicas": 2, "start_up_s": 1.0, "interval_s": 0.01}
    with pytest.raises(ForerunError, match=r"interval_s: a run longer than 0 s has over 10 looks; raise it"):
        simulate(scenario_from(tiny_data() | {"autoscaler": scaler}, "test"))
