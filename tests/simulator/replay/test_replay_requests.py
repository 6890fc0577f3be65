"""Replaying benchmarks: a simulated run replays to itself, closed loops keep invariants, real tables stay close."""

import csv
import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from refused import refused
from scenario_parts import burst, drafts, on_h100
from scenario_search.search import placed, scenario_of

from forerun.errors import ForerunError
from hwprofiles import chip_name, chip_names
from hwprofiles.dtypes import dtype_name
from simulator.llm.load import catalogue_model, named_dtype
from simulator.replay.requests import in_training, parse_condition, replay_requests
from simulator.replay.rerun import rerun
from simulator.replay.split import Split
from simulator.running.build import build_replica
from simulator.running.measured_runs import (
    framework_name,
    overridden,
    pool_hashes,
    readings,
    run_scenario,
    unshared_hashes,
)
from simulator.running.metrics.summary import summarise
from simulator.running.run import simulate
from simulator.running.scenario import Scenario, scenario_from
from simulator.timing import load_framework
from simulator.workload import RequestStream
from traces.benchmark_results import MeasuredRun, PromptPool, read_runs
from traces.errors import TraceError
from validation import tables as tables  # lets read_runs read them

BASE = Scenario(
    model="llama-3.1-8b", chip="h100-sxm", max_concurrency=4, input_tokens=256, output_tokens=32, num_requests=24
)
COLUMNS = ("run", "model", "chip", "framework", "tensor_parallel", "max_concurrency", "input_tokens", "output_tokens",
           "num_requests", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")  # fmt: skip


def closed_loop(concurrency, **changes):
    facts = {"input_tokens": 256, "output_tokens": 32, "num_requests": 40, "measured": {"mean_tpot_ms": 10.0}}
    loop = {"process": "closed-loop", "max_concurrency": concurrency}
    return MeasuredRun(f"c{concurrency}", "here", **facts | loop | changes)


def catalogue_chip(text):
    return chip_name(text, chip_names())


@pytest.fixture(scope="module")
def own_table(tmp_path_factory):
    """A canonical table measured on the simulator itself."""
    folder = tmp_path_factory.mktemp("own")
    rows = []
    for tp in (1, 2):
        for concurrency in (1, 8):
            run = closed_loop(concurrency, model="meta-llama/Llama-3.1-8B", chip="H100", tensor_parallel=tp)
            summary = summarise(simulate(run_scenario(run, BASE)))
            facts = (f"tp{tp} c{concurrency}", run.model, "H100", "vllm", tp, concurrency, 256, 32, 40)
            rows.append((*facts, *(summary[name] for name in COLUMNS[9:])))
    file = folder / "runs.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([COLUMNS, *rows])
    (folder / "base.yaml").write_text(json.dumps(BASE.model_dump(exclude_unset=True)))
    return folder


def test_figures_of_a_steady_state_leave_out_how_the_loop_ends():
    answers = np.full(32, 32)
    answers[-1] = 3000  # runs alone for nearly all of the time
    lengths = (np.full(32, 256), answers)
    measured = {"output_throughput": 500.0, "median_itl_ms": 7.0, "avg_power_w": 500.0}
    run = closed_loop(8, lengths=lengths, num_requests=32, measured=measured)
    whole, steady = (rerun(replace(run, steady=steady), BASE)["predicted"] for steady in (False, True))
    equal = rerun(closed_loop(8, num_requests=400, measured=measured), BASE)["predicted"]
    assert whole["output_throughput"] < 0.5 * equal["output_throughput"]
    for figure in measured:
        assert steady[figure] == pytest.approx(equal[figure], rel=0.08)
    assert 0.95 * whole["avg_power_w"] < steady["avg_power_w"] < 700


def test_a_simulated_run_replays_to_itself(own_table, forerun):
    command = ("replay", "requests", own_table / "runs.csv", "--scenario", own_table / "base.yaml", "--jobs", 1)
    document = forerun(*command, "--json", "-", "--fail-above", "mape=0.001").document
    assert len(document["runs"]) == 4
    assert {score["metric"] for score in document["scores"]} >= {"mean_ttft_ms", "mean_tpot_ms"}
    assert all(score["mape"] < 1e-9 and score["coverage"] == 100 for score in document["scores"])


def test_gate_where_and_report(own_table, tmp_path, forerun):
    wrong = tmp_path / "runs.csv"
    lines = (own_table / "runs.csv").read_text().splitlines()
    wrong.write_text("\n".join([lines[0], *(line.rsplit(",", 1)[0] + ",1.0" for line in lines[1:])]))
    command = ("replay", "requests", wrong, "--scenario", own_table / "base.yaml", "--jobs", 1)
    gates = ("--fail-above", "throughput.mape=50", "--fail-above", "tpot.bias=1")
    outcome = forerun(*command, *gates, "--where", "tensor_parallel>=2", "--out", tmp_path / "out")
    assert (outcome.code, "output_throughput: mape" in outcome.err) == (1, True)
    document = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert {run["tensor_parallel"] for run in document["runs"]} == {2}
    assert document["skipped"] == {"left out by --where or --limit": 2}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Output throughput" in page
    assert "<script src" not in page


def test_what_the_source_does_not_tell_comes_from_the_scenario():
    run = MeasuredRun("a", "here", chip="h200_sxm", weights_dtype="FP8", input_tokens=(100, 200), max_num_seqs=32,
                      process="closed-loop", max_concurrency=4)  # fmt: skip
    scenario = run_scenario(run, BASE)
    assert scenario.model == BASE.model
    assert (scenario.hardware.chip, scenario.weights_dtype) == ("h200-sxm", "fp8")
    assert scenario.workload.output_tokens == 32
    assert scenario.engine.max_num_seqs == 32
    assert scenario.workload.num_requests == 40, "ten waves where the source does not say how many were sent"


@pytest.mark.parametrize(
    ("model", "message", "requested"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", "fp8", None),
        ("deepseek-ai/DeepSeek-R1-0528", "fp8_block", None),
        ("deepseek-ai/DeepSeek-R1-0528", "nvfp4", "fp4"),
        ("openai/gpt-oss-120b", "fp4", None),
        ("moonshotai/Kimi-K2.5", "int4", None),
        ("amd/Kimi-K2.7-Code-MXFP4", "mxfp4", {"expert": "mxfp4"}),
        ("moonshotai/Kimi-K2.5", "fp8", "fp8"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "fp8", "fp8_block"),
        ("nvidia/Qwen3-235B-A22B-FP8", "fp8", "fp8"),
        ("meta-llama/Llama-3.1-70B", "fp8_block", "fp8_block"),
    ],
)
def test_fp8_of_a_checkpoint_in_blocks_is_that_checkpoint(model, message, requested):
    run = closed_loop(2, model=model, weights_dtype=message, tensor_parallel=8)
    assert run_scenario(run, BASE).weights_dtype == requested


def test_unknown_names_are_skipped_with_their_reason():
    runs = [closed_loop(2), closed_loop(2, model="acme/unheard-of-7b"), closed_loop(2, chip="Ascend 910B")]
    report = replay_requests([*runs, closed_loop(2, data_parallel_attention=8)], BASE)
    assert report.skipped == {
        "model 'acme/unheard-of-7b' is not known (forerun models list); a server's own name for a model: leave the "
        "scenario out and give --chip and --set model=NAME": 1,
        "chip 'Ascend 910B' is not known (forerun chips list)": 1,
        "hardware.attention_data_parallel: llama-3.1-8b has no experts that groups could share; more copies of a dense "
        "model are hardware.replicas": 1,
    }
    score = next(s for s in report.scores if s.metric == "mean_tpot_ms" and s.group == "all")
    assert (score.n, score.of, score.coverage) == (1, 4, 25.0)
    json.dumps(report.document, allow_nan=False)


def test_a_split_keeps_curves_together():
    runs = [closed_loop(c, input_tokens=i) for c in (1, 2, 4) for i in range(100, 140)]
    split = Split(0.5, 1)
    sides = {}
    for run in runs:
        sides.setdefault(run.input_tokens, set()).add(in_training(run, split))
    assert all(len(side) == 1 for side in sides.values())
    assert 8 < sum(True in side for side in sides.values()) < 32


def test_conditions():
    names = {"model": "meta-llama/Llama-3.1-8B-Instruct", "chip": "NVIDIA H100 80GB HBM3"}
    run = closed_loop(8, **names, output_tokens=(80, 100))
    for text in ("model=llama-3.1-8b", "chip=h100-sxm", "model~Instruct", "output_tokens<=100", "max_concurrency>=8"):
        assert parse_condition(text)(run), text
    for text in ("model=llama-3.1-70b", "request_rate>=1", "output_tokens<=99"):
        assert not parse_condition(text)(run), text


@pytest.mark.parametrize(
    ("read", "text", "meant"),
    [
        (catalogue_model, "LLaMA v3.1 8B", "llama-3.1-8b"),
        (catalogue_model, "nvidia/Llama-3.1-8B-Instruct-FP8", "llama-3.1-8b"),
        (catalogue_model, "meta-llama/Llama-2-70b-hf", "llama-2-70b"),
        (catalogue_model, "deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        (catalogue_model, "acme/unheard-of", None),
        (framework_name, "NIM (TensorRT-LLM)", "trtllm"),
        (framework_name, "dynamo-trt", "trtllm"),
        (framework_name, "atom", None),
        (catalogue_model, "DeepSeek-V4 (pro-official (0813))", "deepseek-v4-pro"),
        (catalogue_model, "Qwen3.8-27B (dense)", "qwen3.5-27b"),
        (catalogue_model, "amd/Kimi-K2.7-Code-MXFP4", "kimi-k2.5"),
        (catalogue_model, "Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b-2507"),
        (named_dtype, "amd/GLM-5.2-MXFP4", "mxfp4"),
        (named_dtype, "DeepSeek-V4 (pro)", None),
        (dtype_name, "fp4 (NVFP4)", "fp4"),
        (catalogue_chip, "MI350X", "mi350x"),
        (catalogue_chip, "GH200", "gh200"),
        (dtype_name, "FP16", "bf16"),
        (dtype_name, "nonsense", None),
        (catalogue_chip, "NVIDIA H100 80GB HBM3", "h100-sxm"),
        (catalogue_chip, "A100-PCIE-80GB", "a100-pcie-80gb"),
        (catalogue_chip, "NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        (catalogue_chip, "NVIDIA GeForce RTX 4090", "rtx-4090"),
        (catalogue_chip, "RTX4090 24GB", "rtx-4090"),
        (catalogue_chip, "GB200 NVL72", "gb200"),
        (catalogue_chip, "gb300", "gb300"),
        (catalogue_chip, "Apple M4 Max", "apple-m4-max"),
        (catalogue_chip, "Tesla V100-SXM2", "v100-sxm"),
        (catalogue_chip, "MI355X", "mi355x"),
        (catalogue_chip, "Ascend-910B", None),
        (catalogue_chip, "L40", None),
        (catalogue_chip, "AMD EPYC CPU", None),
    ],
)
def test_published_names(read, text, meant):
    assert read(text) == meant


def test_names_that_are_read_as_another_are_reported():
    (words,) = readings(closed_loop(1, model="Qwen3.6-27B", chip="H100"))
    assert words == "model 'Qwen3.6-27B' read as qwen3.5-27b", "H100 holds the catalogue's name less its form"


def test_a_run_with_its_models_own_draft_heads_needs_depth_and_acceptance_alone():
    facts = {"model": "deepseek-r1", "speculation": "EAGLE MTP", "num_speculative_tokens": 3, "acceptance_length": 2.5}
    scenario = run_scenario(closed_loop(1, **facts), BASE)
    assert (scenario.speculation.method, scenario.speculation.num_speculative_tokens) == ("mtp", 3)
    with pytest.raises(ForerunError, match="does not tell its depth and acceptance"):
        run_scenario(closed_loop(1, **{**facts, "acceptance_length": None}), BASE)


def test_a_format_in_a_models_name_is_its_weights():
    assert run_scenario(closed_loop(1, model="Qwen3-8B-NVFP4"), BASE).weights_dtype == "fp4"
    assert run_scenario(closed_loop(1, model="Qwen3-8B-NVFP4", weights_dtype="fp8"), BASE).weights_dtype == "fp8"


def test_requests_have_the_lengths_that_their_client_drew():
    drawn = closed_loop(2, input_tokens=(1, 400), output_tokens=(1, 64), lengths=(np.full(40, 256), np.full(40, 32)))
    predicted = [rerun(run, BASE)["predicted"] for run in (drawn, closed_loop(2))]
    assert predicted[0] == predicted[1]


def test_a_pool_of_prompts_shares_what_its_groups_share():
    hashes = pool_hashes(PromptPool(prompts=4, groups=2, shared_tokens=40), np.full(6, 70), 16)
    lists = [hashes.ids[a:b].tolist() for a, b in zip(hashes.offsets[:-1], hashes.offsets[1:], strict=True)]
    assert lists[0] == lists[4], "the fifth request takes the first prompt again"
    assert lists[0][:2] == lists[2][:2], "one group: two whole blocks of 16 in 40 shared tokens"
    assert not set(lists[0][2:]) & set(lists[2])
    assert not set(lists[0]) & set(lists[1])


def test_repeated_prompts_are_cached():
    facts = {"input_tokens": 1024, "num_requests": 200, "measured": {"mean_ttft_ms": 10.0}}
    pool = PromptPool(prompts=20, groups=2, shared_tokens=256)
    fresh = rerun(closed_loop(1, **facts), BASE)["predicted"]
    cached = rerun(closed_loop(1, pool=pool, **facts), BASE)["predicted"]
    assert cached["mean_ttft_ms"] < 0.75 * fresh["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculation": "eagle3"}, "speculation 'eagle3': the scenario has no speculation block"),
        ({"max_concurrency": None}, "its concurrency is not known"),
        ({"model": "Abacus-3B"}, "model 'Abacus-3B' is not known"),
    ],
)
def test_runs_that_the_scenario_cannot_stand_for_say_why(changes, message):
    with refused(message):
        run_scenario(closed_loop(4, **changes), BASE)


