"""Base of every section of a scenario: immutable, strict about types, and refusing fields it does not know."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0, le=10**12)]
LONGEST_S = 1e9
"""Longest simulated time, seconds (30 years): a clock in double precision still tells microseconds apart there."""
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
"""A time within what simulated time can tell apart."""
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
"""A probability or a fraction of a whole."""


class Section(BaseModel):
    """One block of a scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)
