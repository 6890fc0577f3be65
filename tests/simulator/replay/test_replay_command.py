"""The commands: files in, tables, JSON and pages out, exit codes."""

import json

import pytest
from scenario_parts import closed_loop, h100_data, uniform

from simulator.running.build import build_replica
from simulator.running.scenario import Scenario
from simulator.serving.engine_config import EngineConfig
from traces.kernels import write_kernels

BASE = {"model": "llama-3.1-8b", "hardware": {"chip": "h100-sxm"}, "workload": closed_loop(4, 24, 256, 32)}
KERNELS = "replay kernels trace.parquet"
REQUESTS = "replay requests runs.csv --scenario base.json --jobs 1"


@pytest.fixture
def inputs(tmp_path, kernels, monkeypatch):
    """A folder with a file of each kind that a replay reads; commands run in it."""
    monkeypatch.chdir(tmp_path)
    write_kernels(kernels, tmp_path / "trace.parquet")
    texts = {
        "base.json": json.dumps(BASE),
        "runs.csv": "run,model,chip,tensor_parallel,max_concurrency,input_tokens,output_tokens,num_requests,"
        "mean_tpot_ms\na,meta-llama/Llama-3.1-8B,H100,1,2,256,32,4,10\n",
        "steps.csv": "decode_seqs,decode_kv_tokens,measured_s\n1,10,1\n",
        "none.csv": "decode_seqs,decode_kv_tokens,measured_s\n",
        "empty.csv": "",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_replay_writes_json_and_a_page(inputs, forerun):
    document = forerun(f"{KERNELS} --chip h100-sxm --library sglang --json - --out out").document
    assert document["overall"]["n"] == 700
    assert json.loads((inputs / "out" / "replay.json").read_text()) == document
    page = (inputs / "out" / "report.html").read_text()
    assert "figure-parity" in page
    assert "figure-errors" in page
    assert "http://" not in page.split("<script>")[0]


def test_one_run_has_an_error_and_no_mean_of_errors(inputs, forerun):
    outcome = forerun(f"{REQUESTS} --json - --out out")
    (run,) = outcome.document["runs"]
    page = (inputs / "out" / "report.html").read_text()
    assert f"One run; predicted over measured: Mean TPOT {run['error']['mean_tpot_ms']:+.1f} %." in page
    assert "MAPE" not in page.split("<script")[0]
    assert 'class="figure' not in page
    head, *rows = (
        (inputs / "out" / "report.html").read_text().partition("Every run: ")[2].split("</table>")[0].split("<tr>")[1:]
    )
    assert head.count("<th") == 3
    assert [row.count("<td") for row in rows] == [3] * len(run["error"])


def test_every_metric_that_a_benchmark_measures_has_a_title(inputs, forerun):
    latencies = [f"{statistic}_{name}_ms" for statistic in ("mean", "median", "p99") for name in ("ttft", "tpot")]
    head = ["max_concurrency,input_tokens,output_tokens,num_requests", *latencies, "total_token_throughput,avg_power_w"]
    rows = [f"{load},256,32,24,9,9,9,9,9,9,2000,300" for load in (2, 4)]
    for count, title in ((1, "median TPOT (ms)"), (2, "p99 TTFT")):
        (inputs / "all.csv").write_text("\n".join([",".join(head), *rows[:count]]) + "\n")
        out = forerun("replay requests all.csv --scenario base.json --jobs 1").out
        assert title in out
        assert "Total token throughput" in out


def test_the_gate_fails_a_build(inputs, forerun):
    outcome = forerun(f"{KERNELS} --chip h100-sxm --library trtllm --fail-above mape=2")
    assert outcome.code == 1
    assert "exceeds 2 %" in outcome.err
    assert "MAPE" in outcome.out
    assert forerun(f"{KERNELS} --chip h100-sxm --library sglang --fail-above mape=20").code == 0


REFUSED = [
    ("replay kernels absent.csv --chip h100-sxm", "absent.csv: no such file"),
    (f"{KERNELS} --chip h10-sxm", "did you mean 'h100-sxm'"),
    (f"{KERNELS} --chip h100-sxm --split x", "--split"),
    (f"{KERNELS} --chip h100-sxm --format vidor", "did you mean 'vidur'"),
    (f"{KERNELS} --chip h100-sxm --library none", "no kernel library 'none'"),
    (f"{KERNELS} --chip mi300x --residual", "mi300x has no learned correction"),
    (f"{REQUESTS} --where colour=red", "colour"),
    (f"{REQUESTS} --where tensor_parallel>=many", "'many' is no number"),
    (f"{REQUESTS} --fail-above speed.mape=3", "no 'speed' rows were scored"),
    (f"{REQUESTS} --fail-above tpot=5", "no metric 'tpot'; write tpot.mape=5"),
    (f"{REQUESTS} --fail-above mape", "METRIC=VALUE"),
    (f"{REQUESTS} --split train=2", "train must be between 0 and 1"),
    (f"{REQUESTS} --where model=gpt-2", "no measured run can be simulated"),
    (f"{REQUESTS} --format csv", "no format 'csv'"),
    ("replay steps steps.csv --scenario base.json --fail-above prefill.mape=1", "no 'prefill' rows"),
    ("replay steps steps.csv --scenario base.json --format x", "no format 'x'"),
    ("replay steps none.csv --scenario base.json", "no measured step"),
    ("replay steps empty.csv --scenario base.json", "empty"),
    ("validate --check nowhere.json", "nowhere.json: no such file"),
    ("validate --check errors.json kernels", "leave out 'kernels'"),
    ("validate speculation --group trtllm_ngrm", "did you mean"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_bad_input_is_one_line(inputs, words, message, forerun):
    assert message in forerun(words).error_line


def test_calibrate_then_replay(inputs, forerun):
    document = forerun("calibrate trace.parquet --chip h100-sxm --output mine.yaml --json -").document
    assert document["files"][0] == "mine.yaml"
    assert forerun(f"{KERNELS} --chip mine.yaml --split train=0.7,seed=1 --fail-above mape=5").code == 0
    predicted = forerun("predict --chip mine.yaml gemm m=16 n=4096 k=4096 --json -").document
    assert predicted["basis"] == "calibrated"


def test_one_price_for_replay_prediction_and_run(tmp_path, forerun):
    """Every surface reads the same default and the same correction; an L4 has none."""
    trace = tmp_path / "gemm.csv"
    trace.write_text("op,m,n,k,dtype,measured_s\ngemm,512,4096,4096,bf16,2e-4\n")

    def scores(chip, *options):
        at = ["--chip", chip, "--library", "vllm", *options, "--json", "-"]
        result = forerun("replay", "kernels", trace, *at).document
        seconds = forerun("predict", "gemm", "m=512", "n=4096", "k=4096", *at).document["seconds"]
        assert seconds == result["worst"][0]["predicted_s"]
        return result["residual"], seconds, result["beside"]

    usual, corrected, physics = (scores("h100-sxm", *option) for option in ((), ("--residual",), ("--no-residual",)))
    assert usual == (corrected if EngineConfig().kernel_correction else physics)
    assert (corrected[0], physics[0]) == (True, False)
    assert corrected[1] != physics[1]
    assert (corrected[2]["residual"], physics[2]["residual"]) == (False, True)
    assert scores("l4") == scores("l4", "--no-residual")
    assert scores("l4")[2] is None
    for correct, (_, seconds, _) in ((True, corrected), (False, physics)):
        scenario = Scenario.model_validate(BASE | {"engine": {"kernel_correction": correct}})
        kernels = build_replica(scenario).main.timer.target.deployment.kernels
        assert kernels.gemm(512, 4096, 4096).seconds == seconds


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
