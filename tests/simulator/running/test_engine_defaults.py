"""What engines set by themselves where a scenario does not."""

import pytest
from plain_scenario import plain_scenario
from tiny_scenario import tiny_data

from hwprofiles import load_chip
from simulator.running.build import build_run
from simulator.running.measured_runs import own_base, run_scenario
from simulator.running.metrics.document import scenario_document
from simulator.running.metrics.tables import run_legend
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario, scenario_from
from traces.benchmark_results import MeasuredRun


def engine_on(chip, framework, **fields):
    data = tiny_data() | {"model": "llama-3.1-8b", "hardware": {"chip": chip}, "engine": {"framework": framework}}
    data["engine"] |= fields.pop("engine", {})
    data["hardware"] |= fields
    return scenario_from(data, "test").engine


@pytest.mark.parametrize(
    ("framework", "scheduler"),
    [("vllm", "vllm-v1"), ("trtllm", "guaranteed-no-evict"), ("sglang", "sglang"), ("sglang-0.5.10", "sglang"),
     ("vllm-2024", "prefill-first")],
)  # fmt: skip
def test_an_engine_has_its_own_scheduler(framework, scheduler):
    assert engine_on("h100-sxm", framework).scheduler == scheduler
    assert engine_on("h100-sxm", framework, engine={"scheduler": "static"}).scheduler == "static"
    assert engine_on("h100-sxm", framework, pipeline_parallel=2).scheduler == "vllm-v1", "the others have no pipelines"
    assert engine_on("h100-sxm", framework, engine={"preemption": "swap"}).scheduler == "vllm-v1"


@pytest.mark.parametrize("framework", ["vllm", "vllm-0.11"])
@pytest.mark.parametrize(
    ("chip", "places", "behind_a_server", "offline"),
    [("h100-sxm", 1024, 8192, 16384), ("mi300x", 1024, 8192, 16384), ("a100-sxm-80gb", 256, 2048, 8192),
     ("l40s", 256, 2048, 8192)],
)  # fmt: skip
def test_vllm_sets_its_limits_by_the_chip(framework, chip, places, behind_a_server, offline):
    """``_set_default_args`` of vLLM: 512 streams on an H100 waited 5.4 s for a first token, among 256 places."""
    for entry_point, tokens in (("server", behind_a_server), ("offline", offline)):
        engine = engine_on(chip, framework, engine={"entry_point": entry_point})
        assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (places, tokens)
    assert engine_on(chip, framework, engine={"max_num_seqs": 7}).max_num_seqs == 7


@pytest.mark.parametrize(
    ("framework", "release", "whole_prompts", "memory"),
    [("vllm", None, True, 0.9), ("vllm", "0.18.1", False, 0.9), ("vllm", "0.19.0", True, 0.9),
     ("vllm", "v0.27.1", True, 0.92), ("vllm", "nightly", True, 0.9), ("vllm", "nightly of 2026-01", False, 0.9),
     ("vllm-0.11", None, False, 0.9), ("vllm-2024", None, False, 0.9), ("sglang", None, False, None)],
)  # fmt: skip
def test_vllm_admits_whole_prompts_and_takes_more_memory_by_release(framework, release, whole_prompts, memory):
    """SchedulerConfig and CacheConfig of v0.18.1, v0.19.0, v0.20.0 and v0.27.1."""
    engine = engine_on("l40s", framework, engine={"release": release})
    assert engine.scheduler_reserve_full_isl == whole_prompts
    assert memory in (None, engine.gpu_memory_utilization)


def test_whole_prompts_belong_to_vllms_scheduler():
    own = engine_on("l40s", "vllm", engine={"scheduler": "prefill-first"})
    assert not own.scheduler_reserve_full_isl, "a default that does not apply is none"
    assert build_run(served({}), 0).main.limits.reserve_full_isl
    assert not build_run(served({"scheduler_reserve_full_isl": False}), 0).main.limits.reserve_full_isl


def served(engine):
    return scenario_from(tiny_data() | {"hardware": {"chip": "l40s"}, "engine": engine}, "test")


def test_windows_of_as_many_sequences_as_fit_leave_room_for_long_prompts():
    """Of Gemma 4's 30 layers 25 keep 1,024 tokens: 213 MB of a sequence, and 20.5 kB a token of the others."""
    data = tiny_data() | {"model": "gemma-4-26b-a4b", "hardware": {"chip": "h200-sxm"}, "engine": {"framework": "vllm"}}
    for prompt, sequences in ((5000, 250), (10_000, 190)):
        lengths = {"input_tokens": prompt, "output_tokens": 200}
        memory = build_run(scenario_from(data | {"workload": data["workload"] | lengths}, "test"), 0).main.memory
        assert memory.num_blocks * 16 / (prompt + 100) == pytest.approx(sequences, rel=0.1)


