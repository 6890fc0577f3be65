"""Measured against predicted kernels: scores by operation, regime and format, and the rows with the largest errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from forerun.arrays import BoolArray
from forerun.errors import ForerunError, named_arguments, warn_renamed
from forerun.tables import Table, number, percent
from hwprofiles import BASES, Chip, KernelLibrary, chip_name, chip_names
from hwprofiles.choice import PORTABLE
from simulator.replay.evidence import apply_evidence
from simulator.replay.predict import REGIMES, Prediction, predict_table
from simulator.replay.replay_tables import Replay, cold_words, kernel_replay_tables
from simulator.replay.scores import ALL, Score, all_scores, dtype_labels, overall_score
from simulator.replay.speed_of_light import impossible_rows
from simulator.replay.split import Split, training_rows
from traces.kernels import OLD_COLUMNS, OPS, SIZES, WORDS, KernelFiles, KernelTable, as_table, kernel_class

WORST_ROWS = 20
TRAINING = "part of the training split"
ARCHITECTURES = ("wormhole", "blackhole")
"""Architectures that a trace names in place of a device."""


@dataclass(frozen=True, eq=False, repr=False)
class ReplayReport(Replay):
    """Measured against predicted kernels: the scored rows, their predictions, and scores by group and overall."""

    chip: str
    library: str
    source: str
    rows: KernelTable
    prediction: Prediction
    groups: tuple[Score, ...]
    overall: Score
    skipped: dict[str, int]
    """Rows that are not scored, by reason."""
    split: Split | None
    """The split whose held-out part is scored; None = every row."""
    residual: bool
    """True if the learned correction is on."""
    beside: Score | None = None
    """Score over all rows of the other variant (physics alone, or with the correction); None if there is none."""
    measured_on: str | None = None
    """Device of the rows, if it is another one than the chip."""

    @property
    def title(self) -> str:
        """Chip and kernels of the predictions, and the device of the measurements if it is another."""
        words = "" if self.measured_on is None else f": measured on {self.measured_on}, another device"
        return f"{super().title}{words}"

    @property
    def basis(self) -> str:
        """The weakest basis among the scored rows."""
        return BASES[int(self.prediction.basis.max())]

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON of ``forerun replay kernels``; percentages are numbers such as 7.3."""
        from forerun.version import VERSION

        return {
            "chip": self.chip,
            "library": self.library,
            "source": self.source,
            "basis": self.basis,
            "basis_rows": {name: int((self.prediction.basis == code).sum()) for code, name in enumerate(BASES)},
            "residual": self.residual,
            "split": None if self.split is None else self.split._asdict(),
            "groups": [group._asdict() for group in self.groups],
            "overall": self.overall._asdict(),
            "beside": None if self.beside is None else {"residual": not self.residual} | self.beside._asdict(),
            "cache": cache_states(self.rows),
            "skipped": self.skipped,
            "worst": worst_rows(self),
            "version": VERSION,
        }

    def tables(self) -> list[Table]:
        """Errors by group, the rows with the largest errors, and the rows not scored."""
        return kernel_replay_tables(self.document)

    @property
    def remarks(self) -> tuple[str, ...]:
        words = cold_words(self.document)
        return (words,) if words else ()

    @property
    def gated(self) -> list[tuple[str, str, Score]]:
        """Scores by the group names of ``--fail-above``: ``all``, and every operation, also by format."""
        whole = [(ALL, "overall", self.overall)]
        return whole + [(g.op, f"{g.op} {g.dtype}", g) for g in self.groups if g.regime == "all"]


