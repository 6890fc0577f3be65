"""Launch command of the engine that a scenario describes: vLLM, SGLang, TensorRT-LLM or llama.cpp."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forerun.document import Json
from hwprofiles import dtype_bytes, load_chip
from simulator.launch.tables import KV_ROLES, table
from simulator.llm import load_architecture, published_repositories
from simulator.running.engine_defaults import chosen_fields
from simulator.running.scenario import Scenario
from simulator.speculation.confidence import CONFIDENCE_THRESHOLD, DEFAULT_THRESHOLD
from simulator.speculation.methods import METHODS, EngineName, emitted_name
from simulator.speculation.speculation_config import CONFIDENCE_BUDGET, SpeculationConfig, named
from simulator.studies.templates import command_words, templates
from simulator.timing.deployment import resolve_weight_dtypes
from simulator.timing.framework import LOCAL_FRAMEWORKS, engine_defaults

ENGINES = {"vllm": "vLLM", "sglang": "SGLang"}
SGLANG_BLOCKS = ("DFLASH", "DSPARK", "NGRAM")
"""SGLang methods whose flag counts all verified tokens, including the last accepted one: ``ngram_worker.py`` masks that
many tokens next to a cache of one less than the sequence; ``speculative_hook.py``, sgl-project/sglang#30261."""


def launch_flags(scenario: Scenario) -> dict[str, str]:
    """Launch command of one replica by engine, the scenario's own engine first. Settings without a flag are remarks
    after ``#``; each pool has a line."""
    framework = scenario.engine.framework
    if framework in LOCAL_FRAMEWORKS:
        return {"llama.cpp": _llama_command(scenario)}
    own = {}
    if framework.startswith("trtllm") and scenario.pools is None:
        own = {"trtllm": f"{trtllm_command(scenario, 'FILE')}  # --emit trtllm writes FILE"}
    engines = sorted(ENGINES, key=lambda engine: not framework.startswith(engine))
    return own | {engine: engine_command(engine, scenario) for engine in engines}


def trtllm_command(scenario: Scenario, file: str) -> str:
    """Command of TensorRT-LLM's server with its settings in ``file``."""
    return f"trtllm-serve {shlex.quote(checkpoint_name(scenario))} --extra_llm_api_options {file}"


def pool_scenarios(scenario: Scenario) -> list[tuple[str, str, Scenario]]:
    """(name, role, scenario of one kind of replica) of each pool; without pools, one entry with an empty name."""
    if scenario.pools is None:
        return [("", "both", scenario)]
    parts: list[tuple[str, str, Scenario]] = []
    for name, pool in scenario.pools.items():
        changes = {section: scenario.pool_section(name, section) for section in ("hardware", "engine")}
        parts.append((name, pool.role, scenario.model_copy(update={"pools": None, **changes})))
    return parts


def engine_command(engine: str, scenario: Scenario) -> str:
    """Command of ``vllm`` or ``sglang`` with a preamble; with pools, one command per pool below its name."""
    if scenario.pools is None:
        return replica_command(engine, scenario)
    parts = pool_scenarios(scenario)
    lines = [line for name, role, part in parts for line in (f"# {name}", replica_command(engine, part, role))]
    if any(role == "prefill" for _, role, _ in parts):
        lines.append(f"# {templates()['in_front'][engine]}")
    return "\n".join(lines)


