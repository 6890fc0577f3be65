"""Whole runs of models spread over chips, and of replicas spread over processes: fast equals exact, notes, refusals."""

import json
import os
import sys
from dataclasses import fields

import numpy as np
import pytest
from both_engines import both_engines
from scenario_parts import burst, drafts, lognormal, poisson, uniform
from tiny_scenario import tiny_data

from simulator.running.run import simulate
from simulator.running.scenario import scenario_from
from simulator.serving import log
from simulator.serving.fleet import forked

LAYOUTS = [
    {"tensor_parallel": 2, "expert_parallel": 2},
    {"tensor_parallel": 1, "attention_data_parallel": 4, "expert_parallel": 4, "expert_routing": "power-law-1.2"},
    {"tensor_parallel": 2, "attention_data_parallel": 2, "expert_parallel": 1},
    {"tensor_parallel": 1, "pipeline_parallel": 3},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 2, "pipeline_link": "infiniband-ndr"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_fast_and_exact_steps_agree_on_every_layout(layout, seed):
    chips = layout["tensor_parallel"] * layout.get("attention_data_parallel", 1) * layout.get("pipeline_parallel", 1)
    data = {
        "model": "qwen3-30b-a3b",
        "hardware": {"chip": "h100-sxm", **layout},
        "engine": {"max_num_seqs": 48, "max_num_batched_tokens": 512, "num_kv_blocks": 700},
        "workload": poisson(40.0, 60, lognormal(200, 1.0, 900), uniform(1, 60)),
    }
    fast, _ = both_engines(scenario_from(data, "test"), seed)
    assert fast.chips == chips
    assert any("bubbles" in note for note in fast.notes) == ("pipeline_parallel" in layout)


def test_stages_without_a_scale_up_link_go_over_the_hosts():
    hardware = {"chip": "rtx-4090", "pipeline_parallel": 2}
    run = simulate(scenario_from({"model": "llama-3.1-8b", "hardware": hardware, "workload": burst(4, 10, 4)}, "test"))
    assert run.chips == 2
    assert run.requests.output_tokens.tolist() == [4] * 4


def run_forked(scenario, monkeypatch, processes):
    """A run on so many processes, its step rows summed up in many parts."""
    monkeypatch.setattr(forked, "WORTH_FORKING", 1)
    monkeypatch.setattr(forked.threading, "active_count", lambda: 1)  # pytest's own wait for nothing here
    monkeypatch.setattr(forked, "cores", lambda: processes)
    monkeypatch.setattr(log, "CONDENSED_AT", 500)
    monkeypatch.setattr("simulator.running.run.FULL_ROWS", 200)
    return simulate(scenario, 3, full_step_rows=0)


def outcome(result):
    """All that a run says but for the time that it took."""
    document = {name: value for name, value in result.document.items() if name != "engine"}
    records = [getattr(part, one.name) for part in (result.requests, result.steps, result.gaps) for one in fields(part)]
    arrays = [one.tobytes() for one in records if isinstance(one, np.ndarray)]
    return json.dumps(document, default=str), arrays, result.engine.steps, result.engine.exact_steps


MANY = {"arrivals": {"process": "poisson", "request_rate": 200.0}, "num_requests": 300}
NGRAM = drafts("ngram", 3, acceptance={"alpha": 0.6, "spread": 0.1})


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"speculation": NGRAM},
        {"engine": {"num_kv_blocks": 100, "max_num_seqs": 16}},
        {"engine": {"preemption": "swap", "num_kv_blocks": 100}},
        {"engine": {"max_model_len": 400}},
        {"engine": {"stepping": "exact-steps"}},
    ],
    ids=lambda sections: "-".join(sections.get("engine", sections)) or "plain",
)
def test_replicas_on_any_number_of_cores_say_the_same_to_the_byte(monkeypatch, sections):
    data = tiny_data(**MANY) | {"hardware": {"chip": "h100-sxm", "replicas": 5}} | sections
    scenario = scenario_from(data, "forked")
    forked = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: forked.append(1) or fork())
    one, *others = [outcome(run_forked(scenario, monkeypatch, processes)) for processes in (1, 2, 3, 8)]
    copies = "preemption" in sections.get("engine", {})  # whose lanes are counted in one process
    assert len(forked) == (0 if copies else 1 + 2 + 4)
    for other in others:
        assert other == one


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
def test_replicas_of_a_process_that_dies_are_run_by_the_first(monkeypatch):
    data = tiny_data(**MANY) | {"hardware": {"chip": "h100-sxm", "replicas": 4}}
    scenario = scenario_from(data, "forked")
    one = outcome(run_forked(scenario, monkeypatch, 1))
    monkeypatch.setattr(forked.Helper, "_work", lambda self: os._exit(9))
    assert outcome(run_forked(scenario, monkeypatch, 2)) == one
