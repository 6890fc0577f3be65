"""Tables of the BLIS project: vLLM under inference-perf's prompts, GuideLLM at concurrency 1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from traces.benchmark_results import MeasuredRun, PromptPool, latencies_ms, register_table
from traces.fields import Cells

SIGNATURE = frozenset({"exp_id", "experiment", "stage_index", "e2e_mean_ms", "itl_mean_ms"})
CONCURRENCY_1_SIGNATURE = frozenset({"nominal_prompt_tokens", "shared_prefix_tokens", "nominal_output_tokens"})
KUBECON_SIGNATURE = frozenset({"config", "stage", "requested_rate_rps", "mean_tpot_derived_ms"})
PROMPTS, GROUPS = 100, 10
"""inference-perf's default pool: 10 system prompts with 10 questions each, sent in turn. Its shared_prefix generator;
the prompt lengths that it reports have the same mean over any multiple of 100 requests."""
MAX_NUM_SEQS = 128
"""``max_num_seqs`` of every run whose command line is published."""
CLIENT_PLACES = 440
"""Requests that the client of the KubeCon sweep keeps in flight at most: 44 workers of 10."""
ANSWER = 64
"""Tokens of every answer of that sweep (``ignore_eos``). Its client counts those of the text it got, 61.7 to 63.2."""
SATURATED = 1.05
"""Requested over sent requests per second from which on that client has all its places taken."""

SAMPLED = re.compile(r"Llama-(2-|3\.\d-.*Instruct|4-)|Qwen", re.IGNORECASE)
"""Checkpoints whose ``generation_config.json`` sets top_p or top_k (Meta's Llama-2, Llama-3.x Instruct and Llama-4,
Alibaba's Qwen); Mistral's, CodeLlama's and Yi's do not."""
_KEYS = {
    "mean_e2el_ms": "e2e_mean_ms",
    "p90_e2el_ms": "e2e_p90_ms",
    "p99_e2el_ms": "e2e_p99_ms",
    "mean_itl_ms": "itl_mean_ms",
    "mean_ttft_ms": "ttft_mean_ms",
    "p90_ttft_ms": "ttft_p90_ms",
    "p99_ttft_ms": "ttft_p99_ms",
}


class _Workload(NamedTuple):
    """One of BLIS's named loads."""

    stages: tuple[tuple[float, float], ...]
    system_tokens: int
    prompt_tokens: int
    """As the client counted them, system prompt included: decoded random tokens encode into some 5 % more."""
    output_tokens: int


_WORKLOADS = {
    "general": _Workload(((8.0, 600.0), (20.0, 600.0)), 100, 575, 248),
    "codegen": _Workload(((5.0, 600.0), (10.0, 600.0)), 100, 592, 247),
    "roleplay": _Workload(((6.0, 1200.0),), 150, 787, 251),
    "reasoning": _Workload(((4.0, 1200.0),), 100, 1082, 1448),
}
_LITE = {"general": ((2.5, 600.0), (6.0, 600.0)), "reasoning": ((1.0, 1200.0),)}
"""Rates of the "-lite" loads, as far as published (BLIS's training runs of that name)."""


def blis_runs(rows: Iterable[Cells], file: Path) -> Iterator[MeasuredRun]:
    """Runs of a ground-truth table, one for each load stage and one for the whole (stage -1).

    KV block counts come from ``train15_workloads.json`` beside the table where the same experiment stands in it.

    Raises:
        TraceError: a cell that is no number.
    """
    blocks = _kv_blocks(file.parent / "train15_workloads.json")
    for cells in rows:
        experiment = cells.text("experiment") or ""
        named = (cells.text("workload") or "").removesuffix("-lite")
        lite = "-lite" in experiment or (cells.text("workload") or "").endswith("-lite")
        load = _WORKLOADS.get(named)
        stages = None if load is None else (_LITE.get(named) if lite else load.stages)
        stage = int(cells.number("stage_index") or 0)
        if stages is not None and stage >= 0:
            stages = stages[stage : stage + 1]
        whole = stage < 0
        precision = cells.text("precision")
        yield MeasuredRun(
            name=f"{experiment}{'' if whole else f' stage {stage}'}",
            place=cells.place,
            model=cells.text("model"),
            chip=cells.text("hardware"),
            framework="vllm",
            framework_version="0.15.1",
            tensor_parallel=cells.count("tp"),
            replicas=cells.count("dp"),
            weights_dtype=precision,
            process="constant",
            stages=stages or (),
            request_rate=None,
            input_tokens=None if load is None else load.prompt_tokens,
            output_tokens=None if load is None else load.output_tokens,
            pool=None if load is None else PromptPool(PROMPTS, GROUPS, load.system_tokens),
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=cells.count("max_num_batched_tokens"),
            num_kv_blocks=blocks.get(cells.text("exp_id") or "") or blocks.get("-".join(experiment.split("-")[:2])),
            gpu_memory_utilization=cells.positive("gpu_mem_util"),
            prefix_caching=True,
            chunked_prefill=True,
            settings=_sampling(cells.text("model") or ""),
            measured=latencies_ms(cells, _KEYS),
            unusable=None if stages else f"the rates of load '{cells.text('workload')}' are not published",
            notes=() if not lite else ("rates of the training runs with this load",),
        )


def _sampling(model: str) -> dict[str, object]:
    """Sampling settings that vLLM takes from the checkpoint where the client requests none, as this one does."""
    return {"engine.sampling": "top-p"} if SAMPLED.search(model) else {}


def concurrency_1_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the GuideLLM table: one request at a time; its TPOT counts the first token and is left out.

    Raises:
        TraceError: a cell that is no number.
    """
    for cells in rows:
        shared = int(cells.number("shared_prefix_tokens") or 0)
        prompt = cells.count("nominal_prompt_tokens") or 1
        count = 50
        spread = (
            "lengths spread widely around their nominal value" if "code" in (cells.text("workload") or "") else None
        )
        yield MeasuredRun(
            name=cells.text("experiment") or "",
            place=cells.place,
            model=cells.text("model"),
            chip=cells.text("gpu"),
            framework="vllm",
            tensor_parallel=cells.count("tp"),
            process="closed-loop",
            max_concurrency=cells.count("concurrency"),
            input_tokens=prompt + shared,
            output_tokens=cells.count("nominal_output_tokens"),
            num_requests=count,
            pool=PromptPool(count, 1, shared) if shared else None,
            measured=latencies_ms(cells, {"mean_ttft_ms": "ttft_mean_ms", "mean_e2el_ms": "e2e_mean_ms"}),
            unusable=spread,
        )


def kubecon_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Open-loop sweeps of inference-perf's KubeCon demonstration: constant rates for 60 s each.

    Raises:
        TraceError: a cell that is no number.
    """
    keys = {"request_throughput": "request_throughput_rps"}
    keys |= {f"{s}_{name}_ms": f"{s}_{name}_ms" for name in ("ttft", "e2el") for s in ("mean", "median", "p90", "p99")}
    for cells in rows:
        arguments = cells.text("server_args") or ""
        inputs, outputs = cells.number("mean_input_len"), cells.number("mean_output_len")
        sent, requested = cells.positive("achieved_send_rate_rps"), cells.positive("requested_rate_rps")
        saturated = sent is not None and requested is not None and requested > SATURATED * sent
        yield MeasuredRun(
            name=f"{cells.text('config')} stage {cells.text('stage')}",
            place=cells.place,
            model=cells.text("model"),
            chip=(cells.text("gpu") or "").partition(" (")[0],
            framework=cells.text("framework"),
            framework_version=cells.text("framework_version"),
            tensor_parallel=cells.count("tp"),
            process="closed-loop" if saturated else "constant",
            request_rate=None if saturated else sent,
            max_concurrency=CLIENT_PLACES if saturated else None,
            input_tokens=None if inputs is None else round(inputs),
            output_tokens=None if outputs is None else ANSWER,
            num_requests=cells.count("completed"),
            pool=PromptPool(PROMPTS, GROUPS, 128),
            max_num_seqs=MAX_NUM_SEQS if "max_num_seqs 128" in arguments else None,
            max_model_len=512 if "--max-model-len 512" in arguments else None,
            prefix_caching="prefix caching off" not in arguments,
            chunked_prefill="chunked prefill off" not in arguments,
            weights_dtype="bf16",
            measured=_per_token(latencies_ms(cells, keys)),
            unusable="its acceptance was not recorded" if cells.text("spec_method") else None,
            notes=(cells.text("caveat") or "",) if cells.text("caveat") else (),
        )


def _per_token(measured: dict[str, float]) -> dict[str, float]:
    """The figures with those per token, of the tokens that the engine made."""
    figures = dict(measured)
    if {"mean_ttft_ms", "mean_e2el_ms"} <= measured.keys():
        figures["mean_tpot_ms"] = (measured["mean_e2el_ms"] - measured["mean_ttft_ms"]) / (ANSWER - 1)
    if "request_throughput" in measured:
        figures["output_throughput"] = measured["request_throughput"] * ANSWER
    return figures


def _kv_blocks(file: Path) -> dict[str, int]:
    """Measured KV blocks by experiment; empty where there is no such file."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return {str(entry["id"]): int(entry["total_kv_blocks"]) for entry in entries}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


register_table("blis", "ground-truth CSV of BLIS (vLLM under inference-perf)", SIGNATURE, blis_runs)
register_table(
    "blis-concurrency-1",
    "GuideLLM CSV of BLIS at concurrency 1",
    CONCURRENCY_1_SIGNATURE,
    lambda rows, file: concurrency_1_runs(rows),
)
register_table(
    "inference-perf-sweep",
    "CSV of inference-perf's rate sweeps",
    KUBECON_SIGNATURE,
    lambda rows, file: kubecon_runs(rows),
)
