"""Names that nothing has are refused before anything runs, by every command that varies them."""

import json

import pytest
import yaml
from refused import refused
from scenario_parts import drafts
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from hwprofiles import load_chip
from simulator.llm import load_architecture
from simulator.running.build import build_run
from simulator.running.names import check_names
from simulator.running.scenario import scenario_from, with_settings

DRAFT = drafts("draft-model", 2, 0.6, draft={"model": "llama-3.2-1b", "chip": "l40s", "link": "pcie5-x16"})
FULL = {
    "weights_dtype": {"default": "bf16", "mlp": "fp8"},
    "speculation": DRAFT,
    "pools": {
        "a": {"role": "prefill", "hardware": {"chip": "a100-sxm-80gb"}},
        "b": {"role": "decode", "engine": {"framework": "sglang"}},
    },
    "kv_transfer": {"link": "pcie5-x16"},
}
MISSPELT = [
    ("model", "llama-3.1-8", "llama-3.1-8b"),
    ("kv_cache_dtype", "fp9", "fp8"),
    ("weights_dtype.mlp", "bf17", "bf16"),
    ("hardware.chip", "h10-sxm", "h100-sxm"),
    ("hardware.link", "nvlnk4", "nvlink4"),
    ("hardware.pipeline_link", "pcie5-x1", "pcie5-x16"),
    ("hardware.expert_routing", "unifom", "uniform"),
    ("engine.framework", "vlm", "vllm"),
    ("engine.host_link", "pcie5-x1", "pcie5-x16"),
    ("kv_transfer.link", "pcie5-x1", "pcie5-x16"),
    ("speculation.draft.model", "llama-3.2-1", "llama-3.2-1b"),
    ("speculation.draft.chip", "l40", "l40s"),
    ("speculation.draft.link", "pcie5-x1", "pcie5-x16"),
    ("pools.a.hardware.chip", "a10-sxm-80gb", "a100-sxm-80gb"),
    ("pools.b.engine.framework", "sglan", "sglang"),
]


def test_a_full_scenario_has_names_that_are_known():
    check_names(scenario_from(tiny_data() | FULL, "full"))


@pytest.mark.parametrize(("path", "value", "meant"), MISSPELT)
def test_each_misspelt_name_is_reported_with_its_field(path, value, meant):
    with refused(f"{path}: ", f"'{value}'", meant):
        scenario_from(tiny_data() | FULL, "full").with_values({path: value})


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"hardware.layers_on": [{"chip": "rtx-309"}]}, ["hardware.layers_on.0", "'rtx-309'"]),
        (
            {"hardware.tensor_chips": ["rtx-309"], "hardware.tensor_parallel": 2},
            ["hardware.tensor_chips.0", "'rtx-309'"],
        ),
        (
            {"workload": {"trace": "azure-conv-202"}},
            ["workload.trace: azure-conv-202: no such file", "azure-conv-2023"],
        ),
    ],
)
def test_other_chips_of_the_machine_and_traces_are_looked_up_too(sections, words):
    with refused(*words):
        scenario_from(tiny_data(), "unlike").with_values(sections)


def test_files_need_not_be_there_when_a_scenario_is_made():
    made = scenario_from(tiny_data(), "early").with_values({"hardware.chip": "later.yaml"})
    with refused("hardware.chip: later.yaml: no such file"):
        check_names(made)


