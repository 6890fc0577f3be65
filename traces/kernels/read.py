"""Reads any supported kernel trace into the canonical table.

Every reader raises TraceError, naming the file, where it is damaged, of another layout, or lacks a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from traces.errors import TraceError, did_you_mean
from traces.files import head, is_parquet, visible_keys
from traces.kernels import aiconfigurator, llmservingsim, nsys, torch_profiler, tt_metal, vidur
from traces.kernels.canonical import is_canonical, read_canonical
from traces.kernels.frame import Frame, read_frame
from traces.kernels.silicon import PREFIX, silicon_path
from traces.kernels.table import KernelTable, concatenate

Recogniser = Callable[[tuple[str, ...]], bool]
FrameReader = Callable[[Frame], KernelTable]
_FRAMES: dict[str, tuple[Recogniser, FrameReader]] = {
    "forerun": (is_canonical, read_canonical),
    "aiconfigurator": (aiconfigurator.is_aiconfigurator, aiconfigurator.read_aiconfigurator),
    "vidur": (vidur.is_vidur, vidur.read_vidur),
    "llmservingsim": (llmservingsim.is_llmservingsim, llmservingsim.read_llmservingsim),
    "tt-metal": (tt_metal.is_tt_metal, tt_metal.read_tt_metal),
}
_FILES: dict[str, Callable[[Path], KernelTable]] = {
    "torch-profiler": torch_profiler.read_torch_profiler,
    **dict.fromkeys(("nsys", "ncu", "rocprof"), nsys.read_nsys),
    "vllm-layerwise": nsys.read_layerwise,
}
KERNEL_FORMATS = [*_FRAMES, *_FILES]
"""Formats that ``read_kernels`` reads."""
_SUFFIXES = (".parquet", ".csv", ".csv.gz", ".json", ".json.gz", ".sqlite")


KernelFiles = KernelTable | str | Path | Sequence[str | Path]
"""A table of measured kernels, or its file or files."""


def as_table(source: KernelFiles) -> KernelTable:
    """The table itself, or the rows of a file or of several files.

    Raises:
        TraceError: a file that cannot be read; one line naming it.
    """
    if isinstance(source, KernelTable):
        return source
    return concatenate([read_kernels(file) for file in ([source] if isinstance(source, str | Path) else source)])


def read_kernels(
    path: str | Path,
    format: str = "auto",
    library: str | None = None,
    device: str | None = None,
) -> KernelTable:
    """Read measured kernels from one file, from every table in a folder, or from an installed package.

    Args:
        path: a file; a folder (all tables in it and below); or ``silicon:<folder or file>`` inside the installed
            ``aiconfigurator-core`` (the extra ``silicon``), e.g. ``silicon:h100_sxm/gemm``.
        format: one of ``KERNEL_FORMATS``, or ``auto`` to recognise it.
        library: keep only rows of this kernel library, if the file states it.
        device: keep only rows whose device name contains this text (any case), if the file states it.

    Returns:
        The rows, with the reasons for those left out in ``skipped``.

    Raises:
        TraceError: no such file, an unknown format, a damaged or empty file, a missing column; one line.
    """
    if format != "auto" and format not in KERNEL_FORMATS:
        hint = did_you_mean(format, KERNEL_FORMATS)
        raise TraceError(f"no kernel trace format '{format}'{hint} (one of {', '.join(KERNEL_FORMATS)})")
    text = str(path)
    place = silicon_path(text) if text.startswith(PREFIX) else Path(path)
    files = [place]
    if place.is_dir():
        files = sorted(file for file in place.rglob("*") if file.is_file() and file.name.endswith(_SUFFIXES))
        if not files:
            raise TraceError(f"{place}: no kernel trace in this folder ({', '.join(_SUFFIXES)})")
    table = concatenate([_read_file(file, format) for file in files])
    for column, wanted in (("library", library), ("device", device)):
        if wanted is not None:
            table = _only(table, column, wanted)
    return table


def register_kernel_table(format: str, recognises: Recogniser, reader: FrameReader) -> None:
    """Register a reader for a kind of kernel table, which ``recognises`` knows by its column names."""
    _FRAMES[format] = (recognises, reader)
    KERNEL_FORMATS.append(format)


def recognise_columns(names: tuple[str, ...]) -> str | None:
    """The format of a table with these columns; None if no kernel-trace format fits."""
    return next((name for name, (recognises, _) in _FRAMES.items() if recognises(names)), None)


def _read_file(path: Path, format: str) -> KernelTable:
    if not path.exists():
        raise TraceError(f"{path}: no such file")
    with np.errstate(all="ignore"):  # sizes of damaged rows divide by zero and overflow; such rows are left out
        if format in _FILES:
            return _FILES[format](path)
        if format != "auto":
            return _FRAMES[format][1](read_frame(path))
        kind, frame = _opened(path)
        return _FILES[kind](path) if frame is None else _FRAMES[kind][1](frame)


def _opened(path: Path) -> tuple[str, Frame | None]:
    start = head(path)
    if not start.strip():
        raise TraceError(f"{path}: the file is empty")
    if start.startswith(b"SQLite format 3"):
        return "nsys", None
    if not is_parquet(path):
        if start.lstrip()[:1] in (b"{", b"["):
            keys = visible_keys(start.decode(errors="replace"))
            return "vllm-layerwise" if "summary_stats" in keys and "traceEvents" not in keys else "torch-profiler", None
        if nsys.header_of(start) is not None:
            return "nsys", None
    frame = read_frame(path)
    kind = recognise_columns(frame.names)
    if kind is None:
        raise TraceError(
            f"{path}: no kernel trace that is known here (columns: {frame.listed}); a table of "
            f"your own needs op and a time such as time_us; others: {', '.join(KERNEL_FORMATS[1:])}"
        )
    return kind, frame


def _only(table: KernelTable, column: str, wanted: str) -> KernelTable:
    keep = table.word(column).matching(lambda name: not name or wanted.lower() in name.lower())
    if keep.all():
        return table
    reason = f"another {column} than {wanted}"
    skipped = {**table.skipped, reason: table.skipped.get(reason, 0) + int((~keep).sum())}
    return replace(table.where(keep), skipped=skipped)
