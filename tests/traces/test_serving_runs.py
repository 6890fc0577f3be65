"""Readers of measured serving runs: each tool's result means the same run, and nothing unmeasured becomes a number."""

import json

import pytest
from numpy.testing import assert_allclose

from tests.traces.written_file import written
from traces import TraceError
from traces.benchmark_results import METRICS, closed_loop_throughput, read_runs
from validation import tables as tables  # lets read_runs read them

VLLM = {
    "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "backend": "vllm",
    "num_prompts": 100,
    "completed": 100,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 16,
    "total_input_tokens": 51_200,
    "total_output_tokens": 12_800,
    "request_throughput": 4.0,
    "output_throughput": 512.0,
    "total_token_throughput": 2560.0,
    "mean_ttft_ms": 80.0,
    "median_ttft_ms": 70.0,
    "p99_ttft_ms": 200.0,
    "mean_tpot_ms": 9.5,
    "mean_itl_ms": 9.4,
    "mean_e2el_ms": None,
}
AIPERF = {
    "request_latency": {"unit": "ms", "avg": 1300.0, "p50": 1290.0, "p99": 1400.0},
    "time_to_first_token": {"unit": "ms", "avg": 80.0, "p50": 70.0, "p99": 200.0},
    "inter_token_latency": {"unit": "ms", "avg": 9.5},
    "inter_chunk_latency": {"unit": "ms", "avg": 9.4},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 512.0},
    "request_count": {"unit": "requests", "avg": 100.0},
    "input_sequence_length": {"unit": "tokens", "avg": 512.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_config": {"endpoint": {"model_names": ["Llama-3.1-8B-Instruct"]}, "loadgen": {"concurrency": 16}},
}
GUIDELLM = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 16}},
            "metrics": {
                "time_to_first_token_ms": {"successful": {"mean": 80.0, "percentiles": {"p99": 200.0}}},
                "time_per_output_token_ms": {"successful": {"mean": 10.1}},
                "inter_token_latency_ms": {"successful": {"mean": 9.5}},
                "request_latency": {"successful": {"mean": 1.3}},
                "output_tokens_per_second": {"successful": {"mean": 512.0}},
                "prompt_token_count": {"successful": {"mean": 512.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
            },
        }
    ]
}
INFERENCE_PERF = {
    "load_summary": {"count": 100},
    "successes": {
        "count": 100,
        "latency": {
            "request_latency": {"mean": 1.3, "median": 1.29},
            "time_to_first_token": {"mean": 0.08},
            "time_per_output_token": {"mean": 0.0048},
        },
        "throughput": {"output_tokens_per_sec": 512.0, "requests_per_sec": 4.0},
        "prompt_len": {"mean": 512.0},
        "output_len": {"mean": 128.0},
    },
    "failures": {"count": 0},
}


@pytest.mark.parametrize(
    "document", [VLLM, AIPERF, GUIDELLM, INFERENCE_PERF], ids=["vllm", "aiperf", "guidellm", "perf"]
)
def test_every_client_tells_the_same_run(tmp_path, document):
    (run,) = read_runs(written(tmp_path, document))
    assert run.measured["mean_ttft_ms"] == pytest.approx(80.0)
    assert run.measured["mean_tpot_ms"] == pytest.approx(9.5, rel=0.02)
    assert run.measured["output_throughput"] == pytest.approx(512.0)
    assert (run.input_tokens, run.output_tokens) == (512, 128)
    assert run.max_concurrency == (None if document is INFERENCE_PERF else 16)
    assert set(run.measured) <= set(METRICS)


def test_what_was_not_measured_is_absent(tmp_path):
    (run,) = read_runs(written(tmp_path, {**VLLM, "mean_itl_ms": 0.0}))
    assert "mean_e2el_ms" not in run.measured
    assert "mean_itl_ms" not in run.measured


def test_open_loop_of_the_vllm_client(tmp_path):
    document = {**VLLM, "request_rate": 8.0, "burstiness": 0.5, "max_concurrency": None}
    (run,) = read_runs(written(tmp_path, document))
    assert (run.process, run.request_rate, run.burstiness) == ("gamma", 8.0, 0.5)


def test_sglang_lines(tmp_path):
    line = {k: v for k, v in VLLM.items() if k != "mean_e2el_ms"} | {"mean_e2e_latency_ms": 1300.0, "backend": "sglang"}
    runs = read_runs(written(tmp_path, "\n".join([json.dumps(line)] * 2), "result.jsonl"))
    assert [run.framework for run in runs] == ["sglang"] * 2
    assert runs[0].measured["mean_e2el_ms"] == 1300.0
    assert "mean_itl_ms" not in runs[0].measured


def test_guidellm_counts_the_first_token_into_its_time_per_token(tmp_path):
    (run,) = read_runs(written(tmp_path, GUIDELLM))
    assert run.measured["mean_tpot_ms"] == 9.5


def test_inference_perf_beside_its_configuration(tmp_path):
    results = tmp_path / "exp" / "results"
    results.mkdir(parents=True)
    (results / "config.yaml").write_text(
        "data: {shared_prefix: {num_groups: 10, num_prompts_per_group: 10, system_prompt_len: 100, output_len: 128}}\n"
        "load: {type: constant, stages: [{rate: 5.0, duration: 60}, {rate: 10.0, duration: 60}]}\n"
    )
    (tmp_path / "exp" / "exp-config.yaml").write_text("{model: llama-2-7b, tensor_parallelism: 2, max_num_seqs: 128}\n")
    (whole,) = read_runs(written(results, INFERENCE_PERF, "summary_lifecycle_metrics.json"))
    (second,) = read_runs(written(results, INFERENCE_PERF, "stage_1_lifecycle_metrics.json"))
    assert whole.stages == ((5.0, 60.0), (10.0, 60.0))
    assert second.stages == ((10.0, 60.0),)
    assert whole.pool is not None
    assert (whole.pool.prompts, whole.tensor_parallel, whole.max_num_seqs) == (100, 2, 128)
    failed = {**INFERENCE_PERF, "failures": {"count": 50}}
    (overloaded,) = read_runs(written(results, failed, "summary_lifecycle_metrics.json"))
    assert overloaded.unusable == "50 requests failed"


