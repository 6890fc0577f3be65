"""Builds the serving engine, the one module that is compiled. Everything else stands in pyproject.toml.

The parts of ``simulator/serving/engine`` are compiled together as ``simulator.serving._engine``, which holds the
checksum of their source, so that a stale one is noticed. Without a C compiler the package installs all the same and
interprets the source.
"""

import os
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ENGINE = Path("simulator", "serving", "compiled.py")
COMPILED = Path("build", "engine", "simulator", "serving", "_engine.py")
RECORD = Path("docs", "validation", "errors.json")
# No fused multiply-add: sums must round as the interpreter's do.
OPTIONS = [] if os.name == "nt" else ["-O3", "-g0", "-ffp-contract=off"]
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "embedsignature": False,
}


class BuildWhereItCan(build_ext):
    """Builds the engine, or says why not: without it the package works all the same."""

    def build_extension(self, ext: Extension) -> None:
        """Compile; whatever goes wrong (no compiler, no headers of Python) leaves the source to be interpreted."""
        try:
            super().build_extension(ext)
        except Exception as error:
            self.warn(f"the serving engine is not compiled and will be interpreted ({error})")


def engine() -> list[Extension]:
    """The extension, as C; none where Cython is missing."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    unit = runpy.run_path(str(ENGINE))
    marked = unit["engine_source"]().replace('SOURCE = "interpreted"', f'SOURCE = "{unit["engine_checksum"]()}"', 1)
    COMPILED.parent.mkdir(parents=True, exist_ok=True)
    if not COMPILED.exists() or COMPILED.read_text() != marked:
        COMPILED.write_text(marked)
    extension = Extension("simulator.serving._engine", [str(COMPILED)], extra_compile_args=OPTIONS, optional=True)
    extensions: list[Extension] = cythonize([extension], compiler_directives=DIRECTIVES, quiet=True)
    return extensions


class WithRecord(build_py):
    """Puts the errors on record, which the documentation holds, beside what shows them."""

    def run(self) -> None:
        """Copy them into what is installed."""
        super().run()
        place = Path(self.build_lib, "dashboards")
        if RECORD.is_file() and place.is_dir():
            self.copy_file(str(RECORD), str(place / RECORD.name))


setup(ext_modules=engine(), cmdclass={"build_ext": BuildWhereItCan, "build_py": WithRecord})
