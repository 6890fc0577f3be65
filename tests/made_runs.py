"""Run results made by hand, so that every expected number can be worked out on paper."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from simulator.serving.records import EngineCounters, GapCounts, KvCacheReport, RequestRecords, StepRecords


def make_requests(**columns: Any) -> RequestRecords:
    """Requests from arrival_s, first_token_s, finished_s and whatever else differs from the defaults."""
    n = len(columns["arrival_s"])
    defaults: dict[str, Any] = {
        "input_tokens": np.full(n, 100),
        "output_tokens": np.full(n, 11),
        "scheduled_s": columns["arrival_s"],
        "failed": ~np.isfinite(np.asarray(columns["finished_s"], dtype=float)),
    }
    integers = ("replica", "preemptions", "cached_tokens", "drafts", "draft_tokens", "accepted_tokens")
    defaults |= {name: np.zeros(n, dtype=np.int64) for name in integers}
    return RequestRecords(**{name: np.asarray(values) for name, values in (defaults | columns).items()})


def make_steps(start_s: list[float], seconds: list[float], **columns: Any) -> StepRecords:
    """Steps, by default pure memory-bound decode of two sequences on replica 0."""
    n = len(start_s)
    whole = {"decode_seqs": 2, "output_tokens": 2, "running": 2, "query_len": 1, "decode_kv_tokens": 200}
    whole |= {"kv_blocks": 14, "steps": 1}
    whole |= dict.fromkeys(("replica", "prefill_seqs", "prefill_tokens", "waiting"), 0)
    values: dict[str, Any] = {name: np.full(n, value) for name, value in whole.items()}
    values |= {name: np.zeros(n) for name in ("compute_s", "interconnect_s", "latency_s", "host_s")}
    values |= {name: np.zeros(n) for name in ("calibrated_s", "extrapolated_s", "datasheet_s", "sol_s")}
    values |= {"memory_s": np.asarray(seconds), "flops": np.full(n, 1e9), "bytes": np.full(n, 1e6)}
    values |= columns
    return StepRecords(
        start_s=np.asarray(start_s, dtype=float),
        seconds=np.asarray(seconds, dtype=float),
        **{name: np.asarray(column) for name, column in values.items()},
    )


def make_result(requests: RequestRecords, **parts: Any) -> Any:
    """A run result without a real scenario."""
    scenario = SimpleNamespace(
        slo=parts.pop("slo", {}), prices=None, hardware=SimpleNamespace(replicas=parts.pop("replicas", 1), chip="x")
    )
    kv = KvCacheReport(
        num_blocks=100, block_size=16, capacity_tokens=1600, peak_blocks=50, mean_blocks=25.0, peak_use=0.5,
        mean_use=0.25, preemptions=3, prefix_hit_tokens=None, bytes_per_token=1000.0, weights_bytes=1e9,
        draft_weights_bytes=0.0, activation_bytes=1e8, capacity_bytes=8e9, overridden=False,
    )  # fmt: skip
    defaults: dict[str, Any] = {
        "scenario": scenario,
        "seed": 7,
        "requests": requests,
        "steps": make_steps([0.0, 1.0], [1.0, 1.0]),
        "gaps": GapCounts(np.array([0.01, 0.02]), np.array([3, 1])),
        "kv": kv,
        "speculation": None,
        "engine": EngineCounters(2, 0, 2.0, 0.001, 0.001),
        "basis": "datasheet",
        "notes": (),
        "chips": 1,
        "pools": (),
        "spans": (),
        "detail": None,
    }
    return SimpleNamespace(**(defaults | {"shifts": {}} | parts))
