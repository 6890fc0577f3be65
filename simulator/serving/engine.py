"""One replica's engine, step by step: queue, batch, KV blocks, preemption, prompts in chunks, drafts, tokens.

The rules are written once, as one reads them in a serving engine's scheduler, and Cython compiles this very file (its
pure-Python mode; ``simulator.serving.compiled`` says which of the two runs). Interpreted it gives the same results, bit
for bit, and is what the tests of the rules and the oracle of the compiled engine run.

The life of a request: ``Engine.collect`` puts it in the queue, ``Scheduler.plan`` gives it blocks and tokens of a step,
``Prices.seconds`` says how long the step lasts, ``Engine.commit`` hands out its tokens and lets it go at the last.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from typing import Any

import numpy as np

from hwprofiles import tape
from simulator.serving.host_cache import exposed_load_s
from simulator.speculation import Batch
from simulator.timing import StepWork, causal_pairs

try:
    import cython
except ImportError:  # nothing is compiled here; the names only say types
    from simulator.serving import plain as cython
if cython.compiled:
    from cython.cimports.libc.math import ceil, exp, isnan, log, pow
else:
    from math import ceil, exp, isnan, log, pow

SOURCE = "interpreted"
"""The compiled module holds the checksum of this file in its place."""

NEW_TOKEN_RATIO = 0.7
"""Share of the output still to come that SGLang keeps room for (``SGLANG_INIT_NEW_TOKEN_RATIO``)."""
MERGED_STEPS = cython.declare(cython.longlong, 64)
"""Where step rows are many, so many consecutive decode steps of one unchanged batch share one."""
BUFFERED_ROWS = cython.declare(cython.longlong, 1024)
MANY = cython.declare(cython.longlong, 1 << 62)
GOLDEN = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: products with it spread over all bits."""
ALL_BITS = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
PROGRESS_EVERY = cython.declare(cython.longlong, 256)
"""Requests that end between two words on progress."""

TICKS_PER_S = cython.declare(cython.double, 2.0**40)
EXACT_S = cython.declare(cython.double, 2.0**13)
TO_WHOLE = cython.declare(cython.double, 1.5 * 2.0**52)
"""Added and taken away again it rounds a double below 2^51 to a whole number, half to even, as ``round`` does."""
NAN = cython.declare(cython.double, float("nan"))
INFINITE = cython.declare(cython.double, float("inf"))


@cython.exceptval(-1, check=True)
@cython.cfunc
def _on_grid(seconds: cython.double) -> cython.double:
    """A step's seconds in whole ticks of simulated time; see ``simulator.serving.clock``."""
    ticks: cython.double = seconds * TICKS_PER_S
    if ticks < 2.0**51:
        return (ticks + TO_WHOLE - TO_WHOLE) / TICKS_PER_S
    return round(ticks) / TICKS_PER_S


@cython.exceptval(-1, check=True)
@cython.cfunc
def _by_clock(now: cython.double, seconds: cython.double) -> cython.double:
    """A step's seconds as simulated time counts them; see ``simulator.serving.clock``."""
    end: cython.double = now + seconds
    return seconds if end <= EXACT_S else end - now


