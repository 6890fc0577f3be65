"""Exports of a scenario: engine files, Kubernetes objects, and benchmark commands for checking a prediction.

Each artefact is a function of the scenario. Its fields follow its consumer's documentation, cited with the version;
settings that the consumer cannot express become a comment at the top.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import yaml

from forerun.errors import ArgumentError, ForerunError, did_you_mean
from simulator.launch.endpoint_picker import endpoint_picker_text
from simulator.launch.tables import table
from simulator.running.build import build_run
from simulator.running.scenario import Scenario
from simulator.speculation.methods import names_in
from simulator.speculation.speculation_config import check_table
from simulator.studies.engine_flags import (
    checkpoint_name,
    drafter_name,
    engine_command,
    engine_name,
    launch_flags,
    pool_scenarios,
    pools_remark,
    quantisation,
    replica_command,
    replicas_remark,
    stores_remark,
    trtllm_command,
)
from simulator.studies.templates import command_words, render, templates
from simulator.workload import generate_requests
from simulator.workload.generate import conversation

Document = dict[str, Any]
DYNAMO_RUNTIMES = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "trtllm": "dynamo.trtllm"}
URL = "http://localhost:8000"


def artefact(name: str, scenario: Scenario) -> str:
    """Text of the artefact ``name``, ready to paste."""
    if name not in ARTEFACTS:
        raise ArgumentError("emit", f"{name}: no such artefact{did_you_mean(name, ARTEFACTS)} ({', '.join(ARTEFACTS)})")
    return ARTEFACTS[name](scenario)


def llama_cpp(scenario: Scenario) -> str:
    """Command of llama.cpp's server for a scenario that runs on llama.cpp."""
    flags = launch_flags(scenario)
    if "llama.cpp" not in flags:
        framework = scenario.engine.framework
        raise ForerunError(f"emit: llama.cpp: the scenario's engine is {framework}; set engine.framework: llama.cpp")
    return flags["llama.cpp"]


def trtllm(scenario: Scenario) -> str:
    """YAML options of TensorRT-LLM's LLM API."""
    hardware, engine = scenario.hardware, scenario.engine
    kv_dtypes = table("trtllm")["kv_dtype"]
    values = {
        "expert_parallel": hardware.expert_parallel if hardware.expert_parallel > 1 else None,
        "tp_size": hardware.chips_per_stage,
        "attention_dp": True if hardware.attention_data_parallel > 1 else None,
        "kv_dtype": _known(kv_dtypes, scenario.kv_cache_dtype, "kv_cache_dtype", "TensorRT-LLM"),
        "cuda_graphs": {"enable_padding": True, "max_batch_size": engine.max_num_seqs} if engine.cuda_graphs else None,
        "speculation": _trtllm_speculation(scenario),
    }
    remarks = [
        trtllm_command(scenario, "THIS_FILE"),
        *replicas_remark(scenario),
        *stores_remark(scenario),
        *pools_remark(scenario),
    ]
    if hardware.attention_data_parallel > 1 and hardware.tensor_parallel > 1:
        remarks.append("TensorRT-LLM's groups of attention have one chip each")
    quantisation(scenario, "trtllm", remarks)
    text = _yaml("trtllm", scenario, values, remarks)
    return text if engine.cuda_graphs else f"{text}\ncuda_graph_config: null"


def _trtllm_speculation(scenario: Scenario) -> Document | None:
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        return None
    if speculation.tree is not None:
        raise ForerunError("emit: trtllm: trees are not written here; use num_speculative_tokens")
    known = engine_name("trtllm", speculation)
    if known is None and speculation.method in names_in("trtllm"):
        raise ForerunError("emit: trtllm: TensorRT-LLM has no drafts by confidence; choose another speculation.policy")
    kind = _known(names_in("trtllm"), speculation.method, "speculation.method", "TensorRT-LLM")
    drafted = speculation.num_speculative_tokens
    config: Document = {"decoding_type": kind, "max_draft_len": drafted}
    if kind == "MTP":  # 1.3 wants max_draft_len, and 1.0 the modules
        return config | {"num_nextn_predict_layers": drafted}
    if kind == "NGram":
        return config | {"max_matching_ngram_size": 2}
    field = "speculative_model" if kind == "DFlash" else "speculative_model_dir"
    return config | {field: drafter_name(scenario)}


def vllm_schedule(scenario: Scenario, table: Sequence[Mapping[str, Any]] = ()) -> str:
    """vLLM's ``speculative_token_schedule`` by batch and context, in the form of its pull request 48944."""
    if not table:
        raise ForerunError("emit: vllm-schedule: forerun tune finds the draft tokens by batch and context")
    lows = [min(cell[axis][0] for cell in table) for axis in ("batch", "context")]
    entries = []
    for cell in table:
        (first, last), (least, most) = cell["batch"], cell["context"]
        least = 0 if least == lows[1] else least
        entries.append([1 if first == lows[0] else first, last, least, most, cell["num_speculative_tokens"] or 0])
    for context in dict.fromkeys(entry[2] for entry in entries):
        check_table([[first, last, drafted] for first, last, least, _, drafted in entries if least == context])
    words = shlex.split(engine_command("vllm", scenario), comments=True)
    if "--speculative-config" not in words:
        raise ForerunError("emit: vllm-schedule: vLLM has no such drafter")
    place = words.index("--speculative-config") + 1
    config = json.loads(words[place]) | {"num_speculative_tokens": max(entry[4] for entry in entries)}
    words[place] = json.dumps(config | {"speculative_token_schedule": entries})
    return shlex.join(words)


