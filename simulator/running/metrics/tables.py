"""Tables of a run, grouped as vLLM's benchmark prints its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.document import Json
from forerun.result import model_words
from forerun.tables import ABSENT, HOURS_FROM_S, Cell, Table, Value, duration, number, pairs, percent, scaled
from simulator.running.metrics.conclusion import API_SERVER_SHOWN, slo_words
from simulator.running.metrics.summary import LATENCIES
from simulator.running.metrics.usage import chips_words, main_bottleneck, tokens_per_joule
from simulator.timing.framework import LOCAL_FRAMEWORKS
from simulator.timing.releases import release_words

MOST_REPLICAS = 64
"""Replicas up to which each has a row."""
RUN_LEGEND = (
    "low..high: likely range of the figure before it; nine in ten in parentheses, where shown. Bottleneck: share of "
    "time by what limits it. MFU, MBU: share of the peak FLOP/s and of the memory bandwidth used. basis: evidence for "
    "the kernel prices (see the glossary)."
)
BETWEEN = ("p90_", "p95_")
"""Statistics whose intervals other rows bracket; a terminal shows them only with ``--full``."""
STORE_BYTES = ("bytes", "peak_bytes", "read_bytes", "written_bytes")
STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")


def run_tables(document: Json) -> list[Table]:
    """Every table of a ``run`` document."""
    tables = [serving_table(document), latency_table(document)]
    if document.get("stages"):
        tables.append(stages_table(document["stages"]))
    if "spec_decode_num_drafts" in document["summary"]:
        tables.append(speculation_table(document))
    if document["slo"] is not None:
        tables.append(slo_table(document))
    if "tool_calls" in document.get("tasks", {}):
        tables.append(tasks_table(document["tasks"]))
    tables.append(engine_table(document))
    if document["kv_cache"].get("stores"):
        tables.append(stores_table(document["kv_cache"]["stores"]))
    if document.get("pools"):
        tables.append(pool_table(document))
    return tables


def more_run_tables(document: Json) -> list[Table]:
    """Tables that pages show in addition to :func:`run_tables`: memory of a chip by use, and every replica."""
    return [memory_table(document), replica_table(document)]


def run_title(document: Json) -> str:
    """Model and hardware of a run document."""
    return f"{model_words(document['scenario'])} on {chips_words(document)}"


def run_legend(document: Json) -> str:
    """Legend of a run's terms, with the releases that it stands for where none is stated."""
    engine = document["scenario"]["engine"]
    words = release_words(engine["framework"], engine.get("release"))
    return f"{RUN_LEGEND} engine: {words}." if words else RUN_LEGEND


def interval_words(document: Json) -> str:
    if not document["likely"]:
        return f"{document['interval_level']:.0%} intervals of {document['intervals_of']}"
    return f"likely (50 %) and {document['interval_level']:.0%} intervals of {document['intervals_of']}"


def run_facts(document: Json) -> str:
    """Evidence basis of the numbers of a run document."""
    runs = document["replications"]
    count = f" · mean of {runs} runs" if runs > 1 else ""
    if document["interval_level"] is not None:
        count += f" · {interval_words(document)}"
    shares = " + ".join(f"{share:.0%} {name}" for name, share in document["evidence"].items() if share >= 0.005)
    return f"basis: {document['basis']} ({shares}) · seed {document['seed']}{count}"


def serving_table(document: Json) -> Table:
    summary = document["summary"]
    hours = summary["duration"] is not None and summary["duration"] >= HOURS_FROM_S
    rows = [
        ("Successful requests", "completed"),
        ("Failed requests", "failed"),
        (f"Benchmark duration ({'h' if hours else 's'})", "duration"),
        ("Total input tokens", "total_input_tokens"),
        ("Total generated tokens", "total_output_tokens"),
        ("Request throughput (req/s)", "request_throughput"),
        ("Request goodput (req/s)", "request_goodput"),
        ("Output token throughput (tok/s)", "output_throughput"),
        ("Total token throughput (tok/s)", "total_token_throughput"),
    ]
    shown = [(label, key) for label, key in rows if key != "request_goodput" or summary[key] is not None]
    cells = [(label, with_interval(key, document, 3600.0 if label.endswith("(h)") else 1.0)) for label, key in shown]
    if document["scenario"]["engine"]["framework"] in LOCAL_FRAMEWORKS and summary["mean_tpot_ms"]:
        cells.append(("Decoding, per user (tok/s)", _decode_rate(document)))
    return pairs("Serving", cells, name="serving")


