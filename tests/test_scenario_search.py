"""Random scenarios over the whole schema run, or are refused in one line; what was found stays found."""

import copy
import json

import pytest
from scenario_search.search import CORPUS, KNOWN, judged, scenario_of, schema, shrunk

from simulator.serving import RunLog
from simulator.serving.prefix_cache import PrefixCache

ROUND = range(300)


@pytest.mark.parametrize("file", sorted(CORPUS.glob("*.json")), ids=lambda file: file.stem)
def test_what_was_found_once_runs_or_is_refused(file):
    kind, message = judged(json.loads(file.read_text("utf-8"))["scenario"])
    assert kind in KNOWN, message


@pytest.mark.parametrize("part", range(10))
def test_a_seeded_round_finds_nothing(part):
    """Scenarios 0 to 299; more by ``make search``."""
    found = {seed: judged(scenario_of(seed)) for seed in ROUND[part::10]}
    wrong = {seed: told for seed, told in found.items() if told[0] not in KNOWN}
    assert not wrong, wrong
    assert sum(kind == "ok" for kind, _ in found.values()) >= 8, "too many are refused to find anything"


def test_every_field_of_the_schema_is_drawn():
    """But for those that name files. A section that is drawn counts with what it holds."""
    sections = {"hardware": "HardwareConfig", "engine": "EngineConfig", "workload": "WorkloadConfig"}
    seen = {name: set() for name in sections}
    for seed in range(4000):
        data = scenario_of(seed)
        for name in sections:
            if isinstance(data.get(name), dict):
                seen[name] |= data[name].keys()
    for name, kind in sections.items():
        missing = schema()["$defs"][kind]["properties"].keys() - seen[name] - {"trace"}
        assert not missing, f"{name}: {missing}"


def lost_wakeup(monkeypatch):
    """A replica that waits is not told of what comes."""
    monkeypatch.setattr("simulator.serving.feed.RoutedFeed.wake", lambda feed: None)


def forgotten_refusal(monkeypatch):
    """A request that is turned away is told of as one that was not."""
    refuse = RunLog.refuse

    def forget(log, request, reason):
        refuse(log, request, reason)
        log.failed[request] = 0

    monkeypatch.setattr(RunLog, "refuse", forget)


def leaking_cache(monkeypatch):
    """Blocks that two requests share stay counted as shared when one of them ends."""
    release = PrefixCache.release

    def leak(cache, units):
        shared = cache.shared_blocks
        release(cache, units)
        cache.shared_blocks = max(shared, cache.shared_blocks)

    monkeypatch.setattr(PrefixCache, "release", leak)


@pytest.mark.parametrize("plant", [lost_wakeup, forgotten_refusal, leaking_cache])
def test_planted_faults_are_found(monkeypatch, plant):
    plant(monkeypatch)
    found = (judged(scenario_of(seed)) for seed in ROUND)
    assert any(kind not in KNOWN for kind, _ in found)


def test_a_finding_is_made_small():
    data = copy.deepcopy(next(data for data in map(scenario_of, ROUND) if data["workload"].get("num_requests", 0) > 3))
    small = shrunk(data, lambda tried: tried.get("workload", {}).get("num_requests", 0) > 3)
    assert small == {"workload": {"num_requests": 4}}
