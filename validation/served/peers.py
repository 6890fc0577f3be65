"""Forerun and other simulators on the same public served runs: the rule that picks the rows, and the page.

The rule was written before any error was computed. ``peers.csv`` names each row's source, what was measured and what
each tool predicts; ``peers_published.csv`` has scores of other simulators' published predictions.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.errors import ForerunError
from forerun.tables import Table, Value
from forerun.version import VERSION
from forerun.workers import Workers
from hwprofiles import chip_name, chip_names
from simulator.llm.load import catalogue_model
from simulator.replay.requests import RunOutcome, in_training, outcome_of
from simulator.replay.split import parse_split
from simulator.running.measured_runs import framework_name
from simulator.timing.releases import release_numbers
from traces import TraceError
from traces.benchmark_results import MeasuredRun, TokenCounts, read_runs
from traces.files import csv_rows
from validation.facts import facts
from validation.halves import rows_by_hash
from validation.requests import base_scenario, engine_constants
from validation.served.bands import measured_tables
from validation.tables.contradictions import without_contradictions

LEAST_ROWS, MOST_ROWS = 4, 8
"""Complete runs that a release needs, and the most runs of a group that are predicted."""
FIGURES = {"TPOT": ("mean_tpot_ms", "median_tpot_ms"), "TTFT": ("mean_ttft_ms", "median_ttft_ms"),
           "throughput": ("output_throughput",)}  # fmt: skip
PEER = "AIConfigurator"
TOOLS = ("Forerun", PEER)
FORMATS = {"fp8": "fp8", "fp4": "nvfp4", "nvfp4": "nvfp4", "int4": "int4_wo"}
"""AIConfigurator's names of weight formats, as its adapter of InferenceX's records maps them."""
BLIS_TABLE = "eval38_ground_truth"
BLIS = {"itl_mean": ("TPOT", "mean_itl_ms"), "ttft_mean": ("TTFT", "mean_ttft_ms"),
        "e2e_mean": ("latency", "mean_e2el_ms")}  # fmt: skip
PEER_ROWS, PUBLISHED, PAGE = "peers.csv", "peers_published.csv", "peers.md"

Row = Mapping[str, str]
"""A line of a file, by column."""


class PeerScore(NamedTuple):
    """Errors of Forerun and of another tool on the same rows, in percent of the measurement."""

    tool: str
    figure: str
    rows: str
    n: int
    own_median: float
    own_mean: float
    median: float
    mean: float


def score(tool: str, figure: str, rows: str, measured_own_peer: Sequence[Sequence[float]]) -> PeerScore:
    """Median and mean absolute errors of both tools, from (measured, Forerun, other tool) per row."""
    measured, *predicted = np.array(measured_own_peer).T
    errors = [100 * np.abs(values / measured - 1) for values in predicted]
    means = [round(float(mean(error)), 1) for error in errors for mean in (np.median, np.mean)]
    return PeerScore(tool, figure, rows, len(measured), *means)


def complete(run: MeasuredRun) -> bool:
    """True if a run is a closed loop on one replica without drafting and states TTFT, TPOT and all settings."""
    stated = run.model and run.chip and run.framework and run.tensor_parallel and run.max_concurrency
    plain = run.speculation in (None, "none") and run.pool is None and run.trace is None and run.replicas in (None, 1)
    shown = all(any(name in run.measured for name in FIGURES[figure]) for figure in ("TPOT", "TTFT"))
    loop = run.process == "closed-loop" and run.input_tokens is not None and run.output_tokens is not None
    return bool(stated and plain and loop and shown and run.unusable is None)


def group_of(run: MeasuredRun) -> tuple[str, str, str]:
    """Model, chip and engine of a run, in the catalogues' words where they have them."""
    model, chip, engine = run.model or "", run.chip or "", run.framework or ""
    known = catalogue_model(model), chip_name(chip, chip_names()), framework_name(engine)
    return known[0] or model.lower(), known[1] or chip.lower(), known[2] or engine.lower()


