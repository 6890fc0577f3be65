"""File access: gzip, encodings, size limits, binary detection, text with exact line numbers, JSON and CSV tables."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from traces.errors import TraceError, shown
from traces.fields import Cells

if TYPE_CHECKING:
    import pyarrow as pa

OnError: TypeAlias = Literal["stop", "skip"]

LARGEST_DOCUMENT_BYTES = 1 << 30
"""Maximum unpacked bytes of a file that is read whole; a limit, because kilobytes of gzip can expand to terabytes."""
LARGEST_TABLE_VALUES = 500_000_000
"""Maximum rows times columns of a Parquet file that is read whole."""
HEAD_BYTES = 1 << 16
"""Bytes read to recognise the format of a file."""
BLOCK_BYTES = 1 << 20
"""Bytes of text read from a file at a time."""

MAX_LINE_BYTES = 64 << 20
"""Maximum bytes of a line in a file that is read as a stream of rows."""

_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Block(NamedTuple):
    """A block of whole lines of a file."""

    text: str
    first_line: int
    clean: bool  # False: bytes that are not UTF-8 stand in the text as lone surrogates


def head(path: Path, count: int = HEAD_BYTES) -> bytes:
    """Return the first bytes of a file, decompressed; raises TraceError if it cannot be read."""
    with open_bytes(path) as stream:
        return stream.read(count)


def unpacked_bytes(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip.

    Raises:
        TraceError: unreadable, damaged, or more than ``LARGEST_DOCUMENT_BYTES``.
    """
    data = head(path, LARGEST_DOCUMENT_BYTES + 1)
    if len(data) > LARGEST_DOCUMENT_BYTES:
        raise TraceError(f"{path}: holds more than {LARGEST_DOCUMENT_BYTES >> 20} MiB (unpacked); is this a trace?")
    return data


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
def open_bytes(path: Path) -> Iterator[io.BufferedReader[Any]]:
    """Open a file for reading bytes, decompressed if it is gzip (recognised by content, not by name)."""
    with reading(path), path.open("rb") as stream:
        if stream.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unpacked, io.BufferedReader(unpacked) as buffered:
                yield buffered
        else:
            yield stream


def is_parquet(path: Path) -> bool:
    """True if a file is Parquet by its first bytes, or by its name if it is empty or cut."""
    with reading(path), path.open("rb") as stream:
        return stream.read(4) == b"PAR1" or path.suffix == ".parquet"


def _cut(text: str, quoted: bool) -> int:
    """Index after the last whole line of ``text``, 0 if none; line ends inside CSV quotes do not count."""
    end = text.rfind("\n") + 1
    if quoted and text.count('"', 0, end) % 2:
        end = text.rfind("\n", 0, text.rfind('"', 0, end)) + 1
        while end and text.count('"', 0, end) % 2:
            end = text.rfind("\n", 0, end - 1) + 1
    return end


def text_blocks(path: Path, on_error: OnError = "stop", quoted: bool = False) -> Iterator[Block]:
    """Whole lines of a text file, about ``BLOCK_BYTES`` at a time, with the number of each block's first line.

    Args:
        path: a text file, UTF-8 with or without byte order mark (or UTF-16 with one), perhaps gzip-compressed.
        on_error: "stop" raises at the first byte that is not UTF-8; "skip" yields such blocks marked as not clean.
        quoted: keep CSV fields in double quotes whole even if they contain line ends.

    Raises:
        TraceError: unreadable file, another encoding, a line longer than ``MAX_LINE_BYTES``.
    """
    with open_bytes(path) as stream:
        decoder = _decoder(stream.peek(2))
        rest, line, data = "", 1, b"\0"
        while data:
            data = stream.read(BLOCK_BYTES)
            text = rest + _decoded(path, decoder, data, last=not data)
            end = _cut(text, quoted) if data else len(text)
            rest = text[end:]
            if len(rest) > MAX_LINE_BYTES:
                what = "a quoted field that never closes" if quoted and '"' in rest else "a line without end"
                raise TraceError(f"{path}:{line}: {what} (more than {MAX_LINE_BYTES >> 20} MiB); is this a trace?")
            if end:
                yield _block(path, text[:end], line, on_error)
                line += text.count("\n", 0, end)


def _encoding(start: bytes) -> str:
    return "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def _decoder(start: bytes) -> codecs.IncrementalDecoder:
    """Decoder by the byte order mark; bytes that are not UTF-8 become lone surrogates."""
    encoding = _encoding(start)
    return codecs.getincrementaldecoder(encoding)("strict" if encoding == "utf-16" else "surrogateescape")


