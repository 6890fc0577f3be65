"""A measured run as a scenario: published names mapped to the catalogue's, values of the run over a base scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from forerun.document import Json
from forerun.errors import ForerunError, did_you_mean
from forerun.yaml_files import packaged
from hwprofiles import chip_names, dtype_bytes, load_chip, machine_name
from hwprofiles.dtypes import dtype_name
from simulator.launch.reading import LOAD_ASSUMED
from simulator.llm.load import architecture_names, catalogue_model, load_architecture, named_dtype, stored_dtype
from simulator.llm.mixers import Recurrent
from simulator.llm.published_names import requantised
from simulator.running.build import build_replica
from simulator.running.metrics.statistics import WeightedSample
from simulator.running.metrics.summary import summarise
from simulator.running.metrics.usage import mean_power_w
from simulator.running.records import RunRecords
from simulator.running.scenario import Scenario, scenario_from, scenario_in
from simulator.running.step_rows import StepTotals
from simulator.timing import load_framework, resolve_weight_dtypes
from simulator.timing.framework import engine_defaults
from simulator.timing.memory import MOST_OF_MEMORY, DoesNotFit
from simulator.workload.generate import RequestStream, generate_requests
from traces import PrefixHashes
from traces.benchmark_results import METRICS, POWER, MeasuredRun, PromptPool, closed_loop_throughput

_NAMES: Json = packaged("simulator.running", "measured_names.yaml")
"""Content of ``measured_names.yaml``: names and limits of engines."""


def framework_name(text: str) -> str | None:
    """``vllm``, ``sglang``, ``trtllm`` or ``tt-metal``, also under an orchestrator such as dynamo; None for another."""
    word = text.strip().lower()
    if word == "generic":
        return word
    if other_engine(word):
        return None
    return next((name for name, pattern in _NAMES["engines"].items() if re.search(pattern, word)), None)


def other_engine(text: str) -> bool:
    """True if a published name denotes an engine without a parameter set."""
    return re.search(_NAMES["other_engines"], text.lower()) is not None


UNKNOWN_RELEASE = "unknown"
"""Release of an engine whose source does not name it."""
DRAFTING_SPREAD = 0.1
"""Spread of equal answers in a closed loop that drafts. Requests accept drafts unequally, so that measured loops are
out of step. Of 37 runs of SGLang's cookbook of 2026 the median error of TTFT is 82 % so and 257 % in step, of TPOT 22
and 29 %; of 13 runs of vLLM on H200 31 and 49, 18 and 21 %. Loops without drafts are in step (17 % in step, 75 % out of
it), and so are attention groups whose cache is full."""
LEAST_WAVES = 10
"""Number of requests per outstanding request if the source does not state how many were sent."""


def with_named_model(run: MeasuredRun, overrides: Sequence[str]) -> MeasuredRun:
    """Run without its unknown model name, if an override states the model; with a note."""
    names = [name for name in (run.model, run.tokenizer) if name is not None]
    stated = next((one.partition("=")[2] for one in overrides if one.startswith("model=")), None)
    if stated is None or not names or any(map(catalogue_model, names)):
        return run
    return replace(run, model=None, notes=(*run.notes, f"the file's model '{names[0]}' is {stated}, as --set states"))


ROOM = 1.1
"""Factor by which measured figures may contradict one another, or exceed the limits of a chip."""


def contradiction(run: MeasuredRun, tokens: float | None = None) -> str:
    """Words on a throughput that a run's latencies and concurrency cannot give (Little's law); empty if they can.

    ``tokens`` of a mean answer are by default those that the run states.
    """
    tokens = tokens or _mean_tokens(run)
    rate, e2el_ms = run.measured.get("output_throughput"), _mean_e2el_ms(run, tokens)
    if not (run.max_concurrency and rate and e2el_ms and tokens):
        return ""
    streams = rate * e2el_ms / 1e3 / tokens
    if streams <= ROOM * run.max_concurrency:
        return ""
    return (
        f"{rate:g} output tokens/s of {tokens:.0f} tokens a request at a mean E2E latency of {e2el_ms:g} ms are "
        f"{streams:.1f} requests at once, and max_concurrency is {run.max_concurrency} (Little's law)"
    )


def _mean_tokens(run: MeasuredRun) -> float | None:
    """Mean output tokens of a run's requests; None if not stated."""
    if run.lengths is not None:
        return float(np.mean(run.lengths[1]))
    return None if run.output_tokens is None else float(np.mean(run.output_tokens))


