"""Readers of others' kernel tables: units, shapes, and the defects that are left out by rule."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from traces import TraceError
from traces.kernels import read_kernels, silicon_folder
from traces.kernels import silicon as silicon_module
from validation import tables as tables  # lets read_kernels read them


def parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


COMMON = {"framework": "TRTLLM", "version": "1", "device": "NVIDIA H100 80GB HBM3", "kernel_source": "torch_flow"}


def test_aiconfigurator_gemm_is_milliseconds_and_unknown_formats_are_counted(tmp_path):
    row = {**COMMON, "op_name": "gemm", "m": 16, "n": 4096, "k": 8192, "latency": 0.02}
    rows = [{**row, "gemm_dtype": name} for name in ("bfloat16", "fp8", "fp8_block", "int8_wo", "sq")]
    table = read_kernels(parquet(tmp_path / "gemm_perf.parquet", rows))
    assert table.format == "aiconfigurator"
    assert table.word("dtype").texts().tolist() == ["bf16", "fp8", "fp8_block", "int8"]
    assert table.measured_s.tolist() == [2e-5] * 4
    assert table.row(0) == {
        "op": "gemm", "m": 16, "n": 4096, "k": 8192, "dtype": "bf16", "library": "trtllm", "source": "torch_flow",
    }  # fmt: skip
    assert table.skipped == {"format 'int8_wo' is not priced": 1}


def test_products_that_wait_for_the_host_are_left_out_by_rule(tmp_path):
    """vLLM's block-scaled kernels were timed without a captured graph: their floor is the host's, not the chip's."""
    row = {**COMMON, "framework": "VLLM", "op_name": "gemm", "m": 16, "n": 4096, "k": 8192, "latency": 0.08}
    rows = [
        {**row, "gemm_dtype": "fp8_block", "kernel_source": "DeepGemmFp8BlockScaledMMKernel"},
        {**row, "gemm_dtype": "fp8_block", "kernel_source": "sglang_deepgemm_gemm_nt_f8f8bf16", "framework": "SGLang"},
    ]
    table = read_kernels(parquet(tmp_path / "gemm_perf.parquet", rows))
    assert table.word("library").texts().tolist() == ["sglang"]
    assert table.skipped == {"timed without a captured graph (host launches included)": 1}


def attention(**changes):
    return {
        **COMMON, "op_name": "generation_attention", "batch_size": 8, "isl": 1, "num_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "beam_width": 1, "attn_dtype": "bfloat16",
        "kv_cache_dtype": "bfloat16", "step": 1023, "window_size": 0, "latency": 0.03,
    } | changes  # fmt: skip


def test_a_decode_row_stands_on_step_cached_tokens(tmp_path):
    table = read_kernels(
        parquet(tmp_path / "a.parquet", [attention(), attention(window_size=128, kv_cache_dtype="fp8")])
    )
    assert table.row(0) | {"cache": "warm"} == table.row(0)
    assert [table.row(0)[name] for name in ("batch", "q_len", "kv_len", "num_kv_heads")] == [8, 1, 1024, 8]
    assert table.row(1)["window"] == 128
    assert table.row(1)["kv_dtype"] == "fp8"
    assert table.row(1)["dtype"] == "bf16"


def test_a_prefill_row_is_a_whole_prompt_and_trtllm_multiplies_fp8_caches_in_fp8(tmp_path):
    prompt = {"op_name": "context_attention", "isl": 512, "step": 0, "kv_cache_dtype": "fp8"}
    rows = [attention(**prompt), attention(**prompt, framework="VLLM")]
    tables = [read_kernels(parquet(tmp_path / f"{row['framework']}.parquet", [row])) for row in rows]
    assert [table.row(0)["dtype"] for table in tables] == ["fp8", "bf16"]
    assert [tables[0].row(0)[name] for name in ("op", "q_len", "kv_len")] == ["attention_prefill", 512, 512]


def test_mla_stores_one_latent_when_decoding_and_whole_keys_in_a_prompt(tmp_path):
    row = {
        **COMMON, "op_name": "mla_generation", "mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "num_heads": 16,
        "batch_size": 4, "isl": 1, "tp_size": 8, "step": 99, "latency": 0.01,
    }  # fmt: skip
    decode = read_kernels(parquet(tmp_path / "g.parquet", [row])).row(0)
    assert [decode[name] for name in ("num_kv_heads", "head_dim", "v_head_dim", "latent", "kv_len")] == [
        1,
        576,
        512,
        1,
        100,
    ]
    prompt = read_kernels(
        parquet(tmp_path / "c.parquet", [{**row, "op_name": "mla_context", "isl": 64, "step": 0}])
    ).row(0)
    assert [prompt[name] for name in ("num_kv_heads", "head_dim", "v_head_dim", "q_len")] == [16, 192, 128, 64]
    assert "latent" not in prompt


