"""Rows of the validation page: what a table's error is, and what of a folder of measurements is left out, counted."""

import re
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from made_kernels import gemm_rows, measured

from dashboards.recorded_errors import read_errors
from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, KernelTime, load_chip
from hwprofiles.correction import feature_matrix, feature_names
from hwprofiles.library import LIBRARIES
from simulator.replay.rerun import rerun
from traces.benchmark_results import PromptPool, read_runs
from traces.kernels import words, write_kernels
from validation.kernels import _evidence, measured_kernel_errors
from validation.requests import base_scenario
from validation.shipped import curve_errors, loop_runs, table_errors
from validation.speculation import CurveScore, compare_published, load_published

H100 = "h100-sxm"


@pytest.mark.parametrize("group", ["trtllm_dsr1_mtp", "vllm16937"])
def test_an_error_of_a_table_is_the_mean_over_its_rows(group):
    compared, _ = compare_published([row for row in load_published() if row.group == group][:2])
    (row,) = table_errors(compared)
    errors = 100 * np.array([item.error for item in compared])
    assert (row.name, row.n, row.ships) == (group, len(errors), True)
    assert row.mape == pytest.approx(np.abs(errors).mean())
    assert row.median_ape == pytest.approx(np.median(np.abs(errors)))
    assert row.bias == pytest.approx(errors.mean())
    assert table_errors([]) == []


def test_curves_are_one_row_of_signed_errors():
    curves = [CurveScore("made", 7, 2.0, 2.0 * (1 + error)) for error in (0.1, -0.3, 0.2)]
    (row,) = curve_errors(curves)
    assert (row.n, row.metric) == (3, "acceptance_length")
    assert (row.mape, row.median_ape, row.bias) == pytest.approx((20.0, 20.0, 0.0))
    assert curve_errors([]) == []


def named(table, device):
    """The table as measured on a device of that name."""
    return replace(table, words={**table.words, "device": words([device] * len(table))})


def test_a_folder_is_scored_by_chip_and_what_is_left_out_is_counted(tmp_path):
    """Tables name their device, or the folder does; an error that was put in comes out."""
    generator = np.random.default_rng(0)
    table = measured(gemm_rows(60, generator), H100, "generic")
    slower = replace(table, measured_s=table.measured_s * 1.25)
    (tmp_path / "NVIDIA H200").mkdir()
    write_kernels(named(slower, "NVIDIA H100 80GB HBM3"), tmp_path / "a.csv")
    write_kernels(measured(gemm_rows(40, generator), "h200-sxm", "generic"), tmp_path / "NVIDIA H200" / "b.csv")
    write_kernels(named(table, "Abacus 3000"), tmp_path / "c.csv")
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    seen = []
    rows, left = measured_kernel_errors(tmp_path, lambda done, count: seen.append((done, count)))
    chips = {row.name.split(", ")[-2]: row for row in rows}
    unseen = {name: chips.pop(name) for name in tuple(chips) if "unseen" in name}
    assert set(chips) == {"h100-sxm", "h200-sxm"}
    assert set(unseen) == {"unseen h100-sxm as a100-sxm-80gb", "unseen h200-sxm as h100-sxm"}
    for row in unseen.values():
        assert (row.basis, row.mape > 0.5) == ("datasheet", True), "priced by another chip's fit"
        assert re.fullmatch(r"nothing of this chip; band holds \d+%", row.fitted)
    assert chips["h100-sxm"].mape == pytest.approx(20.0, abs=0.01), "predicted 1 where 1.25 was measured"
    assert chips["h100-sxm"].bias == pytest.approx(-20.0, abs=0.01)
    assert chips["h200-sxm"].mape == pytest.approx(0.0, abs=1e-6)
    assert not any(row.ships for row in rows)
    assert left["rows of a chip that is not in the catalogue (Abacus 3000)"] == 60
    assert left["files that are no kernel trace"] == 1
    assert seen == [(n, 4) for n in (1, 2, 3, 4)]


def test_rows_faster_than_light_are_left_out_with_that_reason(tmp_path):
    table = measured(gemm_rows(60, np.random.default_rng(0)), H100, "generic")
    fast = replace(table, measured_s=table.measured_s / 100)
    write_kernels(named(fast, "NVIDIA H100 80GB HBM3"), tmp_path / "a.csv")
    rows, left = measured_kernel_errors(tmp_path)
    assert rows == []
    assert left[f"gemm rows of {H100}, generic (too many beat the datasheet)"] >= 60