def _mean_e2el_ms(run: MeasuredRun, tokens: float | None) -> float | None:
    """Measured mean E2E latency, or that of the measured TTFT and TPOT."""
    stated, ttft, tpot = (run.measured.get(f"mean_{name}_ms") for name in ("e2el", "ttft", "tpot"))
    return stated or (ttft + (tokens - 1) * tpot if ttft and tpot and tokens else None)


def with_implied_load(run: MeasuredRun, offered: float | None = None) -> MeasuredRun:
    """Run with the load that its figures imply, if it states none; with a note. Unusable if they imply none.

    Its mean requests at once are throughput times E2E latency (Little's law). Where they are more than half of its
    requests, all were sent at once.

    Args:
        offered: requests per second that the run is taken to have been offered; a load that its throughput may have
            had stays. None = it states no load at all.
    """
    tokens, count = _mean_tokens(run), run.num_requests or 0
    rate, tokens_per_s = (run.measured.get(name) for name in ("request_throughput", "output_throughput"))
    rate = rate or (tokens_per_s / tokens if tokens_per_s and tokens else None)
    if run.process is not None or run.trace is not None:
        return run
    if offered is not None and (not rate or rate <= offered * (1.0 + 3.0 / sqrt(max(count, 1)))):  # 3 deviations
        return run
    e2el_ms = _mean_e2el_ms(run, tokens)
    why = "states neither concurrency nor request rate"
    if offered is not None:
        why += f", and {rate:.3g} requests/s were served, where the scenario's load is {offered:g}"
    if not rate or not e2el_ms:
        return replace(run, unusable=f"{why}; a line such as 'Maximum request concurrency: 16' gives it")
    streams = max(1, round(rate * e2el_ms / 1e3))
    burst = 0 < count < 2 * streams
    words = "all at once" if burst else f"{streams} at once"
    note = f"{run.place}: {why}: taken as {words}, by Little's law on throughput and E2E latency"
    load: Json = {"process": "burst"} if burst else {"process": "closed-loop", "max_concurrency": streams}
    return replace(run, notes=(*run.notes, note), **load)


def own_base(run: MeasuredRun, overrides: Sequence[str]) -> Scenario:
    """Base scenario of a run whose source states enough by itself; ``a.b=value`` overrides supply what it lacks.

    Raises:
        ForerunError: model, chip, load or lengths are stated by neither; the text names the options that do.
    """
    needed = {
        "model": (run.model, "--set model=NAME"),
        "hardware.chip": (run.chip, "--chip NAME"),
        "workload.arrivals": (run.process, "--set 'workload.arrivals={process: closed-loop, max_concurrency: N}'"),
        "workload.input_tokens": (run.input_tokens, "--set workload.input_tokens=N"),
        "workload.output_tokens": (run.output_tokens, "--set workload.output_tokens=N"),
    }
    if run.trace is not None or run.lengths is not None:
        needed = {field: way for field, way in needed.items() if "tokens" not in field}
    lacks = [field for field, (value, _) in needed.items() if value is None and run.process != "trace"
             and not any(override.startswith(field) for override in overrides)]  # fmt: skip
    if lacks:
        ways = " ".join(needed[field][1] for field in lacks)
        names = ", ".join(field.rpartition(".")[2].replace("_", " ") for field in lacks)
        raise ForerunError(f"{run.place}: states no {names}; give {ways}, or a base scenario (--scenario FILE)")
    load: Json = {"arrivals": {"process": "closed-loop", "max_concurrency": 1}, "input_tokens": 1, "output_tokens": 1}
    model = next(filter(None, map(catalogue_model, filter(None, (run.model, run.tokenizer)))), run.model)
    chip = machine_name(run.chip or "") or run.chip
    data: Json = {"model": model, "hardware": {"chip": chip}, "workload": _workload(run, {**load, "num_requests": 256})}
    return scenario_in(data, Path(), run.place, overrides)


