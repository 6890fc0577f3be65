"""``forerun tune``: the contract's JSON, the report, and one line on bad input."""

import json
import shlex

import pytest

SCENARIO = """\
model: llama-3.2-1b
hardware: {chip: h100-sxm}
engine: {max_num_seqs: 64}
speculation: {method: eagle3, num_speculative_tokens: 2, acceptance: {alpha: 0.6}}
workload: {arrivals: {process: burst}, input_tokens: 200, output_tokens: 40, num_requests: 1}
"""
QUICK = ("--batch", "1,32", "--context", "512", "--tokens", "1,2", "--no-progress")


@pytest.fixture
def chat(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(SCENARIO)
    return path


def test_json_and_report(chat, forerun, tmp_path):
    out = tmp_path / "out"
    document = forerun("tune", chat, *QUICK, "--emit", "vllm", "--seed", 7, "--json", "-", "--out", out).document
    assert {"table", "emit", "conclusion", "scenario", "seed", "version", "basis"} <= set(document)
    assert document["seed"] == 7
    for row in document["table"]:
        assert {"batch", "context", "num_speculative_tokens", "speedup", "low", "high"} <= set(row)
        assert row["low"] <= row["speedup"] <= row["high"]
    assert [row["batch"] for row in document["table"]] == [[1, 5], [6, 32]]
    assert json.loads(shlex.split(document["emit"])[1])["method"] == "eagle3"
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "report.md", "scenario.yaml", "tune.json"]
    page = (out / "report.html").read_text()
    assert "<script src" not in page
    assert document["version"] in page
    again = forerun("tune", out / "scenario.yaml", *QUICK, "--emit", "vllm", "--json", "-")
    assert again.document["table"] == document["table"]