@pytest.mark.parametrize(("chips", "drafts", "places"), [(2, 0, 450), (2, 1, 256), (8, 0, 1024)])
def test_states_of_all_sequences_leave_room_on_the_chips(chips, drafts, places):
    spec = {"method": "mtp", "num_speculative_tokens": 1, "acceptance": {"alpha": 0.8}} if drafts else None
    data = tiny_data() | {"model": "qwen3.5-27b", "hardware": {"chip": "h200-sxm", "tensor_parallel": chips}}
    seqs = scenario_from(data | {"engine": {}, "speculation": spec}, "test").engine.max_num_seqs
    assert seqs == pytest.approx(places, rel=0.1)


@pytest.mark.parametrize(("hardware", "count"), [({}, 0), ({"pipeline_parallel": 2}, 1)])
def test_a_scheduler_that_stands_in_is_noted(hardware, count):
    data = tiny_data() | {"hardware": {"chip": "h100-sxm"} | hardware, "engine": {"framework": "sglang"}}
    scenario = scenario_from(data, "test")
    for one in (scenario, scenario_from(scenario_document(scenario), "the scenario of a document")):
        notes = build_run(one, 0).notes
        assert len([note for note in notes if "vllm-v1 stands in" in note]) == count


def test_a_document_leaves_out_the_scheduler_that_stands_in():
    pools = {"a": {"role": "prefill", "engine": {"framework": "sglang"}}, "b": {"role": "decode"}}
    data = tiny_data() | {"hardware": {"chip": "h100-sxm", "pipeline_parallel": 2}, "pools": pools}
    written = scenario_document(scenario_from(data, "test"))
    assert written["engine"]["scheduler"] == "vllm-v1", "vLLM's own"
    assert "scheduler" not in written["pools"]["a"]["engine"]
    pools["a"]["engine"]["scheduler"] = "vllm-v1"
    assert scenario_document(scenario_from(data, "test"))["pools"]["a"]["engine"]["scheduler"] == "vllm-v1"


@pytest.mark.parametrize(
    ("chip", "hardware", "kept_mib", "tokens"),
    [
        ("rtx-4090", {}, 512 + 1.5 * 2048 + 2 * 24 + 128, 2048),
        ("l40s", {}, 512 + 1.5 * 4096 + 2 * 32 + 128, 4096),
        ("h100-sxm", {}, 512 + 1.5 * 8192 + 2 * 256 + 128, 8192),
        ("h200-sxm", {"tensor_parallel": 8}, 512 + 1.5 * 8192 + 2 * 512 + 1024, 8192),
        ("h200-sxm", {"attention_data_parallel": 8}, 512 + 1.5 * 8192 + 2 * 512 + 1024 + 4.5 * 512 * 8, 8192),
        ("b200-sxm", {}, 512 + 1.5 * 16384 + 2 * 512 + 128, 16384),
    ],
)
def test_sglang_keeps_memory_for_prompts_and_graphs(chip, hardware, kept_mib, tokens):
    """By hand from ``_handle_gpu_memory_settings`` of SGLang 0.5."""
    engine, capacity = engine_on(chip, "sglang", **hardware), load_chip(chip).memory.capacity_bytes
    assert engine.max_num_batched_tokens == tokens
    assert engine.gpu_memory_utilization == pytest.approx(1 - kept_mib * 2**20 / capacity, abs=6e-4)
    assert engine_on(chip, "sglang", engine={"gpu_memory_utilization": 0.5}, **hardware).gpu_memory_utilization == 0.5
    smaller = engine_on("h100-sxm", "sglang", engine={"max_num_batched_tokens": 4096})
    assert smaller.gpu_memory_utilization > engine_on("h100-sxm", "sglang").gpu_memory_utilization


@pytest.mark.parametrize(
    ("chip", "model", "offered", "measured"),
    [("h200-sxm", "qwen3-32b", 1.896, 343), ("h200-sxm", "gemma-4-26b-a4b", 11.236, 1972),
     ("rtx-pro-6000", "qwen3-32b", 0.777, 136), ("rtx-pro-6000", "gemma-4-26b-a4b", 5.129, 844)],
)  # fmt: skip
def test_capacity_where_weights_leave_little_memory(chip, model, offered, measured):
    """Output tok/s that vLLM 0.27.1 levels out at (systalyze/vllm-benchmarks README): prompts of 3,500 tokens, 10 % of
    them above 10,000. Without whole prompts 213 and 289 preemptions took 28 to 30 %; Gemma's windows are most of its
    cache."""
    workload = {
        "arrivals": {"process": "poisson", "request_rate": offered},
        "input_tokens": {"distribution": "lognormal", "mean": 4894, "cv": 0.978, "max": 12000},
        "output_tokens": {"distribution": "lognormal", "mean": 231.5, "cv": 0.583, "max": 1200},
        "num_requests": 512,
    }
    engine = {"framework": "vllm", "release": "0.27.1", "max_model_len": 16384, "enable_prefix_caching": False}
    data = {"model": model, "hardware": {"chip": chip}, "engine": engine, "workload": workload}
    run = simulate(scenario_from(data, "test"))
    assert run.data["summary"]["output_throughput"] == pytest.approx(measured, rel=0.1)
    assert run.data["kv_cache"]["preemptions"] < 40


