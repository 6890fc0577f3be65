"""Work of a step, in the numbers on which its time depends."""

from __future__ import annotations

from array import array
from typing import Any

from simulator.serving.engine.common import MANY, cython
from simulator.serving.engine.sequence import Sequence, StepPlan
from simulator.timing import StepWork, causal_pairs
from simulator.timing.work import WORK_SCALARS

WORK_COUNT = cython.declare(cython.longlong, len(WORK_SCALARS))
PREFILL_SEQS = cython.declare(cython.longlong, WORK_SCALARS.index("prefill_seqs"))
PREFILL_TOKENS = cython.declare(cython.longlong, WORK_SCALARS.index("prefill_tokens"))
SAMPLED_PREFILLS = cython.declare(cython.longlong, WORK_SCALARS.index("sampled_prefills"))
DECODE_SEQS = cython.declare(cython.longlong, WORK_SCALARS.index("decode_seqs"))
QUERY_LEN = cython.declare(cython.longlong, WORK_SCALARS.index("query_len"))
LONGEST_KV = cython.declare(cython.longlong, WORK_SCALARS.index("longest_kv"))
TAIL_KV = cython.declare(cython.longlong, WORK_SCALARS.index("tail_kv"))
DP_IMBALANCE = cython.declare(cython.longlong, WORK_SCALARS.index("dp_imbalance"))
TRIMMED = cython.declare(cython.longlong, WORK_SCALARS.index("trimmed"))


@cython.final
@cython.cclass
class Work:
    """Work of one engine step: the fields of ``StepWork``, with an entry per attention window in each column.

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
    """Ratio of all attention groups' tokens to the tokens counted here; 0 if there is one group."""
    trimmed: cython.longlong
    """Tokens of ``decode_seqs * query_len`` that the step does not verify."""
    slowest = cython.declare(object, visibility="public")
    """Work of the slowest attention group: the maximum over groups of every number; None if there is one group."""
    scratch: Any

    def __init__(self, windows: tuple[int | None, ...]) -> None:
        none = [0] * len(windows)
        self.slowest = self.scratch = None
        self.windows = array("q", [-1 if window is None else window for window in windows])
        self.kinds = len(windows)
        self.prefill_pairs = array("q", none)
        self.prefill_kv_tokens = array("q", none)
        self.sampled_kv_tokens = array("q", none)
        self.decode_kv_tokens = array("q", none)
        self.prefill_seqs = self.prefill_tokens = self.sampled_prefills = self.decode_seqs = self.longest_kv = 0
        self.trimmed = 0
        self.query_len = 1
        self.tail_kv = self.dp_imbalance = 0.0

    @cython.ccall
    def measure(self, plan: StepPlan, query_len: cython.longlong, longest: cython.longlong) -> None:
        """Set these fields from a plan; call before the step's tokens are committed.

        Args:
            plan: of the step.
            query_len: tokens of a decoding sequence.
            longest: number of longest decoding sequences whose contexts are kept for timing.
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
        self.trimmed = 0
        self.decode_seqs = plan.steady + len(plan.decodes) + len(plan.padding)
        plan.count()
        self.measure_keys(plan)
        self.longest_kv = 0
        self.tail_kv = 0.0
        if longest and self.decode_seqs:
            batch = [one.computed_tokens + query_len for one in [*plan.decodes, *plan.padding]]
            contexts = sorted(batch, reverse=True)[:longest]
            self.longest_kv = contexts[0]
            self.tail_kv = (len(contexts) * contexts[0] - sum(contexts)) / len(contexts)
        if plan.cut:
            self.trim(self.decode_seqs * query_len - plan.cut)

    @cython.cfunc
    def measure_keys(self, plan: StepPlan) -> None:
        """Take in the keys that the decoding sequences of a plan read."""
        part: StepPlan
        w: cython.longlong
        for w in range(self.kinds):
            if self.windows[w] < 0:
                self.decode_kv_tokens[w] = plan.cached + (plan.steady + len(plan.decodes)) * self.query_len
            else:
                self.decode_kv_tokens[w] = self._keys(plan.decodes, w)
                for part in plan.parts or [plan]:
                    self.decode_kv_tokens[w] += part.steady_keys[w] if part.steady else 0
            if plan.padding:
                self.decode_kv_tokens[w] += self._keys(plan.padding, w)

    @cython.ccall
    def trim(self, tokens: cython.longlong) -> None:
        """Let the decoding sequences verify ``tokens`` tokens together, in place of ``query_len`` each."""
        w: cython.longlong
        fewer: cython.longlong = self.decode_seqs * self.query_len - self.trimmed - tokens
        for w in range(self.kinds):
            self.decode_kv_tokens[w] -= fewer
        self.query_len = (tokens + self.decode_seqs - 1) // self.decode_seqs
        self.trimmed = self.decode_seqs * self.query_len - tokens

    @cython.cfunc
    def _measure_slowest(self, plan: StepPlan, query_len: cython.longlong, longest: cython.longlong) -> None:
        """Set ``slowest``, the work that every attention group waits for: groups meet at the experts of each layer."""
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
        """Raise every number to at least ``other``'s; copy ``other`` if it is the first."""
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
    def _keys(self, sequences: list[Sequence], w: cython.longlong) -> cython.longlong:
        """Keys that decoding sequences read within a window."""
        place: cython.longlong
        sequence: Sequence
        total: cython.longlong = 0
        most: cython.longlong = MANY if self.windows[w] < 0 else self.windows[w] + self.query_len - 1
        for place in range(len(sequences)):
            sequence = cython.cast(Sequence, sequences[place])
            total += min(sequence.computed_tokens + self.query_len, most)
        return total

    @cython.cfunc
    def put(self, numbers: cython.double[::1], at: cython.longlong) -> None:
        """Write ``StepWork.numbers`` into an array from an index on."""
        w: cython.longlong
        kinds: cython.longlong = self.kinds
        by_window: cython.longlong = at + WORK_COUNT
        numbers[at + PREFILL_SEQS] = self.prefill_seqs
        numbers[at + PREFILL_TOKENS] = self.prefill_tokens
        numbers[at + SAMPLED_PREFILLS] = self.sampled_prefills
        numbers[at + DECODE_SEQS] = self.decode_seqs
        numbers[at + QUERY_LEN] = self.query_len
        numbers[at + LONGEST_KV] = self.longest_kv
        numbers[at + TAIL_KV] = self.tail_kv
        numbers[at + DP_IMBALANCE] = self.dp_imbalance
        numbers[at + TRIMMED] = self.trimmed
        for w in range(kinds):
            numbers[by_window + w] = self.prefill_pairs[w]
            numbers[by_window + kinds + w] = self.prefill_kv_tokens[w]
            numbers[by_window + 2 * kinds + w] = self.sampled_kv_tokens[w]
            numbers[by_window + 3 * kinds + w] = self.decode_kv_tokens[w]

    def step_work(self) -> StepWork[int]:
        """Convert to the ``StepWork`` of timing models; with several attention groups, the work of the slowest."""
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
            trimmed=self.trimmed,
        )
