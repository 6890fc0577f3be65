"""Published tables of serving runs: what a cell means, and which rows cannot be run again and why."""

import csv

import numpy as np
import pytest

from traces import TraceError, files
from traces.benchmark_results import MeasuredRun, latencies_ms, read, read_runs, register_table
from traces.files import Cells, read_text
from validation.halves import held_out, rows_by_hash
from validation.tables.blis import KUBECON_SIGNATURE
from validation.tables.unified import SIGNATURE

ROW = {
    "row_id": "r1", "weight_precision": "fp8", "n_gpus": "8", "tp": "4", "input_len": "1000", "output_len": "200",
    "length_mode": "fixed", "output_tput_tok_s": "512", "max_concurrency": "16", "request_rate_rps": "inf",
    "mean_ttft_ms": "80", "mean_tpot_ms": "10", "mean_itl_ms": "10", "itl_over_tpot": "1.0", "model": "llama",
    "gpu": "H100",
}  # fmt: skip


def table(tmp_path, *rows, name="runs.csv"):
    path = tmp_path / name
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


def unified(tmp_path, **changes):
    assert set(ROW) >= SIGNATURE
    (run,) = read_runs(table(tmp_path, ROW | {"tool": "", **changes}))
    return run


def test_a_row_of_the_unified_table(tmp_path):
    run = unified(tmp_path)
    assert (run.process, run.max_concurrency, run.request_rate) == ("closed-loop", 16, None)
    assert (run.tensor_parallel, run.replicas) == (4, 2), "8 chips are two replicas of 4"
    assert (run.input_tokens, run.output_tokens, run.unusable) == (1000, 200, None)
    assert run.measured == {"mean_ttft_ms": 80.0, "mean_tpot_ms": 10.0, "mean_itl_ms": 10.0, "output_throughput": 512.0}


@pytest.mark.parametrize(
    ("changes", "process", "rate"),
    [
        ({"max_concurrency": "", "request_rate_rps": "inf"}, "burst", None),
        ({"max_concurrency": "", "request_rate_rps": ""}, None, None),
        ({"request_rate_rps": "4.5"}, "poisson", 4.5),
        ({"request_rate_rps": "a trace"}, None, None),
        ({"request_rate_rps": ""}, "closed-loop", None),
    ],
)
def test_arrivals_follow_rate_and_concurrency(tmp_path, changes, process, rate):
    run = unified(tmp_path, **changes)
    assert (run.process, run.request_rate) == (process, rate)
    assert run.max_concurrency == (16 if process == "closed-loop" else None)


@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"tpot_definition": "(E2E - TTFT) / (tokens - 1)"}, set()),
        ({"tpot_definition": "includes the first token"}, {"mean_tpot_ms"}),
        ({"tool": "inference-perf"}, {"mean_tpot_ms", "mean_itl_ms"}),
        ({"itl_over_tpot": "3.0"}, {"mean_itl_ms"}),
        ({"spec_method": "eagle3"}, {"mean_itl_ms"}),
    ],
)
def test_figures_that_mean_something_else_are_left_out(tmp_path, changes, absent):
    kept = set(unified(tmp_path).measured)
    assert set(unified(tmp_path, **changes).measured) == kept - absent


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"disagg": "true"}, "disaggregated prefill and decode, whose workers do not add up to its chips"),
        ({"spec_method": "mtp"}, "speculation whose draft depth is not recorded"),
        ({"input_len": ""}, "lengths are those of a data set"),
        ({"length_mode": ""}, "how lengths were drawn is not known (not stated)"),
        ({"length_mode": "lognormal"}, "how lengths were drawn is not known (lognormal)"),
    ],
)
def test_rows_that_cannot_be_run_again_say_why(tmp_path, changes, why):
    assert unified(tmp_path, **changes).unusable == why


def test_notes_tell_options_and_rows_of_the_same_cell_the_speculation(tmp_path):
    row = ROW | {"tp": "8", "dp": "8", "num_requests": "", "model": "DeepSeek-V4 (flash)", "max_concurrency": "1024"}
    row |= {"framework": "sglang", "strategy": "balanced", "source": "cookbook v2"}
    stated = {
        "spec_method": "EAGLE MTP",
        "spec_num_steps": "1",
        "notes": "MoE backend megamoe; max-running-requests 512",
    }
    earlier = {"dp": "", "spec_method": "", "spec_num_steps": "", "notes": "earlier measurement of the same cells (x)"}
    run, other = read_runs(table(tmp_path, row | stated, row | earlier))
    assert (run.data_parallel_attention, run.expert_parallel, run.max_num_seqs, run.num_requests) == (8, 8, 512, 2048)
    assert (other.data_parallel_attention, other.num_speculative_tokens) == (8, 1)


