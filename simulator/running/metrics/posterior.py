"""Distribution of a deployment's figures, given its measured runs.

``log(measured / predicted)`` of the figures of one deployment, throughput as a latency, are jointly Student-t. Their
covariance holds what slower decode steps, prompt steps, hosts and API servers do to each figure, a shift per kind, a
part that is smooth over load, lengths and layout, and noise of each run. Its parameters (``served.yaml``) are fitted on
measured deployments (``validation.served.process``), and its ends on tables that the fit has not seen.

Source: A. Shah, A. G. Wilson, Z. Ghahramani, "Student-t Processes as Alternatives to Gaussian Processes" (AISTATS 2014,
arXiv:1402.4306), section 3 and lemma 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, sqrt
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
from typing_extensions import TypedDict

from forerun.arrays import FloatArray, IntArray
from forerun.document import Json

Array = FloatArray | IntArray
KINDS = ("tpot", "ttft", "e2el", "throughput")
"""Kinds of figures, by their numbers in the process. The last two are made of the first two and a part of their own."""
CAUSES = ("decode", "prompts", "host_ms", "api_server_ms")
"""Causes that a measurement informs. Logarithms of factors on decode and on prompt steps, milliseconds of host time in
every step, and of the API server before the first token."""
API_SERVER_MS = 20.0
"""Unit of the API server's delay in the process: its effect on a latency saturates."""
UNITS = (None, None, 1.0, API_SERVER_MS)
"""Milliseconds of one unit of each cause; None for logarithms of a factor."""
LEAST_NOISE = 1e-3
"""Variance of a figure that nothing explains: 3 % of its value."""
LEAST_OWN = 0.05
"""Least deviation of the own part of E2E latency and throughput; sources often derive one of them from the others."""
MOST = 2.5
"""Largest logarithm of an error that a measurement counts with."""


class FigureRow(NamedTuple):
    """One figure of a run, with the fields of :class:`Rows`; layouts are texts."""

    kind: int
    decoding: float
    moves: tuple[float, ...]
    conditions: tuple[float, ...]
    layout: str
    run: int
    classes: tuple[float, ...]


@dataclass(frozen=True)
class Rows:
    """Figures of runs of one deployment; all arrays have one entry per figure."""

    kind: IntArray
    """Place in ``KINDS``."""
    decoding: FloatArray
    """Share of the run's E2E latency after the first token."""
    moves: FloatArray
    """Derivatives of the figure's logarithm by ``CAUSES`` [figure, cause]; the last in units of ``API_SERVER_MS``."""
    conditions: FloatArray
    """Logarithms of the requests at once on one replica, input tokens and output tokens [figure, 3]."""
    layout: IntArray
    """Number of the parallel layout and speculation."""
    run: IntArray
    classes: FloatArray
    """Classes of the run as 0 or 1. On an unknown release, of a young model, on a chip without measurements, of a
    mixture of experts, near capacity [figure, 5]."""

    def beside(self, other: Rows) -> Rows:
        """Rows of both, the own ones first."""
        return Rows(*(np.concatenate((getattr(self, one.name), getattr(other, one.name))) for one in fields(self)))

    @property
    def loadings(self) -> FloatArray:
        """Shares of the errors of TPOT and TTFT in each figure [..., figure, 2]."""
        share = np.select([self.kind == 0, self.kind == 1], [1.0, 0.0], self.decoding)
        return np.stack((share, 1.0 - share), axis=-1)


