"""Lazy imports: public names of a package are imported on first use."""

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
"""Pattern of a stub line that exports one name: groups are the module and the name."""
ALL_OF = re.compile(r"^from (\S+) import \*$", re.MULTILINE)
"""Pattern of a stub line that exports all names of another package."""


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
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package whose names are imported on first use.

    The stub, ``__init__.pyi`` in the package's folder, contains ``from module import name as name`` lines and ``from
    face import *`` lines only. Type checkers and editors read the stub; this function reads the module of each name
    from it. ``renamed`` maps names of the previous release to new names. ``installed`` is a module such as
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
