"""Names that nothing has are refused before anything runs, by every command that varies them."""

import json

import pytest
from tiny_scenario import tiny_data

from forerun.errors import ForerunError
from simulator.cli import main
from simulator.running.scenario import scenario_from
from simulator.studies.names import check_names

DRAFT = {
    "method": "draft-model",
    "num_speculative_tokens": 2,
    "draft": {"model": "llama-3.2-1b", "chip": "l40s", "link": "pcie5-x16"},
    "acceptance": {"alpha": 0.6},
}
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
    wrong = scenario_from(tiny_data() | FULL, "full").with_values({path: value})
    with pytest.raises(ForerunError) as error:
        check_names(wrong)
    text = str(error.value)
    assert text.startswith(f"{path}: ")
    assert f"'{value}'" in text
    assert meant in text


def test_other_chips_of_the_machine_are_looked_up_too():
    for path, value in (("layers_on", [{"chip": "rtx-309"}]), ("tensor_chips", ["rtx-309"])):
        ranks = {"hardware.tensor_parallel": 2} if path == "tensor_chips" else {}
        wrong = scenario_from(tiny_data(), "unlike").with_values({f"hardware.{path}": value} | ranks)
        with pytest.raises(ForerunError, match=rf"hardware\.{path}\.0.*'rtx-309'"):
            check_names(wrong)


def test_a_trace_that_is_not_there():
    workload = {"trace": "azure-conv-202"}
    with pytest.raises(ForerunError, match=r"workload\.trace: azure-conv-202: no such file.*azure-conv-2023"):
        check_names(scenario_from(tiny_data() | {"workload": workload}, "trace"))


@pytest.mark.parametrize(
    "command",
    [
        ["sweep", "--store", "kept.sweep"],
        ["sweep", "--store", "kept.sweep", "--jobs", "2"],
        ["compare"],
        ["plan", "--rate", "2", "--slo", "p99_ttft_ms=500"],
    ],
    ids=lambda command: " ".join(command[:1] + command[3:]),
)
@pytest.mark.parametrize("vary", ["hardware.chip=h100-sxm,h10-sxm", "model=llama-3.2-1b,llama-3.2-1"])
def test_the_commands_end_before_anything_runs(command, vary, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulator.running.run.build_run", None)
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_data()))
    assert main([command[0], "tiny.json", "--vary", vary, *command[1:]]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "tiny.json: " in lines[0]
    assert "did you mean" in lines[0]
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.json"]


def test_a_variant_of_a_study_file_is_looked_up_too(tmp_path, capsys):
    study = {"scenario": tiny_data(), "variants": [{"name": "new", "set": {"hardware.chip": "h10-sxm"}}]}
    (tmp_path / "study.json").write_text(json.dumps(study))
    assert main(["compare", str(tmp_path / "study.json")]) == 2
    assert "variants[1]: hardware.chip: no chip 'h10-sxm'; did you mean 'h100-sxm'?" in capsys.readouterr().err
