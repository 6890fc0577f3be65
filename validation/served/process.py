"""The process behind ``--measured`` (``simulator.running.metrics.posterior``): fit, and scores after one run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from forerun.arrays import FloatArray
from forerun.tables import Table, Value
from forerun.yaml_files import packaged
from simulator.running.metrics.posterior import (
    KINDS,
    LEAST_NOISE,
    MOST,
    FigureRow,
    Posterior,
    Process,
    Rows,
    figure_rows,
    quantile,
    scaled_ends,
)
from simulator.running.metrics.uncertainty import LEVEL, LIKELY
from validation.served.bands import BandScore, ServedFigure, deployment_weights

FOLDS, RUNS, ITERATIONS = 3, 6, 30
"""Number of folds, of runs of a deployment that a fit sees, and of steps of its search."""
LEAST_RUNS = 4
"""Runs of a deployment from which some predict the others."""
PLANS: Mapping[str, tuple[float, ...]] = {"one run": (0.5,), "three runs": (0.0, 0.5, 1.0)}
"""Runs that count as measured, by their places in order of load."""
START = {
    "causes": [0.18, 0.18, 0.18, 0.13],
    "shift": [0.13, 0.22, 0.08, 0.08],
    "smooth": [0.13, 0.22, 0.08, 0.08],
    "noise": [0.08, 0.13, 0.05, 0.05],
    "lengths": [1.6, 1.6, 1.0],
    "scale": [1.1, 1.1, 1.1, 1.1, 1.0],
}
"""Positive parameters at the start; those of small means stay near it (``TIE``)."""
TIE = 0.002
DEGREES = 2.5
"""Degrees of freedom. Of 2.1 (the most likely ones), 2.5, 3.2, 4.7 and 8, these have the best interval scores."""
STEP_LIMIT = 100_000
MOST_SOURCES, SHOWN_KINDS = 10, ("tpot", "ttft", "throughput")
"""Tables and figures of ``sources_table``."""


def process_of(values: FloatArray) -> Process:
    """The process of a vector: logarithms of the positive parameters, and means."""
    place, parameters = 0, dict[str, Any]()
    for name, start in START.items():
        count = np.size(start)
        parameters[name] = np.exp(values[place : place + count])
        place += count
    return Process.of(parameters | {"degrees": DEGREES, "mean": values[place:]})


def fit_process(figures: Sequence[ServedFigure]) -> Process:
    """Maximum of the Student-t likelihood over deployments, each table weighed as the root of their number."""
    generator, chosen = np.random.default_rng(0), []
    for own in _deployments(figures):
        kept = set(generator.permutation(sorted({one.run for one in own}))[:RUNS].tolist())
        chosen.append([one for one in own if one.run in kept])
    tables = Counter(own[0].table for own in chosen)
    weights = np.array([max(4, tables[own[0].table]) ** -0.5 for own in chosen])
    counts = np.array([len(own) for own in chosen])
    most = int(counts.max())
    mask = np.arange(most) < counts[:, None]
    rows = _padded([rows_from(own) for own in chosen], most)
    errors = np.array([np.pad([one.error for one in own], (0, most - len(own))) for own in chosen])
    pairs, alone = mask[:, :, None] & mask[:, None, :], np.eye(most) * ~mask[:, :, None]
    start = np.concatenate([*(np.log(np.atleast_1d(one)) for one in START.values()), np.zeros(len(KINDS))])

    def loss(values: FloatArray) -> float:
        process = process_of(values)
        covariance = np.where(pairs, process.covariance(rows), 0.0) + alone + LEAST_NOISE * np.eye(most)
        lower, freedom = np.linalg.cholesky(covariance), float(process.degrees)
        off = np.where(mask, np.clip(errors, -MOST, MOST) - process.means(rows), 0.0)
        spread = (np.linalg.solve(lower, off[..., None])[..., 0] ** 2).sum(axis=1)
        likelihood = gammaln((freedom + counts) / 2) - gammaln(freedom / 2) - counts / 2 * np.log(freedom - 2)
        likelihood -= np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        likelihood -= (freedom + counts) / 2 * np.log1p(spread / (freedom - 2))
        return float(-(weights @ likelihood) / weights.sum() + TIE * ((values - start) ** 2).sum())

    fitted = minimize(loss, start, method="L-BFGS-B", options={"maxiter": ITERATIONS, "maxfun": STEP_LIMIT})
    return process_of(fitted.x)


def rows_from(figures: Sequence[ServedFigure]) -> Rows:
    """Rows of the process for figures of one deployment."""
    return figure_rows([
        FigureRow(KINDS.index(one.kind), one.decoding, one.moves, one.conditions, one.layout, one.run,
                  one.stratum.classes)
        for one in figures
    ])  # fmt: skip


def _padded(several: Sequence[Rows], most: int) -> Rows:
    columns = {}
    for field in fields(Rows):
        arrays = [getattr(rows, field.name) for rows in several]
        columns[field.name] = np.stack([np.pad(a, [(0, most - len(a)), *[(0, 0)] * (a.ndim - 1)]) for a in arrays])
    return Rows(**columns)


def _deployments(figures: Sequence[ServedFigure], least: int = 1) -> list[list[ServedFigure]]:
    groups: dict[str, list[ServedFigure]] = defaultdict(list)
    for figure in figures:
        groups[figure.deployment].append(figure)
    return [own for own in groups.values() if len({one.run for one in own}) >= least]


class Trial(NamedTuple):
    """A figure predicted from measured runs of its deployment."""

    figure: ServedFigure
    mean: float
    deviation: float
    degrees: float

    @property
    def off(self) -> float:
        """Error that is left, in units of the deviation."""
        return (self.figure.error - self.mean) / self.deviation


def trials(process: Process, figures: Sequence[ServedFigure], plan: Sequence[float]) -> Iterator[Trial]:
    """Figures of every deployment predicted from those of the runs that a plan measures; none at a measured load."""
    for own in _deployments(figures, LEAST_RUNS):
        order = sorted({(one.conditions, one.run) for one in own})
        seen = {order[min(len(order) - 1, int(share * len(order)))][1] for share in plan}
        measured = [one for one in own if one.run in seen]
        places = {_place(one) for one in measured}
        new = [one for one in own if one.run not in seen and _place(one) not in places]
        if not new:
            continue
        both = rows_from([*measured, *new])
        n = len(measured)
        posterior = Posterior(process, _cut(both, slice(None, n)), np.array([one.error for one in measured]))
        rows = _cut(both, slice(n, None))
        forecast, causes = posterior.forecast(rows), posterior.cause_means()
        for one, shift, moved, deviation in zip(new, posterior.shift(rows), rows.moves @ causes, forecast.deviation,
                                                strict=True):  # fmt: skip
            yield Trial(one, float(shift + moved), float(deviation), forecast.degrees)


def _cut(rows: Rows, part: slice) -> Rows:
    return Rows(**{field.name: getattr(rows, field.name)[part] for field in fields(Rows)})


def _place(figure: ServedFigure) -> tuple[Any, ...]:
    return (*np.round(figure.conditions, 1), figure.layout)


def folds(figures: Sequence[ServedFigure]) -> dict[str, int]:
    """The fold of every table, so that all have about as many figures."""
    counts, load, places = Counter(one.table for one in figures), [0] * FOLDS, dict[str, int]()
    for table, count in counts.most_common():
        places[table] = int(np.argmin(load))
        load[places[table]] += count
    return places


def held_out_trials(figures: Sequence[ServedFigure], processes: Sequence[Process]) -> dict[str, list[Trial]]:
    """Trials of every plan, with the process fitted on the other folds."""
    place = folds(figures)
    return {
        name: [one for k, process in enumerate(processes)
               for one in trials(process, [figure for figure in figures if place[figure.table] == k], plan)]
        for name, plan in PLANS.items()
    }  # fmt: skip


def fold_processes(figures: Sequence[ServedFigure]) -> list[Process]:
    """The process without each fold."""
    place = folds(figures)
    return [fit_process([one for one in figures if place[one.table] != k]) for k in range(FOLDS)]


def calibrated_ends(held_out: Sequence[Trial]) -> dict[str, dict[str, list[float]]]:
    """Factors on the quantiles of Student's t at which tables left out lie inside as often as promised."""
    ends: dict[str, dict[str, list[float]]] = {}
    for kind in KINDS:
        own = [one for one in held_out if one.figure.kind == kind]
        weights = deployment_weights([one.figure for one in own])
        ends[kind] = {}
        for name, share in (("likely", (1 + LIKELY) / 2), ("nine in ten", (1 + LEVEL) / 2)):
            z = np.array([one.off / quantile(one.degrees, share) for one in own])
            sides = (_quantile(-z, weights, share), _quantile(z, weights, share))
            ends[kind][name] = [float(f"{max(0.05, one):.3g}") for one in sides]
    return ends


