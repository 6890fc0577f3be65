"""Use of the chips of a run: bottleneck shares, utilisation, energy and cost, by replica, pool and in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.document import Json
from hwprofiles import weakest
from simulator.timing.power import power_evidence

if TYPE_CHECKING:
    from simulator.running.records import RunRecords
    from simulator.running.step_rows import StepTotals
    from simulator.serving.records import KvCacheReport, ReplicaUse, RequestRecords

BOUNDS = ("compute", "memory", "interconnect", "latency", "host")
"""Bounds of a busy engine; ``idle`` is the time without work."""

KV_FACTS = (
    *("bytes_per_token", "weights_bytes", "draft_weights_bytes", "activation_bytes", "capacity_bytes", "overridden"),
)
SECONDS_PER_HOUR = 3600.0
HOURS_PER_MONTH = 730
"""365 days of 24 hours in twelve months."""
TOKENS_PER_MILLION = 1e6


class Utilisation(NamedTuple):
    """Useful work over what the chips could do at peak from first arrival to last finish, idle time included."""

    mfu: float
    """Model FLOP utilisation: FLOPs over peak dense FLOP/s of the math dtype."""
    mbu: float
    """Memory-bandwidth utilisation: bytes over peak bandwidth."""
    power_share: float
    """Mean over time of the power between idle (0) and TDP (1)."""


def bottleneck_shares(steps: StepTotals, replicas: int, duration_s: float) -> dict[str, float] | None:
    """Share of engine time (``replicas`` engines for ``duration_s``) limited by each bound; the remainder is ``idle``.

    Shares sum to 1. Where steps of one replica overlap (pipeline parallelism), busy time can exceed the wall clock;
    shares are then of busy time and ``idle`` is 0.

    Returns:
        None when there was no engine time.
    """
    busy = {bound: float(np.sum(getattr(steps, f"{bound}_s"))) for bound in BOUNDS}
    total = max(replicas * duration_s, sum(busy.values()))
    if total <= 0.0:
        return None
    shares = {bound: seconds / total for bound, seconds in busy.items()}
    return shares | {"idle": max(0.0, 1.0 - sum(shares.values()))}


def main_bottleneck(shares: dict[str, float] | None) -> str | None:
    """The bound with the largest share of busy time; ``idle`` if the engine never worked; None without shares."""
    if shares is None:
        return None
    busy = {bound: share for bound, share in shares.items() if bound != "idle"}
    bound = max(busy, key=busy.__getitem__)
    return bound if busy[bound] > 0.0 else "idle"


HOST_SHARE = 0.1
"""Host work's share from which conclusions on drafting name it."""


def host_share(shares: Mapping[str, float]) -> float:
    """Host work's share of an engine's busy time.

    >>> host_share({"memory": 0.3, "host": 0.1, "idle": 0.6})
    0.25
    """
    return round(shares["host"] / max(1e-9, 1.0 - shares["idle"]), 12)


def utilisation(steps: StepTotals, duration_s: float) -> Utilisation | None:
    """MFU and MBU of some replicas over the whole run; None when no time passed.

    Source: MFU, A. Chowdhery et al., "PaLM" (arXiv:2204.02311), appendix B; MBU, Databricks, "LLM Inference Performance
    Engineering: Best Practices" (2023).
    """
    if duration_s <= 0.0:
        return None
    engine_s = len(steps.seconds) * duration_s
    return Utilisation(
        mfu=float(np.sum(steps.flops / steps.peak_flops_per_s)) / engine_s,
        mbu=float(np.sum(steps.bytes / steps.bandwidth_bytes_per_s)) / engine_s,
        power_share=min(1.0, float(np.sum(steps.full_power_s)) / engine_s),
    )


def energy_joules(
    idle_w: float | None, tdp_w: float | None, chips: int, duration_s: float, power_share: float, rented: float = 1.0
) -> float | None:
    """Energy of all chips, in joules: ``chips * duration * (rented * idle + (tdp - idle) * power_share)``.

    ``rented`` is the average share of the time that the chips were rented.

    Hosts, network and cooling are not counted. None when the chip has no idle or no TDP figure.
    """
    if idle_w is None or tdp_w is None:
        return None
    return chips * duration_s * (rented * idle_w + (tdp_w - idle_w) * power_share)


def tokens_per_joule(tokens: float | None, joules: float | None) -> float | None:
    """Output tokens per joule (or tokens/s per watt). None if either is missing."""
    return None if not joules or tokens is None else tokens / joules


def cost_usd(usd_per_chip_hour: float | None, chips: float, duration_s: float) -> float | None:
    """Rent of all chips for the duration, US dollars; None without a price."""
    return None if usd_per_chip_hour is None else usd_per_chip_hour * chips * duration_s / SECONDS_PER_HOUR


def usd_per_million_tokens(usd: float | None, tokens: float) -> float | None:
    """US dollars per million tokens; None without a price or without tokens."""
    return None if usd is None or tokens <= 0 else usd / tokens * TOKENS_PER_MILLION


