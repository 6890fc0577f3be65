"""The 68-column table of published serving results: InferenceX, TensorRT-LLM, NIM, vLLM, SGLang and others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from forerun.arrays import IntArray
from forerun.yaml_files import packaged
from simulator.llm.load import catalogue_model
from simulator.speculation import curve_names, load_curve
from traces.benchmark_results import (
    LATENCIES,
    THROUGHPUTS,
    MeasuredRun,
    PromptPool,
    TokenCounts,
    latencies_ms,
    register_table,
)
from traces.benchmark_results.run import STATISTICS
from traces.errors import TraceError
from traces.fields import Cells
from validation.tables.recipes import (
    decode_batch,
    inferencex_flags,
    limits_of,
    prefix_caching_of,
    settings_of,
    worker_limits,
)

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
"""Share of a run's duration: a faster rate counts as a closed loop, if concurrency is set."""
_SHARE = re.compile(r"uniform\[\s*(0?\.\d+)\s*\*")
_FROM_ONE = "uniform[1.."
"""Lengths drawn by SGLang's client by default: evenly from one token up to the length named."""
CLIENT_SEED = 1
"""Seed of that client by default (``bench_serving.py`` of SGLang); prompts are drawn first, then answers."""
OF_DATA_SET = "lengths are those of a data set"
AVERAGES_NOTE = "turns of agents by their mean lengths and the measured share of cached tokens, without think times"
LENGTHS_NOTE = "lengths of a data set of which only totals are known, drawn by their means"
HELD_UP = 10
"""Ratio of mean to median TTFT of sequential requests above which one of them waited for kernel compilation."""
_FLAG = re.compile(r"(?<!\S)--([a-z][a-z0-9-]*)(?:[ =]([^-\s]\S*))?")
"""Regular expression of an option in the engine's start command, with its value if any."""
SPREADING = ("deepep", "mooncake", "megamoe")
"""SGLang's ``--moe-a2a-backend`` for which every chip has experts of its own, whatever ``--ep-size`` says."""
_IN_NOTES = re.compile(r"(max-running-requests|mem-fraction-static|MoE backend|ep backend) ([\w.]+)")
_OF_STRATEGY = re.compile(r"max-running (\d+) in (\w+)")
"""Options that notes of a row tell of its start command."""
_WORKERS = re.compile(r"(prefill|decode) tp(\d+)/ep(\d+)/dpattn=(\w+) workers=(\d+)")


_SERVED: Mapping[str, Any] = packaged("validation.tables", "served.yaml")
"""Assumptions where a table leaves something open."""


