"""No test asks how long something took: a busy machine is no failure."""

import ast
from pathlib import Path

from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
CLOCKS = {"time", "perf_counter", "monotonic", "process_time", "perf_counter_ns", "monotonic_ns", "time_ns"}


def reads_clock(node: ast.AST) -> bool:
    """True if an expression calls a clock of the ``time`` module."""
    called = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        isinstance(function, ast.Attribute)
        and function.attr in CLOCKS
        and isinstance(function.value, ast.Name)
        and function.value.id == "time"
        for function in called
    )


def judged_by_a_clock(source: str) -> list[int]:
    """Lines of assertions that read a clock."""
    return [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert) and reads_clock(node)]


def test_examples_have_no_deadline():
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check


def test_no_assertion_reads_a_clock():
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        assert judged_by_a_clock(source) == [], path
        profiles = [line for line in source.splitlines() if "deadline=" in line and "deadline=None" not in line]
        assert profiles == [], path


def test_a_clock_in_an_assertion_is_seen():
    assert judged_by_a_clock("import time\nbefore = time.time()\nassert time.time() - before < 3\n") == [3]
