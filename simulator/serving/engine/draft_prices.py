"""Seconds of drafting: sequential passes, one parallel pass, or a table; and steps of tabulated or scaled prices."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import cython
from simulator.serving.engine.prices import Column, ModelPrices, Prices
from simulator.serving.engine.work import Work


@cython.cclass
class DraftPrices:
    """What a drafter adds to a step.

    Args:
        order: where the windows of the drafter stand among those of the engine.
        windows: of the drafter.
        overhead: host seconds that no kernel hides.
        passes: sequential ones of a step.
    """

    order: cython.longlong[::1]
    kinds: cython.longlong
    seen: Work
    """The step as the drafter sees it."""
    scratch: Work
    step_s: cython.double
    per_sequence_s: cython.double

    def __init__(self, order: Any, windows: tuple[Any, ...], overhead: Any, forwards: int) -> None:
        self.order = array("q", order)
        self.kinds = len(windows)
        self.seen = Work(windows)
        self.scratch = Work(windows)
        self.step_s = 0.0 if overhead is None else overhead.step_s + forwards * overhead.pass_s
        self.per_sequence_s = 0.0
        if overhead is not None:
            self.per_sequence_s = overhead.per_sequence_s + forwards * overhead.sequence_pass_s

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work) -> cython.double:
        """Seconds that drafting adds to one step."""
        raise NotImplementedError

    @cython.cfunc
    def _look(self, work: Work) -> None:
        """Take the step in, its windows in the drafter's order."""
        w: cython.longlong
        seen: Work = self.seen
        seen.prefill_seqs, seen.prefill_tokens = work.prefill_seqs, work.prefill_tokens
        seen.sampled_prefills, seen.decode_seqs = work.sampled_prefills, work.decode_seqs
        seen.query_len, seen.longest_kv, seen.tail_kv = work.query_len, work.longest_kv, work.tail_kv
        seen.dp_imbalance = work.dp_imbalance
        for w in range(self.kinds):
            seen.prefill_pairs[w] = work.prefill_pairs[self.order[w]]
            seen.prefill_kv_tokens[w] = work.prefill_kv_tokens[self.order[w]]
            seen.sampled_kv_tokens[w] = work.sampled_kv_tokens[self.order[w]]
            seen.decode_kv_tokens[w] = work.decode_kv_tokens[self.order[w]]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _overhead(self, drafting: cython.longlong) -> cython.double:
        """Host seconds; see ``HostOverhead``."""
        return self.step_s + self.per_sequence_s * drafting


