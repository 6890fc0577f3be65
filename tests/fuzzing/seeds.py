"""Small well-formed files of every kind that the project reads, many of them those of the readers' own tests."""

import gzip
import io
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.simulator.llm import test_llm_current_models, test_llm_hf_config
from tests.simulator.speculation import test_engine_logs
from tests.traces import test_llama_cpp, test_readers, test_serving_runs

ROOT = Path(__file__).resolve().parent.parent.parent

SCENARIO = """\
model: llama-3.2-1b
weights_dtype: fp8
kv_cache_dtype: bf16
hardware: {chip: h100-sxm, tensor_parallel: 2, replicas: 2, link: nvlink4}
engine: {framework: vllm, scheduler: vllm-v1, max_num_seqs: 8, block_size: 16, num_kv_blocks: 900, stepping: fast}
speculation:
  method: eagle3
  num_speculative_tokens: 3
  acceptance: {per_position: [0.73, 0.52, 0.35]}
  policy: fixed
workload:
  arrivals: {process: poisson, request_rate: 8.0}
  input_tokens: {distribution: lognormal, mean: 100, cv: 0.8, max: 400}
  output_tokens: {distribution: uniform, min: 2, max: 9}
  num_requests: 5
slo: {p99_ttft_ms: 500}
prices: {usd_per_chip_hour: 2.5}
"""
PLAIN_SCENARIO = """\
model: llama-3.2-1b
hardware: {chip: h100-sxm}
workload: {arrivals: {process: closed-loop, max_concurrency: 2}, input_tokens: 9, output_tokens: 3, num_requests: 4}
"""
STUDY = f"""\
scenario:
{"".join("  " + line + chr(10) for line in PLAIN_SCENARIO.splitlines())}vary: {{engine.max_num_seqs: [1, 2, 4], hardware.tensor_parallel: [1, 2]}}
variants: [{{name: fp8, set: {{weights_dtype: fp8}}}}, {{name: two, set: {{hardware.replicas: 2}}}}]
"""
REQUESTS = [
    "arrival_s,input_tokens,output_tokens,session_id,turn,measured_ttft_s\n0,10,5,a,0,0.1\n0.5,20,2,b,0,0.2\n1.5,9,1,a,1,\n",
    *(test_readers.AZURE, test_readers.AZURE_2024, test_readers.BURST_1, test_readers.MOONCAKE, test_readers.BAILIAN),
    *map(json.dumps, (test_readers.VLLM, test_readers.AIPERF, test_readers.SESSION)),
    '[{"timestamp": 1.5, "prompt_tokens": 3, "completion_tokens": 4}, '
    '{"timestamp": 2, "prompt_tokens": 3, "completion_tokens": 4}]',
    json.dumps([{"id": "1", "conversations": [{"from": "human", "value": "hi there"}, {"from": "gpt", "value": "yes"}],
                 "input_tokens": 4, "output_tokens": 2}]),
    json.dumps({"session_id": "a", "turns": [
        {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 4, "delay": 2.5,
         "spawns": ["b", {"children": ["b"], "join_at": 2}]},
        {"messages": [], "max_tokens": 9}, {"messages": [], "max_tokens": 3, "forks": [{"child": "b"}]}]})
    + "\n" + json.dumps({"session_id": "b", "turns": [{"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}]}),
    json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [
        {"traceId": "t", "startTimeUnixNano": "1000000000", "endTimeUnixNano": "3000000000", "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "9"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"doubleValue": 4}}]}] * 2}]}]}),
    "0,10,3,Gamma,1.0,0.5\n600,20,1,Weibull,2.0,0.7\n",
    "num_prefill_tokens,num_decode_tokens,arrived_at\n10,3,0.5\n20,4,0.7\n",
    "input_toks,output_toks,arrival_time_ns\n10,3,500\n20,4,900\n",
]  # fmt: skip
KERNELS = [
    "op,m,n,k,dtype,measured_s,count,std_s\ngemm,16,4096,4096,bf16,1e-5,3,1e-7\ngemm,512,4096,4096,fp8,2e-5,3,\n",
    "op,batch,q_len,kv_len,num_heads,num_kv_heads,head_dim,dtype,kv_dtype,window,measured_s\n"
    "attention_decode,8,1,1024,32,8,128,bf16,fp8,0,3e-5\nattention_prefill,1,512,512,32,8,128,bf16,bf16,128,4e-5\n",
    "op,message_bytes,world_size,measured_s\nall_reduce,1048576,8,4e-5\nsend_recv,4096,2,3e-6\n",
    "op,tokens,num_experts,experts_per_token,hidden,intermediate,dtype,measured_s\nmoe,64,32,4,2880,2880,mxfp4,1e-4\n",
    "framework,op_name,gemm_dtype,m,n,k,latency,kernel_source\nTRTLLM,gemm,bfloat16,16,4096,8192,0.02,torch_flow\n",
    "framework,op_name,attn_dtype,kv_cache_dtype,batch_size,isl,num_heads,num_key_value_heads,head_dim,step,latency\n"
    "VLLM,generation_attention,bfloat16,fp8,8,1,32,8,128,1023,0.03\n",
    "framework,op_name,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,latency\n"
    "VLLM,moe,fp8,64,2880,2880,4,32,1,4,0.1\n",
    "framework,op_name,nccl_dtype,num_gpus,message_size,latency\nVLLM,all_reduce,half,4,1000,0.01\n",
    "time_stats.attn_pre_proj.median,time_stats.mlp_up_proj.median,time_stats.add.median,"
    "n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,num_tokens,num_tensor_parallel_workers\n"
    "0.5,1.5,0.05,32,8,4096,14336,True,128,2\n",
    ",time_stats.all_reduce.median,num_workers,size,collective,devices_per_node\n0,0.5,8,1048576,all_reduce,8\n",
    "time_stats.attn_prefill.median,time_stats.attn_decode.median,n_embd,n_q_head,n_kv_head,"
    "num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,is_prefill,attention_backend\n"
    "0.2,0.0,8192,64,8,2,1,512,1024,True,FA\n,0.1,8192,64,8,2,16,0,1000,False,FA\n",
    "Start (ns),Duration (ns),CorrId,Device,Name\n100,2000,1,H100,gemm_kernel\n300,2500,2,H100,softmax\n",
    "OP CODE,OP TYPE,GLOBAL CALL COUNT,DEVICE ID,MATH FIDELITY,DEVICE FW DURATION [ns],"
    + ",".join(f"INPUT_{i}_{axis}_PAD[LOGICAL]" for i in (0, 1) for axis in "WZYX")
    + ",INPUT_1_DATATYPE\nMatmul,tt_dnn_device,1,0,HiFi2,63093,1[1],1[1],32[19],1280[1280],1[1],1[1],1280[1280],"
    "640[640],BFLOAT8_B\n",
    json.dumps({"traceEvents": [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2,
         "args": {"External id": 5, "Input Dims": [[888, 2880], [2880, 640]], "Input type": ["c10::BFloat16"] * 2}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.0, "dur": 7.5, "args": {"External id": 5}},
    ], "deviceProperties": [{"name": "GPU"}]}),
]  # fmt: skip
STEPS = [
    "prefill_seqs,prefill_tokens,prefill_kv_tokens,decode_seqs,query_len,decode_kv_tokens,measured_s,scope\n"
    "1,512,512,,,,0.02,device\n,,,16,1,16000,0.008,step\n1,512,600,16,1,16000,0.03,\n",
    json.dumps({"traceEvents": [
        {"ph": "X", "cat": "gpu_user_annotation", "ts": 5, "dur": 900,
         "name": "execute_2_context_1(sq10sk10sqsq100sqsk100)_generation_2(sq2sk90sqsq2sqsk90)"},
        {"ph": "X", "cat": "gpu_user_annotation", "ts": 9, "dur": 800, "name": "execute_context_1(10_100)_generation_0(0)"},
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 700},
    ]}),
]  # fmt: skip
BENCHMARK_RESULTS = [
    "run,model,chip,framework,tensor_parallel,process,max_concurrency,input_tokens,min_input_tokens,output_tokens,"
    "num_requests,mean_ttft_ms,mean_tpot_ms,output_throughput\n"
    "a,llama-3.1-8b,h100-sxm,vllm,1,closed-loop,16,512,100,128,100,80.0,9.5,512\n",
    "id,model_path,system,backend,backend_version,tp_size,batch_size,isl,osl,precision,mode,silicon_ttft_ms,"
    "silicon_tpot_ms\n1,Qwen/Qwen3-32B,h200_sxm,trtllm,1.0,2,4,1024,128,fp8,agg,50,8\n",
    "row_id,model,gpu,framework,weight_precision,n_gpus,tp,input_len,output_len,length_mode,max_concurrency,"
    "request_rate_rps,output_tput_tok_s,mean_ttft_ms\n1,m,h100,vllm,fp8,2,2,1024,128,fixed,4,,512,80\n",
    "exp_id,experiment,stage_index,model,hw,tp,e2e_mean_ms,ttft_mean_ms,itl_mean_ms,rate,input_mean,output_mean\n"
    "1,a,0,m,H100,1,900,40,9,2,512,128\n",
    *map(json.dumps, (test_serving_runs.VLLM, test_serving_runs.AIPERF, test_serving_runs.GUIDELLM)),
    json.dumps(test_serving_runs.INFERENCE_PERF),
    *map(json.dumps, (test_serving_runs.LLMD, test_serving_runs.AGGREGATE, test_serving_runs.NESTED)),
    *(test_serving_runs.VLLM_BLOCK, test_serving_runs.LOADGEN, test_serving_runs.MARKDOWN, test_serving_runs.NEAR_MISSES),
    *(test_serving_runs.AIPERF_TABLE, test_serving_runs.AIPERF_CSV, test_serving_runs.LLAMA_TABLE),
    json.dumps({"queued_ts": 1.0, "input_toks": 10, "output_toks": 4, "scheduled_ts": 1.1, "first_token_ts": 1.2,
                "last_token_ts": 1.5, "arrival_time_ns": 10}),
]  # fmt: skip
LLAMA_CPP = [
    *(test_llama_cpp.SERVER, test_llama_cpp.BENCH, test_llama_cpp.BATCHED, test_llama_cpp.METRICS),
    *(test_llama_cpp.JSON, test_llama_cpp.TIMINGS),
]
METRICS = """# TYPE vllm:request_success counter
vllm:request_success_total{model_name="m",finished_reason="length"} 60.0
vllm:prompt_tokens_total{model_name="m"} 15000.0
vllm:generation_tokens_total{model_name="m"} 3000.0
vllm:prefix_cache_queries_total{model_name="m"} 15000.0
vllm:prefix_cache_hits_total{model_name="m"} 1000.0
vllm:spec_decode_num_drafts_total{model_name="m"} 1000.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 1500.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 700.0
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{model_name="m",le="200.0"} 20.0
vllm:request_prompt_tokens_bucket{model_name="m",le="500.0"} 60.0
vllm:request_prompt_tokens_bucket{model_name="m",le="+Inf"} 60.0
vllm:request_prompt_tokens_sum{model_name="m"} 15000.0
vllm:request_prompt_tokens_count{model_name="m"} 60.0
# TYPE vllm:request_generation_tokens histogram
vllm:request_generation_tokens_bucket{model_name="m",le="50.0"} 40.0
vllm:request_generation_tokens_bucket{model_name="m",le="+Inf"} 60.0
vllm:request_generation_tokens_sum{model_name="m"} 3000.0
vllm:request_generation_tokens_count{model_name="m"} 60.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.5
vllm:time_to_first_token_seconds_count{model_name="m"} 60.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_sum{model_name="m"} 9.5
vllm:inter_token_latency_seconds_count{model_name="m"} 950.0
"""
"""A scrape of vLLM's ``/metrics``."""
RANGE_QUERY = {
    "status": "success",
    "data": {
        "resultType": "matrix",
        "result": [
            {"metric": {"__name__": f"vllm:{name}", "model_name": "m"}, "values": [[0, "1"], [60, str(end)]]}
            for name, end in (
                *(("request_success_total", 60), ("prompt_tokens_total", 15000), ("generation_tokens_total", 3000)),
                *(("time_to_first_token_seconds_sum", 2.5), ("time_to_first_token_seconds_count", 61)),
            )
        ],
    },
}
"""Prometheus' answer to a range query."""
LOGS = [
    f"{test_engine_logs.VLLM_LINE}\n",
    "\n".join([test_engine_logs.SGLANG_ARGUMENTS, *test_engine_logs.SGLANG_LINES]),
    test_engine_logs.SCRAPE % (1000, 2000, 1100, 700, 400),
    json.dumps({"spec_decode_acceptance_length": 2.5, "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 30,
                "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2]}),
]  # fmt: skip
HF_CONFIGS = [
    *map(json.dumps, (test_llm_hf_config.LLAMA, test_llm_hf_config.MOE, test_llm_hf_config.DEEPSEEK)),
    *(json.dumps(config | {"torch_dtype": "bfloat16"}) for config in test_llm_current_models.FAMILIES.values()),
]


ERRORS = json.dumps({"errors": [
    {"section": "kernels", "name": "gemm", "metric": "seconds", "n": 10, "mape": 5.0, "median_ape": 4.0, "bias": 1.0,
     "basis": "calibrated", "fitted": "nothing", "ships": True, "date": "2026-11-21"}]})  # fmt: skip


@cache
def corrections() -> bytes:
    """A small file of learned corrections."""
    from hwprofiles.correction import Correction, HingeBasis, save_corrections
    from hwprofiles.schema import CORRECTIONS

    feature, low = np.array([[0, 0, 0], [1, 2, 3]], np.int16), np.zeros((2, 3))
    hinges = HingeBasis(feature, low, low + 4.0, np.array([False, True]), np.array([0.5, 0.25]), 0.1, (-12.0, 2.0))
    one = Correction(hinges, {"m": (1.0, 64.0)}, {"all": (0.9, 1.1)})
    with tempfile.TemporaryDirectory() as folder:
        result = save_corrections({("vllm", "gemm", "bf16"): one}, Path(folder) / f"mine{CORRECTIONS}")
        return result.read_bytes()


@cache
def files(*parts: str) -> tuple[str, ...]:
    """Texts of the YAML files in a folder of the project."""
    return tuple(path.read_text("utf-8") for path in sorted(ROOT.joinpath(*parts).glob("*.yaml")))


def parquet_of(text: str) -> bytes:
    """A CSV text as Parquet."""
    import pyarrow.csv
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(io.BytesIO(text.encode())), sink)
    return sink.getvalue()


def packed(text: str) -> bytes:
    """A text as gzip."""
    return gzip.compress(text.encode(), mtime=0)
