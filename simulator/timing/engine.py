"""Seconds of a whole engine step: target model, drafter passes and host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.timing.adjusted import AdjustedDrafter
from simulator.timing.costs import Costs
from simulator.timing.drafter import Drafter, DraftStep
from simulator.timing.remote_drafter import RemoteDrafter
from simulator.timing.step import StepTimer
from simulator.timing.work import StepWork

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def longest_asked(timer: EngineTimer) -> int:
    """How many of the longest decoding sequences a step's time depends on (``StepWork.longest_kv`` and ``beyond_kv``);
    none where a timing model says nothing about it."""
    return int(getattr(timer, "longest_asked", 0))


class EngineTimer(Protocol):
    """What the serving engine asks of a timing model."""

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct attention windows of the model; None is full attention."""

    def seconds(self, work: StepWork[Any], draft: DraftStep[int] | None = None) -> Any:
        """Seconds of one step; an array where ``decode_kv_tokens`` holds arrays and nothing is prefilled.

        ``draft``: what a policy has the drafter do; None where it always proposes the same.
        """

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many steps: seconds by bound, and work per chip."""


def expanded(work: StepWork[Any], windows: tuple[int | None, ...]) -> StepWork[Any]:
    """A verify step in which every token is a sequence of its own: batch expansion.

    Of ``q`` verified tokens of a sequence the last reads ``k`` keys and each one before it one less, so that they read
    ``q k - q (q - 1) / 2`` together in place of ``k``; within a window, at most its width each.

    Args:
        work: one step or many.
        windows: of its entries.

    Source: ``vllm/spec_decode/batch_expansion.py``, v0.6.
    """
    rows = work.decode_seqs * work.query_len
    earlier = rows * (work.query_len - 1) // 2
    keys = []
    for total, window in zip(work.decode_kv_tokens, windows, strict=True):
        read = work.query_len * total - earlier
        keys.append(read if window is None else np.minimum(read, rows * window))
    return work._replace(decode_seqs=rows, query_len=0 * work.query_len + 1, decode_kv_tokens=tuple(keys))


@dataclass(slots=True)
class ModelTimer:
    """Prices steps of a target model, of an optional drafter, and of the host around them."""

    target: StepTimer
    drafter: Drafter | None = None
    adjusted: AdjustedDrafter | None = None
    """The same drafter under a policy."""

    windows: tuple[int | None, ...] = field(init=False)
    """Windows of the target, then those that only the drafter has."""
    _draft_order: tuple[int, ...] | None = field(init=False, default=None)
    """Where the drafter's windows stand among all; None where they are the same."""

    _overlap: float = field(init=False, default=0.0)
    """Share of the drafting that runs beside the target's pass."""
    _step_s: float = field(init=False)
    _per_sequence_s: float = field(init=False)
    _per_prompt_s: float = field(init=False)
    _row_s: float = field(init=False)
    """Per draft token that is verified as a sequence of its own."""
    _expands: bool = field(init=False)
    """Whether every verified token is."""
    _beside_s: float = field(init=False)
    _beside_per_sequence_s: float = field(init=False)
    """Host work that runs beside the device: the step lasts at least as long."""

    @property
    def longest_asked(self) -> int:
        """How many of the longest sequences of a batch the chip's attention ends with; 0 = no matter."""
        return self.target.longest_asked

    def __post_init__(self) -> None:
        host = self.target.deployment.framework
        ranks = self.target.deployment.tensor_parallel - 1
        self._step_s, self._per_sequence_s = host.step_s + ranks * host.rank_s, host.per_sequence_s
        self._per_prompt_s = host.per_prompt_s
        self._row_s, self._expands = host.scored_row_s, host.scores == "sequences"
        self._beside_s, self._beside_per_sequence_s = host.overlapped_s, host.overlapped_per_sequence_s
        self.windows = self.target.windows
        if isinstance(self.drafter, RemoteDrafter):
            self._overlap = self.drafter.overlap
        if self.drafter is not None:
            self.windows += tuple(w for w in self.drafter.windows if w not in self.target.windows)
            if self.drafter.windows != self.windows:
                self._draft_order = tuple(self.windows.index(w) for w in self.drafter.windows)

    def seconds(self, work: StepWork[Any], draft: DraftStep[int] | None = None) -> Any:
        """Seconds of one step, host included."""
        target_s = self.target.seconds(self._scored(work))
        sequences = work.decode_seqs + work.prefill_seqs
        exposed = self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        if self._expands:
            exposed += self._row_s * work.decode_seqs * (work.query_len - 1)
        total = target_s + exposed
        if self.drafter is not None:
            if draft is None:
                drafting = self.drafter.seconds(self._seen_by_draft(work))
            else:
                assert self.adjusted is not None
                drafting = self.adjusted.seconds(self._seen_by_draft(work), self._ordered(draft))
            total = total + drafting
            if self._overlap:
                total = total - self._overlap * np.minimum(drafting, target_s)
        if not (self._beside_s or self._beside_per_sequence_s):
            return total
        beside = self._beside_s + self._beside_per_sequence_s * sequences
        return np.maximum(total, beside) if isinstance(total, np.ndarray) else max(total, beside)

    def costs(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs:
        """Costs of many steps, host included."""
        total = self.target.costs(self._scored(work))
        target_s = total.device_s
        sequences = work.decode_seqs + work.prefill_seqs
        total.host_s += self._step_s + self._per_sequence_s * sequences + self._per_prompt_s * work.prefill_seqs
        if self._expands:
            total.host_s += self._row_s * work.decode_seqs * (work.query_len - 1)
        if self.drafter is not None:
            self._add_drafting(total, target_s, work, draft)
        beside = self._beside_s + self._beside_per_sequence_s * sequences
        total.host_s += np.maximum(0.0, beside - total.device_s - total.host_s)
        return total

    def exposed_drafting_s(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Any:
        """Seconds that the drafter adds to each step, without what runs beside the target; None without a drafter."""
        costs = self.drafting(work, draft)
        if costs is None:
            return None
        seconds = costs.device_s + costs.host_s
        return seconds - self._overlap * np.minimum(seconds, self.target.costs(self._scored(work)).device_s)

    def drafting(self, work: StepWork[IntArray], draft: DraftStep[IntArray] | None = None) -> Costs | None:
        """What the drafter alone costs in each step; None without one."""
        if self.drafter is None:
            return None
        if draft is None:
            return self.drafter.costs(self._seen_by_draft(work))
        assert self.adjusted is not None
        return self.adjusted.costs(self._seen_by_draft(work), self._ordered(draft))

    def _add_drafting(
        self, total: Costs, target_s: FloatArray, work: StepWork[IntArray], draft: DraftStep[IntArray] | None
    ) -> None:
        """Add what the drafter costs, less what runs beside the target's pass."""
        drafting = self.drafting(work, draft)
        assert drafting is not None
        if not self._overlap:
            total.add(drafting)
            return
        seconds = drafting.device_s + drafting.host_s
        hidden = self._overlap * np.minimum(seconds, target_s)
        total.add(drafting, np.divide(seconds - hidden, seconds, out=np.ones_like(seconds), where=seconds > 0.0))

    def _scored(self, work: StepWork[Any]) -> StepWork[Any]:
        """The step as the target computes it."""
        return expanded(work, self.windows) if self._expands else work

    def _ordered(self, draft: DraftStep[Any]) -> DraftStep[Any]:
        """The skipped tokens, with the window entries in the drafter's order."""
        order = self._draft_order
        if order is None:
            return draft
        return draft._replace(
            skipped_pairs=tuple(draft.skipped_pairs[i] for i in order),
            skipped_kv_tokens=tuple(draft.skipped_kv_tokens[i] for i in order),
        )

    def _seen_by_draft(self, work: StepWork[Any]) -> StepWork[Any]:
        """The same tokens, with the window entries in the drafter's order."""
        order = self._draft_order
        if order is None:
            return work
        return work._replace(
            prefill_pairs=tuple(work.prefill_pairs[i] for i in order),
            prefill_kv_tokens=tuple(work.prefill_kv_tokens[i] for i in order),
            sampled_kv_tokens=tuple(work.sampled_kv_tokens[i] for i in order),
            decode_kv_tokens=tuple(work.decode_kv_tokens[i] for i in order),
        )
