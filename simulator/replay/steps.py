"""Measured engine steps beside predicted ones: batch composition -> seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.errors import ForerunError
from hwprofiles import weakest
from simulator.replay.scores import Score, score
from simulator.running.build import build_replica
from simulator.running.scenario import Scenario
from simulator.timing import Costs, ModelTimer, StepWork
from traces.steps import StepTable

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
KINDS = ("prefill", "decode", "mixed", "verify")
BOUNDS = ("compute_s", "memory_s", "interconnect_s", "latency_s", "host_s")
WORST_ROWS = 20


@dataclass(frozen=True, slots=True)
class StepReplay:
    """Outcome of a replay of engine steps; arrays over the steps of ``table``."""

    table: StepTable
    predicted_s: FloatArray
    costs: Costs
    kind: NDArray[np.str_]
    groups: tuple[Score, ...]
    overall: Score
    basis: str
    scenario: Scenario


def replay_steps(tables: Sequence[StepTable], scenario: Scenario) -> Sequence[StepReplay]:
    """Predict every measured step of each table with the scenario's model, chips and engine.

    Steps measured on the device are compared without the host's work.

    Raises:
        ForerunError: the scenario requests something that is not modelled, or a step cannot be one of its steps.
    """
    return [_replay(table, scenario) for table in tables]


def _replay(table: StepTable, scenario: Scenario) -> StepReplay:
    most = int(table.tokens.max())
    limit = max(most, scenario.engine.max_num_batched_tokens)
    sequences = max(int((table.decode_seqs + table.prefill_seqs).max()), scenario.engine.max_num_seqs)
    wide = scenario.with_values({"engine.max_num_batched_tokens": limit, "engine.max_num_seqs": sequences})
    build = build_replica(wide, seed=0)
    timer = build.main.timer
    assert isinstance(timer, ModelTimer)
    query = build.main.limits.query_len
    if table.decode_seqs.any() and bool((table.query_len[table.decode_seqs > 0] > 1).any()) and query == 1:
        timer = ModelTimer(timer.target, None)
    work = step_work(table, timer.windows)
    costs, device = timer.costs(work), timer.target.costs(work)
    predicted = np.where(table.device, device.device_s + device.host_s, costs.device_s + costs.host_s)
    kind = step_kinds(table)
    none = np.full(len(table), np.nan)
    groups = tuple(
        score("step", name, "", table.measured_s[part], predicted[part], none[part])
        for name in KINDS
        if (part := kind == name).any()
    )
    overall = score("all", "all", "", table.measured_s, predicted, none)
    return StepReplay(table, predicted, costs, kind, groups, overall, costs.evidence.basis, scenario)


def step_kinds(table: StepTable) -> NDArray[np.str_]:
    """``prefill``, ``decode``, ``mixed`` (both) or ``verify`` (several tokens per sequence) of every step."""
    prefills, decodes = table.prefill_tokens > 0, table.decode_seqs > 0
    verify = decodes & (table.query_len > 1)
    return np.select([prefills & decodes, verify, decodes], ["mixed", "verify", "decode"], "prefill").astype(np.str_)


def step_work(table: StepTable, windows: Sequence[int | None]) -> StepWork[IntArray]:
    """The steps as the timing model sees them.

    Inside a sliding window keys and pairs follow from the mean length of the step's sequences.
    """
    pairs, keys, decode_keys, sampled = [], [], [], []
    for window in windows:
        chunk = table.prefill_tokens // np.maximum(table.prefill_seqs, 1)
        most = table.prefill_seqs * (chunk + (window or 0))
        keys.append(table.prefill_kv_tokens if window is None else np.minimum(table.prefill_kv_tokens, most))
        pairs.append(
            table.prefill_pairs if window is None else np.minimum(table.prefill_pairs, table.prefill_tokens * window)
        )
        inside = table.decode_seqs * ((window or 0) + table.query_len - 1)
        decode_keys.append(table.decode_kv_tokens if window is None else np.minimum(table.decode_kv_tokens, inside))
        sampled.append(table.prefill_kv_tokens * table.sampled_prefills // np.maximum(table.prefill_seqs, 1))
    return StepWork(
        prefill_seqs=table.prefill_seqs,
        prefill_tokens=table.prefill_tokens,
        prefill_pairs=tuple(pairs),
        prefill_kv_tokens=tuple(keys),
        sampled_prefills=table.sampled_prefills,
        sampled_kv_tokens=tuple(sampled),
        decode_seqs=table.decode_seqs,
        query_len=table.query_len,
        decode_kv_tokens=tuple(decode_keys),
        longest_kv=np.zeros_like(table.decode_seqs),
        tail_kv=np.zeros_like(table.decode_seqs),
    )


def steps_document(replays: Sequence[StepReplay]) -> dict[str, Any]:
    """The JSON of ``forerun replay steps``; percentages are numbers such as 7.3.

    Raises:
        ForerunError: there is no step.
    """
    from forerun.version import forerun_version
    from simulator.running.metrics.document import scenario_document

    if not replays:
        raise ForerunError("no measured step to replay")
    measured = np.concatenate([r.table.measured_s for r in replays])
    predicted = np.concatenate([r.predicted_s for r in replays])
    kind = np.concatenate([r.kind for r in replays])
    none = np.full(len(measured), np.nan)
    groups = [
        score("step", name, "", measured[part], predicted[part], none[part])
        for name in KINDS
        if (part := kind == name).any()
    ]
    rows = [row for replay in replays for row in step_rows(replay)]
    skipped: dict[str, int] = {}
    for replay in replays:
        for reason, count in replay.table.skipped.items():
            skipped[reason] = skipped.get(reason, 0) + count
    return {
        "sources": [replay.table.source for replay in replays],
        "groups": [_figures(group) for group in groups],
        "overall": _figures(score("all", "all", "", measured, predicted, none)),
        "steps": rows,
        "worst": sorted(rows, key=lambda row: -row["ape"])[:WORST_ROWS],
        "skipped": skipped,
        "basis": weakest(replay.basis for replay in replays),
        "scenario": scenario_document(replays[0].scenario),
        "version": forerun_version(),
    }


def step_rows(replay: StepReplay) -> list[dict[str, Any]]:
    """Every step with its composition, both times, the error in percent and what bounds it."""
    table = replay.table
    shares = np.array([getattr(replay.costs, name) for name in BOUNDS])
    bound = [BOUNDS[i].removesuffix("_s") for i in shares.argmax(axis=0)]
    names = ("prefill_seqs", "prefill_tokens", "prefill_kv_tokens", "decode_seqs", "query_len", "decode_kv_tokens")
    return [
        {
            "kind": str(replay.kind[i]),
            **{name: int(getattr(table, name)[i]) for name in names},
            "scope": "device" if table.device[i] else "step",
            "measured_s": float(table.measured_s[i]),
            "predicted_s": float(replay.predicted_s[i]),
            "ape": float(abs(replay.predicted_s[i] / table.measured_s[i] - 1.0) * 100.0),
            "bound": bound[i],
            "place": table.place[i],
        }
        for i in range(len(table))
    ]


def _figures(group: Score) -> dict[str, Any]:
    values = group._asdict()
    return {"kind": values.pop("regime"), **{k: v for k, v in values.items() if k not in ("op", "dtype", "coverage90")}}
