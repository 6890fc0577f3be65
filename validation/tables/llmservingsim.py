"""LLMServingSim's measured vLLM runs: a request file with the engine's time stamps, and ``meta.json`` beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from traces.benchmark_results import MeasuredRun, register_table
from traces.errors import TraceError
from traces.fields import Cells
from traces.files import load_document
from traces.requests import read_requests

FORMAT = "llmservingsim-measured"
_QUANTILES = {"median": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


def llmservingsim_run(file: Path) -> MeasuredRun:
    """Read the run in a ``requests.jsonl``: its requests are replayed, its latencies start at the engine's queue.

    Raises:
        TraceError: the requests or ``meta.json`` cannot be read.
    """
    table = read_requests(file, format=FORMAT)
    ttft, e2el = table.measured_ttft_s, table.measured_e2e_s
    if ttft is None or e2el is None:
        raise TraceError(f"{file}: no time stamps; a measured run has queued_ts, first_token_ts and last_token_ts")
    later = np.maximum(np.asarray(table.output_tokens) - 1, 1)
    several = np.asarray(table.output_tokens) > 1
    samples = {"ttft": ttft, "e2el": e2el, "tpot": ((e2el - ttft) / later)[several]}
    measured: dict[str, float] = {}
    for name, values in samples.items():
        known = values[np.isfinite(values)] * 1e3
        if len(known):
            measured[f"mean_{name}_ms"] = float(known.mean())
            measured |= {f"{key}_{name}_ms": float(np.percentile(known, q)) for key, q in _QUANTILES.items()}
    if table.arrival_s is not None and np.isfinite(e2el).all():
        start = np.asarray(table.arrival_s)
        seconds = float((start + e2el).max() - start.min())
        measured["request_throughput"] = len(table) / seconds
        measured["output_throughput"] = float(np.sum(table.output_tokens)) / seconds
    meta = file.parent / "meta.json"
    facts = Cells(load_document(meta) if meta.is_file() else {}, str(meta))
    engine, cache, hardware = (facts.at(key) for key in ("engine_kwargs", "kv_cache", "hardware"))
    dtype = engine.text("kv_cache_dtype")
    tensor, groups = engine.count("tensor_parallel_size"), engine.several("data_parallel_size")
    experts = bool(engine.flag("enable_expert_parallel")) and (tensor or 1) * (groups or 1)
    return MeasuredRun(
        name=file.parent.name or file.stem,
        place=str(file),
        model=engine.text("model") or facts.text("model"),
        chip=hardware.text("device_name") or file.parent.name.partition("_")[0] or None,
        framework="vllm",
        framework_version=facts.text("vllm_version"),
        tensor_parallel=tensor,
        pipeline_parallel=engine.several("pipeline_parallel_size"),
        expert_parallel=experts if experts > 1 else None,
        data_parallel_attention=groups if experts else None,
        replicas=None if experts else groups,
        weights_dtype=engine.text("dtype"),
        kv_cache_dtype=None if dtype == "auto" else dtype,
        process="trace",
        num_requests=len(table),
        trace=str(file),
        trace_format=FORMAT,
        max_num_seqs=engine.count("max_num_seqs"),
        max_num_batched_tokens=engine.count("max_num_batched_tokens"),
        max_model_len=engine.count("max_model_len"),
        num_kv_blocks=cache.count("num_gpu_blocks"),
        block_size=cache.count("block_size"),
        gpu_memory_utilization=cache.positive("gpu_memory_utilization"),
        prefix_caching=cache.flag("enable_prefix_caching"),
        settings={"engine.entry_point": "offline"},
        measured=measured,
    )


register_table(
    "llmservingsim",
    "requests.jsonl of LLMServingSim's vLLM runs, meta.json beside it",
    frozenset({"queued_ts", "input_toks"}),
    lambda rows, file: iter([llmservingsim_run(file)]),
)
