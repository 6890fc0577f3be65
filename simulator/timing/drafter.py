"""What a drafter is to the engine: what it costs in a step, what memory it takes, where it runs."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from simulator.timing.costs import Costs
from simulator.timing.work import StepWork

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


def drafting_sequences(work: StepWork[Any]) -> Any:
    """Sequences for which tokens are proposed at the end of a step: those that decode, and completed prompts."""
    return work.decode_seqs + work.sampled_prefills