def test_what_a_row_leaves_open_is_assumed_and_noted(tmp_path):
    source = {
        "source": "sglang cookbook v2",
        "model": "Qwen3.6-27B",
        "spec_method": "EAGLE MTP",
        "max_concurrency": "64",
    }
    run = unified(tmp_path, **source, spec_num_steps="3", spec_num_draft_tokens="4", num_requests="")
    assert (run.num_speculative_tokens, run.num_requests, run.unusable) == (3, 256, None)
    assert 2.5 < run.acceptance_length < 3.5
    assert [note.partition(" not recorded")[0] for note in run.notes] == ["number of requests", "acceptance"]
    random = unified(tmp_path, **source, spec_num_steps="3", dataset="random")
    assert 3.9 < random.acceptance_length < 4.0, "answers to random prompts repeat themselves"
    other = unified(tmp_path, **{**source, "source": "another"}, spec_num_steps="3")
    assert other.acceptance_length is None, "no speculation is assumed for other tables"


def test_chips_that_no_column_states_are_those_of_the_row_of_one_stream(tmp_path):
    run = unified(tmp_path, n_gpus="", tp="", n_gpus_implied="8.4", max_concurrency="1", output_tput_per_gpu_tok_s="10")
    assert run.tensor_parallel == 8
    assert any("8 by the row of one stream" in note for note in run.notes)


def test_normal_dispatch_by_deepep_captures_no_graphs(tmp_path):
    for mode, result in (("normal", {"engine.cuda_graphs": False}), ("low_latency", {})):
        args = f"sglang --tp-size=8 --moe-a2a-backend=deepep --deepep-mode={mode} --max-running-requests=256"
        run = unified(tmp_path, server_args=args)
        assert (run.settings, run.max_num_seqs) == (result, 256)


@pytest.mark.parametrize(
    ("args", "dp", "read"),
    [
        ("--tp-size 8 --enable-dp-attention", "", (8, None, None)),
        ("--tp-size 8 --dp-size 8 --enable-dp-attention", "8", (1, None, 8)),
        ("--tp 8 --dp 4 --enable-dp-attention", "4", (2, None, 4)),
        ("--tp 8 --moe-a2a-backend deepep", "", (8, 8, None)),
        ("--tp-size=8 --dp-size=8 --enable-dp-attention --moe-a2a-backend=deepep", "8", (1, 8, 8)),
    ],
)
def test_groups_and_experts_are_those_that_sglang_makes_of_its_command(tmp_path, args, dp, read):
    """Groups share the chips of ``--tp-size``, none are made where their number is not given, and DeepEP gives every
    chip experts of its own."""
    requested = "true" if "enable-dp-attention" in args else ""
    run = unified(tmp_path, server_args=f"sglang {args}", n_gpus="8", tp="8", dp=dp, dp_attention=requested)
    assert (run.tensor_parallel, run.expert_parallel, run.data_parallel_attention) == read
    assert run.replicas is None


def test_lengths_drawn_from_a_share_are_ranges(tmp_path):
    run = unified(tmp_path, length_mode="uniform[0.8 * n, n]")
    assert (run.input_tokens, run.output_tokens) == ((800, 1000), (160, 200))
    even = "uniform[1..len] (range-ratio 0.0 default): see total tokens"
    run = unified(tmp_path, length_mode=even)
    assert (run.input_tokens, run.output_tokens, run.unusable) == ((1, 1000), (1, 200), None)
    totals = {"input_len": "", "output_len": "", "num_requests": "10", "total_input_tokens": "6101"}
    totals |= {"total_output_tokens": "4220", "length_mode": even}
    run = unified(tmp_path, **totals)
    assert (run.input_tokens, run.output_tokens, run.unusable) == ((1, 1219), (1, 843), None), "means of 610 and 422"


def test_answers_that_ended_early_are_a_range(tmp_path):
    """AIPerf lets answers end: 1 + (29,256 - 94) / 39.6 = 737 of 1,024 tokens in the mean."""
    stated = {"length_mode": "fixed", "input_len": "128", "output_len": "1024", "total_output_tokens": ""}
    times = {"mean_ttft_ms": "93.8", "mean_tpot_ms": "39.6", "mean_e2el_ms": "29256.4"}
    assert unified(tmp_path, tool="AIPerf", **stated, **times).output_tokens == (450, 1024)
    assert unified(tmp_path, tool="vllm bench serve", **stated, **times).output_tokens == 1024