def unified_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the unified table, with what its rows leave open filled by assumptions that are among their notes.

    Raises:
        TraceError: a cell that is no number.
    """
    listed = list(_speculation_recalled(list(rows)))
    chips: dict[tuple[str | None, ...], int] = {}
    for cells in listed:
        implied = cells.positive("n_gpus_implied")
        if implied is not None and not cells.count("n_gpus"):
            chips[_cell(cells)] = 2 ** round(np.log2(implied))
    for run, cells in zip(_stated_runs(listed), listed, strict=True):
        yield _completed(run, cells, chips.get(_cell(cells)))


def _speculation_recalled(rows: list[Cells]) -> Iterator[Cells]:
    """Rows, where their speculation is not carried over with that of the rows of the same model and strategy."""
    names = ("spec_method", "spec_num_steps", "spec_topk", "spec_num_draft_tokens", "dp")
    known: dict[tuple[str | None, ...], dict[str, str | None]] = {}
    for cells in rows:
        model, strategy = cells.text("model"), cells.text("strategy")
        if cells.text("tp") or cells.text("spec_method"):
            own = {name: cells.text(name) for name in names}
            known.setdefault((model, strategy, cells.text("gpu")), own)
            known.setdefault((model, strategy), {name: own[name] for name in names[:-1]})
    for cells in rows:
        cell = (cells.text("model"), cells.text("strategy"), cells.text("gpu"))
        elsewhere = re.search(_SERVED["speculation_elsewhere"], cells.text("notes") or "")
        recalled = known.get(cell) or known.get(cell[:2]) if elsewhere and not cells.text("spec_method") else None
        yield cells.with_values(recalled) if recalled else cells


def _cell(cells: Cells) -> tuple[str | None, ...]:
    return tuple(cells.text(name) for name in ("model", "gpu", "weight_precision"))


def _completed(run: MeasuredRun, cells: Cells, implied_chips: int | None) -> MeasuredRun:
    """A run with assumptions in place of what its row does not tell."""
    values: dict[str, Any] = {}
    notes = list(run.notes)
    engine = next((name for name in _SERVED["engines"] if name in (run.framework or "").lower()), None)
    if engine is not None:
        values["framework"] = _SERVED["engines"][engine]
        notes.append(f"engine '{run.framework}' has no parameter set; simulated as {values['framework']}")
    if run.tensor_parallel is None and not cells.count("n_gpus") and "pools" not in run.settings:
        if implied_chips is not None:
            values["tensor_parallel"] = implied_chips
            notes.append(f"number of chips not recorded; {implied_chips} by the row of one stream")
        else:
            values["unusable"] = run.unusable or "its number of chips was not recorded"
    if run.input_tokens is None and run.unusable == OF_DATA_SET:
        averages = _average_lengths(run, cells)
        values |= averages
        notes += [AVERAGES_NOTE] if averages else []
    streams = run.max_concurrency
    if streams and run.num_requests is None and run.lengths is None:
        waves = _SERVED["requests_per_stream"]
        waves = next((own for name, own in _SERVED["of_recipes"].items() if name in (run.model or "").lower()), waves)
        waves = max((least, count) for least, count in waves.items() if least <= streams)[1]
        values["num_requests"] = waves * streams
        notes.append(f"number of requests not recorded; {waves} per stream")
    if run.speculation and not any(cells.count(name) for name in ("spec_num_steps", "spec_num_draft_tokens")):
        notes.append(f"draft depth not recorded; {run.num_speculative_tokens}")
    assumed = run.acceptance_length is None and _speculation_assumed(cells)
    if run.speculation and run.num_speculative_tokens and assumed:
        method = "parallel-draft" if "dspark" in run.speculation.lower() else "mtp"
        length, source = assumed_acceptance(run.model or "", method, run.num_speculative_tokens)
        if cells.text("dataset") == "random":
            length = 1 + _SERVED["accepted_of_random"] * run.num_speculative_tokens
            source = "as on other random prompts"
        values["acceptance_length"] = length
        notes.append(f"acceptance not recorded; {length:.2f} tokens, {source}")
    per_chip, count = cells.positive("output_tput_per_gpu_tok_s"), cells.count("n_gpus") or implied_chips
    if "output_throughput" not in run.measured and per_chip and count:
        values["measured"] = {**run.measured, "output_throughput": per_chip * count}
    return replace(run, notes=tuple(notes), **values) if values else run


def _average_lengths(run: MeasuredRun, cells: Cells) -> dict[str, Any]:
    """Lengths and shared prefixes of agents' turns by their means; empty where the row has none."""
    count = run.num_requests
    means = [
        cells.positive(f"mean_{kind}_tokens")
        or (total / count if (total := cells.positive(f"total_{kind}_tokens")) and count else None)
        for kind in ("input", "output")
    ]
    if None in means or count is None:
        return {}
    prompt, answer = (max(1, round(mean or 0)) for mean in means)
    hits = [cells.positive(name) or 0.0 for name in ("gpu_cache_hit", "cpu_or_external_cache_hit")]
    shared = int(min(0.99, cells.positive("overall_cache_hit") or sum(hits)) * prompt)
    pool = PromptPool(count, run.max_concurrency or 1, shared) if shared else None
    return {"input_tokens": prompt, "output_tokens": answer, "pool": pool, "prefix_caching": True, "unusable": None}


