"""Timing models simple enough for closed forms."""

from dataclasses import dataclass
from typing import Any

from simulator.timing import Costs, DraftStep, StepWork


@dataclass(frozen=True)
class LinearTimer:
    """Seconds that are linear in the aggregates of a step."""

    windows: tuple[int | None, ...] = (None,)
    step_s: float = 1e-3
    token_s: float = 0.0
    pair_s: float = 0.0
    key_s: float = 0.0
    draft_s: float = 0.0
    """Added per step in which anything is sampled: all draft passes together."""
    drafted_s: float = 0.0
    """Under a policy: seconds per draft token of a step."""
    tracked_longest: int = 0
    """How many of the longest contexts it requests."""
    longest_s: float = 0.0
    """Seconds per key of the longest context, and four times that per key that it has beyond the mean of those."""
    skipped_s: float = 0.0
    """Under a policy: seconds per key and token that a resting drafter makes up for."""

    def seconds(self, work: StepWork[Any], draft: DraftStep[Any] | None = None) -> Any:
        tokens = work.prefill_tokens + work.decode_tokens
        total = self.step_s + self.token_s * tokens
        for pairs, keys in zip(work.prefill_pairs, work.prefill_kv_tokens, strict=True):
            total = total + self.pair_s * pairs + self.key_s * keys
        for keys in work.decode_kv_tokens:
            total = total + self.key_s * keys
        total = total + self.longest_s * (work.longest_kv + 4 * work.tail_kv)
        if draft is not None:
            total = total + self.drafted_s * draft.tokens + 1e-4 * draft.switched
            made_up = draft.skipped_tokens + draft.skipped_seqs
            for pairs, keys in zip(draft.skipped_pairs, draft.skipped_kv_tokens, strict=True):
                made_up = made_up + pairs + keys
            total = total + self.skipped_s * made_up
        return total + self.draft_s * ((work.decode_seqs + work.sampled_prefills) > 0)

    def costs(self, work: StepWork[Any], draft: DraftStep[Any] | None = None) -> Costs:
        total = Costs.zeros(len(work.decode_seqs))
        total.host_s += self.seconds(work, draft)
        return total
