"""Result files of benchmark clients: vLLM and SGLang, AIPerf and GenAI-Perf, inference-perf, GuideLLM, and plain text.

``formats.yaml`` names their fields; this module derives values from several fields. Every reader raises TraceError for
a field of a wrong type or in an unknown unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from traces.benchmark_results.names import TABLES, Row, amount, results_of
from traces.benchmark_results.run import STATISTICS, MeasuredRun, PromptPool, facts_of
from traces.benchmark_results.text import blocks_in, tables_in
from traces.errors import TraceError
from traces.fields import (
    TIME_WORDS,
    UNITS_PER_SECOND,
    Cells,
    Record,
    candidates,
    list_at,
    object_at,
    objects_at,
    value_at,
)
from traces.files import json_value, read_text


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
            stated_unit = column.unit or cells.text(key.replace("STATISTIC", table.get("unit", "unit"))) or "ms"
            stated_unit = stated_unit.removesuffix("/token")
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
    none_completed = Cells(result, place).number("completed") == 0
    cells = Cells({**result, "completed": None} if none_completed else result, place)
    backend = (cells.text("backend") or "").lower()
    sglang = "mean_e2e_latency_ms" in result or backend.startswith("sglang") or backend in ("engine", "runtime")
    measured = {
        name: value for name, value in _measured("vllm-bench", cells).items() if not (sglang and "_itl_" in name)
    }
    concurrency, throughput = cells.count("max_concurrency"), measured.get("request_throughput")
    unlimited = cells.text("request_rate") in (None, "inf", "trace", "Infinity")
    rate, burstiness = None if unlimited else cells.positive("request_rate"), cells.positive("burstiness")
    facts = facts_of(cells, TABLES["vllm-bench"]["fields"])
    detailed = isinstance(result.get("input_lens"), list)
    engine, notes = cells.text("framework"), [str(note) for note in list_at(result, "notes")]
    if rate and concurrency and throughput and throughput < HELD_BACK * rate:
        notes.append(
            f"{throughput:g} of {rate:g} requests/s were served: the limit of {concurrency} at once is the load"
        )
        rate = None
    if rate is None:
        process = "closed-loop" if concurrency else "burst" if "request_rate" in result else None
    else:
        process = "gamma" if burstiness not in (None, 1.0) else "poisson"
    if engine is None and backend:
        engine = next((name for name, pattern in _BACKENDS.items() if re.match(pattern, backend)), backend)
        if backend.startswith("openai") or (backend == "vllm" and not sglang):
            engine = None
            notes.append(f"backend '{backend}' is the client's protocol; the scenario names the engine")
    notes += _both_limits(concurrency, rate)
    if others := _other_keys(result):
        notes.append(f"not read: {', '.join(others[:8])}{' ...' if len(others) > 8 else ''}")
    cache, failed, completed = cells.text("kv_cache_dtype"), cells.number("failed") or 0, cells.count("completed")
    for name, total in (("input_tokens", "total_input_tokens"), ("output_tokens", "total_output_tokens")):
        facts[name] = None if detailed else cells.rounded(name) or _mean(cells, total, facts["num_requests"])
    return MeasuredRun(
        name=cells.text("run") or file.stem, place=place, framework=engine or ("sglang" if sglang else None),
        process=process, request_rate=rate, burstiness=burstiness if process == "gamma" else None,
        max_concurrency=concurrency if process == "closed-loop" else None, trace=str(file) if detailed else None,
        trace_format="vllm-bench" if detailed else "auto", kv_cache_dtype=None if cache == "auto" else cache,
        settings={"engine.cuda_graphs": False} if cells.flag("enforce_eager") else {}, measured=measured,
        notes=tuple(notes), unusable="no request completed" if none_completed else too_many_failed(failed, completed),
        **_drafting(cells), **facts)  # type: ignore[arg-type]  # fmt: skip


_BACKENDS = {"sglang": "sglang|engine|runtime", "trtllm": "trt|tensorrt|pytorch|_autodeploy"}
"""Engines by what clients call them: SGLang's offline benchmark, and the runtimes of trtllm-bench."""


def too_many_failed(failed: float, completed: int | None) -> str | None:
    """Reason to skip a run if more than 1 % of its requests failed."""
    return f"{failed:.0f} requests failed" if failed > 0.01 * (completed or 0) else None


HELD_BACK = 0.9
"""Share of the rate below which a client with a limit of requests at once is a closed loop."""


