"""Coverage of the intervals that a run prints: served runs that no fit has seen, inside their 90 % band or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp, log
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
from validation.requests import METRICS, SPLIT, SUFFIXES, base_scenario

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
    return [
        Banded(source, table, metric, run.measured[metric] / value, low / value, high / value, trained)
        for metric in METRICS
        if metric in ends and (value := predicted[metric]) > 0 and run.measured.get(metric, 0) > 0
        for low, high in [ends[metric]]
    ]


def measured_bands(folder: Path, limit: int, progress: Callable[[int, int], None] | None = None) -> list[Banded]:
    """Bands of the measured runs below a folder, at most ``limit`` of a table, evenly chosen.

    Raises:
        ForerunError: none can be simulated.
    """
    banded: list[Banded] = []
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name.endswith(SUFFIXES))
    for done, path in enumerate(paths, 1):
        for run in _chosen(path, limit):
            try:
                banded += bands(run, path.name.split(".")[0])
            except (ForerunError, ProfileError, TraceError):
                continue
        if progress is not None:
            progress(done, len(paths))
    if not banded:
        raise ForerunError(f"{folder}: no measured serving run in this folder can be simulated")
    return banded


def _chosen(path: Path, limit: int) -> Iterable[MeasuredRun]:
    try:
        runs = [run for run in read_runs(str(path)) if run.model and run.chip and run.framework]
    except TraceError:
        return []
    usable = [run for run in runs if run.unusable is None and run.measured and not run.speculation]
    if len(usable) <= limit:
        return usable
    return [usable[int(place)] for place in np.linspace(0, len(usable) - 1, limit).round()]


def coverage_table(rows: Iterable[Banded], by: Callable[[Banded], str], title: str) -> Table:
    """Share inside, and the median width of the band, by a property of the rows and by metric."""
    groups: dict[tuple[str, str], list[Banded]] = {}
    for row in rows:
        groups.setdefault((by(row), row.metric), []).append(row)
    lines: list[list[Value]] = [
        [
            name,
            metric,
            len(own),
            f"{100 * np.mean([row.inside for row in own]):.0f} %",
            f"{100 * (exp(float(np.median([log(row.high / row.low) for row in own]))) - 1):.0f} %",
            f"{100 * (exp(float(np.median([log(row.ratio) for row in own]))) - 1):+.0f} %",
        ]
        for (name, metric), own in sorted(groups.items())
    ]
    columns = ("runs", "figure", "n", "inside", "width (median)", "measured over predicted (median)")
    return Table(title, columns, lines, name="coverage")


def coverage_page(rows: list[Banded], version: str) -> str:
    """``docs/validation/coverage.md``."""
    held = [row for row in rows if not row.trained]
    parts = [
        "# Do the intervals hold what was measured?",
        f"Written by `python -m validation coverage` of Forerun {version}. A {LEVEL:.0%} band should hold nine of ten "
        f"measurements of engines that are what they say. Scored are configurations that the split "
        f"train={SPLIT.train:g},seed={SPLIT.seed} holds out of the fits of host costs and of engines as served.",
        coverage_table(held, lambda row: row.source, "").markdown(),
        causes_of(rows),
        "## By table",
        coverage_table(held, lambda row: row.table, "").markdown(),
    ]
    return "\n\n".join(parts) + "\n"


def causes_of(rows: Iterable[Banded]) -> str:
    """Tables most of whose measurements lie outside, in a sentence."""
    groups: dict[str, list[Banded]] = {}
    for row in rows:
        if not row.trained:
            groups.setdefault(row.table, []).append(row)
    poor = {name: own for name, own in groups.items() if np.mean([row.inside for row in own]) < 0.6}
    if not poor:
        return "No table lies outside as a whole."
    words = ", ".join(f"`{name}` ({sum(row.inside for row in own)} of {len(own)} inside)" for name, own in poor.items())
    return f"Most of what lies outside comes from whole tables: {words}; the page of errors says why."
