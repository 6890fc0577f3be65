"""A request inside an engine: how far its cache and its answer have come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NO_STEPS: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request in the waiting queue or in the batch."""

    index: int
    input_tokens: int
    output_tokens: int
    priority: int = 0
    """Lower goes first, where the scheduler asks."""
    arrival_s: float = 0.0
    generated_tokens: int = 0
    computed_tokens: int = 0
    """Tokens whose KV is in the cache."""
    blocks: int = 0
    units: list[int] = field(default_factory=list)
    """Prefix-cache units that it holds."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when it first ran."""
    host_tokens: int = 0
    """Of these, tokens that came from host memory."""
    in_flight: int = 0
    """Batches in a pipeline that it is part of."""
    decoding: bool = False
    """The prompt (and what was generated before a preemption) is in the cache."""
    last_token_s: float | None = None
    verify_steps: int = 0
    """Verify steps so far; draws of the acceptance sampler already used."""
    accepted: NDArray[np.int64] = field(default_factory=lambda: NO_STEPS)
    """Accepted draft tokens of the verify steps from ``path_start`` on."""
    path_start: int = 0
    drafter_tokens: int = 0
    """Tokens whose KV is in the drafter's cache; kept only where a policy lets the drafter rest."""
    swapped_blocks: int = 0
    """Blocks of it in host memory."""
    ready_s: float = 0.0
    """When its KV arrived from another replica."""

    def restarted(self) -> Sequence:
        """The same request with what it has delivered and nothing in any cache: all of it is computed again."""
        return Sequence(
            self.index,
            self.input_tokens,
            self.output_tokens,
            self.priority,
            self.arrival_s,
            generated_tokens=self.generated_tokens,
            cached_tokens=self.cached_tokens,
            last_token_s=self.last_token_s,
            verify_steps=self.verify_steps,
        )

    @property
    def known_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.input_tokens + self.generated_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to generate."""
        return self.output_tokens - self.generated_tokens