def text_runs(text: str, file: Path) -> Iterator[MeasuredRun]:
    """Read what a benchmark printed, or a table of any names: Markdown, boxed or CSV.

    Raises:
        TraceError: no figure in it, or one that cannot be read.
    """
    if blocks := blocks_in(text, file):
        for number, (place, cells) in enumerate(blocks):
            own = _loadgen(cells, place) if "SUT name" in cells else cells
            own = {"run": f"{file.stem} {number}", **own} if len(blocks) > 1 else own
            yield from named_runs([(place, own)], file, printed=True)
        return
    tables = tables_in(text, file)
    for rows in tables:
        if all(isinstance(value, Mapping) for value in rows[0][1].values()):
            yield aiperf_run(rows[0][1], rows[0][0], file)
        elif {"test", "t/s"} <= set(rows[0][1]):
            device = re.search(r"Device 0: ([^,\n]+)", text)
            gpu = {"gpu_info": device[1]} if device else {}
            yield from (llama_bench_run({**gpu, **cells}, place, file) for place, cells in rows)
        else:
            yield from named_runs(rows, file, printed=False)
    if not tables:
        start = (
            "an HTML page" if text.lstrip()[:9].lower() in ("<!doctype", "<html>") else "no table or block of results"
        )
        raise TraceError(f"{file}: {start}: no latency or throughput in it (TTFT, TPOT, ITL, E2E latency, tokens/s)")


def named_runs(rows: Sequence[Row], file: Path, printed: bool) -> Iterator[MeasuredRun]:
    """Runs of rows by the names in them, which need not be those of one client."""
    for number, (place, result, notes) in enumerate(results_of(rows, printed)):
        if lengths := result.pop("lengths", None):
            parts = (amount(part, f"{place}: {lengths}") for part in re.split(r"\s*[/|x,]\s*", str(lengths)))
            pair = [one[0] * (1024 if (one[1] or "").lower() == "k" else 1) for one in parts if one]
            notes += ["lengths in k are multiples of 1,024 tokens"] if "k" in str(lengths).lower() else []
            result |= dict(zip(("input_tokens", "output_tokens"), pair, strict=False))
        rates = ("request_throughput", "output_throughput", "total_token_throughput")
        served, made, whole = (Cells(result, place).number(name) or 0.0 for name in rates)
        for kind, rate in (("output_tokens", made), ("input_tokens", whole - made if made else 0.0)):
            if served > 0 and rate > 0 and not {kind, f"total_{kind}"} & set(result):
                result[kind] = rate / served
                notes.append(f"{kind.replace('_', ' ')} {rate / served:.0f}: token throughput over request throughput")
        pattern, drafter = str(result.pop("profile", "")).lower(), result.pop("speculation", None)
        chip = re.sub(r"^(.*?)\s*[x×]\s*(\d+)$", r"\2 x \1", str(result.get("hw", "")))
        if chips := re.fullmatch(r"(\d+)\s*[x×]\s*(.+)", chip):
            result = {"tensor_parallel_size": chips[1], **result, "hw": chips[2]}
        if printed and "failed" in result and not {"request_rate", "max_concurrency"} & set(result):
            result["request_rate"] = "inf"
            notes.append("neither a rate nor a limit was printed: all requests are sent at once")
        run = vllm_run({**result, "notes": notes}, place, file)
        run = replace(run, process="constant") if run.process == "poisson" and pattern in ("constant", "async") else run
        run = replace(run, speculation=str(drafter)) if drafter else run
        yield replace(run, name=f"{run.name} {number}") if len(rows) > 1 and "run" not in result else run


def _loadgen(cells: Mapping[str, object], place: str) -> dict[str, object]:
    """Summary of MLPerf's load generator under names that ``name_of`` reads.

    Its target is no load of an offline run, and the latencies of one are those of the whole batch.
    """
    kind = str(cells.get("Scenario", "")).replace(" ", "")
    rate = cells.get("Scheduled samples per second", cells.get("target_qps"))
    load: dict[str, dict[str, object]] = {
        "Offline": {"request rate": "inf", "completed": cells.get("samples_per_query")},
        "Server": {"request rate": rate},
        "SingleStream": {"max concurrency": 1},
    }
    if kind not in load:
        raise TraceError(f"{place}: Scenario: '{kind}' is not one of {', '.join(load)}")
    dropped = ("target_qps", "samples_per_query", "Scenario", "SUT name", "Scheduled samples per second")
    kept = {name: value for name, value in cells.items()
            if name not in dropped and not (kind == "Offline" and "latency" in name)}  # fmt: skip
    if model := re.match(r"(.*\d+b[^ ]*?)[-_](?:offline|server|sut)", str(cells.get("SUT name", "")), re.IGNORECASE):
        kept["model"] = model[1]
    return {**kept, **load[kind], "run": f"MLPerf {kind}"}


