"""A drafter on chips of its own: what crosses the link in each step, and no memory taken from the target."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwprofiles import Link
from simulator.timing.costs import Costs
from simulator.timing.deployment import Deployment
from simulator.timing.drafter import DraftStep, drafting_sequences
from simulator.timing.drafters import ParallelDrafter, SequentialDrafter
from simulator.timing.work import StepWork

IntArray = NDArray[np.int64]

TOKEN_BYTES = 4.0
"""A token id on the wire: int32."""


@dataclass(slots=True)
class RemoteDrafter:
    """A draft model or head beside the target: tokens go over, draft tokens come back, one message each way.

    A step sends the ids of its tokens, and with them ``state_bytes`` of hidden states for each where the drafter reads
    the target's; the drafter answers with the ids of what it proposes. Draft probabilities stay where they are (greedy
    drafts, as vLLM's and SGLang's). FLOPs and bytes of its kernels are not the target's and are left out.
    """

    inner: SequentialDrafter | ParallelDrafter
    link: Link
    state_bytes: float = 0.0
    """Hidden states per token, in bytes."""
    overlap: float = 0.0
    """Share of the drafting that runs while the target verifies, 0 to 1: ``drafting - overlap min(drafting, target)``
    is what a step pays for it."""
    weight_bytes: float = field(init=False, default=0.0)
    kv_bytes_per_token: float = field(init=False, default=0.0)
    runs_on: Literal["device", "host"] = field(init=False, default="device")
    windows: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.windows = self.inner.windows

    @property
    def deployment(self) -> Deployment:
        """The drafter's model on its own chips."""
        return self.inner.step.deployment

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens per decoding sequence of every pass."""
        return self.inner.pass_tokens

    @property
    def proposed(self) -> int:
        """Draft tokens of each sequence."""
        inner = self.inner
        if isinstance(inner, ParallelDrafter):
            return inner.num_speculative_tokens
        return sum(inner.pass_widths, start=min(1, inner.depth))

    def seconds(self, work: StepWork[Any]) -> Any:
        """Seconds that drafting adds to one step before any overlap."""
        if not work.prefill_tokens and not work.decode_seqs:
            return 0.0
        return self.inner.seconds(work) + self._transfer_s(work)

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """Costs of many steps; no FLOPs and bytes, which are the other chips'."""
        total = self.inner.costs(work)
        busy = (work.prefill_tokens > 0) | (work.decode_seqs > 0)
        total.interconnect_s += np.where(busy, self._transfer_s(work), 0.0)
        return _elsewhere(total)

    def with_tokens(self, count: int) -> RemoteDrafter:
        """The same drafter for a chain of ``count`` tokens."""
        return replace(self, inner=self.inner.with_tokens(count))

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Costs of the skipped tokens, sent over in one message."""
        total = self.inner.catch_up(draft)
        skipped = draft.skipped_tokens
        total.interconnect_s += np.where(skipped > 0, self._message_s(skipped * (TOKEN_BYTES + self.state_bytes)), 0.0)
        return _elsewhere(total)

    def _transfer_s(self, work: StepWork[Any]) -> Any:
        """Seconds of the two messages."""
        tokens = work.prefill_tokens + work.decode_seqs * work.query_len
        there = self._message_s(tokens * (TOKEN_BYTES + self.state_bytes))
        return there + self._message_s(drafting_sequences(work) * (self.proposed * TOKEN_BYTES))

    def _message_s(self, size_bytes: Any) -> Any:
        return self.link.latency_s + size_bytes / self.link.bandwidth_bytes_per_s


def _elsewhere(costs: Costs) -> Costs:
    costs.flops[:] = 0.0
    costs.bytes[:] = 0.0
    return costs
