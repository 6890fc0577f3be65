"""The ``speculation`` section of a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.settings import PositiveInt, Section, Share

Rates = Annotated[list[Share], Field(min_length=1)]
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
    """How many draft tokens the target accepts; exactly one of the fields."""

    per_position: Rates | None = None
    """Share of drafts in which position i is accepted, as vLLM prints it; never rises."""
    conditional: Rates | None = None
    """Chance that position i is accepted given that all before it were."""
    alpha: Share | None = None
    """The same conditional chance at every position."""
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    """Mean tokens per verify step, bonus token included; turned into the alpha that gives it."""

    @model_validator(mode="after")
    def _exactly_one(self) -> AcceptanceConfig:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of {', '.join(type(self).model_fields)} (got {', '.join(given) or 'none'})"
            )
        if self.per_position is not None:
            for i, (before, here) in enumerate(zip(self.per_position, self.per_position[1:], strict=False), start=2):
                if here > before:
                    raise ValueError(
                        f"per_position rises at position {i} ({before:g} to {here:g}), but a position is only reached "
                        f"when all before it were accepted; use conditional for rates given the positions before"
                    )
        return self


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
        for name in ("per_position", "conditional"):
            rates = getattr(self.acceptance, name)
            if rates is not None and len(rates) < self.num_speculative_tokens:
                raise ValueError(
                    f"acceptance.{name} has {len(rates)} positions, num_speculative_tokens is "
                    f"{self.num_speculative_tokens}; give a rate for every position"
                )
        return self
