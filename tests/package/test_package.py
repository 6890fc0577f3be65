"""What ships: licences, typed packages, lower bounds, and one version everywhere."""

import re
import tomllib
from pathlib import Path

import pytest
from floors import floors
from licences import closure, licence, verdict

from forerun.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("text", "judged"),
    [
        ("MIT License", "permissive"),
        ("BSD-3-Clause", "permissive"),
        ("GNU General Public License v3 (GPLv3)", "copyleft"),
        ("AGPL-3.0-only", "copyleft"),
        ("LGPL-2.1", "weak copyleft"),
        ("Mozilla Public License 2.0", "weak copyleft"),
        ("", "unknown"),
    ],
)
def test_licences_are_distinguished(text, judged):
    assert verdict(text) == judged


def test_no_dependency_is_copyleft():
    names = closure(frozenset({"dashboard", "cluster"}))
    assert {"numpy", "pydantic", "pyarrow"} <= set(names)
    assert {name: licence(name) for name in names if verdict(licence(name)) in ("copyleft", "unknown")} == {}


def test_every_dependency_of_users_has_a_lower_bound():
    bounds = floors(["dashboard", "serve", "local", "cluster"])
    assert "numpy==1.26.*" in bounds
    assert len(bounds) == len(set(bounds)) > len(PROJECT["dependencies"])


def test_every_package_is_typed_and_shipped():
    for package in ("forerun", "simulator", "hwprofiles", "traces", "dashboards"):
        assert (ROOT / package / "py.typed").exists()


def test_one_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.M)[1] == VERSION
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
