"""Budgets of size: lines of each package, untyped names, long parameter lists, and modules that a reader follows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = yaml.safe_load((ROOT / "tests" / "budgets.yaml").read_text("utf-8"))
PACKAGES = ("forerun", "hwprofiles", "traces", "dashboards", "simulator")
"""Packages of the wheel."""


def modules(folder: str) -> Iterator[Path]:
    return (path for path in sorted((ROOT / folder).rglob("*.py")) if "build" not in path.parts)


def lines(folder: str) -> int:
    return sum(path.read_text("utf-8").count("\n") for path in modules(folder))


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    named = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in named)


def test_no_package_is_larger_than_its_budget():
    """A budget rises in the commit that says what the lines buy (CONTRIBUTING)."""
    sizes = {folder: lines(folder) for folder in BUDGETS["lines"]}
    assert {folder: size for folder, size in sizes.items() if size > BUDGETS["lines"][folder]} == {}
    assert sum(map(lines, PACKAGES)) <= BUDGETS["lines_of_the_wheel"]


def test_every_folder_has_a_budget():
    inner = {f"simulator/{path.name}" for path in (ROOT / "simulator").iterdir() if (path / "__init__.py").is_file()}
    assert inner | {*PACKAGES, "validation"} - {"simulator"} == set(BUDGETS["lines"])


def test_names_without_a_type_and_long_parameter_lists_are_few():
    text = [path.read_text("utf-8") for folder in PACKAGES for path in modules(folder)]
    functions = (node for one in text for node in ast.walk(ast.parse(one)) if isinstance(node, ast.FunctionDef))
    assert sum(len(re.findall(r"\bAny\b", one)) for one in text) <= BUDGETS["any"]
    assert sum(parameters(one) >= 9 for one in functions) <= BUDGETS["functions_of_nine_or_more_arguments"]
