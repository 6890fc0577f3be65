"""Half of the measured rows that a fit may see, and scored rows of long tables, by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TypeVar

Row = TypeVar("Row")
RULE = "rows are held out of fits where SHA-256 of their key, such as `sglang_cookbook_v2/sgc200003`, is even"
"""The rule of :func:`held_out` in words."""


def held_out(row_key: str) -> bool:
    """True if a measured row is only scored; fits of physical constants see the others.

    Args:
        row_key: the table and the row in it, such as ``splitwise_perf_power/spw00012``.

    >>> held_out("a/1"), held_out("a/4")
    (False, True)
    """
    return _hash(row_key) % 2 == 0


def rows_by_hash(rows: Iterable[Row], key: Callable[[Row], str], limit: int) -> list[Row]:
    """At most ``limit`` rows in their order: those whose keys have the smallest SHA-256.

    More rows beside them or a larger limit do not exchange rows, so that two runs can be compared.
    """
    listed = list(rows)
    chosen = {key(row) for row in sorted(listed, key=lambda row: _hash(key(row)))[:limit]}
    return [row for row in listed if key(row) in chosen]


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[-8:], "big")
