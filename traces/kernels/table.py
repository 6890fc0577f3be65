"""A table of measured kernels: one row per measurement, one numpy array per column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.arrays import Array, BoolArray, FloatArray, IntArray
from traces.kernels.columns import OPS, SIZES, WORDS

IndexArray: TypeAlias = NDArray[np.intp]

LARGEST_SIZE = 10**15
"""Maximum dimension, count or message size of a kernel; larger values indicate a damaged file."""
NO_TIME = "measured time is not a positive number"
"""Skip reason of rows without a positive time."""


class Words(NamedTuple):
    """A text column: ``names[codes[i]]`` is the text of row i."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    def texts(self) -> Array:
        return np.array(self.names, dtype=object)[self.codes]

    def equals(self, name: str) -> BoolArray:
        """Return the mask of rows whose text is ``name``."""
        return self.matching(lambda text: text == name)

    def matching(self, wanted: Callable[[str], object]) -> BoolArray:
        """Return the mask of rows whose text is wanted."""
        return np.asarray(np.array([bool(wanted(name)) for name in self.names], dtype=np.bool_)[self.codes])

    def mapped(self, change: Callable[[str], str]) -> Words:
        """Return the column with every text changed."""
        return Words(self.codes, tuple(change(name) for name in self.names))


Texts: TypeAlias = dict[str, str | Words]
"""Text columns: one text for all rows, or one per row."""


def constant(name: str, rows: int) -> Words:
    """A text column with one value."""
    return Words(np.zeros(rows, dtype=np.int32), (name,))


def words(texts: Sequence[str] | Array) -> Words:
    """A text column from one text per row."""
    codes: dict[str, int] = {}
    index = np.fromiter((codes.setdefault(text, len(codes)) for text in texts), dtype=np.int32, count=len(texts))
    return Words(index, tuple(codes))


@dataclass(frozen=True, slots=True)
class KernelTable:
    """Measured kernels in the canonical columns (``traces.kernels.columns``)."""

    sizes: Mapping[str, IntArray]
    """Whole-number columns that occur here; absent ones count as 0."""
    words: Mapping[str, Words]
    """Text columns that occur here; absent ones count as empty."""
    measured_s: FloatArray
    """Seconds of one call on one chip."""
    std_s: FloatArray
    """Spread of the repeats in seconds, NaN if not measured."""
    count: IntArray
    """Repeats behind a row, 0 if unknown."""
    source: str
    format: str
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows of the file that are not here, by reason."""

    def __len__(self) -> int:
        return len(self.measured_s)

    def size(self, name: str) -> IntArray:
        """A size column; zeros where this table has none."""
        if name not in SIZES:
            raise KeyError(name)
        column = self.sizes.get(name)
        return np.zeros(len(self), dtype=np.int64) if column is None else column

    def word(self, name: str) -> Words:
        """A text column; empty texts where this table has none."""
        if name not in WORDS:
            raise KeyError(name)
        column = self.words.get(name)
        return constant("", len(self)) if column is None else column

    def text(self, name: str, row: int | np.integer) -> str:
        """Text of a row in a column."""
        column = self.word(name)
        return str(column.names[column.codes[row]])

    @property
    def ops(self) -> tuple[str, ...]:
        """Operations that occur, in canonical order."""
        op = self.word("op")
        present = {op.names[code] for code in np.unique(op.codes)}
        return tuple(name for name in OPS if name in present)

    def where(self, rows: Array) -> KernelTable:
        """The rows of a mask or index, with the same ``skipped``."""
        return replace(
            self,
            sizes={name: column[rows] for name, column in self.sizes.items()},
            words={name: Words(column.codes[rows], column.names) for name, column in self.words.items()},
            measured_s=self.measured_s[rows],
            std_s=self.std_s[rows],
            count=self.count[rows],
        )

    def row(self, index: int) -> dict[str, Any]:
        """One row as canonical column -> value: the columns of its operation, and texts that are not empty."""
        texts = {name: column.names[column.codes[index]] for name, column in self.words.items()}
        columns = OPS[texts["op"]]
        values: dict[str, Any] = {name: int(self.size(name)[index]) for name in columns.needed}
        values |= {name: int(self.size(name)[index]) for name in columns.optional if self.size(name)[index]}
        return {"op": texts.pop("op"), **values, **{name: text for name, text in texts.items() if text}}


def make_table(
    measured_s: FloatArray,
    op: str | Words,
    sizes: Mapping[str, Array],
    texts: Mapping[str, str | Words],
    source: str,
    format: str,
    std_s: FloatArray | None = None,
    count: IntArray | None = None,
    skipped: Mapping[str, int] | None = None,
) -> KernelTable:
    """Build a table; rows without a positive time, and rows with a needed size below 1, are skipped and counted.

    Args:
        measured_s: seconds per row.
        op: operation of all rows, or per row.
        sizes: size column -> whole numbers (or floats that hold them).
        texts: text column -> one text for all rows, or per row.
        source: file name.
        format: of the file.
        std_s: spread in seconds per row.
        count: repeats per row.
        skipped: rows already skipped, by reason.
    """
    rows = len(measured_s)
    operations = constant(op, rows) if isinstance(op, str) else op
    columns = {"op": operations}
    for name, text in texts.items():
        columns[name] = constant(text, rows) if isinstance(text, str) else text
    whole_sizes = {name: whole(values) for name, values in sizes.items()}
    dropped = Counter(skipped or {})
    keep = np.isfinite(measured_s) & (measured_s > 0)
    if not keep.all():
        dropped[NO_TIME] += int((~keep).sum())
    for code, name in enumerate(operations.names):
        ours = operations.codes == code
        for column in OPS[name].needed:
            bad = keep & ours & (whole_sizes[column] < 1 if column in whole_sizes else np.True_)
            if bad.any():
                dropped[f"{name}: {column} is not a whole number >= 1"] += int(bad.sum())
                keep &= ~bad
    table = KernelTable(
        whole_sizes,
        columns,
        measured_s.astype(np.float64),
        np.full(rows, np.nan) if std_s is None else std_s.astype(np.float64),
        np.zeros(rows, dtype=np.int64) if count is None else count.astype(np.int64),
        source,
        format,
        dict(dropped),
    )
    return table if keep.all() else table.where(keep)


def whole(values: Array) -> IntArray:
    """Convert to integers; 0 if a value is missing, not an integer, or larger than any kernel's size."""
    if values.dtype.kind == "i":
        return np.where(np.abs(values) <= LARGEST_SIZE, values, 0).astype(np.int64)
    numbers = np.asarray(values, dtype=np.float64)
    good = np.isfinite(numbers) & (np.abs(numbers) <= LARGEST_SIZE)
    rounded = np.where(good, np.rint(np.where(good, numbers, 0.0)), 0.0)
    return np.where(np.abs(rounded - np.where(good, numbers, -1.0)) < 1e-6, rounded, 0.0).astype(np.int64)


