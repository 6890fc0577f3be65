"""Files as lines of text with exact line numbers: gzip, byte order marks, encodings, and what is no text at all."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

from traces.bounds import LARGEST_DOCUMENT_BYTES
from traces.errors import TraceError, shown

OnError: TypeAlias = Literal["stop", "skip"]

BLOCK_BYTES = 1 << 20
"""Bytes of text taken from a file at a time."""

MAX_LINE_BYTES = 64 << 20
"""Longest line accepted in a file that is read as a stream of rows."""

_MAGIC = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Block(NamedTuple):
    """Some whole lines of a file."""

    text: str
    first_line: int
    clean: bool  # False: bytes that are not UTF-8 stand in the text as lone surrogates


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every failure of the file system or of decompression into one TraceError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise TraceError(f"{path}: the gzip data is damaged or cut short ({problem})") from problem
    except OSError as problem:
        raise TraceError(f"{path}: cannot be read ({problem.strerror or problem})") from problem


def head_bytes(path: Path, count: int = 4096) -> bytes:
    """The first decompressed bytes of a file; raises TraceError when it cannot be read, is empty or is binary."""
    with reading(path), open_bytes(path) as stream:
        head = stream.read(count)
    if not head:
        raise TraceError(f"{path}: the file is empty; a trace needs at least one request")
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            raise TraceError(f"{path}: {name}-compressed; decompress it first (gzip is read directly)")
    if not head.startswith((b"PAR1", b"\xff\xfe", b"\xfe\xff")) and b"\0" in head:
        raise TraceError(f"{path}: binary data; a text table (CSV, JSONL, JSON) or Parquet expected")
    return head


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed when it is gzip (recognised by content, not by name)."""
    with path.open("rb") as stream:
        magic = stream.read(2)
        stream.seek(0)
        if magic == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=stream) as unpacked, io.BufferedReader(unpacked) as buffered:
                yield buffered
        else:
            yield stream


def is_parquet(path: Path) -> bool:
    """Whether the file starts with Parquet's magic bytes."""
    with reading(path), path.open("rb") as stream:
        return stream.read(4) == b"PAR1"


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
        on_error: "stop" raises at the first byte that is not UTF-8; "skip" hands such blocks out as not clean.
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
    """UTF-16 text (as some spreadsheets export it) as a UTF-8 stream."""
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


def first_text(path: Path, limit: int = 1 << 16) -> str:
    """The first ``limit`` bytes as text for recognising the format, undecodable bytes replaced; no byte order mark."""
    head = head_bytes(path, limit)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return head[: len(head) // 2 * 2].decode("utf-16", errors="replace")
    return head.decode("utf-8-sig", errors="replace")


def load_document(path: Path) -> Any:
    """One JSON document; raises TraceError with the line and column where it breaks."""
    blocks, size = [], 0
    for block in text_blocks(path):
        blocks.append(block.text)
        size += len(block.text)
        if size > LARGEST_DOCUMENT_BYTES:
            most = LARGEST_DOCUMENT_BYTES >> 20
            raise TraceError(f"{path}: one JSON document of more than {most} MiB; is this a trace?")
    try:
        return json.loads("".join(blocks))
    except json.JSONDecodeError as problem:
        raise TraceError(f"{path}:{problem.lineno}: not valid JSON: {problem.msg} (column {problem.colno})") from None
    except (ValueError, RecursionError) as problem:
        raise TraceError(f"{path}: not usable JSON: {shown(str(problem), 80)}") from None


_JSON_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')


def visible_keys(text: str) -> set[str]:
    """Keys that occur in the beginning of a JSON text which may be cut anywhere."""
    return set(_JSON_KEY.findall(text))
