"""Typed documents: frozen dataclasses whose fields are the keys of a JSON document."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from math import isfinite, isinf
from typing import Any, TypeVar, cast

from forerun.errors import ForerunError, in_words

T = TypeVar("T")
Json = dict[str, Any]
"""Part of a JSON document whose keys are defined by a scenario or an engine."""
LEFT_OUT = {"left_out": True}
"""Metadata of a field that is omitted from the JSON if it is None."""


@dataclass(frozen=True)
class DocumentPart:
    """Base class of parts of a document. Its fields are attributes, keys (``row["chips"]``) and JSON."""

    def __getitem__(self, key: str) -> Any:
        return plain_json(_held(self)[key])

    def keys(self) -> list[str]:
        """Keys of the document's JSON."""
        return list(_held(self))


@dataclass(frozen=True, kw_only=True)
class StudyDocument(DocumentPart):
    """Fields common to the documents of all studies."""

    conclusion: str = ""
    scenario: Json
    seed: int
    version: str
    basis: str | None
    """Evidence level of the answer: ``calibrated``, ``datasheet`` or ``extrapolated``."""
    notes: list[str]


def _held(part: Any) -> Json:
    """Fields of a dataclass by name, without the fields that JSON omits."""
    held = [(one, getattr(part, one.name)) for one in fields(part)]
    return {one.name: value for one, value in held if value is not None or "left_out" not in one.metadata}


def plain_json(value: Any) -> Any:
    """Convert ``value`` to JSON types: NaN to None, infinities to texts ``inf`` and ``-inf``, numpy to Python.

    Raises:
        TypeError: a value has no JSON type.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value) if isinf(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(item) for item in value]
    if is_dataclass(value):
        return {name: plain_json(part) for name, part in _held(value).items()}
    if hasattr(value, "model_dump"):
        return plain_json(value.model_dump(by_alias=True))
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"no JSON for {type(value).__name__}")


def json_text(document: object) -> str:
    """``document`` as indented JSON text with a final newline, free of NaN and Infinity."""
    text = json.dumps(plain_json(document), indent=2, allow_nan=False, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name that is no UTF-8 stands in it
        text = json.dumps(json.loads(text), indent=2)
    return text + "\n"


def read_document(model: type[T], document: Mapping[str, Any] | T) -> T:
    """Parse a document's JSON into its model; a model is returned unchanged.

    Raises:
        ForerunError: a field is missing or has the wrong type.
    """
    if not isinstance(document, Mapping):
        return document
    from pydantic import ValidationError

    try:
        read: T = _adapter(cast(Hashable, model)).validate_python(document)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ForerunError(f"{model.__name__}: {place}: {in_words(problem)}") from None
    return read


def json_schema(model: type) -> Json:
    """JSON Schema of a model's documents."""
    schema: Json = _adapter(model).json_schema(mode="serialization")
    return schema


@cache
def _adapter(model: Any) -> Any:
    """Cached pydantic adapter of a model; building it takes longer than reading a document."""
    from pydantic import TypeAdapter

    return TypeAdapter(model)