def _decoded(path: Path, decoder: codecs.IncrementalDecoder, data: bytes, last: bool) -> str:
    try:
        return decoder.decode(data, last)
    except UnicodeError as problem:
        raise TraceError(f"{path}: starts like UTF-16 but is not ({problem}); save it as UTF-8") from None


def _block(path: Path, text: str, first_line: int, on_error: OnError) -> Block:
    """Block of whole lines; a byte that is not UTF-8 raises TraceError or marks the block as not clean."""
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as problem:
        if on_error == "skip":
            return Block(text, first_line, False)
        line, byte = first_line + text.count("\n", 0, problem.start), ord(text[problem.start]) - 0xDC00
        raise TraceError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8 text; save the file as UTF-8") from None
    return Block(text, first_line, True)


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
    encoding = _encoding(start)
    if encoding != "utf-16" and not start.startswith(b"PAR1") and b"\0" in start:
        raise TraceError(f"{path}: binary data; a text table (CSV, JSONL, JSON) or Parquet expected")
    return start.decode(encoding, errors="replace")


def first_line(path: Path) -> str:
    """The first line, up to ``MAX_LINE_BYTES``, undecodable bytes replaced."""
    with open_bytes(path) as stream:
        line = stream.readline(MAX_LINE_BYTES)
    return line.decode(_encoding(line), errors="replace")


def read_text(path: Path) -> str:
    """The whole text of a file; raises TraceError if it cannot be read, is not text or is too large."""
    data = unpacked_bytes(path)
    return _block(path, _decoded(path, _decoder(data), data, last=True), 1, "stop").text


def load_document(path: Path) -> object:
    """Parse a file as one JSON document; raises TraceError with line and column of a syntax error."""
    return json_value(read_text(path), str(path))


def json_value(text: str, place: str) -> object:
    """Parse JSON text; raises TraceError with line and column of a syntax error."""
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as problem:
        raise TraceError(f"{place}:{problem.lineno}: not valid JSON: {problem.msg} (column {problem.colno})") from None
    except (ValueError, RecursionError) as problem:
        raise TraceError(f"{place}: not usable JSON: {shown(str(problem), 80)}") from None
    return value


_JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')


def visible_keys(text: str) -> set[str]:
    """Keys that occur in the beginning of a JSON text, which may be truncated anywhere."""
    return set(_JSON_KEY.findall(text))


def csv_records(text: str, delimiter: str = ",", first_line: int = 1) -> Iterator[tuple[int, list[str] | str]]:
    """Non-empty rows of CSV text, each with the line on which it starts.

    A row that cannot be split (a bare line end inside a field, a field of 128 KiB) is yielded as its error text.
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
    """Non-empty rows of CSV text with line numbers; raises TraceError at a row that cannot be split."""
    for line, row in csv_records(text):
        if isinstance(row, str):
            raise TraceError(f"{path}:{line}: {row}")
        yield line, row


def csv_rows(path: Path) -> tuple[tuple[str, ...], Iterator[Cells]]:
    """Columns and rows of a CSV file.

    Raises:
        TraceError: not readable as text, without a header, or with a row whose length differs from the header's.
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


@contextmanager
def arrow_reading(path: Path, kind: str = "Parquet") -> Iterator[None]:
    """Convert Arrow's exceptions about a damaged file of a ``kind`` into a TraceError that names the file."""
    import pyarrow as pa

    with reading(path):
        try:
            yield
        except TraceError:
            raise
        except (pa.ArrowException, OSError, ValueError) as problem:
            if isinstance(problem, OSError) and problem.strerror:
                raise
            detail = " ".join(str(problem).split())[:120]
            raise TraceError(f"{path}: not a readable {kind} file, damaged or cut short? ({detail})") from None


def parquet_table(path: Path) -> pa.Table:
    """Read a whole Parquet file; raises TraceError if damaged, or with more than ``LARGEST_TABLE_VALUES`` values."""
    import pyarrow.parquet as pq

    with arrow_reading(path):
        about = pq.read_metadata(path)
        if about.num_rows * about.num_columns > LARGEST_TABLE_VALUES:
            raise TraceError(
                f"{path}: {about.num_rows} rows of {about.num_columns} columns are more than "
                f"{LARGEST_TABLE_VALUES} values; is this a trace?"
            )
        return pq.read_table(path)


def table_rows(path: Path) -> tuple[tuple[str, ...], Iterator[Cells]]:
    """Columns and rows of a CSV or Parquet file; raises TraceError if it cannot be read."""
    if not is_parquet(path):
        return csv_rows(path)
    table = parquet_table(path)
    with arrow_reading(path):
        rows = table.to_pylist()
    return tuple(table.column_names), (Cells(row, f"{path}: row {number}") for number, row in enumerate(rows))
