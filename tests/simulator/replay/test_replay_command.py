"""The commands: files in, tables, JSON and pages out, exit codes."""

import json

import pytest

from simulator.cli import main
from simulator.running.build import build_replica
from simulator.running.scenario import Scenario
from simulator.serving.engine_config import EngineConfig
from traces.kernels import write_kernels

WORK = {"workload": {"arrivals": {"process": "burst"}, "input_tokens": 8, "output_tokens": 8, "num_requests": 1}}


@pytest.fixture
def trace(tmp_path, kernels):
    return str(write_kernels(kernels, tmp_path / "trace.parquet"))


def test_replay_writes_json_and_a_page(trace, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(
            ["replay", "kernels", trace, "--chip", "h100-sxm", "--library", "sglang", "--json", "-", "--out", str(out)]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["overall"]["n"] == 700
    assert json.loads((out / "replay.json").read_text()) == document
    page = (out / "report.html").read_text()
    assert "figure-parity" in page
    assert "figure-errors" in page
    assert "http://" not in page.split("<script>")[0]


def test_the_gate_fails_a_build(trace, capsys):
    command = ["replay", "kernels", trace, "--chip", "h100-sxm", "--library", "trtllm", "--fail-above", "mape=2"]
    assert main(command) == 1
    captured = capsys.readouterr()
    assert "exceeds 2 %" in captured.err
    assert "MAPE" in captured.out
    assert (
        main(["replay", "kernels", trace, "--chip", "h100-sxm", "--library", "sglang", "--fail-above", "mape=20"]) == 0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.csv", "--chip", "h100-sxm"], "none.csv: no such file"),
        (["TRACE", "--chip", "h10-sxm"], "did you mean 'h100-sxm'"),
        (["TRACE", "--chip", "h100-sxm", "--split", "x"], "--split"),
        (["TRACE", "--chip", "h100-sxm", "--format", "vidor"], "did you mean 'vidur'"),
        (["TRACE", "--chip", "h100-sxm", "--library", "none"], "no kernel library 'none'"),
        (["TRACE", "--chip", "mi300x", "--residual"], "mi300x has no learned correction"),
    ],
)
def test_bad_input_is_one_line(trace, arguments, message, capsys):
    code = main(["replay", "kernels", *(trace if text == "TRACE" else text for text in arguments)])
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_calibrate_then_replay(trace, tmp_path, capsys):
    profile = tmp_path / "mine.yaml"
    assert main(["calibrate", trace, "--chip", "h100-sxm", "--output", str(profile), "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["files"][0] == str(profile)
    assert (
        main(
            [
                "replay",
                "kernels",
                trace,
                "--chip",
                str(profile),
                "--split",
                "train=0.7,seed=1",
                "--fail-above",
                "mape=5",
            ]
        )
        == 0
    )
    assert main(["predict", "--chip", str(profile), "gemm", "m=16", "n=4096", "k=4096", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))["basis"] == "calibrated"


def test_one_price_for_replay_prediction_and_run(tmp_path, capsys):
    """Every surface reads the same default and the same correction; an L4 has none."""
    trace = tmp_path / "gemm.csv"
    trace.write_text("op,m,n,k,dtype,measured_s\ngemm,512,4096,4096,bf16,2e-4\n")

    def scores(chip, *options):
        at = ["--chip", chip, "--library", "vllm", *options, "--json", "-"]
        assert main(["replay", "kernels", str(trace), *at]) == 0
        result = json.loads(capsys.readouterr().out)
        assert main(["predict", "gemm", "m=512", "n=4096", "k=4096", *at]) == 0
        assert json.loads(capsys.readouterr().out)["seconds"] == result["worst"][0]["predicted_s"]
        return result["residual"], result["worst"][0]["predicted_s"], result["beside"]

    usual, corrected, physics = (
        scores("h100-sxm"),
        scores("h100-sxm", "--residual"),
        scores("h100-sxm", "--no-residual"),
    )
    assert usual == (corrected if EngineConfig().kernel_correction else physics)
    assert (corrected[0], physics[0]) == (True, False)
    assert corrected[1] != physics[1]
    assert (corrected[2]["residual"], physics[2]["residual"]) == (False, True)
    assert scores("l4") == scores("l4", "--no-residual")
    assert scores("l4")[2] is None
    for corrected_run, (_, seconds, _) in ((True, corrected), (False, physics)):
        engine = {"kernel_correction": corrected_run}
        scenario = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "engine": engine}
        kernels = build_replica(Scenario.model_validate(scenario | WORK)).main.timer.target.deployment.kernels
        assert kernels.gemm(512, 4096, 4096).seconds == seconds
