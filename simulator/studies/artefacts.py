"""Exports of a scenario: engine files, Kubernetes objects, and the benchmark that would confirm a prediction.

Each artefact is a function of the scenario. What a field means stands in its consumer's documentation, named with the
version it was written for; what the consumer cannot say is a comment in front.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from forerun.errors import ArgumentError, ForerunError, did_you_mean
from simulator.running.scenario import Scenario
from simulator.speculation.methods import names_in
from simulator.speculation.speculation_config import check_table
from simulator.studies.engine_flags import (
    checkpoint_name,
    pool_scenarios,
    published_name,
    sglang_command,
    vllm_command,
    vllm_replica,
)
from simulator.workload import generate_requests

Document = dict[str, Any]
TRTLLM_KV = {"fp8": "fp8", "bf16": "auto", "fp16": "auto"}
DYNAMO_RUNTIMES = {"vllm": "dynamo.vllm", "sglang": "dynamo.sglang", "trtllm": "dynamo.trtllm"}
METRICS = {
    "outstanding": "sum(vllm:num_requests_running{%s}) + sum(vllm:num_requests_waiting{%s})",
    "running": "sum(vllm:num_requests_running{%s})",
    "waiting": "sum(vllm:num_requests_waiting{%s})",
    "kv_cache": "sum(vllm:kv_cache_usage_perc{%s})",
}
"""PromQL of an autoscaler's metric, summed over replicas (vLLM v0.11, docs/design/metrics)."""
URL = "http://localhost:8000"


def artefact(name: str, scenario: Scenario) -> str:
    """An artefact by its name, ready to be pasted.

    Raises:
        ForerunError: no such artefact, or a scenario that its consumer cannot express.
    """
    if name not in ARTEFACTS:
        raise ArgumentError("emit", f"{name}: no such artefact{did_you_mean(name, ARTEFACTS)} ({', '.join(ARTEFACTS)})")
    return ARTEFACTS[name](scenario)


def trtllm(scenario: Scenario) -> str:
    """The LLM API's YAML, for ``trtllm-serve --extra_llm_api_options`` (TensorRT-LLM v1.0)."""
    hardware, engine = scenario.hardware, scenario.engine
    document: Document = {
        "tensor_parallel_size": hardware.tensor_parallel,
        "pipeline_parallel_size": hardware.pipeline_parallel,
        "moe_expert_parallel_size": hardware.expert_parallel if hardware.expert_parallel > 1 else None,
        "enable_attention_dp": True if hardware.attention_data_parallel > 1 else None,
        "max_batch_size": engine.max_num_seqs,
        "max_num_tokens": engine.max_num_batched_tokens,
        "max_seq_len": engine.max_model_len,
        "enable_chunked_prefill": engine.enable_chunked_prefill,
        "kv_cache_config": {
            "enable_block_reuse": engine.enable_prefix_caching,
            "free_gpu_memory_fraction": engine.gpu_memory_utilization,
            "tokens_per_block": engine.block_size,
            "dtype": _known(TRTLLM_KV, scenario.kv_cache_dtype, "kv_cache_dtype", "TensorRT-LLM"),
        },
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": engine.max_num_seqs}
        if engine.cuda_graphs
        else None,
        "speculative_config": _trtllm_speculation(scenario),
    }
    command = f"trtllm-serve {shlex.quote(checkpoint_name(scenario))} --extra_llm_api_options THIS_FILE"
    return _yaml([document], [command, *_replicas_remark(scenario)])


def _trtllm_speculation(scenario: Scenario) -> Document | None:
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        return None
    if speculation.tree is not None:
        raise ForerunError("emit: trtllm: trees are not written here; use num_speculative_tokens")
    kind = _known(names_in("trtllm"), speculation.method, "speculation.method", "TensorRT-LLM")
    drafted = speculation.num_speculative_tokens
    if kind == "MTP":
        return {"decoding_type": kind, "num_nextn_predict_layers": drafted}
    config: Document = {"decoding_type": kind, "max_draft_len": drafted}
    if kind == "NGram":
        return config | {"max_matching_ngram_size": 2}
    if speculation.method == "eagle3":
        config["eagle3_one_model"] = True
    return config | {"speculative_model_dir": _drafter(scenario)}


def vllm_schedule(scenario: Scenario, table: Sequence[Mapping[str, Any]] = ()) -> str:
    """``speculative_token_schedule`` by batch and context, as vLLM's pull request 48944 proposes it: entries of
    [first batch, last batch, first context, last context, draft tokens].

    Args:
        scenario: a scenario with speculation.
        table: cells of a tuning, ``batch``, ``context`` and ``num_speculative_tokens`` each.
    """
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
    words = shlex.split(vllm_command(scenario), comments=True)
    if "--speculative-config" not in words:
        raise ForerunError("emit: vllm-schedule: vLLM has no such drafter")
    place = words.index("--speculative-config") + 1
    config = json.loads(words[place]) | {"num_speculative_tokens": max(entry[4] for entry in entries)}
    words[place] = json.dumps(config | {"speculative_token_schedule": entries})
    return shlex.join(words)


