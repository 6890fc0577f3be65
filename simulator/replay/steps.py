"""Measured against predicted engine steps: batch composition -> seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ForerunError
from hwprofiles import weakest
from simulator.replay.scores import error_figures
from simulator.running.build import build_replica
from simulator.running.scenario import Scenario
from simulator.timing import Costs, ModelTimer, StepWork
from traces.steps import StepTable

KINDS = ("prefill", "decode", "mixed", "verify")
BOUNDS = ("compute_s", "memory_s", "interconnect_s", "latency_s", "host_s")
WORST_ROWS = 20


def steps_document(tables: Sequence[StepTable], scenario: Scenario) -> dict[str, Any]:
    """The JSON of ``forerun replay steps``: every measured step beside the prediction with the scenario's model, chips
    and engine. Steps measured on the device are compared without the host's work; percentages are numbers such as 7.3.

    Raises:
        ForerunError: no steps, a scenario with something that is not modelled, or a step that its engine cannot run.
    """
    from forerun.version import VERSION
    from simulator.running.metrics.document import scenario_document

    if not tables:
        raise ForerunError("no measured step to replay")
    predictions = [_predicted(table, scenario) for table in tables]
    measured = np.concatenate([table.measured_s for table in tables])
    predicted = np.concatenate([seconds for seconds, _ in predictions])
    kinds = np.concatenate([step_kinds(table) for table in tables])
    every = np.ones(len(kinds), dtype=bool)
    figures = [
        {"kind": name, "n": int(part.sum()), **error_figures((predicted - measured)[part] / measured[part] * 100.0)}
        for name, part in [*((kind, kinds == kind) for kind in KINDS), ("all", every)]
        if part.any()
    ]
    rows = [
        row for table, (seconds, costs) in zip(tables, predictions, strict=True) for row in _rows(table, seconds, costs)
    ]
    return {
        "sources": [table.source for table in tables],
        "groups": figures[:-1],
        "overall": figures[-1],
        "steps": rows,
        "worst": sorted(rows, key=lambda row: -row["ape"])[:WORST_ROWS],
        "skipped": dict(sum((Counter(table.skipped) for table in tables), Counter())),
        "basis": weakest(costs.evidence.basis for _, costs in predictions),
        "scenario": scenario_document(scenario),
        "version": VERSION,
    }


def _predicted(table: StepTable, scenario: Scenario) -> tuple[FloatArray, Costs]:
    limit = max(int(table.tokens.max()), scenario.engine.max_num_batched_tokens)
    sequences = max(int((table.decode_seqs + table.prefill_seqs).max()), scenario.engine.max_num_seqs)
    wide = scenario.with_values({"engine.max_num_batched_tokens": limit, "engine.max_num_seqs": sequences})
    build = build_replica(wide, seed=0)
    timer = build.main.timer
    assert isinstance(timer, ModelTimer)
    if build.main.limits.query_len == 1 and bool((table.query_len[table.decode_seqs > 0] > 1).any()):
        timer = ModelTimer(timer.target, None)
    work = step_work(table, timer.windows)
    costs, device = timer.costs(work), timer.target.costs(work)
    return np.where(table.device, device.device_s + device.host_s, costs.device_s + costs.host_s), costs


def step_kinds(table: StepTable) -> NDArray[np.str_]:
    """``prefill``, ``decode``, ``mixed`` (both) or ``verify`` (several tokens per sequence) of every step."""
    prefills, decodes = table.prefill_tokens > 0, table.decode_seqs > 0
    verify = decodes & (table.query_len > 1)
    return np.select([prefills & decodes, verify, decodes], ["mixed", "verify", "decode"], "prefill").astype(np.str_)


def step_work(table: StepTable, windows: Sequence[int | None]) -> StepWork[IntArray]:
    """The steps as the timing model sees them.

    Inside a sliding window keys and pairs follow from the mean length of the step's sequences.
    """
    seqs = np.maximum(table.prefill_seqs, 1)
    columns: tuple[list[IntArray], ...] = ([], [], [])
    for window in windows:
        kept = [table.prefill_pairs, table.prefill_kv_tokens, table.decode_kv_tokens]
        if window is not None:
            chunks = table.prefill_seqs * (table.prefill_tokens // seqs + window)
            decodes = table.decode_seqs * (window + table.query_len - 1)
            kept = [*map(np.minimum, kept, (table.prefill_tokens * window, chunks, decodes))]
        for column, values in zip(columns, kept, strict=True):
            column.append(values)
    pairs, keys, decode_keys = map(tuple, columns)
    return StepWork(
        prefill_seqs=table.prefill_seqs,
        prefill_tokens=table.prefill_tokens,
        prefill_pairs=pairs,
        prefill_kv_tokens=keys,
        sampled_prefills=table.sampled_prefills,
        sampled_kv_tokens=(table.prefill_kv_tokens * table.sampled_prefills // seqs,) * len(windows),
        decode_seqs=table.decode_seqs,
        query_len=table.query_len,
        decode_kv_tokens=decode_keys,
        longest_kv=np.zeros_like(table.decode_seqs),
        tail_kv=np.zeros_like(table.decode_seqs),
    )


def _rows(table: StepTable, predicted: FloatArray, costs: Costs) -> list[dict[str, Any]]:
    shares = np.array([getattr(costs, name) for name in BOUNDS])
    bound = [BOUNDS[i].removesuffix("_s") for i in shares.argmax(axis=0)]
    kinds = step_kinds(table)
    names = ("prefill_seqs", "prefill_tokens", "prefill_kv_tokens", "decode_seqs", "query_len", "decode_kv_tokens")
    return [
        {
            "kind": str(kinds[i]),
            **{name: int(getattr(table, name)[i]) for name in names},
            "scope": "device" if table.device[i] else "step",
            "measured_s": float(table.measured_s[i]),
            "predicted_s": float(predicted[i]),
            "ape": float(abs(predicted[i] / table.measured_s[i] - 1.0) * 100.0),
            "bound": bound[i],
            "place": table.place[i],
        }
        for i in range(len(table))
    ]