def _quantile(values: FloatArray, weights: FloatArray, share: float) -> float:
    order = np.argsort(values)
    place = int(np.searchsorted(np.cumsum(weights[order]), share * weights.sum()))
    return float(values[order][min(len(values) - 1, place)])


def process_values(process: Process, ends: Mapping[str, Any]) -> dict[str, Any]:
    """The process as plain numbers for ``served.yaml``."""
    values = {field.name: getattr(process, field.name) for field in fields(Process)}
    plain = {name: np.round(value, 4).tolist() for name, value in values.items()}
    return plain | {"ends": dict(ends)}


def sources_table(held_out: Mapping[str, Sequence[Trial]]) -> Table:
    """Errors by who measured, of the tables with most runs, before and after one run of the deployment was measured."""
    names, tables = packaged("validation.served", "sources.yaml"), defaultdict[str, list[Trial]](list)
    for one in held_out["one run"]:
        tables[one.figure.table].append(one)
    lines = []
    for table, own in sorted(tables.items(), key=lambda item: -len(item[1]))[:MOST_SOURCES]:
        runs, cells = len({one.figure.run for one in own}), []
        for kind in SHOWN_KINDS:
            some = [one for one in own if one.figure.kind == kind]
            error, mean = np.array([(one.figure.error, one.mean) for one in some] or [(0.0, 0.0)]).T
            offs = [100 * float(np.median(np.abs(np.exp(c - error) - 1))) for c in (0.0 * mean, mean) if some]
            cells.append(f"{' to '.join(f'{off:.0f}' for off in offs)} %" if offs else "-")
        lines.append([*names.get(table, [table, ""]), runs, *cells])
    columns = ("who measured", "what", "runs", "TPOT: before, after one run", "TTFT", "throughput")
    return Table("Before and after one measured run", columns, lines, name="sources")