def test_canonical_table(tmp_path):
    table = (
        "run,model,chip,tensor_parallel,max_concurrency,min_output_tokens,output_tokens,mean_tpot_ms\n"
        "a,llama-3.1-8b,h100-sxm,2,8,100,200,7.5\n"
    )
    (run,) = read_runs(written(tmp_path, table, "runs.csv"))
    assert (run.process, run.max_concurrency, run.output_tokens) == ("closed-loop", 8, (100, 200))
    assert run.measured == {"mean_tpot_ms": 7.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,mean_tpot_ms\na,x\n", "mean_tpot_ms: 'x' is no number"),
        ("run,colour\na,1\n", "no latency or throughput in it"),
        ("run,mean_tpot\na,0.7\n", "states no unit; write it into the name: 'mean_tpot (ms)'"),
        ("run,ttft (ms)\na,fast\n", "is no number"),
        ("run,tensor_paralel,mean_tpot_ms\na,1,1\n", "did you mean 'tensor_parallel'"),
        ("run,mean_tpot_ms\na\n", "1 cells where the header names 2"),
        ("run,mean_tpot_ms,max_concurrency\na,1,2.5\n", "no whole number"),
        ("run,mean_tpot_ms,process\na,1,uniform\n", "not one of closed-loop"),
        ("run,mean_tpot_ms\na,\n", "no metric"),
        ("", "empty"),
    ],
)
def test_bad_tables_name_the_place(tmp_path, text, message):
    with pytest.raises(TraceError, match=r"runs\.csv") as error:
        read_runs(written(tmp_path, text, "runs.csv"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"\r\x00", b"a,b\n1,2\rx,3\n", b"a,b\n1," + 200_000 * b"9" + b"\n"])
def test_lines_that_no_csv_reader_splits_are_refused_in_one_line(tmp_path, data):
    path = tmp_path / "runs.csv"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=r"runs\.csv"):
        read_runs(path)


def test_little_gives_the_throughput_of_a_closed_loop():
    # 8 outstanding, each 0.1 s + 99 x 10 ms for 100 tokens: 8 x 100 / 1.09 s
    assert closed_loop_throughput(8, 100, 100.0, 10.0) == pytest.approx(800 / 1.09)


def test_published_tables(shared_data):
    unified = read_runs(shared_data / "serving" / "inferencex.csv")
    assert len(unified) == 1243
    disaggregated = [run for run in unified if run.unusable is None and "pools" in run.settings]
    assert len(disaggregated) == 201, "of 291; depths of drafts, or workers, are unknown for the others"
    sglang = read_runs(shared_data / "serving" / "sgl-cookbook.csv")
    assert sum(run.unusable is None for run in sglang) == 87, "lengths from 1 to the one named, or totals given"
    silicon = read_runs(shared_data / "kernels" / "aiconfigurator" / "e2e")
    assert len(silicon) == 3771
    staged = read_runs(shared_data / "serving" / "blis" / "eval38_ground_truth.csv")
    assert len({run.name.partition(" stage")[0] for run in staged}) == 38
    (per_request,) = read_runs(shared_data / "serving" / "per_request" / "llmservingsim" / "RTX4090_Llama-3.1-8B")
    assert (per_request.num_kv_blocks, per_request.num_requests) == (2588, 300)


UNIFIED = "row_id,weight_precision,n_gpus,input_len,output_len,length_mode,output_tput_tok_s,mean_ttft_ms,"
SERVED = (
    UNIFIED + "tp,dp_attention,max_concurrency,request_rate_rps,num_requests,duration_s,accept_length,server_args\n"
)


def served(tmp_path, cells):
    return read_runs(written(tmp_path, f"{SERVED}a,fp8,8,1000,500,fixed,900,80,{cells}\n", "s.csv"))


def test_what_the_command_of_an_engine_says_is_read(tmp_path):
    """Runs of GLM-5.2 that differ in these options alone differ threefold in throughput."""
    flags = "x --tp-size=8 --mem-fraction-static=0.85 --max-running-requests 64 --kv-cache-dtype=fp8_e4m3"
    (run,) = served(tmp_path, f"8,True,512,,1000,900,,{flags}")
    assert (run.gpu_memory_utilization, run.max_num_seqs, run.kv_cache_dtype) == (0.85, 64, "fp8_e4m3")
    assert (run.max_num_batched_tokens, run.data_parallel_attention) == (None, 8)
    (run,) = served(
        tmp_path, "8,,,inf,16,9,,vllm serve m --data-parallel-size 8 --enable-expert-parallel --kv-cache-dtype auto"
    )
    assert (run.tensor_parallel, run.data_parallel_attention, run.expert_parallel) == (1, 8, 8)
    assert run.kv_cache_dtype is None
    with pytest.raises(TraceError, match=r"s\.csv.*--mem-fraction-static '85' is no such limit"):
        served(tmp_path, "8,,1,,9,9,,x --mem-fraction-static 85")


def test_a_rate_that_a_limit_on_requests_holds_back_is_a_closed_loop(tmp_path):
    (run,) = served(tmp_path, "8,,512,1000,1000,700,,x")
    assert (run.process, run.max_concurrency, run.request_rate) == ("closed-loop", 512, None)
    (run,) = served(tmp_path, "8,,512,2,1000,700,,x")
    assert (run.process, run.request_rate) == ("poisson", 2.0)


def test_an_acceptance_length_without_a_method_is_no_plain_run(tmp_path):
    (run,) = served(tmp_path, "8,,1,,9,9,3.48,x")
    assert run.unusable == "speculation of which only the acceptance length is recorded"


SILICON = ("id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,tp_size,"
           "attention_dp_size,silicon_ttft_ms,silicon_tpot_ms\n")  # fmt: skip
PUBLIC = "source_file=2026-04-06.csv; model=Llama-3.1-70B; silicon_concurrency=8; measured=2025-10-29; wip=False"


