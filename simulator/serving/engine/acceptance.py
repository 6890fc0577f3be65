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
    """Draws below which 1, 2, ... draft tokens are accepted, ascending; one row per class of requests."""

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
    """True if the class of each request is given; else it is drawn."""
    per_draft: cython.bint
    """True if classes belong to drafts instead of requests."""
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
        """Draft tokens that a request accepts in its ``step``-th verify step, given the tokens in its cache."""
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
        """Accepted tokens if each has probability ``chance`` given all earlier ones; draws as ``accepted`` does."""
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


DE_BRUIJN = cython.declare(cython.ulonglong, 0x03F79D71B4CA8B09)
"""De Bruijn sequence: multiplied by a power of two, its top six bits identify that power.

Source: C. E. Leiserson et al., "Using de Bruijn Sequences to Index a 1 in a Computer Word" (1998).
"""


@cython.final
@cython.cclass
class Budget:
    """Draft tokens that each decoding sequence verifies in a step, by a ``simulator.speculation.VerifyBudget``.

    Sequences are counted by class. A step looks once at each position of a class that has sequences, in order of worth:
    the places of these positions in that order are the bits of ``marks``.
    """

    rule: Any
    draws: Draws
    positions: cython.longlong
    classes: cython.longlong[::1]
    """Classes of all (class, position) pairs with positive worth, the highest worth first."""
    worth: cython.double[::1]
    """Worth of the same."""
    ranks: cython.longlong[::1]
    """Place of each (class, position) in that order, class by class."""
    marks: cython.ulonglong[::1]
    bit_of: cython.longlong[::1]
    """Bit index by the top six bits of its product with ``DE_BRUIJN``."""
    counts: cython.longlong[::1]
    """Sequences of the present step by class."""
    next_size: cython.longlong[::1]
    """Smallest captured number of tokens that is no smaller."""
    prompt_token_s: cython.double
    with_prompts: cython.bint
    around_s: cython.double[::1]
    seen: cython.longlong
    curves: list[Any]
    """Curve by number of sequences; None if it was not needed yet."""

    def __init__(self, rule: Any, draws: Draws, most_tokens: int) -> None:
        self.rule, self.draws = rule, draws
        rows, self.positions = rule.worth.shape
        order = np.argsort(-rule.worth.ravel(), kind="stable")
        self.ranks = array("q", np.argsort(order).tolist())
        order = order[rule.worth.ravel()[order] > 0.0]
        self.classes = np.ascontiguousarray(order // self.positions)
        self.worth = np.ascontiguousarray(rule.worth.ravel()[order])
        self.marks, self.counts = array("Q", [0]) * (len(order) // 64 + 1), array("q", [0]) * rows
        self.bit_of = np.argsort([((DE_BRUIJN << bit) & ALL_BITS) >> 58 for bit in range(64)])
        sizes, most = np.append(rule.sizes, MANY), max(most_tokens + 2, len(rule.seconds(1)) + 1)
        self.next_size = np.ascontiguousarray(sizes[np.searchsorted(rule.sizes, np.arange(most))])
        self.prompt_token_s = rule.prompt_token_s
        self.seen = SEEN_CLASSES[rule.confidence]
        self.with_prompts = rule.with_prompts
        self.around_s = np.ascontiguousarray(rule.around_s, dtype=np.float64)
        self.curves = []

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def choose(
        self, batch: list[Sequence], prompt_tokens: cython.longlong, cut: cython.longlong = 0
    ) -> cython.longlong:
        """Set ``verified`` of each sequence of a batch; the last has ``cut`` draft tokens less. Returns the tokens that
        all verify, one each included."""
        sequence: Sequence
        place: cython.longlong
        count: cython.longlong
        size: cython.longlong
        row: cython.longlong
        first_rank: cython.longlong
        word: cython.longlong
        bits: cython.ulonglong
        lowest: cython.ulonglong
        rate: cython.double
        worth: cython.double
        seqs: cython.longlong = len(batch)
        curve: StepCurve = self._curve(seqs)
        seconds: cython.double[::1] = curve.seconds
        last: cython.longlong = len(seconds) - 1
        first: cython.longlong = prompt_tokens if self.with_prompts else 0
        more_s: cython.double = self.around_s[min(seqs, len(self.around_s) - 1)]
        if not first:
            more_s += prompt_tokens * self.prompt_token_s
        tokens: cython.longlong = seqs
        at: cython.longlong = min(tokens + first, last)
        expected: cython.double = seqs
        best: cython.double = expected / (seconds[at] + more_s)
        whole: cython.longlong = 0
        part: cython.longlong = 0
        self._mark(batch)
        for word in range(len(self.marks)):
            bits, self.marks[word] = self.marks[word], 0
            while bits:
                lowest = bits & (~bits + 1)
                bits ^= lowest
                place = 64 * word + self.bit_of[((lowest * DE_BRUIJN) & ALL_BITS) >> 58]
                count, worth = self.counts[self.classes[place]], self.worth[place]
                size = self.next_size[at + 1]
                at = min(tokens + first + count, last)
                while size < at:  # a graph is padded to its size, whatever it holds
                    rate = (expected + (size - first - tokens) * worth) / (seconds[size] + more_s)
                    if rate > best:
                        best, whole, part = rate, place, size - first - tokens
                    size = self.next_size[size + 1]
                tokens += count
                expected += count * worth
                rate = expected / (seconds[at] + more_s)
                if rate > best:
                    best, whole, part = rate, place + 1, 0
        tokens = seqs
        row = self.classes[whole] if part else -1
        for place in range(seqs):
            sequence = cython.cast(Sequence, batch[place])
            count, first_rank = 0, sequence.verified * self.positions
            while count < self.positions and self.ranks[first_rank + count] < whole:
                count += 1
            if sequence.verified == row and part:
                count += 1
                part -= 1
            sequence.verified = count
            tokens += count
        if cut:
            count = max(0, sequence.verified - self.draws.positions + cut)
            sequence.verified -= count
            tokens -= count
        return tokens

    @cython.cfunc
    def _mark(self, batch: list[Sequence]) -> None:
        """Set ``verified`` of each sequence to its class, count sequences by class, and mark the classes' positions."""
        sequence: Sequence
        place: cython.longlong
        rank: cython.longlong
        position: cython.longlong
        one: cython.ulonglong = 1
        for place in range(len(batch)):
            sequence = cython.cast(Sequence, batch[place])
            sequence.verified = self._class(sequence)
            self.counts[sequence.verified] = 0
        for place in range(len(batch)):
            sequence = cython.cast(Sequence, batch[place])
            if not self.counts[sequence.verified]:
                for position in range(self.positions):
                    rank = self.ranks[sequence.verified * self.positions + position]
                    if rank < len(self.worth):
                        self.marks[rank >> 6] |= one << (rank & 63)
            self.counts[sequence.verified] += 1

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