def kernels_by_time(table: KernelTable) -> dict[str, Any]:
    """Total time of kernels by name, the longest first, as plain data."""
    calls, totals = Counter[str](), dict[str, float]()
    for name, seconds, count in zip(table.word("name").texts(), table.measured_s, table.count, strict=True):
        calls[name] += max(1, int(count))
        totals[name] = totals.get(name, 0.0) + float(seconds) * max(1, int(count))
    whole_s = sum(totals.values())
    rows = [
        {
            "name": name,
            "kind": kernel_class(name),
            "calls": calls[name],
            "total_ms": 1e3 * total,
            "share": total / whole_s,
        }
        for name, total in sorted(totals.items(), key=lambda one: -one[1])
    ]
    return {"source": table.source, "format": table.format, "skipped": dict(table.skipped), "kernels": rows}


def kernels_by_time_table(document: dict[str, Any]) -> Table:
    """Table of ``kernels_by_time``."""
    rows = [
        [row["name"][:100], row["kind"], f"{row['calls']:,}", number(row["total_ms"], 4), percent(row["share"])]
        for row in document["kernels"]
    ]
    return Table("Kernels by time", ("name", "kind", "calls", "total (ms)", "share"), rows, shown=30)


@named_arguments
def replay_kernels(
    table: KernelFiles,
    kernels: KernelLibrary | Chip | str | Path,
    split: Split | None = None,
    where: Sequence[str] = (),
    library: str = "generic",
) -> ReplayReport:
    """Predict every row of a trace and score the predictions.

    Args:
        table: measured kernels, or a file or several files of them.
        kernels: the chip's kernel library, with or without the profile's learned correction (the other variant is
            scored too if the profile has one); or a chip: its profile, catalogue name or file.
        split: score only the rows a fit under this split does not see.
        where: conditions such as ``n>=1024`` that a row must meet, if its operation has that column.
        library: kernel library, if ``kernels`` is a chip.

    Raises:
        ForerunError: rows of several devices, a wrong unit, a bad condition, or no row left to score.
    """
    table = as_table(table)
    if not isinstance(kernels, KernelLibrary):
        kernels = KernelLibrary(kernels, trace_library(table, library))
    skipped = Counter(table.skipped)
    device = only_device(table)
    prediction = predict_table(table, kernels)
    skipped.update(prediction.refused)
    out, reasons = impossible_rows(table, prediction, kernels.chip)
    on = bool(kernels.corrections)
    other = kernels.reading(not on)
    beside = predict_table(table, other) if on or other.corrections else prediction
    moved = (prediction.seconds != beside.seconds) & on
    apply_evidence(table, prediction, kernels, moved)
    skipped.update(reasons)
    keep = np.isfinite(prediction.seconds) & ~out
    left_out = [] if split is None else [(TRAINING, training_rows(table, split))]
    left_out += [(f"not {condition}", ~condition_rows(table, condition)) for condition in where]
    for reason, rows in left_out:
        if (keep & rows).any():
            skipped[reason] += int((keep & rows).sum())
        keep = keep & ~rows
    if not keep.any():
        reasons_text = "; ".join(f"{count} {reason}" for reason, count in skipped.items()) or "the trace has none"
        raise ForerunError(f"{table.source}: no row left to score ({reasons_text})")
    scored, predicted = table.where(keep), prediction.where(keep)
    return ReplayReport(
        kernels.chip.name,
        kernels.library,
        table.source,
        scored,
        predicted,
        tuple(all_scores(scored, predicted)),
        overall_score(scored, predicted),
        dict(skipped),
        split,
        on,
        overall_score(scored, beside.where(keep)) if beside is not prediction else None,
        device if device and is_other_device(device, kernels.chip) else None,
    )


def trace_library(table: KernelTable, library: str) -> str:
    """The kernel library to predict a trace with: ``portable`` instead of ``generic`` if all its rows were timed with
    kernels older than the chip (collectives of NCCL aside), ``nccl`` if all are NCCL's; else ``library`` as given."""
    column = table.word("library")
    named = {column.names[code] for code in np.unique(column.codes)}
    alone = {frozenset({"nccl"}): "nccl", frozenset({PORTABLE}): PORTABLE, frozenset({PORTABLE, "nccl"}): PORTABLE}
    return alone.get(frozenset(named), library) if library == "generic" else library