@pytest.mark.parametrize(("row", "seqs", "inputs", "outputs", "requests", "cache"), [
    (f"a,{PUBLIC},vllm,,m/Llama-3.1-70B,h100_sxm,fp8,agg,1000,500,8,2,1,9,9", 8, (800, 1000), (400, 500), 80, None),
    (f"a,{PUBLIC},vllm,,m/Llama-3.1-70B,b200_sxm,fp8,agg,1000,500,8,2,1,9,9", 8, (800, 1000), (400, 500), 80, "fp8"),
    (f"a,{PUBLIC},trtllm,,m/DeepSeek-R1,h200_sxm,fp8,agg,1000,500,8,1,4,9,9", 32, (800, 1000), (400, 500), 320, "fp8"),
    ("a,data/x.csv,trtllm,1.0.0rc3,m/Llama-3.1-8B-Instruct,h100_sxm,,agg,1000,500,8,2,1,9,9", 7, 1000, (450, 550),
     80, None),
    ("a,data/x.csv,trtllm,1.0.0rc3,Qwen/Qwen3-32B,h100_sxm,,agg,1000,500,8,2,1,9,9", 8, 1000, (450, 550), 80, None),
    ("a,data/x.csv,sglang,0.5.1,Qwen/Qwen3-32B,h100_sxm,,agg,1000,500,8,2,1,9,9", 8, 1000, 500, None, None),
])  # fmt: skip
def test_rows_of_the_silicon_table_by_origin(tmp_path, row, seqs, inputs, outputs, requests, cache):
    (run,) = read_runs(written(tmp_path, SILICON + row + "\n", "s.csv"))
    assert (run.max_num_seqs, run.input_tokens, run.output_tokens) == (seqs, inputs, outputs)
    assert (run.num_requests, run.kv_cache_dtype) == (requests, cache)
    mean = sum(outputs) / 2 if isinstance(outputs, tuple) else outputs
    if requests is None:
        mean = 500
    assert_allclose(run.measured["output_throughput"], run.max_concurrency * mean * 1e3 / (9 + (mean - 1) * 9))


@pytest.mark.parametrize(
    ("row", "tokens", "settings"),
    [
        ("sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,bf16,agg,1000,500,8", 32768, (30, 10)),
        ("sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,b200_sxm,bf16,agg,1000,500,16", 32768, (30, 30)),
        ("sglang,0.5.9,Qwen/Qwen3.5-397B-A17B,h200_sxm,fp8,agg,1000,500,16", 16384, (50, None)),
        ("sglang,0.5.9,deepseek-ai/DeepSeek-V3,h200_sxm,fp8,agg,1000,500,16", None, (None, None)),
        ("vllm,0.15.1,openai/gpt-oss-120b,b200_sxm,fp4,agg,1000,500,16", 8192, (None, None)),
        ("vllm,0.18.0,openai/gpt-oss-120b,h200_sxm,fp4,agg,1000,500,16", 8192, (None, None)),
    ],
)
def test_rows_of_inferencex_have_the_options_of_its_launch_scripts(tmp_path, row, tokens, settings):
    """Its SGLang servers on Blackwell look for requests every 10 steps, every 30 with 16 streams and more."""
    origin = PUBLIC if "DeepSeek" not in row else "data/x.csv"
    (run,) = read_runs(written(tmp_path, f"{SILICON}a,{origin},{row},8,1,9,9\n", "s.csv"))
    intervals = (run.settings.get("engine.stream_interval"), run.settings.get("engine.scheduler_recv_interval"))
    assert (run.max_num_batched_tokens, intervals) == (tokens, settings)
    backend = {"b200": "mxfp8", "h200": "marlin"} if "gpt-oss" in row else {}
    assert run.settings.get("engine.moe_backend") == next((backend[name] for name in backend if name in row), None)


@pytest.mark.parametrize(
    ("source", "sizes", "layout"),
    [
        (PUBLIC, (64, 1, 8, 8), (8, None, 8)),
        (PUBLIC, (1, 64, 8, 8), (1, 8, 8)),
        (PUBLIC, (4, 4, 1, 16), (1, 4, 4)),
        (PUBLIC, (8, 1, 1, 8), (8, None, 8)),
        (PUBLIC, (1, 8, 1, 8), (1, 8, 8)),
        (PUBLIC, (4, 1, 4, 1), (4, None, None)),
        (PUBLIC, (8, 1, 2, 4), (8, None, 4)),
        ("data/x.csv", (4, 1, 2, 2), (4, None, 2)),
    ],
)
def test_chips_that_an_export_multiplied_are_counted_once(tmp_path, source, sizes, layout):
    """Two exports of InferenceX write its tp 8 and ep 8 as 64 chips; NVIDIA's own runs state theirs."""
    head = SILICON.replace("attention_dp_size", "attention_dp_size,moe_tp_size,moe_ep_size")
    row = f"a,{source},trtllm,,m/DeepSeek-R1,b200_sxm,fp8,agg,1000,500,1,{','.join(map(str, sizes))},9,9"
    (run,) = read_runs(written(tmp_path, head + row + "\n", "s.csv"))
    assert (run.tensor_parallel, run.data_parallel_attention, run.expert_parallel) == layout
    assert run.max_concurrency == sizes[1]


@pytest.mark.parametrize(
    ("model", "tpots", "drafted"),
    [
        ("DeepSeek-R1", (10.0, 7.0), (False, True)),
        ("DeepSeek-R1", (10.0, 8.5), (False, False)),
        ("Kimi-K2.5", (10.0, 7.0), (False, False)),
    ],
)
def test_runs_that_must_have_speculated_are_reported(tmp_path, model, tpots, drafted):
    """Two runs of one configuration: an export of InferenceX does not say which has MTP."""
    rows = [f"a,{PUBLIC},trtllm,1.1.0rc2.post2,m/{model},h200_sxm,fp8,agg,1000,500,8,8,1,9,{tpot}" for tpot in tpots]
    runs = read_runs(written(tmp_path, SILICON + "\n".join(rows) + "\n", "s.csv"))
    assert tuple(run.unusable == "speculation that is not recorded" for run in runs) == drafted


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ({"tensor_parallel_size": 2, "data_parallel_size": 1, "enable_expert_parallel": False}, (2, None, None, None)),
        ({"tensor_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": False}, (1, None, None, 2)),
        ({"tensor_parallel_size": 2, "data_parallel_size": 2, "enable_expert_parallel": True}, (2, 4, 2, None)),
        ({"tensor_parallel_size": 4, "enable_expert_parallel": True}, (4, 4, None, None)),
    ],
)
def test_parallel_layouts_of_llmservingsim_are_read(tmp_path, engine, layout):
    """vLLM's ``data_parallel_size``: independent engines, or groups of attention before shared experts."""
    request = {"arrival_time": 0.0, "input_toks": 4, "output_toks": 3, "queued_ts": 1.0, "first_token_ts": 2.0,
               "last_token_ts": 3.0}  # fmt: skip
    file = written(tmp_path, json.dumps(request) + "\n", "requests.jsonl")
    (tmp_path / "meta.json").write_text(json.dumps({"engine_kwargs": {"model": "m", **engine}}))
    (run,) = read_runs(file)
    assert (run.tensor_parallel, run.expert_parallel, run.data_parallel_attention, run.replicas) == layout