@cache
def assumed_acceptance(model: str, method: str, depth: int) -> tuple[float, str]:
    """Tokens per step of a drafter of some method at a depth, and where they come from.

    The mean over published curves of the model; over those of all models where it has none.
    """
    curves = [curve for curve in map(load_curve, curve_names()) if curve.method == method]
    own = [curve for curve in curves if catalogue_model(curve.target) == catalogue_model(model)]
    lengths = [1.0 + float(curve.survival(depth).sum()) for curve in own or curves]
    curves_of = "curves of the model" if own else f"{method} curves of other models"
    return float(np.mean(lengths)), f"the mean of published {curves_of}"


def _stated_runs(rows: Iterable[Cells]) -> Iterator[MeasuredRun]:
    """Runs of the unified table as far as its rows tell.

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
        ends = _least_share(cells) if share is None else share
        measured = latencies_ms(cells, _KEYS)
        if "include" in (cells.text("tpot_definition") or "").lower():
            measured = {name: value for name, value in measured.items() if "_tpot_" not in name}
        if cells.text("tool") == "inference-perf":
            measured = {name: value for name, value in measured.items() if "_tpot_" not in name and "_itl_" not in name}
        measured = {name: value for name, value in measured.items() if "_itl_" not in name or _one_token_chunks(cells)}
        if _held_up(cells):
            measured = {name: value for name, value in measured.items() if "median" in name or "_tpot_" in name}
        if _tt_demo(cells):
            # Prompts run one by one: the demo divides their time by their number; its throughput is that of decoding.
            several = (cells.count("max_concurrency") or 1) > 1
            measured = {name: value for name, value in measured.items() if not several or "_ttft_" not in name}
            measured = {name: value for name, value in measured.items() if not name.endswith("throughput")}
        static = cells.text("tool") in STATIC_TOOLS
        chips, tensor, pipeline = cells.count("n_gpus"), cells.several("tp"), cells.several("pp")
        tensor = cells.count("tp") if _tt_demo(cells) else tensor
        per_replica = (tensor or 1) * (pipeline or 1)
        expert = tensor if (cells.text("ep") or "").lower() in ("on", "true") else cells.several("ep")
        flags = {**_recipe(cells), **_noted(cells), **dict(_FLAG.findall(cells.text("server_args") or ""))}
        groups = _attention_groups(cells, flags)
        expert = groups if groups and "enable-expert-parallel" in flags else expert
        expert = tensor or chips if flags.get("moe-a2a-backend") in SPREADING else expert
        pools = _pools(cells)
        replicas = chips // per_replica if chips and tensor and not expert else None
        yield MeasuredRun(
            name=cells.text("row_id") or "",
            place=cells.place,
            model=cells.text("model"),
            chip=cells.text("gpu"),
            framework=cells.text("framework"),
            framework_version=_build(cells),
            tensor_parallel=None if pools else max(1, (tensor or 1) // groups) if groups else tensor or chips,
            pipeline_parallel=pipeline,
            expert_parallel=None if pools else expert,
            data_parallel_attention=None if pools else groups,
            replicas=replicas if tensor and replicas and replicas > 1 and not pools else None,
            weights_dtype=_weights(cells),
            kv_cache_dtype=_kv_dtype(cells) or flags.get("kv-cache-dtype", "auto").removeprefix("auto") or None,
            process=process,
            request_rate=rate,
            max_concurrency=cells.count("max_concurrency") if process == "closed-loop" else None,
            input_tokens=_tokens(cells, "input", share),
            output_tokens=_tokens(cells, "output", ends) or (TT_DEMO_TOKENS if _tt_demo(cells) else None),
            num_requests=cells.count("max_concurrency") if static else cells.count("num_requests"),
            lengths=_drawn(cells),
            prefix_caching=prefix_caching_of(flags),
            speculation=cells.text("spec_method"),
            num_speculative_tokens=_depth(cells),
            acceptance_length=cells.positive("accept_length"),
            settings=_settings(cells, flags, groups) | (_fleet(cells, pools) if pools else {}),
            measured=measured,
            unusable=_unusable(cells),
            notes=(LENGTHS_NOTE,) if _of_data_set(cells) else (),
            **limits_of(flags, cells.place),
        )


def _settings(cells: Cells, flags: dict[str, str], groups: int | None) -> dict[str, object]:
    """Engine settings implied by the tool and the start command. The host must read the size of DeepEP's normal
    dispatch, so that SGLang captures no graphs with it."""
    tool = cells.text("tool")
    if _tt_served(cells):
        return {"engine.num_scheduler_steps": TT_STEPS} if (cells.text("measured_date") or "") < TT_SINGLE_STEPS else {}
    if _tt_demo(cells):
        release = "models/README" in (cells.text("source_ref") or "")
        on_device = {"engine.samples_on": "device"} if release else {}
        seats = -(-(cells.count("max_concurrency") or 1) // (cells.count("dp") or 1))
        return {"engine.entry_point": "offline", "engine.max_num_seqs": seats, **on_device}
    intervals = settings_of(flags, groups)
    if flags.get("deepep-mode") == "normal":
        return {"engine.cuda_graphs": False} | intervals
    if tool in STATIC_TOOLS:
        return {"engine.entry_point": "offline", "engine.scheduler": "static"}
    return {"engine.entry_point": "offline"} if tool in OFFLINE_TOOLS else intervals


def _recipe(cells: Cells) -> Mapping[str, str]:
    """Options of the launch script that a benchmark publishes apart from its results."""
    source, strategy = cells.text("source") or "", cells.text("strategy")
    if _is_disaggregated(cells) or not re.match(_SERVED["published_scripts"], source):
        return {}
    names = ("framework", "model", "gpu", "weight_precision")
    engine, model, chip, weights = (cells.text(name) for name in names)
    lengths = cells.count("input_len"), cells.count("output_len")
    return inferencex_flags(
        engine, model, chip, weights, cells.several("tp"), lengths, cells.count("max_concurrency") or 0, strategy
    )


def _noted(cells: Cells) -> Mapping[str, str]:
    """Options that a row's notes tell."""
    notes = cells.text("notes") or ""
    named = [
        ("max-running-requests", count) for count, of in _OF_STRATEGY.findall(notes) if of == cells.text("strategy")
    ]
    named += _IN_NOTES.findall(notes)
    return {"moe-a2a-backend" if "backend" in name else name: value for name, value in named}


