"""Column access to Parquet and CSV files (plain or gzip); every failure is reported in one line."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from forerun.arrays import Array, BoolArray, FloatArray, IntArray
from traces.errors import TraceError, did_you_mean, shown
from traces.files import arrow_reading, head, is_parquet, parquet_table, unpacked_bytes
from traces.kernels.table import KernelTable, Texts, Words, make_table, whole


class Frame(NamedTuple):
    """A table read from ``path``, with the column names of the file."""

    path: Path
    table: pa.Table
    skipped: Counter[str]
    """Rows that were dropped, by reason."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    @property
    def listed(self) -> str:
        """The first column names, for error messages."""
        return ", ".join(name[:40] for name in self.names[:12]) + (", ..." if len(self.names) > 12 else "")

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def has(self, *names: str) -> bool:
        """True if all these columns exist."""
        return all(name in self.names for name in names)

    def need(self, *names: str) -> None:
        """Raise TraceError for the first of these columns that is missing."""
        for name in names:
            if name not in self.names:
                near = did_you_mean(name, self.names)
                raise TraceError(f"{self.path}: no column '{name}'{near} (columns: {self.listed})")
            if self.names.count(name) > 1:
                raise TraceError(f"{self.path}: column '{name}' appears {self.names.count(name)} times; keep one")

    def floats(self, name: str) -> FloatArray:
        """A number column; NaN where empty.

        Raises:
            TraceError: no such column, or a value that is not a number.
        """
        self.need(name)
        column = self.table[name]
        if pa.types.is_binary(column.type) or pa.types.is_temporal(column.type):
            raise TraceError(f"{self.path}: column '{name}': {shown(self._first(name))} is not a number")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            joined: Any = column.combine_chunks()
            empty: Any = pc.equal(joined, pa.scalar("", column.type))
            column = pc.replace_with_mask(joined, empty, pa.scalar(None, column.type))
        try:
            column = column.cast(pa.float64(), safe=False)
        except pa.ArrowException:
            raise TraceError(f"{self.path}: column '{name}': {shown(self._culprit(name))} is not a number") from None
        return np.asarray(column.to_numpy(), dtype=np.float64)

    def texts(self, name: str) -> Words:
        """A text column; empty where null.

        Raises:
            TraceError: no such column.
        """
        self.need(name)
        try:
            column: Any = self.table[name].cast(pa.string()).combine_chunks()
            encoded = pc.fill_null(column, "").dictionary_encode()
            names = tuple(encoded.dictionary.to_pylist())
        except (pa.ArrowException, UnicodeDecodeError):
            raise TraceError(f"{self.path}: column '{name}': bytes that are not UTF-8 text") from None
        return Words(np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int32), names)

    def sizes(self, *same: str, **renamed: str) -> dict[str, IntArray]:
        """Size columns by canonical name: columns ``same`` keep their name, others are renamed (ours=theirs)."""
        columns = {name: name for name in same} | renamed
        return {ours: whole(self.floats(theirs)) for ours, theirs in columns.items()}

    def present(self, **columns: str) -> Texts:
        """Text columns of the file by canonical name (ours=theirs)."""
        return {ours: self.texts(theirs) for ours, theirs in columns.items() if self.has(theirs)}

    def kernels(
        self,
        seconds: FloatArray,
        op: str | Words,
        sizes: Mapping[str, Array],
        texts: Texts,
        format: str,
        std_s: FloatArray | None = None,
        count: IntArray | None = None,
    ) -> KernelTable:
        """Canonical table of the remaining rows, with counts of dropped rows."""
        return make_table(seconds, op, sizes, texts, str(self.path), format, std_s, count, self.skipped)

    def drop(self, bad: BoolArray, reason: str) -> Frame:
        """Drop the rows that ``bad`` marks and count them under ``reason``."""
        if not bad.any():
            return self
        self.skipped[reason] += int(bad.sum())
        return self._replace(table=self.table.filter(pa.array(~bad)))

    def without(self, rules: Sequence[Mapping[str, str]]) -> Frame:
        """Drop the rows whose texts match all patterns of a rule, and count them under its ``reason``.

        A rule drops nothing from a file that lacks one of its columns.
        """
        frame = self
        for rule in rules:
            patterns = {name: re.compile(pattern) for name, pattern in rule.items() if name != "reason"}
            if frame.has(*patterns):
                masks = [frame.texts(name).matching(pattern.fullmatch) for name, pattern in patterns.items()]
                frame = frame.drop(np.logical_and.reduce(masks), rule["reason"])
        return frame

    def _first(self, name: str) -> object:
        return next((value.as_py() for value in self.table[name].drop_null()), None)

    def _culprit(self, name: str) -> object:
        for value in self.table[name].to_pylist():
            try:
                float(value if value not in (None, "") else 0)
            except (TypeError, ValueError):
                return value
        return None


def read_frame(path: Path, skip_lines: int = 0, footer: bool = False) -> Frame:
    """Read a Parquet file, or a CSV file with a header (``.gz`` or plain).

    Args:
        path: the file.
        skip_lines: lines of a CSV file before its header.
        footer: skip lines of a program's own output among the rows.

    Raises:
        TraceError: missing, empty, damaged or cut short, or without rows.
    """
    try:
        table = parquet_table(path) if is_parquet(path) else _read_csv(path, skip_lines, footer)
        table = table.rename_columns([name.strip("\ufeff") for name in table.column_names])
    except UnicodeDecodeError:
        raise TraceError(f"{path}: the header holds bytes that are not UTF-8 text; save the file as UTF-8") from None
    if table.num_rows == 0:
        raise TraceError(f"{path}: no rows; a kernel trace needs at least one measurement")
    return Frame(path, table, Counter())


def _read_csv(path: Path, skip_lines: int, footer: bool) -> pa.Table:
    if not head(path).strip():
        raise TraceError(f"{path}: the file is empty")
    data = io.BytesIO(unpacked_bytes(path))
    if footer:
        lines = data.read().decode("utf-8-sig", "replace").splitlines(keepends=True)[skip_lines:]
        data = io.BytesIO("".join(line for line in lines if "," in line and not line.startswith("==")).encode())
        skip_lines = 0
    with arrow_reading(path, "CSV"):
        return pacsv.read_csv(
            data,
            read_options=pacsv.ReadOptions(skip_rows=skip_lines),
            convert_options=pacsv.ConvertOptions(strings_can_be_null=False),
            parse_options=pacsv.ParseOptions(newlines_in_values=True),
        )