def test_served_tables_of_every_kind(shared_data):
    sweep = read_runs(shared_data / "serving" / "inference-perf-kubecon-h100.csv")
    assert {run.process for run in sweep} == {"constant", "closed-loop"}
    assert all(run.max_concurrency == 440 for run in sweep if run.process == "closed-loop")
    overview = read_runs(shared_data / "serving" / "tensorrt-llm-perf-overview.csv")
    static = [run for run in overview if run.settings.get("engine.scheduler") == "static"]
    assert static
    assert all(run.num_requests == run.max_concurrency for run in static)
    nim = read_runs(shared_data / "serving" / "nvidia-nim-docs.csv")
    assert {run.kv_cache_dtype for run in nim} == {"fp8"}
    wide = [run for run in read_runs(shared_data / "serving" / "inferencex.csv") if run.data_parallel_attention]
    assert {(run.tensor_parallel, run.data_parallel_attention) for run in wide} >= {(1, 4), (1, 8)}


AIPERF = {
    "request_latency": {"unit": "ms", "avg": 700.0},
    "input_sequence_length": {"unit": "tokens", "avg": 300.0},
    "output_sequence_length": {"unit": "tokens", "avg": 50.0},
    "request_count": {"unit": "requests", "avg": 96.0},
}
WARM_UP = {"name": "warmup", "type": "concurrency", "exclude_from_results": True, "requests": 4, "concurrency": 2}


@pytest.mark.parametrize(
    ("phase", "load"),
    [
        ({"type": "concurrency", "concurrency": 16}, ("closed-loop", 16, None)),
        ({"type": "poisson", "rate": 4.0}, ("poisson", None, 4.0)),
        ({"type": "constant", "rate": 4.0}, ("constant", None, 4.0)),
        ({"type": "gamma", "rate": 4.0, "smoothness": 2.0}, ("gamma", None, 4.0)),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_aiperf_reports_the_phase_that_it_measured(tmp_path, phase, load, order):
    phases = [WARM_UP, {"name": "profiling", "requests": 96, **phase}][::order]
    setup = {
        "models": {"items": [{"name": "served"}]},
        "tokenizer": {"name": "nvidia/Qwen3-8B-NVFP4"},
        "phases": phases,
    }
    file = tmp_path / "profile_export_aiperf.json"
    file.write_text(json.dumps(AIPERF | {"input_config": setup}))
    (run,) = read_runs(file)
    assert (run.model, run.tokenizer, run.num_requests) == ("served", "nvidia/Qwen3-8B-NVFP4", 96)
    assert (run.process, run.max_concurrency, run.request_rate) == load


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({"phases": [{"type": "concurrency", "concurrency": 1}, {"type": "poisson", "rate": 2.0}]}, "2 are reported"),
        ({"phases": [WARM_UP, {"type": "fixed_schedule"}]}, "type 'fixed_schedule' is not one of concurrency"),
        ({"models": {"items": [{"name": "a"}, {"name": "b"}]}}, "2 models in one result"),
    ],
)
def test_what_aiperf_reports_of_several_loads_or_models_is_refused(tmp_path, setup, message):
    file = tmp_path / "profile_export_aiperf.json"
    file.write_text(json.dumps(AIPERF | {"input_config": setup}))
    with pytest.raises(TraceError, match=message):
        read_runs(file)


VLLM_BLOCK = """\
$ vllm bench serve --backend openai-chat --model meta-llama/Llama-3.1-8B-Instruct \\
    --tokenizer meta-llama/Llama-3.1-8B-Instruct --random-input-len 512
============ Serving Benchmark Result ============
Successful requests:                     100
Failed requests:                         0
Maximum request concurrency:             16
Benchmark duration (s):                  25.0
Total input tokens:                      51200
Total generated tokens:                  12800
Request throughput (req/s):              4.00
Output token throughput (tok/s):         512.00
Peak output token throughput (tok/s):    900.00
Total token throughput (tok/s):          2,560.00
---------------Time to First Token----------------
Mean TTFT (ms):                          80.0
Median TTFT (ms):                        70.0
P99 TTFT (ms):                           200.0
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          9.5
---------------Inter-token Latency----------------
Mean ITL (ms):                           9.4
==================================================
INFO 10 requests: 12 waiting
"""
SGLANG_BLOCK = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 16
Successful requests:                     100
Total input tokens:                      51200
Total generated tokens:                  12800
Total generated tokens (retokenized):    12790
Request throughput (req/s):              4.00
Output token throughput (tok/s):         512.00
Total token throughput (tok/s):          2560.00
Concurrency:                             15.97
Mean E2E Latency (ms):                   1300.0
Mean TTFT (ms):                          80.0
Median TTFT (ms):                        70.0
P99 TTFT (ms):                           200.0
Mean TPOT (ms):                          9.5
Mean ITL (ms):                           12.0
==================================================
"""
MARKDOWN = """\
Results on our machine:

| Model | GPU | ISL/OSL | Conc | N | **TTFT (ms)** | TTFT P50 | TTFT p99 (s) | TPOT (ms) | Output tok/s | tok/s/GPU |
|-------|-----|:-------:|-----:|--:|--------------:|---------:|-------------:|----------:|-------------:|----------:|
| meta-llama/Llama-3.1-8B-Instruct | 2x H100 | 512/128 | 16 | 100 | **80.0** | 70ms | 0.2 | 9.5 ± 0.1 | 512.0 | 256 |
"""
NEAR_MISSES = """\
name,model,prompt_tokens_mean,output_tokens_mean,concurrency_mean,rate,total_requests,ttft_mean_ms,ttft_median_ms,ttft_p99_ms,tpot_mean_ms,rps_mean,output_tps
a,meta-llama/Llama-3.1-8B-Instruct,512,128,16.0,-,100,80.0,70.0,200.0,9.5,4.0,512.0
"""
COMPARED = """\
| Metric | Before | After | Change |
|---|---|---|---|
| Concurrency | 16 | 32 | |
| Input tokens | 512 | 512 | |
| Output tokens | 128 | 128 | |
| Mean TTFT (ms) | 80.0 | 90 | 1.1x |
| Median TTFT (ms) | 70.0 | 80 | 1.1x |
| P99 TTFT (s) | 0.2 | 0.4 | 2x |
| Mean TPOT | 9.5 ms | 10 ms | +5 % |
| Output token throughput (tok/s) | 512.0 | 900 | 1.8x |
"""
NESTED = {"hardware": "8xH100", "results": [
    {"config": {"model": "meta-llama/Llama-3.1-8B-Instruct"}, "isl": 512, "osl": 128, "concurrency": 16,
     "ttft_ms": {"mean": 80.0, "p50": 70.0, "p99": 200.0}, "tpot": {"unit": "s", "avg": 0.0095},
     "throughput": {"output_tok_per_s": 512.0}}]}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [(VLLM_BLOCK, "vllm.txt"), (SGLANG_BLOCK, "sglang.log"), (MARKDOWN, "runs.md"), (NEAR_MISSES, "runs.csv"),
     (COMPARED, "compared.md"), (json.dumps(NESTED), "own.json")],
    ids=["vllm", "sglang", "markdown", "csv", "compared", "json"],
)  # fmt: skip
def test_what_people_paste_is_the_run_of_the_result_file(tmp_path, text, name):
    run = read_runs(written(tmp_path, text, name))[0]
    expected = {"mean_ttft_ms": 80.0, "median_ttft_ms": 70.0, "p99_ttft_ms": 200.0, "mean_tpot_ms": 9.5}
    assert {key: run.measured.get(key) for key in expected} == pytest.approx(expected)
    assert run.measured["output_throughput"] == 512.0
    assert (run.process, run.max_concurrency) == ("closed-loop", 16)
    assert (run.input_tokens, run.output_tokens) == (512, 128)
    assert ("mean_itl_ms" in run.measured) == (name == "vllm.txt"), "SGLang divides its ITL by the tokens of a chunk"
    if name in ("runs.md", "runs.csv"):
        assert any(note.startswith("read '") for note in run.notes)


def test_what_the_client_announces_before_a_block_is_its_load(tmp_path):
    """A load in comments counts too; where only the command stands there, its default does: all at once."""
    block = VLLM_BLOCK.partition("\n===")[2].replace("Maximum request concurrency:             16\n", "")
    announced = (
        f"Traffic request rate: inf\nMaximum request concurrency: 32\n==={block}Traffic request rate: 2.0\n==={block}"
    )
    text = (
        "".join(f"# {line}\n" for line in announced.splitlines()) + f"$ vllm bench serve --num-prompts 100\n==={block}"
    )
    runs = read_runs(written(tmp_path, text, "three.sh"))
    loads = [(run.process, run.max_concurrency, run.request_rate) for run in runs]
    assert loads == [("closed-loop", 32, None), ("poisson", None, 2.0), ("burst", None, None)]


OF_TRTLLM = """\
Model:                  meta-llama/Llama-3.1-8B-Instruct
TensorRT LLM Version:   1.0
KV Cache Dtype:         FP8
TP Size:                2
Request Throughput (req/sec):                     40.0
Total Output Throughput (tokens/sec):             5120.0
Total Token Throughput (tokens/sec):              25600.0
Total Latency (ms):                               23143.3944
Per GPU Output Throughput (tps/gpu):              2560.0
Average time-to-first-token [TTFT] (ms):          120.5
"""


@pytest.mark.parametrize(
    ("text", "facts", "measured"),
    [
        (OF_TRTLLM, {"framework": "trtllm", "kv_cache_dtype": "FP8", "tensor_parallel": 2, "input_tokens": 512},
         {"mean_ttft_ms": 120.5, "request_throughput": 40.0, "output_throughput": 5120.0,
          "total_token_throughput": 25600.0}),
        ("Throughput: 8.0 requests/s, 3,200.0 total tokens/s, 1600.0 output tokens/s\n",
         {"process": "burst", "input_tokens": 200, "output_tokens": 200},
         {"request_throughput": 8.0, "total_token_throughput": 3200.0, "output_throughput": 1600.0}),
        ("Requests per second: 0.45\nTime to First Token (TTFT):\n  Min:   51 ms\n  Mean:  120.5 ms\n  P99:   0.6 s\n",
         {"process": None, "request_rate": None},
         {"request_throughput": 0.45, "mean_ttft_ms": 120.5, "p99_ttft_ms": 600.0}),
        ("TTFT: 20.88 ± 0.47 ms\nTPOT: 9.5 ± 0.1 ms\nThroughput : 47.89 ± 1.07 tokens/s\n", {"model": None},
         {"mean_ttft_ms": 20.88, "mean_tpot_ms": 9.5, "output_throughput": 47.89}),
        ("| Spec decode | Prefix caching | Eager | TTFT (ms) |\n|-|-|-|-|\n| MTP | on | yes | 7 |\n",
         {"speculation": "MTP", "prefix_caching": True, "settings": {"engine.cuda_graphs": False}},
         {"mean_ttft_ms": 7.0}),
        (json.dumps({"prompt": "Tell me", "ttft_ms": 7.0, "output": "Once"}), {"input_tokens": None},
         {"mean_ttft_ms": 7.0}),
    ],
    ids=["trtllm", "offline", "headings", "spread", "options", "texts"],
)  # fmt: skip
def test_lines_of_other_benchmarks_are_read_by_their_names(tmp_path, text, facts, measured):
    (run,) = read_runs(written(tmp_path, text, "a.json" if text.startswith("{") else "a.txt"))
    assert {name: getattr(run, name) for name in facts} == facts
    assert run.measured == pytest.approx(measured)


def test_a_block_names_the_model_of_its_command_and_the_engine_of_its_backend(tmp_path):
    (vllm,) = read_runs(written(tmp_path, VLLM_BLOCK, "a.txt"))
    (sglang,) = read_runs(written(tmp_path, SGLANG_BLOCK, "b.txt"))
    assert (vllm.model, vllm.framework, sglang.framework) == ("meta-llama/Llama-3.1-8B-Instruct", None, "sglang")
    first, second = read_runs(written(tmp_path, VLLM_BLOCK + SGLANG_BLOCK, "c.txt"))
    assert (first.name, second.name, second.model) == ("c 0", "c 1", None)


def test_columns_of_a_table_that_is_compared_are_runs(tmp_path):
    runs = read_runs(written(tmp_path, COMPARED, "compared.md"))
    assert [(run.name, run.max_concurrency) for run in runs] == [("Before", 16), ("After", 32)]


def test_thousands_and_figures_below_zero_are_no_other_numbers(tmp_path):
    text = "| ISL | OSL | Conc | TTFT (ms) | TPOT (ms) | Output tok/s |\n| 8k | 1k | 4 | 70 | -0.00 | 1.5k |\n"
    (run,) = read_runs(written(tmp_path, text, "runs.md"))
    assert (run.input_tokens, run.output_tokens) == (8192, 1024)
    assert run.measured == {"mean_ttft_ms": 70.0, "output_throughput": 1500.0}
    assert "lengths in k are multiples of 1,024 tokens" in run.notes


@pytest.mark.parametrize(("column", "cell"), [("GPU", "H100 x8"), ("GPU", "8x H100"), ("GPUs", "8"), ("TP", "8")])
def test_chips_of_a_table_are_tensor_parallel(tmp_path, column, cell):
    (run,) = read_runs(written(tmp_path, f"{column},concurrency,ttft_ms\n{cell},4,70\n", "runs.csv"))
    assert (run.tensor_parallel, run.chip) == (8, "H100" if column == "GPU" else None)


def test_a_chip_times_a_count_is_tensor_parallel(tmp_path):
    (run,) = read_runs(written(tmp_path, MARKDOWN, "runs.md"))
    assert (run.chip, run.tensor_parallel, run.model) == ("H100", 2, "meta-llama/Llama-3.1-8B-Instruct")
    assert any("not read: tok/s/GPU" in note for note in run.notes)


@pytest.mark.parametrize(
    ("cells", "ttft", "words"),
    [
        ("0.35", 350.0, "taken as s"),
        ("350", 350.0, "taken as ms"),
        ("0.35 s", 350.0, ""),
        ("35", None, "states no unit"),
    ],
)
def test_a_unit_that_is_not_stated_is_noted_or_refused(tmp_path, cells, ttft, words):
    file = written(tmp_path, f"concurrency,isl,osl,ttft\n8,512,128,{cells}\n", "runs.csv")
    if ttft is None:
        with pytest.raises(TraceError, match=words):
            read_runs(file)
        return
    (run,) = read_runs(file)
    assert run.measured["mean_ttft_ms"] == pytest.approx(ttft)
    assert any(words in note for note in run.notes)


AIPERF_TABLE = """\
NVIDIA AIPerf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━┓
┃                               Metric ┃       avg ┃    p99 ┃    p50 ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━┩
│             Time to First Token (ms) │     80.00 │ 200.00 │  70.00 │
│                 Request Latency (ms) │  1,300.00 │ 1,400 │  1,290 │
│             Inter Token Latency (ms) │      9.50 │  12.48 │   9.45 │
│     Output Token Throughput Per User │     89.23 │ 102.28 │  89.00 │
│                    (tokens/sec/user) │           │        │        │
│      Output Sequence Length (tokens) │    128.00 │ 128.00 │ 128.00 │
│       Input Sequence Length (tokens) │    512.00 │ 512.00 │ 512.00 │
│ Output Token Throughput (tokens/sec) │    512.00 │    N/A │    N/A │
│             Request Count (requests) │    100.00 │    N/A │    N/A │
└──────────────────────────────────────┴───────────┴────────┴────────┘
"""
AIPERF_CSV = """\
Metric,avg,p99,p50
Time To First Token (ms),80.0,200.0,70.0
Request Latency (ms),"1,300.0","1,400.0","1,290.0"
Inter Token Latency (ms),9.5,12.48,9.45
Output Sequence Length (tokens),128,128,128
Input Sequence Length (tokens),512,512,512