def replica_command(engine: str, scenario: Scenario, role: str = "both") -> str:
    """Command of one kind of replica; ``role`` is ``both``, or a side of a KV transfer."""
    hardware, fields = scenario.hardware, scenario.engine
    remarks: list[str] = []
    scheduler = fields.rules.flags.get(engine)
    if scheduler is None and "scheduler" in chosen_fields(fields):
        remarks.append(f"{ENGINES[engine]} has no scheduler like {fields.scheduler}")
    if engine == "vllm" and 1 < hardware.expert_parallel < hardware.chips_per_stage:
        remarks.append(f"vLLM spreads experts over all {hardware.chips_per_stage} chips")
    if (
        engine == "vllm"
        and hardware.attention_data_parallel > 1
        and not load_architecture(scenario.model).parameters().expert
    ):
        remarks.append("vLLM's data parallel groups of a dense model share nothing, as hardware.replicas")
    whole, defaults = fields.scheduler_reserve_full_isl, engine_defaults(fields.framework, release=fields.release)
    differs = scheduler is not None and whole != defaults.get("scheduler_reserve_full_isl", whole)
    config = {"kv_connector": "NixlConnector", "kv_role": KV_ROLES.get(role)}
    values = {
        "checkpoint": checkpoint_name(scenario),
        "scheduler": list(scheduler or ()),
        "full_isl": f"--{'' if whole else 'no-'}scheduler-reserve-full-isl" if differs else None,
        "quantisation": quantisation(scenario, engine, remarks),
        "kv_dtype": _kv_dtype(scenario, engine, remarks, ("bf16", "fp16")),
        "tp_size": hardware.tensor_parallel * hardware.attention_data_parallel,
        "chunk": fields.max_num_batched_tokens if fields.enable_chunked_prefill else -1,
        "kv_transfer": json.dumps(config) if role in KV_ROLES else None,
        "side": None if role == "both" else role,
        **_stores(scenario, engine, role, remarks),
        **_speculation(scenario, engine, remarks),
    }
    return _line(command_words(engine, scenario, values), remarks, scenario)


def _stores(scenario: Scenario, engine: str, role: str, remarks: list[str]) -> Json:
    """Values of the flags of KV stores; adds a remark on stores without a flag.

    vLLM's sizes are of all ranks, LMCache's (GiB) and SGLang's (GB) of each rank.
    """
    fields, chips = scenario.engine, scenario.hardware.chips_per_replica
    media, stores = [store.medium for store in fields.kv_stores], {store.medium: store for store in fields.kv_stores}
    per_chip = {medium: store.bytes / chips for medium, store in stores.items()}
    values: Json = dict.fromkeys(("kv_offloading_gib", "hicache_gb", "hicache_policy", "hicache_storage"))
    if fields.kv_offloading_bytes is not None:
        per_chip = {"host": fields.kv_offloading_bytes}
    fits = media in ([], ["host"], ["host", "disk"]) or (engine == "vllm" and media == ["disk"])
    if not per_chip or not fits or (engine == "vllm" and role in KV_ROLES):
        remarks += stores_remark(scenario)
        return values
    if scenario.kv_store is not None:
        remarks += stores_remark(scenario.model_copy(update={"engine": type(fields)()}))
    host = stores.get("host")
    if engine == "sglang":
        values["hicache_gb"] = max(1, round(per_chip["host"] / 1e9))
        values["hicache_policy"] = "write_through" if host is not None and host.saves == "computed" else "write_back"
        if "disk" in stores:
            values["hicache_storage"] = "file"
            remarks.append(f"no flag limits the disk to {stores['disk'].bytes / 1e9:,.0f} GB")
        return values
    if host is not None and host.saves == "evicted":
        remarks.append("vLLM copies blocks to the host as they are computed")
    if not stores:
        values["kv_offloading_gib"] = per_chip["host"] * chips / 2**30
    elif "disk" not in stores:
        config = {"cpu_bytes_to_use": int(stores["host"].bytes)}
        values["kv_transfer"] = _connector("OffloadingConnector", config)
    else:
        sizes: Json = {"lmcache.local_cpu": host is not None, "lmcache.local_disk": "file:///DISK/"}
        names = {"host": "lmcache.max_local_cpu_size", "disk": "lmcache.max_local_disk_size"}
        sizes |= {names[medium]: float(f"{size / 2**30:.6g}") for medium, size in per_chip.items()}
        values["kv_transfer"] = _connector("LMCacheConnectorV1", sizes)
    return values


def _connector(name: str, config: Json) -> str:
    return json.dumps({"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": config})


