"""Launch commands in manifests: Kubernetes, KServe, Dynamo, llm-d, Docker Compose, and recipes of benchmarks."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forerun.document import Json
from forerun.errors import ForerunError
from forerun.yaml_files import packaged
from simulator.launch.shell import Command, engine_of_image, in_image, with_variables
from simulator.launch.tables import find, known_flags

Part = Mapping[str, Any]
ROLES = {"prefill": "prefill", "decode": "decode", "context": "prefill", "generation": "decode"}


def manifest_commands(documents: list[object], texts: Mapping[str, str]) -> list[Command]:
    """Commands that start engines in the documents of a file; none where it is no manifest.

    Args:
        documents: parsed YAML documents.
        texts: files that a manifest has beside its containers, such as those of a ConfigMap, by name.
    """
    files = dict(texts)
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
            files |= {str(name): str(text) for name, text in _map(document, "data").items()}
    try:
        commands = [one for document in documents if isinstance(document, Mapping) for one in _of(document)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ForerunError):
            raise
        raise ForerunError(f"a field of the manifest has another type than expected ({error})") from None
    return [replace(one, files={**files, **one.files}) for one in commands]


def _of(document: Part) -> Iterator[Command]:
    """Commands of one document, by its kind or its keys."""
    spec, kind = _map(document, "spec"), document.get("kind")
    if kind == "DynamoGraphDeployment":
        yield from _dynamo(spec)
    elif kind == "LLMInferenceService":
        model = str(_map(spec, "model").get("uri") or _map(spec, "model").get("name") or "")
        for role, part in (
            {"decode": spec, "prefill": spec["prefill"]} if spec.get("prefill") else {"both": spec}
        ).items():
            pod = _map(part, "template")
            yield from _worker({**pod, **part}, _first(pod.get("containers"), "main"), role, role, model)
    elif kind == "InferenceService" and _map(_map(spec, "predictor"), "model"):
        predictor, server = _map(spec, "predictor"), _map(_map(spec, "predictor"), "model")
        named = [word for word in _words(server.get("args")) if re.match("--model_(id|name)=", word)]
        args = [word for word in _words(server.get("args")) if word not in named]
        source = server.get("storageUri") or "".join(named).rpartition("=")[2]
        part = {**predictor, "replicas": predictor.get("minReplicas")}
        yield from _worker(part, {**server, "args": args}, model=str(source))
    elif "modelArtifacts" in document:
        artefacts = _map(document, "modelArtifacts")
        yield from _sides(document, str(artefacts.get("name") or artefacts.get("uri")))
    elif isinstance(document.get("scenario"), list):
        for one in document["scenario"]:
            artefact = _map(one, "model")
            yield from _sides(
                one, str(artefact.get("name")), words_of("vllm", {"max-model-len": artefact.get("maxModelLen")})
            )
    elif isinstance(_map(document, "servingEngineSpec").get("modelSpec"), list):
        for one in _map(document, "servingEngineSpec")["modelSpec"]:
            config = {re.sub("([A-Z])", r"-\1", str(key)).lower(): v for key, v in _map(one, "vllmConfig").items()}
            extra = [str(word) for word in config.pop("extra-args", ())]
            config = {key: value for key, value in config.items() if key not in ("v0", "v1")}
            part = {**one, "replicas": one.get("replicaCount"), "gpu": one.get("requestGPU")}
            container = {"image": f"{one.get('repository')}:{one.get('tag')}", "gpu": one.get("requestGPU")}
            more = [*words_of("vllm", config), *extra]
            yield from _worker(part, container, str(one.get("name")), model=str(one.get("modelURL")), more=more)
    elif "services" in document and kind is None:
        for name, service in _map(document, "services").items():
            if isinstance(service, Mapping):
                replicas = _map(service, "deploy").get("replicas", service.get("scale"))
                own = {**service, "args": service.get("command"), "command": service.get("entrypoint")}
                yield from _worker({**service, "replicas": replicas}, own, str(name))
    elif _map(document, "model").get("model_id"):
        yield _vllm_recipe(document)
    elif "backend" in document and "resources" in document:
        yield from _recipe(document)
    elif "backend" in _map(document, "base"):
        yield from _recipe(_map(document, "base"))
    elif document and all(isinstance(one, Mapping) and {"image", "framework"} <= {*one} for one in document.values()):
        yield from _benchmark_matrix(document)
    else:
        yield from _pods(document, {})


def _map(part: object, key: str) -> Part:
    value = part.get(key) if isinstance(part, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _first(parts: object, name: str = "") -> Part:
    """The part of a list that has the name, else its first; empty where there is none."""
    known = [one for one in parts if isinstance(one, Mapping)] if isinstance(parts, list) else []
    return next((one for one in known if one.get("name") == name), next(iter(known), {}))


def _pods(part: object, around: Part) -> Iterator[Command]:
    """Containers of pods at any depth, with the replicas and nodes that stand around them."""
    if isinstance(part, list):
        for one in part:
            yield from _pods(one, around)
    if not isinstance(part, Mapping):
        return
    around = {**around, **{key: part[key] for key in ("replicas", "size") if isinstance(part.get(key), int)}}
    for container in part["containers"] if isinstance(part.get("containers"), list) else ():
        if isinstance(container, Mapping):
            yield from _worker({**part, **around}, container)
    for value in part.values() if "containers" not in part else ():
        yield from _pods(value, around)


def _worker(
    part: Part, container: Part, name: str = "", role: str = "both", model: str = "", more: Sequence[str] = ()
) -> Iterator[Command]:
    """The server of a container.

    Args:
        part: what stands around it: replicas, parallelism, resources, node selectors.
        container: image, command, arguments and environment.
        name: name of the worker.
        role: role of its pool.
        model: model that the manifest names; the engine is vLLM then, unless the image says otherwise.
        more: further words of the command.
    """
    env = _environment(container.get("env", container.get("environment")))
    words = [*_words(container.get("command")), *_words(container.get("args"))]
    words = [part for word in words for part in with_variables(re.sub(r"\$\((\w+)\)", r"$\1", word), env, {})]
    image = str(container.get("image", ""))
    extra = [*([model] if model else []), *_parallelism(part), *more, *_words(env.pop("VLLM_ADDITIONAL_ARGS", ""))]
    started = [Command(engine_of_image(image) or "vllm", [*extra, *words])] if model else in_image(image, words)
    for one in started:
        one = replace(one, image=image, env={**env, **one.env}, name=name, role=role, chip=_chip(part))
        size = part.get("size") or _map(part, "multinode").get("nodeCount") or 1
        chips = _count(container) or _count(_map(part, "resources"))
        yield replace(one, replicas=int(part.get("replicas") or 1), nodes=int(size), chips=chips)


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return shlex.split(value) if value.strip() else []
    return [str(word) for word in value] if isinstance(value, list) else []


def _environment(value: object) -> dict[str, str]:
    if isinstance(value, Mapping):
        return {str(name): str(one) for name, one in value.items() if one is not None}
    pairs = value if isinstance(value, list) else []
    named = {
        str(one["name"]): str(one["value"]) for one in pairs if isinstance(one, Mapping) and {"name", "value"} <= {*one}
    }
    return named | dict(one.split("=", 1) for one in pairs if isinstance(one, str) and "=" in one)


def _count(part: object) -> int | None:
    """Chips that a container asks for."""
    for key, value in _items(part):
        if key in packaged("simulator.launch", "manifests.yaml")["count_keys"] and re.fullmatch(r"\d+", str(value)):
            return int(value)
        if key == "devices" and isinstance(value, list):
            for one in value:
                if isinstance(one, Mapping) and isinstance(one.get("count"), int):
                    return int(one["count"])
                if isinstance(one, Mapping) and isinstance(one.get("device_ids"), list):
                    return len(",".join(map(str, one["device_ids"])).split(","))
    return None


def _chip(part: object) -> str:
    """Chip that a node selector, an affinity or a field names; empty if none does."""
    words = packaged("simulator.launch", "manifests.yaml")
    for key, value in _items(part):
        if key in words["chip_keys"] and isinstance(value, str):
            return str(words["instances"].get(value, value))
        if key == "matchExpressions" and isinstance(value, list):
            for one in value:
                values = (
                    one.get("values") if isinstance(one, Mapping) and one.get("key") in words["chip_keys"] else None
                )
                if isinstance(values, list) and values:
                    return str(words["instances"].get(values[0], values[0]))
    return ""


def _items(part: object) -> Iterator[tuple[str, Any]]:
    """Every key of a document with its value, outer ones first."""
    if isinstance(part, Mapping):
        yield from part.items()
    for one in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        yield from _items(one)


def words_of(engine: str, values: Part, place: str = "") -> list[str]:
    """A mapping of options, as a config file has them, as words of the command."""
    words: list[str] = []
    for key, value in values.items():
        name = f"{place}{key}".replace("_", "-")
        nested = isinstance(value, Mapping) and any(one.startswith(f"{name}.") for one in known_flags(engine))
        if nested:
            words += words_of(engine, value, f"{name}.")
        elif isinstance(value, bool) and not ((known := find(engine, f"--{name}")) and known[1].takes):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None or name == "cuda-graph-config":
            text = json.dumps(value) if isinstance(value, Mapping | list | bool | None) else str(value)
            words += [f"--{name}={text}"]
    return words


def _parallelism(part: object) -> list[str]:
    """Flags of a ``parallelism`` section."""
    known = packaged("simulator.launch", "manifests.yaml")["parallelism"]
    sizes = {known[key]: value for key, value in _map(part, "parallelism").items() if key in known}
    return words_of("vllm", {name: value for name, value in sizes.items() if value not in (1, False)})


def _sides(document: Part, model: str, more: Sequence[str] = ()) -> Iterator[Command]:
    """Workers of llm-d: ``decode`` and ``prefill``, with their replicas, parallelism and flags."""
    parts = {side: _map(document, side) for side in ("prefill", "decode")}
    used = {side: part for side, part in parts.items() if part and part.get("create", True) and part.get("replicas", 1)}
    for side, part in used.items():
        extra = [str(word) for word in _map(part, "vllm").get("additionalFlags") or ()]
        container = {key: value for key, value in _first(part.get("containers")).items() if key != "command"}
        yield from _worker(part, container, side, side if len(used) > 1 else "both", model, [*more, *extra])


def _dynamo(spec: Part) -> Iterator[Command]:
    """Workers of a DynamoGraphDeployment."""
    components = [one for one in spec.get("components") or () if isinstance(one, Mapping)]
    services = {**_map(spec, "services"), **{str(one.get("name", "")): one for one in components}}
    for name, service in services.items():
        if service.get("componentType", service.get("type")) in ("frontend", "planner", "router", "epp"):
            continue
        pod = _map(_map(service, "podTemplate"), "spec")
        container = _map(_map(service, "extraPodSpec"), "mainContainer") or _first(pod.get("containers"), "main")
        label = re.sub("(?<=[a-z])(?=[A-Z])", "-", str(name).removesuffix("Worker")).lower() or "worker"
        kinds = " ".join(str(service.get(key, "")) for key in ("subComponentType", "type")).lower()
        role = next((role for word, role in ROLES.items() if word in kinds), "both")
        yield from _worker(service, container, label, role)


def _vllm_recipe(document: Part) -> Command:
    """The server of a recipe of vLLM: the first of its variants, without features that are chosen beside it."""
    model, variants = _map(document, "model"), _map(document, "variants")
    name, *others = [*variants] or [""]
    variant = _map(variants, name)
    parts = ((model, "base"), (variant, "extra"))
    words = [str(word) for part, kind in parts for word in part.get(f"{kind}_args") or ()]
    env = {key: value for part, kind in parts for key, value in _environment(part.get(f"{kind}_env")).items()}
    notes = [f"variant {name} of the recipe is taken" + f" (others: {', '.join(others)})" * bool(others)]
    left = [feature for feature in _map(document, "features") if feature not in ("tool_calling", "reasoning")]
    notes += [f"features of the recipe that are left out: {', '.join(left)}"] if left else []
    return Command("vllm", [str(variant.get("model_id") or model["model_id"]), *words], env, notes=notes)


def _recipe(document: Part) -> Iterator[Command]:
    """Workers of a recipe for srt-slurm: an engine's options by side, and how many chips and workers each has."""
    backend, resources, model = _map(document, "backend"), _map(document, "resources"), _map(document, "model")
    engine = next((key.removesuffix("_config") for key in backend if key.endswith("_config")), "")
    sides = _map(backend, f"{engine}_config")
    benchmark = _map(document, "benchmark")
    for side, values in sides.items():
        if engine not in ("vllm", "sglang", "trtllm") or not isinstance(values, Mapping):
            continue
        short = "agg" if side == "aggregated" else side
        repository = _map(_map(document, "identity"), "model").get("repo") or values.get("served-model-name")
        options = {key: value for key, value in values.items() if key not in ("model", "model-path", "model_path")}
        words = [f"--model={repository or model.get('path')}", *words_of(engine, options)]
        image, env = str(model.get("container", "")).replace("#", "/"), _environment(backend.get(f"{side}_environment"))
        one = Command(engine, words, env, image, str(side), ROLES.get(side, "both"))
        one = replace(one, replicas=int(resources.get(f"{short}_workers") or 1), chip=_chip(resources))
        load = _load(benchmark.get("isl"), benchmark.get("osl"), benchmark.get("concurrencies"))
        yield replace(one, chips=_count({"gpus": resources.get(f"gpus_per_{short}")}), workload=load)


