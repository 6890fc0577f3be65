"""Building blocks of profiles: immutable records, sources, and numbers that are checked as they are read."""

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _number(value: Any) -> Any:
    """Read numbers such as 3.35e12, which YAML 1.1 takes for text; refuse booleans and figures with a unit."""
    if isinstance(value, bool):
        raise ValueError("a number is needed, not a truth value")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"a plain number in SI units is needed, not '{value}'") from None
    return value


def _date(value: Any) -> Any:
    """Take 2023, 2023-03 or 2023-03-21 and keep it as text."""
    return str(value) if isinstance(value, int | date) and not isinstance(value, bool) else value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
"""Any finite number."""
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1, allow_inf_nan=False)]
"""A dimensionless efficiency in (0, 1]."""
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)]
"""A dimensionless share in [0, 1]."""
DateText = Annotated[str, BeforeValidator(_date), Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]


class Record(BaseModel):
    """Base of all profile parts: immutable, unknown keys refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class Source(Record):
    """Where a group of numbers comes from."""

    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    reference: str = Field(min_length=3)
    date: DateText
    rows: int | None = Field(default=None, gt=0)
    """Measured rows a fit rests on."""
    held_out_mape: NonNegative | None = None
    """Mean absolute percentage error of a fit on rows it has not seen, in percent."""
