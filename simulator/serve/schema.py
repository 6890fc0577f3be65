"""Generation of JSON that is valid under a JSON Schema, with text of any length in a free string."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil, floor
from typing import Any

from forerun.document import Json
from simulator.serve.tokens import filler, tokens_of

MOST_VALUES = 2000
"""Maximum values in one JSON document; recursive definitions could require any number."""
DEEPEST = 64
LONGEST_TEXT = 100_000
ANNOTATIONS = {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "default"} | {
    *("examples", "deprecated", "readOnly", "writeOnly", "nullable", "format", "contentEncoding", "contentMediaType"),
    "discriminator",
}
"""Schema keywords without effect on valid values."""
KEYWORDS = ANNOTATIONS | {
    *("$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type", "properties", "required", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "minLength", "maxLength", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "PT1H",
    "email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "time": "00:00:00Z",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
TYPES: Json = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}


def json_tokens(schema: Any, number: int = 0, least: int = 0) -> list[str]:
    """Tokens of valid JSON for a schema, at least ``least``: words fill a free string, line ends the remainder.

    Args:
        schema: JSON Schema.
        number: number that selects the filler text.
        least: minimum number of tokens.

    Raises:
        ValueError: no JSON Schema, or one with a keyword that is not modelled.
    """
    tokens = _tokens(schema, "")
    words = least - len(tokens)
    if words > 0:
        tokens = _tokens(schema, filler(number, 0, words))
        if len(tokens) > least:
            tokens = _tokens(schema, filler(number, 0, words - (len(tokens) - least)))
    return tokens + ["\n"] * (least - len(tokens))


def takes_words(schema: Any) -> bool:
    """True if JSON for a schema has a free string, so that it can be longer than its shortest form."""
    return len(_tokens(schema, filler(0, 0, 8))) > len(_tokens(schema, ""))


def _tokens(schema: Any, text: str) -> list[str]:
    try:
        return tokens_of(json.dumps(_Maker(schema, text).value(schema, (), 0), allow_nan=False))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError):
        raise ValueError("this is no JSON Schema that can be read") from None


class _Maker:
    """Generator of one value for a schema; the first free string contains ``text``."""

    def __init__(self, root: Any, text: str) -> None:
        self._root, self._text, self._values = root, text, 0

    def value(self, schema: Any, refs: tuple[str, ...], depth: int) -> Any:
        """Generate a value that is valid under ``schema``; ``refs`` are the references followed so far."""
        self._values += 1
        if self._values > MOST_VALUES or depth > DEEPEST:
            raise ValueError(f"more than {MOST_VALUES:,} values or {DEEPEST} levels are needed")
        if schema is True:
            schema = {}
        if schema is False:
            raise ValueError("a part allows no value")
        unknown = schema.keys() - KEYWORDS
        if unknown:
            raise ValueError(f"the keyword {min(unknown)!r} is not modelled")
        if "$ref" in schema or "allOf" in schema:
            parts = [{"$ref": schema["$ref"]}] if "$ref" in schema else schema["allOf"]
            whole = {key: value for key, value in schema.items() if key != ("$ref" if "$ref" in schema else "allOf")}
            for part in parts:
                whole = _merged(whole, self._resolved(part))
            return self.value(whole, (*refs, *(part["$ref"] for part in parts if "$ref" in part)), depth + 1)
        for key in ("anyOf", "oneOf", "type"):
            if isinstance(schema.get(key), list):
                options = [{"type": kind} for kind in schema[key]] if key == "type" else schema[key]
                if key == "oneOf":
                    self._check_exclusive(options)
                rest = {name: value for name, value in schema.items() if name != key}
                return self._first(rest, options, refs, depth + 1)
        if "const" in schema or "enum" in schema:
            return _listed(schema)
        kind = schema.get("type") or _kind_of(schema)
        if kind not in TYPES:
            raise ValueError(f"there is no type {kind!r}")
        return getattr(self, f"_{kind}")(schema, refs, depth)

    def _first(self, rest: Any, options: list[Any], refs: tuple[str, ...], depth: int) -> Any:
        """Value of the first option for which a value can be generated."""
        failed = "a choice without options"
        for option in sorted(options, key=lambda option: "$ref" in json.dumps(option)) if _repeats(refs) else options:
            try:
                return self.value(_merged(rest, option), refs, depth)
            except ValueError as error:
                failed = str(error)
        raise ValueError(failed)

    def _resolved(self, schema: Any) -> Any:
        """Resolve a reference: the referenced schema merged with the constraints next to the reference."""
        if schema is True or "$ref" not in schema:
            return schema
        ref, part = schema["$ref"], self._root
        if not ref.startswith("#"):
            raise ValueError(f"the reference {ref!r} is not into this schema")
        for name in ref.split("/")[1:]:
            part = part[name.replace("~1", "/").replace("~0", "~")]
        return _merged(part, {key: value for key, value in schema.items() if key != "$ref"})

    def _check_exclusive(self, options: list[Any]) -> None:
        """Raise ValueError if a value could match two options of ``oneOf``."""
        marks: list[tuple[Any, Json]] = []
        for option in map(self._resolved, options):
            own = {"": option, **{name: option["properties"].get(name) for name in option.get("required", ())}}
            constants = {name: _constant(value) for name, value in own.items() if _constant(value)}
            kind = option.get("type")
            for other, others in marks:
                types = {kind, other} if isinstance(kind, str) and isinstance(other, str) else {None}
                if not (len(types) == 2 and types != {"integer", "number"}) and not any(
                    others.get(name, value) != value for name, value in constants.items()
                ):
                    raise ValueError("options of oneOf that are alike are not modelled; anyOf is")
            marks.append((kind, constants))

    def _object(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> Json:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        names = [*(() if _repeats(refs) else properties), *required]
        others = schema.get("additionalProperties", True)
        return {name: self.value(properties.get(name, others), refs, depth + 1) for name in dict.fromkeys(names)}

    def _array(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> list[Any]:
        least, most = schema.get("minItems", 0), schema.get("maxItems", 1 + MOST_VALUES)
        first = schema.get("prefixItems", [])
        count = max(least, min(most, len(first) or 1) if not _repeats(refs) else 0)
        if count > most or count > MOST_VALUES or (count > 1 and schema.get("uniqueItems")):
            raise ValueError(f"a list of {least:,} or more items as described is not modelled")
        if "items" not in schema and "prefixItems" not in schema:
            count = least
        if schema.get("items") is False:
            count = min(count, len(first)) if least <= len(first) else count
        schemas = [*first[:count], *[schema.get("items", True)] * (count - len(first))]
        return [self.value(one, refs, depth + 1) for one in schemas]

    def _string(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> str:
        least, most = schema.get("minLength", 0), schema.get("maxLength", LONGEST_TEXT)
        text = FORMATS.get(schema.get("format", ""))
        if text is None:
            text, self._text = self._text[:most], ""
            text += "a" * (least - len(text) if least <= LONGEST_TEXT else 0)
        if not least <= len(text) <= most:
            raise ValueError(f"a string of {least:,} to {most:,} characters as described is not modelled")
        return text

    def _integer(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> float:
        return _number(schema, whole=True)

    def _number(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> float:
        return _number(schema, whole=False)

    def _boolean(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> bool:
        return True

    def _null(self, schema: Mapping[str, Any], refs: tuple[str, ...], depth: int) -> None:
        return None


def _merged(one: Any, other: Any) -> Any:
    """Merge two schemas into a schema for values that are valid under both.

    Raises:
        ValueError: both schemas have the same keyword with different values.
    """
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one if other is True else other if one is True else False
    merged = dict(one)
    for key, value in other.items():
        if key not in merged or merged[key] == value or key in ANNOTATIONS:
            merged[key] = value
        elif key == "required":
            merged[key] = [*merged[key], *value]
        elif key == "properties":
            merged[key] = merged[key] | {
                name: _merged(merged[key].get(name, True), part) for name, part in value.items()
            }
        else:
            raise ValueError(f"two limits {key!r} on one value are not modelled")
    return merged


def _repeats(refs: tuple[str, ...]) -> bool:
    """True inside a recursive definition; only required parts are generated there."""
    return len(set(refs)) < len(refs)


def _kind_of(schema: Mapping[str, Any]) -> str:
    """Implied type of a schema without ``type``."""
    if "properties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema or "minItems" in schema:
        return "array"
    return "number" if schema.keys() & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"} else "string"


def _constant(schema: Any) -> list[Any] | None:
    """List with the only valid value of a property; None if several values are valid."""
    if isinstance(schema, Mapping) and "const" in schema:
        return [schema["const"]]
    only = schema.get("enum") if isinstance(schema, Mapping) else None
    return only if isinstance(only, list) and len(only) == 1 else None


def _listed(schema: Mapping[str, Any]) -> Any:
    """First value of ``enum`` or ``const`` that has the schema's type."""
    beside = schema.keys() - ANNOTATIONS - {"type", "enum" if "enum" in schema else "const"}
    if beside:
        raise ValueError(f"{min(beside)!r} together with {'enum' if 'enum' in schema else 'const'} is not modelled")
    kind = schema.get("type")
    for value in schema["enum"] if "enum" in schema else [schema["const"]]:
        if kind is None or (isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))):
            return value
    raise ValueError("no listed value has the type of the schema")


def _number(schema: Mapping[str, Any], whole: bool) -> float:
    """Generate a number within the limits; zero if it is valid."""
    bounds = {
        key: schema[key] for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if key in schema
    }
    step = schema.get("multipleOf", 1 if whole else None)
    if any(isinstance(limit, bool) for limit in (*bounds.values(), step)):
        raise ValueError("the limits of a number are no booleans")
    near = [0, *bounds.values(), *(bound + by for bound in bounds.values() for by in (-1, 1)), sum(bounds.values()) / 2]
    if step is not None:
        near = [way(value / step) * step + by * step for value in near for way in (floor, ceil) for by in (0, 1, -1)]
    for value in near:
        fits = (
            value >= bounds.get("minimum", value)
            and value <= bounds.get("maximum", value)
            and value > bounds.get("exclusiveMinimum", value - 1)
            and value < bounds.get("exclusiveMaximum", value + 1)
            and (step is None or (value / step) % 1 == 0)
        )
        if fits and not (whole and value % 1):
            return int(value) if value % 1 == 0 else value
    raise ValueError("no number was found within the limits")
