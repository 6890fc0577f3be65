"""Pip constraints that hold every direct dependency of the package and of some extras at its lower bound."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
BOUND = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)")


def floors(extras: list[str]) -> list[str]:
    """``name==bound`` of each dependency that has a lower bound; ``==bound.*`` where it names two parts or fewer."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"]]
    for extra in extras:
        needed += project["optional-dependencies"][extra]
    return [f"{name}=={bound}{'.*' if bound.count('.') < 2 else ''}" for name, bound in map(_bound, needed)]


def _bound(requirement: str) -> tuple[str, str]:
    match = BOUND.match(requirement)
    if match is None:
        raise SystemExit(f"{PROJECT.name}: {requirement}: a dependency needs a lower bound")
    return match[1], match[2]
