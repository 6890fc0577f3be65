"""The examples in docstrings return what they print."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("forerun", "hwprofiles", "traces", "simulator", "dashboards", "validation")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings(module):
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failed


def test_every_kernel_formula_has_an_example_that_runs():
    without = []
    for path in sorted((ROOT / "hwprofiles" / "kernels").glob("*.py")):
        for one in ast.parse(path.read_text("utf-8")).body:
            if isinstance(one, ast.FunctionDef) and one.name.endswith("_time") and not one.name.startswith("_"):
                without += [one.name] if ">>>" not in (ast.get_docstring(one) or "") else []
    assert without == []
