"""The ``speculation`` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from simulator.settings import PositiveInt, Section, Share
from simulator.speculation.curves import load_curve
from simulator.speculation.level_decay import MOST_DECAY

Rates = Annotated[list[Share], Field(min_length=1)]
ACCEPTANCE_SOURCES = ("per_position", "conditional", "alpha", "acceptance_length", "curve", "log")
DECAYING = ("alpha", "acceptance_length")
"""Sources of acceptance that take a ``decay``."""
METHODS = ("none", "draft-model")
LATER_METHODS = ("ngram", "suffix", "medusa", "eagle", "eagle2", "eagle3", "mtp", "parallel-draft")


class DraftConfig(Section):
    """The model that drafts, on the same chips as the target."""

    model: str
    """Catalogue name or path of a HF config.json."""
    weights_dtype: str | Mapping[str, str] | None = None
    """As the scenario's own ``weights_dtype``; default: the checkpoint's."""
    tensor_parallel: PositiveInt | None = None
    """Chips that share one drafter; default: as the target."""


class AcceptanceConfig(Section):
    """How many draft tokens the target accepts; exactly one of the first six fields."""

    per_position: Rates | None = None
    """Share of drafts in which position i is accepted, as vLLM prints it; never rises."""
    conditional: Rates | None = None
    """Chance that position i is accepted given that all before it were."""
    alpha: Share | None = None
    """Chance that the first position is accepted; the same at every position unless ``decay`` says otherwise."""
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean tokens per verify step, bonus token included; turned into the alpha that gives it."""
    curve: str | None = None
    """Name of a published curve."""
    log: str | None = None
    """File in which vLLM or SGLang reported its acceptance: log, Prometheus counters or benchmark JSON."""
    decay: Annotated[float, Field(gt=0, le=MOST_DECAY, allow_inf_nan=False)] | None = None
    """With ``alpha`` or ``acceptance_length``: factor of the rate from one position to the next; default 1."""
    extrapolate: bool = False
    """Continue rates, a curve or a log beyond their last position by the level and decay fitted to them."""
    spread: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)] | None = None
    """Standard deviation of the first position's rate across requests (beta-distributed); default 0, all alike."""

    @model_validator(mode="after")
    def _exactly_one(self) -> AcceptanceConfig:
        given = [name for name in ACCEPTANCE_SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(ACCEPTANCE_SOURCES)} (got {', '.join(given) or 'none'})")
        if self.per_position is not None:
            for i, (before, here) in enumerate(zip(self.per_position, self.per_position[1:], strict=False), start=2):
                if here > before:
                    raise ValueError(
                        f"per_position rises at position {i} ({before:g} to {here:g}), but a position is only reached "
                        f"when all before it were accepted; use conditional for rates given the positions before"
                    )
        if self.decay is not None and given[0] not in DECAYING:
            raise ValueError(f"{given[0]} has a decay of its own; decay goes with {' or '.join(DECAYING)}")
        if self.extrapolate and given[0] in DECAYING:
            raise ValueError(f"{given[0]} holds for any number of positions; remove extrapolate, or give decay")
        if self.extrapolate and len(self.per_position or self.conditional or (0, 0)) < 2:
            raise ValueError(f"extrapolate needs two positions or more to see a decay; {given[0]} has one")
        return self

    @field_validator("curve")
    @classmethod
    def _known_curve(cls, name: str | None) -> str | None:
        if name is not None:
            load_curve(name)
        return name

    @property
    def positions(self) -> int | None:
        """Positions that were measured; None where any number can be drafted, or where a file must be read to know."""
        if self.curve is not None:
            return load_curve(self.curve).positions
        rates = self.per_position or self.conditional
        return None if rates is None else len(rates)


class SpeculationConfig(Section):
    """Token speculation: draft K tokens, verify them in one target step."""

    method: Literal["none", "draft-model"]
    num_speculative_tokens: PositiveInt | None = None
    """Draft tokens K per verify step."""
    draft: DraftConfig | None = None
    acceptance: AcceptanceConfig | None = None
    policy: Literal["fixed"] = "fixed"

    @model_validator(mode="before")
    @classmethod
    def _known_method(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("method") in LATER_METHODS:
            raise ValueError(f"method '{data['method']}' is not modelled yet (one of {', '.join(METHODS)})")
        return data

    @model_validator(mode="after")
    def _complete(self) -> SpeculationConfig:
        parts = ("num_speculative_tokens", "draft", "acceptance")
        if self.method == "none":
            for name in parts:
                if getattr(self, name) is not None:
                    raise ValueError(f"method 'none' has no use for {name}; remove it")
            return self
        for name in parts:
            if getattr(self, name) is None:
                raise ValueError(f"method '{self.method}' needs {name}")
        assert self.acceptance is not None
        assert self.num_speculative_tokens is not None
        measured = self.acceptance.positions
        if measured is not None and measured < self.num_speculative_tokens and not self.acceptance.extrapolate:
            name = next(name for name in ACCEPTANCE_SOURCES if getattr(self.acceptance, name) is not None)
            raise ValueError(
                f"acceptance.{name} has {measured} positions, num_speculative_tokens is "
                f"{self.num_speculative_tokens}; give a rate for every position, or set acceptance.extrapolate: true"
            )
        return self