def dynamo(scenario: Scenario) -> str:
    """A DynamoGraphDeployment: a frontend, and workers for each pool (nvidia.com/v1alpha1)."""
    framework = scenario.engine.framework
    module = DYNAMO_RUNTIMES.get(framework)
    if module is None:
        raise ForerunError(f"emit: dynamo: engine.framework {framework} has no runtime ({', '.join(DYNAMO_RUNTIMES)})")
    image = f"nvcr.io/nvidia/ai-dynamo/{'tensorrtllm' if framework == 'trtllm' else framework}-runtime:TAG"
    routed = scenario.engine.routing in ("kv-aware", "prefix-aware")
    front = ["python3", "-m", "dynamo.frontend", "--router-mode", "kv" if routed else "round-robin"]
    services: Document = {"Frontend": _service("frontend", 1, image, front)}
    for name, role, part in _parts(scenario):
        words = ["python3", "-m", module, *_worker_words(part, framework)]
        if role != "both":
            words += ["--is-prefill-worker"] if role == "prefill" and framework == "vllm" else []
            words += ["--disaggregation-mode", role] if framework != "vllm" else []
        worker = _service("worker", part.hardware.replicas, image, words)
        worker["resources"] = {"limits": {"gpu": str(part.hardware.chips_per_replica)}}
        if role != "both":
            worker["subComponentType"] = role
        services[name] = worker
    spec = {"backendFramework": framework, "services": services}
    name = f"{_label(scenario)}-{framework}"
    object_ = {"apiVersion": "nvidia.com/v1alpha1", "kind": "DynamoGraphDeployment", "metadata": {"name": name}}
    return _yaml(
        [object_ | {"spec": spec}], ["TAG stands for the Dynamo release that you run", *_own_remarks(scenario)]
    )


def _service(kind: str, replicas: int, image: str, words: Sequence[str]) -> Document:
    container = {"image": image, "command": list(words[:3]), "args": list(words[3:])}
    return {"componentType": kind, "replicas": replicas, "extraPodSpec": {"mainContainer": container}}


def _worker_words(part: Scenario, framework: str) -> list[str]:
    """Flags of a worker, which are those of the engine's own server."""
    if framework == "sglang":
        return shlex.split(sglang_command(part), comments=True)[3:]
    if framework == "trtllm":
        return ["--model-path", checkpoint_name(part), "--extra-engine-args", "engine.yaml"]
    return ["--model", *shlex.split(vllm_command(part), comments=True)[2:]]


def llm_d(scenario: Scenario) -> str:
    """Helm values of llm-d's modelservice chart (llm-d-incubation/llm-d-modelservice, v0.3)."""
    model = checkpoint_name(scenario)
    document: Document = {
        "modelArtifacts": {"name": model, "uri": f"hf://{model}", "size": "SIZE"},
        "multinode": False,
        "routing": {"servicePort": 8000},
        "decode": {"create": False},
        "prefill": {"create": False},
    }
    for _, role, part in _parts(scenario):
        words = shlex.split(vllm_replica(part, role), comments=True)[3:]
        chips = str(part.hardware.chips_per_replica)
        gpus = {"nvidia.com/gpu": chips}
        container = {
            "name": "vllm",
            "image": "ghcr.io/llm-d/llm-d-cuda:TAG",
            "modelCommand": "vllmServe",
            "args": words,
            "resources": {"limits": gpus, "requests": dict(gpus)},
            "mountModelVolume": True,
        }
        side = "prefill" if role == "prefill" else "decode"
        if document[side]["create"]:
            raise ForerunError(f"emit: llm-d: its chart has one kind of {side} workers, the scenario has several pools")
        document[side] = {
            "create": True,
            "replicas": part.hardware.replicas,
            "parallelism": {"tensor": part.hardware.tensor_parallel},
            "containers": [container],
        }
    remarks = ["SIZE stands for the volume that holds the model, TAG for the llm-d release", *_own_remarks(scenario)]
    return _yaml([document], remarks)


