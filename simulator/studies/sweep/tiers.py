"""Curve over the size of a KV store, beside the working set of the requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter

from forerun.document import DocumentPart, Json
from forerun.tables import Cell, Table, Value, number, percent, scaled
from simulator.running.metrics.usage import HOURS_PER_MONTH, SECONDS_PER_HOUR
from simulator.running.scenario import Scenario
from simulator.workload import generate_requests
from simulator.workload.working_set import working_set

SIZE = re.compile(r"(engine\.kv_stores\.\d+|kv_store)\.bytes")
GAIN_HITS, GAIN_TTFT = 0.01, 0.02
"""Least gain of a larger store that counts: share of prompt tokens, and share of the mean TTFT."""
NEARLY_ALL = 0.99


@dataclass(frozen=True, kw_only=True)
class TierSize(DocumentPart):
    """One size of the store, in bytes, and what it gives."""

    bytes: float
    hit_rate: float
    hit_rate_by_tier: dict[str, float | None]
    lru_hit_rate: float | None
    """Hit rate of one LRU cache as large as all tiers of all servers together; None without prefix hashes."""
    mean_ttft_ms: float | None
    p99_ttft_ms: float | None
    good_share: float | None
    usd_per_month: float | None
    """Dollars a month of one server with its stores, and its part of a shared store."""


@dataclass(frozen=True, kw_only=True)
class TierCurve(DocumentPart):
    """Sizes of a KV store, ascending, and the working set of the requests."""

    field: str
    name: str
    sizes: list[TierSize]
    enough_bytes: float | None
    """Size beyond which nothing is gained; None if the largest one still gains."""
    most_hit_rate: float | None
    """Hit rate of a cache without limit."""
    unique_bytes: float | None
    """KV of all different tokens of the requests."""
    nearly_all_bytes: float | None
    """KV that an LRU cache needs for 99 % of the hits of one without limit."""


def tier_curve(field: str, documents: Sequence[tuple[float, Json]], scenario: Scenario, seed: int) -> TierCurve | None:
    """Curve of finished runs by the size of a store; None if no prefix was cached.

    Args:
        field: dotted path of the size.
        documents: size and document of each run.
        scenario: the scenario whose store varies.
        seed: seed of its requests.
    """
    documents = sorted(((size, one) for size, one in documents if one["kv_cache"].get("stores")), key=itemgetter(0))
    if len(documents) < 2 or documents[0][1]["kv_cache"]["prefix_hit_rate"] is None:
        return None
    used, servers = working_set(generate_requests(scenario.workload, seed)), scenario.hardware.replicas
    per_token = float(documents[0][1]["kv_cache"]["bytes_per_token"])
    place = -1 if field.startswith("kv_store.") else int(field.split(".")[2])
    sizes = []
    for size, document in documents:
        kv, summary, slo = document["kv_cache"], document["summary"], document["slo"]
        copies = [1 if one["medium"] == "shared" else servers for one in kv["stores"]]
        stored = sum(count * one["bytes"] for count, one in zip(copies, kv["stores"], strict=True))
        tokens = servers * kv["capacity_tokens"] + stored / per_token
        usd, hours = document["cost_usd"], float(summary["duration"] or 0.0) / SECONDS_PER_HOUR
        sizes.append(
            TierSize(
                bytes=size,
                hit_rate=kv["prefix_hit_rate"],
                hit_rate_by_tier=kv["hit_rate_by_tier"],
                lru_hit_rate=None if used is None else used.hit_rate(tokens),
                mean_ttft_ms=summary["mean_ttft_ms"],
                p99_ttft_ms=summary["p99_ttft_ms"],
                good_share=None if slo is None else slo["good_share"],
                usd_per_month=usd / hours * HOURS_PER_MONTH / servers if usd and hours else None,
            )
        )
    enough = next((one for at, one in enumerate(sizes) if not any(_gains(one, more) for more in sizes[at + 1 :])))
    return TierCurve(
        field=field,
        name=documents[0][1]["kv_cache"]["stores"][place]["name"],
        sizes=sizes,
        enough_bytes=None if enough is sizes[-1] else enough.bytes,
        most_hit_rate=None if used is None else used.hit_rate(inf),
        unique_bytes=None if used is None else used.unique_tokens * per_token,
        nearly_all_bytes=None if used is None else used.tokens_for(NEARLY_ALL) * per_token,
    )


def _gains(one: TierSize, more: TierSize) -> bool:
    faster = bool(one.mean_ttft_ms and more.mean_ttft_ms and more.mean_ttft_ms < one.mean_ttft_ms * (1 - GAIN_TTFT))
    return faster or more.hit_rate > one.hit_rate + GAIN_HITS


LOSS = "more: it does not pay"


def tier_sentence(curve: TierCurve) -> str:
    """Conclusion of a curve: the size beyond which nothing is gained, its hits by tier, and the working set."""
    last, size = curve.sizes[-1], curve.enough_bytes
    at = next((one for one in curve.sizes if one.bytes == size), last)
    dollars = _dollars(curve.sizes[0], at)
    if size is None:
        words = f"{curve.name} still gains at {scaled(last.bytes, 'B')}, the largest size tried"
    else:
        least = ", the smallest size tried" if at is curve.sizes[0] else ""
        enough = "would be enough but does not pay" if dollars.endswith(LOSS) else "is enough"
        words = f"{scaled(size, 'B')} of {curve.name} {enough}{least}: beyond it the hit rate gains less than 1 % of "
        words += "prompt tokens and mean TTFT less than 2 %"
    shares = ", ".join(f"{percent(share)} from {name}" for name, share in at.hit_rate_by_tier.items())
    words += f". It serves {percent(at.hit_rate)} of prompt tokens ({shares})"
    if at.mean_ttft_ms is not None:
        words += f", with a mean TTFT of {number(at.mean_ttft_ms)} ms"
    words += dollars
    if curve.most_hit_rate is not None:
        words += (
            f". Without limit an LRU cache would serve {percent(curve.most_hit_rate)}, nearly so with "
            f"{scaled(curve.nearly_all_bytes or 0.0, 'B')} of KV; all different tokens take "
            f"{scaled(curve.unique_bytes or 0.0, 'B')}"
        )
    return f"{words}."


def _dollars(least: TierSize, at: TierSize) -> str:
    """Text on the dollars of a size against the smallest one; empty without prices."""
    if not least.usd_per_month or not at.usd_per_month or at.usd_per_month == least.usd_per_month:
        return ""
    smallest = f"{scaled(least.bytes, 'B')} ${least.usd_per_month:,.0f}"
    words = f". It costs ${at.usd_per_month:,.0f} a month and server, {smallest}"
    if not least.good_share or not at.good_share:
        return words
    more = at.usd_per_month / at.good_share * least.good_share / least.usd_per_month - 1.0
    return f"{words}: per good request {percent(abs(more))} {LOSS if more > 0 else 'less: it pays'}"


def tier_table(curve: TierCurve) -> Table:
    """A row per size of the store."""
    rows: list[list[Value]] = []
    for one in curve.sizes:
        shares = [one.hit_rate, *one.hit_rate_by_tier.values(), one.lru_hit_rate]
        month = Cell("-" if one.usd_per_month is None else f"${one.usd_per_month:,.0f}", value=one.usd_per_month)
        size = Cell(scaled(one.bytes, "B"), value=one.bytes, tone="strong" if one.bytes == curve.enough_bytes else "")
        good = Cell(percent(one.good_share), value=one.good_share)
        cells = (Cell(percent(share), value=share) for share in shares)
        rows.append([size, *cells, one.mean_ttft_ms, one.p99_ttft_ms, good, month])
    tiers = curve.sizes[0].hit_rate_by_tier
    columns = (curve.name, "hits", *tiers, "LRU", "mean TTFT (ms)", "p99 TTFT (ms)", "good", "$/month a server")
    return Table(f"Size of {curve.name}", columns, rows, name="tiers")
