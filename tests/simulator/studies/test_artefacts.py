"""What is emitted is what its consumer accepts: its schema, or the flags that it documents."""

import json
import shlex
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
import yaml
from results import checked_result
from scenario_parts import drafts
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.running.scenario import Scenario
from simulator.studies.artefacts import ARTEFACTS, artefact, vllm_schedule
from simulator.studies.plan.command import thresholds

CONSUMERS = Path(__file__).with_name("consumers")
SCHEMAS = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(CONSUMERS.glob("*.yaml"))}
EAGLE3 = drafts("eagle3", 3)
SCALER = {"target": 12.5, "max_replicas": 4, "start_up_s": 90, "window_s": 60}
DISAGGREGATED = {
    "pools": {
        "first": {"role": "prefill", "hardware": {"replicas": 2}},
        "then": {"role": "decode", "hardware": {"tensor_parallel": 2, "link": "nvlink4"}},
    }
}
KINDS = {
    "plain": {},
    "speculation": {"speculation": EAGLE3},
    "ngram": {"speculation": EAGLE3 | {"method": "ngram"}},
    "graphs off": {"engine": {"cuda_graphs": False, "max_model_len": 4096, "enable_prefix_caching": False}},
    "fp8 cache": {"kv_cache_dtype": "fp8", "weights_dtype": "fp8"},
    "disaggregated": DISAGGREGATED,
    "sglang": {"engine": {"framework": "sglang"}},
    "tensorrt-llm": {"engine": {"framework": "trtllm"}},
}
BENCHMARKS = {
    "guidellm": {"--backend", "--profile", "--constraint", "--data", "--tokenizer"},
    "aiperf": {
        "-m", "-u", "--endpoint-type", "--streaming", "--isl", "--osl", "--request-count", "--extra-inputs",
        "--request-rate", "--concurrency",
    },
    "vllm-bench": {
        "--model", "--base-url", "--dataset-name", "--random-input-len", "--random-output-len", "--num-prompts",
        "--request-rate", "--burstiness", "--max-concurrency", "--ignore-eos", "--percentile-metrics", "--save-result",
    },
}  # fmt: skip
"""Flags of guidellm 0.8 (run --help), aiperf 0.13 (profile --help) and vLLM 0.11 (benchmarks/serve.py)."""


def scenario_of(**changes) -> Scenario:
    return Scenario(**(tiny_data() | {"autoscaler": SCALER if "pools" not in changes else None} | changes))


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_what_their_consumers_accept(name, kind):
    scenario = scenario_of(**KINDS[kind])
    if name in ("keda", "hpa") and scenario.autoscaler is None:
        with pytest.raises(ForerunError, match="--thresholds"):
            artefact(name, scenario)
        return
    documents = list(yaml.safe_load_all(artefact(name, scenario)))
    assert len(documents) == 1
    jsonschema.validate(documents[0], SCHEMAS[name])


@pytest.mark.parametrize(
    ("name", "place", "field"),
    [
        ("hpa", ["spec"], "replicas"),
        ("keda", ["spec", "triggers", 0], "targetValue"),
        ("dynamo", ["spec", "services", "Worker"], "gpus"),
        ("llm-d", ["modelArtifacts"], "revision"),
        ("trtllm", ["kv_cache_config"], "block_size"),
    ],
)
def test_the_schemas_refuse_what_consumers_do_not_know(name, place, field):
    document = part = yaml.safe_load(artefact(name, scenario_of()))
    for key in place:
        part = part[key]
    part[field] = 3
    with pytest.raises(jsonschema.ValidationError, match=field):
        jsonschema.validate(document, SCHEMAS[name])


@pytest.mark.parametrize("name", BENCHMARKS)
@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "poisson", "request_rate": 4.0},
        {"process": "gamma", "request_rate": 4.0, "burstiness": 0.5},
        {"process": "closed-loop", "max_concurrency": 8},
    ],
)
def test_benchmark_commands_use_flags_that_there_are(name, arrivals):
    words = shlex.split(artefact(name, scenario_of(workload=tiny_data()["workload"] | {"arrivals": arrivals})))
    flags = {word for word in words if word.startswith("-") and not word.lstrip("-").isdigit()}
    assert flags <= BENCHMARKS[name]


def test_numbers_of_the_scenario_arrive():
    objects = {name: yaml.safe_load(artefact(name, scenario_of())) for name in ("keda", "hpa")}
    (trigger,) = objects["keda"]["spec"]["triggers"]
    assert trigger["metadata"]["threshold"] == "12.5"
    assert "[60s:15s]" in trigger["metadata"]["query"]
    assert objects["hpa"]["spec"]["metrics"][0]["external"]["target"]["averageValue"] == "12500m"
    services = yaml.safe_load(artefact("dynamo", scenario_of(**DISAGGREGATED)))["spec"]["services"]
    assert services["FirstWorker"]["replicas"] == 2
    assert "--is-prefill-worker" in services["FirstWorker"]["extraPodSpec"]["mainContainer"]["args"]
    assert services["ThenWorker"]["resources"]["limits"]["gpu"] == "2"
    values = yaml.safe_load(artefact("llm-d", scenario_of(**DISAGGREGATED)))
    assert (values["prefill"]["replicas"], values["decode"]["parallelism"]["tensor"]) == (2, 2)