def concatenate(tables: Sequence[KernelTable]) -> KernelTable:
    """All rows of several tables in order; ``skipped`` counts are added up.

    Raises:
        ValueError: no table given.
    """
    if not tables:
        raise ValueError("at least one table is needed")
    if len(tables) == 1:
        return tables[0]
    names = tuple(dict.fromkeys(name for table in tables for name in table.sizes))
    texts = tuple(dict.fromkeys(name for table in tables for name in table.words))
    skipped = Counter[str]()
    for table in tables:
        skipped.update(table.skipped)
    return KernelTable(
        {name: np.concatenate([table.size(name) for table in tables]) for name in names},
        {name: _joined([table.word(name) for table in tables]) for name in texts},
        np.concatenate([table.measured_s for table in tables]),
        np.concatenate([table.std_s for table in tables]),
        np.concatenate([table.count for table in tables]),
        ", ".join(dict.fromkeys(table.source for table in tables)),
        ", ".join(dict.fromkeys(table.format for table in tables)),
        dict(skipped),
    )


def _joined(columns: Sequence[Words]) -> Words:
    codes: dict[str, int] = {}
    parts = []
    for column in columns:
        new = np.array([codes.setdefault(name, len(codes)) for name in column.names], dtype=np.int32)
        parts.append(new[column.codes] if len(new) else column.codes)
    return Words(np.concatenate(parts), tuple(codes))


class ShapedKernel(NamedTuple):
    """One kernel of a small trace: its operation, seconds, and canonical size and text columns."""

    op: str
    seconds: float
    sizes: Mapping[str, int]
    texts: Mapping[str, str]


def table_of_rows(rows: Sequence[ShapedKernel], source: str, format: str) -> KernelTable:
    """Build a table from single kernels; a size that a kernel lacks, or that none can have, is 0."""

    def column(name: str) -> IntArray:
        values = [row.sizes.get(name, 0) for row in rows]
        return np.array([value if abs(value) <= LARGEST_SIZE else 0 for value in values], dtype=np.int64)

    sizes = {name: column(name) for name in dict.fromkeys(name for row in rows for name in row.sizes)}
    names = dict.fromkeys(name for row in rows for name in row.texts)
    texts: dict[str, str | Words] = {name: words([row.texts.get(name, "") for row in rows]) for name in names}
    seconds = np.array([row.seconds for row in rows], dtype=np.float64)
    return make_table(seconds, words([row.op for row in rows]), sizes, texts, source, format)


def equal_rows(columns: Sequence[NDArray[np.integer | np.bool_]]) -> Iterator[IndexArray]:
    """Row indices of each distinct combination of values; empty for empty columns."""
    rows = len(columns[0])
    if not rows:
        return
    key: IntArray = np.zeros(rows, dtype=np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        _, key = np.unique(key * len(values) + inverse, return_inverse=True)
    order = np.argsort(key, kind="stable")
    bounds = np.flatnonzero(np.diff(key[order])) + 1
    yield from np.split(order, bounds)