def test_what_a_run_says_stands_over_the_scenario():
    base = BASE.with_values({"speculation": drafts("eagle3", 2, 0.5)})
    message = {"speculation": "eagle3", "num_speculative_tokens": 3, "kv_cache_dtype": "fp8", "acceptance_length": 2.0}
    result = run_scenario(closed_loop(4, **message), base)
    assert result.speculation.num_speculative_tokens == 3
    assert result.speculation.acceptance.acceptance_length == 2.0
    assert result.kv_cache_dtype == "fp8"
    assert run_scenario(closed_loop(4, speculation="none"), base).speculation is None


@pytest.mark.parametrize(
    ("groups", "message", "share"), [(8, None, 0.7675), (2, None, 0.9), (None, None, 0.9), (8, 0.85, 0.85)]
)
def test_sglang_keeps_memory_for_data_parallel_attention(groups, message, share):
    """(143,155 MiB - 33,280) / 143,155 of an H200: what its runs of GLM-5.2 without a share show."""
    facts = {"framework": "sglang", "chip": "h200-sxm", "data_parallel_attention": groups}
    engine = run_scenario(closed_loop(4, **facts, gpu_memory_utilization=message), BASE).engine
    assert engine.gpu_memory_utilization == pytest.approx(share, abs=0.011)


