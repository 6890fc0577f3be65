"""Robust least squares on the logarithm of the error: a few physical parameters of one kernel family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwprofiles.decode_kernel import UnpackedKernel
from hwprofiles.dtypes import format_of
from hwprofiles.parameters import UNPACKED, DecodeParameters, FamilyParameters
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

VECTOR_SHARE = 0.02
"""Share of the matrix units' peak at which a kernel on the vector units starts in a fit."""
NESTED = "unpacked."
"""What precedes the name of a parameter of the unpacked decode kernel."""
QUANTISE = Coordinate("quantise_s", 1e-7, 2e-5)
"""Free where the library quantises activations in a kernel of its own."""
REGROUP = Coordinate("regroup_s", 1e-7, 1e-5)
ROW_WAVE = Coordinate("row_wave_s", 1e-8, 1e-5)


CPU_EXTRA: Mapping[str, Sequence[Coordinate]] = {
    "attention_decode": (Coordinate("key_s", 0.0, 5e-7),),
    "elementwise": (Coordinate("element_s", 0.0, 2e-9), Coordinate("cold_s", 0.0, 1e-3)),
}
"""Parameters a fit moves on a CPU only, where arithmetic of a pass is not hidden and cold code costs time."""
CPU_TIMES = 10.0
"""On a CPU every fixed time may be so many times longer: a kernel there is a call from Python, tens of microseconds."""


def coordinates(parameters: FamilyParameters, kind: str = "") -> tuple[Coordinate, ...]:
    """What a fit of these parameters moves on a chip of that kind."""
    found = [Coordinate(name, *bounds) for name, bounds in parameters.free.items()]
    if isinstance(parameters, DecodeParameters) and parameters.unpacked is not None:
        found += [Coordinate(f"{NESTED}{name}", *bounds) for name, bounds in UNPACKED.items()]
    if kind == "cpu":
        found = [c._replace(high=c.high * CPU_TIMES) if c.name.endswith("_s") else c for c in found]
        found += CPU_EXTRA.get(parameters.family, ())
    found += EXTRA.get(parameters.family, ())
    for optional in (QUANTISE, REGROUP, ROW_WAVE):
        if getattr(parameters, optional.name, 0.0):
            found.append(optional)
    return tuple(found)


ANY_ROWS = tuple((rows, 64) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32))
"""Tiles of a CPU library whose blocks take as many rows as there are: no row of a block is computed in vain."""


def alternatives(parameters: FamilyParameters, dtype: str, few: bool, kind: str = "") -> list[dict[str, Any]]:
    """Other structures worth trying, each as changed fields; with few rows only where libraries differ most."""
    if few and not parameters.family.startswith("attention"):
        return []
    narrow = format_of(dtype) in ("fp8", "fp8_block", "int8", "mxfp8", "fp4")
    if parameters.family == "gemm":
        options: list[dict[str, Any]] = [{"max_split_k": 1.0}, {"max_split_k": 4.0}]
        options += [{"tiles": ANY_ROWS}] if kind == "cpu" else []
        return options + ([{"quantise_s": 3e-6}, {"quantise_s": 0.0}] if narrow else [])
    if parameters.family == "attention_prefill":
        options = [{"packing": name} for name in ("always", "single", "never")]
        options += [{"tile_rows": rows} for rows in (64.0, 128.0, 192.0)]
        options += [{"regroup_s": 4e-6}, {"regroup_s": 0.0}]
        return options + ([{"native_math": True}, {"native_math": False}] if narrow else [])
    if parameters.family == "attention_decode":
        options = [{"unpacked": unpacked_start(parameters, 0.0)}, CPU_DECODE] if kind == "cpu" else []
        return options + _decode_alternatives(parameters, few)
    if parameters.family == "moe":
        return [{"local_only": True}, {"local_only": False}]
    return []


CPU_DECODE: dict[str, Any] = {"stream_overlap": 1.0, "row_step": 1.0}
"""A CPU core reads and computes in turn, and computes no more rows than there are. Single rows may have a routine of
their own there (a vector instead of a matrix), hence the unpacked kernel is tried however few the rows."""


