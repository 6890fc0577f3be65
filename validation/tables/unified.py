"""The 68-column table of published serving results: InferenceX, TensorRT-LLM, NIM, vLLM, SGLang and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from forerun.yaml_files import packaged
from traces.benchmark_results import LATENCIES, THROUGHPUTS, MeasuredRun, TokenCounts, latencies_ms, register_table
from traces.benchmark_results.run import STATISTICS, IntArray
from traces.errors import TraceError
from traces.files import Cells

SIGNATURE = frozenset({"row_id", "weight_precision", "n_gpus", "input_len", "output_len", "length_mode",
                       "output_tput_tok_s"})  # fmt: skip
_KEYS = {f"{s}_{name}_ms": f"{s}_{name}_ms" for name in LATENCIES for s in STATISTICS} | dict(
    zip(THROUGHPUTS, ("request_throughput_rps", "output_tput_tok_s", "total_tput_tok_s"), strict=True)
)
OFFLINE_TOOLS = ("trtllm-bench throughput", "profile_throughput.py", "profile_generation.py")
"""Benchmarks that call the engine without a server."""
STATIC_TOOLS = ("static batch gptSessionBenchmark/gptManagerBenchmark", "static batch first-token benchmark")
"""Benchmarks that run one batch until all of its requests are done."""
SOON = 0.1
"""Share of a run's duration: a rate that sends all requests faster counts as a closed loop, if concurrency is set."""
_SHARE = re.compile(r"uniform\[\s*(0?\.\d+)\s*\*")
_FROM_ONE = "uniform[1.."
"""How SGLang's client draws lengths by default: evenly from one token up to the length named."""
CLIENT_SEED = 1
"""Seed of that client by default (``bench_serving.py`` of SGLang); prompts are drawn first, then answers."""
LENGTHS_NOTE = "lengths of a data set of which only totals are known, drawn by their means"
HELD_UP = 10
"""Ratio of mean to median TTFT of sequential requests above which one of them waited for kernel compilation."""
_FLAG = re.compile(r"(?<!\S)--([a-z][a-z0-9-]*)(?:[ =]([^-\s]\S*))?")
"""Regular expression of an option in the engine's start command, with its value if any."""
_LIMITS = {"max-running-requests": "max_num_seqs", "max-num-seqs": "max_num_seqs",
           "chunked-prefill-size": "max_num_batched_tokens", "max-num-batched-tokens": "max_num_batched_tokens",
           "mem-fraction-static": "gpu_memory_utilization",
           "gpu-memory-utilization": "gpu_memory_utilization"}  # fmt: skip
"""Options of vLLM and SGLang -> limit of a run; SGLang's options cover all attention groups together."""
_INTERVALS = {"stream-interval": "engine.stream_interval",
              "scheduler-recv-interval": "engine.scheduler_recv_interval"}  # fmt: skip
_WITHOUT_PREFIX_CACHE = {"disable-radix-cache", "no-enable-prefix-caching"}
SPREADING = ("deepep", "mooncake")
"""SGLang's ``--moe-a2a-backend`` for which every chip has experts of its own, whatever ``--ep-size`` says."""
_WORKERS = re.compile(r"(prefill|decode) tp(\d+)/ep(\d+)/dpattn=(\w+) workers=(\d+)")


