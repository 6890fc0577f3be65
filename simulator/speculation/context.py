"""Acceptance along the context: one factor per doubling, or a fall beyond the window that a drafter was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Protocol

from simulator.speculation.methods import METHODS
from simulator.speculation.speculation_config import AcceptanceConfig, DraftConfig


class ContextFall(Protocol):
    """Factor on conditional rates by cell of the context."""

    def cell(self, context_tokens: int) -> int:
        """Index of the cell that contains a context; -1 if the rates apply unchanged."""
        ...

    def factor(self, cell: int) -> float:
        """Factor on conditional rates in a cell."""
        ...


TRAINED_CONTEXT = METHODS["eagle"].trained_window
"""Default maximum context at which the rates apply unchanged."""
CELLS_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True)
class ContextDrift:
    """Acceptance that falls as the context grows beyond the drafter's training context.

    The factor is constant within cells of a quarter doubling.
    """

    decay: float
    """Factor of every conditional rate per doubling of the context."""
    start: int
    """Maximum context in tokens at which the rates apply unchanged."""

    def cell(self, context_tokens: int) -> int:
        """Index of the cell that contains a context; -1 up to ``start``."""
        if context_tokens <= self.start:
            return -1
        return int(CELLS_PER_DOUBLING * log2(context_tokens / self.start))

    def factor(self, cell: int) -> float:
        """Factor on conditional rates in a cell: its value at the cell's middle."""
        return 1.0 if cell < 0 else float(self.decay ** ((cell + 0.5) / CELLS_PER_DOUBLING))


HALF_WINDOWS = 4.0
STEEPNESS = 1.5
CELLS_PER_WINDOW = 4


@dataclass(frozen=True, slots=True)
class WindowFall:
    """Acceptance of a drafter with full attention at contexts longer than those that it was trained on.

    factor = 0.5 ** ((excess / half_windows) ** 1.5),  excess = context / window - 1

    The fall starts slowly and then steepens: the longer the context, the larger the share of attended positions that
    training never saw. The factor is constant within cells of a quarter window.

    Source: fitted on the acceptance lengths of EAGLE-3 on Qwen3-8B at 4, 8, 12, 16 and 20 thousand tokens
    (vllm-project/speculators#684, 2026-07; window 2048 and K = 3 to 5, which it does not state: 3.9 to 4.1 windows).
    Lengths at 6, 10, 14 and 18 thousand, from 1.86 to 1.09, come out 2 % off. One factor per doubling is 11 % off.
    """

    window: int
    """Longest context of the drafter's training, in tokens."""
    half_windows: float = HALF_WINDOWS
    """Windows beyond the first after which half of every conditional rate is left."""

    def cell(self, context_tokens: int) -> int:
        """Index of the cell that contains a context; -1 up to the window."""
        if context_tokens <= self.window:
            return -1
        return CELLS_PER_WINDOW * (context_tokens - self.window) // self.window

    def factor(self, cell: int) -> float:
        """Factor on conditional rates in a cell: its value at the cell's middle."""
        excess = (cell + 0.5) / CELLS_PER_WINDOW
        return 1.0 if cell < 0 else float(0.5 ** ((excess / self.half_windows) ** STEEPNESS))


def context_drift(acceptance: AcceptanceConfig, draft: DraftConfig | None) -> ContextFall | None:
    """Fall of acceptance with the context; None if acceptance does not depend on it."""
    if acceptance.context_decay is not None and acceptance.context_decay < 1.0:
        return ContextDrift(acceptance.context_decay, acceptance.context_from or TRAINED_CONTEXT)
    if draft is None or draft.trained_window is None or draft.windowed:
        return None
    return WindowFall(draft.trained_window, acceptance.window_half or HALF_WINDOWS)
