"""Sections on pools and replicas of a run's JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.running.metrics.usage import cost_usd, energy_joules, utilisation

if TYPE_CHECKING:
    from simulator.running.records import RunRecords
    from simulator.serving.records import ReplicaUse


def replica_section(use: ReplicaUse, duration_s: float) -> dict[str, Any]:
    """One replica: requests, prompt tokens and hits among them, peak share of its KV blocks, share of time at work."""
    hits = use.prefix_hit_tokens
    return {
        **{key: value for key, value in asdict(use).items() if key not in ("num_blocks", "peak_blocks", "busy_s")},
        "prefix_hit_rate": None if hits is None or not use.prompt_tokens else hits / use.prompt_tokens,
        "peak_use": use.peak_blocks / use.num_blocks if use.num_blocks else None,
        "busy": use.busy_s / duration_s if duration_s > 0 else None,
    }


def pool_sections(result: RunRecords, duration_s: float) -> list[dict[str, Any]]:
    """One row per pool: its chips, KV capacity, requests, utilisation, energy and rent."""
    rows, first, rented = [], 0, rented_share(result)
    for pool in result.pools:
        uses = result.replicas[first : first + pool.replicas]
        used = utilisation(result.totals.of_replicas(first, pool.replicas), duration_s)
        first += pool.replicas
        chips, chip = pool.chips * pool.replicas, pool.chip
        hits = [use.prefix_hit_tokens for use in uses if use.prefix_hit_tokens is not None]
        prompts = sum(use.prompt_tokens for use in uses)
        rows.append(
            {
                "name": pool.name,
                "role": pool.role,
                "replicas": pool.replicas,
                "chip": chip.name,
                "chips": chips,
                "num_blocks": pool.memory.num_blocks,
                "peak_use": max(use.peak_blocks for use in uses) / pool.memory.num_blocks,
                "prefix_hit_rate": sum(hits) / prompts if hits and prompts else None,
                "busy": sum(use.busy_s for use in uses) / (pool.replicas * duration_s) if duration_s > 0 else None,
                "utilisation": {"mfu": None, "mbu": None} if used is None else {"mfu": used.mfu, "mbu": used.mbu},
                "peak_flops": chips * pool.peak_flops_per_s,
                "bandwidth_bytes_per_s": chips * chip.memory.bandwidth_bytes_per_s,
                "energy_joules": None
                if used is None
                else energy_joules(chip.power.idle_w, chip.power.tdp_w, chips, duration_s, used.power_share, rented),
                "cost_usd": cost_usd(pool.usd_per_chip_hour, rented * chips, duration_s),
            }
        )
    return rows


def rented_share(result: RunRecords) -> float:
    """Share of the run in which a replica was there, over all replicas: 1 without an autoscaler."""
    finished = result.requests.finished_s
    if result.scaling is None or not np.isfinite(finished).any():
        return 1.0
    end_s = float(np.nanmax(finished))
    return result.scaling.until(end_s) / (len(result.replicas) * end_s)


def scaling_section(result: RunRecords) -> dict[str, Any]:
    """Autoscaler activity: mean and peak rented replicas, and the numbers of starts and stops."""
    scaling = result.scaling
    if scaling is None:
        return {}
    return {
        "scaling": {
            "mean_replicas": rented_share(result) * len(result.replicas),
            "peak_replicas": max(sum(counts) for _, *counts in scaling.changes),
            "scale_ups": scaling.scale_ups,
            "scale_downs": scaling.scale_downs,
            "changes": [
                {"at_s": at_s, "starting": starting, "on": on, "draining": draining}
                for at_s, starting, on, draining in scaling.changes
            ],
        }
    }


def fleet_utilisation(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """MFU and MBU over all pools: useful work over the sum of their peaks; None when no time passed."""
    if len(rows) == 1:
        utilisation: dict[str, float | None] = rows[0]["utilisation"]
        return utilisation
    mixed: dict[str, float | None] = {}
    for key, peak in (("mfu", "peak_flops"), ("mbu", "bandwidth_bytes_per_s")):
        known = [(row["utilisation"][key], row[peak]) for row in rows]
        unknown = any(share is None for share, _ in known)
        mixed[key] = None if unknown else sum(s * w for s, w in known) / sum(w for _, w in known)
    return mixed


def fleet_energy_joules(rows: Sequence[dict[str, Any]]) -> float | None:
    """Energy of all pools; None when that of one is not known."""
    known = [row["energy_joules"] for row in rows]
    return None if None in known else sum(known)


def fleet_cost_usd(result: RunRecords, duration_s: float) -> float | None:
    """Rent of all pools, US dollars; None when the price of one is not known."""
    rented = rented_share(result)
    known = [cost_usd(pool.usd_per_chip_hour, rented * pool.replicas * pool.chips, duration_s) for pool in result.pools]
    return None if any(usd is None for usd in known) else sum(usd for usd in known if usd is not None)


def chips_words(document: dict[str, Any]) -> str:
    """Number and kind of chips in a run document, over all pools."""
    single_pool = {"chip": Path(document["scenario"]["hardware"]["chip"]).name, "chips": document.get("chips") or 1}
    chips: dict[str, int] = {}
    for pool in document.get("pools") or [single_pool]:
        chips[pool["chip"]] = chips.get(pool["chip"], 0) + pool["chips"]
    return " + ".join(f"{count} x {chip}" for chip, count in chips.items())