def layout_of(tp: int, pp: int = 1, dp: int = 1, ep: int = 1, replicas: int = 1) -> dict[str, int]:
    """Fields of hardware for sizes as vLLM has them; where experts are shared, ``dp`` are groups of attention."""
    groups, engines = (dp, replicas) if ep > 1 else (1, replicas * dp)
    layout = {"tensor_parallel": tp, "pipeline_parallel": pp, "expert_parallel": max(ep, tp * groups) if ep > 1 else 1,
              "attention_data_parallel": groups, "replicas": engines}  # fmt: skip
    return {name: size for name, size in layout.items() if size > 1 or name == "tensor_parallel"}


def _deployment(pools: Mapping[str, dict[str, int]]) -> dict[str, Any]:
    """Fields of a run for its layouts by role: one, or pools of prefill and decode."""
    if set(pools) == {"prefill", "decode"}:
        return {"settings": {"pools": {role: {"role": role, "hardware": own} for role, own in pools.items()}}}
    fields = dict(next(iter(pools.values()), {}))
    groups = fields.pop("attention_data_parallel", None)
    return {**fields, "data_parallel_attention": groups}


def inferencex_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read an aggregate of InferenceX: throughputs are per chip, and its client draws 80 to 100 % of the lengths."""
    cells, pools, chips = Cells(result, place), {}, dict[str, int]()
    measured, facts = _measured("inferencex", cells), facts_of(cells, TABLES["inferencex"]["fields"])
    for role in ("prefill_", "decode_") if cells.flag("is_multinode") else ("",):
        tp, ep, pp, workers = (cells.count(role + name) or 1 for name in ("tp", "ep", "pp", "num_workers"))
        chips[role] = cells.count(f"num_{role}gpu") or tp * pp
        each = chips[role] // workers
        spread = cells.flag(f"{role}dp_attention") and each > 1
        sizes = (1, 1, each, each) if spread else (tp, each // tp or 1, 1, ep)
        pools[role.rstrip("_")] = layout_of(*sizes, workers)
    for metric, name, count in (("total_token_throughput", "tput_per_gpu", sum(chips.values())),
                                ("output_throughput", "output_tput_per_gpu", [*chips.values()][-1])):  # fmt: skip
        measured |= {metric: value * count} if (value := cells.positive(name)) else {}
    for name, length in (("input_tokens", cells.count("isl")), ("output_tokens", cells.count("osl"))):
        facts[name] = (max(1, round(0.8 * length)), length) if length else None
    facts |= {"speculation": facts["speculation"] or "none", "num_requests": 10 * (cells.count("conc") or 1)}
    notes = ("lengths of 80 to 100 % of those name_of, and ten requests per stream, as its client sends them",)
    return MeasuredRun(file.stem.removeprefix("agg_"), place, process="closed-loop", measured=measured, notes=notes,
                       **_deployment(pools), **facts)  # type: ignore[arg-type]  # fmt: skip


def llmd_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read a benchmark report of llm-d: 0.1 lists hosts and engines, 0.2 components of a stack."""
    at = "metrics" if "metrics" in result else "results.request_performance.aggregate"
    cells, scenario = Cells(result, place).at(at), object_at(result, "scenario")
    stack = [one for one in objects_at(scenario, "stack") if value_at(one, "standardized.kind") == "inference_engine"]
    hosts = [{**object_at(one, "standardized"), "args": object_at(one, "native.args")} for one in stack]
    if not hosts:
        listed = (list_at(scenario, "host.type"), objects_at(scenario, "host.accelerator"),
                  objects_at(scenario, "platform.engine"))  # fmt: skip
        hosts = [{"role": role, "accelerator": chip, "tool": engine.get("name"), "tool_version": engine.get("version"),
                  "args": engine.get("args")} for role, chip, engine in zip(*listed, strict=False)]  # fmt: skip
    pools: dict[str, dict[str, int]] = {}
    for host in (Cells(one, place) for one in hosts):
        tp, pp, dp, ep = (host.count(f"accelerator.parallelism.{one}") or 1 for one in ("tp", "pp", "dp", "ep"))
        own = layout_of(tp, pp, dp, ep, host.count("replicas") or 1)
        again = pools.get(role := host.text("role") or "replica")
        pools[role] = own | ({"replicas": again.get("replicas", 1) + own.get("replicas", 1)} if again else {})
    first = Cells(hosts[0] if hosts else {}, place)
    tool, model = (first.text("tool") or "").lower(), Cells(scenario, place).text("model.name")
    arguments = Cells(_plain_names(object_at(first.values, "args"), place), f"{place}: args")
    engine = {name: facts_of(arguments, {name: TABLES["vllm-bench"]["fields"][name]})[name] for name in _LIMITS}
    sent = {name: value for name, value in _flat(object_at(scenario, "load")).items() if value not in (inf, "inf")}
    load = facts_of(Cells(sent, f"{place}: load"), TABLES["llm-d"]["load"])
    measured, notes = _per_token(_measured("llm-d", cells), cells.rounded("requests.output_length.mean"))
    of_llmd = tool.startswith("llm-d")
    failed = too_many_failed(cells.number("requests.failures") or 0, cells.count("requests.total"))
    return MeasuredRun(
        file.stem, place, model=model or first.text("model.name"), chip=first.text("accelerator.model"),
        framework="vllm" if of_llmd else tool or None,
        framework_version=None if of_llmd else first.text("tool_version"),
        process="constant" if load["request_rate"] else "closed-loop" if load["max_concurrency"] else None,
        measured=measured, notes=tuple(notes + ["llm-d's engine is vLLM"] * of_llmd), unusable=failed,
        **_deployment(pools), **engine | load | facts_of(cells, TABLES["llm-d"]["fields"]))  # type: ignore[arg-type]  # fmt: skip