def unified_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the unified table.

    A rate of ``inf`` with a concurrency is a closed loop, and so is one that would send everything ``SOON``; ``inf``
    without a concurrency sends everything at once; a finite rate is Poisson, as the clients behind these tables draw
    it. Latencies whose TPOT counts the first token are left out, and means and throughput of a run that compiled
    kernels meanwhile. Disaggregated prefill and decode workers become pools of the chips that each has.

    Raises:
        TraceError: a cell that is no number.
    """
    for cells in rows:
        process, rate = _arrivals(cells)
        low = _SHARE.search(cells.text("length_mode") or "")
        share = float(low.group(1)) if low else 0.0 if _from_one(cells) else None
        measured = latencies_ms(cells, _KEYS)
        if "include" in (cells.text("tpot_definition") or "").lower():
            measured = {name: value for name, value in measured.items() if "_tpot_" not in name}
        if cells.text("tool") == "inference-perf":
            measured = {name: value for name, value in measured.items() if "_tpot_" not in name and "_itl_" not in name}
        measured = {name: value for name, value in measured.items() if "_itl_" not in name or _one_token_chunks(cells)}
        if _held_up(cells):
            measured = {name: value for name, value in measured.items() if "median" in name or "_tpot_" in name}
        static = cells.text("tool") in STATIC_TOOLS
        chips, tensor, pipeline = cells.count("n_gpus"), cells.several("tp"), cells.several("pp")
        per_replica = (tensor or 1) * (pipeline or 1)
        expert = tensor if (cells.text("ep") or "").lower() in ("on", "true") else cells.several("ep")
        flags = _recipe(cells) | dict(_FLAG.findall(cells.text("server_args") or ""))
        groups = _attention_groups(cells, flags)
        expert = groups if groups and "enable-expert-parallel" in flags else expert
        expert = tensor if flags.get("moe-a2a-backend") in SPREADING else expert
        pools = _pools(cells)
        replicas = chips // per_replica if chips and tensor and not expert else None
        yield MeasuredRun(
            name=cells.text("row_id") or "",
            place=cells.place,
            model=cells.text("model"),
            chip=cells.text("gpu"),
            framework=cells.text("framework"),
            framework_version=cells.text("framework_version"),
            tensor_parallel=None if pools else max(1, (tensor or 1) // groups) if groups else tensor or chips,
            pipeline_parallel=pipeline,
            expert_parallel=None if pools else expert,
            data_parallel_attention=None if pools else groups,
            replicas=replicas if tensor and replicas and replicas > 1 and not pools else None,
            weights_dtype=cells.text("weight_precision"),
            kv_cache_dtype=_kv_dtype(cells) or flags.get("kv-cache-dtype", "auto").removeprefix("auto") or None,
            process=process,
            request_rate=rate,
            max_concurrency=cells.count("max_concurrency") if process == "closed-loop" else None,
            input_tokens=_tokens(cells, "input", share),
            output_tokens=_tokens(cells, "output", share),
            num_requests=cells.count("max_concurrency") if static else cells.count("num_requests"),
            lengths=_drawn(cells),
            prefix_caching=False if _WITHOUT_PREFIX_CACHE & flags.keys() else None,
            speculation=cells.text("spec_method"),
            num_speculative_tokens=cells.count("spec_num_draft_tokens") or cells.count("spec_num_steps"),
            acceptance_length=cells.positive("accept_length"),
            settings=_settings(cells, flags) | ({"pools": pools} if pools else {}),
            measured=measured,
            unusable=_unusable(cells),
            notes=(LENGTHS_NOTE,) if _of_data_set(cells) else (),
            **_limits(cells, flags),
        )


def _limits(cells: Cells, flags: dict[str, str]) -> dict[str, Any]:
    """Engine limits stated in its start command.

    Raises:
        TraceError: a limit that is no number above zero.
    """
    limits: dict[str, Any] = {}
    for flag, name in _LIMITS.items():
        if flag in flags:
            whole = name != "gpu_memory_utilization"
            try:
                limits[name] = int(flags[flag]) if whole else float(flags[flag])
            except ValueError:
                limits[name] = 0
            if not 0 < limits[name] <= (10**9 if whole else 1):
                raise TraceError(f"{cells.place}: server_args: --{flag} '{flags[flag][:40]}' is no such limit")
    return limits


def _settings(cells: Cells, flags: dict[str, str]) -> dict[str, object]:
    """Engine settings implied by the tool and the start command: the host must read the size of DeepEP's normal
    dispatch, so that SGLang captures no graphs with it."""
    tool = cells.text("tool")
    intervals: dict[str, object] = {name: int(flags[flag]) for flag, name in _INTERVALS.items() if flag in flags}
    if flags.get("deepep-mode") == "normal":
        return {"engine.cuda_graphs": False} | intervals
    if tool in STATIC_TOOLS:
        return {"engine.entry_point": "offline", "engine.scheduler": "static"}
    return {"engine.entry_point": "offline"} if tool in OFFLINE_TOOLS else intervals


def _recipe(cells: Cells) -> dict[str, str]:
    """Options of the launch script that a benchmark publishes apart from its results."""
    flags: dict[str, str] = {}
    if cells.text("source") == "inferencex" and not _is_disaggregated(cells):
        concurrency = cells.count("max_concurrency") or 0
        for recipe in packaged("validation.tables", "inferencex_recipes.yaml")["recipes"]:
            applies = all(cells.text(name) in values for name, values in recipe["of"].items())
            if applies and concurrency >= recipe.get("from_concurrency", 0):
                flags = recipe["flags"]
    return flags


def _one_token_chunks(cells: Cells) -> bool:
    """Whether the measured inter-token latency is per token: clients time chunks, which may contain several tokens."""
    ratio = cells.number("itl_over_tpot")
    return cells.text("spec_method") is None and ratio is not None and 0.8 < ratio < 1.2


def _arrivals(cells: Cells) -> tuple[str | None, float | None]:
    word = cells.text("request_rate_rps")
    concurrency = cells.text("max_concurrency")
    if word is None or word.lower() == "inf":
        if concurrency is not None:
            return "closed-loop", None
        return (None, None) if word is None else ("burst", None)
    try:
        rate = cells.positive("request_rate_rps")
    except TraceError:
        return None, None
    requests, duration = cells.count("num_requests"), cells.positive("duration_s")
    if concurrency is not None and requests and rate and duration and requests / rate < SOON * duration:
        return "closed-loop", None
    return "poisson", rate


def _tokens(cells: Cells, kind: str, share: float | None) -> TokenCounts | None:
    """Lengths of prompts (``input``) or outputs; of those drawn evenly from one token up, the longest that the total
    tells where none is named; of a data set the mean."""
    value, total, count = cells.count(f"{kind}_len"), cells.count(f"total_{kind}_tokens"), cells.count("num_requests")
    if total and count and _of_data_set(cells):
        return max(1, round(total / count))
    if value is None and _from_one(cells) and total and count:
        value = max(1, round(2 * total / count) - 1)
    if value is None or share is None:
        return value
    return (max(1, int(value * share)), value)


def _drawn(cells: Cells) -> tuple[IntArray, IntArray] | None:
    """Lengths of every prompt and answer, or None if the row does not determine them.

    As SGLang's client draws them, if its prompts add up to the stated total (all of them, or each without the token
    that its tokeniser puts in front). Of a data set whose totals alone are known, the draw that assumes no more than
    the mean: geometric, of all lengths with that mean the one of most entropy.
    """
    count, random = cells.count("num_requests"), np.random.RandomState(CLIENT_SEED)
    totals = [cells.count(f"total_{kind}_tokens") or 0 for kind in ("input", "output")]
    if count and _of_data_set(cells):
        prompts, answers = (
            _adding_up(random.geometric(min(1.0, count / total), size=count), total) for total in totals
        )
        return prompts, answers
    longest = [cells.count(f"{kind}_len") for kind in ("input", "output")]
    if not (_from_one(cells) and count and all(longest)):
        return None
    prompts, answers = (random.randint(1, 1 + (most or 0), size=count, dtype=np.int64) for most in longest)
    return (prompts, answers) if prompts.sum() - totals[0] in (0, count) else None


def _adding_up(drawn: IntArray, total: int) -> IntArray:
    """Scale random lengths to a given total."""
    scaled: IntArray = np.maximum(1, np.round(drawn * (total / drawn.sum()))).astype(np.int64)
    return scaled


def _of_data_set(cells: Cells) -> bool:
    """Whether lengths are those of a data set's single questions, and their totals are known."""
    totals = [cells.count(f"total_{kind}_tokens") for kind in ("input", "output")]
    return cells.text("length_mode") == "dataset" and bool(cells.count("num_requests")) and all(totals)


