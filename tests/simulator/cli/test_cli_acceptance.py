"""``forerun workloads fit-acceptance`` and ``curves``: what they print, write and refuse."""

import json

import pytest
from scenario_parts import drafts

LINE = (
    "INFO SpecDecoding metrics: Mean acceptance length: 2.60, Accepted: 1600 tokens, Drafted: 3000 tokens, "
    "Per-position acceptance rate: 0.730, 0.520, 0.350, Avg Draft acceptance rate: 53.3%\n"
)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "vllm.log"
    path.write_text(LINE * 3)
    return path


def test_a_log_is_fitted_and_its_block_runs(forerun, log, scenario_file):
    printed = forerun("workloads", "fit-acceptance", log)
    assert printed.code == 0
    assert "acceptance: {per_position: [0.73, 0.52, 0.35]}" in printed.out
    assert "acceptance: {alpha: 0.7" in printed.out
    document = forerun("workloads", "fit-acceptance", log, "--json", "-").document
    assert document["logs"][0]["num_drafts"] == 3000
    assert 0.9 < document["fit"]["decay"] < 1.0
    draft = {"draft": {"model": "llama-3.2-1b"}, "acceptance": document["acceptance_by_decay"]}
    block = json.dumps(drafts("draft-model", 5, **draft))
    ran = forerun("run", scenario_file, "--set", f"speculation={block}", "--json", "-").document
    length = ran["summary"]["spec_decode_acceptance_length"]
    assert length == pytest.approx(document["predicted_lengths"][4]["acceptance_length"], abs=0.15)


def test_one_length_says_what_is_missing(forerun, tmp_path):
    path = tmp_path / "sglang.log"
    path.write_text("Decode batch, #running-req: 8, accept len: 2.50, gen throughput (token/s): 9\n")
    assert "shows no decay" in forerun("workloads", "fit-acceptance", path).out


def test_curves_are_listed_with_their_sources(forerun):
    rows = forerun("workloads", "curves", "--json", "-").document
    assert len(rows) > 40
    assert all(row["source"] and 0 < row["level"] <= 1 for row in rows)
    assert "eagle3-llama-3.1-8b-mt-bench" in forerun("workloads", "curves").out
