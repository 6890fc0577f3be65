"""YAML as people's files hold it: YAML 1.2's values, no key twice, and no few lines that stand for gigabytes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar

import yaml

from forerun.errors import ForerunError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST_FILE_BYTES = 4 * 1024**2
"""No description of a chip, a model or a scenario is longer; traces and weights given by mistake are."""
BRACKETS = re.compile(r"[\[\]{}]")
DEEPEST = 200
"""Most brackets open at once."""
LARGEST_VALUES = 1_000_000
"""Values that a file may stand for once its aliases are written out."""


class TooLargeError(ForerunError):
    """A file too long for what it is taken for."""


class StrictLoader(_Loader):  # type: ignore[misc]
    """Refuses a key given twice and aliases that multiply or hold themselves; whatever it refuses is a ``YAMLError``.

    Plain values mean what YAML 1.2's core schema says (yaml.org/spec/1.2.2, section 10.3), as in JSON: PyYAML's own
    rules are those of YAML 1.1, in which 0100 is 64, 1:30 is 90, 1e3 a text and ``no`` a boolean.
    """

    yaml_implicit_resolvers: ClassVar[dict[str | None, list[tuple[str, re.Pattern[str]]]]] = {}

    def __init__(self, stream: str) -> None:
        if _brackets_deep(stream) > DEEPEST:
            raise yaml.YAMLError("nested too deeply")
        super().__init__(stream)

    def get_single_node(self) -> Any:
        """The document, if what it stands for is small enough."""
        try:
            node = super().get_single_node()
            if node is not None:
                _written_out(node, {})
        except RecursionError:
            raise yaml.YAMLError("nested too deeply") from None
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """A value; one that cannot be, such as an integer of ten thousand digits, is refused with its line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, OverflowError) as error:
            problem = f"{str(error).splitlines()[0]} (write it in quotes, if it is a text)"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping whose keys are words, each given once."""
        seen: set[str] = set()
        for key_node, _ in getattr(node, "value", ()):
            if not isinstance(key_node, yaml.ScalarNode):
                problem = "a key must be a word, not a list or a mapping"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            if key_node.value in seen and key_node.value != "<<":
                problem = f"'{key_node.value}' is given twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


def _integer(loader: Any, node: Any) -> int:
    text = loader.construct_scalar(node)
    return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))


for _tag, _form, _first in (
    ("null", r"null|Null|NULL|~|", "nN~\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
    ("merge", r"<<", "<"),  # of YAML 1.1, and in every file with anchors
):
    _resolver = re.compile(f"(?:{_form})$")
    StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _resolver, [*_first.replace("\0", ""), ""])
StrictLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def _brackets_deep(text: str) -> int:
    """Most brackets open at once; a parser takes time that grows with the square of it."""
    depth = deepest = 0
    for bracket in BRACKETS.findall(text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def _written_out(node: Any, known: dict[int, int]) -> int:
    """Values below ``node`` with its aliases written out.

    Raises:
        yaml.MarkedYAMLError: more than ``LARGEST_VALUES``, or a value that holds itself.
    """
    found = known.get(id(node))
    if found is not None:
        if found < 0:
            raise yaml.MarkedYAMLError(problem="an alias holds itself", problem_mark=node.start_mark)
        return found
    known[id(node)] = -1
    children: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    size = 1 + sum(_written_out(child, known) for child in children)
    if size > LARGEST_VALUES:
        problem = f"stands for more than {LARGEST_VALUES} values (aliases of aliases?)"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    known[id(node)] = size
    return size


def problem_of(error: yaml.YAMLError) -> tuple[str, int | None]:
    """What is wrong in a few words, and its 1-based line where that is known."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or (str(error).splitlines() or ["not readable as YAML"])[0]
    context = getattr(error, "context", None)
    if context and what.startswith("but "):
        what = f"{context} {what}"
    return what, None if mark is None else mark.line + 1


def bounded_text(path: Path) -> str:
    """The text of a file that describes something; a device or pipe is read no further than any description goes.

    Raises:
        TooLargeError: it is longer than ``LARGEST_FILE_BYTES``.
        OSError, UnicodeDecodeError: it cannot be read, or is no text.
    """
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE_BYTES + 1)
    if len(data) > LARGEST_FILE_BYTES:
        raise TooLargeError(f"{path}: larger than {LARGEST_FILE_BYTES >> 20} MiB")
    return data.decode("utf-8-sig")


def parse(text: str) -> Any:
    """YAML or JSON text as plain data.

    Raises:
        yaml.YAMLError: it is not, or not within bounds.
    """
    return yaml.load(text, Loader=StrictLoader)