@pytest.mark.parametrize(
    ("facts", "allowed"),
    [
        ({"speculation": "mtp"}, 48),
        ({"speculation": "mtp", "max_num_seqs": 80}, 80),
        ({"speculation": "mtp", "framework": "vllm"}, 1024),
        ({"model": "deepseek-v4-flash", "data_parallel_attention": 4}, 256),
        ({"data_parallel_attention": 4}, 4 * 2048),
    ],
)
def test_sglang_allows_fewer_sequences_of_some_models_and_with_drafts(facts, allowed):
    facts_of_all = {"framework": "sglang", "chip": "h200-sxm", "model": "deepseek-r1", "tensor_parallel": 2}
    facts_of_all |= {"num_speculative_tokens": 1, "acceptance_length": 1.8} if "speculation" in facts else {}
    assert run_scenario(closed_loop(4096, **facts_of_all | facts), BASE).engine.max_num_seqs == allowed


def test_rates_that_follow_one_another():
    run = MeasuredRun("a", "here", process="constant", stages=((2.0, 5.0), (20.0, 1.0)), input_tokens=64,
                      output_tokens=8, measured={"mean_ttft_ms": 10.0})  # fmt: skip
    predicted = rerun(run, BASE)["predicted"]
    # 30 requests, the last sent at 5 + 19/20 s and answered soon after
    assert predicted["request_throughput"] == pytest.approx(30 / 5.95, rel=0.02)


