"""Fits a chip's kernel parameters to measured kernels, and learns a correction of the remaining error; each with
evidence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from forerun.arrays import BoolArray, FloatArray
from forerun.errors import ForerunError, named_arguments
from forerun.result import Summary
from forerun.tables import Table
from hwprofiles import Chip, KernelLibrary, Source, load_chip
from hwprofiles.catalogue import load_defaults
from hwprofiles.choice import inside_ranges
from hwprofiles.correction import SIZES, Correction, Key, save_corrections
from hwprofiles.dtypes import VARIANT, format_of
from hwprofiles.formulas import PLAIN_HEAD, WINDOWED
from hwprofiles.library import LIBRARIES
from hwprofiles.parameters import FamilyParameters
from hwprofiles.records import Fit, FittedOn
from hwprofiles.schema import CORRECTIONS
from simulator.replay.correction import KEPT, KEPT_OF_ATTENTION, correction_inputs, learn
from simulator.replay.evidence import conformal_intervals, interval_ends, rows_inside, seen_ranges
from simulator.replay.fit import (
    FEW_ROWS,
    FitProblem,
    core_rows,
    family_rows,
    fit_parameters,
    free_values,
    loss,
    make_problem,
    mixed_structure,
)
from simulator.replay.kernels import only_device
from simulator.replay.predict import REGIMES, predict_table
from simulator.replay.replay_tables import Replay, calibration_tables
from simulator.replay.speed_of_light import impossible_rows
from simulator.replay.split import Split, training_rows
from traces.kernels import KernelFiles, KernelTable, as_table
from traces.kernels.table import IndexArray, constant

MIN_ROWS = 5
"""Minimum number of rows for fitting a family's parameters."""
FOLDS = 4
SPARSE_STARTS: tuple[dict[str, float], ...] = (
    {"dense_efficiency": 0.5, "dense_host_s": 2e-4},
    {"few_heads_efficiency": 0.25},
)
"""Sparse attention under libraries that serve short prompts by dense attention, or few heads by another kernel."""
SCARCE_SIZES = 20
"""Minimum number of distinct sizes for an elementwise kernel to get its own fit."""
OTHER_RULES = ("sparse", "recurrent", "elementwise")
"""Beginnings of families whose named kernels compute something else than the plain ones."""
SCARCE_ROWS = 40
"""Minimum number of held-out rows for a 90 % interval: the 5th and 95th percentile then lie within the data."""
INTERVAL_SPLIT = Split(0.5, 90)
"""Split of the held-out rows: one half sets the intervals, the other half checks them."""


class FamilyFit(NamedTuple):
    """One fitted parameter set and its errors on rows it has not seen, in percent."""

    family: str
    dtype: str
    rows: int
    held_out_rows: int
    held_out_mape: float
    held_out_median_ape: float
    coverage90: float | None
    residual_mape: float | None
    parameters: FamilyParameters


