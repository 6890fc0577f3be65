"""Names of a package that are imported when someone first asks for them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

PLACE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
"""A line of a stub: where a name lives."""


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package that lends the names its stub imports.

    The stub, ``__init__.pyi`` beside the package's ``__init__.py``, holds ``from module import name as name`` and
    nothing else: type checkers read it as it stands, and here it says where each name lives. So a face is written once.
    """
    home = sys.modules[package]
    stub = Path(str(home.__file__)).with_suffix(".pyi")
    places = {name: module for module, name in PLACE.findall(stub.read_text(encoding="utf-8"))}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(home, name, value)
        return value

    return get, lambda: sorted({*vars(home), *places}), sorted(places)
