"""Random draws of accepted draft tokens, and the budget of draft tokens that a step verifies."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from simulator.serving.engine.common import ALL_BITS, GOLDEN, MANY, cython, log
from simulator.serving.engine.sequence import Sequence
from simulator.speculation.confidence import SEEN_CLASSES


@cython.final
@cython.cclass
class Thresholds:
    """Draws below which so many draft tokens are accepted, ascending; one row per class of requests."""

    values: cython.ulonglong[:, ::1]
    classes: cython.longlong

    def __init__(self, values: Any) -> None:
        self.values = np.ascontiguousarray(np.atleast_2d(values))
        self.classes = len(self.values)


@cython.final
@cython.cclass
class Draws:
    """Accepted draft tokens of each verify step: the draws of an ``AcceptanceSampler``, one by one."""

    sampler: Any
    drift: Any
    by_context: list[Any]
    """Thresholds by tokens in the cache, where acceptance falls along it; None for contexts that did not occur."""
    cells: dict[Any, Any]
    usual: Thresholds
    by_class: cython.bint
    """Whether the class of each request is given; else it is drawn."""
    per_draft: cython.bint
    """Whether each draft has a class of its own."""
    class_of: cython.longlong[::1]
    positions: cython.longlong
    key: cython.ulonglong
    class_key: cython.ulonglong
    first_mix: cython.ulonglong
    second_mix: cython.ulonglong

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.drift = sampler.drift
        self.positions = sampler.num_speculative_tokens
        self.usual = Thresholds(sampler.thresholds(-1))
        self.cells, self.by_context = {-1: self.usual}, []
        self.key, self.class_key = sampler.key, sampler.class_key
        self.by_class = sampler.class_of is not None
        self.per_draft = sampler.class_per_draft
        self.class_of = np.ascontiguousarray(sampler.class_of if self.by_class else [0], dtype=np.int64)
        self.first_mix, self.second_mix = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def accepted(self, request: cython.longlong, step: cython.longlong, context: cython.longlong) -> cython.longlong:
        """Draft tokens that a request accepts in its ``step``-th verify step, with so many tokens in its cache."""
        table: Thresholds = self.usual
        row: cython.longlong = self.row(request, step)
        taken: cython.longlong = self.positions
        place: cython.longlong
        bits: cython.ulonglong
        if self.drift is not None:
            table = self._at(context)
        bits = self._bits(self.key, request, step)
        for place in range(self.positions):
            if table.values[row, place] <= bits:
                taken -= 1
        return taken

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def sustained(self, request: cython.longlong, step: cython.longlong, chance: cython.double) -> cython.longlong:
        """Tokens up to which a chance that each is accepted, given those before it, holds; beside ``accepted``."""
        bits: cython.ulonglong = self._bits(self.class_key, request, ~step & ALL_BITS)
        share: cython.double = ((bits >> 11) + 1) * 2.0**-53
        if chance <= 0.0:
            return 0
        return self.positions if chance >= 1.0 else int(min(log(share) / log(chance), 1.0 * self.positions))

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def row(self, request: cython.longlong, step: cython.longlong) -> cython.longlong:
        """Class of a request's draft in its ``step``-th verify step."""
        bits: cython.ulonglong
        if self.by_class:
            return self.class_of[request]
        if self.usual.classes == 1:
            return 0
        bits = self._bits(self.class_key, request, step if self.per_draft else 0)
        return cython.cast(cython.longlong, (bits >> 11) * 2.0**-53 * self.usual.classes)

    @cython.cfunc
    def _at(self, context: cython.longlong) -> Thresholds:
        """Thresholds at a number of tokens in the cache."""
        if len(self.by_context) <= context:
            self.by_context += [None] * (context + 1 - len(self.by_context))
        if self.by_context[context] is None:
            cell = self.drift.cell(context)
            if cell not in self.cells:
                self.cells[cell] = Thresholds(self.sampler.thresholds(cell))
            self.by_context[context] = self.cells[cell]
        return self.by_context[context]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _bits(self, key: cython.ulonglong, stream: cython.ulonglong, position: cython.ulonglong) -> cython.ulonglong:
        """64 random bits at one position of a stream."""
        state: cython.ulonglong = (key + (stream + 1) * GOLDEN) & ALL_BITS
        state = self._mixed(state)
        return self._mixed((state + (position + 1) * GOLDEN) & ALL_BITS)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _mixed(self, state: cython.ulonglong) -> cython.ulonglong:
        state = ((state ^ (state >> 30)) * self.first_mix) & ALL_BITS
        state = ((state ^ (state >> 27)) * self.second_mix) & ALL_BITS
        return state ^ (state >> 31)


@cython.final
@cython.cclass
class StepCurve:
    """Seconds of a step of one batch size by tokens verified."""

    seconds: cython.double[::1]

    def __init__(self, seconds: Any) -> None:
        self.seconds = np.ascontiguousarray(seconds, dtype=np.float64)


