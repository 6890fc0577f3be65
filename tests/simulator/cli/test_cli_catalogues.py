"""Catalogue commands, kernel prediction, help, version, and the process as a whole."""

import json
import os
import subprocess
import sys

import pytest

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