Metric,Value
Output Token Throughput (per sec),512.0
Request Count (count),100.00
"""
LLMD = {
    "version": "0.1",
    "scenario": {
        "host": {"type": ["replica"], "accelerator": [{"model": "H100", "count": 2, "parallelism": {"tp": 2}}]},
        "platform": {"engine": [{"name": "vllm", "version": "0.11.0", "args": {"--max-num-seqs": 128}}]},
        "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
        "load": {"name": "inference-perf", "args": {"qps_values": 18.0}},
    },
    "metrics": {
        "requests": {"total": 100, "input_length": {"units": "count", "mean": 512.0}, "output_length": {"mean": 128.0}},
        "latency": {"time_to_first_token": {"units": "s", "mean": 0.08, "p50": 0.07, "p99": 0.2},
                    "request_latency": {"units": "s", "mean": 1.2865},
                    "time_per_output_token": {"units": "s/token", "mean": 0.0048}},
        "throughput": {"output_tokens_per_sec": 512.0, "total_tokens_per_sec": 2560.0},
    },
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), [(AIPERF_TABLE, "t.txt"), (AIPERF_CSV, "t.csv"), (LLMD, "report.json")])
def test_tables_of_clients_and_reports_tell_the_same_run(tmp_path, text, name):
    (run,) = read_runs(written(tmp_path, text, name))
    expected = {"mean_ttft_ms": 80.0, "median_ttft_ms": 70.0, "p99_ttft_ms": 200.0, "mean_tpot_ms": 9.5}
    assert {key: run.measured.get(key) for key in expected} == pytest.approx(expected)
    assert (run.input_tokens, run.output_tokens, run.num_requests) == (512, 128, 100)


def test_a_report_of_llm_d_is_a_whole_deployment(tmp_path):
    (run,) = read_runs(written(tmp_path, LLMD, "report.json"))
    assert (run.model, run.chip, run.tensor_parallel) == ("meta-llama/Llama-3.1-8B-Instruct", "H100", 2)
    assert (run.framework, run.framework_version, run.max_num_seqs) == ("vllm", "0.11.0", 128)
    assert (run.process, run.request_rate) == ("constant", 18.0)
    assert any("TPOT 4.8 ms and ITL are per stream event" in note for note in run.notes)
    engines = [
        {"standardized": {"kind": "inference_engine", "tool": "llm-d", "role": role, "replicas": count,
                          "model": {"name": "Qwen/Qwen3-32B"},
                          "accelerator": {"model": "NVIDIA-H100-80GB-HBM3", "count": 4, "parallelism": {"tp": 4}}}}
        for role, count in (("prefill", 2), ("decode", 1))
    ]  # fmt: skip
    report = {
        "version": "0.2",
        "scenario": {
            "stack": [{"standardized": {"kind": "generic", "tool": "epp"}}, *engines],
            "load": {"standardized": {"rate_qps": None, "concurrency": 64}},
        },
        "results": {"request_performance": {"aggregate": LLMD["metrics"]}},
    }
    (run,) = read_runs(written(tmp_path, report, "report.yaml"))
    pools = run.settings["pools"]
    assert (run.model, run.max_concurrency, run.tensor_parallel) == ("Qwen/Qwen3-32B", 64, None)
    assert pools["prefill"] == {"role": "prefill", "hardware": {"tensor_parallel": 4, "replicas": 2}}
    assert pools["decode"] == {"role": "decode", "hardware": {"tensor_parallel": 4}}


AGGREGATE = {
    "hw": "h200-nb", "conc": 16, "image": "vllm/vllm-openai:v0.11.0", "model": "openai/gpt-oss-120b",
    "precision": "fp4", "spec_decoding": "none", "disagg": False, "isl": 1000, "osl": 500, "is_multinode": False,
    "framework": "vllm", "tp": 2,
    "ep": 1, "dp_attention": "false", "tput_per_gpu": 1500.0, "output_tput_per_gpu": 760.0, "mean_ttft": 0.09,
    "mean_tpot": 0.0095, "mean_intvty": 105.2, "mean_e2el": 9.0,
}  # fmt: skip


def test_an_aggregate_of_inferencex_is_a_whole_deployment(tmp_path):
    (run,) = read_runs(written(tmp_path, AGGREGATE, "agg_x.json"))
    assert (run.chip, run.framework_version, run.tensor_parallel, run.weights_dtype) == (
        "h200-nb",
        "vllm/vllm-openai:v0.11.0",
        2,
        "fp4",
    )
    assert (run.input_tokens, run.num_requests, run.speculation) == ((800, 1000), 160, "none")
    assert run.measured["mean_ttft_ms"] == pytest.approx(90.0)
    assert run.measured["output_throughput"] == 1520.0
    spread = AGGREGATE | {"is_multinode": True, "disagg": True, "num_prefill_gpu": 8, "num_decode_gpu": 8}
    spread |= {"prefill_tp": 4, "prefill_ep": 4, "prefill_dp_attention": "true", "prefill_num_workers": 2}
    spread |= {"decode_tp": 8, "decode_ep": 8, "decode_dp_attention": "false", "decode_num_workers": 1}
    (run,) = read_runs(written(tmp_path, spread, "agg_y.json"))
    prefill, decode = (run.settings["pools"][role]["hardware"] for role in ("prefill", "decode"))
    assert prefill == {"tensor_parallel": 1, "expert_parallel": 4, "attention_data_parallel": 4, "replicas": 2}
    assert decode == {"tensor_parallel": 8, "expert_parallel": 8}
    assert run.measured["output_throughput"] == 760.0 * 8


LLAMA_BENCH = {
    "gpu_info": "NVIDIA GeForce RTX 4090", "model_filename": "models/Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium", "model_n_params": 7615616512, "type_k": "f16", "n_gpu_layers": -1,
    "n_depth": 0,
}  # fmt: skip
LLAMA_TESTS = [{"n_prompt": 512, "n_gen": 0, "avg_ts": 8000.0}, {"n_prompt": 0, "n_gen": 128, "avg_ts": 125.0}]
LLAMA_TABLE = """\
  Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9, VMM: yes