def cohort(runs: Iterable[tuple[str, MeasuredRun]]) -> list[tuple[str, MeasuredRun]]:
    """Rows to compare, of (table, run): per model, chip and engine the complete runs of the latest release.

    A release of a table counts from ``LEAST_ROWS`` complete runs on; of two equal releases the table with more of them.
    At most ``MOST_ROWS`` of a group are taken, by hash. Neither order nor measured values matter.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, str], list[MeasuredRun]]] = defaultdict(lambda: defaultdict(list))
    for table, run in runs:
        if complete(run):
            groups[group_of(run)][table, run.framework_version or ""].append(run)
    chosen = []
    for _, releases in sorted(groups.items()):
        counted = [(release_numbers(name) or (), len(own), table, name)
                   for (table, name), own in releases.items() if len(own) >= LEAST_ROWS]  # fmt: skip
        if counted:
            *_, table, name = max(counted)
            own = sorted(releases[table, name], key=lambda run: run.name)
            chosen += [(table, run) for run in rows_by_hash(own, lambda run: run.name, MOST_ROWS)]
    return chosen


def may_be_fitted(table: str, run: MeasuredRun) -> bool:
    """True if a constant that the prediction takes was fitted on this run of the table, or may have been."""
    used = engine_constants([run])
    splits = [fact.split for fact in facts() if fact.table == table and fact.constant in used]
    return any(not split or in_training(run, parse_split(split)) for split in splits)


def measured_runs(data: Path) -> Iterator[tuple[str, MeasuredRun]]:
    """Table and run of every measured run below a folder."""
    for path in measured_tables(data):
        try:
            yield from ((path.name.split(".")[0], run) for run in without_contradictions(list(read_runs(str(path)))))
        except TraceError:
            continue


def source_of(run: MeasuredRun) -> str:
    """Source of a run, as the columns of its line that have ``source`` in their names state it."""
    _, lines = csv_rows(Path(run.place.rpartition(":")[0]))
    cells = next(cells for cells in lines if cells.place == run.place)
    return " ".join(str(text) for name, text in cells.values.items() if "source" in name and text)[:200]


def predicted_row(table: str, run: MeasuredRun, outcome: RunOutcome, peer: Row) -> Row:
    """Line of ``peers.csv``; ``peer``: the columns of the other tool."""
    model, chip, engine = group_of(run)
    row = {"table": table, "row": run.name, "source": source_of(run), "model": model, "chip": chip, "engine": engine,
           "release": run.framework_version, "tensor_parallel": run.tensor_parallel,
           "attention_groups": run.data_parallel_attention or 1, "experts": run.expert_parallel or 1,
           "input_tokens": _mean(run.input_tokens), "output_tokens": _mean(run.output_tokens),
           "concurrency": run.max_concurrency, "fitted": "yes" if may_be_fitted(table, run) else ""}  # fmt: skip
    for figure, names in FIGURES.items():
        metric = next((name for name in names if name in run.measured and name not in run.derived), "")
        row |= {f"measured {figure}": _digits(run.measured.get(metric))}
        row |= {f"Forerun {figure}": _digits(outcome.predicted.get(metric))}
    row |= {"Forerun refused": outcome.skipped, "Forerun version": VERSION, **peer}
    return {name: "" if value is None else str(value) for name, value in row.items()}


def peer_columns(run: MeasuredRun) -> Row:
    """The other tool's columns, by its wheel: its estimates, or the reason why it has none."""
    if find_spec(PEER.lower()) is None:
        raise ForerunError(f"{run.name}: {PEER}'s prediction is not on record and needs: pip install aiconfigurator")
    values, reason = dict[str, float](), ""
    try:
        values = peer_estimate(run)
    except Exception as error:  # each of the wheel's own errors is a refusal, its paths are this machine's
        reason = re.sub(r"/\S*/", "", f"{type(error).__name__}: {' '.join(str(error).split())}")[:100]
    row = {f"{PEER} {figure}": _digits(values.get(figure)) for figure in FIGURES}
    return row | {f"{PEER} refused": reason, f"{PEER} version": version("aiconfigurator")}


