"""Robust least squares on logarithmic errors: the few physical parameters of one kernel family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import BoolArray, FloatArray
from forerun.yaml_files import packaged
from hwprofiles import Chip, KernelLibrary, KernelTime
from hwprofiles.dtypes import format_of
from hwprofiles.operations import OPERATIONS, row_call, stored_set
from hwprofiles.parameters import DecodeParameters, FamilyParameters, UnpackedKernel
from simulator.replay.modules import Modules
from simulator.replay.predict import attention_kernels, kernel_groups, predict_table, priced_columns
from simulator.replay.split import Split, training_rows
from traces.kernels import OTHER, KernelTable
from traces.kernels.table import IndexArray, equal_rows

CORE: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "gemm": {"n": (1024, 1 << 40), "k": (1024, 1 << 40)},
    "collective": {"message_bytes": (1 << 20, 1 << 60)},
}
"""Shapes of today's language models, on which physical parameters are fitted if a trace has enough such rows."""
MIN_CORE_ROWS = 16


@dataclass(frozen=True, slots=True)
class FitProblem:
    """Rows of one family and stored format on one chip, in parts that one call of the library predicts each."""

    chip: Chip
    family: str
    dtype: str
    table: KernelTable
    parts: tuple[tuple[IndexArray, Callable[[KernelLibrary], KernelTime]], ...]

    def __len__(self) -> int:
        return len(self.table)

    def seconds(self, parameters: FamilyParameters) -> FloatArray:
        """Predicted seconds of every row under ``parameters``."""
        return self.times(parameters)[0]

    def times(self, parameters: FamilyParameters) -> tuple[FloatArray, NDArray[np.str_]]:
        """Predicted seconds and limiting resource of every row."""
        kernels = KernelLibrary(chip_with(self.chip, self.family, self.dtype, parameters), "fit", corrected=False)
        seconds = np.empty(len(self.table))
        bound = np.empty(len(self.table), dtype="<U7")
        for rows, call in self.parts:
            time = call(kernels)
            seconds[rows] = time.seconds
            bound[rows] = time.bound
        return seconds, bound

    def where(self, rows: NDArray[Any]) -> FitProblem:
        """The same fit on some of its rows."""
        return make_problem(self.chip, self.family, self.dtype, self.table.where(rows))


def chip_with(chip: Chip, family: str, dtype: str, parameters: FamilyParameters) -> Chip:
    """``chip`` with one parameter set only, under the library name ``fit``."""
    return chip.model_copy(update={"kernels": {"fit": {family: {dtype: parameters}}}})


def make_problem(chip: Chip, family: str, dtype: str, table: KernelTable) -> FitProblem:
    """Prepare the calls that predict ``table``, whose rows all belong to ``family`` and ``dtype``."""
    op = table.word("op")
    parts = [
        (rows, _call(chip, name, table, rows))
        for code, name in enumerate(op.names)
        for rows in kernel_groups(table, name, np.flatnonzero(op.codes == code))
    ]
    return FitProblem(chip, family, dtype, table, tuple(parts))


def _call(chip: Chip, op: str, table: KernelTable, rows: IndexArray) -> Callable[[KernelLibrary], KernelTime]:
    if not op.startswith("sparse"):
        return row_call(op, priced_columns(table, rows))
    library = table.text("library", rows[0])
    return Modules(table, rows, KernelLibrary(chip, library if library in chip.kernels else "generic")).times


def family_rows(table: KernelTable) -> dict[tuple[str, str], IndexArray]:
    """Row indices by family and stored format, for every operation with its own parameters. Kernels of routed experts
    are grouped by their name in the trace."""
    columns = [table.word(name).codes for name in ("op", "dtype", "kv_dtype", "name", "source")]
    parts_by_kernel: dict[tuple[str, str], list[IndexArray]] = {}
    for rows in equal_rows([*columns, attention_kernels(table)]):
        op = table.text("op", rows[0])
        if op not in (OTHER, "attention_mixed"):
            stored = stored_set(op, priced_columns(table, rows[:1])).replace("fp16", "bf16", 1)
            parts_by_kernel.setdefault((OPERATIONS[op].family, stored), []).append(rows)
    return {key: np.sort(np.concatenate(parts)) for key, parts in parts_by_kernel.items()}


