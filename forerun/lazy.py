"""Public names of a package, imported when they are first used."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from forerun.errors import warn_renamed

PLACE = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)
"""A line of a stub: the module and the name."""
ALL_OF = re.compile(r"^from (\S+) import \*$", re.MULTILINE)
"""A line of a stub that lends all names of another face."""


def lent_names(stub: Path, package: str) -> dict[str, str]:
    """Module of each name that a package's stub exports, including names from ``import *`` lines."""
    text, root = stub.read_text(encoding="utf-8"), stub.parents[package.count(".") + 1]
    lent = {name: module for module, name in PLACE.findall(text)}
    for face in ALL_OF.findall(text):
        lent |= lent_names(root / face.replace(".", "/") / "__init__.pyi", face)
    return lent


def lazy_names(
    package: str, renamed: Mapping[str, str] = MappingProxyType({}), installed: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are imported when they are first used.

    The stub, ``__init__.pyi`` beside the package's ``__init__.py``, holds ``from module import name as name`` lines and
    ``from face import *`` lines only. Type checkers and editors read the stub itself; this function reads from it where
    each name is defined. ``renamed`` maps names of the previous release to new names. ``installed`` is a module such as
    ``simulator.studies.installed``, whose names the package exports too.
    """
    home = sys.modules[package]
    places = lent_names(Path(str(home.__file__)).with_suffix(".pyi"), package)

    def get(name: str) -> Any:
        if name in renamed:
            warn_renamed(f"{package}.{name}", f"{package}.{renamed[name]}")
            return get(renamed[name])
        if name not in places and installed and not name.startswith("_"):
            return import_module(installed).load_name(name, package)
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(places[name])
        inside = f"{places[name]}.{name}"
        is_module = hasattr(module, "__path__") and find_spec(inside) is not None
        value = import_module(inside) if is_module else getattr(module, name)
        setattr(home, name, value)
        return value

    def names() -> list[str]:
        return sorted({*places, *(import_module(installed).installed_names() if installed else ())})

    return get, names, sorted(places)