def test_lengths_that_the_client_drew_are_known(tmp_path):
    """SGLang's client seeds its draw with 1: ten published runs of at most 1,000 tokens have 6,101 and 4,220 in all."""
    message = {"input_len": "1000", "output_len": "1000", "num_requests": "10", "length_mode": "uniform[1..len]"}
    for total in ("6101", "6091"):
        lengths = unified(tmp_path, **message, total_input_tokens=total).lengths
        assert lengths is not None
        assert [int(tokens.sum()) for tokens in lengths] == [6101, 4220]
    for other in ({"total_input_tokens": "5000"}, {"total_input_tokens": ""}, {"length_mode": "fixed"}):
        assert unified(tmp_path, **message | {"total_input_tokens": "6101"} | other).lengths is None


@pytest.mark.parametrize(
    ("streams", "median", "kept"), [("1", "68.6", False), ("1", "900", True), ("16", "68.6", True)]
)
def test_means_of_a_run_that_compiled_kernels_are_left_out(tmp_path, streams, median, kept):
    """Requests sent one by one wait for nobody: a mean far beyond the median is one that waited for a compiler."""
    run = unified(tmp_path, max_concurrency=streams, mean_ttft_ms="4247", median_ttft_ms=median)
    assert {"median_ttft_ms", "mean_tpot_ms"} <= set(run.measured)
    assert ("mean_ttft_ms" in run.measured, "output_throughput" in run.measured) == (kept, kept)


def test_disaggregated_workers_are_pools(tmp_path):
    """Workers take up the chips named for their side; with data-parallel attention each chip is a group of its own."""
    message = {
        "disagg": "True",
        "n_gpus": "20",
        "prefill_gpus": "4.0",
        "decode_gpus": "16.0",
        "framework": "dynamo-trt",
    }
    notes = "prefill tp4/ep4/dpattn=True workers=1; decode tp8/ep1/dpattn=False workers=2; more"
    run = unified(tmp_path, **message, notes=notes)
    prefill = {"tensor_parallel": 1, "replicas": 1, "attention_data_parallel": 4, "expert_parallel": 4}
    decode = {"tensor_parallel": 8, "replicas": 2}
    assert run.unusable is None
    assert run.settings["pools"] == {
        "prefill": {"role": "prefill", "hardware": prefill},
        "decode": {"role": "decode", "hardware": decode},
    }
    assert (run.tensor_parallel, run.expert_parallel, run.replicas) == (None, None, None)
    for wrong in (notes.replace("workers=2", "workers=3"), notes.replace("tp8", "tp4"), notes.partition(";")[0]):
        assert "do not add up" in str(unified(tmp_path, **message, notes=wrong).unusable)


RECIPES = {
    "source": "inferencex",
    "disagg": "True",
    "prefill_gpus": "4",
    "decode_gpus": "8",
    "framework_version": "1.2",
}


@pytest.mark.parametrize(
    ("row", "notes", "prefill", "batch", "kv"),
    [
        (
            {"gpu": "B200", "framework": "dynamo-trt", "weight_precision": "fp4", "max_concurrency": "1606"},
            "prefill tp4/ep4/dpattn=True workers=1; decode tp8/ep8/dpattn=True workers=1",
            {"max_num_seqs": 2, "max_num_batched_tokens": 16896},
            192,
            "fp8",
        ),
        (
            {"gpu": "B200", "framework": "dynamo-trt", "weight_precision": "fp8", "max_concurrency": "256"},
            "prefill tp4/ep4/dpattn=True workers=1; decode tp8/ep8/dpattn=True workers=1",
            {"max_num_seqs": 1, "max_num_batched_tokens": 8320},
            256,
            "fp8",
        ),
        (
            {"gpu": "GB300", "framework": "dynamo-sglang", "weight_precision": "fp8"},
            "prefill tp4/ep4/dpattn=True workers=1; decode tp8/ep8/dpattn=True workers=1",
            {"max_num_batched_tokens": 131072},
            None,
            "fp8",
        ),
        (
            {"gpu": "H100", "framework": "dynamo-sglang", "weight_precision": "fp8"},
            "prefill tp4/ep4/dpattn=True workers=1; decode tp8/ep8/dpattn=True workers=1",
            None,
            None,
            "auto",
        ),
    ],
)
def test_disaggregated_workers_have_the_limits_of_their_recipes(tmp_path, row, notes, prefill, batch, kv):
    """Limits as NVIDIA/srt-slurm's recipes of 8k prompts state them; SGLang on Hopper stores KV as the model does."""
    run = unified(tmp_path, **RECIPES, **row, input_len="8192", output_len="1024", notes=notes)
    pools = run.settings["pools"]
    assert pools["prefill"].get("engine") == prefill
    assert pools["decode"].get("engine") == (None if batch is None else {"max_num_seqs": batch})
    assert run.settings["kv_cache_dtype"] == kv
    year = {"framework_version": "", "measured_date": "2025-12-09"}
    early = unified(tmp_path, **RECIPES | year, **row, input_len="8192", output_len="1024", notes=notes)
    assert "engine" not in early.settings["pools"]["prefill"]


