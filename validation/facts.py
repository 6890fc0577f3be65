"""Provenance of fits: the ``fitted_on`` entries that stand beside constants in YAML and JSON files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from forerun.yaml_files import parse

PLACES = (
    ("hwprofiles", "fits"),
    ("simulator.timing", ""),
    ("simulator.llm", ""),
    ("simulator.llm", "catalogue"),
    ("simulator.speculation", ""),
    ("simulator.speculation.attention_level", ""),
    ("validation.speculation", ""),
)
"""Packages, and folders in them, whose YAML and JSON files hold constants."""
NOTHING = "nothing"


class Fact(NamedTuple):
    """One constant, or some of one source, and rows of a table that it was fitted on."""

    constant: str
    """File and place in it, such as ``frameworks.yaml: vllm-0.11``."""
    table: str
    """A published table of speedups or a file of measured runs, by its name without ending."""
    rows: str
    split: str
    """``train=SHARE,seed=N`` where the rows are the training side of one, else empty."""


@cache
def facts() -> tuple[Fact, ...]:
    """Every fact of every file, in the order of the files."""
    listed = []
    for package, folder in PLACES:
        place = files(package).joinpath(folder) if folder else files(package)
        for file in sorted(place.iterdir(), key=lambda entry: entry.name):
            if file.name.endswith((".yaml", ".json")) and "fitted_on" in (text := file.read_text(encoding="utf-8")):
                listed += list(_facts(file.name, parse(text), ()))
    return tuple(listed)


def _facts(file: str, node: Any, path: tuple[str, ...]) -> Iterator[Fact]:
    """Facts below a node; a constant is named by the keys above its ``source``."""
    if isinstance(node, dict):
        name = ".".join(key for key in path if key != "source")
        for entry in node.get("fitted_on", ()):
            yield Fact(f"{file}: {name}", entry["table"], entry.get("rows", "all"), entry.get("split", ""))
        for key, value in node.items():
            yield from _facts(file, value, (*path, str(key)))


def fitted_words(table: str, constants: Iterable[str]) -> str:
    """Fitted parts of a table's predictions, and the rows that they were fitted on; ``nothing`` where nothing was.

    Args:
        table: the table that is scored.
        constants: names of the constants that its predictions take, as ``Fact.constant`` has them.
    """
    own = [fact for fact in facts() if fact.table == table]
    used = set(constants)
    carried = [fact for fact in facts() if fact.constant in used and fact.table != table]
    words = [f"{fact.constant} on its {fact.rows}{f' ({fact.split})' if fact.split else ''}" for fact in own]
    if carried:
        by_constant: dict[str, list[str]] = {}
        for fact in carried:
            by_constant.setdefault(fact.constant, []).append(fact.table)
        others = ", ".join(f"{name} of {', '.join(dict.fromkeys(tables))}" for name, tables in by_constant.items())
        words.append(f"{'also' if own else 'nothing of this table;'} {others}")
    return "; ".join(words) or NOTHING
