"""A scenario as the command that starts the engine it describes: vLLM, SGLang or llama.cpp."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hwprofiles import dtype_bytes, load_chip
from simulator.llm import load_architecture, published_repositories
from simulator.running.scenario import Scenario
from simulator.speculation.confidence import CONFIDENCE_THRESHOLD, DEFAULT_THRESHOLD
from simulator.speculation.methods import METHODS
from simulator.speculation.speculation_config import named
from simulator.timing.deployment import resolve_weight_dtypes
from simulator.timing.framework import LOCAL_FRAMEWORKS

VLLM_QUANTISATION = {"fp8": "fp8", "int4": "awq", "int8": "compressed-tensors"}
SGLANG_QUANTISATION = {"fp8": "fp8", "int4": "awq", "int8": "w8a8_int8"}
KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
"""What vLLM calls the two sides of a KV transfer."""
KV_DTYPES = {"fp8": {"vllm": "fp8", "sglang": "fp8_e4m3"}}


def launch_flags(scenario: Scenario) -> dict[str, str]:
    """One replica's command for each engine, and what it cannot say as a remark behind ``#``; a line for each pool."""
    if scenario.engine.framework in LOCAL_FRAMEWORKS:
        return {"llama.cpp": llama_command(scenario)}
    return {"vllm": vllm_command(scenario), "sglang": sglang_command(scenario)}


def pool_scenarios(scenario: Scenario) -> list[tuple[str, str, Scenario]]:
    """(name, role, scenario of one kind of replica) of each pool; one without a name where there are no pools."""
    if scenario.pools is None:
        return [("", "both", scenario)]
    parts: list[tuple[str, str, Scenario]] = []
    for name, pool in scenario.pools.items():
        changes = {section: scenario.pool_section(name, section) for section in ("hardware", "engine")}
        parts.append((name, pool.role, scenario.model_copy(update={"pools": None, **changes})))
    return parts


def _by_pool(command: Callable[[Scenario, str], str], scenario: Scenario, router: str) -> str:
    """A command for each pool, under its name; the command alone where there are no pools."""
    parts = pool_scenarios(scenario)
    if scenario.pools is None:
        return command(scenario, "both")
    lines = [line for name, role, part in parts for line in (f"# {name}", command(part, role))]
    if any(role == "prefill" for _, role, _ in parts):
        lines.append(f"# {router}")
    return "\n".join(lines)


def llama_command(scenario: Scenario) -> str:
    """``llama-server`` with the flags of 2026: slots, batches, the KV cache's format, the split over cards."""
    hardware, engine = scenario.hardware, scenario.engine
    words = ["llama-server", "--model", f"{checkpoint_name(scenario)}.gguf", *_layers(scenario)]
    remarks: list[str] = []
    words += ["--parallel", str(engine.max_num_seqs), "--ubatch-size", str(engine.max_num_batched_tokens)]
    if engine.max_model_len is not None:
        words += ["--ctx-size", str(engine.max_model_len * engine.max_num_seqs)]
    kv = {"bf16": "f16", "fp16": "f16"}.get(scenario.kv_cache_dtype, scenario.kv_cache_dtype)
    if kv in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"):
        words += ["--cache-type-k", kv, "--cache-type-v", kv]
    elif kv != "f16":
        remarks.append(f"no flag is known for kv_cache_dtype {kv}")
    if hardware.tensor_parallel > 1:
        words += ["--split-mode", "tensor"]
    if not engine.flash_attention:
        words += ["--flash-attn", "off"]
    speculation = scenario.speculation
    if speculation is not None and speculation.method != "none":
        method = METHODS[speculation.method].names.get("llama.cpp")
        if method is None:
            remarks.append(f"llama.cpp has no {speculation.method}")
        else:
            words += [*method.split(), "--spec-draft-n-max", str(speculation.depth)]
            policy = named(speculation.policy)
            if policy.name == CONFIDENCE_THRESHOLD:
                words += ["--spec-draft-p-min", f"{policy.confidence_threshold or DEFAULT_THRESHOLD:g}"]
    if isinstance(scenario.weights_dtype, str):
        remarks.insert(0, f"a file of type {scenario.weights_dtype}")
    return _line(words, remarks, scenario)


