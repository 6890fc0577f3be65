"""Applies a draft policy to one replica's steps: tokens to verify, and tokens that an idle drafter has skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from forerun.dataclass import dataclass
from simulator.serving.limits import EngineLimits
from simulator.speculation import Batch, DraftPolicy
from simulator.timing import DraftStep, causal_pairs, keys_read


@dataclass(frozen=True, slots=True)
class DraftingRule:
    """Draft policy and its settings, the same for all replicas of a cluster."""

    make_policy: Callable[[], DraftPolicy]
    most: int
    """Draft tokens of a full proposal that can be accepted: the policy's largest choice."""
    follows: bool = False
    """Whether the drafter keeps its cache up to date in steps that draft nothing, instead of catching up later."""
    recovery_tokens: int = 0
    """Tokens after which one that the drafter never saw weighs 1/e; 0: it catches up on what it skipped."""


class ReplicaDrafting:
    """Number of draft tokens that one replica's policy currently chooses.

    Args:
        rule: draft policy of the cluster.
        limits: limits of the replica; ``query_len`` is that of a full proposal.
        windows: attention windows, as the timer orders them.
    """

    def __init__(self, rule: DraftingRule, limits: EngineLimits, windows: tuple[int | None, ...]) -> None:
        self.policy = rule.make_policy()
        self.most = rule.most
        self._follows = rule.follows
        self.recovery_tokens = rule.recovery_tokens
        self._limits = limits
        self.windows = windows
        self._none = (0,) * len(windows)
        self.tokens = self.policy.choose(Batch(0, 0))
        """Draft tokens of each sequence that the next step verifies."""

    @property
    def query_len(self) -> int:
        """Tokens of each decoding sequence in the next step."""
        return self.verified(self.tokens)

    def verified(self, tokens: int) -> int:
        """Tokens per sequence that a step computes to verify a draft of depth ``tokens``: all nodes of a full tree."""
        return self._limits.query_len if tokens == self.most else tokens + 1

    def rests(self, tokens: int) -> bool:
        """Whether the drafter is idle at the end of a step that proposes ``tokens`` draft tokens."""
        return not tokens and not self._follows

    def step(self, tokens: int, skipped: Iterable[tuple[int, int]] = ()) -> DraftStep[int]:
        """Work of the drafter in a step that proposes ``tokens`` draft tokens.

        Args:
            tokens: draft tokens of each sequence.
            skipped: (tokens in the drafter's cache, tokens in the target's) of each sequence before the step.
        """
        switched = int(tokens != self.tokens)
        seqs = total = 0
        pairs, keys = list(self._none), list(self._none)
        for seen, computed in skipped:
            missing = computed - seen
            if missing <= 0:
                continue
            seqs += 1
            total += missing
            for w, window in enumerate(self.windows):
                pairs[w] += causal_pairs(missing, seen, window)
                keys[w] += keys_read(computed, missing, window)
        return DraftStep(tokens, switched, seqs, total, tuple(pairs), tuple(keys))