@cython.final
@cython.no_gc
@cython.cclass
class Sequence:
    """One request in a queue or in the batch: how far its cache and its answer have come.

    What every step looks at stands first.
    """

    computed_tokens = cython.declare(cython.longlong, visibility="public")
    """Tokens whose KV is in the cache."""
    generated_tokens = cython.declare(cython.longlong, visibility="public")
    output_tokens = cython.declare(cython.longlong, visibility="public")
    blocks = cython.declare(cython.longlong, visibility="public")
    last_token_s = cython.declare(cython.double, visibility="public")
    """When its latest token was delivered; NaN before the first."""
    decoding = cython.declare(cython.bint, visibility="public")
    """The prompt (and what was generated before a preemption) is in the cache."""
    in_flight = cython.declare(cython.longlong, visibility="public")
    """Batches in a pipeline that it is part of."""
    index = cython.declare(cython.longlong, visibility="public")
    input_tokens = cython.declare(cython.longlong, visibility="public")
    priority = cython.declare(cython.longlong, visibility="public")
    """Lower goes first, where the scheduler asks."""
    arrival_s = cython.declare(cython.double, visibility="public")
    hash_blocks = cython.declare(cython.longlong, visibility="public")
    """Prefix-cache hash blocks that it holds, from the first on."""
    cached_tokens = cython.declare(cython.longlong, visibility="public")
    """Prompt tokens found in the prefix cache when it first ran; -1 before."""
    host_tokens = cython.declare(cython.longlong, visibility="public")
    """Of these, tokens that came from host memory."""
    verify_steps = cython.declare(cython.longlong, visibility="public")
    """Verify steps so far; draws of the acceptance sampler already used."""
    drafter_tokens = cython.declare(cython.longlong, visibility="public")
    """Tokens whose KV is in the drafter's cache; kept only where a policy lets the drafter rest."""
    swapped_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks of it in host memory."""
    ready_s = cython.declare(cython.double, visibility="public")
    """When its KV arrived from another replica."""
    group = cython.declare(cython.longlong, visibility="public")
    """Attention group that serves it."""

    def __init__(
        self,
        index: cython.longlong,
        input_tokens: cython.longlong,
        output_tokens: cython.longlong,
        priority: cython.longlong = 0,
        arrival_s: cython.double = 0.0,
    ) -> None:
        self.index = index
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.priority = priority
        self.arrival_s = arrival_s
        self.generated_tokens = 0
        self.computed_tokens = 0
        self.blocks = 0
        self.hash_blocks = 0
        self.cached_tokens = -1
        self.host_tokens = 0
        self.in_flight = 0
        self.decoding = False
        self.last_token_s = NAN
        self.verify_steps = 0
        self.drafter_tokens = 0
        self.swapped_blocks = 0
        self.ready_s = 0.0
        self.group = 0

    def restarted(self) -> Sequence:
        """The same request with what it has delivered and nothing in any cache: all of it is computed again."""
        again = Sequence(self.index, self.input_tokens, self.output_tokens, self.priority, self.arrival_s)
        again.generated_tokens = self.generated_tokens
        again.cached_tokens = self.cached_tokens
        again.last_token_s = self.last_token_s
        again.verify_steps = self.verify_steps
        return again

    @property
    def known_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.input_tokens + self.generated_tokens

    @property
    def remaining_tokens(self) -> int:
        """Tokens still to generate."""
        return self.output_tokens - self.generated_tokens


@cython.cfunc
def _drop(sequences: list[Any], sequence: Sequence) -> None:
    """Take a sequence out of a list that holds it."""
    place: cython.longlong = 0
    while sequences[place] is not sequence:
        place += 1
    del sequences[place]


@cython.final
@cython.cclass
class StepPlan:
    """What one engine step does."""

    chunks = cython.declare(list, visibility="public")
    """(Sequence in prefill, its tokens in this step)."""
    decodes = cython.declare(list, visibility="public")
    padding = cython.declare(list, visibility="public")
    """Finished sequences that a static batch still computes."""
    counted: cython.longlong
    """Of ``decodes``, those in the two counts below."""
    cached: cython.longlong
    """Tokens in their caches."""
    least: cython.longlong
    """Fewest tokens that any of them has still to generate."""
    blocks_out = cython.declare(cython.longlong, visibility="public")
    """KV blocks copied to host memory before the step."""
    blocks_in = cython.declare(cython.longlong, visibility="public")
    """KV blocks copied back from host memory before the step."""
    parts = cython.declare(list, visibility="public")
    """The plans of attention groups, of which this one is the sum; empty where there is one group."""

    def __init__(self) -> None:
        self.parts = []
        self.chunks = []
        self.decodes = []
        self.padding = []
        self.counted = self.cached = 0
        self.least = MANY
        self.blocks_out = 0
        self.blocks_in = 0

    @cython.cfunc
    def count(self) -> None:
        """Take in the decoding sequences that are not counted yet; all of them again where some were taken out."""
        sequence: Sequence
        if self.counted > len(self.decodes):
            self.counted = self.cached = 0
            self.least = MANY
        while self.counted < len(self.decodes):
            sequence = cython.cast(Sequence, self.decodes[self.counted])
            self.cached += sequence.computed_tokens
            self.least = min(self.least, sequence.output_tokens - sequence.generated_tokens)
            self.counted += 1

    @cython.ccall
    def leave(self) -> None:
        """The batch has left a pipeline; a prompt is done when none of its chunks is in flight any more."""
        sequence: Sequence
        place: cython.longlong
        for place in range(len(self.decodes)):
            sequence = cython.cast(Sequence, self.decodes[place])
            sequence.in_flight -= 1
        for sequence, _ in self.chunks:
            sequence.in_flight -= 1
        self.chunks = [(sequence, 0) for sequence, _ in self.chunks if not sequence.in_flight]

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)


@cython.final
@cython.cclass
class Work:
    """What one engine step computes: the fields of ``StepWork``, with an entry per attention window in each column.

    Args:
        windows: attention windows of the timing model; None = full attention.
    """

    windows: cython.longlong[::1]
    """-1 = full attention."""
    kinds: cython.longlong
    """Number of windows."""
    prefill_seqs: cython.longlong
    prefill_tokens: cython.longlong
    prefill_pairs: cython.longlong[::1]
    prefill_kv_tokens: cython.longlong[::1]
    sampled_prefills: cython.longlong
    sampled_kv_tokens: cython.longlong[::1]
    decode_seqs: cython.longlong
    query_len: cython.longlong
    decode_kv_tokens: cython.longlong[::1]
    longest_kv: cython.longlong
    tail_kv: cython.double
    dp_imbalance: cython.double
    """Tokens of all attention groups over those counted here; 0 where there is one group."""
    slowest = cython.declare(object, visibility="public")
    """What the slowest attention group computes: the most of any group, of everything; None where there is one."""
    scratch: Any

    def __init__(self, windows: tuple[Any, ...]) -> None:
        none = [0] * len(windows)
        self.slowest = self.scratch = None
        self.windows = array("q", [-1 if window is None else window for window in windows])
        self.kinds = len(windows)
        self.prefill_pairs = array("q", none)
        self.prefill_kv_tokens = array("q", none)
        self.sampled_kv_tokens = array("q", none)
        self.decode_kv_tokens = array("q", none)
        self.prefill_seqs = self.prefill_tokens = self.sampled_prefills = self.decode_seqs = self.longest_kv = 0
        self.query_len = 1
        self.tail_kv = self.dp_imbalance = 0.0

    @cython.ccall
    def measure(self, plan: StepPlan, query_len: cython.longlong, longest: cython.longlong) -> None:
        """Take in a plan; call before the step's tokens are committed.

        Args:
            plan: of the step.
            query_len: tokens of a decoding sequence.
            longest: how many of the longest decoding sequences timing requests.
        """
        sequence: Sequence
        tokens: cython.longlong
        w: cython.longlong
        after: cython.longlong
        window: cython.longlong
        sampled: cython.bint
        if plan.parts:
            self._measure_slowest(plan, query_len, longest)
        self.prefill_seqs = len(plan.chunks)
        self.prefill_tokens = self.sampled_prefills = 0
        for w in range(self.kinds):
            self.prefill_pairs[w] = self.prefill_kv_tokens[w] = self.sampled_kv_tokens[w] = 0
        for sequence, tokens in plan.chunks:
            self.prefill_tokens += tokens
            after = sequence.computed_tokens + tokens
            sampled = after == sequence.input_tokens + sequence.generated_tokens
            self.sampled_prefills += sampled
            for w in range(self.kinds):
                window = self.windows[w]
                if window < 0:
                    self.prefill_pairs[w] += tokens * sequence.computed_tokens + tokens * (tokens + 1) // 2
                    self.prefill_kv_tokens[w] += after
                    self.sampled_kv_tokens[w] += after + 1 if sampled else 0
                else:
                    self.prefill_pairs[w] += causal_pairs(tokens, sequence.computed_tokens, window)
                    self.prefill_kv_tokens[w] += min(after, window + tokens - 1)
                    self.sampled_kv_tokens[w] += min(after + 1, window) if sampled else 0
        self.query_len = query_len
        self.decode_seqs = len(plan.decodes) + len(plan.padding)
        plan.count()
        for w in range(self.kinds):
            if self.windows[w] < 0:
                self.decode_kv_tokens[w] = plan.cached + len(plan.decodes) * query_len
            else:
                self.decode_kv_tokens[w] = self._keys(plan.decodes, w)
            if plan.padding:
                self.decode_kv_tokens[w] += self._keys(plan.padding, w)
        self.longest_kv = 0
        self.tail_kv = 0.0
        if longest and self.decode_seqs:
            batch = [one.computed_tokens + query_len for one in [*plan.decodes, *plan.padding]]
            contexts = sorted(batch, reverse=True)[:longest]
            self.longest_kv = contexts[0]
            self.tail_kv = (len(contexts) * contexts[0] - sum(contexts)) / len(contexts)

    @cython.cfunc
    def _measure_slowest(self, plan: StepPlan, query_len: cython.longlong, longest: cython.longlong) -> None:
        """Take in what every attention group waits for: groups meet at the experts of each layer."""
        part: StepPlan
        slowest: Work
        tokens: cython.longlong = 0
        slowest_tokens: cython.longlong
        if self.slowest is None:
            windows = tuple([None if window < 0 else window for window in self.windows])
            self.slowest, self.scratch = Work(windows), Work(windows)
        slowest = self.slowest
        one: Work = self.scratch
        for number, part in enumerate(plan.parts):
            one.measure(part, query_len, longest)
            tokens += one.prefill_tokens + one.decode_seqs * one.query_len
            slowest._raise_to(one, number == 0)
        slowest_tokens = slowest.prefill_tokens + slowest.decode_seqs * slowest.query_len
        slowest.dp_imbalance = tokens / slowest_tokens if slowest_tokens else 1.0

    @cython.cfunc
    def _raise_to(self, other: Work, first: cython.bint) -> None:
        """Be at least as much as ``other``, in everything; just as much if it is the first."""
        w: cython.longlong
        if first:
            self.prefill_seqs = self.prefill_tokens = self.sampled_prefills = self.decode_seqs = self.longest_kv = 0
            self.tail_kv = 0.0
            for w in range(self.kinds):
                self.prefill_pairs[w] = self.prefill_kv_tokens[w] = 0
                self.sampled_kv_tokens[w] = self.decode_kv_tokens[w] = 0
        self.prefill_seqs = max(self.prefill_seqs, other.prefill_seqs)
        self.prefill_tokens = max(self.prefill_tokens, other.prefill_tokens)
        self.sampled_prefills = max(self.sampled_prefills, other.sampled_prefills)
        self.decode_seqs = max(self.decode_seqs, other.decode_seqs)
        self.query_len = other.query_len
        self.longest_kv = max(self.longest_kv, other.longest_kv)
        self.tail_kv = max(self.tail_kv, other.tail_kv)
        for w in range(self.kinds):
            self.prefill_pairs[w] = max(self.prefill_pairs[w], other.prefill_pairs[w])
            self.prefill_kv_tokens[w] = max(self.prefill_kv_tokens[w], other.prefill_kv_tokens[w])
            self.sampled_kv_tokens[w] = max(self.sampled_kv_tokens[w], other.sampled_kv_tokens[w])
            self.decode_kv_tokens[w] = max(self.decode_kv_tokens[w], other.decode_kv_tokens[w])

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _keys(self, sequences: list[Any], w: cython.longlong) -> cython.longlong:
        """Keys that decoding sequences read within a window."""
        place: cython.longlong
        sequence: Sequence
        total: cython.longlong = 0
        most: cython.longlong = MANY if self.windows[w] < 0 else self.windows[w] + self.query_len - 1
        for place in range(len(sequences)):
            sequence = cython.cast(Sequence, sequences[place])
            total += min(sequence.computed_tokens + self.query_len, most)
        return total

    def step_work(self) -> StepWork[int]:
        """The same as timing models take it: of several attention groups, what the slowest does."""
        if self.slowest is not None:
            of_group: StepWork[int] = self.slowest.step_work()
            return of_group
        return StepWork(
            prefill_seqs=self.prefill_seqs,
            prefill_tokens=self.prefill_tokens,
            prefill_pairs=tuple([self.prefill_pairs[w] for w in range(self.kinds)]),
            prefill_kv_tokens=tuple([self.prefill_kv_tokens[w] for w in range(self.kinds)]),
            sampled_prefills=self.sampled_prefills,
            sampled_kv_tokens=tuple([self.sampled_kv_tokens[w] for w in range(self.kinds)]),
            decode_seqs=self.decode_seqs,
            query_len=self.query_len,
            decode_kv_tokens=tuple([self.decode_kv_tokens[w] for w in range(self.kinds)]),
            longest_kv=self.longest_kv,
            tail_kv=self.tail_kv,
            dp_imbalance=self.dp_imbalance,
        )


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
    drift_start: cython.double
    cells: dict[Any, Any]
    usual: Thresholds
    by_class: cython.bint
    """Whether the class of each request is given; else it is drawn."""
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
        self.cells = {-1: self.usual}
        self.key, self.class_key = sampler.key, sampler.class_key
        self.by_class = sampler.class_of is not None
        self.class_of = np.ascontiguousarray(sampler.class_of if self.by_class else [0], dtype=np.int64)
        self.first_mix, self.second_mix = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def accepted(self, request: cython.longlong, step: cython.longlong, context: cython.longlong) -> cython.longlong:
        """Draft tokens that a request accepts in its ``step``-th verify step, with so many tokens in its cache."""
        table: Thresholds = self.usual
        row: cython.longlong = 0
        taken: cython.longlong = self.positions
        place: cython.longlong
        bits: cython.ulonglong
        if self.drift is not None:
            table = self._of_cell(self.drift.cell(context))
        if self.by_class:
            row = self.class_of[request]
        elif table.classes > 1:
            bits = self._bits(self.class_key, request, 0)
            row = int((bits >> 11) * 2.0**-53 * table.classes)
        bits = self._bits(self.key, request, step)
        for place in range(self.positions):
            if table.values[row, place] <= bits:
                taken -= 1
        return taken

    @cython.cfunc
    def _of_cell(self, cell: Any) -> Thresholds:
        table = self.cells.get(cell)
        if table is None:
            table = self.cells[cell] = Thresholds(self.sampler.thresholds(cell))
        return table

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _bits(self, key: cython.ulonglong, stream: cython.ulonglong, position: cython.ulonglong) -> cython.ulonglong:
        """64 random bits at one position of a stream; see ``simulator.speculation.draws``."""
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
class HashBlocks:
    """Hash table of prefix hash blocks, with a few numbers for each, and optionally a list of them in order of use.

    Open addressing with linear probing, at most half full.
    """

    used = cython.declare(cython.longlong, visibility="public")
    oldest: cython.longlong
    """The slot used longest ago, of those in order; -1 for none."""
    latest: cython.longlong
    capacity: cython.longlong
    """Slots."""
    _places: cython.longlong[::1]
    """The slot in each place of the hash table; -1 where it is empty."""
    _shift: cython.longlong
    _free: cython.longlong
    """A slot that is empty, from which ``after`` leads to the others; -1 for none."""
    hash_block: cython.longlong[::1]
    blocks: cython.longlong[::1]
    holders: cython.longlong[::1]
    """Requests that hold it."""
    seen: cython.longlong[::1]
    """The latest walk that came by."""
    before: cython.longlong[::1]
    after: cython.longlong[::1]
    """The slots used next before and after it."""

    def __init__(self) -> None:
        none = array("q")
        self.hash_block = self.blocks = self.holders = self.seen = self.before = self.after = none
        self.used = self.capacity = 0
        self.oldest = self.latest = self._free = -1
        self._grow()

    @cython.cfunc
    def _grow(self) -> None:
        """Twice as many slots; all hash blocks find their place anew."""
        slot: cython.longlong
        capacity: cython.longlong = max(64, 2 * self.capacity)
        more = bytes(8 * (capacity - self.capacity))
        self.hash_block = array("q", bytes(self.hash_block) + more)
        self.blocks = array("q", bytes(self.blocks) + more)
        self.holders = array("q", bytes(self.holders) + more)
        self.seen = array("q", bytes(self.seen) + more)
        self.before = array("q", bytes(self.before) + more)
        self.after = array("q", bytes(self.after) + more)
        self._places = array("q", [-1]) * (2 * capacity)
        self._shift = 64 - int(capacity).bit_length()
        full: cython.longlong = self.capacity
        self.capacity = capacity
        for slot in range(full):
            self._places[self._empty_place(self.hash_block[slot])] = slot
        for slot in range(full, capacity):
            self.after[slot] = self._free
            self._free = slot

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _place(self, hash_block: cython.ulonglong) -> cython.longlong:
        """The preferred slot of a hash block; eight consecutive ones share a cache line."""
        return ((((hash_block >> 3) * GOLDEN) & ALL_BITS) >> self._shift) & ~7 | (hash_block & 7)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _empty_place(self, hash_block: cython.longlong) -> cython.longlong:
        """The first empty place for a hash block that stands nowhere."""
        place: cython.longlong = self._place(hash_block)
        while self._places[place] >= 0:
            place = (place + 1) & (2 * self.capacity - 1)
        return place

    @cython.exceptval(-2, check=True)
    @cython.ccall
    def find(self, hash_block: cython.longlong) -> cython.longlong:
        """The slot of a hash block; -1 where it is not here."""
        slot: cython.longlong
        place: cython.longlong = self._place(hash_block)
        while True:
            slot = self._places[place]
            if slot < 0 or self.hash_block[slot] == hash_block:
                return slot
            place = (place + 1) & (2 * self.capacity - 1)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def put(self, hash_block: cython.longlong, blocks: cython.longlong) -> cython.longlong:
        """A slot for a hash block that is not here yet; not in the order of use."""
        if self._free < 0:
            self._grow()
        slot: cython.longlong = self._free
        self._free = self.after[slot]
        self.hash_block[slot], self.blocks[slot], self.holders[slot], self.seen[slot] = hash_block, blocks, 0, 0
        self._places[self._empty_place(hash_block)] = slot
        self.used += 1
        return slot

    @cython.cfunc
    def remove(self, slot: cython.longlong) -> None:
        """A hash block that is not in the order of use leaves; what stood behind its place moves up."""
        last: cython.longlong = 2 * self.capacity - 1
        hole: cython.longlong = self._place(self.hash_block[slot])
        while self._places[hole] != slot:
            hole = (hole + 1) & last
        place: cython.longlong = (hole + 1) & last
        while self._places[place] >= 0:
            wanted: cython.longlong = self._place(self.hash_block[self._places[place]])
            if ((place - wanted) & last) >= ((place - hole) & last):
                self._places[hole] = self._places[place]
                hole = place
            place = (place + 1) & last
        self._places[hole] = -1
        self.after[slot] = self._free
        self._free = slot
        self.used -= 1

    @cython.cfunc
    def line_up(self, slot: cython.longlong) -> None:
        """The latest in the order of use from now on, where it was not in it."""
        self.before[slot], self.after[slot] = self.latest, -1
        if self.latest < 0:
            self.oldest = slot
        else:
            self.after[self.latest] = slot
        self.latest = slot

    @cython.cfunc
    def step_out(self, slot: cython.longlong) -> None:
        """No longer in the order of use."""
        before: cython.longlong = self.before[slot]
        after: cython.longlong = self.after[slot]
        if before < 0:
            self.oldest = after
        else:
            self.after[before] = after
        if after < 0:
            self.latest = before
        else:
            self.before[after] = before


@cython.final
@cython.cclass
class Prompts:
    """The prefix hash blocks of requests, one request at a time.

    Args:
        hashes: ``PrefixHashes`` of all requests; without any, they are computed one request after the other.
    """

    ids: cython.const[cython.longlong][::1]  # type: ignore[valid-type]
    first: cython.longlong
    """The hash blocks of the request in hand are ``ids[first:end]``."""
    end: cython.longlong
    _offsets: cython.const[cython.longlong][::1]  # type: ignore[valid-type]
    _source: Any

    def __init__(self, hashes: Any) -> None:
        self._source = None if len(hashes) else hashes
        self.ids, self._offsets = memoryview(hashes.ids), memoryview(hashes.offsets)
        self.first = self.end = 0

    @cython.cfunc
    def open(self, request: cython.longlong) -> None:
        """Take a request in hand."""
        if self._source is None:
            self.first, self.end = self._offsets[request], self._offsets[request + 1]
        else:
            self.ids = memoryview(self._source.of(request))
            self.first, self.end = 0, len(self.ids)


@cython.cclass
class HolderIndex:
    """Which replicas hold each hash block, as bits: one walk tells of all replicas how much of a prompt they hold.

    Args:
        hashes: prefix hashes of all requests.
    """

    _prompts: Prompts
    _hash_blocks: HashBlocks
    _marks: cython.ulonglong[::1]
    """A bit per replica, in ``_words`` words of each slot."""
    _words: cython.longlong
    _walk: cython.longlong

    def __init__(self, hashes: Any) -> None:
        self._prompts = Prompts(hashes)
        self._hash_blocks = HashBlocks()
        self._words, self._walk = 1, 0
        self._marks = array("Q", bytes(8 * self._hash_blocks.capacity))

    @cython.ccall
    def add(self, hash_block: cython.longlong, replica: cython.longlong) -> None:
        """A replica holds a hash block from now on."""
        word: cython.longlong
        if replica >= 64 * self._words:
            self._widen(replica // 64 + 1)
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0:
            slot = self._hash_blocks.put(hash_block, 0)
            if self._hash_blocks.capacity * self._words > len(self._marks):
                self._marks = array("Q", bytes(self._marks) + bytes(len(self._marks) * 8))
            for word in range(self._words):
                self._marks[slot * self._words + word] = 0
        self._marks[slot * self._words + replica // 64] |= cython.cast(cython.ulonglong, 1) << (replica % 64)

    @cython.cfunc
    def _widen(self, words: cython.longlong) -> None:
        """Room for more replicas."""
        wider = np.zeros((self._hash_blocks.capacity, words), dtype=np.uint64)
        wider[:, : self._words] = np.asarray(self._marks).reshape(self._hash_blocks.capacity, self._words)
        self._marks, self._words = array("Q", wider.tobytes()), words

    @cython.ccall
    def drop(self, hash_block: cython.longlong, replica: cython.longlong) -> None:
        """A replica holds a hash block no longer."""
        word: cython.longlong
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0 or replica >= 64 * self._words:
            return
        self._marks[slot * self._words + replica // 64] &= ~(cython.cast(cython.ulonglong, 1) << (replica % 64))
        for word in range(self._words):
            if self._marks[slot * self._words + word]:
                return
        self._hash_blocks.remove(slot)

    def drop_all(self, replica: int) -> None:
        """A replica has lost everything."""
        slot: cython.longlong
        places = np.asarray(self._hash_blocks._places)
        for slot in places[places >= 0].tolist():
            self.drop(self._hash_blocks.hash_block[slot], replica)

    def leading(self, request: cython.longlong, replicas: list[int]) -> list[int]:
        """How many of the first hash blocks of a request each of the replicas holds without a gap; none comes twice."""
        position: cython.longlong
        slot: cython.longlong
        word: cython.longlong
        bit: cython.longlong
        replica: cython.longlong
        known: cython.bint
        lost: cython.ulonglong
        mark: cython.ulonglong
        left: cython.longlong = len(replicas)
        self._prompts.open(request)
        hash_blocks: cython.longlong = self._prompts.end - self._prompts.first
        if left and max(replicas) >= 64 * self._words:
            self._widen(max(replicas) // 64 + 1)
        holding: cython.ulonglong[::1] = array("Q", bytes(8 * self._words))
        counts: cython.longlong[::1] = array("q", [hash_blocks]) * (64 * self._words)
        for replica in replicas:
            holding[replica // 64] |= cython.cast(cython.ulonglong, 1) << (replica % 64)
        self._walk += 1
        for position in range(hash_blocks):
            if not left:
                break
            slot = self._hash_blocks.find(self._prompts.ids[self._prompts.first + position])
            known = slot >= 0 and self._hash_blocks.seen[slot] != self._walk
            if known:
                self._hash_blocks.seen[slot] = self._walk
            for word in range(self._words):
                mark = self._marks[slot * self._words + word] if known else 0
                lost = holding[word] & ~mark
                holding[word] &= mark
                if not lost:
                    continue
                for bit in range(64):
                    if (lost >> bit) & 1:
                        counts[64 * word + bit] = position
                        left -= 1
        return [counts[replica] for replica in replicas]


@cython.final
@cython.cclass
class SentPrefixes(HolderIndex):
    """What a router has sent where: a table of hash blocks for each replica, the least recently used first out."""

    _tables: dict[Any, Any]

    def __init__(self, hashes: Any) -> None:
        HolderIndex.__init__(self, hashes)
        self._tables = {}

    def size(self, replica: int) -> int:
        """HashBlocks in a replica's table."""
        size: int = self._tables[replica].used if replica in self._tables else 0
        return size

    def forget(self, replica: int) -> None:
        """A replica has lost its cache."""
        if self._tables.pop(replica, None) is not None:
            self.drop_all(replica)

    def record(self, request: cython.longlong, replica: cython.longlong, most: cython.longlong) -> None:
        """A request goes to a replica, whose table holds ``most`` hash blocks."""
        slot: cython.longlong
        hash_block: cython.longlong
        position: cython.longlong
        table: HashBlocks
        if replica not in self._tables:
            self._tables[replica] = HashBlocks()
        table = self._tables[replica]
        self._prompts.open(request)
        position = self._prompts.end
        while position > self._prompts.first:
            position -= 1
            hash_block = self._prompts.ids[position]
            slot = table.find(hash_block)
            if slot < 0:
                self.add(hash_block, replica)
                slot = table.put(hash_block, 0)
            else:
                table.step_out(slot)
            table.line_up(slot)
        while table.used > most:
            slot = table.oldest
            table.step_out(slot)
            table.remove(slot)
            self.drop(table.hash_block[slot], replica)