_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_kv_blocks", "block_size", "prefix_caching",
           "chunked_prefill", "weights_dtype", "gpu_memory_utilization")  # fmt: skip


def _per_token(measured: dict[str, float], made: int | None) -> tuple[dict[str, float], list[str]]:
    """Metrics with a TPOT of tokens where the stated one is of stream events, which may hold none or several."""
    if not made or made < 2 or not {"mean_ttft_ms", "mean_e2el_ms", "mean_tpot_ms"} <= set(measured):
        return measured, []
    derived, stated = (measured["mean_e2el_ms"] - measured["mean_ttft_ms"]) / (made - 1), measured["mean_tpot_ms"]
    if derived <= 0 or 0.8 < stated / derived < 1.25:
        return measured, []
    kept = {name: one for name, one in measured.items() if "_tpot_" not in name and "_itl_" not in name}
    note = f"TPOT {stated:.4g} ms and ITL are per stream event: {derived:.4g} ms from latency, TTFT and output length"
    return kept | {"mean_tpot_ms": derived}, [note]


_GGUF_TYPE = re.compile(r"[-_. ]((?:UD-)?I?Q\d(?:_[A-Z0-9]+)*|B?F16|MXFP4)(?: - (\w)\w+)?\b", re.IGNORECASE)


def llama_bench_run(result: Record, place: str, file: Path) -> MeasuredRun:
    """Read a test of llama-bench: prompt tokens a second give the TTFT of one prompt, generated ones its TPOT."""
    cells, test = Cells(result, place), str(result.get("test", ""))
    sizes = {kind: int(count) for kind, count in re.findall(r"(pp|tg|d) ?(\d+)", test)}
    keys = {"pp": "n_prompt", "tg": "n_gen", "d": "n_depth"}
    prompt, made, depth = (sizes.get(kind, cells.rounded(key) or 0) for kind, key in keys.items())
    speed = amount(result.get("t/s", result.get("avg_ts")), f"{place}: t/s") or (0.0, None)
    full = " ".join(filter(None, map(cells.text, ("model_filename", "model", "model_type"))))
    name = re.sub(r"(-\d{5}-of-\d{5})?\.gguf.*$", "", full.replace("\\", "/").rpartition("/")[2])
    stored, settings = _GGUF_TYPE.search(name) or _GGUF_TYPE.search(full), {"engine.entry_point": "offline"}
    if stored:
        settings["weights_dtype"] = "_".join(filter(None, stored.groups())).lower()
    billion = amount((cells.text("params") or "").removesuffix("B"), f"{place}: params")
    gpus, layers = (cells.text("gpu_info") or "").split(", "), cells.number("ngl" if test else "n_gpu_layers")
    tokens = (
        {"mean_e2el_ms": prompt + made}
        if prompt and made
        else {"mean_ttft_ms": prompt}
        if prompt
        else {"mean_tpot_ms": 1}
    )
    behind = f"a prompt behind {depth} tokens of context" if prompt and depth else None
    some = layers is not None and 0 < layers < 90
    return MeasuredRun(
        f"{file.stem} {test or f'pp{prompt}' * (prompt > 0) + f'tg{made}' * (made > 0)}", place,
        model=_GGUF_TYPE.sub("", name).replace(" mostly", "") or None, chip=gpus[0] or None, framework="llama.cpp",
        parameters=cells.positive("model_n_params") or (billion[0] * 1e9 if billion else None),
        pipeline_parallel=len(gpus) if len(gpus) > 1 else None, process="closed-loop", max_concurrency=1,
        max_num_seqs=1, num_requests=3, input_tokens=prompt or depth or 1, output_tokens=made or 1, settings=settings,
        measured={metric: 1e3 * count / speed[0] for metric, count in tokens.items() if speed[0] > 0},
        unusable="layers on the CPU (ngl 0)" if layers == 0 else behind,
        notes=(f"ngl {layers:.0f}: all layers are taken as on the GPU",) if some else ())  # fmt: skip


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