def test_served_8b_on_h100(shared_data):
    """Twelve of the TensorRT-LLM runs on one chip and on two, whatever the fit saw."""
    runs = [
        run
        for run in read_runs(shared_data / "kernels" / "aiconfigurator" / "e2e")
        if run.chip == "h100_sxm" and "8B-Instruct" in (run.model or "") and (run.tensor_parallel or 0) <= 2
    ]
    report = replay_requests(runs, BASE, limit=12)
    scores = {s.metric: s for s in report.scores if s.group == "all"}
    assert scores["mean_tpot_ms"].mape < 7
    assert scores["output_throughput"].mape < 10
    assert scores["mean_ttft_ms"].mape < 30


def test_served_by_vllm(shared_data):
    """Four configurations of BLIS's evaluation, each load stage cut to a minute."""

    names = ("19-llama", "14-qwen3", "6-llama-2-70b", "57-codellama")
    runs = [
        replace(run, stages=tuple((rate, min(seconds, 60.0)) for rate, seconds in run.stages))
        for run in read_runs(shared_data / "serving" / "blis" / "eval38_ground_truth.csv")
        if run.name.startswith(names) and run.name.endswith("stage 0")
    ]
    assert len(runs) == 4
    scores = {s.metric: s for s in replay_requests(runs, BASE).scores if s.group == "all"}
    assert scores["mean_e2el_ms"].median_ape < 6
    assert scores["mean_ttft_ms"].median_ape < 20


def test_prompts_share_no_block():
    hashes = unshared_hashes(np.array([1, 16, 17, 100]), 16)
    result = [hashes.of(request).tolist() for request in range(4)]
    assert [len(one) for one in result] == [1, 1, 2, 7]
    assert len({unit for one in result for unit in one}) == 11


def test_coming_back_computes_less_and_only_after_preemption():
    scenario = on_h100(burst(1, 1, 1), model="llama-3.2-1b", engine={"num_kv_blocks": 400})
    prompts, answers = np.full(40, 500), np.full(40, 300)
    plain = RequestStream(np.zeros(40), prompts, answers, None)
    custom = RequestStream(np.zeros(40), prompts, answers, None, prefix_hashes=unshared_hashes(prompts, 16))
    without, run = (simulate(scenario, stream=stream) for stream in (plain, custom))
    assert without.requests.preemptions.sum() > 0
    assert run.steps.prefill_tokens.sum() < without.steps.prefill_tokens.sum()
    assert run.steps.prefill_tokens.sum() >= prompts.sum()
    roomy = scenario.with_values({"engine.num_kv_blocks": 10_000})
    one, other = (simulate(roomy, stream=stream) for stream in (plain, custom))
    assert np.array_equal(one.requests.finished_s, other.requests.finished_s)
    assert other.requests.cached_tokens.sum() == 0