def _decode_alternatives(parameters: FamilyParameters, few: bool) -> list[dict[str, Any]]:
    """Ways to split the KV axis and to pack query heads; kernels beside the packed one only where rows are many."""
    tokens: list[dict[str, Any]] = [{"split_tokens": number} for number in (64.0, 128.0, 256.0, 512.0, 1024.0)]
    options = [*tokens, *({"max_splits": parts} for parts in (1.0, 16.0, 32.0, 128.0))]
    options += [{"min_group_to_split": 1.0}, {"min_group_to_split": 2.0}, {"regroup_s": 2e-6}, {"regroup_s": 0.0}]
    options += [{"tile_rows": rows} for rows in (16.0, 64.0)]
    if few:
        return options
    beside: list[dict[str, Any]] = [{"unpacked": unpacked_start(parameters, fill)} for fill in (0.25, 0.0)]
    beside += [{"split_tokens": 128.0, "split_root": 8.0, "split_fill": 8.0}]
    beside += [{"row_wave_s": 1e-6}, {"row_step": 8.0}]
    inner = [*tokens, *({"split_fill": fill} for fill in (1.0, 2.0, 4.0))]
    return beside + options + [{NESTED + name: value for name, value in change.items()} for change in inner]


def unpacked_start(parameters: FamilyParameters, least_fill: float) -> UnpackedKernel:
    """An unpacked kernel to start a fit from: the packed one's numbers, on the vector units."""
    names = [name for name in UNPACKED if name != "compute_efficiency"]
    own = {name: getattr(parameters, name) for name in names}
    own |= {"compute_efficiency": VECTOR_SHARE, "hidden_s": own["wave_s"], "pass_s": 0.3 * own["wave_s"]}
    return UnpackedKernel(**own, least_fill=least_fill)


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
    for change in alternatives(start, problem.dtype, few, problem.chip.kind):
        if not _applies(best, change):
            continue
        prior = _changed(start.model_copy(update=_structure(best)), change)
        candidate = _solve(search, _changed(best, change), prior, _concerned(best, change))
        now = loss(search, candidate)
        if now < error * (WORTH_FEW if few else WORTH):
            best, error = candidate, now
    if len(search) == len(problem):
        return best
    chosen = {name: getattr(best, name) for name in type(best).model_fields if name not in best.free}
    return _solve(sampled(problem, FINAL_ROWS, generator), best, start.model_copy(update=chosen))


def _applies(parameters: FamilyParameters, change: Mapping[str, Any]) -> bool:
    """Whether a change is one: not yet so, and of a kernel the library has."""
    if getattr(parameters, NESTED[:-1], None) is None and any(name.startswith(NESTED) for name in change):
        return False
    return any(_field(parameters, name) != value for name, value in change.items())


def _structure(parameters: FamilyParameters) -> dict[str, Any]:
    """The kernel a library falls back to, where a fit has found one."""
    return {"unpacked": parameters.unpacked} if isinstance(parameters, DecodeParameters) else {}


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


def _field(parameters: FamilyParameters, name: str) -> Any:
    """A field by name; those of the unpacked kernel have its name before theirs."""
    owner: Any = getattr(parameters, NESTED[:-1]) if name.startswith(NESTED) else parameters
    return getattr(owner, name.removeprefix(NESTED))


def _changed(parameters: FamilyParameters, values: Mapping[str, Any]) -> FamilyParameters:
    """``parameters`` with other values by name."""
    own = {name: value for name, value in values.items() if not name.startswith(NESTED)}
    inner = {name.removeprefix(NESTED): value for name, value in values.items() if name.startswith(NESTED)}
    if inner:
        own[NESTED[:-1]] = getattr(parameters, NESTED[:-1]).model_copy(update=inner)
    return parameters.model_copy(update=own)


def _concerned(parameters: FamilyParameters, change: Mapping[str, Any]) -> bool | None:
    """Whether a change is one of the unpacked kernel (True) or of the packed one (False), which share no rows; None
    where there is no second kernel, or where it is new."""
    if getattr(parameters, NESTED[:-1], None) is None or NESTED[:-1] in change:
        return None
    return any(name.startswith(NESTED) for name in change)


def _solve(
    problem: FitProblem, start: FamilyParameters, prior: FamilyParameters, nested: bool | None = None
) -> FamilyParameters:
    """Least squares from ``start``, over the parameters of one kernel of two (``nested``) or over all."""
    from scipy.optimize import least_squares

    moved = coordinates(start, problem.chip.kind)
    if nested is not None:
        moved = tuple(coordinate for coordinate in moved if coordinate.name.startswith(NESTED) is nested)
    measured = np.log(problem.table.measured_s)
    centre = np.array([coordinate.scaled(float(_field(prior, coordinate.name))) for coordinate in moved])

    def parameters_at(position: FloatArray) -> FamilyParameters:
        values = {coordinate.name: coordinate.value(float(x)) for coordinate, x in zip(moved, position, strict=True)}
        return _changed(start, values)

    def errors(position: FloatArray) -> FloatArray:
        predicted = np.log(problem.seconds(parameters_at(position)))
        return np.concatenate([predicted - measured, PRIOR * (position - centre)])

    first = np.array([coordinate.scaled(float(_field(start, coordinate.name))) for coordinate in moved])
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
