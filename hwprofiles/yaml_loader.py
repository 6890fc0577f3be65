"""YAML as people's files hold it: safe types, no key twice, and no few lines that stand for gigabytes."""

from __future__ import annotations

import re
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

LARGEST_FILE_BYTES = 4 * 1024**2
"""No description of a chip, a model or a scenario is longer; traces and weights given by mistake are."""
BRACKETS = re.compile(r"[\[\]{}]")
DEEPEST = 200
"""Most brackets open at once."""
LARGEST_VALUES = 1_000_000
"""Values that a file may stand for once its aliases are written out."""


class Strict:
    """Refuses a key given twice, aliases that multiply or hold themselves, and impossible dates.

    Mixed into one of PyYAML's safe loaders; whatever it refuses is a ``yaml.YAMLError``.
    """

    def __init__(self, stream: str) -> None:
        if _brackets_deep(stream) > DEEPEST:
            raise yaml.YAMLError("nested too deeply")
        super().__init__(stream)  # type: ignore[call-arg]

    def get_single_node(self) -> Any:
        """The document, if what it stands for is small enough."""
        above: Any = super()
        try:
            node = above.get_single_node()
            if node is not None:
                _written_out(node, {})
        except RecursionError:
            raise yaml.YAMLError("nested too deeply") from None
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """A value; a text that only looks like a date or a number is refused with its line."""
        above: Any = super()
        try:
            return above.construct_object(node, deep)
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
        above: Any = super()
        return above.construct_mapping(node, deep=deep)


class StrictLoader(Strict, _Loader):  # type: ignore[misc]
    """Strict YAML, read by LibYAML where it is installed."""


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


def parse(text: str) -> Any:
    """YAML or JSON text as plain data.

    Raises:
        yaml.YAMLError: it is not, or not within bounds.
    """
    return yaml.load(text, Loader=StrictLoader)