@dataclass(frozen=True, eq=False, repr=False)
class Calibration(Replay):
    """A chip with fitted parameters and learned corrections, and the rows left out."""

    kind = "calibrate"

    chip: Chip
    library: str
    fits: tuple[FamilyFit, ...]
    corrections: dict[Key, Correction]
    skipped: dict[str, int]
    source: str
    split: Split

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON of ``forerun calibrate``; errors in percent."""
        from forerun.version import VERSION

        families = [one._asdict() | {"parameters": free_values(one.parameters)} for one in self.fits]
        return {
            "chip": self.chip.name,
            "library": self.library,
            "source": self.source,
            "split": self.split._asdict(),
            "families": families,
            "skipped": self.skipped,
            "version": VERSION,
        }

    @property
    def title(self) -> str:
        """The chip and the library that the fit is stored under."""
        return f"{self.chip.name}, library {self.library}"

    @property
    def facts(self) -> str:
        """Number of fitted kernel families, and the source of the fit."""
        return f"{len(self.fits)} kernel families of {self.source}"

    @property
    def summary(self) -> Summary:
        """Mean error of each family on rows that its fit has not seen, in percent."""
        return Summary({f"{one.family} {one.dtype}": one.held_out_mape for one in self.fits})

    def tables(self) -> list[Table]:
        """Errors by kernel family, and unused rows."""
        return calibration_tables(self.document)

    def records(self) -> list[dict[str, Any]]:
        """A row per fitted family."""
        return [dict(family) for family in self.document["families"]]

    def save(self, folder: str | Path) -> Path:
        """Write the profile ``<chip>.yaml`` and the learned corrections into ``folder``.

        Raises:
            OSError: a file cannot be written.
        """
        write_profile(self, Path(folder) / f"{self.chip.name}.yaml")
        return Path(folder)


@named_arguments
def calibrate(
    table: KernelFiles,
    chip: Chip | str | Path,
    library: str = "generic",
    split: Split | None = None,
    residual: bool = True,
    seed: int = 0,
    reference: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: bool = True,
) -> Calibration:
    """Fit every kernel family that has rows in a trace.

    The physical parameters are fitted on the training split, judged on the rest. With fewer than ``FEW_ROWS`` rows all
    are fitted, drawn towards the defaults of the chip's class, and judged by leaving out a quarter at a time.

    Args:
        table: measured kernels, or a file or several files of them.
        chip: the measured chip: a profile, a catalogue name or a file.
        library: library name under which the fit is stored.
        split: split that determines the shapes which a fit may use.
        residual: whether to learn the correction too.
        seed: seed of every random choice.
        reference: data source to record in the profile; default: the trace's files.
        progress: called with (families done, families).
        judge: estimate errors and intervals, by a fit per fold of scarce rows; without, for fits whose errors the
            caller estimates.

    Raises:
        ForerunError: rows of several devices, a wrong unit, or no family with enough rows.
    """
    split, table = split or Split(), as_table(table)
    chip = chip if isinstance(chip, Chip) else load_chip(chip)
    only_device(table)
    skipped = Counter(table.skipped)
    table = _of_library(table, library, skipped)
    known = library if library in (*LIBRARIES, *chip.kernels) else "generic"
    prediction = predict_table(table, KernelLibrary(chip, known, corrected=False))
    out, reasons = impossible_rows(table, prediction, chip)
    skipped.update(prediction.refused)
    skipped.update(reasons)
    table = table.where(np.isfinite(prediction.seconds) & ~out)
    rows_by_kernel = _plain_where_single(family_rows(table))
    sets: dict[str, dict[str, FamilyParameters]] = {}
    fits: list[FamilyFit] = []
    corrections: dict[Key, Correction] = {}
    for done, ((family, dtype), index) in enumerate(rows_by_kernel.items()):
        if progress is not None:
            progress(done, len(rows_by_kernel))
        rows = table.where(index)
        if len(rows) < MIN_ROWS:
            skipped[f"too few {family} {dtype} rows to fit"] = len(rows)
            continue
        alike = _same_kernel(table, rows_by_kernel, dtype) if family == "elementwise" else rows
        task = _KernelFit(chip, library, family, dtype, split, seed)
        parameters, seen, few = task.fit(alike)
        source = Source(kind="fitted", reference=reference or _reference(table), date=_month(), rows=len(seen))
        if not judge:
            fitted_set = {"source": source, "fit": Fit(ranges=seen_ranges(seen))}
            sets.setdefault(family, {})[dtype] = parameters.model_copy(update=fitted_set)
            continue
        one, correction = task.judged(rows, seen, parameters, few, source, residual)
        sets.setdefault(family, {})[dtype] = one.parameters
        fits.append(one)
        if correction is not None:
            corrections[library, family, dtype] = correction
    _plain_sets(library, sets, corrections, fits)
    attention = (sets.get("attention_prefill", {}), sets.get("attention_decode", {}))
    for dtype, one_pass in mixed_structure(table, chip, *attention, split, MIN_ROWS).items():
        sets["attention_prefill"][dtype] = one_pass
    if not sets:
        raise ForerunError(f"{table.source}: no kernel family has the {MIN_ROWS} rows a fit needs")
    fitted = _with_sets(chip, library, sets)
    return Calibration(fitted, library, tuple(fits), corrections, dict(skipped), table.source, split)


def _with_sets(chip: Chip, library: str, sets: dict[str, dict[str, FamilyParameters]]) -> Chip:
    own = {
        name: {family: dict(family_sets) for family, family_sets in families.items()}
        for name, families in chip.kernels.items()
    }
    for family, by_dtype in sets.items():
        before = own.setdefault(library, {}).setdefault(family, {})
        heads = family.startswith("attention")  # whose kernels for other head sizes stay
        for name in [name for name in before if not heads and format_of(name) in by_dtype]:
            del before[name]  # an earlier fit of one kernel must not come before this one of its format
        before.update(by_dtype)
    return chip.with_kernels(own)


def _same_kernel(table: KernelTable, rows_by_kernel: dict[tuple[str, str], IndexArray], dtype: str) -> KernelTable:
    """Rows of one elementwise kernel; for a convolution measured at few sizes, also the same kernel's rows under other
    names."""
    index = rows_by_kernel["elementwise", dtype]
    rows = table.where(index)
    different = np.unique(np.stack([rows.size("bytes_moved"), rows.size("pieces")]), axis=1).shape[1]
    if different >= SCARCE_SIZES or not rows.size("pieces").all():
        return rows
    served = np.isin(table.word("source").codes, rows.word("source").codes) & (table.size("pieces") > 0)
    alike = table.where(
        np.sort(np.concatenate([part[served[part]] for (f, _), part in rows_by_kernel.items() if f == "elementwise"]))
    )
    name = rows.word("name")
    return replace(alike, words={**alike.words, "name": constant(name.names[name.codes[0]], len(alike))})


def _plain_where_single(rows_by_kernel: dict[tuple[str, str], IndexArray]) -> dict[tuple[str, str], IndexArray]:
    """Rows by family and format. A kernel name or attention head size is dropped if it is the only one; rows of
    windowed attention join the other rows of their head size if the same kernel serves both."""
    joined: dict[tuple[str, str], list[IndexArray]] = {}
    for (family, dtype), rows in rows_by_kernel.items():
        dtype, *rest = dtype.split(VARIANT)
        if family.startswith("attention") and rest[0].endswith(WINDOWED):
            wide = VARIANT.join((dtype, rest[0].removesuffix(WINDOWED), *rest[1:]))
            rest[0] = rest[0].removesuffix(WINDOWED) if (family, wide) in rows_by_kernel else rest[0]
        joined.setdefault((family, VARIANT.join((dtype, *rest))), []).append(rows)
    named = ("moe", "attention_prefill", "attention_decode")
    count = Counter((family, _unnamed(family, dtype)) for family, dtype in joined)
    return {
        (family, _unnamed(family, dtype) if family in named and count[family, _unnamed(family, dtype)] == 1 else dtype):
        np.sort(np.concatenate(rows))
        for (family, dtype), rows in joined.items()
    }  # fmt: skip


def _unnamed(family: str, dtype: str) -> str:
    """A set's name without its kernel: the format, and the head size of attention unless 128."""
    dtype, *rest = dtype.split(VARIANT)
    sized = family.startswith("attention") and rest and rest[0] != PLAIN_HEAD
    return f"{dtype}{VARIANT}{rest[0]}" if sized else dtype


