"""Tests that decide about mutants: which lines each runs, which to take for a mutant, and their run in a fork."""

import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("simulator/timing", "simulator/speculation")
OWN_SUITES = ("tests/simulator/timing", "tests/simulator/speculation")
LEFT_OUT = ("tests/simulator/test_faults.py",)
"""Runs other processes, which do not see a mutant."""
MEMORY_BYTES = 8 << 30
HEAVY = (
    "numpy",
    "scipy.stats",
    "scipy.optimize",
    "pydantic",
    "yaml",
    "simpy",
    "pyarrow.parquet",
    "plotly.graph_objects",
    "pytest",
    "hypothesis",
    "typer",
    "rich.console",
)
"""Loaded once, before processes are forked: what no mutant touches."""


def prepare() -> None:
    """Loads what no mutant touches, once, before processes are forked; makes hypothesis and threads repeatable."""
    os.chdir(ROOT)
    os.environ["CI"] = "1"
    os.environ["FORERUN_SHARED"] = str(ROOT / "out" / "no-measured-data-here")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    for path in (str(ROOT / "tests"), str(ROOT)):
        if path not in sys.path:
            sys.path.insert(0, path)
    for name in HEAVY:
        importlib.import_module(name)


def test_files() -> list[str]:
    """Files of the deciding suites, relative to the root."""
    result = [path for suite in OWN_SUITES for path in sorted((ROOT / suite).glob("test_*.py"))]
    result += sorted((ROOT / "tests" / "simulator").glob("test_*.py"))
    return [name for path in result if (name := path.relative_to(ROOT).as_posix()) not in LEFT_OUT]


def in_child(work: Callable[[], Any], cpu_s: float) -> tuple[Any, str]:
    """Result of ``work`` in a forked process, and ``"done"``, ``"timeout"`` or ``"died"``.

    A child that uses more than ``cpu_s`` processor seconds, or six times that and a minute by the clock, is ended.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.setsid()
            sys.dont_write_bytecode = True
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 6))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            silent = os.open(os.environ.get("MUTATION_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            payload = json.dumps(work()).encode()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(payload)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    os.set_blocking(reader, False)
    begin, chunks, late = time.monotonic(), [], False
    while True:
        try:
            chunk = os.read(reader, 1 << 20)
            if not chunk:
                break
            chunks.append(chunk)
        except BlockingIOError:
            time.sleep(0.02)
        if time.monotonic() - begin > 6 * cpu_s + 60:
            late = True
            break
    os.close(reader)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if chunks and not late:
        return json.loads(b"".join(chunks)), "done"
    ended = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return None, "timeout" if late or ended else "died"


@dataclass(frozen=True)
class MutantFinder(MetaPathFinder):
    """Gives one module another source; no file is touched."""

    module: str
    path: Path
    source: str

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Spec of the changed module, nothing for any other."""
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=ChangedLoader(fullname, str(self.path), self.source)
        )


