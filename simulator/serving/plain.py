"""Stands in for the module ``cython`` where that is not installed: ``engine.py`` then runs as plain Python."""

from __future__ import annotations

from typing import Any

compiled = False
longlong = ulonglong = int
double = float
bint = bool


def cclass(marked: Any) -> Any:
    """A class with fields of fixed types, once compiled."""
    return marked


cfunc = ccall = inline = final = cclass


def declare(kind: Any, visibility: str = "") -> Any:
    """A field that others may read and set."""
    return None
