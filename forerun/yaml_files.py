"""YAML reader: YAML 1.2's values, no duplicate keys, and a limit on the expansion of aliases."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from forerun.errors import ForerunError

Event = Any
"""Event of the YAML parser, or a position in the text; the parser in C has no types."""
_Loader: Event = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST_FILE_BYTES = 4 * 1024**2
"""Maximum bytes of a chip, model or scenario file; larger files are traces or weights given by mistake."""
BRACKETS = re.compile(r"[\[\]{}]")
DEEPEST = 200
LARGEST_VALUES = 1_000_000
"""Maximum number of values in a file after its aliases are expanded."""


class TooLargeError(ForerunError):
    """A file that is too large for a description file."""


_CORE = re.compile(
    r"(?P<null>null|Null|NULL|~|)|(?P<bool>true|True|TRUE|false|False|FALSE)"
    r"|(?P<int>[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))"
)
"""Pattern of plain values in YAML 1.2's core schema (yaml.org/spec/1.2.2, section 10.3), as in JSON. PyYAML's own rules
follow YAML 1.1, in which 0100 is 64, 1:30 is 90, 1e3 a text and ``no`` a boolean."""
_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
"""YAML 1.1's merge key: entries of its mapping are added unless the key is already present."""


class _Part(NamedTuple):
    """A parsed value of a document with its size and text."""

    value: object
    size: int
    """Number of values after its aliases are expanded; 0 while it is being read."""
    text: str | None
    """Text of a scalar; None for a list or a mapping."""
    mark: Event


class _Reader:
    """Builds values from parser events; raises ``YAMLError`` for any error."""

    def __init__(self, text: str) -> None:
        self._parser = _Loader(text)
        self._anchors: dict[str, _Part] = {}

    def document(self) -> Any:
        """Read the only document of the text; None if the text is empty."""
        next_event = self._parser.get_event
        next_event()
        begin = next_event()
        if isinstance(begin, yaml.StreamEndEvent):
            return None
        value = self._part(next_event()).value
        next_event()
        end = next_event()
        if not isinstance(end, yaml.StreamEndEvent):
            context, problem = "expected a single document in the stream", "but found another document"
            raise yaml.MarkedYAMLError(context, begin.start_mark, problem, end.start_mark)
        return value

    def close(self) -> None:
        self._parser.dispose()

    def _part(self, event: Event) -> _Part:
        kind = type(event)
        if kind is yaml.ScalarEvent:
            part = _Part(_scalar(event), 1, event.value, event.start_mark)
        elif kind is yaml.AliasEvent:
            return self._known(event)
        else:
            if event.anchor is not None:
                self._anchors[event.anchor] = _Part(None, 0, None, event.start_mark)
            part = self._mapping(event) if kind is yaml.MappingStartEvent else self._sequence(event)
            if part.size > LARGEST_VALUES:
                refuse(f"stands for more than {LARGEST_VALUES} values (aliases of aliases?)", event)
        if event.anchor is not None:
            self._anchors[event.anchor] = part
        return part

    def _known(self, event: Event) -> _Part:
        part = self._anchors.get(event.anchor)
        if part is None:
            refuse(f"found undefined alias {event.anchor!r}", event)
        if part.size == 0:
            refuse("an alias holds itself", event)
        return part

    def _sequence(self, start: Event) -> _Part:
        _check_tag(start, "seq", "list")
        values, size, next_event = [], 1, self._parser.get_event
        while type(event := next_event()) is not yaml.SequenceEndEvent:
            part = self._part(event)
            values.append(part.value)
            size += part.size
        return _Part(values, size, None, start.start_mark)

    def _mapping(self, start: Event) -> _Part:
        _check_tag(start, "map", "mapping")
        values: dict[Any, Any] = {}
        lent: dict[Any, Any] = {}
        seen: set[str] = set()
        size, next_event = 1, self._parser.get_event
        while type(event := next_event()) is not yaml.MappingEndEvent:
            key = self._part(event)
            if key.text is None:
                refuse("a key must be a word, not a list or a mapping", event)
            if key.text in seen and key.text != _MERGE:
                refuse(f"'{key.text}' is given twice", event)
            seen.add(key.text)
            part = self._part(next_event())
            size += key.size + part.size
            if key.value == _MERGE and event.implicit[0]:
                lent |= _lent(part)
            else:
                values[key.value] = part.value
        return _Part({**lent, **values} if lent else values, size, None, start.start_mark)


