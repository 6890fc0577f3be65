"""The best number of draft tokens by batch and context for one model, chip and acceptance; no run needed.

The speed-up of a cell is the time of an output token without drafting over its time with drafting (``token_time``), in
steps that decode sequences of equal context and prefill the prompts of the batch's other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from forerun.arrays import FloatArray, IntArray
from forerun.errors import ArgumentError
from hwprofiles import weakest
from simulator.running.build import Build, build_replica
from simulator.running.run import measured_build
from simulator.running.scenario import Scenario
from simulator.studies.assumed import ACCEPTANCE, assumed_parameters
from simulator.studies.tune.choices import DraftChoice, draft_choices
from simulator.studies.tune.grid import roomy
from simulator.studies.tune.spread import (
    Factors,
    PricedKernels,
    Spread,
    added,
    assumed_spread,
    kernel_spread,
    moved,
)
from simulator.studies.tune.token_time import BusySteps, MeanRequest, TokenTime, busy_steps, mean_request
from simulator.studies.unshared import unshared_ends
from simulator.timing import ModelTimer

CONTEXTS = (512, 2048, 8192, 32768)
"""Default context lengths in tokens."""
USUAL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

NEARLY = 0.99
"""Share of the highest speed-up above which fewer draft tokens are preferred; kernel times are not more accurate."""


def fewest_nearly_best(speedups: FloatArray) -> IntArray:
    """Index of the first speed-up within 1 % of the best, fewest draft tokens first.

    >>> fewest_nearly_best(np.array([[1.2, 1.0], [1.5, 0.9], [1.51, 0.8]])).tolist()
    [1, 0]
    """
    first: IntArray = np.argmax(speedups >= NEARLY * speedups.max(axis=0), axis=0)
    return first


def up_to(most: int, usual: Sequence[int]) -> tuple[int, ...]:
    """Values of ``usual`` below ``most``, and ``most`` itself."""
    return (*(value for value in usual if value < most), most)


def stretches(values: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Integer range of each ascending value: first and last integer nearest to it in logarithms, without gaps."""
    if not values:
        return ()
    ends = [isqrt(low * high) for low, high in pairwise(values)]
    starts = [values[0], *(end + 1 for end in ends)]
    return tuple(zip(starts, [*ends, values[-1]], strict=True))


@dataclass(frozen=True, slots=True)
class GridCell:
    """A range of batches and contexts, judged at one batch and context inside it."""

    batch: tuple[int, int]
    context: tuple[int, int]
    at_batch: int
    at_context: int
    best: DraftChoice
    """The best way to draft, even if it does not pay; its speed-up and interval follow."""
    best_speedup: float
    best_low: float
    best_high: float
    fits: bool
    """True if the batch at that context fits in the KV cache."""
    sure: bool
    """True if drafting pays over the whole range of parameters, at any evidence level."""

    @property
    def choice(self) -> DraftChoice | None:
        """Best way to draft; None if no way to draft pays."""
        return self.best if self.best_speedup > 1.0 else None

    @property
    def speedup(self) -> float:
        """Speed-up of ``choice``; 1 if no way to draft pays."""
        return max(self.best_speedup, 1.0)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Break-even acceptance length, at a batch of mean requests."""

    batch: int
    choice: DraftChoice
    acceptance_length: float
    low: float
    high: float
    expected_length: float
    """Acceptance length, in tokens per verify step, under the scenario's acceptance."""


class PricedChoices(NamedTuple):
    """Times of an output token behind a tuning, in every cell."""

    grid: CellGrid
    plain_s: FloatArray
    """Seconds per output token without drafting."""
    times: tuple[TokenTime, ...]
    """Token times of each choice."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Result of a tuning: cells, break-evens and loads."""

    scenario: Scenario
    choices: tuple[DraftChoice, ...]
    cells: tuple[GridCell, ...]
    """Cells ordered by context, then by ascending batch."""
    mean: tuple[GridCell, ...]
    """Cells at the mean request's context, by batch."""
    mean_context: int
    prompt_tokens: int
    output_tokens: int
    break_even: tuple[BreakEven, ...]
    """Break-even of ``cells``, then of ``mean``."""
    priced: PricedChoices
    kv_tokens: int
    basis: str
    notes: tuple[str, ...]
    memory: dict[str, float] | None
    """Memory of one chip in bytes, by use, with the limits of the largest number of draft tokens."""

    def mean_speedups(self, added_s: FloatArray | float = 0.0) -> FloatArray:
        """Speed-ups at the mean request's context: [choice, batch]. The first row is without drafting.

        Args:
            added_s: seconds to add to every priced step, by batch.
        """
        grid, plain_s, times = self.priced
        lengths = [np.ones_like(plain_s), *(choice.length(grid.contexts) for choice in self.choices)]
        seconds = [plain_s, *(time.seconds(length) for time, length in zip(times, lengths[1:], strict=True))]
        at_mean = slice(len(self.cells), None)
        return np.array(
            [plain_s[at_mean] / (s[at_mean] + added_s / n[at_mean]) for s, n in zip(seconds, lengths, strict=True)]
        )


