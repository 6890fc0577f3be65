"""The version of the installed package."""

from __future__ import annotations

from functools import cache


@cache
def forerun_version() -> str:
    """Version of the installed package; ``unknown`` in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("forerun")
    except PackageNotFoundError:
        return "unknown"
