"""Interface of policies that choose the draft tokens of the next step, and the policy by batch size alone."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from forerun.errors import ForerunError


class Batch(NamedTuple):
    """State of the engine when a step is planned."""

    seqs: int
    """Requests in the step, including prefill; their draft tokens are verified in the next step."""
    context_tokens: int
    """Tokens in the KV cache of all requests in the step, before it runs."""
    prompt_tokens: int = 0
    """Prompt tokens that the step computes."""
    waiting: int = 0
    """Number of requests that wait for a slot in the batch, swapped-out requests included."""


@runtime_checkable
class DraftPolicy(Protocol):
    """Extension point: chooses the draft tokens of each step of one replica. ``check_policy`` validates custom ones.

    Called while a step is planned, as vLLM's scheduler looks its table up: the drafter proposes as many tokens at the
    end of that step, and the next step verifies them.
    """

    @property
    def by_batch_alone(self) -> bool:
        """True if the choice depends only on ``Batch.seqs``. It is then made once per number of sequences, and
        ``observe`` is not called."""

    def choose(self, batch: Batch) -> int:
        """Number of draft tokens for every sequence, from 0 to the scenario's maximum."""

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Record a verify step: ``drafted`` tokens per decoding sequence, and the number accepted of each."""


PolicyFactory = Callable[[], DraftPolicy]
"""Factory of the policy of one replica."""


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Draft tokens by batch size alone: ``fixed``, ``disable-above-batch`` and ``batch-table``."""

    tokens: tuple[int, ...]
    """Draft tokens for batches of 0, 1, 2, ... requests, or from each of ``starts`` on. Larger ones use the last."""
    starts: tuple[int, ...] | None = None
    by_batch_alone: bool = field(init=False, default=True)

    def choose(self, batch: Batch) -> int:
        place = batch.seqs if self.starts is None else bisect_right(self.starts, batch.seqs) - 1
        return self.tokens[min(place, len(self.tokens) - 1)]

    def observe(self, drafted: int, accepted: Sequence[int]) -> None:
        """Nothing is learnt."""


def batch_table(table: Sequence[Sequence[int]], most: int) -> BatchTable:
    """vLLM's ``num_speculative_tokens_per_batch_size``: [first batch, last batch, draft tokens], both ends included.

    A gap between two ranges takes the K of the range before it, and so do batches beyond the last; no K exceeds
    ``most``.

    Source: ``build_dynamic_sd_schedule_lookup`` in ``vllm/v1/spec_decode/dynamic/utils.py``, vLLM 0.25 to 0.28.
    """
    ranges = sorted(map(tuple, table))
    return BatchTable(tuple(min(most, drafted) for *_, drafted in ranges), (0, *(first for first, *_ in ranges[1:])))


POLICIES: dict[str, Callable[[int], DraftPolicy]] = {}
"""Registered policies by name; each is called with the draft tokens of a full proposal, once per replica."""


def check_policy(make_policy: PolicyFactory, most: int, max_seqs: int = 64) -> None:
    """Check a policy against the engine's requirements, on a short history of random acceptance.

    The checks: every choice is an integer from 0 to ``most``; two policies with the same history make the same choices
    (runs are reproducible); a policy with ``by_batch_alone`` ignores contexts and history.

    Raises:
        ForerunError: a rule is broken; the message describes the first broken rule in one line.
    """
    one, other = make_policy(), make_policy()
    name = type(one).__name__
    if not isinstance(one, DraftPolicy):
        raise ForerunError(f"{name} lacks something that simulator.speculation.DraftPolicy requires")
    first_choices: dict[int, int] = {}
    state = 1
    for step in range(200):
        state = (state * 1103515245 + 12345) % 2**31
        seqs = 1 + state // 7 % max_seqs
        batch = Batch(seqs, seqs * (100 + 50 * step))
        chosen = one.choose(batch)
        if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen <= most:
            raise ForerunError(f"{name}: chose {chosen!r} draft tokens, not a whole number from 0 to {most}")
        again = other.choose(batch)
        if again != chosen:
            raise ForerunError(f"{name}: chose {chosen} and then {again} draft tokens after the same history")
        if one.by_batch_alone and first_choices.setdefault(seqs, chosen) != chosen:
            raise ForerunError(
                f"{name}: says by_batch_alone, but chose {first_choices[seqs]} and later {chosen} for {seqs} requests"
            )
        accepted = [(state >> (i % 16)) % (chosen + 1) for i in range(seqs)]
        one.observe(chosen, accepted)
        other.observe(chosen, list(accepted))