def test_prompts_of_mla_that_were_timed_against_the_latent_say_so(tmp_path):
    """SGLang's collector calls FlashAttention with the latent (one KV head, 576 and 512 wide) before Blackwell;
    where it calls TensorRT-LLM's kernel, keys and values are multiplied out."""
    row = {
        **COMMON, "framework": "SGLang", "op_name": "mla_context", "mla_dtype": "bfloat16", "kv_cache_dtype": "fp8",
        "num_heads": 16, "batch_size": 4, "isl": 64, "step": 0, "latency": 0.01,
    }  # fmt: skip
    for source, sizes in (("flash_attention", [1, 576, 512]), ("trtllm_mla", [16, 192, 128])):
        prompt = read_kernels(parquet(tmp_path / f"{source}.parquet", [{**row, "kernel_source": source}])).row(0)
        assert [prompt[name] for name in ("num_kv_heads", "head_dim", "v_head_dim")] == sizes
        assert prompt.get("latent", 0) == (1 if source == "flash_attention" else 0)


def test_collectives_count_elements_and_eager_rows_are_left_out(tmp_path):
    row = {
        **COMMON, "framework": "vLLM", "op_name": "all_reduce", "allreduce_dtype": "bfloat16", "num_gpus": 4,
        "message_size": 1000, "latency": 0.01,
    }  # fmt: skip
    rows = [{**row, "backend": f"vllm_{kind}", "kernel_source": f"vLLM_custom_{kind}"} for kind in ("eager", "graph")]
    table = read_kernels(parquet(tmp_path / "custom.parquet", rows))
    assert len(table) == 1
    assert table.size("message_bytes").tolist() == [2000]
    assert list(table.skipped.values()) == [1]
    nccl = {**row, "nccl_dtype": "int8", "op_name": "alltoall"}
    del nccl["allreduce_dtype"]
    table = read_kernels(parquet(tmp_path / "nccl.parquet", [nccl]))
    assert table.row(0) == {
        "op": "all_to_all", "message_bytes": 1000, "world_size": 4, "library": "nccl", "source": "torch_flow",
    }  # fmt: skip


def test_moe_tells_parallelism_imbalance_and_missing_gate(tmp_path):
    row = {
        **COMMON, "op_name": "moe", "kernel_source": "moe_torch_flow_nongated", "moe_dtype": "w4a16_mxfp4",
        "num_tokens": 64, "hidden_size": 2880, "inter_size": 2880, "topk": 4, "num_experts": 32, "moe_tp_size": 1,
        "moe_ep_size": 4, "distribution": "power_law_1.2", "latency": 0.1,
    }  # fmt: skip
    result = read_kernels(parquet(tmp_path / "moe.parquet", [row])).row(0)
    wanted = {"dtype": "mxfp4", "projections": 2, "expert_parallel": 4, "routing": "power_law_1.2", "tokens": 64}
    assert result | wanted == result


def test_convolutions_before_a_recurrence_are_passes_with_pieces(tmp_path):
    """A tail of 3 tokens: (2 x 100 + 3 x 2) tokens of 4,096 + 2 x 2,048 channels, 2 bytes read and 2 written."""
    row = {
        **COMMON, "framework": "VLLM", "op_name": "gdn", "kernel_source": "causal_conv1d_fn", "phase": "context",
        "batch_size": 2, "seq_len": 100, "d_conv": 4, "num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32,
        "head_v_dim": 128, "latency": 0.1,
    }  # fmt: skip
    rows = [row, {**row, "kernel_source": "chunk_gated_delta_rule"}]
    table = read_kernels(parquet(tmp_path / "gdn_perf.parquet", rows))
    assert table.row(0) == {
        "op": "elementwise", "bytes_moved": 206 * 8192 * 4, "pieces": 2 * 8192, "name": "convolution gdn-scan",
        "cache": "warm", "dtype": "bf16", "library": "vllm", "source": "causal_conv1d_fn",
    }  # fmt: skip
    assert table.row(1)["op"] == "recurrent_prefill"
    states = {"op_name": "mamba2", "phase": "generation", "seq_len": 1, "kernel_source": "causal_conv1d_update"}
    sizes = {"nheads": 128, "head_dim": 64, "n_groups": 8, "d_state": 128}
    result = read_kernels(parquet(tmp_path / "mamba2_perf.parquet", [{**row, **states, **sizes}])).row(0)
    assert result["name"] == "convolution mamba2-update"
    assert result["bytes_moved"] == (2 + 3 * 2) * (128 * 64 + 2 * 8 * 128) * 4
    eager = {**row, "op_name": "kda", "kernel_source": "causal_conv1d_fn_qkv3"}
    skipped = read_kernels(parquet(tmp_path / "kda_perf.parquet", [eager, row])).skipped
    assert skipped == {"timed without a captured graph (host launches included)": 1}
    whole = {**row, "op_name": "kda", "phase": "generation", "seq_len": 1}
    kernels = ("fused_kda_decode", "kda_fused_decode", "fused_recurrent_kda_packed_decode")
    table = read_kernels(parquet(tmp_path / "kda_perf.parquet", [{**whole, "kernel_source": name} for name in kernels]))
    assert [table.row(i)["source"] for i in range(len(table))] == [kernels[2]]
    assert table.skipped == {"no prediction for convolution, update and norm in one kernel": 2}


