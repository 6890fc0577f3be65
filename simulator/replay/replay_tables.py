"""Result of a replay, and replays and calibrations as tables for commands, pages and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from forerun.document import Json
from forerun.result import Result, Summary
from forerun.tables import ABSENT, Cell, Table, Value, duration, faint, number

Document = Json

METRIC_WORDS = {
    "mean_ttft_ms": ("Mean TTFT", "ms"),
    "mean_tpot_ms": ("Mean TPOT", "ms"),
    "mean_itl_ms": ("Mean ITL", "ms"),
    "mean_e2el_ms": ("Mean E2E latency", "ms"),
    "output_throughput": ("Output throughput", "tokens/s"),
    "request_throughput": ("Request throughput", "requests/s"),
    "step_ms": ("Engine step", "ms"),
}
"""Metrics of benchmark results and steps that have a figure and columns of their own, with title and unit."""
OTHER_WORDS = {"total_token_throughput": ("Total token throughput", "tokens/s"), "avg_power_w": ("Mean power", "W")}
ERRORS = {"mape": "MAPE (%)", "median_ape": "median", "p90_ape": "p90", "bias": "bias"}
SHOWN_WORST = 8
READINGS = {True: "with the learned correction", False: "physics alone"}
"""The two readings of a profile, by whether corrections are on."""
SHOWN_RUNS = 40
SHOWN_REASONS = 12
_HIDDEN = ("op", "measured_s", "predicted_s", "ape", "regime", "basis", "library", "source", "device", "cache", "name")


def replay_heading(document: Document) -> tuple[str, str]:
    """Source of a replay, and its evidence."""
    basis, held_out = f"basis: {document['basis']}", " held-out" if document.get("split") else ""
    if "runs" in document:
        facts = f"{held_out.strip()} configurations · " if held_out else ""
        runs = len(document["runs"])
        simulated = {run.get("simulated", "") for run in document["runs"]}
        others = sum(" in place of " in words for words in simulated)
        known = len(simulated) == 1 and "" not in simulated
        models = sorted({one.partition(", on ")[0] for one in simulated if one})
        words = f": {simulated.pop()}" if known else f": {', '.join(models[:4])}{' ...' if len(models) > 4 else ''}"
        words += f"; {others} configurations of other models than the scenario's" if others and not known else ""
        words *= bool(models)
        return (
            f"{runs:,} measured run{'s' * (runs != 1)} served again{words}",
            f"{facts}seed {document['seed']} · {basis}",
        )
    count = f"{document['overall']['n']:,}{held_out}"
    if "chip" not in document:
        return f"{count} engine steps", basis
    parts = (f"{count} rows", READINGS[document["residual"]], basis, context_words(document))
    return f"{document['chip']}, {document['library']} kernels", " · ".join(filter(None, parts))


def replay_conclusion(document: Document) -> str:
    """Verdict on the explained run, or the errors over all figures."""
    if "explanation" in document:
        name = document["explanation"]["run"]
        doubt = next((_contradiction(run) for run in document["runs"] if run["name"] == name), "")
        return f"{doubt}{explained_run(document)}{document['explanation']['verdict']}."
    if "scores" in document:
        scores = [score for score in document["scores"] if score["group"] == "all" and score["metric"] in METRIC_WORDS]
        errors = [f"{metric_title(score['metric'])[0]} {number(score['median_ape'], 3)} %" for score in scores]
        if not errors:
            return ""
        if len(document["runs"]) > 1:
            return f"Predictions are off in the median by: {', '.join(errors)}."
        doubt = _contradiction(document["runs"][0])
        return f"{doubt}The prediction is off by: {', '.join(errors)}. --explain says whether that is usual, and why."
    if (overall := document.get("overall")) is None:
        return ""
    inside = "" if (share := overall.get("coverage90")) is None else f"; {number(share, 3)} % lie within nine in ten"
    return f"Predictions are off by {number(overall['median_ape'], 3)} % in the median of {overall['n']:,}{inside}."


CONTRADICTS = "its figures contradict one another: "
"""Beginning of a note on a run."""


def _contradiction(run: Document) -> str:
    """Sentence on a run whose figures contradict one another, which precedes its verdict; empty for others."""
    note = next((note for note in run["notes"] if note.startswith(CONTRADICTS)), None)
    return "" if note is None else f"No judgement of this result holds, for {note}. "


def explained_run(document: Document) -> str:
    """Name of the run that an explanation is about, before its verdict; empty if there is only one run."""
    return f"{document['explanation']['run']}: " if len(document["runs"]) > 1 else ""


def explanation_tables(explanation: Document) -> list[Table]:
    """Figures of the explained run with their intervals, causes, where to look for them, changes that would help."""
    rows, causes, helps = explanation["judged"], explanation["causes"], explanation["helps"]
    judged: list[list[Value]] = [
        [*metric_title(row["metric"]), row["measured"], row["predicted"], *(
            "..".join(map(number, row[name])) for name in ("likely", "interval"))]
        for row in rows
    ]  # fmt: skip
    heads = [f"{title} ({unit})" for title, unit in (metric_title(row["metric"]) for row in rows)]
    tried: list[list[Value]] = [
        [f"{cause['share']:.0%}", cause["cause"], ", ".join(map(tried_words, cause["change"])),
         *(number(cause["predicted"].get(row["metric"])) for row in rows)]
        for cause in causes
    ]  # fmt: skip
    gains: list[list[Value]] = [
        [help["change"], tried_words(help["set"]), metric_title(help["metric"])[0], f"{help['ratio']:.2f}x",
         "..".join("?" if end is None else f"{end:.2f}" for end in help["interval"])]
        for help in helps
    ]  # fmt: skip
    checks: list[list[Value]] = [[cause["cause"], cause["check"]] for cause in causes]
    figures = ("figure", "unit", "measured", "predicted", "likely half", "nine in ten")
    title = "Changes that would help most from here, by prediction"
    return [
        Table("Verdict", figures, judged, name="judged"),
        Table("Causes, each tried alone", ("explains", "cause", "change", *heads), tried, name="causes"),
        Table("How to check them", ("cause", "where to look"), checks, name="checks"),
        Table(title, ("change", "set", "figure", "better by", "90 %"), gains, name="helps"),
    ]


def tried_words(change: Document) -> str:
    """A change of a scenario in words.

    >>> tried_words({"engine.cuda_graphs": False}), tried_words({"power": 0.6})
    ('engine.cuda_graphs: false', "60% of the chip's power")
    """
    known: dict[str, Callable[[Any], str]] = {
        "factors": lambda factors: f"host times x {next(iter(factors.values())):g}",
        "power": lambda share: f"{share:.0%} of the chip's power",
    }
    return ", ".join(
        known[path](value) if path in known else f"{path}: {str(value).lower()}" for path, value in change.items()
    )


def context_words(document: Document) -> str:
    """MAPE of a kernel replay with the profile's other variant (``READINGS``); empty if it has none."""
    beside = document.get("beside")
    return f"{READINGS[beside['residual']]}: {beside['mape']:.1f} % off" if beside else ""