COMMANDS = ["sweep --store s", "sweep --store s --jobs 2", "compare", "plan --rate 2 --slo p99_ttft_ms=5"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("vary", ["hardware.chip=h100-sxm,h10-sxm", "model=llama-3.2-1b,llama-3.2-1"])
def test_the_commands_end_before_anything_runs(command, vary, tmp_path, monkeypatch, forerun):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulator.running.run.build_run", None)
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    name, *rest = command.split()
    line = forerun(name, "tiny.json", "--vary", vary, *rest).error_line
    assert "tiny.json: " in line
    assert "did you mean" in line
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


def test_a_variant_of_a_study_file_is_looked_up_too(tmp_path, forerun):
    study = {"scenario": tiny_data(), "variants": [{"name": "new", "set": {"hardware.chip": "h10-sxm"}}]}
    (tmp_path / "study.json").write_text(json.dumps(study))
    line = forerun("compare", tmp_path / "study.json").error_line
    assert "variants[1]: hardware.chip: no chip 'h10-sxm'; did you mean 'h100-sxm'?" in line


@pytest.mark.parametrize(
    ("load", "name", "hint"),
    [
        (load_chip, "h10-sxm", "did you mean 'h100-sxm'?"),
        *((load_chip, name, "") for name in ("NVIDIA A800 80GB PCIe", "a10g", "h20-3e", "rtx-pro-4500", "gaudi2")),
        *((load_chip, name, "") for name in ("NVIDIA A100-SXM-64GB", "NVIDIA RTX 4090 48GB", "Quadro RTX 6000")),
        (load_chip, "gfx942", "did you mean 'mi300x' or 'mi325x'?"),
        (load_chip, "t3k", "it is 8 x n300-chip, and hardware.chip of a scenario takes it"),
        (load_chip, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""),
        (load_architecture, "x/Llama-3.3-70B-Instruct-GPTQ", "it is llama-3.3-70b with weights_dtype: int4 or w8a16"),
        (load_architecture, "x/Qwen3.6-35B-A3B-Int8", "it is qwen3.6-35b-a3b with weights_dtype: w8a16 or int8 here"),
        (load_architecture, "x/Qwen3-8B-GGUF", "it is qwen3-8b; name the file type too: x/Qwen3-8B-GGUF:Q4_K_M"),
        (load_architecture, "x/Qwen3-8B-exl2-4bpw", "it is qwen3-8b in a format that the name leaves open"),
        (load_architecture, "qwn3-8b", "did you mean 'qwen3-8b'?"),
        *((load_architecture, name, "") for name in ("acme/GLM-5.3", "Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen3.5-3B")),
        (load_architecture, "zai-org/GLM-5.3", "hf:zai-org/GLM-5.3 from the Hugging Face cache"),
        *((load_architecture, f"Qwen/{name}", "") for name in ("Qwen3-Omni-30B-A3B-Instruct", "Qwen2.5-Math-7B-FP8")),
        *((load_architecture, name, "") for name in ("microsoft/Phi-4-multimodal-instruct", "x/Magistral-Small-2506")),
    ],
)  # fmt: skip
def test_a_hint_means_the_same_thing_or_is_not_given(load, name, hint):
    """Another generation, size or kind is no hint, however alike its name."""
    with pytest.raises(ForerunError) as refused:
        load(name)
    assert (hint in str(refused.value)) if hint else ("did you mean" not in str(refused.value))


def test_formats_of_a_repository_name_are_used_and_noted():
    """A name that states formats is a model with these; what the scenario sets itself wins, with a note."""
    data = tiny_data() | {"model": "amd/Llama-3.1-8B-Instruct-FP8-KV"}
    scenario = scenario_from(data, "chat.yaml")
    build = build_run(scenario, 0)
    assert (scenario.kv_cache_dtype, build.pools[0].timer.target.deployment.weight_dtypes["mlp"]) == ("fp8", "fp8")
    assert any("is read as llama-3.1-8b, weights in fp8 and a KV cache in fp8" in note for note in build.notes)
    own = build_run(scenario_from({**data, "weights_dtype": "bf16", "kv_cache_dtype": "bf16"}, "chat.yaml"), 0)
    assert own.pools[0].timer.target.deployment.weight_dtypes["mlp"] == "bf16"
    for field in ("weights_dtype", "kv_cache_dtype"):
        assert f"{field}: bf16 is used, although the model's name says fp8" in own.notes


@pytest.mark.parametrize(
    ("field", "text", "name"),
    [
        ("hardware.chip", "NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("hardware.chip", "dgx-spark", "gb10"),
        ("weights_dtype", "awq", "int4"),
        ("weights_dtype.mlp", "w4a16", "int4"),
        ("kv_cache_dtype", "fp8_e4m3", "fp8"),
        ("pools.p.hardware.chip", "p5.48xlarge", "h100-sxm"),
    ],
)
def test_a_name_of_another_tool_that_means_one_thing_is_read_with_a_note(field, text, name):
    data = tiny_data() | {"pools": {"p": {"role": "both", "hardware": {"replicas": 1}}}}
    scenario = scenario_from(with_settings(data, {field: text}, "test"), "chat.yaml")
    assert text not in str(scenario.model_dump())
    assert any(note.startswith(f"{field}: '{text}' is read as {name}") for note in build_run(scenario, 0).notes)
    other = scenario.with_values({"workload.num_requests": 3})
    assert other.readings == scenario.readings
    assert scenario.with_values({field: name}).readings == ()


def test_a_system_of_several_chips_may_be_named_as_its_tools_print_it():
    scenario = scenario_from(with_settings(tiny_data(), {"hardware.chip": "t3k"}, "test"), "chat.yaml")
    assert (scenario.hardware.chip, scenario.hardware.tensor_parallel) == ("n300-chip", 8)
    assert scenario.readings == ("hardware.chip: 't3k' is read as t3000",)


@pytest.mark.parametrize(
    ("changes", "remedies"),
    [
        ({"model": "qwen3.6-35b-a3b", "weights_dtype": "fp4", "hardware.chip": "rtx-5090", "engine.max_num_seqs": 256,
          "engine.max_model_len": 32768}, ["engine.max_num_seqs", "hardware.tensor_parallel"]),
        ({"model": "llama-3.3-70b"}, ["hardware.tensor_parallel", "weights_dtype"]),
        ({"model": "qwen3-32b", "hardware.chip": "rtx-4090", "engine.framework": "llama.cpp", "engine.max_num_seqs": 4},
         ["hardware.tensor_parallel", "weights_dtype"]),
        ({"model": "llama-3.3-70b", "hardware.chip": "a100-sxm-80gb", "hardware.tensor_parallel": 2,
          "engine.gpu_memory_utilization": 0.8},
         ["engine.gpu_memory_utilization", "hardware.tensor_parallel", "weights_dtype"]),
    ],
)  # fmt: skip
def test_each_remedy_of_a_model_that_does_not_fit_works_alone(changes, remedies):
    scenario = scenario_from(with_settings(tiny_data(), changes, "test"), "chat.yaml")
    with pytest.raises(ForerunError, match="does not fit") as refused_run:
        build_run(scenario, 0)
    named = dict(change.split(": ") for change in str(refused_run.value).split("it fits with ")[1].split(" or "))
    assert [*named] == remedies
    for field, value in named.items():
        read = yaml.safe_load(value)
        build_run(scenario.with_values({field: read}), 0)
        if field == "engine.max_num_seqs":
            blocks = [
                build_run(scenario.with_values({field: n}), 0).pools[0].memory.num_blocks for n in (read, read + 1)
            ]
            assert blocks[0] * 16 >= 32768 > blocks[1] * 16