@cython.final
@cython.cclass
class HostCache:
    """HashBlocks that the chip has evicted, in host memory, in order of use.

    A hash block that comes back to the chip stays here too, so that its next eviction copies nothing (vLLM's
    ``OffloadingConnector`` keeps blocks on the CPU likewise).

    Args:
        num_blocks: room for so many blocks.
    """

    _capacity: cython.longlong
    _hash_blocks: HashBlocks
    used_blocks = cython.declare(cython.longlong, visibility="public")
    peak_blocks = cython.declare(cython.longlong, visibility="public")
    offloaded_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied here so far."""
    loaded_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks copied back so far."""

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._hash_blocks = HashBlocks()
        self.used_blocks = self.peak_blocks = self.offloaded_blocks = self.loaded_blocks = 0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def get(self, hash_block: cython.longlong) -> cython.longlong:
        """Blocks of a hash block; 0 where it is not here."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        return self._hash_blocks.blocks[slot] if slot >= 0 else 0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def fresh(self, hash_block: cython.longlong, walk: cython.longlong) -> cython.longlong:
        """Blocks of a hash block that a walk along a prompt has not come by before; else 0."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot < 0 or self._hash_blocks.seen[slot] == walk:
            return 0
        self._hash_blocks.seen[slot] = walk
        return self._hash_blocks.blocks[slot]

    @cython.ccall
    def put(self, hash_block: cython.longlong, blocks: cython.longlong) -> None:
        """The chip evicts a hash block: keep it as the latest, and drop the oldest until all fit."""
        oldest: cython.longlong
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        if slot >= 0:
            self._hash_blocks.step_out(slot)
            self._hash_blocks.line_up(slot)
            return
        if blocks > self._capacity:
            return
        while self.used_blocks + blocks > self._capacity:
            oldest = self._hash_blocks.oldest
            self.used_blocks -= self._hash_blocks.blocks[oldest]
            self._hash_blocks.step_out(oldest)
            self._hash_blocks.remove(oldest)
        self._hash_blocks.line_up(self._hash_blocks.put(hash_block, blocks))
        self.used_blocks += blocks
        self.peak_blocks = max(self.peak_blocks, self.used_blocks)
        self.offloaded_blocks += blocks

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def load(self, hash_block: cython.longlong) -> cython.longlong:
        """A hash block goes back to the chip; returns its blocks."""
        slot: cython.longlong = self._hash_blocks.find(hash_block)
        assert slot >= 0
        self._hash_blocks.step_out(slot)
        self._hash_blocks.line_up(slot)
        self.loaded_blocks += self._hash_blocks.blocks[slot]
        return self._hash_blocks.blocks[slot]