def find_drafts(
    scenario: Scenario,
    batches: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Find the best way to draft in every cell of batches and contexts."""
    most_seqs, limit = scenario.engine.max_num_seqs, scenario.engine.max_model_len
    axis = tuple(batches or up_to(most_seqs, USUAL_BATCHES))
    lengths = tuple(contexts or up_to(min(limit or CONTEXTS[-1], CONTEXTS[-1]), CONTEXTS))
    if limit is not None and max(lengths) > limit:
        raise ArgumentError("context", f"{max(lengths)}: engine.max_model_len is {limit}; choose contexts up to that")
    if max(axis) > most_seqs:
        raise ArgumentError(
            "batch",
            f"{max(axis)}: engine.max_num_seqs is {most_seqs}; choose batches up to that, or "
            f"raise it (engine.max_num_seqs={max(axis)})",
        )
    choices = draft_choices(scenario, tokens)
    plain = scenario.with_values({"speculation.method": "none"})
    built = build_replica(plain, 0)
    request = mean_request(plain, built)
    mean = request.context_tokens
    grid = CellGrid(axis, (*lengths, mean), max(axis), max(choice.tokens for choice in choices), request)
    notes, basis = list(built.notes), built.basis
    without = grid.token_time(plain, np.ones(len(grid.seqs)), {})
    before = without.seconds(1.0)
    times = []
    for done, choice in enumerate(choices):
        if progress is not None:
            progress(done, len(choices) + 1)
        times.append(grid.token_time(choice.scenario, choice.length(grid.contexts), {}))
    speedups = [before / time.seconds(one.length(grid.contexts)) for time, one in zip(times, choices, strict=True)]
    winners = fewest_nearly_best(np.array(speedups))
    spreads = choice_spreads(scenario, plain, [choices[i] for i in sorted(set(winners.tolist()))], grid)
    drafted = build_replica(choices[-1].scenario, 0)
    basis = weakest((basis, drafted.basis))
    notes += [note for note in drafted.notes if note not in notes]
    capacity = drafted.memory.num_blocks * drafted.memory.block_size
    fits = grid.seqs * grid.contexts <= capacity
    cells = []
    for index in range(len(grid.seqs)):
        choice, values = choices[winners[index]], speedups[winners[index]]
        speedup, low, high = (float(end[index]) for end in (values, *spreads[choice.name].all.ends(values)))
        ends = unshared_ends(plain.model_dump(), choice.scenario.model_dump(), basis, speedup, low, high)
        cells.append(GridCell(*grid.places(index), choice, speedup, *ends, bool(fits[index]), low > 1.0))
    split = len(axis) * len(lengths)
    chosen_cells = tuple(cells[split:])

    if progress is not None:
        progress(len(choices) + 1, len(choices) + 1)
    return Tuning(
        scenario=scenario,
        choices=choices,
        cells=tuple(cells[:split]),
        mean=chosen_cells,
        mean_context=mean,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        break_even=tuple(
            _break_even(cell, times[winners[index]], before, spreads[cell.best.name].timing, index)
            for index, cell in enumerate(cells)
        ),
        priced=PricedChoices(grid, before, tuple(times)),
        kv_tokens=capacity,
        basis=basis,
        notes=tuple(notes),
        memory=drafted.memory.split,
    )


def _break_even(cell: GridCell, drafted: TokenTime, plain_s: FloatArray, timing: Spread, index: int) -> BreakEven:
    """Break-even acceptance length of a cell, and its interval from errors of timing."""
    expected = float(cell.best.length(np.array([cell.at_context]))[0])
    factors = (np.exp(timing.up), 1.0, np.exp(-timing.down))
    low, needed, high = (float(drafted.length_for(plain_s * factor)[index]) for factor in factors)
    return BreakEven(cell.at_batch, cell.best, needed, low, high, expected)


class _Spreads(NamedTuple):
    timing: Spread
    all: Spread


def choice_spreads(
    scenario: Scenario, plain: Scenario, choices: Sequence[DraftChoice], grid: CellGrid
) -> dict[str, _Spreads]:
    """Intervals of every choice that is best in some cell."""
    parameters = list(assumed_parameters(scenario).values())
    accepted = next((p for p in parameters if p.name == ACCEPTANCE), None)
    memory: dict[tuple[str, tuple[tuple[str, float], ...]], TokenTime] = {}

    def priced(one: Scenario, factors: Factors, length: FloatArray) -> TokenTime:
        key = (one.model_dump_json(), tuple(sorted(factors.items())))
        if key not in memory:
            memory[key] = grid.token_time(one, length, factors)
        return memory[key]

    def token_seconds(length: FloatArray) -> Callable[[Scenario, Factors], FloatArray]:
        return lambda one, factors: priced(one, factors, length).seconds(length)

    ones, spreads = np.ones(len(grid.seqs)), {}
    without = grid.kernels(plain, ones)
    for choice in choices:
        length = choice.length(grid.contexts)
        sides = ((plain, token_seconds(ones)), (choice.scenario, token_seconds(length)))
        kernels = kernel_spread(without, grid.kernels(choice.scenario, length))
        timing = added([kernels, assumed_spread(*sides, parameters)])
        both = [timing]
        if accepted is not None:
            time = priced(choice.scenario, {}, length)
            lengths = (choice.length(grid.contexts, factor) for factor in (1.0, accepted.low, accepted.high))
            both.append(moved(*(1.0 / time.seconds(one) for one in lengths)))
        spreads[choice.name] = _Spreads(timing, added(both))
    return spreads


class CellGrid:
    """All cells of a tuning, ordered by context, then by batch."""

    def __init__(
        self, batches: Sequence[int], contexts: Sequence[int], most_seqs: int, most_tokens: int, request: MeanRequest
    ) -> None:
        self.seqs: IntArray = np.tile(np.asarray(batches, np.int64), len(contexts))
        self.contexts: IntArray = np.repeat(np.asarray(contexts, np.int64), len(batches))
        self._batches = stretches(batches)
        self._contexts = (*stretches(contexts[:-1]), (contexts[-1], contexts[-1]))
        self._most = most_seqs, most_tokens
        self._request = request

    def at(self, batches: Sequence[int], context: int) -> CellGrid:
        """Grid of the given batches at one context."""
        return CellGrid(batches, (context,), max(batches), self._most[1], self._request)

    def places(self, index: int) -> tuple[tuple[int, int], tuple[int, int], int, int]:
        """Range of batches and range of contexts of a cell, and the batch and context at which it is judged."""
        row, column = divmod(index, len(self._batches))
        return self._batches[column], self._contexts[row], int(self.seqs[index]), int(self.contexts[index])

    def token_time(self, scenario: Scenario, length: FloatArray, factors: Factors, drafting: float = 1.0) -> TokenTime:
        build, _ = measured_build(build_replica(roomy(scenario, *self._most), 0, factors=factors))
        return self._steps(scenario, build, length).seconds(build.main, drafting)

    def kernels(self, scenario: Scenario, length: FloatArray) -> list[PricedKernels]:
        """The target's kernels in both kinds of steps of every cell, and the library that priced the kernels."""
        build = build_replica(roomy(scenario, *self._most), 0)
        timer = build.main.timer
        assert isinstance(timer, ModelTimer)
        library, steps = timer.target.deployment.kernels, self._steps(scenario, build, length)
        return [
            PricedKernels(library, list(timer.target.kernels(timer.scored(work))), share)
            for work, share in zip((steps.decoding, steps.joined), steps.shares(length), strict=True)
        ]

    def _steps(self, scenario: Scenario, build: Build, length: FloatArray) -> BusySteps:
        return busy_steps(scenario, build, self._request, self.seqs, self.contexts, length)
