"""Seconds of a step: the timing model's computation, repeated from a recording without Python."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from hwprofiles.formulas import CODES
from simulator.serving.engine.common import NAN, SOURCE, ceil, cython, exp, floor, isnan, log, log2, pow
from simulator.serving.engine.drafting import DraftWork
from simulator.serving.engine.work import WORK_COUNT, Work
from simulator.serving.recording import (
    BRANCH,
    BY_COUNT,
    BY_KEYS,
    BY_TERMS,
    END,
    EXTENDING,
    WIDTH,
    numbers_of,
    recorded,
)
from simulator.timing import StagedTimer, tracked_longest
from simulator.timing.kernels import CostTable

ADD = cython.declare(cython.longlong, CODES["add"])
SUBTRACT = cython.declare(cython.longlong, CODES["subtract"])
MULTIPLY = cython.declare(cython.longlong, CODES["multiply"])
DIVIDE = cython.declare(cython.longlong, CODES["divide"])
POWER = cython.declare(cython.longlong, CODES["power"])
MAXIMUM = cython.declare(cython.longlong, CODES["maximum"])
MINIMUM = cython.declare(cython.longlong, CODES["minimum"])
CEIL = cython.declare(cython.longlong, CODES["ceil"])
WHERE = cython.declare(cython.longlong, CODES["where"])
LESS = cython.declare(cython.longlong, CODES["less"])
AT_MOST = cython.declare(cython.longlong, CODES["at_most"])
BOTH = cython.declare(cython.longlong, CODES["both"])
LOG = cython.declare(cython.longlong, CODES["log"])
LOG2 = cython.declare(cython.longlong, CODES["log2"])
EXP = cython.declare(cython.longlong, CODES["exp"])
EQUAL = cython.declare(cython.longlong, CODES["equal"])
BRANCH_STEP = cython.declare(cython.longlong, BRANCH)
END_STEP = cython.declare(cython.longlong, END)
COUNT_STEP = cython.declare(cython.longlong, BY_COUNT)
KEYS_STEP = cython.declare(cython.longlong, BY_KEYS)
TERMS_STEP = cython.declare(cython.longlong, BY_TERMS)


@cython.final
@cython.cclass
class Repeated:
    """Values of a program at a decode step, for later steps that differ only in their keys."""

    values: cython.double[::1]
    steps: cython.longlong[::1]
    """Steps of the program that depend on the keys: operation, place of the result, source, places of operands."""
    result: cython.longlong
    usable = cython.declare(cython.bint, visibility="public")

    def __init__(self) -> None:
        self.values, self.steps = array("d"), array("q")
        self.result = 0
        self.usable = False


@cython.cclass
class Prices:
    """Seconds of a step: here computed by the timing model for every step."""

    timer = cython.declare(object, visibility="public")
    longest = cython.declare(cython.longlong, visibility="public")
    """Number of longest decoding sequences whose contexts a step's time depends on."""

    def __init__(self, timer: Any) -> None:
        self.timer = timer
        self.longest = tracked_longest(timer)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, work: Work, draft: DraftWork | None) -> cython.double:
        """Seconds of one step, in which the drafter does ``draft`` where a policy decides on it."""
        if draft is None:
            return self.timer.seconds(work.step_work())
        return self.timer.seconds(work.step_work(), draft.step)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds_again(self, work: Work, repeated: Repeated) -> cython.double:
        """Seconds of a step that differs from the previous one only in its keys, if ``repeated`` is usable."""
        return self.seconds(work, None)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds_of(self, work: Any, draft: Any) -> cython.double:
        """Seconds of a ``StepWork`` in which the drafter does a ``DraftStep``."""
        return self.timer.seconds(work, draft)

    @cython.ccall
    def stage_seconds(self, work: Work) -> list[Any]:
        """Seconds that a batch keeps each stage of a pipeline busy, its P2P send included."""
        return self.timer.stage_seconds(work.step_work())

    @cython.ccall
    def host_seconds(self, work: Work) -> cython.double:
        """Seconds of the scheduler before a batch enters the first stage."""
        return self.timer.host_seconds(work.step_work())


@cython.exceptval(-1, check=True)
@cython.cfunc
@cython.inline
def _computed(
    operation: cython.longlong, first: cython.double, second: cython.double, third: cython.double
) -> cython.double:
    """Result of one of ``hwprofiles.formulas.OPERATIONS``."""
    if operation == ADD:
        return first + second
    if operation == SUBTRACT:
        return first - second
    if operation == MULTIPLY:
        return first * second
    if operation == DIVIDE:
        return first / second
    if operation == POWER:
        return pow(first, second)
    if operation == MAXIMUM:
        return second if second > first else first
    if operation == MINIMUM:
        return second if second < first else first
    if operation == CEIL:
        return ceil(first)
    if operation == WHERE:
        return second if first != 0.0 else third
    if operation == LESS:
        return 1.0 if first < second else 0.0
    if operation == AT_MOST:
        return 1.0 if first <= second else 0.0
    if operation == BOTH:
        return 1.0 if first != 0.0 and second != 0.0 else 0.0
    if operation == LOG:
        return log(first)
    if operation == LOG2:
        return log2(first)
    if operation == EXP:
        return exp(first)
    if operation == EQUAL:
        return 1.0 if first == second else 0.0
    return floor(first / second)