def _build(cells: Cells) -> str | None:
    """An engine's release; of one without a number the month, such as ``of 2026-02``."""
    if release := cells.text("framework_version") or (TT_EARLY if _tt_served(cells) else None):
        return release
    day = re.match(r"(20\d\d)-?(\d\d)", cells.text("measured_date") or "")
    return f"of {day[1]}-{day[2]}" if day else None


def _speculation_assumed(cells: Cells) -> bool:
    return re.search(_SERVED["speculation_assumed"], (cells.text("source") or "").lower()) is not None


def _depth(cells: Cells) -> int | None:
    """Draft tokens of a step: SGLang counts the token before a chain of them among its draft tokens."""
    steps, drafted = cells.count("spec_num_steps"), cells.count("spec_num_draft_tokens")
    stated = steps if steps and cells.count("spec_topk") in (None, 1) else drafted or steps
    depths = _SERVED["draft_depth"] if _speculation_assumed(cells) else {}
    return stated or next((depths[name] for name in depths if name in (cells.text("spec_method") or "").lower()), None)


TT_STEPS, TT_SINGLE_STEPS = 10, "2025-08"
"""Decode steps between two looks at the queue of Tenstorrent's server, and when it stopped doing so. The
``--num_scheduler_steps`` of examples/server_example_tt.py in tenstorrent/vllm, a flag of engine V0."""


