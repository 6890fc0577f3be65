"""What drafters are made of: host overhead, tables by token count, weights, and the prefill of skipped tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwprofiles import dtype_bytes
from simulator.timing.costs import Costs
from simulator.timing.deployment import Deployment
from simulator.timing.drafter import DraftStep
from simulator.timing.step import StepTimer
from simulator.timing.work import StepWork

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostOverhead:
    """Host time that a drafter adds and no kernel hides, in seconds."""

    step_s: float = 0.0
    """Per step that drafts."""
    pass_s: float = 0.0
    """Per sequential pass."""
    per_sequence_s: float = 0.0
    """Per drafting sequence and step."""

    def seconds(self, drafting: Any, passes: int) -> Any:
        """Host seconds of a step in which ``drafting`` sequences draft (an array for many steps) in so many passes."""
        return self.step_s + passes * self.pass_s + self.per_sequence_s * drafting


NO_OVERHEAD = HostOverhead()


@dataclass(slots=True)
class TokenTable:
    """Costs that depend on one count alone, looked up."""

    costs: Costs
    """One row per count, from 0."""
    _seconds: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self._seconds = self.costs.device_s.tolist()

    def seconds(self, count: int) -> float:
        """Device seconds at ``count``."""
        return self._seconds[count]

    def rows(self, counts: IntArray) -> Costs:
        """Costs at many counts."""
        return self.costs.rows(counts)


def fusion_table(deployment: Deployment, hidden_states: int, max_tokens: int) -> TokenTable:
    """Projection of ``hidden_states`` hidden states to one, by number of tokens; replicated on every chip."""
    tokens = np.arange(max_tokens + 1, dtype=np.int64)
    hidden = deployment.architecture.hidden_size
    total = Costs.zeros(len(tokens))
    gemm = deployment.kernels.gemm(tokens, hidden, hidden_states * hidden, deployment.weight_dtypes["attention"])
    total.add_kernel(gemm)
    return TokenTable(total)


def layer_weight_bytes(deployment: Deployment, own_lm_head: bool, fused_hidden_states: int = 0) -> float:
    """Bytes on one chip of a drafter that shares the target's embedding.

    Args:
        deployment: the drafter's.
        own_lm_head: whether it holds an LM head.
        fused_hidden_states: hidden states that a projection turns into one; 0 for none.
    """
    architecture = deployment.architecture
    total = deployment.layer_weight_bytes
    if own_lm_head:
        head = architecture.vocab_size * architecture.hidden_size / deployment.tensor_parallel
        total += head * dtype_bytes(deployment.weight_dtypes["lm_head"])
    fused = fused_hidden_states * architecture.hidden_size**2
    return total + fused * dtype_bytes(deployment.weight_dtypes["attention"])


def skipped_costs(step: StepTimer, fusion: TokenTable | None, draft: DraftStep[IntArray]) -> Costs:
    """Prefill of the tokens that a drafter has not seen, in passes as large as the largest step.

    Args:
        step: the drafter's model.
        fusion: projection of the target's hidden states, by tokens.
        draft: what was skipped, for many steps.
    """
    tokens, most = draft.skipped_tokens, step.max_tokens
    if fusion is not None:
        most = min(most, len(fusion.costs.device_s) - 1)
    full = np.maximum(tokens - 1, 0) // most
    rest = tokens - full * most
    zero = 0 * tokens
    none = (zero,) * len(step.windows)
    last = StepWork(
        draft.skipped_seqs, rest, draft.skipped_pairs, draft.skipped_kv_tokens, zero, none, zero, zero + 1, none
    )
    whole = StepWork(zero, zero + most, none, none, zero, none, zero, zero + 1, none)
    total = Costs.zeros(len(tokens))
    for work, times in ((last, np.where(tokens > 0, 1.0, 0.0)), (whole, full.astype(np.float64))):
        total.add(step.costs(work, zero), times)
        if fusion is not None:
            total.add(fusion.rows(work.prefill_tokens), times)
    return total
