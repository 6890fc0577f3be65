"""Replays of serving runs and engine steps as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from simulator.cli.tables import ABSENT, duration, number, pairs_table, titled_table

if TYPE_CHECKING:
    from rich.console import RenderableType

SHOWN_RUNS = 40
SHOWN_REASONS = 12
SHOWN_WORST = 8
SHOWN_METRICS = {"mean_ttft_ms": "TTFT", "mean_tpot_ms": "TPOT", "mean_itl_ms": "ITL", "mean_e2el_ms": "E2E",
                 "output_throughput": "tok/s", "request_throughput": "req/s"}  # fmt: skip


def request_tables(document: dict[str, Any]) -> list[RenderableType]:
    """Everything ``forerun replay requests`` prints."""
    runs = document["runs"]
    title = Text(f"{len(runs):,} measured runs served again", style="bold")
    held_out = " held-out configurations ·" if document["split"] else ""
    title.append(f" {held_out} seed {document['seed']} · basis: {document['basis']}", style="dim not bold")
    scores = titled_table(
        "Errors (%)", "metric", "group", "runs", "MAPE", "median", "p90", "bias", "simulated", "inside 90", left=True
    )
    for score in document["scores"]:
        whole = score["group"] == "all"
        figures = (score[key] for key in ("mape", "median_ape", "p90_ape", "bias", "coverage", "coverage90"))
        scores.add_row(
            score["metric"],
            score["group"],
            f"{score['n']:,}",
            *(ABSENT if value is None else number(value, 3) for value in figures),
            style=None if whole else "dim",
        )
    parts: list[RenderableType] = [title, scores]
    shown = [metric for metric in SHOWN_METRICS if any(metric in run["error"] for run in runs)]
    columns = ["run", "load"]
    for metric in shown:
        columns += [SHOWN_METRICS[metric], "%"]
    table = titled_table(f"Runs (measured, and error of the prediction){more(len(runs))}", *columns, left=True)
    for run in runs[:SHOWN_RUNS]:
        cells = []
        for metric in shown:
            value, error = run["measured"].get(metric), run["error"].get(metric)
            cells += [ABSENT if value is None else number(value, 4), ABSENT if error is None else f"{error:+.1f}"]
        table.add_row(run["name"][-44:], load(run), *cells)
    parts.append(table)
    if document["skipped"]:
        reasons = [(reason[:100], f"{count:,}") for reason, count in document["skipped"].items()][:SHOWN_REASONS]
        parts.append(pairs_table("Not simulated", reasons))
    return parts


def more(count: int) -> str:
    """A hint that not all rows are shown."""
    return f", first {SHOWN_RUNS} of {count}; all in --json" if count > SHOWN_RUNS else ""


def load(run: dict[str, Any]) -> str:
    """Load of a run in a few words: lengths, and concurrency or rate."""
    lengths = "/".join(
        ABSENT if tokens is None else "-".join(str(t) for t in tokens) if isinstance(tokens, list) else str(tokens)
        for tokens in (run["input_tokens"], run["output_tokens"])
    )
    if run["max_concurrency"] is not None:
        return f"{lengths} c={run['max_concurrency']}"
    if run["stages"]:
        return f"{lengths} {'+'.join(f'{rate:g}' for rate, _ in run['stages'])} req/s"
    return f"{lengths} {run['request_rate']:g} req/s" if run["request_rate"] else f"{lengths} {run['process'] or ''}"


def step_tables(document: dict[str, Any]) -> list[RenderableType]:
    """Everything ``forerun replay steps`` prints."""
    table = titled_table(
        f"Errors of engine steps (%), basis: {document['basis']}", "kind", "steps", "MAPE", "median", "p90", "bias"
    )
    for group in (*document["groups"], document["overall"]):
        figures = (number(group[key], 3) for key in ("mape", "median_ape", "p90_ape", "bias"))
        table.add_row(group["kind"], f"{group['n']:,}", *figures)
    worst = titled_table("Worst steps", "kind", "batch", "measured", "predicted", "error %", "bound", left=True)
    for row in document["worst"][:SHOWN_WORST]:
        batch = f"{row['prefill_seqs']} x prefill {row['prefill_tokens']}" if row["prefill_tokens"] else ""
        if row["decode_seqs"]:
            verify = f" x {row['query_len']} tokens" if row["query_len"] > 1 else ""
            batch += f"{', ' if batch else ''}{row['decode_seqs']} decoding{verify}, {row['decode_kv_tokens']:,} keys"
        times = (duration(row[key]) for key in ("measured_s", "predicted_s"))
        worst.add_row(row["kind"], batch, *times, f"{row['ape']:.1f}", row["bound"])
    parts: list[RenderableType] = [table, worst]
    if document["skipped"]:
        parts.append(pairs_table("Not used", [(reason, f"{n:,}") for reason, n in document["skipped"].items()]))
    return parts
