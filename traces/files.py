"""File access: gzip, encodings, size limits, binary detection, text with exact line numbers, JSON and CSV tables."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

from traces.errors import TraceError, comma_hint, shown

OnError: TypeAlias = Literal["stop", "skip"]

LARGEST_DOCUMENT_BYTES = 1 << 30
"""Maximum unpacked size in bytes of a file that is read whole: kilobytes of gzip can expand to terabytes."""
LARGEST_TABLE_VALUES = 500_000_000
"""Maximum rows times columns of a Parquet file that is read whole."""
HEAD_BYTES = 1 << 16
"""Bytes read to recognise the format of a file."""
BLOCK_BYTES = 1 << 20
"""Bytes of text taken from a file at a time."""

MAX_LINE_BYTES = 64 << 20
"""Longest line accepted in a file that is read as a stream of rows."""

_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Block(NamedTuple):
    """A block of whole lines of a file."""

    text: str
    first_line: int
    clean: bool  # False: bytes that are not UTF-8 stand in the text as lone surrogates


def head(path: Path, count: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, decompressed; raises TraceError if it cannot be read."""
    with reading(path), open_bytes(path) as stream:
        return stream.read(count)


def unpacked_bytes(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip.

    Raises:
        TraceError: unreadable, damaged, or more than ``LARGEST_DOCUMENT_BYTES``.
    """
    with reading(path), open_bytes(path) as stream:
        data = stream.read(LARGEST_DOCUMENT_BYTES + 1)
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise TraceError(f"{path}: holds more than {LARGEST_DOCUMENT_BYTES >> 20} MiB (unpacked); is this a trace?")
    return data


def check_table_size(path: Path) -> None:
    """Refuse a Parquet file that has to be read whole and has more than ``LARGEST_TABLE_VALUES`` values."""
    import pyarrow.parquet as pq

    about: Any = pq.read_metadata(path)
    if about.num_rows * about.num_columns > LARGEST_TABLE_VALUES:
        raise TraceError(
            f"{path}: {about.num_rows} rows of {about.num_columns} columns are more than {LARGEST_TABLE_VALUES} "
            f"values; is this a trace?"
        )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert file-system and decompression errors into a TraceError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise TraceError(f"{path}: the gzip data is damaged or cut short ({problem})") from problem
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except OSError as problem:
        raise TraceError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed if it is gzip (recognised by content, not by name)."""
    with path.open("rb") as stream:
        magic = stream.read(2)
        stream.seek(0)
        if magic == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unpacked, io.BufferedReader(unpacked) as buffered:
                yield buffered
        else:
            yield stream


def is_parquet(path: Path) -> bool:
    """Whether a file is Parquet, by its first bytes (an empty or cut one by its name)."""
    with reading(path), path.open("rb") as stream:
        return stream.read(4) == b"PAR1" or path.suffix == ".parquet"


def _cut(data: bytes, quoted: bool) -> int:
    """Where the last whole line of ``data`` ends; inside CSV quotes a line end does not count. 0: no whole line."""
    end = data.rfind(b"\n") + 1
    if quoted and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, data.rfind(b'"', 0, end)) + 1
        while end and data.count(b'"', 0, end) % 2:
            end = data.rfind(b"\n", 0, end - 1) + 1
    return end


def text_blocks(path: Path, on_error: OnError = "stop", quoted: bool = False) -> Iterator[Block]:
    """Whole lines of a text file, about ``BLOCK_BYTES`` at a time, with the number of each block's first line.

    Args:
        path: a text file, UTF-8 with or without byte order mark (or UTF-16 with one), perhaps gzip-compressed.
        on_error: "stop" raises at the first byte that is not UTF-8; "skip" yields such blocks marked as not clean.
        quoted: keep CSV fields in double quotes whole even when they hold line ends.

    Raises:
        TraceError: unreadable file, another encoding, a line longer than ``MAX_LINE_BYTES``.
    """
    with reading(path), open_bytes(path) as stream:
        source: IO[bytes] = stream
        start = stream.read(3)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            data = start + stream.read(LARGEST_DOCUMENT_BYTES)
            if len(data) > LARGEST_DOCUMENT_BYTES:
                raise TraceError(
                    f"{path}: UTF-16 text of more than {LARGEST_DOCUMENT_BYTES >> 20} MiB; save it as UTF-8"
                )
            source = _utf16_as_utf8(path, data)
            start = source.read(3)
        rest = b"" if start == b"\xef\xbb\xbf" else start
        line = 1
        while data := source.read(BLOCK_BYTES):
            data = rest + data
            end = _cut(data, quoted)
            rest = data[end:]
            if len(rest) > MAX_LINE_BYTES:
                what = "a quoted field that never closes" if quoted and b'"' in rest else "a line without end"
                raise TraceError(f"{path}:{line}: {what} (more than {MAX_LINE_BYTES >> 20} MiB); is this a trace?")
            if end:
                yield _decoded(path, data[:end], line, on_error)
                line += data.count(b"\n", 0, end)
        if rest:
            yield _decoded(path, rest, line, on_error)


def _utf16_as_utf8(path: Path, data: bytes) -> IO[bytes]:
    try:
        return io.BytesIO(data.decode("utf-16").encode())
    except UnicodeError as problem:
        raise TraceError(f"{path}: starts like UTF-16 but is not ({problem}); save it as UTF-8") from None


def _decoded(path: Path, data: bytes, first_line: int, on_error: OnError) -> Block:
    """The block's text; a byte that is not UTF-8 stops at its line or marks the block as not clean."""
    try:
        return Block(data.decode("utf-8"), first_line, True)
    except UnicodeDecodeError as problem:
        line = first_line + data.count(b"\n", 0, problem.start)
        if on_error == "stop":
            byte = data[problem.start]
            raise TraceError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8") from None
        return Block(data.decode("utf-8", errors="surrogateescape"), first_line, False)


