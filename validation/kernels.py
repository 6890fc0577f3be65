"""Kernels: every kernel table in a folder of measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dashboards.recorded_errors import ErrorRow
from forerun.errors import ForerunError
from hwprofiles import KernelLibrary, ProfileError, chip_name, chip_names, load_chip
from hwprofiles.dtypes import VARIANT
from hwprofiles.library import LIBRARIES
from simulator.replay.kernels import replay_kernels
from traces import TraceError
from traces.kernels import COLLECTIVES, KernelTable, concatenate, read_kernels
from validation import tables as tables  # lets read_kernels read them
from validation.shipped import SPLIT, kernel_error_row

USUAL_SHAPES = {
    "gemm": ("n>=1024", "k>=1024"),
    "attention_prefill": ("head_dim=128",),
    "attention_decode": ("head_dim=128",),
}
"""Shapes of language models: matrices that a layer has, and the head size that nearly all models have."""
USUAL = "usual shapes"
STAND_INS: dict[str, tuple[str | None, ...]] = {
    "h200-sxm": ("h100-sxm",),
    "b200-sxm": ("h200-sxm",),
    "h100-sxm": ("a100-sxm-80gb",),
    "a100-sxm-80gb": ("h100-sxm",),
    "rtx-pro-6000": (None,),
    "rtx-4090": (None,),
    "a40": ("a100-sxm-80gb", None),
}
"""Measured chips that are scored as if nobody had measured them. Under the fits of a sister or of the generation before
or after it, as B300, GB200 and H20 are carried, or (None) under the defaults of their class, as L40S and Arc are."""
UNSEEN_FAMILIES = ("gemm", "attention_prefill", "attention_decode", "moe")
SUFFIXES = (".parquet", ".csv", ".csv.gz", ".sqlite")

Progress = Callable[[int, int], None]


def measured_kernel_errors(folder: Path, progress: Progress | None = None) -> tuple[list[ErrorRow], Counter[str]]:
    """Errors on every kernel table below a folder, by operation, format, chip and kernel library.

    Args:
        folder: of measured tables; what is no kernel trace is counted and left.
        progress: called with (files done, files).

    Returns:
        The rows, and why files or rows were left out, with how many of them.

    Raises:
        ForerunError: no kernel table is in the folder.
    """
    left: Counter[str] = Counter()
    tables: dict[tuple[str, str], list[KernelTable]] = {}
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
    for done, path in enumerate(paths, 1):
        try:
            table = read_kernels(path)
        except TraceError:
            left["files that are no kernel trace"] += 1
        else:
            left.update(table.skipped)
            for key, part in _by_chip(table, path.relative_to(folder), left):
                tables.setdefault(key, []).append(part)
        if progress is not None:
            progress(done, len(paths))
    if not tables:
        raise ForerunError(f"{folder}: no kernel trace of a chip in the catalogue in this folder")
    scorers = (_scores, _unseen)
    rows = [row for key, parts in sorted(tables.items()) for score in scorers for row in score(*key, parts, left)]
    return rows, left


def _by_chip(table: KernelTable, path: Path, left: Counter[str]) -> Iterator[tuple[tuple[str, str], KernelTable]]:
    """The table's rows by (chip, kernel library); where it names no device, the folders above it do."""
    devices, libraries = table.word("device"), table.word("library")
    for device_code in np.unique(devices.codes):
        name = devices.names[device_code]
        chip = chip_name(name, chip_names()) if name else _chip_of(path)
        for library_code in np.unique(libraries.codes):
            rows = (devices.codes == device_code) & (libraries.codes == library_code)
            if not rows.any():
                continue
            if chip is None:
                left[f"rows of a chip that is not in the catalogue ({name or path.parts[0]})"] += int(rows.sum())
                continue
            yield (chip, libraries.names[library_code] or "generic"), table.where(rows)


def _chip_of(path: Path) -> str | None:
    return next((chip for part in path.parts if (chip := chip_name(part, chip_names())) is not None), None)


def _scores(chip: str, library: str, parts: list[KernelTable], left: Counter[str]) -> Iterator[ErrorRow]:
    table = concatenate(parts)
    try:
        kernels = KernelLibrary(chip, library)
    except ProfileError:
        kernels = KernelLibrary(chip)
    for op in table.ops:
        part = table.where(table.word("op").equals(op))
        for where in (USUAL_SHAPES.get(op, ()), ()) if op in USUAL_SHAPES else ((),):
            try:
                report = replay_kernels(part, kernels, SPLIT, where)
            except (ForerunError, ProfileError) as error:
                left[f"{op} rows of {chip}, {library} ({_reason(error)})"] += len(part)
                continue
            for group in report.groups:
                if group.regime == "all":
                    name = f"{op} {group.dtype}".strip() + (f", {USUAL}" if where else "")
                    basis, fitted = _evidence(kernels, op, group.dtype)
                    yield kernel_error_row(f"{name}, {chip}, {library}", group, basis, fitted, False)


def _unseen(chip: str, library: str, parts: list[KernelTable], left: Counter[str]) -> Iterator[ErrorRow]:
    """Scores of a chip without its own fits, of usual shapes; the record has the rows that their bands hold."""
    table = concatenate(parts)
    for like in STAND_INS.get(chip, ()):
        bare = load_chip(chip).model_copy(update={"kernels": {}, "like": like})
        kernels = KernelLibrary(bare, library if library in LIBRARIES else "generic", corrected=False)
        for op in (name for name in UNSEEN_FAMILIES if name in table.ops):
            try:
                report = replay_kernels(
                    table.where(table.word("op").equals(op)), kernels, SPLIT, USUAL_SHAPES.get(op, ())
                )
            except (ForerunError, ProfileError) as error:
                left[f"{op} rows of {chip}, {library}, as unseen ({_reason(error)})"] += 1
                continue
            ratio, predicted = report.rows.measured_s / report.prediction.seconds, report.prediction
            held = np.mean((ratio >= predicted.low) & (ratio <= predicted.high))
            stand_in = f"as {like}" if like else "by its class"
            for group in report.groups:
                if group.regime == "all":
                    name = f"{op} {group.dtype}, unseen {chip} {stand_in}, {library}"
                    yield kernel_error_row(
                        name, group, "datasheet", f"nothing of this chip; band holds {held:.0%}", False
                    )


def _reason(error: Exception) -> str:
    """Why a table was refused as a whole, without its files and counts."""
    text = str(error)
    return "too many beat the datasheet" if "faster than" in text else text.split(": ", 1)[-1].split(" (")[0]


def _evidence(kernels: KernelLibrary, op: str, dtype: str) -> tuple[str, str]:
    """Evidence of an operation's predictions, and the rows its parameters were fitted on, in the profile's words."""
    family = "collective" if op in COLLECTIVES else op.replace("attention_mixed", "attention_decode")
    stored = "any" if family in ("collective", "elementwise") else dtype.split("/")[-1]
    try:
        source, basis = kernels.parameters(family, stored).source, kernels.basis(family, stored)
    except ProfileError:
        return "datasheet", "nothing"
    if source.kind in ("fitted", "measured"):
        return basis, source.reference
    # Kinds of sparse attention have sets of their own under the format's name; rows of all kinds are scored together.
    own = kernels.chip.kernels.get(kernels.library, {}).get(family, {})
    kinds = {name: one.source.reference for name, one in own.items() if name.startswith(stored + VARIANT)}
    if not kinds:
        return basis, "nothing"
    return "calibrated", "; ".join(f"{name}: {words}" for name, words in sorted(kinds.items()))
