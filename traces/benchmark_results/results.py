"""Result files of benchmark clients: vLLM and SGLang, AIPerf and GenAI-Perf, inference-perf, GuideLLM.

``formats.yaml`` names their fields; this module derives values from several fields. Every reader raises TraceError for
a field of a wrong type or in an unknown unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forerun.yaml_files import packaged
from traces.benchmark_results.run import STATISTICS, MeasuredRun, PromptPool, facts_of
from traces.errors import TraceError
from traces.fields import TIME_WORDS, UNITS_PER_SECOND, Cells, Record, candidates, list_at, object_at, objects_at
from traces.files import json_value, read_text

TABLES: dict[str, dict[str, Any]] = packaged("traces.benchmark_results", "formats.yaml")
"""Fields of each client's results."""
_PROTOCOLS = ("vllm", "openai")
"""Starts of the names of OpenAI's APIs among a client's backends; such a backend names no engine."""


def _measured(format: str, cells: Cells) -> dict[str, float]:
    """Metrics of a result by the names in its format's table; latencies in milliseconds."""
    table = TABLES[format]
    measured: dict[str, float] = {}

    def take(metric: str, names: str | Sequence[str], scale: float = 1.0) -> None:
        for name in [names] if isinstance(names, str) else names:
            value = cells.positive(name)
            if value is not None:
                measured.setdefault(metric, value * scale)

    for latency, columns in table["latencies"].items():
        for column in candidates(columns):
            key = table.get("key", "STATISTIC_LATENCY_ms").replace("LATENCY", column.name)
            stated_unit = column.unit or cells.text(key.replace("STATISTIC", "unit")) or "ms"
            if stated_unit not in TIME_WORDS:
                raise TraceError(
                    f"{cells.place}: {column.name}: unit: '{stated_unit}' is no unit of time "
                    f"(one of {', '.join(TIME_WORDS)})"
                )
            scale = UNITS_PER_SECOND["ms"] / UNITS_PER_SECOND[TIME_WORDS[stated_unit]]
            for ours, theirs in table.get("statistics", dict(zip(STATISTICS, STATISTICS, strict=True))).items():
                names = [theirs] if isinstance(theirs, str) else theirs
                take(f"{ours}_{latency}_ms", [key.replace("STATISTIC", name) for name in names], scale)
    for metric, names in table["throughputs"].items():
        take(metric, names)
    return measured


def _plain_names(result: Record, place: str) -> dict[str, object]:
    """A result by keys in one spelling: ``--max-num-seqs``, ``max-num-seqs`` and ``max_num_seqs`` are one."""
    plain: dict[str, object] = {}
    for key, value in result.items():
        name = key.strip().replace("-", "_").strip("_")
        if plain.get(name, value) not in (value, None, ""):
            raise TraceError(f"{place}: {key}: is given twice, as {plain[name]} and {value}; remove one of them")
        plain[name] = plain.get(name) if value in (None, "") else value
    return plain


def _both_limits(concurrency: int | None, rate: float | None) -> list[str]:
    both = concurrency and rate is not None
    return [f"the limit of {concurrency} requests at once beside the rate is not modelled"] if both else []


