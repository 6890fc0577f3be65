"""Steps of measured engines: a profiler's times by tokens, and servers' logs of what ran and tokens per second."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

from dashboards.recorded_errors import ErrorRow
from hwprofiles import weakest
from simulator.replay.steps import steps_document
from simulator.running.measured_runs import run_scenario
from simulator.running.scenario import Scenario
from traces.benchmark_results import MeasuredRun
from traces.steps.table import step_table
from validation.facts import fitted_words
from validation.halves import rows_by_hash
from validation.record import signed_row

METRIC = "step_ms"
PROFILE = "vllm_dsv4_flash_b300_step_cost.csv"
"""Target steps of a profiler by tokens, spread evenly over as many requests as there may be."""
PROFILED = {"hardware.expert_routing": "identical"}
"""vLLM profiles dummy tokens that are alike (``maybe_randomize_inputs`` leaves them so without data parallelism)."""
LOG, LOG_RUNS = "inferencex_steplog_engine10s.csv", "inferencex_steplog_runs.csv"
"""Log lines every ten seconds, and the runs that they belong to."""
CACHE_BYTES = 1.5 * 61 * 576
"""Bytes of a token in the KV cache of DeepSeek-R1 and Kimi-K2, the logged models, between 8 and 16 bits."""
LIMITS = {"max_num_batched_tokens": 16384, "max_num_seqs": 256}
LONGEST_S, STEADY = 11.5, 0.05
"""Longest time between two lines ten seconds apart, and the most by which their token rates differ. Where an API server
falls behind, lines come minutes late; prompt tokens are logged when a prompt ends, not while its chunks delay the
others."""

Row = Mapping[str, str]
Steps = list[dict[str, Any]]


def step_errors(folder: Path, base: Scenario, limit: int) -> Iterator[ErrorRow]:
    """Errors of predicted steps, a row for each table below a folder.

    Args:
        folder: of measured tables.
        base: what the tables do not state.
        limit: log lines of a run that are compared, chosen by hash.
    """
    for path in sorted(folder.rglob("*.csv")):
        if path.name == PROFILE:
            groups = [_profile(path)]
        elif path.name == LOG:
            groups = list(_logs(path, limit))
        else:
            continue
        documents = [steps_document([step_table(steps, path.name)], run_scenario(run, base)) for run, steps in groups]
        signed = [step["predicted_s"] / step["measured_s"] - 1 for one in documents for step in one["steps"]]
        basis = weakest(one["basis"] for one in documents)
        fitted = fitted_words(path.name.split(".")[0], ())
        yield signed_row("requests", str(path.relative_to(folder)), METRIC, signed, basis, fitted, ships=False)


def _profile(path: Path) -> tuple[MeasuredRun, Steps]:
    """Medians of target steps: every request has as many keys as the profiler's default.

    Source: vLLM's blog of 2026-08-14 (server command); vllm-project/vllm#54046 (how ``_dummy_run`` splits tokens).
    """
    rows = [row for row in _rows(path) if row["panel"].startswith("verify") and row["kind"].startswith("median")]
    steps = []
    for row in rows:
        tokens = int(row["size"])
        query = -(-tokens // LIMITS["max_num_seqs"])
        requests = round(tokens / query)
        counts = {
            "decode_seqs": requests,
            "query_len": query,
            "decode_kv_tokens": requests * int(row["kv_context_tokens"]),
        }
        steps.append({"place": row["row_id"], "measured_s": float(row["step_ms"]) / 1e3, **counts})
    captured = sorted({int(row["size"]) for row in rows if row["path"] == "cuda graph"})
    settings = {"engine.cuda_graph_sizes": captured, **PROFILED}
    facts = {"kv_cache_dtype": "fp8", "expert_parallel": int(rows[0]["tp"]), "settings": settings}
    return _run(rows[0], path.stem, rows[0]["framework"], **facts, **LIMITS), steps


def _logs(path: Path, limit: int) -> Iterator[tuple[MeasuredRun, Steps]]:
    """Windows of ten seconds between others without a finished prompt and with as many running requests. A step takes
    their number over tokens per second; the share of the KV cache in use gives the keys that they read. The command
    tells the tensor parallelism (one run's column is another)."""
    runs = {row["run"]: row for row in _rows(path.with_name(LOG_RUNS))}
    lines: dict[str, list[Row]] = defaultdict(list)
    for row in _rows(path):
        lines[row["run"]].append(row)
    for name, own in lines.items():
        steps: Steps = []
        run = runs[name]
        chips = re.search(r"tensor-parallel-size[ =](\d+)", run["command"])
        run = {**run, "tp": chips[1]} if chips else run
        for before, row, after in zip(own, own[1:], own[2:], strict=False):
            near = (before, row, after)
            quiet = all(float(one["prompt_tok_s"]) == 0 and one["running"] == row["running"] for one in near)
            quiet &= all(float(b["t_s"]) - float(a["t_s"]) <= LONGEST_S for a, b in pairwise(near))
            rate, rate_before = float(row["gen_tok_s"]), float(before["gen_tok_s"])
            running, keys = int(row["running"]), float(row["kv_usage_pct"]) / 100 * float(run["gpu_kv_tokens"])
            if quiet and abs(rate - rate_before) <= STEADY * rate_before and keys >= running > 0:
                counts = {"decode_seqs": running, "decode_kv_tokens": round(keys)}
                measured_s = running / rate
                steps.append({"place": f"{name} {row['t_s']}", "measured_s": measured_s, **counts})
        if steps:
            token_bytes = float(run["kv_gib_per_gpu"]) * 2**30 / float(run["gpu_kv_tokens"])
            engine, _, release = run["framework"].partition(" ")
            cache = "fp8" if token_bytes < CACHE_BYTES else "bf16"
            spread = int(run["tp"]) if int(run["ep"]) > 1 else 1
            layout = {"expert_parallel": spread, "kv_cache_dtype": cache, "framework_version": release}
            yield _run(run, name, engine, **layout), rows_by_hash(steps, itemgetter("place"), limit)


def _run(row: Row, name: str, framework: str, **facts: Any) -> MeasuredRun:
    chips = int(row["tp"])
    return MeasuredRun(
        name, name, model=row["model"], chip=row["gpu"], framework=framework, tensor_parallel=chips, **facts
    )


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