def core_rows(family: str, table: KernelTable) -> BoolArray:
    """Rows with shapes of current models; all rows if the trace has too few of them."""
    core = np.ones(len(table), dtype=bool)
    for name, (low, high) in CORE.get(family, {}).items():
        values = table.size(name)
        core &= (values >= low) & (values <= high)
    return core if core.sum() >= MIN_CORE_ROWS else np.ones(len(table), dtype=bool)


SEARCH_ROWS = 500
"""Rows on which the alternatives of a family's structure are compared."""
FINAL_ROWS = 2500
"""Rows of the final fit; more rows do not change ten parameters."""
ROBUST_SCALE = 0.08
"""Errors beyond this share count linearly, not squared: one slow code path must not bend the rest."""
PRIOR = 0.3
"""Pull towards the starting values, in units of error per width of the allowed interval. It decides with 20 rows and
vanishes with 2,000."""
FEW_ROWS = 60
"""Below this a fit sees too little to distinguish most structures."""
WORTH, WORTH_FEW = 0.98, 0.85
"""An alternative structure must lower the error to this share of the former error; ``WORTH_FEW`` is for few rows."""

_EVALUATIONS = 60
_TOLERANCE = 1e-4
"""Share of change in error or position below which a search ends. Slopes are taken over steps of 1e-3, and less than a
hundredth of a percent of the error cannot be measured."""


class Coordinate(NamedTuple):
    """A parameter in the search: 0 .. 1 between its bounds, on a logarithmic scale if these differ greatly."""

    name: str
    low: float
    high: float

    @property
    def logarithmic(self) -> bool:
        """True if the bounds are positive and differ by more than a factor of 20."""
        return self.low > 0 and self.high / self.low > 20

    def scaled(self, value: float) -> float:
        """Position of a value, clipped into the bounds."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            return float(np.log(inside / self.low) / np.log(self.high / self.low))
        return (inside - self.low) / (self.high - self.low)

    def value(self, position: float) -> float:
        """Parameter value at a position in [0, 1] between its bounds."""
        if self.logarithmic:
            return float(self.low * (self.high / self.low) ** position)
        return self.low + (self.high - self.low) * position


VECTOR_SHARE = 0.02
"""Share of the matrix units' peak at which a kernel on the vector units starts in a fit."""
NESTED = "unpacked."
"""Prefix of the parameter names of the unpacked decode kernel."""
CPU_TIMES = 10.0
"""Factor on every fixed time on a CPU, where a kernel is a call from Python. A call takes tens of microseconds."""


@cache
def search_bounds() -> dict[str, Any]:
    """Content of ``search_bounds.yaml``: intervals of the parameters that a calibration moves."""
    bounds: dict[str, Any] = packaged("simulator.replay", "search_bounds.yaml")
    return bounds


def coordinates(parameters: FamilyParameters, kind: str = "") -> tuple[Coordinate, ...]:
    """Parameters that a fit varies on the given kind of chip."""
    bounds, family = search_bounds(), parameters.family
    free = dict(bounds["free"][family])
    if isinstance(parameters, DecodeParameters) and parameters.unpacked is not None:
        free |= {f"{NESTED}{name}": ends for name, ends in bounds["unpacked"].items()}
    if kind == "cpu":
        free = {name: (low, high * CPU_TIMES if name.endswith("_s") else high) for name, (low, high) in free.items()}
        free |= bounds["cpu"].get(family, {})
    free |= bounds["further"].get(family, {})
    free |= {name: ends for name, ends in bounds["in_use"].items() if getattr(parameters, name, None)}
    free |= bounds["quantising"] if getattr(parameters, "quantise_s", None) else {}
    return tuple(Coordinate(name, *ends) for name, ends in free.items())


def free_values(parameters: FamilyParameters) -> dict[str, float]:
    """Free parameters of a set by name; parameters of the unpacked kernel have the prefix ``NESTED``."""
    names = list(search_bounds()["free"][parameters.family])
    names += [one.name for one in coordinates(parameters) if one.name.startswith(NESTED)]
    return {name: float(_field(parameters, name)) for name in names}


ANY_ROWS = tuple((rows, 64) for rows in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32))
"""Tiles of a CPU library whose blocks compute no row in vain."""

SMALL_TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (16, 128), (16, 64))
"""Tiles of a GEMM library on chips without warp-group products: at most 128 x 128."""


