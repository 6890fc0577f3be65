"""Old names that still work for one release, with a ``DeprecationWarning``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any


def warn_renamed(old: str, new: str) -> None:
    """Warn that ``old`` is now ``new``, at the caller's caller."""
    warnings.warn(f"{old} is now {new}; the old name goes in the next release", DeprecationWarning, stacklevel=3)


def with_new_names(data: Any, renamed: Mapping[str, str]) -> Any:
    """``data`` with old keys replaced by new ones, if it is a mapping that has any.

    >>> with_new_names({"a": 1}, {"old": "new"})
    {'a': 1}
    """
    if not isinstance(data, Mapping) or not renamed.keys() & data.keys():
        return data
    for old in renamed.keys() & data.keys():
        warn_renamed(old, renamed[old])
    return {renamed.get(key, key): value for key, value in data.items()}
