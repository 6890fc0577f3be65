"""Small well-formed files of every kind that the project reads: where mutation starts from."""

import gzip
import io
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

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
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10T00:00:01Z,2399,6\n",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n",
    '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
    '{"timestamp": 3000, "input_length": 512, "output_length": 7, "hash_ids": [1]}\n',
    '[{"timestamp": 1.5, "prompt_tokens": 3, "completion_tokens": 4}, '
    '{"timestamp": 2, "prompt_tokens": 3, "completion_tokens": 4}]',
    json.dumps({"input_lens": [5, 6], "output_lens": [2, 3], "ttfts": [0.1, 0.2], "itls": [[0.01], [0.02, 0.01]],
                "request_throughput": 2.0, "total_input_tokens": 11, "completed": 2, "start_times": [1.0, 2.5]}),
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
    json.dumps({"id": "s", "block_size": 64, "models": ["m"],
                "requests": [{"t": 0.0, "type": "n", "model": "m", "in": 130, "out": 5, "hash_ids": [1, 2, 3]}]}),
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
    json.dumps({"model_id": "meta-llama/Llama-3.1-8B-Instruct", "backend": "vllm", "num_prompts": 100, "completed": 100,
                "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16, "total_input_tokens": 51200,
                "total_output_tokens": 12800, "output_throughput": 512.0, "mean_ttft_ms": 80.0, "p99_tpot_ms": 9.0}),
    json.dumps({"request_latency": {"unit": "ms", "avg": 1300.0, "p99": 1400.0},
                "time_to_first_token": {"unit": "ms", "avg": 80.0}, "request_count": {"unit": "requests", "avg": 100.0},
                "output_token_throughput": {"unit": "tokens/sec", "avg": 512.0},
                "input_sequence_length": {"unit": "tokens", "avg": 512.0},
                "output_sequence_length": {"unit": "tokens", "avg": 128.0},
                "input_config": {"endpoint": {"model_names": ["m"]}, "loadgen": {"concurrency": 16}}}),
    json.dumps({"benchmarks": [{"config": {"strategy": {"type_": "concurrent", "streams": 16}}, "metrics": {
        "time_to_first_token_ms": {"successful": {"mean": 80.0, "percentiles": {"p99": 200.0}}},
        "request_latency": {"successful": {"mean": 1.3}}, "prompt_token_count": {"successful": {"mean": 512.0}},
        "output_token_count": {"successful": {"mean": 128.0}}}}]}),
    json.dumps({"load_summary": {"count": 100}, "successes": {
        "count": 100, "latency": {"request_latency": {"mean": 1.3, "median": 1.2}, "time_to_first_token": {"mean": 0.1}},
        "throughput": {"output_tokens_per_sec": 512.0, "requests_per_sec": 4.0}, "prompt_len": {"mean": 512.0},
        "output_len": {"mean": 128.0}}, "failures": {"count": 0}}),
    json.dumps({"queued_ts": 1.0, "input_toks": 10, "output_toks": 4, "scheduled_ts": 1.1, "first_token_ts": 1.2,
                "last_token_ts": 1.5, "arrival_time_ns": 10}),
]  # fmt: skip
LLAMA_CPP = [
    "prompt eval time = 900.22 ms / 30 tokens\n eval time = 14323.78 ms / 192 tokens\n"
    "draft acceptance rate = 0.81944 (  118 accepted /   144 generated)\n",
    "| model | test | t/s |\n| --- | --- | --- |\n| llama 7B | pp512 | 14771 |\n| llama 7B | tg128 @ d4096 | 189.0 |\n",
    "| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |\n"
    "| 512 | 32 | 8 | 4352 | 1.2 | 3413.3 | 1.31 | 195.4 | 2.51 | 1733.0 |\n",
    "llamacpp:tokens_predicted_total 1000\nllamacpp:tokens_predicted_seconds_total 2.05e+1\n",
    '[{"n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ts": 43.5}]',
    '{"timings": {"prompt_n": 10, "predicted_n": 100, "predicted_ms": 2000.0, "draft_n": 90, "draft_n_accepted": 60}}',
]
LOGS = [
    "INFO 05-30 07:21:10 SpecDecoding metrics: Mean acceptance length: 2.89, Accepted: 104 tokens, Drafted: 330 tokens, "
    "Per-position acceptance rate: 0.691, 0.491, 0.291, 0.182, 0.164, 0.073, Avg Draft acceptance rate: 31.5%\n",
    "ServerArgs(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)\n"
    "Decode batch, #running-req: 8, #token: 900, accept len: 2.00, accept rate: 0.33\n",
    'vllm:spec_decode_num_drafts_total{model_name="m"} 100\nvllm:spec_decode_num_draft_tokens_total{model_name="m"} 200\n'
    'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 90\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 60\n',
    json.dumps({"spec_decode_acceptance_length": 2.5, "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 30,
                "spec_decode_per_position_acceptance_rates": [0.8, 0.5, 0.2]}),
]  # fmt: skip
HF_CONFIGS = [
    json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000,
                "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
                "rope_scaling": {"type": "yarn", "factor": 4.0}}),
    json.dumps({"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "moe_intermediate_size": 32,
                "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1000, "decoder_sparse_step": 1,
                "mlp_only_layers": [], "max_position_embeddings": 4096,
                "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}),
    json.dumps({"model_type": "deepseek_v3", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                "num_key_value_heads": 4, "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
                "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 32,
                "q_lora_rank": 48, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "vocab_size": 1000,
                "num_nextn_predict_layers": 1, "max_position_embeddings": 4096}),
]  # fmt: skip


ERRORS = json.dumps(
    {
        "errors": [
            {
                "section": "kernels", "name": "gemm", "metric": "seconds", "n": 10, "mape": 5.0, "median_ape": 4.0,
                "bias": 1.0, "basis": "calibrated", "fitted": "nothing", "ships": True, "date": "2026-11-21",
            }
        ]
    }
)  # fmt: skip


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
