"""A policy on the fast path: choices looked up by batch size, needs by query length, and a resting drafter's debt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.serving.drafting import ReplicaDrafting
from simulator.serving.future import LiveRequest
from simulator.serving.limits import EngineLimits
from simulator.speculation import Batch
from simulator.timing import DraftStep

IntArray = NDArray[np.int64]


class AdaptiveDrafting:
    """The draft tokens of one replica whose policy looks at the batch size alone.

    Args:
        drafting: the policy and its present choice.
        limits: of the replica.
        longest: contexts that a decode step can end at, plus one.
    """

    def __init__(self, drafting: ReplicaDrafting, limits: EngineLimits, longest: int) -> None:
        self.drafting = drafting
        self._limits = limits
        self._longest = longest
        self._choices = [drafting.policy.choose(Batch(seqs, 0)) for seqs in range(limits.max_num_seqs + 1)]
        self._needs: dict[int, IntArray] = {}
        self._resting = False
        """Whether the drafter skipped the tokens of the latest step."""

    @property
    def tokens(self) -> int:
        """Draft tokens of each sequence that the next step verifies."""
        return self.drafting.tokens

    def needs(self, query_len: int) -> IntArray:
        """Keys read (per window) and blocks held by a sequence whose step of ``query_len`` tokens ends at each context.

        Blocks are those of a full proposal, whatever is drafted.
        """
        found = self._needs.get(query_len)
        if found is None:
            limits = self._limits
            context = np.arange(self._longest, dtype=np.int64)
            windows = self.drafting.windows
            keys = [context if w is None else np.minimum(context, w + query_len - 1) for w in windows]
            unused = limits.query_len - query_len
            blocks = -(-(context + unused + limits.lookahead_tokens) // limits.block_size)
            found = self._needs[query_len] = np.vstack([*keys, blocks])
        return found

    def propose(
        self,
        seqs: int,
        running: Mapping[int, LiveRequest],
        chunks: Sequence[tuple[LiveRequest, int]],
        step: int,
    ) -> DraftStep[int]:
        """What the drafter does at the end of ``step``; what it skipped before is made up for.

        Args:
            seqs: requests in the step.
            running: all of them.
            chunks: those in prefill.
            step: number of the step.
        """
        tokens = self._choices[seqs] if seqs else self.drafting.tokens
        if self.drafting.rests(tokens):
            newcomers = [live for live, _ in chunks] if self._resting else running.values()
            for live in newcomers:
                if live.drafter_tokens < 0:
                    live.drafter_tokens = _computed(live, step)
            self._resting = True
            return self.drafting.step(tokens)
        if not self._resting:
            return self.drafting.step(tokens)
        self._resting = False
        skipped = []
        for live in running.values():
            if live.drafter_tokens >= 0:
                skipped.append((live.drafter_tokens, _computed(live, step)))
                live.drafter_tokens = -1
        return self.drafting.step(tokens, skipped)


def _computed(live: LiveRequest, step: int) -> int:
    """Tokens of a request in the target's cache before ``step``."""
    if live.start < 0:
        return live.computed
    assert live.path is not None
    done = step - live.start
    return live.target + done + int(live.path[:done].sum())