@cython.cclass
class NoPrefixCache:
    """Stands in where nothing is cached."""

    shared_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that more than one request counts as its own: a hash block held by r requests counts r - 1 times."""
    idle_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks that are cached and that no request uses."""
    host_tokens = cython.declare(cython.longlong, visibility="public")
    """Of the tokens that the latest match spares, those that come from host memory."""

    def __init__(self) -> None:
        self.shared_blocks = self.idle_blocks = self.host_tokens = 0

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[Any, ...]:
        """Nothing is found."""
        return 0, 0, 0

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def spared(self, request: cython.longlong, whole: cython.longlong) -> cython.longlong:
        """Nothing is spared."""
        return 0

    @cython.ccall
    def hold(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing to hold."""

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def add(
        self, request: cython.longlong, hash_blocks: cython.longlong, computed_tokens: cython.longlong
    ) -> cython.longlong:
        """Nothing is kept."""
        return 0

    @cython.ccall
    def release(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing was held."""

    @cython.ccall
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """Nothing is kept."""

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Nothing to evict."""

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def take_loaded(self) -> cython.longlong:
        """Nothing comes from host memory."""
        return 0


@cython.cclass
class PrefixCache(NoPrefixCache):
    """HashBlocks of cached prompt, shared by the running requests and kept in LRU order when none of them needs them.

    A hash block is one hash of the trace: ``block_tokens`` prompt tokens (fewer at the end of a prompt), in whole
    engine blocks. Blocks that no request uses are evicted, oldest first, when running requests need their room; a
    request's later hash blocks before its earlier ones, as vLLM frees blocks (tail first). A hash block leaves the
    cache as a whole. What a request holds is always the start of its hash blocks, so their number says which.

    Args:
        hashes: prefix hashes of all requests.
        block_size: tokens per engine block; divides ``hashes.block_tokens``.
        input_tokens: prompt lengths of all requests.
        output_tokens: answer lengths, where ``hashes`` go on through the answers and cover whole hash blocks alone;
            None where they end with the prompt.
        host: where evicted hash blocks go; None drops them.
        index: index of the whole hash blocks held here; None without such a router.
        replica: number of the replica, for the index.
        page_tokens: tokens after which a recurrent state is kept, the only places where a hit may end; 0 = those of a
            block.
    """

    _prompts: Prompts
    _hash_blocks: HashBlocks
    _host: HostCache | None
    _index: HolderIndex | None
    _replica: cython.longlong
    _input_tokens: cython.longlong[::1]
    _output_tokens: cython.longlong[::1]
    _answers: cython.bint
    _block_size: cython.longlong
    _page_tokens: cython.longlong
    _hash_block_tokens: cython.longlong
    _whole: cython.longlong
    """Blocks of a whole hash block."""
    _loaded: cython.longlong
    _walks: cython.longlong
    _matched: cython.longlong
    """Of the latest walk: hash blocks found, their blocks, those of them on the chip, and those in use there."""
    _blocks: cython.longlong
    _here: cython.longlong
    _in_use: cython.longlong

    def __init__(
        self,
        hashes: Any,
        block_size: int,
        input_tokens: Any,
        output_tokens: Any = None,
        host: HostCache | None = None,
        index: HolderIndex | None = None,
        replica: int = 0,
        page_tokens: int = 0,
    ) -> None:
        NoPrefixCache.__init__(self)
        self._prompts = Prompts(hashes)
        self._hash_blocks = HashBlocks()
        self._host, self._index, self._replica = host, index, replica
        self._input_tokens = input_tokens
        self._answers = output_tokens is not None
        self._output_tokens = input_tokens if output_tokens is None else output_tokens
        self._block_size, self._hash_block_tokens = block_size, hashes.block_tokens
        self._page_tokens = page_tokens or block_size
        self._whole = self._hash_block_tokens // self._block_size
        self._loaded = self._walks = self._matched = self._blocks = self._here = self._in_use = 0

    @cython.ccall
    def match(self, request: cython.longlong, tokens: cython.longlong) -> tuple[Any, ...]:
        """The cached start of a request's prompt; hash blocks in host memory continue the start that is on the chip.

        Args:
            request: index of the request.
            tokens: tokens it has to put in the cache; the last of them is always computed, as its logits are needed.

        Returns:
            HashBlocks found, tokens they spare, and how many of their blocks running requests hold already.
        """
        prompt_blocks: cython.longlong = self._input_tokens[request] // self._block_size
        self._walk(request, 0, prompt_blocks)
        spared: cython.longlong = self._spared_tokens(tokens)
        if self._page_tokens > self._block_size:  # tokens behind the last kept state are computed again in other blocks
            self._walk(request, 0, -(-spared // self._block_size))
        self.host_tokens = max(0, spared - self._here * self._block_size)
        return self._matched, spared, self._in_use

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def spared(self, request: cython.longlong, whole: cython.longlong) -> cython.longlong:
        """The tokens that ``match`` spares a whole prompt, of which so many hash blocks at the start are known to be
        whole and on the chip."""
        prompt: cython.longlong = self._input_tokens[request]
        prompt_blocks: cython.longlong = prompt // self._block_size
        self._walk(request, min(whole, prompt_blocks // self._whole), prompt_blocks)
        return self._spared_tokens(prompt)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _spared_tokens(self, tokens: cython.longlong) -> cython.longlong:
        page: cython.longlong = self._page_tokens  # at whose end a recurrent state is kept
        return min(self._blocks * self._block_size // page, (tokens - 1) // page) * page

    @cython.cfunc
    def _walk(self, request: cython.longlong, whole: cython.longlong, most: cython.longlong) -> None:
        """Find the hash blocks of a request that are cached without a gap, up to ``most`` engine blocks; the first
        ``whole`` are known to be."""
        position: cython.longlong
        earlier: cython.longlong
        slot: cython.longlong
        hash_block: cython.longlong
        size: cython.longlong
        prompts: Prompts = self._prompts
        table: HashBlocks = self._hash_blocks
        prompts.open(request)
        prompt_blocks: cython.longlong = self._input_tokens[request] // self._block_size
        self._walks += 1
        self._matched = whole
        self._blocks = self._here = whole * self._whole
        self._in_use = 0
        for position in range(prompts.first + whole, prompts.end):
            if self._blocks >= most:
                break
            hash_block = prompts.ids[position]
            slot = table.find(hash_block)
            if slot < 0:
                size = 0 if self._host is None else cython.cast(HostCache, self._host).fresh(hash_block, self._walks)
            elif self._here < self._blocks or table.seen[slot] == self._walks:
                break
            else:
                table.seen[slot] = self._walks
                size = table.blocks[slot]
            if not size or self._blocks + size > prompt_blocks:
                break  # the same hash for prompts that differ in length: other tokens
            for earlier in range(prompts.first, prompts.first + whole):
                if prompts.ids[earlier] == hash_block:
                    return
            self._blocks += size
            self._matched += 1
            if slot >= 0:
                self._here += size
                if table.holders[slot]:
                    self._in_use += size

    @cython.cfunc
    def _keep_unit(self, hash_block: cython.longlong, blocks: cython.longlong) -> None:
        """A hash block is on the chip from now on, and one request holds it."""
        slot: cython.longlong = self._hash_blocks.put(hash_block, blocks)
        self._hash_blocks.holders[slot] = 1
        if self._index is not None and blocks == self._whole:
            self._index.add(hash_block, self._replica)

    @cython.ccall
    def hold(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """A request starts to use so many cached hash blocks; those in host memory are copied to blocks that it counts
        as its own."""
        position: cython.longlong
        slot: cython.longlong
        blocks: cython.longlong
        held: HashBlocks = self._hash_blocks
        self._prompts.open(request)
        for position in range(self._prompts.first, self._prompts.first + hash_blocks):
            slot = held.find(self._prompts.ids[position])
            if slot < 0:
                blocks = cython.cast(HostCache, self._host).load(self._prompts.ids[position])
                self._keep_unit(self._prompts.ids[position], blocks)
                self._loaded += blocks
                continue
            if held.holders[slot]:
                self.shared_blocks += held.blocks[slot]
            else:
                held.step_out(slot)
                self.idle_blocks -= held.blocks[slot]
            held.holders[slot] += 1

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def add(
        self, request: cython.longlong, hash_blocks: cython.longlong, computed_tokens: cython.longlong
    ) -> cython.longlong:
        """Prompt hash blocks that are complete once ``computed_tokens`` are in the cache become available to others.

        Args:
            request: index of the request.
            hash blocks: hash blocks it holds so far.
            computed_tokens: tokens of the request in the cache.

        Returns:
            Hash blocks that it holds now. A block that another request has put in the cache meanwhile stays a private
            copy, and so does everything after it.
        """
        prompt: cython.longlong = self._input_tokens[request]
        complete: cython.longlong = min(prompt, computed_tokens)
        if self._answers or complete < prompt:
            complete = complete // self._hash_block_tokens * self._hash_block_tokens
        return self._keep(request, hash_blocks, complete)

    @cython.ccall
    def finish(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """A request has ended: its answer is kept as far as hashes know it, but for the last token, and let go."""
        if self._answers:
            computed: cython.longlong = self._input_tokens[request] + self._output_tokens[request] - 1
            hash_blocks = self._keep(
                request, hash_blocks, computed // self._hash_block_tokens * self._hash_block_tokens
            )
        self.release(request, hash_blocks)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _keep(
        self, request: cython.longlong, hash_blocks: cython.longlong, complete: cython.longlong
    ) -> cython.longlong:
        """The first ``complete`` tokens of a request are in the cache: their hash blocks are, from now on, as far as
        they were not; returns how many it holds."""
        blocks: cython.longlong
        hash_block: cython.longlong
        prompts: Prompts = self._prompts
        if hash_blocks * self._hash_block_tokens >= complete:
            return hash_blocks
        prompts.open(request)
        while prompts.first + hash_blocks < prompts.end:
            blocks = (
                min((hash_blocks + 1) * self._hash_block_tokens, complete) - hash_blocks * self._hash_block_tokens
            ) // self._block_size
            hash_block = prompts.ids[prompts.first + hash_blocks]
            if blocks <= 0 or self._hash_blocks.find(hash_block) >= 0:
                break
            self._keep_unit(hash_block, blocks)
            hash_blocks += 1
        return hash_blocks

    @cython.ccall
    def release(self, request: cython.longlong, hash_blocks: cython.longlong) -> None:
        """A request lets go of its hash blocks."""
        slot: cython.longlong
        held: HashBlocks = self._hash_blocks
        self._prompts.open(request)
        position: cython.longlong = self._prompts.first + hash_blocks
        while position > self._prompts.first:
            position -= 1
            slot = held.find(self._prompts.ids[position])
            held.holders[slot] -= 1
            if held.holders[slot]:
                self.shared_blocks -= held.blocks[slot]
            else:
                held.line_up(slot)
                self.idle_blocks += held.blocks[slot]

    @cython.ccall
    def shrink(self, free_blocks: cython.longlong) -> None:
        """Evict the least recently used hash blocks until the idle ones fit in ``free_blocks``."""
        slot: cython.longlong
        hash_block: cython.longlong
        blocks: cython.longlong
        while self.idle_blocks > free_blocks and self._hash_blocks.oldest >= 0:
            slot = self._hash_blocks.oldest
            hash_block, blocks = self._hash_blocks.hash_block[slot], self._hash_blocks.blocks[slot]
            self._hash_blocks.step_out(slot)
            self._hash_blocks.remove(slot)
            self.idle_blocks -= blocks
            if self._index is not None and blocks == self._whole:
                self._index.drop(hash_block, self._replica)
            if self._host is not None:
                self._host.put(hash_block, blocks)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def take_loaded(self) -> cython.longlong:
        """Blocks copied from host memory since the last time."""
        loaded: cython.longlong = self._loaded
        self._loaded = 0
        return loaded


@cython.cclass
class Scheduler:
    """Waiting queue, batch and block pool of one replica: what all batching rules share.

    Args:
        limits: tokens, sequences, blocks.
        cache: the prefix cache, or its stand-in.
        swap: host memory for preempted sequences; None recomputes them.
    """

    limits = cython.declare(object, visibility="public")
    waiting = cython.declare(object, visibility="public")
    running = cython.declare(list, visibility="public")
    preempted = cython.declare(list, visibility="public")
    """Sequences thrown out by the latest plan."""
    query_len = cython.declare(cython.longlong, visibility="public")
    """Tokens of a decoding sequence in the next step; a policy changes it from step to step."""
    swap = cython.declare(object, visibility="public")
    swapped = cython.declare(object, visibility="public")
    """Sequences in host memory, the first to come back first."""
    swapped_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks in host memory."""
    incoming = cython.declare(list, visibility="public")
    """Sequences whose KV is on its way here, their blocks reserved."""
    ready = cython.declare(object, visibility="public")
    """Sequences whose KV has arrived from another replica, in that order."""
    seen_s = cython.declare(cython.double, visibility="public")
    """Time up to which the next step knows what has arrived."""
    held = cython.declare(list, visibility="public")
    """Sequences whose prompt is done and whose KV waits to be fetched by another replica."""
    cache = cython.declare(NoPrefixCache, visibility="public")
    closed = cython.declare(cython.bint, visibility="public")
    """Whether new requests wait, though there may be room for them."""
    _held_blocks = cython.declare(cython.longlong, visibility="public")
    """Blocks of all running sequences; a block that several share is counted by each."""
    _caching: cython.bint
    _block_size: cython.longlong
    _page_tokens: cython.longlong
    """Tokens for which blocks are allotted together."""
    _num_blocks: cython.longlong
    _watermark: cython.longlong
    _max_num_seqs: cython.longlong
    _budget: cython.longlong
    _chunked: cython.bint
    _reserved: cython.longlong
    """Tokens beyond those in the cache that a decoding sequence has blocks for: a full proposal and the next one."""

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        self.limits = limits
        self.waiting = deque()
        self.running = []
        self.preempted = []
        self.query_len = limits.query_len
        self.swap = swap
        self.swapped = deque()
        self.swapped_blocks = 0
        self.incoming = []
        self.ready = deque()
        self.seen_s = 0.0
        self.held = []
        self.cache = cache
        self.closed = False
        self._caching = isinstance(cache, PrefixCache)
        self._held_blocks = 0
        self._block_size = limits.block_size
        self._page_tokens = limits.page_tokens or limits.block_size
        self._num_blocks = limits.num_blocks
        self._watermark = limits.watermark_blocks
        self._max_num_seqs = limits.max_num_seqs
        self._budget = limits.max_num_batched_tokens
        self._chunked = limits.chunked_prefill
        self._reserved = limits.query_len + limits.lookahead_tokens

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue."""
        self.waiting.append(sequence)

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold, shared ones counted once."""
        return self._used()

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._works())

    @cython.cfunc
    def _works(self) -> cython.bint:
        """Whether there is anything to plan."""
        return bool(self.waiting or self.running or self.ready or self.swapped)

    @cython.cfunc
    def _queued(self) -> cython.longlong:
        """Requests that wait for a place."""
        return len(self.waiting) + len(self.swapped)

    def everything(self) -> list[Sequence]:
        """All sequences that this replica would lose if it failed."""
        return [*self.waiting, *self.running, *self.swapped, *self.incoming, *self.ready, *self.held]

    def take_loaded(self) -> int:
        """Blocks that the latest plan brings from the host's prefix cache."""
        return self.cache.take_loaded()

    def cached_tokens(self, request: int, tokens: int) -> int:
        """Tokens at the start of a request that the prefix cache holds now."""
        tokens_cached: int = self.cache.match(request, tokens)[1]
        return tokens_cached

    def hold(self, sequence: Sequence) -> None:
        """A sequence leaves the batch and keeps its blocks until another replica has fetched them."""
        _drop(self.running, sequence)
        self.held.append(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """The KV of a held sequence has been fetched."""
        _drop(self.held, sequence)
        self._free(sequence)

    def reserve(self, sequence: Sequence) -> int | None:
        """Blocks for a sequence whose KV another replica sends, behind those that wait here already.

        Returns:
            Tokens that the prefix cache spares the transfer, or None when there is no room now.
        """
        if self.waiting or self.swapped:
            return None
        self._evict_idle()
        hash_blocks, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
        blocks = self._blocks(sequence.known_tokens)
        if self._used() + blocks - in_use > self._num_blocks - self._watermark:
            return None
        self.cache.hold(sequence.index, hash_blocks)
        sequence.hash_blocks = hash_blocks
        sequence.blocks = blocks
        self._held_blocks += blocks
        self._evict_idle()
        self.incoming.append(sequence)
        return cached

    def cancel(self, sequence: Sequence) -> None:
        """The KV of an incoming sequence will not come."""
        _drop(self.incoming, sequence)
        self._free(sequence)

    def arrive(self, sequence: Sequence, now: float) -> None:
        """The KV of an incoming sequence is here, but for its last token, which the next step computes."""
        _drop(self.incoming, sequence)
        sequence.ready_s = now
        sequence.computed_tokens = sequence.drafter_tokens = sequence.known_tokens - 1
        self._cache_prompt(sequence, sequence.computed_tokens)
        self.ready.append(sequence)

    @cython.ccall
    def plan(self) -> StepPlan:
        """The next step, its blocks allocated; what is cached and unused makes room for them."""
        plan: StepPlan
        swapped: cython.longlong = self.swapped_blocks
        self.preempted = []
        plan = self._plan()
        plan.blocks_out = self.swapped_blocks + plan.blocks_in - swapped
        self._evict_idle()
        return plan

    @cython.ccall
    def _plan(self) -> StepPlan:
        """What the batching rule puts in the next step. Empty only when there is nothing to do."""
        raise NotImplementedError

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Any]:
        """The batch by whose size a policy chooses: what is running, though a step may leave some of it out."""
        return self.running

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished sequence leaves the batch and gives its blocks back."""
        _drop(self.running, sequence)
        self._end(sequence)

    @cython.cfunc
    def _end(self, sequence: Sequence) -> None:
        """What a sequence has computed may be kept for later ones; its blocks are free."""
        if self._caching:
            self.cache.finish(sequence.index, sequence.hash_blocks)
            sequence.hash_blocks = 0
        self._free(sequence)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _used(self) -> cython.longlong:
        if not self._caching:
            return self._held_blocks
        return self._held_blocks - self.cache.shared_blocks

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _blocks(self, tokens: cython.longlong) -> cython.longlong:
        """KV blocks that ``tokens`` tokens take: those of whole pages."""
        return -(-tokens // self._page_tokens) * (self._page_tokens // self._block_size)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _grow(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        """Give ``sequence`` ``blocks`` blocks in all, if there are enough."""
        needed: cython.longlong = max(0, blocks - sequence.blocks)
        if self._used() + needed > self._num_blocks:
            return False
        self._held_blocks += needed
        sequence.blocks += needed
        return True

    @cython.cfunc
    def _free(self, sequence: Sequence) -> None:
        if self._caching:
            self.cache.release(sequence.index, sequence.hash_blocks)
            sequence.hash_blocks = 0
        self._held_blocks -= sequence.blocks
        sequence.blocks = 0

    @cython.cfunc
    def _evict_idle(self) -> None:
        """Evict cached blocks that no sequence uses for those that sequences do use."""
        if self._caching:
            self.cache.shrink(self._num_blocks - self._used())

    @cython.cfunc
    def _preempt_last(self) -> Sequence:
        """Throw the latest sequence out of the batch.

        Its cache is copied to host memory where there is room for it, and recomputed otherwise when the sequence comes
        back, first in the queue.
        """
        victim: Sequence = self.running.pop()
        blocks: cython.longlong
        if self._caching:
            self.cache.shrink(0)
        self._free(victim)
        self.preempted.append(victim)
        blocks = self._blocks(victim.computed_tokens)
        if self.swap is not None and blocks and self.swapped_blocks + blocks <= self.swap.num_blocks:
            victim.swapped_blocks = blocks
            self.swapped_blocks += blocks
            self.swapped.appendleft(victim)
            return victim
        victim.computed_tokens = 0
        victim.decoding = False
        self.waiting.appendleft(victim)
        return victim

    @cython.cfunc
    def _allocate_decode(self, sequence: Sequence) -> cython.bint:
        """Blocks for a decode step, preempting from the end of the batch; False when the sequence itself had to go."""
        return self._allocate(sequence, self._blocks(sequence.computed_tokens + self._reserved))

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _lead(self, plan: StepPlan, budget: cython.longlong) -> cython.longlong:
        """Put in the sequences at the head of the batch that can decode without preempting any; returns how many."""
        sequence: Sequence
        place: cython.longlong = 0
        most: cython.longlong = min(len(self.running), -(-budget // self.query_len))
        cached: cython.longlong = 0
        left: cython.longlong
        while place < most:
            sequence = cython.cast(Sequence, self.running[place])
            if not sequence.decoding or sequence.in_flight:
                break
            if sequence.computed_tokens + self._reserved > sequence.blocks * self._block_size and not self._grow(
                sequence, self._blocks(sequence.computed_tokens + self._reserved)
            ):
                break
            cached += sequence.computed_tokens
            left = sequence.output_tokens - sequence.generated_tokens
            if left < plan.least:
                plan.least = left
            place += 1
        plan.decodes = self.running[:place]
        plan.counted, plan.cached = place, cached
        return place

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        while not self._grow(sequence, blocks):
            if self._preempt_last() is sequence:
                return False
        return True

    @cython.cfunc
    def _admit(self, plan: StepPlan, budget: cython.longlong, whole_prompts: cython.bint) -> None:
        """Move requests from the queue into the batch, in order, while tokens, places and blocks last."""
        sequence: Sequence
        known: cython.longlong
        cached: cython.longlong = 0
        in_use: cython.longlong = 0
        chunk: cython.longlong
        blocks: cython.longlong
        hash_blocks: cython.longlong = 0
        if self.ready or self.swapped:
            budget = self._resume(plan, budget)
            if self.swapped:
                # Nothing new is admitted while host memory holds any (vLLM V0's rule).
                return
        while budget > 0 and self.waiting and len(self.running) < self._max_num_seqs and not self.closed:
            sequence = self.waiting[0]
            known = sequence.input_tokens + sequence.generated_tokens
            if self._caching:
                self._evict_idle()
                hash_blocks, cached, in_use = self.cache.match(sequence.index, known)
            if whole_prompts and known - cached > budget:
                break
            chunk = min(known - cached, budget)
            blocks = self._blocks(cached + chunk)
            available = self._num_blocks - self._watermark - self._kept_blocks(sequence, blocks)
            if self._used() + blocks - in_use > available:
                break
            self.waiting.popleft()
            self._start(sequence, hash_blocks, cached, blocks)
            self._cache_prompt(sequence, cached + chunk)
            plan.chunks.append((sequence, chunk))
            budget -= chunk

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """Blocks that admission leaves free for what the batch, and the sequence beyond ``blocks``, still need."""
        return 0

    @cython.cfunc
    def _resume(self, plan: StepPlan, budget: cython.longlong) -> cython.longlong:
        """Take in sequences with their KV: from other replicas, then from host memory; returns the tokens left."""
        sequence: Sequence
        tokens: cython.longlong
        blocks: cython.longlong
        while self.ready and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.ready[0]
            if sequence.ready_s > self.seen_s:
                break
            self.ready.popleft()
            self.running.append(sequence)
            plan.chunks.append((sequence, 1))
            budget -= 1
        while self.swapped and budget > 0 and len(self.running) < self._max_num_seqs:
            sequence = self.swapped[0]
            self._evict_idle()
            tokens = sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens
            if sequence.decoding:
                tokens = self.query_len
            tokens = min(tokens, budget)
            blocks = self._blocks(sequence.computed_tokens + (self._reserved if sequence.decoding else tokens))
            if self._used() + blocks > self._num_blocks - self._watermark:
                break
            self.swapped.popleft()
            self.running.append(sequence)
            sequence.blocks = blocks
            self._held_blocks += blocks
            plan.blocks_in += sequence.swapped_blocks
            self.swapped_blocks -= sequence.swapped_blocks
            sequence.swapped_blocks = 0
            if sequence.decoding:
                plan.decodes.append(sequence)
            else:
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
            budget -= tokens
        return budget

    @cython.cfunc
    def _start(
        self, sequence: Sequence, hash_blocks: cython.longlong, cached: cython.longlong, blocks: cython.longlong
    ) -> None:
        """A sequence joins the batch with the cached start of its prompt."""
        if self._caching:
            self.cache.hold(sequence.index, hash_blocks)
            sequence.hash_blocks = hash_blocks
        sequence.computed_tokens = sequence.drafter_tokens = cached
        if sequence.cached_tokens < 0:
            sequence.cached_tokens = cached
            sequence.host_tokens = self.cache.host_tokens
        sequence.blocks = blocks
        self._held_blocks += blocks
        self.running.append(sequence)

    @cython.cfunc
    def _cache_prompt(self, sequence: Sequence, computed_tokens: cython.longlong) -> None:
        """Offer the prompt blocks that this step completes to later requests."""
        if self._caching:
            sequence.hash_blocks = self.cache.add(sequence.index, sequence.hash_blocks, computed_tokens)


@cython.cclass
class UnifiedScheduler(Scheduler):
    """vLLM V1: one token budget per step, running requests first, then new ones.

    Source: vLLM documentation and ``vllm/v1/core/sched/scheduler.py`` (v0.9 to v0.11): decodes and unfinished prompts
    in order of admission, preemption from the end, no admission in a step that preempted.
    """

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Any]:
        """The sequences that the step schedules, as vLLM looks its table up by ``len(num_scheduled_tokens)``."""
        return [*plan.decodes, *[sequence for sequence, _ in plan.chunks]]

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Decodes, then the unfinished prompt, then new prompts, until the budget is spent.

        What a pipeline has in flight waits, but for the next chunk of a prompt.
        """
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        place: cython.longlong = self._lead(plan, budget)
        budget -= place * self.query_len
        while place < len(self.running) and budget > 0:
            sequence = self.running[place]
            place += 1
            tokens = self.query_len
            if not sequence.decoding:
                tokens = sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens
            if sequence.in_flight and (sequence.decoding or not tokens):
                continue
            tokens = min(tokens, budget)
            if sequence.decoding:
                if not self._allocate_decode(sequence):
                    break
                plan.decodes.append(sequence)
            else:
                if not self._allocate(sequence, self._blocks(sequence.computed_tokens + tokens)):
                    break
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
            budget -= tokens
            if self.preempted:
                # What was thrown out may have stood before it.
                place = self.running.index(sequence) + 1
        if not self.preempted:
            self._admit(plan, budget, not self._chunked)
        return plan