def _decode_rate(document: Json) -> Value:
    """Tokens per second that a user sees arrive: the inverse of mean TPOT."""
    rate, ends = 1e3 / document["summary"]["mean_tpot_ms"], document["intervals"].get("mean_tpot_ms")
    aside = "" if ends is None else "..".join(number(1e3 / end, 3) for end in reversed(ends))
    return Cell(number(rate), aside=aside, value=rate)


def latency_table(document: Json) -> Table:
    rows = [
        [name.upper(), *(with_interval(f"{statistic}_{name}_ms", document) for statistic in STATISTICS)]
        for name in LATENCIES
    ]
    return Table("Latency (ms)", ("", *STATISTICS), rows, name="latency", details=("std",))


def with_interval(key: str, document: Json, unit: float = 1.0) -> Value:
    """A number of the summary, and its likely range if there is one, e.g. ``58.04 51..70``; nine in ten in detail."""
    value, interval = document["summary"][key], document["intervals"].get(key)
    text = number(value and value / unit)
    if interval is None or interval[1] - interval[0] <= 1e-4 * abs(interval[1]):
        return Cell(text, value=value)
    likely, wide = (
        "" if ends is None else "..".join(number(end / unit, 3) for end in ends)
        for ends in (document["likely"].get(key), interval)
    )
    both = f"({wide})" if likely else wide
    aside, detail = ("", f"{likely} {both}".strip()) if key.startswith(BETWEEN) else (likely or wide, likely and both)
    return Cell(text, aside=aside, value=value, detail=detail)


def stages_table(stages: Sequence[Json]) -> Table:
    """A row per stage of a load test, over its own requests."""
    names = {
        "request_throughput": "req/s",
        "output_throughput": "output tok/s",
        "mean_ttft_ms": "TTFT mean",
        "median_ttft_ms": "TTFT median",
        "p90_ttft_ms": "TTFT p90",
        "mean_tpot_ms": "TPOT mean",
        "mean_e2el_ms": "E2EL mean",
    }
    rows: list[list[Value]] = []
    for stage in stages:
        figures = (Cell(number(stage[key]), value=stage[key]) for key in names)
        rows.append([stage["rate"], stage["completed"], *figures, "warm-up" if stage["warm_up"] else ""])
    columns = ("rate", "completed", *names.values(), "")
    return Table("Stages (latencies in ms)", columns, rows, name="stages")


def speculation_table(document: Json) -> Table:
    summary = document["summary"]
    rows: list[tuple[str, Value]] = [
        ("Acceptance rate (%)", summary["spec_decode_acceptance_rate"]),
        ("Acceptance length", summary["spec_decode_acceptance_length"]),
        ("Drafts", summary["spec_decode_num_drafts"]),
        ("Draft tokens", summary["spec_decode_draft_tokens"]),
        ("Accepted tokens", summary["spec_decode_accepted_tokens"]),
    ]
    shares = [f"{share * 100:.1f}" for share in summary["spec_decode_per_position_acceptance_rates"] or []]
    rows.append(("Per-position acceptance (%)", "  ".join(shares) or ABSENT))
    return pairs("Speculative decoding", rows, name="speculation")


def slo_table(document: Json) -> Table:
    slo = document["slo"]
    words = {True: Cell("met", tone="good"), False: Cell("missed", tone="bad"), None: Cell("not measured")}
    rows: list[list[Value]] = []
    for key, row in slo["limits"].items():
        statistic, latency, unit = key.split("_")
        rows.append([f"{statistic} {latency.upper()} ({unit})", row["value"], row["limit"], words[row["met"]]])
    if slo["good_share"] is not None:
        rows.append(["good requests", Cell(percent(slo["good_share"]), value=slo["good_share"]), None, ""])
    return Table(slo_words(slo), ("", "value", "limit", ""), rows, name="slo")