def run_scenario(run: MeasuredRun, base: Scenario) -> Scenario:
    """The scenario that repeats a measured run: its values override ``base``. A profile or model file in ``base`` is
    kept if it describes the run's own chip or model.

    Raises:
        ForerunError: a name that the catalogue does not know, or values that make no scenario; the text says which.
    """
    data = base.model_dump(exclude_unset=True)
    hardware, engine = data.setdefault("hardware", {}), data.setdefault("engine", {})
    named: dict[str, tuple[str | None, Callable[[str], str | None], str]] = {
        "chip": (run.chip, machine_name, "chip"),
        "framework": (run.framework, framework_name, "engine"),
        "weights": (run.weights_dtype, dtype_name, "weight format"),
        "kv": (run.kv_cache_dtype, dtype_name, "KV cache format"),
    }
    model, published = _model_of(run, base)
    if model is not None:
        data["model"] = model
        if model != base.model:
            data.pop("weights_dtype", None)
    names: dict[str, str] = {}
    for key, (text, known, what) in named.items():
        if text is not None:
            name = known(text)
            if name is None:
                raise ForerunError(f"{what} '{text}' is not known{_known(key, text)}")
            names[key] = name
    if "weights" in names:
        names["weights"] = stored_dtype(published, names["weights"])
    if "weights" not in names and (stated := named_dtype(run.model or "") or named_dtype(published)):
        names["weights"] = stated
    if "weights" in names and not _own_format(data["model"], names["weights"]):
        data["weights_dtype"] = requantised(load_architecture(data["model"]), names["weights"])
    if "kv" in names:
        data["kv_cache_dtype"] = names["kv"]
    if "chip" in names and load_chip(base.hardware.chip).name != names["chip"]:
        hardware["chip"] = names["chip"]
    if "framework" in names:
        same = "framework" in engine and load_framework(engine["framework"]).kernel_library == names["framework"]
        if run.framework_version is not None or not same:
            engine["framework"] = names["framework"]
        if run.framework_version is not None or not same or "release" not in engine:
            engine["release"] = run.framework_version or UNKNOWN_RELEASE
    facts = _facts(run)
    _refuse_facts_of_pools(base, facts)
    _put(hardware, **facts["hardware"])
    framework = load_framework(engine.get("framework", "vllm"))
    _put(engine, **facts["engine"])
    streams = None if run.data_parallel_attention else run.max_concurrency
    if framework.kernel_library == "sglang" and "pools" not in run.settings and (streams or run.speculation):
        # SGLang's limit of sequences follows from the memory that their states take, and is lower with drafts
        drafts = run.speculation is not None
        most = engine_defaults(framework.name, model=str(data["model"]), drafts=drafts)["max_num_seqs"]
        engine.setdefault("max_num_seqs", most if drafts else min(streams or most, most))
    _set_speculation(data, run)
    if data.get("notes") and not unstated_load(run):
        data["notes"] = [note for note in data["notes"] if LOAD_ASSUMED not in note]
    data["workload"] = _workload(run, data["workload"])
    scenario = scenario_from(data, run.place)
    return scenario.with_values(dict(run.settings)) if run.settings else scenario


def _facts(run: MeasuredRun) -> dict[str, Json]:
    """Numbers and switches of the server that a run states, by section and field; None if not stated."""
    return {
        "hardware": {"tensor_parallel": run.tensor_parallel, "pipeline_parallel": run.pipeline_parallel,
                     "expert_parallel": run.expert_parallel, "attention_data_parallel": run.data_parallel_attention,
                     "replicas": run.replicas},
        "engine": {"max_num_seqs": run.max_num_seqs, "max_num_batched_tokens": run.max_num_batched_tokens,
                   "max_model_len": run.max_model_len, "num_kv_blocks": run.num_kv_blocks,
                   "block_size": run.block_size, "gpu_memory_utilization": run.gpu_memory_utilization,
                   "enable_prefix_caching": run.prefix_caching, "enable_chunked_prefill": run.chunked_prefill},
    }  # fmt: skip


SAME_SIZE = 0.02
"""Largest relative difference of parameter counts at which an unknown name is the scenario's model."""