TT_EARLY = "0.56"
"""Version of tt-metal in the reports of Tenstorrent's server that name none: those of early 2025."""


def _tt_served(cells: Cells) -> bool:
    return "tt fork" in (cells.text("framework") or "")


TT_DEMO_TOKENS = 200
"""Tokens that tt_transformers' demo generates (``max_generated_tokens`` of simple_text_demo.py)."""


def _tt_demo(cells: Cells) -> bool:
    return (cells.text("framework") or "").startswith("tt-metal")


def _weights(cells: Cells) -> str | None:
    """Weight format; None where it is the checkpoint's, or for tt-metal the shipped mix of 4 and 8 bits."""
    text = cells.text("weight_precision")
    if text is None or not _tt_demo(cells):
        return text
    return "bfp8" if text.startswith("bfp8 MLP") and "70B" not in (cells.text("model") or "") else None


def _one_token_chunks(cells: Cells) -> bool:
    """True if the measured inter-token latency is per token: clients time chunks, which may contain several tokens."""
    ratio = cells.number("itl_over_tpot")
    return cells.text("spec_method") is None and ratio is not None and 0.8 < ratio < 1.2


def _arrivals(cells: Cells) -> tuple[str | None, float | None]:
    word = cells.text("request_rate_rps")
    concurrency = cells.text("max_concurrency")
    if word is None or word.lower() == "inf" or word.lower().startswith("closed loop"):
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
    """Lengths of prompts (``input``) or outputs. Of lengths drawn evenly from one token up, the longest that the total
    tells where none is named; of a data set the mean."""
    value, total, count = cells.count(f"{kind}_len"), cells.count(f"total_{kind}_tokens"), cells.count("num_requests")
    if total and count and _of_data_set(cells):
        return max(1, round(total / count))
    if value is None and _from_one(cells) and total and count:
        value = max(1, round(2 * total / count) - 1)
    if value is None or share is None:
        return value
    return (max(1, int(value * share)), value)


def _least_share(cells: Cells) -> float | None:
    """Shortest answer as a share of the stated length, where some ended sooner; None if none did.

    Source: AIPerf sends no ``ignore_eos``; the mean answer is 1 + (E2E latency - TTFT) / TPOT.
    """
    e2e, ttft, tpot = (cells.positive(f"mean_{name}_ms") for name in ("e2el", "ttft", "tpot"))
    stated = cells.count("output_len")
    if cells.text("tool") != "AIPerf" or e2e is None or ttft is None or tpot is None or stated is None:
        return None
    share = (1 + (e2e - ttft) / tpot) / stated
    return max(0.0, 2 * share - 1) if share < 0.95 else None


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
    """True if lengths are those of a data set's single questions, and their totals are known."""
    totals = [cells.count(f"total_{kind}_tokens") for kind in ("input", "output")]
    return cells.text("length_mode") == "dataset" and bool(cells.count("num_requests")) and all(totals)


def _held_up(cells: Cells) -> bool:
    """True if kernels were compiled during the timed run: nothing else delays a request that runs alone."""
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
    dp_attention = (cells.text("dp_attention") or "").lower()
    if not dp_attention and not _tt_demo(cells) and (cells.several("dp") or 0) == (cells.count("n_gpus") or 1) > 1:
        return cells.count("dp")
    if flags.get("dp-size") == "all":
        return cells.count("n_gpus")
    alone = "enable-dp-attention" in flags and not cells.count("dp")
    return None if alone or dp_attention in ("", "false", "0", "off", "no") else cells.count("dp") or cells.count("tp")


def _from_one(cells: Cells) -> bool:
    return (cells.text("length_mode") or "").lower().startswith(_FROM_ONE)