@cython.cclass
class SequentialDraft(DraftPrices):
    """See ``SequentialDrafter``."""

    model: ModelPrices
    fusion: Column | None
    depth: cython.longlong
    longest: cython.longlong
    """Tokens of each sequence that the first pass may have to catch up on."""
    modules: cython.longlong
    """Where each keeps a cache of its own, else 0."""
    own_cache: cython.bint
    passes: list[Any]

    def __init__(
        self,
        order: Any,
        windows: tuple[Any, ...],
        overhead: Any,
        tables: Any,
        fusion: Any,
        depth: int,
        longest: int,
        modules: int,
        reads_target_cache: bool,
        launches: int,
        forwards: list[Any],
    ) -> None:
        DraftPrices.__init__(self, order, windows, overhead, launches)
        self.model = ModelPrices(tables)
        self.fusion = None if fusion is None else Column(fusion)
        self.depth = depth
        self.longest = longest
        self.modules = modules
        self.own_cache = not reads_target_cache
        self.passes = forwards

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work) -> cython.double:
        """Seconds that drafting adds to one step."""
        width: cython.longlong
        forwards: cython.longlong
        drafted: cython.longlong
        w: cython.longlong
        drafting: cython.longlong = work.decode_seqs + work.sampled_prefills
        self._look(work)
        seen: Work = self.seen
        if not self.own_cache:
            if not drafting or not self.depth:
                return 0.0
            return self.depth * self._pass(drafting, 1, (self.depth - 1) // 2) + self._overhead(drafting)
        if seen.query_len > self.longest:
            for w in range(self.kinds):
                if seen.windows[w] < 0:
                    seen.decode_kv_tokens[w] -= seen.decode_seqs * (seen.query_len - self.longest)
            seen.query_len = self.longest
        times: cython.longlong = self.modules if drafting and self.modules else 1
        total: cython.double = times * self.model.seconds(seen, drafting if self.depth else 0)
        if self.fusion is not None:
            total += times * self.fusion.at(seen.prefill_tokens + seen.decode_seqs * seen.query_len)
        if not drafting:
            return total
        if not self.modules:
            for width, forwards, drafted in self.passes:
                total += forwards * self._pass(drafting, width, drafted)
        return total + self._overhead(drafting)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _pass(self, drafting: cython.longlong, width: cython.longlong, drafted: cython.longlong) -> cython.double:
        """One pass over ``width`` tokens of each drafting sequence, ``drafted`` tokens after the step's own."""
        w: cython.longlong
        one: Work = self.scratch
        one.decode_seqs, one.query_len = drafting, width
        one.dp_imbalance = self.seen.dp_imbalance
        for w in range(self.kinds):
            one.decode_kv_tokens[w] = self.seen.decode_kv_tokens[w] + self.seen.sampled_kv_tokens[w]
            if one.windows[w] < 0:
                one.decode_kv_tokens[w] += drafting * drafted
        return self.model.seconds(one, drafting * width)


@cython.cclass
class ParallelDraft(DraftPrices):
    """See ``ParallelDrafter``."""

    model: ModelPrices
    fusion: Column | None
    proposed: cython.longlong

    def __init__(
        self, order: Any, windows: tuple[Any, ...], overhead: Any, tables: Any, fusion: Any, proposed: int
    ) -> None:
        DraftPrices.__init__(self, order, windows, overhead, 1)
        self.model = ModelPrices(tables)
        self.fusion = None if fusion is None else Column(fusion)
        self.proposed = proposed

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work) -> cython.double:
        """Seconds that drafting adds to one step."""
        w: cython.longlong
        drafting: cython.longlong = work.decode_seqs + work.sampled_prefills
        masked: cython.longlong = max(0, self.proposed - 1)
        added: cython.longlong = work.sampled_prefills * masked
        self._look(work)
        seen: Work = self.seen
        for w in range(self.kinds):
            seen.prefill_pairs[w] += masked * seen.sampled_kv_tokens[w]
            seen.prefill_pairs[w] += work.sampled_prefills * (masked * (masked - 1) // 2)
            seen.prefill_kv_tokens[w] += added
            seen.decode_kv_tokens[w] += work.decode_seqs * masked
        seen.prefill_tokens += added
        seen.query_len += masked
        total: cython.double = self.model.seconds(seen, drafting * self.proposed)
        if self.fusion is not None:
            total += self.fusion.at(work.prefill_tokens + work.decode_seqs * work.query_len)
        return total + self._overhead(drafting) if drafting else total


@cython.cclass
class TabulatedDraft(DraftPrices):
    """See ``HeadsDrafter`` and ``HostDrafter``: by drafting sequences, and by tokens that are scanned."""

    by_seqs: Column | None
    per_context_token_s: cython.double

    def __init__(
        self, order: Any, windows: tuple[Any, ...], overhead: Any, forwards: int, by_seqs: Any, scanned_s: float
    ) -> None:
        DraftPrices.__init__(self, order, windows, overhead, forwards)
        self.by_seqs = None if by_seqs is None else Column(by_seqs)
        self.per_context_token_s = scanned_s

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work) -> cython.double:
        """Seconds that drafting adds to one step."""
        first: cython.longlong
        drafting: cython.longlong = work.decode_seqs + work.sampled_prefills
        if not drafting:
            return 0.0
        if self.by_seqs is not None:
            return self.by_seqs.at(drafting) + self._overhead(drafting)
        first = self.order[0]
        return self._overhead(drafting) + self.per_context_token_s * (
            work.decode_kv_tokens[first] + work.sampled_kv_tokens[first]
        )


