"""Result files of benchmark clients: vLLM and SGLang, AIPerf and GenAI-Perf, inference-perf, GuideLLM.

Every reader raises TraceError for a field of another kind or in an unknown unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from traces.benchmark_results.run import LATENCIES, STATISTICS, THROUGHPUTS, MeasuredRun, PromptPool, latencies_ms
from traces.errors import TraceError
from traces.files import Cells, json_value, read_text

MS_PER_S = 1e3
_VLLM_KEYS = {f"{s}_{name}_ms": f"{s}_{name}_ms" for name in LATENCIES for s in STATISTICS} | {
    name: name for name in THROUGHPUTS
}
_SGLANG_KEYS = {f"{s}_e2el_ms": f"{s}_e2e_latency_ms" for s in STATISTICS} | {"total_token_throughput":
                                                                             "total_throughput"}  # fmt: skip
_AIPERF = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "inter_chunk_latency": "itl",
           "request_latency": "e2el"}  # fmt: skip
_AIPERF_STATISTICS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_AIPERF_RATES = {"request_throughput": "request_throughput", "output_token_throughput": "output_throughput",
                 "total_token_throughput": "total_token_throughput"}  # fmt: skip
_TO_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "ns": 1e-6, "milliseconds": 1.0}


_PROTOCOLS = "openai"
"""Start of the names of OpenAI's APIs among a client's backends; with ``vllm`` they name no engine."""
_SERVER = {
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "num_gpu_blocks_override": "num_kv_blocks",
    "block_size": "block_size",
    "tensor_parallel_size": "tensor_parallel",
    "pipeline_parallel_size": "pipeline_parallel",
}
"""Whole numbers among vLLM's server arguments, which ``vllm bench sweep`` adds to its results."""
_FLAGS = {"enable_prefix_caching": "prefix_caching", "enable_chunked_prefill": "chunked_prefill"}
_CLIENT = re.compile(
    "date|endpoint_type|backend|label|tag|model_id|tokenizer_id|num_prompts|request_rate|burstiness|(max_)?concurrency|"
    "duration|completed|failed|total_(in|out)put.*|request_goodput|goodput|(request|output|total_token|input)_throughput|"
    "total_throughput|max_output_tokens_per_s|max_concurrent_requests|rtfx|run_number|errors|framework|hw|tp|accept_length|"
    "(in|out)put_lens|ttfts|itls|generated_texts|start_times|gpu_memory_utilization|kv_cache_dtype|quantization|"
    "enforce_eager|speculative_config|(spec_decode|ramp_up|rps|random|sharegpt|dataset|mean|median|std|p[0-9]+)_.*|benchmark_name"
)
"""Keys of a client's own, and server arguments that are read beside ``_SERVER`` and ``_FLAGS``."""


def _other_keys(result: Mapping[str, Any]) -> list[str]:
    """Keys that no client writes and that are not read, such as further arguments of a swept server."""
    known = (*_SERVER, *_FLAGS)
    return [key for key, value in result.items()
            if value not in (None, "") and not (_CLIENT.fullmatch(key) or key in known)]  # fmt: skip