class Outcome(NamedTuple):
    """Predictions from measured runs against the other measurements."""

    before: float
    after: float
    """Median errors in percent, without and with the measured runs."""
    wide: BandScore
    likely: BandScore


def outcomes(figures: Sequence[ServedFigure], held_out: Mapping[str, Sequence[Trial]]) -> Table:
    """Errors and widths after one and three runs; the ends of each fold are those of the other folds."""
    place, lines = folds(figures), list[list[Value]]()
    for name, everything in held_out.items():
        for kind in KINDS:
            parts = []
            for k in range(FOLDS):
                own = [one for one in everything if one.figure.kind == kind and place[one.figure.table] == k]
                others = [one for one in held_out["one run"] if place[one.figure.table] != k]
                parts.append((own, calibrated_ends(others)[kind]))
            known = [(one, ends) for own, ends in parts for one in own]
            scored = trial_scores(known)
            lines.append([name, kind, scored.wide.n, f"{scored.before:.1f} %", f"{scored.after:.1f} %",
                          f"{scored.wide.width:.2f}x", f"{scored.wide.inside:.0%}", f"{scored.wide.score:.2f}",
                          f"{scored.likely.width:.2f}x", f"{scored.likely.inside:.0%}"])  # fmt: skip
    columns = ("measured", "figure", "n", "error before (median)", "after", "nine in ten: width", "inside", "score",
               "likely: width", "inside")  # fmt: skip
    return Table("After measuring, tables left out", columns, lines, name="measured")


def trial_scores(known: Sequence[tuple[Trial, Mapping[str, Any]]]) -> Outcome:
    """Errors and intervals of trials of one kind of figure, each with its factors on the ends."""
    error = np.array([one.figure.error for one, _ in known])
    mean = np.array([one.mean for one, _ in known])
    bands = np.array([np.array(scaled_ends(ends, one.degrees)) * one.deviation for one, ends in known]) + mean[:, None]
    before, after = (100 * float(np.median(np.abs(np.exp(centre - error) - 1))) for centre in (0.0 * mean, mean))
    wide = BandScore.of(error, bands[:, 0], bands[:, 3], LEVEL)
    return Outcome(before, after, wide, BandScore.of(error, bands[:, 1], bands[:, 2], LIKELY))