def vllm_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read one result of ``vllm bench serve --save-result``, of its forks, or of SGLang's ``bench_serving``.

    With per-request arrays in it (``--save-detailed``) the requests themselves are replayed; otherwise every request
    has the mean lengths. SGLang divides its ITL by the tokens of a chunk, so that is left out.
    """
    result = _plain_names(result, place)
    cells = Cells(result, place)
    sglang = "mean_e2e_latency_ms" in result
    measured = {
        name: value for name, value in _measured("vllm-bench", cells).items() if not (sglang and "_itl_" in name)
    }
    concurrency = cells.count("max_concurrency")
    unlimited = cells.text("request_rate") in (None, "inf", "trace", "Infinity")
    rate, burstiness = None if unlimited else cells.positive("request_rate"), cells.positive("burstiness")
    if rate is None:
        process = "closed-loop" if concurrency else "burst"
    else:
        process = "gamma" if burstiness not in (None, 1.0) else "poisson"
    facts = facts_of(cells, TABLES["vllm-bench"]["fields"])
    detailed = isinstance(result.get("input_lens"), list)
    engine, backend, notes = cells.text("framework"), cells.text("backend"), list[str]()
    if engine is None and backend is not None and not sglang:
        protocol = backend.lower() == "vllm" or backend.lower().startswith("openai")
        engine = None if protocol else backend
        if protocol:
            notes.append(f"backend '{backend}' is the client's protocol; the scenario names the engine")
    notes += _both_limits(concurrency, rate)
    if others := _other_keys(result):
        notes.append(f"not read: {', '.join(others[:8])}{' ...' if len(others) > 8 else ''}")
    cache = cells.text("kv_cache_dtype")
    return MeasuredRun(
        name=file.stem,
        place=place,
        framework="sglang" if sglang else engine,
        process=process,
        request_rate=rate,
        burstiness=burstiness if process == "gamma" else None,
        max_concurrency=concurrency if process == "closed-loop" else None,
        input_tokens=None if detailed else _mean(cells, "total_input_tokens", facts["num_requests"]),
        output_tokens=None if detailed else _mean(cells, "total_output_tokens", facts["num_requests"]),
        trace=str(file) if detailed else None,
        trace_format="vllm-bench" if detailed else "auto",
        kv_cache_dtype=None if cache == "auto" else cache,
        settings={"engine.cuda_graphs": False} if cells.flag("enforce_eager") else {},
        measured=measured,
        notes=tuple(notes),
        **_drafting(cells),
        **facts,  # type: ignore[arg-type]
    )


def _other_keys(result: Record) -> list[str]:
    """Keys that no client writes and that are not read, such as further arguments of a swept server."""
    table = TABLES["vllm-bench"]
    read = {name for names in table["fields"].values() for name in ([names] if isinstance(names, str) else names)}
    known = re.compile(table["known"])
    return [
        key for key, value in result.items() if value not in (None, "") and key not in read and not known.fullmatch(key)
    ]


def _mean(cells: Cells, key: str, count: object) -> int | None:
    total = cells.positive(key)
    return max(1, round(total / count)) if total and isinstance(count, int) else None


def _drafting(cells: Cells) -> dict[str, Any]:
    """Depth and acceptance of a server that drafted, by vLLM's ``spec_decode_*`` or SGLang's ``accept_length``."""
    drafts, tokens = cells.positive("spec_decode_num_drafts"), cells.positive("spec_decode_draft_tokens")
    rates = list_at(cells.values, "spec_decode_per_position_acceptance_rates")
    place = f"{cells.place}: spec_decode_per_position_acceptance_rates"
    known = [Cells({"rate": rate}, place).number("rate") or 0.0 for rate in rates]
    place, config = f"{cells.place}: speculative_config", cells.values.get("speculative_config") or {}
    config = json_value(config, place) if isinstance(config, str) else config
    if not isinstance(config, dict):
        raise TraceError(f'{place}: a JSON object expected, such as {{"method": "ngram"}}')
    drafter = Cells(config, place)
    length = cells.positive("spec_decode_acceptance_length") or cells.positive("accept_length")
    depth = len(known) or (round(tokens / drafts) if drafts and tokens else 0)
    return {
        "acceptance_length": length if length != 1.0 or depth else None,  # SGLang writes 1 where nothing is drafted
        "acceptance_per_position": tuple(known),
        "speculation": drafter.text("method") or drafter.text("model"),
        "num_speculative_tokens": depth or drafter.count("num_speculative_tokens"),
    }


def aiperf_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read the aggregate export of AIPerf or GenAI-Perf (``profile_export_*.json``)."""
    setup = object_at(result, "input_config") if "input_config" in result else object_at(result, "config")
    options = _flat(setup) | _phase(setup, place)
    cells, load = Cells(result, place), Cells(options, f"{place}: input_config")
    concurrency, rate = load.count("concurrency"), load.positive("request_rate") or load.positive("rate")
    models = options.get("model_names", options.get("model"))
    if listed := objects_at(setup, "models.items"):
        models = [Cells(one, f"{place}: models").text("name") for one in listed]
    names = [str(name) for name in models] if isinstance(models, list) else [str(models)] if models else []
    if len(set(names)) > 1:
        raise TraceError(f"{place}: input_config: {len(names)} models in one result; a result of one is read")
    arrivals = (load.text("request_rate_mode") or load.text("arrival_pattern") or "").lower()
    process = arrivals if arrivals in ("constant", "gamma") else "poisson"
    burstiness = (load.positive("smoothness") or load.positive("burstiness")) if process == "gamma" else None
    if rate is None:
        process = "closed-loop" if concurrency else ""
    return MeasuredRun(
        name=file.stem,
        place=place,
        model=names[0] if names else None,
        tokenizer=Cells(setup, place).text("tokenizer.name"),
        process=process or None,
        request_rate=rate,
        burstiness=burstiness,
        max_concurrency=concurrency if rate is None else None,
        measured=_measured("aiperf", cells),
        notes=tuple(_both_limits(concurrency, rate)),
        **facts_of(cells, TABLES["aiperf"]["fields"]),  # type: ignore[arg-type]
    )


_PHASES = {"concurrency": "", "poisson": "poisson", "constant": "constant", "gamma": "gamma", "request_rate": "poisson"}
"""AIPerf phase type -> arrival process if the phase has a rate."""


def _phase(setup: Record, place: str) -> dict[str, object]:
    """Load of the phase that AIPerf reports (``phases`` since 0.10), with its kind as ``arrival_pattern``."""
    kept = [one for one in objects_at(setup, "phases") if one.get("exclude_from_results") is not True]
    if not kept:
        return {}
    kind = str(kept[0].get("type", "")).lower()
    if len(kept) > 1 or kind not in _PHASES:
        what = f"type '{kind}' is not one of {', '.join(_PHASES)}" if len(kept) == 1 else f"{len(kept)} are reported"
        raise TraceError(f"{place}: input_config.phases: {what}; a result of one such phase is read")
    load = {"concurrency": None, "request_rate": None, "rate": None, **kept[0]}
    return load | ({"arrival_pattern": _PHASES[kind]} if _PHASES[kind] else {})


