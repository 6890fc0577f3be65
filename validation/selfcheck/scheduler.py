"""Tokens of each step of the reference engine: vLLM V1's rules, written independently of the simulator's.

The simulator's scheduler is not used here, so that the two can be held against each other. Every sequence has a slot of
its own in the KV cache, long enough for it; there is nothing to preempt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Request:
    """A request while it is served; times in seconds since the start of the run."""

    index: int
    prompt: list[int]
    output_tokens: int
    arrival_s: float = 0.0
    tokens: list[int] = field(default_factory=list)
    """Prompt and answer so far."""
    computed: int = 0
    """Tokens whose K and V are in the cache."""
    slot: int = -1
    drafted: Any = None
    """Draft tokens ``[K]`` to verify next, and the distributions they were drawn from ``[K, vocabulary]``."""
    drafted_from: Any = None
    first_token_s: float | None = None
    finished_s: float | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def decoding(self) -> bool:
        """True if its prompt is in the cache."""
        return self.computed >= len(self.prompt)

    @property
    def remaining(self) -> int:
        """Tokens of the answer that are still to come."""
        return len(self.prompt) + self.output_tokens - len(self.tokens)


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """Sequences that decode, and prompts with their tokens in this step."""

    decodes: tuple[Request, ...]
    chunks: tuple[tuple[Request, int], ...]


class ReferenceScheduler:
    """One token budget per step; running requests first, in order of admission, then waiting ones.

    Args:
        max_num_seqs: most requests in a step; also the slots of the cache.
        max_num_batched_tokens: the budget.
        query_len: tokens of a decoding sequence: 1, or K + 1 when verifying.
    """

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, query_len: int) -> None:
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._slots = list(range(max_num_seqs))
        self._budget = max_num_batched_tokens
        self._query_len = query_len

    def plan(self) -> ReferencePlan:
        """The next step."""
        budget = self._budget
        decodes: list[Request] = []
        chunks: list[tuple[Request, int]] = []
        for request in self.running:
            if budget <= 0:
                break
            if request.decoding:
                decodes.append(request)
                budget -= self._query_len
            else:
                budget -= self._chunk(request, budget, chunks)
        while self.waiting and self._slots and budget > 0:
            request = self.waiting.popleft()
            request.slot = self._slots.pop()
            self.running.append(request)
            budget -= self._chunk(request, budget, chunks)
        return ReferencePlan(tuple(decodes), tuple(chunks))

    def release(self, request: Request) -> None:
        """A finished request leaves the batch."""
        self.running.remove(request)
        self._slots.append(request.slot)

    @staticmethod
    def _chunk(request: Request, budget: int, chunks: list[tuple[Request, int]]) -> int:
        tokens = min(len(request.prompt) - request.computed, budget)
        chunks.append((request, tokens))
        return tokens
