"""The reference engine: continuous batching with chunked prefill, and draft/verify with lossless rejection sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from forerun.arrays import FloatArray
from validation.selfcheck.model import KernelCall, Observer, PackedBatch, ReferenceModel, Segment
from validation.selfcheck.sampling import sample_tokens, verify
from validation.selfcheck.scheduler import ReferencePlan, ReferenceScheduler, Request


class EngineStep(NamedTuple):
    """Work and duration of a step; ``kernels_s`` is the time of its kernels, where they were observed."""

    seconds: float
    wall_s: float
    prefill_seqs: int
    prefill_tokens: int
    decode_seqs: int
    decode_kv_tokens: int
    output_tokens: int
    kernels_s: float | None


@dataclass(slots=True)
class EngineRun:
    """A finished run; ``accepted`` holds the draft tokens kept in each verify step, ``survival`` their chances,
    ``calls`` the kernels of each step where they were observed."""

    requests: list[Request]
    steps: list[EngineStep] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    survival: list[FloatArray] = field(default_factory=list)
    calls: list[list[KernelCall]] = field(default_factory=list)


@dataclass
class ReferenceEngine:
    """Serves requests with a model, and with a drafter where there is one.

    Args:
        model: the target.
        max_num_seqs: most requests in a step.
        max_num_batched_tokens: most tokens in a step.
        clock: seconds now.
        wall: seconds on the wall, to tell how long other processes held the core.
        drafter: a model of the same vocabulary.
        num_speculative_tokens: K; 0 without a drafter.
        seed: seed of token sampling.
    """

    model: ReferenceModel
    max_num_seqs: int
    max_num_batched_tokens: int
    clock: Callable[[], float]
    wall: Callable[[], float]
    drafter: ReferenceModel | None = None
    num_speculative_tokens: int = 0
    seed: int = 0
    observer: Observer | None = None

    def run(self, requests: Sequence[Request], concurrency: int) -> EngineRun:
        """Serve all requests in a closed loop: ``concurrency`` are sent at the start, the next when one ends."""
        self._generator = torch.Generator().manual_seed(self.seed)
        self._run = EngineRun(list(requests))
        self._unsent = list(requests)[::-1]
        self._scheduler = ReferenceScheduler(
            self.max_num_seqs, self.max_num_batched_tokens, 1 + self.num_speculative_tokens
        )
        for model in (self.model, self.drafter):
            if model is not None:
                model.observer = self.observer
        with torch.inference_mode():
            self._start = self.clock()
            for _ in range(min(concurrency, len(requests))):
                self._send(0.0)
            while self._scheduler.running or self._scheduler.waiting:
                self._step()
        return self._run

    def _send(self, now: float) -> None:
        if self._unsent:
            request = self._unsent.pop()
            request.arrival_s = now
            self._scheduler.waiting.append(request)

    def _step(self) -> None:
        """Plan, compute, sample or verify, draft, hand out tokens."""
        start, wall = self.clock(), self.wall()
        if self.observer is not None:
            self.observer.calls.clear()
        plan = self._scheduler.plan()
        keys = sum(request.computed + 1 + self.num_speculative_tokens for request in plan.decodes)
        probabilities = self.model.probabilities(self._batch(plan))
        finishing = [request for request, tokens in plan.chunks if request.computed + tokens == len(request.prompt)]
        answers = self._verified(plan, probabilities) if self.drafter is not None else None
        if answers is None:
            sampled = sample_tokens(probabilities, self._generator).tolist()
            answers = [[token] for token in sampled[: len(plan.decodes)]]
            firsts = sampled[len(plan.decodes) :]
        else:
            firsts = sample_tokens(
                probabilities[len(plan.decodes) * (1 + self.num_speculative_tokens) :], self._generator
            )
            firsts = firsts.tolist()
        if self.drafter is not None:
            self._draft(plan, finishing, answers, firsts)
        delivered = self._commit(plan, finishing, answers, firsts)
        seconds = self.clock() - start
        kernels_s = None
        if self.observer is not None:
            calls = self.observer.calls.copy()
            self._run.calls.append(calls)
            kernels_s = sum(call.seconds for call in calls)
            seconds -= len(calls) * (self.observer.overhead_s + self.observer.outside_s)
        tokens = sum(tokens for _, tokens in plan.chunks)
        self._run.steps.append(
            EngineStep(
                seconds, self.wall() - wall, len(plan.chunks), tokens, len(plan.decodes), keys, delivered, kernels_s
            )
        )

    def _batch(self, plan: ReferencePlan) -> PackedBatch:
        queries = 1 + self.num_speculative_tokens
        ids: list[int] = []
        for request in plan.decodes:
            ids.append(request.tokens[-1])
            if self.drafter is not None:
                ids += request.drafted.tolist()
        rows = list(range(len(ids)))
        for request, tokens in plan.chunks:
            ids += request.prompt[request.computed : request.computed + tokens]
            if request.computed + tokens == len(request.prompt):
                rows.append(len(ids) - 1)
        decodes = tuple(Segment(r.slot, r.computed, queries) for r in plan.decodes)
        chunks = tuple(Segment(r.slot, r.computed, tokens) for r, tokens in plan.chunks)
        return PackedBatch(ids, decodes, chunks, rows)

    def _verified(self, plan: ReferencePlan, probabilities: Any) -> list[list[int]]:
        """Tokens of every decoding sequence: the accepted drafts and one more."""
        count, queries = len(plan.decodes), 1 + self.num_speculative_tokens
        if not count:
            return []
        target = probabilities[: count * queries].view(count, queries, -1)
        drafted = torch.stack([request.drafted for request in plan.decodes])
        draft = torch.stack([request.drafted_from for request in plan.decodes])
        outcome = verify(target, draft, drafted, self._generator)
        accepted = outcome.accepted.tolist()
        self._run.accepted += accepted
        self._run.survival += list(outcome.survival.double().numpy())
        kept = zip(drafted.tolist(), accepted, outcome.token.tolist(), strict=True)
        return [[*tokens[:number], token] for tokens, number, token in kept]

    def _draft(
        self, plan: ReferencePlan, finishing: list[Request], answers: list[list[int]], firsts: list[int]
    ) -> None:
        """Propose K tokens for every sequence that decodes next, one pass after the other.

        The first pass runs over the tokens of this step, each one place further on than the target saw it, as EAGLE
        does; a rejected draft's place holds a filler that the next step overwrites. Place i of the draft's cache is
        token i + 1 of the sequence.
        """
        assert self.drafter is not None
        queries = 1 + self.num_speculative_tokens
        ids: list[int] = []
        rows: list[int] = []
        for answer in answers:
            rows.append(len(ids) + len(answer) - 1)
            ids += answer + [0] * (queries - len(answer))
        first_of = dict(zip((id(request) for request in finishing), firsts, strict=True))
        for request, tokens in plan.chunks:
            end = request.computed + tokens
            ids += request.prompt[request.computed + 1 : end + 1]
            if id(request) in first_of:
                ids.append(first_of[id(request)])
                rows.append(len(ids) - 1)
        decodes = tuple(Segment(r.slot, r.computed, queries) for r in plan.decodes)
        chunks = tuple(Segment(r.slot, r.computed, tokens) for r, tokens in plan.chunks)
        drafting = [*plan.decodes, *finishing]
        places = [r.computed + len(answer) for r, answer in zip(plan.decodes, answers, strict=True)]
        places += [len(request.prompt) for request in finishing]
        batch = PackedBatch(ids, decodes, chunks, rows)
        drafted, drafted_from = [], []
        for number in range(self.num_speculative_tokens):
            probabilities = self.drafter.probabilities(batch)
            if not drafting:
                return
            tokens_drawn = sample_tokens(probabilities, self._generator)
            drafted.append(tokens_drawn)
            drafted_from.append(probabilities)
            segments = tuple(Segment(r.slot, p + number, 1) for r, p in zip(drafting, places, strict=True))
            batch = PackedBatch(tokens_drawn.tolist(), segments, (), range(len(segments)))
        every, every_from = torch.stack(drafted, 1), torch.stack(drafted_from, 1)
        for row, request in enumerate(drafting):
            request.drafted, request.drafted_from = every[row], every_from[row]

    def _commit(
        self, plan: ReferencePlan, finishing: list[Request], answers: list[list[int]], firsts: list[int]
    ) -> int:
        """Hand out the step's tokens; returns how many."""
        delivered = 0
        now = self.clock() - self._start
        for request, tokens in plan.chunks:
            request.computed += tokens
        for request, answer in zip(plan.decodes, answers, strict=True):
            request.computed += len(answer)
            delivered += self._deliver(request, answer, now)
        for request, first in zip(finishing, firsts, strict=True):
            delivered += self._deliver(request, [first], now)
        return delivered

    def _deliver(self, request: Request, answer: list[int], now: float) -> int:
        answer = answer[: request.remaining]
        request.tokens += answer
        if request.first_token_s is None:
            request.first_token_s = now
        if not request.remaining:
            request.finished_s = now
            self._scheduler.release(request)
            self._send(now)
        return len(answer)