def aiperf_runs(result: Record, place: str, file: Path) -> Iterator[MeasuredRun]:
    """Read an export of AIPerf: of one run, or with ``per_combination_metrics`` of a sweep."""
    for number, one in enumerate(objects_at(result, "per_combination_metrics")):
        swept = {**object_at(one, "metrics"), "input_config": {"loadgen": object_at(one, "parameters")}}
        yield replace(aiperf_run(swept, f"{place}: [{number}]", file), name=f"{file.stem} {number}")
    if "per_combination_metrics" not in result:
        yield aiperf_run({**object_at(result, "metrics"), **result}, place, file)


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
        name=file.stem, place=place, model=names[0] if names else None,
        tokenizer=Cells(setup, place).text("tokenizer.name"), process=process or None, request_rate=rate,
        burstiness=burstiness, max_concurrency=concurrency if rate is None else None,
        measured=_measured("aiperf", cells), notes=tuple(_both_limits(concurrency, rate)),
        **facts_of(cells, TABLES["aiperf"]["fields"]))  # type: ignore[arg-type]  # fmt: skip


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
    setup, engine = Cells(yaml_value(setup_file), str(setup_file)), Cells(yaml_value(server_file), str(server_file))
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
    rate = None if stages else cells.positive("load_summary.requested_rate")
    streams = None if stages else cells.count("load_summary.concurrency")
    process = "poisson" if setup.text("load.type") == "poisson" else "constant"
    unusable = f"{failed:.0f} requests failed" if completed is None or failed > 0.01 * completed else None
    parts = len(list(file.parent.glob("stage_*_lifecycle_metrics.json"))) if not (stages or rate or streams) else 0
    if parts > 1 and not file.name.startswith("stage_"):
        unusable = f"a summary of {parts} stages at rates of their own, which are read beside it"
    return MeasuredRun(
        name=f"{file.parent.parent.name} {file.stem.removesuffix('_lifecycle_metrics')}".strip(), place=place,
        model=engine.text("model") or setup.text("server.model_name"), framework=setup.text("server.type"),
        tensor_parallel=engine.count("tensor_parallelism"),
        process=process if stages or rate else "closed-loop" if streams else None, request_rate=rate,
        max_concurrency=None if stages or rate else streams, stages=tuple(stages),
        num_requests=completed if not stages else None,
        pool=PromptPool(groups * each, groups, shared) if groups and each and shared else None,
        max_num_seqs=engine.count("max_num_seqs"), max_num_batched_tokens=engine.count("max_num_batched_tokens"),
        max_model_len=engine.count("max_model_len"), measured=measured, unusable=unusable,
        notes=("load_summary names the rate, not how requests arrive: evenly spaced",) if rate else (),
        **facts | {"output_tokens": outputs})  # type: ignore[arg-type]  # fmt: skip


def guidellm_runs(result: Record, place: str, file: Path) -> Iterator[MeasuredRun]:
    """Benchmarks of a GuideLLM report."""
    report = Cells(result, place)
    model = next((one for key in ("config.spec.backend.model", "args.model") if (one := report.text(key))), None)
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
        if kind == "throughput" and streams is None:
            process = "burst"
        facts = facts_of(cells, TABLES["guidellm"]["fields"])
        yield MeasuredRun(
            name=f"{file.stem} {number}", place=cells.place, process=process,
            request_rate=strategy.positive("rate") if process in ("constant", "poisson") else None,
            max_concurrency=streams if process == "closed-loop" else None, measured=measured,
            unusable="requests at the times of a trace, which the report does not contain" if kind == "trace" else None,
            **facts | {"model": facts["model"] or model})  # type: ignore[arg-type]  # fmt: skip


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


def yaml_value(file: Path) -> object:
    if not file.is_file():
        return {}
    from yaml import YAMLError

    from forerun.yaml_files import parse

    try:
        return parse(read_text(file))
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise TraceError(f"{file}: not readable as YAML ({str(error)[:80]})") from None