def cold_words(document: Document) -> str:
    """Number of kernel rows without a cache state, by operation; empty if all rows have one."""
    unknown = {op: counts["unknown"] for op, counts in document.get("cache", {}).items() if "unknown" in counts}
    rows = ", ".join(f"{count:,} rows of {op}" for op, count in unknown.items())
    words = "do not say whether their operands were on the chip (cache: warm if repeated)"
    return f"Priced cold: {rows} {words}" if unknown else ""


def kernel_replay_tables(document: Document) -> list[Table]:
    """A replay of kernels: errors by group, unscored rows, rows with the largest errors."""
    rows = []
    for group in (*document["groups"], document["overall"]):
        whole = group["regime"] == "all"
        row: list[Value] = [group["op"], group["dtype"], group["regime"], group["n"], *_errors(group, "coverage90")]
        rows.append(row if whole else faint(row))
    worst = [
        [
            row["op"],
            " ".join(f"{key}={value}" for key, value in row.items() if key not in _HIDDEN),
            Cell(f"{row['ape']:.0f}", value=row["ape"]),
            duration(row["measured_s"]),
            duration(row["predicted_s"]),
            row["regime"],
            row["basis"],
        ]
        for row in document["worst"]
    ]
    columns = ("op", "format", "regime", "rows", *ERRORS.values(), "inside 90 %")
    heads = ("op", "shape", "error (%)", "measured", "predicted", "regime", "basis")
    return [
        Table("Errors by operation, format and regime", columns, rows, name="errors"),
        Table("Worst rows", heads, worst, shown=SHOWN_WORST, name="worst"),
        reasons_table("Not scored", document["skipped"]),
    ]


