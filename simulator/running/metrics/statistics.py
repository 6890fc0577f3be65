"""Order statistics and moments of weighted multisets, and Student-t intervals of a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, nan, sqrt

import numpy as np
from numpy.typing import ArrayLike

from forerun.arrays import FloatArray, IntArray

Z90, Z50 = 1.6448536269514722, 0.6744897501960817
"""Standard deviations from the median to either end of a normal distribution's 90 % and 50 % intervals."""
EQUAL = 1e-12
"""Relative spread up to which values are one value, rounded here and there."""
T_QUANTILES = {
    0.9: (6.313751514675037, 2.9199855803537242, 2.3533634348018233, 2.1318467863266495, 2.0150483733330233,
          1.9431802805153042, 1.8945786050900062, 1.8595480375308973, 1.833112932656237),
    0.95: (12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
          2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205),
}  # fmt: skip
"""Quantiles of Student's t by level and degrees of freedom, from ``scipy.special.stdtrit``. Importing scipy takes
longer than three runs of a comparison."""


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """A multiset of numbers: value ``values[i]`` occurs ``cumulative[i] - cumulative[i - 1]`` times; values ascend.

    Build it with :meth:`of`; statistics equal those of the expanded multiset, which is never built. Sums are numpy's
    own, not dot products: those of a BLAS library depend on the processor and on its cores.
    """

    values: FloatArray
    cumulative: IntArray

    @classmethod
    def of(cls, values: ArrayLike, counts: ArrayLike | None = None) -> WeightedSample:
        """Sort ``values`` with their ``counts`` (default: one each); entries with count 0 drop out.

        Raises:
            ValueError: when a value is NaN.
        """
        value = np.asarray(values, dtype=np.float64).ravel()
        if counts is None:
            value = np.sort(value)  # NaN goes last
            cumulative = None
        else:
            count = np.asarray(counts, dtype=np.int64).ravel()
            if not count.all():
                kept = count > 0
                value, count = value[kept], count[kept]
            order = np.argsort(value)
            value, cumulative = value[order], np.cumsum(count[order], dtype=np.int64)
            del order
        if len(value) and np.isnan(value[-1]):
            raise ValueError("a value is NaN")
        # Equal values are one, so that what is summed over them does not depend on the order in which they were sorted.
        last = np.ones(len(value), dtype=np.bool_)
        np.not_equal(value[1:], value[:-1], out=last[:-1])
        value = value[last]
        if cumulative is None:
            cumulative = np.flatnonzero(last)
            cumulative += 1
        else:
            cumulative = cumulative[last]
        return cls(value, cumulative)

    @property
    def size(self) -> int:
        """Number of elements of the multiset."""
        return int(self.cumulative[-1]) if len(self.cumulative) else 0

    @property
    def counts(self) -> IntArray:
        """Count the occurrences of each value."""
        counts = self.cumulative.copy()
        counts[1:] -= self.cumulative[:-1]
        return counts

    def element(self, index: int) -> float:
        """The ``index``-th smallest element, counted from 0."""
        return float(self.values[np.searchsorted(self.cumulative, index, side="right")])

    def mean(self) -> float:
        """Arithmetic mean; NaN if empty."""
        return float(np.multiply(self.values, self.counts).sum() / self.size) if self.size else nan

    def std(self) -> float:
        """Population standard deviation (``ddof=0``, as vLLM's benchmark reports it); NaN if empty."""
        if not self.size:
            return nan
        squares = self.values - self.mean()
        squares *= squares
        squares *= self.counts
        return sqrt(float(squares.sum()) / self.size)

    def median(self) -> float:
        """Middle element, or the mean of the two middle ones; NaN if empty."""
        if not self.size:
            return nan
        return 0.5 * (self.element((self.size - 1) // 2) + self.element(self.size // 2))

    def percentile(self, percent: float) -> float:
        """Percentile with linear interpolation between closest ranks; NaN if empty.

        Equals ``numpy.percentile(expanded, percent)``: method 7 of R. J. Hyndman and Y. Fan, "Sample Quantiles in
        Statistical Packages", The American Statistician 50 (1996), doi:10.1080/00031305.1996.10473566.

        Args:
            percent: in [0, 100].
        """
        if not 0.0 <= percent <= 100.0:
            raise ValueError(f"percentile {percent} is outside 0..100")
        if not self.size:
            return nan
        rank = (self.size - 1) * (percent / 100.0)
        below = min(floor(rank), self.size - 1)
        low, high = self.element(below), self.element(min(below + 1, self.size - 1))
        share = rank - below
        return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Two-sided Student-t confidence interval of the mean of independent ``values``.

    Args:
        values: at least two independent observations.
        level: coverage in (0, 1).

    Returns:
        Lower and upper end, in the unit of the values.

    Source: A. M. Law, "Simulation Modeling and Analysis" (5th ed., 2015), section 4.5, equation 4.12.
    """
    count = len(values)
    if count < 2:
        raise ValueError("an interval needs at least two values")
    if max(values) - min(values) <= EQUAL * abs(max(values)):
        return min(values), max(values)  # runs that chance has no part in: no spread but that of rounding
    centre = float(np.mean(values))
    half = t_quantile(count - 1, level) * float(np.std(values, ddof=1)) / sqrt(count)
    return centre - half, centre + half


def t_quantile(degrees: int, level: float) -> float:
    """Quantile ``(1 + level) / 2`` of Student's t distribution."""
    known = T_QUANTILES.get(level, ())
    if degrees <= len(known):
        return known[degrees - 1]
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + level / 2.0))


def ratio(part: float | None, whole: float) -> float | None:
    """Share of a part; None where it is not known or there is no whole."""
    return None if part is None or not whole else part / whole