@cython.final
@cython.cclass
class TabulatedPrices(Prices):
    """A step's seconds from tables: target, drafter and host as ``ModelTimer.seconds`` adds them up."""

    target: ModelPrices
    later: list[Any]
    """Stages of a pipeline after the first."""
    sent: cython.double[::1]
    """Seconds from one to the next by tokens."""
    draft: DraftPrices
    overlap: cython.double
    step_s: cython.double
    per_sequence_s: cython.double
    per_prompt_s: cython.double
    overlapped_s: cython.double
    overlapped_per_sequence_s: cython.double

    def __init__(self, timer: Any, tables: Any, draft: Any) -> None:
        Prices.__init__(self, timer)
        self.target = ModelPrices(tables.target)
        self.later = [ModelPrices(stage) for stage in tables.later]
        self.sent = array("d", tables.sent)
        self.draft = draft
        self.overlap = tables.overlap
        self.step_s, self.per_sequence_s, self.per_prompt_s = tables.step_s, tables.per_sequence_s, tables.per_prompt_s
        self.overlapped_s, self.overlapped_per_sequence_s = tables.overlapped_s, tables.overlapped_per_sequence_s

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, work: Work) -> cython.double:
        """Seconds of one step, host included."""
        if work.slowest is not None:
            work = work.slowest
        sequences: cython.longlong = work.decode_seqs + work.prefill_seqs
        drafting: cython.double
        rows: cython.longlong = work.decode_seqs * work.query_len + work.sampled_prefills
        target_s: cython.double = self.target.seconds(work, rows)
        total: cython.double = target_s + self.host_seconds(work)
        if self.draft is not None:
            drafting = self.draft.seconds(work)
            total += drafting
            if self.overlap:
                total -= self.overlap * min(drafting, target_s)
        if self.overlapped_s or self.overlapped_per_sequence_s:
            return max(total, self.overlapped_s + self.overlapped_per_sequence_s * sequences)
        return total

    @cython.ccall
    def stage_seconds(self, work: Work) -> list[Any]:
        """Seconds that a batch keeps each stage of a pipeline busy, its P2P send included; the last also drafts."""
        if work.slowest is not None:
            work = work.slowest
        sequences: cython.longlong = work.decode_seqs + work.prefill_seqs
        rows: cython.longlong = work.decode_seqs * work.query_len + work.sampled_prefills
        sent: cython.double = self.sent[work.prefill_tokens + work.decode_seqs * work.query_len]
        stages = [self.target, *self.later]
        seconds = [cython.cast(ModelPrices, stage).seconds(work, rows) + sent for stage in stages]
        last: cython.double = seconds[len(seconds) - 1]
        last -= sent
        if self.draft is not None:
            last += self.draft.seconds(work)
        seconds[len(seconds) - 1] = max(last, self.overlapped_s + self.overlapped_per_sequence_s * sequences)
        return seconds

    @cython.ccall
    def host_seconds(self, work: Work) -> cython.double:
        """Seconds of the scheduler before the device begins."""
        if work.slowest is not None:
            work = work.slowest
        sequences: cython.longlong = work.decode_seqs + work.prefill_seqs
        return self.step_s + self.per_sequence_s * sequences + self.per_prompt_s * work.prefill_seqs


@cython.final
@cython.cclass
class ScaledPrices(Prices):
    """Prices times one factor in steps with prompt chunks and another in the rest: a model that is off by so much.

    Args:
        inner: the prices.
        with_prompts, without: the factors.
    """

    inner: Prices
    with_prompts: cython.double
    without: cython.double

    def __init__(self, inner: Prices, with_prompts: float, without: float) -> None:
        Prices.__init__(self, inner.timer)
        self.inner = inner
        self.with_prompts = with_prompts
        self.without = without

    @cython.cfunc
    def _factor(self, work: Work) -> cython.double:
        return self.with_prompts if work.prefill_seqs else self.without

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, work: Work) -> cython.double:
        """Seconds of one step."""
        return self.inner.seconds(work) * self._factor(work)

    @cython.ccall
    def stage_seconds(self, work: Work) -> list[Any]:
        """Seconds that a batch keeps each stage of a pipeline busy."""
        return [seconds * self._factor(work) for seconds in self.inner.stage_seconds(work)]

    @cython.ccall
    def host_seconds(self, work: Work) -> cython.double:
        """Seconds of the scheduler before a batch enters the first stage."""
        return self.inner.host_seconds(work) * self._factor(work)

    @cython.ccall
    def seconds_drafting(self, work: Work, draft: Any) -> cython.double:
        """Seconds of one step in which a policy decides what the drafter does."""
        return self.inner.seconds_drafting(work, draft) * self._factor(work)
