"""Draft tokens chosen by a policy: tokens that each step verifies, and tokens that an idle drafter has skipped."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.policies import LearningPolicy
from simulator.serving.engine.sequence import Sequence
from simulator.speculation import Batch
from simulator.timing import DraftStep, causal_pairs, keys_read


@cython.final
@cython.cclass
class DraftWork:
    """A ``DraftStep``, and its numbers in the order in which step rows and recorded prices hold them."""

    step = cython.declare(object, visibility="public")
    tokens = cython.declare(cython.longlong, visibility="public")
    numbers: cython.double[::1]

    def __init__(self, step: Any) -> None:
        self.step = step
        self.tokens = step.tokens
        self.numbers = array("d", step.numbers)

    @cython.cfunc
    def put(self, numbers: cython.double[::1], at: cython.longlong) -> None:
        """Write the numbers into others from a place on."""
        place: cython.longlong
        for place in range(len(self.numbers)):
            numbers[at + place] = self.numbers[place]


@cython.final
@cython.cclass
class Drafting:
    """Number of draft tokens that one replica's policy currently chooses.

    Args:
        rule: a ``DraftingRule``, of the cluster.
        limits: limits of the replica; ``query_len`` is that of a full proposal.
        windows: attention windows, as the timer orders them.
    """

    policy = cython.declare(object, visibility="public")
    tokens = cython.declare(cython.longlong, visibility="public")
    """Draft tokens of each sequence that the next step verifies."""
    recovery_tokens = cython.declare(cython.double, visibility="public")
    most: cython.longlong
    full_query_len: cython.longlong
    follows: cython.bint
    learns: cython.bint
    learner: LearningPolicy | None
    """The policy, if it is one of the engine's."""
    counts: cython.longlong[::1]
    """Sequences of a step that accepted 0, 1, ... tokens."""
    windows: tuple[int | None, ...]
    unskipped: list[Any]
    """Work of a drafter that has seen every token, by number of draft tokens and whether that number has changed."""
    by_seqs: list[Any]
    """Choices of a policy that depends only on the batch, by number of sequences; None if not chosen yet."""

    def __init__(self, rule: Any, limits: Any, windows: tuple[int | None, ...]) -> None:
        self.policy = rule.make_policy()
        self.learns = not self.policy.by_batch_alone
        self.learner = self.policy if isinstance(self.policy, LearningPolicy) else None
        self.recovery_tokens = rule.recovery_tokens
        self.most, self.follows = rule.most, rule.follows
        self.counts = array("q", [0]) * (self.most + 1)
        self.full_query_len = limits.query_len
        self.windows = windows
        none = (0,) * len(windows)
        self.unskipped = [
            DraftWork(DraftStep(tokens, switched, 0, 0, none, none))
            for tokens in range(self.most + 1)
            for switched in (0, 1)
        ]
        self.by_seqs = []
        self.tokens = self.policy.choose(Batch(0, 0))

    @cython.cfunc
    def query_len(self) -> cython.longlong:
        """Tokens of each decoding sequence in the next step: all nodes of a full tree, or a chain."""
        return self.full_query_len if self.tokens == self.most else self.tokens + 1

    @cython.cfunc
    def rests(self, tokens: cython.longlong) -> cython.bint:
        """True if the drafter is idle at the end of a step that proposes ``tokens``."""
        return not tokens and not self.follows

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def choose(
        self, batch: list[Sequence], prompt_tokens: cython.longlong, waiting: cython.longlong
    ) -> cython.longlong:
        """The policy's choice for the end of a step of this batch."""
        seqs: cython.longlong = len(batch)
        context: cython.longlong = 0
        sequence: Sequence
        if not self.learns and len(self.by_seqs) > seqs and self.by_seqs[seqs] is not None:
            return self.by_seqs[seqs]
        for sequence in batch:
            context += sequence.computed_tokens
        if self.learner is not None:
            return self.learner.choose_for(seqs, context, prompt_tokens, waiting)
        tokens = self.policy.choose(Batch(seqs, context, prompt_tokens, waiting))
        if not self.learns:
            self.by_seqs += [None] * (seqs + 1 - len(self.by_seqs))
            self.by_seqs[seqs] = tokens
        return tokens

    @cython.cfunc
    def work(self, tokens: cython.longlong, batch: list[Sequence]) -> DraftWork:
        """Work of the drafter in a step that proposes ``tokens``, for sequences that its cache may lack."""
        plain: DraftWork = self.unskipped[2 * tokens + (tokens != self.tokens)]
        sequence: Sequence
        seqs: cython.longlong = 0
        missing: cython.longlong
        if self.recovery_tokens or self.rests(tokens):
            return plain
        for sequence in batch:
            seqs += sequence.drafter_tokens < sequence.computed_tokens
        if not seqs:
            return plain
        total, pairs, keys = 0, [0] * len(self.windows), [0] * len(self.windows)
        for sequence in batch:
            missing = sequence.computed_tokens - sequence.drafter_tokens
            if missing <= 0:
                continue
            total += missing
            for w, window in enumerate(self.windows):
                pairs[w] += causal_pairs(missing, sequence.drafter_tokens, window)
                keys[w] += keys_read(sequence.computed_tokens, missing, window)
        return DraftWork(DraftStep(tokens, plain.step.switched, seqs, total, tuple(pairs), tuple(keys)))