def tasks_table(tasks: Mapping[str, Any]) -> Table:
    """Seconds of tasks, and what guessed tool calls hid and wasted."""
    calls = tasks["tool_calls"]
    columns = ("tasks", "mean s", "p50 s", "p90 s", "p99 s", "calls guessed", "right", "hidden s", "wasted s")
    times = [number(tasks[name]) for name in ("mean_s", "p50_s", "p90_s", "p99_s")]
    waits = (number(calls["hidden_s"]), number(calls["wasted_s"]))
    return Table(
        "Tasks with guessed tool calls", columns, [[tasks["count"], *times, calls["guessed"], calls["right"], *waits]]
    )


def engine_table(document: Json) -> Table:
    """Bottleneck, KV use, utilisation, energy, cost and simulation time of the engine."""
    kv, use, engine = document["kv_cache"], document["utilisation"], document["engine"]
    pages = f", {kv['page_tokens']} at a time" if kv.get("page_tokens") else ""
    blocks = f"{number(kv['num_blocks'])} x {kv['block_size']} tokens{pages}{' (measured)' if kv['overridden'] else ''}"
    held = f"peak {percent(kv['peak_use'])}, mean {percent(kv['mean_use'])}, {number(kv['preemptions'])} preemptions"
    rows: list[tuple[str, Value]] = [
        ("Bottleneck", bottleneck_cell(document["bottleneck"])),
        ("KV blocks per replica", blocks),
        ("KV use", held),
        *memory_rows(kv.get("per_chip_bytes")),
        ("MFU / MBU", f"{percent(use['mfu'])} / {percent(use['mbu'])}"),
    ]
    if (busy := document["load"]["api_server_busy"] or 0.0) >= API_SERVER_SHOWN:
        rows.insert(1, ("API server", f"busy {percent(busy)}"))
    if kv["prefix_hit_tokens"] is not None:
        rates = [row["prefix_hit_rate"] for row in document.get("replicas") or () if row["prefix_hit_rate"] is not None]
        spread = f", {percent(min(rates))} to {percent(max(rates))} by replica" if len(rates) > 1 else ""
        tiers = kv["hit_rate_by_tier"]
        shares = ", ".join(f"{percent(share)} from {name}" for name, share in tiers.items()) if len(tiers) > 1 else ""
        tier = f" ({shares})" if shares else ""
        rows.insert(3, ("Prefix cache hits", f"{percent(kv['prefix_hit_rate'])} of prompt tokens{tier}{spread}"))
    transfers = document.get("kv_transfer")
    if transfers:
        moved = f"{number(transfers['transfers'])} prompts, {number(transfers['tokens'])} tokens"
        rows.append(("KV transferred", f"{moved}, mean {duration(transfers['mean_s'])} from prompt end to arrival"))
    if kv.get("swapped_blocks") is not None:
        rows.append(("Swapped to host", f"{number(kv['swapped_blocks'])} KV blocks"))
    if document.get("scaling") is not None:
        scaling = document["scaling"]
        rows.append(("Replicas rented", f"mean {scaling['mean_replicas']:.2f}, peak {scaling['peak_replicas']}"))
        rows.append(("Started / stopped", f"{scaling['scale_ups']} / {scaling['scale_downs']}"))
    if document.get("restarts") is not None:
        rows.append(("Restarts after failures", document["restarts"]))
    if document["energy_joules"] is not None:
        yields = tokens_per_joule(document["summary"]["total_output_tokens"], document["energy_joules"])
        energy = f"{scaled(document['energy_joules'], 'J')}, {number(yields)} output tokens per joule"
        if (power := document.get("power")) is not None:
            low, high = (number(end, 3) for end in power["interval_w"])
            energy += f", {number(power['mean_w'], 3)} W ({low} to {high}, {power['basis']})"
        rows.append(("Energy", energy))
    if document["cost_usd"] is not None:
        per_million, usd = (number(document[key]) for key in ("usd_per_million_output_tokens", "cost_usd"))
        rows.append(("Cost", f"${per_million} per million output tokens, ${usd} for this run"))
    steps = f"{number(engine['steps'])} engine steps in {duration(engine['wall_s'])}"
    return pairs("Engine", [*rows, ("Simulated", steps)], name="engine")