def test_tables_nobody_predicts_are_counted(tmp_path):
    path = parquet(tmp_path / "gdn_perf.parquet", [{**COMMON, "op_name": "gdn", "latency": 0.1}] * 3)
    table = read_kernels(path)
    assert len(table) == 0
    assert table.skipped == {"no prediction for 'gdn'": 3}


def test_the_installed_package_is_detected_and_its_absence_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(silicon_module, "PACKAGE", "a_silicon_package")
    with pytest.raises(TraceError, match=r"pip install 'forerun\[silicon\]'"):
        read_kernels("silicon:h100_sxm")
    package = tmp_path / "a_silicon_package"
    row = {**COMMON, "op_name": "gemm", "gemm_dtype": "bfloat16", "m": 1, "n": 2, "k": 3, "latency": 0.1}
    parquet(package / "systems/data/h100_sxm/gemm/trtllm/1/gemm_perf.parquet", [row])
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert silicon_folder() == package / "systems" / "data"
    assert len(read_kernels("silicon:h100_sxm/gemm")) == 1
    with pytest.raises(TraceError, match="did you mean 'h100_sxm'"):
        read_kernels("silicon:h10_sxm")


VIDUR_MLP = (
    "time_stats.attn_pre_proj.median,time_stats.attn_pre_proj.std,time_stats.mlp_up_proj.median,time_stats.add.median,"
    "n_head,n_kv_head,n_embd,n_expanded_embd,use_gated_mlp,num_tokens,num_tensor_parallel_workers\n"
    "0.5,0.01,1.5,0.05,32,8,4096,14336,True,128,2\n"
)


def test_vidur_layers_become_matrix_products_and_passes(tmp_path):
    path = tmp_path / "mlp.csv"
    path.write_text(VIDUR_MLP)
    table = read_kernels(path)
    rows = [table.row(i) for i in range(len(table))]
    assert [(row["op"], row.get("n")) for row in rows] == [("gemm", 3072), ("gemm", 14336), ("elementwise", None)]
    assert rows[2]["bytes_moved"] == 2 * 128 * 3 * 4096
    assert table.measured_s.tolist() == pytest.approx([5e-4, 1.5e-3, 5e-5])
    assert table.std_s[0] == pytest.approx(1e-5)


def test_vidur_attention_and_collectives(tmp_path):
    statistics = ",".join(
        f"time_stats.attn_{phase}.{name}" for phase in ("prefill", "decode") for name in ("median", "std")
    )
    path = tmp_path / "attention.csv"
    path.write_text(
        f"{statistics},n_embd,n_q_head,n_kv_head,num_tensor_parallel_workers,batch_size,prefill_chunk_size,kv_cache_size,"
        "is_prefill,attention_backend\n"
        "0.2,0,0.0,0,8192,64,8,2,1,512,1024,True,FA\n"
        ",,0.1,0.01,8192,64,8,2,16,0,1000,False,FA\n"
    )
    table = read_kernels(path)
    first, second = table.row(0), table.row(1)
    assert [first[name] for name in ("op", "batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim")] == [
        "attention_prefill", 1, 512, 1536, 32, 4, 128,
    ]  # fmt: skip
    assert [second[name] for name in ("op", "batch", "q_len", "kv_len")] == ["attention_decode", 16, 1, 1001]
    path = tmp_path / "all_reduce.csv"
    path.write_text(
        ",time_stats.all_reduce.median,num_workers,size,collective,devices_per_node\n"
        "0,0.5,8,1048576,all_reduce,8\n1,0.9,8,1048576,all_reduce,4\n"
    )
    table = read_kernels(path)
    assert table.size("message_bytes").tolist() == [1048576]
    assert table.skipped == {"collective across several nodes": 1}


