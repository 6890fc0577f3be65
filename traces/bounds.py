"""How much a trace may unpack to: a few kilobytes of gzip or Parquet can stand for terabytes."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from traces.errors import TraceError

LARGEST_DOCUMENT_BYTES = 1 << 30
"""Most bytes of a file that has to be read whole (JSON, SQLite dumps, tables of kernels), unpacked."""
LARGEST_TABLE_VALUES = 500_000_000
"""Most rows times columns of a Parquet file that has to be read whole."""
PACKED = b"\x1f\x8b"
"""First bytes of gzip."""


def unpacked_bytes(path: Path, largest: int | None = None) -> bytes:
    """The bytes of a file, decompressed when it is gzip.

    Raises:
        TraceError: unreadable, damaged, or more than ``largest`` bytes (default: ``LARGEST_DOCUMENT_BYTES``).
    """
    most = LARGEST_DOCUMENT_BYTES if largest is None else largest
    try:
        with path.open("rb") as stream:
            packed = stream.read(2) == PACKED
        with gzip.open(path) if packed else path.open("rb") as stream:
            data: bytes = stream.read(most + 1)
    except (OSError, EOFError, zlib.error) as problem:
        detail = getattr(problem, "strerror", None) or problem
        raise TraceError(f"{path}: cannot be read ({detail})") from None
    if len(data) > most:
        raise TraceError(f"{path}: {'unpacks to' if packed else 'has'} more than {most >> 20} MiB; is this a trace?")
    return data


def check_table_size(path: Path) -> None:
    """Refuse a Parquet file that has to be read whole and is too large for that.

    Raises:
        TraceError: more than ``LARGEST_TABLE_VALUES`` values.
        pyarrow.ArrowException, OSError: not readable as Parquet.
    """
    import pyarrow.parquet as pq

    about: Any = pq.read_metadata(path)
    if about.num_rows * about.num_columns > LARGEST_TABLE_VALUES:
        raise TraceError(
            f"{path}: {about.num_rows} rows of {about.num_columns} columns are more than {LARGEST_TABLE_VALUES} "
            f"values; is this a trace?"
        )
