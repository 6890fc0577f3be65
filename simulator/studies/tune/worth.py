"""Gain of a better drafter by load: acceptance, window, drafting time, retraining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.arrays import FloatArray
from forerun.document import DocumentPart
from simulator.running.metrics.usage import HOURS_PER_MONTH
from simulator.studies.assumed import ACCEPTANCE_FACTORS
from simulator.studies.tune.choices import DraftChoice
from simulator.studies.tune.token_time import TokenTime
from simulator.studies.tune.tuning import Tuning

LONGER = 0.1
RETRAINED = 1.05
"""Assumed factor on every conditional rate for a retrained drafter."""
HALF = 0.5


@dataclass(frozen=True)
class DraftWorth(DocumentPart):
    """Gain of one improvement of the drafter at one batch of the mean request."""

    improvement: str
    batch: int
    gain: float
    """Ratio of output tokens per second to the current best choice; both may be without drafting."""
    low: float
    high: float
    usd_per_month: float | None
    """Saving on a replica that is always busy at this batch, for the same tokens; None without prices."""


Lengths = Callable[[DraftChoice, float], FloatArray]


def draft_worth(tuning: Tuning) -> list[DraftWorth]:
    """Gain of each improvement of the drafter by batch, at the mean request's context.

    For the interval, every acceptance rate of both sides is changed by the error of an assumed acceptance; errors of
    kernel times affect the same kernels on both sides and cancel.
    """
    grid, plain_s, times = tuning.priced
    contexts, choices = grid.contexts, tuning.choices

    def as_is(choice: DraftChoice, factor: float) -> FloatArray:
        return choice.length(contexts, factor)

    def longer(choice: DraftChoice, factor: float) -> FloatArray:
        return np.minimum(as_is(choice, factor) + LONGER, len(choice.survival) + 1.0)

    def retrained(choice: DraftChoice, factor: float) -> FloatArray:
        return choice.length(contexts, factor * RETRAINED)

    def within(choice: DraftChoice, factor: float) -> FloatArray:
        return choice.length(np.zeros_like(contexts), factor)

    def token_s(times: Sequence[TokenTime], lengths: Lengths, factor: float) -> FloatArray:
        drafted = [time.seconds(lengths(one, factor)) for time, one in zip(times, choices, strict=True)]
        fastest: FloatArray = np.minimum(plain_s, np.min(drafted, axis=0))
        return fastest

    half = [grid.token_time(one.scenario, as_is(one, 1.0), {}, HALF) for one in choices]
    improvements: list[tuple[str, Sequence[TokenTime], Lengths]] = [
        (f"+{LONGER} tokens per step", times, longer),
        (f"rates {RETRAINED - 1.0:.0%} higher".replace("%", " %"), times, retrained),
        ("half the drafting time", half, as_is),
    ]
    if any(choice.drift is not None for choice in choices):
        improvements.append(("acceptance holds at any context", times, within))
    usd = _usd_per_month(tuning)
    worths = []
    for name, better, lengths in improvements:
        gains = [token_s(times, as_is, f) / token_s(better, lengths, f) for f in (1.0, *ACCEPTANCE_FACTORS)]
        for column, cell in enumerate(tuning.mean, len(tuning.cells)):
            gain, *ends = (float(one[column]) for one in gains)
            saved = None if usd is None else usd * (1.0 - 1.0 / gain)
            worths.append(DraftWorth(name, cell.at_batch, gain, min(gain, *ends), max(gain, *ends), saved))
    return worths


def _usd_per_month(tuning: Tuning) -> float | None:
    """Price of one replica that runs all month; None without prices."""
    prices, hardware = tuning.scenario.prices, tuning.scenario.hardware
    usd = None if prices is None else prices.of(hardware.chip)
    return None if usd is None else usd * hardware.chips_per_replica * HOURS_PER_MONTH
