"""Constants that were fitted above the prices of kernels, fitted again in one go after a price has moved."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import as_file, files
from math import exp, log
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, did_you_mean
from forerun.tables import Table
from forerun.workers import Workers
from forerun.yaml_files import packaged
from simulator.replay.requests import in_training
from simulator.replay.rerun import rerun
from simulator.running.metrics.files import write_text_atomically
from simulator.timing import load_framework
from traces.benchmark_results import MeasuredRun, read_runs
from validation.halves import rows_by_hash
from validation.requests import SPLIT, base_scenario
from validation.tables.contradictions import without_contradictions

SMALL_ERROR = 0.1
"""Error, in logarithms, above which a figure pulls no harder: a few wrong rows do not carry a fit."""
HOLD = 0.01
"""Weight of a constant's move, in logarithms, against a figure's error: what no run shows stays as it was."""
LARGEST_FACTOR = 12.0
STEP = 0.15
ITERATIONS = 3
MARGIN = 0.05
"""Growth of the held-out error, in percentage points, up to which it counts as equal."""


class RefitCase(NamedTuple):
    """A measured run and the figures of it that count."""

    run: MeasuredRun
    metrics: tuple[str, ...]
    trained: bool


class Refit(NamedTuple):
    """Outcome of fitting the constants of one parameter set again."""

    name: str
    before: dict[str, float]
    after: dict[str, float]
    trained: tuple[float, float]
    """Mean absolute error in percent on the side that the fit saw, before and after."""
    held_out: tuple[float, float]
    held_by_metric: dict[str, tuple[float, float]]

    @property
    def refused(self) -> bool:
        """True if the held-out error grows, so that the constants stay."""
        return self.held_out[1] > self.held_out[0] + MARGIN


def refit_cases(name: str, data: Path) -> list[RefitCase]:
    """Measured runs of a parameter set, as ``refits.yaml`` names them.

    Raises:
        ForerunError: a file that the folder does not hold, or no run of the set.
    """
    entry = refits()[name]
    cases = []
    for chosen in entry["runs"]:
        words = dict(chosen)
        limit = words.pop("limit", sys.maxsize)
        paths = sorted(data.rglob(words.pop("file")))
        if not paths:
            raise ForerunError(f"--data {data}: no file {chosen['file']}, which {name} is fitted on")
        runs = [run for run in without_contradictions(list(read_runs(str(paths[0])))) if meets(run, words)]
        for trained in (True, False):
            side = [run for run in runs if in_training(run, SPLIT) is trained]
            for run in rows_by_hash(side, attrgetter("place"), limit):
                cases.append(RefitCase(run, tuple(m for m in entry["metrics"] if m in run.measured), trained))
    if not any(case.trained for case in cases):
        raise ForerunError(f"{name}: no measured run of it in {data}")
    return cases


def refits() -> dict[str, Any]:
    """Content of ``refits.yaml``."""
    return packaged("validation", "refits.yaml")


def meets(run: MeasuredRun, patterns: Mapping[str, str]) -> bool:
    """True if a run is usable and each pattern is found in its field."""
    usable = run.unusable is None and bool(run.measured) and bool(run.model and run.chip and run.framework)
    fields = ((pattern, str(getattr(run, name) or "")) for name, pattern in patterns.items())
    return usable and all(re.search(pattern, text, re.IGNORECASE) for pattern, text in fields)


def errors_of(case: RefitCase, factors: Mapping[str, float]) -> list[float]:
    """Logarithms of predicted over measured figures of a case under factors on constants."""
    predicted = rerun(case.run, base_scenario(), factors=dict(factors))["predicted"]
    return [log(predicted[metric] / case.run.measured[metric]) for metric in case.metrics]


def refit(name: str, data: Path, jobs: int = 1) -> Refit:
    """Fit the constants of a parameter set anew on the training side, starting from those that ship.

    Raises:
        ForerunError: no such set, or no runs of it.
    """
    if name not in refits():
        raise ForerunError(f"no constants '{name}' to fit{did_you_mean(name, refits())} (one of {', '.join(refits())})")
    constants = list(refits()[name]["constants"])
    framework = load_framework(name)
    before = {constant: float(getattr(framework, constant)) for constant in constants}
    cases = refit_cases(name, data)
    seen, held = ([case for case in cases if case.trained is side] for side in (True, False))
    with Workers(jobs if jobs > 1 else 0) as workers:

        def errors(moves: FloatArray, side: Sequence[RefitCase]) -> FloatArray:
            factors = {f"{name}.{c}": exp(move) for c, move in zip(constants, moves, strict=True)}
            started = [workers.start(errors_of, case, factors) for case in side]
            return np.array([error for result in started for error in result()])

        moves = fitted_moves(partial(errors, side=seen), len(constants))
        start = np.zeros(len(constants))
        ends = [(errors(at, seen), errors(at, held)) for at in (start, moves)]
    after = {c: float(f"{before[c] * exp(move):.2g}") for c, move in zip(constants, moves, strict=True)}
    metrics = np.array([name for case in held for name in case.metrics])
    by_metric = {str(m): tuple(_percent(end[1][metrics == m]) for end in ends) for m in dict.fromkeys(metrics)}
    (trained, held_out) = (tuple(_percent(end[place]) for end in ends) for place in (0, 1))
    return Refit(name, before, after, trained, held_out, by_metric)  # type: ignore[arg-type]


def fitted_moves(errors: Callable[[FloatArray], FloatArray], count: int) -> FloatArray:
    """Logarithms of the factors on constants under which errors are least, held weakly at zero.

    Gauss-Newton on a loss that grows linearly beyond ``SMALL_ERROR``, with derivatives over ``STEP``.

    Args:
        errors: errors in logarithms under some moves.
        count: number of constants.
    """
    moves: FloatArray = np.zeros(count)
    now = errors(moves)
    hold = HOLD**2 * len(now) / max(1, count)

    def loss(moved: FloatArray, found: FloatArray) -> float:
        return float(2 * SMALL_ERROR**2 * (np.sqrt(1 + (found / SMALL_ERROR) ** 2) - 1).sum() + hold * moved @ moved)

    for _ in range(ITERATIONS):
        slopes = np.stack([(errors(moves + STEP * axis) - now) / STEP for axis in np.eye(count)], axis=1)
        weights = 1 / np.sqrt(1 + (now / SMALL_ERROR) ** 2)
        normal = slopes.T @ (weights[:, None] * slopes) + hold * np.eye(count)
        move = np.clip(-np.linalg.solve(normal, slopes.T @ (weights * now) + hold * moves), -1.0, 1.0)
        for length in (1.0, 0.5, 0.25):
            moved = np.clip(moves + length * move, -log(LARGEST_FACTOR), log(LARGEST_FACTOR))
            found = errors(moved)
            if loss(moved, found) < loss(moves, now):
                moves, now = moved, found
                break
        else:
            break
    return moves


def _percent(errors: FloatArray) -> float:
    return float(100.0 * np.mean(np.abs(np.expm1(errors)))) if len(errors) else 0.0


def refit_tables(fits: Sequence[Refit]) -> list[Table]:
    """Moved constants, and the errors before and after."""
    moved = [
        [fit.name, constant, f"{old:.2g}", f"{fit.after[constant]:.2g}", f"x{fit.after[constant] / old:.2f}"]
        for fit in fits
        for constant, old in fit.before.items()
    ]
    scored = []
    for fit in fits:
        words = "refused" if fit.refused else "holds"
        by_metric = {f"{metric}, held out": pair for metric, pair in fit.held_by_metric.items()}
        for name, pair in {"all, fitted side": fit.trained, **by_metric, "all, held out": fit.held_out}.items():
            scored.append([fit.name, name, *(f"{v:.1f} %" for v in pair), words if name == "all, held out" else ""])
    return [
        Table("Constants", ("set", "constant", "before", "after", "factor"), moved),
        Table("Mean absolute errors", ("set", "figure", "before", "after", ""), scored),
    ]


def write_constants(fits: Sequence[Refit], file: Path | None = None) -> None:
    """Put fitted constants in place of those in ``frameworks.yaml``; sets that are refused stay."""
    with as_file(files("simulator.timing").joinpath("frameworks.yaml")) as shipped:
        path = file or shipped
        text = path.read_text(encoding="utf-8")
    for fit in fits:
        if fit.refused:
            continue
        start = re.search(rf"^{re.escape(fit.name)}:", text, re.MULTILINE)
        assert start is not None
        following = re.search(r"^\S+:", text[start.end() :], re.MULTILINE)
        end = start.end() + following.start() if following else len(text)
        block = text[start.end() : end]
        for constant, value in fit.after.items():
            if value != fit.before[constant]:
                block = re.sub(rf"(?m)^(  {constant}: ).*$", rf"\g<1>{_number(value)}", block)
        text = text[: start.end()] + block + text[end:]
    write_text_atomically(path, text)


def _number(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