def _plain_sets(
    library: str,
    sets: dict[str, dict[str, FamilyParameters]],
    corrections: dict[Key, Correction],
    fits: list[FamilyFit],
) -> None:
    """Use the kernel with most rows as a format's default if its kernels compute the same; its correction too."""
    fitted = {(one.family, one.dtype) for one in fits}
    for one in sorted(fits, key=lambda fit: fit.rows):
        plain = _unnamed(one.family, one.dtype)
        if plain != one.dtype and not one.family.startswith(OTHER_RULES) and (one.family, plain) not in fitted:
            sets[one.family][plain] = one.parameters
            corrections.pop((library, one.family, plain), None)
            if (correction := corrections.get((library, one.family, one.dtype))) is not None:
                corrections[library, one.family, plain] = correction


def start_parameters(chip: Chip, family: str, dtype: str) -> list[FamilyParameters]:
    """Starting points of the fit: defaults of the chip's class at its clock, and variants of libraries. Defaults are
    converted for chips without asynchronous copies; sparse attention starts from each library's variant."""
    sets = load_defaults(chip.kind)[family]
    stored = format_of(dtype)
    names = (stored, stored.removesuffix("_block"), "bf16", "fp16", "any", *sets)
    nearest = next(sets[name] for name in names if name in sets)
    plain = nearest.at_clock(chip.compute.clock_hz).model_copy(update={"reference_clock_hz": None})
    if family.startswith("sparse"):
        others = SPARSE_STARTS if family == "sparse_prefill" else SPARSE_STARTS[1:]
        return [plain, *(plain.model_copy(update=change) for change in others)]
    carried = plain.carried(True, chip.compute.asynchronous)
    return [plain] if carried == plain else [plain, carried]


def best_fit(problem: FitProblem, starts: list[FamilyParameters], seed: int) -> FamilyParameters:
    """The best of the fits from several starting points."""
    return min((fit_parameters(problem, start, seed) for start in starts), key=lambda fitted: loss(problem, fitted))


