"""Base types of profiles: immutable records, sources and validated numbers."""

import re
from datetime import date
from math import inf
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from forerun.errors import did_you_mean, got, in_words, with_new_names


def _number(value: object) -> object:
    """Read numbers such as 3.35e12, which YAML 1.1 reads as text; reject booleans and numbers with a unit."""
    if isinstance(value, bool):
        raise ValueError("a number is needed, not true or false")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"a plain number in SI units is needed, not '{value}'") from None
    return value


def _date(value: object) -> object:
    """Convert 2023, 2023-03 or 2023-03-21 to text."""
    return str(value) if isinstance(value, int | date) and not isinstance(value, bool) else value


def _calendar_date(value: str) -> str:
    try:
        if not re.fullmatch(r"\d{4}(-\d{2}){0,2}", value):
            raise ValueError(value)
        date(*[*map(int, value.split("-")), 1, 1][:3])
    except ValueError:
        raise ValueError("is no date such as 2023, 2023-03 or 2023-03-21") from None
    return value


Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
"""Any finite number."""
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, BeforeValidator(_number), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, BeforeValidator(_number), Field(gt=0, le=1, allow_inf_nan=False)]
"""A dimensionless efficiency in (0, 1]."""
Fraction = Annotated[float, BeforeValidator(_number), Field(ge=0, le=1, allow_inf_nan=False)]
"""A dimensionless share in [0, 1]."""
Count = Annotated[int, Field(gt=0, strict=True)]
"""A positive integer."""


def _plausible(lowest: float, unit: str, highest: float = inf) -> object:
    """Reject values outside limits, which are probably in another unit (GB/s, TFLOP/s, GB, microseconds)."""

    def check(value: float) -> float:
        if not lowest <= value <= highest:
            raise ValueError(f"implausibly {'small' if value < lowest else 'large'}; it is counted in {unit}")
        return value

    return AfterValidator(check)


Rate = Annotated[Positive, _plausible(1e8, "bytes per second")]
"""A bandwidth in bytes/s."""
Bytes = Annotated[Positive, _plausible(1e5, "bytes")]
"""A capacity in bytes."""
Flops = Annotated[Positive, _plausible(1e9, "FLOP per second")]
"""An arithmetic rate in FLOP/s."""
Hertz = Annotated[Positive, _plausible(1e6, "hertz")]
"""A clock in Hz."""
LaunchTime = Annotated[NonNegative, _plausible(0.0, "seconds", highest=1e-2)]
"""Time to launch a kernel, in seconds."""
DateText = Annotated[str, BeforeValidator(_date), AfterValidator(_calendar_date)]
"""A year, month or day: 2023, 2023-03 or 2023-03-21."""


class Record(BaseModel):
    """Base class of profile records: immutable, rejects unknown keys."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Fit(Record):
    """Fitted ranges and prediction intervals of a fitted parameter set."""

    ranges: dict[str, tuple[NonNegative, NonNegative]] = Field(default_factory=dict)
    """Smallest and largest value of each size in the fitted rows; a shape outside is extrapolated."""
    intervals: dict[str, tuple[NonNegative, NonNegative]] = Field(default_factory=dict)
    """90 % intervals as factors on a prediction, from held-out rows. Keys: the kernel's bound (``latency``, ``memory``,
    ``compute``), ``all`` rows, and rows ``outside`` the fitted ranges."""

    @field_validator("ranges", mode="before")
    @classmethod
    def _accept_old_names(cls, data: object) -> object:
        return with_new_names(data, {"activated_experts": "active_experts"})


class FittedOn(Record):
    """Rows of one table that a constant was fitted on; the source of every statement in pages about fitted data."""

    table: str = Field(min_length=1)
    """Name of a published table or measurement file, without extension."""
    rows: str = "all"
    split: str = ""
    """``train=SHARE,seed=N`` if the rows are the training part of a split."""


class Source(Record):
    """Source of a group of numbers."""

    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    reference: str = Field(min_length=3)
    date: DateText
    rows: int | None = Field(default=None, gt=0)
    """Number of measured rows in the fit."""
    held_out_mape: NonNegative | None = None
    """Mean absolute percentage error of a fit on held-out rows, in percent."""
    fitted_on: tuple[FittedOn, ...] = ()
    """Tables that the numbers were fitted on."""


def first_problem(error: ValidationError, model: type[Record]) -> str:
    """Return the first validation error as one line, ``field: what is wrong``."""
    problems = error.errors()
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, problem["loc"][:-1])
        return f"{field}: unknown field{did_you_mean(str(problem['loc'][-1]), known)}"
    message = in_words(problem)
    where = f"{field}: " if field else ""
    return " ".join(f"{where}{message}{got(problem.get('input'), message)}".split())


def _fields_at(model: type[Record], path: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in path:
        annotation = getattr(getattr(current, "model_fields", {}).get(part), "annotation", None)
        options = [annotation, *getattr(annotation, "__args__", ())]
        current = next((item for item in options if isinstance(item, type) and issubclass(item, Record)), None)
    return list(getattr(current, "model_fields", {}))
