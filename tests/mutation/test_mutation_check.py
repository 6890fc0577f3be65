"""The mutation check itself: it draws fairly, asks the tests of the line first, and its equivalents are still there."""

from pathlib import Path
from types import SimpleNamespace

from mutation.mutants import PACKAGES, ROOT, before_and_after, changed_lines, chosen_tests, drawn, known_equivalents

DIFF = """\
--- a/simulator/timing/work.py
+++ b/simulator/timing/work.py
@@ -40,2 +40 @@ def causal_pairs():
-    return (a
-        + 1)
+    return a - 1
"""


def test_a_diff_tells_the_file_the_lines_and_the_change():
    assert changed_lines(DIFF) == ("simulator/timing/work.py", range(40, 42))
    assert before_and_after(DIFF) == ("return (a / + 1)", "return a - 1")


def test_tests_of_the_line_come_first_and_as_many_as_there_is_time_for():
    own, far = "tests/simulator/timing/test_a.py", "tests/simulator/test_b.py"
    seconds = {f"{own}::slow": 2.0, f"{own}::quick": 1.0, f"{far}::quick": 0.5}
    contexts = {3: [f"{own}::slow|run", f"{far}::quick|run", ""], 7: [f"{own}::quick|setup"]}
    ask = ("simulator/timing/work.py", range(3, 4), contexts, seconds)
    assert chosen_tests(*ask, 9.0) == [f"{own}::slow", f"{far}::quick"]
    assert chosen_tests(*ask, 1.0) == [f"{own}::slow"]
    on_import = chosen_tests("simulator/timing/work.py", range(1, 2), contexts, seconds, 9.0)
    assert on_import == [f"{own}::quick", f"{own}::slow", f"{far}::quick"]
    assert chosen_tests("simulator/timing/none.py", range(3), {}, seconds, 9.0) == []


def test_a_sample_has_one_mutant_of_each_place_and_is_repeatable():
    spots = [(Path(f"m{n % 3}.py"), (n // 6, 0), f"core/{n % 2}") for n in range(60)]
    items = [
        SimpleNamespace(
            mutations=[SimpleNamespace(module_path=m, start_pos=s, end_pos=s, operator_name=o, occurrence=n)]
        )
        for n, (m, s, o) in enumerate(spots)
    ]
    sample = drawn(items, 12, 1)
    assert [item.mutations[0] for item in drawn(reversed(items), 12, 1)] == [item.mutations[0] for item in sample]
    assert len({(item.mutations[0].module_path, item.mutations[0].start_pos) for item in sample}) == 12
    assert len(drawn(items, 1000, 1)) == len({(module, start) for module, start, _ in spots})
    assert {str(item.mutations[0].module_path) for item in drawn(items, 1000, 2, ["m1"])} == {"m1.py"}


def test_known_equivalents_name_lines_that_exist():
    for module, before, after in known_equivalents():
        assert module.startswith(PACKAGES)
        text = (ROOT / module).read_text(encoding="utf-8")
        assert all(line in text for line in before.split(" / ")), f"{module} has no line {before!r} any more"
        assert before != after