@dataclass(frozen=True)
class Process:
    """Parameters of the process; deviations are in logarithms, by ``KINDS`` or ``CAUSES``."""

    causes: FloatArray
    shift: FloatArray
    smooth: FloatArray
    noise: FloatArray
    lengths: FloatArray
    """Length scales of the smooth part: of the load and of tokens, in logarithms, and of another layout."""
    degrees: float
    """Degrees of freedom, above 2."""
    scale: FloatArray
    """Factors on deviations by the first four classes, and on noise and smooth part near capacity."""
    mean: FloatArray

    @classmethod
    def of(cls, values: Json) -> Self:
        """The process of plain numbers."""
        arrays: Json = {one.name: np.asarray(values[one.name], dtype=np.float64) for one in fields(cls)}
        return cls(**arrays)

    def covariance(self, rows: Rows, causes: bool = True) -> FloatArray:
        """Covariance of the figures [..., figure, figure]; without ``causes``, of their other parts alone."""
        kind, loadings = rows.kind, rows.loadings

        def gap(values: Array) -> FloatArray:
            return np.asarray((values[..., :, None] - values[..., None, :]) ** 2)

        def part(deviations: FloatArray, factor: FloatArray | float = 1.0) -> FloatArray:
            common = loadings * deviations[:2] * np.asarray(factor)[..., None]
            own = np.where(kind >= 2, np.hypot(deviations[np.clip(kind, 2, 3)], LEAST_OWN), 0.0) * factor
            same = kind[..., :, None] == kind[..., None, :]
            return np.asarray(common @ np.swapaxes(common, -1, -2) + same * own[..., :, None] * own[..., None, :])

        near = self.scale[4] ** rows.classes[..., 4]
        far = sum(gap(rows.conditions[..., i]) / self.lengths[min(i, 1)] ** 2 for i in range(3))
        far = far + (gap(rows.layout) > 0) / self.lengths[2] ** 2
        total = part(self.shift) + part(self.smooth, near) * np.exp(-far / 2)
        total = total + part(self.noise, near) * (gap(rows.run) == 0)
        if causes:
            moves = rows.moves * self.causes
            total = total + moves @ np.swapaxes(moves, -1, -2)
        scale = self.scales(rows)
        return np.asarray(total * scale[..., :, None] * scale[..., None, :])

    def scales(self, rows: Rows) -> FloatArray:
        """Factor of each figure's classes on its deviations."""
        return np.asarray(np.prod(self.scale[:4] ** rows.classes[..., :4], axis=-1))

    def means(self, rows: Rows) -> FloatArray:
        """Mean of each figure before any measurement."""
        own = np.where(rows.kind >= 2, self.mean[np.clip(rows.kind, 2, 3)], 0.0)
        return np.asarray(rows.loadings @ self.mean[:2] + own)


class Learnt(TypedDict):
    """Estimate of one cause from measured runs."""

    value: float
    low: float
    high: float
    """Ends of its 90 % interval."""


class Forecast(NamedTuple):
    """Figures of a run, given measured runs."""

    deviation: FloatArray
    """Scale of the Student-t distribution of each figure about its mean."""
    degrees: float
    correlation: FloatArray