def _model_of(run: MeasuredRun, base: Scenario) -> tuple[str | Json | None, str]:
    """The catalogue's name of a run's model, or the scenario's where it is the same, and its published name.

    If the server has its own name for the model, the tokenizer's name counts.

    Raises:
        ForerunError: a model that the catalogue does not know and that is not the scenario's.
    """
    if run.model is None:
        return None, ""
    for published in filter(None, (run.model, run.tokenizer)):
        name = catalogue_model(published)
        if name is not None:
            return (base.model if _same_model(base.model, name) else name), published
    own = load_architecture(base.model)
    if isinstance(base.model, str) and run.model.rsplit("/", 1)[-1].lower() == own.name:
        return base.model, run.model
    if run.parameters and abs(own.parameters().total / run.parameters - 1) < SAME_SIZE:
        return base.model, run.model
    way = "; a server's own name for a model: leave the scenario out and give --chip and --set model=NAME"
    raise ForerunError(f"model '{run.model}' is not known{_known('model', run.model)}{way}")


def _same_model(own: str | Json, name: str) -> bool:
    """True if a scenario's model has the layers of the catalogue's model ``name``, whatever its formats."""
    one, other = load_architecture(own), load_architecture(name)
    return own == name or (
        (one.layer_groups, one.hidden_size, one.vocab_size) == (other.layer_groups, other.hidden_size, other.vocab_size)
        and (not isinstance(own, str) or catalogue_model(own) in (None, name))
    )


