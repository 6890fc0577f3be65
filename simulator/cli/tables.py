"""Documents as tables for a terminal, grouped as vLLM's benchmark prints its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

from simulator.metrics.pools import chips_words
from simulator.metrics.slo import LATENCIES
from simulator.metrics.usage import main_bottleneck

if TYPE_CHECKING:
    from rich.console import RenderableType

Document = dict[str, Any]

ABSENT = "-"
STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")


def number(value: Any, digits: int = 4) -> str:
    """``digits`` significant digits with thousands separators; ``-`` for None."""
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def scaled(value: float | None, unit: str) -> str:
    """A number with an SI prefix, e.g. ``3.35 TB/s``; ``-`` for None."""
    if value is None:
        return ABSENT
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit that reads best, e.g. ``12.3 us``."""
    if seconds is None:
        return ABSENT
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def percent(share: float | None) -> str:
    """A share as a percentage; ``-`` for None."""
    return ABSENT if share is None else f"{share * 100:.1f} %"


def run_tables(document: Document) -> list[RenderableType]:
    """Everything ``forerun run`` prints."""
    parts: list[RenderableType] = [heading(document), serving_table(document), latency_table(document)]
    if "spec_decode_num_drafts" in document["summary"]:
        parts.append(speculation_table(document))
    if document["slo"] is not None:
        parts.append(slo_table(document))
    parts.append(engine_table(document))
    if document.get("pools"):
        parts.append(pool_table(document))
    notes = document["notes"]
    if notes:
        parts.append(Text("\n".join(f"note: {note}" for note in notes), style="dim"))
    return parts


def heading(document: Document) -> Text:
    """Model, hardware and what the numbers rest on."""
    scenario = document["scenario"]
    model = scenario["model"] if isinstance(scenario["model"], str) else "inline model"
    runs = document["replications"]
    count = f" · mean of {runs} runs, {document['interval_level']:.0%} intervals" if runs > 1 else ""
    text = Text(f"{model} on {chips_words(document)}", style="bold")
    return text.append(f"  basis: {document['basis']} · seed {document['seed']}{count}", style="dim not bold")


def serving_table(document: Document) -> Table:
    """Requests, tokens and rates, under vLLM's labels."""
    summary, intervals = document["summary"], document["intervals"]
    rows = [
        ("Successful requests", "completed"),
        ("Failed requests", "failed"),
        ("Benchmark duration (s)", "duration"),
        ("Total input tokens", "total_input_tokens"),
        ("Total generated tokens", "total_output_tokens"),
        ("Request throughput (req/s)", "request_throughput"),
        ("Request goodput (req/s)", "request_goodput"),
        ("Output token throughput (tok/s)", "output_throughput"),
        ("Total token throughput (tok/s)", "total_token_throughput"),
    ]
    shown = [(label, key) for label, key in rows if key != "request_goodput" or summary[key] is not None]
    return pairs_table("Serving", [(label, with_interval(key, summary, intervals)) for label, key in shown])


def latency_table(document: Document) -> Table:
    """Latencies in milliseconds, one row each."""
    summary, intervals = document["summary"], document["intervals"]
    table = titled_table("Latency (ms)", "", *STATISTICS)
    for name in LATENCIES:
        values = [with_interval(f"{statistic}_{name}_ms", summary, intervals) for statistic in STATISTICS]
        table.add_row(name.upper(), *values)
    return table


def with_interval(key: str, summary: Document, intervals: Document) -> str:
    """A number of the summary, and half the width of its interval where there is one, e.g. ``58.04 ±15``."""
    interval = intervals.get(key)
    if interval is None or interval[0] == interval[1]:
        return number(summary[key])
    return f"{number(summary[key])} [dim]±{number((interval[1] - interval[0]) / 2, 2)}[/dim]"


def speculation_table(document: Document) -> Table:
    """vLLM's speculative-decoding results."""
    summary = document["summary"]
    positions = summary["spec_decode_per_position_acceptance_rates"] or []
    rows = [
        ("Acceptance rate (%)", number(summary["spec_decode_acceptance_rate"])),
        ("Acceptance length", number(summary["spec_decode_acceptance_length"])),
        ("Drafts", number(summary["spec_decode_num_drafts"])),
        ("Draft tokens", number(summary["spec_decode_draft_tokens"])),
        ("Accepted tokens", number(summary["spec_decode_accepted_tokens"])),
        ("Per-position acceptance (%)", "  ".join(f"{share * 100:.1f}" for share in positions) or ABSENT),
    ]
    return pairs_table("Speculative decoding", rows)


def slo_table(document: Document) -> Table:
    """Every limit, the value reached and the verdict."""
    slo = document["slo"]
    share = "" if slo["good_share"] is None else f", {percent(slo['good_share'])} of requests good"
    table = titled_table(f"SLO {'met' if slo['met'] else 'missed'}{share}", "", "value", "limit", "")
    words = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}
    for key, row in slo["limits"].items():
        table.add_row(key, number(row["value"]), number(row["limit"]), words[row["met"]])
    return table