def metric_title(metric: str) -> tuple[str, str]:
    """Title and unit of any metric of a benchmark result, such as ``p99_ttft_ms``: p99 TTFT in ms."""
    if metric in METRIC_WORDS or metric in OTHER_WORDS:
        return (METRIC_WORDS | OTHER_WORDS)[metric]
    statistic, latency, unit = metric.split("_")
    return METRIC_WORDS[f"mean_{latency}_ms"][0].replace("Mean", statistic), unit


def run_replay_tables(document: Document) -> list[Table]:
    """A replay of benchmark results: errors by metric, worst runs, every run, runs that are not simulated."""
    scores = []
    for score in document["scores"]:
        row = [metric_title(score["metric"])[0], score["group"], score["n"], *_errors(score, "coverage", "coverage90")]
        scores.append(row if score["group"] == "all" else faint(row))
    worst: list[list[Value]] = []
    for run in document["worst"]:
        metric = run["metric"]
        title, unit = metric_title(metric)
        values = [f"{number(run[key].get(metric))} {unit}" for key in ("measured", "predicted")]
        worst.append([run["name"], title, _signed(run["error"][metric]), *values, run_load(run)])
    shown = [metric for metric in METRIC_WORDS if any(metric in run["error"] for run in document["runs"])]
    if len(document["runs"]) == 1:
        shown += [metric for metric in document["runs"][0]["error"] if metric not in METRIC_WORDS]
    engines = {run_engine(run) for run in document["runs"]}
    beside = ["run", *(["engine"] if len(engines) > 1 else []), "load"]
    columns: Sequence[str] = [*beside, *(word for metric in shown for word in (_column(metric), "predicted"))]
    runs: list[list[Value]] = []
    for run in document["runs"]:
        cells: list[Value] = [run["name"], *([run_engine(run)] if len(engines) > 1 else []), run_load(run)]
        runs.append([*cells, *(cell for metric in shown for cell in _judged(run, metric))])
    interval = " with its 90 % interval" if any(run["interval90"] for run in document["runs"]) else ""
    engine = f" of {engines.pop()}" if len(engines) == 1 < len(document["runs"]) else ""
    if len(document["runs"]) == 1:  # a row for each metric
        (run,) = document["runs"]
        columns = (f"{run['name']}: {run_load(run)}, {run_engine(run)}", "measured", "predicted")
        runs = [[_column(metric), *_judged(run, metric)] for metric in shown]
    inside = ("inside 90 %",) if any(score.get("coverage90") is not None for score in document["scores"]) else ()
    heads = ("metric", "group", "runs", *ERRORS.values(), "simulated (%)", *inside)
    scores = [row[: len(heads)] for row in scores]
    wanted = ("run", "metric", "error (%)", "measured", "predicted", "load")
    over_runs = [
        Table("Errors by metric and configuration", heads, scores, shown=SHOWN_RUNS, name="errors"),
        Table("Runs furthest off", wanted, worst, shown=SHOWN_WORST, name="worst"),
    ]
    explained = explanation_tables(document["explanation"]) if "explanation" in document else []
    return [
        *explained,
        *(over_runs if len(document["runs"]) > 1 else ()),
        Table(
            f"Every run{engine}: measured, predicted{interval}, and error",
            columns,
            runs,
            shown=SHOWN_RUNS,
            name="runs",
        ),
        reasons_table("Not simulated", document["skipped"]),
    ]


def step_replay_tables(document: Document) -> list[Table]:
    """A replay of engine steps: errors by kind, worst steps, unused steps."""
    groups = [[group["kind"], group["n"], *_errors(group)] for group in (*document["groups"], document["overall"])]
    worst: list[list[Value]] = [
        [
            row["kind"],
            step_batch(row),
            Cell(f"{row['ape']:.1f}", value=row["ape"]),
            duration(row["measured_s"]),
            duration(row["predicted_s"]),
            row["bound"],
        ]
        for row in document["worst"]
    ]
    heads = ("kind", "batch", "error (%)", "measured", "predicted", "bound")
    return [
        Table("Errors by kind of step", ("kind", "steps", *ERRORS.values()), groups, name="errors"),
        Table("Steps furthest off", heads, worst, shown=SHOWN_WORST, name="worst"),
        reasons_table("Not used", document.get("skipped") or {}),
    ]


