"""Replays and calibrations as tables: kernels, engine steps, served requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from simulator.tables import ABSENT, Cell, Table, Value, duration, faint, number, pairs

if TYPE_CHECKING:
    pass

SHOWN_WORST = 5
NO_SHAPE = ("op", "measured_s", "predicted_s", "ape", "regime", "basis", "library", "source", "device", "cache", "name")
"""What a row says beside the shape of its kernel."""
_FIGURES = ("mape", "median_ape", "p90_ape", "bias", "coverage90")


def replay_tables(document: dict[str, Any]) -> list[Any]:
    """Everything ``forerun replay kernels`` prints."""
    overall = document["overall"]
    title = Text(f"{document['chip']}, {document['library']} kernels", style="bold")
    layer = "with residual" if document["residual"] else "physics alone"
    held_out = " held-out" if document["split"] else ""
    title.append(f"  {overall['n']:,}{held_out} rows · {layer} · basis: {document['basis']}", style="dim not bold")
    lines: list[list[Value]] = []
    for group in (*document["groups"], overall):
        whole = group["regime"] == "all"
        figures = (Cell(number(group[key], 3), value=group[key]) for key in _FIGURES)
        head = (group["op"], group["dtype"]) if whole else ("", "")
        line: list[Value] = [*head, group["regime"], group["n"], *figures]
        lines.append(line if whole else faint(line))
    columns = ("op", "dtype", "regime", "rows", "MAPE", "median", "p90", "bias", "coverage 90")
    parts: list[Any] = [title, Table("Errors (%)", columns, lines, name="errors")]
    untold = {op: counts["not told"] for op, counts in document["cache"].items() if "not told" in counts}
    if untold:
        rows_of = ", ".join(f"{count:,} rows of {op}" for op, count in untold.items())
        words = f"Priced cold: {rows_of} do not say whether their operands were on the chip (cache: warm if repeated)"
        parts.append(Text(words))
    if document["skipped"]:
        rows = [(reason, f"{count:,}") for reason, count in document["skipped"].items()]
        parts.append(pairs("Not scored", rows))
    worst: list[list[Value]] = []
    for row in document["worst"]:
        shape = " ".join(f"{key}={value}" for key, value in row.items() if key not in NO_SHAPE)
        times = (duration(row["measured_s"]), duration(row["predicted_s"]))
        worst.append([row["op"], shape, *times, f"{row['ape']:.0f}", row["basis"]])
    heads = ("op", "shape", "measured", "predicted", "error %", "basis")
    parts.append(Table("Worst rows", heads, worst, left=True, shown=SHOWN_WORST, name="worst"))
    return parts


def calibration_tables(document: dict[str, Any]) -> list[Any]:
    """Everything ``forerun calibrate`` prints."""
    title = Text(f"{document['chip']}, library {document['library']}", style="bold")
    title.append(f"  written: {', '.join(document['files'])}", style="dim not bold")
    lines: list[list[Value]] = []
    for one in document["families"]:
        figures = [one[key] for key in ("held_out_mape", "held_out_median_ape", "coverage90", "residual_mape")]
        cells = (Cell(number(value, 3), value=value) for value in figures)
        lines.append([one["family"], one["dtype"], one["rows"], one["held_out_rows"], *cells])
    columns = ("family", "dtype", "rows", "held-out", "MAPE", "median", "coverage 90", "with residual")
    parts: list[Any] = [title, Table("Errors on rows the fit has not seen (%)", columns, lines, name="errors")]
    if document["skipped"]:
        parts.append(pairs("Not used", [(reason, f"{rows:,}") for reason, rows in document["skipped"].items()]))
    return parts


SHOWN_RUNS = 40
SHOWN_REASONS = 12
SHOWN_METRICS = {"mean_ttft_ms": "TTFT", "mean_tpot_ms": "TPOT", "mean_itl_ms": "ITL", "mean_e2el_ms": "E2E",
                 "output_throughput": "tok/s", "request_throughput": "req/s"}  # fmt: skip


def request_tables(document: dict[str, Any]) -> list[Any]:
    """Everything ``forerun replay requests`` prints."""
    runs = document["runs"]
    title = Text(f"{len(runs):,} measured runs served again", style="bold")
    held_out = " held-out configurations ·" if document["split"] else ""
    title.append(f" {held_out} seed {document['seed']} · basis: {document['basis']}", style="dim not bold")
    lines: list[list[Value]] = []
    for score in document["scores"]:
        figures = (score[key] for key in ("mape", "median_ape", "p90_ape", "bias", "coverage", "coverage90"))
        line: list[Value] = [
            score["metric"],
            score["group"],
            score["n"],
            *(Cell(number(v, 3), value=v) for v in figures),
        ]
        lines.append(line if score["group"] == "all" else faint(line))
    columns = ["metric", "group", "runs", "MAPE", "median", "p90", "bias", "simulated", "inside 90"]
    parts: list[Any] = [title, Table("Errors (%)", columns, lines, left=True, name="errors")]
    shown = [metric for metric in SHOWN_METRICS if any(metric in run["error"] for run in runs)]
    columns = ["run", "load"]
    for metric in shown:
        columns += [SHOWN_METRICS[metric], "%"]
    lines = []
    for run in runs:
        cells: list[Value] = []
        for metric in shown:
            value, error = run["measured"].get(metric), run["error"].get(metric)
            cells += [value, Cell(ABSENT if error is None else f"{error:+.1f}", value=error)]
        lines.append([run["name"][-44:], load(run), *cells])
    words = "Runs (measured, and error of the prediction in %)"
    parts.append(Table(words, columns, lines, left=True, shown=SHOWN_RUNS, name="runs"))
    if document["skipped"]:
        reasons = [(reason[:100], f"{count:,}") for reason, count in document["skipped"].items()][:SHOWN_REASONS]
        parts.append(pairs("Not simulated", reasons))
    return parts


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


def step_tables(document: dict[str, Any]) -> list[Any]:
    """Everything ``forerun replay steps`` prints."""
    figures = ("mape", "median_ape", "p90_ape", "bias")
    lines: list[list[Value]] = [
        [group["kind"], group["n"], *(Cell(number(group[key], 3), value=group[key]) for key in figures)]
        for group in (*document["groups"], document["overall"])
    ]
    title = f"Errors of engine steps (%), basis: {document['basis']}"
    errors = Table(title, ("kind", "steps", "MAPE", "median", "p90", "bias"), lines, name="errors")
    rows: list[list[Value]] = []
    for row in document["worst"]:
        batch = f"{row['prefill_seqs']} x prefill {row['prefill_tokens']}" if row["prefill_tokens"] else ""
        if row["decode_seqs"]:
            verify = f" x {row['query_len']} tokens" if row["query_len"] > 1 else ""
            batch += f"{', ' if batch else ''}{row['decode_seqs']} decoding{verify}, {row['decode_kv_tokens']:,} keys"
        times = (duration(row[key]) for key in ("measured_s", "predicted_s"))
        rows.append([row["kind"], batch, *times, f"{row['ape']:.1f}", row["bound"]])
    columns = ("kind", "batch", "measured", "predicted", "error %", "bound")
    parts: list[Any] = [errors, Table("Worst steps", columns, rows, left=True, shown=SHOWN_WORST, name="worst")]
    if document["skipped"]:
        parts.append(pairs("Not used", [(reason, f"{n:,}") for reason, n in document["skipped"].items()]))
    return parts