def engine_table(document: Document) -> Table:
    """What limits the engine, KV use, utilisation, energy, cost, and how long the simulation took."""
    kv, use, engine = document["kv_cache"], document["utilisation"], document["engine"]
    blocks = f"{number(kv['num_blocks'])} x {kv['block_size']} tokens{' (measured)' if kv['overridden'] else ''}"
    rows = [
        ("Bottleneck", bottleneck_words(document["bottleneck"])),
        ("KV blocks per replica", blocks),
        (
            "KV use",
            f"peak {percent(kv['peak_use'])}, mean {percent(kv['mean_use'])}, {number(kv['preemptions'])} preemptions",
        ),
        ("MFU / MBU", f"{percent(use['mfu'])} / {percent(use['mbu'])}"),
    ]
    if kv["prefix_hit_tokens"] is not None:
        rates = [row["prefix_hit_rate"] for row in document.get("replicas") or () if row["prefix_hit_rate"] is not None]
        spread = f", {percent(min(rates))} to {percent(max(rates))} by replica" if len(rates) > 1 else ""
        host = kv.get("host")
        tier = f", {percent(host['hit_rate'])} from host memory" if host else ""
        rows.insert(3, ("Prefix cache hits", f"{percent(kv['prefix_hit_rate'])} of prompt tokens{tier}{spread}"))
    transfers = document.get("kv_transfer")
    if transfers:
        moved = f"{number(transfers['transfers'])} prompts, {number(transfers['tokens'])} tokens"
        rows.append(
            ("KV handed to decode", f"{moved}, mean {duration(transfers['mean_s'])} from prompt end to arrival")
        )
    if kv.get("swapped_blocks") is not None:
        rows.append(("Swapped to host", f"{number(kv['swapped_blocks'])} KV blocks"))
    if document.get("restarts") is not None:
        rows.append(("Restarts after failures", number(document["restarts"])))
    if document["energy_joules"] is not None:
        rows.append(("Energy", scaled(document["energy_joules"], "J")))
    if document["cost_usd"] is not None:
        per_million = document["usd_per_million_output_tokens"]
        rows.append(("Cost", f"${number(document['cost_usd'])}, ${number(per_million)} per million output tokens"))
    steps = f"{number(engine['steps'])} engine steps in {duration(engine['wall_s'])}"
    return pairs_table("Engine", [*rows, ("Simulated", steps)])


def pool_table(document: Document) -> Table:
    """Every pool: its chips, how busy it was, and what its KV cache held."""
    table = titled_table("Pools", "", "role", "replicas", "chips", "busy", "peak KV", "prefix hits", "MFU / MBU")
    for pool in document["pools"]:
        used = pool["utilisation"]
        table.add_row(
            pool["name"],
            pool["role"],
            number(pool["replicas"]),
            f"{pool['chips']} x {pool['chip']}",
            percent(pool["busy"]),
            percent(pool["peak_use"]),
            percent(pool["prefix_hit_rate"]),
            f"{percent(used['mfu'])} / {percent(used['mbu'])}",
        )
    return table


def bottleneck_words(shares: Mapping[str, float] | None) -> str:
    """The main bound first, then the other shares of at least 0.5 %, largest first."""
    main = main_bottleneck(dict(shares)) if shares else None
    if shares is None or main is None:
        return ABSENT
    others = sorted((bound for bound in shares if bound != main and shares[bound] >= 0.005), key=lambda b: -shares[b])
    rest = ", ".join(f"{bound} {shares[bound]:.0%}" for bound in others)
    return f"[bold]{main} {shares[main]:.0%}[/bold]" + (f"  [dim]{rest}[/dim]" if rest else "")


def kernel_tables(document: Document) -> list[RenderableType]:
    """One predicted kernel."""
    rows = [("Time", duration(document["seconds"])), ("Bound", document["bound"]), ("Basis", document["basis"])]
    for label, key in (
        ("Launch", "launch_s"),
        ("Compute", "compute_s"),
        ("Memory", "memory_s"),
        ("Transfer", "transfer_s"),
    ):
        if document.get(key):
            rows.append((label, duration(document[key])))
    if document["flops"]:
        rows.append(("Work", f"{scaled(document['flops'], 'FLOP')}, {scaled(document['flops_per_s'], 'FLOP/s')}"))
        rows.append(("Traffic", f"{scaled(document['bytes'], 'B')}, {scaled(document['bytes_per_s'], 'B/s')}"))
    else:
        rows.append(("Message", scaled(document["bytes"], "B")))
    shape = " ".join(f"{key}={value}" for key, value in document["shape"].items())
    title = Text(f"{document['op']} {shape}", style="bold")
    title.append(f"  on {document['chip']}, {document['library']} kernels", style="dim not bold")
    return [title, pairs_table("", rows)]


def pairs_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Labels on the left, values on the right."""
    table = _titled(title, None)
    for column in ("label", "value"):
        table.add_column(column, overflow="fold")
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def titled_table(title: str, *columns: str, left: bool = False) -> Table:
    """An empty table in the house style; columns after the first align right unless ``left``."""
    table = _titled(title, box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        justify: Literal["left", "right"] = "left" if left or index == 0 else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=index == 0)
    return table


def _titled(title: str, lines: box.Box | None) -> Table:
    return Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=lines,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
