"""Which points a study runs: the full grid, random draws, or a Latin hypercube."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import exp, floor, log
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.studies.study_file import Range, Settings, Values

Design = Literal["grid", "random", "latin-hypercube"]
DESIGNS: tuple[Design, ...] = ("grid", "random", "latin-hypercube")
LARGEST = 1_000_000
"""Most points of one study."""


def design_points(
    vary: Mapping[str, Values], design: Design = "grid", samples: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """The settings of every point; the first path varies slowest in a grid.

    Args:
        vary: values or ranges by path.
        design: ``grid`` takes every combination of values; ``random`` and ``latin-hypercube`` draw ``samples`` points,
            from lists with equal chance.
        samples: number of points drawn.
        seed: of the draws.

    Raises:
        ForerunError: a range in a grid, samples without a random design or the other way round, too many points.
    """
    if design not in DESIGNS:
        raise ForerunError(f"--design {design}: one of {', '.join(DESIGNS)}")
    if design == "grid":
        if samples is not None:
            raise ForerunError("--samples: a grid runs every combination; add --design random or latin-hypercube")
        return _grid(vary)
    if samples is None or samples < 1:
        raise ForerunError(f"--design {design}: says nothing without --samples N (how many points to draw)")
    if samples > LARGEST:
        raise ForerunError(f"--samples {samples}: at most {LARGEST:,} points")
    if not vary:
        raise ForerunError(f"--design {design}: there is nothing to draw; give --vary PATH=LOW..HIGH or PATH=V1,V2,...")
    unit = _unit_points(design, len(vary), samples, seed)
    return [{path: at(values, u) for (path, values), u in zip(vary.items(), row, strict=True)} for row in unit]


def at(values: Values, share: float) -> Any:
    """The value that lies at ``share`` in [0, 1) of a list or a range."""
    if not isinstance(values, Range):
        return values[min(floor(share * len(values)), len(values) - 1)]
    low, high = values.low, values.high
    if values.whole:
        if values.log:
            drawn = floor(exp(log(low) + share * (log(high + 1) - log(low))))
            return min(max(drawn, int(low)), int(high))
        return min(int(low) + floor(share * (int(high) - int(low) + 1)), int(high))
    if values.log:
        return exp(log(low) + share * (log(high) - log(low)))
    return low + share * (high - low)


def unique_points(points: Sequence[Settings]) -> list[Settings]:
    """Points in order without repetitions (draws of whole numbers or from lists may repeat)."""
    seen: set[str] = set()
    kept = []
    for point in points:
        mark = repr(sorted(point.items()))
        if mark not in seen:
            seen.add(mark)
            kept.append(point)
    return kept


def _grid(vary: Mapping[str, Values]) -> list[dict[str, Any]]:
    lists: list[tuple[Any, ...]] = []
    count = 1
    for path, values in vary.items():
        if isinstance(values, Range):
            raise ForerunError(
                f"--vary {path}: a grid needs values, not a range; list them, or draw from the range with "
                f"--design latin-hypercube --samples N"
            )
        count *= len(values)
        lists.append(values)
    if count > LARGEST:
        raise ForerunError(f"--vary: {count:,} combinations; at most {LARGEST:,} points")
    return [dict(zip(vary, combination, strict=True)) for combination in product(*lists)]


def _unit_points(design: Design, dimensions: int, samples: int, seed: int) -> NDArray[np.float64]:
    from scipy.stats import qmc

    if design == "latin-hypercube":
        return np.asarray(qmc.LatinHypercube(d=dimensions, seed=seed).random(samples), dtype=np.float64)
    return np.random.default_rng(seed).random((samples, dimensions))
