"""Published acceptance curves, by name: ``acceptance: {curve: NAME}``."""

from __future__ import annotations

from functools import cache, cached_property
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from forerun.arrays import FloatArray
from forerun.errors import ForerunError, did_you_mean
from forerun.types import PositiveInt, Section, Share
from forerun.yaml_files import packaged
from simulator.speculation.level_decay import (
    AcceptanceFit,
    LevelDecay,
    conditional_rates,
    extended,
    fit_acceptance_lengths,
    fit_survival,
)

Length = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Rates = Annotated[list[Share], Field(min_length=1)]
UNLIMITED = 1024
"""Number of positions of a curve that states one rate for all positions."""
MEASURES = ("lengths", "per_position", "conditional", "alpha", "heads")


class Curve(Section):
    """One published measurement of a drafter; exactly one of the measures."""

    name: str
    method: str
    """Method that the drafter uses, as in ``speculation.method``."""
    target: str
    drafter: str | None = None
    """Repository of the drafter's weights; None for a module of the target itself, or if not stated."""
    task: str
    temperature: float | None = None
    """Sampling temperature of the measurement; None if not stated."""
    lengths: dict[PositiveInt, Length] | None = None
    """Acceptance length, bonus token included, by number of draft tokens; a run for each."""
    per_position: Rates | None = None
    """Share of drafts in which position i is accepted."""
    conditional: Rates | None = None
    """Probability that position i is accepted, given that all earlier positions were."""
    alpha: Share | None = None
    """Acceptance rate, equal at every position, as stated by the source."""
    heads: list[Rates] | None = None
    """Share of tokens among a head's first 1, 2, 3 ... candidates, per head. Heads are taken as independent, as Medusa
    does when it builds its tree."""
    source: str
    """Publication of the measurement."""
    note: str | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> Curve:
        given = [name for name in MEASURES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(MEASURES)} (got {', '.join(given) or 'none'})")
        return self

    @property
    def positions(self) -> int:
        """Maximum number of draft tokens at which the curve was measured; beyond it, the decay is extrapolated."""
        if self.lengths is not None:
            return max(self.lengths)
        if self.alpha is not None:
            return UNLIMITED
        return len(self.per_position or self.conditional or self.heads or ())

    @cached_property
    def fit(self) -> AcceptanceFit:
        """Level and decay of the curve."""
        if self.lengths is not None:
            return fit_acceptance_lengths(self.lengths)
        return fit_survival(self._measured_survival())

    def survival(self, num_speculative_tokens: int) -> FloatArray:
        """Chance that at least i draft tokens are accepted, i = 1..K.

        Lengths give the curve's decay, at the level that yields the published length if K was measured. Rates are used
        as published, and continued by their decay beyond the last.
        """
        if self.lengths is not None:
            model = self.fit.model
            if num_speculative_tokens in self.lengths:
                length = self.lengths[num_speculative_tokens]
                if length <= LevelDecay(1.0, model.decay).acceptance_length(num_speculative_tokens):
                    model = model.with_length(length, num_speculative_tokens)
            return model.survival(num_speculative_tokens)
        if self.alpha is not None:
            return self.alpha ** np.arange(1.0, num_speculative_tokens + 1)
        measured = self._measured_survival()
        if num_speculative_tokens <= len(measured):
            return np.asarray(measured[:num_speculative_tokens], dtype=np.float64)
        rates = extended(conditional_rates(measured), num_speculative_tokens)
        return np.asarray(np.cumprod(rates), dtype=np.float64)

    def rank_rates(self) -> tuple[tuple[float, ...], ...]:
        """Per depth, chance that the candidate of rank 0, 1, 2 ... is the target's token; for trees.

        Raises:
            ForerunError: a curve with rates of first candidates only.
        """
        if self.heads is None:
            raise ForerunError(f"curve {self.name} knows the first candidate of each position only, not other ranks")
        return tuple(tuple(np.diff(np.concatenate(([0.0], head))).tolist()) for head in self.heads)

    def _measured_survival(self) -> list[float]:
        if self.per_position is not None:
            return self.per_position
        if self.alpha is not None:
            return [self.alpha, self.alpha**2]
        conditional = self.conditional if self.conditional is not None else [head[0] for head in self.heads or ()]
        return [float(s) for s in np.cumprod(conditional)]


def curve_names() -> tuple[str, ...]:
    """Names in the catalogue, in alphabetical order."""
    return tuple(sorted(_curves()))


def load_curve(name: str) -> Curve:
    """A published curve.

    Raises:
        ForerunError: no such curve; with the nearest name.
    """
    curves = _curves()
    if name not in curves:
        hint = did_you_mean(name, curves)
        raise ForerunError(f"no acceptance curve '{name[:120]}'{hint} (forerun workloads curves lists {len(curves)})")
    return curves[name]


@cache
def _curves() -> dict[str, Curve]:
    data = packaged("simulator.speculation", "curves.yaml")
    return {
        name: Curve.model_validate({"name": name, **row, "source": data["sources"][row["source"]]})
        for name, row in data["curves"].items()
    }