def _plain_names(result: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A result by keys in one spelling: ``--max-num-seqs``, ``max-num-seqs`` and ``max_num_seqs`` are one."""
    plain: dict[str, Any] = {}
    for key, value in result.items():
        name = key.strip().replace("-", "_").strip("_")
        if plain.get(name, value) not in (value, None, ""):
            raise TraceError(f"{place}: {key}: is given twice, as {plain[name]} and {value}; remove one of them")
        plain[name] = plain.get(name) if value in (None, "") else value
    return plain


def vllm_run(result: Mapping[str, Any], place: str, file: Path) -> MeasuredRun:
    """Read one result of ``vllm bench serve --save-result``, of its forks, or of SGLang's ``bench_serving``.

    With per-request arrays in it (``--save-detailed``) the requests themselves are replayed; otherwise every request
    has the mean lengths. SGLang divides its ITL by the tokens of a chunk, so that is left out.
    """
    result = _plain_names(result, place)
    cells = Cells(result, place)
    sglang = "mean_e2e_latency_ms" in result
    measured = latencies_ms(cells, _VLLM_KEYS)
    if sglang:
        measured = {name: value for name, value in measured.items() if "_itl_" not in name}
        measured |= latencies_ms(cells, _SGLANG_KEYS)
    concurrency = cells.count("max_concurrency")
    word = cells.text("request_rate")
    rate = None if word in (None, "inf", "trace", "Infinity") else cells.positive("request_rate")
    burstiness = cells.positive("burstiness")
    if rate is None:
        process = "closed-loop" if concurrency else "burst"
    else:
        process = "gamma" if burstiness not in (None, 1.0) else "poisson"
    count = cells.count("completed") or cells.count("num_prompts")
    detailed = isinstance(result.get("input_lens"), list)
    engine, backend, notes = cells.text("framework"), cells.text("backend"), list[str]()
    if engine is None and backend is not None and not sglang:
        protocol = backend.lower() == "vllm" or backend.lower().startswith(_PROTOCOLS)
        engine = None if protocol else backend
        if protocol:
            notes.append(f"backend '{backend}' is the client's protocol; the scenario names the engine")
    if rate is not None and concurrency:
        notes.append(f"the limit of {concurrency} requests at once beside the rate is not modelled")
    if others := _other_keys(result):
        notes.append(f"not read: {', '.join(others[:8])}{' ...' if len(others) > 8 else ''}")
    cache = cells.text("kv_cache_dtype")
    server: dict[str, Any] = {"tensor_parallel": cells.count("tp"), **_drafting(cells, result)}
    server |= {ours: value for name, ours in _SERVER.items() if (value := cells.count(name)) is not None}
    server |= {ours: cells.flag(name) for name, ours in _FLAGS.items()}
    settings: dict[str, object] = {"engine.cuda_graphs": False} if cells.flag("enforce_eager") else {}
    return MeasuredRun(
        name=file.stem,
        place=place,
        model=cells.text("model_id"),
        tokenizer=cells.text("tokenizer_id"),
        chip=cells.text("hw"),
        framework="sglang" if sglang else engine,
        process=process,
        request_rate=rate,
        burstiness=burstiness if process == "gamma" else None,
        max_concurrency=concurrency if process == "closed-loop" else None,
        input_tokens=None if detailed else _mean(cells, "total_input_tokens", count),
        output_tokens=None if detailed else _mean(cells, "total_output_tokens", count),
        num_requests=count,
        trace=str(file) if detailed else None,
        trace_format="vllm-bench" if detailed else "auto",
        weights_dtype=cells.text("quantization"),
        kv_cache_dtype=None if cache == "auto" else cache,
        gpu_memory_utilization=cells.positive("gpu_memory_utilization"),
        settings=settings,
        measured=measured,
        notes=tuple(notes),
        **server,
    )


def _drafting(cells: Cells, result: Mapping[str, Any]) -> dict[str, Any]:
    """Depth and acceptance of a server that drafted, by vLLM's ``spec_decode_*`` or SGLang's ``accept_length``."""
    drafts, tokens = cells.positive("spec_decode_num_drafts"), cells.positive("spec_decode_draft_tokens")
    rates = result.get("spec_decode_per_position_acceptance_rates")
    known = [Cells({"rate": one}, f"{cells.place}: spec_decode_per_position_acceptance_rates").number("rate")
             for one in rates] if isinstance(rates, list) else []  # fmt: skip
    config = result.get("speculative_config") or {}
    config = json_value(config, f"{cells.place}: speculative_config") if isinstance(config, str) else config
    if not isinstance(config, Mapping):
        raise TraceError(f'{cells.place}: speculative_config: a JSON object expected, such as {{"method": "ngram"}}')
    stated = Cells(config, f"{cells.place}: speculative_config")
    length = cells.positive("spec_decode_acceptance_length") or cells.positive("accept_length")
    depth = len(known) or (round(tokens / drafts) if drafts and tokens else 0)
    return {
        "acceptance_length": length if length != 1.0 or depth else None,  # SGLang writes 1 where nothing is drafted
        "acceptance_per_position": tuple(rate or 0.0 for rate in known),
        "speculation": stated.text("method") or stated.text("model"),
        "num_speculative_tokens": depth or stated.count("num_speculative_tokens"),
    }


def aiperf_run(result: Mapping[str, Any], place: str, file: Path) -> MeasuredRun:
    """Read the aggregate export of AIPerf or GenAI-Perf (``profile_export_*.json``).

    Its inter-token latency is vLLM's TPOT, its inter-chunk latency vLLM's ITL.
    """
    measured: dict[str, float] = {}
    for key, name in _AIPERF.items():
        metric = result.get(key)
        if isinstance(metric, Mapping):
            keys = {f"{ours}_{name}_ms": theirs for theirs, ours in _AIPERF_STATISTICS.items()}
            scale = _scale(metric, f"{place}: {key}")
            measured |= latencies_ms(Cells(metric, f"{place}: {key}"), keys, scale)
    rates = {name: _average(result, key, place) for key, name in _AIPERF_RATES.items()}
    measured |= {name: value for name, value in rates.items() if value}
    setup = result.get("input_config", result.get("config"))
    setup = setup if isinstance(setup, Mapping) else {}
    options = _flat(setup) | _phase(setup, place)
    cells = Cells(options, f"{place}: input_config")
    concurrency, rate = cells.count("concurrency"), cells.positive("request_rate") or cells.positive("rate")
    inputs, outputs = (_average(result, f"{side}_sequence_length", place) for side in ("input", "output"))
    count = _average(result, "request_count", place)
    models = options.get("model_names", options.get("model"))
    if isinstance(listed := _map(setup, "models").get("items"), list):
        models = [Cells(one, f"{place}: models").text("name") for one in listed if isinstance(one, Mapping)]
    if isinstance(models, list) and len(set(models)) > 1:
        raise TraceError(f"{place}: input_config: {len(models)} models in one result; a result of one is read")
    stated = (cells.text("request_rate_mode") or cells.text("arrival_pattern") or "").lower()
    mode = stated if stated in ("constant", "gamma") else "poisson"
    capped = concurrency and rate is not None
    return MeasuredRun(
        name=file.stem,
        place=place,
        model=str(models[0]) if isinstance(models, list) and models else (str(models) if models else None),
        tokenizer=Cells(_map(setup, "tokenizer"), place).text("name"),
        process="closed-loop" if concurrency and rate is None else (None if rate is None else mode),
        request_rate=rate,
        burstiness=(cells.positive("smoothness") or cells.positive("burstiness")) if mode == "gamma" else None,
        max_concurrency=concurrency if rate is None else None,
        input_tokens=_rounded(inputs),
        output_tokens=_rounded(outputs),
        num_requests=int(count) if count else None,
        measured=measured,
        notes=(f"the limit of {concurrency} requests at once beside the rate is not modelled",) if capped else (),
    )


_PHASES = {"concurrency": "", "poisson": "poisson", "constant": "constant", "gamma": "gamma", "request_rate": "poisson"}
"""Kinds of load of AIPerf's phases, and the arrivals of those with a rate."""


def _phase(setup: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Load of the phase that AIPerf reports (``phases`` since 0.10), with its kind as ``arrival_pattern``."""
    listed = setup.get("phases")
    phases = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    kept = [one for one in phases if one.get("exclude_from_results") is not True]
    if not kept:
        return {}
    kind = str(kept[0].get("type", "")).lower()
    if len(kept) > 1 or kind not in _PHASES:
        what = f"type '{kind}' is not one of {', '.join(_PHASES)}" if len(kept) == 1 else f"{len(kept)} are reported"
        raise TraceError(f"{place}: input_config.phases: {what}; a result of one such phase is read")
    load = {"concurrency": None, "request_rate": None, "rate": None, **kept[0]}
    return load | ({"arrival_pattern": _PHASES[kind]} if _PHASES[kind] else {})


def inference_perf_run(result: Mapping[str, Any], place: str, file: Path) -> MeasuredRun:
    """Read a lifecycle summary of inference-perf (``summary_lifecycle_metrics.json`` or one stage's), seconds.

    Its TPOT and ITL count two stream events for each token, so TPOT is derived here: (latency - TTFT) / (tokens - 1).
    ``config.yaml`` beside the file gives load, lengths and prompts; ``exp-config.yaml`` above it the server's limits.
    """
    good = result["successes"]
    cells = Cells(good, place)
    measured: dict[str, float] = {}
    for key, name in (("time_to_first_token", "ttft"), ("request_latency", "e2el")):
        holder = Cells(_map(_map(good, "latency"), key), f"{place}: {key}")
        measured |= latencies_ms(holder, {f"{s}_{name}_ms": s for s in STATISTICS}, MS_PER_S)
    rates = Cells(_map(good, "throughput"), f"{place}: throughput")
    rate_keys = ("requests_per_sec", "output_tokens_per_sec", "total_tokens_per_sec")
    measured |= latencies_ms(rates, dict(zip(THROUGHPUTS, rate_keys, strict=True)))
    setup, server = _yaml(file.parent / "config.yaml"), _yaml(file.parent.parent / "exp-config.yaml")
    data, load = _map(setup, "data"), _map(setup, "load")
    prefix = Cells(_map(data, "shared_prefix"), f"{file.parent / 'config.yaml'}: shared_prefix")
    stages = _stages(load.get("stages"), f"{file.parent / 'config.yaml'}: load.stages")
    stage = file.name.removeprefix("stage_").partition("_")[0]
    if file.name.startswith("stage_") and stage.isdigit() and int(stage) < len(stages):
        stages = [stages[int(stage)]]
    inputs = Cells(_map(good, "prompt_len"), place).positive("mean")
    outputs = prefix.count("output_len")
    if outputs is None:
        outputs = _rounded(Cells(_map(good, "output_len"), place).positive("mean"))
    if outputs and outputs > 1 and "mean_e2el_ms" in measured and "mean_ttft_ms" in measured:
        measured["mean_tpot_ms"] = (measured["mean_e2el_ms"] - measured["mean_ttft_ms"]) / (outputs - 1)
    groups, each = prefix.count("num_groups"), prefix.count("num_prompts_per_group")
    engine = Cells(server, str(file.parent.parent / "exp-config.yaml"))
    failed = Cells(_map(result, "failures"), place).number("count") or 0
    completed = cells.count("count")
    shared = prefix.count("system_prompt_len")
    return MeasuredRun(
        name=f"{file.parent.parent.name} {file.stem.removesuffix('_lifecycle_metrics')}".strip(),
        place=place,
        model=engine.text("model") or Cells(_map(setup, "server"), place).text("model_name"),
        framework=Cells(_map(setup, "server"), place).text("type"),
        tensor_parallel=engine.count("tensor_parallelism"),
        process="poisson" if load.get("type") == "poisson" else "constant",
        stages=tuple(stages),
        input_tokens=_rounded(inputs),
        output_tokens=outputs,
        num_requests=completed if not stages else None,
        pool=PromptPool(groups * each, groups, shared) if groups and each and shared else None,
        max_num_seqs=engine.count("max_num_seqs"),
        max_num_batched_tokens=engine.count("max_num_batched_tokens"),
        max_model_len=engine.count("max_model_len"),
        measured=measured,
        unusable=f"{failed:.0f} requests failed" if completed is None or failed > 0.01 * completed else None,
    )


def guidellm_runs(result: Mapping[str, Any], place: str, file: Path) -> Iterator[MeasuredRun]:
    """Benchmarks of a GuideLLM report; its "time per output token" counts the first one and is left out."""
    names = {"time_to_first_token_ms": ("ttft", 1.0), "inter_token_latency_ms": ("itl", 1.0),
             "request_latency": ("e2el", MS_PER_S)}  # fmt: skip
    for number, benchmark in enumerate(result["benchmarks"]):
        where = f"{place}: benchmarks[{number}]"
        if not isinstance(benchmark, Mapping) or not isinstance(benchmark.get("metrics"), Mapping):
            raise TraceError(f"{where}: an object with metrics expected")
        metrics = benchmark["metrics"]
        measured: dict[str, float] = {}
        for key, (name, scale) in names.items():
            good = _map(_map(metrics, key), "successful")
            flat = {**good, **_map(good, "percentiles")}
            keys = {f"{s}_{name}_ms": s for s in STATISTICS}
            measured |= latencies_ms(Cells(flat, f"{where}: {key}"), keys, scale)
        for key, name in (("requests_per_second", "request_throughput"), ("output_tokens_per_second",
                          "output_throughput"), ("tokens_per_second", "total_token_throughput")):  # fmt: skip
            value = Cells(_map(_map(metrics, key), "successful"), f"{where}: {key}").positive("mean")
            if value is not None:
                measured[name] = value
        if "mean_itl_ms" in measured:
            measured["mean_tpot_ms"] = measured["mean_itl_ms"]
        strategy = _map(_map(benchmark, "config"), "strategy") or _map(_map(benchmark, "args"), "strategy")
        cells = Cells(strategy, f"{where}: strategy")
        kind = cells.text("type_") or cells.text("type") or ""
        streams = 1 if kind == "synchronous" else (cells.count("streams") or cells.count("max_concurrency"))
        rate = cells.positive("rate") if kind in ("constant", "poisson", "async") else None
        process = {"constant": "constant", "async": "constant", "poisson": "poisson"}.get(kind, "closed-loop")
        inputs, outputs = (
            Cells(_map(_map(metrics, f"{side}_token_count"), "successful"), where).positive("mean")
            for side in ("prompt", "output")
        )
        totals = Cells(_map(benchmark, "request_totals") or _map(benchmark, "run_stats"), where)
        yield MeasuredRun(
            name=f"{file.stem} {number}",
            place=where,
            model=Cells(_map(benchmark, "worker"), where).text("backend_model"),
            process=process,
            request_rate=rate,
            max_concurrency=streams if process == "closed-loop" else None,
            input_tokens=_rounded(inputs),
            output_tokens=_rounded(outputs),
            num_requests=totals.count("successful"),
            measured=measured,
        )


def _stages(listed: Any, place: str) -> list[tuple[float, float]]:
    stages = []
    for number, stage in enumerate(listed if isinstance(listed, list) else []):
        cells = Cells(stage if isinstance(stage, Mapping) else {}, f"{place}[{number}]")
        rate, duration = cells.positive("rate"), cells.positive("duration")
        if rate is None or duration is None:
            raise TraceError(f"{cells.place}: a rate and a duration above 0 expected")
        stages.append((rate, duration))
    return stages


def _rounded(mean: float | None) -> int | None:
    return round(mean) if mean else None


def _mean(cells: Cells, key: str, count: int | None) -> int | None:
    total = cells.positive(key)
    return max(1, round(total / count)) if total and count else None


def _map(holder: Any, key: str) -> Mapping[str, Any]:
    value = holder.get(key) if isinstance(holder, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _flat(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Leaf values of nested mappings by key; for equal keys, the outermost value is used."""
    flat: dict[str, Any] = {}
    for key, value in holder.items():
        if isinstance(value, Mapping):
            flat = {**_flat(value), **flat}
        else:
            flat[key] = value
    return flat


def _average(result: Mapping[str, Any], key: str, place: str) -> float | None:
    metric = result.get(key)
    return Cells(metric, f"{place}: {key}").positive("avg") if isinstance(metric, Mapping) else None


def _scale(metric: Mapping[str, Any], place: str) -> float:
    unit = str(metric.get("unit", "ms"))
    if unit not in _TO_MS:
        raise TraceError(f"{place}: unit: '{unit}' is no unit of time (one of {', '.join(_TO_MS)})")
    return _TO_MS[unit]


def _yaml(file: Path) -> Mapping[str, Any]:
    if not file.is_file():
        return {}
    from yaml import YAMLError

    from forerun.yaml_files import parse

    try:
        value = parse(read_text(file))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise TraceError(f"{file}: not readable as YAML ({str(error)[:80]})") from None
    return value if isinstance(value, Mapping) else {}
