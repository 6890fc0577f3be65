"""Building blocks of profiles: immutable records, sources, and numbers that are checked as they are read."""

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field


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
Count = Annotated[int, Field(gt=0, strict=True)]
"""A whole number of things."""


def _plausible(lowest: float, unit: str) -> Any:
    """A positive number so large that a wrong unit (GB/s, TFLOP/s, GB) is noticed."""

    def check(value: float) -> float:
        if value < lowest:
            raise ValueError(f"implausibly small; it is counted in {unit}")
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
DateText = Annotated[str, BeforeValidator(_date), Field(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]


class Record(BaseModel):
    """Base of all profile parts: immutable, unknown keys refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Fit(Record):
    """What a fitted parameter set rests on, beyond its source: the shapes it saw and how far off it is."""

    ranges: dict[str, tuple[NonNegative, NonNegative]] = Field(default_factory=dict)
    """Smallest and largest value of every size among the fitted rows; a shape outside is extrapolated."""
    intervals: dict[str, tuple[NonNegative, NonNegative]] = Field(default_factory=dict)
    """Ends of the 90 % interval as factors on a prediction, from rows the fit has not seen: by what bounds the kernel
    (``latency``, ``memory``, ``compute``), over ``all`` of them, and ``outside`` the fitted ranges."""


class FittedOn(Record):
    """Rows of one table that a constant was fitted on; pages say from these entries alone what was fitted on what."""

    table: str = Field(min_length=1)
    """A published table or a file of measurements, by its name without ending."""
    rows: str = "all"
    split: str = ""
    """``train=SHARE,seed=N`` where the rows are the training side of one."""


class Source(Record):
    """Where a group of numbers comes from."""

    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    reference: str = Field(min_length=3)
    date: DateText
    rows: int | None = Field(default=None, gt=0)
    """Measured rows a fit rests on."""
    held_out_mape: NonNegative | None = None
    """Mean absolute percentage error of a fit on rows it has not seen, in percent."""
    fitted_on: tuple[FittedOn, ...] = ()
    """Tables that fitted numbers rest on."""