def first_text(path: Path) -> str:
    """The first bytes as text for recognising the format, undecodable bytes replaced; no byte order mark.

    Raises:
        TraceError: a file that cannot be read, is empty or is binary.
    """
    start = head(path)
    if not start:
        raise TraceError(f"{path}: the file is empty; a trace needs at least one request")
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            raise TraceError(f"{path}: {name}-compressed; decompress it first (gzip is read directly)")
    wide = start[:2] in (b"\xff\xfe", b"\xfe\xff")
    if not wide and not start.startswith(b"PAR1") and b"\0" in start:
        raise TraceError(f"{path}: binary data; a text table (CSV, JSONL, JSON) or Parquet expected")
    if wide:
        return start[: len(start) // 2 * 2].decode("utf-16", errors="replace")
    return start.decode("utf-8-sig", errors="replace")


def read_text(path: Path) -> str:
    """The text of a file, whole; raises TraceError where it cannot be read, is no text or is too large."""
    data = unpacked_bytes(path)
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = _utf16_as_utf8(path, data).read()
    return _decoded(path, data.removeprefix(b"\xef\xbb\xbf"), 1, "stop").text


def load_document(path: Path) -> Any:
    """One JSON document; raises TraceError with the line and column where it breaks."""
    return json_value(read_text(path), str(path))


def json_value(text: str, place: str) -> Any:
    """JSON text as plain data; raises TraceError with the line and column where it breaks."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as problem:
        raise TraceError(f"{place}:{problem.lineno}: not valid JSON: {problem.msg} (column {problem.colno})") from None
    except (ValueError, RecursionError) as problem:
        raise TraceError(f"{place}: not usable JSON: {shown(str(problem), 80)}") from None


_JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')


def visible_keys(text: str) -> set[str]:
    """Keys that occur in the first part of a JSON text, which may be truncated anywhere."""
    return set(_JSON_KEY.findall(text))


_YES = ("true", "1", "yes", "on")
_NO = ("false", "0", "no", "off")


class Cells:
    """Typed access to one row or mapping by key; a missing key, an empty cell and NaN all return None.

    Every method raises TraceError, with the place (file and line) and the key, where something else stands there.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values = values
        self.place = place

    @property
    def values(self) -> Mapping[str, Any]:
        """The raw values by key."""
        return self._values

    def with_values(self, values: Mapping[str, Any]) -> Cells:
        """Return the row with some values replaced."""
        return Cells({**self._values, **values}, self.place)

    def text(self, key: str) -> str | None:
        """Return the text under ``key``."""
        value = self._values.get(key)
        word = "" if value is None else str(value).strip()
        return None if word.lower() in ("", "nan", "none", "null") else word

    def number(self, key: str) -> float | None:
        """Return the finite number under ``key``."""
        word = self.text(key)
        if word is None:
            return None
        try:
            value = float(word)
        except ValueError:
            raise TraceError(f"{self.place}: {key}: {shown(word)} is no number{comma_hint(word)}") from None
        if not math.isfinite(value):
            raise TraceError(f"{self.place}: {key}: {shown(word)} is not finite")
        return value

    def count(self, key: str) -> int | None:
        """Return the integer from 1 to 1e12 under ``key``."""
        value = self.number(key)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= 1e12:
            raise TraceError(f"{self.place}: {key}: {shown(self.text(key))} is no whole number from 1")
        return int(value)

    def several(self, key: str) -> int | None:
        """Return the integer > 1 under ``key``; None if it is 0 or 1, which tables use for disabled features."""
        return None if self.number(key) in (None, 0.0, 1.0) else self.count(key)

    def flag(self, key: str) -> bool | None:
        """Return the boolean under ``key``."""
        word = self.text(key)
        if word is None:
            return None
        if word.lower() not in (*_YES, *_NO):
            raise TraceError(f"{self.place}: {key}: {shown(word)} is neither true nor false")
        return word.lower() in _YES

    def positive(self, key: str) -> float | None:
        """Return the number > 0 under ``key``; None if it is <= 0, which tools write for values not measured."""
        value = self.number(key)
        return value if value is not None and value > 0 else None


def csv_records(text: str, delimiter: str = ",", first_line: int = 1) -> Iterator[tuple[int, list[str] | str]]:
    """Rows of CSV text that are not empty, each with the line on which it starts.

    A row that cannot be split (a bare line end inside a field, a field of 128 KiB) is a text that says so.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    while True:
        line = first_line + reader.line_num
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            yield line, f"cannot be split into columns ({problem})"
        else:
            if row:
                yield line, row


def csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Rows of CSV text that are not empty, each with its line; raises TraceError at one that cannot be split."""
    for line, row in csv_records(text):
        if isinstance(row, str):
            raise TraceError(f"{path}:{line}: {row}")
        yield line, row


def csv_rows(path: Path) -> tuple[tuple[str, ...], Iterator[Cells]]:
    """Columns and rows of a CSV file.

    Raises:
        TraceError: not readable as text, without a header, or with a row of another width.
    """
    lines = csv_lines(path, read_text(path))
    _, header = next(lines, (0, []))
    if not header:
        raise TraceError(f"{path}: empty; a header line with column names expected")
    columns = tuple(name.strip() for name in header)

    def rows() -> Iterator[Cells]:
        for line, row in lines:
            if not any(cell.strip() for cell in row):
                continue
            if len(row) != len(columns):
                raise TraceError(f"{path}:{line}: {len(row)} cells where the header names {len(columns)} columns")
            yield Cells(dict(zip(columns, row, strict=True)), f"{path}:{line}")

    return columns, rows()