def _held_up(cells: Cells) -> bool:
    """Whether kernels were compiled during the timed run: nothing else delays a request that runs alone."""
    mean, median = cells.positive("mean_ttft_ms"), cells.positive("median_ttft_ms")
    return cells.count("max_concurrency") == 1 and bool(mean and median and mean > HELD_UP * median)


def _kv_dtype(cells: Cells) -> str | None:
    """FP8 if the source states it, and for NVIDIA's FP8 and FP4 checkpoints, which also quantise the KV cache."""
    precision = (cells.text("weight_precision") or "").lower()
    stated = "FP8 KV cache" in (cells.text("notes") or "") and precision == "fp8"
    own = cells.text("tool") in ("trtllm-bench throughput", *STATIC_TOOLS)
    nvidia = precision in ("fp8", "fp4") and (own or (cells.text("framework") or "").startswith("NIM"))
    return "fp8" if stated or nvidia else None


def _attention_groups(cells: Cells, flags: dict[str, str]) -> int | None:
    """Attention groups, where attention is data-parallel: as many as the chips that share experts, or as are named.

    vLLM's ``--data-parallel-size`` says so too where it takes up every chip named. SGLang divides ``--tp-size`` chips
    into ``--dp-size`` groups, of one where that is not given, whatever else is requested (``server_args.py``).
    """
    if "enable-expert-parallel" in flags and flags.get("data-parallel-size") == str(cells.count("n_gpus")):
        return cells.count("n_gpus")
    dp_attention = (cells.text("dp_attention") or "false").lower()
    alone = "enable-dp-attention" in flags and not cells.count("dp")
    return None if alone or dp_attention in ("false", "0", "off", "no") else cells.count("dp") or cells.count("tp")


