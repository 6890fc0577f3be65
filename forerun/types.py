"""Base class of a scenario's sections: immutable, strictly typed, without unknown fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from forerun.errors import ForerunError

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
PositiveBytes = Annotated[float, Field(gt=0, le=1e18)]
"""Memory size in bytes, up to an exabyte."""
PositiveInt = Annotated[int, Field(gt=0, le=10**12)]
Tabulated = Annotated[int, Field(gt=0, le=1 << 20)]
"""Count that sizes a table and is therefore limited."""
Replicas = Annotated[int, Field(gt=0, le=10_000)]
"""Number of copies of an engine; building each copy before a run takes a millisecond and 15 KB."""
LONGEST_S = 1e9
"""Longest simulated time, seconds (30 years): a clock in double precision still resolves microseconds there."""
PositiveSeconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Section(BaseModel):
    """Base class of a scenario's sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def __setattr__(self, name: str, value: Any) -> None:
        """Raise an error, because a scenario is immutable."""
        section = re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__.removesuffix("Config")).lower()
        path = name if section == "scenario" else f"{section}.{name}"
        raise ForerunError(
            f"{path}: a scenario does not change; scenario.with_values({{{path!r}: {value!r}}}) returns another"
        )

    def __delattr__(self, name: str) -> None:
        raise ForerunError(f"{name}: a scenario does not change; scenario.with_values({{PATH: VALUE}}) returns another")


@dataclass(frozen=True, eq=False)
class OneOf:
    """Marker for ``Annotated``: a text must be one of ``names``, to which plug-ins may add."""

    names: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.names)}

    def _known(self, name: str) -> str:
        if name not in self.names:
            *others, last = (f"'{known}'" for known in self.names)
            raise PydanticCustomError("literal_error", f"Input should be {', '.join(others)} or {last}")
        return name