def _speculation(scenario: Scenario, engine: str, remarks: list[str]) -> dict[str, Any]:
    """Values of the speculation flags; adds a remark for settings that the engine does not have."""
    values = dict.fromkeys(("speculation", "algorithm", "steps", "verified", "drafter"))
    speculation = scenario.speculation
    if speculation is None or speculation.method == "none":
        return values
    known = engine_name(engine, speculation)
    drafted = speculation.num_speculative_tokens
    if known is None and named(speculation.policy).name == CONFIDENCE_BUDGET:
        remarks.append(f"{ENGINES[engine]} verifies by confidence with method: parallel-draft (DSpark) alone")
        return values
    if known is None or speculation.tree is not None:
        tree = " tree" if speculation.tree is not None else ""
        unknown = {
            "vllm": f"vLLM has no {speculation.method}{tree}",
            "sglang": f"flags of {speculation.method} in SGLang are not known here",
        }
        remarks.append(unknown[engine])
        return values
    model = drafter_name(scenario)
    config = {"method": known.name, **known.options, "num_speculative_tokens": drafted}
    config |= {"model": model} if model else {}
    if known.other:
        remarks.append(known.other)
    count = drafted or 0
    steps, verified = sglang_counts(known.name, count, count)
    flags = {"algorithm": known.name, "steps": steps, "verified": verified, "drafter": model}
    return values | flags | {"speculation": json.dumps(config)}


def engine_name(engine: str, speculation: SpeculationConfig) -> EngineName | None:
    """Name of a scenario's speculation method in an engine; None if the engine lacks the method."""
    by_confidence = named(speculation.policy).name == CONFIDENCE_BUDGET
    sequential = speculation.draft is not None and speculation.draft.markov_rank is not None
    return emitted_name(engine, speculation.method, by_confidence, sequential)


def sglang_counts(algorithm: str, depth: int, tokens: int) -> tuple[int | None, int]:
    """SGLang's number of draft steps (None if it drafts in one block) and of verified tokens.

    Args:
        algorithm: SGLang's name of the method.
        depth: number of sequential draft steps.
        tokens: number of draft tokens.
    """
    return None if algorithm in SGLANG_BLOCKS else depth, tokens + 1


def _llama_command(scenario: Scenario) -> str:
    engine, speculation = scenario.engine, scenario.speculation
    remarks = [f"a file of type {scenario.weights_dtype}"] if isinstance(scenario.weights_dtype, str) else []
    remarks += [*pools_remark(scenario), *stores_remark(scenario)]
    length = engine.max_model_len
    values: dict[str, Any] = {
        "checkpoint": checkpoint_name(scenario),
        "context": None if length is None else length * engine.max_num_seqs,
        "kv_dtype": _kv_dtype(scenario, "llama.cpp", remarks, ("bf16", "fp16", "f16")),
        **dict.fromkeys(("method", "depth", "confidence")),
        **_layers(scenario),
    }
    if speculation is not None and speculation.method != "none":
        known = engine_name("llama.cpp", speculation)
        policy = named(speculation.policy)
        if known is None:
            by_confidence = " verified by confidence" if policy.name == CONFIDENCE_BUDGET else ""
            remarks.append(f"llama.cpp has no {speculation.method}{by_confidence}")
        else:
            values |= {"method": known.name.split(), "depth": speculation.depth}
            if policy.name == CONFIDENCE_THRESHOLD:
                values["confidence"] = policy.confidence_threshold or DEFAULT_THRESHOLD
    return _line(command_words("llama.cpp", scenario, values), remarks, scenario)


def _layers(scenario: Scenario) -> dict[str, Any]:
    """Values of llama.cpp's flags for layers on cards, experts on the host, and the split between different cards."""
    layers = load_architecture(scenario.model).num_layers
    whole = [share for share in scenario.hardware.layers_on if share.part == "layers"]
    experts = [str(share.layers) for share in scenario.hardware.layers_on if share.part == "experts"]
    on_host = [share.layers or 0 for share in whole if load_chip(share.chip).kind == "cpu"]
    cards = [share.layers or 0 for share in whole if load_chip(share.chip).kind != "cpu"]
    split = ",".join(map(str, (*cards, layers - sum(cards) - sum(on_host))))
    return {
        "gpu_layers": layers + 1 - sum(on_host) if all(on_host) and on_host else "all",
        "experts_on_host": [word for count in experts for word in ("--n-cpu-moe", count)],
        "split": split if cards and all(cards) else None,
    }