@pytest.mark.parametrize(("decode_gpus", "groups"), [("4", 0), ("32", 32)])
def test_workers_of_one_node_that_name_no_layout_share_layers(tmp_path, decode_gpus, groups):
    """Rows of 2025 say tp1/ep1 of all workers: by their recipes those of four chips are tensor parallel."""
    notes = "prefill tp1/ep1/dpattn=True workers=1; decode tp1/ep1/dpattn=True workers=1"
    row = RECIPES | {"gpu": "GB200", "framework": "dynamo-sglang", "decode_gpus": decode_gpus}
    hardware = unified(tmp_path, **row, notes=notes).settings["pools"]["decode"]["hardware"]
    assert hardware.get("attention_data_parallel", 0) == groups
    assert hardware["tensor_parallel"] == (1 if groups else 4)


@pytest.mark.parametrize(
    ("strategy", "groups", "memory", "most"),
    [("low-latency", None, 0.8, None), ("balanced", 8, 0.85, 80), ("high-throughput", 8, 0.8, None)],
)
def test_servers_of_sglangs_cookbook_have_the_options_of_their_recipe(tmp_path, strategy, groups, memory, most):
    """Options as glm-5.2.jsx states them; a note on one strategy's limit goes before, others keep theirs."""
    row = {"source": "sglang cookbook v2", "framework": "sglang", "gpu": "B200", "model": "GLM-5.2", "tp": ""}
    run = unified(tmp_path, **row, strategy=strategy, notes="earlier; max-running 80 in balanced")
    assert (run.data_parallel_attention, run.expert_parallel) == (groups, groups)
    assert (run.tensor_parallel, run.gpu_memory_utilization, run.max_num_seqs) == (1 if groups else 8, memory, most)
    other = unified(tmp_path, **row | {"source": "inferencex"}, strategy="")
    assert (other.data_parallel_attention, other.max_num_seqs) == (None, None)


KUBECON = {
    "config": "plain", "stage": "2", "requested_rate_rps": "4", "achieved_send_rate_rps": "3.9", "model": "llama",
    "mean_tpot_derived_ms": "12.5", "ttft": "", "mean_ttft_ms": "50", "gpu": "H100 (80 GB)", "framework": "vllm",
    "tp": "1", "completed": "234", "mean_input_len": "160.4", "mean_output_len": "61",
    "server_args": "max_num_seqs 128, prefix caching off", "caveat": "warm start", "spec_method": "",
}  # fmt: skip


def test_a_stage_of_a_constant_rate_sweep(tmp_path):
    assert set(KUBECON) >= KUBECON_SIGNATURE
    message = KUBECON | {"mean_e2el_ms": "680", "request_throughput_rps": "3.5", "output_tput_tok_s": "216"}
    plain, drafting = read_runs(table(tmp_path, message, KUBECON | {"spec_method": "eagle3", "server_args": ""}))
    assert (plain.name, plain.process, plain.request_rate) == ("plain stage 2", "constant", 3.9)
    assert (plain.chip, plain.input_tokens, plain.output_tokens, plain.num_requests) == ("H100", 160, 64, 234)
    assert (plain.max_num_seqs, plain.prefix_caching, plain.chunked_prefill) == (128, False, True)
    figures = {"mean_ttft_ms": 50.0, "mean_e2el_ms": 680.0, "request_throughput": 3.5}
    # The client counts tokens of the text it got; per token stands for the 64 that the engine made.
    assert plain.measured == figures | {"mean_tpot_ms": 10.0, "output_throughput": 224.0}
    assert plain.notes == ("warm start",)
    assert (plain.unusable, drafting.unusable) == (None, "its acceptance was not recorded")
    assert (drafting.max_num_seqs, drafting.prefix_caching) == (None, True)


