"""Packages: imports run downwards only, every module has a docstring, and no folder is crowded."""

import ast
import inspect
import re
from collections import Counter, defaultdict
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from forerun.lazy import lent_names
from simulator.studies.installed import installed_names

MOST_MODULES = 15
"""In one folder; ``__init__`` and ``__main__`` do not count."""
ROOT = Path(__file__).resolve().parent.parent
LAYERS = (
    ("validation",),
    ("forerun", "simulator"),
    ("simulator.cli",),
    ("dashboards",),
    ("simulator.serve",),
    ("simulator.replay",),
    ("simulator.studies",),
    ("simulator.running",),
    ("simulator.launch",),
    ("simulator.serving",),
    ("simulator.workload",),
    ("simulator.speculation",),
    ("simulator.timing",),
    ("simulator.llm",),
    ("traces",),
    ("hwprofiles",),
    ("forerun.result",),
    ("forerun.tables", "forerun.document"),
    (
        "forerun.arrays",
        "forerun.lazy",
        "forerun.recent",
        "forerun.types",
        "forerun.workers",
        "forerun.yaml_files",
    ),
    ("forerun.errors", "forerun.text_layout", "forerun.version"),
)
"""From the top: a package imports only from the layers below it. ``forerun`` and ``simulator`` are the public faces."""
INDEPENDENT = {("hwprofiles", "traces"), ("traces", "hwprofiles")}


def package_of(module: str) -> str | None:
    known = [name for names in LAYERS for name in names if module == name or module.startswith(name + ".")]
    return max(known, key=len, default=None)


def layer(name: str) -> int:
    return next(level for level, names in enumerate(LAYERS) if name in names)


def sources() -> list[Path]:
    folders = ("forerun", "simulator", "hwprofiles", "traces", "dashboards", "validation")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


class Source(NamedTuple):
    """What the tests ask of a module."""

    docstring: str | None
    modules: set[str]
    definitions: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]


@cache
def parsed(path: Path) -> Source:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules, definitions = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules.add(node.module or "")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            definitions.append(node)
    docstring = ast.get_docstring(tree)
    for node in definitions:
        node.body = []  # which nobody requests, and which is most of the tree
    return Source(docstring, modules, definitions)


def test_imports_run_downwards():
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        own_package = package_of(module)
        for name in parsed(path).modules:
            other = package_of(name)
            if own_package is None or other is None or other == own_package:
                continue
            assert (own_package, other) not in INDEPENDENT, f"{module} imports {name}"
            assert layer(other) > layer(own_package), f"{module} imports {name}, which does not lie below it"


def test_no_import_cycles():
    """Neither between modules nor through a package's lazy names, imports within functions and for types included."""
    sorter = TopologicalSorter[str]()
    lent = {".".join(stub.parent.relative_to(ROOT).parts): stub for stub in FACES}
    places = {
        f"{face}.{name}": module for face, stub in lent.items() for name, module in lent_names(stub, face).items()
    }
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in sources()}
    for path in sources():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                while name in places and name not in modules:
                    name = places[name] if places[name] not in lent else f"{places[name]}.{name.rpartition('.')[2]}"
                sorter.add(module, name if name in modules else name.rpartition(".")[0])
    sorter.prepare()


def test_a_scenario_is_refused_in_one_module():
    """Nothing that builds or serves a run refuses a scenario on the way."""
    for name in ("running/build.py", "running/drafting.py", "serving/fleet/pool.py", "serving/fleet/fleet.py"):
        assert "raise ForerunError" not in (ROOT / "simulator" / name).read_text("utf-8"), name


def test_every_module_says_what_it_is():
    for path in sources():
        assert parsed(path).docstring, path


def test_every_public_name_has_a_caller():
    """No function, class or method is used by tests alone; what a face lends and what documents call counts as used."""
    written = Counter[str]()
    for path in sources():
        written.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for pattern in (
        "docs/**/*.md",
        "docs/hooks/*.py",
        "examples/*.py",
        "examples/*.ipynb",
        "*/__init__.pyi",
        "forerun/*/__init__.pyi",
        "benchmarks/*.py",
        "README.md",
    ):
        for path in ROOT.glob(pattern):
            written.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    unused = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sources()
        for node in parsed(path).definitions
        if not node.name.startswith("_") and not node.decorator_list and written[node.name] < 2
    ]
    called_by_libraries = [
        "simulator/cli/app.py: list_commands",
        "simulator/cli/output.py: on_broken_pipe",
        "simulator/serve/app.py: eof_received",
        "simulator/serving/compiled.py: engine_source",
    ]
    assert unused == called_by_libraries


def test_step_work_is_built_by_keyword():
    """Twelve columns of one type: by position two of them are easily exchanged."""
    built = [
        (path, node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "StepWork"
    ]
    assert len(built) > 5
    columns = [(path, node) for path, node in built if any(not isinstance(part, ast.Starred) for part in node.args)]
    assert [f"{path.relative_to(ROOT)}:{node.lineno}" for path, node in columns] == []


INTERFACE = {"register", "compute", "content", "main", "figure_data", "save"}
"""What every command module, every page of the dashboard, and every module of reports defines."""


def test_one_name_is_one_thing():
    """Public functions and classes have names of their own; a command may be called as the function that it runs."""
    places = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and "cli" not in path.parts and node.name not in INTERFACE:
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_folder_is_crowded():
    modules = Counter(path.parent for path in sources() if path.stem not in ("__init__", "__main__"))
    assert {str(folder.relative_to(ROOT)): count for folder, count in modules.items() if count > MOST_MODULES} == {}


def test_the_files_that_the_architecture_names_are_there():
    """Those of the table of touch points, and those of its text below ``simulator``."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert len(rows) >= 12
    named = [name for row in rows for name in re.findall(r"`([a-z_]+/[\w./]*)`", row)]
    assert len(named) >= 20
    assert [name for name in named if not (ROOT / name).exists()] == []


FACES = [stub for source in sources() if (stub := source.with_suffix(".pyi")).exists()]


@pytest.mark.parametrize("stub", FACES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_face_lends_what_its_stub_says(stub):
    package = ".".join(stub.parent.relative_to(ROOT).parts)
    lines = stub.read_text(encoding="utf-8").splitlines()
    places = lent_names(stub, package)
    others = [name for line in lines if line.endswith(" import *") for name in import_module(line.split()[1]).__all__]
    named = sum(not line.endswith(" import *") for line in lines)
    assert len(places) == named + len(others), "one name a line, each once: from module import name as name"
    # once such a module is imported, its package's attribute of that name is the module
    assert not {name for name in places if (stub.parent / f"{name}.py").exists() and places[name] != package}
    face = import_module(package)
    assert face.__all__ == sorted(places)
    added = installed_names() if package in ("forerun", "simulator") else ()
    assert dir(face) == sorted({*places, *added})
    for name, module in places.items():
        assert getattr(face, name) is getattr(import_module(module), name), name


@pytest.mark.parametrize("stub", FACES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_face_exports_is_documented(stub):
    """Lint asks no docstring of overrides, private helpers and trivial bodies; users read those of the public names."""
    face = import_module(".".join(stub.parent.relative_to(ROOT).parts))
    undocumented = []
    for name in face.__all__:
        value = getattr(face, name)
        generated = inspect.isclass(value) and (value.__doc__ or "").startswith(f"{name}(")  # by dataclass
        if (inspect.isclass(value) or inspect.isroutine(value)) and (generated or not value.__doc__):
            undocumented.append(name)
    assert undocumented == []