def alternatives(parameters: FamilyParameters, dtype: str, few: bool, kind: str = "") -> list[dict[str, Any]]:
    """Alternative structures to try, each as changed fields; with few rows only of attention, where libraries differ
    most."""
    if few and not parameters.family.startswith("attention"):
        return []
    narrow = format_of(dtype) in ("fp8", "fp8_block", "int8", "mxfp8", "fp4")
    if parameters.family == "gemm":
        options: list[dict[str, Any]] = [{"max_split_k": 1.0}, {"max_split_k": 4.0}]
        options += [{"tiles": ANY_ROWS}] if kind == "cpu" else []
        options += [{"tiles": SMALL_TILES}] if kind == "gpu-consumer" else []
        return options + ([{"quantise_s": 3e-6}, {"quantise_s": 0.0}] if narrow else [])
    if parameters.family == "attention_prefill":
        options = [{"packing": name} for name in ("always", "single", "never")]
        options += [{"tile_rows": rows} for rows in (64.0, 128.0, 192.0)]
        options += [{"regroup_s": 4e-6}, {"regroup_s": 0.0}, {"masked_share": 0.5}]
        return options + ([{"native_math": True}, {"native_math": False}] if narrow else [])
    if parameters.family == "attention_decode":
        options = [{"unpacked": unpacked_start(parameters, 0.0)}, CPU_DECODE] if kind == "cpu" else []
        return options + _decode_alternatives(parameters, few)
    if parameters.family == "moe":
        return [{"local_only": True}, {"local_only": False}]
    if parameters.family == "recurrent_decode":
        return [{"verify_s": 5e-6}]
    if parameters.family.startswith("sparse"):
        near = [{"near_s": 1e-5}] if parameters.family == "sparse_prefill" else []
        return [{"row_tile": 128.0}, {"row_tile": 64.0}, {"pair_s": 1e-7, "group_pair_s": 1e-7}, *near]
    return []


CPU_DECODE: dict[str, Any] = {"stream_overlap": 1.0, "row_step": 1.0}
"""A CPU core alternates between reading and computing, and computes no padded rows. Single rows may have their own
routine (vector instead of matrix), so the unpacked kernel is tried even with few measured rows."""


ALWAYS_SPLIT: dict[str, Any] = {"split_tokens": 0.01, "split_fill": 1024.0, "max_splits": 32.0, "split_seqs": 512.0}
"""Fixed number of KV splits per sequence and KV head, up to the largest captured batch. Example: FlashAttention-4 with
head size 512 under vLLM 0.24 (``flash_attn_max_num_splits_for_cuda_graph`` and ``max_cudagraph_capture_size`` of its
configuration)."""


def _decode_alternatives(parameters: FamilyParameters, few: bool) -> list[dict[str, Any]]:
    """Ways to split the KV axis and to pack query heads. Unpacked kernels are tried only if there are many rows."""
    tokens: list[dict[str, Any]] = [{"split_tokens": number} for number in (64.0, 128.0, 256.0, 512.0, 1024.0)]
    options = [*tokens, *({"max_splits": parts} for parts in (1.0, 16.0, 32.0, 128.0))]
    options += [{"min_group_to_split": 1.0}, {"min_group_to_split": 2.0}, {"regroup_s": 2e-6}, {"regroup_s": 0.0}]
    options += [{"tile_rows": rows} for rows in (16.0, 64.0)]
    if few:
        return options
    beside: list[dict[str, Any]] = [{"unpacked": unpacked_start(parameters, fill)} for fill in (0.25, 0.0)]
    beside += [{"split_tokens": 128.0, "split_root": 8.0, "split_fill": 8.0}]
    beside += [{"row_wave_s": 1e-6}, {"row_step": 8.0}, ALWAYS_SPLIT]
    inner = [*tokens, *({"split_fill": fill} for fill in (1.0, 2.0, 4.0))]
    return beside + options + [{NESTED + name: value for name, value in change.items()} for change in inner]


def unpacked_start(parameters: FamilyParameters, least_fill: float) -> UnpackedKernel:
    """Starting point of an unpacked kernel's fit: the packed kernel's parameters, on the vector units."""
    names = [name for name in search_bounds()["unpacked"] if name != "compute_efficiency"]
    own = {name: getattr(parameters, name) for name in names}
    own |= {"compute_efficiency": VECTOR_SHARE, "hidden_s": own["wave_s"], "pass_s": 0.3 * own["wave_s"]}
    return UnpackedKernel(**own, least_fill=least_fill)


