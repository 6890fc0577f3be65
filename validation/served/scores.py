"""Errors of the figures that people ask for, by line of ``scores.yaml`` and half of :func:`held_out`.

Nothing is kept between runs: every figure is predicted anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forerun.errors import ForerunError, did_you_mean
from forerun.tables import Table, Value
from forerun.workers import Workers
from forerun.yaml_files import packaged
from hwprofiles import ProfileError
from simulator.running.measured import FIGURES
from simulator.running.measured_runs import simulate_measured
from simulator.running.metrics.served import figure_kind
from simulator.running.metrics.summary import summarise
from simulator.running.run import simulate
from simulator.running.scenario import load_scenario
from traces import TraceError
from traces.benchmark_results import MeasuredRun
from validation.halves import held_out
from validation.refit import meets
from validation.requests import base_scenario
from validation.served.bands import chosen_runs
from validation.speculation import compare_published, curve_scores

CASES, PUBLISHED = "capacity", "published ratios"
KINDS = ("tpot", "ttft", "throughput")


class ScoredRow(NamedTuple):
    """One figure, predicted and measured."""

    line: str
    kind: str
    row: str
    held: bool
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, in percent."""
        return 100 * (self.predicted / self.measured - 1)


def scored_figures(
    data: Path | None, lines: Sequence[str], limit: int, jobs: int, progress: Callable[[int, int], None] | None = None
) -> list[ScoredRow]:
    """Figures of the named lines, or of all: of measured runs as ``bands`` chooses them, cases and published ratios.

    Raises:
        ForerunError: no such line, or a file that the folder does not hold.
    """
    known = packaged("validation.served", "scores.yaml")
    for name in lines:
        if name not in known:
            raise ForerunError(f"--line {name}: no such line{did_you_mean(name, known)} (one of {', '.join(known)})")
    figures, pending = list[ScoredRow](), list[Callable[[], list[ScoredRow]]]()
    with Workers(jobs if jobs > 1 else 0) as workers:
        for line in lines or known if data is not None else [PUBLISHED]:
            words = dict(known[line])
            if line == PUBLISHED:
                figures += _published(line)
            elif line == CASES:
                pending += [workers.start(_case, line, _found(data, name), rate) for name, rate in words.items()]
            else:
                path = _found(data, words.pop("file"))
                runs = [run for run in chosen_runs(path, limit) if meets(run, words)]
                pending += [workers.start(_served, line, path.stem, run) for run in runs]
        for done, result in enumerate(pending, 1):
            figures += result()
            if progress is not None:
                progress(done, len(pending))
    return figures


def scores_table(figures: Sequence[ScoredRow]) -> Table:
    """Mean and median absolute errors of seen and held-out rows, and the median signed error of all."""
    groups: dict[tuple[str, str], list[ScoredRow]] = defaultdict(list)
    for figure in figures:
        groups[figure.line, figure.kind].append(figure)
    rows: list[list[Value]] = []
    for (line, kind), own in groups.items():
        halves = [[abs(one.error) for one in own if one.held is held] for held in (False, True)]
        texts = [f"{np.mean(errors):.1f} / {np.median(errors):.1f} %" if errors else "" for errors in halves]
        bias = f"{np.median([one.error for one in own]):+.1f} %"
        rows.append([line, kind, len(halves[0]), texts[0], len(halves[1]), texts[1], bias])
    columns = ("line", "figure", "seen", "mean / median", "held out", "mean / median", "bias (median)")
    return Table("Absolute errors by half", columns, rows, name="scores")


def _found(data: Path | None, name: str) -> Path:
    found = sorted(data.rglob(name)) if data is not None else []
    if not found:
        raise ForerunError(f"--data {data}: no file {name}, which a line of scores.yaml is about")
    return found[0]


def _served(line: str, table: str, run: MeasuredRun) -> list[ScoredRow]:
    """Figures of a measured run; none if it cannot be simulated."""
    try:
        predicted: Mapping[str, float] = simulate_measured(simulate, run, base_scenario())[1]
    except (ForerunError, ProfileError, TraceError):
        return []
    named = [next((one for one in names if run.measured.get(one) and predicted.get(one)), "") for names in FIGURES]
    row = f"{table}/{run.name}"
    scored = [ScoredRow(line, str(figure_kind(one)), row, held_out(row), predicted[one], run.measured[one])
              for one in named if one]  # fmt: skip
    return [one for one in scored if one.kind in KINDS]


def _case(line: str, path: Path, rate: float) -> list[ScoredRow]:
    predicted = summarise(simulate(load_scenario(path)))["output_throughput"] or 0.0
    return [ScoredRow(line, path.stem, path.stem, held_out(path.stem), predicted, rate)]


def _published(line: str) -> list[ScoredRow]:
    compared = compare_published()[0]
    return [
        *(ScoredRow(line, "speed-up", c.row.id, held_out(c.row.id), c.predicted, c.row.speedup) for c in compared),
        *(ScoredRow(line, "acceptance", c.curve, held_out(c.curve), c.predicted, c.published) for c in curve_scores()),
    ]