MIXTURE = {"model": "qwen3-30b-a3b", "chip": "h200", "input_tokens": 512, "output_tokens": 64, "num_requests": 40}


@pytest.mark.parametrize(
    ("streams", "changes", "late"),
    [(4, {}, True), (1, {}, False), (4, {"model": "llama-3.1-8b"}, False)],
)
def test_the_first_prompts_of_a_mixture_are_late_in_a_closed_loop_of_several(streams, changes, late):
    """Each of the first ``streams`` of 40 prompts by the time that the engine's entry names, and no other."""
    again = rerun(closed_loop(streams, **MIXTURE | changes), BASE)
    scenario = run_scenario(closed_loop(streams, **MIXTURE | changes), BASE)
    plain = summarise(simulate(scenario, 0))
    extra_ms = again["predicted"]["mean_ttft_ms"] - plain["mean_ttft_ms"]
    expected_ms = 1e3 * load_framework("vllm").first_batch_s["nvidia"] * streams / 40 if late else 0.0
    assert extra_ms == pytest.approx(expected_ms, abs=1e-6)
    assert any("s late" in note for note in again["notes"]) == late
    assert again["predicted"]["mean_tpot_ms"] == pytest.approx(plain["mean_tpot_ms"])


@pytest.mark.parametrize(("cached", "counted"), [(None, 5), (False, 1)])
def test_states_of_a_hybrid_model_limit_its_sequences_under_sglang(cached, counted):
    """The engine's default of 2,048 sequences would take 315 GB of states on one chip; the run took place. SGLang gives
    states 0.9 of 1.9 parts of the memory beside weights, five of them a sequence where it caches prefixes."""
    facts = {"model": "qwen3.5-27b", "chip": "b200", "framework": "sglang", "weights_dtype": "fp8"}
    run = closed_loop(1024, **facts, tensor_parallel=1, num_requests=1024, input_tokens=64, output_tokens=4)
    run = replace(run, prefix_caching=cached)
    note = next(note for note in rerun(run, BASE)["notes"] if note.startswith("states of"))
    memory = build_replica(run_scenario(run, BASE).with_values({"engine.max_num_seqs": 1}), 0).main.memory
    share = run_scenario(run, BASE).engine.gpu_memory_utilization
    left = share * memory.capacity_bytes - memory.weight_bytes
    assert note == f"states of {int(left * 0.9 / 1.9 / memory.state_bytes / counted)} sequences fit at once"


def leaves(data, place=""):
    """Fields of a scenario as (path, value); mappings within are opened, lists are values."""
    for name, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", value


def at(data, path):
    for name in path.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data


FILES = {
    "latencies alone": {"process": None, "max_concurrency": None, "input_tokens": None, "output_tokens": None},
    "lengths and load": {},
    "another model": {"model": "qwen3-8b", "weights_dtype": "fp8", "chip": "H200"},
    "limits": {"max_num_seqs": 12, "tensor_parallel": 1, "prefix_caching": False, "kv_cache_dtype": "fp8"},
    "no drafts": {"speculation": "none"},
    "drafts": {"acceptance_length": 1.8, "num_speculative_tokens": 2, "acceptance_per_position": (0.6, 0.2)},
}


@pytest.fixture(scope="module")
def bases():
    """Scenarios drawn over the whole schema, those that validation accepts."""
    accepted = []
    for seed in range(120):
        with suppress(ForerunError):
            accepted.append(scenario_from(placed(scenario_of(seed)), "drawn"))
    return accepted


@pytest.mark.parametrize("facts", FILES.values(), ids=FILES.keys())
def test_every_field_of_a_base_scenario_is_used_replaced_with_a_note_or_refused(facts, bases):
    """No field is dropped in silence, whatever the file states."""
    run, seen = closed_loop(4, num_requests=None, **facts) if "process" not in facts else MeasuredRun("a", "x"), set()
    for base in bases:
        chosen = base.model_dump(exclude_unset=True)
        seen |= {path.partition(".")[0] for path, value in leaves(chosen) if value is not None}
        try:
            scenario = run_scenario(run, base)
            notes = " ".join(overridden(run, base, scenario))
        except ForerunError:
            continue
        used, whole = scenario.model_dump(), base.model_dump()
        for path, value in leaves(chosen):
            parents = [path.rsplit(".", n)[0] for n in range(path.count(".") + 1)]
            kept = value is None or at(used, path) in (value, at(whole, path))
            assert kept or any(f"{one} " in notes for one in parents), path
    assert seen >= {"model", "hardware", "engine", "router", "pools", "faults", "speculation", "workload"}


def bench(**more):
    """A result of ``vllm bench serve``, its default backend included."""
    totals = {"num_prompts": 40, "completed": 40, "total_input_tokens": 40 * 256, "total_output_tokens": 40 * 32}
    load = {"request_rate": "inf", "max_concurrency": 4, "mean_tpot_ms": 9.0, "mean_ttft_ms": 30.0}
    return {"backend": "openai", "model_id": "meta-llama/Llama-3.1-8B-Instruct", **totals, **load, **more}


