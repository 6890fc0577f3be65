"""Seconds of a step: looked up in tables of the timing model, formula by formula."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from hwprofiles import tape
from simulator.serving.engine.common import NAN, ceil, cython, exp, isnan, log, pow
from simulator.serving.engine.work import Work


@cython.cclass
class Prices:
    """Seconds of a step: here computed by the timing model for every step."""

    timer = cython.declare(object, visibility="public")

    def __init__(self, timer: Any) -> None:
        self.timer = timer

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, work: Work) -> cython.double:
        """Seconds of one step."""
        return self.timer.seconds(work.step_work())

    @cython.ccall
    def seconds_drafting(self, work: Work, draft: Any) -> cython.double:
        """Seconds of one step in which a policy decides what the drafter does."""
        return self.timer.seconds(work.step_work(), draft)

    @cython.ccall
    def stage_seconds(self, work: Work) -> list[Any]:
        """Seconds that a batch keeps each stage of a pipeline busy, its P2P send included."""
        return self.timer.stage_seconds(work.step_work())

    @cython.ccall
    def host_seconds(self, work: Work) -> cython.double:
        """Seconds of the scheduler before a batch enters the first stage."""
        return self.timer.host_seconds(work.step_work())


@cython.final
@cython.cclass
class Column:
    """Seconds by a count: a column of numbers, or a ``CostTable``, computed once for each count."""

    table: Any
    values: cython.double[::1]
    size: cython.longlong

    def __init__(self, table: Any) -> None:
        self.table = table
        known = np.full(table.most + 1, NAN) if hasattr(table, "most") else table
        self.values = np.ascontiguousarray(known, dtype=np.float64)
        self.size = len(known)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def at(self, count: cython.longlong) -> cython.double:
        """Seconds for ``count``."""
        if count < 0 or count >= self.size:
            raise IndexError(f"no price for {count}: the table ends at {self.size - 1}")
        if isnan(self.values[count]):
            self.values[count] = self.table.seconds(count)
        return self.values[count]


@cython.final
@cython.cclass
class DecodeRow:
    """Decode attention of one batch size by keys: values at equally spaced contexts, as ``DecodeTable`` keeps them."""

    width: cython.longlong
    reach: cython.longlong
    """Keys beyond which the row ends."""
    points: cython.double[::1]

    def __init__(self, width: int, points: Any) -> None:
        self.width = width
        self.points = points
        self.reach = (len(points) - 1) * width


@cython.final
@cython.cclass
class DecodePrices:
    """Decode attention of one kind of layer, interpolated between the values of a ``DecodeTable``."""

    table: Any
    rows: dict[Any, Any]
    """By tokens of each sequence: rows by sequences."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.rows = {}

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def at(self, seqs: cython.longlong, query_len: cython.longlong, keys: cython.longlong) -> cython.double:
        """Seconds for ``keys`` keys in all."""
        cell: cython.longlong
        low: cython.double
        row: DecodeRow
        of_length: list[Any] | None = self.rows.get(query_len)
        if of_length is None:
            of_length = self.rows[query_len] = []
        while len(of_length) <= seqs:
            of_length.append(None)
        row = of_length[seqs]
        if row is None or keys >= row.reach:
            row = of_length[seqs] = DecodeRow(*self.table.row(seqs, query_len, keys))
        cell = keys // row.width
        low = row.points[cell]
        return low + (keys - cell * row.width) * ((row.points[cell + 1] - low) / row.width)


@cython.final
@cython.cclass
class Formula:
    """Seconds by a formula of a timing model: compiled as its steps (``hwprofiles.formulas.Tape``), which yield the
    same to the bit; interpreted, or where it branches, as it stands."""

    function: Any
    arguments: cython.longlong
    steps: cython.longlong[:, ::1]
    values: cython.double[::1]
    """The source of the seconds."""

    def __init__(self, function: Any, arguments: int) -> None:
        recorded = tape(function, arguments) if cython.compiled else None
        self.function = function
        self.arguments = arguments
        self.values = array("d", [0.0] * arguments if recorded is None else recorded.values)
        self.steps = np.array([] if recorded is None else recorded.steps, dtype=np.int64).reshape(-1, 4)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self) -> cython.double:
        """For the arguments that stand in ``values``."""
        step: cython.longlong
        count: cython.longlong = len(self.steps)
        if not count:
            return self.function(*[self.values[place] for place in range(self.arguments)])
        place: cython.longlong = len(self.values) - count
        for step in range(count):
            self.values[place] = self._step(self.steps[step, 0], self.steps[step, 1], self.steps[step, 2], step)
            place += 1
        return self.values[place - 1]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    @cython.inline
    def _step(
        self, operation: cython.longlong, one: cython.longlong, two: cython.longlong, step: cython.longlong
    ) -> cython.double:
        """One of ``hwprofiles.formulas.OPERATIONS``, in their order."""
        first: cython.double = self.values[one]
        second: cython.double = self.values[two]
        if operation == 0:
            return first + second
        if operation == 1:
            return first - second
        if operation == 2:
            return first * second
        if operation == 3:
            return first / second
        if operation == 4:
            return pow(first, second)
        if operation == 5:
            return second if second > first else first
        if operation == 6:
            return second if second < first else first
        if operation == 7:
            return ceil(first)
        if operation == 8:
            return second if first != 0.0 else self.values[self.steps[step, 3]]
        if operation == 9:
            return 1.0 if first < second else 0.0
        if operation == 10:
            return 1.0 if first <= second else 0.0
        if operation == 11:
            return 1.0 if first != 0.0 and second != 0.0 else 0.0
        return log(first) if operation == 12 else exp(first)