def refuse(problem: str, event: Event) -> NoReturn:
    raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def _check_tag(start: Event, tag: str, what: str) -> None:
    if start.tag not in (None, "!", _TAG + tag):
        refuse(f"{start.tag.replace(_TAG, '!!')} is no tag of a {what}", start)


def _lent(part: _Part) -> dict[Any, Any]:
    """Entries that a merge key adds; if several mappings have a key, the first wins."""
    lenders = part.value if isinstance(part.value, list) else [part.value]
    if not all(isinstance(lender, dict) for lender in lenders):
        problem = "expected a mapping or a list of mappings for merging"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=part.mark)
    return {key: value for lender in reversed(lenders) for key, value in lender.items()}


def _scalar(event: Event) -> Any:
    """Parse a scalar; an impossible value, such as an integer of ten thousand digits, is refused with its line."""
    text: str = event.value
    if event.tag is not None and event.tag != "!":
        kind = event.tag.removeprefix(_TAG)
    elif event.implicit[0] and (match := _CORE.fullmatch(text)):
        kind = str(match.lastgroup)
    else:
        return text
    try:
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return {"true": True, "false": False}[text.lower()]
        if kind == "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if kind == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    except (ValueError, KeyError) as error:
        problem = f"no {kind}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        refuse(f"{problem} (write it in quotes, if it is a text)", event)
    refuse(f"{event.tag.replace(_TAG, '!!')} is no tag of a value", event)


def _brackets_deep(text: str) -> int:
    """Maximum nesting of brackets; a parser's time grows with its square."""
    depth = deepest = 0
    for bracket in BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def problem_of(error: yaml.YAMLError) -> tuple[str, int | None]:
    """Short description of the problem, and its 1-based line if known."""
    mark, context = getattr(error, "problem_mark", None), getattr(error, "context", None)
    what = getattr(error, "problem", None) or (str(error).splitlines() or ["not readable as YAML"])[0]
    if context == "while scanning a quoted scalar" and what == "found unexpected end of stream":
        what, mark = "a quote opens here and is not closed", getattr(error, "context_mark", None)
    if context and what.startswith("but "):
        what = f"{context} {what}"
    if "cannot start any token" in what or "tab character" in what:
        what += " (a tab? indent with spaces)"
    if what in ("did not find expected key", "mapping values are not allowed in this context"):
        what += " (is every line indented as its neighbours are?)"
    return what, None if mark is None else mark.line + 1


def bounded_text(path: Path) -> str:
    """Text of a description file; at most ``LARGEST_FILE_BYTES`` are read from a device or pipe."""
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if len(data) > LARGEST_FILE_BYTES:
        raise TooLargeError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
    return data.decode("utf-8-sig")


@cache
def packaged(package: str, name: str) -> dict[str, Any]:
    """Read the mapping in a YAML file of a package; the result is cached and must not be changed."""
    mapping: dict[str, Any] = parse(packaged_file(package, name).read_text("utf-8"))
    return mapping


def packaged_file(package: str, name: str) -> Path:
    """Path of a data file of a package."""
    return Path(import_module(package).__path__[0], name)


def parse(text: str) -> Any:
    """Parse YAML or JSON text to plain data."""
    if _brackets_deep(text) > DEEPEST:
        raise yaml.YAMLError("nested too deeply")
    reader = _Reader(text)
    try:
        return reader.document()
    except RecursionError:
        raise yaml.YAMLError("nested too deeply") from None
    finally:
        reader.close()
