"""What a computation depends on, found from the imports of its module, and a cache that is keyed by it."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dashboards.recorded_errors import ErrorRow

ROOT = Path(__file__).resolve().parents[1]
"""Folder that holds the packages."""
LIBRARIES = ("numpy", "scipy", "simpy", "pydantic", "PyYAML", "pyarrow")


def modules_below(module: str, root: Path = ROOT) -> set[Path]:
    """Source files that importing and running a module may read: those it imports, theirs, and every ``__init__``.

    Imports inside functions count; modules of other packages do not.
    """
    modules: set[Path] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        while name:
            place = root.joinpath(*name.split("."))
            file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
            for source in (file, file.with_suffix(".pyi")):  # a stub says where a face's lazy names live
                if source.is_file() and source not in modules:
                    modules.add(source)
                    waiting += _imported(source)
            name = name.rpartition(".")[0]
    return modules


def _imported(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@cache
def digest_of(module: str, root: Path = ROOT) -> str:
    """A number that changes with any source below a module, any data file beside one, Python and its libraries."""
    sources = modules_below(module, root)
    data = {path for folder in {file.parent for file in sources} for path in folder.rglob("*") if path.is_file()}
    data = {path for path in data if path.suffix not in (".py", ".pyc", ".pyi", ".tmp")}
    total = hashlib.blake2b(digest_size=16)
    total.update(repr([platform.python_version(), platform.machine(), *map(_version, LIBRARIES)]).encode())
    for path in sorted(sources | data):
        total.update(f"\0{path.relative_to(root)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def _version(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return library


class Cache:
    """Rows of the record by part, each a file that names the digest of what it was computed from.

    Files that cannot be read or written are ignored: a cache failure is not an error.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.taken = 0

    def get(self, part: str) -> list[ErrorRow] | None:
        """Cached rows computed from the same inputs, or None."""
        try:
            document = json.loads(self._file(part).read_text(encoding="utf-8"))
            rows = [ErrorRow(**row) for row in document["rows"]] if document["digest"] == self.digest else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self.taken += rows is not None
        return rows

    def put(self, part: str, rows: Sequence[ErrorRow]) -> None:
        """Keep the rows of a part."""
        from simulator.running.metrics.files import write_text_atomically

        text = json.dumps({"digest": self.digest, "rows": [asdict(row) for row in rows]})
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text_atomically(self._file(part), text)
        except OSError:
            return

    def _file(self, part: str) -> Path:
        return self.folder / f"{hashlib.blake2b(part.encode(), digest_size=8).hexdigest()}.json"