def _rank(sequence: Sequence) -> tuple[int, float, int]:
    """Sorts the first to be served first."""
    return sequence.priority, sequence.arrival_s, sequence.index


@cython.cclass
class PriorityScheduler(UnifiedScheduler):
    """vLLM V1's rule with ``--scheduling-policy priority``: of two requests the one with the lower priority value goes
    first, of equals the one that arrived first; what makes room is the last in that order.

    Source: ``PriorityRequestQueue`` of vllm/v1/core/sched/request_queue.py and ``Scheduler.schedule`` (v0.11): a victim
    that the step had planned already gives its tokens back.
    """

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue at its place."""
        insort(self.waiting, sequence, key=_rank)

    @cython.ccall
    def _plan(self) -> StepPlan:
        """As always; what is thrown out on the way is not computed."""
        plan: StepPlan = UnifiedScheduler._plan(self)
        if self.preempted:
            plan.decodes = [sequence for sequence in plan.decodes if sequence not in self.preempted]
            plan.counted = MANY
            plan.chunks = [chunk for chunk in plan.chunks if chunk[0] not in self.preempted]
        return plan

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        while not self._grow(sequence, blocks):
            victim: Sequence = max(self.running, key=_rank)
            _drop(self.running, victim)
            self.running.append(victim)
            self._preempt_last()
            insort(self.waiting, self.waiting.popleft(), key=_rank)
            if victim is sequence:
                return False
        return True


@cython.cclass
class PipelinedScheduler(UnifiedScheduler):
    """vLLM V1's rule where earlier batches have not come out yet.

    A decoding sequence waits for its token; the next chunk of a prompt may follow the one before through the
    pipeline. A sequence in flight is not preempted. Blocks, budget and order are those of ``UnifiedScheduler``; the
    budget and ``max_num_seqs`` hold for each batch and for all running sequences, as in vLLM.

    Source: ``Scheduler.schedule`` and ``EngineCore.step_with_batch_queue`` of vLLM V1 (v0.9 to v0.11).
    """

    @cython.ccall
    def _plan(self) -> StepPlan:
        """What can run now beside the batches in flight; may be empty."""
        sequence: Sequence
        plan: StepPlan = UnifiedScheduler._plan(self)
        for sequence in self.in_step(plan):
            sequence.in_flight += 1
        return plan

    @cython.cfunc
    def _allocate(self, sequence: Sequence, blocks: cython.longlong) -> cython.bint:
        """Blocks for a sequence, preempting from the end, up to itself, those that are not in flight."""
        victim: Sequence
        place: cython.longlong
        while not self._grow(sequence, blocks):
            place = len(self.running) - 1
            victim = self.running[place]
            while victim is not sequence and victim.in_flight:
                place -= 1
                victim = self.running[place]
            if victim.in_flight:
                return False
            _drop(self.running, victim)
            self.running.append(victim)
            self._preempt_last()
            if victim is sequence:
                return False
        return True


@cython.cclass
class PrefillFirstScheduler(Scheduler):
    """vLLM V0's rule: a step either prefills whole prompts or decodes the batch; prompts go first."""

    @cython.ccall
    def _plan(self) -> StepPlan:
        """New prompts if any fit, else one decode step of the whole batch."""
        plan: StepPlan = StepPlan()
        self._admit(plan, self._budget, True)
        return plan if plan.chunks else self._decode(plan)

    @cython.cfunc
    def _decode(self, plan: StepPlan) -> StepPlan:
        """One decode step of the whole batch."""
        sequence: Sequence
        position: cython.longlong = self._lead(plan, MANY)
        while position < len(self.running):
            sequence = self.running[position]
            if not self._allocate_decode(sequence):
                break
            plan.decodes.append(sequence)
            position += 1
        return plan


@cython.cclass
class SglangScheduler(PrefillFirstScheduler):
    """SGLang's rule: prompts go first, cut where the token budget of a step ends; a step decodes where none waits.

    Source: ``get_next_batch_to_run`` and ``get_new_batch_prefill`` of python/sglang/srt/managers/scheduler.py (v0.5)
    with its defaults: ``chunked_prefill_size`` counts all prompts of a step, ``enable_mixed_chunk`` is off.
    """

    @cython.ccall
    def _plan(self) -> StepPlan:
        """The prompt that was cut, then new prompts, until the budget is spent; else one decode step."""
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        position: cython.longlong = 0
        while position < len(self.running) and budget > 0:
            sequence = self.running[position]
            position += 1
            if sequence.decoding:
                continue
            tokens = min(sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens, budget)
            if not self._allocate(sequence, self._blocks(sequence.computed_tokens + tokens)):
                break
            self._cache_prompt(sequence, sequence.computed_tokens + tokens)
            plan.chunks.append((sequence, tokens))
            budget -= tokens
        if not self.preempted:
            self._admit(plan, budget, not self._chunked)
        return plan if plan.chunks else self._decode(plan)

    @cython.cfunc
    def _kept_blocks(self, sequence: Sequence, blocks: cython.longlong) -> cython.longlong:
        """Its whole prompt and output, and a share of what the batch will still generate; nothing where it is alone.

        Source: ``add_one_req`` and ``rem_total_tokens`` of python/sglang/srt/managers/schedule_policy.py (v0.5).
        """
        other: Sequence
        prompts: cython.longlong = 0
        coming: cython.longlong = 0
        if not self.running:
            return 0
        for other in self.running:
            coming += other.output_tokens - other.generated_tokens
            if not other.decoding:
                prompts += self._blocks(other.input_tokens + other.generated_tokens) - other.blocks
        remaining: cython.longlong = self._blocks(sequence.input_tokens + sequence.output_tokens) - blocks
        expected: cython.longlong = round(NEW_TOKEN_RATIO * coming)
        return remaining + prompts + self._blocks(expected)


@cython.cfunc
def _before_last(sequence: Sequence) -> cython.longlong:
    """Tokens in the cache when a step begins that generates the last token and no other."""
    return sequence.input_tokens + sequence.output_tokens - 2


