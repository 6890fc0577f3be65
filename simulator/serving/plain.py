"""Substitute for the module ``cython`` if it is not installed: ``engine.py`` then runs as plain Python."""

from __future__ import annotations

from typing import Any

compiled = False
longlong = ulonglong = int
double = float
bint = bool


def cclass(marked: Any) -> Any:
    """Class decorator: when compiled, the class has fields of fixed types."""
    return marked


cfunc = ccall = inline = final = no_gc = cclass


def cast(kind: Any, value: Any) -> Any:
    """Convert a number to the type ``kind``; any other value is returned unchanged, and is cast only when compiled."""
    return kind(value) if kind in (int, float) else value


def exceptval(value: Any = None, check: bool = True) -> Any:
    """Declares the return value that signals an exception in compiled code."""
    return cclass


def declare(kind: Any, value: Any = None, visibility: str = "") -> Any:
    """Declare a public field of a class, or a variable of a module."""
    return value
