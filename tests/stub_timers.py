"""Timing models simple enough for closed forms."""

from dataclasses import dataclass
from typing import Any

from simulator.timing import Costs, StepWork


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

    def seconds(self, work: StepWork[Any]) -> Any:
        tokens = work.prefill_tokens + work.decode_seqs * work.query_len
        total = self.step_s + self.token_s * tokens
        for pairs, keys in zip(work.prefill_pairs, work.prefill_kv_tokens, strict=True):
            total = total + self.pair_s * pairs + self.key_s * keys
        for keys in work.decode_kv_tokens:
            total = total + self.key_s * keys
        return total + self.draft_s * ((work.decode_seqs + work.sampled_prefills) > 0)

    def costs(self, work: StepWork[Any]) -> Costs:
        total = Costs.zeros(len(work.decode_seqs))
        total.host_s += self.seconds(work)
        return total
