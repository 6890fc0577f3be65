"""What engines set by themselves where a scenario does not."""

import pytest
from tiny_scenario import tiny_data

from hwprofiles import load_chip
from simulator.running.build import build_run
from simulator.running.metrics.document import scenario_document
from simulator.running.scenario import scenario_from


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