def _from_one(cells: Cells) -> bool:
    return (cells.text("length_mode") or "").lower().startswith(_FROM_ONE)


def _is_disaggregated(cells: Cells) -> bool:
    return (cells.text("disagg") or "").lower() in ("true", "1", "yes")


def _pools(cells: Cells) -> dict[str, object] | None:
    """Prefill and decode workers as pools, where the two are disaggregated and the notes tell workers that take up the
    chips named; else None."""
    if not _is_disaggregated(cells):
        return None
    pools: dict[str, object] = {}
    for role, tensor, expert, groups, workers in _WORKERS.findall(cells.text("notes") or ""):
        chips, count = cells.count(f"{role}_gpus") or 0, int(workers)
        each = chips // count if count and chips % count == 0 else 0
        grouped = groups.lower() == "true"
        if not each or (not grouped and each != int(tensor)):
            return None
        hardware = {"tensor_parallel": 1 if grouped else each, "replicas": count}
        hardware |= {"attention_data_parallel": each} if grouped and each > 1 else {}
        hardware |= {"expert_parallel": each} if int(expert) > 1 or (grouped and each > 1) else {}
        pools[role] = {"role": role, "hardware": hardware}
    return pools if len(pools) == 2 else None


def _unusable(cells: Cells) -> str | None:
    if _is_disaggregated(cells) and _pools(cells) is None:
        return "disaggregated prefill and decode, whose workers do not add up to its chips"
    drafts = ("spec_num_draft_tokens", "spec_num_steps")
    if cells.text("spec_method") is not None and not any(cells.count(name) for name in drafts):
        return "speculation whose draft depth is not recorded"
    if cells.text("spec_method") is None and cells.positive("accept_length") is not None:
        return "speculation of which only the acceptance length is recorded"
    if _of_data_set(cells):
        return None
    if any(_tokens(cells, kind, None) is None for kind in ("input", "output")):
        return "lengths are those of a data set"
    mode = (cells.text("length_mode") or "").lower()
    if not mode.startswith(("fixed", "uniform[0.", _FROM_ONE)):
        return f"how lengths were drawn is not known ({mode or 'not stated'})"
    return None


register_table(
    "unified",
    "the 68-column CSV of published results (InferenceX, TensorRT-LLM, NIM, vLLM, SGLang ...)",
    SIGNATURE,
    lambda rows, file: unified_runs(rows),
)
