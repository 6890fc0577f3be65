"""Inputs of a computation, from the imports of its module, and a cache keyed by them."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def cache_folder() -> Path | None:
    """Folder of kept results; None if ``FORERUN_CACHE`` is ``off``, or the system has no private folders."""
    chosen = os.environ.get("FORERUN_CACHE")
    if chosen in ("", "off") or os.name == "nt":
        return None
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(chosen or f"{base}/forerun").expanduser() / "validation"
    except RuntimeError:  # a user without a home
        return None


class Cache:
    """Rows of the record by part, each a file that names its part and its inputs' digest.

    Files that cannot be read or written are ignored, and so is a folder that other users own or may enter: a cache
    failure is not an error.
    """

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.taken = 0

    def get(self, part: str) -> list[ErrorRow] | None:
        """Cached rows computed from the same inputs, or None."""
        try:
            with self._private_folder() as folder:
                entry = os.open(self._file(part).name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
            with open(entry, encoding="utf-8") as file:
                document = json.load(file)
            same = (document["part"], document["digest"]) == (part, self.digest)
            rows = [ErrorRow(**row) for row in document["rows"]] if same else None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self.taken += rows is not None
        return rows

    def put(self, part: str, rows: Sequence[ErrorRow]) -> None:
        """Keep the rows of a part."""
        from simulator.running.metrics.files import write_text_atomically

        text = json.dumps({"part": part, "digest": self.digest, "rows": [asdict(row) for row in rows]})
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._private_folder():
                write_text_atomically(self._file(part), text)
        except OSError:
            return

    @contextmanager
    def _private_folder(self) -> Iterator[int]:
        """Open the folder.

        Raises:
            PermissionError: it is another user's, or other users may enter it.
        """
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            status = os.fstat(folder)
            if status.st_uid != os.getuid() or status.st_mode & 0o077:
                raise PermissionError(f"{self.folder}: is not private")
            yield folder
        finally:
            os.close(folder)

    def _file(self, part: str) -> Path:
        return self.folder / f"{hashlib.blake2b(part.encode(), digest_size=8).hexdigest()}.json"