def checkpoint_name(scenario: Scenario) -> str:
    """Checkpoint to load: published name of a catalogue model, or folder of a ``config.json``.

    A relative folder begins with ``./``, because a single word would denote a model on the Hugging Face Hub.
    """
    if isinstance(scenario.model, str):
        path = Path(scenario.model)
        if path.suffix != ".json":
            return published_name(scenario.model)
        return str(path.parent) if path.is_absolute() else f"./{path.parent}"
    return str(scenario.model.get("name", scenario.model.get("_name_or_path", "MODEL")))


def published_name(model: str) -> str:
    """First repository of a catalogue model; ``model`` itself if it is a repository or the model has no repository."""
    return model.removeprefix("hf:") if "/" in model else next(iter(published_repositories(model)), model)


def drafter_name(scenario: Scenario) -> str | None:
    """Checkpoint of the drafter; None for methods without a checkpoint."""
    speculation = scenario.speculation
    if speculation is not None and speculation.draft is not None and isinstance(speculation.draft.model, str):
        return published_name(speculation.draft.model)
    return "DRAFT_MODEL" if speculation is not None and METHODS[speculation.method].checkpoint else None


def quantisation(scenario: Scenario, engine: str, remarks: list[str]) -> str | None:
    """Engine's name of the format to which it converts 16-bit weights; None if the checkpoint has that format."""
    weights_dtype = scenario.weights_dtype
    if weights_dtype is None:
        return None
    architecture = load_architecture(scenario.model)
    default_dtypes = resolve_weight_dtypes(architecture, None)
    wide = all(dtype_bytes(dtype) >= 2 for dtype in default_dtypes.values())
    if resolve_weight_dtypes(architecture, weights_dtype) == default_dtypes or (
        wide and weights_dtype in ("bf16", "fp16")
    ):
        return None
    known: dict[str, str] = table(engine)["quantisation"]
    name = known.get(weights_dtype) if isinstance(weights_dtype, str) and wide else None
    if name is None:
        narrow = ", ".join(dict.fromkeys(dtype for dtype in default_dtypes.values() if dtype_bytes(dtype) < 2))
        published = f" (the published one has {narrow})" if narrow else ""
        remarks.append(f"load a checkpoint with weights_dtype {weights_dtype}{published}")
    return name


def _kv_dtype(scenario: Scenario, engine: str, remarks: list[str], default: Sequence[str]) -> str | None:
    known: dict[str, str] = table(engine)["kv_dtype"]
    if scenario.kv_cache_dtype in default:
        return None
    if scenario.kv_cache_dtype not in known:
        remarks.append(f"no flag is known for kv_cache_dtype {scenario.kv_cache_dtype}")
    return known.get(scenario.kv_cache_dtype)


def _line(words: Sequence[str], remarks: Sequence[str], scenario: Scenario) -> str:
    remarks = [*replicas_remark(scenario), *remarks]
    return shlex.join(words) + (f"  # {'; '.join(remarks)}" if remarks else "")


def pools_remark(scenario: Scenario) -> list[str]:
    """Remark on pools: a command or file of one engine describes none."""
    return [] if scenario.pools is None else ["the pools are left out (--emit dynamo writes them)"]


def stores_remark(scenario: Scenario) -> list[str]:
    """Remark on stores behind the prefix cache for which no flag is written."""
    engine = scenario.engine
    held = [f"{store.medium} {store.bytes / 1e9:,.0f} GB" for store in engine.kv_stores]
    if engine.kv_offloading_bytes is not None:
        held.append(f"host {engine.kv_offloading_bytes / 1e9:,.0f} GB a chip")
    if scenario.kv_store is not None:
        held.append(f"shared {scenario.kv_store.bytes / 1e9:,.0f} GB")
    return [f"add the KV stores that this answer has: {', '.join(held)}"] if held else []


def replicas_remark(scenario: Scenario) -> list[str]:
    """Remark on the router in front of several replicas."""
    count = scenario.hardware.replicas
    return [] if count == 1 else [f"{count} copies behind a {scenario.engine.routing} router"]
