"""Records what a timing model computes for one step, so that the compiled engine can repeat it without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from hwprofiles.correction import Clipped
from hwprofiles.formulas import CODES, OPERATIONS, Num, Traced
from simulator.timing import DraftStep, StepWork
from simulator.timing.kernels import ByCount, CostTable
from simulator.timing.step import DecodeTable
from simulator.timing.work import DRAFT_SCALARS, work_numbers

BRANCH, END, BY_COUNT, BY_KEYS, BY_TERMS, BY_CALL = range(len(OPERATIONS), len(OPERATIONS) + 6)
"""Step operations that formulas do not have. The last four look up a number, by the kind of their source."""
KINDS: tuple[tuple[Num, int], ...] = (((CostTable, ByCount), BY_COUNT), (DecodeTable, BY_KEYS), (Clipped, BY_TERMS))
"""Types of the sources that the compiled engine looks up without Python."""
MOST_OPERANDS = 7
WIDTH = MOST_OPERANDS + 3
"""Numbers of a step: operation, place of its result, source of a look-up, places of operands (see ``Recording``)."""
EXTENDING = Lock()
"""Held while a recording grows or is read: threads may run engines on one timing model."""


class Known(Traced):
    """A number that records the operations applied to it, and which way the program branches on it."""

    __slots__ = ("value",)

    def __init__(self, book: Recording, place: int, value: Num) -> None:
        super().__init__(book, place)
        self.value = value

    def __floordiv__(self, other: Num) -> Num:
        return self.book.record("floor_divide", self, other)

    def __rfloordiv__(self, other: Num) -> Num:
        return self.book.record("floor_divide", other, self)

    def __neg__(self) -> Num:
        return self.book.record("multiply", self, -1)

    def __eq__(self, other: object) -> Num:
        return self.book.record("equal", self, other)

    __hash__ = None  # type: ignore[assignment]

    def __floor__(self) -> Num:
        whole = self.book.record("floor_divide", self, 1)
        whole.value = int(whole.value)
        return whole

    def __bool__(self) -> bool:
        outcome: bool = self.book.branch(self)
        return outcome

    def __int__(self) -> int:
        """The number itself; further operations are recorded only for this value."""
        self.book.specialise(self)
        return int(self.value)


class Recording:
    """Operations of a function for the arguments seen so far: a tree that forks at branches on a number.

    A step is ``WIDTH`` numbers: an operation, the place of its result among ``values``, the source of a look-up, and
    the places of operands. ``BRANCH`` holds (place of the condition, next step if it is not 0, next step if it is 0);
    -1 means not recorded yet. ``END`` holds the place of the first result, and the index in ``results`` of the places
    of all results.

    Args:
        function: of numbers; deterministic, its look-ups made by ``hwprofiles.formulas.look_up``.
        arguments: how many.
    """

    def __init__(self, function: Callable[..., Any], arguments: int) -> None:
        self._function = function
        self._arguments = arguments
        self._next = 0
        """Index of the step that is recorded, or repeated, next."""
        self._constants: dict[float, int] = {}
        self._computed: dict[tuple[int, ...], int] = {}
        """Places of the results of this way through the function, by operation, source and places of operands."""
        self._branched: set[int] = set()
        self._specialised: set[int] = set()
        self.steps: list[list[int]] = []
        self.values = [0.0] * arguments
        self.sources: list[tuple[int, Any, int]] = []
        """Operation, source, number of operands."""
        self.tables: dict[str, list[Any]] = {}
        """Look-up sources in the engine's form, by the checksum of the engine."""
        self.results: list[list[int]] = []

    def extend(self, arguments: Sequence[float]) -> None:
        """Record the steps for some arguments."""
        self._next = 0
        self._computed, self._branched, self._specialised = {}, set(), set()
        result = self._function(*(Known(self, place, value) for place, value in enumerate(arguments)))
        places = [self._place(one) for one in (result if isinstance(result, list) else [result])]
        if self._next == len(self.steps):
            self._step(END, places[0], len(self.results))
            self.results.append(places)

    def record(self, operation: str, *operands: Num) -> Known:
        """Record an operation of ``OPERATIONS``."""
        value = OPERATIONS[operation](*map(_value, operands))
        return self._recorded(CODES[operation], 0, operands, value)

    def look_up(self, source: Callable[..., Any], operands: tuple[Any, ...]) -> Known:
        """Record the call of a source: a table, a correction, or a function that cannot be recorded itself."""
        place = next((place for place, (_, known, _) in enumerate(self.sources) if known is source), None)
        if place is None:
            kind = next((kind for types, kind in KINDS if isinstance(source, types)), BY_CALL)
            place = len(self.sources)
            self.sources.append((kind, source, len(operands)))
        return self._recorded(self.sources[place][0], place, operands, source(*map(_value, operands)))

    def branch(self, condition: Known) -> bool:
        """Record the truth of a condition, True or False, unless it follows from an earlier branch."""
        if condition.place in self._branched:
            return bool(condition.value)
        self._branched.add(condition.place)
        if self._next == len(self.steps):
            self._step(BRANCH, condition.place, -1, -1)
            self._next -= 1
        step, way = self.steps[self._next], 2 if condition.value else 3
        if step[way] < 0:
            step[way] = len(self.steps)
        self._next = step[way]
        return bool(condition.value)

    def specialise(self, known: Known) -> None:
        """Branch on the numbers that ``known`` has had here, one after the other, up to its present one."""
        if known.place in self._specialised:
            return
        self._specialised.add(known.place)
        alike = False
        while not alike and self._next < len(self.steps):
            earlier = self.values[self.steps[self._next][4]]
            alike = self.branch(self.record("equal", known, earlier))
        if not alike:
            self.branch(self.record("equal", known, known.value))

    def _recorded(self, operation: int, source: int, operands: tuple[Num, ...], value: Num) -> Known:
        key = (operation, source, *map(self._place, operands))
        if key not in self._computed:
            if self._next == len(self.steps):
                self.values.append(0.0)
                self._step(operation, len(self.values) - 1, *key[1:])
            else:
                self._next += 1
            self._computed[key] = self.steps[self._next - 1][1]
        return Known(self, self._computed[key], value)

    def _step(self, *numbers: int) -> None:
        self.steps.append([*numbers, *[0] * (WIDTH - len(numbers))])
        self._next = len(self.steps)

    def _place(self, number: Num) -> int:
        """Place of an operand."""
        if isinstance(number, Known):
            return number.place
        constant = float(number)
        if constant not in self._constants:
            self._constants[constant] = len(self.values)
            self.values.append(constant)
        return self._constants[constant]