@dataclass(frozen=True, slots=True)
class _KernelFit:
    chip: Chip
    library: str
    family: str
    dtype: str
    split: Split
    seed: int

    def problem(self, rows: KernelTable) -> FitProblem:
        return make_problem(self.chip, self.family, self.dtype, rows)

    def fit(self, rows: KernelTable) -> tuple[FamilyParameters, KernelTable, bool]:
        """The fit, the rows used, and whether rows are few (then the fit uses all rows)."""
        few = len(rows) < FEW_ROWS
        seen = rows if few else rows.where(training_rows(rows, self.split))
        problem = self.problem(seen if few else seen.where(core_rows(self.family, seen)))
        starts = start_parameters(self.chip, self.family, self.dtype)
        own = self.chip.kernels.get(self.library, {}).get(self.family, {})
        earlier = next((own[name] for name in (self.dtype, format_of(self.dtype)) if name in own), None)
        if earlier is not None and not few:
            starts.append(earlier.model_copy(update={"fit": None}))
        return best_fit(problem, starts, self.seed), problem.table, few

    def judged(
        self,
        rows: KernelTable,
        seen: KernelTable,
        parameters: FamilyParameters,
        few: bool,
        source: Source,
        residual: bool,
    ) -> tuple[FamilyFit, Correction | None]:
        """Errors on ``rows`` that are not in ``seen``; parameters that record these errors; correction, if any."""
        training = np.ones(len(rows), dtype=bool) if few else training_rows(rows, self.split)
        core = core_rows(self.family, rows)
        ranges = seen_ranges(seen)
        predicted, regime = self.problem(rows).times(parameters)
        codes = np.select([regime == name for name in REGIMES], list(range(len(REGIMES))), 1).astype(np.int8)
        if few:
            predicted = self._folded(rows)
        ratio = rows.measured_s / predicted
        inside = rows_inside(ranges, rows)
        held_out = np.ones(len(rows), dtype=bool) if few else ~training
        half = training_rows(rows, INTERVAL_SPLIT)
        calibration, judged = (held_out, held_out) if few else (held_out & half, held_out & ~half)
        if not few and calibration.sum() < SCARCE_ROWS:
            # A handful of rows has no tails: the interval comes from training rows, each predicted by a fit without it.
            own = rows.where(training)
            left_out = own.measured_s / self._folded(own)
            intervals, judged = conformal_intervals(left_out, codes[training], inside[training]), held_out
        else:
            intervals = conformal_intervals(ratio[calibration], codes[calibration], inside[calibration])
        error = np.abs(1.0 / ratio - 1.0)[held_out & core] * 100.0
        mape, median = float(error.mean()), float(np.median(error))
        source = source.model_copy(
            update={"held_out_mape": round(mape, 2), "fitted_on": _fitted_on(seen, self.split, few)}
        )
        kept = parameters.model_copy(update={"source": source, "fit": Fit(ranges=ranges, intervals=intervals)})
        correction, residual_mape = None, None
        if residual and not few:
            correction, residual_mape = self._learned(rows, kept, predicted, training, held_out & core)
        coverage = None
        if judged.any() and not few and "all" in intervals:
            low, high = interval_ends(intervals, codes[judged], inside[judged])
            coverage = float(np.mean((ratio[judged] >= low) & (ratio[judged] <= high)) * 100.0)
        figures = (len(seen), len(error), mape, median, coverage, residual_mape)
        return FamilyFit(self.family, self.dtype, *figures, kept), correction

    def _learned(
        self,
        rows: KernelTable,
        parameters: FamilyParameters,
        predicted: FloatArray,
        training: BoolArray,
        judged: BoolArray,
    ) -> tuple[Correction | None, float | None]:
        """The correction of a fitted set, with intervals from half of the held-out rows, and its error on
        ``judged``."""
        if self.family not in SIZES:
            return None, None
        matrix, sizes = correction_inputs(self.problem(rows), parameters)
        target = np.log(rows.measured_s / predicted)
        kept = KEPT_OF_ATTENTION if self.family.startswith("attention") else KEPT
        correction = learn(matrix, sizes, target, training, self.seed, kept)
        if correction is None:
            return None, None
        inside = np.asarray(inside_ranges(correction.ranges, sizes))
        ratio = rows.measured_s / np.exp(correction.hinges(matrix))
        calibration = ~training & training_rows(rows, INTERVAL_SPLIT) & inside
        intervals = conformal_intervals(ratio[calibration], np.ones(calibration.sum(), np.int8), inside[calibration])
        error = float(np.abs(1.0 / ratio - 1.0)[judged].mean() * 100.0) if judged.any() else None
        return correction._replace(intervals={"all": intervals["all"]} if intervals else {}), error

    def _folded(self, rows: KernelTable) -> FloatArray:
        """Out-of-fold predictions: each row is predicted by a fit that has not seen it."""
        predicted = np.empty(len(rows))
        fold = np.random.default_rng(self.seed).permutation(len(rows)) % min(FOLDS, len(rows))
        starts = start_parameters(self.chip, self.family, self.dtype)
        whole = self.problem(rows)
        for number in np.unique(fold):
            fitted = best_fit(whole.where(fold != number), starts, self.seed)
            predicted[fold == number] = whole.seconds(fitted)[fold == number]
        return predicted