def test_a_flat_table_names_its_devices(tmp_path):
    path = tmp_path / "flat.csv.gz"
    with gzip.open(path, "wt") as stream:
        stream.write(
            "device,model,op,tp,M,K,N,median_ms,min_ms,max_ms\na100,x,up,1,8,4096,4096,0.1,0,0\nh100,x,up,1,8,4096,4096,0.05,0,0\n"
        )
    assert read_kernels(path).word("device").names == ("a100", "h100")
    only = read_kernels(path, device="H100")
    assert only.measured_s.tolist() == [5e-5]
    assert only.skipped == {"another device than H100": 1}


def serving(tmp_path, name, text, folder="RTX4090_Llama-3.1-8B_tp1"):
    path = tmp_path / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return read_kernels(path)


def test_llmservingsim_layers_take_their_shape_from_the_folder(tmp_path):
    table = serving(tmp_path, "dense.csv", "layer,tokens,time_us\nqkv_proj,4,50\nact_fn,4,3\nsampler,4,9\n")
    assert table.row(0) | {"m": 4, "n": 6144, "k": 4096} == table.row(0)
    assert table.word("op").texts().tolist() == ["gemm", "elementwise", "other"]
    assert table.measured_s[0] == pytest.approx(5e-5)
    halves = serving(tmp_path, "dense.csv", "layer,tokens,time_us\nqkv_proj,4,50\n", "H100_Llama-3.1-8B_tp2")
    assert halves.size("n").tolist() == [3072]
    with pytest.raises(TraceError, match="folder must be named"):
        serving(tmp_path, "dense.csv", "layer,tokens,time_us\nqkv_proj,4,50\n", "unknown")


def test_llmservingsim_mixes_prompt_chunks_and_decodes(tmp_path):
    table = serving(
        tmp_path,
        "attention.csv",
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n0,0,8,500,9\n64,100,0,0,9\n64,100,8,500,9\n",
    )
    assert table.word("op").texts().tolist() == ["attention_decode", "attention_prefill", "attention_mixed"]
    mixed = table.row(2)
    assert [mixed[name] for name in ("batch", "q_len", "kv_len", "decode_batch", "decode_kv_len")] == [
        1,
        64,
        164,
        8,
        500,
    ]


def test_llmservingsim_skew_keeps_the_sum_of_lengths(tmp_path):
    table = serving(
        tmp_path,
        "skew.csv",
        "regime,n,nb,ratio,skew,pc,kp,kvs,kv_big,kv_mean,t_mean_us,t_max_us,t_skew_us,alpha\n"
        "pure,3,1,0.5,4.0,0,0,100,401,200.33,10,20,15,0.5\n",
    )
    assert table.word("op").texts().tolist() == ["attention_decode"] * 3
    totals = [int(row.get("kv_tokens", row["batch"] * row["kv_len"])) for row in map(table.row, range(3))]
    assert totals == [601, 1203, 601]


def test_llmservingsim_counts_touched_experts(tmp_path):
    table = serving(
        tmp_path,
        "moe.csv",
        "tokens,activated_experts,time_us\n2,16,135\n",
        "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507_tp1",
    )
    assert table.row(0) | {"tokens": 2, "active_experts": 16, "num_experts": 128} == table.row(0)


def test_blis_drops_the_warm_up_call_of_a_series(tmp_path):
    path = tmp_path / "decode.csv"
    head = "gpu,model_heads,model_kv_heads,head_dim,tp,dtype,kv_dtype,batch_size,kv_len,latency_us,mfu,source_file\n"
    path.write_text(
        head
        + "h100,28,4,128,2,bf16,bf16,1,256,38.4,0,a\nh100,28,4,128,2,bf16,bf16,1,512,22.9,0,a\n"
        + "h100,8,8,128,1,bf16,bf16,1,512,9,0,b\n"
    )
    table = read_kernels(path)
    assert len(table) == 2
    assert sum(table.skipped.values()) == 1
    assert table.row(0)["num_heads"] == 14
    assert table.measured_s[0] == pytest.approx(22.9e-6)
    path = tmp_path / "gemm.csv"
    path.write_text("m,k,n,latency_us,mfu\n8,2048,6144,8.988,0.011\n")
    assert read_kernels(path).row(0) == {"op": "gemm", "m": 8, "n": 6144, "k": 2048, "dtype": "fp8"}