def peer_estimate(run: MeasuredRun) -> dict[str, float]:
    """Figures that AIConfigurator's ``cli_estimate`` predicts for a run in mode ``agg``, from its default database.

    Lengths are the mean of those drawn. Weights are as its adapter of InferenceX's records gives them, or as the
    bundled checkpoint says where its name has a format, or where FP8 of the first kind is not priced.
    """
    estimate = import_module("aiconfigurator.cli.api").cli_estimate
    groups, tensor, experts = run.data_parallel_attention or 1, run.tensor_parallel or 1, run.expert_parallel or 1
    model, chip, engine = group_of(run)
    folder = files("aiconfigurator_core").joinpath("model_configs")
    bundled = {file.name.partition("_config")[0].replace("--", "/"): file for file in folder.iterdir()}
    same = [path for path in bundled if catalogue_model(path) == model]
    name, dtype = run.model or "", run.weights_dtype or ""
    path = min(same, key=lambda path: (path != name, dtype not in path.lower(), len(path), path), default=name)
    weights = None if any(word in path.lower() for word in ("fp8", "fp4", "gpt-oss")) else FORMATS.get(dtype)
    blocks = "fp8_block" if (engine, weights) == ("sglang", "fp8") else weights
    formats = {"gemm_quant_mode": weights, "moe_quant_mode": blocks}
    fixed = {"isl": _mean(run.input_tokens), "osl": _mean(run.output_tokens), "tp_size": tensor,
             "pp_size": run.pipeline_parallel or 1, "attention_dp_size": groups, "moe_ep_size": experts,
             "moe_tp_size": max(1, tensor * groups // experts), "backend_name": engine,
             "batch_size": -(-(run.max_concurrency or 1) // groups)}  # fmt: skip
    try:
        result = estimate(path, chip.replace("-", "_"), **fixed, **formats)
    except Exception:
        if weights != "fp8" or path not in bundled or '"quant_method": "fp8"' not in bundled[path].read_text("utf-8"):
            raise  # another format would be priced in its place
        result = estimate(path, chip.replace("-", "_"), **fixed)
    return {"TPOT": result.tpot, "TTFT": result.ttft, "throughput": result.tokens_per_second}


def _mean(tokens: TokenCounts | None) -> int:
    return round(sum(tokens) / 2) if isinstance(tokens, tuple) else tokens or 0


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def published_scores(data: Path, outcomes: Mapping[str, RunOutcome]) -> list[PeerScore]:
    """Simulators that BLIS's authors scored, and Forerun on the same whole runs, whose outcomes are given by name.

    Source: inference-sim/sim-to-real-accuracy-validation, ``error_records.csv`` (vLLM 0.15.1).
    """
    pairs: dict[tuple[str, str, str], list[Sequence[float]]] = defaultdict(list)
    for path in sorted(data.rglob("eval*_error_records.csv")):
        for line in csv.DictReader(StringIO(path.read_text(encoding="utf-8"))):
            figure, metric = BLIS.get(line["metric_name"], ("", ""))
            outcome = outcomes.get(line["experiment"])
            if outcome is None or line["stage_index"] != "-1" or metric not in outcome.predicted:
                continue
            known = float(line["actual"])
            values = known, known * outcome.predicted[metric] / outcome.run.measured[metric], float(line["predicted"])
            for part in ("all",) if may_be_fitted(BLIS_TABLE, outcome.run) else ("all", "not fitted"):
                pairs[line["simulator"].removesuffix("-estimate"), figure, part].append(values)
    return [score(*key, values) for key, values in sorted(pairs.items())]


def row_groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of every line of the tables: all, those that no fit saw, and by chip and engine."""
    listed = {"all": list(rows), "not fitted": [row for row in rows if not row["fitted"]]}
    for row in sorted(rows, key=lambda row: (row["chip"], row["engine"])):
        listed.setdefault(f"{row['chip']} {row['engine']}", []).append(row)
    return listed


def peer_scores(rows: Sequence[Row]) -> list[PeerScore]:
    """Scores on rows that both tools predict and whose source states the figure; none of fewer than ``LEAST_ROWS``."""
    stated = {(figure, part): [[row[f"{who} {figure}"] for who in ("measured", *TOOLS)] for row in own]
              for figure in FIGURES for part, own in row_groups(rows).items()}  # fmt: skip
    numbers = {key: [[*map(float, one)] for one in texts if all(one)] for key, texts in stated.items()}
    return [score(PEER, *key, values) for key, values in numbers.items() if len(values) >= LEAST_ROWS]


def coverage(rows: Sequence[Row]) -> Table:
    """Rows of the cohort that each tool predicts."""
    lines = list[list[Value]]()
    for name, own in row_groups(rows).items():
        can = np.array([[not row[f"{tool} refused"] for tool in TOOLS] for row in own])
        lines.append([name, len(own), *(int(count) for count in (*can.sum(0), can.all(1).sum()))])
    return Table("Coverage", ("rows", "in the cohort", *TOOLS, "both"), lines)


def scored_table(lines: Iterable[PeerScore]) -> Table:
    """Scored comparisons: the other tool, figure, rows, their number, then errors."""
    heads = ("other tool", "figure", "rows", "n", "Forerun, median", "Forerun, mean", "other, median", "other, mean")
    cells = [[*map(str, line[:4]), *(f"{error} %" for error in line[4:])] for line in lines]
    return Table("Median and mean errors on equal rows", heads, cells, name="peers")


def peers_page(rows: Sequence[Row], published: Sequence[PeerScore]) -> str:
    """``docs/validation/peers.md``: where a peer is nearer first."""
    scored = peer_scores(rows)
    nearer = [line for line in (*scored, *published) if line.median < line.own_median]
    tables = {
        "NEARER": scored_table(sorted(nearer, key=lambda line: line.median - line.own_median)),
        "OVERALL": scored_table(line for line in scored if line.rows in ("all", "not fitted")),
        "CELLS": scored_table(line for line in scored if line.rows not in ("all", "not fitted")),
        "COVERAGE": coverage(rows),
        "OTHERS": scored_table(published),
    }
    words = {name: table.markdown() for name, table in tables.items()}
    words |= {"OWN": str(sum(line.tool == PEER for line in nearer)), "SCORED": str(len(scored)), "MOST": str(MOST_ROWS),
              "LEAST": str(LEAST_ROWS), **{tool: rows[0][f"{tool} version"] for tool in TOOLS}}  # fmt: skip
    text = files("validation.served").joinpath(PAGE).read_text(encoding="utf-8")
    return re.sub("<!-- ([A-Za-z]+) -->", lambda match: words[match[1]], text)


def read_peers(folder: Path) -> tuple[Sequence[Row], Sequence[PeerScore]]:
    """Rows and published scores on record in a folder; none where the files are absent."""
    texts = [path.read_text("utf-8") if (path := folder / name).exists() else "" for name in (PEER_ROWS, PUBLISHED)]
    rows, published = (list(csv.DictReader(StringIO(text))) for text in texts)
    return rows, [PeerScore(line["tool"], line["figure"], line["rows"], int(line["n"]),
                         *(float(line[name]) for name in PeerScore._fields[4:])) for line in published]  # fmt: skip


def predict_peers(data: Path, known: Iterable[Row], jobs: int) -> tuple[Sequence[Row], Sequence[PeerScore]]:
    """Rows and published scores of a folder of measured runs, simulated again; of the other tool, rows as ``known``."""
    kept = {(row["table"], row["row"]): {name: row[name] for name in row if name.startswith(PEER)} for row in known}
    everything = list(measured_runs(data))
    runs = [(table, run, kept.get((table, run.name)) or peer_columns(run)) for table, run in cohort(everything)]
    whole = [run for table, run in everything if table == BLIS_TABLE and " stage " not in run.name]
    both = [run for _, run, _ in runs], whole
    with Workers(jobs if jobs > 1 else 0) as workers:
        own, others = [[workers.start(outcome_of, run, base_scenario(), 0) for run in some] for some in both]
        rows = [predicted_row(table, run, result(), peer) for (table, run, peer), result in zip(runs, own, strict=True)]
        return rows, published_scores(data, {(outcome := result()).run.name: outcome for result in others})


def csv_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV, with the columns of the first."""
    text = StringIO()
    writer = csv.DictWriter(text, list(rows[0] if rows else ()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