def keda(scenario: Scenario) -> str:
    """A KEDA ScaledObject on vLLM's metrics in Prometheus (keda.sh/v1alpha1)."""
    scaler = _scaler(scenario)
    selector = f'model_name="{checkpoint_name(scenario)}"'
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": "http://prometheus.monitoring.svc:9090",
            "query": _query(scaler, selector),
            "threshold": f"{scaler.target:g}",
        },
    }
    spec = {
        "scaleTargetRef": {"name": _label(scenario)},
        "minReplicaCount": scaler.min_replicas,
        "maxReplicaCount": scaler.max_replicas,
        "pollingInterval": max(1, round(scaler.interval_s)),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaler)}},
        "triggers": [trigger],
    }
    object_ = {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": _label(scenario)}}
    return _yaml([object_ | {"spec": spec}], _scaler_remarks(scenario))


def hpa(scenario: Scenario) -> str:
    """A HorizontalPodAutoscaler on an external metric (autoscaling/v2), such as prometheus-adapter lends it."""
    scaler = _scaler(scenario)
    metric = {
        "type": "External",
        "external": {
            "metric": {
                "name": f"vllm_{scaler.metric}_requests" if scaler.metric != "kv_cache" else "vllm_kv_cache_usage",
                "selector": {"matchLabels": {"model_name": re.sub(r"[^\w.-]", "_", checkpoint_name(scenario))}},
            },
            "target": {"type": "AverageValue", "averageValue": _quantity(scaler.target)},
        },
    }
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": _label(scenario)},
        "minReplicas": scaler.min_replicas,
        "maxReplicas": scaler.max_replicas,
        "metrics": [metric],
        "behavior": _behavior(scaler),
    }
    object_ = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler"}
    query = f"the adapter's rule for the metric: {_query(scaler, '<<.LabelMatchers>>')}"
    whole = object_ | {"metadata": {"name": _label(scenario)}, "spec": spec}
    return _yaml([whole], [query, *_scaler_remarks(scenario)])


def guidellm(scenario: Scenario) -> str:
    """``guidellm run`` (v0.8) with the scenario's rate and mean token counts."""
    rate, prompt, answer, count = _traffic(scenario)
    profile = "kind=throughput" if rate is None else f"kind=poisson,rate={rate:g}"
    words = ["guidellm", "run", "--backend", f"kind=openai_http,target={URL}", "--profile", profile]
    words += ["--constraint", f"kind=max_requests,count={count}"]
    words += ["--data", f"kind=synthetic_text,prompt_tokens={prompt},output_tokens={answer}"]
    words += ["--tokenizer", f"kind=huggingface_auto,model={checkpoint_name(scenario)}"]
    return _benchmark(scenario, rate, words)


def aiperf(scenario: Scenario) -> str:
    """``aiperf profile`` (v0.13) with the scenario's rate and mean lengths."""
    rate, prompt, answer, count = _traffic(scenario)
    words = ["aiperf", "profile", "-m", checkpoint_name(scenario), "-u", URL, "--endpoint-type", "chat", "--streaming"]
    words += ["--isl", str(prompt), "--osl", str(answer), "--request-count", str(count)]
    words += ["--extra-inputs", "ignore_eos:true"]
    arrivals = scenario.workload.arrivals
    if rate is not None:
        words += ["--request-rate", f"{rate:g}"]
    elif arrivals is not None and arrivals.max_concurrency is not None:
        words += ["--concurrency", str(arrivals.max_concurrency)]
    return _benchmark(scenario, rate, words)


def vllm_bench(scenario: Scenario) -> str:
    """``vllm bench serve`` (v0.11) with the scenario's rate and mean lengths."""
    rate, prompt, answer, count = _traffic(scenario)
    words = ["vllm", "bench", "serve", "--model", checkpoint_name(scenario), "--base-url", URL]
    words += ["--dataset-name", "random", "--random-input-len", str(prompt), "--random-output-len", str(answer)]
    words += ["--num-prompts", str(count), "--request-rate", "inf" if rate is None else f"{rate:g}"]
    arrivals = scenario.workload.arrivals
    if arrivals is not None and arrivals.burstiness is not None:
        words += ["--burstiness", f"{arrivals.burstiness:g}"]
    if arrivals is not None and arrivals.max_concurrency is not None:
        words += ["--max-concurrency", str(arrivals.max_concurrency)]
    words += ["--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result"]
    return _benchmark(scenario, rate, words)


def _benchmark(scenario: Scenario, rate: float | None, words: Sequence[str]) -> str:
    """A benchmark's command; a comment says what the URL has to be where several replicas share the rate."""
    copies = sum(part.hardware.replicas for _, role, part in _parts(scenario) if role != "decode")
    command = shlex.join(words)
    if copies == 1 or rate is None:
        return command
    return f"# {URL} is the router of {copies} replicas; a replica alone gets {rate / copies:.4g} req/s\n{command}"


