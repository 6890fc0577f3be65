"""What a drafter is to the engine: what it costs in a step, what memory it takes, where it runs."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simulator.timing.costs import Costs
from simulator.timing.work import Number, StepWork

IntArray = NDArray[np.int64]


@runtime_checkable
class DraftMemory(Protocol):
    """What lies beside the target on every chip."""

    @property
    def weight_bytes(self) -> float:
        """Weights on ONE chip that the target does not hold already."""

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token on ONE chip."""


@runtime_checkable
class Drafter(DraftMemory, Protocol):
    """A plug-in point: anything that proposes draft tokens. ``check_drafter`` says whether an own one keeps the rules.

    The engine verifies all proposed tokens in one target pass; then the drafter runs over the tokens of that step
    (prompt chunks included) and proposes for every sequence that will decode next. That is the order of vLLM V1's
    ``propose`` after the target's forward pass.
    """

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Attention windows that its costs depend on, in the order in which it expects them in a ``StepWork``."""

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Sequential passes of a step, each with the tokens it computes per decoding sequence; empty on the host."""

    @property
    def runs_on(self) -> Literal["device", "host"]:
        """``device``: the target's chips; ``host``: the CPU, while the chips wait."""

    def seconds(self, work: StepWork[Any]) -> Any:
        """Seconds that drafting adds to one step; an array where ``decode_kv_tokens`` holds arrays.

        ``work`` is the target's step: ``query_len`` counts the verified tokens and the one before them.
        """

    def costs(self, work: StepWork[IntArray]) -> Costs:
        """The same of many steps, by bound, and the work on one chip."""


@runtime_checkable
class AdjustableDrafter(Drafter, Protocol):
    """A drafter that a policy can run for fewer tokens, and that can catch up after a rest."""

    def with_tokens(self, count: int) -> Drafter:
        """The same drafter proposing a chain of ``count`` tokens: 1 to what it proposes as built."""

    def catch_up(self, draft: DraftStep[IntArray]) -> Costs:
        """Costs of putting the skipped tokens into its KV cache, for many steps; all zero if it keeps none."""


class DraftStep(NamedTuple, Generic[Number]):
    """What the drafter does at the end of one engine step, or of many, where a policy decides it.

    A tuple over windows is ordered as in ``StepWork``.
    """

    tokens: Number
    """Draft tokens proposed for each sequence; 0: none."""
    switched: Number
    """1 where that is another number than the step itself verifies, else 0."""
    skipped_seqs: Number
    """Sequences whose latest tokens the drafter has not seen because it rested."""
    skipped_tokens: Number
    skipped_pairs: tuple[Number, ...]
    """(query, key) pairs of these tokens, per window."""
    skipped_kv_tokens: tuple[Number, ...]
    """Keys that they read, per window."""


def drafting_sequences(work: StepWork[Any]) -> Any:
    """Sequences for which tokens are proposed at the end of a step: those that decode, and completed prompts."""
    return work.decode_seqs + work.sampled_prefills
