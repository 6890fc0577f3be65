"""Scenarios that --emit writes and that are read back: which fields must be the same."""

import json
import re
from pathlib import Path

from forerun.errors import ForerunError
from simulator.launch.reading import read_launch
from simulator.llm import load_architecture
from simulator.running.scenario import Scenario, scenario_from
from simulator.studies.artefacts import artefact
from simulator.studies.engine_flags import pool_scenarios
from simulator.timing.deployment import resolve_weight_dtypes

WRITTEN = ("vllm", "sglang", "trtllm", "llama.cpp", "dynamo", "llm-d")
LAYOUT = ("tensor_parallel", "pipeline_parallel", "attention_data_parallel", "expert_parallel")
LIMITS = ("max_num_seqs", "max_model_len", "enable_prefix_caching", "cuda_graphs")
SPECIFIED = {
    "vllm": {"max_num_batched_tokens", "gpu_memory_utilization", "block_size", "enable_chunked_prefill"},
    "sglang": {"gpu_memory_utilization"},
    "trtllm": {"max_num_batched_tokens", "gpu_memory_utilization", "block_size", "enable_chunked_prefill"},
    "llama.cpp": {"max_num_batched_tokens", "flash_attention"},
}
"""Fields of ``engine`` that a command has flags for, beside LIMITS."""
UNSPECIFIED = {"llama.cpp": {"enable_prefix_caching", "cuda_graphs"}}


def engine_of(name: str, scenario: Scenario) -> str:
    framework = scenario.engine.framework
    return {"dynamo": next((one for one in SPECIFIED if framework.startswith(one)), ""), "llm-d": "vllm"}.get(
        name, name
    )


def facts(scenario: Scenario, engine: str, name: str) -> dict:
    """What a command of ``engine`` says of a scenario, by pool."""
    parts = {}
    for _, role, part in pool_scenarios(scenario):
        known = load_architecture(part.model)
        layout = {field: getattr(part.hardware, field) for field in LAYOUT}
        if not known.parameters().expert:
            layout.pop("expert_parallel")
        if engine == "llama.cpp":
            layout = {}
        limits = {field for field in (*LIMITS, *SPECIFIED[engine]) if field not in UNSPECIFIED.get(engine, ())}
        values = layout | {field: getattr(part.engine, field) for field in limits}
        values = {key: float(f"{one:g}") if isinstance(one, float) else one for key, one in values.items()}
        if engine == "sglang":
            chunked = part.engine.enable_chunked_prefill
            values["chunk"] = part.engine.max_num_batched_tokens if chunked else -1
        if name in ("dynamo", "llm-d"):
            values["replicas"] = part.hardware.replicas
        parts.setdefault(role, []).append(values)
    speculation, weights = scenario.speculation, scenario.weights_dtype or None
    weights = weights if isinstance(weights, str | None) else dict(weights)
    drafts = speculation is not None and speculation.method != "none"
    return {
        "model": load_architecture(scenario.model).name,
        "parts": {role: sorted(values, key=json.dumps) for role, values in parts.items()},
        "drafts": (speculation.method, speculation.num_speculative_tokens) if drafts else None,
        "kv": scenario.kv_cache_dtype,
        "weights": resolve_weight_dtypes(load_architecture(scenario.model), weights),
    }


def differences(name: str, scenario: Scenario) -> list[str] | None:
    """Facts that differ after a scenario was written and read; None where it cannot be written."""
    engine = engine_of(name, scenario)
    if not isinstance(scenario.model, str):
        return None  # a model inline has no name that a command could have
    try:
        text = artefact(name, scenario)
    except ForerunError:
        return None
    launch = read_launch(text, Path(), name, {"hardware.chip": scenario.hardware.chip})
    assert launch is not None, text
    if any("not there" in one for one in launch.guesses):
        return None
    data = launch.data
    data["hardware"]["chip"] = scenario.hardware.chip
    if "speculation" in data and scenario.speculation is not None:
        acceptance = scenario.speculation.model_dump(mode="json", exclude_unset=True)["acceptance"]
        data["speculation"]["acceptance"] = acceptance
        draft = scenario.speculation.model_dump(mode="json", exclude_unset=True).get("draft")
        data["speculation"].pop("draft", None)
        if draft:
            data["speculation"]["draft"] = draft
    data["workload"] = scenario.workload.model_dump(mode="json", exclude_unset=True)
    back = scenario_from({**data, "slo": {}}, "read back")
    one, other = facts(scenario, engine, name), facts(back, engine, name)
    remarks = " ".join(line for line in text.splitlines() if "#" in line)
    if "of a dense model share nothing" in remarks:
        for values in (part for roles in (one, other) for parts in roles["parts"].values() for part in parts):
            values.pop("attention_data_parallel", None), values.pop("replicas", None)
    if "vLLM spreads experts" in remarks:
        for values in (part for roles in (one, other) for parts in roles["parts"].values() for part in parts):
            values.pop("expert_parallel", None)
    for key, remark in REMARKED.items():
        if re.search(remark, remarks):
            one.pop(key, None), other.pop(key, None)
    return [f"{key}: {one[key]} -> {other[key]}" for key in one if one[key] != other[key]]


REMARKED = {
    "parts": "the pools are left out|groups of attention have one chip each",
    "drafts": "vLLM has no|are not known here|llama.cpp has no|by confidence",
    "kv": "no flag is known for kv_cache_dtype",
    "weights": "load a checkpoint with weights_dtype|a file of type",
}
