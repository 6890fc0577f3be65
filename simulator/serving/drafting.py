"""Applies a draft policy to one replica's steps: tokens to verify, and tokens that an idle drafter has skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        self.follows = rule.follows
        """Whether the drafter works in steps that draft nothing, too."""
        self.recovery_tokens = rule.recovery_tokens
        self._limits = limits
        self.windows = windows
        none = (0,) * len(windows)
        self._unskipped = [
            [DraftStep(tokens, switched, 0, 0, none, none) for switched in (0, 1)] for tokens in range(self.most + 1)
        ]
        """Steps of a drafter that has seen every token, by their draft tokens and whether the number has changed."""
        self.tokens = self.policy.choose(Batch(0, 0))
        """Draft tokens of each sequence that the next step verifies."""

    @property
    def query_len(self) -> int:
        """Tokens of each decoding sequence in the next step: all nodes of a full tree, or a chain."""
        return self._limits.query_len if self.tokens == self.most else self.tokens + 1

    def step(self, tokens: int, skipped: Sequence[tuple[int, int]] = ()) -> DraftStep[int]:
        """Work of the drafter in a step that proposes ``tokens`` draft tokens.

        Args:
            tokens: draft tokens of each sequence.
            skipped: (tokens in the drafter's cache, tokens in the target's) before the step of each sequence that
                lacks some.
        """
        plain = self._unskipped[tokens][tokens != self.tokens]
        if not skipped:
            return plain
        total, pairs, keys = 0, list(plain.skipped_pairs), list(plain.skipped_kv_tokens)
        for seen, computed in skipped:
            missing = computed - seen
            total += missing
            for w, window in enumerate(self.windows):
                pairs[w] += causal_pairs(missing, seen, window)
                keys[w] += keys_read(computed, missing, window)
        return DraftStep(tokens, plain.switched, len(skipped), total, tuple(pairs), tuple(keys))
