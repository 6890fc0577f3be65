"""What draws and saves results: a module that registers its name here and is imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import plotly.graph_objects as go

_registered: list[str] = []


class Renderer(Protocol):
    """Functions that the module defines; each takes a ``forerun.result.Result``."""

    def figure_names(self, result: Any) -> tuple[str, ...]:
        """Names of the figures of a result, the main one first."""

    def result_figure(self, result: Any, name: str = "") -> go.Figure:
        """The main figure of a result, or the one of that name."""

    def save_result(self, result: Any, folder: Path) -> None:
        """Write the files that ``--out`` writes; all or none."""


def register_renderer(module: str) -> None:
    """Let the module of that name draw and save every result from now on."""
    _registered.append(module)


def renderer() -> Renderer:
    """The module that was registered last."""
    module: Any = import_module(_registered[-1])
    return module  # type: ignore[no-any-return]