class Posterior:
    """The process, given errors of measured figures."""

    def __init__(self, process: Process, seen: Rows, errors: FloatArray) -> None:
        self._process, self._seen = process, seen
        self._prior = process.causes * (process.scales(seen)[0] if len(errors) else 1.0)
        self.runs = len(np.unique(seen.run))
        covariance = process.covariance(seen) + LEAST_NOISE * np.eye(len(errors))
        off = np.clip(errors, -MOST, MOST) - process.means(seen)
        self._inverse = np.linalg.inv(covariance)
        self._weights = self._inverse @ off
        spread = float(off @ self._weights)
        self.degrees = float(process.degrees) + len(errors)
        self._spread = (float(process.degrees) - 2.0 + spread) / (self.degrees - 2.0) if len(errors) else 1.0

    @classmethod
    def expected(cls, process: Process, seen: Rows) -> Self:
        """The posterior of figures that lie as far off as is usual."""
        covariance = process.covariance(seen) + LEAST_NOISE * np.eye(len(seen.kind))
        return cls(process, seen, process.means(seen) + np.linalg.cholesky(covariance).sum(axis=1))

    def forecast(self, new: Rows) -> Forecast:
        """Distribution of other figures of the deployment. The causes are taken to be in their predictions already."""
        n = len(self._weights)
        covariance = self._process.covariance(self._seen.beside(new))
        left = covariance[n:, n:] - covariance[n:, :n] @ self._inverse @ covariance[:n, n:]
        left = left + LEAST_NOISE * np.eye(len(left))
        deviation = np.sqrt(np.maximum(np.diagonal(left), LEAST_NOISE))
        correlation = left / deviation[:, None] / deviation
        variance = self._spread * (self.degrees - 2.0) / self.degrees
        return Forecast(deviation * sqrt(variance), self.degrees, correlation)

    def shift(self, new: Rows) -> FloatArray:
        """Mean error of other figures that the causes do not explain, in logarithms."""
        n = len(self._weights)
        rest = self._process.covariance(self._seen.beside(new), causes=False)
        return np.asarray(self._process.means(new) + rest[n:, :n] @ self._weights)

    def cause_means(self) -> FloatArray:
        """Mean of every cause, in logarithms and the process's units."""
        return np.asarray(self._prior**2 * (self._seen.moves.T @ self._weights))

    def learnt(self) -> dict[str, Learnt]:
        """Mean and 90 % interval of every cause: factors on decode and prompt steps, milliseconds of the others."""
        moves = self._seen.moves.T * self._prior[:, None] ** 2
        left = self._prior**2 - np.einsum("ci,ij,cj->c", moves, self._inverse, moves)
        scale = self._spread * (self.degrees - 2.0) / self.degrees
        ends = quantile(self.degrees, 0.95) * np.sqrt(np.maximum(left, 0.0) * scale)
        causes: dict[str, Learnt] = {}
        for name, unit, mean, end in zip(CAUSES, UNITS, self.cause_means().tolist(), ends.tolist(), strict=True):
            values = [exp(one) if unit is None else unit * one for one in (mean, mean - end, mean + end)]
            causes[name] = Learnt(value=values[0], low=values[1], high=values[2])
        return causes


def scaled_ends(ends: Mapping[str, Sequence[float]], degrees: float) -> list[float]:
    """Ends of the intervals in units of the deviation: nine in ten, likely, likely, nine in ten.

    Args:
        ends: by level, factors on the quantiles of Student's t distribution that make the intervals of tables left out
            as wide as they must be.
        degrees: degrees of freedom.
    """
    likely, wide = quantile(degrees, 0.75), quantile(degrees, 0.95)
    (low, high), (lowest, highest) = ends["likely"], ends["nine in ten"]
    return [-lowest * wide, -low * likely, high * likely, highest * wide]


def quantile(degrees: float, share: float) -> float:
    """Quantile of Student's t distribution, within 0.5 % from 5 degrees of freedom on. Importing scipy takes longer.

    Source: M. Abramowitz and I. Stegun, "Handbook of Mathematical Functions" (1964), equation 26.7.5.
    """
    x = NormalDist().inv_cdf(share)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return x + sum(term / degrees**power for power, term in enumerate(terms, 1))


def figure_rows(figures: Sequence[FigureRow]) -> Rows:
    """Rows from figures of one deployment."""
    kind, decoding, moves, conditions, layouts, run, classes = zip(*figures, strict=True) if figures else [()] * 7
    numbers = {name: place for place, name in enumerate(sorted(set(layouts)))}
    n = len(figures)
    return Rows(
        kind=np.array(kind, dtype=np.int64),
        decoding=np.array(decoding, dtype=np.float64),
        moves=np.array(moves, dtype=np.float64).reshape(n, len(CAUSES)),
        conditions=np.array(conditions, dtype=np.float64).reshape(n, 3),
        layout=np.array([numbers[name] for name in layouts], dtype=np.int64),
        run=np.array(run, dtype=np.int64),
        classes=np.array(classes, dtype=np.float64).reshape(n, 5),
    )