ARTEFACTS: dict[str, Callable[[Scenario], str]] = {
    "vllm": vllm_command,
    "sglang": sglang_command,
    "trtllm": trtllm,
    "dynamo": dynamo,
    "llm-d": llm_d,
    "keda": keda,
    "hpa": hpa,
    "guidellm": guidellm,
    "aiperf": aiperf,
    "vllm-bench": vllm_bench,
}
"""What ``--emit`` writes of a scenario, by name; engines' flags by batch are ``forerun tune``'s own."""


def _known(names: Mapping[str, str], value: str, field: str, consumer: str) -> str:
    if value not in names:
        raise ForerunError(f"emit: {consumer} has no {field} {value} here ({', '.join(names)})")
    return names[value]


def _drafter(scenario: Scenario) -> str:
    draft = scenario.speculation.draft if scenario.speculation is not None else None
    return published_name(draft.model) if draft is not None and isinstance(draft.model, str) else "DRAFT_MODEL"


def _parts(scenario: Scenario) -> list[tuple[str, str, Scenario]]:
    """(name of a worker, its role, the scenario of its replicas) of each pool."""
    return [
        ("".join(word.capitalize() for word in re.split(r"[-_]", name)) + "Worker", role, part)
        for name, role, part in pool_scenarios(scenario)
    ]


def _scaler(scenario: Scenario) -> Any:
    scaler = scenario.autoscaler
    if scaler is None or scaler.rule != "hpa":
        raise ForerunError(
            "emit: keda and hpa need an autoscaler section of rule hpa with a target "
            "(forerun plan SCENARIO --thresholds finds it)"
        )
    return scaler


def _query(scaler: Any, selector: str) -> str:
    """The metric's PromQL, averaged over the window."""
    query = METRICS[scaler.metric] % ((selector,) * METRICS[scaler.metric].count("%s"))
    return query if not scaler.window_s else f"avg_over_time(({query})[{round(scaler.window_s)}s:15s])"


def _behavior(scaler: Any) -> Document:
    """The HPA's behavior, its default policies written out."""
    up = [{"type": "Percent", "value": 100, "periodSeconds": 15}, {"type": "Pods", "value": 4, "periodSeconds": 15}]
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": round(scaler.scale_up_window_s),
            "selectPolicy": "Max",
            "policies": up,
        },
        "scaleDown": {
            "stabilizationWindowSeconds": round(scaler.scale_down_window_s),
            "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}],
        },
    }


def _quantity(value: float) -> str:
    """A number as a Kubernetes quantity: whole, or in thousandths."""
    return str(int(value)) if value == int(value) else f"{round(1000 * value)}m"


def _scaler_remarks(scenario: Scenario) -> list[str]:
    return (
        [f"holds for replicas that take {scenario.autoscaler.start_up_s:g} s to start"] if scenario.autoscaler else []
    )


def _own_remarks(scenario: Scenario) -> list[str]:
    """Distinct remarks behind ``#`` in the launch commands of all parts."""
    remarks = (vllm_command(part).partition("  # ")[2] for _, _, part in _parts(scenario))
    parts = (part for remark in remarks for part in remark.split("; ") if part and " copies behind a " not in part)
    return list(dict.fromkeys(parts))


def _replicas_remark(scenario: Scenario) -> list[str]:
    count = scenario.hardware.replicas
    return [] if count == 1 else [f"{count} copies behind a {scenario.engine.routing} router"]


def _traffic(scenario: Scenario) -> tuple[float | None, int, int, int]:
    """Requests per second (None: as many as are taken), mean prompt and answer tokens, how many requests."""
    stream = generate_requests(scenario.workload, 0)
    arrivals = scenario.workload.arrivals
    rate = arrivals.request_rate if arrivals is not None else None
    span = float(stream.arrival_s[-1]) if len(stream) else 0.0
    if rate is None and stream.max_concurrency is None and span > 0:
        rate = len(stream) / span
    prompt, answer = (max(1, round(float(column.mean()))) for column in (stream.input_tokens, stream.output_tokens))
    return rate, prompt, answer, len(stream)


def _label(scenario: Scenario) -> str:
    """The model's name as a valid name of a Kubernetes object."""
    return re.sub(r"[^a-z0-9]+", "-", checkpoint_name(scenario).rpartition("/")[2].lower()).strip("-")[:50] or "model"


def _yaml(documents: Sequence[Document], remarks: Sequence[str]) -> str:
    """A YAML document without None values, preceded by remarks as comments."""
    kept = [{key: value for key, value in document.items() if value is not None} for document in documents]
    text = "---\n".join(yaml.safe_dump(document, sort_keys=False, width=120) for document in kept)
    return "".join(f"# {remark}\n" for remark in remarks) + text.rstrip("\n")