| model                  |     size | params | backend | ngl |  test |            t/s |
| ---------------------- | -------: | -----: | ------- | --: | ----: | -------------: |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  99 | pp512 | 8000.00 ± 23.4 |
| qwen2 7B Q4_K - Medium | 4.36 GiB | 7.62 B | CUDA    |  99 | tg128 |  125.00 ± 0.60 |
"""


@pytest.mark.parametrize("form", ["json", "jsonl", "csv", "md"])
def test_llama_bench_is_one_stream_on_one_chip(tmp_path, form):
    rows = [LLAMA_BENCH | test for test in LLAMA_TESTS]
    text = {
        "json": json.dumps(rows),
        "jsonl": "\n".join(map(json.dumps, rows)),
        "csv": "\n".join([",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]),
        "md": LLAMA_TABLE,
    }[form]
    prompt, made = read_runs(written(tmp_path, text, f"bench.{form}"))
    assert prompt.measured == pytest.approx({"mean_ttft_ms": 64.0})
    assert made.measured == pytest.approx({"mean_tpot_ms": 8.0})
    assert (prompt.input_tokens, made.output_tokens, made.max_concurrency) == (512, 128, 1)
    assert made.model == ("qwen2 7B" if form == "md" else "Qwen2.5-7B-Instruct")
    assert (made.chip, made.framework) == ("NVIDIA GeForce RTX 4090", "llama.cpp")
    assert made.settings["weights_dtype"] == "q4_k_m"
    assert made.parameters == pytest.approx(7.62e9, rel=1e-3)


LOADGEN = """\
================================================
MLPerf Results Summary
================================================
SUT name : llama2-70b-Server-SUT
Scenario : Server
Completed samples per second    : 5.00
Completed tokens per second: 1500.00
Result is : VALID