@cython.final
@cython.cclass
class Column:
    """Seconds by a count: a ``ByCount``, or a ``CostTable``, which computes each count once."""

    table: Any
    values: cython.double[::1]
    size: cython.longlong

    def __init__(self, table: Any) -> None:
        self.table = table
        known = np.full(table.most + 1, NAN) if isinstance(table, CostTable) else table.values
        self.values = np.ascontiguousarray(known, dtype=np.float64)
        self.size = len(known)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def at(self, count: cython.longlong) -> cython.double:
        """Seconds for ``count``."""
        if count < 0 or count >= self.size:
            raise IndexError(f"no price for {count}: the table ends at {self.size - 1}")
        if isnan(self.values[count]):
            self.values[count] = self.table(count)
        return self.values[count]


@cython.final
@cython.cclass
class DecodeRow:
    """Decode attention of one batch size by keys. Values at equally spaced contexts, as ``DecodeTable`` keeps them (NaN
    where none was requested)."""

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
    _latest: DecodeRow | None
    """The row that was used last, of ``_seqs`` sequences of ``_query_len`` tokens."""
    _seqs: cython.longlong
    _query_len: cython.longlong

    def __init__(self, table: Any) -> None:
        self.table = table
        self.rows = {}
        self._latest = None
        self._seqs = self._query_len = 0

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def at(self, seqs: cython.longlong, query_len: cython.longlong, keys: cython.longlong) -> cython.double:
        """Seconds for ``keys`` keys in all."""
        cell: cython.longlong
        low: cython.double
        row: DecodeRow | None = self._latest
        if row is None or seqs != self._seqs or query_len != self._query_len or keys >= row.reach:
            row = self._row(seqs, query_len, keys)
        cell = keys // row.width
        if isnan(row.points[cell]) or isnan(row.points[cell + 1]):
            self.rows[query_len][seqs] = None
            row = self._row(seqs, query_len, keys)
        low = row.points[cell]
        return low + (keys - cell * row.width) * ((row.points[cell + 1] - low) / row.width)

    @cython.cfunc
    def _row(self, seqs: cython.longlong, query_len: cython.longlong, keys: cython.longlong) -> DecodeRow:
        """Row of ``seqs`` sequences, computed by the table if it is not known as far as ``keys``."""
        of_length: list[Any] = self.rows.setdefault(query_len, [])
        while len(of_length) <= seqs:
            of_length.append(None)
        row: DecodeRow = of_length[seqs]
        if row is None or keys >= row.reach:
            row = of_length[seqs] = DecodeRow(*self.table.row(seqs, query_len, keys))
        self._latest, self._seqs, self._query_len = row, seqs, query_len
        return row


@cython.final
@cython.cclass
class Terms:
    """Sum of a learned correction for one kernel: ``hwprofiles.correction.Clipped``, to the bit."""

    lines: cython.double[:, ::1]
    """Constant and slopes of the first line of every term, then of the second, and so on: lines x terms."""
    low: cython.double[::1]
    high: cython.double[::1]
    gain: cython.double[::1]
    line: cython.double[::1]
    best: cython.double[::1]

    def __init__(self, clipped: Any) -> None:
        terms, parts, width = clipped.lines.shape
        self.lines = np.ascontiguousarray(clipped.lines.transpose(1, 2, 0)).reshape(parts * width, terms)
        self.low, self.high, self.gain = map(np.ascontiguousarray, clipped[1:])
        self.line, self.best = np.empty(terms), np.empty(terms)

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def total(self, values: cython.double[::1], places: cython.longlong[::1], width: cython.longlong) -> cython.double:
        """For the ``width - 1`` values that stand at ``places``."""
        t: cython.longlong
        row: cython.longlong
        value: cython.double
        total: cython.double = 0.0
        terms: cython.longlong = len(self.gain)
        lines: cython.double[:, ::1] = self.lines
        line: cython.double[::1] = self.line
        best: cython.double[::1] = self.best
        for row in range(len(lines)):
            if row % width == 0:
                for t in range(terms):
                    line[t] = lines[row, t]
            else:
                value = values[places[row % width - 1]]
                for t in range(terms):
                    line[t] = line[t] + lines[row, t] * value
            if row % width == width - 1:
                for t in range(terms):
                    best[t] = line[t] if row < width or line[t] > best[t] else best[t]
        for t in range(terms):
            total += self.gain[t] * min(max(best[t], self.low[t]), self.high[t])
        return total