def kv_cache_section(kv: KvCacheReport, requests: RequestRecords) -> Json:
    """KV capacity and use for the JSON: blocks, shares of them in use, preemptions, prefix hits, bytes per chip."""
    scheduled = np.isfinite(requests.scheduled_s)
    prompt_tokens = int(requests.input_tokens[scheduled].sum())
    hits, host = kv.prefix_hit_tokens, kv.host
    return {
        "num_blocks": kv.num_blocks,
        "block_size": kv.block_size,
        **({"page_tokens": kv.page_tokens} if kv.page_tokens else {}),
        "capacity_tokens": kv.num_blocks * kv.block_size,
        "peak_blocks": kv.peak_blocks,
        "mean_blocks": kv.mean_blocks,
        "peak_use": _ratio(kv.peak_blocks, kv.num_blocks),
        "mean_use": _ratio(kv.mean_blocks, kv.num_blocks),
        "preemptions": kv.preemptions,
        "swapped_blocks": kv.swapped_blocks,
        "prefix_hit_tokens": hits,
        "prefix_hit_rate": _ratio(hits, prompt_tokens),
        **({"host": asdict(host) | {"hit_rate": _ratio(host.hit_tokens, prompt_tokens)}} if host else {}),
        **{name: getattr(kv, name) for name in KV_FACTS},
        **split_section(kv.split_bytes),
    }


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or not whole else part / whole


def split_section(split: Mapping[str, float]) -> Json:
    """Memory of one chip by content, for models that keep more than KV: recurrent state, keys of an index."""
    return {"per_chip_bytes": dict(split)} if split.get("state") or split.get("index") else {}


def replica_section(use: ReplicaUse, duration_s: float) -> Json:
    """One replica: requests, prompt tokens, cached ones, peak share of KV blocks, busy share of time."""
    return {
        **{key: value for key, value in asdict(use).items() if key not in ("num_blocks", "peak_blocks", "busy_s")},
        "prefix_hit_rate": _ratio(use.prefix_hit_tokens, use.prompt_tokens),
        "peak_use": _ratio(use.peak_blocks, use.num_blocks),
        "busy": _ratio(use.busy_s, duration_s),
    }


def pool_sections(result: RunRecords, duration_s: float) -> list[Json]:
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
                "busy": _ratio(sum(use.busy_s for use in uses), pool.replicas * duration_s),
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


def scaling_section(result: RunRecords) -> Json:
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
            "changes": [dict(zip(("at_s", "starting", "on", "draining"), row, strict=True)) for row in scaling.changes],
        }
    }


def fleet_section(result: RunRecords, rows: Sequence[Json], duration_s: float) -> Json:
    """Utilisation and energy over all pools, KV transfers between pools, and one entry per pool if there are
    several."""
    energies = [row["energy_joules"] for row in rows]
    joules = None if None in energies else sum(energies)
    section: Json = {
        "utilisation": {
            key: _weighted([(row["utilisation"][key], row[peak]) for row in rows])
            for key, peak in (("mfu", "peak_flops"), ("mbu", "bandwidth_bytes_per_s"))
        },
        "energy_joules": joules,
        "power": power_section(result, joules, duration_s),
    }
    if result.transfers is not None:
        section["kv_transfer"] = asdict(result.transfers)
    if result.scenario.faults is not None:
        section["restarts"] = result.restarts
    if result.scenario.pools is not None:
        section["pools"] = rows
    return section


def power_section(result: RunRecords, joules: float | None, duration_s: float) -> Json | None:
    """Mean power of all chips in watts, its 90 % interval and evidence level; None without a chip's power."""
    if joules is None or duration_s <= 0.0:
        return None
    bases, ends = zip(*(power_evidence(pool.chip) for pool in result.pools), strict=True)
    mean_w = joules / duration_s
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return {"mean_w": mean_w, "interval_w": [low * mean_w, high * mean_w], "basis": weakest([result.basis, *bases])}


def mean_power_w(result: RunRecords, duration_s: float) -> float | None:
    """Mean power of all chips over the steps of a run, in watts; None without a chip's power."""
    power = fleet_section(result, pool_sections(result, duration_s), duration_s)["power"]
    return None if power is None else float(power["mean_w"])


def _weighted(shares: Sequence[tuple[float | None, float]]) -> float | None:
    """Mean of shares by their weights; None if one is not known."""
    known = [(share, weight) for share, weight in shares if share is not None]
    if len(known) < len(shares) or len(shares) == 1:
        return shares[0][0] if len(shares) == 1 else None
    return sum(share * weight for share, weight in known) / sum(weight for _, weight in known)


def fleet_cost_usd(result: RunRecords, duration_s: float) -> float | None:
    """Rent of all pools, US dollars; None when the price of one is not known."""
    rented = rented_share(result)
    costs = [cost_usd(pool.usd_per_chip_hour, rented * pool.replicas * pool.chips, duration_s) for pool in result.pools]
    return None if None in costs else sum(filter(None, costs))


def price_notes(result: RunRecords) -> list[str]:
    """A note on every chip that prices by name leave out."""
    prices = result.scenario.prices
    if prices is None or not isinstance(prices.usd_per_chip_hour, dict):
        return []
    named = ", ".join(prices.usd_per_chip_hour)
    unpriced = dict.fromkeys(pool.chip.name for pool in result.pools if pool.usd_per_chip_hour is None)
    return [f"prices.usd_per_chip_hour: no price of {chip} (only {named}), so no cost is known" for chip in unpriced]


def chips_words(document: Json) -> str:
    """Number and kind of chips in a run document, over all pools."""
    single_pool = {"chip": Path(document["scenario"]["hardware"]["chip"]).name, "chips": document.get("chips") or 1}
    chips: dict[str, int] = {}
    for pool in document.get("pools") or [single_pool]:
        chips[pool["chip"]] = chips.get(pool["chip"], 0) + pool["chips"]
    return " + ".join(f"{count} x {chip}" for chip, count in chips.items())