def stores_table(stores: Sequence[Json]) -> Table:
    """A row per store behind the prefix cache."""
    rows: list[list[Value]] = []
    for one in stores:
        sizes = [Cell(scaled(one[key], "B"), value=one[key]) for key in STORE_BYTES]
        shares = [Cell(percent(one[key]), value=one[key]) for key in ("hit_rate", "read_busy", "write_busy")]
        rows.append([one["name"], one["medium"], *sizes, *shares])
    columns = ("", "medium", "size", "held (peak)", "read", "written", "hit share", "read busy", "write busy")
    return Table("KV stores", columns, rows, name="stores")


def pool_table(document: Json) -> Table:
    columns = ("", "role", "replicas", "chips", "busy", "peak KV", "prefix hits", "MFU / MBU")
    rows: list[list[Value]] = []
    for pool in document["pools"]:
        shares = [percent(pool[key]) for key in ("busy", "peak_use", "prefix_hit_rate")]
        use = " / ".join(percent(pool["utilisation"][key]) for key in ("mfu", "mbu"))
        rows.append([pool["name"], pool["role"], pool["replicas"], f"{pool['chips']} x {pool['chip']}", *shares, use])
    return Table("Pools", columns, rows, name="pools")


def memory_rows(split: Mapping[str, float] | None) -> list[tuple[str, Value]]:
    """Memory of one chip by content, in one row; none where it is weights, KV and activations alone."""
    if not split:
        return []
    words = {"draft_weights": "drafter", "kv": "KV"}
    parts = [f"{words.get(name, name)} {scaled(size, 'B')}" for name, size in split.items() if size]
    return [("Memory per chip", ", ".join(parts))]


def memory_table(document: Json) -> Table:
    kv = document["kv_cache"]
    rows = (
        ("Memory per chip", "capacity_bytes"),
        ("Weights per chip", "weights_bytes"),
        ("Draft weights per chip", "draft_weights_bytes"),
        ("Activations and graphs per chip", "activation_bytes"),
        ("KV of a token, per chip", "bytes_per_token"),
    )
    known = [(label, scaled(kv[key], "B")) for label, key in rows if kv.get(key)]
    return pairs("Memory", known, name="memory")


def replica_table(document: Json) -> Table:
    """Every replica; empty if there is one, or more than can be read."""
    rows: list[list[Value]] = []
    for row in document.get("replicas") or []:
        name = f"{row['replica']} ({row['pool']})" if document.get("pools") else str(row["replica"])
        shares = [percent(row[key]) for key in ("prefix_hit_rate", "peak_use", "busy")]
        rows.append([name, row["requests"], row["prompt_tokens"], *shares])
    columns = ("replica", "requests", "prompt tokens", "prefix hits", "peak KV", "busy")
    shown = rows if 1 < len(rows) <= MOST_REPLICAS else []
    return Table("Replicas", columns, shown, shown=16, name="replicas")


def bottleneck_cell(shares: Mapping[str, float] | None) -> Value:
    """The main bound first, then the other shares of at least 0.5 %, largest first."""
    main = main_bottleneck(dict(shares)) if shares else None
    if shares is None or main is None:
        return None
    others = sorted((bound for bound in shares if bound != main and shares[bound] >= 0.005), key=lambda b: -shares[b])
    rest = ", ".join(f"{bound} {shares[bound]:.0%}" for bound in others)
    return Cell(f"{main} {shares[main]:.0%}{',' if rest else ''}", aside=rest, tone="strong")