def _refuse_facts_of_pools(base: Scenario, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a fact of the file that a pool of the scenario would hide."""
    for pool, section in base.pools.items() if base.pools else ():
        for part, values in facts.items():
            own = getattr(section, part)
            hidden = next(
                (key for key, value in values.items() if value is not None and own.get(key, value) != value), None
            )
            if hidden is not None:
                raise ForerunError(
                    f"pools.{pool}.{part}.{hidden}: is {own[hidden]} in the scenario, {values[hidden]} in the file; "
                    f"remove it from the pool, or {hidden} from the file"
                )


_UNITS = ("model", "weights_dtype", "workload.arrivals", "workload.input_tokens", "workload.output_tokens",
          "speculation.acceptance")  # fmt: skip
"""Fields of a scenario that a run states as a whole."""


def overridden(run: MeasuredRun, base: Scenario, scenario: Scenario) -> list[str]:
    """Remark on values of a run that differ from its base scenario. Every field that the base sets equals the run's, or
    is named here, or is refused.

    Raises:
        ForerunError: a field of the base that has no effect on this run.
    """
    chosen, after = _leaves(base.model_dump(exclude_unset=True, exclude={"notes"})), _leaves(scenario.model_dump())
    before = _leaves(base.model_dump())
    facts = [(f"{part}.{name}", one) for part, values in _facts(run).items() for name, one in values.items()]
    stated = {path for path, value in facts if value is not None}
    stated |= {"weights_dtype", "kv_cache_dtype", *run.settings}
    replaced = ["weights_dtype"] if after["model"] != before["model"] else []
    if run.trace is not None or run.input_tokens is not None:
        replaced += [f"workload.{name}" for name in (*_FROM_FILE, *_OF_TRACES)]
    without = run.speculation is not None and scenario.speculation is None
    changes = []
    for path in dict.fromkeys([*chosen, *(one for one in after if one in stated)]):
        value, optional = before.get(path), path not in chosen
        if after.get(path) == value or (value is None and not optional):
            continue
        if optional:
            changes.append(f"{path} {_words(after[path])} ({'default' if value is None else _words(value)})")
            continue
        if after.get(path) is None and path not in replaced and not (without and path.startswith("speculation")):
            raise ForerunError(f"{path}: has no effect on the run of this file; remove it from the scenario")
        changes.append(f"{path} {_words(after.get(path))} ({_words(value)})")
    return [f"from the file; in parentheses what it replaces: {', '.join(changes)}"] if changes else []


def _leaves(data: Mapping[str, Any], place: str = "") -> Json:
    leaves: Json = {}
    for name, value in data.items():
        path = f"{place}{name}"
        if isinstance(value, dict) and path not in _UNITS:
            leaves |= _leaves(value, f"{path}.")
        elif isinstance(value, dict):
            leaves[path] = {
                key: one for key, one in value.items() if one is not None and (key, one) != ("rate_scale", 1.0)
            }
        else:
            leaves[path] = value
    return leaves


def _words(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(str(one) for one in value.values() if one is not False)[:60]
    return "none" if value is None else str(value)[:60]


def simulate_measured(
    simulate: Callable[..., RunRecords], run: MeasuredRun, base: Scenario, seed: int = 0, **options: Any
) -> tuple[RunRecords, dict[str, float], list[str]]:
    """Simulate a measured run with ``simulate``, to which the options go.

    Returns:
        The result, predictions of the metrics of ``traces.benchmark_results.METRICS``, and notes.

    Raises:
        ForerunError, hwprofiles.ProfileError, traces.TraceError: the run cannot be simulated; the text says why.
    """
    scenario = run_scenario(run, base)
    stated = overridden(run, base, scenario)
    own = _leaves(scenario.model_dump())
    if missing := unstated_load(run):
        words = ", ".join(f"{name.replace('_', ' ')} {_words(own.get(f'workload.{name}'))}" for name in missing)
        stated.append(f"the file does not state all of the load; from the scenario: {words}")
    speculation = scenario.speculation
    if speculation is not None and speculation.method != "none":
        if run.acceptance_length is None and not run.acceptance_per_position:
            what = "speculation and its acceptance are" if run.speculation is None else "the acceptance of drafts is"
            stated.append(f"{what} the scenario's; the file does not state {'them' if 'and' in what else 'it'}")
        named = (run.speculation or "").replace("_", "-").lower()
        if named and named != speculation.method and not _is_method(named, speculation.method):
            stated.append(f"the scenario's method of drafting, {speculation.method}, in place of the file's {named}")
    stated += _alternatives(run, scenario)
    stream = _stream(run, scenario, seed)
    if speculation is not None and scenario.hardware.attention_data_parallel == 1 and stream.stays_in_step:
        share = np.random.default_rng([seed, 0x57E9]).uniform(1 - DRAFTING_SPREAD, 1 + DRAFTING_SPREAD, len(stream))
        outputs = np.maximum(2, np.round(share * stream.output_tokens)).astype(np.int64)
        stream = replace(stream, output_tokens=outputs)
        stated.append(f"the loop drafts, so its requests are taken out of step: answers vary by {DRAFTING_SPREAD:.0%}")
    if run.chunked_prefill is None and not scenario.engine.enable_chunked_prefill:
        # The engine refuses prompts beyond its budget, so a run that served them cut them.
        longest = int(stream.input_tokens.max()) + (run.max_concurrency or 0)
        if longest > scenario.engine.max_num_batched_tokens:
            scenario = scenario.with_values({"engine.enable_chunked_prefill": True})
            stated.append("prompts beyond the step's budget were served, so chunked prefill is taken as on")
    scenario, notes = _with_room_for_states(run, scenario)
    try:
        result = simulate(scenario, seed, stream=stream, **options)
    except DoesNotFit:
        if run.gpu_memory_utilization is not None or run.num_kv_blocks is not None:
            raise
        scenario = scenario.with_values({"engine.gpu_memory_utilization": MOST_OF_MEMORY})
        notes.append(f"the model fits with {MOST_OF_MEMORY:.0%} of the memory, which the run is taken to have set")
        result = simulate(scenario, seed, stream=stream, **options)
    late_s = _first_batch_s(run, scenario)
    summary = summarise(_with_late_start(result, late_s))
    predicted = {name: float(summary[name]) for name in METRICS if summary.get(name) is not None}
    if run.steady:
        predicted |= steady_figures(result, run.max_concurrency or 1)
    elif POWER in run.measured and (watts := mean_power_w(result, summary["duration"] or 0.0)) is not None:
        predicted[POWER] = watts
    if "output_throughput" in run.derived and run.max_concurrency and run.output_tokens is not None:
        tokens = np.mean(run.output_tokens)
        predicted["output_throughput"] = closed_loop_throughput(
            run.max_concurrency, float(tokens), predicted["mean_ttft_ms"], predicted["mean_tpot_ms"]
        )
    if late_s:
        notes.append(f"the first {run.max_concurrency} prompts are {late_s:g} s late, as in such benchmarks")
    return result, predicted, [*readings(run), *stated, *notes, *result.notes]


def unstated_load(run: MeasuredRun) -> list[str]:
    """Parts of the load that a run leaves to its base scenario."""
    if run.trace is not None or run.lengths is not None:
        return []
    load = {"arrivals": run.process, "input_tokens": run.input_tokens, "output_tokens": run.output_tokens}
    return [name for name, value in load.items() if value is None]


def _alternatives(run: MeasuredRun, scenario: Scenario) -> Iterator[str]:
    """Notes on what a server of this model may have run, if the file does not state it."""
    architecture, hardware = load_architecture(scenario.model), scenario.hardware
    if run.speculation is None and scenario.speculation is None and architecture.mtp is not None:
        yield (
            f"the file does not state whether the server drafts; it is taken not to, though {architecture.name} has a "
            f"head to draft with (speculation.method: mtp)"
        )
    heads = {getattr(group.layer.mixer, "num_kv_heads", None) for group in architecture.layer_groups} - {None}
    chosen = run.data_parallel_attention is not None or "attention_data_parallel" in hardware.model_fields_set
    if heads == {1} and hardware.tensor_parallel > 1 and not chosen and not scenario.pools:
        yield (
            f"the file states no attention groups; each of {hardware.tensor_parallel} chips is taken to hold the KV of "
            f"all sequences, which groups divide (hardware.attention_data_parallel)"
        )


STATE_SHARE, STATES_OF_A_SEQUENCE = 0.9 / 1.9, 5
"""Share of memory for recurrent states in SGLang (``--mamba-full-memory-ratio`` 0.9), and states per cached sequence.

Source: SGLang 0.5, ``MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO`` (3) and ``MAMBA_CACHE_V2_ADDITIONAL_RATIO_OVERLAP``.
"""


def _with_room_for_states(run: MeasuredRun, scenario: Scenario) -> tuple[Scenario, list[str]]:
    """Scenario with the maximum number of sequences whose states fit in SGLang's memory, and a note on it."""
    layers = load_architecture(scenario.model).layer_groups
    keeps_states = any(isinstance(group.layer.mixer, Recurrent) for group in layers)
    share = load_framework(scenario.engine.framework).kv_share_of
    if run.max_num_seqs is not None or not keeps_states or share != "static" or scenario.pools:
        return scenario, []
    memory = build_replica(scenario.with_values({"engine.max_num_seqs": 1}), seed=0).main.memory
    budget = scenario.engine.gpu_memory_utilization * memory.capacity_bytes
    left = budget - memory.weight_bytes - memory.draft_weight_bytes
    counted = STATES_OF_A_SEQUENCE if scenario.engine.enable_prefix_caching else 1
    places = max(1, int(STATE_SHARE * left / memory.state_bytes / counted))
    if places >= scenario.engine.max_num_seqs:
        return scenario, []
    return scenario.with_values({"engine.max_num_seqs": places}), [f"states of {places} sequences fit at once"]


def _first_batch_s(run: MeasuredRun, scenario: Scenario) -> float:
    """Delay of the first prompts in a measured closed loop of a mixture (``Framework.first_batch_s``)."""
    several = run.process == "closed-loop" and (run.max_concurrency or 1) > 1
    if not several or run.steady or scenario.engine.entry_point != "server":
        return 0.0
    chip, architecture = load_chip(scenario.hardware.chip), load_architecture(scenario.model)
    stored = resolve_weight_dtypes(architecture, scenario.weights_dtype)["expert"]
    fp4, late_s = chip.compute.multiplies_fp4, load_framework(scenario.engine.framework).first_batch_s
    if not architecture.parameters().expert or (fp4 and dtype_bytes(stored) < 1):
        return 0.0
    own = late_s.get(chip.vendor, 0.0)
    return late_s.get(f"{chip.vendor}-fp4", own) if fp4 else own


def _with_late_start(result: RunRecords, late_s: float) -> RunRecords:
    """A run whose first requests have already waited."""
    if not late_s:
        return result
    arrival_s = result.requests.arrival_s
    waited_s = np.where(arrival_s == arrival_s.min(initial=np.inf), arrival_s - late_s, arrival_s)
    return replace(result, requests=replace(result.requests, arrival_s=waited_s))


def steady_figures(result: RunRecords, places: int) -> dict[str, float]:
    """Median ITL, output tokens per second and power of a closed loop with all places taken. The first requests of the
    places do not count; empty for a loop that ends before."""
    arrivals = np.sort(result.requests.arrival_s)
    start_s, end_s = arrivals[min(places, len(arrivals) - 1)], arrivals[-1]
    steps = result.steps.take(np.flatnonzero((result.steps.start_s >= start_s) & (result.steps.start_s < end_s)))
    if not len(steps):
        return {}
    totals = StepTotals.none(result.totals.peak_flops_per_s.tolist(), result.totals.bandwidth_bytes_per_s.tolist())
    totals.add(steps)
    watts = mean_power_w(replace(result, totals=totals), end_s - start_s)
    gaps_ms = WeightedSample.of(1e3 * steps.seconds / steps.steps, steps.decode_seqs * steps.steps)
    figures = {"output_throughput": float(totals.output_tokens.sum()) / (end_s - start_s)}
    return figures | {"median_itl_ms": gaps_ms.median()} | ({} if watts is None else {POWER: watts})


def readings(run: MeasuredRun) -> list[str]:
    """Catalogue names of a run that are not contained in the published ones."""
    chip = (machine_name(run.chip or "") or "").removesuffix("-sxm")
    model = catalogue_model(run.model or "") or catalogue_model(run.tokenizer or "" if run.model else "")
    read = [("model", run.model, model), ("chip", run.chip, chip)]
    plain = re.compile(r"[^a-z0-9]+")
    return [
        f"{what} '{text}' read as {name}"
        for what, text, name in read
        if text and name and plain.sub("", name) not in plain.sub("", text.lower())
    ]


def _known(key: str, text: str) -> str:
    if key == "model":
        return did_you_mean(text.rsplit("/", 1)[-1].lower(), architecture_names()) + " (forerun models list)"
    if key == "chip":
        return did_you_mean(text.lower(), chip_names()) + " (forerun chips list)"
    return " (one of vllm, sglang, trtllm, tt-metal or generic)" if key == "framework" else ""


def _own_format(model: Any, dtype: str) -> bool:
    """True if a format is the published checkpoint's, whose parts the catalogue lists. Tables call gpt-oss FP4, though
    only its experts are in MXFP4, and DeepSeek's block format FP8."""
    own = load_architecture(model).checkpoint_dtypes.get("expert")
    return [dtype, own] in _NAMES["checkpoint_formats"]


def _put(section: Json, **values: object) -> None:
    section.update({name: value for name, value in values.items() if value is not None})


def _is_method(text: str, method: str) -> bool:
    """True if a published name of a way to draft is that of ``method``."""
    return re.search(_NAMES["speculation"].get(method, "(?!)"), text) is not None


def _set_speculation(data: Json, run: MeasuredRun) -> None:
    """Set the speculation that a run states in the base scenario: none, or the run's depth and acceptance.

    If the base has no drafter, a method that drafts with the model's own heads needs only depth and acceptance.
    """
    if run.speculation is not None and run.speculation.lower() in ("none", "off"):
        data.pop("speculation", None)
        return
    section = data.get("speculation")
    drafts = isinstance(section, dict) and section.get("method") != "none"
    if not drafts and run.speculation is None:
        if run.acceptance_length is not None or run.acceptance_per_position:
            length = run.acceptance_length or sum(run.acceptance_per_position, 1.0)
            raise ForerunError(
                f"the server drafted (acceptance length {length:.2f}), and the scenario does not say how; "
                f"give it speculation.method and speculation.num_speculative_tokens"
            )
        return
    if not drafts:
        named = [method for method in _NAMES["speculation"] if _is_method(str(run.speculation).lower(), method)]
        if not named or run.num_speculative_tokens is None or run.acceptance_length is None:
            lacks = "" if not named else ", and the run does not tell its depth and acceptance"
            raise ForerunError(
                f"speculation '{run.speculation}': the scenario has no speculation block that describes it{lacks}"
            )
        section = data["speculation"] = {"method": named[0]}
    assert isinstance(section, dict)
    if section.get("tree") is None:
        _put(section, num_speculative_tokens=run.num_speculative_tokens)
    rates = np.minimum.accumulate(run.acceptance_per_position).tolist()
    if rates and len(rates) == section.get("num_speculative_tokens") and section.get("tree") is None:
        section["acceptance"] = {"per_position": rates}
    elif run.acceptance_length is not None:
        section["acceptance"] = {"acceptance_length": run.acceptance_length}


_FROM_FILE = ("arrivals", "input_tokens", "output_tokens", "num_requests")
_OF_TRACES = ("trace", "format", "columns", "on_error", "skip_requests")


def _workload(run: MeasuredRun, base: Json) -> Json:
    arrivals: Json | None = dict(base["arrivals"]) if base.get("arrivals") else None
    if run.process == "closed-loop" and run.max_concurrency is None:
        raise ForerunError("its concurrency is not known")
    if run.process not in (None, "trace"):
        arrivals = {"process": run.process}
        rate = run.request_rate or (run.stages[0][0] if run.stages else None)
        if run.process in ("poisson", "gamma", "constant"):
            arrivals["request_rate"] = rate
        _put(arrivals, max_concurrency=run.max_concurrency, burstiness=run.burstiness)
    inputs, outputs = _lengths(run.input_tokens), _lengths(run.output_tokens)
    if run.trace is None and inputs is None and outputs is None and base.get("trace") is not None:
        return {**base, **({"arrivals": arrivals} if arrivals else {})}
    kept = {name: value for name, value in base.items() if name not in (*_FROM_FILE, *_OF_TRACES)}
    for name in ("sessions", "speculative_tools"):
        if kept.get(name) is not None:
            raise ForerunError(f"workload.{name}: the requests of the file stand alone; remove it from the scenario")
    if run.trace is not None:
        workload: Json = {**kept, "trace": run.trace, "format": run.trace_format}
        if run.process != "trace" and arrivals is not None:
            workload["arrivals"] = arrivals
        return workload
    count = run.num_requests
    if count is None:
        count = round(sum(rate * seconds for rate, seconds in run.stages)) or int(base.get("num_requests") or 0)
        count = max(count, LEAST_WAVES * (run.max_concurrency or 0))
    return {
        **kept,
        "arrivals": arrivals,
        "input_tokens": base.get("input_tokens") if inputs is None else inputs,
        "output_tokens": base.get("output_tokens") if outputs is None else outputs,
        "num_requests": count or None,
    }


def _lengths(tokens: int | tuple[int, int] | None) -> int | Json | None:
    if tokens is None or isinstance(tokens, int):
        return tokens
    return {"distribution": "uniform", "min": tokens[0], "max": tokens[1]}


def _stream(run: MeasuredRun, scenario: Scenario, seed: int) -> RequestStream:
    """The run's requests. Lengths that its client drew, rates that follow one another and prompts that repeat are laid
    over the drawn ones."""
    stream = generate_requests(scenario.workload, seed)
    if run.lengths is not None:
        stream = replace(stream, input_tokens=run.lengths[0], output_tokens=run.lengths[1])
    if len(run.stages) > 1:
        start, times = 0.0, []
        for rate, seconds in run.stages:
            times.append(start + np.arange(round(rate * seconds)) / rate)
            start += seconds
        stream = replace(stream, arrival_s=np.concatenate(times)[: len(stream)])
    if run.pool is not None and scenario.engine.enable_prefix_caching:
        stream = replace(stream, prefix_hashes=pool_hashes(run.pool, stream.input_tokens, scenario.engine.block_size))
    elif stream.prefix_hashes is None and scenario.engine.enable_prefix_caching:
        stream = replace(stream, prefix_hashes=unshared_hashes(stream.input_tokens, scenario.engine.block_size))
    return stream


def unshared_hashes(input_tokens: np.ndarray[Any, Any], block_tokens: int) -> PrefixHashes:
    """Block ids of prompts that share nothing. A preempted request may still find blocks of its own when it comes back.

    Source: vLLM V1 frees a preempted request's blocks with their hashes, the last first (``Scheduler._preempt_request``
        and ``KVCacheManager.free``, v0.9 to v0.11), so that it finds what nobody has taken meanwhile.
    """
    blocks = -(-np.asarray(input_tokens, dtype=np.int64) // block_tokens)
    offsets = np.concatenate(([0], np.cumsum(blocks)))
    return PrefixHashes(offsets, np.arange(offsets[-1]), block_tokens)


def pool_hashes(pool: PromptPool, input_tokens: np.ndarray[Any, Any], block_tokens: int) -> PrefixHashes:
    """Block ids of requests that take their prompts round robin from a pool."""
    tokens = np.asarray(input_tokens, dtype=np.int64)
    prompt = np.arange(len(tokens)) % pool.prompts
    return PrefixHashes.of_groups(tokens, pool.shared_tokens, prompt % pool.groups, prompt, block_tokens)