def fit_parameters(problem: FitProblem, start: FamilyParameters, seed: int = 0) -> FamilyParameters:
    """Fit the parameters of one family on the rows that a fit may see.

    ``start`` is the starting point and the prior: class defaults, or an earlier fit. Its ``source`` is kept.
    """
    generator = np.random.default_rng(seed)
    search = sampled(problem, SEARCH_ROWS, generator)
    best = _solve(search, start, start)
    error = loss(search, best)
    few = len(problem) < FEW_ROWS
    changes = alternatives(start, problem.dtype, few, problem.chip.kind)
    if problem.family == "attention_decode" and problem.table.size("longest_kv").any():
        changes.append({"tail_key_s": 2e-8})
    if problem.family == "elementwise" and problem.table.size("pieces").any():
        changes.append({"piece_s": 1e-8})
    seconds = search.seconds(best)
    for change in changes:
        if not _applies(best, change):
            continue
        other = _changed(best, change)
        if np.array_equal(search.seconds(other), seconds):
            continue  # no row distinguishes the two
        unpacked = {"unpacked": best.unpacked} if isinstance(best, DecodeParameters) else {}
        prior = _changed(start.model_copy(update=unpacked), change)
        candidate = _solve(search, other, prior, _concerned(best, change))
        now = loss(search, candidate)
        if now < error * (WORTH_FEW if few else WORTH):
            best, error, seconds = candidate, now, search.seconds(candidate)
    if len(search) == len(problem):
        return best
    chosen = {
        name: getattr(best, name)
        for name in type(best).model_fields
        if name not in search_bounds()["free"][best.family]
    }
    return _solve(sampled(problem, FINAL_ROWS, generator), best, start.model_copy(update=chosen))


def _applies(parameters: FamilyParameters, change: Mapping[str, Any]) -> bool:
    if getattr(parameters, NESTED[:-1], None) is None and any(name.startswith(NESTED) for name in change):
        return False
    return any(_field(parameters, name) != value for name, value in change.items())


def loss(problem: FitProblem, parameters: FamilyParameters) -> float:
    """Robust mean error, in units of ``ROBUST_SCALE`` squared."""
    error = np.log(problem.seconds(parameters) / problem.table.measured_s) / ROBUST_SCALE
    return float(np.mean(2.0 * (np.sqrt(1.0 + error**2) - 1.0)))


def sampled(problem: FitProblem, rows: int, generator: np.random.Generator) -> FitProblem:
    """At most ``rows`` rows, drawn without replacement."""
    if len(problem) <= rows:
        return problem
    return problem.where(np.sort(generator.choice(len(problem), rows, replace=False)))


def _field(parameters: FamilyParameters, name: str) -> Any:
    """A field by name; fields of the unpacked kernel have the prefix ``NESTED``."""
    owner: Any = getattr(parameters, NESTED[:-1]) if name.startswith(NESTED) else parameters
    return getattr(owner, name.removeprefix(NESTED))


def _changed(parameters: FamilyParameters, values: Mapping[str, Any]) -> FamilyParameters:
    own = {name: value for name, value in values.items() if not name.startswith(NESTED)}
    inner = {name.removeprefix(NESTED): value for name, value in values.items() if name.startswith(NESTED)}
    if inner:
        own[NESTED[:-1]] = getattr(parameters, NESTED[:-1]).model_copy(update=inner)
    return parameters.model_copy(update=own)


def _concerned(parameters: FamilyParameters, change: Mapping[str, Any]) -> bool | None:
    """True if a change concerns the unpacked kernel, False for the packed one (they share no rows); None if there is no
    second kernel, or where it is new."""
    if getattr(parameters, NESTED[:-1], None) is None or NESTED[:-1] in change:
        return None
    return any(name.startswith(NESTED) for name in change)


def _solve(
    problem: FitProblem, start: FamilyParameters, prior: FamilyParameters, nested: bool | None = None
) -> FamilyParameters:
    """Least squares from ``start``, over the parameters of one kernel of two (``nested``) or over all."""
    moved = coordinates(start, problem.chip.kind)
    if nested is not None:
        moved = tuple(coordinate for coordinate in moved if coordinate.name.startswith(NESTED) is nested)
    measured = np.log(problem.table.measured_s)
    centre = np.array(_positions(prior, moved))

    def errors(parameters: FamilyParameters, position: FloatArray) -> FloatArray:
        return np.concatenate([np.log(problem.seconds(parameters)) - measured, PRIOR * (position - centre)])

    return _least_squares(errors, start, moved, _EVALUATIONS)


def _positions(parameters: FamilyParameters, moved: Sequence[Coordinate]) -> list[float]:
    return [coordinate.scaled(float(_field(parameters, coordinate.name))) for coordinate in moved]