@cython.final
@cython.cclass
class Program:
    """A function of a timing model, repeated as it was recorded (``simulator.serving.recording``), bit for bit.

    Args:
        recording: of a function of a ``StepWork``, and of a ``DraftStep`` where a policy decides on the drafts;
            shared by all programs of a timing model.
    """

    recording: Any
    steps: cython.longlong[:, ::1]
    values: cython.double[::1]
    sources: list[Any]
    """A ``Column``, ``DecodePrices``, ``Terms`` or function for each source of the recording; shared like it."""
    operands: cython.longlong[::1]
    """Number of operands of each operation."""
    _by_keys: dict[Any, Any]
    """``Repeated.steps`` by the step at which the function ends; None if it has to run as a whole."""

    def __init__(self, recording: Any) -> None:
        self.recording = recording
        self._by_keys = {}
        self.sources = recording.tables.setdefault(SOURCE, [])
        with EXTENDING:
            self._load()

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds(self, work: Work, draft: DraftWork | None) -> cython.double:
        """The first result for a step."""
        end: cython.longlong = self._end(work, draft)
        return self.values[self.steps[end, 1]]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds_again(self, work: Work, repeated: Repeated) -> cython.double:
        """First result for a step that differs from the previous one only in keys, if ``repeated`` is usable."""
        w: cython.longlong
        end: cython.longlong
        first: cython.double
        second: cython.double
        third: cython.double
        if not repeated.usable:
            end = self._end(work, None)
            if end not in self._by_keys:
                self._by_keys[end] = self._steps_by_keys(end, work)
            by_keys = self._by_keys[end]
            if by_keys is not None:
                repeated.usable, repeated.steps, repeated.result = True, by_keys, self.steps[end, 1]
                if len(repeated.values) < len(self.values):
                    repeated.values = array("d", [0.0]) * len(self.values)
                repeated.values[: len(self.values)] = self.values
            return self.values[self.steps[end, 1]]
        values: cython.double[::1] = repeated.values
        steps: cython.longlong[::1] = repeated.steps
        for w in range(work.kinds):
            values[WORK_COUNT + 3 * work.kinds + w] = work.decode_kv_tokens[w]
        for w in range(0, len(steps), 6):
            first, second, third = values[steps[w + 3]], values[steps[w + 4]], values[steps[w + 5]]
            if steps[w] < BRANCH_STEP:
                values[steps[w + 1]] = _computed(steps[w], first, second, third)
            else:
                values[steps[w + 1]] = self._in_table(steps[w], steps[w + 2], first, second, third)
        return values[repeated.result]

    @cython.cfunc
    def _steps_by_keys(self, end: cython.longlong, work: Work) -> Any:
        """The steps on the latest way, to ``end``, that depend on the keys, 6 numbers each; None if it branches on
        them or looks them up in anything but a table."""
        step: cython.longlong = 0
        moved = {WORK_COUNT + 3 * work.kinds + w for w in range(work.kinds)}
        kept = array("q")
        while step != end:
            operation, place, *_ = numbers = list(self.steps[step])
            if operation == BRANCH_STEP:
                if place in moved:
                    return None
                step = numbers[2] if self.values[place] != 0.0 else numbers[3]
                continue
            if not moved.isdisjoint(numbers[3:]):
                if operation > KEYS_STEP:
                    return None
                moved.add(place)
                kept.extend(numbers[:6])
            step += 1
        return kept

    @cython.cfunc
    def results(self, work: Work) -> list[Any]:
        """All results for a step."""
        end: cython.longlong = self._end(work, None)
        return [self.values[place] for place in self.recording.results[self.steps[end, 2]]]

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _end(self, work: Work, draft: DraftWork | None) -> cython.longlong:
        """The step at which the function ends; a new way through it is recorded first."""
        end: cython.longlong
        if work.slowest is not None:
            work = work.slowest
        while True:
            work.put(self.values, 0)
            if draft is not None:
                draft.put(self.values, WORK_COUNT + 4 * work.kinds)
            end = self._run()
            if end >= 0:
                return end
            self._extend(numbers_of(work.step_work(), None if draft is None else draft.step))

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def seconds_of(self, numbers: list[Any]) -> cython.double:
        """The first result for the numbers of a step."""
        place: cython.longlong
        end: cython.longlong = -1
        while end < 0:
            for place in range(len(numbers)):
                self.values[place] = numbers[place]
            end = self._run()
            if end < 0:
                self._extend(numbers)
        return self.values[self.steps[end, 1]]

    @cython.cfunc
    def _extend(self, numbers: list[Any]) -> None:
        """Record a new way through the function, or take over what others have recorded."""
        with EXTENDING:
            if len(self.recording.steps) == len(self.steps):
                self.recording.extend(numbers)
            self._load()

    @cython.cfunc
    def _load(self) -> None:
        """Copy the recorded operations."""
        recording = self.recording
        for operation, source, _ in recording.sources[len(self.sources) :]:
            if operation == BY_COUNT:
                self.sources.append(Column(source))
            elif operation == BY_KEYS:
                self.sources.append(DecodePrices(source))
            elif operation == BY_TERMS:
                self.sources.append(Terms(source))
            else:
                self.sources.append(source)
        self.operands = array("q", [operands for _, _, operands in recording.sources])
        self.steps = np.array(recording.steps, dtype=np.int64).reshape(-1, WIDTH)
        self.values = array("d", recording.values)

    @cython.exceptval(-2, check=True)
    @cython.cfunc
    def _run(self) -> cython.longlong:
        """Compute the values; returns the step at which the function ends, -1 if this path was not recorded."""
        operation: cython.longlong
        step: cython.longlong = 0
        count: cython.longlong = len(self.steps)
        steps: cython.longlong[:, ::1] = self.steps
        values: cython.double[::1] = self.values
        while 0 <= step < count:
            operation = steps[step, 0]
            if operation < BRANCH_STEP:
                values[steps[step, 1]] = _computed(
                    operation, values[steps[step, 3]], values[steps[step, 4]], values[steps[step, 5]]
                )
            elif operation == BRANCH_STEP:
                step = steps[step, 2] if values[steps[step, 1]] != 0.0 else steps[step, 3]
                continue
            elif operation == END_STEP:
                return step
            elif operation <= KEYS_STEP:
                values[steps[step, 1]] = self._in_table(
                    operation,
                    steps[step, 2],
                    values[steps[step, 3]],
                    values[steps[step, 4]],
                    values[steps[step, 5]],
                )
            else:
                values[steps[step, 1]] = self._looked_up(operation, step)
            step += 1
        return -1

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    @cython.inline
    def _in_table(
        self,
        operation: cython.longlong,
        source: cython.longlong,
        count: cython.double,
        query_len: cython.double,
        keys: cython.double,
    ) -> cython.double:
        table = self.sources[source]
        seqs: cython.longlong = cython.cast(cython.longlong, count)
        if operation == COUNT_STEP:
            return cython.cast(Column, table).at(seqs)
        return cython.cast(DecodePrices, table).at(
            seqs, cython.cast(cython.longlong, query_len), cython.cast(cython.longlong, keys)
        )

    @cython.exceptval(-1, check=True)
    @cython.cfunc
    def _looked_up(self, operation: cython.longlong, step: cython.longlong) -> cython.double:
        steps: cython.longlong[:, ::1] = self.steps
        values: cython.double[::1] = self.values
        source = self.sources[steps[step, 2]]
        operands: cython.longlong = self.operands[steps[step, 2]]
        if operation == TERMS_STEP:
            return cython.cast(Terms, source).total(values, steps[step, 3:], operands + 1)
        return source(*[values[steps[step, 3 + place]] for place in range(operands)])