def results(tmp_path, *each):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(each[0] if len(each) == 1 else each))
    return read_runs(file)


DRAFTED = {"spec_decode_num_drafts": 1000, "spec_decode_draft_tokens": 2000, "spec_decode_accepted_tokens": 1400,
           "spec_decode_acceptance_length": 2.4, "spec_decode_acceptance_rate": 0.7,
           "spec_decode_per_position_acceptance_rates": [0.9, 0.5]}  # fmt: skip


def test_the_scenarios_speculation_is_replayed_with_the_acceptance_of_the_file(tmp_path):
    base = BASE.with_values({"speculation": drafts("eagle3", 3, 0.8)})
    (plain,) = results(tmp_path, bench())
    without = rerun(replace(plain, speculation="none"), base)["predicted"]["mean_tpot_ms"]
    kept = rerun(plain, base)
    assert kept["predicted"]["mean_tpot_ms"] < 0.6 * without
    assert any("acceptance are the scenario's" in note for note in kept["notes"])
    (drafted,) = results(tmp_path, bench(**DRAFTED))
    speculation = run_scenario(drafted, base).speculation
    assert (speculation.method, speculation.num_speculative_tokens) == ("eagle3", 2)
    assert list(speculation.acceptance.per_position) == [0.9, 0.5]
    with pytest.raises(
        ForerunError, match=r"the server drafted \(acceptance length 2\.40\), and the scenario does not"
    ):
        run_scenario(drafted, BASE)


@pytest.mark.parametrize("backend", ["openai", "openai-chat", "openai-completions", "vllm"])
def test_a_clients_protocol_names_no_engine(tmp_path, backend):
    (run,) = results(tmp_path, bench(backend=backend))
    assert run_scenario(run, BASE).engine.framework == "vllm"
    for framework in ("sglang", "vllm-0.11"):
        assert run_scenario(run, BASE.with_values({"engine.framework": framework})).engine.framework == framework
    assert run.notes == (f"backend '{backend}' is the client's protocol; the scenario names the engine",)


def test_limits_of_a_swept_server_are_used(tmp_path, forerun):
    limits = {"max-num-seqs": 4, "gpu_memory_utilization": 0.8, "enforce_eager": True, "async-scheduling": True}
    first, second = results(tmp_path, bench(run_number=0, **limits), bench(run_number=1, mean_tpot_ms=8.0, **limits))
    engine = run_scenario(first, BASE).engine
    assert (engine.max_num_seqs, engine.gpu_memory_utilization, engine.cuda_graphs) == (4, 0.8, False)
    assert "not read: async_scheduling" in first.notes
    assert (second.name, second.measured["mean_tpot_ms"]) == ("result 1", 8.0)
    (tmp_path / "run=0.json").write_text(json.dumps(bench(run_number=0, **limits)))
    assert len(read_runs(tmp_path)) == 2, "a sweep's summary repeats its results"


def test_keys_of_a_swept_server_count_in_every_spelling(tmp_path):
    for key in ("--max-num-seqs", "--max_num_seqs", "max-num-seqs", "__max_num_seqs", "-max-num-seqs"):
        (run,) = results(tmp_path, bench(**{key: 4, "--async-scheduling": True, "_benchmark_name": "a"}))
        assert run.max_num_seqs == 4, key
        assert "not read: async_scheduling" in run.notes
    with pytest.raises(TraceError, match="max_num_seqs: is given twice, as 4 and 8"):
        results(tmp_path, bench(**{"--max-num-seqs": 4, "max_num_seqs": 8}))


def test_every_fact_of_the_file_that_the_scenario_would_run_otherwise_is_listed(tmp_path):
    facts = {"max_num_seqs": 4, "tensor_parallel_size": 2, "quantization": "fp8", "kv_cache_dtype": "fp8",
             "enforce_eager": True}  # fmt: skip
    (run,) = results(tmp_path, bench(**facts))
    (note,) = [one for one in rerun(run, BASE)["notes"] if one.startswith("from the file")]
    for words in ("engine.max_num_seqs 4 (", "hardware.tensor_parallel 2 (1)", "weights_dtype fp8 (default)",
                  "kv_cache_dtype fp8 (bf16)", "engine.cuda_graphs False (True)"):  # fmt: skip
        assert words in note
    (run,) = results(tmp_path, bench(model_id="served", tokenizer_id="RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"))
    assert "weights_dtype fp8 (default)" in " ".join(rerun(run, BASE)["notes"])