Scheduled samples per second : 5.10
Mean latency (ns)               : 22000000000
99.90 percentile latency (ns)   : 85000000000
Mean First Token latency (ns)               : 210000000
50.00 percentile first token latency (ns)   : 190000000
Mean Time to Output Token (ns)               : 75000000

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 5
ttft_latency (ns): 2000000000
"""


def test_a_summary_of_mlperf_has_its_load_and_the_length_of_its_answers(tmp_path):
    (run,) = read_runs(written(tmp_path, LOADGEN, "mlperf_log_summary.txt"))
    assert (run.model, run.process, run.request_rate, run.output_tokens) == ("llama2-70b", "poisson", 5.1, 300)
    expected = {"mean_ttft_ms": 210.0, "median_ttft_ms": 190.0, "mean_tpot_ms": 75.0, "mean_e2el_ms": 22_000.0,
                "request_throughput": 5.0, "output_throughput": 1500.0}  # fmt: skip
    assert run.measured == pytest.approx(expected)
    offline = LOADGEN.replace("Server\n", "Offline\n").replace("samples_per_query : 1", "samples_per_query : 24576")
    (run,) = read_runs(written(tmp_path, offline, "mlperf_log_summary.txt"))
    assert (run.process, run.num_requests) == ("burst", 24576)
    assert "mean_e2el_ms" not in run.measured


def test_a_stage_of_inference_perf_states_its_rate_without_a_configuration(tmp_path):
    stage = INFERENCE_PERF | {"load_summary": {"count": 100, "requested_rate": 18.16}}
    (run,) = read_runs(written(tmp_path, stage, "stage_1_lifecycle_metrics.json"))
    assert (run.process, run.request_rate) == ("constant", 18.16)
    written(tmp_path, stage, "stage_2_lifecycle_metrics.json")
    whole = read_runs(written(tmp_path, INFERENCE_PERF, "summary_lifecycle_metrics.json"))[0]
    assert whole.unusable == "a summary of 2 stages at rates of their own, which are read beside it"


def test_a_rate_above_what_a_limit_of_requests_lets_through_is_a_closed_loop(tmp_path):
    (run,) = read_runs(written(tmp_path, VLLM | {"request_rate": 64.0}))
    assert (run.process, run.max_concurrency, run.request_rate) == ("closed-loop", 16, None)
    (run,) = read_runs(written(tmp_path, VLLM | {"completed": 0, "failed": 100}))
    assert run.unusable == "no request completed"
    (run,) = read_runs(written(tmp_path, VLLM | {"failed": 60}))
    assert run.unusable == "60 requests failed"


def test_a_sweep_of_aiperf_is_a_run_for_each_of_its_loads(tmp_path):
    metrics = {name: value for name, value in AIPERF.items() if name != "input_config"}
    loads = [{"parameters": {"concurrency": load}, "metrics": metrics} for load in (16, 32)]
    runs = read_runs(written(tmp_path, {"aggregation_type": "sweep", "per_combination_metrics": loads}))
    assert [run.max_concurrency for run in runs] == [16, 32]


def test_guidellm_of_each_release_names_its_model(tmp_path):
    (benchmark,) = GUIDELLM["benchmarks"]
    backend = {"backend": {"model": "Qwen/Qwen3-8B"}}
    for report in (
        {"benchmarks": [benchmark | {"worker": {"backend_model": "Qwen/Qwen3-8B"}}]},
        {"benchmarks": [benchmark | {"config": benchmark["config"] | backend}]},
        {"benchmarks": [benchmark], "args": {"model": "Qwen/Qwen3-8B"}},
        {"benchmarks": [benchmark], "config": {"spec": backend}},
    ):
        (run,) = read_runs(written(tmp_path, report))
        assert (run.model, run.max_concurrency) == ("Qwen/Qwen3-8B", 16)


def test_a_folder_is_read_as_its_results_and_its_tables_only_where_there_are_no_others(tmp_path):
    written(tmp_path, MARKDOWN, "README.md")
    written(tmp_path, VLLM_BLOCK, "run.log")
    assert len(read_runs(tmp_path)) == 2
    written(tmp_path, VLLM, "result.json")
    (run,) = read_runs(tmp_path)
    assert run.name == "result"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "a.txt", "empty"),
        ('{"mean_ttft_ms": 1', "a.json", "not valid JSON"),
        ("<!DOCTYPE html><html><body>502</body></html>", "a.json", "an HTML page"),
        ("| Model | Score |\n|---|---|\n| a | 7 |\n", "a.md", "no latency or throughput in it"),
        ("| TTFT (ms) | TTFT mean (ms) |\n|---|---|\n| 7 | 8 |\n", "a.md", "a second mean_ttft_ms"),
        ("| TTFT (ms) | ISL |\n|---|---|\n| 7 |\n", "a.md", "1 cells where the header names 2"),
        ("| TTFT (ms) | TPOT (ms) |\n|---|---|\n| 7,5 | 8 |\n", "a.md", "'7,5' is no number"),
        (
            "| Conc | TTFT (ms) | TPOT |\n|---|---|---|\n| **Llama-8B** | | |\n| 8 | 7 | 8 ms |\n",
            "a.md",
            "heads the rows",
        ),
        ("| Users | ISL | TTFT (ms) |\n|---|---|---|\n| 8 | 2 pages | 7 |\n", "a.md", "unit 'pages' is not known here"),
        (LOADGEN.replace("Server\n", "MultiStream\n"), "a.txt", "'MultiStream' is not one of Offline, Server"),
    ],
)
def test_text_without_results_is_refused_in_one_line(tmp_path, text, name, message):
    with pytest.raises(TraceError, match=name) as error:
        read_runs(written(tmp_path, text, name))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