def _is_disaggregated(cells: Cells) -> bool:
    return (cells.text("disagg") or "").lower() in ("true", "1", "yes")


def _pools(cells: Cells) -> dict[str, Any] | None:
    """Prefill and decode workers as pools, where the two are disaggregated; else None. The notes tell workers that take
    up the chips named."""
    if not _is_disaggregated(cells):
        return None
    pools: dict[str, Any] = {}
    listed = _WORKERS.findall(cells.text("notes") or "")
    # Rows of 2025 say tp1/ep1 of every worker; by the recipes those whose decode workers have four chips share layers.
    shares = any(own[:3] == ("decode", "1", "1") and cells.count("decode_gpus") == 4 * int(own[4]) for own in listed)
    for role, tensor, expert, groups, workers in listed:
        chips, count = cells.count(f"{role}_gpus") or 0, int(workers)
        each = chips // count if count and chips % count == 0 else 0
        grouped = groups.lower() == "true" and not shares
        if not each or (not grouped and each != int(tensor) and not shares):
            return None
        hardware = {"tensor_parallel": 1 if grouped else each, "replicas": count}
        hardware |= {"attention_data_parallel": each} if grouped and each > 1 else {}
        hardware |= {"expert_parallel": each} if int(expert) > 1 or (grouped and each > 1) else {}
        pools[role] = {"role": role, "hardware": hardware}
    return pools if len(pools) == 2 else None


def _fleet(cells: Cells, pools: dict[str, Any]) -> dict[str, object]:
    """Settings of disaggregated workers: of InferenceX those of its recipes."""
    framework = cells.text("framework") or ""
    if cells.text("source") != "inferencex":
        return {"pools": pools}
    engine = "trtllm" if framework == "dynamo-trt" else "sglang"
    grouped = "attention_data_parallel" in pools["prefill"]["hardware"]
    chip, weights, prompt = cells.text("gpu"), cells.text("weight_precision"), cells.count("input_len")
    kv_format, limits = worker_limits(engine, chip, weights, prompt, grouped)
    if limits and not (_build(cells) or "").startswith("of 2025"):
        pools["prefill"]["engine"] = limits
    if engine == "trtllm":
        hardware = pools["decode"]["hardware"]
        places = hardware["replicas"] * hardware.get("attention_data_parallel", 1)
        facts = (chip, weights, [prompt, cells.count("output_len")], cells.text("spec_method") is not None)
        most = decode_batch(*facts, places, cells.count("max_concurrency") or 1)
        pools["decode"]["engine"] = {"max_num_seqs": most}
    return {"pools": pools, "kv_cache_dtype": kv_format or "auto", "engine.enable_prefix_caching": False}


def _unusable(cells: Cells) -> str | None:
    if _is_disaggregated(cells) and _pools(cells) is None:
        return "disaggregated prefill and decode, whose workers do not add up to its chips"
    if cells.text("spec_method") is not None and _depth(cells) is None:
        return "speculation whose draft depth is not recorded"
    if cells.text("spec_method") is None and cells.positive("accept_length") is not None:
        return "speculation of which only the acceptance length is recorded"
    if _of_data_set(cells):
        return None
    if _tt_demo(cells):
        return None
    if any(_tokens(cells, kind, None) is None for kind in ("input", "output")):
        return OF_DATA_SET
    mode = (cells.text("length_mode") or "").lower()
    equal = cells.text("dataset") == "random" and re.search(_SERVED["equal_lengths"], mode)
    if not equal and not mode.startswith(("fixed", "uniform[0.", _FROM_ONE)):
        return f"how lengths were drawn is not known ({mode or 'not stated'})"
    return None


register_table(
    "unified",
    "the 68-column CSV of published results (InferenceX, TensorRT-LLM, NIM, vLLM, SGLang ...)",
    SIGNATURE,
    lambda rows, file: unified_runs(rows),
)
