"""The canonical kernel trace: its operations, the columns each needs, and what the columns mean."""

from __future__ import annotations

import re
from typing import NamedTuple

from forerun.yaml_files import packaged

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""Operations between chips."""

OTHER = "other"
"""Operation of kernels for which only name and duration are known."""


class Columns(NamedTuple):
    """Columns of one operation: sizes that must be >= 1, and sizes that may be 0 or missing."""

    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()


_DESCRIBED = packaged("traces.kernels", "columns.yaml")
OPS = {op: Columns(tuple(sizes["needed"]), tuple(sizes.get("optional", ()))) for op, sizes in _DESCRIBED.items()}
"""Columns by operation; ``columns.yaml`` says what each means."""

SIZES: tuple[str, ...] = tuple(
    dict.fromkeys(name for columns in OPS.values() for name in (*columns.needed, *columns.optional))
)
"""All size columns; 0 if a size does not apply."""

WORDS = ("op", "dtype", "kv_dtype", "library", "device", "source", "name", "cache", "routing")
"""All text columns. ``cache`` is ``warm`` if the same operands were just read and may still be on the chip,
``cold`` where not; ``device`` is the measured chip as the file calls it; ``routing`` is how evenly tokens were
spread over experts; ``name`` is the kernel's own."""

OLD_COLUMNS = {"activated_experts": "active_experts", "distribution": "routing"}
"""Earlier names of columns that a canonical trace may still have, with the present ones."""


def kernel_class(name: str) -> str:
    """The kind of kernel that ``name`` suggests, such as ``GEMM``; ``unknown`` where it suggests none."""
    classes = packaged("traces.kernels", "formats.yaml")["classes"]
    return next((kind for kind, pattern in classes.items() if re.search(pattern, name.lower())), "unknown")