@cython.cclass
class StaticScheduler(Scheduler):
    """A batch is filled once and runs until its last request is done; finished requests keep their place as padding."""

    _padding: list[Any]

    def __init__(self, limits: Any, cache: Any, swap: Any = None) -> None:
        Scheduler.__init__(self, limits, cache, swap)
        self._padding = []

    @cython.ccall
    def _plan(self) -> StepPlan:
        """Prefill the batch chunk by chunk, then decode all of it."""
        sequence: Sequence
        tokens: cython.longlong
        plan: StepPlan = StepPlan()
        budget: cython.longlong = self._budget
        if not self.running:
            self._fill()
        for sequence in self.running:
            if not sequence.decoding and budget > 0:
                tokens = min(sequence.input_tokens + sequence.generated_tokens - sequence.computed_tokens, budget)
                self._cache_prompt(sequence, sequence.computed_tokens + tokens)
                plan.chunks.append((sequence, tokens))
                budget -= tokens
        if not plan.chunks:
            plan.decodes = list(self.running)
            plan.padding = list(self._padding)
        return plan

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished request keeps its blocks until the whole batch is done, and repeats the step of its last token."""
        _drop(self.running, sequence)
        # Accepted drafts may have gone past the end of the answer, for which nothing was reserved.
        sequence.computed_tokens = min(sequence.computed_tokens, _before_last(sequence))
        self._padding.append(sequence)
        if not self.running:
            for finished in self._padding:
                self._end(finished)
            self._padding = []

    @cython.cfunc
    def _fill(self) -> None:
        sequence: Sequence
        while self.waiting and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            blocks = max(self._blocks(sequence.known_tokens), self._blocks(_before_last(sequence) + self._reserved))
            self._evict_idle()
            hash_blocks, cached, in_use = self.cache.match(sequence.index, sequence.known_tokens)
            if self._used() + blocks - in_use > self._num_blocks - self._watermark:
                break
            self.waiting.popleft()
            self._start(sequence, hash_blocks, cached, blocks)


@cython.cclass
class GroupedScheduler(Scheduler):
    """Attention data parallelism: groups that step together, each with a queue, a batch, a token budget and blocks of
    its own. A request goes to one of them when it arrives, and stays; a group that has nothing to do takes part in the
    step with a dummy batch, because the experts of a layer wait for all.

    Source: ``DPEngineCoreProc`` and ``DPLBAsyncMPClient.get_core_engine_for_request`` of vLLM (v0.10);
    ``prepare_mlp_sync_batch`` and ``DataParallelController.round_robin_scheduler`` of SGLang (v0.5).

    Args:
        limits: of each group.
        groups: a scheduler for each.
        swap: host memory of all groups together, for the seconds of copies.
    """

    groups = cython.declare(list, visibility="public")
    _round_robin: cython.bint
    _next: cython.longlong
    _wait_limit: cython.longlong
    """Steps that prompts wait for prompts of the other groups."""
    _waited: cython.longlong

    def __init__(self, limits: Any, groups: list[Any], swap: Any = None) -> None:
        Scheduler.__init__(self, limits, groups[0].cache, swap)
        self.groups = groups
        self._round_robin = limits.round_robin
        self._next = self._waited = 0
        self._wait_limit = limits.dp_wait_limit_steps

    @cython.ccall
    def add(self, sequence: Sequence) -> None:
        """A request joins the queue of a group."""
        group: Scheduler
        sequence.group = self._next if self._round_robin else self._fewest()[0]
        self._next = (self._next + 1) % len(self.groups)
        group = self.groups[sequence.group]
        group.add(sequence)

    @cython.cfunc
    def _fewest(self) -> list[Any]:
        """Numbers of the groups, those with the fewest requests first: waiting ones count four times, as in vLLM."""
        group: Scheduler
        loads = []
        for group in self.groups:
            coming: cython.longlong = group._queued() + len(group.ready) + len(group.incoming)
            loads.append(4 * coming + len(group.running))
        return sorted(range(len(loads)), key=loads.__getitem__)

    def everything(self) -> list[Sequence]:
        """All sequences that this replica would lose if it failed."""
        return [sequence for group in self.groups for sequence in group.everything()]

    def take_loaded(self) -> int:
        """Blocks that the latest plan brings from the host's prefix caches."""
        return sum([group.take_loaded() for group in self.groups])

    def hold(self, sequence: Sequence) -> None:
        """A sequence leaves the batch and keeps its blocks until another replica has fetched them."""
        self.groups[sequence.group].hold(sequence)

    def let_go(self, sequence: Sequence) -> None:
        """The KV of a held sequence has been fetched."""
        self.groups[sequence.group].let_go(sequence)

    def reserve(self, sequence: Sequence) -> int | None:
        """Blocks for a sequence whose KV another replica sends, in the first group that has room."""
        for number in self._fewest():
            cached: int | None = self.groups[number].reserve(sequence)
            if cached is not None:
                sequence.group = number
                return cached
        return None

    def cancel(self, sequence: Sequence) -> None:
        """The KV of an incoming sequence will not come."""
        self.groups[sequence.group].cancel(sequence)

    def arrive(self, sequence: Sequence, now: float) -> None:
        """The KV of an incoming sequence is here."""
        self.groups[sequence.group].arrive(sequence, now)

    @cython.ccall
    def plan(self) -> StepPlan:
        """The next step: that of every group."""
        group: Scheduler
        part: StepPlan
        plan: StepPlan = StepPlan()
        self.preempted = []
        self.running = []
        closed: cython.bint = self._wait_limit > 0 and self._waits()
        for group in self.groups:
            group.closed = closed
            group.seen_s, group.query_len = self.seen_s, self.query_len
            part = group.plan()
            plan.parts.append(part)
            plan.chunks += part.chunks
            plan.decodes += part.decodes
            plan.padding += part.padding
            plan.blocks_out += part.blocks_out
            plan.blocks_in += part.blocks_in
            self.preempted += group.preempted
            self.running += group.running
        return plan

    @cython.cfunc
    def _waits(self) -> cython.bint:
        """Whether prompts wait until every group has one, so that no group idles while another computes its prompts;
        not where a group has nothing to decode meanwhile, and not for ever.

        Source: ``_balance_adp_requests`` of tensorrt_llm/_torch/pyexecutor/py_executor.py (v1.0).
        """
        group: Scheduler
        some: cython.bint = False
        every: cython.bint = True
        busy: cython.bint = True
        for group in self.groups:
            asks: cython.bint = len(group.waiting) > 0
            some |= asks
            every &= asks
            busy &= len(group.running) > 0
        if every or not some or not busy or self._waited >= self._wait_limit:
            self._waited = 0
            return False
        self._waited += 1
        return True

    @cython.ccall
    def in_step(self, plan: StepPlan) -> list[Any]:
        """The batch by whose size a policy chooses, of all groups."""
        group: Scheduler
        sequences: list[Any] = []
        for number, group in enumerate(self.groups):
            sequences += group.in_step(plan.parts[number])
        return sequences

    @cython.ccall
    def release(self, sequence: Sequence) -> None:
        """A finished sequence leaves its group."""
        group: Scheduler = self.groups[sequence.group]
        group.release(sequence)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _used(self) -> cython.longlong:
        group: Scheduler
        used: cython.longlong = 0
        for group in self.groups:
            used += group._used()
        return used

    @cython.cfunc
    def _works(self) -> cython.bint:
        group: Scheduler
        works: cython.bint = False
        for group in self.groups:
            works |= group._works()
        return works

    @cython.cfunc
    def _queued(self) -> cython.longlong:
        group: Scheduler
        queued: cython.longlong = 0
        for group in self.groups:
            queued += group._queued()
        return queued


@cython.final
@cython.cclass
class RowBuffer:
    """Rows of a step log on their way there; one per simulation, shared by its replicas.

    Args:
        log: a ``StepLog``.
        windows: attention windows of the timing models.
    """

    log: Any
    table: cython.double[:, ::1]
    used = cython.declare(cython.longlong, visibility="public")
    rounds = cython.declare(cython.longlong, visibility="public")
    """Times that the rows were handed over; a row is in the table while this stays."""
    capacity: cython.longlong
    """Rows after which steps of an unchanged batch share one."""
    group_at: cython.longlong
    """First column of what the slowest attention group does."""
    grouped: cython.bint

    def __init__(self, log: Any) -> None:
        self.group_at, self.grouped = log.group_at, log.grouped
        self.log = log
        self.table = np.zeros((BUFFERED_ROWS, log.width))
        self.used = 0
        self.rounds = 0
        self.capacity = log.capacity

    @cython.ccall
    def flush(self) -> None:
        """Hand the rows over."""
        self.rounds += 1
        if self.used:
            self.log.extend(np.asarray(self.table)[: self.used])
            self.used = 0
            self.capacity = self.log.capacity

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def new(self) -> cython.longlong:
        """The number of a fresh row of zeros."""
        if self.used == BUFFERED_ROWS:
            self.flush()
        self.table[self.used, :] = 0.0
        self.used += 1
        return self.used - 1


@cython.final
@cython.cclass
class Arrivals:
    """Requests that are all known in advance, and when each is seen.

    Args:
        requests: in order of arrival.
        times_s: of each, and infinity behind them.
        taken: one number: how many of them the engine has.
    """

    requests: cython.longlong[::1]
    times_s: cython.double[::1]
    taken: cython.longlong[::1]

    def __init__(self, requests: Any, times_s: Any, taken: Any) -> None:
        self.requests, self.times_s, self.taken = requests, times_s, taken

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def due(self, now: cython.double) -> cython.bint:
        """Whether the next has arrived by ``now``."""
        return self.times_s[self.taken[0]] <= now

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def take(self) -> cython.longlong:
        """The next."""
        self.taken[0] += 1
        return self.requests[self.taken[0] - 1]


def _grown(column: Any) -> Any:
    """A column twice as long; what is behind it takes no memory before it is written to."""
    values = np.asarray(column)
    longer = np.empty(2 * len(values), dtype=values.dtype)
    longer[: len(values)] = values
    return longer


@cython.final
@cython.cclass
class Gaps:
    """Gaps between token deliveries and how many requests saw each; one per simulation, shared by its replicas."""

    seconds: cython.double[::1]
    counts: cython.longlong[::1]
    used: cython.longlong

    def __init__(self) -> None:
        self.used = 0
        self.seconds, self.counts = np.empty(BUFFERED_ROWS), np.empty(BUFFERED_ROWS, dtype=np.int64)

    @cython.cfunc
    def add(self, seconds: cython.double, count: cython.longlong) -> None:
        """``count`` requests had their next token after so many seconds."""
        if self.used == len(self.seconds):
            self.seconds, self.counts = _grown(self.seconds), _grown(self.counts)
        self.seconds[self.used] = seconds
        self.counts[self.used] = count
        self.used += 1

    def forget(self) -> None:
        """Drop all of them."""
        self.used = 0

    def table(self) -> tuple[Any, Any]:
        """All of them."""
        return np.asarray(self.seconds)[: self.used], np.asarray(self.counts)[: self.used]