@cython.final
@cython.cclass
class Budget:
    """Draft tokens that each decoding sequence verifies in a step, by a ``simulator.speculation.VerifyBudget``.

    Sequences are counted by class, so that a step looks at each class and position once, in order of worth.
    """

    rule: Any
    draws: Draws
    classes: cython.longlong[::1]
    """Class of every (class, position), most worth first."""
    worth: cython.double[::1]
    """Worth of the same."""
    counts: cython.longlong[::1]
    """Sequences by class in the present step, then how many draft tokens each verifies."""
    lengths: cython.longlong[::1]
    next_size: cython.longlong[::1]
    """Smallest captured number of tokens that is at least so many."""
    prompt_token_s: cython.double
    with_prompts: cython.bint
    around_s: cython.double[::1]
    seen: cython.longlong
    curves: list[Any]
    """By number of sequences; None where none was needed yet."""

    def __init__(self, rule: Any, draws: Draws, most_tokens: int) -> None:
        self.rule, self.draws = rule, draws
        rows, positions = rule.worth.shape
        order = np.argsort(-rule.worth.ravel(), kind="stable")
        self.classes = np.ascontiguousarray(order // positions)
        self.worth = np.ascontiguousarray(rule.worth.ravel()[order])
        self.counts, self.lengths = array("q", [0]) * rows, array("q", [0]) * rows
        sizes, most = np.append(rule.sizes, MANY), max(most_tokens + 2, len(rule.seconds(1)) + 1)
        self.next_size = np.ascontiguousarray(sizes[np.searchsorted(rule.sizes, np.arange(most))])
        self.prompt_token_s = rule.prompt_token_s
        self.seen = SEEN_CLASSES[rule.confidence]
        self.with_prompts = rule.with_prompts
        self.around_s = np.ascontiguousarray(rule.around_s, dtype=np.float64)
        self.curves = []

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def choose(self, batch: list[Any], prompt_tokens: cython.longlong, cut: cython.longlong = 0) -> cython.longlong:
        """Set ``verified`` of each sequence of a batch, the last of which has ``cut`` draft tokens less; returns the
        tokens that all verify, one each included."""
        sequence: Sequence
        place: cython.longlong
        count: cython.longlong
        size: cython.longlong
        row: cython.longlong
        rate: cython.double
        seqs: cython.longlong = len(batch)
        tokens: cython.longlong = seqs
        chosen: cython.longlong = seqs
        entries: cython.longlong = len(self.classes)
        curve: StepCurve = self._curve(seqs)
        seconds: cython.double[::1] = curve.seconds
        last: cython.longlong = len(seconds) - 1
        first: cython.longlong = prompt_tokens if self.with_prompts else 0
        more_s: cython.double = self.around_s[min(seqs, len(self.around_s) - 1)]
        if not first:
            more_s += prompt_tokens * self.prompt_token_s
        expected: cython.double = seqs
        best: cython.double = expected / (seconds[min(tokens + first, last)] + more_s)
        counts: cython.longlong[::1] = self.counts
        lengths: cython.longlong[::1] = self.lengths
        classes: cython.longlong[::1] = self.classes
        worths: cython.double[::1] = self.worth
        next_size: cython.longlong[::1] = self.next_size
        worth: cython.double
        for row in range(len(counts)):
            counts[row] = lengths[row] = 0
        for place in range(seqs):
            sequence = cython.cast(Sequence, batch[place])
            sequence.verified = self._class(sequence)
            counts[sequence.verified] += 1
        for place in range(entries):
            count = counts[classes[place]]
            if not count:
                continue
            worth = worths[place]
            if worth <= 0.0:
                break
            size = next_size[min(tokens + first, last) + 1]
            while size < min(tokens + first + count, last):  # a graph is padded to its size, whatever it holds
                rate = (expected + (size - first - tokens) * worth) / (seconds[size] + more_s)
                if rate > best:
                    best, chosen = rate, size - first
                size = next_size[size + 1]
            tokens += count
            expected += count * worth
            rate = expected / (seconds[min(tokens + first, last)] + more_s)
            if rate > best:
                best, chosen = rate, tokens
        tokens = chosen - seqs
        row = -1
        for place in range(entries):
            if not tokens:
                break
            count = counts[classes[place]]
            if count > tokens:
                row = classes[place]
                break
            if count:
                lengths[classes[place]] += 1
                tokens -= count
        for place in range(seqs):
            sequence = cython.cast(Sequence, batch[place])
            if sequence.verified == row and tokens:
                sequence.verified = lengths[row] + 1
                tokens -= 1
            else:
                sequence.verified = lengths[sequence.verified]
        if cut:
            count = max(0, sequence.verified - self.draws.positions + cut)
            sequence.verified -= count
            chosen -= count
        return chosen

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _class(self, sequence: Sequence) -> cython.longlong:
        """Row of ``VerifyBudget.worth`` of a sequence's draft."""
        if self.seen == 1:
            return 0
        if self.seen == 2:
            return self.draws.accepted(sequence.index, sequence.verify_steps, sequence.computed_tokens)
        return self.draws.row(sequence.index, sequence.verify_steps)

    @cython.cfunc
    def _curve(self, seqs: cython.longlong) -> StepCurve:
        while len(self.curves) <= seqs:
            self.curves.append(None)
        if self.curves[seqs] is None:
            self.curves[seqs] = StepCurve(self.rule.seconds(seqs))
        return self.curves[seqs]