class ChangedLoader(SourceFileLoader):
    """Loads a module from a source in memory."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self.changed = source

    def get_code(self, fullname: str) -> CodeType:
        """The changed source, compiled."""
        return compile(self.changed, self.path, "exec")


@dataclass(eq=False)
class Watch:
    """A pytest plugin: runs chosen tests in a given order, notes how long each took and which failed first."""

    chosen: Sequence[str] | None = None
    context: Callable[[str], None] = lambda name: None
    seconds: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    passed: int = 0

    def pytest_sessionstart(self) -> None:
        """Tests do not depend on the load of the machine, and a failing example is not made smaller."""
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutants",
            settings.get_profile("repeatable"),
            deadline=None,
            database=None,
            phases=(Phase.explicit, Phase.generate),
        )
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keeps what was chosen, in that order."""
        if self.chosen is not None:
            rank = {name: place for place, name in enumerate(self.chosen)}
            items[:] = sorted((item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid])

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """A test begins, with its fixtures."""
        self.context(nodeid)
        self.seconds[nodeid] = time.process_time()

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        """A test has ended, with its fixtures."""
        self.seconds[nodeid] = round(time.process_time() - self.seconds[nodeid], 4)
        self.context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts what passed and keeps the first failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid
        self.passed += report.passed and report.when == "call"

    def pytest_collectreport(self, report: Any) -> None:
        """A file that cannot be collected is a failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid


def run_pytest(files: Sequence[str], watch: Watch) -> int:
    """Exit status of pytest on some files, in this process, ended by the first failure."""
    import pytest

    plain = ["-x", "-q", "-n", "0", "--dist", "no", "-p", "no:cacheprovider"]
    plain += ["-W", "ignore:Module already imported"]
    return int(pytest.main([*plain, *files], plugins=[watch]))


def covered_lines(file: str) -> dict[str, Any]:
    """What one test file covers, run in a process of its own so that no cache of another file hides a line."""
    import coverage

    cov = coverage.Coverage(data_file=None, source=[str(ROOT / capacity) for capacity in PACKAGES])
    cov.start()
    watch = Watch(context=lambda name: cov.switch_context(name) if name else cov.switch_context("between tests"))
    status = run_pytest([file], watch)
    cov.stop()
    data = cov.get_data()
    lines: dict[str, dict[str, list[int]]] = {}
    for path in data.measured_files():
        module = Path(path).relative_to(ROOT).as_posix()
        for line, names in data.contexts_by_lineno(path).items():
            for name in names:
                if "::" in name:
                    lines.setdefault(module, {}).setdefault(name, []).append(line)
    return {"status": status, "failed": watch.failed, "seconds": watch.seconds, "lines": lines}


@dataclass(frozen=True)
class Suites:
    """Processor seconds of every test, and by module the lines that every test covers."""

    seconds: dict[str, float]
    lines: dict[str, dict[str, frozenset[int]]]

    def for_lines(self, module: str, statement: range, function: range, budget_s: float) -> list[str]:
        """Tests that can kill a mutant, likeliest first, as many as fit into ``budget_s`` processor seconds.

        First those that run the statement (the function, or the module, where it runs on import), then those that
        share a file with them (a result may have been kept from the test before) or stand in the package's own suite
        and run the module. Within each, files that take least time come first.
        """
        by_test = self.lines.get(module, {})
        direct = {name for name, lines in by_test.items() if lines & set(statement)} if function else set()
        direct = direct or {name for name, lines in by_test.items() if lines & set(function)}
        direct = direct or set(by_test)
        custom = f"tests/{Path(module).parts[0]}/{Path(module).parts[1]}/"
        files = {name.split("::")[0] for name in direct}
        if not function:  # a declaration may act without a line of its module being run again
            direct = {
                name for name in self.seconds if name.split("::")[0] in files and name.startswith(custom)
            } or direct
        kin = {name for name in by_test if name.split("::")[0] in files or name.startswith(custom)} - direct
        chosen, spent = [], 0.0
        for group in (direct, kin):
            totals: dict[str, float] = {}
            for name in group:
                totals[name.split("::")[0]] = totals.get(name.split("::")[0], 0.0) + self.seconds[name]

            def rank(name: str, totals: dict[str, float] = totals) -> tuple[Any, ...]:
                file = name.split("::")[0]
                return (not name.startswith(custom), totals[file], file, self.seconds[name], name)

            for name in sorted(group, key=rank):
                if not chosen or spent + self.seconds[name] <= budget_s:
                    chosen.append(name)
                    spent += self.seconds[name]
        return chosen


def measure_suites(report: Callable[[str], None]) -> Suites:
    """Runs every deciding file once, without a mutant; all must pass."""
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, frozenset[int]]] = {}
    for file in test_files():
        result, ended = in_child(lambda file=file: covered_lines(file), 600)
        if ended != "done" or result["status"] not in (0, 5):
            raise SystemExit(f"{file}: does not pass without a mutant ({ended}: {result and result['failed']})")
        seconds |= result["seconds"]
        for module, tests in result["lines"].items():
            for name, covered in tests.items():
                lines.setdefault(module, {})[name] = frozenset(covered)
        report(f"{file}: {len(result['seconds'])} tests, {sum(result['seconds'].values()):.1f} CPU s")
    return Suites(seconds, lines)


def try_source(module: str, source: str, tests: Sequence[str], cpu_s: float) -> dict[str, Any]:
    """Fate of a changed module: ``killed``, ``survived``, ``timeout``, ``invalid`` (no import) or ``unclear``."""

    def work() -> dict[str, Any]:
        name = module.removesuffix(".py").replace("/", ".")
        sys.meta_path.insert(0, MutantFinder(name, ROOT / module, source))
        try:
            importlib.import_module(name)
        except Exception as error:
            return {"fate": "invalid", "by": f"{type(error).__name__}: {error}"[:200]}
        watch = Watch(chosen=tests)
        status = run_pytest(sorted({test.split("::")[0] for test in tests}), watch)
        fate = {0: "survived", 1: "killed", 2: "killed"}.get(status, "unclear")
        return {"fate": fate, "by": watch.failed, "passed": watch.passed}

    result, ended = in_child(work, cpu_s)
    if ended == "done":
        return dict(result)
    return {"fate": "timeout" if ended == "timeout" else "killed", "by": f"process {ended}"}
