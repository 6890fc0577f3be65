"""The engine's source as one module, which is what Cython compiles: its classes call each other without Python."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

PARTS = (
    "common",
    "sequence",
    "work",
    "prices",
    "draft_prices",
    "acceptance",
    "hash_blocks",
    "prefix_index",
    "prefix_cache",
    "schedulers/scheduler",
    "schedulers/unified",
    "schedulers/priority",
    "schedulers/pipelined",
    "schedulers/prefill_first",
    "schedulers/sglang",
    "schedulers/static",
    "schedulers/grouped",
    "rows",
    "loop",
    "pipeline",
    "lockstep",
)
"""Modules of the engine, each after those that it imports."""
FOLDER = Path(__file__).with_name("engine")
PACKAGE = "simulator.serving.engine"


def source() -> str:
    """All parts one after the other, without the imports of one from another."""
    texts = [(FOLDER / f"{part}.py").read_text(encoding="utf-8") for part in PARTS]
    return "from __future__ import annotations\n" + "\n\n".join(map(_without_inner_imports, texts))


def engine_checksum() -> str:
    """Of all parts: a compiled engine holds that of the source that it was made from."""
    return hashlib.sha256(b"".join((FOLDER / f"{part}.py").read_bytes() for part in PARTS)).hexdigest()


def _without_inner_imports(text: str) -> str:
    lines = text.splitlines()
    for node in ast.parse(text).body:
        inner = isinstance(node, ast.ImportFrom) and (node.module or "").startswith((PACKAGE, "__future__"))
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if inner or typing_only:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)
