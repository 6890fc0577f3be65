"""Published ratios beside predicted ones (``ratios.csv``), the unshared error fitted to them, and how well it holds.

Rows of ``published.csv`` are predicted anew by ``python -m validation speculation --write``. The others come from
``adaptive.yaml``, from tables that do not ship and from reports, and stand as computed: the same model, chip, engine
and load with and without drafting, or at two degrees of tensor parallelism. A row whose speed-up exceeds its acceptance
length is left out: its run without drafts was another. Every table counts alike.

Source: Gneiting and Raftery, "Strictly proper scoring rules" (2007), doi:10.1198/016214506000001437.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from math import log
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import FloatArray
from simulator.running.metrics.files import write_text_atomically
from simulator.running.metrics.uncertainty import stated_probability
from simulator.studies.unshared import DEPLOYMENT, DRAFTING, EVIDENCE, RESEARCH, known_errors
from validation.speculation.compare import Comparison
from validation.speculation.published import FOLDER

FREEDOM = 4
NOISE = 0.08
"""Deviation of a measured ratio where drafting gains nothing, in logarithms."""
HEAD = """\
# Error of a ratio beyond what its two runs share (simulator/studies/unshared.py): scale of the logarithm by weakest
# evidence; lost: share of deployments in which drafting gains nothing, loss: mean logarithm by which these are slower.
# Fitted to validation/speculation/ratios.csv by `python -m validation speculation --write`.
"""


class PublishedRatio(NamedTuple):
    """One published ratio beside the predicted one."""

    kind: str
    table: str
    id: str
    evidence: str
    framework: str
    method: str
    chip: str
    predicted: float
    published: float
    source: str

    @property
    def chips(self) -> str:
        """Class of the chip."""
        return "cards and laptops" if re.match(r"rtx|rx|r9|strix|apple|gb10", self.chip) else "data centre"

    @property
    def serves(self) -> bool:
        """True if drafting on this engine may gain nothing."""
        return self.kind == DRAFTING and self.framework not in RESEARCH


@cache
def load_ratios() -> tuple[PublishedRatio, ...]:
    """All rows of ``ratios.csv``."""
    with FOLDER.joinpath("ratios.csv").open(encoding="utf-8") as file:
        rows = [PublishedRatio(*row) for row in csv.reader(file)][1:]  # type: ignore[arg-type]
    return tuple(row._replace(predicted=float(row.predicted), published=float(row.published)) for row in rows)


def table_weights(rows: Sequence[PublishedRatio]) -> FloatArray:
    """Weight of each row: all tables count alike."""
    counts = Counter(row.table for row in rows)
    return np.array([1.0 / counts[row.table] for row in rows])


def fit_unshared(rows: Sequence[PublishedRatio]) -> dict[str, dict[str, float]]:
    """Content of ``unshared.yaml`` with the best log score. No weaker evidence has a smaller scale."""
    return {kind: _fitted([row for row in rows if row.kind == kind]) for kind in (DRAFTING, DEPLOYMENT)}


def _fitted(rows: Sequence[PublishedRatio]) -> dict[str, float]:
    from scipy.optimize import minimize
    from scipy.stats import exponnorm, t

    gains, seen = (np.log([getattr(row, name) for row in rows]) for name in ("predicted", "published"))
    steps = np.array([[EVIDENCE.index(row.evidence) >= level for level in range(len(EVIDENCE))] for row in rows], float)
    weights, serves = table_weights(rows), np.array([row.serves for row in rows])
    lacking = np.minimum(0.0, gains) - seen

    def score(x: FloatArray) -> float:
        scale, lost, loss = steps @ x[:3] + 1e-3, np.where(serves, x[3], 0.0), x[4]
        usual = (1.0 - lost) * t.pdf((seen - gains) / scale, FREEDOM) / scale
        none = lost * exponnorm.pdf(lacking, loss / NOISE, scale=NOISE)
        return -float(weights @ np.log(np.maximum(usual + none, 1e-12)) / weights.sum())

    bounds = [(0.01, 1.0), (0.0, 1.0), (0.0, 1.0), (0.0, 0.5 * bool(serves.any())), (0.05, 1.0)]
    x = minimize(score, [0.1, 0.02, 0.02, 0.1 * bool(serves.any()), 0.25], bounds=bounds, method="L-BFGS-B").x
    scales = dict(zip(EVIDENCE, (_rounded(one) for one in np.cumsum(x[:3])), strict=True))
    tables = len({row.table for row in rows if row.serves})
    lost = (x[3] * tables + 1.0) / (tables + 2.0)  # the next table's chance: Laplace's rule of succession
    return scales | ({"lost": _rounded(lost), "loss": _rounded(x[4])} if tables else {})


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def probability(row: PublishedRatio, known: Mapping[str, Mapping[str, float]]) -> float:
    """Stated probability that the variant is better, before any other error."""
    from scipy.special import stdtr

    usual = float(stdtr(FREEDOM, log(row.predicted) / known[row.kind][row.evidence]))
    return stated_probability((1.0 - row.serves * known[row.kind].get("lost", 0.0)) * usual, {row.evidence: 1.0})


def left_out_probabilities(rows: Sequence[PublishedRatio]) -> list[float]:
    """:func:`probability` of every row by fits that have not seen its table."""
    fits = {}
    for kind, table in {(row.kind, row.table) for row in rows}:
        fits[table] = {kind: _fitted([row for row in rows if row.kind == kind and row.table != table])}
    return [probability(row, fits[row.table]) for row in rows]


class Reliability(NamedTuple):
    """Stated probabilities of some rows beside how often they came true, and how far chance moves the latter."""

    name: str
    rows: int
    tables: int
    stated: float
    observed: float
    chance: float


def reliability(
    rows: Sequence[PublishedRatio], stated: Sequence[float], by: Callable[[PublishedRatio], str]
) -> list[Reliability]:
    """Reliability of groups of rows by name; a published ratio of 1 counts half."""
    names, found = [by(row) for row in rows], []
    weights, better = table_weights(rows), [0.5 * (1.0 + np.sign(np.log(row.published))) for row in rows]
    for name in sorted(set(names)):
        own = [place for place, other in enumerate(names) if other == name]
        said, seen = (float(np.average(np.take(values, own), weights=weights[own])) for values in (stated, better))
        tables = len({rows[place].table for place in own})
        found.append(Reliability(name, len(own), tables, said, seen, (said * (1.0 - said) / tables) ** 0.5))
    return found


def ten_bins(row: PublishedRatio) -> str:
    """Name of the bin of a row's probability by the fit that ships."""
    low = min(9, int(10 * probability(row, known_errors())))
    return f"{low / 10:.1f} to {(low + 1) / 10:.1f}"


def refreshed(rows: Iterable[PublishedRatio], comparisons: Iterable[Comparison]) -> list[PublishedRatio]:
    """The rows with new predictions of published speed-ups."""
    new = {one.row.id: {"predicted": float(f"{one.predicted:.4g}"), "evidence": one.evidence} for one in comparisons}
    return [row._replace(**new.get(row.id, {})) for row in rows]  # type: ignore[arg-type]


def write_ratios(rows: Sequence[PublishedRatio]) -> dict[str, Any]:
    """Write ``ratios.csv`` and the ``unshared.yaml`` fitted to it."""
    with as_file(FOLDER.joinpath("ratios.csv")) as path, path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([PublishedRatio._fields, *rows])
    known = fit_unshared(rows)
    text = "".join(f"{kind}: {{{', '.join(f'{k}: {v:g}' for k, v in of.items())}}}\n" for kind, of in known.items())
    with as_file(files("simulator.studies").joinpath("unshared.yaml")) as path:
        write_text_atomically(path, HEAD + text)
    return known