def test_notes_on_drafting_say_what_the_file_states(tmp_path):
    profile = {"curve": "eagle3-llama-3.1-8b-mt-bench"}
    base = BASE.with_values({"speculation": {"method": "eagle3", "num_speculative_tokens": 3, "acceptance": profile}})
    (plain,) = results(tmp_path, bench())
    notes = " ".join(rerun(plain, base)["notes"])
    assert "speculation.acceptance" not in notes
    assert "speculation and its acceptance are the scenario's" in notes
    for method in ("eagle3", "ngram"):
        config = {"method": method, "num_speculative_tokens": 2}
        for value in (config, json.dumps(config)):
            (stated,) = results(tmp_path, bench(speculative_config=value))
            again = rerun(stated, base)
            notes = " ".join(again["notes"])
            assert "speculation.num_speculative_tokens 2 (3)" in notes
            assert "speculation and its acceptance" not in notes
            assert "the acceptance of drafts is the scenario's" in notes
            assert ("in place of the file's ngram" in notes) == (method == "ngram")


def test_the_first_line_names_another_model_than_the_scenarios(tmp_path, forerun):
    (tmp_path / "base.yaml").write_text(json.dumps(BASE.model_dump(exclude_unset=True)))
    command = ("replay", "requests", tmp_path / "result.json", "--scenario", tmp_path / "base.yaml", "--jobs", 1)
    for model, words in (
        ("Qwen/Qwen3-8B", "qwen3-8b in place of the scenario's llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "served again: llama-3.1-8b, on h100-sxm under vllm"),
        (None, "llama-3.1-8b, named by the scenario alone"),
    ):
        results(tmp_path, bench(model_id=model))
        assert words in " ".join(forerun(*command).out.split("Every run")[0].split())


def test_weights_of_the_scenario_stay_where_the_file_names_the_same_model(tmp_path):
    base = BASE.with_values({"weights_dtype": "fp8"})
    assert run_scenario(*results(tmp_path, bench()), base).weights_dtype == "fp8"
    assert run_scenario(*results(tmp_path, bench(model_id="Qwen/Qwen3-8B")), base).weights_dtype is None
    assert run_scenario(*results(tmp_path, bench(quantization="awq")), base).weights_dtype == "int4"


def test_a_fact_that_a_pool_would_hide_is_refused(tmp_path):
    pools = {"prefill": {"role": "prefill", "engine": {"max_num_seqs": 8}}, "decode": {"role": "decode"}}
    base = BASE.with_values({"pools": pools})
    with pytest.raises(ForerunError, match=r"pools\.prefill\.engine\.max_num_seqs: is 8 in the scenario, 4 in the"):
        run_scenario(*results(tmp_path, bench(max_num_seqs=4)), base)
    assert run_scenario(*results(tmp_path, bench()), base).pools["prefill"].engine == {"max_num_seqs": 8}


AGGREGATE = {
    "hw": "h100-cw", "conc": 4, "image": "vllm/vllm-openai:v0.14.0", "model": "meta-llama/Llama-3.1-8B-Instruct",
    "framework": "vllm", "precision": "bf16", "spec_decoding": "none", "isl": 256, "osl": 32, "is_multinode": False,
    "tp": 1, "ep": 1, "dp_attention": "false", "tput_per_gpu": 5000.0, "mean_ttft": 0.02, "mean_tpot": 0.007,
}  # fmt: skip
TABLE = "| Concurrency | ISL | OSL | N Req | TTFT (ms) | TPOT (ms) |\n| 4 | 256 | 32 | 40 | 20 | 7 |\n"
REPORT = {
    "request_latency": {"unit": "ms", "avg": 300.0}, "time_to_first_token": {"unit": "ms", "avg": 20.0},
    "input_sequence_length": {"avg": 256.0}, "output_sequence_length": {"avg": 32.0}, "request_count": {"avg": 40.0},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with results of several forms and a base scenario; commands run in it."""
    monkeypatch.chdir(tmp_path)
    texts = {
        "agg.json": json.dumps(AGGREGATE), "runs.md": TABLE, "aiperf.json": json.dumps(REPORT),
        "base.yaml": json.dumps(BASE.model_dump(exclude_unset=True)),
        "models.csv": "model,max_concurrency,input_tokens,output_tokens,num_requests,mean_tpot_ms\n"
        "meta-llama/Llama-3.1-8B-Instruct,4,256,32,40,7\nQwen/Qwen3-8B,4,256,32,40,7\n",
        "served.csv": "model,max_concurrency,input_tokens,output_tokens,mean_tpot_ms\nmine,4,256,32,7\n",
        "bench.md": "| model | size | params | backend | ngl | test | t/s |\n|---|---|---|---|---|---|---|\n"
        "| llama 8B BF16 | 15 GiB | 8.03 B | CUDA | 99 | tg32 | 100.0 ± 0.5 |\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_result_that_states_its_deployment_needs_no_scenario(folder, forerun):
    outcome = forerun("replay requests agg.json --jobs 1 --json - --out out")
    (run,) = outcome.document["runs"]
    assert run["simulated"] == "llama-3.1-8b, on h100-sxm under vllm"
    assert outcome.document["scenario"]["hardware"]["chip"] == "h100-sxm"
    assert abs(run["error"]["mean_tpot_ms"]) < 20
    assert not any("no engine is named" in note for note in run["notes"])


def test_options_supply_what_a_result_does_not_state(folder, forerun):
    line = forerun("replay requests runs.md --jobs 1").error_line
    assert "states no model, chip; give --set model=NAME --chip NAME, or a base scenario (--scenario FILE)" in line
    given = forerun("replay requests runs.md --jobs 1 --chip h100-sxm --set model=llama-3.1-8b --json -").document
    by_scenario = forerun("replay requests runs.md --jobs 1 --scenario base.yaml --json -").document
    assert given["runs"][0]["predicted"] == by_scenario["runs"][0]["predicted"]
    assert "no engine is named: vllm" in given["runs"][0]["notes"]
    line = forerun("replay requests aiperf.json --jobs 1 --chip h100-sxm --set model=llama-3.1-8b").error_line
    assert "states no arrivals; give --set 'workload.arrivals={process: closed-loop, max_concurrency: N}'" in line


def test_a_result_without_a_load_takes_the_scenarios_and_says_so(folder, forerun):
    (run,) = forerun("replay requests aiperf.json --jobs 1 --scenario base.yaml --json -").document["runs"]
    words = "the file does not state all of the load; from the scenario: arrivals closed-loop 4"
    assert any(note.startswith(words) for note in run["notes"])


def test_the_heading_names_every_model_of_a_file_with_several(folder, forerun):
    out = forerun("replay requests models.csv --jobs 1 --chip h100-sxm").out
    assert out.startswith("Predictions are off in the median by: Mean TPOT ")
    assert "2 measured runs served again: llama-3.1-8b, qwen3-8b" in out
    out = " ".join(forerun("replay requests models.csv --jobs 1 --scenario base.yaml").out.split())
    assert "qwen3-8b in place of the scenario's llama-3.1-8b; 1 configurations of other models" in out


def test_an_unknown_model_is_the_scenarios_by_its_number_of_weights_alone(folder, forerun):
    line = forerun("replay requests served.csv --jobs 1 --scenario base.yaml").error_line
    assert "model 'mine' is not known" in line
    assert "leave the scenario out and give --chip and --set model=NAME" in line
    command = "replay requests served.csv --jobs 1 --chip h100-sxm --set model=llama-3.1-8b --json -"
    (run,) = forerun(command).document["runs"]
    assert "the file's model 'mine' is llama-3.1-8b, as --set states" in run["notes"]
    (run,) = forerun("replay requests bench.md --jobs 1 --scenario base.yaml --json -").document["runs"]
    assert run["simulated"].startswith("llama-3.1-8b, on h100-sxm under llama.cpp")
    (folder / "bench.md").write_text((folder / "bench.md").read_text().replace("8.03 B", "7.25 B"))
    assert "model 'llama 8B' is not known" in forerun("replay requests bench.md --scenario base.yaml").error_line


def test_drafting_and_attention_groups_that_a_file_does_not_state_are_named():
    facts = {
        "model": "deepseek-v3",
        "chip": "h200-sxm",
        "weights_dtype": "fp8",
        "tensor_parallel": 8,
        "num_requests": 2,
    }

    def named(*words, **changes):
        notes = rerun(closed_loop(1, **facts | changes), BASE)["notes"]
        return [any(word in note for note in notes) for word in words]

    words = "whether the server drafts", "states no attention groups"
    assert named(*words) == [True, True]
    assert named(*words, speculation="none", data_parallel_attention=1) == [False, False]
    assert named(*words, model="qwen3-8b", weights_dtype=None) == [False, False]


BARE = """Successful requests: 256
{load}Total input tokens: 262144
Total generated tokens: 65536
Request throughput (req/s): 2.90
Output token throughput (tok/s): {rate}
Mean TTFT (ms): 310.2
Mean TPOT (ms): 20.33
"""
LINE = ("--scenario", "vllm serve meta-llama/Llama-3.1-8B --port 80", "--chip", "h100-sxm", "--jobs", 1)


def test_a_load_that_a_launch_line_cannot_have_offered_gives_way_to_littles_law(tmp_path, forerun):
    path = tmp_path / "bare.txt"
    path.write_text(BARE.format(load="", rate=743))
    words = " ".join(forerun("replay", "requests", path, *LINE).out.split())
    assert "2.9 requests/s were served, where the scenario's load is 1: taken as 16 at once" in words
    assert "the load is assumed" not in words


@pytest.mark.parametrize("explain", [(), ("--explain",)])
def test_figures_that_contradict_one_another_are_named_first(tmp_path, forerun, explain):
    path = tmp_path / "wrong.txt"
    path.write_text(BARE.format(load="Maximum request concurrency: 16\n", rate=7430))
    words = " ".join(forerun("replay", "requests", path, *LINE, *explain).out.split())
    assert words.startswith("No judgement of this result holds, for its figures contradict one another: 7430 output")
    assert "(Little's law)" in words