def _layers(scenario: Scenario) -> list[str]:
    """Which layers llama.cpp puts on cards, and how it divides them among unlike ones."""
    layers = load_architecture(scenario.model).num_layers
    whole = [share for share in scenario.hardware.layers_on if share.part == "layers"]
    on_host = [share.layers or 0 for share in whole if load_chip(share.chip).kind == "cpu"]
    words = ["--gpu-layers", str(layers + 1 - sum(on_host)) if all(on_host) and on_host else "all"]
    for share in scenario.hardware.layers_on:
        if share.part == "experts":
            words += ["--n-cpu-moe", str(share.layers)]
    cards = [share.layers for share in whole if load_chip(share.chip).kind != "cpu"]
    if cards and all(cards):
        split = [count or 0 for count in cards]
        on_gpu = layers - sum(split) - sum(on_host)
        words += ["--split-mode", "layer", "--tensor-split", ",".join(map(str, (*split, on_gpu)))]
    return words


def vllm_command(scenario: Scenario) -> str:
    """``vllm serve`` with the flags of vLLM v0.11; a line for each pool.

    Source: vLLM's documentation, features/nixl_connector_usage: the connector itself does not distinguish the roles,
    the proxy in front does.
    """
    proxy = "in front: a proxy that sends a prompt to a prefill server first (vLLM: toy_proxy_server.py, llm-d, Dynamo)"
    return _by_pool(vllm_replica, scenario, proxy)


def vllm_replica(scenario: Scenario, role: str) -> str:
    """``vllm serve`` of one kind of replica: ``both``, or a side of a KV transfer."""
    hardware, engine = scenario.hardware, scenario.engine
    words = ["vllm", "serve", checkpoint_name(scenario)]
    remarks: list[str] = []
    _pair(words, "--tensor-parallel-size", hardware.tensor_parallel, 1)
    _pair(words, "--data-parallel-size", hardware.attention_data_parallel, 1)
    _pair(words, "--pipeline-parallel-size", hardware.pipeline_parallel, 1)
    if hardware.expert_parallel > 1:
        words.append("--enable-expert-parallel")
    _scheduler(scenario, words, remarks, "vllm", "vLLM")
    _quantisation(scenario, words, remarks, VLLM_QUANTISATION, "--quantization")
    _kv_dtype(scenario, words, remarks, "vllm")
    words += ["--max-num-seqs", str(engine.max_num_seqs)]
    words += ["--max-num-batched-tokens", str(engine.max_num_batched_tokens)]
    words += ["--gpu-memory-utilization", f"{engine.gpu_memory_utilization:g}"]
    _pair(words, "--block-size", engine.block_size, 16)
    _pair(words, "--max-model-len", engine.max_model_len, None)
    if not engine.enable_chunked_prefill:
        words.append("--no-enable-chunked-prefill")
    if not engine.enable_prefix_caching:
        words.append("--no-enable-prefix-caching")
    if not engine.cuda_graphs:
        words.append("--enforce-eager")
    speculation = scenario.speculation
    if speculation is not None and speculation.method != "none":
        method = METHODS[speculation.method].names.get("vllm")
        if method is None or speculation.tree is not None:
            remarks.append(f"vLLM has no {speculation.method}{' tree' if speculation.tree is not None else ''}")
        else:
            config: dict[str, Any] = {"method": method, "num_speculative_tokens": speculation.num_speculative_tokens}
            head = speculation.draft.model if speculation.draft is not None else None
            if isinstance(head, str):
                config["model"] = published_name(head)
            elif METHODS[speculation.method].checkpoint:
                config["model"] = "DRAFT_MODEL"
            words += ["--speculative-config", json.dumps(config)]
    if role in KV_ROLES:
        words += ["--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": KV_ROLES[role]})]
    return _line(words, remarks, scenario)


def _scheduler(scenario: Scenario, words: list[str], remarks: list[str], engine: str, name: str) -> None:
    """Scheduler flags of an engine, or why there are none."""
    flags = scenario.engine.rules.flags.get(engine)
    if flags is None:
        remarks.append(f"{name} has no scheduler like {scenario.engine.scheduler}")
    else:
        words += flags


def sglang_command(scenario: Scenario) -> str:
    """``python -m sglang.launch_server`` with the flags of SGLang v0.5; a line for each pool.

    Source: SGLang's documentation, advanced_features/pd_disaggregation.
    """
    router = (
        "in front: python -m sglang_router.launch_router --pd-disaggregation --prefill http://PREFILL:30000 "
        "--decode http://DECODE:30000"
    )
    return _by_pool(_sglang_replica, scenario, router)


