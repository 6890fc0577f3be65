"""Coverage of the intervals that a run prints: served runs that no fit has seen, inside their 90 % band or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, log
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.errors import ForerunError
from forerun.tables import Table, Value
from hwprofiles import ProfileError, chip_names
from simulator.llm import MoeMlp, load_architecture
from simulator.replay.requests import in_training
from simulator.replay.rerun import catalogue_model, chip_name, rerun
from simulator.running.metrics.uncertainty import LEVEL, intervals_of
from traces import TraceError
from traces.benchmark_results import MeasuredRun, read_runs
from validation.halves import RULE, rows_by_hash
from validation.requests import SPLIT, SUFFIXES, base_scenario, scored_metrics

SOURCES = ("dense, H100", "dense, other chips", "FP8", "mixtures of experts")


class Banded(NamedTuple):
    """One figure of one measured run against its band."""

    source: str
    table: str
    metric: str
    ratio: float
    """Measured over predicted."""
    low: float
    high: float
    """Ends of the band over the prediction."""
    trained: bool
    """Whether its configuration is on the side of the split that fits may see."""
    build: str = ""
    """Engine and release, as the table writes them."""
    chip: str = ""
    """Chip in the catalogue's words."""

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the band."""
        return self.low <= self.ratio <= self.high


def source_of(run: MeasuredRun) -> str:
    """Which of ``SOURCES`` a run belongs to."""
    architecture = load_architecture(catalogue_model(run.model or "") or "")
    if any(isinstance(group.layer.feed_forward, MoeMlp) for group in architecture.layer_groups):
        return SOURCES[3]
    if "fp8" in str(run.weights_dtype).lower() or "fp8" in str(run.model).lower():
        return SOURCES[2]
    chip = chip_name(run.chip or "", tuple(chip_names())) or ""
    return SOURCES[0] if chip.startswith("h100") else SOURCES[1]


def bands(run: MeasuredRun, table: str) -> list[Banded]:
    """Every measured figure of a run that has an interval.

    Raises:
        ForerunError, ProfileError, TraceError: it cannot be simulated.
    """
    predicted_run = rerun(run, base_scenario(), 0, intervals=True)
    error, predicted = predicted_run["model_error"], predicted_run["predicted"]
    ends = intervals_of(predicted, error, error["sampling"])
    source, trained = source_of(run), in_training(run, SPLIT)
    build = f"{run.framework} {(run.framework_version or '').partition(' (')[0]}".strip()
    chip = chip_name(run.chip or "", tuple(chip_names())) or ""
    return [
        Banded(source, table, metric, run.measured[metric] / value, low / value, high / value, trained, build, chip)
        for metric in scored_metrics([run])
        if (value := predicted.get(metric, 0.0)) > 0
        for low, high in [ends.get(metric, (np.nan, np.nan))]
    ]


def measured_bands(folder: Path, limit: int, progress: Callable[[int, int], None] | None = None) -> list[Banded]:
    """Bands of the measured runs below a folder, at most ``limit`` of a table, chosen by a hash of their names.

    Raises:
        ForerunError: none can be simulated.
    """
    banded: list[Banded] = []
    paths = measured_tables(folder)
    for done, path in enumerate(paths, 1):
        for run in chosen_runs(path, limit):
            try:
                banded += bands(run, path.name.split(".")[0])
            except (ForerunError, ProfileError, TraceError):
                continue
        if progress is not None:
            progress(done, len(paths))
    if not banded:
        raise ForerunError(f"{folder}: no measured serving run in this folder can be simulated")
    return banded


def measured_tables(folder: Path) -> list[Path]:
    """Files below a folder that may hold measured runs."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))


def chosen_runs(path: Path, limit: int) -> list[MeasuredRun]:
    """At most ``limit`` runs of a table that can be compared, chosen by a hash of their names."""
    try:
        runs = [run for run in read_runs(str(path)) if run.model and run.chip and run.framework]
    except TraceError:
        return []
    usable = [run for run in runs if run.unusable is None and run.measured]
    return rows_by_hash(usable, lambda run: f"{path.name} {run.place}", limit)


def coverage_table(rows: Iterable[Banded], by: Callable[[Banded], str], title: str) -> Table:
    """Errors, share inside and the median width of the band, by a property of the rows and by metric; a metric without
    bands has errors alone."""
    groups: dict[tuple[str, str], list[Banded]] = {}
    for row in rows:
        groups.setdefault((by(row), row.metric), []).append(row)
    lines: list[list[Value]] = [
        [
            name,
            metric,
            len(own),
            *_shares([row for row in own if row.low > 0]),
            f"{100 * (exp(float(np.median([log(row.ratio) for row in own]))) - 1):+.0f} %",
            f"{float(np.mean(errors)):.1f} %",
            f"{float(np.median(errors)):.1f} %",
        ]
        for (name, metric), own in sorted(groups.items())
        for errors in [[100 * abs(1 / row.ratio - 1) for row in own]]
    ]
    columns = (
        *("runs", "figure", "n", "inside", "width (median)", "measured over predicted (median)"),
        *("error: mean", "error: median"),
    )
    return Table(title, columns, lines, name="coverage")


def _shares(rows: list[Banded]) -> tuple[str, str]:
    """Share inside and median width of rows with bands."""
    if not rows:
        return "", ""
    inside = float(np.mean([row.inside for row in rows]))
    width = exp(float(np.median([log(row.high / row.low) for row in rows]))) - 1
    return f"{inside:.0%}", f"{width:.0%}"


def coverage_page(rows: list[Banded], version: str) -> str:
    """``docs/validation/coverage.md``."""
    held = [row for row in rows if not row.trained]
    parts = [
        "# Do the intervals hold what was measured?",
        f"Written by `python -m validation coverage` of Forerun {version}. A {LEVEL:.0%} band should hold nine of ten "
        f"measurements of engines that are what they say. Scored are configurations that the split "
        f"train={SPLIT.train:g},seed={SPLIT.seed} holds out of the fits of host costs and of engines as served. "
        f"Of constants fitted after November 2026, {RULE}.",
        coverage_table(held, lambda row: row.source, "").markdown(),
        causes_of(rows),
        "## By table",
        coverage_table(held, attrgetter("table"), "").markdown(),
        "## By table, engine build and chip",
        "Every row that can be simulated, whichever side it is on.",
        coverage_table(rows, lambda row: f"{row.table}, {row.build}, {row.chip}", "").markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def causes_of(rows: Iterable[Banded]) -> str:
    """Tables most of whose measurements lie outside, in a sentence."""
    groups: dict[str, list[Banded]] = {}
    for row in rows:
        if not row.trained:
            groups.setdefault(row.table, []).append(row)
    groups = {name: banded for name, own in groups.items() if (banded := [row for row in own if row.low > 0])}
    poor = {name: own for name, own in groups.items() if np.mean([row.inside for row in own]) < 0.6}
    if not poor:
        return "No table lies outside as a whole."
    words = ", ".join(f"`{name}` ({sum(row.inside for row in own)} of {len(own)} inside)" for name, own in poor.items())
    return f"Most of what lies outside comes from whole tables: {words}; the page of errors says why."