def calibration_tables(document: Document) -> list[Table]:
    """A calibration: errors by kernel family on rows that the fit has not seen, and unused rows."""
    keys = ("held_out_mape", "held_out_median_ape", "coverage90", "residual_mape")
    rows = [
        [one["family"], one["dtype"], one["rows"], one["held_out_rows"], *(_error(one[key]) for key in keys)]
        for one in document["families"]
    ]
    columns = ("family", "format", "rows", "held out", "MAPE (%)", "median", "inside 90 %", "with residual")
    return [
        Table("Errors on rows the fit has not seen", columns, rows, name="errors"),
        reasons_table("Not used", document["skipped"]),
    ]


def reasons_table(title: str, reasons: Mapping[str, int]) -> Table:
    """Number of rows left out, by reason; empty if none is."""
    rows: list[list[Value]] = [[reason, count] for reason, count in reasons.items()]
    return Table(title, ("reason", "rows"), rows, shown=SHOWN_REASONS, name="skipped")


def run_load(run: Document) -> str:
    """Load of a run in a few words: lengths, and concurrency or rate."""
    lengths = "/".join(_lengths(run[key]) for key in ("input_tokens", "output_tokens"))
    if run["max_concurrency"] is not None:
        return f"{lengths} c={run['max_concurrency']}"
    if run["stages"]:
        return f"{lengths} {'+'.join(f'{rate:g}' for rate, _ in run['stages'])} req/s"
    return f"{lengths} {run['request_rate']:g} req/s" if run["request_rate"] else f"{lengths} {run['process'] or ''}"


def run_engine(run: Document) -> str:
    """Model, chips and engine of a run, as far as the run states them."""
    parallel = f"TP {run['tensor_parallel']}" if run["tensor_parallel"] else ""
    return " ".join(str(word) for word in (run["model"], run["chip"], run["framework"], parallel) if word) or ABSENT


def step_batch(row: Document) -> str:
    """Batch of an engine step."""
    batch = f"{row['prefill_seqs']} x prefill {row['prefill_tokens']:,}" if row["prefill_tokens"] else ""
    if row["decode_seqs"]:
        verify = f" x {row['query_len']} tokens" if row["query_len"] > 1 else ""
        batch += f"{', ' if batch else ''}{row['decode_seqs']} decoding{verify}, {row['decode_kv_tokens']:,} keys"
    return batch


def _errors(group: Document, *more: str) -> Iterable[Value]:
    return [_error(group.get(key)) for key in (*ERRORS, *more)]


def _error(value: float | None) -> Value:
    return None if value is None else Cell(number(value, 3), value=value)


def _signed(value: float | None) -> Value:
    return None if value is None else Cell(f"{value:+.1f}", value=value)


def _column(metric: str) -> str:
    title, unit = metric_title(metric)
    return f"{title.removeprefix('Mean ')} ({unit})"


def _judged(run: Document, metric: str) -> tuple[Value, Value]:
    """A measured metric, and its prediction with the error and, where other configurations give one, the interval."""
    measured, value, ends = run["measured"].get(metric), run["predicted"].get(metric), run["interval90"].get(metric)
    if value is None or measured is None:
        return measured, None
    error = run["error"].get(metric)
    words = [] if error is None else [f"{error:+.1f} %"]
    words += ["..".join(number(end, 3) for end in ends)] if ends else []
    return measured, Cell(number(value), aside=", ".join(words), value=value)


def _lengths(tokens: Any) -> str:
    return ABSENT if tokens is None else "-".join(map(str, tokens)) if isinstance(tokens, list) else str(tokens)


class Replay(Result):
    """Predictions against measurements. A subclass defines ``document`` and ``tables()``."""

    kind = "replay"
    report = "dashboards.replay_report"

    @property
    def title(self) -> str:
        """Title that names the replayed measurements."""
        return replay_heading(self.document)[0]

    @property
    def facts(self) -> str:
        """Number of replayed measurements, and evidence basis of the predictions."""
        return replay_heading(self.document)[1]

    @property
    def conclusion(self) -> str:
        """Verdict on the explained run, or the errors over all figures."""
        return replay_conclusion(self.document)

    @property
    def summary(self) -> Summary:
        """Overall errors, in percent, and the number of rows behind them."""
        overall = self.document["overall"]
        return Summary({"rows": overall["n"], **{key: overall[key] for key in (*ERRORS, "coverage90")}})

    def records(self) -> list[dict[str, Any]]:
        """A row per group with its errors in percent."""
        return [dict(group) for group in self.document["groups"]]

    @property
    def remarks(self) -> Sequence[str]:
        return ()
