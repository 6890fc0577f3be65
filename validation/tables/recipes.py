"""Start commands of measured servers: what options set, and those that a benchmark publishes apart from its results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from forerun.yaml_files import packaged
from traces import TraceError

_LIMITS = {"max-running-requests": "max_num_seqs", "max-num-seqs": "max_num_seqs",
          "chunked-prefill-size": "max_num_batched_tokens", "max-num-batched-tokens": "max_num_batched_tokens",
          "mem-fraction-static": "gpu_memory_utilization",
          "gpu-memory-utilization": "gpu_memory_utilization"}  # fmt: skip
"""Options of vLLM and SGLang -> limit of a run; SGLang's options cover all attention groups together."""
_INTERVALS = {"stream-interval": "engine.stream_interval",
              "scheduler-recv-interval": "engine.scheduler_recv_interval"}  # fmt: skip
_WITHOUT_PREFIX_CACHE = {"disable-radix-cache", "no-enable-prefix-caching"}
_ENGINES = {"trt": "trtllm"}


def inferencex_flags(
    engine: str | None,
    model: str | None,
    chip: str | None,
    weights: str | None,
    tensor: int | None,
    lengths: tuple[int | None, int | None],
    concurrency: int,
    strategy: str | None = None,
) -> dict[str, str]:
    """Options of a run's published launch script (``inferencex_recipes.yaml``); names as its tables write them.

    Args:
        strategy: of a run of SGLang's cookbook; None for InferenceX.
    """
    name, on = _ENGINES.get(engine or "", engine or ""), (model or "").rsplit("/", 1)[-1].lower()
    row: dict[str, object] = {"gpu": re.split("[_-]", (chip or "").lower())[0], "weights": (weights or "").lower()}
    row |= {"tp": tensor or 1, "lengths": [*lengths], "strategy": strategy}
    flags: dict[str, str] = {}
    for recipe in packaged("validation.tables", "inferencex_recipes.yaml")["recipes"]:
        of = recipe["of"]
        applies = name == of["engine"] and on.startswith(of["model"]) and ("strategy" in of) == (strategy is not None)
        applies &= all(value in of.get(key, (value,)) for key, value in row.items())
        if applies and concurrency >= recipe.get("from_concurrency", 0):
            flags = dict(recipe["flags"])
    if flags.get("max-num-batched-tokens") == "one-prompt":
        flags["max-num-batched-tokens"] = str(max(8192, -(-((lengths[0] or 0) + concurrency + 64) // 64) * 64))
    return flags


def decode_batch(
    chip: str | None, weights: str | None, lengths: list[int | None], drafts: bool, places: int, concurrency: int
) -> int:
    """Sequences of a decode worker of InferenceX under dynamo and TensorRT-LLM, or of each of its attention groups.

    Its clients send up to half as many requests again as are decoded at once: the others wait, most of the time to the
    first token. Most batches are a power of two (or 3 x 2^n that takes all requests); recipes tell the others.

    Args:
        chip, weights, lengths: of the run, as its table writes them.
        drafts: whether it speculates.
        places: decode workers times their attention groups.
        concurrency: requests at a time.
    """
    row = {"gpu": (chip or "").lower(), "weights": weights, "lengths": lengths, "drafts": drafts, "places": places}
    for entry in packaged("validation.tables", "inferencex_recipes.yaml")["decode_batches"]:
        same = all(value in entry["gpu"] if name == "gpu" else entry.get(name, value) == value
                   for name, value in row.items())  # fmt: skip
        if same and concurrency in entry["concurrency"]:
            return int(entry["batch"])
    most = max(1, concurrency // places)
    batch: int = 1 << (most.bit_length() - 1)
    return most if concurrency % places == 0 and batch >= 256 and 2 * most == 3 * batch else batch


def worker_limits(
    engine: str, chip: str | None, weights: str | None, prompt: int | None, groups: bool
) -> tuple[str | None, dict[str, int]]:
    """KV format of disaggregated workers that a benchmark publishes apart from its results, and prefill's limits.

    Args:
        engine: ``trtllm`` or ``sglang``.
        chip, weights, prompt: of the run, as its table writes them.
        groups: True if attention is data-parallel in prefill workers.
    """
    row = {"engine": engine, "gpu": (chip or "").lower(), "weights": weights, "prompt": prompt, "groups": groups}
    kv_format: str | None = None
    limits: dict[str, int] = {}
    for entry in packaged("validation.tables", "inferencex_recipes.yaml")["workers"]:
        if all(row[name] in values for name, values in entry["of"].items()):
            kv_format = entry.get("kv_cache_dtype", kv_format)
            limits |= entry.get("prefill", {})
    return kv_format, limits


def limits_of(flags: Mapping[str, str], place: str) -> dict[str, Any]:
    """Engine limits that options state, by field of a measured run.

    Raises:
        TraceError: a limit that is no number above zero; ``place`` says where.
    """
    limits: dict[str, Any] = {}
    for flag, name in _LIMITS.items():
        if flag in flags:
            whole = name != "gpu_memory_utilization"
            try:
                text = re.sub(r"[kK]$", "000", flags[flag])
                limits[name] = int(text) if whole else float(text)
            except ValueError:
                limits[name] = 0
            if not 0 < limits[name] <= (10**9 if whole else 1):
                raise TraceError(f"{place}: server_args: --{flag} '{flags[flag][:40]}' is no such limit")
    return limits


def settings_of(flags: Mapping[str, str], groups: int | None) -> dict[str, object]:
    """Scenario values of a server's streaming and look intervals, experts' kernels and waiting prompts. TensorRT-LLM's
    prompts do not wait in attention groups."""
    settings: dict[str, object] = {name: int(flags[flag]) for flag, name in _INTERVALS.items() if flag in flags}
    if flags.get("moe-backend") in ("mxfp8", "marlin"):
        settings["engine.moe_backend"] = flags["moe-backend"]
    if "batch-wait-timeout-iters" in flags and not groups:
        settings["engine.batch_wait_timeout_iters"] = int(flags["batch-wait-timeout-iters"])
        settings["engine.batch_wait_max_tokens_ratio"] = float(flags["batch-wait-max-tokens-ratio"])
    return settings


def prefix_caching_of(flags: Mapping[str, str]) -> bool | None:
    """False where an option turns prefix caching off, else None."""
    return False if _WITHOUT_PREFIX_CACHE & flags.keys() else None