def numbers_of(work: StepWork[Num], draft: DraftStep[Num] | None) -> list[Num]:
    """The numbers of a step that a recorded function takes."""
    return work.numbers if draft is None else [*work.numbers, *draft.numbers]


def recorded(timer: Num, name: str, drafting: bool = False) -> Recording:
    """Recording of a timing model's method: of a ``StepWork``, and of a ``DraftStep`` where a policy decides on the
    drafts. All engines share it if the model has a field ``recordings``; extend and read it holding ``EXTENDING``."""
    with EXTENDING:
        recordings: dict[Any, Recording] = getattr(timer, "recordings", {})
        if (name, drafting) not in recordings:
            recordings[name, drafting] = _of_steps(getattr(timer, name), len(timer.windows), drafting)
        return recordings[name, drafting]


def _of_steps(function: Callable[..., Any], windows: int, drafting: bool) -> Recording:
    size = work_numbers(windows)

    def of_numbers(*numbers: Num) -> Num:
        work = StepWork.of_numbers(numbers[:size])
        return function(work, DraftStep.of_numbers(numbers[size:])) if drafting else function(work)

    return Recording(of_numbers, size + (DRAFT_SCALARS + 2 * windows if drafting else 0))


def _value(number: Num) -> Num:
    return number.value if isinstance(number, Known) else number