def dynamo(scenario: Scenario) -> str:
    """DynamoGraphDeployment of NVIDIA Dynamo."""
    framework = scenario.engine.framework
    module = DYNAMO_RUNTIMES.get(framework)
    if module is None:
        raise ForerunError(f"emit: dynamo: engine.framework {framework} has no runtime ({', '.join(DYNAMO_RUNTIMES)})")
    image = f"nvcr.io/nvidia/ai-dynamo/{'tensorrtllm' if framework == 'trtllm' else framework}-runtime:TAG"
    router = "kv" if scenario.engine.routing in ("kv-aware", "prefix-aware") else "round-robin"

    def service(module: str, args: Sequence[str], kind: str, replicas: int, **values: Any) -> Any:
        values = {"kind": kind, "replicas": replicas, "image": image, "resources": None, "side": None} | values
        values |= {"command": ["python3", "-m", module], "args": args}
        return render(templates()["dynamo_service"], scenario, values)

    services = {"Frontend": service("dynamo.frontend", ["--router-mode", router], "frontend", 1)}
    for name, role, part in _parts(scenario):
        words = _worker_words(part, framework)
        if role != "both":
            words += ["--is-prefill-worker"] if role == "prefill" and framework == "vllm" else []
            words += ["--disaggregation-mode", role] if framework != "vllm" else []
        resources = {"limits": {"gpu": str(part.hardware.chips_per_replica)}}
        side = None if role == "both" else role
        services[name] = service(module, words, "worker", part.hardware.replicas, resources=resources, side=side)
    remarks = ["TAG stands for the Dynamo release that you run", *_own_remarks(scenario)]
    return _yaml("dynamo", scenario, {"name": f"{_label(scenario)}-{framework}", "services": services}, remarks)


def _worker_words(part: Scenario, framework: str) -> list[str]:
    """Command-line flags of a worker; equal to the flags of the engine's own server."""
    if framework == "trtllm":
        return ["--model-path", checkpoint_name(part), "--extra-engine-args", "engine.yaml"]
    words = shlex.split(replica_command(framework, part), comments=True)
    return words[3:] if framework == "sglang" else ["--model", *words[2:]]


def llm_d(scenario: Scenario) -> str:
    """Helm values of llm-d's modelservice chart."""
    sides: Document = {}
    for _, role, part in _parts(scenario):
        side = "prefill" if role == "prefill" else "decode"
        if side in sides:
            raise ForerunError(f"emit: llm-d: its chart has one kind of {side} workers, the scenario has several pools")
        words = shlex.split(replica_command("vllm", part, role), comments=True)[3:]
        worker = {"args": words, "gpus": str(part.hardware.chips_per_replica)}
        sides[side] = render(templates()["llm-d_workers"], part, worker)
    values: Document = {
        "checkpoint": checkpoint_name(scenario),
        "decode": {"create": False},
        "prefill": {"create": False},
    }
    remarks = ["SIZE stands for the volume that holds the model, TAG for the llm-d release", *_own_remarks(scenario)]
    return _yaml("llm-d", scenario, values | sides, remarks)


def endpoint_picker(scenario: Scenario) -> str:
    """EndpointPickerConfig of llm-d, with the predicted prefill rate where the scenario has none."""
    if scenario.engine.routing != "scored":
        routing = scenario.engine.routing
        raise ForerunError(f"emit: endpoint-picker: engine.routing {routing} is no rule of llm-d; choose scored")
    return endpoint_picker_text(build_run(scenario).fleet.router).rstrip("\n")


def keda(scenario: Scenario) -> str:
    """A KEDA ScaledObject on vLLM's metrics in Prometheus."""
    values = _scaler_values(scenario)
    values["query"] = _query(scenario, f'model_name="{checkpoint_name(scenario)}"')
    return _yaml("keda", scenario, values, values["remarks"])


def hpa(scenario: Scenario) -> str:
    """A HorizontalPodAutoscaler on an external metric."""
    values = _scaler_values(scenario)
    query = f"the adapter's rule for the metric: {_query(scenario, '<<.LabelMatchers>>')}"
    return _yaml("hpa", scenario, values, [query, *values["remarks"]])


