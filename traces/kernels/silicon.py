"""Measured kernels of an installed ``aiconfigurator-core`` package: thousands of NVIDIA rows, one pip install away."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from traces.errors import TraceError, did_you_mean, install_hint

PACKAGE = "aiconfigurator_core"
PREFIX = "silicon:"
"""A path that starts so names a folder or file inside the package's data, e.g. ``silicon:h100_sxm/gemm``."""


def silicon_folder() -> Path:
    """The installed package's folder of measurements.

    Raises:
        TraceError: the package is not installed, or holds no data folder.
    """
    try:
        spec = importlib.util.find_spec(PACKAGE)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise TraceError(f"{PREFIX} needs the measured tables of {PACKAGE}; {install_hint('silicon')}")
    folder = Path(places[0]) / "systems" / "data"
    if not folder.is_dir():
        raise TraceError(f"{folder}: the installed {PACKAGE} holds no measurements; another version is needed")
    return folder


def silicon_path(name: str) -> Path:
    """The file or folder that ``name`` (with or without the prefix) means inside the package.

    Raises:
        TraceError: no such place; the message names what is there.
    """
    current = silicon_folder()
    for part in name.removeprefix(PREFIX).strip("/").split("/"):
        if not part:
            continue
        present = sorted(entry.name for entry in current.iterdir())
        if part not in present:
            hint = did_you_mean(part, present)
            raise TraceError(f"{PREFIX}{name.removeprefix(PREFIX)}: no '{part}'{hint} (there: {', '.join(present)})")
        current = current / part
    return current