@cython.final
@cython.cclass
class RecordedPrices(Prices):
    """Prices of a timing model as recorded from it, for models that compute the same for the same step."""

    step: Program
    drafted: Program
    stages: Program
    """Programs of the stages of a pipeline, and of the host before them; absent otherwise."""
    host: Program

    def __init__(self, timer: Any) -> None:
        Prices.__init__(self, timer)
        self.step = Program(recorded(timer, "seconds"))
        self.drafted = Program(recorded(timer, "seconds", drafting=True))
        if isinstance(timer, StagedTimer):
            self.stages = Program(recorded(timer, "stage_seconds"))
            self.host = Program(recorded(timer, "host_seconds"))

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds(self, work: Work, draft: DraftWork | None) -> cython.double:
        return (self.step if draft is None else self.drafted).seconds(work, draft)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds_again(self, work: Work, repeated: Repeated) -> cython.double:
        if work.slowest is not None:
            return self.step.seconds(work, None)
        return self.step.seconds_again(work, repeated)

    @cython.exceptval(-1, check=True)
    @cython.ccall
    def seconds_of(self, work: Any, draft: Any) -> cython.double:
        program = self.step if draft is None else self.drafted
        return program.seconds_of(numbers_of(work, draft))

    @cython.ccall
    def stage_seconds(self, work: Work) -> list[Any]:
        return self.stages.results(work)

    @cython.ccall
    def host_seconds(self, work: Work) -> cython.double:
        return self.host.seconds(work, None)