@cython.cclass
class Engine:
    """An engine that plans, prices and commits one step after the other.

    Args:
        index: number of the replica.
        source: where its requests come from.
        scheduler: the batching rule, with empty caches.
        prices: seconds of a step.
        limits: tokens, sequences, blocks.
        draws: accepted draft tokens, or None without speculation.
        log: where results go.
        rows: where its step rows go.
        gaps: where the gaps between its tokens go.
        longest: how many of the longest decoding sequences timing requests.
        drafting: the policy that chooses the draft tokens of each step, or None where their number never changes.
        resumed: requests that start again after a failure, with what they have delivered.
        kv_transfers: the transfer from prefill to decode replicas, where pools are disaggregated.
        prefill_only: whether finished prompts go to ``kv_transfers`` instead of being decoded here.
        offload: host memory behind the prefix cache, or None.
        counted: whether its steps count as those of the interpreted oracle.
    """

    index = cython.declare(cython.longlong, visibility="public")
    scheduler = cython.declare(Scheduler, visibility="public")
    work = cython.declare(Work, visibility="public")
    """Of the step that is planned."""
    now = cython.declare(cython.double, visibility="public")
    """Time of the next step."""
    seen = cython.declare(cython.double, visibility="public")
    """Time up to which it knows what has arrived."""
    start = cython.declare(cython.double, visibility="public")
    """When the latest planned step begins."""
    end = cython.declare(cython.double, visibility="public")
    planned = cython.declare(cython.bint, visibility="public")
    """Whether a step is planned, to be committed at ``end``."""
    source: Any
    prices = cython.declare(Prices, visibility="public")
    limits: Any
    draws: Draws
    log: Any
    rows: RowBuffer
    longest: cython.longlong
    drafting: Any
    resumed: Any
    kv_transfers: Any
    prefill_only: cython.bint
    offload: Any
    counted: cython.bint
    ahead: cython.bint
    arrivals: Arrivals | None
    """Where all requests are known in advance, in place of asking the source."""
    coming_s: cython.double[::1]
    """One number: when the next request is seen, where the source is polled."""
    input_tokens: cython.longlong[::1]
    output_tokens: cython.longlong[::1]
    priorities: Any
    arrival_s: cython.double[::1]
    replica: cython.longlong[::1]
    prompt_replica: cython.longlong[::1]
    cached_tokens: cython.longlong[::1]
    scheduled_s: cython.double[::1]
    finished_s: cython.double[::1]
    completed: cython.longlong[::1]
    """Requests that have ended, in all of the run."""
    first_token_s: cython.double[::1]
    gaps: Gaps
    drafts: cython.longlong[::1]
    accepted_tokens: cython.longlong[::1]
    draft_tokens: cython.longlong[::1]
    accepted_counts: cython.longlong[::1]
    _plan: StepPlan
    _draft: Any
    _seconds: cython.double
    _copies_s: cython.double
    _blocks: cython.longlong
    _running: cython.longlong
    _waiting: cython.longlong
    _gaps: cython.longlong
    """Tokens handed out by the present step to requests that had their latest at its start."""
    _ended: cython.bint
    """Whether a request ended in the present step."""
    _row: cython.longlong
    """The latest row, where the steps after it may share it; else -1."""
    _round: cython.longlong
    _merged: cython.longlong
    """Steps in it, and the sums of what it holds the means of."""
    _merged_waiting: cython.longlong
    _merged_keys: list[Any]

    def __init__(
        self,
        index: int,
        source: Any,
        scheduler: Scheduler,
        prices: Prices,
        limits: Any,
        draws: Any,
        log: Any,
        rows: RowBuffer,
        gaps: Gaps,
        longest: int,
        drafting: Any,
        resumed: Any,
        kv_transfers: Any,
        prefill_only: bool,
        offload: Any,
        counted: bool,
    ) -> None:
        self.index = index
        self.source = source
        self.scheduler = scheduler
        self.prices = prices
        self.limits = limits
        self.draws = draws
        self.log = log
        self.rows = rows
        self.longest = longest
        self.drafting = drafting
        self.resumed = resumed
        self.kv_transfers = kv_transfers
        self.prefill_only = prefill_only
        self.offload = offload
        self.counted = counted
        self.ahead = limits.schedules_ahead
        self.work = Work(prices.timer.windows)
        self.now = self.seen = self.start = self.end = 0.0
        self.planned = False
        self.coming_s = source.coming_s
        self.arrivals = Arrivals(*source.known) if source.known else None
        self.input_tokens, self.output_tokens, self.arrival_s = log.input_tokens, log.output_tokens, log.arrival_s
        self.replica, self.prompt_replica, self.cached_tokens = log.replica, log.prompt_replica, log.cached_tokens
        self.priorities = log.stream.priorities
        self.scheduled_s, self.first_token_s, self.finished_s = log.scheduled_s, log.first_token_s, log.finished_s
        self.completed = log.ended
        self.gaps = gaps
        self.drafts, self.accepted_tokens, self.draft_tokens = log.drafts, log.accepted_tokens, log.draft_tokens
        self.accepted_counts = log.accepted_counts
        self._draft = None
        self._seconds = self._copies_s = 0.0
        self._blocks = self._running = self._waiting = self._gaps = 0
        self._ended = False
        self._row = -1

    def run(self) -> None:
        """All steps of a replica that nobody looks at meanwhile, until no request will ever come."""
        while True:
            self.collect(self.seen)
            if self.begin(self.now):
                self.commit()
            elif self.seen < self.now:
                # No step runs over which the next one was decided.
                self.seen = self.now
            else:
                self.now = self.seen = max(self.now, self.source.next_s())
                if self.now == INFINITE:
                    return

    @cython.ccall
    def collect(self, seen: cython.double) -> None:
        """Take in what arrived by ``seen``, when the step to come is decided."""
        request: cython.longlong
        if self.arrivals is None:
            if self.coming_s[0] <= seen:
                for request in self.source.take(seen):
                    self.replica[request] = self.index
                    self.scheduler.add(self.sequence(request))
        else:
            while self.arrivals.due(seen):
                request = self.arrivals.take()
                self.replica[request] = self.index
                self.scheduler.add(self.sequence(request))
        self.scheduler.seen_s = seen

    @cython.ccall
    def sequence(self, request: cython.longlong) -> Sequence:
        """A request as it joins the queue."""
        resumed = self.resumed.pop(request, None) if self.resumed else None
        if resumed is not None:
            return resumed
        priority: cython.longlong = 0 if self.priorities is None else self.priorities[request]
        made: Sequence = Sequence(
            request, self.input_tokens[request], self.output_tokens[request], priority, self.arrival_s[request]
        )
        return made

    @cython.ccall
    def begin(self, now: cython.double) -> cython.bint:
        """Decide on the step at ``now`` and price it; False when there is nothing to do."""
        scheduler: Scheduler = self.scheduler
        victim: Sequence
        plan: StepPlan
        seconds: cython.double = 0.0
        copies_s: cython.double = 0.0
        self.planned = False
        if not scheduler._works():
            return False
        drafting = self.drafting
        if drafting is not None:
            scheduler.query_len = drafting.query_len
        plan = scheduler.plan()
        works: cython.bint = len(plan.chunks) > 0 or len(plan.decodes) > 0
        if not works and not scheduler.preempted:
            return False
        for victim in scheduler.preempted:
            self.log.preemptions[victim.index] += 1
        self.work.measure(plan, scheduler.query_len, self.longest)
        self._draft = None if drafting is None else self._choose(plan)
        if works and self._draft is None:
            seconds = _on_grid(self.prices.seconds(self.work))
        elif works:
            seconds = _on_grid(self.prices.seconds_drafting(self.work, self._draft))
        if self.offload is not None:
            copies_s = exposed_load_s(self.offload, scheduler.take_loaded(), seconds)
            seconds += copies_s
        if scheduler.swap is not None:
            swapping_s: cython.double = _on_grid(scheduler.swap.seconds(plan.blocks_out, plan.blocks_in))
            seconds += swapping_s
            copies_s += swapping_s
            self.log.swapped_blocks += plan.blocks_out
        seconds = _by_clock(now, seconds)
        self._plan = plan
        self._seconds, self._copies_s = seconds, copies_s
        self._blocks = scheduler._used()
        self._running = len(scheduler.running)
        self._waiting = scheduler._queued()
        self.start, self.end = now, now + seconds
        self.planned = True
        return True

    @cython.ccall
    def commit(self) -> None:
        """Hand out the tokens of the step that is planned."""
        sequence: Sequence
        self.planned = False
        self.now = self.end
        self.seen = self.start if self.ahead else self.end
        self._record(self.deliver(self._plan, self.start, self.end))
        if self._gaps:
            self.gaps.add(self._seconds, self._gaps)
        if self.counted:
            self.log.exact_steps += 1
        if self.kv_transfers is not None and self.kv_transfers.full:
            self.kv_transfers.call()
        if self._draft is not None:
            self.drafting.tokens = self._draft.tokens
            if not self.drafting.rests(self._draft.tokens):
                for sequence in self.scheduler.in_step(self._plan):
                    sequence.drafter_tokens = sequence.computed_tokens

    @cython.ccall
    def deliver(self, plan: StepPlan, start: cython.double, now: cython.double) -> cython.longlong:
        """Hand out the tokens of a plan that ran from ``start`` to ``now``; returns how many."""
        sequence: Sequence
        place: cython.longlong
        tokens: cython.longlong
        delivered: cython.longlong = 0
        self._gaps = 0
        self._ended = False
        for sequence, tokens in plan.chunks:
            if isnan(self.scheduled_s[sequence.index]):
                self.scheduled_s[sequence.index] = start
                self.prompt_replica[sequence.index] = self.index
                if sequence.cached_tokens > 0:
                    self.cached_tokens[sequence.index] = sequence.cached_tokens
                if sequence.host_tokens:
                    self.log.host_hit_tokens += sequence.host_tokens
            sequence.computed_tokens += tokens
            if sequence.computed_tokens < sequence.input_tokens + sequence.generated_tokens:
                continue
            if self.prefill_only:
                delivered += self._finish_prefill(sequence, start, now)
                continue
            sequence.decoding = True
            delivered += self._deliver(sequence, 1, start, now)
        if self.drafting is not None:
            return delivered + self._deliver_drafted(plan, start, now)
        if self.draws is None:
            for place in range(len(plan.decodes)):
                sequence = cython.cast(Sequence, plan.decodes[place])
                sequence.computed_tokens += 1
                self._deliver(sequence, 1, start, now)
            return delivered + len(plan.decodes)
        for place in range(len(plan.decodes)):
            sequence = cython.cast(Sequence, plan.decodes[place])
            tokens = 1 + self._verify(sequence, self.draws.positions)
            sequence.computed_tokens += tokens
            tokens = min(tokens, sequence.output_tokens - sequence.generated_tokens)
            delivered += self._deliver(sequence, tokens, start, now)
        return delivered

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _verify(self, sequence: Sequence, most: cython.longlong) -> cython.longlong:
        """The next verify step of a sequence: how many of at most ``most`` draft tokens are accepted."""
        index: cython.longlong = sequence.index
        taken: cython.longlong = self.draws.accepted(index, sequence.verify_steps, sequence.computed_tokens)
        taken = min(taken, most)
        self.drafts[index] += 1
        self.accepted_tokens[index] += taken
        self.accepted_counts[taken] += 1
        sequence.verify_steps += 1
        return taken

    @cython.cfunc
    def _deliver_drafted(self, plan: StepPlan, start: cython.double, now: cython.double) -> cython.longlong:
        """Hand out what the decoding sequences accept of the tokens that the policy had drafted; returns how many."""
        sequence: Sequence
        taken: cython.longlong
        delivered: cython.longlong = 0
        drafted: cython.longlong = self.drafting.tokens
        nodes: cython.longlong = self.drafting.query_len - 1
        accepted = []
        for sequence in plan.decodes:
            taken = 0
            if drafted:
                taken = self._verify(sequence, drafted)
                self.draft_tokens[sequence.index] += nodes
            else:
                sequence.verify_steps += 1
            sequence.computed_tokens += taken + 1
            accepted.append(taken)
            taken = min(taken + 1, sequence.output_tokens - sequence.generated_tokens)
            delivered += self._deliver(sequence, taken, start, now)
        if accepted:
            self.drafting.policy.observe(drafted, accepted)
        return delivered

    @cython.cfunc
    def _finish_prefill(self, sequence: Sequence, start: cython.double, now: cython.double) -> cython.longlong:
        """A prompt is done: deliver its first token if that is done here, and send the KV on; returns tokens."""
        tokens: cython.longlong = 0
        if self.kv_transfers.samples_first:
            tokens = self._deliver(sequence, 1, start, now)
        if sequence.generated_tokens < sequence.output_tokens:
            self.scheduler.hold(sequence)
            self.kv_transfers.prompt_done(self, sequence)
        return tokens

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    @cython.inline
    def _deliver(
        self, sequence: Sequence, tokens: cython.longlong, start: cython.double, now: cython.double
    ) -> cython.longlong:
        """Hand out tokens of a sequence."""
        if sequence.last_token_s == start:
            self._gaps += 1
        else:
            self._after_a_pause(sequence, now)
        sequence.last_token_s = now
        sequence.generated_tokens += tokens
        if sequence.generated_tokens == sequence.output_tokens:
            self._finish(sequence, now)
        return tokens

    @cython.cfunc
    def _after_a_pause(self, sequence: Sequence, now: cython.double) -> None:
        """Tokens that are the first, or that did not follow within a step."""
        if isnan(sequence.last_token_s):
            self.first_token_s[sequence.index] = now
        else:
            self.gaps.add(now - sequence.last_token_s, 1)

    @cython.cfunc
    def _finish(self, sequence: Sequence, now: cython.double) -> None:
        """A request has its last token."""
        self._ended = True
        self.scheduler.release(sequence)
        self.finished_s[sequence.index] = now
        self.completed[0] += 1
        if not self.completed[0] % PROGRESS_EVERY:
            self.log.tell()
        if self.arrivals is None:
            self.source.finished(sequence.index, now)

    @cython.ccall
    def tells(self) -> cython.bint:
        """Whether the planned step may have something that others must hear of: an answer or a prompt that is done, or
        room for prompts that wait at another replica."""
        if self.kv_transfers is not None and (self._plan.chunks or self._plan.blocks_in or self.scheduler.preempted):
            # Prompts are done, or other prompts may find room.
            return True
        return self._ends(self._plan)

    @cython.cfunc
    def _ends(self, plan: StepPlan) -> cython.bint:
        """Whether a plan may have the last token of a request."""
        sequence: Sequence
        ends: cython.bint = plan.least <= (1 if self.draws is None else self.draws.positions + 1)
        for sequence, _ in plan.chunks:
            ends |= sequence.output_tokens - sequence.generated_tokens <= 1
        return ends

    @cython.cfunc
    def _choose(self, plan: StepPlan) -> Any:
        """What the drafter does at the end of the planned step; what it skipped before is made up for."""
        sequence: Sequence
        context: cython.longlong = 0
        drafting = self.drafting
        batch = self.scheduler.in_step(plan)
        if not batch:
            return drafting.step(drafting.tokens)
        for sequence in batch:
            context += sequence.computed_tokens
        waiting: cython.longlong = self.scheduler._queued()
        tokens = drafting.policy.choose(Batch(len(batch), context, self.work.prefill_tokens, waiting))
        if drafting.rests(tokens):
            return drafting.step(tokens)
        behind = []
        for sequence in batch:
            if sequence.drafter_tokens < sequence.computed_tokens:
                behind.append((sequence.drafter_tokens, sequence.computed_tokens))
        return drafting.step(tokens, behind)

    @cython.cfunc
    def _record(self, delivered: cython.longlong) -> None:
        """Write down the step; past a number of rows, one row for several steps of an unchanged batch."""
        plan: StepPlan = self._plan
        work: Work = self.work
        shares: cython.bint = not (plan.chunks or self.scheduler.preempted or self._copies_s or self._draft is not None)
        row: cython.longlong = self._row
        w: cython.longlong
        table: cython.double[:, ::1] = self.rows.table
        if row >= 0 and shares and self._round == self.rows.rounds and self._merged < MERGED_STEPS:
            self._merged += 1
            self._merged_waiting += self._waiting
            table[row, 2] += self._seconds
            table[row, 3] += delivered
            table[row, 5] = self._merged_waiting // self._merged
            table[row, 6] = self._blocks
            table[row, 7] = self._merged
            for w in range(work.kinds):
                self._merged_keys[w] += work.decode_kv_tokens[w]
                table[row, 16 + 3 * work.kinds + w] = self._merged_keys[w] // self._merged
            if self.rows.grouped:
                self._write_slowest(row)
        else:
            row = self._new_row(delivered)
            self._merged, self._merged_waiting = 1, self._waiting
            self._merged_keys = [work.decode_kv_tokens[w] for w in range(work.kinds)]
        self._row = row if shares and not self._ended and self.rows.used > self.rows.capacity else -1
        self._round = self.rows.rounds

    @cython.cfunc
    def _new_row(self, delivered: cython.longlong) -> cython.longlong:
        """Write a row of ``simulator.serving.log.SCALARS``, the columns by window, and what a policy decided."""
        work: Work = self.work
        w: cython.longlong
        kinds: cython.longlong = work.kinds
        row: cython.longlong = self.rows.new()
        table: cython.double[:, ::1] = self.rows.table
        table[row, 0] = self.index
        table[row, 1] = self.start
        table[row, 2] = self._seconds
        table[row, 3] = delivered
        table[row, 4] = self._running
        table[row, 5] = self._waiting
        table[row, 6] = self._blocks
        table[row, 7] = 1.0
        table[row, 8] = work.prefill_seqs
        table[row, 9] = work.prefill_tokens
        table[row, 10] = work.sampled_prefills
        table[row, 11] = work.decode_seqs
        table[row, 12] = work.query_len
        table[row, 13] = self._copies_s
        table[row, 14] = work.longest_kv
        table[row, 15] = work.tail_kv
        for w in range(kinds):
            table[row, 16 + w] = work.prefill_pairs[w]
            table[row, 16 + kinds + w] = work.prefill_kv_tokens[w]
            table[row, 16 + 2 * kinds + w] = work.sampled_kv_tokens[w]
            table[row, 16 + 3 * kinds + w] = work.decode_kv_tokens[w]
        if self._draft is not None:
            draft = self._draft
            for w, value in enumerate((*draft[:4], *draft.skipped_pairs, *draft.skipped_kv_tokens)):
                table[row, 16 + 4 * kinds + w] = value
        if self.rows.grouped:
            self._write_slowest(row)
        return row

    @cython.cfunc
    def _write_slowest(self, row: cython.longlong) -> None:
        """What the slowest attention group does, as ``simulator.serving.log.GROUP_SCALARS`` and by window."""
        work: Work = self.work if self.work.slowest is None else self.work.slowest
        w: cython.longlong
        kinds: cython.longlong = work.kinds
        at: cython.longlong = self.rows.group_at
        table: cython.double[:, ::1] = self.rows.table
        table[row, at] = work.prefill_seqs
        table[row, at + 1] = work.prefill_tokens
        table[row, at + 2] = work.sampled_prefills
        table[row, at + 3] = work.decode_seqs
        table[row, at + 4] = work.query_len
        table[row, at + 5] = work.longest_kv
        table[row, at + 6] = work.tail_kv
        table[row, at + 7] = work.dp_imbalance
        for w in range(kinds):
            table[row, at + 8 + w] = work.prefill_pairs[w]
            table[row, at + 8 + kinds + w] = work.prefill_kv_tokens[w]
            table[row, at + 8 + 2 * kinds + w] = work.sampled_kv_tokens[w]
            table[row, at + 8 + 3 * kinds + w] = work.decode_kv_tokens[w]