def _least_squares(
    errors: Callable[[FamilyParameters, FloatArray], FloatArray],
    start: FamilyParameters,
    moved: Sequence[Coordinate],
    evaluations: int,
) -> FamilyParameters:
    """``start`` with the values of ``moved`` at which the robust sum of squared errors is least."""
    from scipy.optimize import least_squares

    def parameters_at(position: FloatArray) -> FamilyParameters:
        return _changed(start, {one.name: one.value(float(x)) for one, x in zip(moved, position, strict=True)})

    def residuals(position: FloatArray) -> FloatArray:
        return errors(parameters_at(position), position)

    solution = least_squares(
        residuals,
        np.clip(np.array(_positions(start, moved)), 1e-3, 1.0 - 1e-3),
        bounds=(0.0, 1.0),
        loss="soft_l1",
        f_scale=ROBUST_SCALE,
        diff_step=np.full(len(moved), 1e-3),
        max_nfev=evaluations,
        ftol=_TOLERANCE,
        xtol=_TOLERANCE,
    )
    return parameters_at(np.asarray(solution.x, dtype=np.float64))


MIXED_ROWS = 2000
MIXED_SEARCH_ROWS = 400
"""Rows on which the shares of the on-chip store are compared."""
KEPT_SHARES = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Shares of the on-chip store that are tried for batches of prompt chunks and single queries."""
MIXED_MOVED = (
    Coordinate("mixed_efficiency", 0.2, 1.0),
    Coordinate("mixed_overlap", 1.0, 10.0),
    Coordinate("idle_tile_s", 0.0, 1e-8),
)
"""Parameters that a fit varies if one pass serves prompt chunks and single queries."""
MIXED_START = {"mixed_efficiency": 0.9, "mixed_overlap": 2.0, "idle_tile_s": 1e-9}


def mixed_structure(
    table: KernelTable,
    chip: Chip,
    fitted: dict[str, FamilyParameters],
    decode: dict[str, FamilyParameters],
    split: Split,
    least_rows: int,
) -> dict[str, FamilyParameters]:
    """Prefill sets by format, with the structure that explains mixed training rows best. Prompt chunks and single
    queries run in two kernels, or in one pass with its own bandwidth, overlap and time per idle tile.

    Only sets of ``fitted`` for which the trace has at least ``least_rows`` such batches are returned.
    """
    rows = table.where(table.word("op").equals("attention_mixed"))
    structures = {}
    for dtype, prefill in fitted.items():
        part = rows.where(rows.word("kv_dtype").equals(dtype) | rows.word("dtype").equals(dtype))
        part = part.where(training_rows(part, split))
        if len(part) < least_rows:
            continue
        whole = _MixedProblem(_spread(part, MIXED_ROWS), chip, dtype, decode)
        some = replace(whole, rows=_spread(whole.rows, MIXED_SEARCH_ROWS))
        start = prefill.model_copy(update={"mixed": "one-pass", **MIXED_START})
        tried = [some.solved(start.model_copy(update={"kept_share": share})) for share in KEPT_SHARES]
        best = whole.solved(min(tried, key=some.mean_error))
        separate = prefill.model_copy(update={"mixed": "separate"})
        structures[dtype] = min((separate, best), key=whole.mean_error)
    return structures


def _spread(part: KernelTable, rows: int) -> KernelTable:
    return part.where(np.linspace(0, len(part) - 1, min(len(part), rows)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class _MixedProblem:
    """Batches of prompt chunks and single queries in one format, and the decode sets beside the prefill set to fit."""

    rows: KernelTable
    chip: Chip
    dtype: str
    decode: dict[str, FamilyParameters]

    def errors(self, prefill: FamilyParameters) -> FloatArray:
        own = {"generic": {"attention_prefill": {self.dtype: prefill}, "attention_decode": self.decode}}
        kernels = KernelLibrary(self.chip.model_copy(update={"kernels": own}), corrected=False)
        return np.log(predict_table(self.rows, kernels).seconds / self.rows.measured_s)

    def mean_error(self, prefill: FamilyParameters) -> float:
        return float(np.mean(np.abs(self.errors(prefill))))

    def solved(self, start: FamilyParameters) -> FamilyParameters:
        def errors(prefill: FamilyParameters, _: FloatArray) -> FloatArray:
            return self.errors(prefill)

        return _least_squares(errors, start, MIXED_MOVED, 30)
