"""Use of the chips of a run: bottleneck shares, utilisation, energy and cost, by replica, pool and in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from forerun.document import Json
from hwprofiles import weakest
from simulator.running.metrics.statistics import ratio
from simulator.timing.power import power_evidence

if TYPE_CHECKING:
    from simulator.running.records import RunRecords
    from simulator.running.scenario import Scenario
    from simulator.running.step_rows import StepTotals
    from simulator.serving.store_config import StoreConfig

BOUNDS = ("compute", "memory", "interconnect", "latency", "host")
"""Bounds of a busy engine; ``idle`` is the time without work."""

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


def pool_sections(result: RunRecords, duration_s: float) -> list[Json]:
    """One row per pool: its chips, KV capacity, requests, utilisation, energy and rent."""
    rows, first, rented = [], 0, rented_share(result)
    for pool in result.pools:
        uses = result.replicas[first : first + pool.replicas]
        totals = result.totals.of_replicas(first, pool.replicas)
        used = utilisation(totals, duration_s)
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
                "peak_use": int(totals.peak_blocks.max()) / pool.memory.num_blocks,
                "prefix_hit_rate": sum(hits) / prompts if hits and prompts else None,
                "busy": ratio(sum(totals.seconds.tolist()), pool.replicas * duration_s),
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


def scaling_section(result: RunRecords) -> Json | None:
    """Autoscaler activity: mean and peak rented replicas, and the numbers of starts and stops."""
    if (scaling := result.scaling) is None:
        return None
    return {
        "mean_replicas": rented_share(result) * len(result.replicas),
        "peak_replicas": max(sum(counts) for _, *counts in scaling.changes),
        "scale_ups": scaling.scale_ups,
        "scale_downs": scaling.scale_downs,
        "changes": [dict(zip(("at_s", "starting", "on", "draining"), row, strict=True)) for row in scaling.changes],
    }


def fleet_utilisation(rows: Sequence[Json]) -> dict[str, float | None]:
    """MFU and MBU over all pools, weighted by their peaks."""
    return {
        key: _weighted([(row["utilisation"][key], row[peak]) for row in rows])
        for key, peak in (("mfu", "peak_flops"), ("mbu", "bandwidth_bytes_per_s"))
    }


def fleet_energy(rows: Sequence[Json]) -> float | None:
    """Energy of all pools in joules; None if that of one is not known."""
    energies = [row["energy_joules"] for row in rows]
    return None if None in energies else sum(energies)


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
    power = power_section(result, fleet_energy(pool_sections(result, duration_s)), duration_s)
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
    own, shared = stores_usd_per_hour(result.scenario)
    stores = (rented * own + shared) * duration_s / SECONDS_PER_HOUR
    return None if None in costs else sum(filter(None, costs)) + stores


def stores_usd_per_hour(scenario: Scenario) -> tuple[float, float]:
    """Rent of all servers' own KV stores, and of the shared one, in US dollars per hour; 0 for what has no price."""
    own, shared = 0.0, 0.0 if scenario.kv_store is None else _usd_per_hour(scenario.kv_store)
    for name in scenario.pools or (None,):
        engine, hardware = (
            getattr(scenario, section) if name is None else scenario.pool_section(name, section)
            for section in ("engine", "hardware")
        )
        own += hardware.replicas * sum(map(_usd_per_hour, engine.kv_stores))
    return own, shared


def _usd_per_hour(store: StoreConfig) -> float:
    return (store.usd_per_gb_month or 0.0) * store.bytes / 1e9 / HOURS_PER_MONTH


def store_price_notes(scenario: Scenario) -> list[str]:
    """A note on stores whose rent is not known."""
    stores = enumerate(scenario.engine.kv_stores)
    names = [f"engine.kv_stores.{place}" for place, store in stores if store.usd_per_gb_month is None]
    names += ["kv_store"] if scenario.kv_store is not None and scenario.kv_store.usd_per_gb_month is None else []
    open_ = ", ".join(names)
    return [f"{open_}: no usd_per_gb_month, so dollars are those of the chips alone"] if open_ else []


def price_notes(result: RunRecords) -> list[str]:
    """Notes on chips that prices by name leave out, and on stores without a price."""
    prices = result.scenario.prices
    if prices is None:
        return []
    named = ", ".join(prices.usd_per_chip_hour if isinstance(prices.usd_per_chip_hour, dict) else ())
    unpriced = dict.fromkeys(pool.chip.name for pool in result.pools if pool.usd_per_chip_hour is None)
    return [
        *(f"prices.usd_per_chip_hour: no price of {chip} (only {named}), so no cost is known" for chip in unpriced),
        *store_price_notes(result.scenario),
    ]


def chips_words(document: Json) -> str:
    """Number and kind of chips in a run document, over all pools."""
    single_pool = {"chip": Path(document["scenario"]["hardware"]["chip"]).name, "chips": document.get("chips") or 1}
    chips: dict[str, int] = {}
    for pool in document.get("pools") or [single_pool]:
        chips[pool["chip"]] = chips.get(pool["chip"], 0) + pool["chips"]
    return " + ".join(f"{count} x {chip}" for chip, count in chips.items())