def only_device(table: KernelTable) -> str:
    """Device of a trace's rows; empty if the trace names none.

    Raises:
        ForerunError: rows of several devices.
    """
    column = table.word("device")
    present = sorted({column.names[code] for code in np.unique(column.codes)} - {""})
    if len(present) > 1:
        raise ForerunError(
            f"{table.source}: rows of several devices ({', '.join(present)}); pick one with --device NAME"
        )
    return present[0] if present else ""


def is_other_device(device: str, chip: Chip) -> bool:
    """True if a device that a trace names is another chip, or of another architecture, than a profile.

    >>> from hwprofiles import load_chip
    >>> [is_other_device("wormhole_b0", load_chip(name)) for name in ("n150", "p150")]
    [False, True]
    """
    named = chip_name(device, chip_names())
    if named is not None:
        return named not in (chip.name, chip.like)
    word = next((word for word in ARCHITECTURES if word in device.lower()), None)
    return word is not None and word not in chip.description.lower()


def condition_rows(table: KernelTable, condition: str) -> BoolArray:
    """Rows that meet ``COLUMN>=N``, ``COLUMN<=N`` or ``COLUMN=VALUE``, or whose operation has no such size.

    Raises:
        ForerunError: no such column, or no number where one is needed.
    """
    for sign in (">=", "<=", "="):
        name, sign_used, value = condition.partition(sign)
        if sign_used:
            break
    name, value = name.strip(), value.strip()
    if name in OLD_COLUMNS:
        warn_renamed(f"--where: {name}", OLD_COLUMNS[name])
        name = OLD_COLUMNS[name]
    if not sign_used or name not in (*SIZES, *WORDS):
        raise ForerunError(f"--where: '{condition}' is not COLUMN>=N, COLUMN<=N or COLUMN=VALUE of a kernel trace")
    if name in WORDS:
        if sign != "=":
            raise ForerunError(f"--where: '{condition}': {name} holds texts; use {name}=VALUE")
        return table.word(name).equals(value)
    try:
        number = int(value)
    except ValueError:
        raise ForerunError(f"--where: '{condition}': '{value}' is not a whole number") from None
    op = table.word("op")
    has = np.array([name in (*OPS[text].needed, *OPS[text].optional) for text in op.names])[op.codes]
    column = table.size(name)
    met = {">=": np.greater_equal, "<=": np.less_equal, "=": np.equal}[sign](column, number)
    return np.asarray(met | ~has, dtype=np.bool_)


PRICED_BY_CACHE = ("attention_decode", "attention_mixed", "elementwise")


def cache_states(table: KernelTable) -> dict[str, dict[str, int]]:
    """Row counts by operation and cache state: operands maybe on the chip (``warm``), not (``cold``), or ``unknown``.

    Only for operations whose price depends on the cache state; rows of unknown state are priced cold.
    """
    op, cache = table.word("op"), table.word("cache")
    states: dict[str, dict[str, int]] = {}
    for name in PRICED_BY_CACHE:
        codes = cache.codes[op.equals(name)]
        if len(codes):
            states[name] = {(cache.names[code] or "unknown"): int((codes == code).sum()) for code in np.unique(codes)}
    return states


def worst_rows(report: ReplayReport) -> list[dict[str, Any]]:
    """The rows with the largest errors, worst first, with shape, both times, APE in percent, regime and basis."""
    table, prediction = report.rows, report.prediction
    ape = np.abs(prediction.seconds / table.measured_s - 1.0) * 100.0
    labels = dtype_labels(table)
    rows = np.argsort(-ape, kind="stable")[:WORST_ROWS]
    return [
        {
            **table.row(int(row)),
            "dtype": str(labels[row]),
            "measured_s": float(table.measured_s[row]),
            "predicted_s": float(prediction.seconds[row]),
            "ape": float(ape[row]),
            "regime": REGIMES[prediction.regime[row]],
            "basis": BASES[prediction.basis[row]],
        }
        for row in rows
    ]