def inference_perf_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read a lifecycle summary of inference-perf (``summary_lifecycle_metrics.json`` or one stage's), seconds.

    TPOT is derived here: (latency - TTFT) / (tokens - 1). ``config.yaml`` beside the file gives load, lengths and
    prompts; ``exp-config.yaml`` above it the server's limits.
    """
    cells, measured = Cells(result, place), _measured("inference-perf", Cells(result, place))
    setup_file, server_file = file.parent / "config.yaml", file.parent.parent / "exp-config.yaml"
    setup, engine = Cells(_yaml(setup_file), str(setup_file)), Cells(_yaml(server_file), str(server_file))
    prefix = Cells(object_at(setup.values, "data.shared_prefix"), f"{setup_file}: shared_prefix")
    stages = _stages(list_at(setup.values, "load.stages"), f"{setup_file}: load.stages")
    stage = file.name.removeprefix("stage_").partition("_")[0]
    if file.name.startswith("stage_") and stage.isdigit() and int(stage) < len(stages):
        stages = [stages[int(stage)]]
    facts = facts_of(cells, TABLES["inference-perf"]["fields"])
    outputs = prefix.count("output_len") or cells.rounded("successes.output_len.mean")
    if outputs and outputs > 1 and "mean_e2el_ms" in measured and "mean_ttft_ms" in measured:
        measured["mean_tpot_ms"] = (measured["mean_e2el_ms"] - measured["mean_ttft_ms"]) / (outputs - 1)
    groups, each, shared = (
        prefix.count(f"{name}") for name in ("num_groups", "num_prompts_per_group", "system_prompt_len")
    )
    failed, completed = cells.number("failures.count") or 0, cells.count("successes.count")
    return MeasuredRun(
        name=f"{file.parent.parent.name} {file.stem.removesuffix('_lifecycle_metrics')}".strip(),
        place=place,
        model=engine.text("model") or setup.text("server.model_name"),
        framework=setup.text("server.type"),
        tensor_parallel=engine.count("tensor_parallelism"),
        process="poisson" if setup.text("load.type") == "poisson" else "constant",
        stages=tuple(stages),
        num_requests=completed if not stages else None,
        pool=PromptPool(groups * each, groups, shared) if groups and each and shared else None,
        max_num_seqs=engine.count("max_num_seqs"),
        max_num_batched_tokens=engine.count("max_num_batched_tokens"),
        max_model_len=engine.count("max_model_len"),
        measured=measured,
        unusable=f"{failed:.0f} requests failed" if completed is None or failed > 0.01 * completed else None,
        **facts | {"output_tokens": outputs},  # type: ignore[arg-type]
    )


def guidellm_runs(result: Record, place: str, file: Path) -> Iterator[MeasuredRun]:
    """Benchmarks of a GuideLLM report."""
    for number, benchmark in enumerate(list_at(result, "benchmarks")):
        cells = Cells(benchmark, f"{place}: benchmarks[{number}]")
        if not object_at(benchmark, "metrics"):
            raise TraceError(f"{cells.place}: an object with metrics expected")
        measured = _measured("guidellm", cells)
        if "mean_itl_ms" in measured:
            measured["mean_tpot_ms"] = measured["mean_itl_ms"]
        strategy = cells.at(
            "config.strategy" if object_at(benchmark, "config.strategy") else "args.strategy", "strategy"
        )
        kind = strategy.text("type_") or strategy.text("type") or ""
        process = {"constant": "constant", "async": "constant", "poisson": "poisson"}.get(kind, "closed-loop")
        streams = 1 if kind == "synchronous" else strategy.count("streams") or strategy.count("max_concurrency")
        yield MeasuredRun(
            name=f"{file.stem} {number}",
            place=cells.place,
            process=process,
            request_rate=None if process == "closed-loop" else strategy.positive("rate"),
            max_concurrency=streams if process == "closed-loop" else None,
            measured=measured,
            **facts_of(cells, TABLES["guidellm"]["fields"]),  # type: ignore[arg-type]
        )


def _stages(listed: Sequence[object], place: str) -> list[tuple[float, float]]:
    stages = []
    for number, stage in enumerate(listed):
        cells = Cells(stage, f"{place}[{number}]")
        rate, duration = cells.positive("rate"), cells.positive("duration")
        if rate is None or duration is None:
            raise TraceError(f"{cells.place}: a rate and a duration above 0 expected")
        stages.append((rate, duration))
    return stages


def _flat(holder: Record) -> dict[str, object]:
    """Leaf values of nested mappings by key; for equal keys, the outermost value is used."""
    flat: dict[str, object] = {}
    for key, value in holder.items():
        flat = {**_flat(value), **flat} if isinstance(value, dict) else flat | {key: value}
    return flat


def _yaml(file: Path) -> object:
    if not file.is_file():
        return {}
    from yaml import YAMLError

    from forerun.yaml_files import parse

    try:
        return parse(read_text(file))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise TraceError(f"{file}: not readable as YAML ({str(error)[:80]})") from None
