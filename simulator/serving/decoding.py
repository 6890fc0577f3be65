"""The decoding requests of a fast replica: what each adds to every step to come, when it ends, what it drafts."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from simulator.serving.adaptive import AdaptiveDrafting
from simulator.serving.drafting import DraftingRule, ReplicaDrafting
from simulator.serving.future import FutureTotals, LiveRequest
from simulator.serving.limits import EngineLimits
from simulator.serving.log import RunLog
from simulator.speculation import AcceptanceSampler
from simulator.timing import DraftStep

IntArray = NDArray[np.int64]


class DecodingBatch:
    """Requests that decode, as running totals over the steps to come.

    Rows of the totals: keys read (one row per attention window), KV blocks held, and with speculation the tokens
    delivered.

    Args:
        limits: of the replica.
        windows: attention windows of the model's layers; None = full attention.
        log: lengths of the requests; counts of their drafts.
        sampler: accepted draft tokens; None without speculation.
        rule: a policy that looks at the batch size alone; None where the draft tokens are fixed.
    """

    def __init__(
        self,
        limits: EngineLimits,
        windows: tuple[int | None, ...],
        log: RunLog,
        sampler: AcceptanceSampler | None,
        rule: DraftingRule | None,
    ) -> None:
        longest = max(map(sum, zip(log.input_tokens, log.output_tokens, strict=True)), default=0)
        longest = min(longest, limits.num_blocks * limits.block_size) + limits.query_len + limits.lookahead_tokens + 2
        context = np.arange(longest, dtype=np.int64)
        keys = [context if w is None else np.minimum(context, w + limits.query_len - 1) for w in windows]
        blocks = -(-(context + limits.lookahead_tokens) // limits.block_size)
        self._log = log
        self._sampler = sampler
        self._needs = np.vstack([*keys, blocks])
        """Keys read (per window) and blocks held by a sequence whose decode step ends at each context length."""
        self._ends: list[int] = []
        """Steps in which requests end, as a heap."""
        self.block_row = len(windows)
        self.token_row = self.block_row + 1
        self.future = FutureTotals(
            self.token_row + (sampler is not None), min(max(log.output_tokens, default=1), longest) + 1
        )
        self.size = 0
        """Decoding requests."""
        self.query_len = limits.query_len
        """Tokens of each in a step."""
        self.ending: dict[int, list[LiveRequest]] = {}
        """Requests by the step in which they end."""
        self.adaptive: AdaptiveDrafting | None = None
        if rule is not None:
            self.adaptive = AdaptiveDrafting(ReplicaDrafting(rule, limits, windows), limits, longest)
            self._verify(self.adaptive)

    def add(self, live: LiveRequest, step: int) -> None:
        """A request decodes what is left of its answer from ``step`` on."""
        remaining = self._log.output_tokens[live.index] - live.generated
        self.size += 1
        live.start = step
        live.steps = remaining
        if self._sampler is not None:
            most = None if self.adaptive is None else self.adaptive.tokens
            live.path = self._sampler.path(live.index, remaining, live.verify_steps, most, live.target)
            live.steps = len(live.path)
        self._contribute(live, 0, np.add)
        last = step + live.steps - 1
        if last in self.ending:
            self.ending[last].append(live)
        else:
            self.ending[last] = [live]
            heapq.heappush(self._ends, last)

    def withdraw(self, live: LiveRequest, step: int) -> tuple[int, int]:
        """Take the future of a request from ``step`` on off the totals.

        Returns:
            Steps that it decoded, and the tokens that they delivered.
        """
        self.size -= 1
        done = step - live.start
        self._contribute(live, done, np.subtract)
        self.ending[live.start + live.steps - 1].remove(live)
        if self._sampler is None:
            return done, done
        assert live.path is not None
        taken = live.path[:done]
        self._count_drafts(live.index, taken)
        return done, done + int(taken.sum())

    def end(self, live: LiveRequest) -> None:
        """A request has decoded its last token."""
        self.size -= 1
        if self._sampler is not None:
            assert live.path is not None
            self._count_drafts(live.index, live.path)

    def next_end(self, step: int) -> int:
        """Step, ``step`` or later, in which the next request ends; there must be one."""
        while self._ends[0] < step:
            heapq.heappop(self._ends)
        return self._ends[0]

    def propose(
        self, running: Mapping[int, LiveRequest], chunks: Sequence[tuple[LiveRequest, int]], step: int
    ) -> DraftStep[int]:
        """What the policy, which there must be, has the drafter do at the end of ``step``."""
        assert self.adaptive is not None
        return self.adaptive.propose(self.size + len(chunks), running, chunks, step)

    def switch(self, tokens: int, running: Iterable[LiveRequest], step: int, now: float) -> None:
        """From ``step`` on, ``tokens`` are verified: derive the futures of the decoding requests anew."""
        adaptive = self.adaptive
        assert adaptive is not None
        leaving = self.ending.pop(step - 1, [])
        for live in leaving:  # they go last, as in any step; their drafts count under the old number
            assert live.path is not None
            self._count_drafts(live.index, live.path)
            live.path = live.path[:0]
        decoding = [live for live in running if live.start >= 0 and live not in leaving]
        for live in decoding:
            done, delivered = self.withdraw(live, step)
            live.generated += delivered
            live.target += delivered
            live.verify_steps += done
            if done:
                live.last_token_s = now
        adaptive.drafting.tokens = tokens
        self._verify(adaptive)
        for live in decoding:
            self.add(live, step)
        if leaving:
            self.ending[step - 1] = leaving

    def _contribute(self, live: LiveRequest, done: int, apply: np.ufunc) -> None:
        """Add or subtract the keys, blocks and tokens of a request's decode steps from the ``done``-th on."""
        future = self.future.window(live.start + done, live.steps - done)
        if self._sampler is None:
            needs = self._needs[:, live.target + 1 + done : live.target + 1 + live.steps]
            apply(future, needs, out=future)
            return
        assert live.path is not None
        delivered = live.path + 1
        context = live.target + self.query_len + np.cumsum(delivered) - delivered
        remaining = self._log.output_tokens[live.index] - live.generated
        delivered[-1] -= int(delivered.sum()) - remaining
        apply(future[:-1], self._needs[:, context[done:]], out=future[:-1])
        apply(future[-1], delivered[done:], out=future[-1])

    def _verify(self, adaptive: AdaptiveDrafting) -> None:
        """Take over what the policy's present choice means for a step."""
        self.query_len = adaptive.drafting.query_len
        self._needs = adaptive.needs(self.query_len)

    def _count_drafts(self, request: int, accepted: IntArray) -> None:
        """Note the verify steps of a request under the present number of draft tokens."""
        if self.adaptive is not None:
            if not self.adaptive.tokens:
                return
            self._log.draft_tokens[request] += len(accepted) * (self.query_len - 1)
        self._log.count_drafts(request, accepted)