def _sglang_replica(scenario: Scenario, role: str) -> str:
    hardware, engine = scenario.hardware, scenario.engine
    words = ["python", "-m", "sglang.launch_server", "--model-path", checkpoint_name(scenario)]
    remarks: list[str] = []
    _pair(words, "--tp-size", hardware.tensor_parallel * hardware.attention_data_parallel, 1)
    if hardware.attention_data_parallel > 1:
        words += ["--dp-size", str(hardware.attention_data_parallel), "--enable-dp-attention"]
    _pair(words, "--pp-size", hardware.pipeline_parallel, 1)
    _pair(words, "--ep-size", hardware.expert_parallel, 1)
    _scheduler(scenario, words, remarks, "sglang", "SGLang")
    _quantisation(scenario, words, remarks, SGLANG_QUANTISATION, "--quantization")
    _kv_dtype(scenario, words, remarks, "sglang")
    words += ["--max-running-requests", str(engine.max_num_seqs)]
    chunk = engine.max_num_batched_tokens if engine.enable_chunked_prefill else -1
    words += ["--chunked-prefill-size", str(chunk)]
    words += ["--mem-fraction-static", f"{engine.gpu_memory_utilization:g}"]
    _pair(words, "--context-length", engine.max_model_len, None)
    if not engine.enable_prefix_caching:
        words.append("--disable-radix-cache")
    if not engine.cuda_graphs:
        words.append("--disable-cuda-graph")
    speculation = scenario.speculation
    if speculation is not None and speculation.method != "none":
        algorithm = METHODS[speculation.method].names.get("sglang")
        if algorithm is None or speculation.tree is not None:
            remarks.append(f"flags of {speculation.method} in SGLang are not known here")
        else:
            drafted = speculation.num_speculative_tokens or 0
            words += ["--speculative-algorithm", algorithm, "--speculative-num-steps", str(drafted)]
            words += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(drafted + 1)]
            head = speculation.draft.model if speculation.draft is not None else None
            if isinstance(head, str):
                words += ["--speculative-draft-model-path", published_name(head)]
            elif METHODS[speculation.method].checkpoint:
                words += ["--speculative-draft-model-path", "DRAFT_MODEL"]
    if role != "both":
        words += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
    return _line(words, remarks, scenario)


def checkpoint_name(scenario: Scenario) -> str:
    """The checkpoint to load: the published name of a catalogue model, or the folder of a ``config.json``."""
    if isinstance(scenario.model, str):
        path = Path(scenario.model)
        return str(path.parent) if path.suffix == ".json" else published_name(scenario.model)
    return str(scenario.model.get("name", scenario.model.get("_name_or_path", "MODEL")))


def published_name(model: str) -> str:
    """First repository of a catalogue model; the name itself where it has none."""
    return next(iter(published_repositories(model)), model)


def _quantisation(scenario: Scenario, words: list[str], remarks: list[str], known: dict[str, str], flag: str) -> None:
    """The flag under which an engine converts 16-bit weights; a checkpoint in the format requested needs none."""
    weights_dtype = scenario.weights_dtype
    if weights_dtype is None or weights_dtype in ("bf16", "fp16"):
        return
    architecture = load_architecture(scenario.model)
    default_dtypes = resolve_weight_dtypes(architecture, None)
    if resolve_weight_dtypes(architecture, weights_dtype) == default_dtypes:
        return
    wide = all(dtype_bytes(dtype) >= 2 for dtype in default_dtypes.values())
    name = known.get(weights_dtype) if isinstance(weights_dtype, str) and wide else None
    if name is not None:
        words += [flag, name]
    else:
        remarks.append(f"load a checkpoint with weights_dtype {weights_dtype}")


def _kv_dtype(scenario: Scenario, words: list[str], remarks: list[str], engine: str) -> None:
    if scenario.kv_cache_dtype in ("bf16", "fp16"):
        return
    name = KV_DTYPES.get(scenario.kv_cache_dtype, {}).get(engine)
    if name is not None:
        words += ["--kv-cache-dtype", name]
    else:
        remarks.append(f"no flag is known for kv_cache_dtype {scenario.kv_cache_dtype}")


def _pair(words: list[str], flag: str, value: Any, default: Any) -> None:
    if value != default:
        words += [flag, str(value)]


def _line(words: list[str], remarks: list[str], scenario: Scenario) -> str:
    replicas = scenario.hardware.replicas
    if replicas > 1:
        remarks = [f"{replicas} copies behind a {scenario.engine.routing} router", *remarks]
    return shlex.join(words) + (f"  # {'; '.join(remarks)}" if remarks else "")