def _scaler_values(scenario: Scenario) -> Document:
    """Values for the autoscaler templates."""
    scaler = scenario.autoscaler
    if scaler is None or scaler.rule != "hpa" or scaler.target is None:
        raise ForerunError(
            "emit: keda and hpa need an autoscaler section of rule hpa with a target "
            "(forerun plan SCENARIO --thresholds finds it)"
        )
    target, metric = scaler.target, scaler.metric
    windows = {"up_s": round(scaler.scale_up_window_s), "down_s": round(scaler.scale_down_window_s)}
    return {
        "label": _label(scenario),
        "interval_s": max(1, round(scaler.interval_s)),
        "threshold": f"{target:g}",
        "metric": f"vllm_{metric}_requests" if metric != "kv_cache" else "vllm_kv_cache_usage",
        "model": re.sub(r"[^\w.-]", "_", checkpoint_name(scenario)),
        "quantity": str(int(target)) if target == int(target) else f"{round(1000 * target)}m",
        "behavior": render(templates()["behavior"], scenario, windows),
        "remarks": [f"holds for replicas that take {scaler.start_up_s:g} s to start"],
    }


def _query(scenario: Scenario, selector: str) -> str:
    """PromQL query of the autoscaler's metric, averaged over its window."""
    scaler = scenario.autoscaler
    assert scaler is not None
    query = render(templates()["names"]["metric"][scaler.metric], scenario, {"selector": selector})
    return f"avg_over_time(({query})[{round(scaler.window_s)}s:15s])" if scaler.window_s else str(query)


def benchmark(name: str, scenario: Scenario) -> str:
    """The command of a benchmark client with the scenario's rate and mean lengths. A comment explains the URL to use if
    several replicas share the rate."""
    stream, arrivals = generate_requests(scenario.workload, 0), scenario.workload.arrivals
    rate = arrivals.request_rate if arrivals is not None else None
    concurrency = arrivals.max_concurrency if arrivals is not None else None
    if rate is not None:
        rate *= conversation(scenario.workload)[0]  # the clients send single requests
    span = float(stream.arrival_s[-1]) if len(stream) else 0.0
    if rate is None and stream.max_concurrency is None and span > 0:
        rate = len(stream) / span
    lengths = {
        column: max(1, round(float(getattr(stream, column).mean()))) for column in ("input_tokens", "output_tokens")
    }
    values = lengths | {
        "checkpoint": checkpoint_name(scenario),
        "url": URL,
        "count": len(stream),
        "rate": rate,
        "rate_or_inf": "inf" if rate is None else rate,
        "profile": "kind=throughput" if rate is None else f"kind=poisson,rate={rate:g}",
        "burstiness": arrivals.burstiness if arrivals is not None else None,
        "concurrency": concurrency,
        "closed_loop": concurrency if rate is None else None,
    }
    command = shlex.join(command_words(name, scenario, values))
    copies = sum(part.hardware.replicas for _, role, part in _parts(scenario) if role != "decode")
    if copies == 1 or rate is None:
        return command
    return f"# {URL} is the router of {copies} replicas; a replica alone gets {rate / copies:.4g} req/s\n{command}"


CLIENTS = ("guidellm", "aiperf", "vllm-bench")
"""Benchmark clients whose commands are known."""
ARTEFACTS: dict[str, Callable[[Scenario], str]] = {
    "vllm": partial(engine_command, "vllm"),
    "sglang": partial(engine_command, "sglang"),
    "trtllm": trtllm,
    "llama.cpp": llama_cpp,
    "dynamo": dynamo,
    "llm-d": llm_d,
    "endpoint-picker": endpoint_picker,
    "keda": keda,
    "hpa": hpa,
    **{name: partial(benchmark, name) for name in CLIENTS},
}
"""Artefacts that ``--emit`` writes, by name; engine flags by batch exist only in ``forerun tune``."""


def _known(names: Mapping[str, str], value: str, field: str, consumer: str) -> str:
    if value not in names:
        raise ForerunError(f"emit: {consumer} has no {field} {value} here ({', '.join(names)})")
    return names[value]


def _parts(scenario: Scenario) -> list[tuple[str, str, Scenario]]:
    """(worker name, role, scenario of its replicas) of each pool."""
    return [
        ("".join(word.capitalize() for word in re.split(r"[-_]", name)) + "Worker", role, part)
        for name, role, part in pool_scenarios(scenario)
    ]


def _own_remarks(scenario: Scenario) -> list[str]:
    remarks = (replica_command("vllm", part).partition("  # ")[2] for _, _, part in _parts(scenario))
    parts = (part for remark in remarks for part in remark.split("; ") if part and " copies behind a " not in part)
    return list(dict.fromkeys(parts))


def _label(scenario: Scenario) -> str:
    """Model name, converted to a valid name of a Kubernetes object."""
    return re.sub(r"[^a-z0-9]+", "-", checkpoint_name(scenario).rpartition("/")[2].lower()).strip("-")[:50] or "model"


def _yaml(name: str, scenario: Scenario, values: Mapping[str, Any], remarks: Iterable[str]) -> str:
    """YAML document from a template, preceded by remarks as comments."""
    text = yaml.safe_dump(render(templates()[name], scenario, values), sort_keys=False, width=120)
    return "".join(f"# {remark}\n" for remark in remarks) + text.rstrip("\n")
