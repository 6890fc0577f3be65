"""Catalogue commands, fitted acceptance, kernel prediction, help, version, and the process as a whole."""

import json
import os
import subprocess
import sys

import pytest
from scenario_parts import drafts

from hwprofiles import predict_kernel


def test_every_chip_is_listed_and_shown(forerun):
    names = [row["name"] for row in forerun("chips", "list", "--json", "-").document]
    assert {"h100-sxm", "a100-sxm-80gb", "mi300x"} <= set(names)
    assert "h100-sxm" in forerun("chips", "list").out
    shown = forerun("chips", "show", "h100-sxm").out
    assert all(words in shown for words in ("TB/s", "datasheet"))
    profile = forerun("chips", "show", "h100-sxm", "--json", "-").document
    assert profile["memory"]["bandwidth_bytes_per_s"] == 3.35e12


def test_a_users_chip_is_checked(forerun, tmp_path):
    profile = forerun("chips", "show", "h100-sxm", "--json", "-").document
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(profile | {"name": "mine"}))
    assert "valid chip profile: mine" in forerun("chips", "check", file).out
    file.write_text(json.dumps(profile | {"colour": "green"}))
    assert "colour" in forerun("chips", "check", file).error_line


def test_models_are_listed_shown_and_checked(forerun, tmp_path):
    rows = {row["name"]: row for row in forerun("models", "list", "--json", "-").document}
    assert rows["llama-3.1-8b"]["parameters"] == 8_030_261_248
    assert rows["nemotron-3-nano-30b-a3b"]["attention"] == ["Mamba-2", "gqa"]  # and layers with neither
    assert "8.03 B" in forerun("models", "show", "llama-3.1-8b").out
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "llama"}')
    assert "config.json" in forerun("models", "check", config).error_line


def test_workloads_are_listed_shown_checked_and_fitted(forerun, tmp_path):
    listing = forerun("workloads", "list", "--json", "-").document
    assert "azure-conv-2023" in [row["name"] for row in listing["samples"]]
    assert forerun("workloads", "show", "azure-conv-2023", "--json", "-").document["requests"] == 1000
    assert "Mean rate" in forerun("workloads", "show", "azure-conv-2023").out
    fitted = forerun("workloads", "fit", "azure-conv-2023", "--json", "-").document
    assert fitted["workload"]["num_requests"] == 1000
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,5,5\n1,six,5\n")
    assert "trace.csv" in forerun("workloads", "check", trace).error_line


@pytest.mark.parametrize(
    "arguments",
    [
        "gemm m=16 n=4096 k=4096 dtype=bf16",
        "attention_prefill batch=2 q_len=512 kv_len=1024 num_heads=32 num_kv_heads=8 head_dim=128",
        "attention_decode batch=16 q_len=4 kv_len=2048 num_heads=32 num_kv_heads=8 head_dim=64 window=512 kv_dtype=fp8",
        "moe tokens=32 num_experts=64 experts_per_token=8 hidden=2048 intermediate=768",
        "all_reduce message_bytes=1048576 world_size=8",
    ],
)
def test_predict_says_time_bound_work_and_basis(forerun, arguments):
    document = forerun("predict", "--chip", "h100-sxm", *arguments.split(), "--json", "-").document
    op, *values = arguments.split()
    predicted = predict_kernel("h100-sxm", op, dict(value.split("=") for value in values))
    assert {key: document[key] for key in predicted} == predicted
    assert document["bytes_per_s"] == pytest.approx(document["bytes"] / document["seconds"])
    assert 0 < document["bytes_per_s"] <= 3.36e12
    assert document["bound"] in ("compute", "memory", "latency", "interconnect")
    assert document["basis"] in ("datasheet", "calibrated", "extrapolated")
    assert "basis" in forerun("predict", "--chip", "h100-sxm", *arguments.split()).out.lower()


def test_every_command_has_help_with_an_example(forerun):
    commands = [["run"], ["report"], ["predict"]]
    commands += [[group, verb] for group in ("chips", "models", "workloads") for verb in ("list", "show", "check")]
    for command in [*commands, ["workloads", "fit"]]:
        outcome = forerun(*command, "--help")
        assert outcome.code == 0
        assert "Example: forerun" in outcome.out, command


def test_bare_command_prints_help_and_version_prints_a_version(forerun):
    assert "Start here" in forerun().out
    assert forerun("--version").out.startswith("forerun ")


def test_help_starts_without_the_heavy_parts(project_root):
    heavy = [
        "numpy",
        "scipy",
        "pyarrow",
        "plotly",
        "pydantic",
        "yaml",
        "simulator.running.scenario",
        "hwprofiles",
        "traces",
    ]
    code = (
        "import sys; from simulator.cli import main; main(['--help']); "
        f"print(sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(project_root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert done.stderr.strip() == "[]"


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


@pytest.mark.parametrize(("group", "kind"), [("chips", "chip profile"), ("models", "model"), ("workloads", "trace")])
def test_a_scenario_is_no_file_of_a_catalogue(group, kind, tmp_path, forerun):
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("model: llama-3.1-8b\nhardware: {chip: h100-sxm}\n")
    line = forerun(group, "check", scenario).error_line
    assert f"mine.yaml: a scenario (it has model and hardware), not a {kind}; forerun run" in line


def test_a_fit_skips_bad_rows_as_other_readers_do(tmp_path, forerun):
    log = tmp_path / "log.csv"
    log.write_text("arrival_s,input_tokens,output_tokens\n0,10,5\n1,20,0\n2,30,5\n")
    assert "log.csv:3: output_tokens: 0 tokens" in forerun("workloads", "fit", log).error_line
    assert (
        forerun("workloads", "fit", log, "--on-error", "skip", "--json", "-").document["workload"]["num_requests"] == 2
    )
