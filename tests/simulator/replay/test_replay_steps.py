"""Replaying engine steps: a run's own steps replay to themselves, and composition decides the kind."""

import json

import pytest

from simulator.cli.app import main

SCENARIO = {
    "model": "llama-3.1-8b",
    "hardware": {"chip": "h100-sxm"},
    "workload": {
        "arrivals": {"process": "closed-loop", "max_concurrency": 4},
        "input_tokens": {"distribution": "uniform", "min": 200, "max": 900},
        "output_tokens": 32,
        "num_requests": 16,
    },
}


@pytest.fixture
def scenario(tmp_path):
    file = tmp_path / "scenario.yaml"
    file.write_text(json.dumps(SCENARIO))
    return file


def test_a_run_replays_to_itself(scenario, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", str(scenario), "--out", str(out)]) == 0
    capsys.readouterr()
    command = ["replay", "steps", str(out / "steps.parquet"), "--scenario", str(scenario), "--out", str(tmp_path / "o")]
    assert main([*command, "--json", "-", "--fail-above", "decode.mape=0.1"]) == 0
    document = json.loads(capsys.readouterr().out)
    kinds = {group["kind"]: group for group in document["groups"]}
    # decode attention is interpolated while a run goes on; prompts are taken as of equal length within a step
    assert kinds["decode"]["mape"] < 0.1
    assert document["overall"]["mape"] < 1
    assert "Engine step" in (tmp_path / "o" / "report.html").read_text()


def test_kinds_and_scope(scenario, tmp_path, capsys):
    table = tmp_path / "steps.csv"
    table.write_text(
        "prefill_seqs,prefill_tokens,decode_seqs,query_len,decode_kv_tokens,measured_s,scope\n"
        "1,512,,,,0.02,device\n"
        ",,16,1,16000,0.008,device\n"
        ",,16,1,16000,0.008,step\n"
        ",,16,4,16000,0.009,\n"
        "1,512,16,1,16000,0.03,\n"
    )
    assert main(["replay", "steps", str(table), "--scenario", str(scenario), "--json", "-"]) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [row["kind"] for row in steps] == ["prefill", "decode", "decode", "verify", "mixed"]
    assert steps[1]["predicted_s"] < steps[2]["predicted_s"], "the host's work is outside a device time"
    assert steps[2]["predicted_s"] < steps[3]["predicted_s"] < steps[4]["predicted_s"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("decode_seqs,decode_kv_tokens,measured_s\n1,10,1\n", ["--fail-above", "prefill.mape=1"], "no 'prefill' rows"),
        ("decode_seqs,decode_kv_tokens,measured_s\n", [], "no measured step"),
        ("", [], "empty"),
        ("decode_seqs,decode_kv_tokens,measured_s\n1,10,1\n", ["--format", "x"], "no format 'x'"),
    ],
)
def test_bad_input(scenario, tmp_path, text, arguments, message, capsys):
    table = tmp_path / "steps.csv"
    table.write_text(text)
    assert main(["replay", "steps", str(table), "--scenario", str(scenario), *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
