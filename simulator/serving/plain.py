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


cfunc = ccall = inline = final = no_gc = cclass


def cast(kind: Any, value: Any) -> Any:
    """A value that is known to be of that kind, once compiled; a number becomes it."""
    return kind(value) if kind in (int, float) else value


def exceptval(value: Any, check: bool) -> Any:
    """Declares the return value that signals an exception in compiled code."""
    return cclass


def declare(kind: Any, value: Any = None, visibility: str = "") -> Any:
    """A field that others may read and set, or a number of a module's own."""
    return value