@cython.final
@cython.cclass
class StagedBatch:
    """A batch on its way through the stages of a pipeline."""

    plan: StepPlan
    work: Work
    start: cython.double
    end: cython.double
    """When its tokens leave the last stage."""
    blocks: cython.longlong
    running: cython.longlong
    waiting: cython.longlong

    def __init__(self, plan: StepPlan, windows: tuple[Any, ...], start: cython.double) -> None:
        self.plan, self.start = plan, start
        self.work = Work(windows)


@cython.final
@cython.cclass
class PipelinedEngine(Engine):
    """An engine whose scheduler fills a queue of as many batches as there are stages.

    The scheduler runs, on the host, whenever the queue has room; an empty or a full queue makes it wait for the oldest
    batch (so it is ahead of the stages, whatever ``limits.schedules_ahead`` says). A batch enters a stage
    when the stage before has handed it over and the batch before has left. What is planned and committed is one turn
    of the scheduler: a batch sent, or one taken out. Step records cover the time between one batch coming out and the
    next, so that they add up to the time that the replica worked.

    Args:
        stages: of the pipeline.
        others: as ``Engine``.

    Source: ``EngineCore.step_with_batch_queue`` of vLLM V1.
    """

    _stages: cython.longlong
    _under_way: Any
    """Batches in the pipeline, the oldest first."""
    _leaving: StagedBatch | None
    """The batch that comes out in the planned turn."""
    _free_s: cython.double[::1]
    """When each stage is done with what it was given."""
    _recorded_s: cython.double
    """End of the latest step record."""

    def __init__(self, stages: int, **others: Any) -> None:
        Engine.__init__(self, **others)
        self._stages = stages
        self._under_way = deque()
        self._leaving = None
        self._free_s = array("d", [0.0]) * stages
        self._recorded_s = 0.0

    @cython.ccall
    def begin(self, now: cython.double) -> cython.bint:
        """Send a batch of what can run, else wait for the oldest; False when there is nothing to do."""
        self._leaving = None
        self.planned = True
        if self.scheduler._works() and len(self._under_way) < self._stages and self._send(now):
            return True
        if self._under_way:
            self._leaving = self._under_way.popleft()
            self.end = max(now, self._leaving.end)
            return True
        self.planned = False
        return False

    @cython.cfunc
    def _send(self, now: cython.double) -> cython.bint:
        """Send a batch of what can run on its way; False when nothing can."""
        sequence: Sequence
        tokens: cython.longlong
        stage: cython.longlong
        seconds: cython.double
        scheduler: Scheduler = self.scheduler
        plan: StepPlan = scheduler.plan()
        for sequence in scheduler.preempted:
            self.log.preemptions[sequence.index] += 1
        if not (plan.chunks or plan.decodes):
            return False
        batch: StagedBatch = StagedBatch(plan, self.prices.timer.windows, now)
        batch.work.measure(plan, scheduler.query_len, 0)
        for sequence, tokens in plan.chunks:
            if isnan(self.scheduled_s[sequence.index]):
                self.scheduled_s[sequence.index] = now
                if sequence.cached_tokens > 0:
                    self.cached_tokens[sequence.index] = sequence.cached_tokens
            sequence.computed_tokens += tokens
        sent: cython.double = now + _on_grid(self.prices.host_seconds(batch.work))
        batch.end = sent
        for stage, seconds in enumerate(self.prices.stage_seconds(batch.work)):
            batch.end = max(batch.end, self._free_s[stage]) + _on_grid(seconds)
            self.log.stage_busy_s += seconds
            self._free_s[stage] = batch.end
        batch.blocks, batch.running, batch.waiting = scheduler._used(), len(scheduler.running), len(scheduler.waiting)
        self._under_way.append(batch)
        self.end = min(batch.end, sent)
        return True

    @cython.ccall
    def commit(self) -> None:
        """Hand out the tokens of the batch that comes out, if one does."""
        batch: StagedBatch
        tokens: cython.longlong
        self.planned = False
        self.now = self.seen = self.end
        if self._leaving is None:
            return
        batch = self._leaving
        batch.plan.leave()
        tokens = self.deliver(batch.plan, NAN, self.now)
        self.work, self.start = batch.work, max(batch.start, self._recorded_s)
        self._seconds, self._recorded_s = self.now - self.start, self.now
        self._running, self._waiting, self._blocks = batch.running, batch.waiting, batch.blocks
        self.log.stage_open_s += self._seconds * self._stages
        self._new_row(tokens)

    @cython.ccall
    def tells(self) -> cython.bint:
        """Whether the batch that comes out may have the last token of a request."""
        return self._leaving is not None and self._ends(self._leaving.plan)


@cython.final
@cython.cclass
class Lockstep:
    """Engines behind one router in simulated time: each runs by itself to the next moment at which others could see
    it. Of the steps that are planned the next to end comes first, of equals the one that was planned first.

    Args:
        env: simulated time, a ``Timeline``.
        phase: of an instant in which replicas plan: the last.
        engines: of all replicas; at rest, with sources that a router fills.
    """

    watch = cython.declare(object, visibility="public")
    """Called to commit the step of an engine where each step is observed; None: none is."""
    _env: Any
    _phase: Any
    _engines: list[Any]
    _rests: cython.longlong[::1]
    """Whether each waits for something to do."""
    _due: list[Any]
    """Those that plan at the end of this instant."""
    _called: cython.bint
    _armed_s: cython.double
    """When to look at what is planned."""
    _ends: cython.double[::1]
    _numbers: cython.longlong[::1]
    _tells: cython.longlong[::1]
    """Of each engine's planned step: its end, how many were planned before it, whether others must hear of it."""
    _heap: cython.longlong[::1]
    _size: cython.longlong
    _count: cython.longlong

    def __init__(self, env: Any, phase: int, engines: list[Any]) -> None:
        count = len(engines)
        self.watch = None
        self._env, self._phase, self._engines = env, phase, engines
        self._rests = array("q", [1]) * count
        self._due = []
        self._called = False
        self._armed_s = INFINITE
        self._ends = array("d", [0.0]) * count
        self._numbers, self._tells, self._heap = (array("q", [0]) * count for _ in range(3))
        self._size = self._count = 0

    @cython.ccall
    def wake(self, index: cython.longlong, at_s: cython.double = 0.0) -> None:
        """Let a replica that waits look again, at a time to come or now."""
        engine: Engine
        if not self._rests[index]:
            return
        now: cython.double = self._env.now
        if at_s > now:
            self._env.call(self.wake, index, at_s - now)
            return
        self._rests[index] = 0
        engine = self._engines[index]
        engine.now = engine.seen = max(engine.now, now)
        self._due.append(index)
        self._call()

    def stop(self, index: int) -> None:
        """A replica has failed: it does nothing until ``resume``."""
        kept = [place for place in np.asarray(self._heap)[: self._size].tolist() if place != index]
        self._size = 0
        for place in kept:
            self._push(place)
        self._due = [due for due in self._due if due != index]
        self._rests[index] = 0

    def resume(self, index: int) -> None:
        """A replica is back."""
        self._rests[index] = 1
        self.wake(index)

    @cython.cfunc
    def _call(self) -> None:
        """Plan in this instant, after everything else."""
        if not self._called:
            self._called = True
            self._env.call(self.plan, None, 0.0, self._phase)

    @cython.ccall
    def plan(self, _: Any = None) -> None:
        """Decide on the next step of every replica that is due."""
        engine: Engine
        index: cython.longlong
        now: cython.double = self._env.now
        self._called = False
        due, self._due = self._due, []
        for index in due:
            engine = self._engines[index]
            if self._begins(engine, now):
                self._add(index)
                continue
            self._rests[index] = 1
            if engine.coming_s[0] < INFINITE:  # a request has yet to pass the API server
                self._env.call(self.wake, index, max(0.0, engine.coming_s[0] - now))
        self._go()

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _begins(self, engine: Engine, now: cython.double) -> cython.bint:
        """Decide on a step, ``now`` or as early as the engine can; False when there is nothing to do."""
        while True:
            engine.collect(engine.seen)
            if engine.begin(engine.now):
                return True
            now = max(engine.now, now)
            if engine.seen >= now:
                return False
            # No step runs over which the next one was decided.
            engine.now = engine.seen = now

    @cython.cfunc
    def _go(self) -> None:
        """Run the steps that nobody can see, and come back for the first that somebody can."""
        self._run(self._env.peek())
        if self._size and self._ends[self._heap[0]] < self._armed_s:
            self._armed_s = self._ends[self._heap[0]]
            self._env.call(self.commit, self._armed_s, max(0.0, self._armed_s - self._env.now))

    @cython.ccall
    def commit(self, armed_s: cython.double) -> None:
        """Hand out the tokens of the steps that end in this instant."""
        engine: Engine
        index: cython.longlong
        if armed_s != self._armed_s:
            return
        self._armed_s = INFINITE
        # What was planned may be gone with a replica that failed.
        if self._size and self._ends[self._heap[0]] <= armed_s:
            for index in self._take():
                engine = self._engines[index]
                if engine.planned and self.watch is None:
                    engine.commit()
                elif engine.planned:
                    self.watch(engine)
                self._due.append(index)
        if self._env.peek() <= self._env.now:  # something else happens in this instant, and planning comes last
            self._call()
        else:
            self.plan()

    @cython.cfunc
    def _add(self, index: cython.longlong) -> None:
        """An engine has planned a step."""
        engine: Engine = self._engines[index]
        # An engine without a step has run out of work; others must hear of that too.
        self._ends[index] = engine.end if engine.planned else engine.now
        self._tells[index] = engine.tells() if engine.planned else 1
        self._numbers[index] = self._count
        self._count += 1
        self._push(index)

    @cython.cfunc
    def _push(self, index: cython.longlong) -> None:
        place: cython.longlong = self._size
        above: cython.longlong
        self._size += 1
        while place:
            above = (place - 1) // 2
            if not self._first(index, self._heap[above]):
                break
            self._heap[place] = self._heap[above]
            place = above
        self._heap[place] = index

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _pop(self) -> cython.longlong:
        """Take out the first."""
        place: cython.longlong = 0
        below: cython.longlong
        earliest: cython.longlong = self._heap[0]
        self._size -= 1
        moved: cython.longlong = self._heap[self._size]
        while True:
            below = 2 * place + 1
            if below >= self._size:
                break
            if below + 1 < self._size and self._first(self._heap[below + 1], self._heap[below]):
                below += 1
            if not self._first(self._heap[below], moved):
                break
            self._heap[place] = self._heap[below]
            place = below
        self._heap[place] = moved
        return earliest

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _first(self, one: cython.longlong, other: cython.longlong) -> cython.bint:
        """Whether one step comes before another."""
        if self._ends[one] != self._ends[other]:
            return self._ends[one] < self._ends[other]
        return self._numbers[one] < self._numbers[other]

    @cython.cfunc
    def _take(self) -> list[int]:
        """Take out the steps that end next, all at the same time."""
        replicas: list[int] = [self._pop()]
        while self._size and self._ends[self._heap[0]] == self._ends[replicas[0]]:
            replicas.append(self._pop())
        return replicas

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _alone(self) -> cython.bint:
        """Whether no other step ends with the next."""
        next_s: cython.double = self._ends[self._heap[0]]
        return not (
            (self._size > 1 and self._ends[self._heap[1]] == next_s)
            or (self._size > 2 and self._ends[self._heap[2]] == next_s)
        )

    @cython.cfunc
    def _run(self, horizon: cython.double) -> None:
        """Run the steps that end before ``horizon``, up to the first that others must hear of."""
        engine: Engine
        index: cython.longlong
        tells: cython.bint
        while self._size and self._ends[self._heap[0]] < horizon:
            index = self._heap[0]
            if self._alone():
                if self._tells[index]:
                    return
                engine = self._engines[self._pop()]
                engine.commit()
                engine.collect(engine.seen)
                engine.begin(engine.now)
                self._add(index)
                continue
            replicas: list[int] = self._take()
            tells = False
            for index in replicas:
                tells |= self._tells[index]
            if tells:
                for index in replicas:
                    self._push(index)
                return
            for index in replicas:
                engine = self._engines[index]
                engine.commit()
            for index in replicas:
                engine = self._engines[index]
                engine.collect(engine.seen)
                engine.begin(engine.now)
                self._add(index)
