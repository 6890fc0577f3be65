"""A drafter run under a policy: for fewer tokens in some steps, at rest in others, catching up when it resumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ForerunError
from simulator.timing.costs import Costs
from simulator.timing.drafter import AdjustableDrafter, Drafter, DraftStep
from simulator.timing.work import StepWork, some_steps

IntArray = NDArray[np.int64]


@dataclass(slots=True)
class AdjustedDrafter:
    """What a drafter costs in steps whose draft tokens a policy chooses.

    Args:
        drafter: proposes ``most`` tokens.
        most: draft tokens of its full proposal (the depth, of a tree).
        follows: whether it runs one pass over the tokens of steps that draft nothing, so that its cache never lags.
        switch_s: host seconds of each change of the number of draft tokens.
    """

    drafter: Drafter
    most: int
    follows: bool = False
    switch_s: float = 0.0
    _by_tokens: dict[int, Drafter | None] = field(init=False, default_factory=dict)

    def seconds(self, work: StepWork[Any], draft: DraftStep[int]) -> Any:
        """Seconds that drafting adds to one step, or to each of many alike; windows in the drafter's order."""
        drafter = self._proposing(draft.tokens)
        total: Any = 0.0 if drafter is None else drafter.seconds(work)
        if draft.skipped_tokens:
            caught_up = self._adjustable().catch_up(_stacked(draft))
            total = total + float((caught_up.device_s + caught_up.host_s)[0])
        return total + self.switch_s * draft.switched

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray]) -> Costs:
        """The same of many steps, by bound."""
        total = Costs.zeros(len(draft.tokens))
        for tokens in np.unique(draft.tokens).tolist():
            drafter = self._proposing(tokens)
            if drafter is not None:
                rows = np.flatnonzero(draft.tokens == tokens)
                part = drafter.costs(_rows(work, rows))
                for name in Costs.__slots__:
                    getattr(total, name)[rows] += getattr(part, name)
        if draft.skipped_tokens.any():
            total.add(self._adjustable().catch_up(draft))
        total.host_s += self.switch_s * draft.switched
        return total

    def _proposing(self, tokens: int) -> Drafter | None:
        """The drafter of so many tokens; None where it rests."""
        if tokens == self.most:
            return self.drafter
        if tokens not in self._by_tokens:
            rests = tokens == 0 and not self.follows
            self._by_tokens[tokens] = None if rests else self._adjustable().with_tokens(tokens)
        return self._by_tokens[tokens]

    def _adjustable(self) -> AdjustableDrafter:
        if not isinstance(self.drafter, AdjustableDrafter):
            raise ForerunError(
                f"speculation.policy: {type(self.drafter).__name__} drafts all its tokens or none; give it what "
                f"simulator.timing.AdjustableDrafter asks for, or choose policy fixed"
            )
        return self.drafter


def _stacked(draft: DraftStep[int]) -> DraftStep[IntArray]:
    """One step as arrays of length one."""

    def one(value: int) -> IntArray:
        return np.array([value], dtype=np.int64)

    return DraftStep(
        one(draft.tokens),
        one(draft.switched),
        one(draft.skipped_seqs),
        one(draft.skipped_tokens),
        tuple(map(one, draft.skipped_pairs)),
        tuple(map(one, draft.skipped_kv_tokens)),
    )


def _rows(work: StepWork[IntArray], rows: IntArray) -> StepWork[IntArray]:
    """Some of many steps."""
    return some_steps(work, rows)