def _of_library(table: KernelTable, library: str, skipped: Counter[str]) -> KernelTable:
    """Only rows of ``library``, if the trace has any; NCCL collectives serve every library."""
    names = table.word("library")
    wanted = names.equals(library)
    if library == "generic" or not wanted.any():
        return table
    keep = wanted | names.equals("") | names.equals("nccl")
    if not keep.all():
        skipped[f"another library than {library}"] = int((~keep).sum())
    return table.where(keep)


def _month() -> str:
    return date.today().strftime("%Y-%m")


def _fitted_on(table: KernelTable, split: Split, few: bool) -> tuple[FittedOn, ...]:
    names = dict.fromkeys(Path(name).name.split(".")[0] for name in table.source.split(", "))
    words = "" if few else f"train={split.train:g},seed={split.seed}"
    return tuple(FittedOn(table=name, split=words) for name in names if name)


def _reference(table: KernelTable) -> str:
    names = [Path(name).name for name in table.source.split(", ")]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more files" if len(names) > 3 else "")
    return f"fitted on {shown} ({table.format})"


def write_profile(calibration: Calibration, path: str | Path) -> list[Path]:
    """Write the profile as YAML, or the kernel parameters alone as JSON, and corrections beside it. Returns the files
    written.

    Raises:
        ForerunError: the name does not end in .yaml, .yml or .json.
        OSError: a file cannot be written.
    """
    from simulator.running.metrics.files import write_text_atomically

    target = Path(path)
    if target.suffix not in (".yaml", ".yml", ".json"):
        raise ForerunError(f"{target}: a profile is a .yaml file (.json: its kernel parameters alone)")
    write_text_atomically(target, (fits_text if target.suffix == ".json" else profile_text)(calibration, target.name))
    if not calibration.corrections:
        return [target]
    return [target, save_corrections(calibration.corrections, target.with_suffix(CORRECTIONS))]


def calibration_command(calibration: Calibration, output: str) -> str:
    """The command that repeats a calibration, its files by name."""
    split = f"train={calibration.split.train:g},seed={calibration.split.seed}"
    files = " ".join(Path(name).name for name in calibration.source.split(", "))
    options = f"--chip {calibration.chip.name} --library {calibration.library} --split {split} --output {output}"
    return f"forerun calibrate {files} {options}"


def profile_text(calibration: Calibration, output: str) -> str:
    """The profile as YAML: the chip as given, with the fitted parameter sets."""
    import yaml

    head = f"# Kernel parameters of library '{calibration.library}' fitted by\n# "
    command = calibration_command(calibration, output)
    data = yaml.safe_dump(_plain_data(calibration.chip), sort_keys=False, width=120, default_flow_style=None)
    return f"{head}{command}\n{data}"


def fits_text(calibration: Calibration, output: str) -> str:
    """The chip's fitted parameter sets as JSON, one a line, with the command that wrote them."""
    command = json.dumps(calibration_command(calibration, output))
    return f'{{\n  "command": {command},\n  "kernels": {_nested(_plain_data(calibration.chip)["kernels"], 3)}\n}}\n'


def _plain_data(chip: Chip) -> Any:
    return _rounded(chip.model_dump(mode="json", exclude_none=True, exclude_defaults=True))


def _nested(data: dict[str, Any], levels: int, indent: str = "    ") -> str:
    if not levels:
        return json.dumps(data, ensure_ascii=False)
    lines = (f"{indent}{json.dumps(key)}: {_nested(value, levels - 1, indent + '  ')}" for key, value in data.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent[2:]}}}"


def _rounded(value: Any) -> Any:
    """Numbers to six digits, so that a profile can be read."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
