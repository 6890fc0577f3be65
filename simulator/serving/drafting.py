"""What all replicas of a cluster share of a draft policy."""

from __future__ import annotations

from collections.abc import Callable

from forerun.dataclass import dataclass
from simulator.speculation import DraftPolicy


@dataclass(frozen=True, slots=True)
class DraftingRule:
    """Draft policy and its settings, the same for all replicas of a cluster."""

    make_policy: Callable[[], DraftPolicy]
    most: int
    """Draft tokens of a full proposal that can be accepted: the policy's largest choice."""
    follows: bool = False
    """Whether the drafter keeps its cache up to date in steps that draft nothing, instead of catching up later."""
    recovery_tokens: int = 0
    """Tokens after which one that the drafter never saw weighs 1/e; 0: it catches up on what it skipped."""