def test_yes_and_no_in_cells():
    words = {"a": "Yes", "b": "off", "c": "maybe", "d": "nan"}
    cells = Cells(words, "runs.csv:3")
    assert [cells.flag(key) for key in ("a", "b", "d", "e")] == [True, False, None, None]
    with pytest.raises(TraceError, match=r"runs\.csv:3: c: 'maybe' is neither true nor false"):
        cells.flag("c")


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(TraceError, match="no such file"):
        read_text(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_text(tmp_path)
    path = table(tmp_path, ROW)
    monkeypatch.setattr(files, "LARGEST_DOCUMENT_BYTES", 10)
    with pytest.raises(TraceError, match=r"runs\.csv: holds more than"):
        read_text(path)


def test_a_table_of_ones_own_kind_is_read_before_the_general_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(read, "FORMATS", dict(read.FORMATS))
    monkeypatch.setattr(read, "_TABLES", dict(read._TABLES))
    path = tmp_path / "mine.csv"
    path.write_text("who,gap\nme,12.5\n")
    with pytest.raises(TraceError, match="no latency or throughput"):
        read_runs(path)

    def mine(rows, file):
        for cells in rows:
            yield MeasuredRun(cells.text("who"), cells.place, measured=latencies_ms(cells, {"mean_tpot_ms": "gap"}))

    register_table("mine", "a table of mine", frozenset({"who", "gap"}), mine)
    (run,) = read_runs(path)
    assert (run.name, run.measured) == ("me", {"mean_tpot_ms": 12.5})
    assert read_runs(path, "mine")[0].name == "me"


def test_a_folder_gives_the_runs_of_the_files_that_are_known(tmp_path):
    table(tmp_path, ROW)
    table(tmp_path, KUBECON, name="sweep.csv")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert sorted(run.name for run in read_runs(tmp_path)) == ["plain stage 2", "r1"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceError, match="no file in this folder is recognised"):
        read_runs(empty)


@pytest.mark.parametrize(
    ("name", "text", "format", "message"),
    [
        ("runs.csv", "row_id,tp\n1,2\n", "unified", "column '.*' is missing; not a table in the format 'unified'"),
        ("runs.json", "[1]", "vllm-bench", "no JSON object in the format 'vllm-bench'"),
        ("runs.jsonl", '{"mean_ttft_ms": 1}\n[2]\n', "vllm-bench", r"runs\.jsonl:2: \[0\]: no JSON object"),
        ("runs.json", '{"benchmarks": [{"metrics": 3}]}', "auto", r"benchmarks\[0\]: an object with metrics expected"),
        ("runs.csv", ",".join(sorted(SIGNATURE)) + "\n", "auto", "no run in it"),
    ],
)
def test_tables_of_another_kind_are_refused(tmp_path, name, text, format, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=message) as caught:
        read_runs(path, format)
    assert "\n" not in str(caught.value)


def test_a_table_with_columns_of_its_own_is_read_as_the_file_says(tmp_path):
    row = {"row_id": "m1", "model": "Qwen/Qwen3-8B", "gpu": "H100", "framework": "vllm", "n_gpus": "1", "ep": "1",
           "weight_precision": "bfloat16", "max_num_seqs": "8", "median_itl_ms": "7.5", "output_tput_tok_s": "900",
           "avg_power_w": "600", "energy_per_request_j": "4", "dataset": "gpqa", "output_len_hist": "1;0;1",
           "output_len_hist_min": "0", "output_len_hist_max": "300"}  # fmt: skip
    (run,) = read_runs(table(tmp_path, row))
    assert run.measured == {"median_itl_ms": 7.5, "output_throughput": 900.0, "avg_power_w": 600.0}
    assert (run.max_num_seqs, run.max_concurrency, run.input_tokens, run.num_requests) == (8, 8, 300, 32)
    prompts, answers = run.lengths
    assert set(prompts) == {300}
    assert answers.mean() == pytest.approx(150, abs=2)
    assert not ((answers > 100) & (answers < 200)).any(), "no answer of an empty bin"


def test_halves_are_even_and_a_larger_sample_holds_the_smaller_one():
    keys = [f"table/{number}" for number in range(2000)]
    assert 0.45 < np.mean([held_out(key) for key in keys]) < 0.55
    few, more = rows_by_hash(keys, str, 40), rows_by_hash(keys, str, 80)
    assert (len(few), len(more)) == (40, 80)
    assert set(few) < set(more)
    assert few == sorted(few, key=keys.index)