def _load(input_tokens: object, output_tokens: object, streams: object) -> Json:
    """A closed loop of a benchmark's lengths, with the first of its numbers of streams."""
    first = re.match(r"\d+", str(streams))
    if not (isinstance(input_tokens, int) and isinstance(output_tokens, int) and first):
        return {}
    most = int(first[0])
    return {
        "arrivals": {"max_concurrency": most},
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "num_requests": max(20, 4 * most),
    }


def _benchmark_matrix(document: Part) -> Iterator[Command]:
    """The first point of an InferenceX configuration."""
    if len(document) > 1:
        names = ", ".join(map(str, [*document][:3]))
        raise ForerunError(
            f"holds {len(document)} configurations ({names}, ...); keep one of them in a file of its own"
        )
    (entry,) = document.values()
    engine = engine_of_image(str(entry["framework"])) or {"trt": "trtllm"}.get(entry["framework"], "")
    if engine not in ("vllm", "sglang", "trtllm"):
        raise ForerunError(f"framework '{entry['framework']}' has no parameter set here (vllm, sglang, trtllm)")
    cases = next(iter(_map(entry, "scenarios").values()), entry.get("seq-len-configs")) or [{}]
    points = cases[0].get("search-space") or [{}]
    point = points[0]
    flags = dict(packaged("simulator.launch", "manifests.yaml")["points"][engine])
    layout = {flags[key]: value for key, value in point.items() if key in flags and value not in (1, False)}
    if engine == "vllm" and "enable-expert-parallel" in layout:
        layout["enable-expert-parallel"] = True
    if point.get("dp-attn") and engine == "sglang":
        layout["dp-size"] = point.get("tp", 1)
    if point.get("dp-attn") and engine == "vllm":
        layout = {**layout, "tensor-parallel-size": 1, "data-parallel-size": point.get("tp", 1)}
    if point.get("spec-decoding") == "mtp":
        layout |= flags["mtp"]
    notes = [f"the first point of {len(points)} is taken: {', '.join(f'{key} {one}' for key, one in point.items())}"]
    load = _load(cases[0].get("isl"), cases[0].get("osl"), point.get("conc-start", (point.get("conc-list") or [0])[0]))
    words = [f"--model={entry.get('model')}", *words_of(engine, layout)]
    one = Command(engine, words, image=str(entry["image"]), chip=str(entry.get("runner", "")))
    yield replace(one, workload=load, notes=notes)
