"""Chips, models and traces as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from forerun.document import Json
from forerun.tables import ABSENT, Table, duration, number, pairs, scaled
from simulator.llm.architecture import architecture_summary
from simulator.workload.workload_tables import statistics_tables

if TYPE_CHECKING:
    from hwprofiles import Chip
    from simulator.llm import Architecture
    from traces import RequestStatistics

Row = Mapping[str, Any]


def count_words(count: int | None) -> str:
    """A parameter count as the field writes it, e.g. ``8.03 B``; ``-`` for None."""
    if count is None:
        return ABSENT
    for factor, unit in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= factor:
            return f"{count / factor:.4g}{unit}"
    return str(count)


def chip_row(chip: Chip) -> Json:
    """One line about a chip."""
    fits = {library: sorted(chip.kernels[library]) for library in chip.fitted_libraries}
    return {
        "name": chip.name,
        "description": chip.description,
        "vendor": chip.vendor,
        "kind": chip.kind,
        "memory_bytes": chip.memory.capacity_bytes,
        "bandwidth_bytes_per_s": chip.memory.bandwidth_bytes_per_s,
        "peak_flops_per_s": dict(chip.compute.dense_flops_per_s),
        "tdp_w": chip.power.tdp_w,
        "calibrated": fits,
    }


def chips_table(rows: Sequence[Row]) -> Table:
    lines = [
        [
            row["name"],
            scaled(row["memory_bytes"], "B"),
            scaled(row["bandwidth_bytes_per_s"], "B/s"),
            scaled(
                next(filter(None, map(row["peak_flops_per_s"].get, ("bf16", "fp16", "bfp8", "fp32"))), None), "FLOP/s"
            ),
            f"{number(row['tdp_w'])} W",
            ", ".join(row["calibrated"]) or ABSENT,
        ]
        for row in rows
    ]
    return Table("", ("chip", "memory", "bandwidth", "dense 16-bit", "TDP", "fitted for"), lines)


def chip_tables(chip: Chip) -> list[Any]:
    """One chip: limits, kernel fits, sources."""
    limits = [
        ("Kind", chip.kind),
        ("Cores", number(chip.compute.cores)),
        *((f"Dense {dtype}", scaled(peak, "FLOP/s")) for dtype, peak in chip.compute.dense_flops_per_s.items()),
        ("Memory", scaled(chip.memory.capacity_bytes, "B")),
        ("Memory bandwidth", scaled(chip.memory.bandwidth_bytes_per_s, "B/s")),
        ("On-chip memory", scaled(chip.on_chip.capacity_bytes, "B")),
        ("On-chip bandwidth", scaled(chip.on_chip.bandwidth_bytes_per_s, "B/s")),
        ("Scale-up link", chip.links.scale_up or ABSENT),
        ("Power", f"{number(chip.power.idle_w)} W idle, {number(chip.power.tdp_w)} W TDP"),
    ]
    if chip.host.launch_s:
        limits.append(("Kernel launch", duration(chip.host.launch_s)))
    if chip.price is not None and chip.price.usd_per_hour is not None:
        limits.append(("Price", f"${number(chip.price.usd_per_hour)} per hour"))
    sources = [[name, source.kind, source.date, source.reference] for name, source in chip.sources.items()]
    sources_table = Table("Sources", ("numbers", "kind", "date", "reference"), sources)
    return [Text(f"{chip.name}  {chip.description}", style="bold"), pairs("", limits), sources_table]


def model_row(architecture: Architecture) -> Json:
    """One line about a model."""
    counts = architecture.parameters()
    return {
        "name": architecture.name,
        "parameters": counts.total,
        "active_parameters": counts.active,
        "num_layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "attention": sorted(
            {row["attention"] for row in architecture_summary(architecture)["layers"] if row["attention"] is not None}
        ),
        "kv_elements_per_token": architecture.kv_elements_per_token,
        "max_position": architecture.max_position,
    }


def models_table(rows: Sequence[Row]) -> Table:
    lines = [
        [
            row["name"],
            count_words(row["parameters"]),
            count_words(row["active_parameters"]),
            str(row["num_layers"]),
            "+".join(row["attention"]),
            scaled(2.0 * row["kv_elements_per_token"], "B"),
            number(row["max_position"]),
        ]
        for row in rows
    ]
    return Table("", ("model", "parameters", "active", "layers", "attention", "KV/token", "context"), lines)


def model_tables(architecture: Architecture) -> list[Any]:
    """One model: shape, parameters by part, layers."""
    counts, summary = architecture.parameters(), architecture_summary(architecture)
    shape = [
        ("Parameters", count_words(counts.total)),
        ("Active per token", count_words(counts.active)),
        ("Layers", str(architecture.num_layers)),
        ("Hidden size", number(architecture.hidden_size)),
        ("Vocabulary", number(architecture.vocab_size)),
        ("Weights as published", f"{scaled(summary['weight_bytes'], 'B')} ({', '.join(summary['weight_formats'])})"),
        ("KV per token (16-bit)", scaled(2.0 * architecture.kv_elements_per_token, "B")),
        ("Context", number(architecture.max_position)),
        ("Source", architecture.source),
    ]
    counted = [
        [part, count_words(count), architecture.checkpoint_dtypes.get(part, ABSENT)]
        for part, count in architecture.parameters_by_part().items()
        if count
    ]
    parts = Table("Parameters by part", ("part", "parameters", "published dtype"), counted)
    kinds = [
        [
            str(row["count"]),
            row["attention"] or ABSENT,
            number(row["num_heads"]),
            number(row["num_kv_heads"]),
            number(row["head_dim"]),
            number(row["window"]),
            _feed_forward(row),
        ]
        for row in summary["layers"]
    ]
    columns = ("count", "attention", "heads", "KV heads", "head size", "window", "feed-forward")
    layers = Table("Layers", columns, kinds)
    notes: list[Any] = [Text(f"note: {note}", style="dim") for note in architecture.notes]
    return [Text(architecture.name, style="bold"), pairs("", shape), parts, layers, *notes]


def _feed_forward(row: Row) -> str:
    if row["mlp"] == "moe":
        return f"{row['experts_per_token']} of {row['num_experts']} experts of {row['intermediate_size']}"
    return f"dense {row['intermediate_size']}" if row["mlp"] else ABSENT


def model_check_tables(file: str, summary: Row) -> list[Any]:
    """Contents of a model's file, to compare with its card: parameters, and memory per sequence."""
    kinds = Counter[str]()
    for row in summary["layers"]:
        kinds[row["attention"] or row["mlp"]] += row["count"]
    facts = [
        ("Family", summary["family"] or ABSENT),
        ("Layers", ", ".join(f"{count} x {kind}" for kind, count in kinds.items())),
        ("Parameters", count_words(summary["parameters_total"])),
        (f"Active per token ({summary['parameters_active_counts']})", count_words(summary["parameters_active"])),
        ("Weights as published", f"{scaled(summary['weight_bytes'], 'B')} ({', '.join(summary['weight_formats'])})"),
        ("MTP parameters", count_words(summary["mtp_parameters"])),
        ("KV per token (bf16)", scaled(summary["kv_bytes_per_token"], "B")),
        ("Index cache per token (bf16)", scaled(summary["index_bytes_per_token"] or None, "B")),
        ("Recurrent state per sequence", scaled(summary["state_bytes_per_sequence"] or None, "B")),
    ]
    sizes = [
        [
            number(row["context_tokens"]),
            *(scaled(row[f"{part}_bytes"] or None, "B") for part in ("kv", "index", "state")),
        ]
        for row in summary["memory_per_sequence"]
    ]
    memory = Table("Memory of one sequence", ("context", "KV", "index", "state"), sizes)
    notes: list[Any] = [Text(f"note: {note}", style="dim") for note in summary["notes"]]
    title = Text(f"{file}: a model that Forerun reads: {summary['name']}", style="bold")
    return [title, pairs("", facts), memory, *notes]


def workloads_tables(samples: Sequence[Row], formats: Sequence[str]) -> list[Any]:
    rows = [[row["name"], row["title"], row["licence"]] for row in samples]
    return [Table("Sample traces", ("name", "what", "licence"), rows), Text("Formats read: " + ", ".join(formats))]


def workload_tables(statistics: RequestStatistics) -> list[Any]:
    parts: list[Any] = [Text(statistics.source, style="bold"), *statistics_tables(statistics)]
    return parts + [Text(f"note: {note}", style="dim") for note in statistics.notes]
