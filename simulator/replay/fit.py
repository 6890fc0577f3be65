"""Robust least squares on the logarithm of the error: a few physical parameters of one kernel family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwprofiles.parameters import FamilyParameters
from simulator.replay.fit_problem import FitProblem

FloatArray = NDArray[np.float64]

SEARCH_ROWS = 500
"""Rows on which the alternatives of a family's structure are compared."""
FINAL_ROWS = 2500
"""Rows of the final fit; more change nothing for ten parameters."""
ROBUST_SCALE = 0.08
"""Errors beyond this share count linearly, not squared: one slow code path must not bend the rest."""
PRIOR = 0.3
"""Pull towards the starting values, in units of error per width of the allowed interval: it decides with 20 rows and
vanishes with 2,000."""
FEW_ROWS = 60
"""Below this a fit sees too little to tell most structures apart."""
WORTH, WORTH_FEW = 0.98, 0.85
"""An alternative structure must lower the error to this share of what it was; to the second with few rows."""

_EVALUATIONS = 60


class Coordinate(NamedTuple):
    """A parameter as the search sees it: 0 .. 1 between its bounds, on a logarithmic scale where they are far apart."""

    name: str
    low: float
    high: float

    @property
    def logarithmic(self) -> bool:
        """Whether the bounds are more than a factor of 20 apart and positive."""
        return self.low > 0 and self.high / self.low > 20

    def scaled(self, value: float) -> float:
        """Position of a value, clipped into the bounds."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            return float(np.log(inside / self.low) / np.log(self.high / self.low))
        return (inside - self.low) / (self.high - self.low)

    def value(self, position: float) -> float:
        """The value at a position."""
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** position)
        return self.low + (self.high - self.low) * position


EXTRA: Mapping[str, Sequence[Coordinate]] = {
    "gemm": (Coordinate("core_bandwidth_ratio", 0.7, 6.0),),
    "attention_decode": (Coordinate("compute_efficiency", 0.05, 1.0),),
}
"""Parameters a fit moves besides those the family names as free."""

QUANTISE = Coordinate("quantise_s", 1e-7, 2e-5)
"""Free where the library quantises activations in a kernel of its own."""
REGROUP = Coordinate("regroup_s", 1e-7, 1e-5)
ALONE = Coordinate("alone_key_s", 1e-10, 2e-7)
"""Free where batches of unequal lengths were measured and their longest sequence ends alone."""
WARM = (Coordinate("warm_share", 0.02, 1.5), Coordinate("warm_efficiency", 0.05, 1.0))
"""Free where elementwise passes find operands on the chip."""


CPU_TIMES = 10.0
"""On a CPU every fixed time may be so many times longer: a kernel there is a call from Python, tens of microseconds."""


def coordinates(parameters: FamilyParameters, kind: str = "") -> tuple[Coordinate, ...]:
    """What a fit of these parameters moves on a chip of that kind."""
    found = [Coordinate(name, *bounds) for name, bounds in parameters.free.items()]
    if kind == "cpu":
        found = [c._replace(high=c.high * CPU_TIMES) if c.name.endswith("_s") else c for c in found]
    found += EXTRA.get(parameters.family, ())
    found += [one for one in (QUANTISE, REGROUP, ALONE) if getattr(parameters, one.name, None)]
    if parameters.family == "elementwise" and getattr(parameters, "warm_share", None):
        found += WARM
    return tuple(found)


ANY_ROWS = tuple((rows, 64) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32))
"""Tiles of a CPU library whose blocks take as many rows as there are: no row of a block is computed in vain."""

SMALL_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (16, 128), (16, 64))
"""Tiles of a GEMM library on chips whose cores multiply registers of one warp at a time (no warp-group products): what
a core holds ends at 128 x 128."""


def alternatives(parameters: FamilyParameters, dtype: str, few: bool, kind: str = "") -> list[dict[str, Any]]:
    """Other structures worth trying, each as changed fields; with few rows only where libraries differ most."""
    if few and not parameters.family.startswith("attention"):
        return []
    narrow = dtype in ("fp8", "int8", "mxfp8", "fp4")
    if parameters.family == "gemm":
        options: list[dict[str, Any]] = [{"max_split_k": 1.0}, {"max_split_k": 4.0}]
        options += [{"tiles": ANY_ROWS}] if kind == "cpu" else []
        options += [{"tiles": SMALL_TILES}] if kind == "gpu-consumer" else []
        return options + ([{"quantise_s": 3e-6}, {"quantise_s": 0.0}] if narrow else [])
    if parameters.family == "attention_prefill":
        options = [{"packing": name} for name in ("always", "single", "never")]
        options += [{"tile_rows": rows} for rows in (64.0, 128.0, 192.0)]
        options += [{"regroup_s": 4e-6}, {"regroup_s": 0.0}]
        return options + ([{"native_math": True}, {"native_math": False}] if narrow else [])
    if parameters.family == "attention_decode":
        options = [{"split_tokens": tokens} for tokens in (64.0, 128.0, 256.0, 512.0, 1024.0)]
        options += [{"max_splits": parts} for parts in (1.0, 16.0, 32.0, 128.0)]
        options += [{"min_group_to_split": 1.0}, {"min_group_to_split": 2.0}, {"regroup_s": 2e-6}, {"regroup_s": 0.0}]
        return options + [{"tile_rows": rows} for rows in (16.0, 64.0)]
    if parameters.family == "moe":
        return [{"local_only": True}, {"local_only": False}]
    if parameters.family == "elementwise" and kind != "cpu":
        return [{"warm_share": 0.3}]
    return []


def fit(problem: FitProblem, start: FamilyParameters, seed: int = 0) -> FamilyParameters:
    """Fit the parameters of one family.

    Args:
        problem: the rows a fit may see.
        start: values to start from, and the prior: class defaults, or an earlier fit.
        seed: of the sub-sampling.

    Returns:
        Parameters with ``start``'s source.
    """
    generator = np.random.default_rng(seed)
    search = sampled(problem, SEARCH_ROWS, generator)
    best = _solve(search, start, start)
    error = loss(search, best)
    few = len(problem) < FEW_ROWS
    changes = alternatives(start, problem.dtype, few, problem.chip.kind)
    if problem.family == "attention_decode" and problem.table.size("longest_kv").any():
        changes.append({"alone_key_s": 2e-8})
    for change in changes:
        if all(getattr(best, name) == value for name, value in change.items()):
            continue
        prior = start.model_copy(update=change)
        candidate = _solve(search, best.model_copy(update=change), prior)
        now = loss(search, candidate)
        if now < error * (WORTH_FEW if few else WORTH):
            best, error = candidate, now
    if len(search) == len(problem):
        return best
    chosen = {name: getattr(best, name) for name in type(best).model_fields if name not in best.free}
    return _solve(sampled(problem, FINAL_ROWS, generator), best, start.model_copy(update=chosen))


def loss(problem: FitProblem, parameters: FamilyParameters) -> float:
    """Robust mean error, in units of ``ROBUST_SCALE`` squared."""
    error = np.log(problem.seconds(parameters) / problem.table.measured_s) / ROBUST_SCALE
    return float(np.mean(2.0 * (np.sqrt(1.0 + error**2) - 1.0)))


def sampled(problem: FitProblem, rows: int, generator: np.random.Generator) -> FitProblem:
    """At most ``rows`` rows, drawn without replacement."""
    if len(problem) <= rows:
        return problem
    chosen = np.sort(generator.choice(len(problem), rows, replace=False))
    return problem.where(chosen)


def _solve(problem: FitProblem, start: FamilyParameters, prior: FamilyParameters) -> FamilyParameters:
    from scipy.optimize import least_squares

    moved = coordinates(start, problem.chip.kind)
    measured = np.log(problem.table.measured_s)
    centre = np.array([coordinate.scaled(float(getattr(prior, coordinate.name))) for coordinate in moved])

    def parameters_at(position: FloatArray) -> FamilyParameters:
        values = {coordinate.name: coordinate.value(float(x)) for coordinate, x in zip(moved, position, strict=True)}
        return start.model_copy(update=values)

    def errors(position: FloatArray) -> FloatArray:
        predicted = np.log(problem.seconds(parameters_at(position)))
        return np.concatenate([predicted - measured, PRIOR * (position - centre)])

    first = np.array([coordinate.scaled(float(getattr(start, coordinate.name))) for coordinate in moved])
    first = np.clip(first, 1e-3, 1.0 - 1e-3)
    found = least_squares(
        errors,
        first,
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        diff_step=np.full(len(moved), 1e-3),
        max_nfev=_EVALUATIONS,
    )
    return parameters_at(np.asarray(found.x, dtype=np.float64))
