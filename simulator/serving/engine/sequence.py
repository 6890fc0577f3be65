"""A request in a replica, and the plan of one step."""

from __future__ import annotations

from typing import Any

from simulator.serving.engine.common import MANY, NAN, cython

NONE: list[Any] = []
"""Shared empty list for plans without such sequences."""


@cython.final
@cython.no_gc
@cython.cclass
class Sequence:
    """One request in a queue or in the batch: how far its cache and its answer have come.

    Fields that every step reads come first.
    """

    computed_tokens = cython.declare(cython.longlong, visibility="public")
    """Tokens whose KV is in the cache."""
    generated_tokens = cython.declare(cython.longlong, visibility="public")
    output_tokens = cython.declare(cython.longlong, visibility="public")
    blocks = cython.declare(cython.longlong, visibility="public")
    last_token_s = cython.declare(cython.double, visibility="public")
    """When its latest token was delivered; NaN before the first."""
    ends_at: cython.longlong
    """Step with the last token, in ``Steady``'s count of steps; valid while the sequence is counted there."""
    decoding = cython.declare(cython.bint, visibility="public")
    """True if the prompt (and any output before a preemption) is in the cache."""
    in_flight = cython.declare(cython.longlong, visibility="public")
    """Number of batches in the pipeline that contain the sequence."""
    index = cython.declare(cython.longlong, visibility="public")
    input_tokens = cython.declare(cython.longlong, visibility="public")
    priority = cython.declare(cython.longlong, visibility="public")
    """Scheduling priority, lower first; used only by the priority scheduler."""
    arrival_s = cython.declare(cython.double, visibility="public")
    hash_blocks = cython.declare(cython.longlong, visibility="public")
    """Number of prefix-cache hash blocks that the sequence holds, from the first on."""
    cached_tokens = cython.declare(cython.longlong, visibility="public")
    """Prompt tokens found in the prefix cache when it first ran; -1 before."""
    tier_tokens = cython.declare(object, visibility="public")
    """Tokens among these by tier from which they came; None if all were on the chip."""
    verify_steps = cython.declare(cython.longlong, visibility="public")
    """Verify steps so far; draws of the acceptance sampler already used."""
    verified = cython.declare(cython.longlong, visibility="public")
    """Draft tokens of the sequence that the planned step verifies; set only under a verify budget."""
    drafter_tokens = cython.declare(cython.longlong, visibility="public")
    """Tokens whose KV is in the drafter's cache; tracked only if a policy lets the drafter idle."""
    starved = cython.declare(cython.double, visibility="public")
    """Share of the context that the drafter never saw, weighted towards recent tokens."""
    swapped_blocks = cython.declare(cython.longlong, visibility="public")
    """Number of the sequence's blocks in host memory."""
    ready_s = cython.declare(cython.double, visibility="public")
    """Time at which its KV has arrived from another replica, or from a store."""
    group = cython.declare(cython.longlong, visibility="public")
    """Attention group that serves it."""

    def __init__(
        self,
        index: cython.longlong,
        input_tokens: cython.longlong,
        output_tokens: cython.longlong,
        priority: cython.longlong = 0,
        arrival_s: cython.double = 0.0,
    ) -> None:
        self.begin(index, input_tokens, output_tokens, priority, arrival_s)

    @cython.cfunc
    def begin(
        self,
        index: cython.longlong,
        input_tokens: cython.longlong,
        output_tokens: cython.longlong,
        priority: cython.longlong,
        arrival_s: cython.double,
    ) -> None:
        """Become a request without computed tokens."""
        self.index = index
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.arrival_s = arrival_s
        self.generated_tokens = 0
        self.computed_tokens = 0
        self.blocks = 0
        self.hash_blocks = 0
        self.cached_tokens = -1
        self.tier_tokens = None
        self.in_flight = 0
        self.decoding = False
        self.ends_at = 0
        self.last_token_s = NAN
        self.verify_steps = 0
        self.verified = 0
        self.drafter_tokens = 0
        self.starved = 0.0
        self.swapped_blocks = 0
        self.ready_s = 0.0
        self.group = 0

    @property
    def known_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.input_tokens + self.generated_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to generate."""
        return self.output_tokens - self.generated_tokens


@cython.cfunc
def _drop(sequences: list[Sequence], sequence: Sequence) -> None:
    """Remove a sequence from a list that contains it."""
    place: cython.longlong = 0
    while sequences[place] is not sequence:
        place += 1
    del sequences[place]


@cython.final
@cython.cclass
class StepPlan:
    """Plan of one engine step."""

    chunks = cython.declare(list, visibility="public")
    """(Sequence in prefill, its tokens in this step)."""
    decodes = cython.declare(list, visibility="public")
    steady = cython.declare(cython.longlong, visibility="public")
    """Sequences at the head of the batch that decode too and are counted instead of listed; see ``Steady``."""
    steady_keys: cython.longlong[::1]
    """Keys that the steady sequences read, by window; valid if there are any."""
    padding = cython.declare(list, visibility="public")
    """Finished sequences that a static batch still computes."""
    counted: cython.longlong
    """Number of ``decodes`` included in ``cached`` and ``least``, in addition to the steady ones."""
    cached: cython.longlong
    """Tokens in the caches of the counted ``decodes``."""
    cut = cython.declare(cython.longlong, visibility="public")
    """Draft tokens of the last of ``decodes`` that the step does not verify, since the token budget ends before."""
    least: cython.longlong
    """Minimum remaining tokens over the counted ``decodes``; for steady ones, 1 or unknown."""
    blocks_out = cython.declare(cython.longlong, visibility="public")
    """KV blocks copied to host memory before the step."""
    blocks_in = cython.declare(cython.longlong, visibility="public")
    """KV blocks copied back from host memory before the step."""
    parts = cython.declare(list, visibility="public")
    """Plans of the attention groups, which sum to this plan; empty if there is one group."""

    def __init__(self) -> None:
        self.parts = self.padding = NONE
        self.chunks = []
        self.decodes = []
        self.steady = self.counted = self.cached = self.cut = 0
        self.least = MANY
        self.blocks_out = 0
        self.blocks_in = 0

    @cython.cfunc
    def count(self) -> None:
        """Count the decoding sequences that are not counted yet; recount all if some were removed."""
        sequence: Sequence
        if self.counted > len(self.decodes):
            self.counted = self.cached = 0
            self.least = MANY
        while self.counted < len(self.decodes):
            sequence = cython.cast(Sequence, self.decodes[self.counted])
            self.cached += sequence.computed_tokens
            self.least = min(self.least, sequence.output_tokens - sequence.generated_tokens)
            self.counted += 1

    @cython.ccall
    def leave(self) -> None:
        """Record that the batch has left the pipeline; a prompt is done once no chunk of it is in flight."""
        sequence: Sequence
        place: cython.longlong
        for place in range(len(self.decodes)):
            sequence = cython.cast(Sequence, self.decodes[place])
            sequence.in_flight -= 1
        for sequence, _ in self.chunks:
            sequence.in_flight -= 1
        self.chunks = [(sequence, 0) for sequence, _ in self.chunks if not sequence.in_flight]

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes or self.steady)
