"""The words, tiles and tables of the HTML report, each from the run document."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

from dashboards.figures.theme import BASIS_WORDS
from simulator.metrics import LATENCIES, main_bottleneck

Document = dict[str, Any]
Row = tuple[str, str]

LATENCY_NAMES = {
    "ttft": ("TTFT", "time to first token"),
    "tpot": ("TPOT", "time per output token after the first"),
    "itl": ("ITL", "inter-token latency"),
    "e2el": ("E2EL", "end-to-end latency"),
}
STATISTICS = ("mean", "median", "p90", "p95", "p99", "std")
ABSENT = "–"


def number(value: Any, digits: int = 4) -> str:
    """A number to ``digits`` significant digits with thousands separators; a dash for None."""
    if value is None:
        return ABSENT
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{value:.2e}" if "e" in text else text


def percent(share: float | None) -> str:
    """A share as a percentage; a dash for None."""
    return ABSENT if share is None else f"{share:.1%}".replace("%", " %")


def gigabytes(size: float | None) -> str:
    """Bytes in GB (1e9); a dash for None."""
    return ABSENT if size is None else f"{size / 1e9:,.2f} GB"


def lead_sentence(document: Document) -> str:
    """What the run says in one sentence."""
    summary, shares = document["summary"], document["bottleneck"]
    if not summary.get("completed"):
        return f"No request finished ({number(summary.get('failed'))} failed)."
    parts = [
        f"Serves {number(summary['output_throughput'])} output tokens/s ({number(summary['request_throughput'])} req/s)"
    ]
    if summary.get("p99_ttft_ms") is not None:
        parts.append(f"with p99 TTFT {number(summary['p99_ttft_ms'])} ms")
    if summary.get("p99_tpot_ms") is not None:
        parts.append(f"and p99 TPOT {number(summary['p99_tpot_ms'])} ms")
    sentence = " ".join(parts)
    bound = main_bottleneck(shares)
    if bound is None or bound == "idle":
        return sentence + "."
    idle = f"; idle {shares['idle']:.0%}" if shares["idle"] >= 0.01 else ""
    return f"{sentence}; {bound} limits {shares[bound]:.0%} of engine time{idle}."


def badges(document: Document) -> str:
    """Basis, SLO verdict, failures, preemptions and the number of runs behind the numbers."""
    basis = document["basis"]
    marks = [(f"basis: {basis}", "", BASIS_WORDS.get(basis, ""))]
    slo = document.get("slo")
    if slo is not None:
        marks.append(("SLO met", "good", "") if slo["met"] else ("SLO missed", "bad", ""))
    if document["summary"].get("failed"):
        marks.append((f"{number(document['summary']['failed'])} failed", "bad", ""))
    if document["kv_cache"].get("preemptions"):
        marks.append((f"{number(document['kv_cache']['preemptions'])} preemptions", "bad", ""))
    runs = document.get("replications", 1)
    marks.append((f"{runs} replications" if runs > 1 else "single run", "", ""))
    spans = "".join(
        f'<span class="badge {kind}" title="{escape(title)}">{escape(text)}</span>' for text, kind, title in marks
    )
    return f'<div class="badges">{spans}</div>'


def tiles(document: Document) -> str:
    """The numbers that matter most."""
    summary, kv, shares = document["summary"], document["kv_cache"], document["bottleneck"]
    bound = main_bottleneck(shares)
    share = shares[bound] if shares and bound else None
    shown = [
        (
            "Output throughput",
            number(summary["output_throughput"]),
            "tok/s",
            f"{number(summary['request_throughput'])} req/s",
        ),
        ("p99 TTFT", number(summary["p99_ttft_ms"]), "ms", f"median {number(summary['median_ttft_ms'])} ms"),
        ("p99 TPOT", number(summary["p99_tpot_ms"]), "ms", f"median {number(summary['median_tpot_ms'])} ms"),
        ("p99 E2E latency", number(summary["p99_e2el_ms"]), "ms", f"median {number(summary['median_e2el_ms'])} ms"),
        ("Bottleneck", bound or ABSENT, "", f"{percent(share)} of engine time"),
        ("KV cache peak", percent(kv.get("peak_use")), "", f"of {number(kv.get('num_blocks'))} blocks"),
    ]
    if document.get("usd_per_million_output_tokens") is not None:
        cost = number(document["usd_per_million_output_tokens"], 3)
        shown.append(("Cost", f"${cost}", "", "per million output tokens"))
    if summary.get("spec_decode_acceptance_length") is not None:
        shown.append(
            ("Acceptance length", number(summary["spec_decode_acceptance_length"], 3), "", "tokens per verify step")
        )
    if len(shown) % 2:
        use = document["utilisation"]
        shown.append(("Bandwidth used", percent(use["mbu"]), "", f"MBU; MFU {percent(use['mfu'])}"))
    columns = len(shown) if len(shown) <= 6 else -(-len(shown) // 2)
    return f'<section class="tiles" style="--columns: {columns}">{"".join(_tile(*tile) for tile in shown)}</section>'


def _tile(label: str, value: str, unit: str, detail: str) -> str:
    unit = f" <small>{escape(unit)}</small>" if unit and value != ABSENT else ""
    return (
        f'<div class="tile"><div class="label">{escape(label)}</div><div class="value">{escape(value)}{unit}</div>'
        f'<div class="detail">{escape(detail)}</div></div>'
    )


def latency_table(document: Document) -> str:
    """Latencies by statistic, with their intervals where there are any."""
    summary, intervals = document["summary"], document.get("intervals") or {}
    names = [name for name in LATENCIES if summary.get(f"mean_{name}_ms") is not None]
    if not names:
        return ""
    head = "".join(f"<th>{statistic}</th>" for statistic in STATISTICS)
    rows = ""
    for name in names:
        cells = "".join(_cell(f"{statistic}_{name}_ms", summary, intervals) for statistic in STATISTICS)
        short, words = LATENCY_NAMES[name]
        rows += f'<tr><th>{short} <span class="wide">{words}</span></th>{cells}</tr>'
    return f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell(key: str, summary: Document, intervals: Document) -> str:
    interval = intervals.get(key)
    below = f'<span class="interval">{number(interval[0])} to {number(interval[1])}</span>' if interval else ""
    return f"<td>{number(summary.get(key))}{below}</td>"


def slo_table(document: Document) -> str:
    """Every limit with the value reached; empty without limits."""
    slo = document.get("slo")
    if slo is None:
        return ""
    rows = ""
    for key, row in slo["limits"].items():
        verdict = {True: ("met", "good-text"), False: ("missed", "bad-text"), None: ("not measured", "")}[row["met"]]
        rows += (
            f"<tr><th>{escape(key)}</th><td>{number(row['value'])}</td><td>{number(row['limit'])}</td>"
            f'<td class="{verdict[1]}">{verdict[0]}</td></tr>'
        )
    share = (
        "" if slo["good_share"] is None else f"<p>{percent(slo['good_share'])} of requests are within every limit.</p>"
    )
    failed = document["summary"].get("failed")
    share += f'<p class="bad-text">{number(failed)} failed, which no limit allows.</p>' if failed else ""
    head = "<thead><tr><th></th><th>value</th><th>limit</th><th></th></tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{rows}</tbody></table></div>{share}'


def serving_rows(document: Document) -> list[Row]:
    """Requests, tokens and rates."""
    summary = document["summary"]
    return [
        ("Successful requests", number(summary["completed"])),
        ("Failed requests", number(summary["failed"])),
        ("Duration (simulated)", f"{number(summary['duration'])} s"),
        ("Input tokens", number(summary["total_input_tokens"])),
        ("Output tokens", number(summary["total_output_tokens"])),
        ("Requests", f"{number(summary['request_throughput'])} /s"),
        ("Goodput", ABSENT if summary["request_goodput"] is None else f"{number(summary['request_goodput'])} req/s"),
        ("Output tokens", f"{number(summary['output_throughput'])} /s"),
        ("All tokens", f"{number(summary['total_token_throughput'])} /s"),
    ]


def use_rows(document: Document) -> list[Row]:
    """Utilisation, energy, cost and what the simulation itself took."""
    use, engine = document["utilisation"], document["engine"]
    energy, cost = document.get("energy_joules"), document.get("cost_usd")
    return [
        ("Chips", number(document.get("chips"))),
        ("Model FLOP utilisation (MFU)", percent(use["mfu"])),
        ("Memory bandwidth utilisation (MBU)", percent(use["mbu"])),
        ("Energy", ABSENT if energy is None else f"{number(energy / 1e3)} kJ"),
        ("Cost of the run", ABSENT if cost is None else f"${number(cost, 3)}"),
        ("Engine steps", number(engine["steps"])),
        ("Simulated in", f"{engine['wall_s']:.2f} s"),
    ]


def kv_rows(document: Document) -> list[Row]:
    """What fills the memory of one chip, and the KV blocks of one replica."""
    kv = document["kv_cache"]
    source = " (measured)" if kv.get("overridden") else ""
    return [
        ("Memory per chip", gigabytes(kv.get("capacity_bytes"))),
        ("Weights per chip", gigabytes(kv.get("weights_bytes"))),
        *([("Draft weights per chip", gigabytes(kv["draft_weights_bytes"]))] if kv.get("draft_weights_bytes") else []),
        ("Activations and graphs per chip", gigabytes(kv.get("activation_bytes"))),
        ("KV blocks per replica", f"{number(kv.get('num_blocks'))} x {kv.get('block_size')} tokens{source}"),
        ("Peak use", percent(kv.get("peak_use"))),
        ("Mean use", percent(kv.get("mean_use"))),
        ("Preemptions", number(kv.get("preemptions"))),
        ("Prompt tokens from the prefix cache", percent(kv.get("prefix_hit_rate"))),
        *([("Of all, from host memory", percent(kv["host"].get("hit_rate")))] if kv.get("host") else []),
    ]


def speculation_rows(document: Document) -> list[Row]:
    """vLLM's speculative-decoding counters; empty without speculation."""
    summary = document["summary"]
    if "spec_decode_num_drafts" not in summary:
        return []
    rate = summary["spec_decode_acceptance_rate"]
    positions = summary["spec_decode_per_position_acceptance_rates"] or []
    rows = [
        ("Acceptance rate", ABSENT if rate is None else f"{rate:.1f} %"),
        ("Acceptance length, bonus token included", number(summary["spec_decode_acceptance_length"], 3)),
        ("Drafts", number(summary["spec_decode_num_drafts"])),
        ("Draft tokens", number(summary["spec_decode_draft_tokens"])),
        ("Accepted tokens", number(summary["spec_decode_accepted_tokens"])),
    ]
    return rows + [(f"Accepted at position {i}", percent(share)) for i, share in enumerate(positions)]


def pairs_table(rows: Iterable[Row]) -> str:
    """A table of labels and values; empty without rows."""
    body = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in rows)
    return f"<table><tbody>{body}</tbody></table>" if body else ""


def notes_list(document: Document) -> str:
    """The remarks of the run; empty without any."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in document.get("notes") or [])
    return f'<ul class="notes">{notes}</ul>' if notes else ""
