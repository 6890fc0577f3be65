"""Choice of the engine: the parts of ``engine`` compiled together, or the same source interpreted.

Compiled as one module, its classes call each other without Python. ``setup.py`` runs this file by its path.
"""

from __future__ import annotations

import hashlib
import importlib
from functools import cache
from pathlib import Path
from typing import Any

COMPILED = "simulator.serving._engine"
PARTS = (
    "common",
    "sequence",
    "steady",
    "work",
    "acceptance",
    "policies",
    "drafting",
    "prices",
    "hash_blocks",
    "prefix_index",
    "caching/eviction",
    "caching/stores",
    "caching/prefix_cache",
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
"""Modules of the engine, each listed after the modules that it imports."""
FOLDER = Path(__file__).with_name("engine")
PACKAGE = "simulator.serving.engine"
HOW_TO_BUILD = "python setup.py build_ext --inplace builds it where there is a C compiler"


def engine_module(interpreted: bool = False) -> Any:
    """Module with the engine's classes: the compiled one if built from the present source, else the source.

    Warns:
        RuntimeWarning: there is no compiled module, or it was built from another source.
    """
    module, reason = (None, None) if interpreted else _compiled()
    if reason is not None:
        _warn(reason)
    return importlib.import_module("simulator.serving.engine") if module is None else module


def _warn(reason: str) -> None:
    """Warn once, and never in a worker process; ``warnings`` is imported only when it is needed."""
    import multiprocessing
    import warnings

    if multiprocessing.parent_process() is None:
        warnings.warn(reason, RuntimeWarning, stacklevel=3)  # Python shows the same one once


def why_interpreted() -> str | None:
    """Reason why the engine cannot run compiled, with the remedy; None if it can."""
    return _compiled()[1]


@cache
def _compiled() -> tuple[Any, str | None]:
    try:
        module = importlib.import_module(COMPILED)
    except ImportError:
        return None, f"the engine runs interpreted, several times slower: it is not compiled here ({HOW_TO_BUILD})"
    if engine_checksum() != module.SOURCE:
        return None, (
            f"the engine runs interpreted, several times slower: what is compiled here is not the source beside it "
            f"({HOW_TO_BUILD})"
        )
    return module, None


def engine_source() -> str:
    """Source of all parts concatenated, without their imports from one another."""
    texts = [(FOLDER / f"{part}.py").read_text(encoding="utf-8") for part in PARTS]
    return "from __future__ import annotations\n" + "\n\n".join(map(_without_inner_imports, texts))


def engine_checksum() -> str:
    """SHA-256 of all parts; a compiled engine stores the checksum of the source that it was built from."""
    return hashlib.sha256(b"".join((FOLDER / f"{part}.py").read_bytes() for part in PARTS)).hexdigest()


def _without_inner_imports(text: str) -> str:
    import ast

    lines = text.splitlines()
    for node in ast.parse(text).body:
        inner = isinstance(node, ast.ImportFrom) and (node.module or "").startswith((PACKAGE, "__future__"))
        typing_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if inner or typing_only:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)