def test_a_folder_without_kernels_is_refused(tmp_path):
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ForerunError, match="no kernel trace of a chip in the catalogue"):
        measured_kernel_errors(tmp_path)


def test_features_of_experts_say_how_unevenly_tokens_are_spread():
    sizes = {"tokens": np.array([64.0, 256.0]), "num_experts": 8, "experts_per_token": 2, "hidden": 4096}
    sizes |= {"intermediate": 1024, "expert_parallel": 1, "tensor_parallel": 1, "uneven": np.array([1.2, 0.0])}
    cores, names = load_chip(H100).compute.usable_cores, feature_names("moe")
    matrix = feature_matrix("moe", sizes, KernelTime(*(np.ones(2) for _ in KernelTime._fields)), cores)
    assert matrix[names.index("uneven")].tolist() == pytest.approx(np.log([2.2, 1.0]).tolist())
    assert matrix[names.index("tokens")].tolist() == pytest.approx(np.log([65, 257]).tolist())
    assert matrix[names.index("expert_parallel")].tolist() == pytest.approx([-np.log(2), -np.log(2)])
    assert matrix[names.index("tokens x experts_per_token")].tolist() == pytest.approx(
        np.log([65 * 3, 257 * 3]).tolist()
    )


def test_no_kernels_are_called_unfitted_whose_set_says_what_it_was_fitted_on(project_root):
    """Sets of one kind of sparse or linear attention are named after it: rows stated that nothing was fitted."""
    checked = 0
    for row in read_errors(project_root / "docs" / "validation" / "errors.json"):
        match = re.fullmatch(r"(\w+)(?: (\S+?))?(?:, usual shapes)?, (\S+), (\S+)", row.name)
        if row.section != "kernels" or match is None or match[4] not in LIBRARIES:
            continue
        checked += 1
        _, words = _evidence(KernelLibrary(match[3], match[4]), match[1], match[2] or "")
        assert words == "nothing" or row.fitted != "nothing", row.name
    assert checked > 100


def test_loops_of_several_ranks_are_no_worse_than_those_of_one():
    """Closed loops of TensorRT-LLM on H100: TPOT within 5 % in the mean, without a trend over tensor parallelism."""
    errors = defaultdict(list)
    for run in loop_runs():
        predicted = rerun(run, base_scenario())["predicted"]["mean_tpot_ms"]
        errors[run.tensor_parallel].append(predicted / run.measured["mean_tpot_ms"] - 1.0)
    assert np.mean(np.abs(np.concatenate(list(errors.values())))) < 0.05
    assert all(abs(np.mean(of_size)) < 0.03 for of_size in errors.values())


SILICON = "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,tp_size"
SILICON_ROWS = [
    "a,source_file=data/h200_sxm/vllm/0.12.0/x.csv,vllm,0.12.0,nvidia/Llama-3.1-8B-Instruct-FP8,h200_sxm,fp8,agg,2000,100,64,1",
    "b,source_file=data/h100_sxm/vllm/0.12.0/x.csv,vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,,agg,1024,128,32,2",
    "c,x.csv; model=G; measured=2025-12-08; wip=False,vllm,0.11.2,openai/gpt-oss-120b,h100_sxm,fp4,agg,1024,1024,512,4",
    "d,x.csv; model=G; measured=2026-03-08; wip=False,vllm,0.18.0,openai/gpt-oss-120b,h100_sxm,fp4,agg,1024,1024,512,4",
]


def test_clients_of_silicon_repeat_prompts_and_run_out_of_connections(tmp_path):
    path = tmp_path / "silicon_sample.csv"
    rows = "\n".join(f"{row},100,10" for row in SILICON_ROWS)
    path.write_text(f"{SILICON},silicon_ttft_ms,silicon_tpot_ms\n{rows}\n")
    runs = {run.name: run for run in read_runs(str(path))}
    assert {name: run.pool for name, run in runs.items() if run.pool} == {"a": PromptPool(100, 100, 2000)}
    assert [run.name for run in runs.values() if run.prefix_caching] == ["a"]
    assert {name: run.max_num_seqs for name, run in runs.items()} == {"a": 64, "b": 32, "c": 100, "d": 512}
    assert runs["c"].max_concurrency == 512
