"""The mutation check itself: it draws fairly, tells noticed changes from unnoticed ones, and never touches a file."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutation.sample import allotted, changed_lines, known_equivalents, modules, wilson_interval
from mutation.suites import Suites

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_the_published_ones(hits, trials, low, high):
    """Newcombe, Statistics in Medicine 17 (1998), 857, table I, method 3."""
    assert wilson_interval(hits, trials) == pytest.approx((low, high), abs=5e-5)


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 300)),
    st.integers(0, 500),
)
def test_shares_are_proportional_to_the_last_one(sizes, count):
    shares = allotted(sizes, count)
    total = sum(sizes.values())
    assert sum(shares.values()) == min(count, total)
    for name, size in sizes.items():
        assert 0 <= shares[name] <= size
        assert abs(shares[name] - min(count, total) * size / max(total, 1)) < 1


def test_tests_of_the_line_come_first_and_then_their_kin():
    custom, far = "tests/simulator/timing/test_a.py", "tests/simulator/test_b.py"
    seconds = {
        f"{custom}::hit": 2.0,
        f"{custom}::near": 1.0,
        f"{far}::hit": 0.5,
        f"{far}::near": 0.1,
        "c.py::other": 9.0,
    }
    lines = {name: frozenset({3, 7} if "hit" in name else {7}) for name in seconds}
    suites = Suites(seconds, {"simulator/timing/work.py": lines})
    ask = ("simulator/timing/work.py", range(3, 4), range(1, 9))
    assert suites.for_lines(*ask, 100.0) == [f"{custom}::hit", f"{far}::hit", f"{custom}::near", f"{far}::near"]
    assert suites.for_lines(*ask, 2.5) == [f"{custom}::hit", f"{far}::hit"]
    assert suites.for_lines("simulator/timing/none.py", range(3), range(3), 9.0) == []


def test_a_broken_law_is_noticed_a_comment_is_not_and_files_stay_as_they_are():
    script = """
import json, sys
sys.path.insert(0, "tests")
from mutation.suites import prepare, try_source, ROOT
prepare()
module, suite = "simulator/timing/work.py", "tests/simulator/timing/test_step.py::"
code = (ROOT / module).read_text(encoding="utf-8")
tests = [suite + "test_causal_pairs_by_counting"]
broken = code.replace("(new_tokens + 1) // 2", "(new_tokens - 1) // 2")
assert broken != code
print(json.dumps([try_source(module, text, tests, limit)["fate"] for text, limit in (
    (code + "# more", 60), (broken, 60), (code + "raise KeyError", 60), (code + "while True: pass", 0))]))
assert (ROOT / module).read_text(encoding="utf-8") == code
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["survived", "killed", "invalid", "timeout"]


def test_known_equivalents_name_lines_that_exist():
    for module, before, after in known_equivalents():
        assert module in modules()
        text = (ROOT / module).read_text(encoding="utf-8")
        assert all(line in text for line in before.split(" / ")), f"{module} has no line {before!r} any more"
        assert before != after


def test_every_mutant_is_a_program_and_none_is_a_type():
    sites = pytest.importorskip("mutation.sites", reason="needs cosmic-ray")
    code = (
        "def half(x: int | None = 3, *, y: float = 2.0) -> int | None:\n    return x / y if x and not y > 1 else -x\n"
    )
    result = [mutant for site in sites.mutants_by_site(code) for mutant in site]
    changed = {changed_lines(code, mutant.source(code)) for mutant in result}
    assert len(changed) == len(result) > 15
    for _, after in changed:
        assert "int | None" in after or after.startswith("return")
    for mutant in result:
        ast.parse(mutant.source(code))
