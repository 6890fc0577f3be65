"""Which engine runs: the parts of ``engine`` compiled together, or the same source interpreted."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from simulator.serving.engine_source import engine_checksum

COMPILED = "simulator.serving._engine"
HOW_TO_BUILD = "python setup.py build_ext --inplace builds it where there is a C compiler"


def engine_module(interpreted: bool = False) -> Any:
    """The engine's classes: compiled where that was built from the source as it stands, by default.

    Warns:
        RuntimeWarning: nothing fits that is compiled.
    """
    module, reason = (None, None) if interpreted else _compiled()
    if reason is not None:
        _warn(reason)
    return importlib.import_module("simulator.serving.engine") if module is None else module


def _warn(reason: str) -> None:
    """Say it once, and in no worker process; a run that fits imports nothing for it."""
    import multiprocessing
    import warnings

    if multiprocessing.parent_process() is None:
        warnings.warn(reason, RuntimeWarning, stacklevel=3)  # Python shows the same one once


def why_interpreted() -> str | None:
    """Why the engine cannot run compiled, and what to do about it; None where it can."""
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