@cython.final
@cython.cclass
class AttentionSeconds:
    """Attention of one kind of layer: decoding, prompts, one fresh prompt by its length, both in one kernel."""

    decode: DecodePrices
    overlapped: DecodePrices
    """What is exposed of decode attention in steps without prompts, all layers; computed only where some is hidden."""
    prefill: Formula
    """Of (sequences, new tokens, pairs, keys)."""
    mixed: Formula | None
    """Where one kernel serves prompts and single queries: of the same, (decoding sequences, their keys, the most keys
    of one)."""
    fresh: Column
    window: cython.longlong
    layers: cython.double

    def __init__(
        self, decode: Any, prefill: Any, mixed: Any, fresh: Any, window: int, layers: int, overlapped: Any
    ) -> None:
        self.decode = DecodePrices(decode)
        self.overlapped = DecodePrices(overlapped)
        self.prefill = Formula(prefill, 4)
        self.mixed = None if mixed is None else Formula(mixed, 7)
        self.fresh = Column(fresh)
        self.window = window
        self.layers = layers

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def prompts(self, work: Work) -> cython.double:
        """Of the prompts of a step."""
        if work.prefill_seqs == 1 and work.prefill_kv_tokens[self.window] == work.prefill_tokens:
            return self.layers * self.fresh.at(work.prefill_tokens)
        self._ask(self.prefill, work)
        return self.layers * self.prefill.seconds()

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def together(self, work: Work) -> cython.double:
        """Of the prompts and the single queries of a step in one kernel."""
        mixed = cython.cast(Formula, self.mixed)
        self._ask(mixed, work)
        mixed.values[4] = work.decode_seqs
        mixed.values[5] = work.decode_kv_tokens[self.window]
        mixed.values[6] = work.longest_kv if work.windows[self.window] < 0 else 0
        return self.layers * mixed.seconds()

    @cython.cfunc
    def _ask(self, formula: Formula, work: Work) -> None:
        formula.values[0] = work.prefill_seqs
        formula.values[1] = work.prefill_tokens
        formula.values[2] = work.prefill_pairs[self.window]
        formula.values[3] = work.prefill_kv_tokens[self.window]


@cython.final
@cython.cclass
class ModelPrices:
    """A pass of one model over a step, looked up in the tables of its ``StepTimer``; the same sums in the same order.

    Args:
        tables: ``StepTables`` of the timer.
    """

    tables: Any
    attention: list[Any]
    layers: Column
    verified: dict[Any, Any]
    """``layers`` by tokens of each sequence, where experts make a difference."""
    head: Column
    uncaptured: Column
    """1 where a step of so many tokens runs outside captured graphs."""
    floor_s: cython.double
    prompts_uncaptured: cython.bint
    experts: Column | None
    """Experts that attention groups share, by the tokens of all groups."""
    padded: cython.longlong[::1]
    overlaps: cython.bint
    one_pass: cython.bint
    """Whether a kernel serves prompts and single queries alike."""
    alone: Any
    """Seconds per key of the longest sequences by (sequences, queries of each), where it costs any."""

    def __init__(self, tables: Any) -> None:
        self.tables = tables
        self.attention = [AttentionSeconds(*kind) for kind in tables.attention]
        self.layers = Column(tables.layers)
        self.verified = {1: self.layers}
        self.head = Column(tables.head)
        self.uncaptured = Column(tables.uncaptured)
        self.floor_s = tables.floor_s
        self.prompts_uncaptured = tables.prompts_uncaptured
        self.experts = None if tables.experts is None else Column(tables.experts)
        self.padded = np.ascontiguousarray(tables.padded, dtype=np.int64)
        self.overlaps = any(kind.overlapped is not None for kind in tables.attention)
        self.one_pass = any(kind.mixed is not None for kind in tables.attention)
        self.alone = tables.alone

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work, logit_rows: cython.longlong) -> cython.double:
        """Device seconds of a pass that computes ``logit_rows`` rows of logits."""
        tokens: cython.longlong = work.prefill_tokens + work.decode_seqs * work.query_len
        layers: Column = self.layers
        if work.query_len > 1 and work.decode_seqs and not work.prefill_seqs and self.tables.verified is not None:
            if work.query_len not in self.verified:
                self.verified[work.query_len] = Column(self.tables.verified(work.query_len))
            layers = self.verified[work.query_len]
        total: cython.double = layers.at(tokens) + self.head.at(logit_rows)
        total += self._attention(work)
        if self.experts is not None:
            total += self.experts.at(max(int(tokens * work.dp_imbalance + 0.5), self.padded[tokens]))
        if self.uncaptured.values[tokens] or (self.prompts_uncaptured and work.prefill_seqs):
            return max(total, self.floor_s)
        return total

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _attention(self, work: Work) -> cython.double:
        """Attention of all layers."""
        kind: AttentionSeconds
        total: cython.double = 0.0
        decoding: cython.longlong = work.decode_seqs
        together: cython.bint = self.one_pass and decoding and work.prefill_seqs and work.query_len == 1
        if together:
            for kind in self.attention:
                if kind.mixed is not None:
                    total += kind.together(work)
        if self.overlaps and decoding and not work.prefill_seqs:
            for kind in self.attention:
                total += kind.overlapped.at(decoding, work.query_len, work.decode_kv_tokens[kind.window])
            decoding = 0
        if decoding and work.tail_kv and self.alone is not None and not together:
            total += work.tail_kv * self.alone(decoding, work.query_len)
        for kind in self.attention:
            if together and kind.mixed is not None:
                continue
            if decoding:
                total += kind.layers * kind.decode.at(decoding, work.query_len, work.decode_kv_tokens[kind.window])
            if work.prefill_seqs:
                total += kind.prompts(work)
        return total