def test_a_release_chooses_the_set_of_its_engine_wherever_it_is_named():
    """A field, an image and a measured run mean one server, for which 7.0 and 8.0 ms a token were predicted."""
    for release, own in (("0.11.0", "vllm-0.11"), ("v0.15.1", "vllm"), ("nightly of 2025-11", "vllm-0.11")):
        for named in ("vllm", "vllm-0.11"):
            made = engine_on("h100-sxm", named, engine={"release": release})
            assert made.framework == own
    other = served({"framework": "vllm", "release": "0.11.0"}).with_values({"engine.release": "0.19.0"})
    assert other.engine.framework == "vllm"


LAYOUTS = {"tensor_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2}, {}


@pytest.mark.parametrize("chip", ["h100-sxm", "a100-sxm-80gb", "l40s"])
@pytest.mark.parametrize(
    ("engine", "image", "command"),
    [
        ("vllm", "vllm/vllm-openai", "vllm serve"),
        ("sglang", "lmsysorg/sglang", "sglang serve --model"),
        ("trtllm", "nvcr.io/nvidia/tensorrt-llm/release", "trtllm-serve"),
    ],
)
def test_a_replay_and_a_launch_line_of_one_server_have_the_same_defaults(engine, image, command, chip):
    """By engine, release, model, chip and layout: every field of engine and hardware, and both formats."""
    releases = {
        "vllm": ("0.11.0", "0.15.1", "0.19.0", "0.27.1"), "sglang": ("0.5.9", "0.5.12"), "trtllm": ("0.14.0", "1.1.0")
    }[engine]  # fmt: skip
    flags = {"tensor_parallel": "--tp_size", "pipeline_parallel": "--pp_size"}
    if engine != "trtllm":
        flags = {"tensor_parallel": "--tensor-parallel-size", "pipeline_parallel": "--pipeline-parallel-size"}
    for release in releases:
        for model in ("Qwen/Qwen3-32B", "openai/gpt-oss-20b", "Qwen/Qwen3-8B"):
            for layout in LAYOUTS:
                options = " ".join(f"{flags[name]} {value}" for name, value in layout.items())
                line = f"docker run {image}:v{release} {command} {model} {options}"
                launched = load_scenario(line, [f"hardware.chip={chip}"])
                run = MeasuredRun(
                    name="a", place="a", model=model, chip=chip, framework=engine, framework_version=f"v{release}",
                    process="poisson", request_rate=1.0, input_tokens=1024, output_tokens=256, num_requests=200,
                    **layout,
                )  # fmt: skip
                replayed = run_scenario(run, own_base(run, ()))
                for one, other in zip(differing(launched), differing(replayed), strict=True):
                    assert one == other, (release, model, layout)


@pytest.mark.parametrize("chip", ["n300", "Tenstorrent N300"])
@pytest.mark.parametrize("chips", [None, 2])
def test_a_result_that_names_the_n300_ran_on_its_two_chips(chip, chips):
    run = MeasuredRun(
        name="a", place="a", model="llama-3.1-8b", chip=chip, framework="tt-metal", process="closed-loop",
        max_concurrency=1, input_tokens=128, output_tokens=128, num_requests=4, tensor_parallel=chips,
    )  # fmt: skip
    hardware = run_scenario(run, own_base(run, ())).hardware
    assert (hardware.chip, hardware.tensor_parallel) == ("n300-chip", 2)


def differing(scenario):
    """What a server's defaults decide, without the spelling of its release."""
    engine = {**dict(scenario.engine), "release": None}
    return engine, dict(scenario.hardware), scenario.weights_dtype, scenario.kv_cache_dtype


def test_a_run_without_a_release_says_which_it_stands_for():
    document = simulate(plain_scenario()).document
    assert "engine: vllm 0.14 to 0.19, as engine.release is not set" in run_legend(document)
    stated = simulate(plain_scenario().with_values({"engine.release": "0.23.0"})).document
    assert "engine.release" not in run_legend(stated)


@pytest.mark.parametrize(
    ("framework", "chip", "model", "stored"),
    [
        ("sglang", "b200-sxm", "glm-5.2", "fp8"),
        ("sglang", "gb300", "deepseek-v3.2", "fp8"),
        ("sglang", "h200-sxm", "glm-5.2", "bf16"),
        ("sglang", "mi355x", "glm-5.2", "bf16"),
        ("sglang", "b200-sxm", "deepseek-r1", "bf16"),
        ("vllm", "b200-sxm", "glm-5.2", "bf16"),
    ],
)
def test_sglang_stores_latents_behind_an_indexer_in_fp8_on_blackwell(framework, chip, model, stored):
    """``_set_default_nsa_kv_cache_dtype`` of SGLang's server_args.py; a format that the scenario names stays."""
    data = tiny_data() | {"model": model, "hardware": {"chip": chip}, "engine": {"framework": framework}}
    assert scenario_from(data, "test").kv_cache_dtype == stored
    assert scenario_from(data | {"kv_cache_dtype": "bf16"}, "test").kv_cache_dtype == "bf16"