def test_draft_tokens_by_batch_and_context_cover_the_grid(tmp_path, forerun):
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(tiny_data() | {"speculation": EAGLE3}))
    outcome = forerun("tune", file, "--batch", "1,8", "--context", "512,4096", "--emit", "vllm-schedule")
    words = shlex.split(outcome.out.splitlines()[-1])
    schedule = json.loads(words[words.index("--speculative-config") + 1])["speculative_token_schedule"]
    assert {len(entry) for entry in schedule} == {5}
    assert {entry[2] for entry in schedule} == {0, min(entry[2] for entry in schedule if entry[2])}
    for least in {entry[2] for entry in schedule}:
        ranges = [entry[:2] for entry in schedule if entry[2] == least]
        assert ranges[0][0] == 1
        assert all(later[0] == before[1] + 1 for before, later in pairwise(ranges))
    with pytest.raises(ForerunError, match="tune"):
        vllm_schedule(scenario_of(speculation=EAGLE3))


def test_a_plan_on_llama_cpp_emits_its_server_command(tmp_path, forerun):
    load = {"arrivals": {"request_rate": 0.2}, "input_tokens": 300, "output_tokens": 50, "num_requests": 20}
    local = {"model": "llama-3.2-1b", "hardware": {"chip": "apple-m4-pro"}, "engine": {"framework": "llama.cpp"}}
    (tmp_path / "laptop.json").write_text(json.dumps(local | {"workload": load}))
    (tmp_path / "server.json").write_text(json.dumps(local | {"workload": load, "engine": {"framework": "vllm"}}))
    slo = ("--slo", "p99_ttft_ms=20000", "--emit", "llama.cpp")
    outcome = forerun("plan", tmp_path / "laptop.json", *slo)
    assert outcome.code == 0
    assert "llama-server" in outcome.out.splitlines()[-1]
    outcome = forerun("plan", tmp_path / "server.json", "--set", "hardware.chip=h100-sxm", *slo)
    assert outcome.code == 2
    assert "set engine.framework: llama.cpp" in outcome.err


@pytest.mark.parametrize(("option", "words"), [("--emit helm", "no such artefact"), ("--thresholds", "autoscaler")])
def test_an_unknown_artefact_is_refused_before_any_work(tmp_path, forerun, option, words):
    file = tmp_path / "plain.json"
    file.write_text(json.dumps(tiny_data() | {"slo": {"p99_ttft_ms": 500}}))
    assert words in forerun("plan", file, *option.split()).error_line


def test_trtllm_loads_a_checkpoint_in_the_format_of_the_weights():
    scenario = Scenario(**tiny_data() | {"model": "llama-3.1-8b", "weights_dtype": "fp8"})
    assert "# load a checkpoint with weights_dtype fp8\n" in artefact("trtllm", scenario)


def test_the_cheapest_threshold_that_holds_is_detected_and_emitted(tmp_path, forerun):
    data = tiny_data(
        arrivals={"process": "poisson", "request_rate": 60.0, "profile": [[0, 0.1], [3, 2.0], [6, 0.1]]},
        num_requests=300,
    )
    scaler = {"target": 1.0, "max_replicas": 4, "interval_s": 0.2, "start_up_s": 0.4, "scale_down_window_s": 0.4}
    data |= {"autoscaler": scaler, "slo": {"p99_ttft_ms": 60}}
    data["engine"]["routing"] = "least-outstanding"
    result = thresholds(Scenario(**data), targets=[2, 4, 8, 16], jobs=1)
    checked_result(result, tmp_path / "out", "thresholds.json", "report.html", "report.md")
    (bar,) = result.figure(result.figures[0]).data
    assert list(bar.x) == [row["mean_replicas"] for row in result.document["candidates"]]
    rows = result.document["candidates"]
    assert [row["threshold"] for row in rows] == [2, 4, 8, 16, None, None, None, None]
    held = [row for row in rows if row["holds"] and row["threshold"] is not None]
    assert result.best["mean_replicas"] == min(row["mean_replicas"] for row in held)
    assert result.document["fixed"]["replicas"] >= result.best["mean_replicas"]
    assert result.scenario.autoscaler.target == result.best["threshold"]
    assert "replicas on average; the fixed fleet needs" in result.conclusion
    file = tmp_path / "waves.json"
    file.write_text(json.dumps(data))
    outcome = forerun("plan", file, "--thresholds", "--target", "2,4,8,16", "--jobs", 1, "--emit", "keda")
    assert f"threshold: '{result.best['threshold']:g}'" in outcome.out


def test_every_name_of_the_contract_is_there():
    named = "vllm sglang trtllm dynamo llm-d keda hpa guidellm aiperf vllm-bench"
    assert set(named.split()) <= set(ARTEFACTS)
