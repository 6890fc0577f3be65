"""Replaying engine steps: a run's own steps replay to themselves, and composition decides the kind."""

import json

import pytest
from scenario_parts import closed_loop, h100_data, uniform


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(h100_data(closed_loop(4, 16, uniform(200, 900), 32))))
    return file


def test_a_run_replays_to_itself(scenario, tmp_path, forerun):
    out = tmp_path / "run"
    assert forerun("run", scenario, "--out", out).code == 0
    command = ("replay", "steps", out / "steps.parquet", "--scenario", scenario, "--out", tmp_path / "o")
    document = forerun(*command, "--json", "-", "--fail-above", "decode.mape=0.1").document
    kinds = {group["kind"]: group for group in document["groups"]}
    # decode attention is interpolated while a run goes on; prompts are taken as of equal length within a step
    assert kinds["decode"]["mape"] < 0.1
    assert document["overall"]["mape"] < 1
    assert "Engine step" in (tmp_path / "o" / "report.html").read_text()


def test_kinds_and_scope(scenario, tmp_path, forerun):
    table = tmp_path / "steps.csv"
    table.write_text(
        "prefill_seqs,prefill_tokens,decode_seqs,query_len,decode_kv_tokens,measured_s,scope\n"
        "1,512,,,,0.02,device\n"
        ",,16,1,16000,0.008,device\n"
        ",,16,1,16000,0.008,step\n"
        ",,16,4,16000,0.009,\n"
        "1,512,16,1,16000,0.03,\n"
    )
    steps = forerun("replay", "steps", table, "--scenario", scenario, "--json", "-").document["steps"]
    assert [row["kind"] for row in steps] == ["prefill", "decode", "decode", "verify", "mixed"]
    assert steps[1]["predicted_s"] < steps[2]["predicted_s"], "the host's work is outside a device time"
    assert steps[2]["predicted_s"] < steps[3]["predicted_s"] < steps[4]["predicted_s"]
